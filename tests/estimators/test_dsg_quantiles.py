"""Conditional quantiles of DSGRegressor: optimality, coverage, several at once."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from sklearn import config_context
from sklearn.base import clone
from sklearn.callback import ScoringMonitor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import QuantileRegressor
from sklearn.metrics import d2_pinball_score, mean_pinball_loss
from sklearn.model_selection import cross_val_score

from eigenkern import DSGRegressor
from eigenkern.arrays.array import to_numpy
from eigenkern.losses import Pinball
from eigenkern.operators.waves import FourierBlocks

QUANTILES = (0.1, 0.5, 0.9)
few_rows = pytest.mark.filterwarnings("ignore:the quantile .* is corrected on")


def made(**parameters):
    options = {"loss": "pinball", "alpha": 1e-6, "random_state": 0}
    return DSGRegressor(**(options | parameters))


def pinball(y, f, quantile):
    return mean_pinball_loss(y, f, alpha=quantile)


@pytest.fixture
def noisy(rng):
    """Rows with noise that grows along a feature, and the true quantiles."""
    X = rng.standard_normal((4000, 2))
    scale = 0.2 + 0.5 * np.abs(X[:, 1])
    y = np.sin(2 * X[:, 0]) + scale * rng.standard_exponential(4000)

    def truth(quantile):
        return np.sin(2 * X[:, 0]) - scale * np.log(1 - quantile)

    return X, y, truth


@pytest.mark.parametrize("quantile", QUANTILES)
def test_model_minimises_the_objective_of_the_kernel(quantile, rng):
    """Smooth loss and penalty in the exact kernel, by L-BFGS."""
    X = rng.standard_normal((80, 2))
    y = np.sin(2 * X[:, 0]) + 0.5 * rng.standard_normal(80)
    alpha = 1e-2
    options = {"bandwidth": 1.0, "block_size": 64, "max_iter": 30, "tol": 0.0}
    model = made(kernel="gaussian", quantile=quantile, alpha=alpha, **options)
    model.fit(X, y)
    unit, h = float(model.target_scale_[0]), Pinball.width
    K = np.exp(-cdist(X, X, "sqeuclidean") / 2)

    def loss(r):
        sharp = np.maximum(quantile * r, (quantile - 1) * r)
        return np.mean(sharp + np.maximum(h - np.abs(r), 0) ** 2 / (4 * h))

    values, vectors = np.linalg.eigh(K)
    root = vectors * np.sqrt(np.maximum(values, 0))

    def exact(alpha):
        def objective(parts):
            v, r = parts[:-1], y / unit - root @ parts[:-1] - parts[-1]
            slope = (0.5 - quantile - 0.5 * np.clip(r / h, -1, 1)) / 80
            value = 0.5 * alpha * v @ v + loss(r)
            return value, np.append(alpha * v + root.T @ slope, slope.sum())

        options = {"maxiter": 1000, "ftol": 1e-13, "gtol": 1e-8}
        start = np.zeros(81)
        best = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
        return unit * (root @ best.x[:-1] + best.x[-1])

    def distance(f):
        return np.sqrt(np.mean((model.predict(X) - f) ** 2)) / unit

    assert distance(exact(alpha)) < 0.03
    # This is sensitive to the penalty and the quantile.
    for other in (0.5 * alpha, 2 * alpha):
        assert distance(exact(other)) > 0.04
    assert distance(exact(alpha) + 0.1 * unit) > 0.04


@pytest.mark.parametrize("quantile", QUANTILES)
def test_few_features_are_quantile_regression_on_them(quantile, rng):
    """Sharp loss without penalty, by linear programming on the model's features."""
    X = rng.standard_normal((300, 2))
    y = np.sin(2 * X[:, 0]) + 0.5 * rng.standard_normal(300)
    options = {"max_features": 4, "block_size": 4, "max_iter": 60, "tol": 0.0}
    model = made(kernel="gaussian", bandwidth=0.5, alpha=0.0, quantile=quantile)
    model.set_params(**options).fit(X, y)
    blocks = FourierBlocks(
        model.kernel_, model.seed_, 4, X[:1], model.offset_, cache_bytes=0.0
    )
    features = blocks.product(X, [0], [np.eye(8)], 8)
    exact = QuantileRegressor(quantile=quantile, alpha=0.0).fit(features, y)
    ours = pinball(y, model.predict(X), quantile)
    best = pinball(y, exact.predict(features), quantile)
    assert best <= ours < 1.01 * best
    constant = pinball(y, np.full(300, np.quantile(y, quantile)), quantile)
    assert best < 0.9 * constant


def test_no_features_are_the_empirical_quantiles(rng):
    """The penalty does not act on the constant."""
    X, y = rng.standard_normal((500, 3)), rng.standard_exponential(500)
    w = np.where(y > 1, 3.0, 1.0)
    model = made(quantile=QUANTILES, alpha=1e4, max_iter=5)
    expected = np.quantile(y, QUANTILES, weights=w, method="inverted_cdf")
    with pytest.warns(ConvergenceWarning, match="learned nothing"):
        predicted = model.fit(X, y, sample_weight=w).predict(X)
    assert_allclose(predicted, np.tile(expected, (500, 1)), atol=0.03)
    # Rows with large weights lie above.
    assert (np.quantile(y, QUANTILES) < expected - [0.08, 0.5, 0.6]).all()


def test_coverage_of_new_rows(noisy):
    X, y, truth = noisy
    model = made(quantile=QUANTILES, early_stopping=True, bandwidth=2.0)
    model.fit(X[:1500], y[:1500])
    predicted = model.predict(X[1500:])
    coverage = (y[1500:, None] <= predicted).mean(axis=0)
    assert_allclose(coverage, QUANTILES, atol=0.04)
    for column, q in zip(predicted.T, QUANTILES, strict=True):
        best = pinball(y[1500:], truth(q)[1500:], q)
        assert pinball(y[1500:], column, q) < 1.15 * best


@few_rows
@pytest.mark.filterwarnings("ignore:DSGRegressor learned nothing")  # from 19 rows
def test_rows_are_held_out_by_default(regression):
    X, y, *_ = regression
    model = DSGRegressor(loss="pinball", max_iter=2, random_state=0).fit(X, y)
    same = made(early_stopping=True, max_iter=2).fit(X, y)
    assert len(model.validation_scores_) == 2
    assert_array_equal(model.predict(X), same.predict(X))
    for quantile, n, expected in (
        (0.5, 19, False),
        (0.5, 20, True),
        (0.9, 99, False),
        (0.9, 100, True),
    ):
        model = made(alpha="auto", quantile=quantile, max_iter=2)
        model.fit(X[:n], y[:n])
        assert (model.validation_scores_ is not None) == expected


def test_held_out_rows_are_covered(noisy):
    """After the last step, the quantile of the held-out residuals is zero."""
    X, y, _ = (part[:300] if isinstance(part, np.ndarray) else part for part in noisy)
    w = np.linspace(0.5, 1.5, 300)
    held_out = np.arange(0, 300, 3)
    train = np.setdiff1d(np.arange(300), held_out)
    model = made(quantile=QUANTILES, early_stopping=True, max_iter=10)
    given = {"X_val": X[held_out], "y_val": y[held_out]}
    model.fit(X[train], y[train], w[train], **given, sample_weight_val=w[held_out])
    residuals = y[held_out, None] - model.predict(X[held_out])
    zero = np.quantile(
        residuals, QUANTILES, axis=0, weights=w[held_out], method="inverted_cdf"
    )
    assert_allclose(np.diag(zero), 0, atol=1e-9)
    predicted = model.predict(X[held_out])
    scores = [
        d2_pinball_score(y[held_out], f, alpha=q, sample_weight=w[held_out])
        for f, q in zip(predicted.T, QUANTILES, strict=True)
    ]
    assert np.mean(scores) >= max(model.validation_scores_)


def test_several_quantiles_do_not_cross_and_keep_their_order(regression):
    X, y, X_test, _ = regression
    levels = [0.5, 0.45, 0.55, 0.45, 0.05]
    model = made(quantile=levels, max_iter=5).fit(X, y)
    predicted = model.predict(X_test)
    assert predicted.shape == (40, 5)
    order = np.argsort(levels, kind="stable")
    assert (np.diff(predicted[:, order], axis=1) >= 0).all()
    values = (model._expand(X_test) + model.intercept_)[:, order]
    assert (np.diff(values, axis=1) < 0).any()  # they would cross
    assert_array_equal(predicted[:, order], np.sort(values, axis=1))
    one = made(quantile=[0.5], max_iter=5).fit(X, y)
    assert one.predict(X_test).shape == (40, 1)
    scalar = made(quantile=0.5, max_iter=5).fit(X, y).predict(X_test)
    assert_array_equal(one.predict(X_test)[:, 0], scalar)


def test_quantiles_together_are_those_alone(regression):
    X, y, X_test, _ = regression
    together = made(quantile=np.array(QUANTILES), max_iter=5).fit(X, y)
    predicted = together._expand(X_test) + together.intercept_
    for column, q in zip(predicted.T, QUANTILES, strict=True):
        alone = made(quantile=q, max_iter=5).fit(X, y)
        assert_allclose(alone.predict(X_test), column, atol=1e-9)


@few_rows
def test_one_quantile_of_several_outputs(regression):
    X, y, X_test, _ = regression
    Y = np.column_stack([y, 1e3 * y - 7])
    model = made(quantile=0.8, max_iter=5, early_stopping=True).fit(X, Y)
    predicted = model.predict(X_test)
    assert_allclose(predicted[:, 1], 1e3 * predicted[:, 0] - 7, rtol=1e-6)
    one = made(quantile=0.8, max_iter=5, early_stopping=True).fit(X, y)
    assert_allclose(predicted[:, 0], one.predict(X_test), atol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_units_and_signs_of_the_targets(dtype, regression):
    X, y, X_test, _ = regression
    X, X_test = X.astype(dtype), X_test.astype(dtype)
    model = made(quantile=(0.2, 0.7), max_iter=5)
    plain = clone(model).fit(X, y).predict(X_test)
    rtol = 1e-3 if dtype == "float32" else 1e-6
    moved = clone(model).fit(X, 1e6 * y - 3e6).predict(X_test)
    assert_allclose(moved, 1e6 * plain - 3e6, atol=1e6 * rtol)
    mirrored = made(quantile=(0.8, 0.3), max_iter=5).fit(X, -y).predict(X_test)
    # From the other side, the quantile of 160 rows is another of these rows.
    assert_allclose(-mirrored, plain, atol=0.05)


@few_rows
def test_equal_targets_are_predicted(regression):
    X = regression[0]
    for early_stopping in (False, True):
        model = made(quantile=QUANTILES, early_stopping=early_stopping)
        assert_allclose(model.fit(X, np.full(len(X), 7.0)).predict(X), 7.0)


def test_weights_are_repetitions_or_none(regression):
    X, y, X_test, _ = regression
    model = made(quantile=0.9, bandwidth=2.0, alpha=0.1, max_iter=60, tol=0.0)
    weights = np.ones(len(y))
    weights[100:] = 0
    spoilt = np.where(weights > 0, y, 1e6)
    weighted = clone(model).fit(X, spoilt, sample_weight=weights).predict(X_test)
    half = clone(model).fit(X[:100], y[:100]).predict(X_test)
    assert_allclose(weighted, half, atol=1e-9)
    counts = 1 + np.arange(160) % 3
    copies = clone(model).fit(np.repeat(X, counts, axis=0), np.repeat(y, counts))
    counted = clone(model).fit(X, y, sample_weight=counts).predict(X_test)
    assert_allclose(counted, copies.predict(X_test), atol=0.02)
    plain = clone(model).fit(X, y).predict(X_test)
    assert np.abs(counted - plain).max() > 0.04  # they count
    equal = clone(model).fit(X, y, sample_weight=np.full(160, 2.0)).predict(X_test)
    assert_allclose(equal, plain, atol=1e-9)


def test_streams_of_quantiles(noisy):
    X, y, _ = noisy
    model = made(quantile=QUANTILES, max_features=512, bandwidth=1.0, batch_size=50)
    for start in range(0, 3000, 500):
        model.partial_fit(X[start : start + 500], y[start : start + 500])
    model = pickle.loads(pickle.dumps(model))
    predicted = model.predict(X[3000:])
    coverage = (y[3000:, None] <= predicted).mean(axis=0)
    assert_allclose(coverage, QUANTILES, atol=0.06)
    for column, q in zip(predicted.T, QUANTILES, strict=True):
        constant = pinball(y[3000:], np.full(1000, np.quantile(y[:3000], q)), q)
        assert pinball(y[3000:], column, q) < 0.95 * constant
    for other in ({"quantile": 0.5}, {"quantile": (0.1, 0.5)}, {"loss": "huber"}):
        with pytest.raises(ValueError, match="must be those of the first call"):
            clone(model).partial_fit(X, y).set_params(**other).partial_fit(X, y)


def test_other_losses_ignore_the_quantile(regression):
    X, y, X_test, _ = regression
    plain = DSGRegressor(max_iter=3, random_state=0).fit(X, y)
    other = clone(plain).set_params(quantile=(0.1, 0.9)).fit(X, y)
    assert_array_equal(plain.predict(X_test), other.predict(X_test))


@few_rows
def test_other_array_libraries(regression, other_xp):
    X, y, X_test, _ = regression
    model = made(quantile=(0.9, 0.1), max_iter=3, early_stopping=True)
    expected = clone(model).fit(X, y).predict(X_test)
    with config_context(array_api_dispatch=True):
        X, y, X_test = (other_xp.asarray(part) for part in (X, y, X_test))
        predicted = clone(model).fit(X, y).predict(X_test)
    assert_allclose(to_numpy(predicted), expected, atol=1e-8)


def test_callbacks_predict_quantiles(regression):
    X, y, *_ = regression
    monitor = ScoringMonitor(scoring="neg_mean_absolute_error")
    made(max_iter=2).set_callbacks(monitor).fit(X, y)
    log = [row for row in monitor.get_logs().data if row["task_name"] == "epoch"]
    for n_epochs, row in enumerate(log, 1):
        model = made(max_iter=n_epochs).fit(X, y)
        error = np.abs(model.predict(X) - y).mean()
        assert row["neg_mean_absolute_error"] == pytest.approx(-error)


BAD = [
    (0.0, "quantile must be a number > 0 and < 1; got 0.0"),
    (1, "quantile must be a number > 0 and < 1; got 1"),
    (np.nan, "quantile must be a number > 0 and < 1; got nan"),
    ("half", "quantile must be a number > 0 and < 1; got 'half'"),
    (None, "quantile must be a number > 0 and < 1; got None"),
    (True, "quantile must be a number > 0 and < 1; got True"),
    ([0.1, 1.5], "quantile must be a number > 0 and < 1; got 1.5"),
    ([], r"quantile must be a number, or a sequence of at least one; got \[\]"),
    (np.full((2, 2), 0.5), "quantile must be a number, or a sequence"),
]


@pytest.mark.parametrize("quantile, message", BAD)
def test_bad_quantiles(quantile, message, regression):
    for method in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match=message):
            getattr(made(quantile=quantile), method)(*regression[:2])


def test_several_quantiles_need_one_dimensional_targets(regression):
    X, y, *_ = regression
    model = made(quantile=QUANTILES)
    for Y in (y[:, None], np.column_stack([y, y])):
        with pytest.raises(ValueError, match="y must be one-dimensional where quant"):
            model.fit(X, Y)


def test_the_score_of_several_quantiles_is_the_mean_of_theirs(regression, rng):
    X, y, *_ = regression
    model, weights = made(quantile=QUANTILES).fit(X, y), rng.uniform(size=len(y))
    expected = [
        d2_pinball_score(y, column, sample_weight=weights, alpha=q)
        for q, column in zip(QUANTILES, model.predict(X).T, strict=True)
    ]
    found = model.score(X, y, sample_weight=weights)
    assert found == pytest.approx(np.mean(expected), rel=1e-12)
    assert np.isfinite(cross_val_score(model, X, y, cv=2)).all()


def test_few_held_out_rows_are_told(regression):
    X, y, *_ = regression
    assert len(X) < 400
    model = DSGRegressor(loss="pinball", quantile=[0.5, 0.95], max_iter=2)
    message = r"the quantile 0.95 is corrected on 0 held-out rows; .*=0.33, or more"
    with pytest.warns(UserWarning, match=message):
        model.fit(X, y)
    message = r"the quantile 0.9 is corrected on 16 held-out rows, to within 0.075 or"
    with pytest.warns(UserWarning, match=message):
        model.set_params(quantile=0.9).fit(X, y)
    model.set_params(quantile=[0.5, 0.95])
    model.set_params(validation_fraction=0.34).fit(X, y)  # as many as may be
    model.set_params(quantile=0.5, validation_fraction=0.1).fit(X, y)
    model.set_params(quantile=[0.05, 0.5], early_stopping=True)
    model.fit(X, y, X_val=X, y_val=y)
