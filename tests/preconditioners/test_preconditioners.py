"""The spectral preconditioner and its measurement against dense linear algebra."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose

from eigenkern.arrays import memory
from eigenkern.arrays.array import to_numpy
from eigenkern.kernels import Gaussian, Laplacian, Linear
from eigenkern.methods.epochs import step_on_rows
from eigenkern.operators.centered import CenteredFeatures
from eigenkern.operators.matrix import GivenMatrix
from eigenkern.plan.spectrum import HeldOutSpectrum
from eigenkern.preconditioners.global_spectral import GlobalSpectral
from eigenkern.preconditioners.spectral import LinearSpectral, Spectral

S, N = 80, 150


@pytest.fixture
def rows(rng):
    X = rng.standard_normal((S + N, 3))
    return X[:S], X[S:]


@pytest.fixture(params=[False, True], ids=["plain", "weighted"])
def weights(request, rng):
    """Weights of the subsample and of held-out rows, one of them zero."""
    if not request.param:
        return None, None
    w = rng.exponential(size=S + N)
    w[[3, S + 3]] = 0.0
    return w[:S], w[S:]


def preconditioned(K_xz, K_xs, K_sz, P):
    """The dense k_P(X, Z) by its definition."""
    return K_xz - K_xs @ P.vectors @ np.diag(P.scales) @ P.vectors.T @ K_sz


def spectral(K_s, q, **options):
    """Return the preconditioner of a whole kernel matrix."""
    return Spectral.of(GivenMatrix(K_s), K_s.shape[0], q, **options)


def root(weights, n):
    return np.sqrt(np.ones(n) if weights is None else weights)[:, None]


@pytest.mark.parametrize("damping", [1.0, 0.5])
@pytest.mark.parametrize("q", [0, 1, 20, S - 1])
def test_eigenvalues_are_lowered_to_the_next(q, damping, rows, weights):
    K = Laplacian(2.0)(rows[0])
    P = spectral(K, q, weights=weights[0], damping=damping)
    r = root(weights[0], S)
    sigma = np.linalg.eigvalsh(r * K * r.T)[::-1]
    lowered = np.linalg.eigvalsh(r * preconditioned(K, K, K, P) * r.T)[::-1]
    q = P.n_components
    # k_P has eigenvalues tau sigma_{q+1} in place of the first q.
    expected = np.sort(np.r_[[damping * sigma[q]] * q, sigma[q:]])[::-1]
    assert_allclose(lowered, expected, atol=1e-10 * sigma[0])
    assert_allclose(P.eigenvalues, sigma[: q + 1] / S, rtol=1e-8, atol=1e-15)


def test_attributes(rows):
    P = spectral(Gaussian()(rows[0]), 7)
    assert P.vectors.shape == (S, 7) and P.scales.shape == (7,)
    assert P.eigenvalues.shape == (8,) and np.all(np.diff(P.eigenvalues) <= 0)
    assert (P.n_components, P.subsample_size, P.damping) == (7, S, 1.0)


def test_correction_is_its_formula(rows, weights, rng):
    X_s, X = rows
    P = spectral(Gaussian()(X_s), 12, weights=weights[0], damping=0.9)
    K_bs, G = Gaussian()(X, X_s), rng.standard_normal((N, 4))
    expected, a = -G, np.zeros((N, 4))
    expected[:S] += P.vectors @ np.diag(P.scales) @ P.vectors.T @ K_bs.T @ G
    step_on_rows(None, P, a, slice(0, N), K_bs, G)
    assert_allclose(a, expected, atol=1e-10)


def test_scales_are_their_formula(rows):
    K = Laplacian()(rows[0])
    P = spectral(K, 12, damping=0.25)
    sigma = np.linalg.eigvalsh(K)[::-1]
    expected = (1 - 0.25 * sigma[12] / sigma[:12]) / sigma[:12]
    assert_allclose(P.scales, expected, rtol=1e-10)


@pytest.mark.parametrize("q", [0, 5, 12])
def test_truncate_is_a_smaller_preconditioner(q, rows, weights):
    K = Laplacian()(rows[0])
    P = spectral(K, 12, weights=weights[0], damping=0.7).truncate(q)
    expected = spectral(K, q, weights=weights[0], damping=0.7)
    assert P.n_components == q and P.damping == 0.7
    assert_allclose(P.scales, expected.scales, rtol=1e-9)
    assert_allclose(P.eigenvalues, expected.eigenvalues, rtol=1e-9)
    assert_allclose(abs(P.vectors), abs(expected.vectors), atol=1e-8)


def test_meaningless_eigenvalues_are_left_out(rng):
    X = rng.standard_normal((50, 3))
    # Rank three: the third eigenvalue is the level of the others.
    P = spectral(Linear()(X), 20)
    assert P.n_components == 2
    assert np.all(np.isfinite(P.scales)) and P.eigenvalues.shape == (3,)
    assert spectral(np.zeros((9, 9)), 4).n_components == 0
    assert spectral(-np.eye(9), 4).n_components == 0


def test_float32_stays_and_is_computed_in_float64(rows):
    K = Gaussian(3.0)(rows[0].astype(np.float32))
    P = spectral(K, 10)
    assert P.vectors.dtype == P.scales.dtype == P.eigenvalues.dtype == np.float32
    expected = spectral(K.astype(np.float64), 10)
    assert_allclose(P.scales, expected.scales, rtol=1e-6)


@pytest.mark.parametrize("q", [0, 5, 20])
def test_held_out_spectrum_is_its_definition(q, rows, weights):
    X_s, H = rows
    kernel = Laplacian(1.5)
    P = spectral(kernel(X_s), 20, weights=weights[0])
    K_hs = kernel(H, X_s)
    spectrum = HeldOutSpectrum(kernel(H), K_hs @ P.vectors, P, weights[1])
    beta, top = spectrum.measure([3, q])[1]
    G = preconditioned(kernel(H), K_hs, K_hs.T, P.truncate(q))
    r = root(weights[1], N)
    expected = np.linalg.eigvalsh(r * G * r.T / N)[-1]
    # Weights enter the noise of a step twice.
    noise = r**2 * np.sqrt(np.diagonal(G))[:, None]
    noisy = np.linalg.eigvalsh(noise * G * noise.T / N)[-1]
    assert_allclose(top, expected, rtol=0.01)
    assert_allclose(beta, noisy / expected, rtol=0.02)


def test_beta_of_a_normalised_kernel_is_one(rows):
    P = spectral(Gaussian()(rows[0]), 5)
    K_hs = Gaussian()(*rows[::-1])
    spectrum = HeldOutSpectrum(Gaussian()(rows[1]), K_hs @ P.vectors, P)
    assert_allclose(spectrum.measure([0])[0][0], 1.0, rtol=1e-10)


def test_spectrum_of_the_zero_kernel():
    P = spectral(np.zeros((5, 5)), 2)
    spectrum = HeldOutSpectrum(np.zeros((9, 9)), np.zeros((9, 0)), P)
    assert spectrum.measure([0])[0] == (0.0, 0.0)


def test_other_libraries_agree_with_numpy(other_xp, rows, weights):
    X_s, H = rows
    kernel = Laplacian(1.5)
    arrays = kernel(X_s), kernel(H), kernel(H, X_s), *weights

    def run(K_ss, K_hh, K_hs, w_s, w_h):
        P = spectral(K_ss, 10, weights=w_s)
        a = 0.0 * K_hs[:, :2]
        step_on_rows(None, P, a, slice(0, N), K_hs, K_hs[:, :2])
        return (
            to_numpy(P.scales),
            to_numpy(a),
            HeldOutSpectrum(K_hh, K_hs @ P.vectors, P, w_h).measure([6])[0],
        )

    expected = run(*arrays)
    found = run(*(None if a is None else other_xp.asarray(a) for a in arrays))
    # The last one is measured in single precision.
    for a, b, rtol in zip(found, expected, (1e-8, 1e-8, 1e-5), strict=True):
        assert_allclose(a, b, rtol=rtol, atol=1e-10)


def test_the_edge_of_full_batches_is_that_of_gradient_descent(rng):
    K = Gaussian(2.0)(rng.standard_normal((200, 4)))
    P = spectral(K[:80, :80], 10)
    spectrum = HeldOutSpectrum(K, K[:, :80] @ P.vectors, P)
    for q in (0, 10):
        truncated = P.truncate(q)
        U = K[:, :80] @ truncated.vectors
        top = np.linalg.eigvalsh(K - (U * truncated.scales) @ U.T)[-1]
        edge = 2 / (top / 200)
        for guess in (edge, edge / 50, 50 * edge):
            found = spectrum.largest_stable_step(q, 200, guess)
            assert edge / 2 ** (1 / 6) < found <= edge * (1 + 1e-3)


def test_the_edge_of_one_row_at_a_time(rng):
    """Independent rows are each stable up to 2 / (w k(x, x)); m = 1."""
    K = np.diag(rng.uniform(0.5, 2.0, size=60))
    weights = rng.uniform(0.5, 1.5, size=60)
    P = spectral(K[:10, :10], 0)
    spectrum = HeldOutSpectrum(K, K[:, :10] @ P.vectors, P, weights)
    edge = 2 / np.max(weights * np.diag(K))
    found = spectrum.largest_stable_step(0, 1, edge)
    assert edge / 2 ** (1 / 6) < found <= edge * (1 + 1e-3)


def test_the_edge_scales_with_the_kernel(rng):
    K = Gaussian(2.0)(rng.standard_normal((200, 4))).astype(np.float32)
    P = spectral(K[:80, :80], 10)
    one = HeldOutSpectrum(K, K[:, :80] @ P.vectors, P)
    edge = one.largest_stable_step(10, 25, 100.0)
    scale = np.float32(2.0**80)
    scaled = spectral(scale * K[:80, :80], 10)
    other = HeldOutSpectrum(scale * K, scale * K[:, :80] @ scaled.vectors, scaled)
    assert_allclose(
        float(scale) * other.largest_stable_step(10, 25, 100.0 / float(scale)), edge
    )
    beta, top = one.measure([10])[0]
    assert_allclose(np.divide(other.measure([10])[0], scale), (beta, top), rtol=1e-3)


SOLVERS = ["nystrom", "randomized"]


def make_global(K, s, q, weights=None, *, svd_solver, **options):
    return GlobalSpectral.of(
        GivenMatrix(K),
        s,
        q,
        weights=weights,
        svd_solver=svd_solver,
        rng=np.random.RandomState(0),
        **options,
    )


@pytest.fixture
def weighted_matrix(rows, weights):
    """A kernel matrix of all rows, their weights, and the square roots of these."""
    X = np.concatenate(rows)
    w = None if weights[0] is None else np.concatenate(weights)
    return Laplacian(2.0)(X), w, root(w, S + N)


@pytest.mark.parametrize("svd_solver", SOLVERS)
@pytest.mark.parametrize("damping", [1.0, 0.5])
def test_global_of_all_rows_lowers_eigenvalues(svd_solver, damping, weighted_matrix):
    K, w, r = weighted_matrix
    P = make_global(K, S + N, 12, w, svd_solver=svd_solver, damping=damping)
    sigma = np.linalg.eigvalsh(r * K * r.T)[::-1]
    lowered = K - P.images @ np.diag(P.scales) @ P.images.T
    lowered = np.linalg.eigvalsh(r * lowered * r.T)[::-1]
    expected = np.sort(np.r_[[damping * sigma[12]] * 12, sigma[12:]])[::-1]
    accuracy = {"nystrom": 1e-9, "randomized": 1e-2}[svd_solver]
    assert_allclose(P.eigenvalues, sigma[:13] / (S + N), rtol=accuracy)
    assert_allclose(lowered, expected, atol=accuracy * sigma[12])


@pytest.mark.parametrize("svd_solver", SOLVERS)
def test_global_is_positive_however_inexact(svd_solver, weighted_matrix):
    K, w, r = weighted_matrix
    P = make_global(K, 30, 12, w, svd_solver=svd_solver)
    n = S + N
    assert P.n_components == 12 and P.n_columns == 0
    assert_allclose(P.images, K @ P.vectors, atol=1e-10)
    gram = P.vectors.T @ P.images
    assert_allclose(gram, np.diag(P.eigenvalues[:-1] * n), atol=1e-9 * n)
    assert (np.diff(P.eigenvalues) <= 0).all()
    lowered = K - P.images @ np.diag(P.scales) @ P.images.T
    sigma = np.linalg.eigvalsh(r * K * r.T)
    preconditioned = np.linalg.eigvalsh(r * lowered * r.T)
    assert preconditioned[0] > -1e-10 * sigma[-1]
    assert preconditioned[-1] < 0.3 * sigma[-1]


def test_global_truncates(weighted_matrix):
    K, w, _ = weighted_matrix
    P = make_global(K, 30, 12, w, svd_solver="nystrom")
    T = P.truncate(5)
    assert_allclose(T.images, P.images[:, :5])
    assert_allclose(T.eigenvalues, P.eigenvalues[:6])
    sigma = P.eigenvalues[:6] * (S + N)
    assert_allclose(T.scales, (1 - sigma[5] / sigma[:5]) / sigma[:5], rtol=1e-12)


@pytest.mark.parametrize("svd_solver", SOLVERS)
def test_global_without_components(svd_solver):
    for K in (np.zeros((9, 9)), np.eye(9)):
        P = make_global(K, 6, 0, svd_solver=svd_solver)
        assert P.n_components == 0 and P.images.shape == (9, 0)
    assert make_global(np.zeros((9, 9)), 6, 3, svd_solver=svd_solver).n_components == 0


@pytest.mark.parametrize("svd_solver", SOLVERS)
def test_global_of_other_libraries(svd_solver, other_xp, weighted_matrix):
    K, w, _ = weighted_matrix
    expected = make_global(K, 60, 8, w, svd_solver=svd_solver)
    w = None if w is None else other_xp.asarray(w)
    found = make_global(other_xp.asarray(K), 60, 8, w, svd_solver=svd_solver)
    assert_allclose(to_numpy(found.eigenvalues), expected.eigenvalues, rtol=1e-8)
    # The sign of a vector is arbitrary.
    products = [
        to_numpy(P.images) @ np.diag(to_numpy(P.scales)) @ to_numpy(P.images).T
        for P in (found, expected)
    ]
    assert_allclose(*products, atol=1e-8)


@pytest.mark.parametrize("svd_solver", SOLVERS)
@pytest.mark.parametrize("q", [4, 5, 9, 25])
def test_global_level_is_above_rounding(svd_solver, q, rng):
    """With a kernel of rank 5, the level must be one of its eigenvalues."""
    X = rng.standard_normal((60, 5))
    P = make_global(X @ X.T, 30, q, svd_solver=svd_solver)
    sigma = np.linalg.eigvalsh(X.T @ X)[::-1] / 60
    assert P.n_components == 4
    assert_allclose(P.eigenvalues[:4], sigma[:4], rtol=0.1)
    assert 0.3 * sigma[4] < P.eigenvalues[4] <= sigma[3]


@pytest.mark.parametrize(
    ("svd_solver", "advice"),
    [("nystrom", "n_components$"), ("randomized", "or svd_solver='nystrom'$")],
)
def test_global_needs_memory(svd_solver, advice, monkeypatch, weighted_matrix):
    monkeypatch.setattr(memory, "available", lambda xp, device: 1e4)
    message = (
        f"5 eigenvectors of 230 rows .* memory are free; pass a smaller .*{advice}"
    )
    with pytest.raises(ValueError, match=message):
        make_global(weighted_matrix[0], 30, 5, svd_solver=svd_solver)


def make_linear(X, s, q, weights=None, *, mean=0.0, **options):
    return LinearSpectral.of(
        CenteredFeatures(X, mean + 0.0 * X[0, :]),
        s,
        q,
        weights=weights,
        rng=np.random.RandomState(0),
        **options,
    )


@pytest.mark.parametrize("damping", [1.0, 0.25])
@pytest.mark.parametrize("q", [0, 3, 11, 12, 40])
def test_linear_is_its_formula(q, damping, weights, rng):
    X = rng.standard_normal((S, 12)) * 0.7 ** np.arange(12) + 2.0
    P = make_linear(X, S, q, weights[0], mean=2.0, damping=damping)
    w = np.ones(S) if weights[0] is None else weights[0]
    values, E = np.linalg.eigh((X - 2.0).T @ (w[:, None] * (X - 2.0)) / S)
    values, E = values[::-1], E[:, ::-1]
    q = min(q, 11)
    assert_allclose(P.eigenvalues, values[: q + 1], rtol=1e-10)
    D = np.diag(1 - damping * values[q] / values[:q])
    expected = np.eye(12) - E[:, :q] @ D @ E[:, :q].T
    found = np.eye(12) - P.vectors @ np.diag(P.scales) @ P.vectors.T
    assert_allclose(found, expected, atol=1e-10)


def test_linear_leaves_out_rounding(rng):
    X = rng.standard_normal((50, 6)) @ rng.standard_normal((6, 10))
    assert make_linear(X, 50, 10).n_components == 5
    assert make_linear(X.astype(np.float32), 50, 10).n_components == 5
    assert make_linear(np.zeros((9, 4)), 9, 3).n_components == 0


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_spectrum_of_features_is_that_of_their_kernel(sparse, dtype, weights, rng):
    """The result in feature space is that with the kernel matrix of the rows."""
    X = rng.standard_normal((N, 9)) * 0.8 ** np.arange(9) + 1.0
    X, mean = X.astype(dtype), np.full(9, 0.9, dtype=dtype)
    operator = CenteredFeatures(scipy.sparse.csr_array(X) if sparse else X, mean)
    P = LinearSpectral.of(operator, 40, 6, damping=0.5, rng=np.random.RandomState(0))
    projected, K = (X - mean) @ P.vectors, (X - mean) @ (X - mean).T
    w = None if weights[1] is None else weights[1].astype(dtype)
    one = HeldOutSpectrum(operator.row_kernel(0, N), projected, P, w)
    other = HeldOutSpectrum(K, projected, P, w)
    assert_allclose(one.measure([0, 3, 6]), other.measure([0, 3, 6]), rtol=1e-3)
    assert_allclose(one.bound(3, 16), other.bound(3, 16), rtol=1e-4)
    for q, m in ((0, 10), (3, 10), (6, N)):
        beta, top = other.measure([q])[0]
        near = 1.37 * m / (beta + (m - 1) * top)
        found = one.largest_stable_step(q, m, near)
        assert found == other.largest_stable_step(q, m, near)


def test_bound_is_the_formula_of_theorem_4(rows, weights):
    H = rows[1]
    K, w = Laplacian(2.0)(H), weights[1]
    P = spectral(K, 20, weights=w)
    spectrum = HeldOutSpectrum(K, K @ P.vectors, P, w)
    level, r = P.eigenvalues[7], root(w, N)
    kappa = np.max(r**2)
    G, W = r * K * r.T / N, np.diag(r[:, 0] ** 2)
    variance = np.linalg.eigvals((W - G) @ G)
    d = np.sum(variance.real) / np.max(variance.real)
    assert_allclose(spectrum.intrinsic_dimension(), d, rtol=0.1)
    log = np.log(8 * spectrum.intrinsic_dimension() / 0.1)
    expected = (
        level
        + 2 * (level + kappa) / (3 * 16) * log
        + np.sqrt(2 * level * kappa / 16 * log)
    )
    assert_allclose(spectrum.bound(7, 16), expected, rtol=1e-10)


@pytest.mark.parametrize("batch_size", [1, 16, 60])
def test_bound_holds_for_exact_eigenvectors(batch_size, rows, rng):
    K = Gaussian(2.0)(rows[1])
    P = spectral(K, 10)
    spectrum = HeldOutSpectrum(K, K @ P.vectors, P)
    lowered = preconditioned(K, K, K, P)
    for _ in range(50):
        b = rng.choice(N, batch_size, replace=False)
        norm = np.linalg.eigvalsh(lowered[np.ix_(b, b)])[-1] / batch_size
        assert norm < spectrum.bound(10, batch_size)


def test_bound_is_the_formula_of_theorem_3(rng):
    X = rng.standard_normal((70, 5)) * 0.5 ** np.arange(5)
    P = make_linear(X, 70, 3)
    kernel = CenteredFeatures(X, np.zeros(5)).row_kernel(0, 70)
    spectrum = HeldOutSpectrum(kernel, X @ P.vectors, P)
    level, kappa = P.eigenvalues[2], np.max(np.sum(X**2, axis=1))
    log = np.log(2 * 5 / 0.1)
    expected = (
        level
        + 2 * (level + kappa) / (3 * 8) * log
        + np.sqrt(2 * level * kappa / 8 * log)
    )
    assert_allclose(spectrum.bound(2, 8), expected, rtol=1e-10)
