"""Doubly stochastic gradients: random rows and random features in every step.

The model is f(x) = b + sum_k (phi_k(x) - mu_k)' A_k with blocks of random features that
are drawn anew whenever they are needed. One step on a batch of B rows, with G = the
gradients of the loss in f(x_i), one row each, and a block k ::

    A_j <- (1 - gamma lambda) A_j  for all j
    A_k <- A_k - gamma (phi_k(X_b) - mu)' G / B,   mu = mean of phi_k(X_b)
    b   <- b - gamma_b (mean of G) / (mean of the loss's second derivative)

DSG takes a new block in every step; UDSG an old one, drawn at random, in U of G + U
steps; CDSG an old one whenever `checked_step` finds one for which that is no worse.

Without mu and the last line this is the algorithm of the papers. The features' mean
makes a constant function the top eigenvector of the kernel, with an eigenvalue of some
ten times the next one: it alone would limit the step.

Li and Poczos, "Utilize old coordinates: faster doubly stochastic gradients for kernel
methods", UAI 2016; Dai et al., "Scalable kernel methods via doubly stochastic
gradients", NeurIPS 2014 (arXiv:1407.5599).
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..backend.array import device_of, to_numpy
from .guard import EpochState, Guard

# Shrinking coefficients are rewritten when their common factor is as small.
_SMALLEST_SCALE = 1e-6


# Part of Newton's step that the constant makes at least, and with how many rows it
# makes the whole.
_CONSTANT_RATE, _ROWS_OF_CONSTANT = 0.2, 4096


# Rows that a batch shall have of a class: fewer tell little of the second derivative.
_ROWS_OF_CLASS = 10


def constant_rate(batch_size, quick):
    """Return the part of Newton's step that the constant makes, at the longest step.

    Of the variance of one row's gradient a rate r leaves r / (2 - r) over B in the
    constant: if `quick`, no more than the whole step of 4096 rows leaves, or a rate of
    0.2 where that is more.
    """
    if not quick:
        return _CONSTANT_RATE
    part = min(batch_size / _ROWS_OF_CONSTANT, 1.0)
    return max(2.0 * part / (1.0 + part), _CONSTANT_RATE)


@dataclass
class Expansion:
    """f = b + scale (sum_k phi_k' A_k - mean).

    Blocks are replaced, never changed: copies are cheap.

    Attributes
    ----------
    constant : array of shape (l,)
        b.
    mean : array of shape (l,)
        sum_k mu_k' A_k over `scale`, each part of A_k with the mu of its step.
    coef : list of arrays of shape (2 F, l)
        A_k over `scale`.
    sums : list of ndarrays of shape (l,)
        The paper's beta_k over `scale`: what A_k was moved by for a mean gradient of 1.
    scale : float
        One number to multiply by where all coefficients shrink.
    n_steps : int
        Steps made.
    """

    constant: Any
    mean: Any
    coef: list = field(default_factory=list)
    sums: list = field(default_factory=list)
    scale: float = 1.0
    n_steps: int = 0

    @property
    def intercept(self):
        """What to add to the sum over blocks, shape (l,)."""
        return self.constant - self.scale * self.mean

    def copy(self):
        """Return a copy that does not change with this one."""
        return replace(self, coef=list(self.coef), sums=list(self.sums))

    def restore(self, other):
        """Become equal to `other`."""
        vars(self).update(vars(other.copy()))

    def block_sums(self):
        """Return beta_k of all blocks, shape (n_blocks, l)."""
        return self.scale * np.asarray(self.sums)

    def add(self, k, change, mean, mean_gradient):
        """Add (phi_k - mu)' `change` to f, `mean` = mu' `change`; all over `scale`."""
        if k == len(self.coef):
            self.coef.append(change)
            self.sums.append(mean_gradient)
        else:
            self.coef[k] = self.coef[k] + change
            self.sums[k] = self.sums[k] + mean_gradient
        self.mean = self.mean + mean

    def fold(self):
        """Bring `scale` back to 1."""
        self.coef = [A * self.scale for A in self.coef]
        self.sums = [s * self.scale for s in self.sums]
        self.mean, self.scale = self.mean * self.scale, 1.0


class RunningValues:
    """Values of sum_k phi_k' A_k on rows that are visited again and again.

    Each batch keeps its values and how many steps they know of. A visit adds what the
    steps since then have changed, which costs one block a step at most; the blocks of
    all earlier steps are not evaluated again.

    Parameters
    ----------
    features : FourierBlocks
    expansion : Expansion
    n_columns : int
        l.
    keep : bool
        Whether to keep values at all; without, every visit evaluates every block.
    """

    def __init__(self, features, expansion, n_columns, keep):
        self._features, self._expansion = features, expansion
        self._n_columns, self._keep = n_columns, keep
        self.forget()

    def forget(self):
        """Start anew, after the expansion has become another one."""
        self._values, self._seen = {}, {}
        self._log, self._n_dropped = [], 0

    def at(self, X, key):
        """Return the values over the scale on one batch, known by `key`, (m, l)."""
        values = self._values.get(key)
        if values is None:
            coef = self._expansion.coef
            blocks, n_columns = range(len(coef)), self._n_columns
            values = self._features.product(X, blocks, coef, n_columns)
        elif self._seen[key] < self._n_dropped + len(self._log):
            blocks, coef = self._changes_since(self._seen[key])
            values += self._features.product(X, blocks, coef, self._n_columns)
        if self._keep:
            self._values[key] = values
            self._seen[key] = self._n_dropped + len(self._log)
        return values

    def record(self, k, change, key, phi, values):
        """Note that A_k has changed; bring `values`, of `at`, up to date.

        `phi` is phi_k of that batch.
        """

        def task(rows):
            values[rows, :] += phi[rows, :] @ change

        self._features.map_tiles(task, values.shape[0], phi.shape[1])
        if self._keep:
            self._log.append((k, change))
            self._seen[key] = self._n_dropped + len(self._log)

    def _changes_since(self, seen):
        changes = {}
        for k, change in self._log[seen - self._n_dropped :]:
            changes[k] = changes[k] + change if k in changes else change
        return list(changes), list(changes.values())

    def drop_known(self):
        """Drop the part of the record that every batch has seen."""
        n = min(self._seen.values(), default=self._n_dropped) - self._n_dropped
        del self._log[:n]
        self._n_dropped += n


def checked_step(sums, mean_gradient, noise, gamma):
    """Return the old block that allows the longest step, and that step.

    The step eta on block k, in which the steps so far add up to beta_k, has at most the
    error of a step gamma on a new block if (equation 9 of the paper) ::

        2 |beta_k - eta g|^2 + 2 eta^2 v <= |beta_k|^2 + gamma^2 |g|^2

    with the batch's mean gradient g and v = (M sigma)^2 / B, the error from other rows
    having been in the earlier batches.

    Parameters
    ----------
    sums : ndarray of shape (n_blocks, l)
        beta_k.
    mean_gradient : ndarray of shape (l,)
        g.
    noise : float
        v.
    gamma : float

    Returns
    -------
    k : int
    eta : float
        0.0 where no step on an old block meets the condition.
    """
    square = mean_gradient @ mean_gradient
    a = 2.0 * (square + noise)
    if not len(sums) or not a > 0:
        return 0, 0.0
    b = 2.0 * (sums @ mean_gradient)
    c = (sums * sums).sum(axis=1) - gamma**2 * square
    root = b * b - a * c
    steps = np.where(root >= 0, (b + np.sqrt(np.maximum(root, 0.0))) / a, 0.0)
    k = int(np.argmax(steps))
    return k, float(max(steps[k], 0.0))


def doubly_stochastic(
    features,
    X,
    targets,
    loss,
    *,
    expansion,
    weights,
    algorithm,
    alpha,
    batch_size,
    gamma,
    longest_step,
    n_new,
    n_old,
    max_blocks,
    keep_values,
    rng,
    n_passes=1,
    shuffle=True,
    n_halvings=0,
):
    """Minimise lambda / 2 |f - b|^2 + mean_i w_i loss(y_i, f(x_i)).

    With F features in a block a step costs 2 B F (d + 2 l) flops and 2 B F cosines and
    sines for its own block, and for the values of f on the batch that times the number
    of blocks; where running values are kept, times the number of blocks that changed
    since the last visit, at most n / B.

    Parameters
    ----------
    features : FourierBlocks
    X : array of shape (n, d)
    targets : array of shape (n, l)
    loss : Loss
    expansion : Expansion
        f to start from; changed in place. Its constant is what `guard` compares with.
    weights : array of shape (n,)
        w, with mean 1.
    algorithm : {"dsg", "udsg", "cdsg"}
    alpha : float
        lambda.
    batch_size : int
        B.
    gamma : callable
        ``gamma(t)`` is the step of iteration t = 1, 2, ...
    longest_step : float
        What no step exceeds.
    n_new, n_old : int
        G and U of "udsg".
    max_blocks : int or None
        After as many blocks old ones are drawn at random.
    keep_values : bool
        Whether to keep the values of f on all rows.
    rng : numpy.random.RandomState
        Order of the batches and old blocks.
    n_passes : int, default=1
        Passes over the rows in what is called an epoch.
    shuffle : bool, default=True
        Whether the batches, slices of the given order, are visited in random order.
    n_halvings : int, default=0
        How often the guard has halved the steps before.

    Yields
    ------
    EpochState
        With a copy of `expansion` as `coef`, and as `step_size` the factor that the
        guard multiplies all steps by. Without end, unless it has `failed`.
    """
    xp, n = features.xp, X.shape[0]
    # A last batch of one row joins the one before: it has no features less their mean.
    starts = np.arange(0, max(n - 1, 1), batch_size)
    stops = {int(start): min(int(start) + batch_size, n) for start in starts}
    stops[int(starts[-1])] = n
    values = RunningValues(features, expansion, targets.shape[1], keep_values)
    zeros = xp.broadcast_to(expansion.constant[None, :], targets.shape)
    zero_losses = weights * loss.value(targets, zeros)
    zero_loss = float(xp.sum(zero_losses)) / n
    guard = Guard(zero_loss, n_halvings)

    def sum_losses(V, b, G=None):
        """Return the loss of a batch, of its `values`, and the squares of gradients.

        The third is the sum of second derivatives, shape (l,). Gradients, and the
        weights beside them, are written to `G`, if it is given.
        """
        intercept, scale = expansion.intercept, expansion.scale
        W, Y = weights[b], targets[b, :]

        def task(rows):
            F, w, Y_t = V[rows, :] * scale + intercept, W[rows], Y[rows, :]
            squares = curvatures = 0.0
            if G is not None:
                gradient = loss.gradient(Y_t, F)
                second = w[:, None] * loss.second_derivative(gradient)
                curvatures = _host(xp.sum(second, axis=0))
                G[rows, -1] = w
                G[rows, :-1] = gradient = w[:, None] * gradient
                squares = float(xp.sum(gradient * gradient))
            return float(xp.sum(w * loss.value(Y_t, F))), squares, curvatures

        tiles = features.map_tiles(task, V.shape[0], V.shape[1])
        return tuple(sum(parts) for parts in zip(*tiles, strict=True))

    def choose(mean_gradient, noise, step):
        """Return the block of a step, and the step."""
        n_blocks = len(expansion.coef)
        if algorithm == "cdsg":
            sums = expansion.block_sums()
            k, longer = checked_step(sums, _host(mean_gradient), noise, step)
            if longer > step:
                return k, min(longer, longest_step)
        full = max_blocks is not None and n_blocks >= max_blocks
        old = algorithm == "udsg" and expansion.n_steps % (n_new + n_old) >= n_new
        if full or (old and n_blocks):
            return rng.randint(n_blocks), step
        return n_blocks, step

    # A constant that lags behind keeps old blocks from being checked with success. That
    # is a loss only where they save time: with kept values a new one costs no more.
    quick = loss.moves_constant and not keep_values

    def make_step(V, b, G, squares, curvatures):
        """Change the expansion, and `V`, by one step on a batch."""
        m = G.shape[0]
        sums = xp.sum(G, axis=0)
        total_weight, mean_gradient = float(sums[-1]), sums[:-1] / m
        if total_weight == 0.0:
            return
        step = guard.factor * min(gamma(expansion.n_steps + 1), longest_step)
        step *= min(m / batch_size, 1.0)  # a row counts as much in a shorter batch
        noise = squares / (8.0 * features.block_size * m**2)
        k, step = choose(mean_gradient, noise, step)
        expansion.scale *= 1.0 - step * alpha
        factor = -step / expansion.scale
        phi, sums = features.adjoint(X[b, :], k, G)
        mu = sums[:, -1] / total_weight
        change = factor * (sums[:, :-1] / m - mu[:, None] * mean_gradient)
        expansion.add(k, change, mu @ change, factor * _host(mean_gradient))
        values.record(k, change, b.start, phi, V)
        least = min(_ROWS_OF_CLASS / m, loss.curvature)
        rate = constant_rate(batch_size, quick) * step / longest_step
        rate = rate / np.maximum(curvatures / total_weight, least) * m / total_weight
        rate = xp.asarray(rate, dtype=G.dtype, device=device_of(G))
        expansion.constant = expansion.constant - rate * mean_gradient
        expansion.n_steps += 1

    def run_epoch():
        """Run one epoch; return its mean loss, NaN if it diverged."""
        total = baseline = 0.0
        order = np.tile(starts, n_passes)
        for start in rng.permutation(order) if shuffle else order:
            b = slice(int(start), stops[int(start)])
            V = values.at(X[b, :], b.start)
            G = xp.empty((V.shape[0], V.shape[1] + 1), **features.array_options)
            batch_loss, *moments = sum_losses(V, b, G)
            total += batch_loss
            average = zero_loss * V.shape[0]
            of_zero = max(float(xp.sum(zero_losses[b])), average)
            baseline += of_zero
            if keep_values and guard.trips(total, baseline):
                return np.nan
            make_step(V, b, G, *moments)
            if not keep_values:
                # The rows may never come again: a step that is too long shows on its
                # own batch, whose loss it raises.
                after = sum_losses(V, b)[0]
                if guard.trips(after, of_zero) and not after < batch_loss:
                    return np.nan
            if expansion.scale < _SMALLEST_SCALE:
                expansion.fold()
                values.forget()
        values.drop_known()
        return total / (n_passes * n)

    begin = good = expansion.copy()
    while True:
        mean_loss = run_epoch()
        if not guard.accepts(mean_loss):
            expansion.restore(good)
            values.forget()
            begin = good
            if guard.failed:
                yield EpochState(good, np.nan, 0.0, guard.n_halvings, failed=True)
                return
            continue
        if mean_loss == guard.best_loss:
            good = begin
        begin = expansion.copy()
        yield EpochState(begin, mean_loss, guard.factor, guard.n_halvings)


def _host(values):
    """Return `values` on the host in float64."""
    return to_numpy(values).astype(np.float64)
