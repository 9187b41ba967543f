"""Direct solutions of kernel machines and linear models, which epochs approach."""

from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import is_numpy, namespace, to_numpy
from ..arrays.linalg import (
    cholesky,
    cholesky_solve,
    inverse_diagonal,
    plus_diagonal,
    shifted_cholesky,
)
from ..arrays.threads import Team, n_blas_threads
from ..operators.matrix import GivenMatrix, add_gram
from .left_out import kept_of_features, n_left_out
from .paths import EPS

# A factor has errors of some eps times the largest eigenvalue, which is less than n
# times the mean of the diagonal. A precision suffices if the penalty is above them.
_SINGLE_EPS = 2.0**-23
# Penalties for which single precision can hold the entries of the normal matrix.
SINGLE_RANGE = 1e-30, 1e30
# Relative residual at which normal equations count as solved, by the bytes of a number.
# It can mean an error sqrt(lambda_1 / c) times as large as one of the rows. Limits of
# 0.1 and of 100 times these values change no error of 70 models on new rows by 1e-6.
_SOLVED_OF_FEATURES = {4: 1e-5, 8: 1e-12}
# Relative residual above which solving has failed: A is not symmetric, or not finite.
_NO_SOLUTION = 1e-2
# An eighth of the rows is left out one by one, but no more than this: they calibrate a
# few numbers, and the inverse that they need stays cheap.
_MOST_LEFT_OUT = 4000
# Rows on which the size of k(x, x) is measured. And the largest k(x, x), in units of
# the median, that is no fill value: of the rows of sparse tables it is up to 100.
N_DIAGONAL, MOST_OF_USUAL = 1000, 1000.0


class Factor(NamedTuple):
    """Cholesky factor of G + c I: L is lower triangular, c is `ridge`.

    G is `weighted` K, and (K + c W^-1)^-1 = W^1/2 (L L')^-1 W^1/2; or Phi' W Phi.
    `product` multiplies by G, which the upper triangle of L then holds; or is None.
    """

    L: Any
    ridge: float
    product: Any = None

    @classmethod
    def of(cls, G, ridge, *, keep=False):
        """Return the factor, in the place of G, or None; `keep` G if that is free."""
        if keep:
            L, product = shifted_cholesky(G, ridge)
        else:
            L, product = cholesky(plus_diagonal(G, ridge)), None
        return None if L is None else cls(L, ridge, product)

    def solve(self, q):
        """Return (G + c I)^-1 q."""
        return cholesky_solve(self.L, q)


def weighted(K, weights):
    """Return W^1/2 K W^1/2, in the place of K; None: W is the identity."""
    xp = namespace(K)
    if weights is not None and not bool(xp.all(weights == 1)):
        root = xp.astype(xp.sqrt(weights), K.dtype, copy=False)
        K *= root[:, None]
        K *= root[None, :]
    return K


class DirectSolution(NamedTuple):
    """a, y - A a (n, l), 1 - h of the last rows (m,), and c; see `left_out`."""

    coef: Any
    residual: Any
    kept: Any
    ridge: float


class FeatureSolution(NamedTuple):
    """a, (d, l), and its loss; y - F a and 1 - h of the first rows, see `left_out`."""

    coef: Any
    loss: float
    residual: Any
    kept: Any


@np.errstate(over="ignore", invalid="ignore")  # values that overflow do not solve it
def solve_directly(A, y, weights, penalty=0.0, *, ridge=0.0, least_left_out=0):
    """Return the `DirectSolution` of kernel ridge regression, or None if that fails.

    It solves, for a, ::

        (A + c W^-1) a = y,   c = ridge  or  penalty * usual_size(diag(W A))

    by a Cholesky factor, in n^3 / 6 multiply-adds, and memory for one matrix. It is in
    the precision of A, or in double precision if c is below its rounding; the solution
    is refined. It fails if A + c W^-1 is indefinite. At least `least_left_out` rows are
    left out, if there are as many.
    """
    # For A in double precision, a factor in single precision needs refinements that
    # evaluate A again. On four tables with 4600 and 7500 rows it sufficed in 8 of 22
    # fits above its rounding, in 0.97 to 1.4 times the time.
    # A residual that counts as solved: with 100 eps errors change by up to 2e-5.
    xp, n, enough = A.xp, A.shape[0], 1000 * float(A.xp.finfo(A.dtype).eps)
    precisions = [xp.float64]
    if A.dtype == xp.float32:
        size = 1.0
        if ridge:
            m = min(n, N_DIAGONAL)
            entries = xp.linalg.diagonal(A.block(0, m, 0, m))
            size = usual_size(entries, None if weights is None else weights[:m])
        if (ridge or penalty) > n * _SINGLE_EPS * size:
            precisions.insert(0, xp.float32)
    for dtype in precisions:
        solution, left = _solved(
            A, y, weights, penalty, ridge, dtype, enough, least_left_out
        )
        if left <= _NO_SOLUTION:
            return solution
    return None


def _solved(A, y, weights, penalty, ridge, dtype, enough, least_left_out):
    """Return the solution, and its residual over |y|, infinite without a factor."""
    xp, K = A.xp, A.block(dtype=dtype)
    if A.in_memory and dtype == A.dtype:  # it is not ours to change
        K = xp.asarray(K, copy=True)
    c = ridge or penalty * usual_size(xp.linalg.diagonal(K), weights)
    factor = Factor.of(weighted(K, weights), c, keep=True)
    if factor is None:
        return None, np.inf
    root = xp.ones_like(y[:, :1]) if weights is None else xp.sqrt(weights)[:, None]
    b = root * y

    def error_of(x):
        if factor.product is None or factor.L.dtype != A.dtype:
            return b - root * (A @ (root * x)) - c * x
        return b - factor.product(x) - c * x

    x, error, left = _refined(factor, b, error_of, enough)
    a, residual = root * x, (error + c * x) / root
    n = y.shape[0]
    m = max(n_left_out(n, 1 / 8, _MOST_LEFT_OUT), min(least_left_out, n))
    kept = c * inverse_diagonal(xp.tril(factor.L[n - m :, n - m :]))
    return DirectSolution(a, residual, xp.astype(kept, A.dtype, copy=False), c), left


@np.errstate(over="ignore", invalid="ignore")
def solve_features_directly(
    F, y, weights, ridge, penalty=0.0, *, has_mean, begun=None, normal=None
):
    """Return the `FeatureSolution` of a linear model, or None if that fails.

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
    ridge, penalty : float
    has_mean : bool
        Whether the means of features and targets were computed from these rows too.
    begun : tuple of int and array of shape (d, d), default=None
        How many first rows are already summed, and their F' W F in single precision, at
        least its lower triangle; it is overwritten.
    normal : tuple of arrays of shape (d, d) and (d, l), default=None
        F' W F and F' W y in double precision, for rows in a file; the first may be
        overwritten.
    """
    xp, (n, d) = F.xp, F.shape
    w = xp.ones_like(y[:, 0]) if weights is None else weights
    if d >= n and F.in_core:
        return _solved_by_rows(F, y, w, penalty, ridge, has_mean)
    if not ridge:
        ridge = penalty * float(xp.mean(w * F.row_squares()))
    if not F.is_dense and normal is None:
        normal = F.normal_equations(y, w)
    # A Cholesky factor depends on no unit of a column: a single large entry costs the
    # other columns no digits.
    m = min(n, N_DIAGONAL)
    first = F.block(0, m)
    trace = n * usual_size(xp.vecdot(first, first), w[:m])
    if not ridge > EPS * trace:
        return None
    if normal is not None:
        found = _solved_by_sums(F, y, w, ridge, normal, has_mean)
        if found is not None:
            return found
    enough, precisions = _SOLVED_OF_FEATURES[F.itemsize], [xp.float64]
    low, high = SINGLE_RANGE
    if F.in_core and _SINGLE_EPS * trace < ridge and low < ridge < high:
        precisions = [xp.float32, xp.float64]
    rates, residual = xp.ones_like(y[0, :]), y

    def error_of(a):
        nonlocal residual
        error, image = F.gradient(a, y, w, rates)
        residual = -error
        return -image - ridge * a

    for dtype in precisions:
        G, b = _normal_equations(F, y, weights, dtype, begun, normal)
        factor = Factor.of(G, ridge)
        if factor is None:
            continue
        a, _, left = _refined(factor, b, error_of, enough)
        if left <= (_NO_SOLUTION if dtype == precisions[-1] else enough):
            kept = _kept(F, w, factor, has_mean)
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
    kept = found.kept - has_mean / n * w[n - m :]  # as in `_kept`
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
    factor = Factor.of(xp.asarray(G, copy=True), ridge)
    if factor is None:
        return None
    a = factor.solve(b)
    size = float(xp.max(xp.sum(xp.abs(G), axis=1)))
    # A bound: the error of the sums was 0.03 to 3.5 eps with 1000 to 300 000 rows.
    eps = EPS * (10 + 0.1 * n**0.5)
    if not eps * size * _largest(a) <= _SOLVED_OF_FEATURES[F.itemsize] * _largest(b):
        return None
    Y, w_double = (xp.astype(values, xp.float64) for values in (y, w))
    squares = float(xp.sum(w_double[:, None] * Y**2))
    left = squares - float(xp.sum(b * a)) - ridge * float(xp.sum(a**2))
    # If less is left, the sums are less accurate than the rows.
    if not left > {4: 1e-8, 8: 1e-3}[F.itemsize] * squares:
        return None
    a = xp.astype(a, F.dtype, copy=False)
    kept = _kept(F, w, factor, has_mean)
    residual = y[: kept.shape[0], :] - F.product(a, 0, kept.shape[0])
    return FeatureSolution(a, left / (n * y.shape[1]), residual, kept)


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


def _kept(F, w, factor, has_mean):
    """Return 1 - h of the first rows, which are in memory; the mean adds 1 / n to h."""
    n = F.shape[0]
    m = n_left_out(n, 1 / 8, _MOST_LEFT_OUT)
    rows, least = F.block(0, m, dtype=factor.L.dtype), float(F.xp.finfo(F.dtype).eps)
    return kept_of_features(factor.L, rows.T, w[:m], least) - has_mean / n * w[:m]


def usual_size(entries, weights=None):
    """Return the mean of w k(x, x) of some rows, where few large k(x, x) do not count.

    They count as `MOST_OF_USUAL` times the median of those that are positive.
    """
    values = to_numpy(entries).astype(np.float64)
    positive = values[values > 0]
    if len(positive):
        values = np.minimum(values, MOST_OF_USUAL * np.median(positive))
    weights = 1.0 if weights is None else to_numpy(weights).astype(np.float64)
    return float(np.mean(weights * values))


def _refined(factor, b, error_of, enough):
    """Return the solution of a system, its error, and that over |b|.

    ``error_of(x)`` returns b minus the product of the matrix and x. Refining ends when
    the error is `enough`, relative to that of x = 0.
    """
    xp = namespace(b)
    x, error = xp.zeros_like(b), b
    size = left = _largest(b) or 1.0
    for _ in range(5):  # with 2, errors on new rows change by up to 4e-4
        z = factor.solve(xp.astype(error / left, factor.L.dtype, copy=False))
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
