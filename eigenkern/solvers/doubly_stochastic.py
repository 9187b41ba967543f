"""Doubly stochastic gradients: random rows and random features in every step.

The model is f(x) = b + sum_k (phi_k(x) - mu_k)' A_k with blocks of random features that
are drawn anew whenever they are needed. One step on a batch of B rows, with G = the
gradients of the loss in f(x_i), one row each, and a block k ::

    A_j <- (1 - gamma lambda) A_j  for all j
    A_k <- A_k - gamma (phi_k(X_b) - mu)' G / B,   mu = mean of phi_k(X_b)
    b   <- b - gamma_b (mean of G) / (mean of the loss's second derivative)

DSG (algorithm 1 of the paper) takes a new block in every step; UDSG (3) an old one,
drawn at random, in U of G + U steps; CDSG (4) an old one whenever `checked_step` finds
one that is no worse. `RunningValues` has f(x_i), the paper's algorithm 2. The first G
of G + U steps of UDSG take new blocks, as in the proof of theorem 4; algorithm 3, which
counts from i = 1, would begin with G - 1 new ones: for G = 1 with an old block before
there is any.

Other differences from the papers:

- They have neither mu nor b. But the mean of the features makes a constant function the
  top eigenvector of the kernel, with an eigenvalue of some ten times the next one: it
  alone would limit the step.
- There a step changes one block. But a step with few frequencies moves f between the
  training rows at random, and later steps, whose gradients are those at the rows, do
  not see that. The longest gradients are the first: step t spreads its change evenly
  over n_1 / t blocks (`BlockRule.n_first`).
- They sample the rows of every step. Here batches are slices of the given order of
  rows, and an epoch visits all of them equally often.
- The features of the UAI paper have a factor 2^1/2 more, with which the mean of
  phi(x)' phi(z) is 2 k(x, z), not k(x, z).

Li and Poczos, "Utilize old coordinates: faster doubly stochastic gradients for kernel
methods", UAI 2016; Dai et al., "Scalable kernel methods via doubly stochastic
gradients", NIPS 2014 (arXiv:1407.5599).
"""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..backend.array import device_of, to_numpy
from .guard import Epoch, Guard, Guarded

# Coefficients are rewritten when the factor by which all have shrunk is as small.
_SMALLEST_SCALE = 1e-6
# Least part of Newton's step that the constant makes, and the batch size from which on
# it makes the whole step. On 800 rows of thirteen data sets the errors with 0.05 and 1
# are 0.99 to 1.01 times those with 0.2.
_CONSTANT_RATE, _ROWS_OF_CONSTANT = 0.2, 4096
# Rows of a class that a batch should have: fewer say little about the second
# derivative.
_ROWS_OF_CLASS = 10


def constant_rate(batch_size, quick):
    """Return r, the part of Newton's step that the constant makes at the longest step.

    It leaves r / (2 - r) / B of the variance of one row's gradient in the constant. If
    `quick`, r leaves as much as the whole step leaves in batches of 4096 rows, but is
    at least 0.2; otherwise it is 0.2.
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
        sum_k mu_k' A_k over `scale`, each change of A_k with the mu of its own step.
    coef : list of arrays of shape (2 F, l)
        A_k over `scale`.
    sums : list of ndarrays of shape (l,)
        The paper's beta_k over `scale`: minus the sum of the steps on block k, each
        times its mean gradient; what A_k would be if its features were 1.
    scale : float
        Factor of all coefficients: where these shrink, it alone changes.
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

    def product(self, features, X):
        """Return sum_k phi_k(X)' A_k over `scale`, shape (m, l)."""
        n_blocks, n_columns = len(self.coef), self.constant.shape[0]
        return features.product(X, range(n_blocks), self.coef, n_columns)

    def values(self, product):
        """Return f on some rows, of their `product`."""
        return product * self.scale + self.intercept

    def copy(self):
        """Return a copy that does not change with this one."""
        return replace(self, coef=list(self.coef), sums=list(self.sums))

    def restore(self, other):
        """Become equal to `other`."""
        vars(self).update(vars(other.copy()))

    def block_sums(self):
        """Return beta_k of all blocks, shape (n_blocks, l)."""
        return self.scale * np.asarray(self.sums)

    def add(self, k, change, mean, move):
        """Add (phi_k - mu)' `change` to f, with `mean` = mu' `change`.

        `move` is the change of beta_k, minus the step times the mean gradient. All are
        over `scale`.
        """
        if k == len(self.coef):
            self.coef.append(change)
            self.sums.append(move)
        else:
            self.coef[k] = self.coef[k] + change
            self.sums[k] = self.sums[k] + move
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
    keep : bool
        Whether to keep values at all; without, every visit evaluates every block.
    """

    def __init__(self, features, expansion, keep):
        self._features, self._expansion, self.keep = features, expansion, keep
        self.forget()

    def forget(self):
        """Start anew, after the expansion has become another one."""
        self._values, self._seen = {}, {}
        self._log, self._n_dropped = [], 0

    def save(self):
        """Return the values and the record of changes, to `load`.

        Values that were summed anew, in another order, would differ by rounding.
        """
        return [self._values, self._seen, self._log, self._n_dropped]

    def load(self, saved):
        """Go on with values of the same batches, and the same expansion."""
        if self.keep:
            self._values, self._seen, self._log, self._n_dropped = saved

    def at(self, X, key):
        """Return the values over the scale on one batch, known by `key`, (m, l)."""
        values = self._values.get(key)
        if values is None:
            values = self._expansion.product(self._features, X)
        elif self._seen[key] < self._n_dropped + len(self._log):
            blocks, coef = self._changes_since(self._seen[key])
            values += self._features.product(X, blocks, coef, values.shape[1])
        if self.keep:
            self._values[key] = values
            self._seen[key] = self._n_dropped + len(self._log)
        return values

    def record(self, k, change, key, tiles, values):
        """Note that A_k has changed; bring `values`, of `at`, up to date.

        `tiles` has phi_k of that batch.
        """
        self._features.add_products(tiles, change, values)
        if self.keep:
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


@dataclass(frozen=True)
class Steps:
    """The step of every iteration.

    Attributes
    ----------
    gamma : callable
        ``gamma(t)`` is the step of iteration t = 1, 2, ...
    longest : float
        What no step exceeds.
    """

    gamma: Any
    longest: float

    def at(self, t):
        """Return the step of iteration t."""
        return min(self.gamma(t), self.longest)


@dataclass(frozen=True)
class BlockRule:
    """Which block of features a step changes.

    Attributes
    ----------
    algorithm : {"dsg", "udsg", "cdsg"}
    n_new, n_old : int
        G and U of "udsg".
    max_blocks : int or None
        Once there are as many blocks as this, old ones are drawn at random.
    n_first : float
        Step t changes the rounded ``n_first / t`` blocks, but at least one.
    """

    algorithm: str
    n_new: int = 1
    n_old: int = 1
    max_blocks: int | None = None
    n_first: float = 1.0

    def choose(self, expansion, mean_gradient, noise, step, longest, rng):
        """Return the blocks of a step, and the step.

        The index of a new block is the number of blocks before it. The parameters are
        those of `checked_step`, and the longest step: unlike in the paper, eta is never
        longer than that.
        """
        n_blocks = len(expansion.coef)
        if self.algorithm == "cdsg":
            sums = expansion.block_sums()
            k, longer = checked_step(sums, _host(mean_gradient), noise, step)
            if longer > step:
                return [k], min(longer, longest)
        n = max(round(self.n_first / (expansion.n_steps + 1)), 1)
        room = n if self.max_blocks is None else self.max_blocks - n_blocks
        turn = expansion.n_steps % (self.n_new + self.n_old)
        old = self.algorithm == "udsg" and turn >= self.n_new
        if room <= 0 or (old and n_blocks):
            if n == 1:
                return [rng.randint(n_blocks)], step
            return rng.permutation(n_blocks)[:n].tolist(), step
        return list(range(n_blocks, n_blocks + min(n, room))), step


def checked_step(sums, mean_gradient, noise, gamma):
    """Return the old block that allows the longest step, and that step.

    The step eta on block k, whose steps so far add up to beta_k, has at most the error
    of a step gamma on a new block if, by equation 9 of the paper, whose eta is our
    -eta, ::

        2 |beta_k - eta g|^2 + 2 eta^2 v <= |beta_k|^2 + gamma^2 |g|^2

    with the batch's mean gradient g and v = (M sigma)^2 / B, the error that arises
    because the earlier batches had other rows. (Equation 9 divides by B^2; the variance
    in the text before it is divided by B. In algorithm 4, which subtracts eta_k as we
    do, the condition "|eta_j| <= gamma_t" must be "|eta_k| <= gamma_i", and in the last
    line, "beta_k = alpha_k - ...", alpha_k must be beta_k.)

    Parameters
    ----------
    sums : ndarray of shape (n_blocks, l)
        beta_k.
    mean_gradient : ndarray of shape (l,)
        g.
    noise : float
        v. `Iteration.step` takes the mean of |g_i|^2 over the batch in place of its
        bound M^2, and 1 / (8 F) for sigma^2.
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


class TrainingRows(NamedTuple):
    """Rows of `doubly_stochastic`.

    Attributes
    ----------
    X : array of shape (n, d)
    targets : array of shape (n, l)
    weights : array of shape (n,)
        With mean 1.
    """

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
    """Minimise lambda / 2 |f - b|^2 + mean_i w_i loss(y_i, f(x_i)).

    With F frequencies in a block a step costs 2 B F (d + 2 l) flops and 2 B F cosines
    and sines for its own block. The values of f on the batch cost as much for each of
    the blocks; where running values are kept, for each block that changed since the
    last visit, at most n / B of them.

    Parameters
    ----------
    features : FourierBlocks
    rows : TrainingRows
    loss : Loss
    expansion : Expansion
        f to start from; changed in place. The guard compares losses with that of its
        constant alone.
    alpha : float
        lambda.
    batch_size : int
        B.
    steps : Steps
    blocks : BlockRule
    keep_values : bool
        Whether to keep the values of f on all rows.
    rng : numpy.random.RandomState
        Order of the batches and old blocks.
    n_passes : int, default=1
        Passes over the rows that make an epoch.
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
    xp, n = features.xp, rows.X.shape[0]
    # A last batch of one row joins the one before: less their mean, the features of a
    # single row are zero.
    bounds = [*range(0, max(n - 1, 1), batch_size), n]
    batches = [slice(start, stop) for start, stop in pairwise(bounds)]
    zeros = xp.broadcast_to(expansion.constant[None, :], rows.targets.shape)
    zero_losses = rows.weights * loss.value(rows.targets, zeros)
    zero_loss = float(xp.sum(zero_losses)) / n
    guard = Guard(zero_loss, n_halvings)
    values = RunningValues(features, expansion, keep_values)
    iteration = Iteration(
        features, rows, loss, expansion, values, alpha, batch_size, steps, blocks, rng
    )

    def epoch():
        total = baseline = 0.0
        diverged = Epoch(None, np.full(1, np.nan), np.nan, 0)
        order = np.tile(np.arange(len(batches)), n_passes)
        for i in rng.permutation(order) if shuffle else order:
            b = batches[i]
            V = values.at(rows.X[b, :], b.start)
            batch_loss, G, *moments = iteration.gradients(b, V)
            total += batch_loss
            of_zero = max(float(xp.sum(zero_losses[b])), zero_loss * V.shape[0])
            baseline += of_zero
            if keep_values and guard.trips(total, baseline):
                return diverged
            iteration.step(b, V, G, *moments, guard.factor)
            if not keep_values:
                # The rows may never come again: a step that is too long shows on its
                # own batch, whose loss it raises.
                after = iteration.total_loss(b, V)
                if guard.trips(after, of_zero) and not after < batch_loss:
                    return diverged
            if expansion.scale < _SMALLEST_SCALE:
                expansion.fold()
                values.forget()
        values.drop_known()
        mean_loss = np.full(1, total / (n_passes * n))
        return Epoch(expansion.copy(), mean_loss, mean_loss[0], 1)

    def restore(good):
        expansion.restore(good)
        values.forget()

    return Guarded(
        epoch,
        guard,
        snapshot=expansion.copy,
        restore=restore,
        save_rest=values.save,
        load_rest=values.load,
    )


@dataclass
class Iteration:
    """One step on a batch, and the losses before and after it.

    The attributes are what `doubly_stochastic` knows.
    """

    features: Any
    rows: TrainingRows
    loss: Any
    expansion: Expansion
    values: RunningValues
    alpha: float
    batch_size: int
    steps: Steps
    blocks: BlockRule
    rng: Any

    def step(self, b, V, G, squares, curvatures, factor):
        """Change the expansion, and its values `V`, by one step on a batch `b`.

        `G`, `squares` and `curvatures` are what `gradients` returns; the guard
        multiplies the step by `factor`.
        """
        xp, m, expansion = self.features.xp, G.shape[0], self.expansion
        sums = xp.sum(G, axis=0)
        total_weight, mean_gradient = float(sums[-1]), sums[:-1] / m
        if total_weight == 0.0:
            return
        factor *= min(m / self.batch_size, 1.0)  # a row counts as much in a short batch
        gamma = factor * self.steps.at(expansion.n_steps + 1)
        # v of `checked_step`, squares / m for M^2. sigma^2: the mean of F cosines has a
        # variance of 1 / (2 F) at most, over the square of a bound, 2, of what varies.
        noise = squares / (8.0 * self.features.block_size * m**2)
        blocks, gamma = self.blocks.choose(
            expansion,
            mean_gradient,
            noise,
            gamma,
            factor * self.steps.longest,
            self.rng,
        )
        expansion.scale *= 1.0 - gamma * self.alpha
        rate = -gamma / expansion.scale / len(blocks)
        for k in blocks:
            tiles, sums = self.features.adjoint(self.rows.X[b, :], k, G)
            mu = sums[:, -1] / total_weight
            change = rate * (sums[:, :-1] / m - mu[:, None] * mean_gradient)
            expansion.add(k, change, mu @ change, rate * _host(mean_gradient))
            self.values.record(k, change, b.start, tiles, V)
        least = min(_ROWS_OF_CLASS / m, self.loss.curvature)
        # While the constant lags behind, old blocks fail the check. That matters only
        # where they save time: where values are kept, new blocks cost no more.
        quick = self.loss.moves_constant and not self.values.keep
        rate = constant_rate(self.batch_size, quick) * gamma / self.steps.longest
        rate = rate / np.maximum(curvatures / total_weight, least) * m / total_weight
        rate = xp.asarray(rate, dtype=G.dtype, device=device_of(G))
        expansion.constant = expansion.constant - rate * mean_gradient
        expansion.n_steps += 1

    def total_loss(self, b, V):
        """Return the loss of a batch of rows, of the values V of `RunningValues`."""
        Y, w = self.rows.targets[b, :], self.rows.weights[b]

        def task(tile):
            losses = self.loss.value(Y[tile, :], self.expansion.values(V[tile, :]))
            return float(self.features.xp.sum(w[tile] * losses))

        return sum(self.features.map_tiles(task, V.shape[0], V.shape[1]))

    def gradients(self, b, V):
        """Return the loss of a batch, its gradients, and their sums.

        Returns
        -------
        total : float
        G : array of shape (m, l + 1)
            Gradients in f, and the weights of the rows beside them.
        squares : float
            Sum of the squares of the gradients.
        curvatures : ndarray of shape (l,)
            Sum of the second derivatives.
        """
        xp, loss = self.features.xp, self.loss
        Y, W = self.rows.targets[b, :], self.rows.weights[b]
        # One row an output: losses sum over few columns.
        G = xp.empty((V.shape[1] + 1, V.shape[0]), **self.features.array_options).T

        def task(tile):
            F, w = self.expansion.values(V[tile, :]), W[tile]
            value, gradient = loss.value_and_gradient(Y[tile, :], F)
            second = w[:, None] * loss.second_derivative(gradient)
            G[tile, -1] = w
            G[tile, :-1] = gradient = w[:, None] * gradient
            return (
                float(xp.sum(w * value)),
                float(xp.sum(gradient * gradient)),
                _host(xp.sum(second, axis=0)),
            )

        tiles = self.features.map_tiles(task, V.shape[0], V.shape[1])
        total, squares, curvatures = (sum(parts) for parts in zip(*tiles, strict=True))
        return total, G, squares, curvatures


def _host(values):
    """Return `values` on the host in float64."""
    return to_numpy(values).astype(np.float64)
