"""The penalty that new rows prefer: what ``alpha="auto"`` means."""

from functools import cache, partial

import numpy as np

from ..backend import memory
from ..backend.array import device_of, namespace
from ..backend.linalg import cholesky_solve, shifted_cholesky
from ..operators.linear import CenteredFeatures
from ..solvers.direct import SINGLE_RANGE, add_normal_matrix

# A quarter of the rows, at most 4000, is fitted, and at most 4000 others judge. On 2000
# rows (34 cases of eleven data sets, clean and noisy; laplacian) the error with the c
# that a quarter chose was 1.015 times that with the best c, and with the c of an eighth
# 1.020 times. c still depends on the number of rows, so the cap is no lower: on 12000
# rows of a9a it is 0.3, 0.7, 0.9 and 1.4 if 400, 1000, 2000 and 4000 of them are
# fitted.
_PART_FITTED, _MOST_FITTED, _MOST_JUDGES = 4, 4000, 4000
# The search begins with half of the fitted rows. If these are fewer than the features,
# it is faster to begin with a quarter, judged by a quarter of the judges. It then tries
# 3.3 penalties on all fitted rows instead of 3.1, and in 87 of 88 cases of eleven data
# sets chooses the same one; in the other case the error is 0.1 % greater.
_START_PART = 4
# Most features times fitted rows: some 300 MB of memory in double precision.
_MOST_NUMBERS = 10_000_000
# Fewer rows do not determine c. Up to 300 rows, or 1200 of features, are left out one
# by one, which takes no longer. Squared errors on new rows divided by those with the
# best c, mean and 95 % quantile over seven data sets and eight draws: with a quarter
# 1.18 and 1.69, with leaving out 1.07 and 1.20 (gaussian, 32 rows); 1.05 and 1.27, 1.01
# and 1.05 (gaussian, 250 rows); 1.09 and 1.56, 1.02 and 1.11 (laplacian, 32 rows). On
# sparse features a quarter finds a c that is far too small.
_TOO_FEW_ROWS, _ROWS_LEFT_OUT, _ROWS_LEFT_OUT_OF_FEATURES = 20, 300, 1200
# The rows are centered if the Rayleigh quotient of the constant, divided by the mean
# eigenvalue, is below this. On 30 to 290 rows of eleven data sets, with and without
# weights, it is at most 5e-6 for centered features in single precision, and at least
# 1.0 for kernels that are not centered (gaussian and laplacian, bandwidths of the
# median and 0.05).
_CENTERED = 1e-3
# Decimal logarithms of the penalties, relative to the mean of k(x, x): the smallest
# one, the step to the next, how many there are, and the place where the search begins.
# Squared errors of 200 and 2000 rows of six data sets, clean and noisy, gaussian and
# laplacian, divided by those with these values: with a step of 0.25, which takes a
# quarter more fits, 0.999 on average (0.99 to 1.02); with a step of 1, 1.006 (up to
# 1.09); from -2 on, 1.004 (up to 1.21); from -4 or -5 on, the same in 47 of 48 cases,
# and in the last one a penalty instead of none; with the search from place 0, 1.011 (up
# to 1.35); from 6 or 10, the same.
_LOG_LEAST, _LOG_STEP, _N_PENALTIES, _FIRST_PLACE = -3.0, 0.5, 15, 3
# If the best penalty rose by x places from an eighth of the rows to a quarter, `_DRIFT`
# x places are added, and `_FOR_LABELS` places for labels. On 2000 and 8000 rows of a9a,
# covtype, california_housing, fashion_mnist and ijcnn1, clean and noisy, three draws
# each, the error on new rows is then 1.008 times the smallest of all penalties of the
# sequence, and within 2 % of it in 91 % of the cases; 1.015 times and 81 % without
# `_FOR_LABELS`, 1.022 times and 82 % with neither. The most probable label tolerates
# more variance than a squared error: labels prefer a penalty of about half the size.
# (If rows are left out one by one, with 100 and 280 rows, `_FOR_LABELS` gave 1.5 %
# fewer to 3 % more errors.)
_DRIFT, _FOR_LABELS = 1.0, -0.5
# Fraction by which a larger penalty must lower the error, and fraction that may be
# rounding. In the cases above 0 is as good as 0.001; with 0.01 and 0.03 the errors are
# 1.003 and 1.017 times as large on average.
_LEAST_GAIN, _ROUNDING = 1e-3, 1e-5


def auto_ridge(K, y, weights=None, *, labels=False):
    """Return the ridge that predicts held-out rows best.

    It is the c of ``(K + c W^-1) a = y``. In the model of a Gaussian process c is the
    variance of the noise divided by that of the function, which does not depend on the
    number of rows: the c that suits a subsample suits all rows. Kernel ridge regression
    is fitted to an eighth of the rows for some c of a geometric sequence, then to a
    quarter, at most 4000, for those near the best. Each c is judged by the squared
    errors on up to 4000 of the other rows; the minimum is that of a parabola through
    the best three. The factor by which it changed from the eighth to the quarter is
    applied once more, because all rows are more than a quarter. Up to 300 rows are left
    out one by one instead.

    Parameters
    ----------
    K : Matrix
        K(X, X), the rows in random order.
    y : array of shape (m, l), m >= n
        Targets, centered.
    weights : array of shape (m,), default=None
        w, with mean 1.
    labels : bool, default=False
        Whether the targets are those of labels: c is then a little smaller than the
        best one for squared errors.

    Returns
    -------
    float
        c; 0 if the smallest one is the best, or if there are too few rows.
    """
    n = K.shape[0]
    if n < _TOO_FEW_ROWS:
        return 0.0
    if n <= _ROWS_LEFT_OUT:
        return _ridge_by_leaving_out(K.block(), y, weights)
    s, judges = n_ridge_rows(K)
    ridge = _auto_ridge(K.block(0, min(s + judges, n), 0, s), y, weights, _DRIFT)
    return ridge * 10.0 ** (_FOR_LABELS * _LOG_STEP) if labels else ridge


def _ridge_by_leaving_out(K, y, weights):
    """Return the ridge from K(X, X) by leaving out the rows one by one."""
    xp = namespace(K)
    y, w = _of_rows(K, y, weights)
    root = xp.sqrt(w)[:, None]
    values, U = xp.linalg.eigh(root * K * root.T)
    return _ridge_of_eigenvectors(U, values, y, w)


def _ridge_of_features_by_leaving_out(F, y, weights):
    """Return the ridge of centered features, fewer than the rows, in the same way."""
    xp = namespace(F)
    y, w = _of_rows(F, y, weights)
    A = xp.sqrt(w)[:, None] * F
    values, V = xp.linalg.eigh(A.T @ A)
    # Smaller eigenvalues may be rounding of single precision.
    first = int(xp.sum(xp.astype(values <= 1e-6 * values[-1], xp.int64)))
    if first == values.shape[0]:  # constant features
        return 0.0
    values, V = values[first:], V[:, first:]
    return _ridge_of_eigenvectors((A @ V) / xp.sqrt(values), values, y, w)


def _ridge_of_eigenvectors(U, values, y, w):
    """Return the ridge of the system with the eigenvectors U, by leaving rows out.

    H = U diag(lambda / (lambda + c)) U' maps the targets b of the weighted system to
    fitted values. The residual of row i in the model without it is
    ``(b - H b)_i / (1 - H_ii)``. If the rows are centered, their mean is fitted too,
    which adds u u' to H, with the constant unit vector u.
    """
    xp, n = namespace(U), U.shape[0]
    root = xp.sqrt(w)[:, None]
    b, size = root * y, float(xp.sum(values)) / n
    projected = U.T @ b
    u = root / xp.linalg.vector_norm(root)
    centered = float(xp.sum(values * (U.T @ u)[:, 0] ** 2)) < _CENTERED * size
    left = 1.0 - u[:, 0] ** 2 if centered else xp.ones_like(w)

    def error(place):
        c = size * _penalty(place)
        if not float(xp.min(values)) + c > 0:
            return np.inf
        h = values / (values + c)
        residual = b - U @ (h[:, None] * projected)
        return float(xp.sum((residual / (left - U**2 @ h)[:, None]) ** 2))

    errors = np.array([error(place) for place in range(_N_PENALTIES)])
    place = int(np.argmax(errors <= (1 + _ROUNDING) * errors.min()))
    if place == 0:
        return 0.0
    return size * _penalty(place + _vertex(errors.__getitem__, place))


def n_ridge_rows(K):
    """Return how many rows `auto_ridge` fits, and how many others judge."""
    s = min(K.shape[0] // _PART_FITTED, _MOST_FITTED)
    return _rows_that_fit(K, s, s)


def _auto_ridge(block, y, weights, drift=0.0):
    """Return the ridge from K(X, X_s), (m, s), whose first s rows are fitted."""
    xp, s = namespace(block), block.shape[1]
    y, w = _of_rows(block, y, weights)
    size = float(xp.mean(w[:s] * xp.linalg.diagonal(block[:s, :])))
    error = partial(_error_of_rows, block, y, w, size)
    return size * _search(error, s // 2, s, drift)


def auto_ridge_of_features(F, y, weights=None):
    """Return the ridge of `auto_ridge` for the linear kernel of centered features.

    Parameters
    ----------
    F : CenteredFeatures
    y, weights
        As of `auto_ridge`.

    Returns
    -------
    ridge : float
        c of ``(F' W F + c I) a = F' W y``; 0 as in `auto_ridge`.
    begun : tuple of int and array of shape (d, d), or None
        A number of first rows and their F' W F in single precision, at least its lower
        triangle, to which the other rows can be added. None if nothing was summed.
    """
    n, d = F.shape
    if n < _TOO_FEW_ROWS:
        return 0.0, None
    if n <= _ROWS_LEFT_OUT_OF_FEATURES:
        if d < n:
            block = F.block(0, n)
            return _ridge_of_features_by_leaving_out(block, y, weights), None
        return _ridge_by_leaving_out(F.row_gram(n, n), y, weights), None
    s = min(n // _PART_FITTED, _MOST_FITTED, max(_MOST_NUMBERS // d, _TOO_FEW_ROWS))
    s, judges = _rows_that_fit(F, s, d)
    end = min(s + judges, n)
    if d >= s:
        return _auto_ridge(F.row_gram(end, s), y, weights), None
    if not F.in_core:  # read once
        block = F.block(0, end)
        F = CenteredFeatures(block, F.xp.zeros_like(block[0, :]))
    return _ridge_of_features(F, s, end, y, weights)


def _ridge_of_features(F, s, end, y, weights):
    """Return the ridge of rows in memory, of which the first s are fitted, and `begun`.

    There are fewer features than s. The rows from s to `end` judge.
    """
    xp, d = F.xp, F.shape[1]
    w = xp.ones_like(y[:, 0]) if weights is None else weights
    block, root = F.block(0, s), xp.sqrt(w[:s])[:, None]
    if weights is not None:
        block *= root
    size = float(xp.mean(xp.vecdot(block, block)))
    if not 0 < size < np.inf:
        return 0.0, None
    # Scaled to a size of one, for which single precision suffices.
    scale = size**-0.5
    block *= scale
    y = y[:end, :] / (float(xp.max(xp.abs(y[:end, :]))) or 1.0)
    b = root * y[:s, :]
    block, b = (xp.astype(a, xp.float32, copy=False) for a in (block, b))
    few, stop = s // 2, end
    if few < d:
        few, stop = s // _START_PART, s + (end - s) // _START_PART
    stops = {few: stop, s: end}
    systems = {m: _system(block[:m, :], b[:m, :]) for m in stops}

    def error(n_fitted, penalty):
        (G, b), stop = systems[n_fitted], stops[n_fitted]
        a = _solution(xp.asarray(G, copy=True), b, penalty)
        if a is None:
            return np.inf
        if n_fitted < d:
            a = block[:n_fitted, :].T @ a
        fitted, _ = F.product(scale * xp.astype(a, F.dtype, copy=False), s, stop)
        return float(xp.sum(w[s:stop, None] * (fitted - y[s:stop, :]) ** 2))

    ridge = size * _search(error, few, s)
    low, high = SINGLE_RANGE
    if not low < ridge < high:
        return ridge, None
    gram, _ = systems[s]
    gram *= size
    return ridge, (s, gram)


def _system(A, b):
    """Return A' A and A' b, or A A' and b if that is smaller."""
    A, b = (A.T, b) if A.shape[0] < A.shape[1] else (A, A.T @ b)
    p = A.shape[1]
    G = namespace(A).zeros((p, p), dtype=A.dtype, device=device_of(A))
    add_normal_matrix(G, A)
    return G, b


def _rows_that_fit(K, s, width):
    """Return how many rows to fit, and how many judge: fewer if memory is short.

    A block of them with `width` columns takes at most half of it, the systems the rest.
    """
    needed = K.itemsize * max(width, s) * (4.0 * s + _MOST_JUDGES)
    part = min(1.0, memory.available(K.xp, K.device) / needed) ** 0.5
    return max(int(part * s), 1), int(part * _MOST_JUDGES)


def _of_rows(block, y, weights):
    """Return the targets and weights of the rows of a block."""
    n = block.shape[0]
    ones = namespace(y).ones_like(y[:n, 0])
    return y[:n, :], ones if weights is None else weights[:n]


def _search(error, n_few, s, drift=0.0):
    """Return the best penalty, or 0 if it is the smallest one.

    Parameters
    ----------
    error : callable
        ``error(n_fitted, penalty)``.
    n_few, s : int
        Rows that are fitted at first, and in the end.
    drift : float, default=0.0
        How much of the change of its logarithm from n_few to s rows to add.
    """
    few, more = (
        cache(lambda place, m=m: error(m, _penalty(place))) for m in (n_few, s)
    )
    first = _descend(few, _FIRST_PLACE)
    last = _descend(more, first)
    if last == 0:
        return 0.0
    last += _vertex(more, last)
    if drift:
        change = last - first - _vertex(few, first)
        last = max(last + drift * float(np.clip(change, -1.0, 1.0)), 0.0)
    return _penalty(last)


def _penalty(place):
    """Return the penalty at a place of the sequence, which may be between two."""
    return 10.0 ** (_LOG_LEAST + place * _LOG_STEP)


def _error_of_rows(block, y, w, size, n_fitted, penalty):
    """Return the squared error of kernel ridge regression on held-out rows.

    Parameters
    ----------
    block : array of shape (m, s)
        K(X, X_s). The first `n_fitted` rows are fitted; those after the first s judge.
    y, w : arrays of shape (m, l), (m,)
    size : float
        The unit of the penalty.
    n_fitted : int
    penalty : float
    """
    xp, s, fitted = namespace(block), block.shape[1], slice(0, n_fitted)
    root = xp.sqrt(w[fitted])[:, None]
    A = root * block[fitted, fitted] * root.T
    b = _solution(A, root * y[fitted, :], size * penalty)
    if b is None:
        return np.inf
    residual = block[s:, fitted] @ (root * b) - y[s:, :]
    return float(xp.sum(w[s:, None] * residual**2))


def _solution(A, B, ridge):
    """Return (A + ridge I)^-1 B, or None if the matrix is indefinite."""
    L, _ = shifted_cholesky(A, ridge)
    if L is None:
        return None
    return cholesky_solve(L, B)


def _descend(error, place):
    """Return the place of a local minimum of the errors, beginning at `place`.

    Of equal errors, as for a kernel that is zero between rows, it is the first.
    """
    while place < _N_PENALTIES - 1 and np.isinf(error(place)):  # indefinite
        place += 1
    start = place
    while place > 0 and error(place - 1) <= error(place):
        place -= 1
    if place == start:
        while place < _N_PENALTIES - 1:
            if not error(place + 1) < (1 - _LEAST_GAIN) * error(place):
                break
            place += 1
    return place


def _vertex(error, place):
    """Return the offset from `place` of the vertex of the best three errors."""
    if not 0 < place < _N_PENALTIES - 1:
        return 0.0
    before, least, after = (error(place + i) for i in (-1, 0, 1))
    curvature = before - 2 * least + after
    if not 0 < curvature < np.inf:
        return 0.0
    return float(np.clip((before - after) / (2 * curvature), -0.5, 0.5))
