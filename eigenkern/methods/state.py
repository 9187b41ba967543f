"""The state of an iteration: what a solver yields, and what a checkpoint holds."""

from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np


@dataclass
class State:
    """What a solver yields after each iteration.

    `coef` is the model, an array or an `Expansion`; None if there is none before the
    last state. `counts` are fitted attributes that the solver found or counted. `loss`
    is the mean loss of an epoch, each batch measured before its update, and `residual`
    the largest relative residual of the outputs. `converged`: every output is done;
    `failed`: the solver cannot continue. `step_size` is the one in use, without the
    factors of `StepSearch`, and `n_step_halvings` how often the guard went back and
    halved it. `out_of_sample` has values to calibrate probabilities on, and `rest` is
    what else a solver tells of its model.
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
    """An object that is saved by its attributes, for checkpoints.

    `_saved` names those that change; None: all.
    """

    _saved: tuple[str, ...] | None = None

    def _names(self):
        return vars(self) if self._saved is None else self._saved

    def save(self):
        """Return the attributes, for `load`; lists are copied."""
        saved = {}
        for name in self._names():
            value = getattr(self, name)
            if isinstance(value, Saved):
                value = value.save()
            saved[name] = list(value) if isinstance(value, list) else value
        return saved

    def load(self, saved):
        """Take the attributes of another object for the same problem.

        Raises a ValueError if a number, or a list, is something else there, or if
        other things stand among numbers.
        """
        for name in list(self._names()):
            value = saved[name]
            part = getattr(self, name)
            if isinstance(part, Saved):
                part.load(value)
                continue
            for kind in (Real, list):
                if isinstance(part, kind) and not isinstance(value, kind):
                    raise ValueError(f"{name} is {type(value)} instead of {kind}")
            if isinstance(value, list | dict):
                inside = value.values() if isinstance(value, dict) else value
                kinds = {Real if isinstance(v, Real) else type(v) for v in inside}
                if Real in kinds and len(kinds) > 1:
                    raise ValueError(f"{name} has other things among numbers")
            setattr(self, name, value)
