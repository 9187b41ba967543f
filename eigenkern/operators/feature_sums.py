"""Sums over the rows of a file, which is read once for all of them."""

from typing import Any, NamedTuple

import numpy as np

from ..backend.array import slices
from ..backend.linalg import reflect_rows
from ..backend.machine import CORE_CACHE_BYTES, CPU
from ..backend.threads import Team, n_blas_threads
from .linear import ROWS_AT_FIRST, near
from .matrix import PANEL_WIDTH, add_gram

# First rows of a file, whose mean is subtracted from all rows. If they are unlike the
# others, errors are at most n / 8000 times the rounding of double precision.
_ROWS_OF_SHIFT = 8000


class FeatureSums(NamedTuple):
    """Sums over rows x with weights w and targets y, from which a mean is subtracted.

    A shift c, the mean of some rows, is subtracted from all rows. The mean of all rows
    is no farther from c than rows vary, so little cancels when it is subtracted later.

    Attributes
    ----------
    extremes : tuple of float
        The least and the largest number.
    levels : ndarray of shape (d,)
        The value of each constant column, and NaN for the others, as `levels_of`.
    shift : ndarray of shape (d,)
        c. All sums are in float64.
    totals : ndarray of shape (1 + l,)
        Sums of w and w y.
    cross : ndarray of shape (d, 1 + l)
        Sums of w (x - c) and w (x - c) y'.
    gram : ndarray of shape (d, d) or None
        Sum of w (x - c) (x - c)'. None: l is 0 above.
    """

    extremes: tuple
    levels: np.ndarray
    shift: np.ndarray
    totals: np.ndarray
    cross: np.ndarray
    gram: Any

    @property
    def mean(self):
        """The mean of the rows; the value of columns that are constant."""
        mean = self.shift + self.cross[:, 0] / self.totals[0]
        return np.where(np.isnan(self.levels), mean, self.levels)

    def normal_equations(self, mean):
        """Return sums of w (x - mean) (x - mean)' (in `gram`) and w (x - mean) y'."""
        d, G = mean.astype(np.float64) - self.shift, self.gram
        along = np.outer(self.cross[:, 0], d)
        G -= along
        G -= along.T
        G += np.outer(self.totals[0] * d, d, out=along)
        return G, self.cross[:, 1:] - np.outer(d, self.totals[1:])


@np.errstate(over="ignore", invalid="ignore")  # the extremes show it
def sums_of_features(rows, targets, weights, target_mean, *, center, with_gram):
    """Return the sums over all rows of a file, which is read once.

    That takes n d (d / 2 + 1 + l) multiply-adds with the Gram matrix, and n d without.
    Memory holds n (1 + l) numbers, and for each thread a block of the file and a matrix
    of d x d; with wide rows all threads share a product.

    Parameters
    ----------
    rows : StoredRows or its rows in another order, of shape (n, d)
    targets : ndarray of shape (n, l)
        In float64.
    weights : ndarray of shape (n,) or None
    target_mean : ndarray of shape (l,)
        Subtracted from the targets.
    center : bool
        Whether there is a shift. Without it, no column counts as constant.
    with_gram : bool

    Returns
    -------
    FeatureSums
    """
    d = rows.shape[1]
    w = np.ones(len(targets)) if weights is None else weights
    T = np.ones((len(targets), 1 + (targets.shape[1] if with_gram else 0)))
    if with_gram:
        np.subtract(targets, target_mean, out=T[:, 1:])
    team, pool = Team(n_blas_threads()), None
    if d <= PANEL_WIDTH or not with_gram:
        team, pool = None, team
    row, shift, parts = np.zeros(d, dtype=rows.dtype), np.zeros(d), []

    def begin(places, some):
        if center:
            few, w_few = some[:_ROWS_OF_SHIFT, :], w[places[:_ROWS_OF_SHIFT]]
            row[:], shift[:] = some[0, :], np.average(few, axis=0, weights=w_few)
        for _ in range(rows.n_parts(pool)):
            parts.append(_Part(row, shift, T, weights, with_gram, team))
        return lambda part, *block: parts[part].add(*block)

    rows.visit(begin, pool)
    gram = None
    if with_gram:
        gram = sum((part.gram for part in parts[1:]), parts[0].gram)
        if team is not None:
            for panel in slices(d, PANEL_WIDTH):
                reflect_rows(gram, panel)
    constant = np.all([part.constant for part in parts], axis=0)
    return FeatureSums(
        (float(min(p.low for p in parts)), float(max(p.high for p in parts))),
        np.where(constant, row, np.full(d, np.nan, dtype=rows.dtype)),
        shift,
        w @ T,
        sum(part.cross for part in parts),
        gram,
    )


class _Part:
    """The sums over some blocks of rows.

    Parameters
    ----------
    row : ndarray of shape (d,)
        Columns that equal it throughout are constant, except where it is 0.
    shift, targets, weights, with_gram
        As in `sums_of_features`; targets (n, 1 + l) begin with a column of ones.
    team : Team or None
        Threads that share a product.
    """

    def __init__(self, row, shift, targets, weights, with_gram, team):
        d = len(shift)
        self._row, self._shift, self._team = row, shift, team
        self._targets, self._weights = targets, weights
        self.low, self.high, self.constant = np.inf, -np.inf, row != 0
        self.cross = np.zeros((d, targets.shape[1]))
        self.gram = np.zeros((d, d)) if with_gram else None
        # Rows that stay in a core's cache from one use to the next; more for a team.
        n_bytes = CORE_CACHE_BYTES / 4 if team is None else CPU.tile_bytes
        self._size = max(int(n_bytes) // (8 * d), 16)
        self._buffer = None

    def add(self, places, X):
        """Add a block of rows, whose targets are at some places."""
        T = self._targets[places, :]
        w = None if self._weights is None else self._weights[places]
        if self._buffer is None:
            self._buffer = np.empty((self._size, X.shape[1]))
        for rows in slices(len(X), self._size):
            self._add(X[rows, :], T[rows, :], w if w is None else w[rows])

    def _add(self, X, T, w):
        self.low, self.high = min(self.low, X.min()), max(self.high, X.max())
        for few in (slice(ROWS_AT_FIRST), slice(None)):
            if np.any(self.constant):
                places = np.flatnonzero(self.constant)
                same = near(X[few, places], self._row[places])
                self.constant[places] = np.all(same, axis=0)
        A = np.subtract(X, self._shift, out=self._buffer[: len(X), :])
        if w is not None:
            root = np.sqrt(w)[:, None]
            A, T = np.multiply(A, root, out=A), root * T
        if self.gram is None:
            self.cross += A.T @ T
        else:
            add_gram(self.gram, A, self._team, self.cross, T)
