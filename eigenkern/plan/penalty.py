"""The penalty that new rows prefer: what ``alpha="auto"`` means."""

from functools import cache, partial

import numpy as np

from ..arrays import memory
from ..arrays.array import device_of, namespace
from ..arrays.linalg import cholesky_solve, shifted_cholesky
from ..methods.direct import SINGLE_RANGE, add_normal_matrix, usual_size
from ..operators.centered import CenteredFeatures

# A quarter of the rows, at most 4000, is fitted, and at most 4000 others judge. On 2000
# rows (34 cases of eleven data sets, clean and noisy; laplacian) the error with the c
# that a quarter chose was 1.015 times that with the best c, and with the c of an eighth
# 1.020 times. c still depends on the number of rows, so the cap is no lower: on 12000
# rows of a9a it is 0.3, 0.7, 0.9 and 1.4 if 400, 1000, 2000 and 4000 of them are
# fitted.
_PART_FITTED, _MOST_FITTED, _MOST_JUDGES = 4, 4000, 4000
# So many rows, or fewer, determine c.
N_RIDGE_ROWS = _PART_FITTED * _MOST_FITTED
# The search begins with half of the fitted rows. If these are fewer than the features,
# it is faster to begin with a quarter, judged by a quarter of the judges. It then tries
# 3.3 penalties on all fitted rows instead of 3.1, and in 87 of 88 cases of eleven data
# sets chooses the same one; in the other case the error is 0.1 % greater.
_START_PART = 4
# Rows with a k(x, x) above this many usual ones do not judge: fill values.
_MOST_OF_USUAL = 1000.0
# Most features times fitted rows: some 300 MB of memory in double precision.
_MOST_NUMBERS = 10_000_000
# Fewer rows do not determine c. Up to 1000 rows, or 1200 of features, are left out one
# by one, which takes 0.2 s. Squared errors on new rows divided by those with the best
# c, mean and 95 % quantile over seven data sets and eight draws: with a quarter 1.18
# and 1.69, with leaving out 1.07 and 1.20 (gaussian, 32 rows); 1.05 and 1.27, 1.01 and
# 1.05 (gaussian, 250 rows); 1.09 and 1.56, 1.02 and 1.11 (laplacian, 32 rows). On 320,
# 500 and 900 rows of four sets 1.022, 1.046, 1.039, and 1.027, 1.021, 1.005 (gaussian,
# means). On sparse features a quarter finds a c that is far too small.
_TOO_FEW_ROWS, _ROWS_LEFT_OUT, _ROWS_LEFT_OUT_OF_FEATURES = 20, 1000, 1200
# The rows are centered if the Rayleigh quotient of the constant, divided by the mean
# eigenvalue, is below this. On 30 to 290 rows of eleven data sets, with and without
# weights, it is at most 5e-6 for centered features in single precision, and at least
# 1.0 for kernels that are not centered (gaussian and laplacian, bandwidths of the
# median and 0.05).
_CENTERED = 1e-3
# Decimal logarithms of the penalties, relative to the usual k(x, x): the smallest one
# in double and in single precision, where smaller ones are rounding; the step to the
# next and how many there are; the place where the search begins. Squared errors of 200
# and 2000 rows of six data sets, clean and noisy, gaussian and laplacian, divided by
# those with these values: with a step of 0.25, which takes a quarter more fits, 0.999
# on average (0.99 to 1.02); with a step of 1, 1.006 (up to 1.09).
_LOG_LEAST, _LOG_STEP, _N_PENALTIES, _FIRST_PLACE = -12.0, 0.5, 33, 21
_LEAST_IN_SINGLE = 16
# Places between the starts of a search below the first one: errors may have several
# minima, one where the model predicts the mean.
_BETWEEN_STARTS = 8
# If the best model of a quarter of the rows leaves more than this part of the variance,
# half of the rows are fitted, at most _MOST_TO_SEE: a quarter may be too few to see the
# function. sin(3 x_0) x_1 on 900 rows, gaussian: the best penalties of 225, 450 and 900
# rows are 1, 1e-6 and 1e-9.
_SEES_LITTLE, _MOST_TO_SEE = 0.5, 1000
# If it leaves less than this part in single precision, rounding may hide a better one.
_LEAVES_LITTLE = 0.05
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


def n_sampled(n, p=None):
    """Return how many of n rows determine c: fewer, in less time, for p centers."""
    most = N_RIDGE_ROWS if p is None else max(_PART_FITTED * p, _ROWS_LEFT_OUT)
    return min(n, N_RIDGE_ROWS, most)


def auto_ridge(K, y, weights=None, *, replicates=None, labels=False, in_double=None):
    """Return the ridge that predicts held-out rows best.

    It is the c of ``(K + c W^-1) a = y``. In the model of a Gaussian process c is the
    variance of the noise divided by that of the function, which does not depend on the
    number of rows: the c that suits a subsample suits all rows. Kernel ridge regression
    is fitted to an eighth of the rows for some c of a geometric sequence, then to a
    quarter, at most 4000, for those near the best. Each c is judged by the squared
    errors on up to 4000 of the other rows; the minimum is that of a parabola through
    the best three. The factor by which it changed from the eighth to the quarter is
    applied once more, because all rows are more than a quarter. Up to 1000 rows are
    left out one by one instead.

    Parameters
    ----------
    K : Matrix
        K(X, X) of distinct rows, in random order.
    y : array of shape (m, l), m >= n
        Targets, centered.
    weights : array of shape (m,), default=None
        w, with mean 1.
    replicates : Replicates, default=None
        None: each row is one observation.
    labels : bool, default=False
        Whether the targets are those of labels: c is then a little smaller than the
        best one for squared errors.
    in_double : callable, default=None
        ``in_double(m)`` returns K of the first m rows in double precision, for a search
        below the rounding of single precision.

    Returns
    -------
    float
        c; 0 if there are too few rows.
    """
    if labels:  # they are never without noise
        in_double = None
    n, single = K.shape[0], K.dtype == K.xp.float32 and in_double is not None
    least = _LEAST_IN_SINGLE if labels else 0
    by_one = replicates is not None and replicates.prevail
    n_observations = n if replicates is None else replicates.n_observations.sum()
    if n_observations < _TOO_FEW_ROWS or n < 2:
        return 0.0
    if by_one or n <= _ROWS_LEFT_OUT:
        n = min(n, _ROWS_LEFT_OUT)
        K = in_double(n) if single else K
        return _ridge_by_leaving_out(K.block(0, n, 0, n), y, weights, replicates, least)
    s, judges = n_ridge_rows(K)
    search = _Search(K, y, weights, in_double if single else None, least)
    ridge = search.of_part(s, judges, _DRIFT)
    return ridge * 10.0 ** (_FOR_LABELS * _LOG_STEP) if labels else ridge


def _ridge_by_leaving_out(K, y, weights, replicates=None, least=0, factor=1.0):
    """Return the ridge from K(X, X) by leaving out the rows one by one.

    `least` is the first place of the sequence that counts. Eigenvalues below `factor`
    times eps, relative to the largest, are zero.
    """
    xp = namespace(K)
    y, w = _of_rows(K, y, weights)
    entries = xp.linalg.diagonal(K)
    if not usual_size(entries, w) > 0:
        return 0.0
    root = xp.sqrt(w)[:, None]
    values, U = xp.linalg.eigh(root * K * root.T)
    # Centered features have an eigenvalue of zero, which must not be rounding; small
    # eigenvalues of a kernel matter for tiny penalties.
    rounding = factor * float(xp.finfo(K.dtype).eps) * float(values[-1])
    values = xp.where(xp.abs(values) > rounding, values, xp.zeros_like(values))
    return _ridge_of_eigenvectors(U, values, y, w, entries, replicates, least)


def _ridge_of_features_by_leaving_out(F, y, weights, replicates):
    """Return the ridge of centered features, fewer than the rows, in the same way."""
    xp = namespace(F)
    y, w = _of_rows(F, y, weights)
    A = xp.sqrt(w)[:, None] * F
    values, V = xp.linalg.eigh(A.T @ A)
    # Smaller eigenvalues may be rounding.
    least = 10 * float(xp.finfo(F.dtype).eps) * values[-1]
    first = int(xp.sum(xp.astype(values <= least, xp.int64)))
    if first == values.shape[0]:  # constant features
        return 0.0
    values, V = values[first:], V[:, first:]
    U = (A @ V) / xp.sqrt(values)
    return _ridge_of_eigenvectors(U, values, y, w, xp.vecdot(F, F), replicates)


def _ridge_of_eigenvectors(U, values, y, w, entries, replicates, first=0):
    """Return the ridge of the system with the eigenvectors U, by leaving rows out.

    H = U diag(lambda / (lambda + c)) U' maps the targets b of the weighted system to
    fitted values. The residual of row i in the model without it is
    ``(b - H b)_i / (1 - H_ii)``. If the rows are centered, their mean is fitted too,
    which adds u u' to H, with the constant unit vector u. Of a row that stands for u
    observations, one is left out: its leverage is H_ii / u (`Merged.left_out`). Rows
    with a far too large k(x, x), in `entries`, do not judge: what other rows say about
    a fill value is meaningless.
    """
    xp, (n, rank), size = namespace(U), U.shape, usual_size(entries, w)
    judges = xp.astype(entries <= _MOST_OF_USUAL * usual_size(entries), y.dtype)
    root = xp.sqrt(w)[:, None]
    b, projected = root * y, U.T @ (root * y)
    constant = root / xp.linalg.vector_norm(root)
    of_constant = float(xp.sum(values * (U.T @ constant)[:, 0] ** 2))
    centered = of_constant < _CENTERED * float(xp.sum(values)) / n
    # What H leaves of the part outside of U: nothing if U is complete.
    rest, left_of_rest, squared = xp.zeros_like(b), xp.zeros_like(w), U**2
    if rank < n:
        rest, left_of_rest = b - U @ projected, 1.0 - xp.sum(squared, axis=1)
    if centered:
        left_of_rest = left_of_rest - constant[:, 0] ** 2
    n_observations, variance = 1.0, 0.0
    if replicates is not None:
        n_observations, variance = replicates.of(y, n)

    def error(place):
        c = size * _penalty(place)
        if not float(xp.min(values)) + c > 0:
            return np.inf
        kept = c / (values + c)
        residual = rest + U @ (kept[:, None] * projected)
        left = left_of_rest + squared @ kept
        left = (left + (n_observations - 1.0)) / n_observations
        squares = xp.sum(residual**2, axis=1) + w * variance
        return float(xp.sum(judges * squares / left**2))

    errors = np.array([error(place) for place in range(_N_PENALTIES)])
    errors[np.isnan(errors)] = np.inf
    errors[:first] = np.inf
    least = errors.min()
    if not errors[np.isfinite(errors)].max(initial=0.0) > (1 + _ROUNDING) * least:
        return 0.0  # a kernel that is zero between rows
    place = int(np.argmin(errors))
    while place < _N_PENALTIES - 1 and errors[place + 1] < (1 + _LEAST_GAIN) * least:
        place += 1
    return size * _penalty(place + _vertex(errors.__getitem__, place))


def n_ridge_rows(K):
    """Return how many rows `auto_ridge` fits, and how many others judge."""
    s = min(K.shape[0] // _PART_FITTED, _MOST_FITTED)
    return _rows_that_fit(K, s, s)


class _Search:
    """The search for c on K(X, X), in double precision where that is needed.

    Parameters
    ----------
    K, y, weights, in_double
        As of `auto_ridge`; `in_double` is None if K is precise enough.
    least : int, default=0
        The first place of the sequence.
    """

    def __init__(self, K, y, weights, in_double, least=0):
        self._K, self._y, self._weights, self._in_double = K, y, weights, in_double
        self._least = least

    def of_part(self, s, judges, drift):
        """Return c with `s` rows fitted, or with more if these see too little."""
        place, part = self._found(s, judges, drift)
        if place is None:
            return 0.0
        n = self._K.shape[0]
        more = min(n // 2, _MOST_TO_SEE)
        if part > _SEES_LITTLE and s < more:
            place = self._found(more, min(n - more, judges), 0.0)[0] or place
        return self._size * _penalty(place)

    def _found(self, s, judges, drift):
        """Return the best place, and the part of the variance that its model leaves."""
        end = min(s + judges, self._K.shape[0])
        single = self._in_double is not None
        least = _LEAST_IN_SINGLE if single else self._least
        place, part = self._searched(self._K, s, end, least, drift)
        if place is None or not single:
            return place, part
        sees_little = part > _SEES_LITTLE and s <= _MOST_TO_SEE
        if sees_little or part < _LEAVES_LITTLE or place <= least + 1:
            K = self._in_double(end)
            place, part = self._searched(K, s, end, 0, drift)
        return place, part

    def _searched(self, K, s, end, least, drift):
        block = K.block(0, end, 0, s)
        xp = namespace(block)
        y, w = _of_rows(block, self._y, self._weights)
        self._size = usual_size(xp.linalg.diagonal(block[:s, :]), w[:s])
        error = partial(_error_of_rows, block, y, w, self._size)
        place, least_error = _search(error, s // 2, s, least, drift)
        of_mean = float(xp.sum(w[s:, None] * y[s:, :] ** 2))
        return place, least_error / (of_mean or 1.0)


def auto_ridge_of_features(F, y, weights=None, *, replicates=None):
    """Return the ridge of `auto_ridge` for the linear kernel of centered features.

    Parameters
    ----------
    F : CenteredFeatures
    y, weights, replicates
        As of `auto_ridge`.

    Returns
    -------
    ridge : float
        c of ``(F' W F + c I) a = F' W y``; 0 as in `auto_ridge`.
    begun : tuple of int and array of shape (d, d), or None
        A number of first rows and their F' W F in single precision, at least its lower
        triangle, to which the other rows can be added. None if nothing was summed.
    """
    (n, d), xp = F.shape, F.xp
    n_observations = n if replicates is None else replicates.n_observations.sum()
    if n_observations < _TOO_FEW_ROWS or n < 2:
        return 0.0, None
    if n <= _ROWS_LEFT_OUT_OF_FEATURES:
        if d < n:
            block = F.block(0, n, dtype=xp.float64)
            found = _ridge_of_features_by_leaving_out(block, y, weights, replicates)
        else:
            gram = F.astype(xp.float64).row_gram(n, n)
            found = _ridge_by_leaving_out(gram, y, weights, replicates, factor=10.0 * n)
        return found, None
    s = min(n // _PART_FITTED, _MOST_FITTED, max(_MOST_NUMBERS // d, _TOO_FEW_ROWS))
    s, judges = _rows_that_fit(F, s, d)
    end = min(s + judges, n)
    if not F.in_core:  # read once
        block = F.block(0, end)
        F = CenteredFeatures(block, xp.zeros_like(block[0, :]))
    if d >= s:
        search = _Search(_RowGram(F), y, weights, None)
        return search.of_part(s, judges, 0.0), None
    return _ridge_of_features(F, s, end, y, weights)


class _RowGram:
    """F F' in double precision, for `_Search`."""

    def __init__(self, F):
        self._F, self.shape = F, (F.shape[0], F.shape[0])

    def block(self, start, stop, first, last):
        """Return the first rows and columns."""
        return self._F.astype(self._F.xp.float64).row_gram(stop, last)


def _ridge_of_features(F, s, end, y, weights):
    """Return the ridge of rows in memory, of which the first s are fitted, and `begun`.

    There are fewer features than s. The rows from s to `end` judge.
    """
    xp, d = F.xp, F.shape[1]
    w = xp.ones_like(y[:, 0]) if weights is None else weights
    rows, root = F.block(0, s, dtype=xp.float64), xp.sqrt(w[:s])[:, None]
    squares = xp.vecdot(rows, rows)
    size = usual_size(squares, w[:s])
    if not 0 < size < np.inf:
        return 0.0, None
    others = F.block(s, end, dtype=xp.float64)
    judged = xp.vecdot(others, others) <= _MOST_OF_USUAL * usual_size(squares)
    judged = xp.astype(judged, y.dtype)
    # Scaled to a size of one, for which single precision suffices in general.
    scale = size**-0.5
    rows = scale * rows if weights is None else scale * root * rows
    y = y[:end, :] / (float(xp.max(xp.abs(y[:end, :]))) or 1.0)
    few, stop = s // 2, end
    if few < d:
        few, stop = s // _START_PART, s + (end - s) // _START_PART
    stops = {few: stop, s: end}

    def searched(dtype, least):
        block, b = (xp.astype(a, dtype, copy=False) for a in (rows, root * y[:s, :]))
        systems = {m: _system(block[:m, :], b[:m, :]) for m in stops}

        def error(n_fitted, penalty):
            (G, b), stop = systems[n_fitted], stops[n_fitted]
            a = _solution(xp.asarray(G, copy=True), b, penalty)
            if a is None:
                return np.inf
            if n_fitted < d:
                a = block[:n_fitted, :].T @ a
            fitted = F.product(scale * xp.astype(a, F.dtype, copy=False), s, stop)
            squares = xp.sum((fitted - y[s:stop, :]) ** 2, axis=1)
            return float(xp.sum(judged[: stop - s] * w[s:stop] * squares))

        place, _ = _search(error, few, s, least)
        return place, systems[s][0]

    place, gram = searched(xp.float32, _LEAST_IN_SINGLE)
    if place is None:
        return 0.0, None
    if place <= _LEAST_IN_SINGLE:
        return size * _penalty(searched(xp.float64, 0)[0]), None
    ridge = size * _penalty(place)
    low, high = SINGLE_RANGE
    if not low < ridge < high:
        return ridge, None
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
    xp, n = namespace(y), block.shape[0]
    y = xp.astype(y[:n, :], block.dtype, copy=False)
    if weights is None:
        return y, xp.ones_like(y[:, 0])
    return y, xp.astype(weights[:n], block.dtype, copy=False)


def _search(error, n_few, s, least=0, drift=0.0):
    """Return the place of the best penalty, or None if all do as well, and its error.

    Parameters
    ----------
    error : callable
        ``error(n_fitted, penalty)``.
    n_few, s : int
        Rows that are fitted at first, and in the end.
    least : int, default=0
        The first place.
    drift : float, default=0.0
        How much of the change of its logarithm from n_few to s rows to add.
    """
    few, more = (
        cache(lambda place, m=m: error(m, _penalty(place))) for m in (n_few, s)
    )
    starts = [*range(_FIRST_PLACE, least, -_BETWEEN_STARTS), least]
    errors = [few(place) for place in (_N_PENALTIES - 1, *starts)]
    if not max(errors) > (1 + _ROUNDING) * min(errors):
        return None, errors[0]  # a kernel that is zero between rows
    first = _descend(few, _least(few, starts), least)
    last = _descend(more, first, least)
    if not more(last) < _SEES_LITTLE * more(_N_PENALTIES - 1):
        last = _descend(more, _least(more, [last, *starts]), least)
    found = more(last)
    place = last + _vertex(more, last)
    if drift:
        change = place - first - _vertex(few, first)
        place = max(place + drift * float(np.clip(change, -1.0, 1.0)), least)
    return place, found


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


def _least(error, places):
    """Return the place with the least error; of practically equal ones the largest."""
    least = min(map(error, places))
    return max(p for p in places if error(p) <= (1 + _LEAST_GAIN) * least)


def _descend(error, place, least):
    """Return the place of a local minimum of the errors, beginning at `place`.

    Of errors that are practically equal it is the largest: larger penalties are safer.
    """
    while place < _N_PENALTIES - 1 and np.isinf(error(place)):  # indefinite
        place += 1
    start = place
    while place > least and error(place - 1) < (1 - _LEAST_GAIN) * error(place):
        place -= 1
    least, last = error(place), place
    if place == start:
        while last < _N_PENALTIES - 1:
            if not error(last + 1) <= (1 + _LEAST_GAIN) * least:
                break
            last += 1
            if error(last) < least:
                least, place = error(last), last
    return last if error(last) <= (1 + _LEAST_GAIN) * least else place


def _vertex(error, place):
    """Return the offset from `place` of the vertex of the best three errors."""
    if not 0 < place < _N_PENALTIES - 1:
        return 0.0
    before, least, after = (error(place + i) for i in (-1, 0, 1))
    curvature = before - 2 * least + after
    if not 0 < curvature < np.inf:
        return 0.0
    return float(np.clip((before - after) / (2 * curvature), -0.5, 0.5))
