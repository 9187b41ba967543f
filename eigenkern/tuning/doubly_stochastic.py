"""What "auto" means for doubly stochastic gradients: blocks, batches and the step."""

import numpy as np

from ..backend.linalg import largest_eigenvalues
from ..operators.tiled import TiledKernel
from .step import SAFETY

# Rows and features of a step that evaluates every block anew, as in the paper.
_BATCH_SIZE, _BLOCK_SIZE = 4096, 256
# Rows times features of a step with running values: below, calls of NumPy cost as much.
_STEP_WORK = 2e6
# Bytes that the features of a batch may take.
_BATCH_BYTES = 128e6
# Rows that the largest eigenvalue of the kernel is measured on.
N_MEASURED = 2000


def choose_sizes(n, block_size, batch_size, max_features, *, keep_values):
    """Return F and B for n rows.

    Where values are kept, the blocks since a batch's last visit cost n F a step,
    whatever B: then all rows at once make the least noise. F is where the step's cost
    outgrows that of its overhead.

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


def longest_step(kernel, rows, weights, curvature, block_size, batch_size, n):
    """Return the longest safe step, and by how much 1 / step has to grow in a step.

    With the largest eigenvalue lambda_1 and the trace beta of the centered kernel, both
    over the number of rows, and the curvature L of the loss, a step gamma on F features
    and B rows multiplies the error of f along eigenvector i by 1 - gamma L lambda_i on
    average, and is stable for ::

        gamma L (lambda_1 + beta / (2 F) + beta / B) < 2

    Rows outside the batch get the residual of B rows through F features in place of the
    kernel: noise of variance gamma^2 / (2 F B) times the residual, which in n / B steps
    was seen to grow where ``gamma L n / B > 6 F beta``.

    Parameters
    ----------
    kernel : Kernel
    rows : array of shape (m, d)
        A random sample of `N_MEASURED` rows, or all.
    weights : array of shape (m,)
    curvature : float
        L.
    block_size, batch_size : int
        F and B.
    n : int or None
        Rows that are visited in turn; None: ever new ones.
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
    beta = max(1.0 - mean_kernel, 0.05)  # nearly equal rows tell nothing
    heaviest = float(xp.mean(weights**2))
    curvature = curvature / SAFETY
    noise = curvature / (6.0 * block_size * beta)
    stable = top + beta / (2.0 * block_size) + heaviest * beta / batch_size
    inverse = 0.5 * curvature * stable
    if n is None:
        return 1.0 / inverse, noise
    return 1.0 / (inverse + noise * (n / batch_size - 1.0)), 0.0
