"""The bandwidth with the least error on rows left out: ``bandwidth="auto"``."""

from dataclasses import replace

import numpy as np

from ..arrays.array import to_numpy
from ..arrays.linalg import first_cholesky, solve_triangular
from ..centers import distinct_rows
from ..losses import mean_of_targets
from ..methods.direct import usual_size, weighted
from ..rows.lazy_rows import in_memory, rows_at
from .penalty import LEAST_OF_EPOCHS, least_errors, least_errors_of_others

# Multiples of the median distance to try. On california_housing, cpusmall, a9a and
# mnist the best for EigenPro is 1/2 to 16 times the median.
_FACTORS = 2.0 ** np.arange(-2, 5)
# Most rows that are left out one by one, and the fewest distinct rows to choose with
# (benchmarks/bandwidth.py).
_MOST_LEFT_OUT, _LEAST_ROWS = 300, 20
# Of more than 1200 distinct rows a quarter is fitted, at most 1000, and twice as many
# others judge: on 2000 rows of five sets gaussian errors are 1.003 times those of the
# best bandwidth, 1.037 times with 300 centers, and 1.10 and 1.25 times if 300 rows are
# left out one by one (benchmarks/bandwidth.py --grid).
_PART_FITTED, _MOST_FITTED = 4, 1000
_MOST_ROWS = 3 * _MOST_FITTED
# Centers that stand in for those of a model, as many for each row, within limits. On
# fifteen sets with 8000 rows and 300 centers errors are 1.036 times those of the best
# bandwidth; with at least 100 or 200 of them 1.039 and 1.14 times.
_FEWEST_CENTERS, _MOST_CENTERS = 150, 300
# Parts of p k(x, x) of which the first is added to K(Z, Z) that gives it a factor.
_SHIFTS = 10.0 ** np.arange(-13, -7)


def auto_bandwidth(
    kernel, X, targets, weights, rng, alpha=None, dtype=None, n_centers=None
):
    """Return the bandwidth with the least error on rows that are left out.

    The errors are those of kernel ridge regression for a geometric grid around
    `kernel.bandwidth`, each with the best of all penalties that epochs in `dtype`
    (None: that of X) resolve, or all with alpha. At most 300 rows are left out one by
    one. Of more than 1200 distinct rows, a quarter, at most 1000, is fitted, and twice
    as many others judge; a model on `n_centers`, if these are fewer, is fitted on some
    centers to two thirds of those rows. Of the bandwidths whose error exceeds the
    smallest by no more than a standard error of the difference, the one nearest to
    `kernel.bandwidth` is chosen. Equal rows are left out together, as one row with the
    mean of their targets: otherwise a copy would reveal the target to a narrow kernel.

    The targets, (n, l), are on the host, the weights positive or None. The bandwidth is
    that of the kernel if there are fewer than 20 distinct rows or no error is finite.
    """
    n = X.shape[0]
    X, Y, w = _subsample(X, targets, weights, rng)
    if len(w) < _LEAST_ROWS:
        return kernel.bandwidth
    bandwidths = kernel.bandwidth * _FACTORS
    kernels = [replace(kernel, bandwidth=float(s)) for s in bandwidths]
    single = (X.dtype if dtype is None else dtype).itemsize < 8
    X = X.astype(np.float64)
    s = min(len(w) // _PART_FITTED, _MOST_FITTED)
    if s > _MOST_LEFT_OUT:
        p = s if n_centers is None else 2 * s * n_centers // n
        if p < s:
            p = min(max(p, _FEWEST_CENTERS), _MOST_CENTERS)
        some, options = slice(0, 3 * s), (min(p, s), s, alpha, single)
        errors = _errors_of_others(kernels, X[some], Y[some], w[some], *options)
    else:
        some = slice(0, _MOST_LEFT_OUT)
        X, Y, w = X[some], Y[some], w[some] / w[some].mean()
        errors = np.stack([_errors(k, X, Y, w, alpha, single) for k in kernels])
    means = errors.mean(axis=1)
    usable = np.isfinite(means)
    if not usable.any():
        return kernel.bandwidth
    bandwidths, factors, errors = bandwidths[usable], _FACTORS[usable], errors[usable]
    above = errors - errors[means[usable].argmin()]
    noise = above.std(axis=1) / errors.shape[1] ** 0.5
    close = np.flatnonzero(above.mean(axis=1) <= noise)
    return float(bandwidths[close[np.abs(np.log(factors[close])).argmin()]])


def merged(first, which, targets, weights):
    """Return the mean targets (k, l) and the total weights (k,) of equal rows.

    `first` and `which` are those of `centers.distinct_rows`. The mean of equal targets
    is exact.
    """
    deviation, totals = targets - targets[first][which], np.bincount(which, weights)
    sums = [np.bincount(which, weights * column) for column in deviation.T]
    return targets[first] + np.stack(sums, axis=1) / totals[:, None], totals


def _subsample(X, targets, weights, rng):
    """Return distinct rows of a subsample, their targets and weights, on the host."""
    n = X.shape[0]
    weights = np.ones(n) if weights is None else weights
    if n > _MOST_ROWS:
        rows = np.sort(rng.choice(n, _MOST_ROWS, replace=False))
        X, targets, weights = rows_at(X, rows), targets[rows], weights[rows]
    X = in_memory(X)
    first, which = distinct_rows(X)
    Y, w = merged(first, which, targets, weights)
    # Centered and scaled to at most 1, so that squares can't overflow.
    Y = Y - mean_of_targets(Y, w)
    Y /= np.abs(Y).max() or 1.0
    return to_numpy(X)[first], Y, w / w.mean()


def _errors(kernel, X, Y, w, alpha, single):
    """Return the left-out error of every row, shape (m,), infinite if there is none."""
    try:
        return least_errors(kernel(X), Y, w, alpha, single)
    except ValueError:  # the bandwidth is too narrow for this size and data type
        return np.full(len(w), np.inf)


def _errors_of_others(kernels, X, Y, w, p, s, alpha, single):
    """Return the errors of rows that are not fitted, a row for each of the kernels.

    Kernel ridge regression is fitted to s rows, or to 2 s rows on p < s centers, which
    are the first rows: with K(Z, Z) = L L' it is linear in the features L^-1 K(Z, x).
    """
    on_centers = p < s
    s = 2 * s if on_centers else s
    root, errors, place = np.sqrt(w[:s])[:, None], [], None
    for kernel in kernels:
        errors.append(np.full(len(w) - s, np.inf))
        try:
            F = kernel(X, X[:p])
            size = usual_size(np.diagonal(F), w[:p])
            if not 0 < size < np.inf:
                continue
            if on_centers:
                L = first_cholesky(F[:p], size * p * _SHIFTS)
                F = solve_triangular(L, F.T).T
        except ValueError:  # too narrow for this size and data type, or indefinite
            continue
        if on_centers:
            A = root * F[:s]
            system, F = (A.T @ A, A.T @ (root * Y[:s])), F[s:]
        else:
            system = weighted(F[:s].copy(), w[:s]), root * Y[:s]
            F = F[s:] * root.T
        errors[-1], place = least_errors_of_others(
            system,
            F,
            Y[s:],
            w[s:],
            size,
            c=None if alpha is None else alpha * s,
            least=LEAST_OF_EPOCHS * s * size if single else 0.0,
            place=place,
        )
    return np.stack(errors)
