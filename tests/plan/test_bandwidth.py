"""bandwidth="auto": errors of rows left out, and what they choose."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import average_precision_score
from sklearn.preprocessing import StandardScaler

from eigenkern import (
    DSGClassifier,
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeRegressor,
    NystromClassifier,
    NystromRegressor,
    NytroRegressor,
    RandomFourierFeatures,
    RBFNetworkFeatures,
)
from eigenkern.centers import distinct_rows
from eigenkern.kernels import Gaussian
from eigenkern.plan.bandwidth_choice import (
    _sample_of_rare_classes,
    auto_bandwidth,
    n_fitted_and_judges,
)
from eigenkern.plan.penalty import least_errors
from eigenkern.problems.kernel_parameters import make_kernel

MODELS = [
    EigenProRegressor(),
    EigenProRegressor(n_centers=50),
    EigenProRegressor(early_stopping=True),
    NystromRegressor(),
    NystromRegressor(alpha="path"),
    NytroRegressor(),
    FalkonLikeRegressor(),
    DSGRegressor(max_iter=2),
]


@pytest.fixture
def waves(rng):
    """A function with a much smaller scale than the median distance."""
    X = rng.uniform(-3, 3, (300, 1))
    return X, np.sin(8 * X[:, 0])


@pytest.fixture
def detail():
    """A kernel, rows, and a function of which 300 rows see little."""
    X = np.random.default_rng(0).uniform(-3, 3, (2000, 3))
    return Gaussian(3.0), X, np.sin(3 * X[:, :1]) * np.sin(3 * X[:, 1:2]), None


def seed():
    return np.random.RandomState(0)


PENALTIES = 10.0 ** np.arange(-12, 4.5, 0.5)


def left_out(K, Y, w, penalty):
    """Return the weighted squared errors of rows in fits to the other rows, (m,)."""
    squares = np.empty(len(K))
    for i in range(len(K)):
        others = np.arange(len(K)) != i
        A = K[np.ix_(others, others)] + penalty * np.diag(1 / w[others])
        residual = Y[i] - K[i, others] @ np.linalg.solve(A, Y[others])
        squares[i] = w[i] * np.sum(residual**2)
    return squares


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("noise", [0.1, 3.0])
def test_errors_are_those_of_fits_to_the_other_rows(n_outputs, noise, rng):
    X, w = rng.standard_normal((25, 3)), rng.uniform(0.1, 3.0, 25)
    Y = X @ rng.standard_normal((3, n_outputs))
    Y += noise * rng.standard_normal((25, n_outputs))
    w /= w.mean()
    K = np.exp(-cdist(X, X))
    errors = [left_out(K, Y, w, penalty) for penalty in PENALTIES[4:]]
    expected = errors[np.argmin(np.sum(errors, axis=1))]
    assert_allclose(least_errors(K, Y, w), expected, rtol=1e-6, atol=1e-9)


def test_an_indefinite_matrix_has_no_errors():
    assert np.all(least_errors(-np.eye(3), np.ones((3, 1)), np.ones(3)) == np.inf)


@pytest.mark.parametrize("noise", [0.0, 0.3, 3.0])
def test_the_best_of_the_grid_is_chosen(noise, waves, rng):
    X, y = waves
    y = y + noise * rng.standard_normal(300)
    median = make_kernel("gaussian", "median", X, seed()).bandwidth
    factors = np.array([1 / 4, 1 / 2, 1, 2, 4, 8, 16])
    errors = []
    for factor in factors:
        K = np.exp(-cdist(X, X, "sqeuclidean") / (2 * (factor * median) ** 2))
        Y = y[:, None] - y.mean()
        # Rows left out: the residual is that of all rows over the diagonal of the rest.
        inverses = [np.linalg.inv(K + c * np.eye(300)) for c in PENALTIES[4:]]
        squares = [(A @ Y)[:, 0] ** 2 / np.diagonal(A) ** 2 for A in inverses]
        errors.append(squares[np.argmin(np.mean(squares, axis=1))])
    best = errors[np.argmin(np.mean(errors, axis=1))]
    above = [np.mean(e - best) / max(np.std(e - best), 1e-300) for e in errors]
    close = factors[np.array(above) <= 1 / 300**0.5]
    expected = close[np.argmin(np.abs(np.log(close)))] * median
    chosen = make_kernel("gaussian", "auto", X, seed(), y[:, None])
    assert_allclose(chosen.bandwidth, expected)


def least(squares):
    """Return the place of the penalty with the least error."""
    return np.argmin(np.mean(squares, axis=1))


def nearest(factors, squares, means):
    """Return the factor nearest to 1 that is within a standard error of the best."""
    above = np.array(squares) - squares[np.argmin(means)]
    noise = above.std(axis=1) / above.shape[1] ** 0.5
    close = factors[np.array(means) - np.min(means) <= noise]
    return close[np.argmin(np.abs(np.log(close)))]


def many_rows(rng):
    """Return X, y, weights; and distinct rows in the order of the choice."""
    X, w = rng.uniform(-3, 3, (1600, 2)), rng.uniform(0.5, 2.0, 1600)
    y = np.sin(3 * X[:, 0]) + X[:, 1] + 0.3 * rng.standard_normal(1600)
    order = distinct_rows(X)[0]
    return X, y, w, X[order], (y - np.average(y, weights=w))[order], w[order] / w.mean()


def test_a_fifth_of_many_rows_is_fitted_and_others_judge(rng):
    X, y, w, Z, T, v = many_rows(rng)
    factors, errors, means = 2.0 ** np.arange(-2, 5), [], []
    judges = slice(320, 960)
    for factor in factors:
        K, squares = Gaussian(2.0 * factor)(Z, Z[:320]), {}
        for s in (160, 320):
            A = [K[:s, :s] + c * np.diag(1 / v[:s]) for c in PENALTIES]
            a = [np.linalg.solve(A_c, T[:s]) for A_c in A]
            values = [K[judges, :s] @ a_c for a_c in a]
            squares[s] = [v[judges] * (T[judges] - f) ** 2 for f in values]
        best = least(squares[160])
        before, errors_of_all = squares[160][best], squares[320]
        little = before.mean() > 0.5 * np.mean(v[judges] * T[judges] ** 2)
        errors.append(errors_of_all[least(errors_of_all) if little else best])
        means.append(errors[-1].mean())
    expected = 2.0 * nearest(factors, errors, means)
    assert auto_bandwidth(Gaussian(2.0), X, y[:, None], w, seed()) == expected < 2.0


def test_a_model_on_few_centers_is_like_one_of_twice_as_many_rows(detail):
    fitted = [n_fitted_and_judges(1600, p)[0] for p in (None, 1000, 800, 700)]
    assert fitted == [320, 320, 320, 0]
    assert n_fitted_and_judges(10**6, 2500) == (1000, 2000)
    many, few = (auto_bandwidth(*detail, seed(), n_centers=p) for p in (1000, 100))
    assert many < few


@pytest.mark.parametrize("n_centers", [None, 1000])
def test_copies_of_many_rows_are_weights(n_centers, rng):
    X = rng.uniform(-3, 3, (1600, 1))
    Y, weights = np.sin(8 * X), np.full(1600, 2.0)
    options = {"n_centers": n_centers}
    expected = auto_bandwidth(Gaussian(3.0), X, Y, weights, seed(), **options)
    copied = np.tile(X, (2, 1)), np.tile(Y, (2, 1))
    assert expected != 3.0
    assert auto_bandwidth(Gaussian(3.0), *copied, None, seed(), **options) == expected


@pytest.mark.parametrize("n", [1000, 2500])
def test_a_given_alpha_is_that_of_all_rows(n):
    """The chosen one has the same bandwidth if it is given."""
    X, y = make_friedman1(n, noise=1.0, random_state=0)
    X = StandardScaler().fit_transform(X)
    model = EigenProRegressor("gaussian", random_state=0).fit(X, y)
    again = EigenProRegressor("gaussian", alpha=model.alpha_, random_state=0)
    assert again.fit(X, y).bandwidth_ == model.bandwidth_


def test_more_rows_see_finer_detail(detail):
    kernel, X, Y, _ = detail
    few = auto_bandwidth(kernel, X[:300], Y[:300], None, seed())
    assert auto_bandwidth(*detail, seed()) < few


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_estimators_take_it(model, waves):
    X, y = waves
    model.set_params(kernel="gaussian", bandwidth="median", random_state=0)
    median = model.fit(X, y).bandwidth_
    model.set_params(bandwidth="auto")
    chosen = model.fit(X, y).bandwidth_
    assert chosen < 0.6 * median
    assert model.fit(X, y).bandwidth_ == chosen == model.kernel_.bandwidth


def test_the_units_change_nothing(waves):
    X, y = waves
    kernel = Gaussian(3.0)
    expected = auto_bandwidth(kernel, X, y[:, None], None, seed())
    assert expected != 3.0
    # Powers of two scale floats exactly.
    Y = 2.0**600 * y[:, None]
    assert auto_bandwidth(kernel, X, Y, None, seed()) == expected
    wide = Gaussian(3.0 * 2**40)
    found = auto_bandwidth(wide, 2.0**40 * X, y[:, None], None, seed())
    assert found == 2.0**40 * expected


def test_copies_of_rows_are_weights(waves):
    X, Y = waves[0][:100], waves[1][:100, None]
    n_copies = np.arange(100) % 3 + 1
    copied = np.repeat(X, n_copies, axis=0), np.repeat(Y, n_copies, axis=0)
    expected = auto_bandwidth(Gaussian(2.0), X, Y, 1.0 * n_copies, seed())
    assert expected != 2.0
    assert auto_bandwidth(Gaussian(2.0), *copied, None, seed()) == expected


@pytest.mark.parametrize("cls", [EigenProRegressor, NystromRegressor, DSGRegressor])
def test_rows_without_weight_are_no_rows(cls, waves):
    X, y = waves
    w = np.ones(300)
    w[:60], y[:60] = 0.0, 1e6
    model = cls("gaussian", bandwidth="auto", random_state=0)
    weighted = model.fit(X, y, sample_weight=w).bandwidth_
    assert weighted == model.fit(X[60:], y[60:]).bandwidth_


@pytest.mark.filterwarnings("ignore:EigenProClassifier learned nothing")  # so wide
@pytest.mark.filterwarnings("ignore:.* learned nothing")  # with the median
def test_classes(rng):
    angle = rng.uniform(0, 2 * np.pi, 400)
    X = np.column_stack([np.cos(angle), np.sin(angle)])
    y = np.array(["a", "b", "c"])[(angle * 12 / np.pi).astype(int) % 3]
    for cls in (EigenProClassifier, NystromClassifier):
        model = cls("gaussian", bandwidth="median", random_state=0).fit(X, y)
        auto = cls("gaussian", random_state=0).fit(X, y)
        assert auto.bandwidth_ < 0.3 * model.bandwidth_


@pytest.mark.parametrize("alpha", [1e-6, 1e-3, 1e-1])
def test_a_given_penalty_is_that_of_the_choice(alpha, rng):
    X = rng.standard_normal((60, 2))
    y = X[:, 0] + 0.3 * rng.standard_normal(60)
    w = rng.integers(1, 4, 60).astype(float)
    Y, factors = y - np.average(y, weights=w), 2.0 ** np.arange(-2, 5)
    errors = np.zeros((len(factors), 60))
    for k, factor in enumerate(factors):
        K = Gaussian(factor)(X)
        A = K + 60 * alpha * np.diag(w.mean() / w)
        for i in range(60):
            rest = np.arange(60) != i
            a = np.linalg.solve(A[np.ix_(rest, rest)], Y[rest])
            errors[k, i] = w[i] * (Y[i] - K[i, rest] @ a) ** 2
    above = errors - errors[errors.mean(axis=1).argmin()]
    close = factors[above.mean(axis=1) <= above.std(axis=1) / 60**0.5]
    expected = close[np.abs(np.log(close)).argmin()]
    assert auto_bandwidth(Gaussian(1.0), X, y[:, None], w, seed(), alpha) == expected
    for model in (EigenProRegressor(), NystromRegressor(), FalkonLikeRegressor()):
        model.set_params(kernel="gaussian", bandwidth="median")
        median = model.fit(X, y, sample_weight=w).bandwidth_
        model.set_params(bandwidth="auto", alpha=alpha)
        chosen = model.fit(X, y, sample_weight=w).bandwidth_
        kernel = Gaussian(median)
        assert chosen == auto_bandwidth(kernel, X, y[:, None], w, seed(), alpha)


@pytest.mark.parametrize("Y", [np.ones((50, 1)), np.zeros((50, 2))])
def test_constant_targets_leave_the_median(Y, rng):
    X = rng.standard_normal((50, 2))
    assert auto_bandwidth(Gaussian(1.5), X, Y, None, seed()) == 1.5


def test_few_rows_leave_the_median(waves):
    X, Y = waves[0][:19], waves[1][:19, None]
    assert auto_bandwidth(Gaussian(3.0), X, Y, None, seed()) == 3.0
    X, Y = (np.tile(values, (4, 1)) for values in (X, Y))
    assert auto_bandwidth(Gaussian(3.0), X, Y, None, seed()) == 3.0


@pytest.mark.parametrize("bandwidth", ["median", "auto"])
def test_equal_rows_have_any_bandwidth(bandwidth):
    model = EigenProRegressor(bandwidth=bandwidth)
    with pytest.warns(ConvergenceWarning, match="all rows of X with weight are equal"):
        model.fit(np.ones((30, 2)), np.arange(30.0))
    assert model.bandwidth_ == 1.0
    assert_allclose(model.predict(np.zeros((2, 2))), 14.5)


def test_copies_do_not_hide_the_median_distance():
    """Nor if all rows of the subsample are equal."""
    X = np.zeros((5000, 2))
    X[7] = 3.0, 4.0
    for seed in range(5):
        made = make_kernel("gaussian", "median", X, np.random.RandomState(seed))
        assert made.bandwidth == 5.0


def test_bandwidths_too_narrow_for_the_data_type_are_left_out(rng):
    X = rng.standard_normal((40, 2)).astype(np.float32)
    X[0] = 1e14
    found = auto_bandwidth(Gaussian(1e-5), X, X[:, :1], None, seed())
    assert np.isfinite(found) and found > 0


@pytest.mark.parametrize("cls", [RandomFourierFeatures, RBFNetworkFeatures])
def test_transformers_have_no_targets(cls):
    with pytest.raises(ValueError, match=r"bandwidth must be .*'auto' needs targets"):
        cls(bandwidth="auto").fit(np.eye(3))


def test_kernels_without_a_bandwidth_of_the_estimator(waves):
    X, y = waves
    model = EigenProRegressor(Gaussian(0.7), bandwidth="auto").fit(X, y)
    assert model.bandwidth_ == 0.7
    for kernel in ("linear", lambda X, Z: X @ Z.T + 1.0):
        model = NystromRegressor(kernel, bandwidth="auto", alpha=0.1).fit(X, y)
        assert model.bandwidth_ is None
    model = EigenProRegressor("precomputed", bandwidth="auto").fit(Gaussian()(X), y)
    assert model.bandwidth_ is None


def test_array_libraries_choose_the_same(waves, other_xp):
    X, y = waves
    X = np.vstack([X + i for i in range(4)])  # more than the subsample
    Y = np.tile(y, 4)[:, None]
    expected = auto_bandwidth(Gaussian(3.0), X, Y, None, seed())
    found = auto_bandwidth(Gaussian(3.0), other_xp.asarray(X), Y, None, seed())
    assert expected == found < 3.0


@pytest.mark.parametrize("kernel", ["gaussian", "matern52", "cauchy"])
def test_epochs_in_single_precision_get_no_long_bandwidth(kernel, rng):
    """They would resolve nothing: K is nearly constant, and float32 has 7 digits."""
    X = rng.standard_normal((2500, 3))
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2]
    X, T, y, t = X[:2000], X[2000:], y[:2000], y[2000:]
    options = {"algorithm": "eigenpro2", "random_state": 0, "max_iter": 10}
    scores = [
        EigenProRegressor(kernel, bandwidth=bandwidth, **options)
        .fit(X.astype("float32"), y)
        .score(T.astype("float32"), t)
        for bandwidth in ("median", "auto")
    ]
    assert 1 - scores[1] < 1.3 * (1 - scores[0])
    solved = EigenProRegressor(kernel, random_state=0)
    bandwidths = [solved.fit(A, y).bandwidth_ for A in (X, X.astype("float32"))]
    assert bandwidths[0] == pytest.approx(bandwidths[1], rel=1e-5)


def test_rare_classes_are_seen(rng):
    """Of 5000 rows 50 are of the class 1; their weights make up for a larger share."""
    targets = np.where(np.arange(5000) % 100 == 0, 1.0, -1.0)[:, None]
    rows, more = _sample_of_rare_classes(targets, 1000, seed())
    assert len(rows) == len(np.unique(rows)) == 600
    rare = targets[rows, 0] > 0
    assert rare.sum() == 50
    assert_allclose([more[rare].sum(), more[~rare].sum()], [50, 4950])
    # Neither few rows, nor classes that are all small, nor large ones.
    assert _sample_of_rare_classes(targets[:600], 300, seed()) is None
    assert (
        _sample_of_rare_classes(np.eye(500)[np.arange(5000) % 500], 1000, seed())
        is None
    )
    assert _sample_of_rare_classes(np.eye(2)[np.arange(5000) % 2], 1000, seed()) is None


@pytest.mark.parametrize("class_weight", [None, "balanced", {0: 1.0, 1: 30.0}])
@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_rare_classes_are_found(kernel, class_weight):
    """Weights of classes move the decision; they say nothing of the noise."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((7000, 4))
    y = (np.linalg.norm(X - [1.0, 1.0, 0.0, 0.0], axis=1) < 0.6).astype(int)
    assert 0.005 < y.mean() < 0.015
    model = EigenProClassifier(kernel, class_weight=class_weight, random_state=0)
    model.fit(X[:3000], y[:3000])
    score = average_precision_score(y[3000:], model.decision_function(X[3000:]))
    assert score > 0.75
    P = model.predict_proba(X[3000:])[:, 1]
    assert P.mean() == pytest.approx(y[3000:].mean(), rel=0.7)


@pytest.mark.filterwarnings("ignore:.*column . of X holds")  # that is the outlier
@pytest.mark.parametrize("options", [{}, {"n_centers": 200}, {"early_stopping": True}])
@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_rare_classes_with_copies_and_both_precisions(class_weight, options):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((1500, 3)).astype(np.float32)
    y = (X[:, 0] > 2.0).astype(int)
    X[0] = 1e4  # an outlier
    model = EigenProClassifier(class_weight=class_weight, random_state=0, **options)
    expected = clone(model).fit(X, y, np.full(1500, 2.0)).decision_function(X[1:])
    copied = clone(model).fit(np.tile(X, (2, 1)), np.tile(y, 2))
    if "early_stopping" not in options:  # as many rows are held out of twice as many
        assert_allclose(copied.decision_function(X[1:]), expected, atol=1e-4)
    double = clone(model).fit(X.astype(float), y).decision_function(X[1:])
    single = clone(model).fit(X, y).decision_function(X[1:])
    assert np.mean(np.abs(single - double)) < 0.01  # epochs in both precisions
    assert average_precision_score(y[1:], copied.decision_function(X[1:])) > 0.8


@pytest.mark.parametrize("cls", [EigenProClassifier, NystromClassifier, DSGClassifier])
def test_a_class_that_costs_nothing(cls, rng):
    X, y = rng.standard_normal((60, 3)), np.arange(60) % 2
    model = cls(class_weight={0: 0.0, 1: 1.0}, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.all(model.fit(X, y).predict(X) == 1)


@pytest.mark.parametrize("model", [NystromRegressor, FalkonLikeRegressor])
def test_without_a_penalty_the_bandwidth_suits_none(model):
    """Chosen for the best penalty, R^2 was -2e4 to -2e5."""
    rng, n = np.random.default_rng(0), 500
    X = rng.standard_normal((n + 1000, 4))
    y = np.sin(1.5 * X[:, 0]) + X[:, 1] + 0.2 * rng.standard_normal(len(X))
    found = model("gaussian", alpha=0.0, random_state=0).fit(X[:n], y[:n])
    assert found.score(X[n:], y[n:]) > 0.5
    best = model("gaussian", random_state=0).fit(X[:n], y[:n])
    assert found.bandwidth_ != best.bandwidth_
    # Few centers regularize by themselves.
    few = model("gaussian", alpha=0.0, n_centers=100, random_state=0)
    assert few.fit(X[:n], y[:n]).score(X[n:], y[n:]) > 0.9
