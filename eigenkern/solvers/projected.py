"""Preconditioned gradient descent on a model with its own centers: EigenPro 3, 4."""

from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ..backend.array import device_of, namespace, to_numpy
from ..backend.lazy import in_memory
from ..backend.linalg import large_product
from ..operators.tiled import TiledKernel
from .guard import Epoch, EpochWatch, Guard, Guarded
from .step_search import StepSearch

# Iterate t has the weight t^3 in the mean: recent iterates count most, and the first
# half of them has a sixteenth of the weight. Squared errors on new rows over those with
# t^3, 5 and 20 epochs of EigenPro 4 on 2000 rows of nine data sets: up to 1.16 with
# equal weights, up to 1.04 of the last iterate alone; 0.98 to 1.01 with t, t^6, t^12.
_POWER = 3


class Batch(NamedTuple):
    """Rows of one step.

    Attributes
    ----------
    operator : Matrix
        K(X_b, Z).
    rows : array or LazyRows of shape (m, d)
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
    """The state of the iteration.

    Attributes
    ----------
    coef : array of shape (p, l)
        a, the last iterate.
    mean : array of shape (p, l)
        Mean of the iterates, the later ones with more weight: the model.
    rest : array of shape (p, l)
        The part of h that the last projection left over.
    n_projections : int
        Iterates so far.
    """

    coef: Any
    mean: Any
    rest: Any
    n_projections: int = 0

    @classmethod
    def of(cls, coef):
        """Return the start at some coefficients."""
        xp = namespace(coef)
        return cls(coef, coef, xp.zeros_like(coef)).copy()

    def copy(self):
        """Return a copy."""
        xp, parts = namespace(self.coef), (self.coef, self.mean, self.rest)
        copies = (xp.asarray(part, copy=True) for part in parts)
        return Iterate(*copies, self.n_projections)

    def go_to(self, other):
        """Take the values of another."""
        self.coef[...], self.mean[...] = other.coef, other.mean
        self.rest[...], self.n_projections = other.rest, other.n_projections

    def add(self, change, rest):
        """Add the change made by a projection, and keep what it left over."""
        self.coef += change
        self.rest = rest
        self.n_projections += 1
        # (c + 1) / (t + c) makes the weights grow as t^c, without knowing the last t.
        part = (_POWER + 1) / (self.n_projections + _POWER)
        self.mean += part * (self.coef - self.mean)


def projected(
    next_epoch,
    centers,
    P,
    project,
    *,
    iterate,
    batch_size,
    interval,
    step_size,
    zero_loss,
    alpha=0.0,
    n_halvings=0,
    n_slack_rows=0,
    may_restart=True,
    try_half_steps=True,
):
    """Minimise mean_i w_i (f(x_i) - y_i)^2 + alpha |f|^2 over f = K(., Z) a.

    In the kernel's space of functions, a step on a batch b of m rows is ::

        g = (eta / m) W (f(X_b) - y_b)
        f <- f - K(., X_b) g + K(., Z_c) V s_b,   s_b = D V' K(Z_c, X_b) g

    and after every T batches f is projected onto the span of K(., Z) ::

        h = - sum of K(Z, X_b) g,   S = sum of s_b
        f <- K(., Z) (a + K(Z, Z)^-1 (h + K(Z, Z_c) V S))

    where the sums are over the T batches, and a are the coefficients after the last
    projection; h also has what that one left over. Between projections the rows X_b
    stay as temporary centers with coefficients -g. The penalty's part of the step is
    implicit: it solves ``(I + kappa P) f = u`` for the projected function u, with kappa
    = eta alpha times the rows of the T batches over m. So it needs no shorter step,
    however large alpha is.

    A batch costs m p (d + 2 l) multiply-adds (2 m p l if K(X, Z) is cached), m^2 T (d +
    l) / 2 more on average for temporary centers, and its share of a projection. T = 1
    is EigenPro 3; EigenPro 4 chooses T so that the projections cost little.

    EigenPro 3 minimizes a sum over the n rows, not a mean. So its eta is our eta / n,
    and the factor of its step, (n / m) eta, is our eta / m. Its algorithm 2 projects
    after every batch and returns the last iterate; here the model is a mean of the
    iterates after projections (`Iterate.add`), and what a projection leaves over is
    added to the next h. In algorithm 2 the eigenvectors are those of a subsample of the
    rows, and a run of EigenPro 2 projects; `CenterSpectral` and `InexactProjection`
    explain why this package does neither.

    Parameters
    ----------
    next_epoch : callable
        ``next_epoch()`` returns an iterable of `Batch`.
    centers : Matrix
        K(Z, Z).
    P : CenterSpectral
    project : callable
        ``project(h, S)`` returns the coefficients of h + K(Z, Z_c) V S, perhaps
        approximately, and the residual, which is added to the next h.
    iterate : Iterate
        Changed in place.
    batch_size : int
        m; batches may be smaller, with shorter steps.
    interval : int
        T.
    step_size : float
        eta.
    zero_loss : float
        Mean loss of f = 0, summed over the outputs.
    alpha : float, default=0.0
    n_halvings : int, default=0
        How often the guard has already halved the step.
    n_slack_rows : int, default=0
        Extra rows that the guard counts at the start with the loss of f = 0, so that a
        few unusual rows do not trip it.
    may_restart : bool, default=True
        Whether to start from zero if the given coefficients trip the guard.
    try_half_steps : bool, default=True
        Whether to try half the step for an output whose residual stalls.

    Yields
    ------
    EpochState
        Without end: the caller decides when to stop.

    References
    ----------
    Abedsoltan, Belkin, Pandit, "Toward large kernel models", ICML 2023: algorithm 2.
    Abedsoltan, Ma, Pandit, Belkin, "Fast training of large kernel models with delayed
    projections", NeurIPS 2025 (arXiv:2411.16658).
    """
    xp, shape = namespace(iterate.coef), (1, iterate.coef.shape[1])
    guard = Guard(zero_loss, n_halvings)
    search = StepSearch(shape[1], tries=try_half_steps)

    def epoch():
        rates = guard.factor * step_size / batch_size * search.factors[0, :]
        watch = EpochWatch(guard, zero_loss, shape, n_slack_rows=n_slack_rows)
        with centers.exclusive_threads():
            batches = next_epoch()
            run_epoch(
                batches, centers, P, project, iterate, rates, interval, watch, alpha
            )
        if watch.n_rows == 0:
            return None
        losses = watch.losses[0, :] / watch.n_rows
        mean = xp.asarray(iterate.mean, copy=True)
        return Epoch(mean, losses, losses.sum(), watch.n_steps)

    return Guarded(
        epoch,
        guard,
        snapshot=iterate.copy,
        restore=iterate.go_to,
        step_size=step_size,
        model_of=lambda iterate: iterate.mean,
        origin=Iterate.of(xp.zeros_like(iterate.coef)) if may_restart else None,
        search=search,
        counts=lambda: _counts(iterate, project),
        save_rest=project.save,
        load_rest=project.load,
    )


def run_epoch(batches, centers, P, project, iterate, rates, interval, watch, alpha=0.0):
    """Visit an iterable of `Batch` until it ends or the losses diverge.

    `rates`, an ndarray of shape (l,), is eta / m of every output, and `watch` an
    `EpochWatch`; the other arguments are those of `projected`. Algorithm 2 of EigenPro
    3 calls a alpha. Its h and theta, times -(n / m) eta in its notation or -eta / m in
    ours, correspond to h + K(Z, Z_c) V S and the `change`.
    """
    xp, c, batches = namespace(iterate.coef), P.n_centers, iter(batches)
    rates = xp.asarray(rates, dtype=iterate.coef.dtype, device=device_of(iterate.coef))
    while True:
        # The iterate itself changes only in projections, so it is always a model.
        a, h, S = xp.asarray(iterate.coef, copy=True), iterate.rest, 0.0
        rows, steps, n_rows = [], [], 0
        for batch in islice(batches, interval):
            targets = batch.targets
            if rows:
                temporary = TiledKernel(centers.kernel, xp.concat(rows))
                targets = targets + temporary.rows(batch.rows) @ xp.concat(steps)
            error, image = batch.operator.gradient(a, targets, batch.weights, rates)
            weighted = batch.weights[:, None] * error
            zero_losses = batch.weights * xp.sum(batch.targets**2, axis=1)
            losses, m = xp.sum(weighted * error, axis=0), error.shape[0]
            if watch.add(losses, float(xp.sum(zero_losses)), m):
                return
            s_b = P.coordinates(image[:c, :])
            P.add_to(a, s_b)
            h, S, n_rows = h - image, S + s_b, n_rows + m
            if interval > 1:
                rows.append(in_memory(batch.rows))
                steps.append(rates * weighted)  # g
        if n_rows == 0:
            return
        change, rest = project(h, S)
        if alpha > 0:
            moved = iterate.coef + change
            values = centers.product(moved, 0, c)[0] if c else moved[:0, :]
            change = P.shrunk(moved, values, alpha * n_rows * rates) - iterate.coef
        iterate.add(change, rest)


def projected_exactly(K, y, weights, P, project, *, iterate, step_size):
    """Minimise the same by full-batch steps, each projected: EigenPro 3, algorithm 1.

    The preconditioner lives on all n rows, and ::

        e = -(eta / n) (I - V D V' K(X, X)) W (K(X, Z) a - y)
        a <- a + K(Z, Z)^-1 K(Z, X) e

    The paper's eta is our eta / n. If q > 0 the fixed point is that of lemma 6 in the
    paper, not least squares. The lemma's bound of the step lacks a factor: the matrix
    whose largest eigenvalue limits eta is K(Z, Z)^-1 K(Z, X) (I - Q) K(X, Z). A step
    costs 2 n p l + 2 n q l multiply-adds, and K(X, Z) is held in memory.

    Parameters
    ----------
    K : array of shape (n, p)
        K(X, Z).
    y, weights : arrays of shape (n, l) and (n,)
    P : GlobalSpectral
    project, iterate, step_size
        As in `projected`.

    Yields
    ------
    EpochState
        After every step, without end.
    """
    xp, (n, _), rows = namespace(K), K.shape, slice(0, K.shape[0])
    guard = Guard(float(xp.sum(weights[:, None] * y**2)) / n)

    def epoch():
        error = large_product(K, iterate.coef) - y
        weighted = weights[:, None] * error
        losses = to_numpy(xp.sum(weighted * error, axis=0)) / n
        if np.isfinite(losses).all():
            g = guard.factor * step_size / n * weighted
            e = P.correction(rows, g) - g if P.n_components else -g
            iterate.coef += project(large_product(e.T, K).T)[0]
            iterate.n_projections += 1
        coef = xp.asarray(iterate.coef, copy=True)
        return Epoch(coef, losses, losses.sum(), 1)

    return Guarded(
        epoch,
        guard,
        snapshot=iterate.copy,
        restore=iterate.go_to,
        step_size=step_size,
        model_of=lambda iterate: iterate.coef,
        counts=lambda: _counts(iterate, project),
    )


def _counts(iterate, project):
    return {"t_": iterate.n_projections, "projection_residual_": project.residual}
