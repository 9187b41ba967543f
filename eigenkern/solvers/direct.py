"""The direct solution of a kernel machine, which the epochs of EigenPro approach."""

import numpy as np

from ..backend.array import namespace
from ..backend.linalg import cholesky, plus_diagonal, solve_triangular

# A factor in single precision has errors of some eps times the largest eigenvalue,
# which is less than n times the mean of the diagonal: it serves where the penalty is
# above that.
_SINGLE_EPS = 2.0**-23
# Relative residual that is as good as none, in units of rounding, and refinements.
_ENOUGH, _N_REFINEMENTS = 1000, 5
# Relative residual of what is no solution: A is not symmetric, or not finite.
_NO_SOLUTION = 1e-2


@np.errstate(over="ignore", invalid="ignore")  # what overflows is no solution
def solve_directly(A, y, weights, penalty):
    """Return the coefficients of kernel ridge regression, or None where that fails.

    That is a of ::

        (A + c W^-1) a = y,   c = penalty * mean(diag(W A))

    by a Cholesky factor, in n^3 / 6 multiply-adds, and memory for one matrix. The
    factor is in single precision, twice as fast, where c is above its rounding; the
    solution is refined to the precision of A. It fails where A is indefinite.

    Parameters
    ----------
    A : Matrix
        K(X, X) of n rows.
    y : array of shape (n, l)
    weights : array of shape (n,) or None
        Diagonal of W, positive.
    penalty : float

    Returns
    -------
    tuple of arrays of shape (n, l), or None
        a and y - A a.
    """
    xp = A.xp
    w = xp.ones_like(y[:, 0]) if weights is None else weights
    root = xp.sqrt(w)[:, None]
    L, c = _factor(A, root, penalty)
    if L is None:
        return None
    a, error = xp.zeros_like(y), y
    size = left = _largest(root * y) or 1.0
    for _ in range(_N_REFINEMENTS):
        z = xp.astype(root * error / left, L.dtype, copy=False)
        z = solve_triangular(L, solve_triangular(L, z), transposed=True)
        a = a + left * root * xp.astype(z, A.dtype, copy=False)
        residual = y - A @ a
        error, before = residual - c * a / w[:, None], left
        left = _largest(root * error)
        if left <= _ENOUGH * float(xp.finfo(A.dtype).eps) * size or left > before / 2:
            break
    return (a, residual) if left <= _NO_SOLUTION * size else None


def _factor(A, root, penalty):
    """Return the factor of W^1/2 A W^1/2 + c I, or None, and c."""
    xp, n = A.xp, A.shape[0]
    dtype = xp.float32 if penalty > n * _SINGLE_EPS else xp.float64
    K = A.block(dtype=dtype)
    if A.in_memory and dtype == A.dtype:  # it is not ours to change
        K = xp.asarray(K, copy=True)
    root = xp.astype(root, dtype, copy=False)
    K *= root
    K *= root.T
    c = penalty * float(xp.mean(xp.linalg.diagonal(K)))
    return cholesky(plus_diagonal(K, c)), c


def _largest(values):
    """Return the largest absolute value; squares could overflow."""
    xp = namespace(values)
    return float(xp.max(xp.abs(values)))
