"""Steps other than the measured one: first a race, later trials of half the step.

The measured step suits typical targets. A longer one is faster if the targets have no
component in the directions in which it is unstable, and a shorter one is faster if they
contradict each other. Only training shows which.
"""

import math

import numpy as np

from ..arrays.array import namespace, take, to_numpy
from .state import Saved

# An epoch that lowers the residual by less than this fraction has stalled. With 0.005,
# 0.01, 0.02 and 0.03, 97.5, 98.3, 95.8 and 95.8 % of 120 problems were solved within
# 1.25 times the epochs of the best step. (They resemble those of
# benchmarks/robustness.py, but its report has none of them.)
_STALL = 0.01
# Steps of the race relative to the measured one, the most useful first, and the epochs
# of the race. Share of problems solved within 1.25 times the epochs of the best step
# (benchmarks/robustness.py, when `_STALL` was 0.03, `_MUCH_WORSE` 1.5, and only shorter
# steps prolonged the race):
#     93 problems that the race was designed on   46 others
#     no race                            79 %       85 %
#     4 epochs                           93 %
#     6 epochs                           97 %       93 %
#     6, without the longest or shortest 96 %
_RACE = (1.0, 2**0.5, 0.5**0.5, 2.0, 0.5, 4.0)
_RACE_EPOCHS = 6
# A side is not chosen if its residual of an epoch, on all rows, is more than this many
# times the smallest. Share of 98 of the problems at `_STALL`, which was 0.03 here, with
# 1.2, 1.3 and 1.5: 95.9, 94.9 and 93.9 %. With 1.1 steps are too short: 95.0 % of all
# 120, instead of 95.8 %.
_MUCH_WORSE = 1.2


class StepSearch(Saved):
    """Chooses steps: a race of several side by side, then one for every output.

    In the first epochs k steps run side by side as additional columns of the products.
    For every output, the model after an epoch is that of the best step, and in the end
    only the best step continues. Sides that diverge or fall far behind are dropped. The
    race is over when the same side leads in two epochs after the first, its step is not
    longer than the measured one, and no other such step catches up. Steps longer than
    the measured one may turn out to be unstable later. After the race, half the step is
    tried for an output whose residual stalls.

    With many of the l outputs there is room for few sides, or for one, and with few
    batches per epoch (or 0) there is no race. Unless it `tries`, all factors stay 1.
    Each side has `n_copies` columns for an output, which take the same steps: those of
    all outputs, then the next ones. The first are judged.
    """

    def __init__(self, n_outputs, n_batches=0, *, tries=True, n_copies=1):
        self._n_outputs, self._tries, self._n_copies = n_outputs, tries, n_copies
        # At most 16 columns. A product with a cached matrix of 20 000 rows takes 2.3
        # times as long with 6 columns as with one; with ten outputs a race of three
        # sides gained nothing on 12 000 rows of mnist, fashion_mnist and cifar10_gray.
        # With few batches a race is too short for unstable steps to diverge.
        k = 16 // n_outputs if n_batches >= 8 and tries else 1
        self._race, self._epoch = np.asarray(_RACE[: max(k, 1)]), 0
        self._trials = [StepTrials() for _ in range(n_outputs)]
        self._best = np.zeros(n_outputs, dtype=int)
        self._losses = None  # of all sides in the epoch before
        self._behind = None  # logarithm of each side's loss over that of the best
        self._stays, self._decided = np.ones(self.n_sides, dtype=bool), False
        self._remaining = None  # indices of the sides that were not dropped just now

    @property
    def n_sides(self):
        """k, the number of steps that run side by side."""
        return len(self._race)

    @property
    def factors(self):
        """What to multiply the step by, a row for each of the k steps."""
        factors = [trial.factor for trial in self._trials] * self._n_copies
        return np.outer(self._race, factors)

    @property
    def is_longer(self):
        """Whether a step longer than the measured one has won the race."""
        return any(trial.factor > 1 for trial in self._trials)

    def side_by_side(self, columns):
        """Return `columns`, repeated for each of the k steps."""
        if self.n_sides == 1:
            return columns
        return namespace(columns).concat([columns] * self.n_sides, axis=1)

    def remaining(self, sides):
        """Return the columns of the remaining sides, from those of the last epoch."""
        if self._remaining is None:
            return sides
        which, self._remaining = self._remaining, None
        return self._columns(sides, which[:, None])

    def choose(self, losses, late, judge):
        """Choose the best side of every output, after an epoch.

        It is the side whose model has the smallest loss on some rows, among those whose
        residual is not much above the smallest, nor grows while the smallest falls: it
        would diverge slowly. In the first epoch it is the one with the smallest
        residual in the second half of the epoch, among those that also do no worse on
        these rows than f = 0: most rows of that half were new, which makes it a fair
        test.

        `losses` and `late`, a row for each side, are those of the epoch and of its
        second half; ``judge()`` returns those of the sides' models on some rows, in one
        row, and that of f = 0, summed over outputs.
        """
        if self.n_sides == 1:
            return
        shape, judged = losses.shape, slice(0, self._n_outputs)
        scores, zero_loss = judge()
        scores = to_numpy(scores).astype(np.float64).reshape(shape)
        scores, losses, late = (each[:, judged] for each in (scores, losses, late))
        # The judging rows may lack rare, unusual rows, on which a side does badly, and
        # are too few to show that it diverges slowly.
        eligible = losses <= _MUCH_WORSE * losses.min(axis=0)
        if self._losses is not None:
            falls = losses.min(axis=0) < self._losses.min(axis=0)
            eligible &= ~(falls & (losses > self._losses))
        self._losses = losses
        if self._epoch == 0:
            useful = eligible & (scores.sum(axis=1) <= zero_loss)[:, None]
            eligible = np.where(useful.any(axis=0), useful, eligible)
            scores = late
        self._best = np.argmin(np.where(eligible, scores, np.inf), axis=0)
        # Which sides stay, and is the race over? Outputs count equally.
        logs = np.log(np.maximum(scores, 1e-300)).mean(axis=1)
        logs[~np.isfinite(losses + scores).all(axis=1)] = np.inf
        behind, before, leader = logs - logs.min(), self._behind, np.argmin(logs)
        # Sides are dropped whose loss is more than ten times that of the best one. The
        # chosen step then takes at most 1.22 times the epochs of that of the whole race
        # (1.33 with five times), and all sides but one take 16 epochs instead of 27.
        self._stays = behind <= np.log(10.0)
        self._stays[self._best] = True
        # Longer ones than the leader count too, up to the measured step.
        rivals = self._stays & (self._race <= 1)
        self._behind, self._decided = behind, False
        if self._epoch > 1 and self._race[leader] <= 1:
            led_before = before[leader] == 0.0
            self._decided = led_before and (behind >= before)[rivals].all()

    def chosen(self, losses):
        """Return the losses of the best sides, (l,), from those of all."""
        return losses[self._best, np.arange(self._n_outputs)]

    def chosen_columns(self, sides):
        """Return the columns of the best sides."""
        return sides if self.n_sides == 1 else self._columns(sides, self._best)

    def _columns(self, sides, which):
        """Return the columns of some sides, or of one side for each output."""
        which = which + np.zeros(self._n_outputs, dtype=int)
        which = np.tile(which, self._n_copies)
        columns = which * which.shape[-1] + np.arange(which.shape[-1])
        return take(sides, columns.reshape(-1), axis=1)

    def forget(self):
        """End trials and longer steps, because the iteration went back."""
        self._losses = None
        for trial in self._trials:
            trial.forget()

    def update(self, losses):
        """Record the losses of an epoch, (l,); return whether that ended the race."""
        if not self._tries:
            return False
        if self.n_sides == 1:
            for trial, loss in zip(self._trials, losses, strict=True):
                trial.update(float(loss))
            return False
        self._epoch += 1
        stay, factors = np.flatnonzero(self._stays), self._race[self._best]
        if len(stay) > 1 and self._epoch < _RACE_EPOCHS and not self._decided:
            if len(stay) < self.n_sides:
                self._remaining, self._race = stay, self._race[stay]
                self._best = np.searchsorted(stay, self._best)
                self._behind, self._losses = self._behind[stay], self._losses[stay]
            return False
        self._race = np.ones(1)
        self._best = np.zeros(self._n_outputs, dtype=int)
        for trial, factor, loss in zip(self._trials, factors, losses, strict=True):
            trial.start(factor, loss)
        return True


class StepTrials:
    """Try half the step for an epoch when the residual stalls; keep it if that helps.

    The residual stalls for one of two reasons. On noisy targets it cannot vanish; it is
    down to the noise of the steps, which half the step lowers within an epoch. Or what
    remains lies in flat directions of the problem, where half the step only loses time:
    then the step is doubled again, and the next trial waits twice as long.

    `factor` is what to multiply the step by.
    """

    def __init__(self):
        self.factor = 1.0
        self._wait, self._patience = 0, 1
        self._previous_loss = self._stalled_at = None

    def start(self, factor, loss):
        """Begin with a factor of the step and the loss of the last epoch."""
        self.factor, self._previous_loss = factor, loss

    def forget(self):
        """End a trial and a longer step, because the iteration went back."""
        if self._stalled_at is not None:
            self.factor *= 2
        self.factor = min(self.factor, 1.0)
        self._previous_loss = self._stalled_at = None

    def update(self, loss):
        """Record the loss of an epoch."""
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


class RowSteps:
    """Factors of the steps on single rows.

    A step multiplies the residual of row i by 1 - (eta / m) w_i k_P(x_i, x_i), apart
    from what the other rows add. eta is measured on some rows H. For another row with a
    larger w_i k_P(x_i, x_i), such as an outlier that no eigenvector of the subsample
    represents, it may be so long that the iteration diverges. So the step on row i is
    multiplied by ::

        r_i = min(1, max_{h in H} w_h k_P(h, h) / (w_i k_P(x_i, x_i)))

    The solution of K a = y stays as it is: r_i multiplies one equation. (EigenPro 2's
    beta is the largest k_P(x, x) of all rows, but the paper estimates it on a
    subsample, which may lack such rows as well.)

    The factors are computed when a batch is visited for the first time, from the same
    K(X_b, X_s) as its step, in m s q multiply-adds: on mnist, 60 000 rows and s = 2000,
    that takes 0.6 of the 29 seconds of a fit of one epoch.

    Of 113 problems of 5000 rows, 4000 of them measured, 49 had at most three such rows.
    In these the epochs to the target are on average 1.00 times those of the best step,
    and 1.08 times without the factors.

    ``diagonal(b)`` returns k(x, x) of a range of the rows; `largest` is that of w_h
    k_P(h, h).
    """

    def __init__(self, P, diagonal, weights, largest):
        self._P, self._diagonal, self._weights = P, diagonal, weights
        self._largest, self._factors = largest, {}

    def of(self, b, K_bs):
        """Return the factors of a batch of rows, (m, 1), or None if all are 1."""
        key = b.start, b.stop
        if key in self._factors:
            return self._factors[key]
        entries = self._diagonal(b)
        xp = namespace(entries)
        if self._P.n_components:
            p = self._P.features_of_batch(b, K_bs)
            entries = entries - xp.sum(p * p * self._P.scales, axis=1)
        if self._weights is not None:
            entries = self._weights[b] * entries
        above, factors = entries > self._largest, None
        if bool(xp.any(above)):
            largest = xp.full_like(entries, self._largest)
            factors = (largest / xp.where(above, entries, largest))[:, None]
        self._factors[key] = factors
        return factors
