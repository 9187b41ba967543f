"""Odd but valid input, through every family: weights, scalars, equal rows, noise."""

import inspect
import warnings

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import clone
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge

import eigenkern
from eigenkern import (
    DSGClassifier,
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeClassifier,
    FalkonLikeRegressor,
    LinearEigenProClassifier,
    LinearEigenProRegressor,
    NystromClassifier,
    NystromRegressor,
    NytroClassifier,
    NytroRegressor,
    RFMClassifier,
    RFMRegressor,
)
from eigenkern.kernels import Cauchy, Gaussian, Laplacian, Manhattan, Matern, Polynomial
from eigenkern.methods.direct import solve_features_directly
from eigenkern.operators.centered import features_of

REGRESSORS = [
    EigenProRegressor(),
    EigenProRegressor(algorithm="eigenpro1", batch_size=20, max_iter=3),
    EigenProRegressor(algorithm="sgd", batch_size=20, max_iter=3),
    EigenProRegressor(n_centers=20),
    EigenProRegressor(n_centers=20, algorithm="eigenpro3"),
    EigenProRegressor(n_centers=20, algorithm="eigenpro3-exact"),
    EigenProRegressor(early_stopping=True),
    LinearEigenProRegressor(),
    LinearEigenProRegressor(batch_size=20),
    NystromRegressor(),
    NystromRegressor(n_centers=20),
    NystromRegressor(alpha="path"),
    NystromRegressor(alpha="path", selection="gcv"),
    NystromRegressor(alpha="path", selection="loo", n_centers=20),
    NytroRegressor(),
    NytroRegressor(n_centers=20, selection=None, max_iter=5),
    FalkonLikeRegressor(),
    FalkonLikeRegressor(n_centers=20),
    DSGRegressor(),
    RFMRegressor(max_rounds=1),
]
CLASSIFIERS = [
    EigenProClassifier(),
    EigenProClassifier(algorithm="eigenpro2", batch_size=20),
    EigenProClassifier(n_centers=20, algorithm="eigenpro4"),
    LinearEigenProClassifier(),
    NystromClassifier(),
    NystromClassifier(alpha="path"),
    NystromClassifier(loss="log_loss", alpha="path"),
    NytroClassifier(),
    FalkonLikeClassifier(n_centers=20),
    FalkonLikeClassifier(loss="log_loss"),
    DSGClassifier(loss="log_loss"),
    RFMClassifier(max_rounds=1),
]
ESTIMATORS = [
    getattr(eigenkern, name)
    for name in eigenkern.__all__
    if hasattr(getattr(eigenkern, name), "fit")
]


@pytest.fixture
def X(rng):
    return rng.standard_normal((120, 3))


def fit_constant(model, X, y, weights=None):
    """Return a model of equal rows, after checking that it warns once."""
    model = clone(model).set_params(random_state=0)
    given = () if weights is None else (weights,)
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        model.fit(X, y, *given)
    (warning,) = record
    assert warning.category is ConvergenceWarning
    assert "all rows of X with weight are equal" in str(warning.message)
    return model


# Weights


@pytest.mark.parametrize("model", REGRESSORS + CLASSIFIERS, ids=repr)
def test_a_number_is_the_weight_of_every_row(model, X):
    y = np.sin(2 * X[:, 0]) + X[:, 1]
    y = y > 0 if is_classifier(model) else y
    model = clone(model).set_params(random_state=0)
    found = model.fit(X, y, sample_weight=2.0).predict(X)
    assert_array_equal(
        model.fit(X, y, sample_weight=np.full(120, 2.0)).predict(X), found
    )


def test_a_weight_of_scikit_learn(X):
    y = np.sin(2 * X[:, 0])
    peer = KernelRidge(kernel="rbf", gamma=0.5, alpha=120 * 1e-3)
    expected = peer.fit(X, y - y.mean(), sample_weight=1.0).predict(X) + y.mean()
    model = NystromRegressor("gaussian", bandwidth=1.0, alpha=1e-3)
    assert_allclose(model.fit(X, y, sample_weight=3).predict(X), expected, atol=1e-8)


@pytest.mark.parametrize(
    "weight", [0, -1.0, np.nan, np.inf, True, 1j, np.array(1.0), "one"], ids=repr
)
def test_wrong_weights(weight, X):
    y = X[:, 0]
    for fit in (
        NystromRegressor().fit,
        LinearEigenProRegressor().partial_fit,
        DSGRegressor().partial_fit,
        EigenProRegressor(n_centers=5).partial_fit,
    ):
        with pytest.raises(ValueError, match="sample_weight"):
            fit(X, y, sample_weight=weight)
    with pytest.raises(ValueError, match="sample_weight"):
        EigenProRegressor(n_centers=5).fit_batches([(X, y, weight)])
    with pytest.raises(ValueError, match="sample_weight_val"):
        NytroRegressor().fit(X, y, X_val=X, y_val=y, sample_weight_val=weight)


def test_a_number_in_pieces_and_for_validation(X):
    y = X[:, 0]
    model = EigenProRegressor(n_centers=20, random_state=0)
    found = model.fit_batches([(X, y, 2.0)]).predict(X)
    expected = model.fit_batches([(X, y, np.full(120, 2.0))]).predict(X)
    assert_array_equal(found, expected)
    for model in (
        LinearEigenProRegressor(random_state=0),
        DSGRegressor(random_state=0),
        EigenProRegressor(n_centers=20, random_state=0),
    ):
        one, other = clone(model), clone(model)
        for _ in range(2):
            one.partial_fit(X, y, sample_weight=2)
            other.partial_fit(X, y, sample_weight=np.full(120, 2.0))
        assert_array_equal(one.predict(X), other.predict(X))
    validation = {"X_val": X[:20] + 0.1, "y_val": y[:20]}
    one = NytroRegressor().fit(X, y, **validation, sample_weight_val=2.0)
    other = NytroRegressor().fit(X, y, **validation)
    assert_allclose(one.validation_path_, other.validation_path_)


# Equal rows


@pytest.mark.parametrize("level", [0.0, 0.1])
@pytest.mark.parametrize("model", REGRESSORS, ids=repr)
def test_constant_rows_predict_the_mean(model, level, rng):
    y, w = rng.standard_normal(60) + 3, rng.uniform(0.5, 2, 60)
    model = fit_constant(model, np.full((60, 3), level), y, w)
    assert_allclose(
        model.predict(rng.standard_normal((5, 3))), np.average(y, weights=w)
    )


@pytest.mark.parametrize("model", REGRESSORS, ids=repr)
def test_one_row_with_weight_predicts_its_target(model, X):
    y, w = X[:, 0] + 1 / 3, np.zeros(120)
    w[3] = 0.7
    model = fit_constant(model, X, y, w)
    assert_allclose(model.predict(X), y[3])


def test_rows_with_weight_that_are_equal(X, rng):
    w = np.repeat([1.0, 0.0], [40, 80])
    X[:40] = X[0]
    y = rng.standard_normal(120)
    for model in REGRESSORS:
        model = fit_constant(model, X, y, w)
        assert_allclose(model.predict(X), np.mean(y[:40]), atol=1e-12)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("model", CLASSIFIERS, ids=repr)
def test_constant_rows_have_the_frequencies_of_classes(model, n_classes, X, rng):
    y, w = rng.integers(0, n_classes, 120), rng.uniform(0.5, 2, 120)
    frequencies = np.bincount(y, w) / w.sum()
    model = fit_constant(model, np.ones((120, 3)), y, w)
    assert_array_equal(model.predict(X), np.full(120, frequencies.argmax()))
    assert_allclose(model.predict_proba(X), np.tile(frequencies, (120, 1)), atol=0.01)
    w = np.zeros(120)
    w[3] = 1
    model = fit_constant(model, X, y, w)
    assert_array_equal(model.predict(X), np.full(120, y[3]))
    assert np.isfinite(model.predict_proba(X)).all()


@pytest.mark.filterwarnings("ignore:the quantile .* is corrected on")
def test_other_losses_predict_their_constant(rng):
    y = rng.standard_exponential(101)
    X = np.ones((101, 2))
    for options, expected in (
        ({"loss": "pinball", "quantile": 0.8}, np.quantile(y, 0.8)),
        ({"loss": "epsilon_insensitive"}, np.median(y)),
        ({"loss": "huber"}, np.median(y)),
    ):
        model = fit_constant(DSGRegressor(**options), X, y)
        assert_allclose(model.predict(X), expected, atol=0.1)


def test_constant_sparse_rows(rng):
    X, y = scipy.sparse.csr_array(np.tile([0.0, 2.0, 0.0], (50, 1))), rng.random(50)
    model = fit_constant(LinearEigenProRegressor(), X, y)
    assert_allclose(model.predict(X), y.mean())


def test_equal_targets_of_any_size_do_not_warn(X):
    """The mean of equal numbers is off by rounding."""
    for model in REGRESSORS:
        y = np.full(120, 1e5 / 3)
        assert_allclose(clone(model).set_params(random_state=0).fit(X, y).predict(X), y)


# Nothing learned


@pytest.mark.parametrize("model", REGRESSORS + CLASSIFIERS, ids=repr)
def test_a_fit_that_learned_nothing_warns_once(model, rng):
    """Any fit either explains a part of noise, or says that it learned nothing."""
    X, y = rng.standard_normal((150, 3)), rng.standard_normal(150)
    y = y > 0 if is_classifier(model) else y
    model = clone(model).set_params(random_state=0)
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        model.fit(X, y)
    # Of the mean, "learned nothing" speaks, and the end of epochs that got worse.
    said = [one for one in record if "of predicting the mean" in str(one.message)]
    assert len(said) <= 1
    if getattr(model, "loss", "squared_error") != "squared_error":
        return
    Y = 2.0 * y - 1.0 if is_classifier(model) else y
    values = model.decision_function(X) if is_classifier(model) else model.predict(X)
    share = 1 - np.mean((values - Y) ** 2) / np.var(Y)
    assert bool(said) == (share <= 1e-3)


def test_a_learned_metric_of_noise_says_to_check_the_rows(X):
    y = np.random.default_rng(0).permutation(len(X)) + 0.0
    said = "predicting the mean; check that the rows of y are those of X"
    with pytest.warns(ConvergenceWarning, match=said):
        RFMRegressor(random_state=0, max_rounds=1).fit(X, y)


@pytest.mark.parametrize("cls", [EigenProRegressor, RFMRegressor])
def test_a_lazy_frame_has_to_be_collected(cls, X):
    polars = pytest.importorskip("polars")
    with pytest.raises(ValueError, match=r"LazyFrame: pass X\.collect\(\)"):
        cls().fit(polars.DataFrame(X).lazy(), X[:, 0])


@pytest.mark.parametrize(
    "model",
    [
        EigenProRegressor(alpha=1e6),
        EigenProRegressor(alpha=1e6, n_centers=20),
        EigenProRegressor(step_size=1e-9, batch_size=50, max_iter=2),
        LinearEigenProRegressor(step_size=1e-9, batch_size=50, max_iter=2),
        NystromRegressor(alpha=1e6),
        NystromRegressor(alpha=1e6, n_centers=20),
        NytroRegressor(step_size=1e-9, selection=None, max_iter=2),
        FalkonLikeRegressor(alpha=1e6),
        FalkonLikeRegressor(alpha=1e6, n_centers=20),
        DSGRegressor(alpha=1e6),
        NystromClassifier(alpha=1e6),
        NystromClassifier(alpha=1e6, loss="log_loss"),
        FalkonLikeClassifier(alpha=1e6, n_centers=20, loss="log_loss"),
    ],
    ids=repr,
)
def test_penalties_or_steps_that_leave_the_mean(model, X):
    y = np.sin(2 * X[:, 0]) > 0 if is_classifier(model) else np.sin(2 * X[:, 0])
    with pytest.warns(
        ConvergenceWarning, match="learned nothing: its training"
    ) as said:
        clone(model).set_params(random_state=0).fit(X, y)
    assert len(said) == 1


@pytest.mark.parametrize("n", [1000, 6000])
def test_a_weak_signal_is_learned(n, rng):
    """It explains 1 % of the variance; a constant would explain none."""
    X = rng.standard_normal((n, 2))
    y = 0.1 * X[:, 0] + rng.standard_normal(n)
    LinearEigenProRegressor(random_state=0).fit(X, y)
    NystromRegressor(n_centers=30, alpha=0.1, random_state=0).fit(X, y)
    Y = np.column_stack([1e6 * rng.standard_normal(n), X[:, 1]])  # one output learns
    NystromRegressor(n_centers=30, alpha=1e-3, random_state=0).fit(X, Y)


# Parameters

_VALUES = {
    "bandwidth": 2.0,
    "alpha": 0.5,
    "step_size": 0.01,
    "tol": 0.25,
    "damping": 0.5,
    "cache_size": 10.0,
    "validation_fraction": 0.25,
    "n_centers": 20,
    "max_iter": 5,
    "batch_size": 16,
    "subsample_size": 15,
    "n_components": 5,
    "n_iter_no_change": 2,
    "block_size": 8,
    "max_features": 256,
    "max_rounds": 1,
    "random_state": 3,
}


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda cls: cls.__name__)
def test_scalars_of_numpy(estimator, X):
    """They give the model of the same number of Python, and stay as they are."""
    y = X[:, 0] > 0 if issubclass(estimator, CLASSIFIER_CLASSES) else X[:, 0]
    names = inspect.signature(estimator).parameters
    given = {name: v for name, v in _VALUES.items() if name in names}
    if estimator in (NystromRegressor, NystromClassifier, LinearEigenProRegressor):
        given.pop("step_size", None)
    kinds = {float: np.float32, int: np.int16}
    scalars = {name: kinds[type(v)](v) for name, v in given.items()}
    scalars = scalars | {"device": np.str_("auto"), "warm_start": np.bool_(False)}
    scalars = {name: v for name, v in scalars.items() if name in names}
    plain = estimator(**{k: v.item() for k, v in scalars.items()})
    model = clone(estimator(**scalars))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=ConvergenceWarning)
        model.fit(X, y), plain.fit(X, y)
    apply = "predict" if hasattr(model, "predict") else "transform"
    assert_array_equal(getattr(model, apply)(X), getattr(plain, apply)(X))
    assert all(getattr(model, name) is v for name, v in scalars.items())
    for name in scalars:
        model = estimator(**{name: np.array(scalars[name])})
        with pytest.raises(ValueError, match=name):
            model.fit(X, y)


CLASSIFIER_CLASSES = tuple(type(model) for model in CLASSIFIERS)


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int8, np.uint8])
@pytest.mark.parametrize(
    "make", [Gaussian, Laplacian, Cauchy, Manhattan, Matern, Polynomial]
)
def test_scalars_of_numpy_in_kernels(make, kind, X):
    """The square of 20 is outside the range of int8."""
    assert_array_equal(make(kind(20))(X), make(20)(X))
    assert type(make(kind(20)).bandwidth) in (int, float)
    assert make(kind(20)) == make(20)
    with pytest.raises(ValueError, match="bandwidth must be a number; got array"):
        make(np.array(20.0))


@pytest.mark.parametrize("alpha", [1e-6, 0.0, 1.0])
@pytest.mark.parametrize("cls", [NystromRegressor, NystromClassifier])
def test_alphas_need_a_path(cls, alpha, X):
    model = cls(alphas=[1.0], alpha=alpha)
    with pytest.raises(ValueError, match="pass alpha='path' with them"):
        model.fit(X, X[:, 0] > 0)


# Sparse and dense rows


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(200, 500), (500, 120), (300, 300)])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_sparse_and_dense_rows_have_the_same_linear_model(
    shape, fit_intercept, dtype, rng
):
    n, d = shape
    X = scipy.sparse.random_array(shape, density=0.03, format="csr", rng=rng)
    y = X @ rng.standard_normal(d)
    y += 0.01 * rng.standard_normal(n)  # or rounding of X chooses the penalty
    X = (X @ scipy.sparse.diags_array(10.0 ** rng.uniform(-2, 2, d))).astype(dtype)
    X, w = scipy.sparse.csr_array(X), rng.uniform(0.5, 2, n)
    for cls in (LinearEigenProRegressor, LinearEigenProClassifier):
        labels = cls is LinearEigenProClassifier
        targets, method = (y > 0, "decision_function") if labels else (y, "predict")
        model = cls(fit_intercept=fit_intercept, random_state=0)
        with warnings.catch_warnings():  # a fit may find no penalty that helps
            warnings.filterwarnings("ignore", ".* learned nothing")
            sparse = clone(model).fit(X, targets, sample_weight=w)
            dense = clone(model).fit(X.toarray(), targets, sample_weight=w)
        expected = getattr(dense, method)(X.toarray())
        size = np.abs(expected).max()
        assert_allclose(getattr(sparse, method)(X), expected, atol=1e-4 * size)
        if sparse.alpha_ > 0:
            peer = Ridge(sparse.alpha_ * n, fit_intercept=fit_intercept)
            Y = 2.0 * targets - 1.0 if labels else targets
            peer.fit(X.toarray().astype(float), Y, sample_weight=w / w.mean())
            assert_allclose(peer.predict(X), expected, atol=1e-4 * size)
        if labels:
            P = sparse.predict_proba(X)
            assert_allclose(P, dense.predict_proba(X.toarray()), atol=1e-3)


def test_values_left_out_of_few_rows_are_those_of_ridge(rng):
    """The direct solution in the space of rows leaves rows out with their mean."""
    X, y = rng.standard_normal((40, 90)), rng.integers(0, 2, 40)
    w = rng.uniform(0.5, 2, 40)
    w /= w.mean()
    mean, Y = w @ X / 40, y - w @ y / 40
    F = features_of(X, mean)
    found = solve_features_directly(F, Y[:, None], w, 3.0, has_mean=True)
    peer = Ridge(3.0).fit(X, y, sample_weight=w)
    assert_allclose(found.coef[:, 0], peer.coef_, atol=1e-9)
    for i in range(5):
        rest = np.arange(40) != i
        peer = Ridge(3.0).fit(X[rest], y[rest], sample_weight=w[rest])
        left_out = found.residual[i, 0] / found.kept[i]
        assert_allclose(left_out, y[i] - peer.predict(X[i : i + 1])[0], 1e-5)


@pytest.mark.parametrize("model", [EigenProRegressor(), RFMRegressor()], ids=str)
def test_other_kinds_of_rows_get_advice(model):
    y = [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match=r"X is a path\. Open the file with np.load"):
        model.fit("rows.csv", y)
    with pytest.raises(ValueError, match=r"For texts, use .* TfidfVectorizer"):
        model.fit(["a b", "c", "d e"], y)
    message = r"(?s)dense data is required.*LinearEigen.*OneHotEncoder\(sparse_output=F"
    with pytest.raises(TypeError, match=message):
        model.fit(scipy.sparse.eye_array(3, format="csr"), y)


@pytest.mark.parametrize(
    "model, advice",
    [
        (NystromRegressor(), "scale X, or pass another kernel, bandwidth or penalty$"),
        (NytroRegressor(), "scale X, or pass another kernel or bandwidth$"),
        (LinearEigenProRegressor(), "scale X, or pass another penalty$"),
        (RFMRegressor(), "or pass more of them$"),
    ],
)
def test_the_advice_is_about_parameters_of_the_model(model, advice, rng):
    X, y = rng.standard_normal((200, 3)), rng.standard_normal(200)
    with pytest.warns(ConvergenceWarning, match=advice):
        model.set_params(random_state=0).fit(X, y)
