"""EigenPro: preconditioned stochastic gradient descent, kernel machines and linear."""

import numpy as np

from .._array import device_of, namespace, to_numpy
from .guard import EpochState, Guard, StepTrials


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
    try_half_steps=True,
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

    The guard: when the squared residuals of an epoch so far exceed four times those of
    f = 0 on the same rows or are not finite, or those of a whole epoch exceed three
    times the best epoch's, the coefficients go back to where the best epoch began and
    eta is halved.

    Parameters
    ----------
    operator : KernelOperator or LinearOperator
        A.
    targets : array of shape (n, l)
        y, centred.
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
    try_half_steps : bool, default=True
        Whether to try half the step, for the output whose residual stalls.
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
    n, n_kept = operator.shape[0], preconditioner.n_kept
    starts = np.arange(0, n, batch_size)
    # The start of the epoch under way, and that of the epoch with the least residual.
    # Only the latter is known to be good: an epoch can end badly unnoticed.
    begin, good = xp.asarray(coef, copy=True), xp.asarray(coef, copy=True)
    trials = [StepTrials() for _ in range(coef.shape[1])]
    weights = xp.ones_like(targets[:, 0]) if weights is None else weights
    zero_losses = weights * xp.sum(targets * targets, axis=1)
    zero_loss = max(float(xp.sum(zero_losses)) / n, zero_loss)
    guard = Guard(zero_loss)

    def run_epoch():
        """Run one epoch, or the part of it until it diverges.

        Returns
        -------
        losses : ndarray of shape (l,)
            Sum of the squared residuals, NaN if it diverged.
        mean : array of the shape of `coef`
            Of the iterates of the second half.
        n_steps : int
            Steps made.
        """
        factors = [trial.factor for trial in trials]
        rate = guard.factor * step_size / batch_size
        rates = rate * xp.asarray(factors, dtype=coef.dtype, device=device_of(coef))
        residual, baseline = np.zeros(len(trials)), 0.0
        mean, first = xp.zeros_like(coef), len(starts) // 2
        for n_steps, start in enumerate(rng.permutation(starts)):
            b = slice(int(start), min(int(start) + batch_size, n))
            F, kept = operator.product(coef, b.start, b.stop, n_kept=n_kept)
            error = F - targets[b, :]
            g = weights[b, None] * error
            residual += to_numpy(xp.sum(g * error, axis=0))
            # Heavy targets raise both sides; a batch of zeros counts as an average one.
            average = zero_loss * (b.stop - b.start)
            baseline += max(float(xp.sum(zero_losses[b])), average)
            if guard.trips(residual.sum(), baseline):
                return residual * np.nan, mean, n_steps
            preconditioner.descend(operator, coef, b, kept, rates * g)
            if n_steps >= first:
                mean += (coef - mean) / (n_steps - first + 1)
        return residual, mean, len(starts)

    while True:
        with operator.exclusive_threads():
            losses, mean, n_steps = run_epoch()
        loss = losses.sum() / n
        if not guard.accepts(loss):
            # The given coefficients may be worse than none.
            if n_steps == 0 and may_restart:
                good[...] = xp.zeros_like(good)
            coef[...] = good
            begin[...] = good
            for trial in trials:
                trial.forget()
            if guard.failed:
                yield EpochState(coef, np.nan, 0.0, guard.n_halvings, failed=True)
                return
            continue
        if loss == guard.best_loss:
            good[...] = begin
        begin[...] = coef
        loss = float(loss / targets.shape[1])
        step = guard.factor * step_size
        yield EpochState(mean, loss, step, guard.n_halvings)
        if try_half_steps:
            for trial, output_loss in zip(trials, losses, strict=True):
                trial.update(float(output_loss))
