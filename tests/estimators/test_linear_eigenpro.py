"""Linear EigenPro against least squares, on pieces of data, with other tools."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    Ridge,
    RidgeClassifier,
)
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from eigenkern import (
    LinearEigenProClassifier,
    LinearEigenProRegressor,
    RandomFourierFeatures,
)
from eigenkern.arrays.array import to_numpy
from eigenkern.methods.direct import solve_features_directly
from eigenkern.operators.centered import CenteredFeatures

N, D = 400, 12
# Exact eigenvectors, no noise, no early end: Newton's method.
NEWTON = {
    "n_components": D,
    "subsample_size": N,
    "batch_size": N,
    "max_iter": 100,
    "tol": 0.0,
    "n_iter_no_change": 100,
    "alpha": 0.0,
    "random_state": 0,
}


@pytest.fixture
def data(rng):
    """Correlated features of different scales, far from zero, and noisy targets."""
    X = rng.standard_normal((N, D)) @ rng.standard_normal((D, D))
    X = X * 2.0 ** -np.arange(D) + 5.0
    Y = X @ rng.standard_normal((D, 2)) * 10.0 + rng.standard_normal((N, 2)) + 1000.0
    return X, Y


def test_one_newton_step_is_least_squares(data):
    X, Y = data
    level = np.linalg.eigvalsh(np.cov(X.T, bias=True))[0]
    options = NEWTON | {"damping": 1.0, "step_size": 1 / level, "max_iter": 1}
    model = LinearEigenProRegressor(**options).fit(X, Y)
    expected = LinearRegression().fit(X, Y)
    assert_allclose(model.coef_, expected.coef_, rtol=1e-5)


@pytest.mark.parametrize("damping", [1.0, 0.25])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_full_batches_and_all_eigenvectors_are_least_squares(
    fit_intercept, damping, data
):
    X, Y = data
    model = LinearEigenProRegressor(
        damping=damping, fit_intercept=fit_intercept, **NEWTON
    ).fit(X, Y)
    expected = LinearRegression(fit_intercept=fit_intercept).fit(X, Y)
    assert model.n_components_ == D - 1 and model.n_step_halvings_ == 0
    assert_allclose(model.coef_, expected.coef_, rtol=1e-6, atol=1e-6)
    assert_allclose(model.intercept_, expected.intercept_, rtol=1e-6, atol=1e-8)
    assert_allclose(model.predict(X), expected.predict(X), rtol=1e-8)


def test_weights_are_those_of_least_squares(data, rng):
    X, Y = data
    weights = rng.exponential(size=N)
    weights[:5] = 0.0
    model = LinearEigenProRegressor(**(NEWTON | {"subsample_size": N - 5}))
    model.set_params(batch_size=N - 5).fit(X, Y[:, 0], sample_weight=weights)
    expected = LinearRegression().fit(X, Y[:, 0], sample_weight=weights)
    assert_allclose(model.coef_, expected.coef_, rtol=1e-6, atol=1e-6)
    assert_allclose(model.intercept_, expected.intercept_, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_defaults_come_near_least_squares(dtype, data):
    X, Y = (part.astype(dtype) for part in data)
    model = LinearEigenProRegressor(random_state=0).fit(X, Y)
    expected = LinearRegression().fit(X, Y)
    assert model.coef_.dtype == model.intercept_.dtype == dtype
    residual = np.mean((Y - model.predict(X)) ** 2)
    assert residual < 1.05 * np.mean((Y - expected.predict(X)) ** 2)


@pytest.fixture
def noisy(rng):
    """Features of different scales, and targets that are mostly noise."""
    X = rng.standard_normal((700, 30)) * 2.0 ** -(np.arange(30) ** 0.5) + 3.0
    y = 0.3 * X[:, 0] + rng.standard_normal(700)
    return X, y, rng.uniform(0.5, 2.0, 700)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_direct_is_ridge_regression(fit_intercept, weighted, dtype, noisy):
    X, y, w = (a.astype(dtype) for a in noisy)
    w = w if weighted else None
    model = LinearEigenProRegressor(fit_intercept=fit_intercept, random_state=0)
    model.fit(X, y, w)
    assert model.algorithm_ == "direct"
    assert model.alpha_ > 0
    assert (model.n_iter_, model.step_size_, model.components_) == (1, None, None)
    total = len(y) if w is None else w.sum()
    ridge = Ridge(model.alpha_ * total, fit_intercept=fit_intercept)
    ridge.fit(*(a.astype(float) for a in (X, y)), w)
    rtol = 1e-8 if dtype == np.float64 else 1e-4
    atol = rtol * np.abs(ridge.coef_).max()
    assert_allclose(model.coef_, ridge.coef_, rtol=rtol, atol=atol)
    assert_allclose(model.intercept_, ridge.intercept_, rtol=rtol, atol=rtol)
    loss = np.average((ridge.predict(X) - y) ** 2, weights=w)
    assert_allclose(model.loss_curve_, [loss], rtol=rtol)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("alpha", [1e-2, 0.5, 30.0])
@pytest.mark.parametrize("options", [{}, {"batch_size": 700}], ids=str)
def test_a_given_penalty_is_that_of_ridge_regression(
    options, alpha, fit_intercept, weighted, dtype, noisy
):
    X, y, w = (a.astype(dtype) for a in noisy)
    w = w if weighted else None
    model = LinearEigenProRegressor(
        alpha=alpha,
        fit_intercept=fit_intercept,
        max_iter=200,
        tol=0.0,
        n_iter_no_change=200,
        random_state=0,
        **options,
    ).fit(X, y, w)
    assert model.algorithm_ == ("eigenpro" if options else "direct")
    assert model.alpha_ == pytest.approx(alpha, rel=1e-12)
    total = len(y) if w is None else w.sum(dtype=float)
    ridge = Ridge(alpha * total, fit_intercept=fit_intercept)
    ridge.fit(*(a.astype(float) for a in (X, y)), w)
    rtol = 1e-3 if options or dtype == np.float32 else 1e-8
    if options and dtype == np.float32:
        rtol = 5e-3
    atol = rtol * np.abs(ridge.coef_).max()
    assert_allclose(model.coef_, ridge.coef_, rtol=rtol, atol=atol)
    assert_allclose(model.intercept_, ridge.intercept_, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array])
def test_pieces_have_the_given_penalty(kind, noisy):
    X, y, _ = noisy
    model = LinearEigenProRegressor(alpha=0.5, batch_size=700, random_state=0)
    for _ in range(60):
        model.partial_fit(kind(X), y)
    assert model.alpha_ == 0.5
    ridge = Ridge(0.5 * len(y)).fit(X, y)
    assert_allclose(model.coef_, ridge.coef_, atol=1e-2 * np.abs(ridge.coef_).max())
    plain = LinearEigenProRegressor(batch_size=700, random_state=0).partial_fit(X, y)
    assert plain.alpha_ == 0


def test_a_classifier_takes_the_penalty(noisy):
    X, y, _ = noisy
    labels = np.digitize(y, [-0.5, 0.5])
    model = LinearEigenProClassifier(alpha=0.2, random_state=0).fit(X, labels)
    ridge = Ridge(0.2 * len(y)).fit(X, np.eye(3)[labels])
    assert_allclose(model.decision_function(X), ridge.predict(X), atol=1e-7)


@pytest.mark.parametrize("has_mean", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_left_out_of_a_direct_solution(dtype, has_mean, noisy):
    X, y, w = noisy
    w = w / w.mean()
    mean, level = np.average(X, axis=0, weights=w), np.average(y, weights=w)
    F, y = (X - mean, y - level) if has_mean else (X, y)
    features = CenteredFeatures(F.astype(dtype), np.zeros(30, dtype))
    found = solve_features_directly(
        features, y.astype(dtype)[:, None], w.astype(dtype), 5.0, has_mean=has_mean
    )
    left_out = found.residual / found.kept[:, None]
    assert len(left_out) == 300
    for i in (0, 150, 299):
        others = np.arange(700) != i
        ridge = Ridge(5.0, fit_intercept=has_mean).fit(F[others], y[others], w[others])
        expected = y[i] - ridge.predict(F[i : i + 1])[0]
        rtol = 1e-5 if dtype == np.float64 else 1e-3
        assert_allclose(left_out[i, 0], expected, rtol=rtol)


def test_a_small_penalty_needs_double_precision(rng):
    X = (rng.standard_normal((400, 6)) * [1e4, 1, 1, 1, 1, 1]).astype(np.float32)
    y = (X @ np.array([1e-4, 1, 2, 3, 4, 5]))[:, None].astype(np.float32)
    features = CenteredFeatures(X, np.zeros(6, np.float32))
    found = solve_features_directly(features, y, None, 1e-2, has_mean=False)
    expected = Ridge(1e-2, fit_intercept=False).fit(X.astype(float), y).coef_
    assert_allclose(found.coef[:, 0], np.ravel(expected), rtol=1e-3)
    nothing = solve_features_directly(features, y, None, 1e-9, has_mean=False)
    assert nothing is None


@pytest.mark.parametrize(
    "dtype, noise, difference, refined",
    [
        (np.float32, 1.0, 1.0, False),
        (np.float64, 1.0, 1.0, False),
        (np.float32, 1e-3, 1.0, True),  # the sum of squares cancels
        (np.float64, 1e-3, 1.0, True),
        (np.float64, 1e3, 1e-3, True),  # rounding of the sums is visible
    ],
)
def test_a_direct_solution_from_sums(
    dtype, noise, difference, refined, rng, monkeypatch
):
    X = rng.standard_normal((400, 6))
    X[:, 5] = X[:, 4] + difference * X[:, 5]
    y = X @ np.arange(12).reshape(6, 2) + noise * rng.standard_normal((400, 2))
    X, y = X.astype(dtype), y.astype(dtype)
    w = rng.uniform(0.5, 1.5, 400).astype(dtype)
    features, W = CenteredFeatures(X, np.zeros(6, dtype)), w[:, None].astype(float)
    normal, passes = (X.T @ (W * X), X.T @ (W * y)), []
    options = {"ridge": 1e-2 * difference, "has_mean": False}
    expected = solve_features_directly(features, y, w, **options)

    def counted(self, *args, gradient=CenteredFeatures.gradient):
        passes.append(args)
        return gradient(self, *args)

    monkeypatch.setattr(CenteredFeatures, "gradient", counted)
    found = solve_features_directly(features, y, w, normal=normal, **options)
    assert (len(passes) > 0) == refined
    rtol = 1e-5 if dtype == np.float32 else 1e-9
    atol = rtol * np.abs(y).max()
    assert_allclose(found.coef, expected.coef, rtol=rtol / difference, atol=atol)
    assert_allclose(found.loss, expected.loss, rtol=1e3 * rtol if noise < 1 else rtol)
    left_out, expected = (f.residual / f.kept[:, None] for f in (found, expected))
    assert_allclose(left_out, expected, rtol=100 * rtol, atol=atol)


@pytest.mark.parametrize(
    "options",
    [
        {"early_stopping": True},
        {"batch_size": 100},
        {"n_components": 3},
        {"step_size": 1e-2},
        {"damping": 1.0},
        {"warm_start": True},
    ],
    ids=str,
)
# In two epochs.
@pytest.mark.filterwarnings("ignore:LinearEigenProRegressor learned nothing")
def test_what_is_asked_of_the_iteration_is_done(options, noisy):
    X, y, _ = noisy
    model = LinearEigenProRegressor(max_iter=2, random_state=0, **options).fit(X, y)
    assert model.algorithm_ == "eigenpro"
    assert model.step_size_ > 0


@pytest.mark.parametrize("unit", [1e-25, 1e20, 1e60])
@pytest.mark.parametrize("target_unit", [1e-30, 1.0, 1e60])
def test_the_penalty_of_any_units(unit, target_unit, rng):
    X = rng.standard_normal((2000, 30))
    y = X[:, 0] + 3 * rng.standard_normal(2000)
    expected = LinearEigenProRegressor(random_state=0).fit(X, y)
    model = LinearEigenProRegressor(random_state=0).fit(unit * X, target_unit * y)
    assert model.algorithm_ == expected.algorithm_ == "direct"
    assert_allclose(model.alpha_, unit**2 * expected.alpha_, rtol=1e-3)
    coef = model.coef_ * (unit / target_unit)
    assert_allclose(coef, expected.coef_, rtol=1e-3, atol=1e-5)


@pytest.mark.filterwarnings("ignore:LinearEigenProRegressor learned nothing")
def test_sparse_rows_and_few_rows_are_solved_directly(noisy):
    X, y, _ = noisy
    model = LinearEigenProRegressor(random_state=0)
    assert model.fit(scipy.sparse.csr_array(X), y).algorithm_ == "direct"
    assert model.fit(X[:25], y[:25]).algorithm_ == "direct"


def test_a_direct_solution_goes_on_with_pieces(noisy):
    X, y, _ = noisy
    model = LinearEigenProRegressor(random_state=0).fit(X[:400], y[:400])
    assert model.algorithm_ == "direct"
    model.partial_fit(X[400:], y[400:])
    assert model.algorithm_ == "eigenpro"
    assert model.step_size_ > 0
    assert model.n_samples_seen_ == 700
    assert model.batch_size_ == 300
    # Least squares on the piece has an error of 30 / 300 times the noise.
    assert np.mean((model.predict(X) - 0.3 * X[:, 0]) ** 2) < 0.1 * np.var(y)


def test_classes_of_a_direct_solution_have_probabilities(rng):
    X = rng.standard_normal((3000, 10))
    truth = 1 / (1 + np.exp(-2 * X[:, 0]))
    y = rng.uniform(size=3000) < truth
    model = LinearEigenProClassifier(random_state=0).fit(X[:2000], y[:2000])
    assert model.algorithm_ == "direct"
    found = model.predict_proba(X[2000:])[:, 1]
    assert np.mean(np.abs(found - truth[2000:])) < 0.05


@pytest.mark.parametrize("n_features", [50, 200])
def test_float32_learns_features_with_a_wide_spectrum(n_features, rng):
    X = rng.random((1000, 2))
    y = np.sin(12 * X).prod(axis=1)
    Z = RandomFourierFeatures(
        "gaussian", bandwidth=0.15, n_components=n_features, random_state=0
    ).fit_transform(X)
    options = {"batch_size": 100, "tol": 0.0, "random_state": 0}
    losses = [
        np.mean((model.predict(part) - y) ** 2)
        for part in (Z, Z.astype(np.float32))
        for model in [LinearEigenProRegressor(**options).fit(part, y)]
    ]
    assert losses[1] < max(2.0 * losses[0], 0.002)


def test_more_features_than_rows_are_interpolated(rng):
    X, y = rng.standard_normal((60, 300)), rng.standard_normal(60)
    model = LinearEigenProRegressor(max_iter=100, tol=0.0, alpha=0.0)
    model.set_params(random_state=0, damping=1.0).fit(X, y)  # epochs
    assert model.batch_size_ == 60 // 8
    assert np.mean((model.predict(X) - y) ** 2) < 1e-4


def test_shapes_are_those_of_scikit_learn(data, three_classes):
    X, Y = data
    for targets in (Y[:, 0], Y[:, :1], Y):
        model = LinearEigenProRegressor(random_state=0).fit(X, targets)
        expected = LinearRegression().fit(X, targets)
        assert model.coef_.shape == expected.coef_.shape
        assert np.shape(model.intercept_) == np.shape(expected.intercept_)
        assert model.predict(X).shape == targets.shape
    X, y = three_classes
    for labels in (y, y > 0):
        model = LinearEigenProClassifier(random_state=0).fit(X, labels)
        expected = LogisticRegression().fit(X, labels)
        assert model.coef_.shape == expected.coef_.shape
        assert model.intercept_.shape == expected.intercept_.shape
        shape = expected.decision_function(X).shape
        assert model.decision_function(X).shape == shape


def test_fitted_attributes(data):
    X, Y = data
    model = LinearEigenProRegressor(5, random_state=0).fit(X, Y)
    assert model.n_components_ == 5 and model.components_.shape == (5, D)
    assert_allclose(model.components_ @ model.components_.T, np.eye(5), atol=1e-10)
    cov = np.cov(X.T, bias=True)
    assert_allclose(model.eigenvalues_, np.linalg.eigvalsh(cov)[::-1][:6], rtol=1e-8)
    assert_allclose(model.mean_, X.mean(axis=0))
    assert_allclose(model.target_mean_, Y.mean(axis=0))
    assert (model.n_samples_seen_, model.weight_seen_) == (N, N)
    assert model.batch_size_ == model.subsample_size_ == N
    assert len(model.loss_curve_) == model.n_iter_
    assert model.acceleration_ > 1


@pytest.mark.parametrize("weighted", [False, True])
def test_sparse_equals_dense(weighted, rng):
    X = rng.standard_normal((300, 20)) * (rng.random((300, 20)) < 0.3) + 0.0
    y, w = X[:, 0] - X[:, 1] + 3.0, rng.exponential(size=300) if weighted else None
    options = {"random_state": 1, "early_stopping": True, "batch_size": 50}
    dense = LinearEigenProRegressor(**options).fit(X, y, sample_weight=w)
    for kind in (scipy.sparse.csr_array, scipy.sparse.csc_matrix):
        sparse = LinearEigenProRegressor(**options).fit(kind(X), y, sample_weight=w)
        assert_allclose(sparse.coef_, dense.coef_, atol=1e-9)
        assert_allclose(sparse.predict(kind(X)), dense.predict(X), atol=1e-9)


@pytest.mark.filterwarnings("ignore:.* learned nothing")
def test_sparse_is_not_filled(rng):
    X = scipy.sparse.random_array(
        (300, 100_000), density=1e-4, format="csr", random_state=0
    )
    tracemalloc.start()
    try:
        LinearEigenProRegressor(5, max_iter=2, random_state=0).fit(X, np.arange(300.0))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 0.3 * 8 * 300 * 100_000


def test_sparse_is_computed_on_the_host(rng):
    X = scipy.sparse.csr_array(np.eye(10))
    message = "device must be 'auto' or 'cpu' for a sparse X; got 'cuda'"
    with pytest.raises(ValueError, match=message):
        LinearEigenProRegressor(device="cuda").fit(X, np.arange(10.0))


def with_constants(X, noise):
    """Return X with columns in front that are constant, up to rounding or exactly."""
    levels = np.array([1.0, 0.1, 3.3, -1e5]).astype(X.dtype)
    wobble = np.random.default_rng(1).integers(-2, 3, (len(X), 4))
    constants = levels * (1 + noise * np.finfo(X.dtype).eps * wobble).astype(X.dtype)
    return np.hstack([constants.astype(X.dtype), X])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("noise", [0, 1])
@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_constant_columns_have_no_part(dtype, kind, noise, weighted, rng):
    X = rng.standard_normal((500, 3)).astype(dtype)
    y, w = X @ [1.0, -2.0, 0.5], rng.exponential(size=500) if weighted else None
    options = NEWTON | {"n_components": 2, "subsample_size": 500, "batch_size": 500}
    model, expected = (
        LinearEigenProRegressor(**options).fit(part, y, sample_weight=w)
        for part in (kind(with_constants(X, noise)), kind(X))
    )
    assert_array_equal(model.coef_[:4], 0.0)
    tol = 1e-4 if dtype == np.float32 else 1e-10
    assert_allclose(model.coef_[4:], expected.coef_, atol=tol)
    assert_allclose(model.intercept_, expected.intercept_, atol=tol)
    assert_allclose(model.mean_[:4], [1.0, 0.1, 3.3, -1e5], rtol=1e-6)
    if noise == 0:
        assert_array_equal(model.mean_[:3], np.array([1.0, 0.1, 3.3], dtype=dtype))


@pytest.mark.parametrize("level", [1.0, 0.1, 3.3])
@pytest.mark.parametrize("n, d", [(60, 3), (60, 100), (400, 5), (31, 7)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_constant_features_predict_the_mean(dtype, n, d, level, rng):
    X, y = np.full((n, d), level, dtype=dtype), rng.standard_normal(n)
    for rows in (X, scipy.sparse.csr_array(X)):
        model = LinearEigenProRegressor(random_state=0)
        with pytest.warns(ConvergenceWarning, match="rows of X with weight are equal"):
            model.fit(rows, y)
        assert_array_equal(model.coef_, 0.0)
        assert model.alpha_ == 0
        assert_allclose(model.predict(rows), y.mean(), rtol=1e-5)
    labels = np.arange(n) % 3
    model = LinearEigenProClassifier(random_state=0)
    with pytest.warns(ConvergenceWarning, match="rows of X with weight are equal"):
        model.fit(X, labels)
    assert_array_equal(model.coef_, 0.0)


def test_the_mean_of_many_equal_numbers(rng):
    """Their sum is off by 1000 eps."""
    X = np.full((100_000, 2), 1.1, dtype=np.float32)
    X[:, 1] = rng.standard_normal(len(X))
    model = LinearEigenProRegressor(random_state=0, max_iter=2).fit(X, X[:, 1])
    assert model.coef_[0] == 0 and model.mean_[0] == X[0, 0]
    X[-1, 0] = 1.2  # a single different number is enough
    model = LinearEigenProRegressor(random_state=0, max_iter=2).fit(X, X[:, 1])
    assert model.coef_[0] != 0


@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array])
def test_a_small_spread_on_a_large_mean_is_learned(kind, rng):
    X = rng.standard_normal((500, 3))
    y = X @ [1.0, -2.0, 0.5]
    model = LinearEigenProRegressor(random_state=0).fit(kind(X + [1e6, -1e6, 0]), y)
    assert model.score(kind(X + [1e6, -1e6, 0]), y) > 0.999


def test_a_column_of_ones_is_an_intercept(rng):
    X = np.hstack([np.ones((300, 1)), rng.standard_normal((300, 2))])
    y = X @ [3.0, 1.0, -1.0]
    model = LinearEigenProRegressor(fit_intercept=False, random_state=0).fit(X, y)
    assert_allclose(model.coef_, [3.0, 1.0, -1.0], atol=0.01)


@pytest.mark.filterwarnings("ignore:.*gets unshuffled data")
@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array])
def test_constant_columns_of_pieces(kind, rng):
    """They are learned once they vary, even if they are constant within a piece."""
    X = with_constants(rng.standard_normal((600, 3)), 1)
    y = X[:, 4:] @ [1.0, -2.0, 0.5]
    model = LinearEigenProRegressor(random_state=0)
    for _ in range(3):
        for i in range(0, 600, 200):
            model.partial_fit(kind(X[i : i + 200]), y[i : i + 200])
    assert_array_equal(model.coef_[:4], 0.0)
    assert model.score(kind(X), y) > 0.99
    steps = X.copy()
    steps[:, 0] = np.repeat([0.1, 1.1, 2.1], 200)
    for _ in range(20):
        for i in range(0, 600, 200):
            rows = slice(i, i + 200)
            model.partial_fit(kind(steps[rows]), y[rows] + steps[rows, 0])
    assert model.coef_[0] > 0.5 and not model.coef_[1:4].any()


def test_constant_columns_of_other_libraries(other_xp, rng):
    from sklearn import config_context

    X = with_constants(rng.standard_normal((300, 3)), 1)
    y = X[:, 4:] @ [1.0, -2.0, 0.5]
    expected = LinearEigenProRegressor(random_state=0).fit(X, y)
    with config_context(array_api_dispatch=True):
        X, y = other_xp.asarray(X), other_xp.asarray(y)
        model = LinearEigenProRegressor(random_state=0).fit(X, y)
        model.partial_fit(X, y)
    assert_array_equal(to_numpy(model.coef_[:4]), 0.0)
    assert_allclose(to_numpy(model.coef_), expected.coef_, atol=0.01)


def test_other_libraries_agree_with_numpy(other_xp, data):
    from sklearn import config_context

    X, Y = data
    options = {"random_state": 0, "batch_size": 60, "max_iter": 3}
    expected = LinearEigenProRegressor(**options).fit(X, Y)
    with config_context(array_api_dispatch=True):
        X, Y = other_xp.asarray(X), other_xp.asarray(Y)
        model = LinearEigenProRegressor(**options).fit(X, Y)
        predicted = model.predict(X)
    assert isinstance(predicted, type(X)) and isinstance(model.coef_, type(X))
    # Columns that hardly vary amplify rounding, without effect on predictions.
    largest = np.abs(expected.coef_).max()
    assert_allclose(to_numpy(model.coef_), expected.coef_, atol=1e-4 * largest)
    assert_allclose(to_numpy(predicted), expected.predict(data[0]), rtol=1e-8)


def test_pieces_of_other_libraries(other_xp, data):
    from sklearn import config_context

    X, Y = data
    for dtype in ("float32", "float64"):
        model = LinearEigenProRegressor(random_state=0)
        expected = LinearEigenProRegressor(random_state=0)
        pieces = [part.astype(dtype) for part in (X, Y)]
        for _ in range(2):
            expected.partial_fit(*pieces)
            with config_context(array_api_dispatch=True):
                model.partial_fit(*(other_xp.asarray(part) for part in pieces))
        for name in ("coef_", "intercept_", "mean_", "target_mean_"):
            assert getattr(model, name).dtype == getattr(other_xp, dtype)
            assert getattr(expected, name).dtype == dtype
    assert_allclose(to_numpy(model.intercept_), expected.intercept_, rtol=1e-3)
    with pytest.raises(ValueError, match="must use the same namespace"):
        model.predict(scipy.sparse.csr_array(X))
    with pytest.raises(ValueError, match="must use the same namespace"):
        model.partial_fit(scipy.sparse.csr_array(X), Y)


def test_classifier_is_as_good_as_ridge(three_classes):
    X, y = three_classes
    labels = np.array(["a", "b", "c"])[y]
    model = LinearEigenProClassifier(random_state=0).fit(X, labels)
    expected = RidgeClassifier().fit(X, labels)
    assert_array_equal(model.classes_, ["a", "b", "c"])
    assert abs(model.score(X, labels) - expected.score(X, labels)) < 0.02
    heavy = LinearEigenProClassifier(random_state=0, class_weight={"a": 50.0})
    heavy.fit(X, labels)
    assert (heavy.predict(X) == "a").sum() > (model.predict(X) == "a").sum()


def test_the_bound_is_a_safe_step(data):
    X, Y = data
    options = {"random_state": 0, "batch_size": 50, "max_iter": 5}
    model = LinearEigenProRegressor(step_size="bound", **options)
    with pytest.warns(ConvergenceWarning, match="learned nothing"):  # so short it is
        model.fit(X, Y)
    automatic = LinearEigenProRegressor(**options).fit(X, Y)
    assert model.n_step_halvings_ == 0
    assert 0 < model.step_size_ < automatic.step_size_
    assert np.all(np.diff(model.loss_curve_) < 0)


def test_an_absurd_step_is_halved(data):
    X, Y = data
    options = {"random_state": 0, "batch_size": 50}
    automatic = LinearEigenProRegressor(**options).fit(X, Y)
    step = 1e6 * automatic.step_size_
    model = LinearEigenProRegressor(step_size=step, **options).fit(X, Y)
    assert 15 < model.n_step_halvings_ < 25
    assert model.score(X, Y) > 0.9


def test_pieces_come_near_the_whole(data):
    X, Y = data
    model = LinearEigenProRegressor(random_state=0)
    for _ in range(6):
        for i in range(0, N, 100):
            model.partial_fit(X[i : i + 100], Y[i : i + 100])
    expected = LinearRegression().fit(X, Y)
    assert (model.n_samples_seen_, model.n_iter_) == (6 * N, 24)
    assert_allclose(model.mean_, X.mean(axis=0), rtol=1e-10)
    # The intercept is the best one for the coefficients.
    assert_allclose(model.predict(X).mean(axis=0), Y.mean(axis=0), rtol=1e-10)
    residual = np.mean((Y - model.predict(X)) ** 2)
    assert residual < 1.3 * np.mean((Y - expected.predict(X)) ** 2)


def test_the_first_piece_needs_rows(data):
    X, Y = data
    with pytest.raises(ValueError, match="at least 2 rows in the first piece; got 1"):
        LinearEigenProRegressor().partial_fit(X[:1], Y[:1])


def test_means_of_weighted_pieces(data, rng):
    X, Y = data
    weights = rng.exponential(size=N)
    model = LinearEigenProRegressor(random_state=0)
    weights[260:390] = 1.0
    for i in range(0, N, 130):
        rows = slice(i, i + 130)
        given = None if i == 260 else weights[rows]
        model.partial_fit(X[rows], Y[rows], sample_weight=given)
    assert_allclose(model.mean_, np.average(X, axis=0, weights=weights))
    assert_allclose(model.target_mean_, np.average(Y, axis=0, weights=weights))
    assert_allclose(model.weight_seen_, weights.sum())


def test_no_weights_are_weights_of_one(data):
    X, Y = data
    models = [LinearEigenProRegressor(random_state=0) for _ in range(2)]
    for model, given in zip(models, (None, np.ones(200)), strict=True):
        model.partial_fit(X[:200], Y[:200], sample_weight=np.full(200, 9.0))
        model.partial_fit(X[200:], Y[200:], sample_weight=given)
    assert_allclose(models[0].coef_, models[1].coef_, rtol=1e-10)


def test_unlucky_pieces_do_not_erase_the_model(data):
    """Pieces with targets near their mean, sorted, or of one class."""
    X, Y = data
    y = Y[:, 0]
    model = LinearEigenProRegressor(random_state=0)
    for i in range(0, N, 50):
        model.partial_fit(X[i : i + 50], y[i : i + 50])
    before = model.score(X, y)
    near = np.argsort(np.abs(y - y.mean()))[:20]
    assert model.partial_fit(X[near], y[near]).score(X, y) > 0.9 * before
    model, order = LinearEigenProRegressor(random_state=0), np.argsort(y)
    with pytest.warns(ConvergenceWarning, match="gets unshuffled data"):
        for i in range(0, N, 20):
            model.partial_fit(X[order[i : i + 20]], y[order[i : i + 20]])
    assert model.score(X, y) > 0.5
    labels = y > np.quantile(y, 0.98)
    model = LinearEigenProClassifier(random_state=0)
    for i in range(0, N, 50):
        model.partial_fit(X[i : i + 50], labels[i : i + 50], classes=[False, True])
    assert roc_auc_score(labels, model.decision_function(X)) > 0.8


def test_a_piece_in_other_units_does_not_shorten_the_step_for_good(data):
    X, Y = data
    model = LinearEigenProRegressor(random_state=0).partial_fit(X, Y)
    model.partial_fit(1e3 * (X[:50] - 5.0) + 5.0, Y[:50])
    halved = model.n_step_halvings_
    for _ in range(halved):
        model.partial_fit(X, Y)
    assert halved > 10 and model.n_step_halvings_ < 6


def test_parameters_of_the_first_piece_count(data):
    X, Y = data
    model = LinearEigenProRegressor(damping=0.5, random_state=0).partial_fit(X, Y)
    same = LinearEigenProRegressor(damping=0.5, random_state=0).partial_fit(X, Y)
    model.set_params(fit_intercept=False, damping=1.0, batch_size=3)
    assert_array_equal(model.partial_fit(X, Y).coef_, same.partial_fit(X, Y).coef_)
    assert (model.damping_, model.fit_intercept_) == (0.5, True)


def test_pieces_may_be_small(data):
    X, Y = data
    model = LinearEigenProRegressor(
        64, batch_size=200, subsample_size=100, random_state=0
    ).partial_fit(X[:50], Y[:50])
    assert (model.n_components_, model.batch_size_) == (D - 1, 50)
    for i in range(60):
        model.partial_fit(X[i : i + 1], Y[i : i + 1])
    assert model.n_samples_seen_ == 110 and model.score(X, Y) > 0.5


def test_balanced_weights_need_all_rows(three_classes):
    X, y = three_classes
    model = LinearEigenProClassifier(class_weight="balanced").fit(X, y)
    with pytest.raises(ValueError, match="class_weight='balanced' needs all rows at"):
        model.partial_fit(X, y)


def test_pieces_of_classes(three_classes):
    X, y = three_classes
    model = LinearEigenProClassifier(random_state=0)
    with pytest.raises(ValueError, match="classes must be passed to the first call"):
        model.partial_fit(X, y)
    rows = y < 2
    model.partial_fit(X[rows], y[rows], classes=[0, 1, 2])
    for _ in range(5):
        model.partial_fit(X, y)
    whole = LinearEigenProClassifier(random_state=0).fit(X, y)
    assert abs(model.score(X, y) - whole.score(X, y)) < 0.05
    with pytest.raises(ValueError, match=r"y must hold only classes .* got 7"):
        model.partial_fit(X, np.full(len(y), 7))
    with pytest.raises(ValueError, match="classes must be None, or those of the first"):
        model.partial_fit(X, y, classes=[0, 1])


def test_a_wrong_piece_changes_nothing(data):
    X, Y = data
    model = LinearEigenProRegressor(random_state=0).partial_fit(X, Y)
    before = dict(vars(model))
    for wrong, message in [
        ((X[:, :5], Y), "X has 5 features, but LinearEigenProRegressor"),
        ((X, Y[:, 0]), r"y must have 2 output\(s\), as in the first call"),
        ((np.full_like(X, np.nan), Y), "contains NaN"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.partial_fit(*wrong)
        assert vars(model) == before


@pytest.mark.parametrize("batch_size", [50, N])
def test_a_step_too_long_for_a_piece_is_halved(batch_size, data):
    X, Y = data
    model = LinearEigenProRegressor(batch_size=batch_size, random_state=0)
    model.partial_fit(np.tile(X, (2, 1)), np.tile(Y, (2, 1)))
    before = model.score(X, Y)
    model.step_size_ *= 2.0**10
    model.partial_fit(X, Y)  # too few rows to choose another step
    assert 8 <= model.n_step_halvings_ <= 12
    assert model.score(X, Y) > 0.5 * before


def test_a_piece_that_diverges_is_told(data):
    X, Y = data
    model = LinearEigenProRegressor(random_state=0).partial_fit(X, Y)
    before = model.coef_
    model.step_size_ = 1e60
    with pytest.warns(ConvergenceWarning, match="this piece of the data changed"):
        model.partial_fit(X, Y)
    assert_array_equal(model.coef_, before)
    assert model.n_step_halvings_ == 0


def test_warm_start_goes_on(data):
    X, Y = data
    model = LinearEigenProRegressor(batch_size=50, max_iter=2, warm_start=True)
    first = model.fit(X, Y).loss_curve_[0]
    assert model.fit(X, Y).loss_curve_[0] < 0.5 * first
    with pytest.raises(ValueError, match=r"warm_start=True continues .* coef_ of s"):
        model.fit(X[:, :5], Y)


def test_early_stopping_keeps_the_best(data):
    X, Y = data
    model = LinearEigenProRegressor(early_stopping=True, random_state=0)
    model.set_params(max_iter=50).fit(X, Y)
    assert len(model.validation_scores_) == model.n_iter_ < 50
    best = 1 + int(np.argmax(model.validation_scores_))
    again = LinearEigenProRegressor(early_stopping=True, random_state=0, max_iter=best)
    assert_array_equal(model.coef_, again.fit(X, Y).coef_)


def test_pipeline_and_search(data):
    X, Y = data
    model = make_pipeline(StandardScaler(), LinearEigenProRegressor(random_state=0))
    search = GridSearchCV(model, {"lineareigenproregressor__damping": [0.25, 1.0]})
    assert search.fit(X, Y).best_score_ > 0.9


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_features_out_of_range(dtype, data):
    X, Y = data
    for factor in (1e-20, 1e20) if dtype == np.float32 else (1e-200, 1e200):
        with pytest.raises(ValueError, match="X must be scaled: its largest entry"):
            LinearEigenProRegressor().fit((X * factor).astype(dtype), Y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"n_components": -1},
            "n_components must be an integer >= 0; got -1",
        ),
        (
            {"subsample_size": 1},
            "subsample_size must be an integer >= 2; got 1",
        ),
        ({"subsample_size": 401}, "subsample_size must be at most 400, .*; got 401"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1; got 0"),
        ({"batch_size": 401}, "batch_size must be at most 400, .*; got 401"),
        ({"step_size": "fast"}, "step_size must be 'auto', 'bound' or .* got 'fast'"),
        ({"step_size": -1.0}, "step_size must be a number > 0; got -1.0"),
        ({"damping": 2.0}, "damping must be a number > 0 and <= 1; got 2.0"),
        ({"fit_intercept": "yes"}, "fit_intercept must be True or False; got 'yes'"),
        ({"max_iter": 0}, "max_iter must be an integer >= 1; got 0"),
        ({"tol": -1}, "tol must be a number >= 0; got -1"),
        ({"early_stopping": 1}, "early_stopping must be True or False; got 1"),
        ({"alpha": -1}, "alpha must be 'auto' or a number >= 0; got -1"),
        ({"alpha": "path"}, "alpha must be 'auto' or a number >= 0; got 'path'"),
        ({"alpha": np.inf}, "alpha must be 'auto' or a number >= 0; got inf"),
        ({"device": "gpu"}, "device must be 'auto', .*; got 'gpu'"),
    ],
)
def test_bad_parameters(parameters, message, data):
    X, Y = data
    with pytest.raises(ValueError, match=message):
        LinearEigenProRegressor(**parameters).fit(X, Y)


def test_thousands_of_sparse_rows(rng):
    # A plan is made for more than 2000 rows.
    X = scipy.sparse.random_array((2500, 30), density=0.2, rng=rng, format="csr")
    y = X @ rng.standard_normal(30) + 0.1 * rng.standard_normal(2500)
    sparse, dense = (
        LinearEigenProRegressor(random_state=0).fit(rows, y).coef_
        for rows in (X, X.toarray())
    )
    assert_allclose(sparse, dense, rtol=1e-6)
