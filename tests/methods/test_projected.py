"""EigenPro 3 and 4: iterations against naive ones, and their fixed points."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.spatial.distance import cdist

from eigenkern.arrays.machine import machine_of
from eigenkern.kernels import Gaussian, Laplacian
from eigenkern.methods.projected import (
    Batch,
    CenterFactor,
    ExactProjection,
    InexactProjection,
    Iterate,
    projected,
    projected_exactly,
)
from eigenkern.operators.cached import cached
from eigenkern.operators.tiled import TiledKernel
from eigenkern.plan.sizes import factor_pays, projection_interval
from eigenkern.preconditioners.global_spectral import GlobalSpectral
from eigenkern.preconditioners.spectral import CenterSpectral
from eigenkern.problems.closed_form import Sample

KERNEL = Laplacian(3.0)


def naive_kernel(X, Z):
    return np.exp(-cdist(X, Z) / 3.0)


class Case:
    """Rows, targets of two outputs, weights, centers, and a preconditioner."""

    def __init__(self, rng, n=90, p=24, c=15, q=4):
        self.X, self.Z = rng.standard_normal((n, 3)), rng.standard_normal((p, 3))
        self.Y = np.column_stack([np.sin(self.X[:, 0]), self.X[:, 1]])
        self.Y = self.Y - self.Y.mean(axis=0)
        self.w = rng.uniform(0.5, 1.5, n)
        self.w /= self.w.mean()
        self.K, self.K_zz = naive_kernel(self.X, self.Z), naive_kernel(self.Z, self.Z)
        self.centers = TiledKernel(KERNEL, self.Z)
        sample = Sample(self.centers, self.X)
        self.preconditioner = CenterSpectral.of(
            self.centers, sample, n, c, q, weights=self.w
        )

    def batches(self, m):
        for i in range(0, len(self.X), m):
            b = slice(i, min(i + m, len(self.X)))
            rows = self.X[b]
            yield Batch(self.centers.rows(rows), rows, self.Y[b], self.w[b])

    def exact_projection(self):
        return ExactProjection(CenterFactor(self.centers), self.preconditioner)

    def solver(self, iterate, m, interval, step, project=None, **options):
        project = project or self.exact_projection()
        return projected(
            partial(self.batches, m),
            self.centers,
            self.preconditioner,
            project,
            iterate=iterate,
            batch_size=m,
            interval=interval,
            step_size=step,
            zero_loss=float(np.mean(self.w * np.sum(self.Y**2, axis=1))),
            **options,
        )

    def least_squares(self):
        root = np.sqrt(self.w)[:, None]
        return np.linalg.lstsq(root * self.K, root * self.Y, rcond=None)[0]


@pytest.fixture
def case(rng):
    return Case(rng)


@pytest.fixture
def start(case):
    return Iterate.of(np.zeros((24, 2)))


def naive_epochs(case, m, interval, step, n_epochs):
    """EigenPro 4 by its definition: functions are lists of points and coefficients."""
    V, D = case.preconditioner.vectors, np.diag(case.preconditioner.scales)
    Z_c, n = case.Z[: len(V)], len(case.X)
    a, losses = np.zeros((24, 2)), []
    for _ in range(n_epochs):
        points, coefs, loss, n_batches = [], [], 0.0, 0

        def f(X, a, points, coefs):
            F = naive_kernel(X, case.Z) @ a
            for P, b in zip(points, coefs, strict=True):
                F = F + naive_kernel(X, P) @ b
            return F

        for i in range(0, n, m):
            X, Y, w = case.X[i : i + m], case.Y[i : i + m], case.w[i : i + m, None]
            error = f(X, a, points, coefs) - Y
            loss += np.sum(w * error**2)
            g = step / m * w * error
            points += [X, Z_c]
            coefs += [-g, V @ D @ V.T @ naive_kernel(Z_c, X) @ g]
            n_batches += 1
            if n_batches % interval == 0 or i + m >= n:
                values = f(case.Z, a, points, coefs)
                a = np.linalg.solve(case.K_zz, values)
                points, coefs = [], []
        losses.append(loss / n / 2)
    return a, losses


@pytest.mark.parametrize("interval", [1, 3, 4])
@pytest.mark.parametrize("m", [7, 30])
def test_steps_are_those_of_the_definition(m, interval, case, start):
    solver = case.solver(start, m, interval, 5.0)
    states = [next(solver) for _ in range(2)]
    expected, losses = naive_epochs(case, m, interval, 5.0, 2)
    assert_allclose(start.coef, expected, rtol=1e-8, atol=1e-10)
    assert_allclose([state.loss for state in states], losses, rtol=1e-10)


def test_eigenpro_4_with_an_interval_of_one_is_eigenpro_3(case, start):
    # Algorithm 2 of the paper, with the preconditioner in the span of the centers.
    V, D = case.preconditioner.vectors, np.diag(case.preconditioner.scales)
    c, step, m = len(V), 5.0, 10
    C = case.K_zz[:, :c] @ V @ D @ V.T
    a = np.zeros((24, 2))
    for i in range(0, 90, m):
        K, w = case.K[i : i + m], case.w[i : i + m, None]
        g = w * (K @ a - case.Y[i : i + m])
        h = K.T @ g - C @ K[:, :c].T @ g
        a = a - step / m * np.linalg.solve(case.K_zz, h)
    next(case.solver(start, m, 1, step))
    assert_allclose(start.coef, a, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("q", [12, 18, 23])
def test_fixed_point_is_least_squares_whatever_the_preconditioner(q, rng):
    case = Case(rng, c=24, q=q)
    assert case.preconditioner.n_components == q
    start = Iterate.of(np.zeros((24, 2)))
    step = 1.0 / float(case.preconditioner.eigenvalues[-1])
    solver = case.solver(start, 90, 1, step, try_half_steps=False)
    for _ in range(2000):
        state = next(solver)
    assert state.n_step_halvings == 0
    expected = case.least_squares()
    assert_allclose(case.K @ start.coef, case.K @ expected, atol=1e-6)


def test_algorithm_1_converges_to_the_fixed_point_of_lemma_6(case, start):
    n, q = 90, 20
    K_xx = naive_kernel(case.X, case.X)
    values, E = (part[..., ::-1] for part in np.linalg.eigh(K_xx))
    E = E[:, :q]
    Q = E @ np.diag(1 - values[q] / values[:q]) @ E.T
    weighted = case.K.T @ (np.eye(n) - Q)
    expected = np.linalg.solve(weighted @ case.K, weighted @ case.Y)
    values = values[: q + 1] / n
    made = GlobalSpectral(E, values, 1.0, K_xx @ E)
    solver = projected_exactly(
        case.K,
        case.Y,
        np.ones(n),
        made,
        case.exact_projection(),
        iterate=start,
        step_size=1.0 / values[-1],
    )
    for _ in range(3000):
        state = next(solver)
    assert state.n_step_halvings == 0
    assert_allclose(state.coef, expected, rtol=1e-6, atol=1e-6)
    # This is not least squares.
    least = np.linalg.lstsq(case.K, case.Y, rcond=None)[0]
    assert np.abs(case.K @ (state.coef - least)).max() > 1e-3


def test_weights_are_repetition_in_full_batches(rng):
    def coef(case, m):
        iterate = Iterate.of(np.zeros((24, 2)))
        solver = case.solver(iterate, m, 1, 3.0, try_half_steps=False)
        for _ in range(5):
            next(solver)
        return iterate.coef

    one, other = Case(rng), Case(rng)
    repeats = np.arange(90) % 3
    one.w = repeats * 90 / repeats.sum()
    other.X, other.Y, other.Z = (
        np.repeat(one.X, repeats, axis=0),
        np.repeat(one.Y, repeats, axis=0),
        one.Z,
    )
    other.w, other.centers = np.ones(len(other.X)), one.centers
    other.preconditioner = one.preconditioner
    assert_allclose(coef(one, 90), coef(other, len(other.X)), rtol=1e-9)


def test_guard_goes_back_and_halves_a_step_that_is_too_long(case, start):
    solver = case.solver(start, 10, 3, 1e6)
    for _ in range(30):
        state = next(solver)
    assert state.n_step_halvings > 5
    assert not state.failed
    residual = np.sum(case.w[:, None] * (case.K @ state.coef - case.Y) ** 2)
    assert residual < 0.2 * np.sum(case.w[:, None] * case.Y**2)


def test_mean_of_the_iterates(case, start):
    assert start.n_projections == 0
    seen = []
    for k in range(1, 6):
        change = np.full((24, 2), float(k))
        start.add(change, np.zeros((24, 2)))
        seen.append(start.coef[0, 0])
        weights = [(t + 1) * (t + 2) * (t + 3) for t in range(k)]
        assert_allclose(start.mean, np.average(seen, weights=weights), rtol=1e-12)


# The preconditioner


def test_eigenfunctions_are_those_of_the_kernel_in_the_span(rng):
    case = Case(rng, c=24, q=23)
    V, values = case.preconditioner.vectors, case.preconditioner.eigenvalues
    assert_allclose(V.T @ case.K_zz @ V, np.eye(23), atol=1e-9)
    L = np.linalg.cholesky(case.K_zz)
    M = np.linalg.solve(L, case.K.T * np.sqrt(case.w / case.w.sum()))
    assert_allclose(values, np.linalg.eigvalsh(M @ M.T)[::-1], rtol=1e-8)
    # With all eigenvectors the projected kernel becomes flat.
    P = M.T @ M
    F = (case.K @ V) * np.sqrt(case.w / case.w.sum())[:, None]
    flat = np.linalg.eigvalsh(P - F @ np.diag(case.preconditioner.scales) @ F.T)
    assert_allclose(flat[-24:], values[-1], rtol=1e-6)
    assert_allclose(flat[:-24], 0, atol=1e-9)


def test_preconditioner_of_few_centers_and_of_copies(rng):
    case = Case(rng)
    Z = np.concatenate([case.Z[:5], case.Z[:5]])
    centers = TiledKernel(KERNEL, Z)
    sample = Sample(centers, case.X)
    made = CenterSpectral.of(centers, sample, 90, 10, 8)
    assert made.n_components == 4  # five functions, of which one is the level
    assert np.isfinite(made.vectors).all()
    assert_allclose(made.vectors.T @ KERNEL(Z) @ made.vectors, np.eye(4), atol=1e-9)


# The projections


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_exact_projection(dtype, rng):
    Z, X = (rng.standard_normal((k, 4)).astype(dtype) for k in (60, 25))
    centers = TiledKernel(Gaussian(2.0), Z)
    u = rng.standard_normal((25, 3)).astype(dtype)
    K = naive_gaussian_matrix(Z, Z)
    h = (naive_gaussian_matrix(Z, X) @ u).astype(dtype)
    theta, rest = ExactProjection(CenterFactor(centers))(h)
    assert theta.dtype == rest.dtype == dtype
    assert not rest.any()
    tolerance = 1e-10 if dtype == np.float64 else 1e-3
    assert_allclose(K @ theta, h, atol=tolerance * np.abs(h).max())


def naive_gaussian_matrix(X, Z):
    return np.exp(-(cdist(X, Z) ** 2) / 8)


def test_whitened_rows_have_the_projected_kernel(case):
    C = CenterFactor(case.centers).whiten(case.K)
    assert_allclose(C @ C.T, case.K @ np.linalg.solve(case.K_zz, case.K.T), atol=1e-9)


def test_inexact_projection_is_orthogonal_and_returns_the_rest(rng):
    Z, X = rng.standard_normal((300, 4)), rng.standard_normal((80, 4))
    centers, K = TiledKernel(KERNEL, Z), naive_kernel(Z, Z)
    h = naive_kernel(Z, X) @ rng.standard_normal((80, 2))
    sample = Sample(centers, X)
    P = CenterSpectral.of(centers, sample, 80, 300, 30)
    project = InexactProjection(centers, P)
    theta, rest = project(h)
    assert_allclose(rest, h - K @ theta, atol=1e-9 * np.abs(h).max())
    relative = np.linalg.norm(rest, axis=0) / np.linalg.norm(h, axis=0)
    assert_allclose(project.residual, relative.max(), rtol=1e-6)
    assert project.residual <= 0.2
    # The result is never larger than the projected function.
    exact = np.linalg.solve(K, h)
    norms = [np.sum(t * (K @ t), axis=0) for t in (theta, exact)]
    assert (norms[0] <= norms[1] * (1 + 1e-9)).all()
    error = theta - exact
    assert_allclose(np.sum(error * (K @ error), axis=0), norms[1] - norms[0], rtol=1e-6)


def test_inexact_projection_of_nothing(case):
    project = InexactProjection(case.centers, case.preconditioner)
    theta, rest = project(np.zeros((24, 2)))
    assert not theta.any()
    assert not rest.any()


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("tolerance", [0.2, 1e-6])
def test_inexact_projections_lead_where_exact_ones_do(
    tolerance, interval, case, monkeypatch
):
    monkeypatch.setattr("eigenkern.methods.projected._TOLERANCE", tolerance)
    monkeypatch.setattr("eigenkern.methods.projected._MAX_PRODUCTS", 20)
    inexact = InexactProjection(case.centers, case.preconditioner)
    values = []
    for project in (case.exact_projection(), inexact):
        iterate = Iterate.of(np.zeros((24, 2)))
        solver = case.solver(iterate, 15, interval, 10.0, project)
        for _ in range(30):
            state = next(solver)
        assert state.n_step_halvings == 0
        values.append(case.K @ state.coef)
    assert 0 < inexact.residual <= tolerance
    assert_allclose(*values, atol=1e-4 if tolerance == 1e-6 else 0.05)
    losses = [np.sum(case.w[:, None] * (F - case.Y) ** 2) for F in values]
    assert_allclose(losses[1], losses[0], rtol=0.01)


def projection(centers, P, n_rows, cache_size):
    """Return the projection for three features and two outputs."""
    if factor_pays(centers, 3, 2, n_rows, cache_size):
        return ExactProjection(CenterFactor(centers), P)
    (centers,), _ = cached([centers], cache_size, int(n_rows) // len(P.vectors), 3)
    return InexactProjection(centers, P)


def test_projection_is_exact_where_it_fits_and_pays(case):
    P = case.preconditioner
    exact = projection(case.centers, P, 1000, 1.0)
    assert isinstance(exact, ExactProjection)
    h = case.K_zz @ np.ones((24, 2))
    assert_allclose(exact(h)[0], 1.0, rtol=1e-8)
    assert isinstance(projection(case.centers, P, 1000, 0), InexactProjection)
    # A factor of two thousand centers does not pay for three rows.
    Z = np.random.default_rng(0).standard_normal((2000, 3))
    few = projection(TiledKernel(KERNEL, Z), P, 3, "auto")
    assert isinstance(few, InexactProjection)


# With few features, the largest interval; with more features, shorter ones.
@pytest.mark.parametrize(
    "p, m", [(100, 200), (10_000, 100), (10_000, 700), (3000, 100), (300, 1)]
)
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("d", [50, 784, 5000])
def test_projection_interval_is_the_cheapest(d, exact, p, m):
    """Multiply-adds of T batches and one projection, counted batch by batch."""
    n_outputs = 10
    centers = TiledKernel(KERNEL, np.zeros((1, d)))
    centers.shape, machine = (p, p), machine_of(centers)
    width = d + 2 * n_outputs + machine.function_work
    # Reading a triangular factor twice, or three products with K(Z, Z).
    cost = p * p * (machine.factor_reading_work + n_outputs)
    if not exact:
        cost = 3 * p * p * width

    def cost_of_a_batch(interval):
        # Batch t is multiplied with the rows of t batches since the last projection.
        temporary = sum(m * t * m * width for t in range(interval))
        return (temporary + cost) / interval

    factor = object() if exact else None
    interval = projection_interval(centers, factor, m, d, n_outputs)
    allowed = range(1, max(p // m, 1) + 1)
    assert interval in allowed
    least = min(cost_of_a_batch(other) for other in allowed)
    assert cost_of_a_batch(interval) <= 1.02 * least
