"""Rows in parts that overlap, and values that are blended where they do.

A part of more than m rows is halved along the direction u in which its rows vary most.
Let q_lo and q_hi be the quantiles 1/2 - w and 1/2 + w of u'x: the rows below q_hi are
one half, those above q_lo the other. Of a model with the values f and g on the halves
the value is ::

    s f + (1 - s) g,   s = min(max((q_hi - u'x) / (q_hi - q_lo), 0), 1)

which is continuous, and has the gradient s f' + (1 - s) g' + (f - g) s'.
"""

from typing import NamedTuple

import numpy as np
import scipy.linalg

from ..arrays.array import device_of, namespace, slices, take, to_numpy
from ..arrays.linalg import large_product

# w: so much of a part, on either side of its median, belongs to both halves. RMSE over
# that of all rows, 8 or 16 parts of 6000 rows, w = 0, .05, .1: california_housing 1.02,
# 1.01, 1.00, Friedman's function 1.10, 1.03, 1.04, a function of four of 20 directions
# 1.29, 1.12, 1.12, the last with twice the parts. With random directions and w = .1
# 1.03, 1.07, 1.14, with those of the gradients .99, 1.12, 1.15.
OVERLAP = 0.05


class Partition(NamedTuple):
    """A tree of k halvings of rows of d numbers, on the host.

    Attributes
    ----------
    directions : ndarray of shape (k, d)
        u.
    ends : ndarray of shape (k, 2)
        q_lo and q_hi.
    halves : ndarray of int, of shape (k, 2)
        What lies below and above: another halving, or ``-1 - i`` for part i.
    """

    directions: np.ndarray
    ends: np.ndarray
    halves: np.ndarray

    def blended(self, X, of_part, *, slopes=False):
        """Return the values of the rows of X, blended from those of their parts.

        ``of_part(i, rows)`` returns those of some rows in part i, ndarray (m, l); with
        `slopes` their gradients follow, (m, l, 1 + d).
        """

        def of(node, rows):
            if node < 0:
                return of_part(-1 - node, take(X, rows))
            u, (low, high) = self.directions[node], self.ends[node]
            share = (high - _along(X, u, rows)) / (high - low)
            share = np.clip(share, 0.0, 1.0)
            sides = share > 0, share < 1
            parts = [
                of(half, rows[side]) if side.any() else None
                for half, side in zip(self.halves[node], sides, strict=True)
            ]
            some = parts[0] if parts[1] is None else parts[1]
            values = np.zeros((len(rows), *some.shape[1:]), dtype=some.dtype)
            shares = np.reshape(share, (-1, *[1] * (some.ndim - 1)))
            for side, part, weight in zip(
                sides, parts, (shares, 1 - shares), strict=True
            ):
                if part is not None:
                    values[side] += weight[side] * part
            both = sides[0] & sides[1]
            if slopes and both.any():
                f, g = (part[both[side]] for side, part in zip(sides, parts))
                change = (f - g)[:, :, :1]
                values[both, :, 1:] -= change * (u / (high - low))
            return values

        return of(0 if len(self.halves) else -1, np.arange(X.shape[0]))


def partitioned(X, most, rng):
    """Return a `Partition` into parts of at most `most` rows, and the rows of each.

    The rows are distinct. (Equal rows would stay together, even if they are more.)
    """
    nodes, parts, left = [], [], [(np.arange(X.shape[0]), None)]
    while left:
        rows, place = left.pop()
        found = _halved(X, rows, rng) if len(rows) > most else None
        if found is None:
            number = -1 - len(parts)
            parts.append(rows)
        else:
            number, (u, ends, along) = len(nodes), found
            nodes.append((u, ends, [0, 0]))
            left.append((rows[along > ends[0]], (number, 1)))
            left.append((rows[along < ends[1]], (number, 0)))
        if place is not None:
            nodes[place[0]][2][place[1]] = number
    directions, ends, halves = zip(*nodes, strict=True) if nodes else ((),) * 3
    d, k = X.shape[1], len(nodes)
    return Partition(
        np.reshape(np.asarray(directions, dtype=np.float64), (k, d)),
        np.reshape(np.asarray(ends, dtype=np.float64), (k, 2)),
        np.reshape(np.asarray(halves, dtype=np.int64), (k, 2)),
    ), parts


def _halved(X, rows, rng):
    """Return u, its two quantiles, and u'x of some rows; None if all are equal."""
    best, size = None, 0
    for u in _directions(X, rows, rng):
        along = _along(X, u, rows)
        ends = _ends(along)
        if ends is None:
            continue
        smaller = _smaller_half(along, ends)
        if smaller > size:
            best, size = (u, ends, along), smaller
        if size >= len(rows) / 4:  # else many rows may have the same u'x
            break
    return best


def _directions(X, rows, rng):
    """Yield unit vectors: three principal directions of some rows, a random one.

    Along the latter all rows differ.
    """
    xp, n, d = namespace(X), len(rows), X.shape[1]

    def blocks():
        return (xp.astype(take(X, rows[part]), xp.float64) for part in slices(n))

    mean = sum(xp.sum(block, axis=0) for block in blocks()) / n
    squares = sum(large_product((A - mean).T, A - mean) for A in blocks())
    squares, last = to_numpy(squares), max(d - 3, 0)
    _, vectors = scipy.linalg.eigh(squares, subset_by_index=(last, d - 1))
    for u in vectors.T[::-1]:
        yield u * np.sign(u[np.argmax(np.abs(u))])
    u = rng.standard_normal(d)
    yield u / np.linalg.norm(u)


def _along(X, u, rows):
    """Return u'x of some rows, the same for equal ones, on the host."""
    xp = namespace(X)
    u = xp.astype(xp.asarray(u, device=device_of(X)), X.dtype)
    # A matrix product may round differently in another place.
    parts = [xp.sum(take(X, rows[part]) * u, axis=1) for part in slices(len(rows))]
    return np.concatenate([to_numpy(part) for part in parts]).astype(np.float64)


def _ends(along):
    """Return the quantiles 1/2 - w and 1/2 + w, or None if all values are equal.

    If both are equal, the next value takes the place of one.
    """
    ordered = np.sort(along)
    place = int((0.5 - OVERLAP) * (len(ordered) - 1))
    low, high = ordered[place], ordered[-1 - place]
    if low < high:
        return low, high
    below, above = ordered[ordered < low], ordered[ordered > high]
    pairs = [(end, high) for end in below[-1:]] + [(low, end) for end in above[:1]]
    return max(pairs, key=lambda ends: _smaller_half(along, ends), default=None)


def _smaller_half(along, ends):
    """Return the number of rows in the smaller half."""
    return min(np.count_nonzero(along < ends[1]), np.count_nonzero(along > ends[0]))
