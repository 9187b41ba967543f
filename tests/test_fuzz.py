"""Properties of every fit, on messy tables that hypothesis makes up.

The tables are the same in every run, unless EIGENKERN_FUZZ_EXAMPLES says how many new
ones to try for each test (``make fuzz``).
"""

import os
import re
import warnings
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning

from eigenkern import (
    DSGClassifier,
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeClassifier,
    FalkonLikeRegressor,
    KernelNoveltyDetector,
    KernelPCA,
    LinearEigenProClassifier,
    LinearEigenProRegressor,
    NystromClassifier,
    NystromRegressor,
    NytroClassifier,
    NytroRegressor,
    RandomFourierFeatures,
    RBFNetworkFeatures,
    RFMClassifier,
    RFMRegressor,
)

# Their defaults, with few iterations.
CLOSED_FORMS = [
    EigenProRegressor(),
    EigenProClassifier(),
    EigenProRegressor("gaussian"),
    LinearEigenProRegressor(),
    LinearEigenProClassifier(),
    NystromRegressor(),
    NystromClassifier(),
    NystromRegressor("gaussian", alpha="path"),
    NystromClassifier(alpha="path", selection="loo"),
    NytroRegressor(),
    NytroClassifier("gaussian"),
    FalkonLikeRegressor(),
    FalkonLikeClassifier(),
]
ITERATIONS = [
    EigenProRegressor(algorithm="eigenpro2", max_iter=3),
    EigenProClassifier(algorithm="eigenpro2", batch_size=2, max_iter=3),
    FalkonLikeRegressor(n_centers=5),
    DSGRegressor(max_iter=2, max_features=128),
    DSGClassifier(max_iter=2, max_features=128),
]
LEARNED = [RFMRegressor(max_rounds=1), RFMClassifier(max_rounds=1)]

N_EXAMPLES = os.environ.get("EIGENKERN_FUZZ_EXAMPLES")
FREE = {"max_examples": int(N_EXAMPLES or 1), "print_blob": True}
FIXED = {"derandomize": True, "database": None}


def examples(number):
    """Return the settings of a test: so many tables, always the same, or new ones."""
    several = FREE if N_EXAMPLES else FIXED | {"max_examples": number}
    slow = list(HealthCheck)  # a fit may take a while on a busy machine
    return settings(deadline=None, suppress_health_check=slow, **several)


def parametrized(*models):
    return pytest.mark.parametrize("model", models, ids=str)


# The tables: hypothesis draws what kind of mess, NumPy the numbers.


def levels(rng, x):
    return np.round(x)


def with_fill_values(value, rng, x):
    return np.where(rng.random(len(x)) < 0.1, value, x)


COLUMNS = {
    "normal": lambda rng, x: x,
    "constant": lambda rng, x: np.full_like(x, 7.0),
    "levels": levels,
    "sign": lambda rng, x: np.sign(x),
    "integers": lambda rng, x: np.round(100 * x),
}
WILD = {
    "heavy tails": lambda rng, x: x / rng.standard_normal(len(x)),
    "huge": lambda rng, x: 1e8 * x,
    "small": lambda rng, x: 1e-8 * x,
    "shifted": lambda rng, x: x + 1e6,
    "-999": partial(with_fill_values, -999.0),
    "1e12": partial(with_fill_values, 1e12),
    "9.97e36": partial(with_fill_values, 9.97e36),
}
TARGETS = {
    "smooth": lambda rng, f: f,
    "noisy": lambda rng, f: f + rng.standard_normal(f.shape),
    "noise": lambda rng, f: rng.standard_normal(f.shape),
    "constant": lambda rng, f: np.full_like(f, 3.0),
    "levels": levels,
    "shifted": lambda rng, f: f + 1e4,
    "small": lambda rng, f: 1e-6 * f,
}


@st.composite
def tables(draw, wild=True):
    """Draw rows, targets, codes of classes, and weights; how they are made is noted."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(2, 60))
    kinds = COLUMNS | WILD if wild else COLUMNS
    names = draw(st.lists(st.sampled_from(list(kinds)), min_size=1, max_size=6))
    Z = rng.standard_normal((n, len(names)))
    X = np.column_stack([kinds[name](rng, z) for name, z in zip(names, Z.T)])
    if draw(st.booleans()):  # a copied column
        X = np.column_stack([X, X[:, 0]])
    target = draw(st.sampled_from(list(TARGETS)))
    f = np.sin(2 * Z[:, :1]) + Z[:, -1:] @ np.ones((1, draw(st.integers(1, 2))))
    y = TARGETS[target](rng, f)
    n_classes = draw(st.integers(1, 5))
    cuts = np.quantile(y[:, 0], rng.random(n_classes - 1))
    codes = np.digitize(y[:, 0], np.sort(cuts))
    order = draw(st.sampled_from(["as drawn", "sorted", "copies"]))
    rows = np.arange(n)
    if order == "sorted":
        rows = np.argsort(y[:, 0])
    elif order == "copies":
        rows = rng.integers(n, size=n)
    dtype = draw(st.sampled_from(["f8", "f4", "i8", "?"]))
    if dtype == "i8":
        X = np.clip(X, -1e15, 1e15)
    X = (X > 0 if dtype == "?" else X).astype(dtype)
    weighting = draw(st.sampled_from(["none", "some", "zeros", "counts"]))
    weights = {
        "none": None,
        "some": rng.random(n) + 0.1,
        "zeros": rng.random(n) * (rng.random(n) < 0.5),
        "counts": rng.integers(1, 5, size=n),
    }[weighting]
    note(f"{n} rows, {names}, {target}, {n_classes} classes, {order}, {dtype}")
    return X[rows], y[rows], codes[rows], weights


def fitted(model, X, y, weights):
    """Return a fit, or None if an error says what is wrong with the input.

    The package may warn, NumPy may not.
    """
    model = clone(model).set_params(random_state=0)
    with warnings.catch_warnings():
        for category in (UserWarning, ConvergenceWarning):
            warnings.simplefilter("ignore", category)
        try:
            return model.fit(X, y, weights)
        except ValueError as error:
            names = [*model.get_params(), "X", "y", "sample_weight", "classes?"]
            assert re.search(rf"\b({'|'.join(names)})\b", str(error)), error
            event(str(error)[:40])
            return None


def targets_of(model, y, codes):
    """Return the targets of a model: numbers, or labels, some of them strings."""
    if not is_classifier(model):
        return y[:, 0] if y.shape[1] == 1 else y
    return np.array(list("zyxwv"))[codes] if codes[0] % 2 else codes


def values(model, X):
    """Return f, one column per output."""
    name = "decision_function" if is_classifier(model) else "predict"
    return getattr(model, name)(X).reshape(len(X), -1)


def encoded(model, targets):
    """Return the targets that the values approximate."""
    if not is_classifier(model):
        return targets.reshape(len(targets), -1)
    codes = np.searchsorted(model.classes_, targets)
    if len(model.classes_) > 2:
        return np.eye(len(model.classes_))[codes]
    return 2.0 * codes[:, None] - 1.0


def check_no_worse_than_the_mean(model, X, targets, weights):
    Y, F = encoded(model, targets), values(model, X)
    w = np.ones(len(Y)) if weights is None else weights
    if "Linear" in type(model).__name__:  # a few rows that cost digits are left out
        norms = np.sum(X.astype(np.float64) ** 2, axis=1)
        usual = np.median(norms[norms > 0]) if norms.any() else np.inf
        eps = np.finfo(X.dtype if X.dtype == np.float32 else np.float64).eps
        far = eps * norms > usual
        if far.sum() > max(3, 0.01 * len(far)):  # many: the model is float64
            far = np.finfo(np.float64).eps * norms > usual
        w = w * ~far
    mean = np.average(Y, axis=0, weights=w)
    if type(model).__name__ == "EigenProClassifier" and model.algorithm_ != "direct":
        mean = model.intercept_  # of the rows that are not held out
    losses = [np.average((G - Y) ** 2, axis=0, weights=w).sum() for G in (F, mean)]
    rounding = 1e-6 if F.dtype == np.float32 else 1e-12
    assert losses[0] <= 1.001 * losses[1] + rounding * np.sum(np.abs(Y).max() ** 2)


def check_probabilities(model, X):
    P = model.predict_proba(X)
    assert P.shape == (len(X), len(model.classes_))
    # A linear model may have values at fill values so large that exp(-f) is 0.
    assert ((P > 0) | ("Linear" in type(model).__name__)).all()
    assert ((P >= 0) & (P <= 1)).all()
    np.testing.assert_allclose(P.sum(axis=1), 1, atol=1e-5)
    predicted = np.searchsorted(model.classes_, model.predict(X))
    assert (P[np.arange(len(P)), predicted] >= P.max(axis=1) - 1e-6).all()


def check_fit(model, table):
    X, y, codes, weights = table
    targets = targets_of(model, y, codes)
    fit = fitted(model, X, targets, weights)
    if fit is None:
        return
    F = values(fit, X)
    assert np.isfinite(F).all()
    again = fitted(model, X, targets, weights)
    np.testing.assert_array_equal(values(again, X), F)
    if getattr(fit, "loss", "squared_error") == "squared_error":
        check_no_worse_than_the_mean(fit, X, targets, weights)
    if is_classifier(fit):
        check_probabilities(fit, X)


@parametrized(*CLOSED_FORMS, *ITERATIONS)
@examples(25)
@given(tables())
def test_a_fit_is_sound(model, table):
    check_fit(model, table)


@parametrized(*LEARNED)
@examples(6)
@given(tables())
def test_a_fit_of_a_learned_metric_is_sound(model, table):
    check_fit(model, table)


def assert_same_values(one, other, X, targets):
    """Compare two fits, in units of the targets, unless they ran epochs."""
    assert (one is None) == (other is None)
    fits = (one, other)
    if one is None or any(getattr(m, "algorithm_", "direct") != "direct" for m in fits):
        return
    scale = np.abs(encoded(one, targets) - encoded(one, targets).mean(axis=0)).max()
    rounding = 1e-2 if X.dtype == np.float32 else 1e-3
    size = rounding * scale + 1e-9 * np.abs(encoded(one, targets)).max()
    np.testing.assert_allclose(values(one, X), values(other, X), rtol=0, atol=size)


@parametrized(*CLOSED_FORMS)
@examples(15)
@given(tables(wild=False))
def test_copies_equal_integer_weights(model, table):
    X, y, codes, _ = table
    targets = targets_of(model, y, codes)
    # Repeated once more, replicates would be more observations than their weights say.
    are_distinct = len(np.unique(X, axis=0)) == len(X)
    counts = 1 + np.arange(len(X)) % 3 if are_distinct else np.full(len(X), 2)
    one = fitted(model, X, targets, counts.astype(float))
    rows = np.repeat(np.arange(len(X)), counts)
    other = fitted(model, X[rows], targets[rows], None)
    assert_same_values(one, other, X, targets)


@parametrized(*CLOSED_FORMS)
@examples(15)
@given(tables(wild=False))
def test_the_order_of_the_rows_does_not_matter(model, table):
    X, y, codes, weights = table
    targets = targets_of(model, y, codes)
    one = fitted(model, X, targets, weights)
    back = slice(None, None, -1)
    weights = None if weights is None else weights[back]
    other = fitted(model, X[back], targets[back], weights)
    assert_same_values(one, other, X, targets)


# What no parameter takes, or not every one: sizes stay small where iterations count.
HUGE = 10**12
ODD = [None, True, 0, -1, 3, HUGE, 0.5, -0.5, 1e400, float("nan"), "", "auto", "odd"]
ODD += [[], [1], ["a", 2], (0.1, 0.9), {}, {"a": 1}, {0: -1.0}, object()]
ODD += [np.ones(2), np.array("odd"), np.float32(0.25), np.int8(2), np.eye(3), 1j, b"x"]
PUBLIC = [
    *CLOSED_FORMS[:2],
    *CLOSED_FORMS[3:7],
    *CLOSED_FORMS[9:],
    *ITERATIONS,
    *LEARNED,
]
PUBLIC += [KernelPCA(), KernelNoveltyDetector()]
PUBLIC += [RandomFourierFeatures(n_components=10), RBFNetworkFeatures(n_centers=5)]
_X = np.random.default_rng(0).standard_normal((40, 3))


@parametrized(*PUBLIC)
@given(data=st.data())
@examples(12)
def test_an_odd_parameter_is_named(model, data):
    name = data.draw(st.sampled_from(sorted(model.get_params(deep=False))))
    value = data.draw(st.sampled_from(ODD))
    if name in ("max_iter", "max_rounds") and value is HUGE:
        value = 2  # so many are right, and take as long
    note(f"{name}={value!r}")
    y = (_X[:, 0] > 0).astype(int) if is_classifier(model) else _X[:, 0]
    model = clone(model).set_params(**{"random_state": 0} | {name: value})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            model.fit(_X, y)
        except (ValueError, MemoryError) as error:
            event("refused")
            assert re.search(rf"\b{name}\b", str(error))
            assert not hasattr(model, "n_features_in_")
        else:
            event("taken")
