"""Validated training data, and rows held out of it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..backend import memory
from ..backend.array import device_of, move, namespace
from ..backend.devices import compute_devices, compute_device
from ..backend.memory import n_bytes
from ..centers import distinct_rows


@dataclass(frozen=True)
class Data:
    """Validated training data.

    Attributes
    ----------
    X : array of shape (n, d)
    targets : ndarray of shape (n, l)
        In float64, on the host.
    labels : ndarray of shape (n,) or (n, l)
        What is scored: targets as given, or codes of the classes.
    weights : ndarray of shape (n,) or None
        `sample_weight` times `class_weight`, as given.
    rng : numpy.random.RandomState
    validation : tuple (X, targets, weights) or None
        Rows to select by, where the user gave some.
    precomputed : bool
        Whether X is a kernel matrix.
    """

    X: Any
    targets: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None
    rng: np.random.RandomState
    validation: tuple | None = None
    precomputed: bool = False

    @cached_property
    def ranks(self):
        """Places of the rows of X in an order of their content; equal rows share one.

        Rows of a kernel matrix keep their order.
        """
        if self.precomputed:
            return np.arange(len(self.targets))
        return distinct_rows(self.X)[1]

    def distinct(self, rows):
        """Return, of `rows`, the distinct ones in the order of content, and which."""
        return np.unique(self.ranks[rows], return_index=True, return_inverse=True)[1:]

    def distinct_with_targets(self, rows):
        """Return the same for pairs of rows and targets."""
        pairs = np.column_stack([self.ranks[rows], self.targets[rows]])
        return np.unique(pairs, axis=0, return_index=True, return_inverse=True)[1:]

    def rows_with_weight(self):
        """Return the indices of the rows that have a weight."""
        if self.weights is None:
            return np.arange(len(self.targets))
        return np.flatnonzero(self.weights > 0)


def hold_out(data, rows, labels, fraction):
    """Split rows into those to train with and those to select by.

    Equal rows with equal targets are on the same side, and are chosen by content and
    seed alone: a row that is repeated, or has an integer weight, changes nothing.

    Parameters
    ----------
    data : Data
    rows : ndarray of int
    labels : ndarray of shape (n,) or None
        Classes of all rows of `data`: the same fraction of each is held out.
    fraction : float

    Returns
    -------
    train, held_out : ndarray of int
        Increasing.
    """
    first, which = data.distinct_with_targets(rows)
    order = data.rng.permutation(len(first))
    groups = np.zeros(len(first)) if labels is None else labels[rows][first]
    held = np.zeros(len(first), dtype=bool)
    for group in np.unique(groups):
        members = order[groups[order] == group]
        n_held = round(fraction * len(members))
        held[members[: min(n_held, len(members) - 1)]] = True
    if not held.any():  # few rows: one of the largest group that can spare one
        sizes = {group: (groups == group).sum() for group in np.unique(groups)}
        largest = max(sizes, key=sizes.get)
        if sizes[largest] > 1:
            held[order[groups[order] == largest][0]] = True
    if not held.any():
        raise ValueError(
            f"validation_fraction={fraction} leaves no row to select by: the "
            f"{len(rows)} training rows hold {len(first)} distinct ones"
        )
    return rows[~held[which]], rows[held[which]]


class _Located:
    """Arrays moved to where they are computed with, and back to where X lives.

    Of several devices the first is where everything but the kernel's centers is.
    """

    def __init__(self, device, X, *, several=True):
        self._source = namespace(X), device_of(X)
        self._X = X
        if several:
            self._devices = compute_devices(device, X)
        else:
            self._devices = [compute_device(device, X)]
        self.xp, self.device = self._devices[0]
        self.n_features = X.shape[1]

    def _to_compute(self, X):
        """Return X where it is computed with."""
        return move(X, self.xp, self.device)

    def _to_compute_if_small(self, X):
        """Return X where it is computed with, or as it is if that is half the memory.

        With its rows in another order it takes twice as much. Operators move the rows
        of an X that stays when they use them.
        """
        if self._source == self._devices[0]:
            return X
        free = memory.available(self.xp, self.device)
        return X if 4 * n_bytes(X) > free else self._to_compute(X)

    def to_source(self, values):
        """Return `values` of the computation where X lives."""
        return move(values, *self._source)

    def _host_to_source(self, values):
        return self.to_source(self.xp.asarray(values, device=self.device))

    def array(self, values):
        """Return `values` of the host in the data type and place of the computation."""
        values = self.xp.asarray(values, device=self.device)
        return self.xp.astype(values, self._dtype, copy=False)

    def _take(self, values, index, axis=0):
        xp = namespace(values)
        return xp.take(values, xp.asarray(index, device=device_of(values)), axis=axis)

    def _scatter(self, values, index, n):
        """Return `n` rows: `values` at the places `index`, zero elsewhere."""
        place = np.full(n, len(index))
        place[index] = np.arange(len(index))
        zero = self.xp.zeros_like(values[:1, :])
        return self._take(self.xp.concat([values, zero]), place)

    def _model(self, dual_coef, intercept, centers):
        """Return the attributes that prediction needs."""
        return {
            "dual_coef_": self.to_source(dual_coef),
            "intercept_": self.to_source(self.array(intercept)),
            "kernel_": self.kernel,
            "bandwidth_": getattr(self.kernel, "bandwidth", None),
            "centers_": None if self.kernel is None else centers,
        }
