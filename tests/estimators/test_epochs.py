"""The stopping rule of epochs: which coefficients become the model."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import config_context
from sklearn.base import clone, is_classifier

from eigenkern import (
    DSGClassifier,
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    LinearEigenProClassifier,
    LinearEigenProRegressor,
)
from eigenkern.fitting.rules import EpochRule, Judges
from eigenkern.methods.state import State


def after_epochs(scores, losses=None):
    """Return a rule after epochs with some scores, or accuracies and losses.

    Coefficients are the numbers of the epochs; the last value, -1, is that of the
    constant model.
    """
    problem = SimpleNamespace(
        within=0.0,
        initial_coef=lambda: -1,
        validation_values=lambda coef: coef,
        losses_of=lambda _, epoch: np.array([losses[epoch]]),
        fitted_attributes=lambda coef: {"coef_": coef},
    )
    model = SimpleNamespace(
        max_iter=len(scores) - 1,
        tol=1e-4,
        n_iter_no_change=5,
        _score_is_accuracy=losses is not None,
        _score_values=lambda epoch, *_: scores[epoch],
    )
    data = SimpleNamespace(
        labels=np.zeros(1),
        targets=np.zeros((1, 1)),
        weights_of=np.ones_like,
        of_class=None,
        out_of_sample=lambda _, values: values,
    )
    rule = EpochRule(model, problem, data, held_out=[0])
    for i in range(len(scores) - 1):
        rule.update(State(i, loss=1.0 / (i + 1), step_size=1.0))
    return rule


@pytest.mark.parametrize(
    ("scores", "best"),
    [((0.2, 0.5, 0.4), 1), ((np.nan, 0.5, np.nan), 1), ((0.3, np.nan, 0.1), 0)],
)
def test_the_best_scored_epoch_is_the_model(scores, best):
    """A score of NaN is never the best."""
    rule = after_epochs([*scores, np.nan])
    assert rule.fitted_attributes()["coef_"] == best
    assert rule.out_of_sample() == best


@pytest.mark.parametrize(
    ("accuracies", "losses", "best"),
    [
        ((0.9, 0.9, 0.9, 0.9), (0.8, 0.3, 0.5, 0.6), 1),
        ((0.9, 0.7, 0.6, 0.9), (0.8, 0.7, 0.5, 0.6), 2),
        ((0.8, 0.91, 0.9, 0.9), (0.2, 0.9, 0.1, 0.3), 1),
        ((0.8, 0.9, 0.9, np.nan), (1.2, 1.1, 1.3, np.nan), -1),
    ],
)
def test_the_loss_ranks_epochs_no_better_than_one_class(accuracies, losses, best):
    """The constant model has accuracy .9 and loss 1."""
    attributes = after_epochs([*accuracies, 0.9], [*losses, 1.0]).fitted_attributes()
    assert attributes["coef_"] == best
    assert_array_equal(attributes["validation_scores_"], accuracies)


def judged(*errors):
    """Return after which epoch judges end the fit, and which epoch is the model.

    The first error is that of the start; those of single rows alternate around it.
    """
    signs = np.tile([1.0, -1.0], 50)
    rows = [error + spread * signs for error, spread in errors]
    judges = Judges(lambda i: np.stack([rows[i], rows[i]]), 0)
    ends = [judges.update(epoch) for epoch in range(1, len(rows))]
    return ends.index(True) + 1 if True in ends else None, judges.coef


def test_epochs_end_once_twice_as_many_gain_little():
    falling = [1.0, 0.5, 0.4, 0.35, 0.349, 0.349, 0.349]
    assert judged(*[(error, 0.0) for error in falling]) == (6, 6)
    assert judged((1.0, 0.0), (0.5, 0.0), (0.498, 0.0)) == (2, 2)
    assert judged((1.0, 0.0), (0.5, 0.0), (0.497, 0.0)) == (None, 2)


def test_epochs_do_not_end_before_one_is_better_than_the_start():
    worse = [(1.0, 0.0), (3.0, 0.0), (2.0, 0.0), (2.0, 0.0), (1.2, 0.0)]
    assert judged(*worse) == (None, 4)
    assert judged(*worse, (0.9, 0.0), (0.5, 0.0)) == (None, 6)


def test_the_model_is_the_last_epoch_that_is_not_clearly_worse():
    # The standard error of a spread of 0.1 is 0.01.
    start = (1.0, 0.0), (0.5, 0.0)
    assert judged(*start, (0.504, 0.1)) == (2, 2)
    assert judged(*start, (0.506, 0.1)) == (2, 1)


def test_a_classifier_ends_where_more_epochs_gain_nothing(rng):
    X = rng.standard_normal((1500, 4))
    y = X[:, 0] + np.sin(2 * X[:, 1]) + 0.5 * rng.standard_normal(1500) > 0
    few = EigenProClassifier(algorithm="eigenpro2", random_state=0).fit(X, y)
    assert 2 <= few.n_iter_ < 10
    assert few.validation_scores_ is None
    X_new = rng.standard_normal((4000, 4))
    truth = X_new[:, 0] + np.sin(2 * X_new[:, 1]) > 0
    many = clone(few).set_params(warm_start=True).fit(X, y)  # holds no rows out
    assert many.n_iter_ > few.n_iter_
    assert few.score(X_new, truth) > many.score(X_new, truth) - 0.01


BY_EPOCHS = [
    EigenProRegressor(),
    EigenProRegressor(algorithm="eigenpro1"),
    EigenProRegressor(n_centers=60),
    EigenProRegressor(n_centers=60, algorithm="eigenpro3-exact"),
    LinearEigenProRegressor(),
    DSGRegressor(batch_size=64, block_size=64),
    EigenProClassifier(),
    EigenProClassifier(n_centers=60),
    LinearEigenProClassifier(),
    DSGClassifier(batch_size=64, block_size=64),
]


def judged_rows(model, rng, n=200, m=80):
    """Return rows to train with, and rows to score the epochs on."""
    X = rng.standard_normal((n + m, 3))
    y = X[:, 0] + np.sin(2 * X[:, 1])
    if is_classifier(model):
        y = np.digitize(y, [-0.5, 0.5])
    return X[:n], y[:n], X[n:], y[n:]


@pytest.mark.parametrize("model", BY_EPOCHS, ids=str)
def test_given_rows_score_the_epochs(model, rng):
    X, y, X_val, y_val = judged_rows(model, rng)
    model = clone(model).set_params(
        early_stopping=True, max_iter=1, random_state=0, n_iter_no_change=50
    )
    given = {"X_val": X_val, "y_val": y_val}
    model.fit(X, y, **given)
    assert_allclose(model.validation_scores_[-1], model.score(X_val, y_val), rtol=1e-6)
    # They have no part in what is learned.
    other = clone(model).fit(X, y, X_val=X_val[:39], y_val=y_val[:39])
    assert other.validation_scores_ != model.validation_scores_
    T = rng.standard_normal((50, 3))
    values = getattr(model, "decision_function", model.predict)(T)
    assert_allclose(getattr(other, "decision_function", other.predict)(T), values)
    if hasattr(model, "dual_coef_") and model.n_centers is None:
        assert model.centers_ is X
        assert model.dual_coef_.shape[0] == len(X)
    # A weight of 2 counts as two copies, and one of 0 as none.
    w = np.arange(len(y_val)) % 3
    weighted = clone(model).fit(X, y, **given, sample_weight_val=w)
    copies = np.repeat(np.arange(len(w)), w)
    copied = clone(model).fit(X, y, X_val=X_val[copies], y_val=y_val[copies])
    assert_allclose(weighted.validation_scores_, copied.validation_scores_, rtol=1e-6)


@pytest.mark.parametrize("model", BY_EPOCHS, ids=str)
def test_the_best_epoch_on_given_rows_is_the_model(model, rng):
    X, y, X_val, y_val = judged_rows(model, rng)
    model = clone(model).set_params(early_stopping=True, max_iter=5, random_state=0)
    model.fit(X, y, X_val=X_val, y_val=y_val)
    best = max(model.validation_scores_)
    assert_allclose(model.score(X_val, y_val), best, rtol=1e-6)


@pytest.mark.parametrize("model", [m for m in BY_EPOCHS if is_classifier(m)], ids=str)
def test_given_rows_with_weights_labels_and_another_precision(model, rng):
    X, y, X_val, y_val = judged_rows(model, rng)
    X_val[0] = 1e12
    model = clone(model).set_params(early_stopping=True, max_iter=3, random_state=0)
    weighted = clone(model).set_params(class_weight={0: 1.0, 1: 2.0, 2: 3.0})
    weighted.fit(X, y, X_val=X_val, y_val=y_val)
    explicit = {"sample_weight": 1.0 + y, "sample_weight_val": 1.0 + y_val}
    same = clone(model).fit(X, y, X_val=X_val, y_val=y_val, **explicit)
    assert_allclose(same.validation_scores_, weighted.validation_scores_, rtol=1e-6)
    # Costs of classes do not choose among epochs; weights of rows do.
    for one, weights in ((weighted, {}), (same, explicit)):
        one.set_params(max_iter=1).fit(X, y, X_val=X_val, y_val=y_val, **weights)
    assert_allclose(same.decision_function(X), weighted.decision_function(X), rtol=1e-6)
    assert np.isfinite(weighted.predict_proba(X_val)).all()
    names, single = np.array(["a", "b", "c"]), X.astype(np.float32)
    plain = clone(model).fit(single, y, X_val=X_val.astype(np.float32), y_val=y_val)
    named = clone(model).fit(single, names[y], X_val=X_val, y_val=names[y_val])
    assert named.validation_scores_ == plain.validation_scores_
    assert_allclose(named.predict_proba(X), plain.predict_proba(X))


def test_given_rows_of_one_class_warn(rng):
    model = LinearEigenProClassifier(early_stopping=True, max_iter=3, random_state=0)
    X, y, X_val, y_val = judged_rows(model, rng)
    names = np.array(["a", "b", "c"])
    one = {"X_val": X_val, "y_val": names[0 * y_val]}
    only_b = {"X_val": X_val, "y_val": names[y_val], "sample_weight_val": y_val == 1}
    for given, name in ((one, "'a'"), (only_b, "'b'")):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(X, names[y], **given)
        assert f"y_val holds only the class {name}, of which" in str(caught[0].message)


def test_given_rows_that_nothing_scores_are_refused(rng):
    for model in (EigenProRegressor(), LinearEigenProClassifier(), DSGRegressor()):
        X, y, X_val, y_val = judged_rows(model, rng)
        with pytest.raises(ValueError, match="None unless epochs are scored on them"):
            model.fit(X, y, X_val=X_val, y_val=y_val)
    model = EigenProRegressor("precomputed", early_stopping=True)
    with pytest.raises(ValueError, match="X_val and y_val need a kernel by name"):
        model.fit(X @ X.T, y, X_val=X_val @ X.T, y_val=y_val)
    model = EigenProRegressor(early_stopping=True)
    with pytest.raises(ValueError, match="sample_weight_val"):
        model.fit(X, y, X_val=X_val, y_val=y_val, sample_weight_val=0 * y_val)
    for cls in (EigenProRegressor, LinearEigenProRegressor):
        model = cls(early_stopping=True)
        with pytest.raises(ValueError, match=r"X_val .* two rows .* got 1"):
            model.fit(X, y, X_val=X_val[:1], y_val=y_val[:1])
        with pytest.raises(ValueError, match=r"X_val .* two rows .* got 1"):
            one = np.arange(len(y_val)) == 3
            model.fit(X, y, X_val=X_val, y_val=y_val, sample_weight_val=one)


def test_given_rows_of_sparse_data_and_other_libraries(rng, other_xp):
    model = LinearEigenProRegressor(early_stopping=True, random_state=0, max_iter=3)
    X, y, *given = judged_rows(model, rng)
    dense = clone(model).fit(X, y, X_val=given[0], y_val=given[1])
    parts = scipy.sparse.csr_array(X), scipy.sparse.csr_array(given[0])
    for train, new in ((parts[0], parts[1]), (parts[0], given[0]), (X, parts[1])):
        sparse = clone(model).fit(train, y, X_val=new, y_val=given[1])
        assert_allclose(sparse.validation_scores_, dense.validation_scores_, rtol=1e-6)
    kernel = EigenProRegressor(early_stopping=True, random_state=0, max_iter=3)
    dense = clone(kernel).fit(X, y, X_val=given[0], y_val=given[1])
    with config_context(array_api_dispatch=True):
        X, y, *given = (other_xp.asarray(a) for a in (X, y, *given))
        other = clone(kernel).fit(X, y, X_val=given[0], y_val=given[1])
    assert_allclose(other.validation_scores_, dense.validation_scores_, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("model", [m for m in BY_EPOCHS if is_classifier(m)], ids=str)
def test_early_stopping_learns_a_class_of_unlikely_rows(model, weighted, dtype, rng):
    """No row is more likely to be of that class than of the other one."""
    X = rng.standard_normal((3000, 2)).astype(dtype)
    P = 0.02 + 0.3 / (1.0 + np.exp(-4.0 * X[:, 0]))
    y = (rng.random(3000) < P).astype(int)
    w = rng.integers(1, 4, 3000).astype(float) if weighted else np.ones(3000)
    model = clone(model).set_params(early_stopping=True, random_state=0)
    given = {"X_val": X[1500:2500], "y_val": y[1500:2500]}
    given |= {"sample_weight": w[:1500], "sample_weight_val": w[1500:2500]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X[:1500], y[:1500], **given)
    found, P = model.predict_proba(X[2500:])[:, 1], P[2500:]
    constant = np.average(y[:1500], weights=w[:1500])
    assert np.mean((found - P) ** 2) < 0.75 * np.mean((constant - P) ** 2)


@pytest.mark.parametrize("n, allowed", [(100, 1.5), (300, 1.3), (1000, 1.15)])
@pytest.mark.parametrize(
    "options", [{}, {"n_centers": 0.5}, {"algorithm": "eigenpro1"}], ids=str
)
def test_the_first_epoch_of_a_smooth_kernel_does_not_fit_noise(n, allowed, options):
    options = {name: int(n * x) if x == 0.5 else x for name, x in options.items()}
    for seed in range(2):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((n + 1000, 4))
        y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * rng.standard_normal(len(X))
        errors = []
        for early in (False, True):  # the automatic penalty; held-out rows
            model = EigenProRegressor("gaussian", random_state=0, **options)
            model.set_params(early_stopping=early).fit(X[:n], y[:n])
            errors.append(np.mean((model.predict(X[n:]) - y[n:]) ** 2))
        assert errors[1] < allowed * errors[0]  # up to 8 times, without a limit
