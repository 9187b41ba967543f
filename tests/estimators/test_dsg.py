"""The DSG estimators: models, streams, sizes, bad input."""

import pickle
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from sklearn import config_context
from sklearn.base import clone
from sklearn.callback import ScoringMonitor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import HuberRegressor, LogisticRegression
from threadpoolctl import threadpool_limits

from eigenkern import DSGClassifier, DSGRegressor
from eigenkern.arrays.array import to_numpy
from eigenkern.kernels import Gaussian, Linear
from eigenkern.methods.state import State
from eigenkern.operators.waves import FourierBlocks
from eigenkern.plan.of_random_features import plan_of_random_features

ALGORITHMS = pytest.mark.parametrize("algorithm", ["dsg", "udsg", "cdsg"])


# Kernels as functions of u = |x - z| / bandwidth.
OF_DISTANCE = {
    "gaussian": lambda u: np.exp(-(u**2) / 2),
    "laplacian": lambda u: np.exp(-u),
    "cauchy": lambda u: 1 / (1 + u**2),
    "matern32": lambda u: (1 + np.sqrt(3) * u) * np.exp(-np.sqrt(3) * u),
}


@ALGORITHMS
@pytest.mark.parametrize("kernel", OF_DISTANCE)
def test_regression_is_kernel_ridge(algorithm, kernel, regression):
    X, y, X_test, _ = regression
    model = DSGRegressor(kernel, algorithm=algorithm, alpha=1e-3, random_state=0)
    model.fit(X, y)

    def error(alpha, bandwidth):
        """Return the root mean square of the distance from kernel ridge."""
        K = OF_DISTANCE[kernel](cdist(np.vstack([X, X_test]), X) / bandwidth)
        dual = np.linalg.solve(K[:160] + 160 * alpha * np.eye(160), y - y.mean())
        difference = model.predict(np.vstack([X, X_test])) - K @ dual - y.mean()
        return np.sqrt(np.mean(difference**2))

    assert error(1e-3, model.bandwidth_) < 0.02 * np.std(y)
    # This is sensitive to the penalty and the bandwidth.
    for alpha, factor in [(3e-4, 1), (3e-3, 1), (1e-3, 1.5), (1e-3, 0.67)]:
        assert error(alpha, factor * model.bandwidth_) > 0.02 * np.std(y)


def test_model_is_the_sum_over_blocks(regression):
    X, y, X_test, _ = regression
    model = DSGRegressor(random_state=0, max_iter=5).fit(X, y)
    assert_array_equal(np.diff(model.seeds_), 1)
    F = np.zeros((len(X_test), 1))
    for seed, A in zip(model.seeds_, model.coef_, strict=True):
        rng = np.random.Generator(np.random.Philox(key=int(seed)))
        W = model.kernel_.frequencies(rng, 3, model.block_size_)
        T = (X_test - model.offset_) @ W
        F += np.hstack([np.cos(T), np.sin(T)]) @ A / np.sqrt(model.block_size_)
    assert_allclose(model.predict(X_test), (F + model.intercept_)[:, 0], rtol=1e-9)
    shape = (model.n_blocks_, 2 * model.block_size_, 1)
    assert model.coef_.shape == shape
    assert model.n_features_used_ == model.n_blocks_ * model.block_size_
    in_turn = clone(model).set_params(n_old=1).fit(X, y)
    n_first = 8192 / model.block_size_
    new = np.maximum(np.round(n_first / np.arange(1, 160, 2)), 1).sum()
    assert (in_turn.n_iter_, in_turn.t_, in_turn.n_blocks_) == (5, 160, new)


@pytest.mark.parametrize("loss", ["log_loss", "hinge", "squared_error"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_losses_classify(loss, n_classes, three_classes):
    X, y = three_classes
    X, y = X[y < n_classes], y[y < n_classes]
    options = {"loss": loss, "max_iter": 30, "bandwidth": "median"}
    model = DSGClassifier(random_state=0, **options).fit(X, y)
    assert model.score(X, y) > LogisticRegression().fit(X, y).score(X, y) - 0.01
    assert model.coef_.shape[2] == (1 if n_classes == 2 else 3)
    assert hasattr(model, "predict_proba") == (loss == "log_loss")
    if loss == "log_loss":
        P = model.predict_proba(X)
        assert_allclose(P.sum(axis=1), 1)
        assert_array_equal(model.classes_[P.argmax(axis=1)], model.predict(X))
        assert model.loss_curve_[-1] < 0.8 * np.log(n_classes)
    else:
        with pytest.raises(AttributeError, match="predict_proba"):
            model.predict_proba(X)


@pytest.mark.parametrize("loss", ["huber", "epsilon_insensitive"])
def test_robust_losses_ignore_outliers(loss, regression, rng):
    X, y, X_test, y_test = regression
    spoilt = y.copy()
    spoilt[rng.choice(len(y), 12, replace=False)] += 30.0
    options = {"kernel": "gaussian", "alpha": 1e-3, "random_state": 0}
    robust = DSGRegressor(loss=loss, **options).fit(X, spoilt)
    square = DSGRegressor(**options).fit(X, spoilt)
    linear = HuberRegressor(max_iter=1000).fit(X, spoilt)
    assert robust.score(X_test, y_test) > 0.6
    assert robust.score(X_test, y_test) > linear.score(X_test, y_test) + 0.3
    assert square.score(X_test, y_test) < 0


@pytest.mark.parametrize("loss", ["squared_error", "huber", "epsilon_insensitive"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_units_of_the_targets_do_not_matter(loss, dtype, regression):
    X, y, X_test, _ = regression
    X, X_test = X.astype(dtype), X_test.astype(dtype)
    model = DSGRegressor(loss=loss, max_iter=5, random_state=0)
    plain = clone(model).fit(X, y)
    other = clone(model).fit(X, 1e6 * y - 3e6)
    rtol = 1e-3 if dtype == "float32" else 1e-6
    expected = 1e6 * plain.predict(X_test) - 3e6
    assert_allclose(other.predict(X_test), expected, atol=1e6 * rtol)
    assert_allclose(other.loss_curve_, plain.loss_curve_, rtol=rtol)


def test_offsets_of_the_rows_do_not_matter(regression):
    X, y, X_test, _ = (part.astype(np.float32) for part in regression)
    X, X_test = np.round(X, 2), np.round(X_test, 2)
    model = DSGRegressor(bandwidth=2.0, max_iter=5, random_state=0)
    plain = clone(model).fit(X, y).predict(X_test)
    moved = clone(model).fit(X + 1000, y).predict(X_test + 1000)
    assert_allclose(moved, plain, atol=0.02)


@ALGORITHMS
def test_fits_are_reproducible_and_independent_of_running_values(algorithm, regression):
    X, y, X_test, _ = regression
    options = {"block_size": 16, "batch_size": 40, "max_features": 1024}
    model = DSGRegressor(algorithm=algorithm, **options, max_iter=4, random_state=3)
    model.fit(X, y)
    again = clone(model).fit(X, y)
    assert_array_equal(model.predict(X_test), again.predict(X_test))
    assert model.cache_size_ > 0
    plain = clone(model).set_params(cache_size=0).fit(X, y)
    assert plain.cache_size_ == 0
    assert_allclose(model.predict(X_test), plain.predict(X_test), atol=1e-9)


def test_a_fit_obeys_its_plan(regression, monkeypatch):
    X, y, *_ = regression
    plans = []

    def other(*given, **options):
        plan = plan_of_random_features(*given, **options)
        chosen = {"block_size": 16, "n_passes": 3, "n_ridge_rows": 0, "kept": 0.0}
        plans.append(replace(plan, batch_size=40, chosen=plan.chosen | chosen))
        return plans[-1]

    place = "eigenkern.estimators.doubly_stochastic.plan_of_random_features"
    monkeypatch.setattr(place, other)
    model = DSGRegressor(max_iter=2, random_state=0).fit(X, y)
    assert len(plans) == 1
    assert (model.block_size_, model.batch_size_, model.t_) == (16, 40, 2 * 3 * 4)
    assert (model.alpha_, model.cache_size_) == (1e-6, 0.0)


@ALGORITHMS
def test_features_are_bounded(algorithm, regression):
    X, y, X_test, y_test = regression
    model = DSGRegressor(
        algorithm=algorithm, max_features=100, block_size=30, random_state=0
    )
    model.fit(X, y)
    assert (model.n_blocks_, model.n_features_used_) == (3, 90)
    assert model.score(X_test, y_test) > 0.5
    few = DSGRegressor(algorithm=algorithm, max_features=7, random_state=0).fit(X, y)
    assert few.n_features_used_ == few.block_size_ == 7


@ALGORITHMS
def test_pieces_of_one_batch_are_a_fit_in_that_order(algorithm, regression):
    X, y, X_test, _ = regression
    # The constant, the offset and the scale of the targets are those of any piece.
    order = np.argsort(y[:40])
    X, targets = np.tile(X[:40], (4, 1)), np.tile(y[:40], (4, 1))
    for k in range(1, 4):
        targets[k, order] = y[np.roll(order, k)]
    y = targets.ravel()
    options = {"batch_size": 40, "block_size": 16, "bandwidth": 2.0, "step_size": 1.0}
    model = DSGRegressor(algorithm=algorithm, cache_size=0, max_features=64, **options)
    # With all old blocks in each step, none are drawn: each piece has its own draws.
    model.set_params(n_old=4, random_state=0)
    whole = clone(model).partial_fit(X, y)
    pieces = clone(model).partial_fit(X[:40], y[:40])
    assert pieces.t_ == 1
    for start in range(40, 160, 40):
        pieces.partial_fit(X[start : start + 40], y[start : start + 40])
    assert (pieces.t_, pieces.n_iter_) == (whole.t_, 4)
    assert_array_equal(pieces.seeds_, whole.seeds_)
    assert_allclose(pieces.predict(X_test), whole.predict(X_test), atol=1e-9)
    other = clone(model).partial_fit(X, np.roll(y, -40))
    assert np.abs(other.predict(X_test) - whole.predict(X_test)).max() > 1e-3


@pytest.mark.parametrize("n_rows, part", [(40, 0.2), (160, 0.2), (4160, 1.0)])
def test_the_constant_steps_by_the_curvature_of_the_logistic_loss(
    n_rows, part, regression
):
    """Rows of class 1 are rare; in small batches the curvature is at least 10 / B."""
    X, y, _, _ = regression
    X, y = np.tile(X, (26, 1)), np.tile(y, 26)
    X, labels = X[:n_rows], (y > np.quantile(y, 0.9)).astype(int)[:n_rows]
    w = np.linspace(0.5, 1.5, n_rows)
    options = {"loss": "log_loss", "batch_size": n_rows, "block_size": 16}
    model = DSGClassifier(random_state=0, **options)
    model.partial_fit(X, labels, classes=[0, 1], sample_weight=w)
    again = pickle.loads(pickle.dumps(model)).partial_fit(X, labels, sample_weight=w)
    assert (model.t_, again.t_) == (1, 2)
    p = model.predict_proba(X)[:, 1]
    curvature = max(np.average(p * (1 - p), weights=w), min(10 / n_rows, 0.25))
    rate = part / curvature / (1 + 2 * again.step_decay_)
    before, after = (m.intercept_ + m.feature_mean_ for m in (model, again))
    step = rate * np.average(p - labels, weights=w)
    assert_allclose(after, before - step, rtol=1e-9)
    assert (p * (1 - p)).mean() < 0.2


def test_pieces_go_on_exactly(regression):
    X, y, _, _ = regression
    options = {"batch_size": 40, "block_size": 16, "algorithm": "dsg"}
    twice = DSGRegressor(random_state=0, **options).partial_fit(X[:80], y[:80])
    state = pickle.loads(pickle.dumps(twice))
    state.partial_fit(X[80:], y[80:])
    # By hand, from the attributes: two steps of 40 rows, each on 512 / t blocks.
    coef, mean = list(twice.coef_), twice.feature_mean_.copy()
    constant, t = twice.intercept_ + twice.feature_mean_, twice.t_
    features = FourierBlocks(twice.kernel_, int(twice.seeds_[0]), 16, X, twice.offset_)
    for start in (80, 120):
        rows, t = X[start : start + 40], t + 1
        step = twice.step_size_ / (1 + twice.step_decay_ * t)
        F = features.product(rows, range(len(coef)), coef, 1) + constant - mean
        G = F - y[start : start + 40, None]
        coef, n = [A * (1 - step * twice.alpha_) for A in coef], round(512 / t)
        mean = mean * (1 - step * twice.alpha_)
        for _ in range(n):
            phi = features.features(rows, len(coef))
            coef.append(-step / n * (phi - phi.mean(axis=0)).T @ G / 40)
            mean = mean + phi.mean(axis=0) @ coef[-1]
        constant = constant - 0.2 * step / twice.step_size_ * G.mean(axis=0)
    assert_allclose(state.coef_, np.array(coef), atol=1e-12)
    assert_allclose(state.intercept_, constant - mean, atol=1e-12)
    assert_allclose(state.feature_mean_, mean, atol=1e-12)


@pytest.mark.parametrize("loss", ["squared_error", "huber"])
def test_a_stream_is_as_good_as_an_epoch(loss):
    """For short and for long bandwidths; with a step per piece errors were twice."""
    errors, n = [], 6000
    for seed in range(2):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((n + 1000, 5))
        y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.standard_normal(len(X))
        epoch = DSGRegressor(loss=loss, max_iter=1, random_state=seed)
        stream = clone(epoch)
        for start in range(0, n, 1000):
            rows = slice(start, start + 1000)
            stream.partial_fit(X[rows], y[rows])
        models = stream, epoch.fit(X[:n], y[:n])
        errors.append([1 - model.score(X[n:], y[n:]) for model in models])
    of_stream, of_epoch = np.sqrt(errors).mean(axis=0)
    assert of_stream < 1.25 * of_epoch


@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
def test_streams_of_classes(loss, three_classes, rng):
    X, y = three_classes
    names = np.array(["b", "a", "c"])[y]
    model = DSGClassifier(loss=loss, max_features=512, random_state=0)
    order = rng.permutation(len(X))
    for _ in range(12):
        for part in np.array_split(order, 3):
            model.partial_fit(X[part], names[part], classes=["a", "b", "c"])
    assert model.classes_.tolist() == ["a", "b", "c"]
    assert model.n_features_used_ == 512
    assert len(model.loss_curve_) == model.n_iter_ == 36
    assert model.score(X, names) > 0.7
    # A piece may lack classes.
    model.partial_fit(X[names == "a"], names[names == "a"])
    assert model.score(X[names == "a"], names[names == "a"]) > 0.5


def test_memory_does_not_grow_with_the_stream(rng):
    @threadpool_limits.wrap(limits=1)  # with two, peaks are random
    def peak(n_pieces):
        model = DSGRegressor(
            bandwidth=2.0, block_size=32, max_features=256, random_state=0
        )
        for _ in range(20):  # until all features exist
            X = rng.standard_normal((200, 5))
            model.partial_fit(X, X[:, 0])
        tracemalloc.start()
        for _ in range(n_pieces):
            X = rng.standard_normal((200, 5))
            model.partial_fit(X, X[:, 0])
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size, len(pickle.dumps(model))

    few, many = peak(10), peak(40)
    assert many[0] < 1.1 * few[0] + 1e5
    assert many[1] < few[1] + 1e3 < 2e5


def test_guard_mends_steps_that_are_too_long(regression):
    X, y, X_test, y_test = regression
    model = DSGRegressor(step_size=1e4, random_state=0).fit(X, y)
    assert 3 <= model.n_step_halvings_ <= 20
    assert model.score(X_test, y_test) > 0.5
    stream = DSGRegressor(step_size=1e4, random_state=0)
    for _ in range(20):
        stream.partial_fit(X, y)
    assert 3 <= stream.n_step_halvings_ <= 20
    assert stream.score(X, y) > 0.5


def test_fit_that_fails_keeps_the_constant(regression, monkeypatch):
    X, y, *_ = regression

    def fails(*args, expansion, **options):
        yield State(expansion, n_step_halvings=41, failed=True)

    monkeypatch.setattr(
        "eigenkern.estimators.doubly_stochastic.doubly_stochastic", fails
    )
    with pytest.warns(ConvergenceWarning, match="no step size"):
        model = DSGRegressor().fit(X, y)
    assert_allclose(model.predict(X), y.mean())
    with pytest.warns(ConvergenceWarning, match="changed nothing"):
        stream = DSGRegressor().partial_fit(X, y)
    assert_allclose(stream.predict(X), y.mean())


@pytest.mark.parametrize("theta", [1.5e3, 1e3, 2e3, 5e3])
def test_schedule_of_the_paper(theta, regression, recwarn):
    X, y, X_test, y_test = regression
    step = ("theta/t", theta)
    model = DSGRegressor(alpha=1e-3, step_size=step, random_state=0).fit(X, y)
    assert not [w for w in recwarn if w.category is ConvergenceWarning]
    assert model.score(X_test, y_test) > 0.5


@pytest.mark.parametrize("theta", [500.0, 2500.0])
def test_schedule_without_guarantee_warns(theta, regression):
    X, y, *_ = regression
    model = DSGRegressor(alpha=1e-3, step_size=("theta/t", theta), max_iter=1)
    with pytest.warns(ConvergenceWarning, match="between 1 and 2 or a positive integ"):
        model.fit(X, y)


def test_decaying_schedule(regression):
    X, y, X_test, y_test = regression
    model = DSGRegressor(step_size=("1/(1+ct)", 1e-4), random_state=0).fit(X, y)
    assert model.score(X_test, y_test) > 0.5


def test_weights_count_and_rows_without_weight_do_not(regression):
    X, y, X_test, _ = regression
    model = DSGRegressor(bandwidth=2.0, max_iter=10, random_state=0)
    weights = np.ones(len(y))
    weights[100:] = 0
    half = clone(model).fit(X[:100], y[:100])
    weighted = clone(model).fit(X, y, sample_weight=weights)
    assert_allclose(weighted.predict(X_test), half.predict(X_test), atol=1e-9)
    spoilt = np.where(weights > 0, y, 1e6)
    same = clone(model).fit(X, spoilt, sample_weight=weights)
    assert_array_equal(same.predict(X_test), weighted.predict(X_test))


def test_balanced_classes_shift_the_decision(rng):
    X = rng.standard_normal((300, 2))
    y = (X[:, 0] + rng.standard_normal(300) > 1.5).astype(int)
    plain = DSGClassifier(max_iter=3, random_state=0).fit(X, y)
    balanced = clone(plain).set_params(class_weight="balanced").fit(X, y)
    assert balanced.predict(X).mean() > 2 * plain.predict(X).mean()


def test_early_stopping_keeps_the_best_epoch(regression):
    X, y, *_ = regression
    model = DSGRegressor(early_stopping=True, n_iter_no_change=2, random_state=0)
    model.fit(X, y)
    assert len(model.validation_scores_) == model.n_iter_
    best = int(np.argmax(model.validation_scores_))
    assert model.t_ == 32 * (best + 1)


def test_equal_targets_and_one_class(regression):
    X = regression[0]
    assert_allclose(DSGRegressor().fit(X, np.full(len(X), 7.0)).predict(X), 7.0)
    one = DSGClassifier(max_iter=3).fit(X, np.full(len(X), "only"))
    assert (one.predict(X) == "only").all()


def test_several_outputs(regression):
    X, y, X_test, y_test = regression
    Y = np.column_stack([y, 1e3 * y])
    model = DSGRegressor(random_state=0).fit(X, Y)
    one = DSGRegressor(random_state=0).fit(X, y)
    assert_allclose(model.predict(X_test)[:, 0], one.predict(X_test), atol=0.05)
    assert model.score(X_test, np.column_stack([y_test, 1e3 * y_test])) > 0.5


@pytest.mark.parametrize("algorithm", ["udsg", "cdsg"])
def test_other_array_libraries(algorithm, regression, other_xp):
    X, y, X_test, _ = regression
    options = {"batch_size": 40, "block_size": 16, "max_features": 1024}
    model = DSGRegressor(algorithm=algorithm, **options, max_iter=3, random_state=0)
    expected = clone(model).fit(X, y).predict(X_test)
    with config_context(array_api_dispatch=True):
        X, y, X_test = (other_xp.asarray(part) for part in (X, y, X_test))
        predicted = clone(model).fit(X, y).predict(X_test)
        stream = clone(model).partial_fit(X, y)
        stream.partial_fit(X, y)
    assert_allclose(to_numpy(predicted), expected, atol=1e-8)
    assert stream.t_ == 8


def test_short_batches_make_short_steps(rng):
    X = rng.standard_normal((1550, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]
    model = DSGRegressor(random_state=0, max_iter=15).fit(X[:600], y[:600])
    before = model.score(X, y)
    for start in range(0, 500, 10):
        rows = slice(start, start + 10)
        model.partial_fit(X[rows], y[rows])
    assert model.n_step_halvings_ == 0
    assert model.score(X, y) > before - 0.01
    # The same in a fit, where two rows are left over: 240 steps on other batches.
    options = {"batch_size": 500, "tol": 0, "random_state": 0}
    even = DSGRegressor(max_iter=7, **options).fit(X[:1500], y[:1500])
    uneven = DSGRegressor(max_iter=10, **options).fit(X[:1502], y[:1502])
    assert (even.t_, uneven.t_) == (231, 320)
    assert uneven.n_step_halvings_ == 0
    assert 1 - uneven.score(X, y) < 1.1 * (1 - even.score(X, y))


@pytest.mark.filterwarnings("ignore:DSGRegressor learned nothing")
def test_streams_go_on_from_a_constant(rng):
    X, noise = rng.standard_normal((60, 5)), rng.standard_normal(60)
    for seed in range(20):
        model = DSGRegressor(early_stopping=True, max_iter=10, random_state=seed)
        if model.fit(X, noise).n_blocks_ == 0:
            break
    assert model.n_blocks_ == 0
    model.partial_fit(X, noise)
    assert model.n_features_used_ == 8192  # of a first step
    assert model.seeds_[0] == model.seed_


def test_weights_that_vanish_in_float32(regression):
    X, y, *_ = regression
    weights = np.where(np.arange(len(y)) < 80, 1.0, 1e-60)
    options = {"batch_size": 2, "block_size": 8, "max_iter": 2}
    model = DSGRegressor(bandwidth="median", random_state=0, **options)
    model.fit(X.astype(np.float32), y, sample_weight=weights)
    assert model.score(X[:80], y[:80]) > 0


def test_unit_of_targets_is_no_rounding(regression):
    X, y, X_test, y_test = regression
    stream = DSGRegressor(random_state=0).partial_fit(X, np.full(len(y), 0.1))
    for _ in range(20):
        stream.partial_fit(X, y)
    assert np.isfinite(stream.loss_curve_).all()
    assert stream.score(X, y) > 0.3
    # More than half of the targets are nearly equal.
    y, y_test = (np.where(part > 0.6, part, 1e-9 * part) for part in (y, y_test))
    model = DSGRegressor(loss="huber", epsilon=1.0, random_state=0).fit(X, y)
    assert model.score(X_test, y_test) > 0.4


def test_first_call_fixes_alpha(regression):
    X, y, *_ = regression
    model = DSGRegressor(random_state=0).partial_fit(X, y)
    other = clone(model).partial_fit(X, y).set_params(alpha=0.1)
    other.partial_fit(X, y)
    assert_array_equal(other.coef_, model.partial_fit(X, y).coef_)
    assert other.alpha_ == 1e-6


def test_weights_of_classes_that_a_piece_lacks(three_classes):
    X, y = three_classes
    model = DSGClassifier(class_weight={0: 0.0, 1: 2.0, 2: 1.0}, random_state=0)
    model.partial_fit(X, y, classes=[0, 1, 2])
    model.partial_fit(X[y > 0], y[y > 0])
    with pytest.raises(ValueError, match="product is zero"):
        model.partial_fit(X[y == 0], y[y == 0])


def test_one_class_is_certain(three_classes):
    X = three_classes[0]
    model = DSGClassifier(max_iter=2).fit(X, np.zeros(len(X)))
    assert_array_equal(model.predict_proba(X), np.ones((len(X), 1)))
    assert_array_equal(model.predict_log_proba(X), np.zeros((len(X), 1)))


def test_attributes_of_a_stream(regression):
    X, y, *_ = regression
    model = DSGRegressor(max_features=200, random_state=0).partial_fit(X[:100], y[:100])
    assert model.validation_scores_ is None
    assert len(model.loss_curve_) == model.n_iter_ == 1
    assert (model.batch_size_, model.block_size_) == (128, 200)
    model.set_params(max_features=100)
    with pytest.raises(ValueError, match="max_features must be a number >= 200"):
        model.partial_fit(X, y)
    model.set_params(max_features=None)
    model.partial_fit(X[:1], y[:1])
    assert (model.n_iter_, model.t_) == (2, 1)  # a single row waits for more rows


def test_callbacks_see_the_model_of_an_epoch(three_classes):
    X, y = three_classes
    monitor = ScoringMonitor(scoring="accuracy")
    model = DSGClassifier(max_iter=3, random_state=0).set_callbacks(monitor)
    model.fit(X, y)
    log = [row for row in monitor.get_logs().data if row["task_name"] == "epoch"]
    for n_epochs, row in enumerate(log, 1):
        fitted = DSGClassifier(max_iter=n_epochs, random_state=0).fit(X, y)
        assert row["accuracy"] == pytest.approx(fitted.score(X, y))
    assert len(log) == 3
    assert_array_equal(fitted.coef_, model.coef_)


BAD = [
    ({"kernel": "polynomial"}, "kernel must be a function of x - z.*'polynomial'"),
    ({"kernel": "precomputed"}, "kernel must be a function of x - z"),
    ({"kernel": Linear()}, r"kernel must be a function of x - z.*Linear\(\)"),
    ({"kernel": lambda X, Z: X @ Z.T}, "kernel must be a function of x - z"),
    ({"kernel": "rbff"}, "kernel must be one of"),
    ({"bandwidth": -1.0}, "bandwidth must be positive"),
    ({"algorithm": "sgd"}, "algorithm must be 'dsg', 'udsg' or 'cdsg'; got 'sgd'"),
    ({"loss": "logistic"}, "loss must be one of .*; got 'logistic'"),
    ({"alpha": -1e-3}, "alpha must be 'auto' or a number >= 0"),
    ({"alpha": "path"}, "alpha must be 'auto' or a number >= 0; got 'path'"),
    ({"alpha": np.nan}, "alpha must be 'auto' or a number >= 0"),
    ({"block_size": 0}, "block_size must be an integer >= 1"),
    ({"batch_size": 2.5}, "batch_size must be an integer >= 2"),
    ({"n_new": 0}, "n_new must be an integer >= 1"),
    ({"n_old": -1}, "n_old must be an integer >= 0"),
    ({"step_size": 0.0}, "step_size must be a number > 0"),
    ({"step_size": "long"}, "step_size must be a number > 0"),
    ({"step_size": 1e7}, r"step_size must be below 1 / alpha = 1e\+06"),
    ({"step_size": ("t", 1.0)}, r"step_size must be 'auto', a number, \('theta/t'"),
    ({"step_size": ("theta/t", -1.0)}, r"step_size\[1\] of 'theta/t' must be a number"),
    ({"max_features": 0}, "max_features must be an integer >= 1"),
    ({"max_features": 9, "block_size": 10}, "max_features must be an integer >= 10"),
    ({"max_iter": 0}, "max_iter must be an integer >= 1"),
    ({"tol": -1.0}, "tol must be a number >= 0"),
    ({"early_stopping": "auto"}, "early_stopping must be True or False; got 'auto'"),
    ({"validation_fraction": 1.0}, "validation_fraction must be a number > 0"),
    ({"n_iter_no_change": 0}, "n_iter_no_change must be an integer >= 1"),
    ({"cache_size": -1}, "cache_size must be a number >= 0"),
]


@pytest.mark.parametrize("parameters, message", BAD)
@pytest.mark.parametrize("cls", [DSGRegressor, DSGClassifier])
def test_bad_parameters(cls, parameters, message, three_classes):
    X, y = three_classes
    for method in ("fit", "partial_fit"):
        needs_classes = cls is DSGClassifier and method == "partial_fit"
        options = {"classes": [0, 1, 2]} if needs_classes else {}
        with pytest.raises(ValueError, match=message):
            getattr(cls(**parameters), method)(X, y, **options)


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"epsilon": -0.1}, "epsilon must be a number >= 0"),
        ({"epsilon": 0.0, "loss": "huber"}, "epsilon must be positive"),
    ],
)
def test_bad_threshold(parameters, message, regression):
    with pytest.raises(ValueError, match=message):
        DSGRegressor(**parameters).fit(*regression[:2])


def test_bad_pieces_leave_the_model(three_classes):
    X, y = three_classes
    model = DSGClassifier(random_state=0)
    with pytest.raises(ValueError, match="classes must be passed to the first call"):
        model.partial_fit(X, y)
    for wrong in ([], "012", 3):
        with pytest.raises(ValueError, match="classes must be an array of all labels"):
            model.partial_fit(X, y, classes=wrong)
    with pytest.raises(ValueError, match="y must hold only classes"):
        model.partial_fit(X, y, classes=[0, 1])
    assert not hasattr(model, "classes_")
    model.partial_fit(X, y, classes=[0, 1, 2])
    before = model.predict_proba(X)
    with pytest.raises(ValueError, match="classes must be None, or those"):
        model.partial_fit(X, y, classes=[0, 1, 2, 3])
    with pytest.raises(ValueError, match=r"y must hold only classes.*got 3"):
        model.partial_fit(X, y + 1)
    with pytest.raises(ValueError, match="2 features"):
        model.partial_fit(X[:, :1], y)
    with pytest.raises(ValueError, match="NaN"):
        model.partial_fit(np.where(X > 2, np.nan, X), y)
    assert_array_equal(model.predict_proba(X), before)
    stream = DSGRegressor().partial_fit(X, y)
    with pytest.raises(ValueError, match=r"1 output\(s\).*got 2"):
        stream.partial_fit(X, np.column_stack([y, y]))


def test_a_kernel_object_brings_its_bandwidth(regression):
    X, y, *_ = regression
    model = DSGRegressor(Gaussian(1.25), max_iter=2).fit(X, y)
    assert model.bandwidth_ == 1.25 and model.kernel_ == Gaussian(1.25)
