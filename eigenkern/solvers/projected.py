"""Preconditioned gradient descent on a model with centers of its own: EigenPro 3, 4."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..backend.array import device_of, namespace, to_numpy
from ..operators.tiled import KernelOperator
from .guard import EpochState, Guard
from .step_search import StepTrials

# Weight of the iterates in their mean: as t^3 after t projections.
_POWER = 3


class Batch(NamedTuple):
    """Rows of one step.

    Attributes
    ----------
    operator : KernelOperator
        K(X_b, Z).
    rows : array of shape (m, d)
        X_b.
    targets : array of shape (m, l)
    weights : array of shape (m,)
    """

    operator: Any
    rows: Any
    targets: Any
    weights: Any


@dataclass
class Iterate:
    """Where the iteration is.

    Attributes
    ----------
    coef : array of shape (p, l)
        a of the last iterate.
    mean : array of shape (p, l)
        Mean of the iterates, the later ones with more weight: the model.
    rest : array of shape (p, l)
        What the last projection left of h.
    n_projections : int
        Iterates so far.
    """

    coef: Any
    mean: Any
    rest: Any
    n_projections: int = 0

    @classmethod
    def of(cls, coef, n_projections=0):
        """Return the start at some coefficients, the mean of `n_projections` before."""
        xp = namespace(coef)
        mean, rest = xp.asarray(coef, copy=True), xp.zeros_like(coef)
        return cls(coef, mean, rest, n_projections)

    def copy(self):
        """Return a copy."""
        xp = namespace(self.coef)
        parts = (self.coef, self.mean, self.rest)
        copies = (xp.asarray(part, copy=True) for part in parts)
        return Iterate(*copies, self.n_projections)

    def go_to(self, other):
        """Take the values of another."""
        self.coef[...], self.mean[...] = other.coef, other.mean
        self.rest[...], self.n_projections = other.rest, other.n_projections

    def add(self, change, rest):
        """Move by a projected gradient."""
        self.coef += change
        self.rest = rest
        self.n_projections += 1
        # (c + 1) / (t + c) makes the weights grow as t^c, without knowing the last t.
        part = (_POWER + 1) / (self.n_projections + _POWER)
        self.mean += part * (self.coef - self.mean)


def projected(
    next_epoch,
    centers,
    preconditioner,
    project,
    *,
    iterate,
    batch_size,
    interval,
    step_size,
    zero_loss,
    n_halvings=0,
    n_slack_rows=0,
    may_restart=True,
    try_half_steps=True,
):
    """Minimise sum_i w_i (f(x_i) - y_i)^2 over f = K(., Z) a, with p centers Z.

    In the space of the kernel a step on a batch b of m rows, and every T batches the
    projection onto the span of K(., Z)::

        g = (eta / m) W (f(X_b) - y_b)
        f <- f - K(., X_b) g + K(., Z_c) V s_b,   s_b = D V' K(Z_c, X_b) g
        f <- K(., Z) (a + K(Z, Z)^-1 h),   h = sum of K(Z, Z_c) V s_b - K(Z, X_b) g

    over T batches. Between projections the rows X_b stay as temporary centers with
    coefficients -g.
    A batch costs m p (d + 2 l) multiply-adds (2 m p l where K(X, Z) is cached), with
    temporary centers m^2 T (d + l) / 2 more in the mean, and its part of a projection.
    T = 1 is EigenPro 3; EigenPro 4 takes T so that the projections cost little.

    The guard is that of `eigenpro`; it goes back to where the best epoch began.

    Parameters
    ----------
    next_epoch : callable
        ``next_epoch()`` returns an iterable of `Batch`.
    centers : KernelOperator
        K(Z, Z).
    preconditioner : CenterSpectral
    project : callable
        ``project(h, S)`` returns the coefficients of h + K(Z, Z_c) V S, perhaps
        approximately, and what these leave of it, which is added to the next h.
    iterate : Iterate
        Changed in place.
    batch_size : int
        m; batches may be smaller, and take shorter steps.
    interval : int
        T.
    step_size : float
        eta.
    zero_loss : float
        Mean loss of f = 0, summed over the outputs.
    n_halvings : int, default=0
        Of the step, so far.
    n_slack_rows : int, default=0
        Rows with the loss of f = 0 that the guard imagines before the first: few rows
        may be unlike the others.
    may_restart : bool, default=True
        Whether to start from zero where the given coefficients trip the guard.
    try_half_steps : bool, default=True
        Whether to try half the step, for the output whose residual stalls.

    Yields
    ------
    EpochState
        Without end: the caller decides when to stop.

    References
    ----------
    Abedsoltan, Belkin, Pandit, "Toward large kernel models", ICML 2023: algorithm 2.
    Abedsoltan, Ma, Pandit, Belkin, "Fast training of large kernel models with delayed
    projections", 2024 (arXiv:2411.16658).
    """
    xp = namespace(iterate.coef)
    n_fitted = preconditioner.vectors.shape[0]
    begin, good = iterate.copy(), iterate.copy()
    trials = [StepTrials() for _ in range(iterate.coef.shape[1])]
    guard = Guard(zero_loss, n_halvings)
    no_correction = xp.zeros_like(preconditioner.vectors.T @ iterate.coef[:n_fitted, :])

    def run_epoch():
        """Run one epoch, or the part of it until it diverges.

        Returns
        -------
        losses : ndarray of shape (l,)
            Mean of the squared residuals, NaN if it diverged; None if there is no row.
        n_steps : int
            Steps made.
        """
        factors = [trial.factor for trial in trials]
        rate = guard.factor * step_size / batch_size
        rates = rate * xp.asarray(
            factors, dtype=iterate.coef.dtype, device=device_of(iterate.coef)
        )
        residual, n_rows, n_steps = np.zeros(len(trials)), 0, 0
        baseline = n_slack_rows * zero_loss
        rows, steps, h = [], [], iterate.rest
        # The iterate itself changes in projections only: it is always a model.
        coef, S = xp.asarray(iterate.coef, copy=True), no_correction
        for batch in next_epoch():
            F, kept, K_b = batch.operator.product_and_matrix(coef, n_fitted)
            if rows:
                temporary = KernelOperator(centers.kernel, xp.concat(rows), batch.rows)
                F = F - temporary @ xp.concat(steps)
            error = F - batch.targets
            g = batch.weights[:, None] * error
            residual += to_numpy(xp.sum(g * error, axis=0))
            n_rows += error.shape[0]
            zero_losses = batch.weights * xp.sum(batch.targets**2, axis=1)
            baseline += max(float(xp.sum(zero_losses)), zero_loss * error.shape[0])
            if guard.trips(residual.sum(), baseline):
                return residual * np.nan, n_steps
            step = rates * g
            s = preconditioner.correction(kept, step)
            preconditioner.add_to(coef, s)
            S, h = S + s, h - centers.adjoint(K_b, step)
            n_steps += 1
            if interval > 1:
                rows.append(batch.rows)
                steps.append(step)
            if n_steps % interval == 0:
                iterate.add(*project(h, S))
                rows, steps, h = [], [], iterate.rest
                coef, S = xp.asarray(iterate.coef, copy=True), no_correction
        if n_steps % interval:
            iterate.add(*project(h, S))
        return residual / n_rows if n_rows else None, n_steps

    while True:
        with centers.exclusive_threads():
            losses, n_steps = run_epoch()
        if losses is None:
            yield EpochState(iterate.mean, 0.0, 0.0, guard.n_halvings)
            continue
        loss = losses.sum()
        if not guard.accepts(loss):
            # The given coefficients may be worse than none.
            if n_steps == 0 and may_restart:
                good = Iterate.of(xp.zeros_like(good.coef))
            iterate.go_to(good)
            begin = iterate.copy()
            for trial in trials:
                trial.forget()
            if guard.failed:
                yield EpochState(iterate.mean, np.nan, 0.0, guard.n_halvings, True)
                return
            continue
        if loss == guard.best_loss:
            good = begin
        begin = iterate.copy()
        step = guard.factor * step_size
        mean = xp.asarray(iterate.mean, copy=True)
        yield EpochState(mean, float(np.mean(losses)), step, guard.n_halvings)
        if try_half_steps:
            for trial, output_loss in zip(trials, losses, strict=True):
                trial.update(float(output_loss))


def projected_exactly(
    matrix, targets, weights, preconditioner, project, *, iterate, step_size
):
    """Minimise the same by full-batch steps, each projected: EigenPro 3, algorithm 1.

    The preconditioner lives on all n rows, and ::

        e = -(eta / n) (I - V D V' K(X, X)) W (K(X, Z) a - y)
        a <- a + K(Z, Z)^-1 K(Z, X) e

    Where q > 0 the fixed point is that of lemma 6 in the paper, not least squares. A
    step costs 2 n p l + 2 n q l multiply-adds and K(X, Z) is held in memory.

    Parameters
    ----------
    matrix : array of shape (n, p)
        K(X, Z).
    targets : array of shape (n, l)
    weights : array of shape (n,)
    preconditioner : GlobalSpectral
    project : callable
        ``project(h)`` returns K(Z, Z)^-1 h, and what is left of h.
    iterate, step_size
        As in `projected`.

    Yields
    ------
    EpochState
        After every step; without end.
    """
    xp, n = namespace(matrix), matrix.shape[0]
    guard = Guard(float(xp.sum(weights[:, None] * targets**2)) / n)
    good = iterate.copy()
    while True:
        error = matrix @ iterate.coef - targets
        g = weights[:, None] * error
        loss = float(xp.sum(g * error)) / n
        if not guard.accepts(loss):
            iterate.go_to(good)
            if guard.failed:
                yield EpochState(iterate.coef, np.nan, 0.0, guard.n_halvings, True)
                return
            continue
        if loss == guard.best_loss:
            good = iterate.copy()
        step, change = guard.factor * step_size, xp.zeros_like(targets)
        preconditioner.descend(None, change, slice(0, n), None, step / n * g)
        iterate.coef += project(matrix.T @ change)[0]
        loss = loss / targets.shape[1]
        coef = xp.asarray(iterate.coef, copy=True)
        yield EpochState(coef, loss, step, guard.n_halvings)
