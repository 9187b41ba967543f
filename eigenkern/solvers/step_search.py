"""Steps other than the measured one: a race at first, later half steps on trial.

The measured step suits typical targets. Where these ask nothing of what makes a longer
step unstable, that is faster; where they contradict each other, a shorter one is. Only
training tells which.
"""

import math

import numpy as np

from ..backend.array import device_of, namespace, to_numpy

# An epoch that lowers the residual by less than this fraction has stalled: some epochs'
# noise. (benchmarks/robustness.py)
_STALL = 0.03
# Steps of the race over the measured one, the most useful first, and its epochs. Part
# of problems within 1.25 times the epochs of the best step (benchmarks/robustness.py):
#     93 problems that the race was designed on   46 others
#     no race                            79 %       85 %
#     4 epochs                           93 %
#     6 epochs                           97 %       93 %
#     6, without the longest or shortest 96 %
_RACE = (1.0, 2**0.5, 0.5**0.5, 2.0, 0.5, 4.0)
_RACE_EPOCHS = 6
# Columns up to which a product with a kernel matrix takes as long as reading it.
_RACE_COLUMNS = 32
# Batches an epoch below which steps beyond the edge have no time to show it.
_RACE_BATCHES = 8
# How many times the least residual of an epoch, on all rows, rules a side out.
_MUCH_WORSE = 1.5


class StepSearch:
    """Which steps to make: several side by side, then one for every output.

    In the first epochs k steps run side by side as further columns of the products. For
    every output the best one's model is that of the epoch, and in the end the best step
    goes on. Later half of it is tried for an output whose residual stalls.

    Parameters
    ----------
    n_outputs : int
        l. Of many there is room for few sides, or for one alone: no race.
    n_batches : int
        Batches of an epoch; 0: no race.
    tries : bool, default=True
        Whether to try anything: otherwise all factors stay 1.
    """

    def __init__(self, n_outputs, n_batches=0, *, tries=True):
        self._n_outputs, self._tries = n_outputs, tries
        k = _RACE_COLUMNS // n_outputs if n_batches >= _RACE_BATCHES and tries else 1
        self._race, self._epoch = np.asarray(_RACE[: max(k, 1)]), 0
        self._trials = [StepTrials() for _ in range(n_outputs)]
        self._best = np.zeros(n_outputs, dtype=int)

    @property
    def n_sides(self):
        """k, the steps that run side by side."""
        return len(self._race)

    @property
    def factors(self):
        """What to multiply the step by, shape (k, l)."""
        return np.outer(self._race, [trial.factor for trial in self._trials])

    @property
    def is_longer(self):
        """Whether a step longer than the measured one has won the race."""
        return any(trial.factor > 1 for trial in self._trials)

    def side_by_side(self, columns):
        """Return `columns`, repeated for each of the k steps."""
        if self.n_sides == 1:
            return columns
        return namespace(columns).concat([columns] * self.n_sides, axis=1)

    def choose(self, losses, late, judge):
        """Choose the best side of every output, after an epoch.

        That is, of those whose residual is not much above the least, the one whose
        model has the least loss on some rows; in the first epoch, of those that are no
        worse there than f = 0, the one with the least residual in the second half:
        most of its rows were not yet seen, an honest test.

        Parameters
        ----------
        losses, late : ndarrays of shape (k, l)
            Losses of the epoch and of its second half.
        judge : callable
            ``judge()`` returns the losses of the sides' models on those rows, (k l,),
            and that of f = 0, summed over outputs.
        """
        if self.n_sides == 1:
            return
        scores, zero_loss = judge()
        scores = to_numpy(scores).astype(np.float64).reshape(losses.shape)
        # Few rows do not show what happens to rare ones that are unlike them.
        able = losses <= _MUCH_WORSE * losses.min(axis=0)
        if self._epoch == 0:
            useful = able & (scores.sum(axis=1) <= zero_loss)[:, None]
            able, scores = np.where(useful.any(axis=0), useful, able), late
        self._best = np.argmin(np.where(able, scores, np.inf), axis=0)

    def chosen(self, losses):
        """Return those of the best sides, of losses (k, l)."""
        return losses[self._best, np.arange(self._n_outputs)]

    def chosen_columns(self, sides):
        """Return the columns of the best sides."""
        if self.n_sides == 1:
            return sides
        columns = self._best * self._n_outputs + np.arange(self._n_outputs)
        xp = namespace(sides)
        return xp.take(sides, xp.asarray(columns, device=device_of(sides)), axis=1)

    def forget(self):
        """Start anew after the iteration went back: no trial, no longer step."""
        for trial in self._trials:
            trial.forget()

    def update(self, losses):
        """Take in the losses of an epoch, (l,); return whether that ended the race."""
        if not self._tries:
            return False
        if self.n_sides == 1:
            for trial, loss in zip(self._trials, losses, strict=True):
                trial.update(float(loss))
            return False
        self._epoch += 1
        if self._epoch < _RACE_EPOCHS:
            return False
        factors, self._race = self._race[self._best], np.ones(1)
        self._best = np.zeros(self._n_outputs, dtype=int)
        for trial, factor, loss in zip(self._trials, factors, losses, strict=True):
            trial.start(factor, loss)
        return True


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
