"""Direct solutions of kernel machines and linear models, which epochs approach."""

from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import is_numpy, namespace, to_numpy
from ..arrays.linalg import (
    cholesky_solve,
    plus_diagonal,
    shifted_cholesky,
    solve_triangular,
)
from ..arrays.threads import Team, n_blas_threads
from ..operators.matrix import GivenMatrix, add_gram

# A factor has errors of some eps times the largest eigenvalue, which is less than n
# times the mean of the diagonal. A precision suffices if the penalty is above them.
_SINGLE_EPS, _DOUBLE_EPS = 2.0**-23, 2.0**-52
# Penalties for which single precision can hold the entries of the normal matrix.
SINGLE_RANGE = 1e-30, 1e30
# Relative residual, in units of eps, at which a system counts as solved, and the most
# refinements. 70 models (1500 rows of seven data sets; kernels and linear, with and
# without penalty, single and double precision) took 2.6 refinements on average. With
# 10, 100 and 1e5 in place of 1000 they took 3.4, 3.0 and 2.2, and squared errors on new
# rows changed by fractions of up to 2e-5, 2e-5 and 6e-4. With at most 1, 2 and 20
# refinements they changed by 8e-4, 4e-4 and 0.
_SOLVED, _MOST_REFINEMENTS = 1000, 5
# The same for normal equations, by the bytes of a number. Such a residual can mean an
# error sqrt(lambda_1 / c) times as large as one of the rows. Limits of 0.1 and of 100
# times these values change no error of the models above by 1e-6.
_SOLVED_OF_FEATURES = {4: 1e-5, 8: 1e-12}
# Relative residual above which solving has failed: A is not symmetric, or not finite.
_NO_SOLUTION = 1e-2
# Smallest ratio of squared residuals to squared targets for which sums over the rows,
# in double precision, are as accurate as the rows; by the bytes of the rows' numbers.
_LEAST_SQUARES_LEFT = {4: 1e-8, 8: 1e-3}
# Bound a + b n^1/2 of the error of sums over n rows in double precision, in units of
# eps |G| |a| / |b|: with 1000 to 300 000 rows, 4 to 200 features, correlated or not,
# the error is 0.03 to 3.5.
_SUMS_EPS, _SUMS_EPS_ROOT = 10, 0.1
# An eighth of the rows is left out one by one, within two limits. With 1000 of 8000
# rows the inverse that this needs is cheap compared with the factor. These rows
# calibrate a few numbers, which more rows would hardly change.
_PART_LEFT_OUT, _LEAST_LEFT_OUT, _MOST_LEFT_OUT = 8, 300, 4000
# Rows on which the size of k(x, x) is measured, and the most that one of them counts,
# in units of the median: k(x, x) of the rows of sparse tables is up to 100 times that.
N_DIAGONAL, _MOST_COUNTED = 1000, 1000.0


class DirectSolution(NamedTuple):
    """A solution.

    Attributes
    ----------
    coef, residual : arrays of shape (n, l)
        a and y - A a.
    kept : array of shape (m,)
        1 - h of each of the last rows, with the leverage h, by which its value in the
        model moves with its target. In the model of all other rows its residual is
        1 / (1 - h) times as large.
    """

    coef: Any
    residual: Any
    kept: Any


class FeatureSolution(NamedTuple):
    """A solution of a linear model.

    Attributes
    ----------
    coef : array of shape (d, l)
    loss : float
        The weighted mean of (y - F a)^2.
    residual : array of shape (m, l)
        y - F a of the first rows.
    kept : array of shape (m,)
        1 - h of the first rows, as in `DirectSolution`.
    """

    coef: Any
    loss: float
    residual: Any
    kept: Any


@np.errstate(over="ignore", invalid="ignore")  # values that overflow do not solve it
def solve_directly(A, y, weights, penalty=0.0, *, ridge=0.0):
    """Return the coefficients of kernel ridge regression, or None if that fails.

    It solves, for a, ::

        (A + c W^-1) a = y,   c = ridge  or  penalty * usual_size(diag(W A))

    by a Cholesky factor, in n^3 / 6 multiply-adds, and memory for one matrix. The
    factor is in single precision, twice as fast, if c is above its rounding; the
    solution is refined to the precision of A. It fails if A + c W^-1 is indefinite.

    Parameters
    ----------
    A : Matrix
        K(X, X) of n rows.
    y : array of shape (n, l)
    weights : array of shape (n,) or None
        Diagonal of W, positive.
    penalty : float, default=0.0
        Relative to the `usual_size` of the diagonal; used if `ridge` is 0.
    ridge : float, default=0.0
        c itself. Double precision is tried if single precision does not suffice.

    Returns
    -------
    DirectSolution or None
    """
    xp, enough = A.xp, _SOLVED * float(A.xp.finfo(A.dtype).eps)
    precisions = _precisions(A, weights, penalty, ridge)
    for dtype in precisions:
        solution, left = _solved(A, y, weights, penalty, ridge, dtype, enough)
        # For data in double precision, a factor in double precision does better.
        is_last = dtype == precisions[-1] or A.dtype == xp.float32
        if left <= (_NO_SOLUTION if is_last else enough):
            return solution
    return None


@np.errstate(over="ignore", invalid="ignore")
def solve_features_directly(
    F, y, weights, ridge, penalty=0.0, *, has_mean, begun=None, normal=None
):
    """Return the coefficients of a linear model, or None if that fails.

    It solves ``(F' W F + c I) a = F' W y``, c = `ridge`  or  penalty * mean(diag(W F
    F')), by a Cholesky factor, in n d^2 / 2 + d^3 / 6 multiply-adds, and memory for two
    matrices of d x d; with no more rows than features as a = F' b, with
    ``(F F' + c W^-1) b = y``, in n^2 d / 2 + n^3 / 6. The factor
    is in single precision if c is above its rounding, and the solution is refined. It
    fails if c is not above the rounding of double precision. Rows that are not in
    memory are read once for the factor, unless `normal` is given, and once for each
    refinement, if rounding of the sums matters.

    Parameters
    ----------
    F : CenteredFeatures or DaskMatrix
        Of n rows, in random order, and d features, their mean subtracted.
    y : array of shape (n, l)
    weights : array of shape (n,) or None
        Diagonal of W, positive, with mean 1.
    ridge : float
    penalty : float, default=0.0
        Used if `ridge` is 0.
    has_mean : bool
        Whether the means of features and targets were computed from these rows too.
    begun : tuple of int and array of shape (d, d), default=None
        How many first rows are already summed, and their F' W F in single precision, at
        least its lower triangle; it is overwritten.
    normal : tuple of arrays of shape (d, d) and (d, l), default=None
        F' W F and F' W y in double precision, for rows in a file; the first may be
        overwritten.

    Returns
    -------
    FeatureSolution or None
    """
    xp, (n, d) = F.xp, F.shape
    w = xp.ones_like(y[:, 0]) if weights is None else weights
    if d >= n and F.in_core:
        return _solved_by_rows(F, y, w, penalty, ridge, has_mean)
    if not ridge:
        ridge = penalty * float(xp.mean(w * F.row_squares()))
    if not F.is_dense and normal is None:
        normal = F.normal_equations(y, w)
    enough = _SOLVED_OF_FEATURES[F.itemsize]
    precisions = _precisions_of_features(F, w, ridge)
    if precisions and normal is not None:
        found = _solved_by_sums(F, y, w, ridge, normal, has_mean)
        if found is not None:
            return found
    rates, residual = xp.ones_like(y[0, :]), y

    def error_of(a):
        nonlocal residual
        error, image = F.gradient(a, y, w, rates)
        residual = -error
        return -image - ridge * a

    for dtype in precisions:
        G, b = _normal_equations(F, y, weights, dtype, begun, normal)
        L, _ = shifted_cholesky(G, ridge)
        if L is None:
            continue
        a, _, left = _refined(L, b, error_of, enough)
        if left <= (_NO_SOLUTION if dtype == precisions[-1] else enough):
            kept = _kept_of_features(F, w, L, has_mean)
            loss = float(xp.mean(w * xp.mean(residual**2, axis=1)))
            return FeatureSolution(a, loss, residual[: kept.shape[0], :], kept)
    return None


def _solved_by_rows(F, y, w, penalty, ridge, has_mean):
    """Return the solution from F F', of no more rows than features, or None."""
    xp, dtype, n = F.xp, F.dtype, y.shape[0]
    F, y, w = F.astype(xp.float64), xp.astype(y, xp.float64), xp.astype(w, xp.float64)
    # In reverse order: `solve_directly` leaves out the last rows, not the first.
    y, w = xp.flip(y, axis=0), xp.flip(w, axis=0)
    K = xp.asarray(xp.flip(F.row_gram(n, n)), copy=True)
    found = solve_directly(GivenMatrix(K), y, w, penalty, ridge=ridge)
    if found is None:
        return None
    loss = float(xp.mean(w * xp.mean(found.residual**2, axis=1)))
    m = found.kept.shape[0]
    kept = found.kept - has_mean * w[n - m :] / n  # as in `_kept_of_features`
    residual, kept = xp.flip(found.residual[n - m :, :], axis=0), xp.flip(kept)
    coef = F.adjoint(xp.flip(found.coef, axis=0))
    coef, residual, kept = (xp.astype(one, dtype) for one in (coef, residual, kept))
    return FeatureSolution(coef, loss, residual, kept)


def _solved_by_sums(F, y, w, ridge, normal, has_mean):
    """Return the solution from sums over the rows, or None if these are inaccurate.

    With G = F' W F and b = F' W y the sum of squared residuals is
    ``y' W y - b' a - c |a|^2``. None if that cancels, G + c I has no factor, or the
    rounding of G is above what counts as solved.
    """
    xp, (G, b), n = F.xp, normal, y.shape[0]
    L, _ = shifted_cholesky(xp.asarray(G, copy=True), ridge)
    if L is None:
        return None
    a = cholesky_solve(L, b)
    size = float(xp.max(xp.sum(xp.abs(G), axis=1)))
    eps = _DOUBLE_EPS * (_SUMS_EPS + _SUMS_EPS_ROOT * n**0.5)
    if not eps * size * _largest(a) <= _SOLVED_OF_FEATURES[F.itemsize] * _largest(b):
        return None
    Y, w_double = (xp.astype(values, xp.float64) for values in (y, w))
    squares = float(xp.sum(w_double[:, None] * Y**2))
    left = squares - float(xp.sum(b * a)) - ridge * float(xp.sum(a**2))
    if not left > _LEAST_SQUARES_LEFT[F.itemsize] * squares:
        return None
    a = xp.astype(a, F.dtype, copy=False)
    kept = _kept_of_features(F, w, L, has_mean)
    residual = y[: kept.shape[0], :] - F.product(a, 0, kept.shape[0])
    return FeatureSolution(a, left / (n * y.shape[1]), residual, kept)


def _precisions_of_features(F, w, ridge):
    """Return the data types of factors to try: those whose rounding is below c."""
    xp, n = F.xp, F.shape[0]
    m = min(n, N_DIAGONAL)
    rows = F.block(0, m)
    squares = xp.vecdot(rows, rows)
    # A Cholesky factor depends on no unit of a column: a single large entry costs the
    # other columns no digits.
    trace = n * usual_size(squares, w[:m])
    if not ridge > _DOUBLE_EPS * trace:
        return []
    low, high = SINGLE_RANGE
    if F.in_core and _SINGLE_EPS * trace < ridge and low < ridge < high:
        return [xp.float32, xp.float64]
    return [xp.float64]


def _normal_equations(F, y, weights, dtype, begun, normal):
    """Return F' W F in this data type (`normal` as it is), and F' W y in that of F."""
    xp, (n, d) = F.xp, F.shape
    if normal is not None:
        return normal[0], xp.astype(normal[1], F.dtype, copy=False)
    if not F.in_core:  # read once for both
        w = None if weights is None else xp.astype(weights, xp.float64)
        G, b = F.gram(xp.astype(y, xp.float64), w)
        return G, xp.astype(b, F.dtype)
    if begun is not None and begun[1].dtype == dtype:
        n_summed, total = begun
    else:
        n_summed, total = 0, xp.zeros((d, d), dtype=dtype, device=F.device)
    for start in range(n_summed, n, F.gram_rows()):
        rows = slice(start, start + F.gram_rows())
        block = F.block(rows.start, rows.stop, dtype=dtype)
        if weights is not None:
            block = block * xp.astype(xp.sqrt(weights[rows, None]), dtype)
        add_normal_matrix(total, block)
    return total, F.adjoint(y if weights is None else weights[:, None] * y)


def add_normal_matrix(G, A):
    """Add A' A to G; with NumPy on threads, and only to the lower triangle."""
    add_gram(G, A, Team(n_blas_threads()) if is_numpy(namespace(A)) else None)


def _kept_of_features(F, w, L, has_mean):
    """Return 1 - h of the first rows, with the leverage h of each on its own value.

    h is that of the features, and 1 / n for the mean. The first rows of a file are in
    memory.
    """
    xp, n = F.xp, F.shape[0]
    m = _n_left_out(n)
    Z = solve_triangular(L, F.block(0, m, dtype=L.dtype).T)
    return 1.0 - w[:m] * (xp.astype(xp.sum(Z**2, axis=0), F.dtype) + has_mean / n)


def usual_size(entries, weights=None):
    """Return the mean of w k(x, x) of some rows, where few large k(x, x) do not count.

    They count as _MOST_COUNTED times the median of those that are positive.
    """
    values = to_numpy(entries).astype(np.float64)
    positive = values[values > 0]
    if len(positive):
        values = np.minimum(values, _MOST_COUNTED * np.median(positive))
    weights = 1.0 if weights is None else to_numpy(weights).astype(np.float64)
    return float(np.mean(weights * values))


def _n_left_out(n):
    """Return how many rows are left out one by one."""
    return min(max(n // _PART_LEFT_OUT, _LEAST_LEFT_OUT), _MOST_LEFT_OUT, n)


def _precisions(A, weights, penalty, ridge):
    """Return the data types of the factors to try."""
    xp, n = A.xp, A.shape[0]
    if not ridge:
        return [xp.float32 if penalty > n * _SINGLE_EPS else xp.float64]
    m = min(n, N_DIAGONAL)
    entries = xp.linalg.diagonal(A.block(0, m, 0, m))
    of_rows = None if weights is None else weights[:m]
    single = ridge > n * _SINGLE_EPS * usual_size(entries, of_rows)
    return [xp.float32, xp.float64] if single else [xp.float64]


def _solved(A, y, weights, penalty, ridge, dtype, enough):
    """Return the solution, and its residual over |y|, infinite without a factor.

    The factor is that of S + c I with S = W^1/2 A W^1/2.
    """
    xp, K = A.xp, A.block(dtype=dtype)
    if A.in_memory and dtype == A.dtype:  # it is not ours to change
        K = xp.asarray(K, copy=True)
    c = ridge or penalty * usual_size(xp.linalg.diagonal(K), weights)
    if weights is not None:
        root = xp.astype(xp.sqrt(weights)[:, None], dtype, copy=False)
        K *= root
        K *= root.T
    L, scaled_product = shifted_cholesky(K, c)
    if L is None:
        return None, np.inf
    w = xp.ones_like(y[:, 0]) if weights is None else weights
    root = xp.sqrt(w)[:, None]
    b = root * y

    def error_of(x):
        if scaled_product is None or L.dtype != A.dtype:
            return b - root * (A @ (root * x)) - c * x
        return b - scaled_product(x) - c * x

    x, error, left = _refined(L, b, error_of, enough)
    a, residual = root * x, (error + c * x) / root
    # (A + c W^-1)^-1 = W^1/2 (L L')^-1 W^1/2, whose last block needs only that of L.
    n = L.shape[0]
    last = slice(n - _n_left_out(n), n)
    inverse = solve_triangular(L[last, last], plus_diagonal(0.0 * L[last, last], 1.0))
    kept = c * xp.astype(xp.sum(inverse**2, axis=0), A.dtype)
    return DirectSolution(a, residual, kept), left


def _refined(L, b, error_of, enough):
    """Return the solution of a system with the factor L, its error, and that over |b|.

    Parameters
    ----------
    L : array of shape (n, n)
    b : array of shape (n, l)
    error_of : callable
        ``error_of(x)`` returns b minus the product of the matrix and x.
    enough : float
        Error, relative to that of x = 0, at which refining ends.
    """
    xp = namespace(b)
    x, error = xp.zeros_like(b), b
    size = left = _largest(b) or 1.0
    for _ in range(_MOST_REFINEMENTS):
        z = xp.astype(error / left, L.dtype, copy=False)
        z = cholesky_solve(L, z)
        x = x + left * xp.astype(z, b.dtype, copy=False)
        error, before = error_of(x), left
        left = _largest(error)
        if left <= enough * size or left > before / 2:
            break
    return x, error, left / size


def _largest(values):
    """Return the largest absolute value; squares could overflow."""
    xp = namespace(values)
    return float(xp.max(xp.abs(values)))
