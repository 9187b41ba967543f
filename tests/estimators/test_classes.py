"""Classes as found in practice: rare, many, and with labels of any type."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.metrics import average_precision_score, balanced_accuracy_score
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV

from eigenkern import (
    DSGClassifier,
    EigenProClassifier,
    FalkonLikeClassifier,
    LinearEigenProClassifier,
    NystromClassifier,
    NytroClassifier,
    RFMClassifier,
)
from eigenkern.fitting.model import split
from eigenkern.problems.data import Data

seed_of = np.random.RandomState

WEIGHTED = [
    DSGClassifier(block_size=16, max_iter=1, random_state=0),
    EigenProClassifier(alpha=1e-2, random_state=0),
    EigenProClassifier(n_centers=20, random_state=0),
    FalkonLikeClassifier(alpha=1e-2, random_state=0),
    LinearEigenProClassifier(random_state=0),
    NystromClassifier(alpha=1e-3, random_state=0),
    NystromClassifier(alpha="path", random_state=0),
    NytroClassifier(random_state=0),
]
CLASSIFIERS = [
    *WEIGHTED,
    RFMClassifier(NystromClassifier(alpha=1e-3), max_rounds=1, random_state=0),
]
EPOCHS = [
    DSGClassifier(early_stopping=True, max_iter=5, random_state=0),
    EigenProClassifier(early_stopping=True, random_state=0),
    EigenProClassifier(early_stopping=True, n_centers=20, random_state=0),
    LinearEigenProClassifier(early_stopping=True, random_state=0),
]
weighted = pytest.mark.parametrize("model", WEIGHTED, ids=repr)
every_one = pytest.mark.parametrize("model", CLASSIFIERS, ids=repr)
of_epochs = pytest.mark.parametrize("model", EPOCHS, ids=repr)


@pytest.fixture
def imbalanced(rng):
    """300 rows, 36 of them of class 1, some of these among rows of class 0."""
    y = (np.arange(300) % 25 < 3).astype(int)
    return rng.standard_normal((300, 2)) + 1.5 * y[:, None], y


@weighted
def test_balanced_weights_are_explicit_ones(model, imbalanced):
    X, y = imbalanced
    fitted = [
        model.set_params(class_weight=weight).fit(X, y).decision_function(X)
        for weight in ("balanced", {0: 300 / (2 * 264), 1: 300 / (2 * 36)}, None)
    ]
    model.set_params(class_weight=None)
    assert_allclose(fitted[0], fitted[1], rtol=1e-6, atol=1e-9)
    w = np.where(y == 1, 300 / 72, 300 / 528)
    # Costs of classes do not choose bandwidth, penalty and iterations; weights do.
    same, given = clone(model), model.get_params()
    if "bandwidth" in given:
        same.set_params(bandwidth=2.0)
        if given.get("alpha") in ("auto", "path"):
            same.set_params(alpha=1e-3)
        if "tol" in given and "alpha" not in given:
            same.set_params(selection=None, max_iter=30)
    of_rows = clone(same).fit(X, y, w).decision_function(X)
    same.set_params(class_weight="balanced").fit(X, y)
    assert_allclose(same.decision_function(X), of_rows, rtol=1e-6, atol=1e-9)
    # The rare class is predicted more often.
    assert (fitted[0] > 0).sum() > (fitted[2] > 0).sum()


@every_one
def test_thresholds_are_tuned(model, imbalanced):
    X, y = imbalanced
    tuned = TunedThresholdClassifierCV(
        model, scoring="balanced_accuracy", cv=3, random_state=0
    ).fit(X[::2], y[::2])
    plain = tuned.estimator_.predict(X[1::2])
    assert balanced_accuracy_score(y[1::2], tuned.predict(X[1::2])) > (
        balanced_accuracy_score(y[1::2], plain) + 0.03
    )
    never = FixedThresholdClassifier(
        model, threshold=1e9, response_method="decision_function"
    )
    assert (never.fit(X, y).predict(X) == 0).all()


@of_epochs
def test_a_class_of_one_row_stays_in_training(model, three_classes):
    X, y = three_classes
    X, y = np.concatenate([X, [[9.0, -9.0]]]), np.append(y, 3)
    model.fit(X, y)
    assert_array_equal(model.classes_, [0, 1, 2, 3])
    assert model.score(X, y) > 0.6


@pytest.mark.parametrize("seed", range(5))
def test_every_class_is_trained_with(seed):
    codes = np.repeat(np.arange(5), [60, 36, 2, 1, 1])
    weights = np.where(np.arange(100) == 99, 0.0, 1.0)  # none of the last class
    X = np.arange(100.0)[:, None]
    data = Data(X, codes[:, None], codes, weights, seed_of(seed), codes)
    model = EigenProClassifier(early_stopping=True, validation_fraction=0.1)
    same, train, held_out = split(model, data, True)
    assert same is data
    assert_array_equal(np.sort([*train, *held_out]), np.arange(99))
    assert_array_equal(np.bincount(codes[held_out], minlength=5), [6, 4, 0, 0, 0])
    again = split(model, replace(data, rng=seed_of(seed)), True)
    assert_array_equal(again[1], train)


@of_epochs
def test_nothing_can_be_held_out_of_classes_of_one_row(model, rng):
    X = rng.standard_normal((12, 2))
    message = (
        "validation_fraction must leave at least 2 rows to score and 2 to train with, "
        "and one of each class; got 0.1 of 12 rows"
    )
    with pytest.raises(ValueError, match=message):
        model.fit(X, np.arange(12))


@every_one
def test_a_class_of_one_row(model, three_classes):
    X, y = three_classes
    X, y = np.concatenate([X, [[9.0, -9.0]]]), np.append(y, 3)
    assert_array_equal(model.fit(X, y).classes_, [0, 1, 2, 3])
    assert model.score(X, y) > 0.5


LABELS = {
    "bool": [False, True],
    "str": ["ant", "bee", "cat"],
    "object": np.array(["ant", "bee", "cat"], dtype=object),
    "negative": [-7, -1, 3],
    "float": [-2.0, 1.0, 5.0],
    "uint8": np.array([3, 200, 255], dtype=np.uint8),
    "Categorical": pd.Categorical(["ant", "bee", "cat"]),
    "ordered Categorical": pd.Categorical(["b", "c", "a"], ["c", "b", "a"], True),
    "Int64": pd.array([-1, 5, 7], dtype="Int64"),
    "boolean": pd.array([False, True], dtype="boolean"),
    "string": pd.array(["ant", "bee", "cat"], dtype="string"),
    "string of Python": pd.array(["ant", "bee", "cat"], dtype="string[python]"),
}


@every_one
@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_any_type(model, kind, three_classes):
    X, codes = three_classes
    labels = LABELS[kind]
    keep = codes < len(labels)
    X, codes = X[keep], codes[keep]
    y = pd.Series(labels).take(codes) if hasattr(labels, "dtype") else labels
    if not hasattr(labels, "dtype"):
        y = np.array(labels)[codes]
    expected = np.asarray(pd.Series(labels).tolist())
    model.fit(X, y)
    assert_array_equal(model.classes_, np.unique(expected))
    predicted = model.predict(X)
    assert set(predicted.tolist()) <= set(expected.tolist())
    assert model.score(X, y) == np.mean(predicted == expected[codes]) > 0.6
    # Columns are in the order of classes_.
    values = model.decision_function(X)
    columns = values > 0 if values.ndim == 1 else values.argmax(axis=1)
    assert_array_equal(model.classes_[columns.astype(int)], predicted)


@pytest.mark.parametrize(
    "model, least",
    [
        (EigenProClassifier(random_state=0), 0.95),
        (EigenProClassifier(early_stopping=True, max_iter=2, random_state=0), 0.9),
        (EigenProClassifier(n_centers=500, max_iter=3, random_state=0), 0.3),
        (FalkonLikeClassifier(n_centers=200, random_state=0), 0.1),
        (LinearEigenProClassifier(max_iter=2, random_state=0), 0.2),
        (NystromClassifier(random_state=0), 0.95),
    ],
    ids=repr,
)
# Two epochs lower the loss of a thousand columns, nearly all zeros, by less than 0.1 %.
@pytest.mark.filterwarnings("ignore:LinearEigenProClassifier learned nothing")
def test_a_thousand_classes(model, least, rng):
    y = np.arange(2000) % 1000
    means = rng.standard_normal((1000, 16))
    X = (means[y] + 0.1 * rng.standard_normal((2000, 16))).astype(np.float32)
    X_test = (means + 0.1 * rng.standard_normal(means.shape)).astype(np.float32)
    model.fit(X, y)
    assert model.decision_function(X_test[:5]).shape == (5, 1000)
    assert model.score(X_test, np.arange(1000)) > least


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "options",
    [{"early_stopping": True}, {"early_stopping": True, "n_centers": 300}],
    ids=str,
)
def test_epochs_order_rows_of_a_costly_rare_class(options, seed):
    """One or two of 150 held-out rows are of that class."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((3000, 4))
    P = np.clip(1.35 * np.exp(-2.0 * ((X - 1.0) ** 2).sum(axis=1)), 0.0, 0.9)
    y = (rng.random(3000) < P).astype(int)
    model = EigenProClassifier(class_weight="balanced", random_state=0, **options)
    values = model.fit(X[:1500], y[:1500]).decision_function(X[1500:])
    assert average_precision_score(y[1500:], values) > 0.2 > 10 * y.mean()
