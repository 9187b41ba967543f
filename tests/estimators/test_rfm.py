"""Recursive feature machines: the metric they learn, and possible failures."""

import os
import pickle
import re
from dataclasses import replace
from itertools import count

import array_api_compat
import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from sklearn import config_context
from sklearn.base import clone
from sklearn.callback import ScoringMonitor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from eigenkern import (
    DSGClassifier,
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeRegressor,
    LinearEigenProRegressor,
    NystromClassifier,
    NystromRegressor,
    RFMClassifier,
    RFMRegressor,
)
from eigenkern.arrays.array import to_numpy
from eigenkern.estimators.rfm import MetricProblem, Round, learned_metrics
from eigenkern.inspection import average_gradient_outer_product
from eigenkern.kernels import Gaussian
from eigenkern.plan.of_epochs import plan_on_rows
from eigenkern.plan.of_rounds import plan_of_rounds

PLAIN = EigenProRegressor(random_state=0)
both_kinds = pytest.mark.parametrize("metric", ["diagonal", "full"])


def machine(estimator=PLAIN, **options):
    """Return a machine whose metric is that of the columns as they are."""
    return RFMRegressor(estimator, **{"scaling": None, "random_state": 0, **options})


def error(model, X, y):
    return np.mean((model.predict(X) - y) ** 2)


def split(X, y, n=240):
    return X[:n], y[:n], X[n:], y[n:]


@pytest.fixture
def two_of_ten(rng):
    """A function of the first two of ten features: 240 rows and 160 others."""
    X = rng.standard_normal((400, 10))
    return split(X, np.sin(2 * X[:, 0]) + X[:, 1] ** 2 / 2)


@pytest.fixture
def oblique(rng):
    """A function of one direction of five features, and the direction."""
    X, u = rng.standard_normal((400, 5)), np.array([1.0, -1.0, 1.0, 1.0, -1.0]) / 5**0.5
    return *split(X, np.sin(2 * X @ u)), u


# What is learned


def test_weights_of_features(two_of_ten):
    X, y, X_test, y_test = two_of_ten
    model = machine(metric="diagonal").fit(X, y)
    assert model.metric_kind_ == "diagonal" and 1 <= model.n_rounds_ <= 5
    weights = model.metric_root_**2
    assert model.metric_root_.shape == (10,)
    assert weights.mean() == pytest.approx(1.0)
    assert weights[2:].max() < 0.1 < 1.0 < weights[:2].min()
    assert model.feature_importances_.sum() == pytest.approx(1.0)
    assert model.feature_importances_[2:].sum() < 0.02
    plain = clone(PLAIN).fit(X, y)
    assert error(model, X_test, y_test) < 0.2 * error(plain, X_test, y_test)


def test_a_direction(oblique):
    X, y, X_test, y_test, u = oblique
    model = machine(metric="full").fit(X, y)
    assert model.metric_kind_ == "full" and model.n_rounds_ >= 1
    R, M = model.metric_root_, model.metric_
    assert_allclose(R, R.T, atol=1e-12)
    assert_allclose(M, R @ R, atol=1e-12)
    values, vectors = np.linalg.eigh(M)
    assert values.mean() == pytest.approx(1.0)
    assert 0.02 <= values.min() < 0.03
    assert abs(vectors[:, -1] @ u) > 0.99
    plain = clone(PLAIN).fit(X, y)
    diagonal = machine(metric="diagonal").fit(X, y)
    for other in (plain, diagonal):
        assert error(model, X_test, y_test) < 0.2 * error(other, X_test, y_test)
    auto = machine().fit(X, y)
    assert auto.metric_kind_ == "full"
    assert error(auto, X_test, y_test) < 2 * error(model, X_test, y_test)


@both_kinds
def test_one_round_is_the_square_root_of_the_mean(metric, two_of_ten):
    X, y, X_test, y_test = two_of_ten
    model = machine(metric=metric, max_rounds=1)
    model.fit(X, y, X_val=X_test, y_val=y_test)
    plain = clone(PLAIN).fit(X, y)
    M = average_gradient_outer_product(plain, X, kind=metric)
    if metric == "diagonal":
        expected = (0.98 * M / M.mean() + 0.02) ** 0.5
    else:
        values, vectors = np.linalg.eigh(M)
        values = (0.98 * values / values.mean() + 0.02) ** 0.5
        expected = (vectors * values) @ vectors.T
    rounds = model.validation_scores_
    assert rounds["round"] == [0, 1] and rounds["metric"] == [None, metric]
    assert_allclose(model.metric_root_, expected, rtol=1e-8, atol=1e-10)
    R = np.diag(expected) if M.ndim == 1 else expected
    second = clone(PLAIN).fit(X @ R, y)
    scores = plain.score(X_test, y_test), second.score(X_test @ R, y_test)
    assert_allclose(rounds["score"], scores, rtol=1e-6)
    assert_allclose(model.predict(X), second.predict(X @ R), rtol=1e-6, atol=1e-8)
    importances = average_gradient_outer_product(model, X, kind="diagonal")
    importances /= importances.sum()
    assert_allclose(model.feature_importances_, importances, rtol=1e-8)


@pytest.mark.parametrize("estimator", [PLAIN, None])
def test_no_round_is_the_plain_estimator(estimator, two_of_ten):
    X, y, X_test, _ = two_of_ten
    model = machine(estimator, max_rounds=0).fit(X, y)
    seed = model.estimator_.random_state
    expected = EigenProRegressor(random_state=seed).fit(X, y).predict(X_test)
    assert_array_equal(model.predict(X_test), expected)
    assert_array_equal(model.metric_, np.eye(10))
    assert (model.metric_kind_, model.n_rounds_) == (None, 0)
    assert len(model.validation_scores_["score"]) == 1
    assert_array_equal(model.transform(X), X)


@pytest.mark.parametrize("estimator", [PLAIN, None])
def test_the_best_round_is_chosen(estimator, two_of_ten):
    model = machine(estimator).fit(*two_of_ten[:2])
    rounds = model.validation_scores_
    best = np.argmax(rounds["score"])
    assert rounds["metric"][best] == model.metric_kind_
    assert rounds["round"][best] == model.n_rounds_
    assert (rounds["metric"][0], rounds["round"][0]) == (None, 0)
    assert len({len(column) for column in rounds.values()}) == 1


def rough(X):
    return np.sign(X[:, 0] + X[:, 1]) + np.sign(X[:, 0] - X[:, 1])


def rough_along_axes(X):
    return np.sign(X[:, 0]) + np.sign(X[:, 1])


def smooth(X):
    return np.sin(2 * X[:, 0]) + X[:, 1] ** 2 / 2


@pytest.mark.parametrize(
    "function, kernel",
    [(rough, "laplacian"), (rough_along_axes, "manhattan"), (smooth, "matern32")],
)
def test_the_kernel_that_suits_the_metric_is_chosen(function, kernel, rng, capsys):
    X = rng.standard_normal((400, 5))
    model = RFMRegressor(random_state=0, verbose=1).fit(X, function(X))
    assert model.estimator_.kernel == kernel
    *_, chosen = capsys.readouterr().out.splitlines()
    scores, kind = model.validation_scores_, model.metric_kind_
    rounds = [t for t, k in zip(scores["round"], scores["metric"]) if k == kind]
    number = 1 + rounds.index(model.n_rounds_)
    assert f"{kind} metric, round {number} of 5, {kernel}, bandwidth" in chosen
    X_R, X_new = model.transform(X), rng.standard_normal((2000, 5))
    other = clone(model.estimator_)
    other.set_params(kernel="matern32" if kernel != "matern32" else "laplacian")
    other.fit(X_R, function(X))
    errors = (
        error(model, X_new, function(X_new)),
        np.mean((other.predict(model.transform(X_new)) - function(X_new)) ** 2),
    )
    assert errors[0] < errors[1]


def test_fits_obey_the_plan(two_of_ten, monkeypatch):
    X, y, *_ = two_of_ten
    plans, made = [], []

    def changed(*given):
        plan = plan_of_rounds(*given)
        chosen = {"kinds": ("diagonal",), "n_rounds": 2, "kernels": plan.kernels[:1]}
        chosen |= {"scalings": ("standard",)}
        plans.append(replace(plan, chosen=plan.chosen | chosen))
        return plans[-1]

    def noted(shape, **options):
        made.append(plan_on_rows(shape, **options))
        return made[-1]

    monkeypatch.setattr("eigenkern.estimators.rfm.plan_of_rounds", changed)
    monkeypatch.setattr("eigenkern.estimators.eigenpro_fit.plan_on_rows", noted)
    model = RFMRegressor(random_state=0).fit(X, y)
    assert model.validation_scores_["metric"] == [None, "diagonal", "diagonal"]
    (plan,) = plans
    assert (plan.n_graded, plan.n_compared) == (192, 192)
    of_part, _, of_all = plan.fits
    assert len(made) == 4  # three on the rows of the metric, and one on all
    for found, told in [(made[0], of_part), (made[2], of_part), (made[3], of_all)]:
        for name in ("n_samples", "method", "flops", "memory"):
            assert getattr(found, name) == getattr(told, name)


@pytest.mark.filterwarnings("ignore:The number of unique classes")
@pytest.mark.filterwarnings("ignore:.* learned nothing")
@pytest.mark.parametrize("n", [19, 20, 40])
def test_classes_of_one_row_each(n, rng):
    """No row can be held out, and the plain kernel is fitted."""
    X, names = rng.standard_normal((n, 2)), np.arange(n)
    model = RFMClassifier(random_state=0).fit(X, names)
    assert model.metric_kind_ is None
    assert_array_equal(model.classes_, names)
    assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)


@both_kinds
def test_a_softer_metric(metric, two_of_ten, monkeypatch):
    X, y, _, _ = two_of_ten
    roots = []
    for step in (1, -1):  # the next error is always larger, or smaller
        errors = count(step, step)
        monkeypatch.setattr(
            MetricProblem, "_error_of_part", lambda *_, e=errors: next(e)
        )
        model = machine(None, metric=metric, max_rounds=1).fit(X, y)
        roots.append(model.metric_root_)
    plain, softer = np.atleast_2d(*roots) if metric == "full" else map(np.diag, roots)
    values, vectors = np.linalg.eigh(plain)
    expected = (vectors * values**0.7) @ vectors.T
    expected *= (10 / np.trace(expected @ expected)) ** 0.5
    assert_allclose(softer, expected, atol=1e-10)


class Told:
    """A problem whose rounds have given errors."""

    def __init__(self, plain, second=(), **errors):
        self._plain, self.kinds, self._second = plain, tuple(errors), iter(second)
        self._errors = {kind: iter(values) for kind, values in errors.items()}

    def first_round(self):
        return Round(None, 0, None, None, None, self._plain)

    def second_start(self, best, kind):
        if best.error > 0.5:
            return Round(kind, 7, None, None, None, np.inf, True)
        return None

    def next_round(self, before, kind):
        second = before.second and kind == "diagonal"
        error = next(self._second if second else self._errors[kind], None)
        if error is None:
            return None
        return Round(kind, before.number + 1, None, None, None, error, before.second)

    def refined(self, best, diagonal):
        return best


def test_a_kind_stops_when_it_has_got_worse_twice():
    problem = Told(1.0, diagonal=[0.9, 9.0, 0.8, 0.8, 0.8, 0.1], full=[2.0, 2.0, 0.1])
    states = list(learned_metrics(problem, 9))
    rounds = [state.coef for state in states]
    errors = [one.error for one in rounds]
    assert errors == [1.0, 0.9, 9.0, 0.8, 0.8, 0.8, 2.0, 2.0, 0.8]
    assert [one.number for one in rounds] == [0, 1, 2, 3, 4, 5, 4, 5, 3]
    assert [state.converged for state in states] == [False] * 8 + [True]


def test_the_second_kind_goes_on_from_the_better_start():
    of_full = {"diagonal": [0.9, 0.95, 0.95], "full": [0.7, 0.7, 0.6]}
    for second, numbers in (
        ([0.8, 0.75, 0.8, 0.8], [8, 9, 10, 11]),
        ([0.95, 0.95, 0.1], [8, 9]),
    ):
        states = list(learned_metrics(Told(1.0, second, **of_full), 5))
        rounds = [state.coef for state in states[4:-1]]
        assert [one.number for one in rounds if one.kind == "diagonal"] == numbers
        expected = [10, 11, 12] if len(numbers) == 4 else [2, 3, 4]
        assert [one.number for one in rounds if one.kind == "full"] == expected
        assert states[-1].coef.error == 0.6
    sees = Told(1.0, [0.1], diagonal=[0.4, 0.5, 0.5])
    assert not any(state.coef.second for state in learned_metrics(sees, 5))


@pytest.mark.parametrize("labels", [False, True])
def test_a_second_start_finds_what_the_penalty_hides(labels, rng, capsys):
    """A product of two of twenty features; the plain model predicts the mean."""
    X = rng.standard_normal((1500, 20))
    f = np.sin(2 * X[:, 0]) * np.sin(2 * X[:, 1])
    y = f + 0.1 * rng.standard_normal(1500)
    if labels:
        f = y = (f > 0).astype(int)
    X, y, X_new, f_new = X[:700], y[:700], X[700:], f[700:]
    of_labels = {False: RFMRegressor, True: RFMClassifier}[labels]
    model = of_labels(metric="diagonal", random_state=0, verbose=1).fit(X, y)
    scores = model.validation_scores_["score"]
    assert max(scores[:3]) < 0.1 < 0.5 < max(scores)
    assert model.metric_root_[2:].max() ** 2 < 1.0 < model.metric_root_[:2].min() ** 2
    assert model.feature_importances_[:2].sum() > 0.9
    assert model.score(X_new, f_new) > (0.85 if labels else 0.95)
    output = capsys.readouterr().out
    assert "diagonal metric, second start, round 1 of 5: relative" in output
    first = model.validation_scores_["round"].index(5)
    numbers = model.validation_scores_["round"][first:]
    assert numbers == list(range(5, 5 + len(numbers)))
    assert model.n_rounds_ >= 5


@pytest.mark.filterwarnings("ignore:.* learned nothing")
def test_a_second_start_finds_nothing_in_noise(rng, capsys):
    X, X_new = rng.standard_normal((400, 20)), rng.standard_normal((1000, 20))
    y = rng.standard_normal(400)
    model = RFMRegressor(random_state=0, verbose=1).fit(X, y)
    assert "second start" in capsys.readouterr().out
    assert np.var(model.predict(X_new)) < 0.05


@pytest.mark.filterwarnings("ignore:.* learned nothing")  # targets are noise
def test_noise_is_harmless(rng):
    X, y = rng.standard_normal((120, 6)), rng.standard_normal(120)
    for model in (machine(), RFMRegressor(random_state=0)):
        model.fit(X, y)
        assert np.isfinite(model.metric_).all()
        assert np.isfinite(model.predict(X)).all()
    labels = (y > 0).astype(int)
    model = RFMClassifier(random_state=0).fit(X, labels)
    assert set(model.predict(X)) <= {0, 1}


@both_kinds
def test_a_model_on_the_metric(metric, two_of_ten):
    X, y, X_test, _ = two_of_ten
    model = machine(metric=metric, max_rounds=2).fit(X, y)
    X_R = model.transform(X_test)
    assert_array_equal(model.predict(X_test), model.estimator_.predict(X_R))
    distances = cdist(X_R[:20], X_R[20:50], "sqeuclidean")
    away = X_test[:20, None, :] - X_test[None, 20:50, :]
    expected = np.einsum("ijd,de,ije->ij", away, model.metric_, away)
    assert_allclose(distances, expected, rtol=1e-10)
    again = clone(PLAIN).fit(model.transform(X), y)
    assert_allclose(again.predict(X_R), model.predict(X_test), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "estimator",
    [
        FalkonLikeRegressor(n_centers=60, random_state=0),
        NystromRegressor(n_centers=60, random_state=0),
        EigenProRegressor(n_centers=60, max_iter=3, random_state=0),
        EigenProRegressor(Gaussian(3.0), random_state=0),
        None,
    ],
    ids=repr,
)
def test_other_estimators_learn_a_metric(estimator, two_of_ten):
    X, y, X_test, y_test = two_of_ten
    model = machine(estimator, metric="diagonal").fit(X, y)
    assert model.n_rounds_ >= 1
    assert model.feature_importances_[2:].sum() < 0.05
    plain = PLAIN if estimator is None else estimator
    before = error(clone(plain).fit(X, y), X_test, y_test)
    assert error(model, X_test, y_test) < 0.5 * before
    assert model.estimator_ is not estimator


# Features and rows as found in practice


def test_idle_features_neither_break_nor_dominate(two_of_ten, rng):
    """A constant, duplicates, and an uninformative one-hot block."""
    n, (X, y, X_test, y_test) = 240, two_of_ten
    codes = np.eye(12)[rng.integers(0, 12, 400)]
    constant = np.full((400, 1), 1e6)

    def wide(X, rows):
        return np.column_stack([X, constant[rows], X[:, 2], X[:, 2], codes[rows]])

    X_wide, X_test_wide = wide(X, slice(n)), wide(X_test, slice(n, None))
    base = error(machine().fit(X, y), X_test, y_test)
    for metric in ("diagonal", "full", "auto"):
        model = machine(metric=metric).fit(X_wide, y)
        assert model.n_rounds_ >= 1
        assert np.isfinite(model.metric_root_).all()
        assert model.feature_importances_[10] < 1e-6
        assert model.feature_importances_[2:].sum() < 0.15
        if metric == "auto":
            assert error(model, X_test_wide, y_test) < 2 * base


def test_duplicates_share_what_they_tell(two_of_ten):
    X, y, X_test, y_test = two_of_ten
    columns = [0, 0, 0, *range(1, 10)]
    model = machine(metric="diagonal").fit(X[:, columns], y)
    shares = model.feature_importances_
    assert_allclose(shares[:3], shares[0], rtol=1e-3)
    assert shares[4:].sum() < 0.05 < shares[3]
    assert error(model, X_test[:, columns], y_test) < 0.2 * np.var(y_test)


def test_one_feature_has_no_metric(two_of_ten):
    X, y, *_ = two_of_ten
    model = machine().fit(X[:, :1], y)
    assert (model.metric_kind_, model.n_rounds_) == (None, 0)
    assert_array_equal(model.metric_, [[1.0]])
    assert_array_equal(model.feature_importances_, [1.0])
    assert len(model.validation_scores_["score"]) == 1


@pytest.mark.parametrize("value", [0.0, -3.5, 1e8])
def test_constant_targets(value, two_of_ten):
    X, *_ = two_of_ten
    model = machine().fit(X, np.full(len(X), value))
    assert_array_equal(model.predict(X), np.full(len(X), value))
    assert model.n_rounds_ == 0
    assert_array_equal(model.feature_importances_, np.zeros(10))


@pytest.mark.parametrize("n", [3, 4, 6])
def test_few_rows(n, two_of_ten):
    X, y, *_ = two_of_ten
    model = machine().fit(X[:n], y[:n])
    assert np.isfinite(model.predict(X)).all()


def test_too_few_rows(two_of_ten):
    X, y, *_ = two_of_ten
    with pytest.raises(ValueError, match="leaves 1 of 30 rows to train with"):
        machine(validation_fraction=0.97).fit(X[:30], y[:30])
    for n in (2, 3):  # no metric, but a model
        model = machine().fit(X[:n], y[:n])
        assert_allclose(model.predict(X[:n]), y[:n], atol=0.5 * np.ptp(y[:n]))
        assert n > 2 or np.count_nonzero(model.metric_) == 10
    labels = np.arange(4)
    classes = RFMClassifier(random_state=0).fit(X[:4], labels)
    assert_array_equal(classes.predict(X[:4]), labels)
    model = machine().fit(X[:2], y[:2], X_val=X[2:], y_val=y[2:])
    assert np.isfinite(model.predict(X)).all()


@both_kinds
def test_the_unit_of_all_features_changes_nothing(metric, two_of_ten):
    X, y, X_val, y_val = two_of_ten
    model = machine(metric=metric, max_rounds=2)
    expected = clone(model).fit(X, y, X_val=X_val, y_val=y_val)
    model.fit(X * 2.0**20, y, X_val=X_val * 2.0**20, y_val=y_val)
    assert_allclose(model.metric_root_, expected.metric_root_, rtol=1e-6, atol=1e-8)
    assert_allclose(model.predict(X * 2.0**20), expected.predict(X), atol=1e-6)


@pytest.mark.filterwarnings("ignore:.* learned nothing")  # targets are noise
def test_features_of_unlike_units_give_something_finite(two_of_ten):
    X, y, *_ = two_of_ten
    X = X * np.logspace(-8, 8, 10)
    for dtype in (np.float32, np.float64):
        model = machine().fit(X.astype(dtype), y)
        assert np.isfinite(model.metric_).all()
        assert np.isfinite(model.predict(X.astype(dtype))).all()


@pytest.mark.parametrize("unit", [2.0**-60, 2.0**60])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_unit_of_the_targets_changes_nothing(dtype, unit, two_of_ten):
    X, y, *_ = two_of_ten
    X = X.astype(dtype)
    expected = machine(max_rounds=1, metric="diagonal").fit(X, y)
    model = machine(max_rounds=1, metric="diagonal").fit(X, unit * y)
    assert model.n_rounds_ == 1
    assert_allclose(model.metric_root_, expected.metric_root_, rtol=1e-3)


def test_float32_stays_float32(two_of_ten):
    X, y, *_ = two_of_ten
    X32 = X.astype(np.float32)
    model = machine(metric="full", max_rounds=1).fit(X32, y)
    for array in (
        model.metric_root_,
        model.metric_,
        model.feature_importances_,
        model.estimator_.centers_,
        model.transform(X32),
        model.predict(X32),
    ):
        assert array.dtype == np.float32
    expected = machine(metric="full", max_rounds=1).fit(X, y)
    assert_allclose(model.metric_root_, expected.metric_root_, atol=0.02)


def test_wide_data_have_a_diagonal_metric(two_of_ten, monkeypatch):
    X, y, *_ = two_of_ten
    monkeypatch.setattr("eigenkern.plan.of_rounds._MAX_FULL", 9)
    assert "full" not in machine().fit(X, y).validation_scores_["metric"]
    full = machine(metric="full", max_rounds=1).fit(X, y)
    assert full.validation_scores_["metric"] == [None, "full"]
    assert "full" in machine().fit(X[:, :9], y).validation_scores_["metric"]


def test_several_outputs(two_of_ten):
    X, y, X_test, y_test = two_of_ten
    Y = np.column_stack([y, X[:, 0]])
    model = machine(metric="diagonal").fit(X, Y)
    assert model.predict(X_test).shape == (160, 2)
    assert np.mean((model.predict(X_test)[:, 0] - y_test) ** 2) < 0.2 * y_test.var()
    wide = machine(metric="full", max_rounds=1).fit(X, y[:, None] * np.arange(1, 16))
    assert wide.n_rounds_ == 1 and wide.feature_importances_[:2].sum() > 0.8


# Held-out, drawn and weighted rows


def test_given_rows_to_select_by(two_of_ten):
    X, y, X_val, y_val = two_of_ten
    model = machine(metric="diagonal", max_rounds=2).fit(X, y, X_val=X_val, y_val=y_val)
    plain = clone(PLAIN).fit(X, y)
    score = model.validation_scores_["score"]
    assert score[0] == pytest.approx(plain.score(X_val, y_val))
    assert score[model.n_rounds_] == pytest.approx(model.score(X_val, y_val))
    w = np.r_[np.ones(100), np.zeros(60)]
    weighted = machine(metric="diagonal", max_rounds=2)
    weighted.fit(X, y, X_val=X_val, y_val=y_val, sample_weight_val=w)
    expected = machine(metric="diagonal", max_rounds=2)
    expected.fit(X, y, X_val=X_val[:100], y_val=y_val[:100])
    assert_allclose(
        weighted.validation_scores_["score"], expected.validation_scores_["score"]
    )
    with pytest.raises(ValueError, match="X_val and y_val must be passed together"):
        machine().fit(X, y, X_val=X_val)


def test_the_last_fit_takes_all_rows(two_of_ten):
    X, y, *_ = two_of_ten
    model = machine(max_metric_rows=100, max_gradient_rows=30, max_rounds=2).fit(X, y)
    assert model.estimator_.centers_.shape == (240, 10)
    assert_allclose(model.estimator_.centers_, model.transform(X))


def test_rows_without_weight_are_as_if_dropped(two_of_ten):
    X, y, X_test, _ = two_of_ten
    w = np.repeat([1.0, 0.0], [200, 40])
    model = machine(max_rounds=2).fit(X, np.where(w > 0, y, 1e9), sample_weight=w)
    expected = machine(max_rounds=2).fit(X[:200], y[:200])
    assert_allclose(model.metric_root_, expected.metric_root_, rtol=1e-8)
    assert_allclose(model.predict(X_test), expected.predict(X_test), rtol=1e-6)


def test_weights_are_repetitions(two_of_ten, rng):
    X, y, X_test, _ = two_of_ten
    w = rng.integers(0, 3, len(X))
    estimator = NystromRegressor(n_centers=40, bandwidth=3.0, random_state=0)
    model = machine(estimator, max_rounds=2).fit(X, y, sample_weight=w.astype(float))
    expected = machine(estimator, max_rounds=2)
    expected.fit(np.repeat(X, w, axis=0), np.repeat(y, w))
    assert_allclose(model.metric_root_, expected.metric_root_, rtol=1e-6, atol=1e-9)
    assert_allclose(model.predict(X_test), expected.predict(X_test), atol=1e-6)


# Classes


@pytest.fixture
def labelled(rng):
    """Three classes of different sizes, given by the first two of eight features."""
    y = np.repeat(["a", "ccc", "bb"], [150, 146, 4])
    X = rng.standard_normal((300, 8))
    X[:, 0] += 4.0 * (y == "ccc")
    X[:, 1] += 8.0 * (y == "bb")
    return X, y


def test_a_rare_class_stays(labelled):
    X, y = labelled
    model = RFMClassifier(random_state=0, max_metric_rows=40).fit(X, y)
    assert_array_equal(model.classes_, ["a", "bb", "ccc"])
    assert_array_equal(model.estimator_.classes_, model.classes_)
    assert model.decision_function(X).shape == (300, 3)
    assert model.score(X, y) > 0.95
    assert_array_equal(model.predict(X)[-4:], "bb")


@pytest.mark.parametrize(
    "estimator",
    [
        EigenProClassifier(random_state=0),
        NystromClassifier(random_state=0),
        DSGClassifier("gaussian", max_iter=5, random_state=0),
    ],
    ids=repr,
)
@pytest.mark.parametrize("absent", ["a", "bb", "ccc"])
def test_a_class_without_weight_is_never_predicted(absent, estimator, labelled):
    X, y = labelled
    model = RFMClassifier(estimator, max_rounds=1, random_state=0)
    model.fit(X, y, sample_weight=(y != absent).astype(float))
    assert_array_equal(model.classes_, ["a", "bb", "ccc"])
    values = model.decision_function(X)
    assert values.shape == (300, 3)
    present = y != absent
    assert np.mean(model.predict(X)[present] == y[present]) > 0.9


@pytest.mark.parametrize("labels", [[0, 1], ["no", "yes"], [-1.0, 7.0], [False, True]])
def test_binary_labels(labels, two_of_ten):
    X, y, X_test, y_test = two_of_ten
    model = RFMClassifier(metric="diagonal", random_state=0)
    model.fit(X, np.array(labels)[(y > 0.5).astype(int)])
    expected = np.array(labels)[(y_test > 0.5).astype(int)]
    assert model.decision_function(X_test).shape == (160,)
    assert model.predict(X_test).dtype == expected.dtype
    assert np.mean(model.predict(X_test) == expected) > 0.85
    assert model.feature_importances_[2:].sum() < 0.2


@pytest.mark.filterwarnings("ignore:.* learned nothing")  # targets are noise
def test_probabilities_are_those_of_the_estimator(labelled):
    X, y = labelled
    estimator = DSGClassifier(loss="log_loss", max_iter=3, random_state=0)
    model = RFMClassifier(estimator, max_rounds=1, random_state=0).fit(X, y)
    P = model.predict_proba(X)
    assert_array_equal(P, model.estimator_.predict_proba(model.transform(X)))
    assert_allclose(P.sum(axis=1), 1.0)
    estimator = DSGClassifier(loss="hinge")
    assert not hasattr(RFMClassifier(estimator), "predict_proba")
    with pytest.raises(AttributeError, match="predict_proba"):
        _ = RFMClassifier(estimator).predict_proba


def test_more_classes_than_rows_to_learn_on(rng):
    y = np.arange(120) % 30
    X = rng.standard_normal((120, 3)) + 6.0 * np.eye(30, 3)[y] + y[:, None]
    model = RFMClassifier(random_state=0, max_metric_rows=20, max_rounds=1).fit(X, y)
    assert model.decision_function(X).shape == (120, 30)
    assert len(model.validation_scores_["score"]) >= 2


def test_one_class(labelled):
    X, _ = labelled
    model = RFMClassifier(random_state=0).fit(X, np.full(300, "a"))
    assert_array_equal(model.predict(X), "a")


# Failures


class FailsLater(EigenProRegressor):
    """Fails in one of its fits, which the test counts."""

    n_fits, fails_at, how = 0, 3, ValueError

    def fit(self, X, y, sample_weight=None):
        FailsLater.n_fits += 1
        if FailsLater.n_fits == FailsLater.fails_at:
            raise FailsLater.how("no more")
        return super().fit(X, y, sample_weight)


@pytest.fixture
def fails_later(monkeypatch):
    def make(fails_at, how):
        for name, value in (("n_fits", 0), ("fails_at", fails_at), ("how", how)):
            monkeypatch.setattr(FailsLater, name, value)
        return FailsLater(random_state=0)

    return make


@pytest.mark.parametrize("how", [ValueError, MemoryError, np.linalg.LinAlgError])
def test_a_round_that_fails_leaves_the_best(how, fails_later, two_of_ten):
    X, y, *_ = two_of_ten
    model = machine(fails_later(3, how), metric="diagonal")
    match = "round 2 with metric='diagonal' failed, and the best .* is kept: no more"
    with pytest.warns(ConvergenceWarning, match=match):
        model.fit(X, y)
    expected = machine(metric="diagonal", max_rounds=1).fit(X, y)
    assert model.n_rounds_ == 1
    assert_array_equal(model.metric_root_, expected.metric_root_)
    assert_array_equal(model.predict(X), expected.predict(X))


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
def test_a_fit_that_breaks_off_leaves_the_earlier_one(
    fails_at, fails_later, two_of_ten
):
    X, y, *_ = two_of_ten
    model = machine(fails_later(0, None), metric="diagonal", max_rounds=2).fit(X, y)
    expected, before = model.predict(X), dict(vars(model))
    fails_later(fails_at, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y + 1)
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is before[name] for name in before)
    assert_array_equal(model.predict(X), expected)


def test_a_plain_kernel_that_fails_is_an_error(fails_later, two_of_ten):
    with pytest.raises(ValueError, match="no more"):
        machine(fails_later(1, ValueError)).fit(*two_of_ten[:2])


BAD = [
    ({"estimator": Ridge()}, "estimator must be a regressor on kernels.*got Ridge"),
    ({"estimator": EigenProClassifier()}, "estimator must be a regressor.*got EigenPr"),
    ({"estimator": EigenProRegressor}, "estimator must be a regressor.*got <class"),
    ({"estimator": LinearEigenProRegressor()}, "estimator must be a regressor.*Linear"),
    ({"estimator": RFMRegressor()}, "estimator must be a regressor.*got RFMRegressor"),
    ({"estimator": "eigenpro"}, "estimator must be a regressor.*got 'eigenpro'"),
    (
        {"estimator": DSGRegressor(loss="pinball", quantile=[0.1, 0.9])},
        r"estimator must predict one quantile, .*got quantile=\[0.1, 0.9\]: fit one",
    ),
    (
        {"estimator": EigenProRegressor("precomputed")},
        "estimator must have a kernel by name.*got kernel='precomputed'",
    ),
    ({"estimator": EigenProRegressor(cdist)}, "estimator must have a kernel by name"),
    (
        {"estimator": EigenProRegressor(type("Odd", (Gaussian,), {"left": None})())},
        "declares no gradient",
    ),
    ({"estimator": EigenProRegressor(bandwidth=-1.0)}, "bandwidth must be positive"),
    ({"metric": "none"}, "metric must be 'auto', 'diagonal' or 'full'; got 'none'"),
    ({"metric": None}, "metric must be 'auto', 'diagonal' or 'full'; got None"),
    ({"metric": np.eye(10)}, "metric must be 'auto', 'diagonal' or 'full'; got array"),
    ({"max_rounds": -1}, "max_rounds must be an integer >= 0; got -1"),
    ({"max_rounds": 1.5}, "max_rounds must be an integer >= 0; got 1.5"),
    ({"max_gradient_rows": 0}, "max_gradient_rows must be an integer >= 1; got 0"),
    ({"max_metric_rows": 9}, "max_metric_rows must be an integer >= 10; got 9"),
    ({"max_metric_rows": None}, "max_metric_rows must be an integer >= 10; got None"),
    ({"validation_fraction": 0.0}, "validation_fraction must be .* > 0 and < 1; got 0"),
    ({"validation_fraction": 1}, "validation_fraction must be .* > 0 and < 1; got 1"),
]


@pytest.mark.parametrize("options, message", BAD)
def test_parameters_are_checked(options, message, two_of_ten):
    with pytest.raises(ValueError, match=message):
        machine(**options).fit(*two_of_ten[:2])


def test_a_classifier_needs_a_classifier(labelled):
    with pytest.raises(ValueError, match="estimator must be a classifier on kernels"):
        RFMClassifier(EigenProRegressor()).fit(*labelled)


def test_rows_are_checked(two_of_ten):
    X, y, *_ = two_of_ten
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        machine().fit(scipy.sparse.csr_array(X), y)
    model = machine(max_rounds=0).fit(X, y)
    for method in (model.predict, model.transform):
        with pytest.raises(ValueError, match="X has 3 features, but RFMRegressor"):
            method(X[:, :3])


# With other tools


def test_random_state(two_of_ten):
    X, y, *_ = two_of_ten
    options = {"max_metric_rows": 100, "max_gradient_rows": 50, "max_rounds": 1}
    one, same, other = (
        machine(EigenProRegressor(), random_state=seed, **options).fit(X, y)
        for seed in (0, 0, 1)
    )
    assert_array_equal(one.metric_root_, same.metric_root_)
    assert_array_equal(one.predict(X), same.predict(X))
    assert not np.array_equal(one.metric_root_, other.metric_root_)
    assert one.estimator.random_state is None


def test_verbose_shows_the_rounds(two_of_ten, capsys):
    X, y, *_ = two_of_ten
    model = machine(max_rounds=1, verbose=1).fit(X, y)
    first, *lines, last = capsys.readouterr().out.splitlines()
    assert first.startswith("RFMRegressor: fitting the plain kernel  0.")
    kinds = "plain kernel", "diagonal metric, round 1 of 1", "full metric, round 1 of 1"
    errors = [1 - score for score in model.validation_scores_["score"]]
    assert [line.rpartition("  ")[0] for line in lines] == [
        f"RFMRegressor: {kind}: relative squared error, held-out rows, {value:.4g}"
        for kind, value in zip(kinds, errors, strict=True)
    ]
    assert last.startswith(f"RFMRegressor: {kinds[np.argmin(errors)]}: chosen, now")


def test_verbose_tells_the_seconds_to_go(two_of_ten, capsys, monkeypatch):
    monkeypatch.setattr("eigenkern.fitting.model.planned_seconds", lambda *_: 1e4)
    machine(max_rounds=1, verbose=1).fit(*two_of_ten[:2])
    first, *_ = capsys.readouterr().out.splitlines()
    assert re.search(r": fitting the plain kernel  .* s, about \d+ s to go$", first)


def test_verbose_names_the_brier_score(two_of_ten, capsys):
    X, y, *_ = two_of_ten
    model = RFMClassifier(max_rounds=1, metric="diagonal", verbose=1, random_state=0)
    model.fit(X, y > np.median(y))
    error = 1 - model.validation_scores_["score"][0]
    line = f"plain kernel: relative Brier score, held-out rows, {error:.4g}  "
    assert line in capsys.readouterr().out


def test_callbacks_see_the_model_of_a_round(two_of_ten):
    X, y, *_ = two_of_ten
    plain = machine(metric="diagonal", max_rounds=2).fit(X, y)
    monitor = ScoringMonitor(scoring="r2")
    model = machine(metric="diagonal", max_rounds=2).set_callbacks(monitor).fit(X, y)
    assert_array_equal(model.metric_root_, plain.metric_root_)
    assert_array_equal(model.predict(X), plain.predict(X))
    log = [row for row in monitor.get_logs().data if row["task_name"] == "round"]
    assert [row["task_id"] for row in log] == [0, 1, 2, 3]  # the last is the chosen one
    expected = clone(PLAIN).fit(X, y)
    assert log[0]["r2"] == pytest.approx(expected.score(X, y), rel=1e-9)
    assert log[-1]["r2"] == pytest.approx(model.score(X, y), rel=1e-9)


def test_copies(two_of_ten):
    X, y, *_ = two_of_ten
    model = machine(metric="full", max_rounds=1).fit(X, y)
    copy = pickle.loads(pickle.dumps(model))
    assert_array_equal(copy.predict(X), model.predict(X))
    assert_array_equal(copy.metric_, model.metric_)
    assert_array_equal(copy.fit(X, y).metric_root_, model.metric_root_)
    other = clone(model)
    assert not hasattr(other, "metric_root_") and not hasattr(other, "metric_")
    assert other.get_params()["estimator__kernel"] == "laplacian"


def test_grid_search_and_pipeline(two_of_ten):
    X, y, X_test, y_test = two_of_ten
    units = np.logspace(-3, 3, 10)
    model = make_pipeline(StandardScaler(), machine(metric="diagonal", max_rounds=1))
    grid = {"rfmregressor__estimator__bandwidth": [0.01, "median"]}
    search = GridSearchCV(model, grid, cv=2).fit(X * units, y)
    assert search.best_params_ == {"rfmregressor__estimator__bandwidth": "median"}
    assert search.score(X_test * units, y_test) > 0.5


def test_a_search_has_the_scores_of_single_fits(two_of_ten):
    X, y, *_ = two_of_ten
    grid = {"metric": ["diagonal", "full"], "max_rounds": [0, 1]}
    search = GridSearchCV(RFMRegressor(random_state=0), grid, cv=KFold(2)).fit(X, y)
    for i, (train, test) in enumerate(KFold(2).split(X)):
        for found, given in zip(
            search.cv_results_[f"split{i}_test_score"], search.cv_results_["params"]
        ):
            one = RFMRegressor(random_state=0, **given).fit(X[train], y[train])
            assert one.score(X[test], y[test]) == found


def test_frames(two_of_ten):
    pandas = pytest.importorskip("pandas")
    X, y, *_ = two_of_ten
    frame = pandas.DataFrame(X, columns=[f"x{i}" for i in range(10)])
    model = machine(max_rounds=1, metric="full").fit(frame, y)
    expected = machine(max_rounds=1, metric="full").fit(X, y)
    assert_array_equal(model.predict(frame), expected.predict(X))
    assert_array_equal(model.feature_names_in_, frame.columns)
    names = [f"rfmregressor{i}" for i in range(10)]
    assert_array_equal(model.get_feature_names_out(), names)
    moved = model.set_output(transform="pandas").transform(frame)
    assert list(moved.columns) == names
    assert_array_equal(moved.to_numpy(), expected.transform(X))


@pytest.mark.skipif(
    os.environ.get("SCIPY_ARRAY_API") != "1",
    reason="scikit-learn dispatches on arrays only with SCIPY_ARRAY_API=1",
)
@both_kinds
def test_other_libraries_agree_with_numpy(metric, other_xp, two_of_ten):
    X, y, X_test, _ = two_of_ten
    model = machine(metric=metric, max_rounds=2)
    expected = clone(model).fit(X, y)
    X_xp, y_xp, X_test_xp = (other_xp.asarray(array) for array in (X, y, X_test))
    with config_context(array_api_dispatch=True):
        model.fit(X_xp, y_xp)
        results = [
            (model.predict(X_test_xp), expected.predict(X_test)),
            (model.transform(X_test_xp), expected.transform(X_test)),
            (model.metric_root_, expected.metric_root_),
            (model.metric_, expected.metric_),
            (model.feature_importances_, expected.feature_importances_),
        ]
        with pytest.raises(ValueError, match="must use the same namespace"):
            model.predict(X)
    for found, values in results:
        assert array_api_compat.array_namespace(found) == other_xp
        assert_allclose(to_numpy(found), values, rtol=1e-6, atol=1e-7)
    scores = expected.validation_scores_["score"]
    assert_allclose(model.validation_scores_["score"], scores, rtol=1e-6)


@pytest.mark.parametrize("weights", ["balanced", {"rare": 5.0}])
def test_weights_of_classes_are_those_of_the_estimator(weights, rng):
    X = rng.standard_normal((400, 4))
    y = np.where(X[:, 0] + 0.8 * rng.standard_normal(400) > 1.2, "rare", "usual")
    # With a penalty and a bandwidth, which costs of classes would not choose.
    inner = EigenProClassifier(bandwidth=2.0, alpha=1e-2)
    plain = RFMClassifier(inner, max_rounds=0, random_state=0).fit(X, y)
    model = clone(plain).set_params(class_weight=weights).fit(X, y)
    counts = {"rare": (y == "rare").sum(), "usual": (y == "usual").sum()}
    expected = {"rare": 5.0, "usual": 1.0}
    if weights == "balanced":
        expected = {label: 200 / n for label, n in counts.items()}
    assert model.estimator_.class_weight == pytest.approx(expected)
    # The values are those of these weights of rows; the probabilities hardly move.
    of_rows = np.array([expected[label] for label in y])
    weighted = clone(plain).fit(X, y, of_rows)
    assert_allclose(
        model.decision_function(X), weighted.decision_function(X), atol=1e-8
    )
    assert (model.predict(X) == "rare").sum() > 1.3 * (plain.predict(X) == "rare").sum()
    P, Q = (one.predict_proba(X)[:, 0].mean() for one in (plain, model))
    assert abs(P - Q) < 0.03
    with pytest.raises(ValueError, match="class_weight must give finite"):
        clone(plain).set_params(class_weight={"rare": -1.0}).fit(X, y)


@pytest.mark.parametrize("given", [False, True])
def test_costs_of_classes_do_not_choose_the_metric(given, rng):
    X = rng.standard_normal((500, 4))
    y = np.where(X[:, 0] + 0.5 * rng.standard_normal(500) > 1.2, "rare", "usual")
    plain = RFMClassifier(max_rounds=2, random_state=0)
    judges = {"X_val": X[400:], "y_val": y[400:]} if given else {}
    plain.fit(X[:400], y[:400], **judges)
    model = clone(plain).set_params(class_weight={"rare": 20.0})
    model.fit(X[:400], y[:400], **judges)
    assert_array_equal(model.metric_root_, plain.metric_root_)
    assert model.validation_scores_ == plain.validation_scores_
    assert model.estimator_.class_weight == {"rare": 20.0, "usual": 1.0}
    assert (model.predict(X) == "rare").sum() > (plain.predict(X) == "rare").sum()
