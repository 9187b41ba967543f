"""The penalty that is best for new rows, and the estimators that use it."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone, is_classifier
from sklearn.linear_model import Ridge

from eigenkern import (
    DSGClassifier,
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    LinearEigenProClassifier,
    LinearEigenProRegressor,
)
from eigenkern.kernels import Gaussian, Laplacian
from eigenkern.methods.direct import solve_features_directly
from eigenkern.operators.centered import CenteredFeatures
from eigenkern.operators.matrix import GivenMatrix
from eigenkern.operators.tiled import TiledKernel
from eigenkern.plan import penalty
from eigenkern.plan.penalty import auto_ridge, auto_ridge_of_features

REGRESSORS = [
    EigenProRegressor(random_state=0),
    EigenProRegressor(n_centers=100, random_state=0),
    EigenProRegressor(algorithm="eigenpro2", random_state=0),
    LinearEigenProRegressor(random_state=0),
    DSGRegressor(max_iter=30, random_state=0),
]


def problem(rng, n, noise, kernel=None):
    """Return K of n rows and a noisy draw of a Gaussian process with that kernel."""
    X = rng.standard_normal((n, 3))
    K = (kernel or Gaussian(1.0))(X)
    y = np.linalg.cholesky(K + 1e-10 * np.eye(n)) @ rng.standard_normal((n, 4))
    return K, y + noise**0.5 * rng.standard_normal(y.shape)


def held_out_error(K, y, s, c, w=None):
    """Return the error on the other rows of kernel ridge regression on the first s."""
    w = np.ones(len(y)) if w is None else w
    a = np.linalg.solve(K[:s, :s] + c * np.diag(1 / w[:s]), y[:s])
    return np.sum(w[s:, None] * (K[s:, :s] @ a - y[s:]) ** 2)


@pytest.mark.parametrize("noise", [0.1, 1.0, 10.0])
def test_it_is_the_noise_of_a_gaussian_process(noise, rng):
    K, y = problem(rng, 1200, noise)
    assert noise / 2 < auto_ridge(GivenMatrix(K), y) < noise * 2
    assert 3 * noise / 2 < 3 * auto_ridge(GivenMatrix(K), 5 * y) < 3 * noise * 2


@pytest.mark.parametrize("weighted", [False, True])
def test_each_of_few_rows_is_left_out(weighted, rng):
    K, y = problem(rng, 60, 1.0)
    w = rng.uniform(0.2, 2.0, 60) if weighted else np.ones(60)
    w /= w.mean()

    def error(c):
        total = 0.0
        for i in range(60):
            order = np.r_[np.delete(np.arange(60), i), i]
            total += held_out_error(K[order][:, order], y[order], 59, c, w[order])
        return total

    found = auto_ridge(GivenMatrix(K), y, w if weighted else None)
    errors = [error(found * f) for f in (0.6, 1.0, 1.6)]
    assert errors[1] == min(errors)


@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_the_minimum_of_the_errors(weighted, rng, monkeypatch):
    monkeypatch.setattr(penalty, "_DRIFT", 0.0)
    K, y = problem(rng, 1200, 1.0)
    w = rng.uniform(0.2, 2.0, 1200) if weighted else None
    w = w / w.mean() if weighted else None
    found = auto_ridge(GivenMatrix(K), y, w)
    errors = [held_out_error(K, y, 300, found * f, w) for f in (0.5, 1.0, 2.0)]
    assert errors[1] <= min(errors) * 1.002
    # The ridge scales with the kernel.
    assert_allclose(auto_ridge(GivenMatrix(7 * K), y, w), 7 * found, rtol=1e-9)


@pytest.mark.parametrize(
    "of_few, of_more, expected",
    [(0.3, 0.5, 0.7), (0.5, 0.3, 0.1), (0.5, 1.8, 2.3), (-1.2, -2.6, -3.0)],
)
def test_a_change_with_the_rows_goes_on(of_few, of_more, expected):
    def error(n_fitted, c):
        return (np.log10(c) - {50: of_few, 100: of_more}[n_fitted]) ** 2

    # By at most one step of the sequence, and down to its least penalty.
    for drift, c in ((1.0, expected), (0.0, of_more)):
        place, least = penalty._search(error, 50, 100, 18, drift)
        assert_allclose(np.log10(penalty._penalty(place)), c, atol=1e-9)
        assert least < 0.07


def test_labels_prefer_less(rng, monkeypatch):
    monkeypatch.setattr(penalty, "_HALF_FITTED", 0)  # of other targets only
    K, y = problem(rng, 1200, 1.0)
    for n, factor in ((1000, 1.0), (1200, 10**-0.25)):
        given = GivenMatrix(K[:n, :n]), y[:n]
        found = auto_ridge(*given, labels=True)
        assert_allclose(found, factor * auto_ridge(*given), rtol=1e-9)


def test_of_a_few_thousand_rows_half_are_fitted():
    for n, s in ((1200, 600), (2000, 1000), (3000, 1000), (5000, 1250), (90000, 4000)):
        K = TiledKernel(Laplacian(1.0), np.zeros((n, 2)))
        assert penalty.n_ridge_rows(K, labels=False) == (s, 4000)
        assert penalty.n_ridge_rows(K, labels=True) == (min(n // 4, 4000), 4000)


@pytest.mark.parametrize("seed", range(4))
def test_a_thousand_rows_and_more_have_the_penalty_of_a_thousand(seed):
    rng = np.random.default_rng(seed)  # with a quarter up to 1000 times as much
    X = rng.standard_normal((1100, 3))
    y = np.sin(3 * X[:, :1]) + X[:, 1:2] + 0.3 * rng.standard_normal((1100, 1))
    K, y = Gaussian(1.5)(X), y - y.mean()
    exact = auto_ridge(GivenMatrix(K[:1000, :1000]), y[:1000])
    assert 0.2 < auto_ridge(GivenMatrix(K), y) / exact < 5


def test_weights_of_few_rows_are_the_noise_of_few(rng):
    K, y = problem(rng, 1200, 0.01)
    noisy = rng.random(1200) < 0.5
    y = y + 10 * noisy[:, None] * rng.standard_normal(y.shape)
    w = np.where(noisy, 1e-4, 1.0)
    weighted = auto_ridge(GivenMatrix(K), y, w / w.mean())
    assert weighted < 0.1 < 5 < auto_ridge(GivenMatrix(K), y)


def test_exact_targets_have_next_to_none(rng):
    K, y = problem(rng, 400, 0.0)
    assert 0 < auto_ridge(GivenMatrix(K), y) < 1e-6
    assert 0 < auto_ridge(GivenMatrix(K[:200, :200]), y[:200]) < 1e-6
    assert auto_ridge(GivenMatrix(K[:19, :19]), y[:19]) == 0.0


def test_an_indefinite_kernel_has_some_that_makes_it_definite(rng):
    K, y = problem(rng, 400, 1.0)
    K = K - 0.5 * np.eye(400)
    found = auto_ridge(GivenMatrix(K), y)
    assert np.linalg.eigvalsh(K[:100, :100] + found * np.eye(100))[0] > 0


@pytest.mark.parametrize("n, d", [(250, 5), (250, 300), (1600, 5), (1600, 500)])
def test_features_are_the_linear_kernel(n, d, rng, monkeypatch):
    monkeypatch.setattr(penalty, "_DRIFT", 0.0)  # of other kernels only
    X = rng.standard_normal((n, d))
    y = X @ rng.standard_normal((d, 2)) / d**0.5 + rng.standard_normal((n, 2))
    mean = rng.standard_normal(d)
    F, K = CenteredFeatures(X + mean, mean), GivenMatrix(X @ X.T)
    expected = auto_ridge(K, y)
    # Features that are fewer than the rows are summed in single precision.
    rtol = 1e-5 if d < n // 4 else 1e-6
    assert_allclose(auto_ridge_of_features(F, y)[0], expected, rtol=rtol)
    sparse = CenteredFeatures(scipy.sparse.csr_array(X + mean), mean)
    assert_allclose(auto_ridge_of_features(sparse, y)[0], expected, rtol=rtol)
    w = rng.uniform(0.2, 2.0, n)
    expected = auto_ridge(K, y, w)
    assert_allclose(auto_ridge_of_features(F, y, w)[0], expected, rtol=rtol)


@pytest.mark.parametrize("d", [30, 300])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_what_is_summed_for_the_penalty_begins_the_normal_matrix(
    weighted, dtype, d, rng
):
    X, y = rng.standard_normal((1400, d)), rng.standard_normal((1400, 2))
    w = rng.uniform(0.2, 2.0, 1400) if weighted else None
    X, y, w = (a if a is None else a.astype(dtype) for a in (X, y, w))
    F = CenteredFeatures(X, np.zeros(d, dtype))
    ridge, (s, gram) = auto_ridge_of_features(F, y, w)
    A = X[:s] if w is None else np.sqrt(w[:s, None]) * X[:s]
    assert_allclose(np.tril(gram), np.tril(A.T @ A), rtol=1e-5, atol=1e-3)
    expected = solve_features_directly(F, y, w, ridge, has_mean=False)
    begun = s, gram
    found = solve_features_directly(F, y, w, ridge, has_mean=False, begun=begun)
    assert_allclose(found.coef, expected.coef, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.* learned nothing")  # targets are noise
@pytest.mark.parametrize("d", [3, 100])
@pytest.mark.parametrize("n", [60, 400])
def test_constant_features_need_no_penalty(n, d, rng):
    model = LinearEigenProRegressor(random_state=0)
    y = rng.standard_normal(n)
    model.fit(np.zeros((n, d)), y)
    assert model.alpha_ == 0
    assert_allclose(model.predict(np.zeros((2, d))), y.mean())


@pytest.mark.parametrize("d", [5, 80])
def test_the_mean_is_left_out_as_well(d, rng):
    X, w = rng.standard_normal((40, d)) + 3.0, rng.uniform(0.2, 2.0, 40)
    y = X @ rng.standard_normal(d) / d**0.5 + 2 * rng.standard_normal(40)
    w /= w.mean()

    def error(c):
        total = 0.0
        for i in range(40):
            others = np.delete(np.arange(40), i)
            model = Ridge(c).fit(X[others], y[others], sample_weight=w[others])
            total += w[i] * (model.predict(X[i : i + 1])[0] - y[i]) ** 2
        return total

    F, Y = CenteredFeatures(X, w @ X / 40), (y - w @ y / 40)[:, None]
    found = auto_ridge_of_features(F, Y, w)[0]
    errors = [error(found * f) for f in (0.5, 1.0, 2.0)]
    assert errors[1] <= (1 + 1e-3) * min(errors)  # of equal errors the largest c


@pytest.mark.parametrize("seed", range(4))
def test_more_features_than_rows_are_penalized(seed):
    rng = np.random.default_rng(seed)
    X, X_test = rng.standard_normal((2, 150, 400))
    beta = rng.standard_normal(400) / 20
    y = X @ beta + rng.standard_normal(150)
    F, Y = CenteredFeatures(X, X.mean(axis=0)), (y - y.mean())[:, None]
    found = auto_ridge_of_features(F, Y)[0]

    def error(c):
        return np.mean((Ridge(c).fit(X, y).predict(X_test) - X_test @ beta) ** 2)

    assert error(found) < 1.1 * min(error(c) for c in np.logspace(-3, 4, 30))


def test_a_kernel_is_computed_for_a_part_of_the_rows_only(rng):
    X, entries = rng.standard_normal((4000, 2)), []

    def watched(A, B):
        entries.append(A.shape[0] * B.shape[0])
        return Laplacian(1.0)(A, B)

    EigenProRegressor(watched, max_iter=1, algorithm="sgd").fit(X, X[:, 0])
    n_entries, entries[:] = sum(entries), []
    model = EigenProRegressor(watched, max_iter=1, algorithm="sgd")
    model.set_params(alpha=0.0).fit(X, X[:, 0])
    assert 0 < n_entries - sum(entries) <= 4000 * 1000 + 4096


@pytest.mark.filterwarnings("ignore:.* learned nothing")  # targets are noise
@pytest.mark.parametrize("model", REGRESSORS, ids=repr)
def test_pure_noise_is_predicted_as_the_mean_is(model, rng):
    X, y = rng.standard_normal((1000, 4)), rng.standard_normal(1000)
    model.fit(X, y)
    assert model.alpha_ > 0
    assert np.mean(model.predict(rng.standard_normal((1000, 4))) ** 2) < 0.02


@pytest.mark.parametrize("model", REGRESSORS, ids=repr)
def test_noisy_targets_are_predicted_better(model, rng):
    X, X_test = rng.standard_normal((600, 4)), rng.standard_normal((600, 4))
    y = np.sin(X[:, 0]) + X[:, 1] + 3 * rng.standard_normal(600)
    expected = np.sin(X_test[:, 0]) + X_test[:, 1]
    without = 1e-6 if isinstance(model, DSGRegressor) else 0.0
    errors = [
        np.mean((clone(model).set_params(alpha=alpha).fit(X, y).predict(X_test)
                 - expected) ** 2)
        for alpha in ("auto", without)
    ]  # fmt: skip
    few = isinstance(model, LinearEigenProRegressor)  # few features: nothing to improve
    assert errors[0] < (1.05 if few else 0.9) * errors[1]


@pytest.mark.parametrize(
    "cls", [EigenProClassifier, LinearEigenProClassifier, DSGClassifier]
)
def test_flipped_labels(cls, rng):
    X, X_test = rng.standard_normal((2, 600, 6))
    clean, y_test = (part[:, 0] + part[:, 1] > 0.5 for part in (X, X_test))
    y = clean ^ (rng.random(600) < 0.3)
    options = {"random_state": 0, "max_iter": 20}
    auto = cls(**options).fit(X, y)
    plain = cls(alpha=1e-6 if cls is DSGClassifier else 0.0, **options).fit(X, y)
    assert auto.alpha_ > 0
    assert auto.score(X_test, y_test) >= plain.score(X_test, y_test) - 0.01


FAMILIES = [
    (EigenProRegressor, {}),
    (EigenProRegressor, {"algorithm": "eigenpro2"}),
    (EigenProRegressor, {"n_centers": 30}),
    (EigenProClassifier, {"algorithm": "eigenpro4", "n_centers": 30}),
    (LinearEigenProRegressor, {}),
    (LinearEigenProClassifier, {"batch_size": 50}),
    (DSGRegressor, {}),
    (DSGClassifier, {"loss": "hinge"}),
]


def noisy(cls, rng):
    """Return rows, and targets or labels that are mostly noise."""
    X = rng.standard_normal((200, 3))
    y = X[:, 0] + 2 * rng.standard_normal(200)
    return X, (y > 0).astype(int) if cls.__name__.endswith("Classifier") else y


@pytest.mark.parametrize("cls, options", FAMILIES, ids=str)
def test_auto_is_the_default(cls, options, rng):
    X, y = noisy(cls, rng)
    model = cls(max_iter=3, random_state=0, **options)
    params = model.get_params()
    assert (params["alpha"], params["early_stopping"]) == ("auto", False)
    same = cls(max_iter=3, random_state=0, alpha="auto", **options).fit(X, y)
    assert model.fit(X, y).alpha_ == same.alpha_ > 1e-6
    assert_array_equal(model.predict(X), same.predict(X))


@pytest.mark.filterwarnings("ignore:.* learned nothing")  # targets are noise
@pytest.mark.parametrize("cls, options", FAMILIES, ids=str)
def test_early_stopping_and_pieces_choose_no_penalty(cls, options, rng):
    X, y = noisy(cls, rng)
    least = 1e-6 if cls in (DSGRegressor, DSGClassifier) else 0.0
    model = cls(max_iter=3, random_state=0, early_stopping=True, **options)
    if hasattr(model, "bandwidth"):  # the best depends on whether there is a penalty
        model.set_params(bandwidth="median")
    model.fit(X, y)
    assert model.alpha_ == least and model.validation_scores_ is not None
    given = clone(model).set_params(alpha=least).fit(X, y)
    assert_array_equal(model.predict(X), given.predict(X))
    if hasattr(model, "partial_fit"):
        labels = {"classes": [0, 1]} if is_classifier(model) else {}
        model = clone(model).set_params(early_stopping=False)
        assert model.partial_fit(X, y, **labels).alpha_ == least


@pytest.mark.filterwarnings("ignore:.* learned nothing")  # targets are noise
@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("cls, options", FAMILIES, ids=str)
def test_a_penalty_that_is_given_stays(cls, options, early_stopping, rng):
    X, y = noisy(cls, rng)
    model = cls(alpha=0.02, max_iter=3, random_state=0, **options)
    model.set_params(early_stopping=early_stopping)
    assert model.fit(X, y).alpha_ == pytest.approx(0.02, rel=1e-12)
    if hasattr(model, "partial_fit") and not early_stopping:
        labels = {"classes": [0, 1]} if is_classifier(model) else {}
        assert clone(model).partial_fit(X, y, **labels).alpha_ == 0.02


def test_exact_projections_take_auto_for_zero(rng):
    X, y = noisy(EigenProRegressor, rng)
    options = {"algorithm": "eigenpro3-exact", "n_centers": 20, "random_state": 0}
    model = EigenProRegressor(**options).fit(X, y)
    zero = EigenProRegressor(alpha=0.0, **options).fit(X, y)
    assert model.alpha_ == zero.alpha_ == 0.0
    assert_array_equal(model.predict(X), zero.predict(X))


@pytest.mark.parametrize("shape", [(600, 40), (200, 400)], ids=str)
@pytest.mark.parametrize("n_components", ["auto", 0, 7])
def test_linear_models_solve_ridge_regression(n_components, shape, rng):
    X = rng.standard_normal(shape) * np.linspace(0.5, 2.0, shape[1])
    y = X @ rng.standard_normal((shape[1], 2)) / shape[1] ** 0.5
    y += 3 * rng.standard_normal(y.shape)
    w = rng.uniform(0.5, 2.0, shape[0])
    model = LinearEigenProRegressor(
        n_components,
        alpha=0.3,
        max_iter=400,
        tol=0.0,
        n_iter_no_change=400,
        random_state=0,
    ).fit(X, y, sample_weight=w)
    ridge = Ridge(model.alpha_ * w.sum()).fit(X, y, sample_weight=w)
    assert_allclose(model.coef_, ridge.coef_, atol=1e-6)
    assert_allclose(model.intercept_, ridge.intercept_, atol=1e-6)


@pytest.mark.filterwarnings("ignore:the quantile .* is corrected on")
@pytest.mark.filterwarnings("ignore:.* learned nothing")  # targets are noise
def test_quantiles_hold_rows_out(rng):
    X, y = rng.standard_normal((300, 2)), rng.standard_normal(300)
    options = {"loss": "pinball", "max_iter": 5, "random_state": 0}
    auto = DSGRegressor(**options).fit(X, y)
    held_out = DSGRegressor(early_stopping=True, **options).fit(X, y)
    assert auto.validation_scores_ == held_out.validation_scores_ != None  # noqa: E711
    given = DSGRegressor(alpha=1e-6, **options).fit(X, y)
    assert (given.validation_scores_, given.alpha_) == (None, 1e-6)


@pytest.mark.filterwarnings("ignore:.* learned nothing")  # targets are noise
def test_outliers_choose_no_penalty_for_a_robust_loss(rng):
    X = rng.standard_normal((600, 2))
    y = np.sin(X[:, 0])
    y[::20] += 1000.0
    options = {"max_iter": 1, "random_state": 0}
    robust = DSGRegressor(loss="huber", **options).fit(X, y).alpha_
    assert robust < DSGRegressor(**options).fit(X, y).alpha_ / 10


@pytest.mark.parametrize("value", ["auto", 1, None])
def test_words_are_checked(value, rng):
    X, y = rng.standard_normal((30, 2)), np.arange(30.0)
    with pytest.raises(ValueError, match="early_stopping must be True or False; got"):
        EigenProRegressor(early_stopping=value).fit(X, y)
