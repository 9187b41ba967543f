"""Where rows are centered and cut off: a few fill values move neither.

A fill value such as 1e12 would move a mean, and squares of it would drown those of all
other rows. The median of a column is among its usual values, and far beyond them the
size of an entry says no more: it is cut off there.
"""

import numpy as np

from ..arrays.array import clipped, namespace, to_numpy
from .lazy_rows import MappedRows, is_lazy, rows_at

# Rows of which medians are taken. Of 1000 normal values the median is within 0.04
# standard deviations of the mean; an offset of one bandwidth would cost no digits.
_SAMPLED_ROWS = 1000
# Usual sizes of a column that are never cut off, whatever the bandwidth: the largest of
# 1e6 values is 5 usual sizes away if they are normal, 20 if exponential.
_USUAL_SIZES = 100.0
# Rounding of x^2, in squares of the unit, for an entry x that is cut off.
_ROUNDING_OF_FAR = 1e-2


def sampled(X):
    """Return the rows that medians are taken of: all, or 1000 at fixed positions.

    The positions are irregular, so that fill values in every tenth row stay few.
    """
    n = X.shape[0]
    if n <= _SAMPLED_ROWS:
        return X[:, :]
    return rows_at(X, np.random.RandomState(0).randint(n, size=_SAMPLED_ROWS))


def medians(X):
    """Return the median of every column, (d,): the lower one of two."""
    return namespace(X).sort(X, axis=0, stable=False)[(X.shape[0] - 1) // 2, :]


def cutoffs(usual, far, most):
    """Return the size from which the entries of each column are cut off, (d,).

    Parameters
    ----------
    usual : array of shape (d,)
        Usual size of the entries of each column.
    far : float
        Size that is far away for a kernel, such as 300 bandwidths.
    most : float
        Size beyond which the data type can't hold results. Columns whose usual entries
        come near to it are not cut off: their rows are not representable.
    """
    xp = namespace(usual)
    some = xp.minimum(usual, xp.full_like(usual, most / _USUAL_SIZES))
    found = xp.maximum(_USUAL_SIZES * some, xp.full_like(usual, min(far, most)))
    return xp.where(usual < 0.1 * most, found, xp.full_like(usual, float("inf")))


@np.errstate(over="ignore")
def centered(X, offset, limits):
    """Return X - offset, cut off at plus and minus the limits; X may be infinite."""
    return cut(namespace(X), X - offset, limits)


def cut(xp, T, limits, offset=0.0):
    """Return T cut off at ``offset - limits`` and ``offset + limits``.

    It is changed in place if `xp` can.
    """
    return clipped(xp, T, offset - limits, offset + limits)


def usual_size(T):
    """Return the size of most rows of a NumPy array, or 1 if all are zero.

    It is the median over the rows that are not zero of their largest entry.
    """
    sizes = np.abs(T).max(axis=1)
    sizes = sizes[sizes > 0]
    return float(np.median(sizes)) if len(sizes) else 1.0


def frame_of_distances(X, unit=None, rounding=_ROUNDING_OF_FAR):
    """Return an offset and limits for rows whose distances are compared.

    Parameters
    ----------
    X : array of shape (n, d)
    unit : float, default=None
        Unit of the distances whose squares have to keep their digits, such as the
        bandwidth. None: the `usual_size`.
    rounding : float, default=0.01
        Rounding of x^2, in squares of the unit, for an entry x that is cut off.

    Returns
    -------
    offset, limits : arrays of shape (d,)
        For `centered`.
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
    """Return the rows of X with entries far from the offset cut off.

    This is X itself if it has none.
    """
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
