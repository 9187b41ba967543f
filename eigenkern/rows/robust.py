"""Where rows are centered and cut off: a few fill values move neither.

A fill value such as 1e12 would move a mean, and its square would drown all others. The
median of a column is among its usual values, and entries are cut off far beyond them.
"""

import numpy as np

from ..arrays.array import clipped, namespace, to_numpy
from .lazy_rows import MappedRows, is_lazy, rows_at


def sampled(X):
    """Return the rows that medians are taken of: all, or 1000 at fixed positions."""
    # Medians of 1000 are within 0.04 standard deviations if values are normal.
    n, most = X.shape[0], 1000
    if n <= most:
        return X[:, :]
    # Irregular positions, so that fill values in every tenth row stay few.
    return rows_at(X, np.random.RandomState(0).randint(n, size=most))


def medians(X):
    """Return the median of every column, (d,): the lower one of two."""
    return namespace(X).sort(X, axis=0, stable=False)[(X.shape[0] - 1) // 2, :]


def cutoffs(usual, far, most):
    """Return the size from which the entries of each column are cut off, (d,).

    `usual` (d,) is the usual size of the entries of each column, `far` a size that is
    far away for a kernel, such as 300 bandwidths. Columns whose usual entries come near
    to `most`, beyond which the data type can't hold results, are not cut off.
    """
    # Up to 100 usual sizes nothing is cut off, whatever the bandwidth: the largest of
    # 1e6 values is 5 usual sizes away if they are normal, 20 if exponential.
    xp, n_kept = namespace(usual), 100.0
    some = xp.minimum(usual, xp.full_like(usual, most / n_kept))
    found = xp.maximum(n_kept * some, xp.full_like(usual, min(far, most)))
    return xp.where(usual < 0.1 * most, found, xp.full_like(usual, float("inf")))


@np.errstate(over="ignore")
def centered(X, offset, limits):
    """Return X - offset, cut off at plus and minus the limits; X may be infinite."""
    return cut(namespace(X), X - offset, limits)


def cut(xp, T, limits, offset=0.0):
    """Return T cut off at offset - limits and offset + limits, in place if possible."""
    return clipped(xp, T, offset - limits, offset + limits)


def usual_size(T):
    """Return the median of the largest entries of rows that are not zero, or 1."""
    sizes = np.abs(T).max(axis=1)
    sizes = sizes[sizes > 0]
    return float(np.median(sizes)) if len(sizes) else 1.0


def frame_of_distances(X, unit=None, rounding=1e-2):
    """Return an offset and limits (d,) for rows whose distances are compared.

    Squares of distances keep their digits in a `unit` such as the bandwidth, by default
    the `usual_size`; `rounding` is that of x^2, in squares of the unit, for an entry x
    that is cut off.
    """
    xp, real = namespace(X), namespace(X).finfo(X.dtype)
    some = sampled(X)
    offset = medians(some)
    with np.errstate(over="ignore"):
        some = some - offset
        unit = usual_size(to_numpy(some)) if unit is None else unit
    far = (rounding / float(real.eps)) ** 0.5 * unit
    # Squared distances must not overflow, in units of X and in these.
    most = (float(real.max) / (16 * X.shape[1])) ** 0.5 * min(unit, 1.0)
    return offset, cutoffs(medians(xp.abs(some)), far, most)


def without_far_values(X, offset, limits):
    """Return the rows of X with entries far from the offset cut off, or X itself."""
    if is_lazy(X):
        frame = offset, limits
        return MappedRows(X, lambda rows: without_far_values(rows, *frame))
    xp = namespace(X)
    with np.errstate(over="ignore"):
        high, low = xp.max(X, axis=0) - offset, offset - xp.min(X, axis=0)
        if bool(xp.all(xp.maximum(high, low) <= limits)):
            return X
        return cut(xp, xp.asarray(X, copy=True), limits, offset)


@np.errstate(over="ignore")
def cast(X, dtype):
    """Return X in a data type; what is too large for it becomes infinite."""
    return namespace(X).astype(X, dtype, copy=False)
