"""Validated training data, and rows held out of it."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from ..backend.array import location_of, namespace, slices
from ..backend.lazy import is_lazy, rows_at
from ..backend.transfer import StreamedRows
from ..centers import distinct_rows
from .problem import take

# One row in `_ROWS_PER_SPARED` is spared, at most `_MAX_SPARED` rows. Test log losses
# with 10000 training rows of a9a, covtype and mnist: 0.365, 0.375, 0.103 with at most
# 100 spared rows; 0.348, 0.372, 0.100 with 300; the same to 0.002 with 1000 and 2000.
_ROWS_PER_SPARED, _MAX_SPARED = 10, 1000
# Rows that are compared with the first one at a time.
_COMPARED_ROWS = 4096


class OutOfSample(NamedTuple):
    """Values of rows, each from a model that was trained without that row.

    Attributes
    ----------
    values : ndarray of shape (m, l)
        In units of y. All arrays are on the host.
    targets : ndarray of shape (m, l)
    weights : ndarray of shape (m,)
        `sample_weight` times `class_weight`, times the number of rows each stands for.
    n_distinct : int or None
        Number of distinct rows. None: all rows are distinct.
    """

    values: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    n_distinct: int | None = None


class Spared:
    """Training rows that the first epochs leave out, to calibrate the model on.

    CONTRIBUTING.rst follows them through a fit ("Rows that are spared").

    Parameters
    ----------
    train : ndarray of int
        Training rows, in the solver's order.
    at_start : bool, default=False
        Whether the first rows are spared instead of the last: a tenth, at most 1000.

    Attributes
    ----------
    rows : ndarray of int
        The spared rows.
    visited : slice
        The other training rows.
    """

    def __init__(self, train, *, at_start=False):
        n = len(train)
        m = min(max(n // _ROWS_PER_SPARED, 1), _MAX_SPARED)
        self.rows = train[:m] if at_start else train[n - m :]
        self.visited = slice(m, n) if at_start else slice(0, n - m)

    def states(self, solver, of_all_rows):
        """Iterate over the states of a solver on the visited rows, then on all rows.

        The iterator changes solvers when its ``take_all_rows()`` is called.

        Parameters
        ----------
        solver : iterator
        of_all_rows : callable
            ``of_all_rows(state)`` returns the solver that continues from a state.
        """
        return _SparedStates(solver, of_all_rows)


class _SparedStates:
    """The iterator that `Spared.states` returns."""

    def __init__(self, solver, of_all_rows):
        self._solver, self._of_all_rows = solver, of_all_rows
        self._state, self._on_all_rows = None, False

    def __iter__(self):
        return self

    def __next__(self):
        self._state = next(self._solver)
        return self._state

    def take_all_rows(self):
        """Switch to the solver on all rows, unless that is done already."""
        if not self._on_all_rows:
            self._solver, self._on_all_rows = self._of_all_rows(self._state), True

    def save(self):
        """Return the state of the iteration, for `load`."""
        solver = self._solver.save()
        return {"on_all": self._on_all_rows, "state": self._state, "solver": solver}

    def load(self, saved):
        """Continue from a saved state."""
        self._state = saved["state"]
        if saved["on_all"]:
            self.take_all_rows()
        self._solver.load(saved["solver"])


@dataclass(frozen=True)
class Data:
    """Validated training data.

    Attributes
    ----------
    X : array or LazyRows of shape (n, d)
    targets : ndarray of shape (n, l)
        In float64, on the host.
    labels : ndarray of shape (n,) or (n, l)
        What predictions are scored against: targets as given, or class codes.
    weights : ndarray of shape (n,) or None
        `sample_weight` times `class_weight`, as given.
    rng : numpy.random.RandomState
    groups : ndarray of shape (n,) or None
        Class codes; the same fraction of each class is held out.
    validation : tuple (X, targets, weights) or None
        Validation rows, if the user gave some.
    precomputed : bool
        Whether X is a kernel matrix.
    indefinite : bool
        Whether the kernel is known to have negative eigenvalues.
    constant : bool
        Whether all rows with weight are equal.
    """

    X: Any
    targets: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None
    rng: np.random.RandomState
    groups: np.ndarray | None = None
    validation: tuple | None = None
    precomputed: bool = False
    indefinite: bool = False
    constant: bool = False

    @cached_property
    def ranks(self):
        """Ranks of the rows of X, ordered by content; equal rows share a rank.

        Rows of a kernel matrix keep their order, and count as distinct.
        """
        if self.precomputed:
            return np.arange(len(self.targets))
        return distinct_rows(self.X)[1]

    def distinct(self, rows):
        """Return indices of the distinct rows, and which of these each row equals."""
        return np.unique(self.ranks[rows], return_index=True, return_inverse=True)[1:]

    def distinct_with_targets(self, rows):
        """Return the same for pairs of rows and targets."""
        pairs = np.column_stack([self.ranks[rows], self.targets[rows]])
        return np.unique(pairs, axis=0, return_index=True, return_inverse=True)[1:]

    def take(self, rows):
        """Return the data of some rows."""
        index = self.weights, self.groups
        weights, groups = (None if one is None else one[rows] for one in index)
        return replace(
            self,
            X=self.X[rows] if scipy.sparse.issparse(self.X) else take(self.X, rows),
            targets=self.targets[rows],
            labels=self.labels[rows],
            weights=weights,
            groups=groups,
        )

    def shuffled(self, rows):
        """Return rows in a random order, for a file in one that reads large blocks."""
        if is_lazy(self.X):
            return self.X.shuffled(rows, self.rng)
        return self.rng.permutation(rows)

    def rows_with_weight(self):
        """Return the indices of the rows with positive weight."""
        if self.weights is None:
            return np.arange(len(self.targets))
        return np.flatnonzero(self.weights > 0)

    def rows_are_equal(self):
        """Return whether all rows with weight are equal; most often two rows tell.

        Rows that are not in memory count as different.
        """
        rows = self.rows_with_weight()
        if len(rows) == 1 or is_lazy(self.X):
            return len(rows) == 1
        few = rows[np.unique([0, len(rows) - 1, len(rows) // 2])]
        parts = [few, *(rows[part] for part in slices(len(rows), _COMPARED_ROWS))]
        first = rows_of(self.X, rows[:1])
        return all(_equal(rows_of(self.X, index), first) for index in parts)

    def with_constant_targets(self):
        """Return the data with the mean of the targets for every row, of one class."""
        rows = self.rows_with_weight()
        w = None if self.weights is None else self.weights[rows]
        mean = np.average(self.targets[rows], axis=0, weights=w)
        targets = np.tile(mean, (len(self.targets), 1))
        return replace(
            self, targets=targets, weights=None, groups=None, validation=None
        )

    @property
    def every_row(self):
        """All rows with positive weight, to be read in ranges."""
        order = None if self.weights is None else self.rows_with_weight()
        return StreamedRows(self.X, *location_of(self.X), order)


def rows_of(X, index):
    """Return some rows as an array in memory, or as a sparse array."""
    return X[index] if scipy.sparse.issparse(X) else rows_at(X, index)


def _equal(X, row):
    """Return whether all rows equal one row, of shape (1, d)."""
    if scipy.sparse.issparse(X):
        return (X != row[np.zeros(X.shape[0], dtype=np.int64)]).nnz == 0
    return bool(namespace(X).all(X == row))


def draw(data, n):
    """Return the data of `n` random rows, or of all if there are fewer.

    Classes keep their proportions, but have at least 3 rows each, or all they have.
    """
    n_rows = len(data.targets)
    if n >= n_rows:
        return data
    order, groups = data.rng.permutation(n_rows), data.groups
    if groups is None:
        return data.take(np.sort(order[:n]))
    counts = np.maximum(n * np.bincount(groups) // n_rows, 3)
    return data.take(np.sort(_first_of_each(groups[order], counts, order)))


def choose_evenly(groups, n, rng):
    """Choose members of groups in proportion, but leave at least one of each.

    Parameters
    ----------
    groups : ndarray of shape (m,)
        The group of each member.
    n : int
        How many to choose; fewer if the groups can't spare that many.
    rng : numpy.random.RandomState

    Returns
    -------
    chosen : ndarray of bool, shape (m,)
    """
    order = rng.permutation(len(groups))
    _, first, codes, sizes = np.unique(
        groups[order], return_index=True, return_inverse=True, return_counts=True
    )
    spare, quotas = sizes - 1, n * sizes / len(groups)
    counts = np.minimum(np.floor(quotas).astype(np.int64), spare)
    # Take the rest from the groups with most of their quota left, and of equal groups
    # from those that come first in the random order.
    while (missing := n - counts.sum()) > 0 and (counts < spare).any():
        able = np.flatnonzero(counts < spare)
        by_rest = np.lexsort((first[able], (counts - quotas)[able]))
        counts[able[by_rest[:missing]]] += 1
    chosen = np.zeros(len(groups), dtype=bool)
    chosen[_first_of_each(codes, counts, order)] = True
    return chosen


def _first_of_each(codes, counts, members):
    """Return the first members of each class: its count, or all it has."""
    by_class, sizes = np.argsort(codes, kind="stable"), np.bincount(codes)
    ranks = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return members[by_class[ranks < np.repeat(counts, sizes)]]


def sample_of_classes(codes, n, rng):
    """Return a sample of about n members: n / k of each class, or all it has.

    Parameters
    ----------
    codes : ndarray of shape (N,)
        Codes of k classes.
    n : int
    rng : numpy.random.RandomState

    Returns
    -------
    chosen : ndarray of int
        Increasing.
    stands_for : ndarray
        How many members of its class each one stands for.
    """
    order, sizes = rng.permutation(len(codes)), np.bincount(codes)
    # Each class gives `share` members, or all it has; `share` is the largest number
    # with a total of at most n.
    left, share = n, n
    for i, size in enumerate(np.sort(sizes)):
        share = left // (len(sizes) - i)
        left -= min(size, share)
    taken = np.minimum(sizes, max(share, 1))
    chosen = np.sort(_first_of_each(codes[order], taken, order))
    return chosen, (sizes / np.maximum(taken, 1))[codes[chosen]]


def hold_out(data, rows, fraction):
    """Split rows into training rows and held-out rows.

    Equal rows with equal targets stay together, and only content and seed determine the
    split: repeating a row gives the same result as an integer weight.

    Parameters
    ----------
    data : Data
    rows : ndarray of int
    fraction : float
        Fraction of every class to hold out.

    Returns
    -------
    train, held_out : ndarray of int
        Increasing.
    """
    first, which = data.distinct_with_targets(rows)
    groups = np.zeros_like(first) if data.groups is None else data.groups[rows[first]]
    held = choose_evenly(groups, max(round(fraction * len(first)), 1), data.rng)
    if not held.any():
        raise ValueError(
            f"validation_fraction={fraction} leaves no row for selection: the "
            f"{len(rows)} training rows contain {len(first)} distinct rows"
        )
    return rows[~held[which]], rows[held[which]]
