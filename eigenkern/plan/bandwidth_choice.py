"""The bandwidth with the best leave-one-out error: ``bandwidth="auto"``."""

from dataclasses import replace

import numpy as np

from ..arrays.array import to_numpy
from ..centers import distinct_rows
from ..losses import mean_of_targets
from ..rows.lazy_rows import in_memory, rows_at
from .penalty import least_errors

# Multiples of the median distance to try. On california_housing, cpusmall, a9a and
# mnist the best for EigenPro is 1/2 to 16 times the median.
_FACTORS = 2.0 ** np.arange(-2, 5)
# Most rows of the subsample, and the fewest distinct rows to choose with
# (benchmarks/bandwidth.py).
_MOST_ROWS, _LEAST_ROWS = 300, 20


def auto_bandwidth(kernel, X, targets, weights, rng, alpha=None, dtype=None):
    """Return the bandwidth with the best leave-one-out error on a subsample.

    The exact leave-one-out errors of kernel ridge regression are computed for a
    geometric grid around `kernel.bandwidth`, each with the best of all penalties that
    epochs in `dtype` (None: that of X) resolve, or all with alpha. Of the bandwidths
    whose error exceeds the smallest by no more than a standard error of the difference,
    the one nearest to `kernel.bandwidth` is chosen. Equal rows are left out together,
    as one row with the mean of their targets: otherwise a copy would reveal the target
    to a narrow kernel.

    The targets, (n, l), are on the host, the weights positive or None. The bandwidth is
    that of the kernel if there are fewer than 20 distinct rows or no error is finite.
    """
    X, Y, w = _subsample(X, targets, weights, rng)
    if len(w) < _LEAST_ROWS:
        return kernel.bandwidth
    bandwidths = kernel.bandwidth * _FACTORS
    kernels = (replace(kernel, bandwidth=float(s)) for s in bandwidths)
    single = (X.dtype if dtype is None else dtype).itemsize < 8
    X = X.astype(np.float64)
    errors = np.stack([_errors(k, X, Y, w, alpha, single) for k in kernels])
    means = errors.mean(axis=1)
    usable = np.isfinite(means)
    if not usable.any():
        return kernel.bandwidth
    bandwidths, factors, errors = bandwidths[usable], _FACTORS[usable], errors[usable]
    above = errors - errors[means[usable].argmin()]
    noise = above.std(axis=1) / len(w) ** 0.5
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
