"""EigenPro: preconditioned stochastic gradient descent, kernel machines and linear."""

import numpy as np

from ..backend.array import device_of, namespace, to_numpy
from .guard import EpochState, Guard
from .step_search import StepRace, StepTrials

# Rows at most on which the sides of a race are compared, and how many times the least
# residual of an epoch, on all rows, rules a side out.
_N_JUDGES = 1000


_MUCH_WORSE = 1.5


def eigenpro(
    operator,
    targets,
    preconditioner,
    *,
    coef,
    weights,
    batch_size,
    step_size,
    rng,
    try_steps=True,
    zero_loss=0.0,
    may_restart=True,
):
    """Minimise sum_i w_i (f(x_i) - y_i)^2 by preconditioned steps on batches.

    One step on a batch b of m rows of the matrix A (K(X, X), or the features)::

        g = (eta / m) W (A_b a - y_b)
        a <- a - g in its rows b, plus the preconditioner's correction (kernel machine)
        a <- a - P A_b' g                                              (linear model)

    On a kernel machine of n rows the first line costs n m (d + l) multiply-adds (n m l
    where K is cached), the mean n l, and the correction

    - s m l + 2 s q l in EigenPro 2, whose eigenvectors live on the first s rows,
    - n q l in EigenPro 1, whose eigenvectors live on all of them;

    on a linear model all together 2 m d l + 2 q d l. The batches are slices of the
    given order of rows and are visited in a new random order every epoch. The model of
    an epoch is the mean of the iterates of its second half, which has less of the
    steps' noise than the last.

    In the first epochs several steps run side by side, see `StepRace`. For every output
    the best one's model is that of the epoch, and in the end the best step goes on. Of
    those whose residual is not much above the least, that is the one whose model has
    the least loss on up to 1000 rows; in the first epoch, of those that are no worse
    there than f = 0, the one with the least residual in the second half. Beside the
    columns this costs one more product with those rows an epoch.

    The guard: when the squared residuals of an epoch so far exceed four times those of
    f = 0 on the same rows or are not finite, or those of a whole epoch exceed three
    times the best epoch's, the coefficients go back to where the best epoch began and
    eta is halved.

    Parameters
    ----------
    operator : KernelOperator or LinearOperator
        A.
    targets : array of shape (n, l)
        y, centered.
    preconditioner : Spectral, GlobalSpectral or LinearSpectral
    coef : array of shape (n, l) or (d, l)
        a to start from; changed in place.
    weights : array of shape (n,) or None
        w, with mean 1.
    batch_size : int
        m.
    step_size : float
        eta.
    rng : numpy.random.RandomState
        Order of the batches.
    try_steps : bool, default=True
        Whether to try other steps: at first several side by side, later half of it for
        the output whose residual stalls.
    zero_loss : float, default=0.0
        Mean loss, summed over the outputs, that the guard takes for that of f = 0 if
        the loss of f = 0 on the rows is less: of rows that are no fair sample.
    may_restart : bool, default=True
        Whether to start from zero where the given coefficients trip the guard.

    Yields
    ------
    EpochState
        Without end: the caller decides when to stop.

    References
    ----------
    Ma and Belkin, "Diving into the shallows: a computational perspective on large-scale
    shallow learning", NeurIPS 2017: tables 1 and 2.
    Ma and Belkin, "Kernel machines that adapt to GPUs for effective large batch
    training", MLSys 2019: algorithm 1.
    """
    xp = namespace(coef)
    n, n_outputs = operator.shape[0], coef.shape[1]
    n_kept, starts = preconditioner.n_kept, np.arange(0, n, batch_size)
    # The start of the epoch under way, and that of the epoch with the least residual.
    # Only the latter is known to be good: an epoch can end badly unnoticed.
    begin, good = xp.asarray(coef, copy=True), xp.asarray(coef, copy=True)
    race = StepRace(n_outputs, len(starts) if try_steps else 0)
    trials = [StepTrials() for _ in range(n_outputs)]
    weights = xp.ones_like(targets[:, 0]) if weights is None else weights
    zero_losses = weights * xp.sum(targets * targets, axis=1)
    zero_loss = max(float(xp.sum(zero_losses)) / n, zero_loss)
    guard = Guard(zero_loss)

    def side_by_side(columns):
        """Return `columns`, repeated for each of the k steps of the race."""
        k = len(race.factors)
        return columns if k == 1 else xp.concat([columns] * k, axis=1)

    def by_side(sums):
        """Return sums of k l columns as an ndarray of shape (k, l)."""
        return to_numpy(sums).astype(np.float64).reshape(-1, n_outputs)

    def run_epoch(sides):
        """Run one epoch, or the part of it until all sides of the race diverge.

        Parameters
        ----------
        sides : array of shape (n, k l) or (d, k l)
            The coefficients of k steps; changed in place.

        Returns
        -------
        losses, late : ndarrays of shape (k, l)
            Sum of the squared residuals of the epoch, infinite for a side that
            diverged, and of its second half.
        mean : array of the shape of `sides`
            Of the iterates of the second half.
        n_steps : int
            Steps made.
        """
        factors = np.outer(race.factors, [trial.factor for trial in trials])
        rates = guard.factor * step_size / batch_size * factors.reshape(-1)
        rates = xp.asarray(rates, dtype=coef.dtype, device=device_of(coef))
        losses, baseline = np.zeros((len(race.factors), n_outputs)), 0.0
        late = np.zeros_like(losses)
        mean, first = xp.zeros_like(sides), len(starts) // 2
        for n_steps, start in enumerate(rng.permutation(starts)):
            b = slice(int(start), min(int(start) + batch_size, n))
            F, kept = operator.product(sides, b.start, b.stop, n_kept=n_kept)
            error = F - side_by_side(targets[b, :])
            g = weights[b, None] * error
            squares = by_side(xp.sum(g * error, axis=0))
            losses += squares
            if n_steps >= first:
                late += squares
            # Heavy targets raise both sides; a batch of zeros counts as an average one.
            average = zero_loss * (b.stop - b.start)
            baseline += max(float(xp.sum(zero_losses[b])), average)
            for i, loss in enumerate(losses.sum(axis=1)):
                if guard.trips(loss, baseline):
                    columns = slice(i * n_outputs, (i + 1) * n_outputs)
                    losses[i, :] = np.inf
                    sides[:, columns], rates[columns] = 0.0, 0.0
            if not np.isfinite(losses).any():
                return losses, late, mean, n_steps
            preconditioner.descend(operator, sides, b, kept, rates * g)
            if n_steps >= first:
                mean += (sides - mean) / (n_steps - first + 1)
        return losses, late, mean, len(starts)

    def best_sides(losses, late, mean):
        """Return the index of the best side of the race for every output."""
        if not race.is_on:
            return np.zeros(n_outputs, dtype=int)
        judges = slice(n - min(n, _N_JUDGES), n)
        F, _ = operator.product(mean, judges.start, n)
        error = F - side_by_side(targets[judges, :])
        scores = by_side(xp.sum(weights[judges, None] * error * error, axis=0))
        # Few rows do not show what happens to rare ones that are unlike them.
        able = losses <= _MUCH_WORSE * losses.min(axis=0)
        if race.epoch == 0:  # most residuals are of rows not yet seen: an honest test
            limit = float(xp.sum(zero_losses[judges]))
            useful = able & (scores.sum(axis=1) <= limit)[:, None]
            able, scores = np.where(useful.any(axis=0), useful, able), late
        return np.argmin(np.where(able, scores, np.inf), axis=0)

    sides, outputs = side_by_side(coef), np.arange(n_outputs)
    while True:
        # Sides that diverge may overflow before the guard sees it.
        quiet = np.errstate(over="ignore", invalid="ignore")
        with operator.exclusive_threads(), quiet:
            losses, late, mean, n_steps = run_epoch(sides)
            best = best_sides(losses, late, mean)
        # The sides have noise of different levels: only the least one can tell growth.
        least, losses = losses.min(axis=0).sum() / n, losses[best, outputs]
        if race.is_on:
            columns = xp.asarray(best * n_outputs + outputs, device=device_of(coef))
            coef[...] = xp.take(sides, columns, axis=1)
            mean = xp.take(mean, columns, axis=1)
        # To blame is first of all the longer step that won the race.
        if not guard.accepts(least, halve=all(trial.factor <= 1 for trial in trials)):
            # The given coefficients may be worse than none.
            if n_steps == 0 and may_restart:
                good[...] = xp.zeros_like(good)
            coef[...] = good
            begin[...] = good
            sides = side_by_side(coef)
            for trial in trials:
                trial.forget()
            if guard.failed:
                yield EpochState(coef, np.nan, 0.0, guard.n_halvings, failed=True)
                return
            continue
        if least == guard.best_loss:
            good[...] = begin
        begin[...] = coef
        loss = float(losses.sum() / n / n_outputs)
        step = guard.factor * step_size
        yield EpochState(mean, loss, step, guard.n_halvings)
        if race.is_on:
            factors = race.factors[best]
            race.end_epoch()
            if not race.is_on:
                sides = coef
                guard.best_loss = losses.sum() / n
                for trial, *start in zip(trials, factors, losses, strict=True):
                    trial.start(*start)
        elif try_steps:
            for trial, output_loss in zip(trials, losses, strict=True):
                trial.update(float(output_loss))
