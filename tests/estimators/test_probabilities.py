"""Probabilities: out-of-sample values by refitting, calibration by other solvers."""

from dataclasses import replace

import array_api_compat
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from eigenkern import (
    DSGClassifier,
    EigenProClassifier,
    FalkonLikeClassifier,
    LinearEigenProClassifier,
    NystromClassifier,
    NytroClassifier,
    RFMClassifier,
)
from eigenkern.arrays.array import to_numpy
from eigenkern.estimators import eigenpro_fit
from eigenkern.fitting import targets
from eigenkern.fitting.calibration import Calibration, calibrate
from eigenkern.fitting.rules import Judges
from eigenkern.kernels import Laplacian
from eigenkern.problems import closed_form as least_squares
from eigenkern.problems.basis_centers import CenterProblem
from eigenkern.problems.closed_form import LeastSquares
from eigenkern.problems.data import sample_of_classes

SIGMA, ALPHA = 2.0, 1e-3
HELD = {"early_stopping": True, "max_iter": 4, "random_state": 0}
FEW = HELD | {"max_iter": 2, "block_size": 32, "batch_size": 100}
MODELS = [
    NystromClassifier(alpha=1e-2, random_state=0),
    NystromClassifier(alpha="path", random_state=0),
    NystromClassifier(n_centers=60, alpha=1e-2, random_state=0),
    NytroClassifier(random_state=0),
    NytroClassifier(n_centers=60, random_state=0),
    FalkonLikeClassifier(alpha=1e-2, random_state=0),
    FalkonLikeClassifier(n_centers=60, alpha=1e-2, random_state=0),
    EigenProClassifier(**HELD),
    EigenProClassifier(n_centers=60, **HELD),
    LinearEigenProClassifier(**HELD),
    DSGClassifier(**FEW),
    DSGClassifier(loss="hinge", **FEW),
    DSGClassifier(loss="squared_error", **FEW),
    RFMClassifier(NystromClassifier(alpha=1e-2), max_rounds=1, random_state=0),
]
# From scikit-learn's docs, on models that end early.
pytestmark = pytest.mark.filterwarnings("ignore:.* it still falls there")


def rows(rng, n, n_classes=2):
    """Return rows, codes drawn with known probabilities, and these probabilities."""
    X = rng.uniform(-2.0, 2.0, (n, 2))
    F = np.stack([2.0 * X[:, 0], X[:, 1] - 0.5, 0.0 * X[:, 0]], axis=1)[:, -n_classes:]
    P = np.exp(log_softmax(F, axis=1))
    return X, (P.cumsum(axis=1) < rng.uniform(size=(n, 1))).sum(axis=1), P


@pytest.fixture
def found(monkeypatch):
    """Record what fits calibrate on: values, codes, weights, distinct rows."""
    calls = []

    def record(values, codes, weights, n_rows, **options):
        plain = values if values.shape[1] > 2 else 2 * values[:, 1:] - 1
        calls.append((plain, codes, weights, n_rows))
        return calibrate(values, codes, weights, n_rows, **options)

    monkeypatch.setattr(targets, "calibrate", record)
    return calls


# Out-of-sample values


@pytest.mark.parametrize("copies", [True, False], ids=["copies", "replicates"])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("on_centers", [False, True])
@pytest.mark.parametrize("model", [NystromClassifier, FalkonLikeClassifier])
def test_values_are_those_of_models_without_the_row(
    model, on_centers, n_classes, copies, rng, found
):
    if on_centers and model is FalkonLikeClassifier:
        pytest.skip("conjugate gradients hold rows out together")
    X, y, _ = rows(rng, 90, n_classes)
    # Copies, which are left out together, or replicates of another class.
    again = y[:20] if copies else 1 - y[:20] % 2
    X, y = np.concatenate([X, X[:20]]), np.concatenate([y, again])
    weights = rng.uniform(0.5, 3.0, len(y))
    options = {"bandwidth": SIGMA, "n_centers": None}
    if on_centers:
        options["centers"] = rng.uniform(-2.0, 2.0, (25, 2))
    model(alpha=ALPHA, **options).fit(X, y, weights)
    values, codes, found_weights, n_rows = found[0]
    assert_array_equal(codes, y)
    assert_allclose(found_weights / found_weights.sum(), weights / weights.sum())
    assert n_rows == (90 if copies else 110)
    for i in (0, 12, 50, 89, 95):
        others = np.arange(110) != i
        if copies:
            others = (X != X[i]).any(axis=1)
        # The penalty is N lambda, and N is smaller.
        alpha = ALPHA * weights.sum() / weights[others].sum()
        without = NystromClassifier(alpha=alpha, **options)
        without.fit(X[others], y[others], weights[others])
        expected = np.ravel(without.decision_function(X[i : i + 1]))
        assert_allclose(values[i], expected, atol=1e-8)


@pytest.mark.parametrize("n_centers", [None, 30])
def test_a_tiny_penalty_needs_no_other_way(n_centers, rng, found):
    X, y, _ = rows(rng, 80)
    centers = "uniform" if n_centers is None else X[:30]
    options = {"bandwidth": 0.5, "n_centers": n_centers, "centers": centers}
    for alpha in (0.0, 1e-15):
        NystromClassifier(alpha=alpha, **options).fit(X, y)
        values = found.pop()[0][:, 0]
        for i in (0, 40, 79):
            others = np.arange(80) != i
            without = NystromClassifier(alpha=alpha, **options).fit(
                X[others], y[others]
            )
            assert_allclose(values[i], without.decision_function(X[[i]])[0], atol=1e-3)


def test_a_sample_of_the_rows_is_left_out(rng, found, monkeypatch):
    monkeypatch.setattr(least_squares, "n_left_out", lambda *_: 40)
    X, y, P = rows(rng, 150)
    y[P[:, 1] < 0.8] = 0  # a rare class, of which a larger share is taken
    for n_centers in (None, 20):
        model = NystromClassifier(n_centers=n_centers, alpha=1e-3, random_state=0)
        model.fit(X, y)
        sample = found.pop()
        with monkeypatch.context() as patch:
            patch.setattr(least_squares, "n_left_out", lambda *_: 150)
            model.fit(X, y)
        everything = found.pop()
        assert len(sample[0]) == 40 and sample[1].sum() == min(20, y.sum())
        assert np.isin(sample[0].round(9), everything[0].round(9)).all()
        assert_allclose(np.bincount(sample[1], sample[2]), np.bincount(y))


def test_falkon_holds_rows_out(rng, found, monkeypatch):
    X, y, _ = rows(rng, 200, 3)
    held = np.arange(0, 200, 5)
    rest = np.setdiff1d(np.arange(200), held)
    monkeypatch.setattr(LeastSquares, "rows_to_hold_out", lambda self: held)
    options = {"centers": X[:30], "bandwidth": SIGMA, "alpha": 1e-3}
    model = FalkonLikeClassifier(tol=1e-8, **options).fit(X, y)
    without = NystromClassifier(**options).fit(X[rest], y[rest])
    assert_allclose(found[0][0], without.decision_function(X[held]), atol=1e-6)
    assert_array_equal(found[0][1], y[held])
    with_them = NystromClassifier(**options).fit(X, y)
    expected = with_them.decision_function(X)
    assert_allclose(model.decision_function(X), expected, atol=1e-6)


def test_falkon_holds_out_all_copies(rng, monkeypatch):
    X, y, _ = rows(rng, 100)
    positions = []
    original = LeastSquares.rows_to_hold_out

    def record(self):
        positions.append(original(self))
        return positions[-1]

    monkeypatch.setattr(LeastSquares, "rows_to_hold_out", record)
    X = np.concatenate([X, X])
    FalkonLikeClassifier(n_centers=20, alpha=1e-3).fit(X, np.concatenate([y, y]))
    assert len(positions[0]) == 40
    assert_array_equal(np.unique(positions[0] % 100, return_counts=True)[1], 2)


@pytest.mark.parametrize("n_centers", [60, 170])
def test_falkon_holds_out_no_centers_if_others_suffice(n_centers, rng, monkeypatch):
    X, y, _ = rows(rng, 200)
    held = []

    def record(self, original=LeastSquares.rows_to_hold_out):
        held.append(original(self))
        return held[0]

    monkeypatch.setattr(LeastSquares, "rows_to_hold_out", record)
    model = FalkonLikeClassifier(n_centers=n_centers, alpha=1e-2).fit(X, y)
    assert len(held[0]) == 40
    are_centers = np.isin(held[0], model.center_indices_)
    assert are_centers.any() == (n_centers == 170)  # 30 others are too few


@pytest.mark.parametrize("factorizes", [False, True])
@pytest.mark.parametrize("n_centers", [None, 30])
def test_nytro_takes_the_rows_it_selects_by(
    factorizes, n_centers, rng, found, monkeypatch
):
    route = "eigenkern.plan.of_closed_forms.factorizes"
    monkeypatch.setattr(route, lambda *args: factorizes)
    X, y, _ = rows(rng, 150, 3)
    options = {"n_centers": n_centers, "max_iter": 40, "random_state": 0}
    model = NytroClassifier(selection="holdout", **options)
    model.fit(X[:100], y[:100], X_val=X[100:], y_val=y[100:])
    assert_allclose(found[0][0], model.decision_function(X[100:]), atol=1e-8)
    assert_array_equal(found[0][1], y[100:])
    # Held-out rows, with the model of the others.
    model.fit(X, y)
    monkeypatch.setattr(route, lambda *args: not factorizes)
    model.fit(X, y)
    assert len(found[1][0]) == 30
    assert_allclose(found[1][0], found[2][0], atol=1e-8)
    assert not hasattr(NytroClassifier(selection=None), "predict_proba")


@pytest.mark.parametrize("selection", ["auto", "loo", "gcv"])
def test_nytro_leaves_rows_out_of_its_smoother(selection, rng, found):
    """With copies: y + (f - y + m (1 - s)) / (1 - h), m the change of the mean."""
    X, y, _ = rows(rng, 150)
    X[100:], y[100:] = X[:50], y[:50]
    model = NytroClassifier(bandwidth=SIGMA, selection=selection).fit(X, y)
    assert model.selection_ == ("loo" if selection == "auto" else selection)
    Y, w = 2.0 * y[:100] - 1, np.where(np.arange(100) < 50, 2.0, 1.0)
    mean, root = w @ Y / 150, np.sqrt(w)
    left = root[:, None] * Laplacian(SIGMA)(X[:100], X[:100]) * root
    left = np.eye(100) - model.step_size_ / 150 * left
    left = np.linalg.matrix_power(left, model.n_iter_)
    residual, ones = (left @ (root * v) / root for v in (Y - mean, np.ones(100)))
    moved = -w * (Y - mean) / (150 - w)
    expected = Y + (moved * ones - residual) / np.diag(left)
    values, codes, *_ = found[0]
    assert_allclose(values[:, 0], expected[np.r_[:100, :50]], atol=1e-6)
    assert_array_equal(codes, y)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize(
    "model",
    [EigenProClassifier(**HELD), EigenProClassifier(algorithm="sgd", **HELD)],
)
def test_values_are_those_of_the_best_epoch(model, n_classes, rng, found):
    X, y, _ = rows(rng, 300, n_classes)
    model.fit(X, y)
    held = ~model.dual_coef_.any(axis=1)
    assert held.sum() == 30
    expected = model.decision_function(X[held]).reshape(30, -1)
    order, expected_order = found[0][0][:, 0].argsort(), expected[:, 0].argsort()
    assert_allclose(found[0][0][order], expected[expected_order], atol=1e-10)
    assert_array_equal(found[0][1][order], y[held][expected_order])


# Calibration


@pytest.mark.parametrize("n_classes", [2, 4])
def test_calibration_has_the_least_log_loss(n_classes, rng):
    codes = rng.integers(0, n_classes, 150)
    F = 0.6 * np.eye(n_classes)[codes] + 0.3 * rng.standard_normal((150, n_classes))
    weights = rng.uniform(0.5, 2, 150)
    found = calibrate(F, codes, weights)

    def loss(theta):
        x = np.log(np.maximum(F, 0) + np.exp(theta[1])) + 0.001 * np.minimum(F, 0)
        b = theta[2:]
        log_P = log_softmax(np.exp(theta[0]) * x + b, axis=1)
        T = np.eye(n_classes)[codes] * 150 / 151 + 1 / 151 / n_classes
        away = (theta[0] - np.log(1.5)) ** 2 + (theta[1] - np.log(0.03)) ** 2
        w = weights * 150 / weights.sum()
        return -w @ (T * log_P).sum(axis=1) + b @ b + 0.01 * away

    best = minimize(loss, np.zeros(2 + n_classes), tol=1e-10)
    theta = [np.log(found.scale), np.log(found.floor), *found.offsets]
    assert_allclose(loss(np.array(theta)), best.fun, rtol=1e-10)
    assert_allclose(theta, best.x, atol=1e-3)
    assert len(found.offsets) == n_classes


@pytest.mark.parametrize("n_classes", [2, 4])
def test_calibration_keeps_the_decision(n_classes, rng):
    """Most rows whose largest value is that of class 1 are of class 0."""
    F = rng.uniform(size=(400, n_classes))
    F /= F.sum(axis=1, keepdims=True)
    top = F.argmax(axis=1)
    codes = np.where((top == 1) & (rng.uniform(size=400) < 0.8), 0, top)
    free = calibrate(F, codes, np.ones(400), keeps_decision=False)
    kept = calibrate(F, codes, np.ones(400))
    assert kept == replace(free, keeps_decision=True)
    before, after = free.scores(F), kept.scores(F)
    agrees = before.argmax(axis=1) == top
    assert 0.1 < np.mean(~agrees) < 0.5
    assert_array_equal(after.argmax(axis=1), top)
    assert_array_equal(after[agrees], before[agrees])
    # Lowered to that of the largest value, minus a tenth of the distance to it.
    lowered = after < before
    limit = np.take_along_axis(before, top[:, None], axis=1)
    limit = limit - 0.1 * (F.max(axis=1, keepdims=True) - F)
    assert_allclose(after[lowered], limit[lowered])
    if n_classes == 2:
        order = np.argsort(F[:, 1])
        assert np.all(np.diff(after[order, 1] - after[order, 0]) > 0)


def test_equal_values_are_decided_alike():
    F = np.full((3, 3), 1 / 3)
    found = Calibration(1.0, 0.1, (0.0, 2.0, 0.0))
    assert_array_equal(found.scores(F).argmax(axis=1), 0)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_calibration_knows_weights_and_their_scale(n_classes, rng):
    codes = rng.integers(0, n_classes, 60)
    F = np.eye(n_classes)[codes] + rng.standard_normal((60, n_classes))
    counts = rng.integers(0, 4, 60)
    repeated = np.repeat(np.arange(60), counts)
    found = calibrate(F, codes, counts.astype(float), 40)
    peer = calibrate(F[repeated], codes[repeated], np.full(len(repeated), 0.2), 40)
    assert_allclose(found.scale, peer.scale, rtol=1e-9)
    assert_allclose(found.floor, peer.floor, rtol=1e-9)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("case", ["separable", "constant", "absent", "two", "inverse"])
def test_calibration_of_odd_samples(n_classes, case):
    n = 2 if case == "two" else 40
    codes = np.arange(n) % (1 if case == "absent" else n_classes)
    F = np.eye(n_classes)[codes]
    F = {"constant": 0.3 * np.ones_like(F), "inverse": 1 - F}.get(case, F)
    F = np.concatenate([F, np.full((1, n_classes), np.nan)])
    found = calibrate(F, np.append(codes, 0), np.ones(n + 1))
    p = np.exp(log_softmax(found.scores(F[:n]), axis=1))[np.arange(n), codes]
    assert np.isfinite(p).all()
    if case in ("separable", "absent"):
        assert 0.95 < p.min() <= p.max() < 0.999
    elif case in ("constant", "inverse"):  # values without information
        assert_allclose(p, 1 / n_classes, atol=0.05)


def test_scores_keep_the_order_of_the_values(rng):
    F = rng.standard_normal((100, 4)) - 0.5
    assert (F.max(axis=1) < 0).any()
    for scale, floor in ((0.01, 0.1), (100.0, 1e-4), (1.0, 100.0)):
        scores = Calibration(scale, floor, (0.0,) * F.shape[1]).scores(F)
        assert_array_equal(scores.argsort(axis=1), F.argsort(axis=1))


def test_noise_has_the_frequencies_of_the_classes(rng):
    X = rng.standard_normal((400, 3))
    y = (rng.uniform(size=400) < 0.2).astype(int)
    P = NystromClassifier(alpha=1.0).fit(X, y).predict_proba(X)
    assert_allclose(P[:, 1], y.mean(), atol=0.08)


def test_sample_of_classes(rng):
    codes = np.repeat([0, 1, 3], [300, 20, 5])
    chosen, stands_for = sample_of_classes(codes, 100, np.random.RandomState(0))
    assert_array_equal(np.bincount(codes[chosen]), [75, 20, 0, 5])
    assert_allclose(np.bincount(codes[chosen], stands_for), [300, 20, 0, 5])
    assert (np.diff(chosen) > 0).all()
    chosen, stands_for = sample_of_classes(codes, 400, np.random.RandomState(0))
    assert_array_equal(chosen, np.arange(325))
    assert_array_equal(stands_for, 1.0)


# Estimators


# A kernel machine that fits the noise is no better on the held-out rows than the mean.
@pytest.mark.filterwarnings("ignore:EigenProClassifier learned nothing")
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__[:8])
def test_probabilities_are_as_good_as_the_values(model, n_classes, rng):
    X, codes, _ = rows(rng, 600, n_classes)
    X_test, codes_test, _ = rows(rng, 1500, n_classes)
    y = np.array(["c", "a", "b"])[codes]
    assert hasattr(model, "predict_proba")
    model.fit(X, y)
    P, log_P = model.predict_proba(X_test), model.predict_log_proba(X_test)
    assert P.shape == (1500, n_classes)
    assert_allclose(P.sum(axis=1), 1.0)
    assert_allclose(np.log(P), log_P, atol=1e-9)
    # A regression of the test rows on the values is the best possible calibration; with
    # three classes it also improves a linear model.
    F = model.decision_function(X_test).reshape(1500, -1)
    best = LogisticRegression(C=np.inf, max_iter=1000).fit(F, codes_test)
    P = P[:, np.searchsorted(model.classes_, ["c", "a", "b"][:n_classes])]
    assert log_loss(codes_test, P) < 1.2 * log_loss(codes_test, best.predict_proba(F))
    likeliest = np.array(["c", "a", "b"])[P.argmax(axis=1)]
    assert_array_equal(likeliest, model.predict(X_test))


@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__[:8])
def test_one_class(model, rng):
    X = rng.standard_normal((90, 2))
    model.fit(X, np.full(90, 7))
    assert_array_equal(model.predict_proba(X), np.ones((90, 1)))
    assert_array_equal(model.predict_log_proba(X), np.zeros((90, 1)))


def test_two_rows():
    X, y = np.array([[0.0], [1.0]]), np.array([0, 1])
    for n_centers in (None, 2):
        model = NystromClassifier(n_centers=n_centers, bandwidth=1.0)
        assert_allclose(model.fit(X, y).predict_proba(X).sum(axis=1), 1.0)
        for other in (model, FalkonLikeClassifier(n_centers=1, bandwidth=1.0)):
            same = other.set_params(n_centers=1)
            with pytest.warns(ConvergenceWarning, match="rows of X with weight are eq"):
                same.fit(np.zeros((2, 1)), y)
            assert_allclose(same.predict_proba(X), 0.5, atol=1e-6)


def test_log_probabilities_stay_finite(rng):
    X, y, _ = rows(rng, 300, 3)
    for n_classes in (2, 3):
        model = DSGClassifier(max_iter=3, random_state=0)
        model.fit(X[y < n_classes], y[y < n_classes])
        model.intercept_ = 1e4 * model.intercept_ / np.abs(model.intercept_).max()
        log_P = model.predict_log_proba(X)
        assert log_P.min() < -1000 and np.isfinite(log_P).all()
        assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_class_weights_move_the_decision_alone(n_classes, rng):
    X, y, _ = rows(rng, 1500, n_classes)
    rare = (y == 1) & (rng.uniform(size=1500) < 0.8)
    X, y = X[~rare], y[~rare]
    plain = NystromClassifier(alpha=1e-2).fit(X, y)
    weights = {0: 1.0, 1: 8.0, 2: 1.0}
    weighted = NystromClassifier(
        alpha=1e-2, class_weight={c: weights[c] for c in range(n_classes)}
    ).fit(X, y)
    decided = [np.mean(model.predict(X) == 1) for model in (plain, weighted)]
    assert decided[1] > 2 * decided[0]
    mean = [model.predict_proba(X).mean(axis=0) for model in (plain, weighted)]
    assert_allclose(mean[1], mean[0], atol=0.06)
    # Sample weights, however, mean more rows.
    repeated = NystromClassifier(alpha=1e-2).fit(X, y, np.where(y == 1, 8.0, 1.0))
    assert repeated.predict_proba(X)[:, 1].mean() > 2 * mean[0][1]


@pytest.mark.parametrize(
    "model",
    [
        EigenProClassifier(algorithm="sgd", alpha=0.0, max_iter=2),
        LinearEigenProClassifier(alpha=0.0, damping=1.0, max_iter=2),
        DSGClassifier(loss="hinge", max_iter=2),
        NytroClassifier(selection=None, max_iter=5),
    ],
)
def test_there_are_none_without_rows_held_out(model, rng):
    X, y, _ = rows(rng, 60)
    for fitted in (False, True):
        if fitted:
            model.fit(X, y)
        assert not hasattr(model, "predict_log_proba")
        with pytest.raises(AttributeError, match="predict_proba") as error:
            _ = model.predict_proba
        text = str(error.value)
        assert "CalibratedClassifierCV" in text and "log_loss" in text
        assert ("early_stopping=True" in text) != ("selection='auto'" in text)


@pytest.mark.parametrize(
    "model",
    [
        EigenProClassifier(algorithm="eigenpro4", n_centers=20, **HELD),
        LinearEigenProClassifier(damping=1.0, **HELD),
        DSGClassifier(loss="hinge", **HELD),
    ],
)
def test_a_calibration_goes_with_its_model(model, rng):
    X, y, _ = rows(rng, 200)
    model.fit(X, y)
    assert isinstance(model.calibration_, Calibration)
    model.set_params(early_stopping=False, alpha=0.0)
    assert hasattr(model, "predict_proba")
    before = model.predict_proba(X)
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :1], y)
    assert_array_equal(model.predict_proba(X), before)
    model.partial_fit(X, y)
    assert not hasattr(model, "predict_proba")
    assert not hasattr(model, "calibration_")
    model.set_params(early_stopping=True).fit(X, y)
    assert hasattr(model, "predict_proba")
    model.set_params(early_stopping=False).fit(X, y)
    assert not hasattr(model, "predict_proba")


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("n_centers", [None, 30])
def test_copies_weights_and_order_change_nothing(n_centers, n_classes, rng):
    X, y, _ = rows(rng, 120, n_classes)
    counts = rng.integers(0, 4, 120)
    repeated = rng.permutation(np.repeat(np.arange(120), counts))
    for model in (
        NystromClassifier(n_centers=n_centers, alpha=1e-3, random_state=0),
        NytroClassifier(n_centers=n_centers, random_state=0),
    ):
        P = model.fit(X, y, counts).predict_proba(X)
        Q = model.fit(X[repeated], y[repeated]).predict_proba(X)
        assert_allclose(P, Q, atol=1e-6)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("model", [MODELS[0], MODELS[2], MODELS[6]])
def test_other_array_libraries(model, n_classes, other_xp, rng):
    X, y, _ = rows(rng, 200, n_classes)
    expected = model.fit(X, y).predict_proba(X)
    with config_context(array_api_dispatch=True):
        model.fit(other_xp.asarray(X), other_xp.asarray(y))
        P = model.predict_proba(other_xp.asarray(X))
        log_P = model.predict_log_proba(other_xp.asarray(X))
    assert array_api_compat.array_namespace(P) == other_xp
    assert_allclose(to_numpy(P), expected, atol=1e-3)
    assert_allclose(to_numpy(log_P), np.log(to_numpy(P)), atol=1e-9)


def test_single_precision_stays_so(rng):
    X, y, _ = rows(rng, 100, 3)
    model = NystromClassifier().fit(X.astype(np.float32), y)
    assert model.predict_proba(X.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_are_left_out_of_the_direct_solution(weighted, n_classes, rng, found):
    X, y, _ = rows(rng, 60, n_classes)
    w = rng.uniform(0.5, 2.0, 60) if weighted else np.ones(60)
    kernel = Laplacian(1.0)
    EigenProClassifier(kernel, alpha=0.01, random_state=0).fit(X, y, sample_weight=w)
    Y = np.eye(3)[y] if n_classes == 3 else 2.0 * y[:, None] - 1.0
    mean = np.average(Y, axis=0, weights=w)
    A = kernel(X) + 0.01 * 60 * np.diag(w.mean() / w)  # as if the mean did not change
    expected = np.empty_like(Y)
    for i in range(60):
        rest = np.arange(60) != i
        a = np.linalg.solve(A[np.ix_(rest, rest)], Y[rest] - mean)
        expected[i] = kernel(X[i : i + 1], X[rest]) @ a + mean
    values, codes, weights, _ = found[-1]
    order = np.random.RandomState(0).permutation(60)  # the solver's
    assert_allclose(values, expected[order], rtol=1e-5, atol=1e-6)
    assert_array_equal(codes, y[order])
    assert_allclose(weights, w[order])


BY_EPOCHS = [
    EigenProClassifier(algorithm="eigenpro2", bandwidth=3.0, random_state=0),
    EigenProClassifier(
        algorithm="eigenpro4", n_centers=50, bandwidth=3.0, random_state=0
    ),
    LinearEigenProClassifier(batch_size=100, random_state=0),
]
by_epochs = pytest.mark.parametrize(
    "model", BY_EPOCHS, ids=["eigenpro2", "eigenpro4", "linear"]
)


def calibrated_on(weights, found):
    """Return which rows a fit was calibrated on, by their weights, all different."""
    order = np.argsort(weights)
    return order[np.searchsorted(weights[order], found[-1][2])]


@by_epochs
@pytest.mark.parametrize("n_classes", [2, 3])
def test_epochs_calibrate_on_rows_of_all_classes(model, n_classes, rng, found):
    X, y, _ = rows(rng, 300, n_classes)
    weights = rng.uniform(0.5, 2.0, 300)
    model = clone(model).fit(X, y, weights)
    held = calibrated_on(weights, found)
    assert len(held) == len(np.unique(held)) == 30
    assert_allclose(found[-1][2], weights[held])
    assert_array_equal(found[-1][1], y[held])
    assert np.abs(np.bincount(y[held]) - np.bincount(y) / 10).max() <= 1
    values = model.decision_function(X[held]).reshape(30, -1)
    if model.algorithm_ == "eigenpro4":  # does not learn them
        assert_allclose(found[-1][0], values, atol=1e-10)
    else:
        T = 2.0 * y[held, None] - 1 if n_classes == 2 else np.eye(3)[y[held]]
        errors = [np.mean((F - T) ** 2) for F in (found[-1][0], values)]
        assert errors[1] < errors[0]


def test_models_on_centers_do_not_learn_the_rows_to_calibrate_on(rng, found):
    X, y, _ = rows(rng, 300)
    weights = rng.uniform(0.5, 2.0, 300)
    # More than one epoch could end at another one.
    model = clone(BY_EPOCHS[1]).set_params(max_iter=1).fit(X, y, weights)
    held = calibrated_on(weights, found)
    X_new = rng.uniform(-2.0, 2.0, (50, 2))
    F, P = model.decision_function(X_new), model.predict_proba(X_new)
    others = X.copy()
    others[held] += 0.3 * rng.standard_normal((30, 2))
    model.fit(others, y, weights)
    assert_allclose(model.decision_function(X_new), F, rtol=1e-7, atol=1e-9)
    assert np.abs(model.predict_proba(X_new) - P).max() > 1e-3


def ridge_values(model, X, T, w, learned):
    """Return f(X) of ridge regression on some rows, with targets centered on all."""
    Z, penalty = X[learned], model.alpha_ * len(X)
    w, T = (w / w.mean())[learned], T[learned]
    if isinstance(model, LinearEigenProClassifier):
        gram = Z.T @ (w[:, None] * Z) + penalty * np.eye(X.shape[1])
        return X @ np.linalg.solve(gram, Z.T @ (w[:, None] * T))
    K = model.kernel_(Z) + penalty * np.diag(1.0 / w)
    return model.kernel_(X, Z) @ np.linalg.solve(K, T)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("model", BY_EPOCHS[::2], ids=["eigenpro2", "linear"])
def test_epochs_calibrate_on_a_model_without_the_rows(
    model, n_classes, rng, found, monkeypatch
):
    def last(judges, coef, *_):
        judges.coef = coef

    monkeypatch.setattr(Judges, "update", last)
    X, y, _ = rows(rng, 200, n_classes)
    w = rng.uniform(0.5, 2.0, 200)
    model = clone(model).set_params(alpha=0.03, max_iter=200, tol=0.0)
    if model.__class__ is LinearEigenProClassifier:
        model.set_params(batch_size=200)  # steps on batches keep some noise
    model.fit(X, y, w)
    held, every = calibrated_on(w, found), np.arange(200)
    T = 2.0 * y[:, None] - 1.0 if n_classes == 2 else np.eye(3)[y]
    mean, center = (np.average(A, axis=0, weights=w) for A in (T, X))
    given = model, X - center, T - mean, w
    expected = mean + ridge_values(*given, np.delete(every, held))[held]
    assert_allclose(found[-1][0], expected, atol=1e-6)
    values = model.decision_function(X).reshape(200, -1)  # all rows are learned
    assert_allclose(values, mean + ridge_values(*given, every), atol=1e-6)


@by_epochs
def test_copies_are_held_out_together(model, rng, found):
    X, y, _ = rows(rng, 150)
    X, y = np.concatenate([X, X]), np.concatenate([y, y])
    clone(model).fit(X, y)
    values = np.sort(found[-1][0], axis=0)
    assert_allclose(values[::2], values[1::2])
    assert len(values) == 30 and found[-1][3] == 15


def test_at_most_1000_rows_are_held_out(rng, found):
    X, y, _ = rows(rng, 12000)
    LinearEigenProClassifier(batch_size=1000, max_iter=1, random_state=0).fit(X, y)
    assert len(found[0][0]) == 1000


@by_epochs
def test_epochs_hold_out_no_class_of_one_row(model, rng, found):
    y = np.minimum(np.arange(40), 3)
    X = rng.standard_normal((40, 2)) + 5.0 * y[:, None]
    model = clone(model).set_params(batch_size=4)
    if getattr(model, "n_centers", None):
        model.set_params(n_centers=3)
    model.fit(X, y)
    assert_array_equal(np.unique(found[0][1]), 3)
    model.fit(X[:4], y[:4])  # no row is left to calibrate on
    P = model.predict_proba(X[:4])
    assert_allclose(P.sum(axis=1), 1.0)
    assert_array_equal(P.argmax(axis=1), model.predict(X[:4]))


@by_epochs
def test_no_rows_are_held_out_without_a_penalty_or_to_continue(model, rng):
    X, y, _ = rows(rng, 100)
    for parameters in ({"alpha": 0.0}, {"warm_start": True}):
        model = clone(model).set_params(**parameters)
        assert not hasattr(model, "predict_proba")
        model.fit(X, y)
        assert not hasattr(model, "predict_proba")
        if model.__class__ is EigenProClassifier and model.n_centers is None:
            assert model.dual_coef_.all()


def test_a_direct_solution_that_fails_leaves_rows_to_calibrate_on(monkeypatch, rng):
    X, y, _ = rows(rng, 300)
    monkeypatch.setattr(eigenpro_fit.OnRows, "solved", lambda basis, ridge: None)
    model = EigenProClassifier(random_state=0).fit(X, y)
    assert model.algorithm_ == "eigenpro2"
    assert model.dual_coef_.all()
    assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)


def test_rows_that_are_centers_are_not_left_out(monkeypatch):
    X, y = load_digits(return_X_y=True)
    X, y, X_test, y_test = X[:600], y[:600], X[600:], y[600:]
    losses = []
    for able in (CenterProblem._able_to_leave_out, lambda problem: np.full(600, True)):
        monkeypatch.setattr(CenterProblem, "_able_to_leave_out", able)
        model = NystromClassifier(n_centers=400, alpha=1e-8, random_state=0).fit(X, y)
        losses.append(log_loss(y_test, model.predict_proba(X_test)))
    assert losses[0] < 0.9 * losses[1]
