"""Races and trials: whether another step than the measured one is faster."""

import math

import numpy as np

# An epoch that lowers the residual by less than this fraction has stalled.
_STALL = 0.03


# Steps of the race over the measured one, the most useful first, and its epochs. Of 93
# problems like those of benchmarks/robustness.py 79 % were within 1.25 times the epochs
# of the best step without a race, 93 % with 4 epochs and 97 % with 6, 96 % without the
# longest side or the shortest; of 46 others 85 % without a race and 93 % with this one.
_RACE = (1.0, 2**0.5, 0.5**0.5, 2.0, 0.5, 4.0)


_RACE_EPOCHS = 6


# Columns up to which a product with a kernel matrix takes as long as reading it.
_RACE_COLUMNS = 32


# Batches an epoch below which steps beyond the edge have no time to show it.
_RACE_BATCHES = 8


class StepRace:
    """Steps that run side by side for some epochs, as further columns of the products.

    The measured step is right for targets at large. Where these ask nothing of what
    makes a longer step unstable, that is faster; where they contradict each other, a
    shorter one is. Which, only training tells.

    Parameters
    ----------
    n_outputs : int
        Of many there is room for few sides, or for one alone: no race.
    n_batches : int
        Batches of an epoch.

    Attributes
    ----------
    factors : ndarray of shape (k,)
        What the sides multiply the step by; 1 alone when the race is over.
    epoch : int
        Epochs that are done.
    """

    def __init__(self, n_outputs, n_batches):
        k = _RACE_COLUMNS // n_outputs if n_batches >= _RACE_BATCHES else 1
        self.factors = np.asarray(_RACE[: max(k, 1)])
        self.epoch = 0

    @property
    def is_on(self):
        """Whether there is more than one side."""
        return len(self.factors) > 1

    def end_epoch(self):
        """Count an epoch; the last one ends the race."""
        self.epoch += 1
        if self.epoch == _RACE_EPOCHS:
            self.factors = np.ones(1)


class StepTrials:
    """Try half the step for an epoch when the residual stalls; keep it if that pays.

    The residual stalls in one of two ways. Where it cannot vanish, on noisy targets,
    it is at the noise of the steps, which half the step lowers within an epoch. Or it
    is in the flat directions of the problem, where half the step only loses time: then
    the step is doubled again, and the next trial waits twice as long.

    Attributes
    ----------
    factor : float
        What to multiply the step by.
    """

    def __init__(self):
        self.factor = 1.0
        self._wait, self._patience = 0, 1
        self._previous_loss = self._stalled_at = None

    def start(self, factor, loss):
        """Begin with a factor of the step and the loss of the epoch before."""
        self.factor, self._previous_loss = factor, loss

    def forget(self):
        """Start anew after the iteration went back: no trial, no longer step."""
        if self._stalled_at is not None:
            self.factor *= 2
        self.factor = min(self.factor, 1.0)
        self._previous_loss = self._stalled_at = None

    def update(self, loss):
        """Take in the loss of an epoch."""
        previous, self._previous_loss = self._previous_loss, loss
        if previous is None or not (previous > 0 and loss > 0):
            return
        drop = math.log(previous / loss)
        if self._stalled_at is not None:
            before, self._stalled_at = self._stalled_at, None
            if drop > max(2 * before, before + _STALL):
                self._patience = 1
            else:
                self.factor *= 2
                self._wait, self._patience = self._patience, 2 * self._patience
        elif self._wait > 0:
            self._wait -= 1
        elif drop < _STALL:
            self._stalled_at = max(drop, 0.0)
            self.factor /= 2
