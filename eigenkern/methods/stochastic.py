"""Doubly stochastic gradients: random rows and random features in every step.

The model is f(x) = b + sum_k (phi_k(x) - mu_k)' A_k with blocks of random features that
are drawn anew whenever they are needed. One step eta on a batch of B rows, with the
gradients G of the loss in f(x_i), one per row, changes a block k and the constant b ::

    A_j <- (1 - eta lambda) A_j  for all j
    A_k <- A_k - eta (phi_k(X_b) - mu)' G / B,   mu = mean of phi_k(X_b)
    b   <- b - eta_b (mean of G) / (mean of the loss's second derivative)

Beside their lines stand, as comments, those of the algorithms of the paper: 1 (DSG, or
Train), 3 (UDSG) and 4 (CDSG) are the loop `train` in `doubly_stochastic`, with k and
eta by `BlockRule.dsg`, `udsg` and `cdsg`; 2 (Predict) is `Expansion.predict`.

Symbols of the paper, and where they are here: alpha_k is A_k (`Expansion.coef`), beta_k
is in `Expansion.betas`, lambda is the parameter `alpha`, l' a row of G, and gamma_i
comes from `Steps`. The paper has one output; g and beta_k are vectors of l outputs
here. eta_b, of the constant, is `constant_rate` times eta over the longest step.

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
- In UDSG the first G of every G + U steps take new blocks, as in the proof of theorem
  4. Algorithm 3 counts from i = 1 and would begin with only G - 1 new blocks: if G = 1,
  with an old block before there is any.
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
    """Which blocks of features a step changes: in this the algorithms differ.

    `n_new` and `n_old` are G and U of "udsg"; without U, blocks are old unless new ones
    are due, as `record` says. Step t changes ``n_first / t`` blocks, rounded, but at
    least one; fewer new ones if fewer are due. There are at most `max_blocks`.
    """

    algorithm: str
    n_new: int = 1
    n_old: int | None = 1
    max_blocks: float = np.inf
    n_first: float = 1.0

    def choose(self, f, gradient, noise, gamma, longest, rng):
        """Return the blocks of a step on f, and the step: gamma, or eta of an old one.

        The index of a new block is the number of blocks before it. The parameters are
        those of `checked_step`, and the longest step: unlike in the paper, eta is never
        longer than that.
        """
        if self.algorithm == "cdsg":
            return self.cdsg(f, gradient, noise, gamma, longest, rng)
        return (self.dsg if self.algorithm == "dsg" else self.udsg)(f, rng), gamma

    def dsg(self, f, rng):
        """Return the blocks of algorithm 1: new ones in every step."""
        return self._new(f, rng)  # Sample omega_i ~ P(omega) with seed i.

    def udsg(self, f, rng):
        """Return the blocks of algorithm 3: G times new ones, then U times old ones."""
        i, G, U = f.n_steps, self.n_new, self.n_old
        if U is None:
            return self._new(f, rng, f.n_due if f.coef else np.inf)
        if i % (G + U) < G:  # if mod(i, G + U) < G then
            return self._new(f, rng)  # Sample omega_m+1 ~ P(omega) with seed m + 1.
        return self._old(f, rng)  # else Sample omega_k ~ P_m(omega), 1 <= k <= m.

    def cdsg(self, f, gradient, noise, gamma, longest, rng):
        """Return the blocks and the step of algorithm 4: the old block that is best."""
        # Compute eta_1, ..., eta_m via (9), and suppose |eta_k| = max_j |eta_j|.
        k, eta = checked_step(f.block_sums(), gradient, noise, gamma)
        if not eta > gamma:  # if |eta_k| <= gamma_i then
            return self._new(f, rng), gamma
        return [k], min(eta, longest)  # else

    def _new(self, f, rng, most=np.inf):
        """Return the next blocks, or old ones if there is no room for another one."""
        m = len(f.coef)
        # `most` is NaN if the steps diverge, and then not the minimum.
        n = int(min(self._n_changed(f), most, self.max_blocks - m))
        return list(range(m, m + n)) if n > 0 else self._old(f, rng)

    def _old(self, f, rng):
        m, n = len(f.coef), self._n_changed(f)
        return [rng.randint(m)] if n == 1 else rng.permutation(m)[:n].tolist()

    def _n_changed(self, f):
        return max(round(self.n_first / (f.n_steps + 1)), 1)

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


def constant_rate(batch_size, quick):
    """Return r, the fraction of Newton's step that the constant makes.

    r holds for the longest step. The constant then has r / (2 - r) / B times the
    variance of one row's gradient. If `quick`, r is such that this is the variance of
    whole steps in batches of 4096 rows, but at least 0.2; otherwise it is 0.2. (Errors
    with 0.05 and 1 are 0.99 to 1.01 times those with 0.2.)
    """
    part = min(batch_size / 4096, 1.0) if quick else 0.0
    return max(2.0 * part / (1.0 + part), 0.2)


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

    def predict(self, features, X, kept=None):
        """Return f(X), (m, l): algorithm 2, Predict.

        f(x) = 0; for k = 1, ..., m: sample omega_k ~ P(omega) with seed k, and add
        alpha_k phi_k(x). So does `FourierBlocks.product`, for many rows and k at once.
        """
        return self.values(self.product(features, X, kept))

    def product(self, features, X, kept=None):
        """Return sum_k phi_k(X)' A_k over `scale`, shape (m, l).

        `kept` is as in `FourierBlocks.product`.
        """
        n_blocks, n_columns = len(self.coef), self.constant.shape[0]
        return features.product(X, range(n_blocks), self.coef, n_columns, kept)

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


class Gradient(NamedTuple):
    """Loss of a batch of m rows, and its gradients in f.

    `rows` (m, l + 1) are the gradients times the weights of the rows, and the weights,
    whose sum is `weight`; `mean` (l,) is that of these gradients, `squares` the sum of
    their squares, and `curvatures` (l,) that of the second derivatives.
    """

    loss: float
    rows: Any
    weight: float
    mean: Any
    squares: float
    curvatures: np.ndarray


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
    xp, n, f = features.xp, rows.X.shape[0], expansion
    # A last batch of one row joins the one before: minus their mean, the features of a
    # single row are zero.
    bounds = [*range(0, max(n - 1, 1), batch_size), n]
    batches = [slice(start, stop) for start, stop in pairwise(bounds)]
    zeros = xp.broadcast_to(f.constant[None, :], rows.targets.shape)
    zero_losses = rows.weights * loss.value(rows.targets, zeros)
    zero_loss = float(xp.sum(zero_losses)) / n
    guard = Guard(zero_loss, n_halvings)
    values = RunningValues(features, f, keep_values)

    def gradient(b, V):
        """Return the loss of a batch with the values V, and its gradients in f."""
        Y, W, (m, n_columns) = rows.targets[b, :], rows.weights[b], V.shape
        # Contiguous columns: losses with few of them are faster.
        G = xp.empty((n_columns + 1, m), **features.array_options).T

        def task(tile):
            F, w = f.values(V[tile, :]), W[tile]
            value, slope = loss.value_and_gradient(Y[tile, :], F)
            second = w[:, None] * loss.second_derivative(slope)
            G[tile, -1] = w
            G[tile, :-1] = slope = w[:, None] * slope
            return (
                float(xp.sum(w * value)),
                float(xp.sum(slope * slope)),
                _host(xp.sum(second, axis=0)),
            )

        tiles, sums = features.map_tiles(task, m, n_columns), xp.sum(G, axis=0)
        total, squares, curvatures = (sum(parts) for parts in zip(*tiles, strict=True))
        return Gradient(total, G, float(sums[-1]), sums[:-1] / m, squares, curvatures)

    def total_loss(b, V):
        """Return the loss of a batch from its running values V."""
        Y, w = rows.targets[b, :], rows.weights[b]

        def task(tile):
            losses = loss.value(Y[tile, :], f.values(V[tile, :]))
            return float(xp.sum(w[tile] * losses))

        return sum(features.map_tiles(task, V.shape[0], V.shape[1]))

    def change(k, b, V, G, step):
        """Take a step, over `scale`, on block k; return the size of the change."""
        tiles, sums = features.adjoint(rows.X[b, :], k, G.rows)
        mu = sums[:, -1] / G.weight
        A = step * (sums[:, :-1] / V.shape[0] - mu[:, None] * G.mean)
        f.add(k, A, mu @ A, step * _host(G.mean))
        values.record(k, A, b.start, tiles, V)
        return float(xp.sum(A * A)) ** 0.5

    def train():
        """Run an epoch of algorithm 1, 3 or 4, whose lines are the comments."""
        total = baseline = 0.0
        diverged = Epoch(None, np.full(1, np.nan), np.nan, False)
        order = np.tile(np.arange(len(batches)), n_passes)
        for i in rng.permutation(order) if shuffle else order:
            b = batches[i]  # Sample (x_i, y_i) ~ P(x, y).
            V = values.at(rows.X[b, :], b.start)  # f(x_i) = Predict(x_i, {alpha_j}).
            G, m = gradient(b, V), V.shape[0]  # l'(f(x_i), y_i)
            total += G.loss
            of_zero = max(float(xp.sum(zero_losses[b])), zero_loss * m)
            baseline += of_zero
            if keep_values and guard.trips(total, baseline):
                return diverged
            if G.weight == 0.0:
                continue
            # A row counts as much in a short batch.
            factor = guard.factor * min(m / batch_size, 1.0)
            gamma, longest = factor * steps.at(f.n_steps + 1), factor * steps.longest
            # v of `checked_step`, with sigma^2 = 1 / (8 F): the mean of F cosines has
            # at most the variance 1 / (2 F), which the paper divides by 4.
            g, noise = _host(G.mean), G.squares / (8 * features.block_size * m**2)
            # Sample omega_k ~ P(omega), or choose an old one: `dsg`, `udsg`, `cdsg`.
            chosen, eta = blocks.choose(f, g, noise, gamma, longest, rng)
            # alpha_j = (1 - gamma_i lambda) alpha_j for all j; beta_j too.
            f.scale *= 1.0 - eta * alpha
            # alpha_k = alpha_k - gamma_i l'(f(x_i), y_i) phi_k(x_i); beta_k too.
            n_before, step = len(f.coef), -eta / f.scale / len(chosen)
            size = sum(change(k, b, V, G, step) for k in chosen)
            # Fewer than ten rows of a class do not determine the second derivative.
            least = min(10 / m, loss.curvature)
            curvature = np.maximum(G.curvatures / G.weight, least)
            size *= f.scale * float(curvature.mean()) ** 0.5
            blocks.record(f, len(f.coef) - n_before, size)
            # While the constant lags behind, old blocks fail the check. That matters
            # only if old blocks save time: if values are kept, new ones cost no more.
            quick = loss.moves_constant and not keep_values
            rate = constant_rate(batch_size, quick) * eta / steps.longest
            rate = rate / curvature * m / G.weight
            rate = xp.asarray(rate, dtype=V.dtype, device=device_of(V))
            f.constant = f.constant - rate * G.mean
            f.n_steps += 1
            if not keep_values:
                # The rows may never come again. A step that is too long raises the loss
                # of its own batch.
                after = total_loss(b, V)
                if guard.trips(after, of_zero) and not after < G.loss:
                    return diverged
            if f.scale < 1e-6:
                f.fold()
                values.forget()
        values.drop_known()
        mean_loss = np.full(1, total / (n_passes * n))
        return Epoch(f.copy(), mean_loss, mean_loss[0], True)

    def restore(good):
        f.restore(good)
        values.forget()

    return Guarded(
        train,
        guard,
        snapshot=f.copy,
        restore=restore,
        save_rest=values.save,
        load_rest=values.load,
    )


def _host(values):
    """Return `values` on the host in float64."""
    return to_numpy(values).astype(np.float64)
