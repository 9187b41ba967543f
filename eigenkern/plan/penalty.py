"""The penalty that new rows prefer: what ``alpha="auto"`` means."""

from functools import cache, partial

import numpy as np

from ..arrays.array import device_of, namespace, to_numpy
from ..methods.direct import (
    MOST_OF_USUAL,
    SINGLE_RANGE,
    Factor,
    add_normal_matrix,
    usual_size,
    weighted,
)
from ..methods.left_out import left_parts, squared_errors, unless_sets_contradict
from ..operators.blocks import blocks
from ..operators.centered import CenteredFeatures
from .sizes import planned_bytes

# So many rows, or fewer, determine c: a quarter is fitted, and at most 4000 others
# judge. Errors are 1.015 times those of the best c; with an eighth 1.020 times. c still
# depends on the rows: on a9a it is 0.3, 0.7, 0.9 and 1.4 for 400, 1000, 2000 and 4000
# that are fitted.
N_RIDGE_ROWS, MOST_JUDGES = 16_000, 4000
# If a quarter is fewer, half of the rows are fitted, at most so many, unless targets
# are labels. Of 1500 rows of six tables 94 % of the errors are then within 2 % of those
# of the best c, 81 % with a quarter; of 3200 rows 81 and 79 %.
_HALF_FITTED = 1000
# Fewer rows do not determine c. Up to 1000 rows, or 1200 of features, are left out one
# by one: on 32 to 900 rows errors are then 1.01 to 1.07 times those of the best c, and
# 1.04 to 1.18 times with a quarter, which on sparse features finds a far too small c.
TOO_FEW_ROWS, ROWS_LEFT_OUT = 20, 1000
# How many penalties there are, see `_penalty`; the place where the search begins, and
# the smallest one in single precision, where smaller ones are rounding.
_N_PENALTIES, _FIRST_PLACE, _LEAST_IN_SINGLE = 33, 21, 16
# Least penalty over the trace that epochs in single precision resolve. For gaussian,
# matern52 and cauchy on 9000 x 3 rows, with and without noise, the bandwidth is then
# the best of five in 22 of 24 draws, with at most 1.33 times its error otherwise; for
# the laplacian errors are within 6 %. With 1e-6 they reach 17 times the least.
LEAST_OF_EPOCHS = 1e-5
# If the best model of a quarter of the rows leaves more than this part of the variance,
# half of the rows are fitted, at most _MOST_TO_SEE: a quarter may be too few to see the
# function, such as sin(3 x_0) x_1 on 900 rows.
SEES_LITTLE, _MOST_TO_SEE = 0.5, 1000
# If the best penalty rose by x places when the fitted rows were doubled, `_DRIFT` x
# places are added for each time they double again, at most twice, and half a place is
# taken for labels: errors are then 1.008 times those of the best penalty, 1.015 times
# without the second, 1.022 with neither.
_DRIFT = 0.5
# Fraction by which a larger penalty must lower the error, and fraction that may be
# rounding. 0 is as good as 0.001; with 0.01 errors are 1.003 times as large.
_LEAST_GAIN, _ROUNDING = 1e-3, 1e-5


def n_sampled(n, p=None):
    """Return how many of n rows determine c: fewer, in less time, for p centers."""
    most = N_RIDGE_ROWS if p is None else max(4 * p, ROWS_LEFT_OUT)
    return min(n, N_RIDGE_ROWS, most)


def units_of(Y, weights=None):
    """Return what to divide centered targets by, ndarray (l,), so that all count alike.

    That is the deviation of each of several outputs: the squared errors of one in grams
    would hide those of one in tons. Constant outputs do not count.
    """
    if Y.shape[1] == 1:
        return np.ones(1)
    Y = to_numpy(Y).astype(np.float64)
    largest = np.abs(Y).max(axis=0)
    scaled = Y / np.where(largest > 0, largest, 1.0)
    w = None if weights is None else to_numpy(weights)
    units = largest * np.sqrt(np.average(scaled**2, axis=0, weights=w))
    return np.where(units > 0, units, np.inf)


def n_ridge_rows(K, labels):
    """Return how many rows `auto_ridge` fits, and how many others judge."""
    s = _n_fitted(K.shape[0], 0 if labels else _HALF_FITTED)
    return _rows_that_fit(K, s, s)


def _n_fitted(n, n_half):
    """Return how many of n rows are fitted: half, up to `n_half`, or a quarter."""
    return max(min(n, N_RIDGE_ROWS) // 4, min(n // 2, n_half))


def auto_ridge(K, y, weights=None, *, replicates=None, labels=False, in_double=None):
    """Return the ridge that predicts held-out rows best; 0 if there are too few rows.

    It is the c of ``(K + c W^-1) a = y``. In the model of a Gaussian process c is the
    variance of the noise divided by that of the function, which does not depend on the
    number of rows: the c that suits a subsample suits all rows. Kernel ridge regression
    is fitted to half of the rows, at most 1000, or to a quarter, at most 4000: the c of
    a geometric sequence to half as many, then those near the best to all of these. Each
    c is judged by the squared errors on up to 4000 of the other rows; the minimum is
    that of a parabola through the best three. Part of its change when the fitted rows
    were doubled is added once more for each doubling up to all rows. Up to 1000 rows
    are left out one by one instead.

    K is K(X, X) of distinct rows, in random order. The targets y, (m, l), of these and
    perhaps more rows are centered, the weights have mean 1; without `replicates` each
    row is one observation. Of `labels`, c is a little smaller than the best one for
    squared errors. ``in_double(m)`` returns K of the first m rows in double precision,
    for a search below the rounding of single precision.
    """
    if labels or K.dtype != K.xp.float32:  # labels are never without noise
        in_double = None
    n, least = K.shape[0], _LEAST_IN_SINGLE if labels else 0
    if _are_few(n, replicates):
        return 0.0
    if n <= ROWS_LEFT_OUT or (replicates is not None and replicates.prevail):
        n = min(n, ROWS_LEFT_OUT)
        K = K if in_double is None else in_double(n)
        return _ridge_by_leaving_out(K.block(0, n, 0, n), y, weights, replicates, least)
    s, judges = n_ridge_rows(K, labels)
    ridge = _ridge_by_parts(
        lambda end, s: K.block(0, end, 0, s),
        (n, s, judges),
        y,
        weights,
        None
        if in_double is None
        else lambda end, s: in_double(end).block(0, end, 0, s),
        least,
        _DRIFT * min(np.log2(n / s), 2.0),
    )
    return ridge * 10.0**-0.25 if labels else ridge


def auto_ridge_of_features(F, y, weights=None, *, replicates=None):
    """Return the ridge of `auto_ridge` for `CenteredFeatures`, and what is summed.

    That is c of ``(F' W F + c I) a = F' W y``; and a number of first rows and their
    F' W F, (d, d), in single precision, at least its lower triangle, to which the other
    rows can be added, or None if nothing was summed.
    """
    (n, d), xp = F.shape, F.xp
    if _are_few(n, replicates):
        return 0.0, None
    if n <= 1200:
        if d < n:
            block = F.block(0, n, dtype=xp.float64)
            found = _ridge_of_features_by_leaving_out(block, y, weights, replicates)
        else:
            gram = F.row_gram(n, n)
            found = _ridge_by_leaving_out(gram, y, weights, replicates, factor=10.0 * n)
        return found, None
    s, judges = _rows_that_fit(F, n_fitted_of_features(n, d), d)
    end = min(s + judges, n)
    if not F.in_core:  # read once
        block = F.block(0, end)
        F = CenteredFeatures(block, xp.zeros_like(block[0, :]))
    if d < s:
        return _ridge_of_features(F, s, end, y, weights)
    sizes = F.shape[0], s, judges

    def columns(end, s):
        return F.row_gram(end, s)

    return _ridge_by_parts(columns, sizes, y, weights), None


def n_fitted_of_features(n, d):
    """Return how many of n rows of d features are fitted to choose the penalty."""
    # More numbers would take more than some 300 MB of memory in double precision.
    return min(_n_fitted(n, _HALF_FITTED), max(10_000_000 // d, TOO_FEW_ROWS))


def may_be_groups(replicates, n):
    """Whether n rows have replicates that may share what other rows lack."""
    return replicates is not None and not replicates.are_cells and n >= TOO_FEW_ROWS


def _are_few(n, replicates):
    """Whether n rows are too few to determine c; replicates without noise are one."""
    n_observations = n
    if replicates is not None:
        n_observations = replicates.n_observations.sum()
        if not replicates.variance.any():
            n_observations = min(n_observations, n)
    return n_observations < TOO_FEW_ROWS or n < 2


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
    values, U = _eigenvectors(K, w, factor)
    return _ridge_of_eigenvectors(U, values, y, w, entries, replicates, least)


def _eigenvectors(K, w, factor=1.0):
    """Return eigenvalues, zero below `factor` times rounding, and eigenvectors."""
    xp = namespace(K)
    values, U = xp.linalg.eigh(weighted(xp.asarray(K, copy=True), w))
    # Centered features have an eigenvalue of zero, which must not be rounding; small
    # eigenvalues of a kernel matter for tiny penalties.
    rounding = factor * float(xp.finfo(K.dtype).eps) * float(values[-1])
    return xp.where(xp.abs(values) > rounding, values, xp.zeros_like(values)), U


def least_errors(K, y, weights, c=None, single=False):
    """Return the squared errors of rows left out with the best penalty or c, (m,).

    Epochs in `single` precision do not resolve the least penalties.

    K is K(X, X) of distinct rows, on the host; infinite if it is not positive
    semi-definite or zero. An error is the sum over the outputs.
    """
    size = usual_size(np.diagonal(K), weights)
    if not 0 < size < np.inf:
        return np.full(len(K), np.inf)
    values, U = _eigenvectors(K, weights)
    penalties = size * _penalty(np.arange(_N_PENALTIES))
    c = penalties if c is None else np.array([max(c, penalties[0])])  # less is rounding
    if single:
        c = np.unique(np.maximum(c, LEAST_OF_EPOCHS * len(K) * size))
    c = c[values.min() + c > 0]
    if c.size == 0:
        return np.full(len(K), np.inf)
    parts = _squares_left_out(U, values, y, weights, c)
    squares = np.concatenate([part for _, part in parts])
    return squares[:, np.nanargmin(squares.sum(axis=0))]


def least_errors_of_others(system, F, Y, w, size, place=None, **options):
    """Return the squared errors of rows that were not fitted, (m,), and the best place.

    They are those of ``(A + c I) a = b`` for the best penalty c in units of `size`. The
    search begins at the usual place or at `place`, such as that of another bandwidth.
    The other parameters are those of `errors_of_others`.
    """
    found = cache(
        lambda place: errors_of_others(system, F, Y, w, size, place, **options)
    )

    def error(place):
        return float(np.mean(found(place)))

    starts = [_FIRST_PLACE, _FIRST_PLACE if place is None else place]
    place = _descend(error, _least(error, starts), 0)
    return found(place), place


def errors_of_others(system, F, Y, w, size, place, *, c=None, least=0.0):
    """Return the squared errors of rows that were not fitted, (m,), for one penalty.

    It is c, or that of `place`, but at least `least`. `system` is A and b, and F a are
    values for the targets Y, (m, l).
    """
    c = max(size * _penalty(place if c is None else 0), c or 0.0, least)
    factor = Factor.of(system[0].copy(), c)
    if factor is None:
        return np.full(len(Y), np.inf)
    return w * np.sum((F @ factor.solve(system[1]) - Y) ** 2, axis=1)


def _squares_left_out(U, values, y, w, c, own=None, of_mean=None):
    """Yield ranges of rows, and the squared errors of each without it, (b, k).

    See `left_out`: the filters leave ``c / (values + c)``, for c of shape (k,).
    """
    (n, rank), root = U.shape, namespace(U).sqrt(w)[:, None]
    kept, T = c / (values[:, None] + c), root * y
    parts = ((rows, U[rows, :]) for rows in blocks(n, 3 * c.shape[0] * y.shape[1]))
    for rows, residual, left in left_parts(parts, U.T @ T, kept, T, rank == n):
        if of_mean is not None:
            left = left - of_mean[rows, :]
        some = None if own is None else tuple(part[rows] for part in own)
        yield rows, squared_errors(residual, left, w[rows], some)


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

    If the rows are centered, their mean is fitted too, which adds u u' to the smoother,
    with the constant unit vector u. Rows with a far too large k(x, x), in `entries`, do
    not judge: what other rows say about a fill value is meaningless.
    """
    xp, n, size = namespace(U), U.shape[0], usual_size(entries, w)
    judges = xp.astype(entries <= MOST_OF_USUAL * usual_size(entries), y.dtype)
    root = xp.sqrt(w)[:, None]
    constant, of_mean = root / xp.linalg.vector_norm(root), None
    # The Rayleigh quotient of the constant, divided by the mean eigenvalue, is at most
    # 5e-6 for centered features in single precision, and at least 1.0 for kernels that
    # are not centered.
    of_constant = float(xp.sum(values * (U.T @ constant)[:, 0] ** 2))
    if of_constant < 1e-3 * float(xp.sum(values)) / n:
        of_mean = constant**2
    c = size * _penalty(np.arange(_N_PENALTIES))
    usable = (float(xp.min(values)) + c > 0) & (np.arange(_N_PENALTIES) >= first)
    if not usable.any():
        return 0.0
    c = xp.asarray(c[usable], dtype=y.dtype, device=device_of(y))

    def of_left_out(own):
        total, errors = 0.0, np.full(_N_PENALTIES, np.inf)
        for rows, squares in _squares_left_out(U, values, y, w, c, own, of_mean):
            total = total + to_numpy(judges[rows] @ squares)
        errors[usable] = np.where(np.isnan(total), np.inf, total)
        return errors

    errors = of_left_out(None if replicates is None else replicates.of(y, n))
    if may_be_groups(replicates, n):
        errors = unless_sets_contradict(errors, of_left_out(None))
    least = errors.min()
    if not errors[np.isfinite(errors)].max(initial=0.0) > (1 + _ROUNDING) * least:
        return 0.0  # a kernel that is zero between rows
    place = int(np.argmin(errors))
    while place < _N_PENALTIES - 1 and errors[place + 1] < (1 + _LEAST_GAIN) * least:
        place += 1
    return size * _penalty(place + _vertex(errors.__getitem__, place))


def _ridge_by_parts(columns, sizes, y, weights, in_double=None, first=0, drift=0.0):
    """Return the ridge of some rows that others judge, or 0 if all do as well.

    ``columns(end, s)`` returns K of the first rows and columns, and ``in_double(end,
    s)`` the same in double precision, None if the other is precise enough. `sizes` are
    the numbers of all rows, of those that are fitted, unless more are needed to see the
    function, and of those that judge; `first` is the first place of the sequence.
    """

    def searched(columns, s, judges, least, drift):
        block = columns(min(s + judges, n), s)
        xp = namespace(block)
        Y, w = _of_rows(block, y, weights)
        size = usual_size(xp.linalg.diagonal(block[:s, :]), w[:s])
        error = partial(_error_of_rows, block, Y, w, size)
        place, least_error = _search(error, s // 2, s, least, drift)
        of_mean = float(xp.sum(w[s:, None] * Y[s:, :] ** 2))
        return place, least_error / (of_mean or 1.0), size

    def found(s, judges, drift):
        """Return the best place, the part of the variance that is left, the unit."""
        if in_double is None:
            return searched(columns, s, judges, first, drift)
        place, part, size = searched(columns, s, judges, _LEAST_IN_SINGLE, drift)
        sees_little = part > SEES_LITTLE and s <= _MOST_TO_SEE
        at_least = place is not None and place <= _LEAST_IN_SINGLE + 1
        # If little is left, rounding may hide a better penalty.
        if place is not None and (sees_little or part < 0.05 or at_least):
            return searched(in_double, s, judges, 0, drift)
        return place, part, size

    n, s, judges = sizes
    place, part, size = found(s, judges, drift)
    if place is None:
        return 0.0
    more = min(n // 2, _MOST_TO_SEE)
    if part > SEES_LITTLE and s < more:
        better, _, size = found(more, min(n - more, judges), 0.0)
        place = place if better is None else better
    return size * _penalty(place)


def _ridge_of_features(F, s, end, y, weights):
    """Return the ridge of rows in memory, and `begun`: s are fitted, others judge.

    There are fewer features than s.
    """
    xp, d = F.xp, F.shape[1]
    w = xp.ones_like(y[:, 0]) if weights is None else weights
    rows, root = F.block(0, s, dtype=xp.float64), xp.sqrt(w[:s])[:, None]
    squares = xp.vecdot(rows, rows)
    size = usual_size(squares, w[:s])
    if not 0 < size < np.inf:
        return 0.0, None
    others = F.block(s, end, dtype=xp.float64)
    judged = xp.vecdot(others, others) <= MOST_OF_USUAL * usual_size(squares)
    judged, others = xp.astype(judged, y.dtype), None
    # Scaled to a size of one, for which single precision suffices in general.
    scale = size**-0.5
    rows = scale * rows if weights is None else scale * root * rows
    y = y[:end, :] / (float(xp.max(xp.abs(y[:end, :]))) or 1.0)
    few, stop = s // 2, end
    if few < d:  # it is faster to begin with a quarter of the rows and of the judges
        few, stop = s // 4, s + (end - s) // 4
    stops = {few: stop, s: end}

    def searched(dtype, least):
        block, b = (xp.astype(a, dtype, copy=False) for a in (rows, root * y[:s, :]))
        systems = {m: _system(block[:m, :], b[:m, :]) for m in stops}

        def error(n_fitted, penalty):
            (G, b), stop = systems[n_fitted], stops[n_fitted]
            factor = Factor.of(xp.asarray(G, copy=True), penalty)
            if factor is None:
                return np.inf
            a = factor.solve(b)
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
        in_double, _ = searched(xp.float64, 0)
        return size * _penalty(place if in_double is None else in_double), None
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

    A block of them with `width` columns takes half of what is planned at most, the
    systems the rest.
    """
    needed = K.itemsize * max(width, s) * (4.0 * s + MOST_JUDGES)
    part = min(1.0, planned_bytes(K) / needed) ** 0.5
    return max(int(part * s), 1), int(part * MOST_JUDGES)


def _of_rows(block, y, weights):
    """Return the targets and weights of the rows of a block."""
    xp, n = namespace(y), block.shape[0]
    y = xp.astype(y[:n, :], block.dtype, copy=False)
    if weights is None:
        return y, xp.ones_like(y[:, 0])
    return y, xp.astype(weights[:n], block.dtype, copy=False)


def _search(error, n_few, s, least=0, drift=0.0):
    """Return the place of the best penalty, or None if all do as well, and its error.

    ``error(n_fitted, penalty)`` is that with n_few rows at first, and s in the end;
    `least` is the first place. `drift` is how much of the change of the penalty's
    logarithm from n_few to s rows to add.
    """
    few, more = (
        cache(lambda place, m=m: error(m, _penalty(place))) for m in (n_few, s)
    )
    # Errors may have several minima, one where the model predicts the mean.
    starts = [*range(_FIRST_PLACE, least, -8), least]
    errors = [few(place) for place in (_N_PENALTIES - 1, *starts)]
    if not max(errors) > (1 + _ROUNDING) * min(errors):
        return None, errors[0]  # a kernel that is zero between rows
    first = _descend(few, _least(few, starts), least)
    last = _descend(more, first, least)
    if not more(last) < SEES_LITTLE * more(_N_PENALTIES - 1):
        last = _descend(more, _least(more, [last, *starts]), least)
    found = more(last)
    place = last + _vertex(more, last)
    if drift:
        change = place - first - _vertex(few, first)
        place = max(place + drift * float(np.clip(change, -1.0, 1.0)), least)
    return place, found


def _penalty(place):
    """Return the penalty at a place of the sequence, which may be between two.

    It is relative to the usual k(x, x).
    """
    # With half and twice this step errors are 0.999 and 1.006 times as large on
    # average.
    return 10.0 ** (-12.0 + place * 0.5)


def _error_of_rows(block, y, w, size, n_fitted, penalty):
    """Return the squared error of kernel ridge regression on held-out rows.

    `block`, (m, s), is K(X, X_s). Its first `n_fitted` rows are fitted, those after the
    first s judge; `size` is the unit of the penalty.
    """
    xp, s, fitted = namespace(block), block.shape[1], slice(0, n_fitted)
    K = xp.asarray(block[fitted, fitted], copy=True)
    factor = Factor.of(weighted(K, w[fitted]), size * penalty)
    if factor is None:
        return np.inf
    root = xp.sqrt(w[fitted])[:, None]
    a = root * factor.solve(root * y[fitted, :])
    residual = block[s:, fitted] @ a - y[s:, :]
    return float(xp.sum(w[s:, None] * residual**2))


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
