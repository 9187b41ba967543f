"""The bandwidth with the least error on rows left out: ``bandwidth="auto"``."""

from contextlib import suppress
from dataclasses import replace

import numpy as np

from ..arrays.array import to_numpy
from ..centers import distinct_rows
from ..losses import mean_of_targets
from ..methods.direct import usual_size, weighted
from ..rows.lazy_rows import in_memory, rows_at
from .penalty import (
    LEAST_OF_EPOCHS,
    SEES_LITTLE,
    TOO_FEW_ROWS,
    errors_of_others,
    least_errors,
    least_errors_of_others,
    units_of,
)

# Multiples of the median distance to try. On california_housing, cpusmall, a9a and
# mnist the best for EigenPro is 1/2 to 16 times the median.
FACTORS = 2.0 ** np.arange(-2, 5)
# Most rows that are left out one by one (benchmarks/bandwidth.py).
_MOST_LEFT_OUT = 300
# Of more than 1500 distinct rows a fifth is fitted, at most 1500, and others judge.
# The choice is compared with the best of a grid by benchmarks/bandwidth.py --grid.
_MOST_FITTED = 1500


def auto_bandwidth(
    kernel,
    X,
    targets,
    weights,
    rng,
    alpha=None,
    dtype=None,
    n_centers=None,
    labels=False,
):
    """Return the bandwidth with the least error on rows that are left out.

    The errors are those of kernel ridge regression for a geometric grid around
    `kernel.bandwidth`, each with the best of all penalties that epochs in `dtype`
    (None: that of X) resolve, or all with alpha. At most 300 rows are left out one by
    one. Of more than 1500 distinct rows, a fifth, at most 1500, is fitted, and twice as
    many others judge, at most 1500. A model on `n_centers` counts as one of twice as
    many rows, if there are more. Of the bandwidths whose error exceeds the smallest by
    no more than a standard error of the difference, the one nearest to
    `kernel.bandwidth` is chosen. Equal rows are left out together, as one row with the
    mean of their targets: otherwise a copy would reveal the target to a narrow kernel.
    With `labels`, of which one is rare, 600 rows are left out one by one, half of them
    of all classes alike.

    The targets, (n, l), are on the host, the weights positive or None. The bandwidth is
    that of the kernel if there are fewer than 20 distinct rows or no error is finite.
    """
    n, found = X.shape[0], None
    s, _ = n_fitted_and_judges(n, n_centers)
    most = 2 * _MOST_FITTED if s else _MOST_LEFT_OUT
    if labels:
        found = _sample_of_rare_classes(targets, s, rng)
    if found is not None:
        rows, more = found
        weights = more if weights is None else more * weights[rows]
        X, targets, most = rows_at(X, rows), targets[rows], n
    n_drawn = min(X.shape[0], most)
    X, Y, w = _subsample(X, targets, weights, rng, most, labels)
    if len(w) < TOO_FEW_ROWS:
        return kernel.bandwidth
    # That of all distinct rows suits any number of them (`auto_ridge`).
    c = None if alpha is None else alpha * n * len(w) / n_drawn
    bandwidths = kernel.bandwidth * FACTORS
    kernels = [replace(kernel, bandwidth=float(s)) for s in bandwidths]
    single = (X.dtype if dtype is None else dtype).itemsize < 8
    X = X.astype(np.float64)
    if found is None:
        n_distinct = n * len(w) // min(n, most)
        s, judges = n_fitted_and_judges(n_distinct, n_centers)
        some = slice(0, s + judges or _MOST_LEFT_OUT)
        X, Y, w = X[some], Y[some], w[some] / w[some].mean()
    if s and found is None:
        errors = _errors_of_others(kernels, X, Y, w, s, c, single)
    else:
        errors = np.full((len(kernels), len(w)), np.inf)
        for i, one in enumerate(kernels):
            with suppress(ValueError):  # too narrow for this size and data type
                errors[i] = least_errors(one(X), Y, w, c, single)
    means = errors.mean(axis=1)
    usable = np.isfinite(means)
    if not usable.any():
        return kernel.bandwidth
    bandwidths, factors = bandwidths[usable], FACTORS[usable]
    errors, means = errors[usable], means[usable]
    noise = (errors - errors[means.argmin()]).std(axis=1) / errors.shape[1] ** 0.5
    close = np.flatnonzero(means - means.min() <= noise)
    return float(bandwidths[close[np.abs(np.log(factors[close])).argmin()]])


def n_fitted_and_judges(n, n_centers=None):
    """Return how many of n distinct rows are fitted, and how many others judge.

    0 and 0: they are left out one by one.
    """
    if n_centers is not None:
        # It hardly matters: with 1000 centers for 6000 rows of four sets, and two
        # kernels, errors with 1/2, 2 and 5 rows for each center are 1.046, 1.064 and
        # 1.045 times those of the best bandwidth.
        n = min(n, 2 * n_centers)
    s = min(n // 5, _MOST_FITTED)
    return (s, min(2 * s, 2 * _MOST_FITTED - s)) if s > _MOST_LEFT_OUT else (0, 0)


def merged(first, which, targets, weights):
    """Return the mean targets (k, l) and the total weights (k,) of equal rows.

    `first` and `which` are those of `centers.distinct_rows`. The mean of equal targets
    is exact.
    """
    deviation, totals = targets - targets[first][which], np.bincount(which, weights)
    sums = [np.bincount(which, weights * column) for column in deviation.T]
    return targets[first] + np.stack(sums, axis=1) / totals[:, None], totals


def _subsample(X, targets, weights, rng, most, labels):
    """Return distinct rows of a subsample, their targets and weights, on the host."""
    n = X.shape[0]
    weights = np.ones(n) if weights is None else weights
    if n > most:
        rows = np.sort(rng.choice(n, most, replace=False))
        X, targets, weights = rows_at(X, rows), targets[rows], weights[rows]
    X = in_memory(X)
    first, which = distinct_rows(X)
    Y, w = merged(first, which, targets, weights)
    # Centered and scaled to at most 1, so that squares can't overflow.
    Y = Y - mean_of_targets(Y, w)
    if not labels:
        Y /= units_of(Y, w)
    Y /= np.abs(Y).max() or 1.0
    return to_numpy(X)[first], Y, w / w.mean()


def classes_of(targets):
    """Return the classes of a classifier's targets: one column each, or one for two."""
    if targets.shape[1] > 1:
        return targets.argmax(axis=1)
    middle = 0.5 * (targets.min() + targets.max())
    return (targets[:, 0] > middle).astype(int)


def _sample_of_rare_classes(targets, s, rng):
    """Return rows of which rare classes have more, and weights that make up for it.

    They are in random order. None if no class is rare where s rows are fitted: fewer
    than 50 of its rows would be, and it has less than a quarter of the rows of a usual
    class.
    """
    # Half of the rows that are left out one by one are those of all classes alike. Seen
    # on one set: with 1 % of ijcnn1 in a class, three draws and two seeds, the average
    # precision is 0.33 to 0.70 (gaussian), without this 0.19 to 0.66. Other numbers
    # were not tried.
    n, m = len(targets), 600
    _, codes, counts = np.unique(classes_of(targets), False, True, True)
    few = min(50 * n / (s or m), 0.25 * n / len(counts))
    if n <= m or counts.min() >= few:
        return None
    least = np.minimum(counts, m // (2 * len(counts)))
    others = (m - least.sum()) * (counts - least) / (n - least.sum())
    drawn = np.maximum(least + others.astype(int), 1)
    order = rng.permutation(n)
    order = order[np.argsort(codes[order], kind="stable")]
    place = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = rng.permutation(order[place < np.repeat(drawn, counts)])
    return rows, (counts / drawn)[codes[rows]]


def _errors_of_others(kernels, X, Y, w, s, c, single):
    """Return the errors of rows without the first s, which are fitted, by each kernel.

    The penalty is the best one of half of the s rows, unless these see little.
    """
    root, half, place = np.sqrt(w[:s])[:, None], s // 2, None
    b = root * Y[:s]
    of_mean = np.mean(w[s:] * np.sum(Y[s:] ** 2, axis=1))
    errors = np.full((len(kernels), len(w) - s), np.inf)
    for i, kernel in enumerate(kernels):
        try:
            K, F = kernel(X[:s]), kernel(X[s:], X[:s])
        except ValueError:  # the bandwidth is too narrow for this size and data type
            continue
        size = usual_size(np.diagonal(K), w[:s])
        if not 0 < size < np.inf:
            continue
        A = weighted(K, w[:s])
        F *= root.T

        def parts(m, A=A, F=F, size=size):
            least = LEAST_OF_EPOCHS * m * size if single else 0.0
            penalty = {"c": c, "least": least}
            return ((A[:m, :m], b[:m]), F[:, :m], Y[s:], w[s:], size), penalty

        few, penalty = parts(half)
        before, place = least_errors_of_others(*few, place, **penalty)
        all_rows, penalty = parts(s)
        if before.mean() > SEES_LITTLE * of_mean:
            errors[i], _ = least_errors_of_others(*all_rows, place, **penalty)
        else:
            errors[i] = errors_of_others(*all_rows, place, **penalty)
    return errors
