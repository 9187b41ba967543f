"""Shared parameters of estimators: few rows, kernel parameters, invalid values."""

import copy

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose
from sklearn import clone
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.gaussian_process.kernels import RBF
from sklearn.model_selection import GridSearchCV, HalvingGridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from eigenkern import (
    DSGRegressor,
    EigenProRegressor,
    FalkonLikeClassifier,
    FalkonLikeRegressor,
    LinearEigenProRegressor,
    NystromClassifier,
    NystromRegressor,
    NytroRegressor,
    RBFNetworkFeatures,
    RFMRegressor,
)
from eigenkern.kernels import Cauchy, Gaussian, Kernel, Linear, Polynomial

ON_CENTERS = [
    EigenProRegressor(max_iter=2),
    EigenProRegressor(max_iter=2, algorithm="eigenpro3-exact"),
    FalkonLikeRegressor(),
    FalkonLikeRegressor(alpha=1e-3, max_iter=10),
    NystromRegressor(),
    NystromRegressor(alpha="path"),
    NytroRegressor(),
]
FEW = "n_centers=100 is more than the {} distinct rows .*: all {} are centers"


@pytest.mark.parametrize("centers", ["uniform", "kmeans", "leverage_scores"])
@pytest.mark.parametrize("model", ON_CENTERS, ids=repr)
def test_all_rows_are_centers_where_they_are_few(model, centers, rng):
    X = np.repeat(rng.standard_normal((60, 2)), 2, axis=0)
    y = X[:, 0] + 0.1 * rng.standard_normal(120)
    model = clone(model).set_params(centers=centers, random_state=0, bandwidth=1.0)
    with pytest.warns(UserWarning, match=FEW.format(r"\d+", r"\d+")) as warned:
        model.set_params(n_centers=100).fit(X, y)
    assert len(warned) == 1
    n = len(model.centers_)
    assert len(np.unique(model.centers_, axis=0)) == n <= 60
    assert f"than the {n} distinct" in str(warned[0].message)
    expected = model.predict(X)
    model.set_params(n_centers=n).fit(X, y)  # no warning
    assert_allclose(model.predict(X), expected, atol=2e-3)


@pytest.mark.parametrize("cls", [NystromClassifier, FalkonLikeClassifier])
def test_so_they_are_with_the_log_loss(cls, three_classes):
    X, y = three_classes
    model = cls(loss="log_loss", alpha=1e-2, n_centers=200, bandwidth=1.0)
    with pytest.warns(UserWarning, match="n_centers=200 is more than the 180 distinct"):
        model.fit(X, y)
    assert len(model.centers_) == 180


def test_warm_starts_go_on_with_all_rows(regression):
    X, y, *_ = regression
    model = EigenProRegressor(n_centers=500, warm_start=True, max_iter=1)
    for seed in range(2):
        with pytest.warns(UserWarning, match="n_centers=500 is more than the 160"):
            model.set_params(random_state=seed).fit(X, y)
    assert len(model.centers_) == 160


def test_streams_need_their_centers_in_the_first_rows(regression):
    X, y, *_ = regression
    message = "n_centers must be at most 160, the number of distinct rows.*got 500"
    model = EigenProRegressor(n_centers=500)
    with pytest.raises(ValueError, match=message):
        model.partial_fit(X, y)
    with pytest.raises(ValueError, match=message):
        model.fit_batches([(X, y)])


@pytest.mark.filterwarnings("ignore:n_centers=.* is more than the")
@pytest.mark.filterwarnings("ignore:NytroRegressor learned nothing")  # from 13 rows
@pytest.mark.parametrize(
    "model",
    [EigenProRegressor(max_iter=5), NystromRegressor(), NytroRegressor()],
    ids=repr,
)
def test_halving_search(model, regression):
    X, y, X_test, y_test = regression
    search = HalvingGridSearchCV(
        clone(model).set_params(random_state=0),
        {"n_centers": [5, 40, 80]},
        min_resources=20,
        cv=3,
        error_score="raise",
        random_state=0,
    ).fit(X, y)
    assert search.n_resources_ == [20, 60]
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.score(X_test, y_test) > 0


# Parameters of a kernel object


def test_kernels_have_parameters():
    assert Polynomial(2.0, degree=2).get_params() == {
        "bandwidth": 2.0,
        "degree": 2,
        "coef0": 1.0,
    }
    assert Linear().get_params() == {}
    model = EigenProRegressor(Cauchy(2.0))
    assert model.get_params()["kernel__bandwidth"] == 2.0
    assert "kernel__bandwidth" not in EigenProRegressor().get_params()
    assert clone(model).kernel == model.kernel
    assert "Cauchy(bandwidth=2.0)" in repr(model) and model._repr_html_()


@pytest.mark.filterwarnings("ignore:EigenProRegressor learned nothing")  # if so wide
def test_search_over_parameters_of_a_kernel(regression):
    X, y, X_test, y_test = regression
    kernel = Gaussian(1.0)
    pipeline = make_pipeline(StandardScaler(), EigenProRegressor(kernel))
    widths = [0.01, 1.5, 100.0]
    for model, name in (
        (EigenProRegressor(kernel), "kernel__bandwidth"),
        (pipeline, "eigenproregressor__kernel__bandwidth"),
    ):
        search = GridSearchCV(model, {name: widths}, error_score="raise").fit(X, y)
        assert search.best_params_ == {name: 1.5}
        assert search.score(X_test, y_test) > 0.9
    assert kernel == Gaussian(1.0)
    assert pipeline[-1].kernel is kernel


@pytest.mark.parametrize("cls", [NystromRegressor, DSGRegressor, RBFNetworkFeatures])
def test_setting_them_leaves_other_estimators_alone(cls):
    kernel = Gaussian(1.0)
    one, other = cls(kernel), cls(kernel)
    one.set_params(kernel__bandwidth=2.0, bandwidth=3.0)
    assert one.kernel == Gaussian(2.0) and one.bandwidth == 3.0
    assert other.kernel is kernel and kernel == Gaussian(1.0)
    one.set_params(kernel=Cauchy(1.0), kernel__bandwidth=4.0)
    assert one.kernel == Cauchy(4.0)
    nested = RFMRegressor(NystromRegressor(kernel))
    nested.set_params(estimator__kernel__bandwidth=2.0)
    assert nested.estimator.kernel == Gaussian(2.0) and kernel == Gaussian(1.0)


@pytest.mark.parametrize(
    "model, parameters, message",
    [
        (
            NystromRegressor(),
            {"kernel__bandwidth": 1},
            "got 'laplacian'; its bandwidth",
        ),
        (NystromRegressor(np.dot), {"kernel__bandwidth": 1}, "must be a kernel object"),
        (NystromRegressor(Linear()), {"kernel__degree": 2}, "no parameter 'degree': L"),
        (NystromRegressor(Gaussian()), {"kernel__bandwidth": 0}, "must be positive"),
        (RFMRegressor(), {"kernel__bandwidth": 1}, "Invalid parameter 'kernel'"),
    ],
    ids=["name", "function", "unknown", "wrong", "no kernel"],
)
def test_parameters_that_a_kernel_has_not(model, parameters, message):
    with pytest.raises(ValueError, match=message):
        copy.deepcopy(model).set_params(**parameters)


class Own(Kernel):
    """A user's own kernel that is not a dataclass."""

    def __init__(self, power):
        self.power = power


def test_kernels_that_are_no_dataclasses_are_cloned():
    model = clone(NystromRegressor(Own(3)))
    assert model.kernel.power == 3 and model.kernel.get_params() == {}


# Invalid values

EVERY = [
    DSGRegressor,
    EigenProRegressor,
    FalkonLikeRegressor,
    LinearEigenProRegressor,
    NystromRegressor,
    NytroRegressor,
    RFMRegressor,
]


@pytest.mark.parametrize("cls", EVERY)
def test_verbose(cls, regression):
    for value in ("loud", -1, 0.5, None):
        with pytest.raises(ValueError, match="verbose must be an integer >= 0; got"):
            cls(verbose=value).fit(*regression[:2])


@pytest.mark.parametrize(
    "model",
    [
        EigenProRegressor(),
        EigenProRegressor(algorithm="sgd"),
        FalkonLikeRegressor(),
        NystromRegressor(),
        NytroRegressor(),
        RBFNetworkFeatures(),
    ],
    ids=repr,
)
@pytest.mark.parametrize("centers", ["nope", None])
def test_centers(model, centers, regression):
    model = clone(model).set_params(centers=centers)
    with pytest.raises(
        ValueError, match=f"centers must be 'uniform'.*; got {centers!r}"
    ):
        model.fit(*regression[:2])


@pytest.mark.parametrize(
    "cls",
    [
        EigenProRegressor,
        NystromRegressor,
        NytroRegressor,
        FalkonLikeRegressor,
        RBFNetworkFeatures,
    ],
)
@pytest.mark.parametrize(
    "centers, got",
    [
        (b"uniform", "b'uniform': texts and times are no numbers"),
        (("uniform",), r"\('uniform',\): texts"),
        (np.array([["1", "2", "3"]]), r"ndarray of shape \(1, 3\): texts"),
        (np.ones((4, 3), dtype="datetime64[s]"), r"ndarray of shape \(4, 3\): texts"),
        (5, "5: Expected 2D array"),
        (np.ones(3), r"ndarray of shape \(3,\): Expected 2D array"),
        (np.ones((1, 2, 3)), r"ndarray of shape \(1, 2, 3\): Found array with dim 3"),
        (np.full((2, 3), np.nan), r"ndarray of shape \(2, 3\): .*contains NaN"),
        (np.array([["a", 1, 2]], dtype=object), "ndarray .*: could not convert"),
        (np.ones((2, 3)) + 1j, r"ndarray of shape \(2, 3\): Complex data"),
        ([[1, 2, 3], [1, 2]], r"\[\[1, 2, 3\], \[1, 2\]\]: setting an array element"),
        (np.empty((0, 3)), r"ndarray of shape \(0, 3\): Found array with 0 sample"),
        ({"a": 1}, "{'a': 1}: float"),
        ([[10**400, 1, 2]], r"\[\[100.*: int too large"),
    ],
    ids=repr,
)
def test_centers_that_are_none(cls, centers, got, regression):
    right = (
        r"centers must be 'uniform', .* or an array of shape \(n_centers, n_features\)"
    )
    with pytest.raises(ValueError, match=f"^{right}; got {got}"):
        cls(centers=centers).fit(*regression[:2])


@pytest.mark.parametrize("cls", [EigenProRegressor, NytroRegressor, RBFNetworkFeatures])
def test_centers_of_another_kind(cls, regression):
    X, y, *_ = regression
    with pytest.raises(TypeError, match="Sparse data was passed for centers"):
        cls(centers=scipy.sparse.csr_array(X[:5])).fit(X, y)
    with pytest.raises(ValueError, match=r"centers must have the 3 .* shape \(5, 2\)"):
        cls(centers=X[:5, :2]).fit(X, y)
    message = (
        "centers must be in the range of float32, .* up to 1e[+]300: pass X in float64"
    )
    with pytest.raises(ValueError, match=message):
        cls(centers=1e300 * np.eye(3)).fit(X.astype(np.float32), y)


@pytest.mark.parametrize("cls", [*EVERY[1:3], *EVERY[4:6], RBFNetworkFeatures])
def test_kernel_functions(cls, regression):
    X, y, *_ = regression
    for function in (lambda X, Z: 1.0, lambda X, Z: np.ones(len(X)), lambda X, Z: None):
        with pytest.raises(ValueError, match="kernel must be a function"):
            cls(function).fit(X, y).transform(X)


@pytest.mark.parametrize("cls", EVERY)
def test_targets_whose_squares_are_no_floats(cls, regression):
    X, y, *_ = regression
    message = (
        r"y must be scaled: its largest target must be between {} and {}.*; got {}"
    )
    for scale in (1e160, 1e-160):
        with pytest.raises(ValueError, match=message.format("1e-150", r"1e\+150", "")):
            cls().fit(X, y * scale)
    for scale in (1e25, 1e-25):
        with pytest.raises(ValueError, match=message.format("1e-19", r"1e\+19", "")):
            cls().fit(X.astype(np.float32), y * scale)
    outputs = np.column_stack([y, 1e-160 * y])
    with pytest.raises(ValueError, match=r"y must be scaled.*got 3.5.*e-160"):
        cls().fit(X, outputs)


def test_targets_of_a_unit_that_is_only_unusual(regression):
    X, y, *_ = regression
    expected = DSGRegressor(random_state=0, max_iter=3).fit(X, y).predict(X)
    for scale in (1e140, 1e-140):
        model = DSGRegressor(random_state=0, max_iter=3).fit(X, y * scale)
        assert_allclose(model.predict(X) / scale, expected, atol=1e-8)


@pytest.mark.parametrize("scale", [1e-160, 1e160])
def test_rows_whose_products_are_no_floats(scale, regression):
    X, y, *_ = regression
    for cls in (EigenProRegressor, NystromRegressor, NytroRegressor):
        with pytest.raises(ValueError, match="X must be scaled: its largest entry"):
            cls("linear").fit(X * scale, y)


@pytest.mark.parametrize(
    "scale, dtype, message",
    [
        (1e-25, np.float32, "bandwidth .*e-25 is too small for float32: pass float64"),
        (
            1e25,
            np.float32,
            "the rows of X, up to inf away from .* too large for float32",
        ),
        (1e-160, np.float64, "X must be scaled: bandwidth='auto' found .*e-160"),
        (1e160, np.float64, r"X must be scaled: bandwidth='auto' found .*e\+160"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_rows_whose_squares_are_no_floats(scale, dtype, message, regression):
    X, y, *_ = regression
    for cls in (DSGRegressor, EigenProRegressor, NystromRegressor):
        with pytest.raises(ValueError, match=message):
            cls().fit((X * scale).astype(dtype), y)
    # float64 can represent the first two.
    if dtype == np.float32:
        model = NystromRegressor(random_state=0)
        expected = model.fit(X, y).predict(X)
        assert_allclose(model.fit(X * scale, y).predict(X * scale), expected, atol=1e-6)


def test_parameters_of_a_kernel_of_another_package(regression):
    X, y, *_ = regression
    model = NystromRegressor(RBF(1.0), n_centers=20, random_state=0)
    model.set_params(kernel__length_scale=2.0)
    expected = NystromRegressor(Gaussian(2.0), n_centers=20, random_state=0).fit(X, y)
    assert_allclose(model.fit(X, y).predict(X), expected.predict(X), rtol=1e-6)


def test_pivots_of_few_rows(regression):
    """They end once they span all rows: fewer rows than n_centers give a warning."""
    X, y, *_ = regression
    few = np.tile(X[:10], (3, 1))
    model = EigenProRegressor(n_centers=20, centers="rpcholesky", max_iter=2)
    with pytest.warns(UserWarning, match="more than the 10 distinct rows"):
        model.fit(few, np.tile(y[:10], 3))
    with pytest.raises(ValueError, match="n_centers must be at most 10, the number"):
        clone(model).partial_fit(few, np.tile(y[:10], 3))


def test_the_penalty_counts_however_many_centers_are_asked_for(regression):
    X, y, *_ = regression
    X = X[:100].astype(np.float32)
    models = [
        NystromRegressor(n_centers=n, alpha=5e-8, random_state=0) for n in (100, 10_000)
    ]
    models[0].fit(X, y[:100])
    with pytest.warns(UserWarning, match="all 100 are centers"):
        models[1].fit(X, y[:100])
    assert models[0].dual_coef_.dtype == models[1].dual_coef_.dtype
    double = clone(models[0]).fit(X.astype(np.float64), y[:100]).predict(X)
    for model in models:
        assert_allclose(model.predict(X), double, atol=1e-3 * y.std())


def test_falkon_on_rows_that_are_equal(regression):
    X, y, *_ = regression
    X, y = np.tile(X[:60], (2, 1)), np.tile(y[:60], 2)
    with pytest.warns(UserWarning, match="all 60 are centers"):
        model = FalkonLikeRegressor(n_centers=200, random_state=0).fit(X, y)
    assert model.centers_.shape[0] == 60
