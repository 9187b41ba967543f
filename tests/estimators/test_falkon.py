"""The Falkon-like estimators and their conjugate gradients."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from sklearn import config_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge

from eigenkern import (
    FalkonLikeClassifier,
    FalkonLikeRegressor,
    NystromRegressor,
)
from eigenkern.arrays.array import to_numpy
from eigenkern.methods.conjugate_gradients import TwoCholesky, conjugate_gradient


def kernel(X, Z):
    return np.exp(-cdist(X, Z) / 1.5)


@pytest.fixture
def definite(rng):
    """A well-conditioned matrix and three right-hand sides."""
    A = rng.standard_normal((60, 30))
    return A.T @ A / 60 + np.eye(30), rng.standard_normal((30, 3))


def last(states, n):
    for _ in range(n):
        state = next(states)
    return state


def test_conjugate_gradient_solves(definite):
    H, Y = definite
    state = last(conjugate_gradient(lambda P: H @ P, Y, np.zeros((30, 3)), 1e-13), 31)
    assert_allclose(state.coef, np.linalg.solve(H, Y), atol=1e-11)
    assert state.converged
    residual = np.linalg.norm(Y - H @ state.coef, axis=0) / np.linalg.norm(Y, axis=0)
    assert (residual < 1e-12).all()


def test_columns_are_independent_and_stop_by_themselves(definite):
    H, Y = definite
    Y[:, 1] = H @ np.linalg.eigh(H)[1][:, 0]  # done after one iteration
    widths = []

    def apply(P):
        widths.append(P.shape[1])
        return H @ P

    together = conjugate_gradient(apply, Y, np.zeros((30, 3)), 1e-8)
    together = last(together, 25)
    assert widths[0] == 3 and widths[1] == 2 and widths[-1] < 3
    for j in range(3):
        alone = conjugate_gradient(
            lambda P: H @ P, Y[:, j : j + 1], np.zeros((30, 1)), 1e-8
        )
        alone = last(alone, 25)
        assert_allclose(together.coef[:, j], alone.coef[:, 0], atol=1e-12)


def test_conjugate_gradient_goes_on_from_a_start(definite):
    H, Y = definite
    solution = np.linalg.solve(H, Y)
    state = next(conjugate_gradient(lambda P: H @ P, Y, solution, 1e-9))
    assert state.converged
    assert_array_equal(state.coef, solution)


def test_nothing_to_solve(definite):
    H, Y = definite
    state = next(conjugate_gradient(lambda P: H @ P, 0 * Y, 0 * Y, 1e-9))
    assert state.converged
    assert_array_equal(state.coef, 0 * Y)


def test_conjugate_gradient_in_other_libraries(definite, other_xp):
    H, Y = definite
    H_xp, Y_xp = other_xp.asarray(H), other_xp.asarray(Y)
    zero = other_xp.zeros_like(Y_xp)
    state = last(conjugate_gradient(lambda P: H_xp @ P, Y_xp, zero, 1e-12), 31)
    assert_allclose(to_numpy(state.coef), np.linalg.solve(H, Y), atol=1e-10)


def test_preconditioner_is_exact_for_all_rows(rng):
    X, w = rng.standard_normal((40, 3)), rng.uniform(0.5, 2, 40)
    K, alpha = kernel(X, X), 1e-3
    P = TwoCholesky.of(np.linalg.cholesky(K), alpha, w)
    B = P.reduce(K.T @ (w[:, None] * (K @ P.expand(np.eye(40))))) / w.sum()
    whole = P.inner_transposed((B + alpha * np.eye(40)) @ P.inner(np.eye(40)))
    assert_allclose(whole, np.eye(40), atol=1e-9)
    c = rng.standard_normal((40, 2))
    assert_allclose(P.preimage(P.expand(P.inner(c))), c, atol=1e-9)


@pytest.mark.parametrize("alpha", [1e-6, 1e-3])
def test_all_centers_are_kernel_ridge(alpha, regression):
    X, y, X_test, _ = regression
    model = FalkonLikeRegressor(bandwidth=1.5, alpha=alpha).fit(X, y)
    peer = KernelRidge(kernel="precomputed", alpha=alpha * len(y))
    peer.fit(kernel(X, X), y - y.mean())
    expected = peer.predict(kernel(X_test, X)) + y.mean()
    assert_allclose(model.predict(X_test), expected, atol=1e-6)
    assert model.n_iter_ <= 2


@pytest.mark.parametrize("weighted", [False, True])
def test_the_direct_solution(weighted, regression, rng):
    X, y, X_test, _ = regression
    w = rng.uniform(0, 2, 160) if weighted else None
    Y = np.stack([y, np.cos(y)], axis=1)
    options = {"bandwidth": 1.5, "alpha": 1e-4, "n_centers": 40, "random_state": 0}
    direct = NystromRegressor(**options).fit(X, Y, w)
    model = FalkonLikeRegressor(max_iter=60, tol=1e-11, **options).fit(X, Y, w)
    assert_array_equal(model.center_indices_, direct.center_indices_)
    assert_allclose(model.predict(X_test), direct.predict(X_test), atol=1e-8)
    assert len(model.residuals_) == model.n_iter_ < 60
    assert model.residuals_[-1] <= 1e-11 < model.residuals_[-2]


def test_integer_weights_are_repetitions(regression, rng):
    X, y, X_test, _ = regression
    counts = rng.integers(0, 4, 160)
    model = FalkonLikeRegressor(n_centers=40, alpha=1e-4, max_iter=60, random_state=0)
    F = model.fit(X, y, counts).predict(X_test)
    model.fit(X.repeat(counts, axis=0), y.repeat(counts))
    assert_allclose(model.predict(X_test), F, atol=1e-6)


@pytest.mark.parametrize("method", ["kmeans", "leverage_scores", "rpcholesky"])
def test_centers_stand_for_the_rows_around_them(method, monkeypatch, rng):
    X = 0.3 * rng.standard_normal((1000, 2))
    X[:50] = 5 * rng.standard_normal((50, 2))
    y = np.sin(2 * X[:, 0])
    options = {"kernel": "gaussian", "bandwidth": 1.0, "alpha": 1e-4}
    options |= {"n_centers": 100, "max_iter": 200, "tol": 1e-7, "random_state": 0}
    model = FalkonLikeRegressor(centers=method, **options).fit(X, y)
    monkeypatch.setattr(
        "eigenkern.problems.basis_centers.masses",
        lambda X, Z, weights: np.ones(len(Z)),
    )
    alike = FalkonLikeRegressor(centers=method, **options).fit(X, y)
    assert model.n_iter_ < 0.7 * alike.n_iter_
    assert_allclose(model.predict(X), alike.predict(X), atol=1e-4)


def test_warm_start(regression):
    X, y, *_ = regression
    options = {"bandwidth": 1.5, "n_centers": 40, "random_state": 0, "alpha": 1e-4}
    options["tol"] = 1e-7
    cold = FalkonLikeRegressor(max_iter=60, **options).fit(X, y)
    model = FalkonLikeRegressor(max_iter=4, warm_start=True, **options)
    n_fits = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        while model.fit(X, y).n_iter_ == 4:
            n_fits += 1
    assert 2 < n_fits < 30
    assert_allclose(model.predict(X), cold.predict(X), atol=1e-5)
    model.set_params(random_state=1)
    with pytest.raises(ValueError, match=r"warm_start=True .* the same centers"):
        model.fit(X, y)
    given = FalkonLikeRegressor(centers=X[:50], warm_start=True, alpha=1e-4).fit(X, y)
    assert given.fit(X, y).n_iter_ == 1
    with pytest.raises(ValueError, match=r"and 2 output\(s\)"):
        given.fit(X, np.stack([y, y], axis=1))
    options["kernel"] = "precomputed"
    given = FalkonLikeRegressor(warm_start=True, max_iter=200, **options)
    given.fit(kernel(X, X), y)
    assert given.fit(kernel(X, X), y).n_iter_ == 1
    with pytest.raises(ValueError, match="the same centers"):
        given.fit(kernel(X[:50], X[:50]), y[:50])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["gaussian", "laplacian"])
@pytest.mark.parametrize(
    "n, n_centers", [(200, None), (200, 50), (1500, 40), (1500, 500)]
)
def test_defaults_converge(n, n_centers, name, dtype, rng):
    X = rng.standard_normal((n, 5))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(n)
    model = FalkonLikeRegressor(name, n_centers=n_centers, random_state=0)
    model.fit(X.astype(dtype), y)  # a warning would be an error
    options = {"n_centers": n_centers, "random_state": 0}
    direct = NystromRegressor(name, **options).fit(X.astype(dtype), y)
    assert model.residuals_[-1] <= 1e-3
    error = model.predict(X.astype(dtype)) - direct.predict(X.astype(dtype))
    assert np.std(error) < 0.02 * np.std(y)


def warning_of(model, X, y):
    with pytest.warns(ConvergenceWarning) as found:
        model.fit(X, y)
    return str(found[0].message)


def test_too_few_iterations_warn(regression):
    X, y, *_ = regression
    model = FalkonLikeRegressor(n_centers=40, max_iter=3, random_state=0)
    text = warning_of(model, X, y)
    assert "after 3 iterations" in text and "above tol=0.001" in text
    assert model.score(X, y) > 0.3
    # The advised value is enough, but not too much.
    n_iter = int(text.partition("raise max_iter to ")[2])
    assert model.set_params(max_iter=n_iter).fit(X, y).n_iter_ > n_iter // 5
    model = FalkonLikeRegressor(n_centers=20, alpha=0.01, tol=0, max_iter=60)
    assert warning_of(model, X, y).endswith("less than rounding: raise tol")


def test_the_advice_follows_the_residuals(rng):
    X = rng.uniform(-1, 1, (600, 2))
    y = np.sign(X[:, 0] * X[:, 1])
    options = {"kernel": "gaussian", "bandwidth": 1.0, "n_centers": 100}
    options["random_state"] = 0
    model = FalkonLikeRegressor(alpha=1e-10, max_iter=20, **options)
    n_iter = int(warning_of(model, X, y).partition("raise max_iter to ")[2])
    assert n_iter // 5 < model.set_params(max_iter=n_iter).fit(X, y).n_iter_ <= n_iter
    model.set_params(max_iter=2, tol=1e-13, alpha=1e-12)
    text = warning_of(model, X, y)
    assert "raise alpha or n_centers" in text and text.endswith("or tol")
    before = model.residuals_[-1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert model.set_params(alpha=1e-4).fit(X, y).residuals_[-1] < 0.5 * before


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_centers", ["auto", None, 160])
def test_all_rows_take_one_factor(n_centers, weighted, regression, rng, monkeypatch):
    X, y, X_test, _ = regression
    w = rng.uniform(0.5, 2, 160) if weighted else None
    monkeypatch.setattr(TwoCholesky, "of", None)
    model = FalkonLikeRegressor(n_centers=n_centers, bandwidth=1.5).fit(X, y, w)
    direct = NystromRegressor(n_centers=None, bandwidth=1.5).fit(X, y, w)
    assert_allclose(model.predict(X_test), direct.predict(X_test), atol=1e-12)
    assert model.n_iter_ == 1 and model.residuals_[0] < 1e-12


def test_single_precision(regression):
    X, y, X_test, _ = regression
    model = FalkonLikeRegressor(n_centers=40, alpha=1e-4, max_iter=60, random_state=0)
    double = model.fit(X, y).predict(X_test)
    single = model.fit(X.astype(np.float32), y).predict(X_test.astype(np.float32))
    assert_allclose(single, double, atol=1e-3)


@pytest.mark.parametrize("alpha", [1e-6, 1e-8])
@pytest.mark.parametrize("n_centers", [None, 100])
def test_single_precision_of_a_bad_kernel(alpha, n_centers, rng):
    X, T = rng.uniform(-1, 1, (400, 2)), rng.uniform(-1, 1, (200, 2))
    y = np.sin(3 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.standard_normal(400)
    truth = np.sin(3 * T[:, 0]) + T[:, 1] ** 2
    options = {"kernel": "gaussian", "bandwidth": 1.0, "alpha": alpha}
    model = FalkonLikeRegressor(n_centers=n_centers, max_iter=300, random_state=0)
    model.set_params(**options)
    X, T = X.astype(np.float32), T.astype(np.float32)
    error = np.std(model.fit(X, y).predict(T) - truth)
    assert error < 0.05


@pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")
def test_values_that_are_not_finite(regression):
    X, y, *_ = regression
    model = FalkonLikeRegressor("polynomial", bandwidth=1.0, n_centers=40)
    with pytest.raises(ValueError, match=r"Polynomial.* overflows in float64"):
        model.fit(1e120 * X, y)


@pytest.mark.parametrize("cache_size", [0, "auto"])
def test_cache_changes_nothing(cache_size, regression):
    X, y, X_test, _ = regression
    options = {"n_centers": 40, "alpha": 1e-4, "max_iter": 60, "random_state": 0}
    kept = FalkonLikeRegressor(cache_size=100, **options).fit(X, y)
    assert kept.cache_size_ == 160 * 40 * 8 / 1e6
    model = FalkonLikeRegressor(cache_size=cache_size, **options).fit(X, y)
    assert_allclose(model.predict(X_test), kept.predict(X_test), atol=1e-6)


def test_precomputed(regression):
    X, y, X_test, _ = regression
    K, K_test = kernel(X, X), kernel(X_test, X)
    options = {"alpha": 1e-4, "n_centers": 50, "max_iter": 60, "random_state": 0}
    model = FalkonLikeRegressor("precomputed", tol=1e-7, **options).fit(K, y)
    assert model.dual_coef_.shape == (160, 1)
    centers = X[model.center_indices_]
    direct = NystromRegressor(bandwidth=1.5, alpha=1e-4, centers=centers).fit(X, y)
    assert_allclose(model.predict(K_test), direct.predict(X_test), atol=1e-5)


@pytest.mark.parametrize("cls", [FalkonLikeRegressor, FalkonLikeClassifier])
@pytest.mark.parametrize("n_centers", [None, 40])
def test_other_libraries_agree(cls, n_centers, other_xp, three_classes):
    X, y = three_classes
    model = cls(n_centers=n_centers, alpha=1e-3, max_iter=50, random_state=0)
    expected = to_numpy(model.fit(X, y).dual_coef_)
    with config_context(array_api_dispatch=True):
        model.fit(other_xp.asarray(X), other_xp.asarray(y))
    assert_allclose(to_numpy(model.dual_coef_), expected, atol=1e-5)


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"alpha": -1}, "alpha must be 'auto' or a number >= 0; got -1"),
        ({"max_iter": 0}, "max_iter must be an integer >= 1; got 0"),
        ({"tol": -1.0}, "tol must be a number >= 0; got -1.0"),
        ({"warm_start": "no"}, "warm_start must be True or False; got 'no'"),
        ({"n_centers": 1.5}, "n_centers must be an integer >= 1; got 1.5"),
    ],
)
def test_bad_parameters(parameters, message, regression):
    with pytest.raises(ValueError, match=message):
        FalkonLikeRegressor(**parameters).fit(*regression[:2])


@pytest.mark.parametrize("cls", [FalkonLikeRegressor, FalkonLikeClassifier])
@pytest.mark.parametrize("options", [{}, {"n_centers": 30, "alpha": 1e-6}], ids=str)
def test_verbose_shows_the_residual(cls, options, rng, capsys):
    X = rng.standard_normal((200, 3))
    y = (X[:, 0] > 0).astype(int)
    model = cls(random_state=0, verbose=1, **options).fit(X, y)
    last = capsys.readouterr().out.splitlines()[-1]
    what = f"iteration {model.n_iter_}" if options else "solved directly"
    assert last.startswith(f"{cls.__name__}: {what}: residual")
    plain = cls(random_state=0, **options).fit(X, y)
    assert_array_equal(model.dual_coef_, plain.dual_coef_)
