"""The bandwidth with the best leave-one-out error: ``bandwidth="auto"``."""

from dataclasses import replace

import numpy as np

from ..arrays.array import to_numpy
from ..arrays.linalg import inverse_diagonal
from ..centers import distinct_rows
from ..methods.direct import Factor, weighted
from ..methods.left_out import refitted_residuals
from ..rows.lazy_rows import in_memory, rows_at

# Multiples of the median distance to try. On california_housing, cpusmall, a9a and
# mnist the best for EigenPro is 1/2 to 16 times the median.
_FACTORS = 2.0 ** np.arange(-2, 5)
# Most rows of the subsample, and the fewest distinct rows to choose with. With 200, 400
# and 1600 rows errors on new rows are 1.03, 1.03 and 0.98 times those with 800.
_MOST_ROWS, _LEAST_ROWS = 800, 20
# Differences of up to this many standard errors count as noise. With 1 and 4 errors are
# 0.97 and 1.08 times those with 2; but with 1 up to 1.1 times those of the median.
_N_STANDARD_ERRORS = 2.0


def _penalty(n):
    """Return the penalty, relative to the mean of k(x, x), for a fit to `n` rows.

    For few rows it is the penalty equivalent to 20 epochs of EigenPro. More rows than
    those of the subsample need a narrower bandwidth, which a larger penalty chooses:
    with 6000 rows EigenPro's error is 0.93 times that with the median for 0.01, but up
    to 1.1 times for 0.001 or 0.003; with 1000 rows 0.82 to 0.86 times for these.
    """
    return min(max(n / 600_000, 0.001), 0.01)


def auto_bandwidth(kernel, X, targets, weights, rng):
    """Return the bandwidth with the best leave-one-out error on a subsample.

    The exact leave-one-out errors of kernel ridge regression are computed for a
    geometric grid around `kernel.bandwidth`. Of the bandwidths whose error exceeds the
    smallest by no more than the noise of the difference, the one nearest to
    `kernel.bandwidth` is chosen. Equal rows are left out together, as one row with the
    mean of their targets: otherwise a copy would reveal the target to a narrow kernel.

    The 7 bandwidths of the grid take 7 m^2 (m + d) multiply-adds, and memory for about
    five m x m matrices, with m = 800 rows.

    The targets, (n, l), are on the host, the weights positive or None. The bandwidth is
    that of the kernel if there are fewer than 20 distinct rows or no error is finite.
    """
    n = X.shape[0]
    X, Y, w = _subsample(X, targets, weights, rng)
    if len(w) < _LEAST_ROWS:
        return kernel.bandwidth
    bandwidths = kernel.bandwidth * _FACTORS
    kernels = (replace(kernel, bandwidth=float(s)) for s in bandwidths)
    errors = np.stack([_errors(k, X, Y, w, _penalty(n)) for k in kernels])
    means = errors.mean(axis=1)
    usable = np.isfinite(means)
    if not usable.any():
        return kernel.bandwidth
    bandwidths, factors, errors = bandwidths[usable], _FACTORS[usable], errors[usable]
    above = errors - errors[means[usable].argmin()]
    noise = _N_STANDARD_ERRORS * above.std(axis=1) / len(w) ** 0.5
    close = np.flatnonzero(above.mean(axis=1) <= noise)
    return float(bandwidths[close[np.abs(np.log(factors[close])).argmin()]])


def merged(first, which, targets, weights):
    """Return the mean targets (k, l) and the total weights (k,) of equal rows.

    `first` and `which` are those of `centers.distinct_rows`.
    """
    w = np.ones(len(which)) if weights is None else weights
    totals = np.bincount(which, weights=w)
    if len(first) == len(which):
        return targets[first], totals
    sums = [np.bincount(which, weights=w * column) for column in targets.T]
    return np.stack(sums, axis=1) / totals[:, None], totals


def _subsample(X, targets, weights, rng):
    """Return distinct rows of a subsample, their targets and weights, on the host."""
    n = X.shape[0]
    if n > _MOST_ROWS:
        rows = np.sort(rng.choice(n, _MOST_ROWS, replace=False))
        X = rows_at(X, rows)
        targets = targets[rows]
        weights = None if weights is None else weights[rows]
    X = in_memory(X)
    first, which = distinct_rows(X)
    Y, w = merged(first, which, targets, weights)
    # Centered and scaled to at most 1, so that squares can't overflow.
    Y = Y - np.average(Y, axis=0, weights=w)
    Y /= np.abs(Y).max() or 1.0
    return to_numpy(X)[first], Y, w / w.mean()


def _errors(kernel, X, Y, w, penalty):
    """Return the weighted squared leave-one-out error of every row, shape (m,).

    It is infinite if the kernel can't be computed or is not positive definite.
    """
    try:
        K = kernel(X).astype(np.float64)
    except ValueError:  # the bandwidth is too narrow for this size and data type
        return np.full(len(w), np.inf)
    residual = leave_one_out(K, Y, w, penalty * np.diagonal(K).mean())
    return w * (np.inf if residual is None else np.mean(residual**2, axis=1))


def leave_one_out(K, Y, weights, penalty):
    """Return the leave-one-out residuals of kernel ridge regression, (m, l), or None.

    With the intercept b the model f = K a + b minimizes ::

        sum_i w_i (y_i - f(x_i))^2 + c a' K a.

    None if K + c W^-1 is not positive definite; c is `penalty`.
    """
    factor = Factor.of(weighted(K.copy(), weights), penalty)
    if factor is None:
        return None
    root = np.sqrt(weights)[:, None]
    T = np.column_stack([Y, np.ones(len(K))])
    solved = root * factor.solve(root * T)
    return refitted_residuals(solved, weights * inverse_diagonal(factor.L))
