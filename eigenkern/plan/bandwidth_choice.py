"""The bandwidth with the best leave-one-out error: ``bandwidth="auto"``."""

from dataclasses import replace

import numpy as np

from ..arrays.array import to_numpy
from ..arrays.linalg import cholesky, plus_diagonal, solve_triangular
from ..centers import distinct_rows
from ..rows.lazy_rows import in_memory, rows_at

# Multiples of the median distance to try. On california_housing, cpusmall, a9a and
# mnist the best for EigenPro is 1/2 to 16 times the median.
_FACTORS = 2.0 ** np.arange(-2, 5)
# Most rows of the subsample, and the fewest distinct rows to choose with. Squared
# errors on new rows divided by those with 800 (2000 rows of seven data sets, gaussian
# and laplacian, 500 centers, two draws): with 100, 200, 400 and 1600 rows 1.02, 1.03,
# 1.03 and 0.98 on average, and 0.6 to 1.7 in single cases. The time grows as the square
# or cube of the rows.
_MOST_ROWS, _LEAST_ROWS = 800, 20
# Differences of up to this many standard errors count as noise. With 0, 1 and 4 the
# errors of these models are 0.98, 0.97 and 1.08 times those with 2; but see `_penalty`:
# for 6000 rows the errors with 1 are up to 1.1 times those with the median.
_N_STANDARD_ERRORS = 2.0


def _penalty(n):
    """Return the penalty, relative to the mean of k(x, x), for a fit to `n` rows.

    For few rows it is the penalty equivalent to 20 epochs of EigenPro. More rows than
    those of the subsample need a narrower bandwidth, which a larger penalty chooses.

    On the first data sets above (Laplacian and Gaussian, two samples, three subsamples
    of each) EigenPro's error with 1000 rows is 0.82 to 0.86 times that with the median
    for penalties of 0.001 to 0.003, and 0.89 times for 0.01. With 6000 rows it is 0.93
    times for 0.01, and at most 1.005 times; but up to 1.1 times for 0.001 or 0.003, or
    with one standard error (Gaussian, california_housing).
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

    Parameters
    ----------
    kernel : Kernel
        With a bandwidth, the middle of the grid.
    X : array of shape (n, d)
    targets : ndarray of shape (n, l)
    weights : ndarray of shape (n,) or None
        Positive.
    rng : numpy.random.RandomState

    Returns
    -------
    float
        `kernel.bandwidth` itself if there are fewer than 20 distinct rows or no error
        is finite.
    """
    n = X.shape[0]
    X, Y, w = _subsample(X, targets, weights, rng)
    if len(w) < _LEAST_ROWS:
        return kernel.bandwidth
    bandwidths = kernel.bandwidth * _FACTORS
    errors = np.stack(
        [
            _errors(replace(kernel, bandwidth=float(s)), X, Y, w, _penalty(n))
            for s in bandwidths
        ]
    )
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
    if residual is None:
        return np.full(len(w), np.inf)
    return w * np.mean(residual**2, axis=1)


def leave_one_out(K, Y, weights, penalty):
    """Return the leave-one-out residuals of kernel ridge regression.

    With the intercept b the model f = K a + b minimizes ::

        sum_i w_i (y_i - f(x_i))^2 + c a' K a.

    With A = K + c W^-1, a = M y for M = A^-1 - A^-1 1 1' A^-1 / (1' A^-1 1), and the
    residual of row i in the model fitted to the others is a_i / M_ii.

    Parameters
    ----------
    K : ndarray of shape (m, m)
    Y : ndarray of shape (m, l)
    weights : ndarray of shape (m,)
        w, positive.
    penalty : float
        c, positive.

    Returns
    -------
    ndarray of shape (m, l), or None
        y - f; None if A is not positive definite.
    """
    root = np.sqrt(weights)[:, None]
    L = cholesky(plus_diagonal(root * K * root.T, penalty))
    if L is None:
        return None
    inverse = solve_triangular(L, np.eye(len(K))) * root.T  # L^-1 W^1/2
    products = inverse.T @ (inverse @ np.column_stack([Y, np.ones(len(K))]))
    of_targets, of_ones = products[:, :-1], products[:, -1:]
    total = of_ones.sum()
    a = of_targets - of_ones * (of_targets.sum(axis=0) / total)
    diagonal = np.sum(inverse**2, axis=0)[:, None] - of_ones**2 / total
    return a / diagonal
