"""The stopping rule of epochs: which coefficients become the model."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.base import clone

from eigenkern import EigenProClassifier
from eigenkern.fitting.rules import EpochRule, Judges
from eigenkern.methods.state import State


@pytest.mark.parametrize(
    ("scores", "best"),
    [((0.2, 0.5, 0.4), 1), ((np.nan, 0.5, np.nan), 1), ((0.3, np.nan, 0.1), 0)],
)
def test_the_best_scored_epoch_is_the_model(scores, best):
    """A score of NaN is never the best."""
    problem = SimpleNamespace(
        within=0.0,
        initial_coef=lambda: -1,
        validation_values=lambda coef: coef,
        fitted_attributes=lambda coef: {"coef_": coef},
    )
    # Coefficients are epoch numbers; zero and the start have no score.
    model = SimpleNamespace(
        max_iter=3,
        tol=1e-4,
        n_iter_no_change=5,
        _score_values=lambda epoch, *_: np.nan if epoch < 0 else scores[epoch],
    )
    data = SimpleNamespace(
        labels=np.zeros(1),
        weights_of=np.ones_like,
        out_of_sample=lambda _, values: values,
    )
    rule = EpochRule(model, problem, data, held_out=[0])
    for i in range(3):
        rule.update(State(i, loss=1.0 / (i + 1), step_size=1.0))
    assert rule.fitted_attributes()["coef_"] == best
    assert rule.out_of_sample() == best


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
