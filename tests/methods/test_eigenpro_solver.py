"""The solver against naive loops, its limit and its guard."""

from itertools import islice

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from eigenkern.arrays.array import to_numpy
from eigenkern.kernels import CallableKernel, Gaussian, Laplacian, Matern
from eigenkern.methods.epochs import (
    eigenpro,
    step_on_all_rows,
    step_on_features,
    step_on_rows,
)
from eigenkern.methods.guard import Epoch, Guard, Guarded
from eigenkern.methods.step_search import StepSearch, StepTrials
from eigenkern.operators.centered import CenteredFeatures
from eigenkern.operators.matrix import GivenMatrix
from eigenkern.operators.tiled import TiledKernel
from eigenkern.plan import step
from eigenkern.plan.sizes import chosen_sizes
from eigenkern.preconditioners.global_spectral import GlobalSpectral
from eigenkern.preconditioners.spectral import LinearSpectral, Spectral

N, M = 110, 25  # the last batch is smaller


def tune(operator, largest, *, subsample_size="auto", batch_size="auto", **options):
    """Tune as a fit with these parameters does."""
    q = options.get("n_components", "auto")
    s, q, m = chosen_sizes(operator, largest, subsample_size, q, batch_size)
    return step.tune(operator, (s, q, m, largest), **options)


@pytest.fixture
def data(rng):
    X = rng.standard_normal((N, 3))
    Y = np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]], axis=1)
    return X, Y - Y.mean(axis=0)


def spectral(K_s, q, **options):
    """Return the preconditioner of a whole kernel matrix."""
    return Spectral.of(GivenMatrix(K_s), K_s.shape[0], q, **options)


def solve(
    K,
    Y,
    P,
    n_epochs,
    *,
    weights=None,
    step_size=1.0,
    batch_size=M,
    coef=None,
    trials=False,
    step=step_on_rows,
    twin=None,
):
    """Return the states of `n_epochs` epochs."""
    operator = GivenMatrix(K) if isinstance(K, np.ndarray) else K
    coef = np.zeros_like(Y) if coef is None else coef
    solver = eigenpro(
        operator,
        Y,
        P,
        coef=coef,
        weights=weights,
        batch_size=batch_size,
        step_size=step_size,
        rng=np.random.RandomState(0),
        step=step,
        try_steps=trials,
        twin=twin,
    )
    return list(islice(solver, n_epochs))


def naive(K, Y, P, n_epochs, *, weights=None, step_size=1.0, batch_size=M):
    """Algorithm 1 of the paper in dense float64 algebra; returns (coef, losses).

    The coefficients are the mean of the last epoch's second half.
    """
    a, losses, rng = np.zeros_like(Y), [], np.random.RandomState(0)
    w = np.ones(len(Y)) if weights is None else weights
    s = P.subsample_size
    F = P.vectors @ np.diag(P.scales) @ P.vectors.T
    starts = np.arange(0, len(Y), batch_size)
    for _ in range(n_epochs):
        loss, iterates = 0.0, []
        for start in rng.permutation(starts):
            b = np.arange(start, min(start + batch_size, len(Y)))
            error = K[b] @ a - Y[b]
            loss += np.sum(w[b, None] * error**2)
            g = step_size / batch_size * w[b, None] * error
            a[b] -= g
            a[:s] += F @ K[:s, b] @ g
            iterates.append(a.copy())
        losses.append(loss / Y.size)
    return np.mean(iterates[len(starts) // 2 :], axis=0), losses


def test_the_start_stays_as_it_was(data):
    X, Y = data
    K = Laplacian(2.0)(X)
    start = 0.1 * Y
    solve(K, Y, Spectral.of(GivenMatrix(K), 40, 0), 2, coef=start)
    assert_array_equal(start, 0.1 * Y)


@pytest.mark.parametrize("batch_size", [1, M, N, 2 * N])
@pytest.mark.parametrize("q", [0, 8])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_the_naive_loop(q, weighted, batch_size, data, rng):
    X, Y = data
    K = Laplacian(2.0)(X)
    weights = rng.uniform(0.5, 1.5, size=N) if weighted else None
    w_s = None if weights is None else weights[:40]
    P = spectral(K[:40, :40], q, weights=w_s, damping=0.9)
    options = {"weights": weights, "batch_size": batch_size, "step_size": 0.8}
    expected, losses = naive(K, Y, P, 3, **options)
    states = solve(TiledKernel(Laplacian(2.0), X), Y, P, 3, **options)
    assert_allclose(states[-1].coef, expected, atol=1e-10)
    assert_allclose([state.loss for state in states], losses, rtol=1e-10)
    assert all(state.n_step_halvings == 0 for state in states)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("svd_solver", ["nystrom", "randomized"])
def test_eigenpro_1_equals_the_naive_loop(svd_solver, weighted, data, rng):
    """Table 2 of the paper, with given eigenvectors."""
    X, Y = data
    K = Laplacian(2.0)(X)
    weights = rng.uniform(0.5, 1.5, size=N) if weighted else np.ones(N)
    operator = GivenMatrix(K)
    P = GlobalSpectral.of(
        operator,
        40,
        8,
        weights=weights,
        damping=0.9,
        svd_solver=svd_solver,
        rng=np.random.RandomState(0),
    )
    E, a, rng = P.vectors, np.zeros_like(Y), np.random.RandomState(0)
    sigma = P.eigenvalues * N
    D = np.diag((1 - 0.9 * sigma[-1] / sigma[:-1]) / sigma[:-1])
    for _ in range(3):
        iterates = []
        for start in rng.permutation(np.arange(0, N, M)):
            b = slice(start, start + M)
            g = 0.8 / M * weights[b, None] * (K[b] @ a - Y[b])
            a[b] -= g
            a += E @ D @ E.T @ K[b].T @ g
            iterates.append(a.copy())
    options = {"weights": weights, "step_size": 0.8, "step": step_on_all_rows}
    states = solve(operator, Y, P, 3, **options)
    assert_allclose(states[-1].coef, np.mean(iterates[2:], axis=0), atol=1e-10)


@pytest.mark.parametrize("q", [0, 4])
def test_linear_eigenpro_equals_the_naive_loop(q, data, rng):
    """Table 1 of the paper, with given eigenvectors."""
    _, Y = data
    X = rng.standard_normal((N, 8)) * 0.6 ** np.arange(8)
    operator = CenteredFeatures(X, X.mean(axis=0))
    P = LinearSpectral.of(operator, 40, q, damping=0.25, rng=np.random.RandomState(0))
    matrix = np.eye(8) - P.vectors @ np.diag(P.scales) @ P.vectors.T
    X = X - X.mean(axis=0)
    a, rng = np.zeros((8, 2)), np.random.RandomState(0)
    for _ in range(3):
        iterates = []
        for start in rng.permutation(np.arange(0, N, M)):
            b = slice(start, start + M)
            a -= 0.3 / M * matrix @ X[b].T @ (X[b] @ a - Y[b])
            iterates.append(a.copy())
    options = {"step_size": 0.3, "coef": np.zeros((8, 2)), "step": step_on_features}
    states = solve(operator, Y, P, 3, **options)
    assert_allclose(states[-1].coef, np.mean(iterates[2:], axis=0), atol=1e-10)


def test_no_components_is_plain_sgd(data):
    X, Y = data
    K, a, rng = Gaussian(1.0)(X), np.zeros_like(Y), np.random.RandomState(0)
    iterates = []
    for start in rng.permutation(np.arange(0, N, M)):
        b = slice(start, start + M)
        a[b] -= 0.5 / len(Y[:M]) * (K[b] @ a - Y[b])
        iterates.append(a.copy())
    a = np.mean(iterates[2:], axis=0)  # of 5
    P = spectral(K[:30, :30], 0)
    (state,) = solve(K, Y, P, 1, step_size=0.5)
    assert_allclose(state.coef, a, atol=1e-12)


@pytest.mark.parametrize("kernel", [Laplacian(2.0), Matern(1.0)], ids=repr)
@pytest.mark.parametrize("n_components", [0, "auto", 50])
def test_converges_to_the_exact_solution(kernel, n_components, data):
    X, Y = data
    operator = TiledKernel(kernel, X)
    tuning = tune(operator, N, batch_size=N, n_components=n_components)
    # The slowest direction of plain SGD sets the number of epochs.
    K = kernel(X)
    condition = tuning.step_size / N * np.linalg.eigvalsh(K)[0]
    n_epochs = min(int(20 / condition), 60_000)
    (*_, last) = solve(
        GivenMatrix(K),
        Y,
        tuning.preconditioner,
        n_epochs,
        batch_size=N,
        step_size=tuning.step_size,
    )
    assert np.linalg.norm(K @ last.coef - Y) < 1e-6 * np.linalg.norm(Y)
    assert_allclose(last.coef, np.linalg.solve(K, Y), rtol=1e-4, atol=1e-5)
    assert last.n_step_halvings == 0


@pytest.mark.parametrize("q", [10, 50])
@pytest.mark.parametrize("factor", [3.0, 10.0, 100.0, 1e6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_absurd_step_is_halved(factor, q, dtype, data):
    X, Y = (array.astype(dtype) for array in data)
    operator = TiledKernel(Laplacian(2.0), X)
    tuning = tune(operator, N, batch_size=M, n_components=q)
    step_size = factor * tuning.step_size
    states = solve(operator, Y, tuning.preconditioner, 40, step_size=step_size)
    last = states[-1]
    assert not last.failed
    halved = step_size / 2**last.n_step_halvings
    assert last.step_size == pytest.approx(halved, rel=1e-12)
    assert 0 < last.n_step_halvings <= np.log2(factor) + 3
    assert np.all(np.isfinite(last.coef))
    assert np.mean((Laplacian(2.0)(X) @ last.coef - Y) ** 2) < 0.1 * np.mean(Y**2)


def test_a_step_beyond_repair_fails_with_the_last_good_coefficients(data):
    X, Y = data
    K = Laplacian(2.0)(X)
    P = spectral(K[:40, :40], 5)
    start = 1e-3 * np.ones_like(Y)
    states = solve(K, Y, P, 9, step_size=1e30, coef=start.copy())
    assert len(states) == 1 and states[0].failed
    assert states[0].n_step_halvings > 30
    assert_array_equal(states[0].coef, start)


def test_a_negative_definite_kernel_stays_bounded(data):
    X, Y = data
    kernel = CallableKernel(lambda A, B: -1e3 * Laplacian(2.0)(A, B))
    operator = TiledKernel(kernel, X)
    P = Spectral.of(operator, 40, 10)
    assert P.n_components == 0
    states = solve(operator, Y, P, 40, step_size=1.0)
    assert states[-1].n_step_halvings > 0
    # The guard's factor: four times the residual of f = 0.
    assert max(state.loss for state in states) <= 4 * np.mean(Y**2)


def test_rows_without_weight_change_nothing(data):
    X, Y = data
    weights = np.where(np.arange(N) % 5 == 2, 0.0, 1.25)
    K = Laplacian(2.0)(X)
    P = spectral(K[:40, :40], 5, weights=weights[:40])
    wrong = np.where(weights[:, None] == 0, 1e3, Y)
    first = solve(K, Y, P, 5, weights=weights)[-1].coef
    second = solve(K, wrong, P, 5, weights=weights)[-1].coef
    assert_array_equal(first, second)
    assert_allclose(first[weights == 0], 0.0, atol=1e-12)


def test_equal_weights_are_none(data):
    X, Y = data
    K = Laplacian(2.0)(X)
    P = spectral(K[:40, :40], 5)
    first = solve(K, Y, P, 2)[-1].coef
    second = solve(K, Y, P, 2, weights=np.ones(N))[-1].coef
    assert_array_equal(first, second)


def test_noise_is_no_divergence(rng):
    X, Y = rng.standard_normal((N, 3)), rng.standard_normal((N, 1))
    operator = TiledKernel(Gaussian(1.0), X)
    tuning = tune(operator, N, batch_size=10)
    last = solve(
        operator,
        Y,
        tuning.preconditioner,
        30,
        batch_size=10,
        step_size=0.5 * tuning.step_size,
    )[-1]
    assert last.n_step_halvings == 0


@pytest.mark.parametrize("batch_size", [M, 10], ids=["no race", "race"])
def test_a_twin_takes_the_same_steps_on_other_targets(batch_size, data, rng):
    X, Y = data
    weights, others = rng.uniform(0.5, 2.0, (2, N))
    others[-20:] = 0.0  # rows that it does not learn
    T, K, n = Y[::-1], TiledKernel(Laplacian(2.0), X), 7
    tuning = tune(K, N, n_components=8, subsample_size=60)
    P, options = tuning.preconditioner, {"batch_size": batch_size}
    options["step_size"] = 0.5 * tuning.step_size
    alone = solve(K, Y, P, n, trials=True, weights=weights, **options)
    both = solve(K, Y, P, n, trials=True, weights=weights, twin=(T, others), **options)
    for one, two in zip(alone, both, strict=True):
        assert_allclose(two.coef, one.coef, rtol=1e-9, atol=1e-12)
        assert two.loss == pytest.approx(one.loss, rel=1e-9) and one.rest is None
    assert not both[-1].rest[-20:, :].any()
    # Sides that diverge take their twins along.
    for factor in (1.2, 1.4, 1.7):
        long = {"batch_size": batch_size, "step_size": factor * tuning.step_size}
        for state in solve(K, Y, P, 3, trials=True, twin=(Y, 1 + 0 * others), **long):
            assert_array_equal(state.rest, state.coef)
    # Without trials all steps are the same.
    both = solve(K, Y, P, n, weights=weights, twin=(T, others), **options)[-1]
    expected = solve(K, T, P, n, weights=others, **options)[-1]
    assert_allclose(both.rest, expected.coef, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("batch_size", [M, 10], ids=["no race", "race"])
def test_other_libraries_agree_with_numpy(batch_size, other_xp, rng):
    X, Y = contradictory(rng)

    def run(xp):
        operator = TiledKernel(Laplacian(2.0), xp.asarray(X))
        tuning = tune(operator, N, n_components=8)
        solver = eigenpro(
            operator,
            xp.asarray(Y),
            tuning.preconditioner,
            coef=xp.zeros((N, 2), dtype=xp.float64),
            weights=None,
            batch_size=batch_size,
            step_size=tuning.step_size,
            rng=np.random.RandomState(0),
        )
        (*_, last) = islice(solver, 15)  # half steps are tried
        return to_numpy(last.coef)

    assert_allclose(run(other_xp), run(np), atol=1e-10)


# The steps of a race, relative to the measured step.
SIDES = np.array([1.0, 2**0.5, 0.5**0.5, 2.0, 0.5, 4.0])


def naive_sides(K, Y, P, n_epochs, *, step_size, **options):
    """Return models (epoch, side, n, l) of naive loops with the steps of a race."""
    return np.array(
        [
            [
                naive(K, Y, P, n, step_size=side * step_size, **options)[0]
                for side in SIDES
            ]
            for n in range(1, n_epochs + 1)
        ]
    )


def sides_of(coef, models):
    """Return which of the models (side, n, l) each output of `coef` equals."""
    found = [
        [
            np.allclose(coef[:, j], model[:, j], rtol=1e-9, atol=1e-12)
            for model in models
        ]
        for j in range(coef.shape[1])
    ]
    assert (np.sum(found, axis=1) == 1).all()  # of one side, not of a mixture
    return np.argmax(found, axis=1)


@pytest.mark.parametrize("seed", range(6))
def test_a_race_yields_the_models_of_its_best_sides(seed, data):
    """For six epochs every output has the model of a good side; then one continues."""
    (X, Y), rng = data, np.random.default_rng(seed)
    Y = Y + [[0.0, 1.0]] * rng.standard_normal(Y.shape)  # one output has noise
    K, m, w = Laplacian(2.0)(X), 10, rng.exponential(size=N)
    tuning = tune(GivenMatrix(K), N, weights=w, batch_size=m)
    P, step_size = tuning.preconditioner, tuning.step_size / 2
    options = {"batch_size": m, "step_size": step_size, "weights": w}
    race = solve(K, Y, P, 8, trials=True, **options)
    models = naive_sides(K, Y, P, 7, **options)
    losses = np.einsum("n,eknl->ekl", w, (K @ models - Y) ** 2)
    chosen = np.array([sides_of(race[epoch].coef, models[epoch]) for epoch in range(7)])
    assert len(np.unique(chosen)) > 1
    of_chosen = np.take_along_axis(losses, chosen[:, None, :], axis=1)[:, 0, :]
    # The model is near the best of all sides, and no worse than that of the measured
    # step: all rows are checked here.
    assert (of_chosen[1:6] <= 1.25 * losses[1:6].min(axis=1)).all()
    assert (of_chosen[1:6] <= losses[1:6, 0, :]).all()
    assert_array_equal(chosen[6], chosen[5])
    assert race[-1].n_step_halvings == 0


@pytest.mark.parametrize("seed", range(4))
def test_the_winners_of_a_race_are_known_where_the_rows_come_in_pairs(seed):
    """Pairs of equal rows, different from all others: a step moves its pair's value.

    It moves by r (y - f), with r = eta / m times the factor of a side. If both rows
    have the same target, r = 1 is exact at once; if their targets are opposed, f = 0 is
    best, and the shortest step comes nearest to it.
    """
    n, m, rng = 160, 10, np.random.default_rng(seed)
    K = np.kron(np.ones((2, 2)), np.eye(n // 2))  # never both in a batch
    same = np.tile(3 * rng.standard_normal(n // 2), 2)
    opposed = np.repeat([1.0, -1.0], n // 2)
    Y = np.stack([same, opposed], axis=1)
    P = spectral(np.eye(10), 0)
    options = {"batch_size": m, "step_size": 0.5 * m}
    race = solve(K, Y, P, 9, trials=True, **options)
    for epoch, state in enumerate(race[:7]):
        best, _ = naive(K, Y, P, epoch + 1, batch_size=m, step_size=2 * 0.5 * m)
        calm, _ = naive(K, Y, P, epoch + 1, batch_size=m, step_size=0.5 * 0.5 * m)
        assert_allclose(state.coef[:, 0], best[:, 0], rtol=1e-9, atol=1e-12)
        assert_allclose(state.coef[:, 1], calm[:, 1], rtol=1e-9, atol=1e-12)
    assert_allclose(K @ race[-1].coef[:, 0], same, atol=1e-12)


def test_a_side_that_diverges_never_wins_a_race(rng):
    """All models are worse than zero, and the measured step itself diverges."""
    for _ in range(10):
        Y = rng.standard_normal((200, 1))
        P = spectral(np.ones((10, 10)), 0)
        options = {"batch_size": 20, "step_size": 2.6, "trials": True}
        states = solve(np.ones((200, 200)), Y - Y.mean(), P, 8, **options)
        assert all(np.isfinite(state.loss) for state in states)


def test_a_longer_step_that_diverges_after_the_race_is_given_up():
    """Row 0 grows sevenfold per epoch with the step that suits the others best."""
    n, m = 100, 10
    K, Y = np.diag(np.full(n, 0.2)), np.ones((n, 1))
    K[0, 0], Y[0] = 1.9, 1e-7
    P = spectral(np.eye(10), 0)
    options = {"batch_size": m, "step_size": float(m)}
    states = solve(K, Y, P, 40, trials=True, **options)
    fast = solve(K, Y, P, 7, batch_size=m, step_size=4.0 * m)
    assert_allclose(states[6].coef, fast[6].coef, rtol=1e-9)
    assert states[-1].n_step_halvings == 0
    assert_allclose(K @ states[-1].coef, Y, atol=0.01)


def test_sides_of_a_race_that_diverge_are_out(data):
    """The step is four times too long: only shorter sides are bounded."""
    X, Y = data
    operator = TiledKernel(Laplacian(2.0), X)
    tuning = tune(operator, N, batch_size=10)
    options = {"batch_size": 10, "step_size": 4 * tuning.step_size}
    alone = solve(operator, Y, tuning.preconditioner, 20, **options)[-1]
    race = solve(operator, Y, tuning.preconditioner, 20, trials=True, **options)[-1]
    K = operator.block()
    loss, loss_alone = (np.mean((K @ s.coef - Y) ** 2) for s in (race, alone))
    assert race.n_step_halvings < alone.n_step_halvings
    assert loss < 2 * loss_alone < 1e-2 * np.mean(Y**2)


@pytest.mark.parametrize(
    "n_outputs, n_batches, n_sides",
    [(1, 8, 6), (2, 100, 6), (5, 8, 3), (8, 8, 2), (9, 8, 1), (40, 8, 1), (1, 7, 1)],
)
def test_sides_of_a_race(n_outputs, n_batches, n_sides):
    """A longer step must lead for six epochs, the measured step for two."""
    for best, n_epochs in ((0, 3), (min(1, n_sides - 1), 6)):
        search = StepSearch(n_outputs, n_batches)
        losses = np.ones((n_sides, n_outputs))
        losses[best, :] = 0.5
        factor = search.factors[best]
        for epoch in range(n_epochs):
            assert search.n_sides == n_sides and search.factors.shape == losses.shape
            assert_array_equal(search.factors[0], 1.0)
            search.choose(losses, losses, lambda losses=losses: (losses, np.inf))
            is_over = search.update(search.chosen(losses))
            assert is_over == (n_sides > 1 and epoch == n_epochs - 1)
            if n_sides == 1:
                break
        if n_sides > 1:
            assert search.n_sides == 1
            assert_array_equal(search.factors, [factor])


def test_a_race_goes_on_while_the_best_side_changes():
    search = StepSearch(1, 8)
    for epoch, best in enumerate((0, 0, 2, 0, 4, 0)):
        losses = np.ones((6, 1))
        losses[best] = 0.5
        search.choose(losses, losses, lambda losses=losses: (losses, np.inf))
        assert search.update(search.chosen(losses)) == (epoch == 5)
    assert_array_equal(search.factors, [[1.0]])


@pytest.mark.parametrize(
    "leader, rival, goes_on",
    # The steps are 1, sqrt(2), 1/sqrt(2), 2, 1/2 and 4 times the measured one.
    [(0, 2, True), (2, 4, True), (2, 0, True), (4, 0, True), (2, 1, False)],
)
def test_a_race_goes_on_while_a_step_up_to_the_measured_one_catches_up(
    leader, rival, goes_on
):
    search = StepSearch(1, 8)
    for epoch, behind in enumerate((4.0, 4.0, 3.0, 2.0, 2.0)):
        scores = np.full((6, 1), 5.0)
        scores[leader], scores[rival] = 1.0, behind
        search.choose(np.ones((6, 1)), scores, lambda scores=scores: (scores, np.inf))
        assert search.update(np.ones(1)) == (epoch == (4 if goes_on else 2))
        if search.n_sides == 1:
            break


def test_sides_that_fall_behind_are_dropped():
    search, sides = StepSearch(2, 8), np.arange(12.0)[None, :]
    losses = np.ones((6, 2))
    losses[[3, 5], :] = np.inf
    late = np.array([[4.0, 4], [90, 1], [1, 0.9], [9, 9], [11, 11], [9, 9]])
    search.choose(losses, late, lambda: (losses, np.inf))
    assert_array_equal(search.chosen_columns(sides), [[4, 5]])
    assert not search.update(search.chosen(losses))
    # To be behind in one output is not enough: it is nine times on average.
    assert_array_equal(search.factors[:, 0], [1.0, 2**0.5, 0.5**0.5])
    assert_array_equal(search.remaining(sides), [[0, 1, 2, 3, 4, 5]])
    assert_array_equal(search.remaining(sides[:, :6]), sides[:, :6])
    scores, losses = np.array([[20.0, 20], [30, 30], [1, 1]]), np.ones((3, 2))
    search.choose(losses, losses, lambda: (scores, np.inf))
    assert search.update(search.chosen(losses))  # one side is left
    assert_array_equal(search.factors, [[0.5**0.5] * 2])


def winner(search, losses, late, scores, zero_loss=1.0):
    """Return the side of one output that is chosen after an epoch."""
    columns = [np.array(values)[:, None] for values in (losses, late, scores)]
    search.choose(*columns[:2], lambda: (columns[2], zero_loss))
    return int(search.chosen_columns(np.arange(6)[None, :])[0, 0])


def test_what_decides_a_race():
    late, scores = [6, 5, 4, 3, 2, 1], [0.9, 0.1, 0.8, 0.2, 2.0, 3.0]
    search, losses = StepSearch(1, 8), [1.0] * 6
    # At first the residual of the second half, if the model is no worse than zero.
    assert winner(search, losses, late, scores) == 3
    assert winner(search, losses, late, scores, zero_loss=0.0) == 5
    assert winner(search, [1, 1, 1, 2, 1, 1], late, scores) == 2  # the residual is high
    search.update(search.chosen(np.ones((6, 1))))
    # Then the model on some rows, unless the residual is much above the least one.
    assert winner(search, losses, late, scores) == 1
    assert winner(search, losses, late, scores, zero_loss=0.0) == 1
    assert winner(search, [1, 1.1, 1, 1, 1, 1], late, scores) == 1
    assert winner(search, [1, 1.3, 1, 1, 1, 1], late, scores) == 3


def test_a_side_whose_residual_grows_while_the_least_one_falls_is_not_chosen():
    search, scores = StepSearch(1, 8), [0.9, 0.3, 0.8, 0.4, 2.0, 2.5]
    assert winner(search, [1.0] * 6, scores, scores) == 1
    search.update(np.ones(1))
    assert winner(search, [0.99, 1.1, 1, 1, 1, 1], scores, scores) == 3
    search.update(np.ones(1))
    # Not if it falls again, or if the least one grows too.
    assert winner(search, [0.98, 1.05, 1, 1, 1, 1], scores, scores) == 1
    search.update(np.ones(1))
    assert winner(search, [0.99, 1.1, 1, 1, 1, 1], scores, scores) == 1


def test_without_trials_there_is_one_side():
    search = StepSearch(1, 100, tries=False)
    for loss in (1.0, 0.99, 0.99, 0.99):
        assert search.n_sides == 1
        assert not search.update(np.array([loss]))
        assert_array_equal(search.factors, [[1.0]])


def test_a_longer_step_is_given_up_before_the_measured_one_is_halved():
    search = StepSearch(1, 8)
    for _ in range(6):  # the side of twice the step wins
        losses = np.abs(search.factors - 2.0)
        search.choose(losses, losses, lambda losses=losses: (losses, np.inf))
        search.update(search.chosen(losses))
    assert search.is_longer and search.factors == 2.0
    losses = iter([0.5, np.inf, 0.5, np.inf, 0.5])

    def run_epoch():
        loss = next(losses)
        return Epoch(None, np.array([loss]), loss, True)

    guard = Guard(1.0)
    states = Guarded(run_epoch, guard, lambda: None, lambda _: None, search=search)
    next(states)
    next(states)  # it went back in between
    assert (search.factors, guard.n_halvings) == (1.0, 0)
    next(states)
    assert (guard.factor, guard.n_halvings) == (0.5, 1)


def losses_to_factors(losses):
    trials = StepTrials()
    factors = []
    for loss in losses:
        trials.update(loss)
        factors.append(trials.factor)
    return factors


def test_a_falling_residual_needs_no_trial():
    assert losses_to_factors([1.0, 0.9, 0.8, 0.7]) == [1.0] * 4


def test_half_the_step_is_kept_where_it_lowers_the_noise():
    factors = losses_to_factors([1.0, 0.5, 0.499, 0.3, 0.299, 0.2])
    assert factors == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]


def test_the_step_is_doubled_again_where_the_problem_is_flat():
    flat = 0.995 ** np.arange(12)
    # A trial, back, one epoch's wait, a trial, back, two epochs' wait.
    expected = [1, 0.5, 1, 1, 0.5, 1, 1, 1, 0.5, 1, 1, 1]
    assert losses_to_factors(flat) == expected


def contradictory(rng):
    """Each row twice with different targets, and a smooth target as a second output."""
    X = np.repeat(rng.standard_normal((N // 2, 3)), 2, axis=0)[rng.permutation(N)]
    Y = np.stack([rng.standard_normal(N), np.sin(X[:, 0])], axis=1)
    return X, Y - Y.mean(axis=0)


def test_trials_lower_the_noise_of_contradictory_targets(rng):
    X, Y = contradictory(rng)
    Y = Y[:, :1]
    operator = TiledKernel(Laplacian(1.0), X)
    tuning = tune(operator, N, batch_size=M)
    K = operator.block()
    options = {"step_size": tuning.step_size}
    # The best function of X: the mean of the two targets of a row.
    exact = K @ np.linalg.lstsq(K, Y, rcond=1e-10)[0]
    floor = np.mean((exact - Y) ** 2)

    def excess(trials):
        last = solve(operator, Y, tuning.preconditioner, 40, trials=trials, **options)
        return np.mean((K @ last[-1].coef - Y) ** 2) - floor

    assert 0 < excess(True) < 0.5 * excess(False)


def test_outputs_have_trials_of_their_own(rng):
    X, Y = contradictory(rng)
    operator = TiledKernel(Laplacian(1.0), X)
    tuning = tune(operator, N, batch_size=M)
    P, options = tuning.preconditioner, {"step_size": tuning.step_size}
    both = solve(operator, Y, P, 15, trials=True, **options)[-1].coef
    without = solve(operator, Y, P, 15, trials=False, **options)[-1].coef
    for i in range(2):
        alone = solve(operator, Y[:, i : i + 1], P, 15, trials=True, **options)
        assert_allclose(both[:, i : i + 1], alone[-1].coef, rtol=1e-9, atol=1e-12)
    assert_array_equal(both[:, 1], without[:, 1])
    assert not np.allclose(both[:, 0], without[:, 0], rtol=1e-3)


def test_a_trial_ends_with_the_guard_going_back():
    trials = StepTrials()
    for loss in (1.0, 0.995):
        trials.update(loss)
    assert trials.factor == 0.5
    trials.forget()
    assert trials.factor == 1.0
    trials.update(0.995)
    assert trials.factor == 1.0


def test_a_residual_that_underflows_is_no_error():
    assert losses_to_factors([1.0, 0.0, 1.0, 0.0, 0.0]) == [1.0] * 5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_mean_of_many_iterates_is_exact_at_a_fixed_point(dtype):
    """One row per step: thousands of identical iterates."""
    n, value = 4000, 1 / 3
    K, Y = np.eye(n, dtype=dtype), np.full((n, 1), value, dtype=dtype)
    P = spectral(K[:10, :10], 0)
    states = solve(K, Y, P, 2, batch_size=1, step_size=1.0)
    assert_array_equal(states[-1].coef, Y)
