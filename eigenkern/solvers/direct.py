"""The direct solution of a kernel machine, which the epochs of EigenPro approach."""

from typing import Any, NamedTuple

import numpy as np

from ..backend.array import namespace
from ..backend.linalg import plus_diagonal, shifted_cholesky, solve_triangular

# A factor in single precision has errors of some eps times the largest eigenvalue,
# which is less than n times the mean of the diagonal: it serves where the penalty is
# above that.
_SINGLE_EPS = 2.0**-23
# Relative residual that is as good as none, in units of rounding, and refinements.
_ENOUGH, _N_REFINEMENTS = 1000, 5
# Relative residual of what is no solution: A is not symmetric, or not finite.
_NO_SOLUTION = 1e-2
# The part of the rows that are left out one by one, and how many are at least: 1000 of
# 8000 rows, for an inverse that is cheap beside the factor.
_PART_LEFT_OUT, _LEAST_LEFT_OUT = 8, 300
# Rows that tell the size of k(x, x).
_N_ENTRIES = 1000


class Solution(NamedTuple):
    """A solution.

    Attributes
    ----------
    coef, residual : arrays of shape (n, l)
        a and y - A a.
    left_out : array of shape (m, l)
        The residual of each of the last rows, in the model of all rows but that one.
    """

    coef: Any
    residual: Any
    left_out: Any


@np.errstate(over="ignore", invalid="ignore")  # what overflows is no solution
def solve_directly(A, y, weights, penalty=0.0, *, ridge=0.0):
    """Return the coefficients of kernel ridge regression, or None where that fails.

    That is a of ::

        (A + c W^-1) a = y,   c = ridge  or  penalty * mean(diag(W A))

    by a Cholesky factor, in n^3 / 6 multiply-adds, and memory for one matrix. The
    factor is in single precision, twice as fast, where c is above its rounding; the
    solution is refined to the precision of A. It fails where A + c W^-1 is indefinite.

    Parameters
    ----------
    A : Matrix
        K(X, X) of n rows.
    y : array of shape (n, l)
    weights : array of shape (n,) or None
        Diagonal of W, positive.
    penalty : float, default=0.0
        Relative to the diagonal, where there is no `ridge`.
    ridge : float, default=0.0
        c itself. Where single precision does not solve that, double precision does.

    Returns
    -------
    Solution or None
    """
    xp = A.xp
    precisions = _precisions(A, weights, penalty, ridge)
    for dtype in precisions:
        solution, left = _solved(A, y, weights, penalty, ridge, dtype)
        # What double precision would do better, of data that have it.
        is_last = dtype == precisions[-1] or A.dtype == xp.float32
        if left <= (_NO_SOLUTION if is_last else _enough(A)):
            return solution
    return None


def _precisions(A, weights, penalty, ridge):
    """Return the data types of the factors to try."""
    xp, n = A.xp, A.shape[0]
    if not ridge:
        return [xp.float32 if penalty > n * _SINGLE_EPS else xp.float64]
    m = min(n, _N_ENTRIES)
    entries = xp.linalg.diagonal(A.block(0, m, 0, m))
    if weights is not None:
        entries = weights[:m] * entries
    single = ridge > n * _SINGLE_EPS * float(xp.mean(entries))
    return [xp.float32, xp.float64] if single else [xp.float64]


def _solved(A, y, weights, penalty, ridge, dtype):
    """Return the solution, and what is left over |y|: infinite without a factor."""
    xp = A.xp
    L, scaled_product, c = _factor(A, weights, penalty, ridge, dtype)
    if L is None:
        return None, np.inf
    w = xp.ones_like(y[:, 0]) if weights is None else weights
    root = xp.sqrt(w)[:, None]

    def product(a):
        if scaled_product is None or L.dtype != A.dtype:
            return A @ a
        return scaled_product(a / root) / root

    a, error = xp.zeros_like(y), y
    size = left = _largest(root * y) or 1.0
    for _ in range(_N_REFINEMENTS):
        z = xp.astype(root * error / left, L.dtype, copy=False)
        z = solve_triangular(L, solve_triangular(L, z), transposed=True)
        a = a + left * root * xp.astype(z, A.dtype, copy=False)
        residual = y - product(a)
        error, before = residual - c * a / w[:, None], left
        left = _largest(root * error)
        if left <= _enough(A) * size or left > before / 2:
            break
    # A^-1 = W^1/2 (L L')^-1 W^1/2, whose last block needs that of L only.
    n = L.shape[0]
    last = slice(n - min(n, max(n // _PART_LEFT_OUT, _LEAST_LEFT_OUT)), n)
    inverse = solve_triangular(L[last, last], plus_diagonal(0.0 * L[last, last], 1.0))
    diagonal = w[last] * xp.astype(xp.sum(inverse**2, axis=0), A.dtype)
    return Solution(a, residual, a[last, :] / diagonal[:, None]), left / size


def _factor(A, weights, penalty, ridge, dtype):
    """Return the factor of S + c I or None, what multiplies by S = W^1/2 A W^1/2, c."""
    xp = A.xp
    K = A.block(dtype=dtype)
    if A.in_memory and dtype == A.dtype:  # it is not ours to change
        K = xp.asarray(K, copy=True)
    if weights is not None:
        root = xp.astype(xp.sqrt(weights)[:, None], dtype, copy=False)
        K *= root
        K *= root.T
    c = ridge or penalty * float(xp.mean(xp.linalg.diagonal(K)))
    return *shifted_cholesky(K, c), c


def _enough(A):
    """Return the relative residual that is as good as none."""
    return _ENOUGH * float(A.xp.finfo(A.dtype).eps)


def _largest(values):
    """Return the largest absolute value; squares could overflow."""
    xp = namespace(values)
    return float(xp.max(xp.abs(values)))
