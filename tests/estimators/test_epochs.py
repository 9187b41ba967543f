"""The stopping rule of epochs: which coefficients become the model."""

from types import SimpleNamespace

import numpy as np
import pytest

from eigenkern.fitting.rules import EpochRule
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
        labels=np.zeros(1), weights=None, out_of_sample=lambda _, values: values
    )
    rule = EpochRule(model, problem, data, held_out=[0])
    for i in range(3):
        rule.update(State(i, loss=1.0 / (i + 1), step_size=1.0))
    assert rule.fitted_attributes()["coef_"] == best
    assert rule.out_of_sample() == best
