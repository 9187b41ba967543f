"""Nystrom kernel ridge and NYTRO against naive formulas, limits and invariances."""

import re
import tracemalloc
import warnings
from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace

import array_api_compat
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from sklearn import clone, config_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV

from eigenkern import (
    FalkonLikeRegressor,
    NystromClassifier,
    NystromRegressor,
    NytroClassifier,
    NytroRegressor,
)
from eigenkern.arrays import memory
from eigenkern.arrays.array import to_numpy
from eigenkern.arrays.machine import CPU
from eigenkern.arrays.threads import n_blas_threads
from eigenkern.kernels import Gaussian
from eigenkern.methods.krylov import krylov_spectrum
from eigenkern.methods.paths import (
    DescentPath,
    RidgePath,
    Spectrum,
    Whitening,
    iterations,
)
from eigenkern.plan import sizes
from eigenkern.plan.sizes import ClosedForm
from eigenkern.problems.basis_centers import CenterProblem
from eigenkern.problems.basis_rows import RowProblem
from eigenkern.problems.data import Data, hold_out

# Where this is not tested: paths of two or three values often end too early.
pytestmark = pytest.mark.filterwarnings("ignore:.* it still falls there")

SIGMA = 1.5
FULL, SOME = {}, {"n_centers": 40}


def kernel(X, Z):
    """Return the laplacian kernel matrix by its definition."""
    return np.exp(-cdist(X, Z) / SIGMA)


def naive_nystrom(X, y, Z, alpha, weights=None):
    """Return a function: equation 15 of the paper with weights and centered targets."""
    w = np.ones(len(y)) if weights is None else weights
    mean = w @ y / w.sum()
    K = kernel(X, Z)
    A = K.T @ (w[:, None] * K) + alpha * w.sum() * kernel(Z, Z)
    a = np.linalg.pinv(A, rcond=1e-14) @ (K.T @ (w * (y - mean)))
    return lambda T: kernel(T, Z) @ a + mean


@pytest.fixture
def weights(rng):
    return rng.integers(0, 4, 160).astype(float)


ROUTE = "eigenkern.plan.of_closed_forms.factorizes"


@pytest.fixture
def iterate(monkeypatch):
    """Make NYTRO iterate even if it is not cheaper."""
    monkeypatch.setattr(ROUTE, lambda *args: False)


@pytest.fixture
def factorize(monkeypatch):
    """Make NYTRO factorize even if it is not cheaper."""
    monkeypatch.setattr(ROUTE, lambda *args: True)


@pytest.mark.parametrize("alpha", [1e-6, 1e-3])
def test_full_kernel_is_kernel_ridge(alpha, regression):
    X, y, X_test, _ = regression
    model = NystromRegressor(bandwidth=SIGMA, alpha=alpha).fit(X, y)
    peer = KernelRidge(kernel="precomputed", alpha=alpha * len(y))
    peer.fit(kernel(X, X), y - y.mean())
    assert_allclose(
        model.predict(X_test), peer.predict(kernel(X_test, X)) + y.mean(), atol=1e-10
    )
    assert model.centers_ is X or np.shares_memory(model.centers_, X)
    assert model.center_indices_ is None
    assert model.n_centers_ == 160


@pytest.mark.parametrize("alpha", [0, 1e-6, 1e-3])
@pytest.mark.parametrize("weighted", [False, True])
def test_nystrom_is_its_formula(alpha, weighted, regression, weights):
    X, y, X_test, _ = regression
    w = weights if weighted else None
    model = NystromRegressor(bandwidth=SIGMA, alpha=alpha, random_state=0, **SOME)
    model.fit(X, y, w)
    assert_array_equal(model.centers_, X[model.center_indices_])
    expected = naive_nystrom(X, y, model.centers_, alpha, w)
    assert_allclose(model.predict(X_test), expected(X_test), atol=1e-8)


def test_given_centers_need_not_be_rows(regression):
    X, y, X_test, _ = regression
    model = NystromRegressor(bandwidth=SIGMA, alpha=1e-4, centers=X_test[:30]).fit(X, y)
    expected = naive_nystrom(X, y, X_test[:30], 1e-4)
    assert_allclose(model.predict(X_test), expected(X_test), atol=1e-9)
    assert model.dual_coef_.shape == (30, 1) and model.center_indices_ is None


def test_least_squares_on_the_full_kernel_interpolates(regression):
    X, y, *_ = regression
    model = NystromRegressor(bandwidth=SIGMA, alpha=0).fit(X, y)
    assert_allclose(model.predict(X), y, atol=1e-10)


def test_linear_kernel_is_ridge(regression):
    X, y, X_test, _ = regression
    mean = X.mean(axis=0)
    ridge = Ridge(alpha=0.01 * 160).fit(X - mean, y)
    for options in ({}, {"n_centers": 20, "random_state": 0}):
        model = NystromRegressor("linear", alpha=0.01, **options).fit(X - mean, y)
        T = X_test - mean
        assert_allclose(model.predict(T), ridge.predict(T), atol=1e-9)


def test_outputs_are_independent(regression):
    X, y, X_test, _ = regression
    Y = np.stack([y, y**2, -y], axis=1)
    for options in (FULL, SOME):
        model = NystromRegressor(bandwidth=SIGMA, alpha=1e-6, random_state=0)
        model.set_params(**options)
        together = model.fit(X, Y).predict(X_test)
        for j in range(3):
            alone = model.fit(X, Y[:, j]).predict(X_test)
            assert_allclose(together[:, j], alone, atol=1e-10)


@pytest.mark.parametrize("options", [FULL, SOME])
def test_path_is_a_fit_for_every_alpha(options, regression):
    X, y, X_test, y_test = regression
    alphas = [0, 1e-8, 1e-4, 1e-1]
    options = {"bandwidth": SIGMA, "random_state": 0, **options}
    path = NystromRegressor(alpha="path", alphas=alphas, **options)
    path.set_params(store_coef_path=True).fit(X, y, X_val=X_test, y_val=y_test)
    assert_array_equal(path.alphas_, alphas)
    assert path.coef_path_.shape == (4, *path.dual_coef_.shape)
    for k, alpha in enumerate(alphas):
        alone = NystromRegressor(alpha=alpha, **options).fit(X, y)
        F = kernel(X_test, path.centers_) @ path.coef_path_[k][:, 0] + path.intercept_
        assert_allclose(F, alone.predict(X_test), atol=1e-7)
        error = np.mean((F - y_test) ** 2)
        assert_allclose(path.validation_path_[k], error, rtol=1e-6)
    best, chosen = int(np.argmin(path.validation_path_)), alphas.index(path.alpha_)
    # Among errors that noise may have made different, that of the largest penalty.
    limit = path.validation_path_[best] * (1 + 5 / (len(y) * len(y_test)) ** 0.5)
    assert chosen >= best and path.validation_path_[chosen] <= limit
    assert_allclose(path.coef_path_[chosen], path.dual_coef_, rtol=1e-8)


@pytest.mark.parametrize("name", ["gaussian", "matern52", "polynomial"])
@pytest.mark.parametrize("bandwidth", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("options", [FULL, SOME])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_paths_of_bad_kernels(name, bandwidth, options, dtype, rng):
    """Path errors are those of its models, however large the coefficients."""
    X = rng.uniform(-1, 1, (300, 2)).astype(dtype)
    y = np.sin(3 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.standard_normal(300)
    X, X_val, y, y_val = X[:200], X[200:], y[:200], y[200:]
    model = NystromRegressor(name, bandwidth=bandwidth, alpha="path", **options)
    model.set_params(store_coef_path=True, random_state=0)
    model.fit(X, y, X_val=X_val, y_val=y_val)
    assert model.coef_path_.dtype == np.float64
    K = model.kernel_(X_val.astype(np.float64), model.centers_.astype(np.float64))
    F = K @ model.coef_path_[:, :, 0].T + model.intercept_
    errors = np.mean((F - y_val[:, None]) ** 2, axis=0)
    sound = model.alphas_ > 1e-10
    assert_allclose(model.validation_path_[sound], errors[sound], rtol=1e-2)
    assert (model.validation_path_ > 0).all()
    for selection in ("holdout", "gcv", "loo"):
        model.set_params(selection=selection, store_coef_path=False).fit(X, y)
        assert np.mean((model.predict(X_val) - y_val) ** 2) < 3 * errors.min()


@pytest.mark.parametrize("options", [FULL, SOME])
@pytest.mark.parametrize("cls", [NystromRegressor, NytroRegressor])
def test_selection_does_not_depend_on_the_scale_of_weights(options, cls, regression):
    X, y, *_ = regression
    y = y + np.random.default_rng(1).standard_normal(160)
    for selection in ("gcv", "holdout"):
        model = cls(selection=selection, random_state=0, **options)
        if cls is NystromRegressor:
            model.set_params(alpha="path")
        expected = model.fit(X, y).validation_path_
        for scale in (1e-300, 1 / 160, 2.0, 1e300):
            model.fit(X, y, np.full(160, scale))
            assert_allclose(model.validation_path_, expected, rtol=1e-6)


@pytest.mark.parametrize("cls", [NystromRegressor, NytroRegressor])
@pytest.mark.parametrize("alpha", [1e-12, 1e-6])
def test_keeping_the_path_changes_nothing(cls, alpha, rng):
    X = rng.uniform(-1, 1, (200, 2))
    y = np.sin(3 * X[:, 0]) + 0.1 * rng.standard_normal(200)
    model = cls("gaussian", bandwidth=1.0, n_centers=80, random_state=0)
    if cls is NystromRegressor:
        model.set_params(alpha=alpha)
    F = model.fit(X, y).predict(X)
    model.set_params(store_coef_path=True).fit(X, y)
    assert_allclose(model.predict(X), F, atol=1e-10)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("selection", ["given", "gcv", "loo"])
@pytest.mark.parametrize("cls", [NystromClassifier, NytroClassifier])
def test_costs_of_classes_do_not_choose_from_a_path(
    cls, selection, weighted, three_classes
):
    X, y = three_classes
    of_class = {0: 1.0, 1: 2.0, 2: 30.0}
    path = {"alpha": "path"} if cls is NystromClassifier else {}
    path["selection"] = "auto" if selection == "given" else selection
    options = {"centers": X[::3], "bandwidth": SIGMA, "random_state": 0}
    fit = {"X_val": X[::2], "y_val": y[::2]} if selection == "given" else {}
    w = np.arange(len(y)) % 3 + 1.0 if weighted else np.ones(len(y))
    if weighted and fit:
        fit["sample_weight_val"] = w[::2]
    plain = cls(**options, **path).fit(X, y, w, **fit)
    model = cls(class_weight=of_class, **options, **path).fit(X, y, w, **fit)
    assert_allclose(model.validation_path_, plain.validation_path_, rtol=1e-7)
    # The model chosen is that of these weights.
    w *= np.asarray([1.0, 2.0, 30.0])[y]
    if cls is NystromClassifier:
        assert model.alpha_ == plain.alpha_
        chosen = {"alpha": model.alpha_}
    else:
        chosen = {"max_iter": model.n_iter_, "step_size": model.step_size_}
        chosen["selection"] = None
    expected = cls(**options, **chosen).fit(X, y, w)
    assert_allclose(
        model.decision_function(X), expected.decision_function(X), atol=1e-6
    )
    assert np.isfinite(model.predict_proba(X)).all()


def test_given_centers_are_copied(regression):
    X, y, X_test, _ = regression
    centers = X_test[:20].copy()
    model = NystromRegressor(centers=centers).fit(X, y)
    F = model.predict(X_test)
    centers += 5
    assert_array_equal(model.predict(X_test), F)


@pytest.mark.parametrize("cls", [NystromRegressor, NytroRegressor, FalkonLikeRegressor])
def test_pivoted_centers(cls, rng):
    """A cluster that uniform centers mostly miss."""
    X = 0.3 * rng.standard_normal((1000, 2))
    X[:30] += 10
    y = np.sin(10 * X[:, 0])
    options = {"kernel": "gaussian", "bandwidth": 0.3, "n_centers": 60}
    if cls is FalkonLikeRegressor:
        options |= {"max_iter": 300, "alpha": 1e-5}
    one = cls(centers="rpcholesky", random_state=0, **options).fit(X, y)
    other = cls(random_state=0, **options).fit(X, y)
    assert len(set(one.center_indices_)) == 60
    n_far = np.count_nonzero(one.center_indices_ < 30)
    assert n_far > 2 * np.count_nonzero(other.center_indices_ < 30)
    error, error_uniform = (np.mean((m.predict(X) - y) ** 2) for m in (one, other))
    assert error < 0.8 * error_uniform


def test_pivoted_centers_of_a_kernel_matrix(regression, weights):
    X, y, X_test, _ = regression
    options = {"centers": "rpcholesky", "n_centers": 40, "random_state": 0}
    expected = NystromRegressor(bandwidth=SIGMA, **options).fit(X, y)
    model = NystromRegressor("precomputed", **options).fit(kernel(X, X), y)
    assert len(set(model.center_indices_)) == 40
    error = np.mean((model.predict(kernel(X, X)) - y) ** 2)
    assert error < 1.5 * np.mean((expected.predict(X) - y) ** 2)
    # Here, too, weights are repetitions.
    model = NystromRegressor(bandwidth=SIGMA, **options).fit(X, y, weights)
    F = model.predict(X_test)
    counts = weights.astype(int)
    model.fit(X.repeat(counts, axis=0), y.repeat(counts))
    assert_allclose(model.predict(X_test), F, atol=1e-8)


def test_pivoted_centers_in_other_libraries(other_xp, regression):
    X, y, *_ = regression
    model = NystromRegressor(centers="rpcholesky", n_centers=40, random_state=0)
    expected = model.fit(X, y).center_indices_
    with config_context(array_api_dispatch=True):
        model.fit(other_xp.asarray(X), other_xp.asarray(y))
    assert_array_equal(to_numpy(model.center_indices_), expected)


def test_memory_of_pivoted_centers(regression, monkeypatch):
    X, y, *_ = regression
    monkeypatch.setattr(memory, "available", lambda xp, device: 1e4)
    with pytest.raises(ValueError, match="centers='rpcholesky' needs"):
        NystromRegressor(centers="rpcholesky", n_centers=40).fit(X, y)


@pytest.mark.parametrize("cls", [NystromClassifier, NytroRegressor, NytroClassifier])
@pytest.mark.parametrize("method", ["kmeans", "leverage_scores"])
def test_chosen_centers(cls, method, three_classes):
    X, y = three_classes
    model = cls(n_centers=12, centers=method, random_state=0).fit(X, y)
    assert model.centers_.shape == (12, 2)
    if method == "kmeans":
        assert model.center_indices_ is None
    else:
        assert_array_equal(X[model.center_indices_], model.centers_)
    other = cls(model.kernel_, centers=model.centers_, random_state=0)
    assert_allclose(other.fit(X, y).dual_coef_, model.dual_coef_, atol=1e-8)


@pytest.mark.parametrize("method", ["kmeans", "leverage_scores"])
@pytest.mark.parametrize("n_centers", [5, 400])
def test_weights_are_repetitions_for_chosen_centers(method, n_centers, rng):
    X = rng.standard_normal((600, 3))
    y, counts = np.sin(2 * X[:, 0]) + X[:, 1], rng.integers(0, 4, 600)
    options = {"n_centers": n_centers, "centers": method, "alpha": 1e-6}
    model = NystromRegressor(**options, random_state=0)
    weighted = clone(model).fit(X, y, counts)
    order = rng.permutation(counts.sum())
    model.fit(X.repeat(counts, axis=0)[order], y.repeat(counts)[order])
    assert_allclose(weighted.centers_, model.centers_, rtol=1e-9)
    assert_allclose(weighted.predict(X), model.predict(X), rtol=1e-6)


def test_as_many_clusters_as_rows_are_the_rows(regression):
    X, y, *_ = regression
    model = NystromRegressor(n_centers=160, centers="kmeans", random_state=0).fit(X, y)
    assert_array_equal(X[model.center_indices_], model.centers_)
    assert len(set(model.center_indices_)) == 160


@pytest.mark.parametrize("given, got", [("kmeans", "'kmeans'"), (True, "an array")])
def test_means_of_a_kernel_matrix(given, got, regression):
    X, y, *_ = regression
    chosen = X if given is True else given
    model = NystromRegressor("precomputed", n_centers=40, centers=chosen)
    with pytest.raises(ValueError, match=f"'leverage_scores' or .*; got {got}$"):
        model.fit(kernel(X, X), y)


def test_leverage_scores_of_a_kernel_matrix(regression):
    X, y, *_ = regression
    options = {"centers": "leverage_scores", "n_centers": 40, "random_state": 0}
    model = NystromRegressor("precomputed", **options).fit(kernel(X, X), y)
    assert len(set(model.center_indices_)) == 40
    Z = X[model.center_indices_]
    expected = NystromRegressor(bandwidth=SIGMA, centers=Z).fit(X, y)
    assert_allclose(model.predict(kernel(X, X)), expected.predict(X), atol=1e-5)


def test_a_kernel_that_is_zero_has_no_pivots(regression):
    def zero(X, Z):
        return np.zeros((len(X), len(Z)))

    model = NystromRegressor(zero, n_centers=5, centers="rpcholesky")
    with pytest.raises(ValueError, match=r"positive k\(x, x\); got zero for every"):
        model.fit(*regression[:2])


def test_fitted_attributes_are_those_of_the_last_fit(regression):
    X, y, *_ = regression
    model = NystromRegressor(alpha="path", store_coef_path=True, n_centers=20)
    model.fit(X, y)
    model.set_params(alpha=1e-3, store_coef_path=False).fit(X, y)
    assert model.alphas_ is model.validation_path_ is model.coef_path_ is None


def leave_one_out(X, y, w, Z, alpha):
    """Return the error with each row left out in turn; the penalty stays the same."""
    total = 0.0
    for i in range(len(y)):
        kept = np.arange(len(y)) != i
        centers = X[kept] if Z is None else Z
        model = naive_nystrom(
            X[kept], y[kept], centers, alpha * w.sum() / w[kept].sum(), w[kept]
        )
        total += w[i] * (y[i] - model(X[i : i + 1])[0]) ** 2
    return total / w.sum()


@pytest.mark.parametrize("options", [FULL, SOME])
@pytest.mark.parametrize("weighted", [False, True])
def test_leave_one_out_is_exact(options, weighted, regression, weights):
    X, y = regression[0][:60], regression[1][:60]
    w = weights[:60] + 1 if weighted else np.ones(60)
    alphas = [1e-4, 1e-2]
    model = NystromRegressor(
        bandwidth=SIGMA, alpha="path", alphas=alphas, selection="loo", **options
    ).fit(X, y, w)
    Z = None if options is FULL else model.centers_
    expected = [leave_one_out(X, y, w, Z, alpha) for alpha in alphas]
    assert_allclose(model.validation_path_, expected, rtol=1e-6)


def test_rows_left_out_of_gradient_descent(regression):
    """Like those of any linear smoother S: r_i / (1 - S_ii), with the mean's change."""
    X, y = regression[0][:60], regression[1][:60]
    model = NytroRegressor(bandwidth=SIGMA, selection="loo", max_iter=30).fit(X, y)
    left = np.eye(60)  # I - S
    step, errors = np.eye(60) - model.step_size_ / 60 * kernel(X, X), []
    for _ in range(31):
        residual = left @ (y - y.mean()) + left.sum(axis=1) * (y - y.mean()) / 59
        errors.append(np.mean((residual / np.diag(left)) ** 2))
        left = step @ left
    assert_array_equal(model.iterations_, np.arange(31))
    assert_allclose(model.validation_path_, errors, rtol=1e-8)
    assert model.n_iter_ == np.argmin(errors)


def test_leave_one_out_has_a_limit_without_penalty(regression):
    X, y = regression[0][:60], regression[1][:60]
    model = NystromRegressor(bandwidth=SIGMA, alpha="path", selection="loo")
    model.set_params(alphas=[0, 1e-15]).fit(X, y)
    inverse = np.linalg.inv(kernel(X, X))
    # Center targets by the mean of the other rows.
    shift = (y - y.mean()) / 59
    residual = inverse @ (y - y.mean()) + shift * inverse.sum(axis=1)
    expected = np.mean((residual / np.diag(inverse)) ** 2)
    assert_allclose(model.validation_path_, expected, rtol=1e-8)


def generalized_cross_validation(X, y, Z, alpha):
    """Return GCV of the smoother of centered targets, as a dense matrix."""
    n = len(y)
    columns = [naive_nystrom(X, row, Z, alpha)(X) for row in np.eye(n)]
    H = np.stack(columns, axis=1)
    return np.mean((y - H @ y) ** 2) / (1 - np.trace(H) / n) ** 2


@pytest.mark.parametrize("options", [FULL, SOME])
def test_generalised_cross_validation(options, regression):
    X, y = regression[0][:60], regression[1][:60]
    alphas = [1e-4, 1e-2]
    model = NystromRegressor(
        bandwidth=SIGMA, alpha="path", alphas=alphas, selection="gcv", **options
    ).fit(X, y)
    expected = [
        generalized_cross_validation(X, y, model.centers_, alpha) for alpha in alphas
    ]
    assert_allclose(model.validation_path_, expected, rtol=1e-6)


def test_nytro_is_its_iteration(regression, factorize):
    X, y, X_test, _ = regression
    model = NytroRegressor(
        bandwidth=SIGMA, max_iter=7, step_size=0.9, selection=None, random_state=0
    )
    model.set_params(**SOME).fit(X, y)
    Z = model.centers_
    inverse_root = np.linalg.inv(np.linalg.cholesky(kernel(Z, Z))).T
    A, b = kernel(X, Z) @ inverse_root, np.zeros(40)
    for _ in range(7):
        b -= 0.9 / 160 * A.T @ (A @ b - (y - y.mean()))
    expected = kernel(X_test, Z) @ inverse_root @ b + y.mean()
    assert_allclose(model.predict(X_test), expected, atol=1e-11)
    assert model.n_iter_ == 7 and model.validation_path_ is None


def test_early_stopping_is_landweber_iteration(regression, iterate):
    X, y, X_test, _ = regression
    model = NytroRegressor(bandwidth=SIGMA, max_iter=9, selection=None).fit(X, y)
    K, a = kernel(X, X), np.zeros(160)
    for _ in range(9):
        a -= model.step_size_ / 160 * (K @ a - (y - y.mean()))
    assert_allclose(model.predict(X_test), kernel(X_test, X) @ a + y.mean(), atol=1e-11)
    top = np.linalg.eigvalsh(K)[-1] / 160
    assert_allclose(model.step_size_, 1 / top, rtol=1e-8)


def test_nytro_tends_to_least_squares(regression, factorize):
    X, y, X_test, _ = regression
    options = {"bandwidth": SIGMA, "centers": X[:20]}
    limit = NystromRegressor(alpha=0, **options).fit(X, y)
    model = NytroRegressor(max_iter=200_000, selection=None, **options).fit(X, y)
    assert_allclose(model.predict(X_test), limit.predict(X_test), atol=1e-8)


@pytest.mark.parametrize("options", [FULL, SOME])
@pytest.mark.parametrize("selection", ["holdout", None])
@pytest.mark.parametrize("tol", [None, 1e-2])
def test_both_routes_agree(options, selection, tol, regression, weights, monkeypatch):
    X, y, X_test, _ = regression
    fitted = []
    for factorizes in (True, False):
        monkeypatch.setattr(ROUTE, lambda *args, f=factorizes: f)
        model = NytroRegressor(
            bandwidth=SIGMA,
            max_iter=60,
            selection=selection,
            tol=tol,
            store_coef_path=True,
            random_state=0,
            **options,
        )
        fitted.append(model.fit(X, y, weights))
    one, other = fitted
    assert one.n_iter_ == other.n_iter_
    assert_allclose(one.step_size_, other.step_size_, rtol=1e-9)
    assert_allclose(one.predict(X_test), other.predict(X_test), atol=1e-8)
    assert_allclose(one.coef_path_, other.coef_path_, atol=1e-8)
    assert_allclose(one.coef_path_[one.n_iter_], one.dual_coef_, atol=1e-12)
    if selection is not None:
        k = len(other.validation_path_)
        assert_allclose(one.validation_path_[:k], other.validation_path_, atol=1e-8)


def test_relative_decrease_stops(regression, factorize):
    X, y, X_test, y_test = regression
    model = NytroRegressor(bandwidth=SIGMA, tol=0.05).fit(
        X, y, X_val=X_test, y_val=y_test
    )
    errors = model.validation_path_
    decrease = (errors[:-1] - errors[1:]) / errors[:-1]
    assert (decrease[: model.n_iter_ - 1] >= 0.05).all()
    assert decrease[model.n_iter_ - 1] < 0.05


def test_noise_is_not_fitted(rng, factorize):
    """The selected iteration has the least error, computed by the definition."""
    X, y = rng.standard_normal((300, 5)), rng.standard_normal(300)
    X, X_val, y, y_val = X[:200], X[200:], y[:200], y[200:]
    model = NytroRegressor(bandwidth=SIGMA)
    with pytest.warns(ConvergenceWarning, match="learned nothing"):
        model.fit(X, y, X_val=X_val, y_val=y_val)
    K, K_val, a = kernel(X, X), kernel(X_val, X), np.zeros(200)
    step, errors = 1 / np.linalg.eigvalsh(K)[-1], []
    for _ in range(501):
        errors.append(np.mean((K_val @ a + y.mean() - y_val) ** 2))
        a -= step * (K @ a - (y - y.mean()))
    t = model.iterations_[model.iterations_ <= 500]
    assert_array_equal(t[:21], np.arange(21))
    assert_allclose(model.validation_path_[: len(t)], np.asarray(errors)[t], rtol=1e-8)
    assert model.n_iter_ == np.argmin(errors) < 10
    # Hardly worse than the mean, while interpolation is far worse.
    assert errors[model.n_iter_] < 1.05 * np.var(y_val) < errors[-1]


@pytest.mark.parametrize("options", [FULL, SOME])
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_one_standard_error(options, n_outputs, regression, rng):
    """It chooses the largest alpha within one standard error of the least error."""
    X, y, X_test, y_test = regression
    Y, Y_test = y[:, None] * np.ones(n_outputs), y_test[:, None] * np.ones(n_outputs)
    Y_test = Y_test + rng.standard_normal(Y_test.shape)
    options = options | {"alphas": np.logspace(-8, 1, 40), "alpha": "path"}
    least = NystromRegressor(random_state=0, **options)
    model = clone(least).set_params(one_standard_error=True)
    for estimator in (least, model):
        estimator.fit(X, Y, X_val=X_test, y_val=Y_test)
    best = least.alphas_[np.argmin(least.validation_path_)]
    single = clone(least).set_params(alpha=best, alphas=None).fit(X, Y)
    squares = (single.predict(X_test).reshape(Y_test.shape) - Y_test) ** 2
    squares = squares.mean(axis=1)
    limit = squares.mean() + squares.std() / np.sqrt(len(squares))
    path = model.validation_path_
    assert_array_equal(path, least.validation_path_)
    assert best < model.alpha_ == model.alphas_[path <= limit].max()


def test_one_standard_error_of_given_rows_with_weights(regression, rng):
    X, y, X_test, y_test = regression
    y_test = y_test + 0.2 * rng.standard_normal(len(y_test))
    w = rng.integers(0, 3, len(y_test)).astype(float)
    rows = np.repeat(np.arange(len(y_test)), w.astype(int))
    options = {"alphas": np.logspace(-8, 1, 400), "one_standard_error": True, **SOME}
    model = NystromRegressor(alpha="path", random_state=0, **options)
    other = clone(model).fit(X, y, X_val=X_test[rows], y_val=y_test[rows])
    model.fit(X, y, X_val=X_test, y_val=y_test, sample_weight_val=w)
    assert model.alpha_ == other.alpha_ < 10


def test_one_standard_error_of_repeated_rows(regression, weights):
    X, y, _, _ = regression
    y = y + np.sin(50 * X[:, 0])
    options = {"alpha": "path", "random_state": 0, "one_standard_error": True, **SOME}
    weighted = NystromRegressor(**options).fit(X, y, sample_weight=weights)
    rows = np.repeat(np.arange(160), weights.astype(int))
    repeated = NystromRegressor(**options).fit(X[rows], y[rows])
    least = NystromRegressor(**options | {"one_standard_error": False})
    assert weighted.alpha_ == repeated.alpha_
    assert weighted.alpha_ > least.fit(X[rows], y[rows]).alpha_


def test_given_validation_rows_decide_and_are_not_fitted(regression):
    X, y, X_test, y_test = regression
    options = {"bandwidth": SIGMA, "alpha": "path", "random_state": 0, **SOME}
    one = NystromRegressor(**options).fit(X, y, X_val=X_test, y_val=y_test)
    other = NystromRegressor(**options).fit(X, y, X_val=X_test, y_val=y_test + 100)
    direct = NystromRegressor(**(options | {"alpha": one.alpha_})).fit(X, y)
    assert_allclose(one.predict(X_test), direct.predict(X_test), atol=1e-9)
    assert other.alpha_ != one.alpha_
    zero = np.zeros(40)
    zero[:20] = 1
    half = NystromRegressor(**options).fit(
        X, y, X_val=X_test, y_val=y_test, sample_weight_val=zero
    )
    part = NystromRegressor(**options).fit(X, y, X_val=X_test[:20], y_val=y_test[:20])
    assert_allclose(half.validation_path_, part.validation_path_, rtol=1e-9)


@pytest.mark.parametrize(
    "cls, parameters",
    [
        (NystromRegressor, {"alpha": "path"}),
        (NystromRegressor, {"alpha": "path", "one_standard_error": True}),
        (NystromRegressor, {"alpha": "path", "selection": "gcv", "alphas": [1e-5, 1]}),
        (NystromClassifier, {"alpha": "path"}),
        (NytroRegressor, {}),
        (NytroClassifier, {}),
    ],
)
@pytest.mark.parametrize("options", [FULL, SOME])
def test_weights_are_repetitions(cls, parameters, options, regression, weights):
    X, y, X_test, _ = regression
    y = (y > 0).astype(int) if cls.__name__.endswith("Classifier") else y
    order = np.random.default_rng(1).permutation(int(weights.sum()))
    counts = weights.astype(int)
    model = cls(random_state=0, **parameters, **options)  # with the median distance
    model.fit(X, y, weights)
    F = getattr(model, "decision_function", model.predict)(X_test)
    fitted = dict(vars(model))
    model.fit(X.repeat(counts, axis=0)[order], y.repeat(counts)[order])
    repeated = getattr(model, "decision_function", model.predict)(X_test)
    assert_allclose(F, repeated, atol=1e-8)
    assert_allclose(fitted["bandwidth_"], model.bandwidth_, rtol=1e-12)
    # Repeated rows make the kernel singular: there are more iterations.
    one, other = fitted["validation_path_"], model.validation_path_
    k = min(len(one), len(other))
    assert k > 10 or k == len(one)
    if cls is NytroRegressor:
        # Where iterations diverge, they multiply rounding as they do the error.
        k = next((i for i in range(k) if one[i] > 10 * one[0]), k)
        assert k > 10
    assert_allclose(one[:k], other[:k], rtol=1e-8)


@pytest.mark.parametrize("cls", [NystromClassifier, NytroClassifier])
def test_class_weight(cls, three_classes):
    X, y = three_classes
    weights = np.asarray([1.0, 2.0, 5.0])[y]
    # Costs of classes do not choose penalty, bandwidth or iterations.
    options = {"n_centers": 30, "bandwidth": "median", "random_state": 0}
    if cls is NystromClassifier:
        options["alpha"] = 1e-3
    else:
        options |= {"selection": None, "max_iter": 30}
    one = cls(class_weight={0: 1, 1: 2, 2: 5}, **options).fit(X, y)
    other = cls(**options).fit(X, y, weights)
    assert_allclose(one.decision_function(X), other.decision_function(X), atol=1e-12)


def test_targets_far_from_zero(regression):
    X, y, X_test, _ = regression
    for cls in (NystromRegressor, NytroRegressor):
        for options in (FULL, SOME):
            model = cls(bandwidth=SIGMA, random_state=0, **options)
            F = model.fit(X, y).predict(X_test)
            moved = model.fit(X, y + 1e6).predict(X_test)
            assert_allclose(moved - 1e6, F, atol=1e-6)


@pytest.mark.parametrize("cls", [NystromRegressor, NytroRegressor])
@pytest.mark.parametrize("full", [True, False])
def test_precomputed(cls, full, regression):
    X, y, X_test, _ = regression
    options = {} if full else {"n_centers": 160}
    options |= {"selection": "gcv", "random_state": 0}
    if cls is NystromRegressor:
        options |= {"alpha": "path", "alphas": [1e-5, 1e-4]}
    K, K_test = kernel(X, X), kernel(X_test, X)
    expected = cls("laplacian", bandwidth=SIGMA, **options).fit(X, y)
    model = cls("precomputed", **options).fit(K, y)
    assert model.dual_coef_.shape == (160, 1)
    assert_allclose(model.predict(K_test), expected.predict(X_test), atol=1e-7)
    model.set_params(selection="holdout", n_centers=None if full else 50).fit(K, y)
    assert np.mean((model.predict(K_test) - regression[3]) ** 2) < 0.6


@pytest.mark.parametrize("cls", [NystromRegressor, NytroRegressor])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "case", ["copies of centers", "tiny bandwidth", "huge bandwidth", "one feature"]
)
def test_singular_kernels_survive(cls, dtype, case, regression, rng):
    X, y, X_test, y_test = regression
    options = {"kernel": "gaussian", "bandwidth": SIGMA, "centers": X[:60]}
    if case == "copies of centers":
        options["centers"] = np.repeat(X[:20], 3, axis=0)
    elif case == "tiny bandwidth":
        options["bandwidth"] = 1e-3
    elif case == "huge bandwidth":
        options["bandwidth"] = 1e3
    else:
        X, X_test = X[:, :1], X_test[:, :1]
        options["centers"] = np.linspace(-3, 3, 100)[:, None]
    if cls is NystromRegressor:
        options["alpha"] = "path"
    X, X_test = X.astype(dtype), X_test.astype(dtype)
    model = cls(random_state=0, **options)
    # No held-out row is near a center: the best iteration is the first.
    nothing = case == "tiny bandwidth" and cls is NytroRegressor
    with pytest.warns(match="learned nothing") if nothing else nullcontext():
        model.fit(X, y)
    F = model.predict(X_test)
    assert np.isfinite(F).all()
    # Never much worse than the mean.
    assert np.mean((F - y_test) ** 2) < 1.1 * np.mean((y.mean() - y_test) ** 2)
    if case == "copies of centers":
        assert model.n_centers_ == 20
        assert np.count_nonzero(model.dual_coef_) == 20
    if case == "one feature":
        assert model.n_centers_ < 60


def test_duplicated_centers_change_nothing(regression):
    X, y, X_test, _ = regression
    options = {"bandwidth": SIGMA, "alpha": 1e-3}
    once = NystromRegressor(centers=X[:20], **options).fit(X, y)
    thrice = NystromRegressor(centers=np.repeat(X[:20], 3, axis=0), **options).fit(X, y)
    assert_allclose(once.predict(X_test), thrice.predict(X_test), atol=1e-9)


def test_a_tiny_penalty_on_a_bad_kernel(rng):
    """Sums of K'K alone would leave an error of 1e-6 times B's top eigenvalue."""
    X = rng.random((2000, 1))
    y = np.cos(3 * X[:, 0])
    model = NystromRegressor("gaussian", bandwidth=0.5, n_centers=200, alpha=1e-12)
    F = model.set_params(random_state=0).fit(X, y).predict(X)
    assert_allclose(F, y, atol=1e-5)


def test_single_and_double_precision_agree(regression):
    X, y, X_test, _ = regression
    for options in (FULL, SOME):
        for cls, penalty in ((NystromRegressor, {"alpha": 1e-6}), (NytroRegressor, {})):
            model = cls("gaussian", bandwidth=SIGMA, random_state=0)
            model.set_params(**options, **penalty)
            double = model.fit(X, y).predict(X_test)
            single = model.fit(X.astype(np.float32), y)
            assert single.dual_coef_.dtype == np.float32
            F = single.predict(X_test.astype(np.float32))
            assert_allclose(F, double, atol=5e-3)


@pytest.mark.parametrize(
    "model",
    [
        NystromRegressor("precomputed", alpha=0),
        NystromRegressor("precomputed", alpha="path"),
        NytroRegressor("precomputed", max_iter=3000),
        NytroRegressor("precomputed", max_iter=3000, selection=None),
    ],
)
def test_negative_eigenvalues_warn(model, rng, iterate):
    Q = np.linalg.qr(rng.standard_normal((30, 30)))[0]
    K = (Q * np.linspace(-3, 10, 30)) @ Q.T
    y = rng.standard_normal(30)
    message = "semi-definite: its smallest eigenvalue on 30 rows is -3, its largest 10"
    with pytest.warns(ConvergenceWarning, match=message) as record:
        model.set_params(random_state=0).fit(K, y)
    assert len(record) == 1 and record[0].filename == __file__
    assert np.isfinite(model.dual_coef_).all()
    assert np.mean((model.predict(K) - y) ** 2) < 3 * np.var(y)


def test_grid_search(regression):
    X, y, *_ = regression
    search = GridSearchCV(
        NystromRegressor(random_state=0), {"alpha": [1e-6, 1.0], "n_centers": [50]}
    ).fit(X, y)
    assert search.best_params_["alpha"] == 1e-6


@pytest.mark.parametrize(
    "cls", [NystromRegressor, NystromClassifier, NytroRegressor, NytroClassifier]
)
@pytest.mark.parametrize("selection", ["holdout", "gcv"])
@pytest.mark.parametrize("options", [FULL, SOME])
def test_other_libraries_agree(cls, selection, options, other_xp, three_classes):
    X, y = three_classes
    options = {"selection": selection, "random_state": 0, **options}
    if "alpha" in cls().get_params():
        options |= {"alpha": "path", "alphas": [1e-5, 1e-3, 1e-1]}
    expected = cls(**options).fit(X, y)
    with config_context(array_api_dispatch=True):
        model = cls(**options).fit(other_xp.asarray(X), other_xp.asarray(y))
        F = model.predict(other_xp.asarray(X))
    for name in ("dual_coef_", "intercept_", "centers_", "validation_path_"):
        found = getattr(model, name)
        assert array_api_compat.array_namespace(found) == other_xp
        assert_allclose(to_numpy(found), getattr(expected, name), atol=1e-8)
    assert_allclose(to_numpy(F), expected.predict(X), atol=1e-8)


@pytest.mark.parametrize("options", [FULL, SOME])
def test_iterating_in_other_libraries(options, other_xp, regression, iterate):
    X, y, *_ = regression
    model = NytroRegressor(max_iter=20, random_state=0, **options)
    expected = model.fit(X, y).dual_coef_
    with config_context(array_api_dispatch=True):
        model.fit(other_xp.asarray(X), other_xp.asarray(y))
    assert_allclose(to_numpy(model.dual_coef_), expected, atol=1e-8)


BAD = [
    (NystromRegressor, {"alpha": -1}, "alpha must be a number >= 0; got -1"),
    (NystromRegressor, {"alpha": "best"}, "alpha must be .* or 'path'; got 'best'"),
    (NystromRegressor, {"alpha": None}, "alpha must be a number >= 0; got None"),
    (NystromRegressor, {"alphas": []}, r"alphas must be None or a list .*; got \[\]"),
    (NystromRegressor, {"alphas": [1, -1]}, r"alphas must be .*; got \[1, -1\]"),
    (NystromRegressor, {"alphas": "many"}, "alphas must be .*; got 'many'"),
    (NystromRegressor, {"selection": "cv"}, "'gcv', 'loo'; got 'cv'"),
    (NystromRegressor, {"n_centers": 0}, "n_centers must be an integer >= 1; got 0"),
    (NystromRegressor, {"n_centers": "many"}, "n_centers must be .*; got 'many'"),
    (
        NystromRegressor,
        {"centers": "best"},
        "centers must be 'uniform', .*; got 'best'",
    ),
    (
        NystromRegressor,
        {"centers": [[1.0]]},
        r"the 3 features of X; got shape \(1, 1\)",
    ),
    (
        NystromRegressor,
        {"centers": np.ones((2, 3)), "n_centers": 5},
        "n_centers must be 'auto', None or 2, .*; got 5",
    ),
    (NystromRegressor, {"centers": np.full((2, 3), np.nan)}, "centers contains NaN"),
    (NystromRegressor, {"validation_fraction": 1.0}, "validation_fraction .*; got 1.0"),
    (NytroRegressor, {"selection": "cv"}, "'gcv', 'loo', None; got 'cv'"),
    (
        NytroRegressor,
        {"max_iter": 0},
        "max_iter must be an integer >= 1; got 0",
    ),
    (
        NytroRegressor,
        {"step_size": 0},
        "step_size must be a number > 0; got 0",
    ),
    (NytroRegressor, {"step_size": 1e3}, "step_size must be below .*; got 1000.0"),
    (NytroRegressor, {"tol": -1}, "tol must be a number >= 0; got -1"),
    (NytroRegressor, {"store_coef_path": "no"}, "store_coef_path must be .*; got 'no'"),
    (NystromRegressor, {"centers": None}, "centers must be 'uniform', .*; got None"),
    (
        NystromRegressor,
        {"selection": np.ones(2)},
        "selection must be one of",
    ),
    (NystromRegressor, {"one_standard_error": 1}, "one_standard_error must be"),
    (
        NystromRegressor,
        {"one_standard_error": True, "selection": "loo"},
        "one_standard_error=True needs errors .* got selection='loo'",
    ),
]


@pytest.mark.parametrize("cls, parameters, message", BAD)
def test_bad_parameters(cls, parameters, message, regression):
    X, y, *_ = regression
    with pytest.raises(ValueError, match=message):
        cls(**parameters).fit(X, y)


def test_bad_validation_rows(regression, three_classes):
    X, y, X_test, y_test = regression
    model = NystromRegressor(alpha="path")
    with pytest.raises(ValueError, match=r"passed together.* got X_val=None"):
        model.fit(X, y, y_val=y_test)
    with pytest.raises(ValueError, match=r"passed together.* y_val=None"):
        model.fit(X, y, X_val=X_test)
    with pytest.raises(ValueError, match=r"X_val and y_val are not valid: .* NaN"):
        model.fit(X, y, X_val=X_test * np.nan, y_val=y_test)
    for parameters in ({"alpha": 1.0}, {"alpha": "path", "selection": "gcv"}):
        with pytest.raises(ValueError, match="X_val and y_val must be None unless"):
            NystromRegressor(**parameters).fit(X, y, X_val=X_test, y_val=y_test)
    with pytest.raises(ValueError, match="features"):
        model.fit(X, y, X_val=X_test[:, :2], y_val=y_test)
    with pytest.raises(ValueError, match="as many outputs as y, 1; got 2"):
        model.fit(X, y, X_val=X_test, y_val=np.stack([y_test, y_test], axis=1))
    with pytest.raises(ValueError, match="sample_weight_val must have shape"):
        model.fit(X, y, X_val=X_test, y_val=y_test, sample_weight_val=[1.0])
    X, y = three_classes
    with pytest.raises(ValueError, match="y_val must hold only classes of y; got 7"):
        NystromClassifier(alpha="path").fit(X, y, X_val=X[:2], y_val=[0, 7])


def test_equal_rows_are_not_held_out():
    X, y = np.ones((10, 2)), np.full(10, 0.1)
    model = NytroRegressor("gaussian", bandwidth=1.0)
    with pytest.warns(ConvergenceWarning, match="all rows of X with weight are equal"):
        model.fit(X, y)
    assert_array_equal(model.predict(X), y)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")
def test_infinite_kernel_values(regression):
    X, y, *_ = regression
    for options in (FULL, SOME):
        with pytest.raises(ValueError, match=r"Polynomial.* overflows in float64"):
            NystromRegressor("polynomial", bandwidth=1.0, **options).fit(1e120 * X, y)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")
def test_values_that_overflow(regression, monkeypatch):
    X, y, *_ = regression
    # Targets themselves are checked: see test_parameters.py.
    monkeypatch.setattr("eigenkern.fitting.targets.check_scale", lambda *_, **__: 0)
    with pytest.raises(ValueError, match="no model with a finite error"):
        NystromRegressor(alpha="path").fit(X, y * 1e200)
    with pytest.raises(ValueError, match="coefficients are not finite"):
        FalkonLikeRegressor(n_centers=20).fit(X.astype(np.float32), y * 1e40)
    for factorizes in (False, True):
        monkeypatch.setattr(ROUTE, lambda *args, f=factorizes: f)
        for options in (FULL, SOME):
            with pytest.raises(ValueError, match=r"Polynomial.* overflows in float64"):
                NytroRegressor("polynomial", bandwidth=1.0, **options).fit(1e120 * X, y)


@pytest.mark.parametrize("kernel", ["gaussian", "polynomial"])
@pytest.mark.parametrize("cls", [NystromRegressor, FalkonLikeRegressor])
def test_penalties_that_single_precision_would_drown(cls, kernel, rng):
    X = rng.uniform(-1, 1, (600, 2)).astype(np.float32)
    y = np.sin(3 * X[:, 0]) + X[:, 1]
    for n_centers in (None, 100):
        model = cls(kernel, bandwidth=10.0, n_centers=n_centers, random_state=0)
        model.set_params(alpha=1e-8).fit(X.astype(np.float64), y)
        expected = model.predict(X)
        single = clone(model).fit(X, y)
        assert single.dual_coef_.dtype == single.centers_.dtype == np.float64
        assert_allclose(single.predict(X), expected, rtol=1e-9)
        # A penalty above rounding does not change the data type.
        model.set_params(alpha=1e-4, kernel="gaussian").fit(X, y)
        assert model.dual_coef_.dtype == np.float32


def _sine(rng, n_features, n=400):
    X = rng.uniform(-2, 2, (n + 200, n_features)).astype(np.float32)
    y = np.sin(3 * X[:, 0]) + 0.1 * rng.standard_normal(n + 200)
    return X[:n], y[:n], X[n:], np.sin(3 * X[n:, 0])


@pytest.mark.parametrize("n_centers", [None, 150])
@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "matern52"])
@pytest.mark.parametrize(
    "model",
    [
        NystromRegressor(alpha=1e-10),
        NystromRegressor(alpha="path"),
        NystromRegressor(alpha="path", selection="gcv"),
        NystromRegressor(alpha="path", selection="loo"),
        NytroRegressor(),
        FalkonLikeRegressor(alpha=1e-7, max_iter=500, tol=1e-5),
    ],
)
def test_single_precision_is_as_good_as_double(model, kernel, n_centers, rng):
    """Whatever the spectrum: an error of single precision is below 0.003 in R2."""
    X, y, T, t = _sine(rng, 3)
    options = {"kernel": kernel, "n_centers": n_centers, "bandwidth": "median"}
    model = clone(model).set_params(random_state=0, **options)
    double = model.fit(X.astype(np.float64), y).score(T.astype(np.float64), t)
    assert abs(model.fit(X, y).score(T, t) - double) < 3e-3


@pytest.mark.parametrize("kernel", ["laplacian", "matern32", "manhattan"])
def test_rounding_does_not_make_a_named_kernel_indefinite(kernel, rng):
    """One column: distances of near rows lose most digits in single precision."""
    X, y, T, t = _sine(rng, 1)
    model = NystromRegressor(kernel, alpha=1e-6, bandwidth="median")
    model.fit(X, y)  # warnings are errors
    F, deviation = model.predict(T, return_std=True)
    assert np.corrcoef(F, t)[0, 1] > 0.99
    assert_allclose(deviation, 0.1, rtol=1)
    # Of a function nothing is known.
    known = model.kernel_
    with pytest.warns(ConvergenceWarning, match="not positive semi-definite"):
        model.set_params(kernel=lambda A, B: known(A, B) - 0.5).fit(X, y)


@pytest.mark.parametrize("cls", [NystromRegressor, NytroRegressor, FalkonLikeRegressor])
def test_files_in_single_precision(cls, rng, tmp_path):
    """Rows are cast block by block where rounding would drown the penalty."""
    X, y, T, _ = _sine(rng, 3)
    stored = np.lib.format.open_memmap(
        tmp_path / "X.npy", "w+", dtype=np.float32, shape=X.shape
    )
    stored[:] = X
    model = cls("gaussian", n_centers=100, random_state=0)
    if cls is not NytroRegressor:
        model.set_params(alpha=1e-9)
    expected = clone(model).fit(X.astype(np.float64), y).predict(T)
    assert_allclose(model.fit(stored, y).predict(T), expected, atol=2e-3)


def test_automatic_selection(regression, monkeypatch):
    X, y, X_test, y_test = regression
    model = NystromRegressor(alpha="path", random_state=0)
    assert model.fit(X, y).selection_ == "loo"
    expected = clone(model).set_params(selection="loo").fit(X, y)
    assert_array_equal(model.validation_path_, expected.validation_path_)
    assert model.fit(X, y, X_val=X_test, y_val=y_test).selection_ == "holdout"
    assert clone(model).set_params(alpha=1e-3).fit(X, y).selection_ is None
    limit = "eigenkern.plan.parameters._ENOUGH_TO_HOLD_OUT"
    monkeypatch.setattr(limit, 160)
    assert model.fit(X, y).selection_ == "holdout"
    assert model.fit(X[1:], y[1:]).selection_ == "loo"
    assert model.set_params(one_standard_error=True).fit(X, y).selection_ == "holdout"
    classifier = NystromClassifier(alpha="path", loss="log_loss", random_state=0)
    assert classifier.fit(X[:50], y[:50] > 0).selection_ == "holdout"


@pytest.mark.parametrize("n, n_draws", [(300, 8), (1200, 3)])
def test_noise_does_not_choose_a_tiny_penalty(n, n_draws):
    """Errors within noise of each other are equal: the largest penalty is safest."""
    steps = []
    for seed in range(n_draws):
        rng = np.random.default_rng(seed)
        X = rng.uniform(-2, 2, (n, 1))
        y = np.sin(3 * X[:, 0]) + 0.3 * rng.standard_normal(n)
        model = NystromRegressor("gaussian", alpha="path", random_state=0).fit(X, y)
        # At no cost among the rows: the best penalty of all has 0.002 for 300 rows.
        T = np.linspace(-2, 2, 200)[:, None]
        assert np.mean((model.predict(T) - np.sin(3 * T[:, 0])) ** 2) < 0.012
        steps.append(abs(model.predict([[2.5], [-2.5]])).max())
    assert np.median(steps) < 3 and max(steps) < 20


def test_rounding_does_not_choose_a_penalty(rng):
    """The kernel has rank 4; errors of penalties below 1e-13 are rounding."""
    X = rng.uniform(-2, 2, (800, 1))
    y = np.sin(3 * X[:, 0]) + 0.1 * rng.standard_normal(800)
    model = NystromRegressor("polynomial", alpha="path", random_state=0).fit(X, y)
    assert model.alpha_ > 1e-13
    cubic = np.polyval(np.polyfit(X[:, 0], y, 3), X[:, 0])
    assert_allclose(model.predict(X), cubic, atol=0.1)


def test_a_zero_kernel(regression):
    X, y, *_ = regression
    with pytest.raises(ValueError, match=r"positive k\(x, x\); got zero for every"):
        NystromRegressor(lambda X, Z: 0 * X @ Z.T, n_centers=5).fit(X, y)


@pytest.mark.parametrize(
    "cls", [NystromRegressor, NytroRegressor, FalkonLikeRegressor, NystromClassifier]
)
def test_automatic_centers(cls, regression, monkeypatch):
    X, y, *_ = regression
    y = y > 0 if cls is NystromClassifier else y
    model = cls(random_state=0)
    if cls is NytroRegressor:
        model.set_params(selection="holdout")
    assert model.get_params()["n_centers"] == "auto"
    every = model.fit(X, y).dual_coef_
    assert model.centers_.shape[0] == 160
    assert_array_equal(model.set_params(n_centers=None).fit(X, y).dual_coef_, every)
    asked = []

    def few(kind, X, n_columns, xp, device, **options):
        asked.append((kind, n_columns, options["validated"], options["n_stored"]))
        return 30

    monkeypatch.setattr("eigenkern.plan.of_closed_forms.default_n_centers", few)
    model.set_params(n_centers="auto").fit(X, y)
    assert model.centers_.shape[0] == 30
    expected = {NytroRegressor: ("path", 1, True, 0), FalkonLikeRegressor: ("falkon",)}
    assert asked[0][: len(expected.get(cls, ()))] == expected.get(cls, ())
    direct = model.dual_coef_
    assert_array_equal(model.set_params(n_centers=30).fit(X, y).dual_coef_, direct)
    # An array of centers, or a kernel matrix, sets their number.
    model.set_params(n_centers="auto", centers=X[:7]).fit(X, y)
    assert model.centers_.shape[0] == 7
    model.set_params(kernel="precomputed", centers="uniform").fit(kernel(X, X), y)
    assert model.centers_ is None and model.dual_coef_.shape[0] == 160
    assert model.center_indices_ is None
    assert len(asked) == 1


def test_automatic_centers_are_rows_that_are_not_held_out(regression, monkeypatch):
    X, y, *_ = regression
    monkeypatch.setattr(
        "eigenkern.plan.of_closed_forms.default_n_centers", lambda *a, **k: 150
    )
    model = NystromRegressor(alpha="path", selection="holdout", random_state=0)
    assert model.fit(X, y).centers_.shape[0] == 128


def test_memory_that_does_not_suffice(regression, rng, monkeypatch):
    X, y, *_ = regression
    monkeypatch.setattr(memory, "available", lambda xp, device: 1e5)
    for cls in (NystromRegressor, NytroRegressor, FalkonLikeRegressor):
        with pytest.raises(ValueError, match=r"n_centers=40 needs .* MB .* are free"):
            cls(n_centers=40).fit(X, y)
    least = r"n_centers; even 10 rows take about \d+ MB, which must be free$"
    with pytest.raises(ValueError, match=least):
        NystromRegressor(n_centers=None).fit(X, y)
    squares = r"matrices of 3000 x 3000, but .* pass a smaller n_centers"
    X, y, free = rng.standard_normal((3000, 3)), np.arange(3000.0), 3e8
    with pytest.raises(ValueError, match=squares):
        NystromRegressor(n_centers=3000).fit(X, y)
    monkeypatch.setattr(memory, "available", lambda xp, device: free)
    enough = r"; n_centers=\d+ takes about \d+ MB$"
    with pytest.raises(ValueError, match=squares + enough) as found:
        NystromRegressor(n_centers=3000).fit(X, y)
    most = int(re.search(r"; n_centers=(\d+)", str(found.value))[1])
    assert 0.8 * free < ClosedForm.make("ridge", most, 3000).bytes <= free


@pytest.mark.parametrize(
    "model",
    [
        NystromRegressor(n_centers=1200, alpha=1e-3),
        NystromRegressor(n_centers=1200, alpha="path"),
        NystromRegressor(n_centers=1200, alpha="path", selection="gcv"),
        NystromRegressor(n_centers=300, alpha="path", selection="loo"),
        NystromRegressor(n_centers=300, alpha="path", store_coef_path=True),
        NystromRegressor(n_centers=None, alpha="path"),
        NystromRegressor(n_centers=None, alpha="path", selection="loo"),
        NytroRegressor(n_centers=300, max_iter=2000, store_coef_path=True),
        FalkonLikeRegressor(n_centers=1200, alpha=1e-6, max_iter=3, tol=0.99),
    ],
)
def test_memory_stays_within_the_plan(model, rng, monkeypatch, factorize, small_blocks):
    n = 1500 if model.n_centers is None else 8000
    X, noise = rng.standard_normal((2, n, 4))
    Y, plans = X + noise, []
    check = ClosedForm.check_memory

    def remember(self, place):
        plans.append(self)
        check(self, place)

    monkeypatch.setattr(ClosedForm, "check_memory", remember)
    small_blocks(2e6)
    model.set_params(kernel="gaussian", bandwidth=0.5, random_state=0, cache_size=0)
    tracemalloc.start()
    model.fit(X, Y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    rows = 5 * (X.nbytes + Y.nbytes)  # of both parts, encoded and centered
    tiles = 4e6 + 1e6 * n_blas_threads()
    # A path needs all of the plan only if its kernel has negative eigenvalues.
    least = 0.9 if getattr(model, "alpha", None) == 1e-3 else 0.25
    assert least * plans[0].bytes < peak < plans[0].bytes + rows + tiles


@pytest.fixture
def small_blocks(monkeypatch):
    """Return a function that makes blocks and tiles too small to hide the matrices."""

    def make(n_bytes):
        monkeypatch.setattr("eigenkern.operators.blocks.BLOCK_BYTES", n_bytes)
        monkeypatch.setattr("eigenkern.plan.sizes.BLOCK_BYTES", n_bytes)
        small = replace(CPU, tile_bytes=1e6)
        monkeypatch.setattr("eigenkern.operators.tiled.machine_of", lambda _: small)

    return make


@pytest.mark.parametrize(
    "model",
    [
        NystromRegressor(n_centers=200, alpha="path", store_coef_path=True),
        NystromRegressor(n_centers=None, alpha="path", store_coef_path=True),
        NytroRegressor(n_centers=200, max_iter=100, store_coef_path=True),
        NytroRegressor(n_centers=None, max_iter=100, store_coef_path=True),
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("ignore:.* learned nothing")  # targets are noise
def test_the_plan_has_room_for_stored_paths(
    model, rng, monkeypatch, factorize, small_blocks
):
    X, Y = rng.standard_normal((600, 4)), rng.standard_normal((600, 60))
    model = clone(model).set_params(kernel="gaussian", bandwidth=0.5, cache_size=0)
    small_blocks(1e6)
    plans = []
    monkeypatch.setattr(
        ClosedForm, "check_memory", lambda self, place: plans.append(self.bytes)
    )
    tracemalloc.start()
    model.fit(X, Y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert model.coef_path_.nbytes > 0.25 * plans[0]
    assert 0.5 * plans[0] < peak < plans[0] + 1e6 * n_blas_threads()


@pytest.mark.parametrize(
    "model, n_squares, n_candidates",
    [
        (NystromRegressor(n_centers=40, alpha=1e-3), 5, 0),
        (NystromRegressor(n_centers=40, alpha=0), 7, 0),
        (NystromRegressor(n_centers=40, alpha="path"), 9, 0),
        (NystromRegressor(n_centers=40, alpha="path", selection="holdout"), 9, 0),
        (NystromRegressor(n_centers=40, alpha="path", selection="gcv"), 7, 0),
        (NystromRegressor(n_centers=40, alpha="path", store_coef_path=True), 9, 100),
        (NystromRegressor(n_centers=None, alpha=1e-3), 3, 0),
        (NystromRegressor(n_centers=None, alpha="path"), 6, 0),
        (NystromRegressor(n_centers=None, alpha="path", store_coef_path=True), 6, 100),
        (FalkonLikeRegressor(n_centers=40), 7, 0),
        (NystromClassifier(n_centers=40, alpha=1e-3, loss="log_loss"), 8, 0),
    ],
    ids=repr,
)
def test_a_fit_needs_the_memory_of_its_plan(
    model, n_squares, n_candidates, regression, monkeypatch
):
    """8 (k p^2 + 3 b p + c + 2 n w) bytes, with b = n rows in a block."""
    X, y, *_ = regression
    model, n = clone(model).set_params(cache_size=0, random_state=0), len(y)
    p, stored = model.n_centers or n, 0
    if n_candidates:
        stored = 3 * p * n_candidates
    if isinstance(model, NystromClassifier):
        y, stored = y > 0, 8 * n
    width = p + 600 * (getattr(model, "alpha", None) in ("path", 0))
    needed = 8 * (n_squares * p**2 + 3 * n * p + stored + 2 * n * width)
    monkeypatch.setattr(memory, "available", lambda xp, device: needed - 1)
    with pytest.raises(ValueError, match=r"needs .* MB .* are free"):
        model.fit(X, y)
    monkeypatch.setattr(memory, "available", lambda xp, device: needed)
    assert model.fit(X, y).score(X, y) > 0.3


def test_plan_is_an_inequality():
    p, n = 1000, 100_000
    least = ClosedForm.make("ridge", p, n).bytes
    assert least > 5 * 8 * p**2
    assert ClosedForm.make("ridge", p, n, validated=True).bytes == least + 16 * p**2
    assert ClosedForm.make("ridge", p, n, n_stored=100).bytes == least + 800
    assert ClosedForm.make("path", p, n).bytes > least


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_whitening_keeps_what_spans(dtype, rng):
    Z = np.repeat(rng.standard_normal((30, 2)), 2, axis=0)
    K = Gaussian(0.7)(Z)
    whitening = Whitening.of(K, np.dtype(dtype))
    assert (whitening.R is None) == (dtype == np.float32 or whitening.smallest >= 1e-6)
    p = len(whitening.kept)
    assert p <= 30
    kept = K[np.ix_(whitening.kept, whitening.kept)]
    assert_allclose(whitening.L @ whitening.L.T, kept, atol=1e-12)
    cross = np.linalg.solve(whitening.L, K[whitening.kept])
    assert_allclose(cross.T @ cross, K, atol=1e-6 if dtype == np.float32 else 1e-10)


@pytest.fixture(params=["rows", "centers"])
def problem(request, regression, rng):
    """A weighted problem with rows held out, and its data."""
    X, y, *_ = regression
    Y, w = np.stack([y, y**2 + 5], axis=1), rng.integers(0, 4, 160).astype(float)
    data = Data(X, Y, Y, w, np.random.RandomState(0))
    train, held_out = hold_out(data, data.rows_with_weight(), 0.2)
    options = {"kernel": "laplacian", "bandwidth": SIGMA}
    if request.param == "rows":
        return RowProblem("auto", data, train, held_out, **options), data
    options |= {"n_centers": 40, "centers": "uniform"}
    return CenterProblem("auto", data, train, held_out, **options), data


def test_problems_follow_the_protocol(problem):
    problem, data = problem
    spectrum = problem.training.spectrum
    fitted = spectrum.coef(RidgePath([1e-3]).filters(spectrum)[:, 0])
    train, held_out, losses = problem.train.index, problem.validation.index, []
    assert problem.intercept == pytest.approx(
        np.average(data.targets, axis=0, weights=data.weights)
    )
    for b in (problem.initial_coef(), fitted):
        model = problem.fitted_attributes(b)
        F = kernel(data.X, model["centers_"]) @ model["dual_coef_"]
        F = F + model["intercept_"]
        assert_allclose(problem.held_out(b, 0.0).values, F[held_out], atol=1e-9)
        squares = ((F - data.targets) ** 2).mean(axis=1)
        error = np.average(squares[held_out], weights=data.weights[held_out])
        matrix = problem.matrix_of_validation(b)
        found = problem.validation_loss(problem.validation_losses(matrix, b, 0.0))
        assert_allclose(found, error, rtol=1e-9)
        losses.append(np.average(squares[train], weights=data.weights[train]))
    assert losses[1] < 0.5 * losses[0]


@pytest.mark.parametrize("whitens_rows", [False, True])
def test_sums_are_not_changed(problem, whitens_rows, monkeypatch):
    monkeypatch.setattr(Whitening, "_LIMIT", np.inf if whitens_rows else 0.0)
    training = problem[0].training
    arrays = [v for v in vars(training).values() if isinstance(v, np.ndarray)]
    copies = [values.copy() for values in arrays]
    first = training.solve(training.factor(1e-3))[:, :-1]
    by_spectrum = training.spectrum.coef(
        RidgePath([1e-3]).filters(training.spectrum)[:, 0]
    )
    assert_allclose(first, by_spectrum, rtol=1e-8)
    assert_array_equal(training.solve(training.factor(1e-3))[:, :-1], first)
    assert len(arrays) >= 2
    for values, copy in zip(arrays, copies, strict=True):
        assert_array_equal(values, copy)


def test_filters_against_their_definition():
    e = np.asarray([0.0, 1e-12, 1e-3, 0.3, 1.0, 1.7])
    alphas = np.asarray([0.0, 1e-3, 1.0])
    spectrum = Spectrum(e, None, None, None, 1.0, 1e-10)
    g = RidgePath(alphas).filters(spectrum)
    assert_allclose(g[2:, :], 1 / (e[2:, None] + alphas))
    assert_array_equal(g[:2, 0], 0)
    for step in (0.5, 1.0):
        for t in (0, 1, 5, 40):
            expected = step * sum((1 - step * e) ** k for k in range(t))
            found = DescentPath([t], step).filters(spectrum)[:, 0]
            assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


def test_the_cheaper_route_is_taken(monkeypatch):
    monkeypatch.setattr(memory, "installed", lambda xp, device: 1e12)
    monkeypatch.setattr(sizes, "n_cores", lambda: 2)
    place = SimpleNamespace(xp=np, device="cpu")

    def pays(n_iter, n_centers, cache_size=100_000):
        form = ClosedForm.make("path", n_centers or 20_000, 20_000)
        given = 20_000, n_centers, 10, 1
        return sizes.factorizes(place, form, given, 8, n_iter, cache_size)

    assert pays(500, 500)
    assert not pays(5, 5000)
    assert not pays(5, None)
    # Kernel values that are recomputed make iterations more expensive.
    assert pays(30, 1500, cache_size=0) and not pays(15, 1500)


@pytest.fixture
def small_spectra(monkeypatch):
    """Make paths use a part of the spectrum even in small problems."""
    monkeypatch.setattr("eigenkern.methods.krylov._LEAST_COEFS", 0)
    monkeypatch.setattr("eigenkern.methods.krylov._LEAST_PER_OUTPUT", 0)


@pytest.mark.parametrize("decay", [1.2, 2.0, 4.0])
def test_a_part_of_the_spectrum_gives_the_models_of_all(decay, rng, small_spectra):
    n, N = 400, 50.0
    e, alphas = np.arange(1.0, n + 1) ** -decay, np.logspace(-9, 1, 30)
    Q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    A, T = N * (Q * e) @ Q.T, N * rng.standard_normal((n, 3))
    part = krylov_spectrum(A.copy(), T, None, N, 1e-15 * N, alphas[0], alphas[-1])
    assert part.vectors.shape[1] < n / 2
    assert_allclose(part.top, 1.0, rtol=1e-9)
    whole = Spectrum(e, Q, Q.T @ T / N, None, N, 1e-15)
    paths = RidgePath(alphas), DescentPath(iterations(10**9)[::20], 1.0)
    for path in paths:
        found, expected = (
            np.concatenate(list(s.coefs(path.filters(s))), axis=2)
            for s in (part, whole)
        )
        # In the norm of the training error.
        off, size = (
            np.einsum("ilk,ilk->lk", b, np.tensordot(A, b, 1)) ** 0.5
            for b in (found - expected, expected)
        )
        assert (off <= 1e-3 * size).all()
    one = krylov_spectrum(A.copy(), T, None, N, 1e-15 * N, 1e-5, 1e-5)
    b = one.coef(RidgePath([1e-5]).filters(one)[:, 0])
    direct = np.linalg.solve(A / N + 1e-5 * np.eye(n), T[:, :2] / N)
    assert_allclose(b, direct, atol=1e-7 * np.abs(direct).max())


def test_a_part_of_an_indefinite_spectrum_is_none(rng, small_spectra):
    Q = np.linalg.qr(rng.standard_normal((60, 60)))[0]
    A, T = (Q * np.linspace(-1, 10, 60)) @ Q.T, rng.standard_normal((60, 2))
    assert krylov_spectrum(A, T, None, 1.0, 1e-12, 1e-9, 1.0) is None


@pytest.mark.parametrize("options", [FULL, {"n_centers": 110}])
@pytest.mark.parametrize(
    "cls, n_outputs",
    [(NystromRegressor, 1), (NystromRegressor, 2), (NytroRegressor, 1)],
)
def test_paths_by_a_part_of_the_spectrum(
    cls, n_outputs, options, regression, rng, request
):
    X, y, X_test, _ = regression
    weights = rng.random(160)
    Y = np.stack([y, y**2], axis=1)[:, :n_outputs]
    model = cls(bandwidth=SIGMA, random_state=0, **options)
    if cls is NystromRegressor:
        model.set_params(alpha="path", alphas=np.logspace(-8, 0, 20))
    expected = clone(model).fit(X, Y, weights)
    request.getfixturevalue("small_spectra")
    model.fit(X, Y, weights)
    k = min(len(model.validation_path_), len(expected.validation_path_))
    assert_allclose(
        model.validation_path_[:k], expected.validation_path_[:k], rtol=1e-5
    )
    F, F_expected = model.predict(X_test), expected.predict(X_test)
    assert_allclose(F, F_expected, atol=1e-3 * np.abs(F_expected).max())


def test_filters_of_very_many_iterations():
    e = np.asarray([1e-15, 1e-9, 1e-3, 0.6, 1.0, 1.9])
    spectrum = Spectrum(e, None, None, None, 1.0, 1e-18)
    t = np.asarray([1.0, 1e6, 1e12, 1e15])
    path = DescentPath(t, 1.0)
    e_exact = [Decimal(float(x)) for x in e]
    exact = [[(1 - x) ** int(k) for k in t] for x in e_exact]
    g = [[(1 - v) / x for v in row] for x, row in zip(e_exact, exact, strict=True)]
    left, g = (np.asarray(values, dtype=np.float64) for values in (exact, g))
    assert_allclose(path.filters(spectrum), g, rtol=1e-9)
    assert_allclose(path.kept(spectrum), left, rtol=1e-6, atol=1e-15)


def test_iterations_of_a_path():
    assert_array_equal(iterations(1), [0, 1])
    assert_array_equal(iterations(20), np.arange(21))
    assert_array_equal(iterations(500, all_up_to=500), np.arange(501))
    for first in (20, 500):
        for last in (first + 1, first * 5 // 4, first * 5 // 4 + 1, 20_000, 10**16):
            t = iterations(last, all_up_to=first)
            assert_array_equal(t[: first + 1], np.arange(first + 1))
            assert t[-1] == last and (np.diff(t) > 0).all()
            assert (t[first + 1 :] <= 1.25 * t[first:-1] + 1).all()


@pytest.mark.parametrize("given", [{"max_iter": 600}, {"tol": 1e-9}])
def test_a_path_that_is_bounded_has_every_early_iteration(given, regression, factorize):
    X, y, *_ = regression
    model = NytroRegressor(bandwidth=SIGMA, random_state=0, **given).fit(X, y)
    assert_array_equal(model.iterations_[:501], np.arange(501))


@pytest.mark.parametrize("options", [FULL, SOME])
def test_the_path_of_iterations_goes_on_until_nothing_changes(options, regression):
    X, y, X_test, y_test = regression
    model = NytroRegressor(bandwidth=SIGMA, random_state=0, **options)
    model.fit(X, y, X_val=X_test, y_val=y_test)
    limit = NystromRegressor(bandwidth=SIGMA, random_state=0, alpha=0, **options)
    error = np.mean((limit.fit(X, y).predict(X_test) - y_test) ** 2)
    assert_allclose(model.validation_path_[-1], error, rtol=1e-6)
    assert len(model.iterations_) == len(model.validation_path_)
    assert model.n_iter_ == model.iterations_[np.argmin(model.validation_path_)]


@pytest.mark.parametrize("route", [True, False])
def test_too_few_iterations_warn(route, regression, monkeypatch):
    X, y, *_ = regression
    monkeypatch.setattr(ROUTE, lambda *args: route)
    model = NytroRegressor(bandwidth=SIGMA, max_iter=5, random_state=0)
    message = "after the last of its iterations, t = 5, .* pass a larger max_iter"
    with pytest.warns(ConvergenceWarning, match=message):
        model.fit(X, y)


@pytest.mark.parametrize("alphas, wanted", [([1.0, 10.0], "smaller"), (None, None)])
def test_a_path_of_penalties_that_ends_too_early_warns(alphas, wanted, regression):
    X, y, *_ = regression
    model = NystromRegressor(bandwidth=SIGMA, alpha="path", alphas=alphas)
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always", ConvergenceWarning)
        model.set_params(random_state=0).fit(X, y)
    messages = [str(w.message) for w in record]
    assert len(messages) == (wanted is not None)
    assert all(f"pass alphas with {wanted} values" in m for m in messages)


def test_noise_wants_larger_penalties(rng):
    X, y = rng.standard_normal((200, 2)), rng.standard_normal(200)
    model = NystromRegressor(
        bandwidth=SIGMA, alpha="path", alphas=[1e-3, 1e-2], random_state=0
    )
    with pytest.warns(ConvergenceWarning, match="pass alphas with larger values"):
        model.fit(X, y)
    # No warning at an end beyond which nothing changes: interpolation, the mean.
    for alphas in (np.logspace(-15, -9, 20), np.logspace(2, 9, 20)):
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConvergenceWarning)
            warnings.filterwarnings("ignore", "NystromRegressor learned nothing")
            model.set_params(alphas=alphas).fit(X, y)


@pytest.mark.parametrize("cls", [NystromRegressor, NytroRegressor])
@pytest.mark.parametrize("seed", range(3))
def test_gcv_is_not_misled_by_rows_that_a_model_hardly_sees(cls, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((500, 3))
    y = 1.0 * (np.sin(X[:, 0]) + 0.7 * X[:, 1] > 1)
    alpha = {"alpha": "path"} if cls is NystromRegressor else {}
    model = cls(
        "gaussian", bandwidth="median", selection="gcv", random_state=0, **alpha
    ).fit(X[:300], y[:300])
    exact = clone(model).set_params(selection="loo").fit(X[:300], y[:300])
    assert model.score(X[300:], y[300:]) > exact.score(X[300:], y[300:]) - 0.15 > 0.5
