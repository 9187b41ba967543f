"""What "auto" means for doubly stochastic gradients: blocks, batches, lambda, steps."""

import numpy as np

from ..arrays.linalg import largest_eigenvalues
from ..methods.stochastic import Steps
from ..operators.tiled import TiledKernel
from .step import SAFETY

# lambda if it is not chosen, and the smallest one that is chosen.
ALPHA = 1e-6
# Standard deviations at which residuals are clipped to choose lambda.
OUTLIER = 3.0
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
# Rows on which the largest eigenvalue of the kernel is measured. Its standard deviation
# over six draws is at most 3 % (with 500 rows at most 7 %; five data sets, gaussian and
# laplacian), much less than the margin of `SAFETY`.
N_SAMPLED = 2000


def choose_sizes(n, block_size, batch_size, max_features, *, keep_values):
    """Return F and B for n rows.

    If values are kept, the blocks since the last visit of a batch cost n F per step,
    whatever B is, so a batch of all rows has the least noise. F is so large that the
    work of a step outweighs its overhead.

    Parameters
    ----------
    n : int
    block_size, batch_size : int or "auto"
    max_features : int or None
    keep_values : bool
        Whether the values of f on all rows are kept.
    """
    if block_size == "auto":
        block_size = _BLOCK_SIZE
        if keep_values:
            power = round(np.log2(_STEP_WORK / n))
            block_size = int(np.clip(2.0**power, 32, 128))
        block_size = min(block_size, max_features or block_size)
    if batch_size == "auto":
        batch_size = _BATCH_SIZE
        if keep_values:
            batch_size = max(int(_BATCH_BYTES // (16 * block_size)), 2)
    return block_size, min(batch_size, n)


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
    if ``gamma L n / B > 6 F beta``.

    Parameters
    ----------
    kernel : Kernel
    rows : array of shape (m, d)
        A random sample of `N_SAMPLED` rows, or all.
    weights : array of shape (m,)
    curvature : float
        L.
    block_size, batch_size : int
        F and B.
    n : int or None
        Number of rows that are visited in turn; None: every batch has new rows.
    alpha : float
        lambda: a step shrinks f by the fraction gamma lambda, at most a half.
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
    """Return the `Steps` for the parameter `step_size`.

    Parameters
    ----------
    step_size : float, "auto" or tuple
    longest, decay : float
        From `longest_safe_step`; a step given as a number is `longest`, with no decay.
    """
    if not isinstance(step_size, tuple | list):
        return Steps(lambda t: longest / (1.0 + decay * t), longest)
    constant = float(step_size[1])
    if step_size[0] == "theta/t":
        return Steps(lambda t: constant / t, longest)
    return Steps(lambda t: 1.0 / (1.0 + constant * t), longest)
