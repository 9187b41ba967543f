"""What "auto" means for doubly stochastic gradients: blocks, batches, lambda, steps."""

import numpy as np

from ..arrays.linalg import largest_eigenvalues
from ..methods.stochastic import Steps
from ..operators.tiled import TiledKernel
from .step import SAFETY

# lambda if it is not chosen, and the smallest one that is chosen.
ALPHA = 1e-6
# Rows and features of a step that evaluates every block again, as in the paper.
_BATCH_SIZE, _BLOCK_SIZE = 4096, 256
# Rows times features of a step with running values: with fewer, the overhead of NumPy's
# calls is as large.
_STEP_WORK = 2e6
# Frequencies of the first step of a fit; all later ones are in proportion. 1 - R2 on
# new rows with 2048, 4096, 8192 and 16384: kin8nm, 6500 rows, 0.133, 0.116, 0.104,
# 0.097; cpusmall, 6500 rows, 0.048, 0.046, 0.044, 0.043; california_housing, 14 000
# rows, 0.226, 0.222, 0.218, 0.218. The number of features grows nearly in proportion:
# for kin8nm 35 000, 63 000, 107 000, 183 000.
_FIRST_FREQUENCIES = 8192
# Bytes that the features of a batch may take.
_BATCH_BYTES = 128e6
# Minimum number of steps in an epoch: fewer measure the loss too poorly. Errors on 800
# rows of eight data sets with 4, 8 and 16 are 0.96 to 1.02 times those with 32; with
# max_features=2048 the mean error is 0.93 times as large with 8, 1.06 times with 128.
_MIN_STEPS = 32
# Rows on which the largest eigenvalue of the kernel is measured. Its standard deviation
# over six draws is at most 3 % (with 500 rows at most 7 %; five data sets, gaussian and
# laplacian), much less than the margin of `SAFETY`.
N_SAMPLED = 2000


def choose_sizes(model, n, n_columns=1, cache=0.0):
    """Return F and B for n rows, and the bytes of the running values of f, or 0.

    If they fit in the cache, in float64, the blocks since the last visit of a batch
    cost n F per step, whatever B is, so a batch of all rows has the least noise. F is
    so large that the work of a step outweighs its overhead.
    """
    kept = 8.0 * n * n_columns
    kept = kept if kept <= cache else 0.0
    block_size, batch_size = model.block_size, model.batch_size
    if block_size == "auto":
        block_size = _BLOCK_SIZE
        if kept:
            power = round(np.log2(_STEP_WORK / n))
            block_size = int(np.clip(2.0**power, 32, 128))
        block_size = min(block_size, model.max_features or block_size)
    if batch_size == "auto":
        batch_size = _BATCH_SIZE
        if kept:
            batch_size = max(int(_BATCH_BYTES // (16 * block_size)), 2)
    return block_size, min(batch_size, n), kept


def passes_of_epoch(n, batch_size):
    """Return how often an epoch passes over n rows."""
    return -(-_MIN_STEPS // -(-n // batch_size))


def first_blocks(block_size):
    """Return how many blocks of F frequencies the first step changes."""
    return max(_FIRST_FREQUENCIES / block_size, 1.0)


def longest_safe_step(
    kernel, rows, weights, curvature, block_size, batch_size, n, alpha
):
    """Return the longest safe step, and the c of its decay 1 / (1 + c t).

    Let lambda_1 be the largest eigenvalue and beta the trace of the centered kernel,
    both divided by the number of rows, and L the curvature of the loss. A step gamma on
    F features and B rows multiplies the error of f along eigenvector i by 1 - gamma L
    lambda_i on average, and is stable for ::

        gamma L (lambda_1 + beta / (2 F) + beta / B) < 2

    On rows outside the batch, F features stand for the kernel. This adds noise of
    variance gamma^2 / (2 F B) times the residual; in trials it grew within n / B steps
    if ``gamma L n / B > 6 F beta``. A step shrinks f by gamma lambda, at most a half.

    The rows are a random sample of `N_SAMPLED`, or all; n is the number of rows that
    are visited in turn, or None if every batch has new rows.
    """
    operator, m = TiledKernel(kernel, rows), rows.shape[0]
    xp = operator.xp
    weights = (weights / xp.mean(weights))[:, None]
    root = weights**0.5

    def apply(V):
        V = root * V
        V = operator @ (V - weights * xp.mean(V)) / m
        return root * (V - xp.mean(weights * V))

    start = np.random.RandomState(0).standard_normal((m, 1))
    start = xp.asarray(start, dtype=rows.dtype, device=operator.device)
    top = largest_eigenvalues(apply, root * start)[0]
    mean_kernel = float(xp.mean(weights * (operator @ weights))) / m
    beta = max(1.0 - mean_kernel, 0.05)  # for nearly equal rows it is rounding
    heaviest = float(xp.mean(weights**2))
    curvature = curvature / SAFETY
    noise = curvature / (6.0 * block_size * beta)
    stable = top + beta / (2.0 * block_size) + heaviest * beta / batch_size
    inverse = 0.5 * curvature * stable
    if n is not None:
        inverse, noise = inverse + noise * (n / batch_size - 1.0), 0.0
    longest = 1.0 / inverse
    if alpha > 0:
        longest = min(longest, 0.5 / alpha)
    return longest, longest * (alpha + noise)


def make_steps(step_size, longest, decay):
    """Return the `Steps` for the parameter `step_size`; a number is the longest."""
    if not isinstance(step_size, tuple | list):
        return Steps(lambda t: longest / (1.0 + decay * t), longest)
    constant = float(step_size[1])
    if step_size[0] == "theta/t":
        return Steps(lambda t: constant / t, longest)
    return Steps(lambda t: 1.0 / (1.0 + constant * t), longest)
