"""The state of an iteration: what a solver yields, and what a checkpoint holds."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class State:
    """What a solver yields after each iteration.

    Attributes
    ----------
    coef : object
        The model: an array of coefficients, or an `Expansion`; None if there is none
        before the last state.
    counts : dict
        Fitted attributes that the solver found or counted.
    loss, residual : float
        Mean loss of an epoch, each batch measured before its update; the largest
        relative residual of the outputs.
    converged, failed : bool
        Whether every output is done; whether the solver cannot continue.
    step_size, n_step_halvings : float, int
        Step in use, without the factors of `StepSearch`; how often the guard halved it.
    out_of_sample : OutOfSample or None
        Values to calibrate probabilities on.
    rest : object
        What another run resumes from.
    """

    coef: Any
    counts: dict = field(default_factory=dict)
    loss: float = np.nan
    residual: float = 0.0
    converged: bool = False
    failed: bool = False
    step_size: float = 0.0
    n_step_halvings: int = 0
    out_of_sample: Any = None
    rest: Any = None


class Saved:
    """An object that is saved by its attributes; those in `_saved`, None: all."""

    _saved: tuple[str, ...] | None = None

    def save(self):
        """Return the attributes, for `load`; lists are copied."""
        names = vars(self) if self._saved is None else self._saved
        return {name: _copied(getattr(self, name)) for name in names}

    def load(self, saved):
        """Take the attributes of another object for the same problem."""
        for name, value in saved.items():
            part = getattr(self, name)
            if isinstance(part, Saved):
                part.load(value)
            else:
                setattr(self, name, value)


def _copied(value):
    if isinstance(value, Saved):
        return value.save()
    return list(value) if isinstance(value, list) else value
