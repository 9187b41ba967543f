"""EigenPro 2: preconditioned stochastic gradient descent on a kernel machine."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._array import namespace

# A residual that grew beyond this factor times that of f = 0 is no noise.
_TRIP = 4.0
# An epoch's residual that grew by this factor over the best one is no noise either.
_GROWTH = 1.5
_MAX_HALVINGS = 40


@dataclass
class EpochState:
    """What a solver yields once an epoch.

    Attributes
    ----------
    coef : array of shape (n, l)
        Coefficients; the solver goes on changing this array.
    loss : float
        Mean squared residual of the epoch, each batch taken before its update.
    step_size : float
        eta in use.
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


def eigenpro2(
    operator, targets, preconditioner, *, coef, weights, batch_size, step_size, rng
):
    """Minimise sum_i w_i (f(x_i) - y_i)^2 over f = K(., X) a by EigenPro 2.

    One step on a batch b of m rows, with the first s rows of X as subsample::

        g = W (K(X_b, X) a - y_b)
        a_b -= (eta / m) g
        a_s += (eta / m) V D V' K(X_s, X_b) g

    It costs n m (d + l) multiply-adds for the first line (n m l where K is cached) and
    s m l + 2 s q l for the last. The batches are slices of the given order of rows and
    are visited in a new random order every epoch.

    The guard: when the squared residuals of an epoch so far exceed four times those of
    f = 0 on the same rows, are not finite, or have grown by half over the best epoch,
    the coefficients go back to where the best epoch began and eta is halved.

    Parameters
    ----------
    operator : KernelOperator
        K(X, X), symmetric.
    targets : array of shape (n, l)
        y, centred.
    preconditioner : Spectral
        Of the first s rows.
    coef : array of shape (n, l)
        a to start from; changed in place.
    weights : array of shape (n,) or None
        w, with mean 1.
    batch_size : int
        m.
    step_size : float
        eta.
    rng : numpy.random.RandomState
        Order of the batches.

    Yields
    ------
    EpochState
        Without end: the caller decides when to stop.

    References
    ----------
    Ma and Belkin, "Kernel machines that adapt to GPUs for effective large batch
    training", MLSys 2019: algorithm 1.
    """
    xp = namespace(coef)
    n, s = operator.shape[0], preconditioner.subsample_size
    starts = np.arange(0, n, batch_size)
    rate, n_halvings = step_size / batch_size, 0
    # The start of the epoch under way, and that of the epoch with the least residual.
    # Only the latter is known to be good: an epoch can end badly unnoticed.
    begin, good = xp.asarray(coef, copy=True), xp.asarray(coef, copy=True)
    best_loss = np.inf
    weights = xp.ones_like(targets[:, 0]) if weights is None else weights
    zero_losses = weights * xp.sum(targets * targets, axis=1)
    zero_loss = float(xp.sum(zero_losses)) / n

    def run_epoch():
        """Return the mean squared residual of an epoch, or NaN once it diverges.

        And the number of steps made.
        """
        residual = baseline = 0.0
        for n_steps, start in enumerate(rng.permutation(starts)):
            b = slice(int(start), min(int(start) + batch_size, n))
            F, K_bs = operator.product(coef, b.start, b.stop, n_kept=s)
            error = F - targets[b, :]
            g = weights[b, None] * error
            residual += float(xp.sum(g * error))
            # Heavy targets raise both sides; a batch of zeros counts as an average one.
            mean = zero_loss * (b.stop - b.start)
            baseline += max(float(xp.sum(zero_losses[b])), mean)
            if not residual <= _TRIP * baseline:
                return np.nan, n_steps
            coef[b, :] -= rate * g
            coef[:s, :] += rate * preconditioner.correction(K_bs, g)
        return residual / n, len(starts)

    while True:
        with operator.exclusive_threads():
            loss, n_steps = run_epoch()
        # Growth below the rounding of the residual is none.
        grew = loss > _GROWTH * best_loss + 1e-6 * zero_loss
        if grew or np.isnan(loss):
            if n_steps == 0:  # the given coefficients are worse than none
                good[...] = xp.zeros_like(good)
            coef[...] = good
            begin[...] = good
            # After growth the next epoch starts a new record: one halving an epoch.
            rate, n_halvings, best_loss = rate / 2, n_halvings + 1, np.inf
            if n_halvings > _MAX_HALVINGS:
                yield EpochState(coef, np.nan, 0.0, n_halvings, failed=True)
                return
            continue
        if loss <= best_loss:
            best_loss = loss
            good[...] = begin
        begin[...] = coef
        yield EpochState(coef, loss / targets.shape[1], rate * batch_size, n_halvings)
