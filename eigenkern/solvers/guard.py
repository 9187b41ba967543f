"""The guard: go back and halve the step where an iteration diverges."""

from dataclasses import dataclass
from typing import Any

import numpy as np

# A loss that grew beyond this factor times that of f = 0 is no noise.
_TRIP = 4.0


# An epoch's loss that grew to this multiple of the best one's is no noise either.
_GROWTH = 3.0


_MAX_HALVINGS = 40


@dataclass
class EpochState:
    """What a stochastic solver yields once an epoch.

    Attributes
    ----------
    coef : object
        The model: an array of coefficients of shape (n, l), or an `Expansion`.
    loss : float
        Mean loss of the epoch, each batch taken before its update.
    step_size : float
        Step in use, before the factors of a race and of half steps on trial.
    n_step_halvings : int
        Times that the guard went back and halved the step.
    failed : bool
        Whether no step size was found that keeps the iteration bounded.
    """

    coef: Any
    loss: float
    step_size: float
    n_step_halvings: int
    failed: bool = False


class Guard:
    """Tells when an iteration diverges, and by how much to shorten its steps.

    Parameters
    ----------
    zero_loss : float
        Mean loss of f = 0.
    n_halvings : int, default=0
        Halvings so far.

    Attributes
    ----------
    factor : float
        What to multiply the steps by.
    n_halvings : int
        Times that `factor` was halved.
    best_loss : float
        Least loss of an epoch since the last halving.
    """

    def __init__(self, zero_loss, n_halvings=0):
        self._zero_loss = zero_loss
        if n_halvings > _MAX_HALVINGS:  # that failed, and tells nothing of these rows
            n_halvings = 0
        self.factor, self.n_halvings = 0.5**n_halvings, n_halvings
        self.best_loss = np.inf

    @property
    def failed(self):
        """Whether halving the step has not helped."""
        return self.n_halvings > _MAX_HALVINGS

    def trips(self, total, baseline):
        """Whether the loss of an epoch so far shows that it diverges.

        Parameters
        ----------
        total : float
            Sum of the losses so far; NaN trips.
        baseline : float
            That of f = 0 on the same rows.
        """
        return not (total <= _TRIP * baseline and total < np.inf)

    def accepts(self, loss, halve=True):
        """Take in the loss of an epoch, NaN if it diverged; halve the step if need be.

        Parameters
        ----------
        loss : float
        halve : bool, default=True
            Whether the step is to blame.

        Returns
        -------
        bool
            False where the solver has to go back to the start of the best epoch.
        """
        # Growth below the rounding of the loss is none.
        bound = _GROWTH * self.best_loss + 1e-6 * self._zero_loss
        if not (loss <= bound and loss < np.inf):
            # The next epoch starts a new record: one halving an epoch.
            self.best_loss = np.inf
            if halve:
                self.factor, self.n_halvings = self.factor / 2, self.n_halvings + 1
            return False
        self.best_loss = min(self.best_loss, loss)
        return True
