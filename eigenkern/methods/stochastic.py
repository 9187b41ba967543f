"""Doubly stochastic gradients: random rows and random features in every step.

The model is f(x) = b + sum_k (phi_k(x) - mu_k)' A_k with blocks of random features that
are drawn anew whenever they are needed. One step eta on a batch of B rows, with the
gradients G of the loss in f(x_i), one per row, changes a block k and the constant b ::

    A_j <- (1 - eta lambda) A_j  for all j
    A_k <- A_k - eta (phi_k(X_b) - mu)' G / B,   mu = mean of phi_k(X_b)
    b   <- b - eta_b (mean of G) / (mean of the loss's second derivative)

DSG (algorithm 1 of the paper) takes a new block in every step; UDSG (3) an old one,
drawn at random, in U of G + U steps; CDSG (4) an old one whenever `checked_step` finds
one that allows a longer step than a new one. In UDSG the first G of every G + U steps
take new blocks, as in the proof of theorem 4. Algorithm 3 counts from i = 1 and would
begin with only G - 1 new blocks: if G = 1, with an old block before there is any.

Symbols of the paper, and where they are here: alpha_k is A_k (`Expansion.coef`), beta_k
is in `Expansion.betas`, lambda is the parameter `alpha`, l' a row of G, gamma_i comes
from `Steps`, and f(x_i) (algorithm 2) from `RunningValues`. The paper has one output; g
and beta_k are vectors of l outputs here. eta_b, of the constant, is `constant_rate`
times eta over the longest step. Comments have the lines of algorithm 4, "m = 0" being
line 1, the step sizes line 5, and lines 13 to 16 those of an old block.

Other differences from the papers:

- They have neither mu nor b. But the mean of the features makes a constant function the
  top eigenvector of the kernel, with about ten times the next eigenvalue: it alone
  would limit the step.
- They change one block per step. But a step with few frequencies also changes f, at
  random, where there are no training rows, and no later gradient corrects that. The
  first gradients are the largest, so step t spreads its change evenly over n_1 / t
  blocks (`BlockRule.n_first`). By default the number of new blocks falls with the size
  of the steps, faster than in UDSG (`BlockRule.record`).
- They have no largest number of blocks. Here, once there are `max_blocks`, a random old
  block takes the place of a new one; in CDSG without a check.
- They sample the rows of every step. Here batches are slices of the given order of
  rows, and an epoch visits all of them equally often.
- The features of the UAI paper have an additional factor 2^1/2, with which the mean of
  phi(x)' phi(z) is 2 k(x, z), not k(x, z).

Li and Poczos, "Utilize old coordinates: faster doubly stochastic gradients for kernel
methods", UAI 2016; Dai et al., "Scalable kernel methods via doubly stochastic
gradients", NIPS 2014 (arXiv:1407.5599).
"""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import device_of, to_numpy
from .guard import Epoch, Guard, Guarded
from .state import Saved


@dataclass(frozen=True)
class BlockRule:
    """Which blocks of features a step changes.

    `n_new` and `n_old` are G and U of "udsg"; without U, blocks are old unless new ones
    are due, as `record` says. Once there are `max_blocks`, old ones are drawn at
    random. Step t changes ``n_first / t`` blocks, rounded, but at least one; fewer new
    ones if fewer are due.
    """

    algorithm: str
    n_new: int = 1
    n_old: int | None = 1
    max_blocks: int | None = None
    n_first: float = 1.0

    def choose(self, expansion, mean_gradient, noise, gamma, longest, rng):
        """Return the blocks of a step, and the step: gamma, or eta of an old block.

        The index of a new block is the number of blocks before it. The parameters are
        those of `checked_step`, and the longest step: unlike in the paper, eta is never
        longer than that.
        """
        n_blocks = len(expansion.coef)
        if self.algorithm == "cdsg":
            betas = expansion.block_sums()
            k, eta = checked_step(betas, mean_gradient, noise, gamma)  # 5
            if eta > gamma:  # 12, the else of 6
                return [k], min(eta, longest)
        n_new = n = max(round(self.n_first / (expansion.n_steps + 1)), 1)
        if self.algorithm == "udsg" and expansion.coef:
            if self.n_old is None:
                n_new = int(min(n, expansion.n_due))  # n if the steps diverge to NaN
            elif expansion.n_steps % (self.n_new + self.n_old) >= self.n_new:
                n_new = 0
        if self.max_blocks is not None:
            n_new = min(n_new, self.max_blocks - n_blocks)
        if n_new > 0:
            return list(range(n_blocks, n_blocks + n_new)), gamma
        if n == 1:
            return [rng.randint(n_blocks)], gamma
        return rng.permutation(n_blocks)[:n].tolist(), gamma

    def record(self, expansion, n_added, size):
        """Update `n_due` of an expansion after a step.

        If a step of change dA is spread over n new blocks, f has the variance
        |dA|^2 / (2 F n) at new rows, and a loss with the second derivative h grows by
        h / 2 times that. For a given number of blocks in all steps, the sum over the
        steps is least if n is proportional to h^(1/2) |dA|. So the next step, which
        will be about as large, calls for `n_new` n_first blocks times this size, over
        that of the first step; but at most for n_first / t, or for one every other
        step, which bounds the model where the loss falls slowly. `n_added` counts the
        new blocks, `size` is h^(1/2) |dA|, with the sum of the norms of all changes.
        """
        expansion.first_size = expansion.first_size or size
        due = min(max(expansion.n_due - n_added, 0.0), 1.0)
        if expansion.first_size > 0:
            called = self.n_new * self.n_first * size / expansion.first_size
            due += min(called, max(self.n_first / (expansion.n_steps + 2), 0.5))
        expansion.n_due = due


def checked_step(betas, mean_gradient, noise, gamma):
    """Return the old block that allows the longest step, and that step.

    By equation 9 of the paper, whose eta is our -eta, a step eta on block k has at most
    the error of a step gamma on a new block if ::

        2 |beta_k - eta g|^2 + 2 eta^2 v <= |beta_k|^2 + gamma^2 |g|^2

    with the batch's mean gradient g and v = (M sigma)^2 / B, the error that arises
    because the earlier batches had other rows. (Equation 9 divides by B^2; the variance
    in the text before it is divided by B. In algorithm 4, which subtracts eta_k as we
    do, the condition "|eta_j| <= gamma_t" must be "|eta_k| <= gamma_i", and in the last
    line, "beta_k = alpha_k - ...", alpha_k must be beta_k.)

    `betas` are beta_k, (n_blocks, l), `mean_gradient` g, and `noise` v: the step takes
    the mean of |g_i|^2 over the batch instead of its bound M^2, and 1 / (8 F) for
    sigma^2. eta is 0.0 if no step on an old block meets the condition.
    """
    square = mean_gradient @ mean_gradient
    a = 2.0 * (square + noise)
    if not len(betas) or not a > 0:
        return 0, 0.0
    b = 2.0 * (betas @ mean_gradient)
    c = (betas * betas).sum(axis=1) - gamma**2 * square
    root = b * b - a * c
    steps = np.where(root >= 0, (b + np.sqrt(np.maximum(root, 0.0))) / a, 0.0)
    k = int(np.argmax(steps))
    return k, float(max(steps[k], 0.0))


# `Expansion.scale` below which it is multiplied into the coefficients.
_SMALLEST_SCALE = 1e-6
# Smallest fraction of Newton's step that the constant makes, and the batch size from
# which on it makes the whole step. On 800 rows of thirteen data sets the errors with
# 0.05 and 1 are 0.99 to 1.01 times those with 0.2.
_CONSTANT_RATE, _WHOLE_STEP_ROWS = 0.2, 4096
# The mean second derivative is taken to be at least that of a batch with this many rows
# of a class: fewer rows do not determine it.
_FEWEST_OF_CLASS = 10


def constant_rate(batch_size, quick):
    """Return r, the fraction of Newton's step that the constant makes.

    r holds for the longest step. The constant then has r / (2 - r) / B times the
    variance of one row's gradient. If `quick`, r is such that this is the variance of
    whole steps in batches of 4096 rows, but at least 0.2; otherwise it is 0.2.
    """
    if not quick:
        return _CONSTANT_RATE
    part = min(batch_size / _WHOLE_STEP_ROWS, 1.0)
    return max(2.0 * part / (1.0 + part), _CONSTANT_RATE)


@dataclass
class Expansion:
    """f = b + scale (sum_k phi_k' A_k - mean).

    Blocks are replaced, never changed: copies are cheap. When A_k and beta_k shrink,
    only their common factor `scale` changes; everything but `constant`, b, is over it.

    Attributes
    ----------
    constant, mean : arrays of shape (l,)
        b; sum_k mu_k' A_k, where each change of A_k has the mu of its own step.
    coef, betas : lists of arrays of shape (2 F, l), of ndarrays of shape (l,)
        A_k; beta_k, minus the sum of the steps on block k, each times its mean
        gradient: what A_k would be if its features were 1.
    n_steps, n_due, first_size : int, float, float
        Steps made; new blocks that they call for, less those taken; size of the first
        step, 0.0 before there is one. `BlockRule.record` sets the last two.
    """

    constant: Any
    mean: Any
    coef: list = field(default_factory=list)
    betas: list = field(default_factory=list)
    scale: float = 1.0
    n_steps: int = 0
    n_due: float = 0.0
    first_size: float = 0.0

    @property
    def intercept(self):
        """The constant term, to be added to the sum over blocks, shape (l,)."""
        return self.constant - self.scale * self.mean

    def product(self, features, X):
        """Return sum_k phi_k(X)' A_k over `scale`, shape (m, l)."""
        n_blocks, n_columns = len(self.coef), self.constant.shape[0]
        return features.product(X, range(n_blocks), self.coef, n_columns)

    def values(self, product):
        """Return f on some rows from their `product`."""
        return product * self.scale + self.intercept

    def copy(self):
        """Return a copy that does not change with this one."""
        return replace(self, coef=list(self.coef), betas=list(self.betas))

    def restore(self, other):
        """Become equal to `other`."""
        vars(self).update(vars(other.copy()))

    def block_sums(self):
        """Return beta_k of all blocks, shape (n_blocks, l)."""
        return self.scale * np.asarray(self.betas)

    def add(self, k, change, mean_change, beta_change):
        """Add `change` to A_k, mu' `change` to the mean, and `beta_change` to beta_k.

        All are over `scale`.
        """
        if k == len(self.coef):  # a new block, m = m + 1
            self.coef.append(change)
            self.betas.append(beta_change)
        else:
            self.coef[k] = self.coef[k] + change
            self.betas[k] = self.betas[k] + beta_change
        self.mean = self.mean + mean_change

    def fold(self):
        """Multiply `scale` into the coefficients."""
        self.coef = [A * self.scale for A in self.coef]
        self.betas = [beta * self.scale for beta in self.betas]
        self.mean, self.scale = self.mean * self.scale, 1.0


class RunningValues(Saved):
    """Values of sum_k phi_k' A_k over the scale on batches that are visited repeatedly.

    It keeps the values of every batch and a log of the changes of blocks. A visit
    evaluates only the blocks that changed since the last one; unless it may `keep`
    values: then every visit evaluates every block.
    """

    # Values computed anew would differ by rounding: they are summed in another order.
    _saved = ("_values", "_seen", "_log", "_n_dropped")

    def __init__(self, features, expansion, keep):
        self._features, self._expansion, self.keep = features, expansion, keep
        self.forget()

    def forget(self):
        """Drop all values, because the expansion was replaced or rescaled."""
        self._values, self._seen = {}, {}
        self._log, self._n_dropped = [], 0

    def at(self, X, key):
        """Return the values on the batch X that is known by `key`, shape (m, l)."""
        values = self._values.get(key)
        if values is None:
            values = self._expansion.product(self._features, X)
        elif self._seen[key] < self._n_dropped + len(self._log):
            changes = {}
            for k, change in self._log[self._seen[key] - self._n_dropped :]:
                changes[k] = changes[k] + change if k in changes else change
            blocks, coef = list(changes), list(changes.values())
            values += self._features.product(X, blocks, coef, values.shape[1])
        if self.keep:
            self._values[key] = values
            self._seen[key] = self._n_dropped + len(self._log)
        return values

    def record(self, k, change, key, tiles, values):
        """Log a change of A_k, and add it to `values`, which `at` returned.

        `tiles` has phi_k of that batch.
        """
        self._features.add_products(tiles, change, values)
        if self.keep:
            self._log.append((k, change))
            self._seen[key] = self._n_dropped + len(self._log)

    def drop_known(self):
        """Drop the part of the log that every batch has seen."""
        n = min(self._seen.values(), default=self._n_dropped) - self._n_dropped
        del self._log[:n]
        self._n_dropped += n


@dataclass(frozen=True)
class Steps:
    """The step of every iteration t = 1, 2, ...: ``gamma(t)``, at most `longest`."""

    gamma: Any
    longest: float

    def at(self, t):
        return min(self.gamma(t), self.longest)


class TrainingRows(NamedTuple):
    """Rows X (n, d), targets (n, l), and weights (n,) with mean 1."""

    X: Any
    targets: Any
    weights: Any


def doubly_stochastic(
    features,
    rows,
    loss,
    *,
    expansion,
    alpha,
    batch_size,
    steps,
    blocks,
    keep_values,
    rng,
    n_passes=1,
    shuffle=True,
    n_halvings=0,
):
    """Minimize lambda / 2 |f - b|^2 + mean_i w_i loss(y_i, f(x_i)).

    With F frequencies in a block a step costs 2 B F (d + 2 l) flops and 2 B F cosines
    and sines for its own block. The values of f on the batch cost as much for every
    block; or, if running values are kept, for every block that changed since the last
    visit: about n / B of them, and more in the first steps (`BlockRule.n_first`).

    Parameters
    ----------
    features : FourierBlocks
    rows : TrainingRows
    loss : Loss
    expansion : Expansion
        f to start from; changed in place. The guard compares losses with that of its
        constant alone.
    alpha, batch_size : float, int
        lambda and B.
    steps : Steps
    blocks : BlockRule
    keep_values : bool
        Whether to keep the values of f on all rows.
    rng : numpy.random.RandomState
        Order of the batches and old blocks.
    n_passes : int, default=1
        Passes over the rows that make an epoch.
    shuffle : bool, default=True
        Whether to visit the batches, slices of the given order, in random order.
    n_halvings : int, default=0
        How often the guard has halved the steps before.

    Returns
    -------
    Guarded
        An iterator of one `State` per epoch. Its `coef` is a copy of `expansion`,
        and its `step_size` the factor by which the guard multiplies all steps.
    """
    xp, n = features.xp, rows.X.shape[0]
    # A last batch of one row joins the one before: minus their mean, the features of a
    # single row are zero.
    bounds = [*range(0, max(n - 1, 1), batch_size), n]
    batches = [slice(start, stop) for start, stop in pairwise(bounds)]
    zeros = xp.broadcast_to(expansion.constant[None, :], rows.targets.shape)
    zero_losses = rows.weights * loss.value(rows.targets, zeros)
    zero_loss = float(xp.sum(zero_losses)) / n
    guard = Guard(zero_loss, n_halvings)
    values = RunningValues(features, expansion, keep_values)

    def gradients(b, V):
        """Return the loss of a batch, its gradients, and their sums.

        The gradients, (m, l + 1), are those in f, and in the last column the weights of
        the rows; then follow the sum of their squares, and of the second derivatives.
        """
        Y, W = rows.targets[b, :], rows.weights[b]
        # Contiguous columns: losses with few of them are faster.
        G = xp.empty((V.shape[1] + 1, V.shape[0]), **features.array_options).T

        def task(tile):
            f, w = expansion.values(V[tile, :]), W[tile]
            value, gradient = loss.value_and_gradient(Y[tile, :], f)
            second = w[:, None] * loss.second_derivative(gradient)
            G[tile, -1] = w
            G[tile, :-1] = gradient = w[:, None] * gradient
            return (
                float(xp.sum(w * value)),
                float(xp.sum(gradient * gradient)),
                _host(xp.sum(second, axis=0)),
            )

        tiles = features.map_tiles(task, V.shape[0], V.shape[1])
        total, squares, curvatures = (sum(parts) for parts in zip(*tiles, strict=True))
        return total, G, squares, curvatures

    def total_loss(b, V):
        """Return the loss of a batch from its running values V."""
        Y, w = rows.targets[b, :], rows.weights[b]

        def task(tile):
            losses = loss.value(Y[tile, :], expansion.values(V[tile, :]))
            return float(xp.sum(w[tile] * losses))

        return sum(features.map_tiles(task, V.shape[0], V.shape[1]))

    def take_step(b, V, G, squares, curvatures):
        """Change the expansion, and its values `V`, by one step on a batch `b`."""
        m = G.shape[0]
        totals = xp.sum(G, axis=0)
        total_weight, mean_gradient = float(totals[-1]), totals[:-1] / m
        if total_weight == 0.0:
            return
        # A row counts as much in a short batch.
        factor = guard.factor * min(m / batch_size, 1.0)
        gamma = factor * steps.at(expansion.n_steps + 1)
        host_gradient = _host(mean_gradient)
        # v of `checked_step`. M^2 is squares / m, and sigma^2 is 1 / (8 F): the mean of
        # F cosines has at most the variance 1 / (2 F), which the paper divides by 4.
        noise = squares / (8.0 * features.block_size * m**2)
        longest = factor * steps.longest
        given = expansion, host_gradient, noise, gamma, longest, rng
        chosen, eta = blocks.choose(*given)  # 5, 6
        expansion.scale *= 1.0 - eta * alpha  # 7, 9 (13, 15)
        minus_step = -eta / expansion.scale / len(chosen)
        n_before, size = len(expansion.coef), 0.0
        for k in chosen:  # 8, 10, 11 (14, 16)
            tiles, products = features.adjoint(rows.X[b, :], k, G)
            mu = products[:, -1] / total_weight
            change = minus_step * (products[:, :-1] / m - mu[:, None] * mean_gradient)
            size += float(xp.sum(change * change)) ** 0.5
            expansion.add(k, change, mu @ change, minus_step * host_gradient)
            values.record(k, change, b.start, tiles, V)
        least = min(_FEWEST_OF_CLASS / m, loss.curvature)
        curvature = np.maximum(curvatures / total_weight, least)
        size *= expansion.scale * float(curvature.mean()) ** 0.5
        blocks.record(expansion, len(expansion.coef) - n_before, size)
        # While the constant lags behind, old blocks fail the check. That matters only
        # if old blocks save time: if values are kept, new ones cost no more.
        quick = loss.moves_constant and not values.keep
        rate = constant_rate(batch_size, quick) * eta / steps.longest
        rate = rate / curvature * m / total_weight
        rate = xp.asarray(rate, dtype=G.dtype, device=device_of(G))
        expansion.constant = expansion.constant - rate * mean_gradient
        expansion.n_steps += 1

    def run_epoch():
        total = baseline = 0.0
        diverged = Epoch(None, np.full(1, np.nan), np.nan, False)
        order = np.tile(np.arange(len(batches)), n_passes)
        for i in rng.permutation(order) if shuffle else order:  # 2
            b = batches[i]  # 3
            V = values.at(rows.X[b, :], b.start)  # 4
            batch_loss, G, squares, curvatures = gradients(b, V)
            total += batch_loss
            of_zero = max(float(xp.sum(zero_losses[b])), zero_loss * V.shape[0])
            baseline += of_zero
            if keep_values and guard.trips(total, baseline):
                return diverged
            take_step(b, V, G, squares, curvatures)  # 5 to 16
            if not keep_values:
                # The rows may never come again. A step that is too long raises the loss
                # of its own batch.
                after = total_loss(b, V)
                if guard.trips(after, of_zero) and not after < batch_loss:
                    return diverged
            if expansion.scale < _SMALLEST_SCALE:
                expansion.fold()
                values.forget()
        values.drop_known()
        mean_loss = np.full(1, total / (n_passes * n))
        return Epoch(expansion.copy(), mean_loss, mean_loss[0], True)

    def restore(good):
        expansion.restore(good)
        values.forget()

    return Guarded(
        run_epoch,
        guard,
        snapshot=expansion.copy,
        restore=restore,
        save_rest=values.save,
        load_rest=values.load,
    )


def _host(values):
    """Return `values` on the host in float64."""
    return to_numpy(values).astype(np.float64)
