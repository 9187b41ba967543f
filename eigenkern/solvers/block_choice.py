"""Which blocks of random features a step of doubly stochastic gradients changes.

Symbols, and the lines of algorithm 4 that comments name, are those of the module
`doubly_stochastic`.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class BlockRule:
    """Which blocks of features a step changes.

    Attributes
    ----------
    algorithm : {"dsg", "udsg", "cdsg"}
    n_new, n_old : int
        G and U of "udsg". `n_old` may be None: then blocks are old unless new ones are
        due, as `record` says.
    max_blocks : int or None
        Once there are this many blocks, old ones are drawn at random.
    n_first : float
        Step t changes ``n_first / t`` blocks, rounded, but at least one; fewer new ones
        if fewer are due.
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
        n = max(round(self.n_first / (expansion.n_steps + 1)), 1)
        n_new = self._n_new(expansion, n)
        if self.max_blocks is not None:
            n_new = min(n_new, self.max_blocks - n_blocks)
        if n_new > 0:
            return list(range(n_blocks, n_blocks + n_new)), gamma
        if n == 1:
            return [rng.randint(n_blocks)], gamma
        return rng.permutation(n_blocks)[:n].tolist(), gamma

    def _n_new(self, expansion, n):
        """Return how many new blocks a step takes if it may take `n`; 0: old ones."""
        if self.algorithm != "udsg" or not expansion.coef:
            return n
        if self.n_old is None:
            return int(min(n, expansion.n_due))  # n if the steps diverge to NaN
        turn = expansion.n_steps % (self.n_new + self.n_old)
        return n if turn < self.n_new else 0

    def record(self, expansion, n_added, size):
        """Update `n_due` of an expansion after a step.

        If a step of change dA is spread over n new blocks, f has the variance
        |dA|^2 / (2 F n) at new rows, and a loss with the second derivative h grows by
        h / 2 times that. For a given number of blocks in all steps, the sum over the
        steps is least if n is proportional to h^(1/2) |dA|. So the next step, which
        will be about as large, calls for `n_new` n_first blocks times this size, over
        that of the first step; but at most for n_first / t, or for one every other
        step, which bounds the model where the loss falls slowly.

        Parameters
        ----------
        expansion : Expansion
        n_added : int
            New blocks of the step.
        size : float
            h^(1/2) |dA|, where |dA| is the sum of the norms of all blocks' changes.
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

    Parameters
    ----------
    betas : ndarray of shape (n_blocks, l)
        beta_k.
    mean_gradient : ndarray of shape (l,)
        g.
    noise : float
        v. `Iteration.step` takes the mean of |g_i|^2 over the batch instead of its
        bound M^2, and 1 / (8 F) for sigma^2.
    gamma : float

    Returns
    -------
    k : int
    eta : float
        0.0 if no step on an old block meets the condition.
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
