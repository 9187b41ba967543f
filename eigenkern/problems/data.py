"""Validated training data: equal rows, rows held out, the order in which they come."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from ..arrays.array import (
    device_of,
    location_of,
    move,
    namespace,
    slices,
    to_numpy,
)
from ..arrays.threads import cached_property
from ..centers import distinct_rows
from ..losses import mean_of_targets
from ..methods.left_out import values_left_out
from ..plan.bandwidth_choice import merged
from ..plan.penalty import TOO_FEW_ROWS
from ..rows.lazy_rows import is_lazy, rows_at
from ..rows.robust import cast
from ..rows.transfer import StreamedRows
from .problem import take


class OutOfSample(NamedTuple):
    """Values of rows, each from a model that was trained without that row.

    Attributes
    ----------
    values : ndarray of shape (m, l)
        In units of y. All arrays are on the host.
    targets : ndarray of shape (m, l)
    weights : ndarray of shape (m,)
        `sample_weight` times `class_weight`, times the number of rows each stands for.
    n_observations : float
        Number of independent observations among them, see `Data.observations`.
    """

    values: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    n_observations: float


class LeftOut(NamedTuple):
    """Observations, each with its value in a kernel ridge regression without it.

    Symbols are those of `methods.left_out`; a row may have replicates.

    Attributes
    ----------
    X : array of shape (m, d)
    values, targets : ndarrays of shape (m, l)
    weights : ndarray of shape (m,)
        Over the mean weight of all observations.
    unseen : ndarray of shape (m,) or None
        Variance of the function at X without the observation, over s^2; None: that of
        the model itself.
    rows : ndarray of shape (k,)
        The rows that the model was fitted to, in random order, those of X last.
    ridges : ndarray of shape (k,)
        c / w of these rows.
    n_others : int
        How many of them, the first ones, are not in X.
    ratio : float
        sigma^2 / s^2 of an observation with the mean weight, by the penalty.
    """

    X: Any
    values: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    unseen: np.ndarray | None
    rows: np.ndarray
    ridges: np.ndarray
    n_others: int
    ratio: float


class Replicates(NamedTuple):
    """What is known of rows that stand for several observations, see `Data.merged`.

    Attributes
    ----------
    n_observations : ndarray of shape (n,)
        u, how many independent observations each row stands for.
    variance : ndarray of shape (n,)
        v, the variance of their targets, summed over the outputs.
    are_cells : bool
        Whether the rows are cells, of which new rows will be, too.
    """

    n_observations: np.ndarray
    variance: np.ndarray
    are_cells: bool = False

    @property
    def prevail(self):
        """Whether most observations are replicates."""
        u = self.n_observations
        return u[u > 1].sum() > 0.5 * u.sum()

    def of(self, y, n=None):
        """Return u and v of the first `n` rows where y is, in its data type."""
        xp, device = namespace(y), device_of(y)
        parts = (xp.asarray(values[:n], device=device) for values in self[:2])
        return tuple(xp.astype(part, y.dtype) for part in parts)


class Merged(NamedTuple):
    """Rows of which equal ones have become one, see `Data.merged`.

    Least squares on them has the solution of least squares on all rows. For it a set of
    G equal rows is one row with the mean y of their targets, weighted, and the sum w of
    their weights; their variance v adds w v to the loss of any model.

    Attributes
    ----------
    data : Data
        `targets` and `weights` of `rows` are means and sums; others are as they were.
    rows : ndarray of shape (k,)
        One row of each set, in random order.
    source : Data
        With the targets and weights of all rows.
    members : ndarray of shape (n,)
        All rows of the sets.
    which : ndarray of shape (n,)
        The set of each of them, an index in `rows`.
    n_observations : ndarray of shape (k,)
        u, the number of independent observations in each set.
    variance : ndarray of shape (k, l)
        v.
    are_cells : bool
        See `Data.are_cells`.
    """

    data: "Data"
    rows: np.ndarray
    source: "Data"
    members: np.ndarray
    which: np.ndarray
    n_observations: np.ndarray
    variance: np.ndarray
    are_cells: bool = False

    @property
    def within(self):
        """The mean of v, over rows and outputs: what no model removes of the loss."""
        if len(self.rows) == len(self.members):
            return 0.0
        weights = self.data.weights[self.rows]
        return float(np.average(self.variance.mean(axis=1), weights=weights))

    @property
    def replicates(self):
        """The `Replicates` of the rows; None if each is one observation."""
        return self.replicates_in(1.0)

    def replicates_in(self, units):
        """Return the `Replicates` of targets that are divided by units, (l,)."""
        if (self.n_observations == 1).all() and not self.variance.any():
            return None
        variance = self.variance / units / units
        variance = variance.sum(axis=1)
        return Replicates(self.n_observations, variance, self.are_cells)

    def replicates_of(self, rows):
        """Return the `Replicates` of the rows in another order."""
        order = np.argsort(self.rows)
        order = order[np.searchsorted(self.rows, rows, sorter=order)]
        replicates = self.replicates
        parts = (values[order] for values in replicates[:2])
        return Replicates(*parts, replicates.are_cells)

    def without_class_weights(self):
        """Return the targets (k, l) and the weights (k,) of equally costly classes."""
        source, members = self.source, self.members
        if source.of_class is None:
            return self.data.targets[self.rows], self.data.weights_of(self.rows)
        first = np.unique(self.which, return_index=True)[1]
        given = source.targets[members], source.own_weights_of(members)
        return merged(first, self.which, *given)

    def with_last(self, rows):
        """Return the sets with those last that have only some of these rows."""
        others = ~np.isin(self.members, rows)
        left = np.bincount(self.which[others], minlength=len(self.rows))
        order = np.argsort(left == 0, kind="stable")
        return self._replace(
            rows=self.rows[order],
            which=np.argsort(order)[self.which],
            n_observations=self.n_observations[order],
            variance=self.variance[order],
        )

    def without(self, rows):
        """Return mean targets (k, l) and weights (k,) of the sets without some rows.

        A set without any other row has no weight.
        """
        k, others = len(self.rows), ~np.isin(self.members, rows)
        members, which = self.members[others], self.which[others]
        w, mean = self.source.weights_of(members), self.data.targets[self.rows]
        deviation = self.source.targets[members] - mean[which]
        totals = np.bincount(which, w, minlength=k)
        sums = [np.bincount(which, w * y, minlength=k) for y in deviation.T]
        unit = np.where(totals > 0, totals, 1.0)
        return mean + np.stack(sums, axis=1) / unit[:, None], totals

    def left_out(self, places, residual, kept):
        """Return the value of each row of some sets, left out one by one.

        Copies are left out together, replicates alone. With f the value in the model of
        all rows, h the leverage of the set and v the part of its weight that belongs to
        the observation, the value in the model without the observation y_i is
        ``y_i - (y_i - f) / (1 - v h)``.

        Parameters
        ----------
        places : ndarray of int, of shape (m,)
            Indices in `rows`.
        residual : ndarray of shape (m, l)
            y - f, y the mean target.
        kept : ndarray of shape (m,)
            1 - h.
        """
        members, _, _, values = self._left_out(places, residual, kept)
        n = float(self.n_observations[places].sum())
        return self.source.out_of_sample(members, values, n)

    def observations_left_out(self, places, residual, kept, ridge):
        """Return the same rows as a `LeftOut`, of a model with c = `ridge`."""
        members, which, part, values = self._left_out(places, residual, kept)
        w = self.data.weights_of(self.rows)
        ridges = ridge * (w.mean() / w)
        # With all of its set the variance is h c / w; without the set it is that over
        # 1 - h.
        h = np.clip(1.0 - kept[which], 0.0, 1.0)
        left = np.maximum(1.0 - part * h, kept[which])
        unseen = ridges[places][which] * h / left
        weights = self.source.weights_of(members)
        weights = weights / self.source.weights_of(self.members).mean()
        X, targets = take(self.source.X, members), self.source.targets[members]
        k = len(self.rows)
        rows = self.rows, ridges, k - len(places), ridge * len(self.members) / k
        return LeftOut(X, values, targets, weights, unseen, *rows)

    def _left_out(self, places, residual, kept):
        """Return members of some sets, their sets, v, and values without them."""
        order = np.full(len(self.rows), -1)
        order[places] = np.arange(len(places))
        taken = order[self.which] >= 0
        members, which = self.members[taken], order[self.which][taken]
        part = np.ones(len(members))
        if self.replicates is not None:
            part = self.source.parts_of_sets(self.members)[taken]
        Y, mean = self.source.targets[members], self.data.targets[self.rows[places]]
        values = values_left_out(Y, mean[which], residual[which], kept[which], part)
        return members, which, part, values


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
    validation : tuple (X, targets, labels, weights) or None
        Validation rows, if the user gave some.
    precomputed : bool
        Whether X is a kernel matrix.
    indefinite : bool
        Whether the kernel is known to have negative eigenvalues.
    constant : bool
        Whether all rows with weight are equal.
    own : array or None
        The rows of X without validation rows, if those are its last ones.
    of_class : ndarray of shape (n_classes,) or None
        `class_weight` of each class, where the weights contain it; 1 in place of 0.
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
    own: Any = None
    of_class: np.ndarray | None = None

    @cached_property
    def ranks(self):
        """Ranks of the rows of X, ordered by content; equal rows share a rank.

        Rows of a kernel matrix keep their order; they are equal up to rounding.
        """
        if self.precomputed:
            return _first_of_equal(self.X)
        return distinct_rows(self.X)[1]

    def distinct(self, rows):
        """Return indices of the distinct rows, and which of these each row equals."""
        return np.unique(self.ranks[rows], return_index=True, return_inverse=True)[1:]

    def distinct_with_targets(self, rows):
        """Return the same for pairs of rows and targets."""
        pairs = np.column_stack([self.ranks[rows], self.targets[rows]])
        return np.unique(pairs, axis=0, return_index=True, return_inverse=True)[1:]

    def observations(self, rows):
        """Return which of some rows are one observation, and how many each set holds.

        Equal rows with equal targets may be copies: they are one observation. But if
        equal rows have different targets they are replicates, which tell the noise:
        then each row, or unit of an integer weight, is an observation. Rows of a target
        that no other set has are copies even then: numbers with noise do not agree by
        chance, as labels do. Copies of the whole table, or of a class, change nothing.
        The rows of cells are replicates even without noise (`are_cells`).

        Returns
        -------
        first : ndarray of shape (k,)
            Places in `rows` of a row of each observation, in an order of their content.
        which : ndarray of shape (n,)
            The observation of each row.
        n_of_set : ndarray of shape (G,)
            The number of observations in each set of equal rows, in the order of
            `distinct`.
        """
        n, (first, set_of_row) = len(rows), self.distinct(rows)
        if len(first) == n and not self.are_cells(rows):
            return first, set_of_row, np.ones(n)
        own, pair, n_of_pair = self._pairs(rows)
        n_rows = np.bincount(pair)
        # The rows of a pair, by weight, in as many parts as it has observations.
        order = np.lexsort((self.weights_of(rows), pair))
        starts = np.cumsum(n_rows) - n_rows
        place = np.empty_like(pair)
        place[order] = np.arange(n) - np.repeat(starts, n_rows)
        n_parts = np.minimum(n_of_pair, n_rows)
        part_of_row = place * n_parts[pair] // n_rows[pair]
        which = (np.cumsum(n_parts) - n_parts)[pair] + part_of_row
        first = np.unique(which, return_index=True)[1]
        return first, which, np.bincount(own, n_of_pair)

    def _pairs(self, rows):
        """Return the set of each pair of equal rows and targets, and the observations.

        Returns
        -------
        own : ndarray of shape (k,)
            The set of each pair.
        pair : ndarray of shape (n,)
            The pair of each row.
        n_of_pair : ndarray of shape (k,)
        """
        set_of_row = self.distinct(rows)[1]
        first, pair = self.distinct_with_targets(rows)
        own = set_of_row[first]
        counts = self._counts(pair, rows)
        several = (np.bincount(own) > 1)[own]
        replicates = several.copy()
        if self.groups is None:
            targets = self.targets[rows[first]]
            value = np.unique(targets, axis=0, return_inverse=True)[1].ravel()
            replicates &= (np.bincount(value) > 1)[value]
        if self.are_cells(rows):
            replicates |= ~several
            if several.any():
                counts = counts // np.gcd.reduce(counts)
        else:
            counts = counts // self._copies(counts, rows[first])
        return own, pair, np.where(replicates, counts, 1)

    def _counts(self, which, rows):
        """Return how many rows each set has, or units of weights that are numbers."""
        return np.bincount(which, self._numbers(rows)).astype(np.int64)

    def _numbers(self, rows):
        """Return the weights of rows that are numbers of observations, or None.

        These are whole, whatever classes count, and have all digits. Above five they
        are more likely importances, unless no two rows are equal, or none that have
        equal targets, which others have as well.
        """
        w, n = self.own_weights_of(rows), len(rows)
        whole = np.rint(w)
        if (np.abs(w - whole) > 1e-12 * w).any() or whole.sum() >= 2.0**53:
            return None
        if whole.sum() <= 5 * n or len(self.distinct(rows)[0]) == n:
            return whole
        one_of_each = len(self.distinct_with_targets(rows)[0]) == n
        shared = one_of_each and len(np.unique(self.targets[rows], axis=0)) < n
        return whole if shared else None

    def _copies(self, counts, rows):
        """Return how often whole classes, or all rows, were copied, for each row."""
        groups = np.zeros_like(rows) if self.groups is None else self.groups[rows]
        n_copies = np.ones(groups.max() + 1, dtype=np.int64)
        for group in np.unique(groups):
            n_copies[group] = np.gcd.reduce(counts[groups == group])
        return n_copies[groups]

    def are_cells(self, rows, *, of_few_levels=True):
        """Return whether the distinct rows are cells of a table, observed repeatedly.

        Other rows tell little of a cell: its rows must be left out one by one. That is
        so if the distinct rows occur five times or more, and are too few to judge a
        penalty, or levels of one category: any column then differs in one of them. So
        it is if nearly all combinations of few levels occur, unless the whole table may
        have been copied or this does not count. But if many do not occur, what matters
        is how well others tell them; that they occur five times is then no chance.
        """
        first, which = self.distinct(rows)
        counts = self._counts(which, rows)
        if not len(rows) or np.median(counts) < 5:
            return False
        if len(first) < TOO_FEW_ROWS:
            return True
        if self.precomputed:
            return False
        some = first[: 2 * TOO_FEW_ROWS], first  # most often a few tell

        def all_rows(test, *options):
            return all(test(rows_of(self.X, rows[part]), *options) for part in some)

        if self.X.shape[1] >= len(first) - 1 and all_rows(_are_levels):
            return True
        if not of_few_levels or not all_rows(_are_combinations, 1.1 * len(first)):
            return False
        first, which = self.distinct_with_targets(rows)
        counts = self._counts(which, rows)
        return np.median(counts // self._copies(counts, rows[first])) >= 5

    def parts_of_sets(self, rows):
        """Return the part of the weight of its set that each row's observation has.

        It is 1 in a set that is one observation.
        """
        own, pair, n_of_pair = self._pairs(rows)
        of_pair = np.bincount(pair, self.weights_of(rows))
        of_set = np.bincount(own, of_pair)[own]
        part = of_pair / (n_of_pair * of_set)
        return np.where(np.bincount(own, n_of_pair)[own] == 1, 1.0, part)[pair]

    def out_of_sample(self, rows, values, n_observations=None):
        """Return values of some rows, from models without them, an `OutOfSample`.

        `n_observations` is that of the rows; None: it is computed.
        """
        if n_observations is None:
            n_observations = float(self.observations(rows)[2].sum())
        weights = self.weights_of(rows)
        return OutOfSample(values, self.targets[rows], weights, n_observations)

    def weights_of(self, rows):
        """Return the weights of some rows."""
        return np.ones(len(rows)) if self.weights is None else self.weights[rows]

    def own_weights_of(self, rows):
        """Return the weights of some rows without those of their classes."""
        weights = self.weights_of(rows)
        if self.of_class is None:
            return weights
        return weights / self.of_class[self.labels[rows]]

    def without_class_weights(self):
        """Return the data of equally costly classes."""
        if self.of_class is None:
            return self
        rows, validation = np.arange(len(self.targets)), self.validation
        if validation is not None:
            X, Y, labels, w = validation
            validation = X, Y, labels, w / self.of_class[labels]
        own = self.own_weights_of(rows)
        return replace(self, weights=own, validation=validation, of_class=None)

    def merged(self, rows, *, fewest=0):
        """Return the rows in random order, equal ones as one, a `Merged`.

        Where the copies of a row stand, after the first one, does not change the order.
        If fewer than `fewest` sets would remain, only rows with equal targets are
        merged, unless those would be fewer, too.
        """
        n = len(rows)
        first, which = self.distinct(rows)
        n_of_set = self.observations(rows)[2]
        if len(first) == n and (n_of_set == 1).all():
            return self.unmerged(self.shuffled(rows))
        if len(first) < fewest:
            each, data = (n_of_set / np.bincount(which))[which], self
            pairs, pair = self.distinct_with_targets(rows)
            if fewest <= len(pairs) < n:
                each, w = self._pairs(rows)[2], self.weights_of(rows)
                rows, which = rows[pairs], which[pairs]
                totals = np.bincount(pair, w)
                data = self._with(rows, totals, self.targets[rows])
            order = self.rng.permutation(np.argsort(which, kind="stable"))
            return data.unmerged(rows[order], each[order])
        in_order = np.argsort(rows[first])
        drawn = self.shuffled(rows[first[in_order]])
        order = in_order[np.searchsorted(rows[first[in_order]], drawn)]
        Y, w = self.targets[rows], self.weights_of(rows)
        mean, totals = merged(first, which, Y, w)
        squares = [np.bincount(which, w * y**2) for y in (Y - mean[which]).T]
        variance = np.stack(squares, axis=1) / totals[:, None]
        return Merged(
            self._with(rows[first], totals, mean),
            rows[first[order]],
            self,
            rows,
            np.argsort(order)[which],
            n_of_set[order],
            variance[order],
            self.are_cells(rows),
        )

    def unmerged(self, rows, n_observations=None):
        """Return rows as they are, in their order, as a `Merged`.

        If there are copies, each is a part of an observation.
        """
        n, n_outputs = len(rows), self.targets.shape[1]
        u = np.ones(n) if n_observations is None else n_observations
        sets = np.arange(n), u, np.zeros((n, n_outputs))
        return Merged(self, rows, self, rows, *sets)

    def without_copies(self, rows):
        """Return the data and, in random order, the rows without copies.

        Equal rows with equal targets become one row with the sum of their weights, for
        losses other than the squared one. The order is as in `merged`.
        """
        if self.precomputed or is_lazy(self.X):
            return self, self.shuffled(rows)
        first, which = self.distinct_with_targets(rows)
        if self.are_cells(rows, of_few_levels=False):
            return self, self.shuffled(rows)
        totals, data = np.bincount(which, self.weights_of(rows)), self
        if len(first) < len(rows):
            if self._numbers(rows) is None:  # nor are their sums numbers
                mean = totals.mean()
                totals, data = totals / mean, replace(self, weights=self.weights / mean)
                vars(data)["ranks"] = self.ranks
            data = data._with(rows[first], totals, self.targets[rows[first]])
        order = self.rng.permutation(np.argsort(rows[first]))
        return data, rows[first[order]]

    def _with(self, rows, weights, targets):
        """Return the data with other weights and targets of some rows."""
        n = len(self.targets)
        w = np.ones(n) if self.weights is None else self.weights.copy()
        Y = self.targets.copy()
        w[rows], Y[rows] = weights, targets
        other = replace(self, weights=w, targets=Y)
        vars(other)["ranks"] = self.ranks  # the rows are the same
        return other

    def take(self, rows):
        """Return the data of some rows."""
        index = self.weights, self.groups
        weights, groups = (None if one is None else one[rows] for one in index)
        return replace(
            self,
            X=take(self.X, rows),
            targets=self.targets[rows],
            labels=self.labels[rows],
            weights=weights,
            groups=groups,
        )

    def with_validation(self):
        """Return the data with the validation rows as the last ones, and their indices.

        Those without weight are left out.
        """
        (X, targets, labels, w), n = self.validation, len(self.targets)
        if self.precomputed or is_lazy(self.X) or is_lazy(X):
            what = "a kernel by name" if self.precomputed else "rows in memory"
            raise ValueError(
                f"X_val and y_val need {what}; pass validation_fraction, to hold rows "
                "of X out"
            )
        weights = None
        if self.weights is not None or w is not None:
            w = np.ones(len(targets)) if w is None else w
            weights = np.concatenate([self.weights_of(np.arange(n)), w])
        labels = np.concatenate([self.labels, labels])
        data = replace(
            self,
            X=_stacked(self.X, X),
            targets=np.concatenate([self.targets, targets]),
            labels=labels,
            weights=weights,
            groups=None if self.groups is None else labels,
            own=self.X,
        )
        return data, n + np.flatnonzero(data.weights_of(np.arange(n, len(labels))) > 0)

    def in_double(self):
        """Return the data with rows in double precision."""
        xp, own = namespace(self.X), self.own
        own = None if own is None else xp.astype(own, xp.float64)
        return replace(self, X=xp.astype(self.X, xp.float64), own=own)

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
        parts = [few, *(rows[part] for part in slices(len(rows)))]
        first = rows_of(self.X, rows[:1])
        return all(_equal(rows_of(self.X, index), first) for index in parts)

    def with_constant_targets(self):
        """Return the data with the mean of the targets for every row, of one class."""
        rows = self.rows_with_weight()
        mean = mean_of_targets(self.targets[rows], self.weights_of(rows))
        targets = np.tile(mean, (len(self.targets), 1))
        return replace(
            self, targets=targets, weights=None, groups=None, validation=None
        )

    @property
    def every_row(self):
        """All rows with positive weight, to be read in ranges."""
        order = None if self.weights is None else self.rows_with_weight()
        return StreamedRows(self.X, *location_of(self.X), order)


def _stacked(X, Z):
    """Return the rows of X and of Z as one array, of the library and type of X."""
    if scipy.sparse.issparse(X):
        rows = Z if scipy.sparse.issparse(Z) else scipy.sparse.csr_array(to_numpy(Z))
        return scipy.sparse.vstack([X, rows], format=X.format, dtype=X.dtype)
    Z = Z.toarray() if scipy.sparse.issparse(Z) else Z
    return namespace(X).concat([X, cast(move(Z, *location_of(X)), X.dtype)])


def rows_of(X, index):
    """Return some rows as an array in memory, or as a sparse array."""
    return X[index] if scipy.sparse.issparse(X) else rows_at(X, index)


def _are_levels(X):
    """Return whether any column differs in one of the distinct rows of X at most."""
    if scipy.sparse.issparse(X):
        return bool(((X != 0).sum(axis=0) <= 1).all())
    X = to_numpy(X)
    return bool(((X != np.median(X, axis=0)).sum(axis=0) <= 1).all())


def _are_combinations(X, most):
    """Return whether columns of X have few values, and at most so many combinations.

    Neighbouring columns of which only one is above its least value are a category.
    """
    if scipy.sparse.issparse(X):
        return False
    n_combinations, n_values, above = 1, 0, np.zeros(X.shape[0], dtype=bool)
    for column in to_numpy(X).T:
        values = np.unique(column)
        is_above = column > values[0]
        if (above & is_above).any():
            n_combinations *= n_values + (not above.all())
            n_values, above = 0, np.zeros_like(above)
        n_values, above = n_values + len(values) - 1, above | is_above
        if n_values >= TOO_FEW_ROWS or n_combinations * n_values > most:
            return False
    return n_combinations * (n_values + (not above.all())) <= most


def _first_of_equal(K):
    """Return the first row of K(X, X) that each one equals up to rounding, (n,).

    Rows whose products with a random vector are close are compared.
    """
    xp, n = namespace(K), K.shape[0]
    size = np.abs(to_numpy(xp.linalg.diagonal(K)).astype(np.float64)) ** 0.5
    scale = np.where(size > 0, size, 1.0)
    # Squared distances are often differences of large products.
    rounding = max(100 * float(xp.finfo(K.dtype).eps), 1e-8)
    vector = np.random.RandomState(0).standard_normal(n) / scale
    vector = xp.asarray(vector, dtype=K.dtype, device=device_of(K))
    product = to_numpy(K @ vector).astype(np.float64)
    order = np.argsort(product)
    is_far = np.diff(product[order]) > 4 * rounding * n**0.5 * scale[order][1:]
    run = np.empty(n, dtype=np.int64)
    run[order] = np.append(0, np.cumsum(is_far))
    first, others = np.arange(n), np.arange(n)
    for _ in range(10):  # rows of a run may differ, but seldom do
        places = np.unique(run[others], return_index=True, return_inverse=True)[1:]
        like = others[places[0]][places[1]]
        others, like = others[like < others], like[like < others]
        equal = np.empty(len(others), dtype=bool)
        for part in slices(len(others), 256):
            change = xp.abs(take(K, others[part]) - take(K, like[part]))
            bound = rounding * size[others[part], None] * size
            bound = xp.asarray(bound, dtype=K.dtype, device=device_of(K))
            equal[part] = to_numpy(xp.all(change <= bound, axis=1))
        first[others[equal]] = like[equal]
        others = others[~equal]
        if not len(others):
            break
    return first


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


def _to_hold_out(data, rows, fraction):
    """Return what may be held out: a row of each part, and the part of each row.

    A part is an observation, or a set of equal rows if the weight of one says that it
    is several observations, which can't be parted: all of one label would be held out.
    """
    first, which, n_of_set = data.observations(rows)
    set_of_row = data.distinct(rows)[1]
    together = np.bincount(set_of_row[first]) < n_of_set
    if not together.any() or fraction * len(n_of_set) < 1:
        return first, which
    which = np.where(together[set_of_row], len(first) + set_of_row, which)
    labels = np.zeros_like(rows) if data.groups is None else data.groups[rows]
    order = np.lexsort((labels, -data.weights_of(rows), which))
    _, first, which = np.unique(which[order], return_index=True, return_inverse=True)
    return order[first], which[np.argsort(order)]


def hold_out(data, rows, fraction, *, fewest=1, in_given_order=False):
    """Split rows into training rows and held-out rows.

    Copies stay together, replicates need not (`Data.observations`), and only content
    and seed determine the split: a copy gives the same result as an integer weight.

    Parameters
    ----------
    data : Data
    rows : ndarray of int
    fraction : float
        Fraction of every class to hold out.
    fewest : int, default=1
        Fewest rows to hold out, and to train with.
    in_given_order : bool, default=False
        Whether the rows are drawn in the order of their first copies, not in that of
        their content: sparse and dense rows then give the same split.

    Returns
    -------
    train, held_out : ndarray of int
        Increasing.
    """
    first, which = _to_hold_out(data, rows, fraction)
    order, held = np.arange(len(first)), np.zeros(len(first), dtype=bool)
    if in_given_order:
        order = np.argsort(rows[first])
    groups = np.zeros_like(first) if data.groups is None else data.groups[rows[first]]
    n_held = math.ceil(fraction * len(first) - 1e-9)
    held[order] = choose_evenly(groups[order], n_held, data.rng)
    held = held[which]
    if min(held.sum(), (~held).sum()) < fewest:
        trained = "" if data.groups is None else ", and one of each class"
        raise ValueError(
            f"validation_fraction must leave at least {fewest} "
            f"row{'s' if fewest > 1 else ''} to score and {fewest} to train "
            f"with{trained}; got {fraction} of {len(rows)} rows, of "
            f"which {len(first)} are distinct"
        )
    return rows[~held], rows[held]


def differing_column(data, kept):
    """Return the column in which two sets of rows differ most, or None.

    Each number x is replaced by s = sign(x - median of the kept rows), so that scales
    do not matter. Let the two sets have n_1 and n_2 random rows, 1 / n = 1 / n_1 +
    1 / n_2, v be the variance of s, and b = max |s - mean| log(2 / p) / (3 n). By
    Bernstein's inequality the two means of s differ by less than
    b + sqrt(b^2 + 2 v log(2 / p) / n) with a probability of about 1 - p. Here p is
    0.001 over the number of columns: of 17820 fair pieces, of random rows (normal,
    exponential, or ones among zeros; 32 to 500 rows, 1 to 300 columns), one differed.

    Parameters
    ----------
    data, kept : Data
        Rows without weight do not count.

    Returns
    -------
    int or None
        A column of X, or negative for a target; targets win ties. None: no column
        differs.
    """
    rows, kept_rows = data.rows_with_weight(), kept.rows_with_weight()
    if min(len(rows), len(kept_rows)) == 0:
        return None
    # However large the pieces, only shifts of at least a quarter of a standard
    # deviation count.
    n_compared = min(len(rows), 500)
    data = data.take(rows[np.linspace(0, len(rows) - 1, n_compared).astype(int)])
    kept = kept.take(kept_rows)
    of_X, of_targets = _signs(data.X, kept.X), _signs(data.targets, kept.targets)
    means = np.concatenate([of_targets, of_X], axis=2)
    sizes = np.array([n_compared, len(kept_rows)])
    mean, square = np.tensordot(means, sizes / sizes.sum(), axes=(1, 0))
    n, log = 1 / np.sum(1 / sizes), math.log(2 * len(mean) / 1e-3)
    b = (1 + np.abs(mean)) * log / (3 * n)
    bound = b + np.sqrt(b**2 + 2 * (square - mean**2) * log / n)
    excess = np.abs(means[0, 0] - means[0, 1]) / bound
    column = int(np.argmax(excess))
    return column - of_targets.shape[2] if excess[column] > 1 else None


def _signs(values, kept):
    """Return the means of the signs and of their squares, for both sets of rows.

    The shape is (2, 2, n_columns): means and squares, then sets. The median of a sparse
    column is taken as 0, which is right if most of its numbers are 0.
    """
    if scipy.sparse.issparse(kept):
        signs = [part.sign() for part in (values, kept)]
    else:
        values, kept = to_numpy(values), to_numpy(kept)
        median = np.median(kept, axis=0)
        signs = [np.sign(part - median) for part in (values, kept)]
    moments = [[part.mean(axis=0) for part in signs]]
    moments += [[abs(part).mean(axis=0) for part in signs]]
    return np.asarray(moments, dtype=float).reshape(2, 2, kept.shape[1])
