"""The training problem of an estimator, where it is computed."""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from ._array import (
    available_memory,
    compute_devices,
    compute_location,
    device_of,
    move,
    move_what_fits,
    n_bytes,
    namespace,
    to_numpy,
)
from ._fourier import FourierBlocks
from ._operator import KernelOperator, LinearOperator, fill_caches
from ._sharded import make_operator
from .centers import choose, distinct_rows, masses, uniform
from .kernels import make_kernel
from .losses import weighted_median
from .solvers.doubly_stochastic import Expansion


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

    Of several devices the first is where everything but the kernel's centres is.
    """

    def __init__(self, device, X, *, several=True):
        self._home = namespace(X), device_of(X)
        self._X = X
        if several:
            self._places = compute_devices(device, X)
        else:
            self._places = [compute_location(device, X)]
        self.xp, self.device = self._places[0]
        self.n_features = X.shape[1]

    def _here(self, X):
        """Return X where it is computed with."""
        return move(X, self.xp, self.device)

    def _here_if_small(self, X):
        """Return X where it is computed with, or as it is if that is half the memory.

        With its rows in another order it takes twice as much. Operators move the rows
        of an X that stays when they use them.
        """
        if self._home == self._places[0]:
            return X
        free = available_memory(self.xp, self.device)
        return X if 4 * n_bytes(X) > free else self._here(X)

    def at_home(self, values):
        """Return `values` of the computation where X lives."""
        return move(values, *self._home)

    def _home_array(self, values):
        return self.at_home(self.xp.asarray(values, device=self.device))

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
            "dual_coef_": self.at_home(dual_coef),
            "intercept_": self.at_home(self.array(intercept)),
            "kernel_": self.kernel,
            "bandwidth_": getattr(self.kernel, "bandwidth", None),
            "centers_": None if self.kernel is None else centers,
        }


class Problem(_Located):
    """A kernel machine's training problem: arrays, operators, kernel.

    Attributes
    ----------
    xp, device
        Where the computation is.
    targets : array of shape (n, l)
        Centred, of the training rows in the solver's order.
    weights : array of shape (n,) or None
        With mean 1.
    intercept : ndarray of shape (l,)
        Weighted mean of the targets, on the host.
    operator : KernelOperator
        K(X, X) of the training rows.
    validation : KernelOperator or None
        K(X_val, X) of the validation rows.
    n_features : int
    rng : numpy.random.RandomState
    """

    def __init__(self, estimator, data, train, held_out):
        super().__init__(estimator.device, data.X)
        X, Y, weights = data.X, data.targets, data.weights
        self._train = train
        self.rng = rng = data.rng
        w = None if weights is None else weights[train]
        self.intercept = np.average(Y[train], axis=0, weights=w)
        rows = self._take(X, train)
        validation_rows = None if held_out is None else self._take(X, held_out)
        self.kernel = self.validation = None
        if estimator.kernel == "precomputed":
            K = self._here(self._take(rows, train, axis=1))
            self.operator = KernelOperator.from_matrix(K)
            if held_out is not None:
                K = self._here(self._take(validation_rows, train, axis=1))
                self.validation = KernelOperator.from_matrix(K)
        else:
            self.kernel = make_kernel(estimator.kernel, estimator.bandwidth, rows, rng)
            self.operator = make_operator(self.kernel, rows, self._places)
            if held_out is not None:
                self.validation = self.operator.with_rows(validation_rows)
        self._dtype = self.operator.dtype
        self.targets = self.array(Y[train] - self.intercept)
        self.weights = None if w is None else self.array(w / w.mean())

    @property
    def n_coefficients(self):
        """Rows of X, those without weight included."""
        return self._X.shape[0]

    def has_rows(self, centers):
        """Whether X has the values of `centers`."""
        if centers is None:
            return self.kernel is None
        if centers is self._X:
            return True
        return np.array_equal(to_numpy(centers), to_numpy(self._X))

    def fill_caches(self, cache_size, n_epochs):
        """Keep the kernel matrices in memory where they fit and pay; return the MB."""
        return fill_caches(self._operators, cache_size, n_epochs, self.n_features)

    def can_cache_beside(self, n_bytes):
        """Whether the free memory holds the kernel matrices and `n_bytes` besides."""
        needed = sum(operator.cache_bytes for operator in self._operators) + n_bytes
        return needed <= available_memory(self.xp, self.device)

    @property
    def _operators(self):
        """The kernel matrices, the more often used one first."""
        held_out = () if self.validation is None else (self.validation,)
        return [self.operator, *held_out]

    def validation_values(self, coef):
        """Return f on the validation rows, on the host, shape (m, l)."""
        return to_numpy(self.validation @ coef) + self.intercept

    def loss(self, coef, n_rows=None):
        """Return the weighted mean squared residual of the first rows, or of all."""
        rows = slice(0, min(n_rows or len(self._train), len(self._train)))
        residual = self.targets[rows, :]
        if bool(self.xp.any(coef != 0)):
            residual = self.operator.product(coef, 0, rows.stop)[0] - residual
        squares = self.xp.mean(residual * residual, axis=1)
        if self.weights is not None:
            squares = squares * self.weights[rows]
        return float(self.xp.mean(squares))

    def initial_coef(self, dual_coef=None):
        """Return coefficients of the training rows in the solver's order."""
        shape = tuple(self.targets.shape)
        if dual_coef is None:
            return self.xp.zeros(shape, dtype=self._dtype, device=self.device)
        moved = move(dual_coef, self.xp, self.device)
        return self._take(self.xp.astype(moved, self._dtype, copy=False), self._train)

    def model(self, coef):
        """Return the attributes that prediction needs; rows follow those of X."""
        dual_coef = self._scatter(coef, self._train, self.n_coefficients)
        return self._model(dual_coef, self.intercept, self._X)


class LinearProblem(_Located):
    """The training problem of a linear model on given features.

    Parameters
    ----------
    estimator : estimator with device
    data : Data
        Its X may be sparse, in CSR.
    train, held_out : ndarray of int
        Rows to train with, in the solver's order; rows to score (or None).
    centre : bool
        Whether there is an intercept.
    seen : tuple (weight, mean, target_mean, n_rows), default=None
        Of the rows seen before, which count in the means: their total weight, the mean
        of their features (where X lives) and of their targets, their number.

    Attributes
    ----------
    xp, device
        Where the computation is.
    operator : LinearOperator
        The training rows.
    targets : array of shape (n, l)
        Centred, if there is an intercept.
    weights : array of shape (n,) or None
        With mean 1 over all rows seen.
    rng : numpy.random.RandomState
    """

    def __init__(self, estimator, data, train, held_out, *, centre, seen=None):
        X, Y = data.X, data.targets
        if scipy.sparse.issparse(X):
            if estimator.device not in ("auto", "cpu"):
                raise ValueError(
                    "device must be 'auto' or 'cpu' for a sparse X; "
                    f"got {estimator.device!r}"
                )
            super().__init__(
                "auto", np.empty((0, X.shape[1]), dtype=X.dtype), several=False
            )
            take = X.__getitem__
            self._dtype = X.dtype
        else:
            super().__init__(estimator.device, X, several=False)
            moved = move_what_fits(X, self.xp, self.device)
            self._dtype, take = moved.dtype, partial(self._take, moved)
        self.rng = data.rng
        self._one_dimensional = estimator._one_dimensional
        rows = take(train)
        w = np.ones(len(train)) if data.weights is None else data.weights[train]
        self._sum_up(rows, Y[train], w, seen, centre)
        self._check_scale(rows)
        self.weights, relative = None, self._n_seen / self._weight
        if data.weights is not None or relative != 1.0:
            self.weights = self.array(w * relative)
        self.targets = self.array(Y[train] - self._target_mean)
        self.operator = LinearOperator(rows, self._mean)
        self._held_out = None if held_out is None else take(held_out)

    def _sum_up(self, rows, Y, w, seen, centre):
        """Set the means of features and targets, and what they are the means of."""
        total = w.sum()
        self._weight, self._n_seen = total, len(w)
        mean = self.array(np.zeros(rows.shape[1]))
        target_mean = np.zeros(Y.shape[1])
        if centre:
            mean = self.array(w / total) @ rows
            target_mean = np.average(Y, axis=0, weights=w)
        if seen is not None:
            weight, old_mean, old_target_mean, n_rows = seen
            self._weight, self._n_seen = weight + total, n_rows + len(w)
            part = float(total / self._weight)
            old_mean = self.xp.astype(
                move(old_mean, self.xp, self.device), self._dtype, copy=False
            )
            mean = old_mean + part * (mean - old_mean)
            target_mean = old_target_mean + part * (target_mean - old_target_mean)
        self._mean, self._target_mean = mean, target_mean

    def _check_scale(self, rows):
        """Raise a ValueError if products of rows would leave the data type's range."""
        values = rows.data if scipy.sparse.issparse(rows) else rows
        limits, size = self.xp.finfo(self._dtype), 0.0
        if 0 not in values.shape:
            size = float(self.xp.max(self.xp.abs(values)))
        low, high = limits.smallest_normal**0.5 * 1e4, limits.max**0.5 * 1e-4
        if size and not low <= size <= high:
            raise ValueError(
                f"X must be scaled: its largest entry must be between {low:.0e} and "
                f"{high:.0e} in {self._dtype}; got {size:.3g}"
            )

    def initial_coef(self, coef=None):
        """Return coefficients (d, l): zeros, or those of a fitted `coef_`."""
        shape = self.operator.shape[1], self.targets.shape[1]
        if coef is None:
            return self.xp.zeros(shape, dtype=self._dtype, device=self.device)
        coef = self.xp.reshape(move(coef, self.xp, self.device), (shape[1], shape[0]))
        return self.xp.asarray(self.xp.astype(coef, self._dtype).T, copy=True)

    def validation_values(self, coef):
        """Return f on the validation rows, on the host, shape (m, l)."""
        F = self._held_out @ coef - self._mean @ coef
        return to_numpy(F) + self._target_mean

    def loss(self, coef, n_rows=None):
        """Return the weighted mean squared residual of the first rows, or of all."""
        n = min(n_rows or self.operator.shape[0], self.operator.shape[0])
        residual = self.operator.product(coef, 0, n)[0] - self.targets[:n, :]
        squares = self.xp.mean(residual * residual, axis=1)
        if self.weights is not None:
            squares = squares * self.weights[:n]
        return float(self.xp.mean(squares))

    def model(self, coef):
        """Return the attributes that prediction and further steps need."""
        intercept = self.array(self._target_mean) - self._mean @ coef
        coef = coef.T
        if self._one_dimensional:
            coef, intercept = coef[0, :], intercept[0]
        return {
            "coef_": self.at_home(self.xp.asarray(coef, copy=True)),
            "intercept_": self.at_home(intercept),
            "mean_": self.at_home(self._mean),
            "target_mean_": self.at_home(self.array(self._target_mean)),
            "n_samples_seen_": self._n_seen,
            "weight_seen_": float(self._weight),
        }


class FeatureProblem(_Located):
    """The training problem of a model of random features.

    `choose` or `go_on`, then `draw_features`, complete it.

    Parameters
    ----------
    estimator : estimator with device
    data : Data
    train, held_out : ndarray of int
        Rows to train with, in the solver's order; rows to score (or None).
    loss : Loss
    centre : bool
        Whether the targets are numbers, to be centred and scaled.

    Attributes
    ----------
    xp, device
        Where the computation is.
    kernel : Kernel
    rows : array of shape (n, d)
        Training rows.
    targets : array of shape (n, l)
    weights : array of shape (n,)
        With mean 1.
    loss_function : Loss
    features : FourierBlocks
    rng : numpy.random.RandomState
    """

    def __init__(self, estimator, data, train, held_out, loss, *, centre):
        super().__init__(estimator.device, data.X, several=False)
        X = move_what_fits(data.X, self.xp, self.device)
        self.rng, self.loss_function, self._centre = data.rng, loss, centre
        self._set_rows(self._take(X, train))
        weights = np.ones(len(train)) if data.weights is None else data.weights[train]
        self.weights = self.array(weights / weights.mean())
        self._targets = data.targets[train]
        self._held_out = None if held_out is None else self._take(X, held_out)

    def _set_rows(self, rows):
        self.rows, self._dtype = rows, rows.dtype

    def take(self, index):
        """Return some rows, and their weights."""
        return self._take(self.rows, index), self._take(self.weights, index)

    def choose(self, kernel, bandwidth):
        """Choose the kernel, the offset of the rows, constant and scale of targets."""
        w, Y = to_numpy(self.weights).astype(np.float64), self._targets
        self.kernel = make_kernel(kernel, bandwidth, self.rows, self.rng)
        self._offset = self.xp.mean(self.rows, axis=0)
        constant = self.loss_function.baseline(Y, w)
        self._target_scale = np.ones(Y.shape[1])
        if self._centre:
            # The standard deviation, of normal targets: outliers don't change it.
            deviation = 1.4826 * weighted_median(np.abs(Y - constant), w)
            spread = np.average((Y - constant) ** 2, axis=0, weights=w) ** 0.5
            # Of targets that are nearly all equal it is rounding, as their spread is.
            deviation = np.where(deviation > 1e-6 * spread, deviation, spread)
            rounding = 1e-12 * np.abs(Y).max(axis=0)
            self._target_scale = np.where(deviation > rounding, deviation, 1.0)
        self._set_targets(constant)

    def go_on(self, fitted):
        """Take from a fitted estimator what `choose` chooses."""
        dtype = move(fitted.offset_, self.xp, self.device).dtype
        self._set_rows(self.xp.astype(self.rows, dtype, copy=False))
        self.weights = self.xp.astype(self.weights, dtype, copy=False)
        self.kernel = fitted.kernel_
        self._offset = move(fitted.offset_, self.xp, self.device)
        self._target_scale = to_numpy(fitted.target_scale_).astype(np.float64)
        parts = (fitted.intercept_, fitted.feature_mean_)
        self._set_targets(sum(to_numpy(part).astype(np.float64) for part in parts))

    def _set_targets(self, constant):
        """Set the targets, and the constant to start from.

        A loss of numbers depends on y - f alone: they are shifted by the constant, and
        scaled so that its threshold means the same in every unit.
        """
        Y, self._shift = self._targets, np.zeros_like(constant)
        if self._centre:
            Y, self._shift = (Y - constant) / self._target_scale, constant
            constant = np.zeros_like(constant)
        self.targets, self._start = self.array(Y), self.array(constant)

    def draw_features(self, seed, block_size, cache_bytes):
        """Set `features`."""
        self.features = FourierBlocks(
            self.kernel,
            seed,
            block_size,
            self.rows,
            self._offset,
            cache_bytes=cache_bytes,
        )

    def initial_coef(self):
        """Return the model that is the constant alone."""
        return Expansion(self._start, self.xp.zeros_like(self._start))

    def expansion_of(self, fitted):
        """Return the expansion of a fitted estimator, after `go_on`."""
        scale = self.array(self._target_scale)
        coef = move(fitted.coef_, self.xp, self.device)
        return Expansion(
            self._start,
            move(fitted.feature_mean_, self.xp, self.device) / scale,
            [coef[k, :, :] / scale for k in range(coef.shape[0])],
            list(to_numpy(fitted.block_sums_).astype(np.float64)),
            n_steps=fitted.t_,
        )

    def values(self, rows, expansion):
        """Return f on some rows."""
        blocks, n_columns = range(len(expansion.coef)), self.targets.shape[1]
        product = self.features.product(rows, blocks, expansion.coef, n_columns)
        return product * expansion.scale + expansion.intercept

    def validation_values(self, expansion):
        """Return f on the validation rows in the unit of y, on the host, (m, l)."""
        F = to_numpy(self.values(self._held_out, expansion))
        return F * self._target_scale + self._shift

    def loss(self, expansion, n_rows=None):
        """Return the weighted mean loss of the first rows, or of all."""
        rows = slice(0, min(n_rows or len(self._targets), len(self._targets)))
        F = self.values(self.rows[rows, :], expansion)
        losses = self.loss_function.value(self.targets[rows, :], F)
        return float(self.xp.mean(losses * self.weights[rows]))

    def model(self, expansion):
        """Return the attributes that prediction and further steps need."""
        xp, n_blocks = self.xp, len(expansion.coef)
        size, n_columns = 2 * self.features.block_size, self.targets.shape[1]
        scale = self.array(self._target_scale)
        options = {"dtype": self._dtype, "device": self.device}
        coef = xp.zeros((n_blocks, size, n_columns), **options)
        for k, A in enumerate(expansion.coef):
            coef[k, :, :] = expansion.scale * scale * A
        constant = to_numpy(expansion.constant) * self._target_scale + self._shift
        mean = expansion.scale * to_numpy(expansion.mean) * self._target_scale
        sums = expansion.block_sums().reshape(n_blocks, n_columns)
        return {
            "coef_": self.at_home(coef),
            "intercept_": self.at_home(self.array(constant - mean)),
            "feature_mean_": self.at_home(self.array(mean)),
            "target_scale_": self.at_home(scale),
            "offset_": self.at_home(self._offset),
            "kernel_": self.kernel,
            "bandwidth_": self.kernel.bandwidth,
            "seed_": self.features.seed,
            "seeds_": self._home_array(self.features.seed + np.arange(n_blocks)),
            "block_sums_": self.at_home(self.array(sums)),
            "n_blocks_": n_blocks,
            "n_features_used_": n_blocks * self.features.block_size,
            "t_": expansion.n_steps,
        }


class Rows(NamedTuple):
    """Rows of a least-squares problem.

    Attributes
    ----------
    X : array of shape (n, d)
    targets : array of shape (n, l)
        In float64, as all of the linear algebra with them.
    weights : array of shape (n,)
        In float64.
    index : ndarray of shape (n,)
        Their places in the X of the user.
    """

    X: Any
    targets: Any
    weights: Any
    index: np.ndarray


class CenterProblem(_Located):
    """A least-squares problem on centres: rows, centres, kernel.

    Parameters
    ----------
    estimator : estimator with kernel, bandwidth, n_centers and device
    data : Data
    train, held_out : ndarray of int
        Rows to train with; rows to select by (None: those of `data.validation`).
    centers : array of shape (p, d), default=None
        Centres that were given.
    one_matrix : bool, default=True
        Whether `full` means K(X, X) of the rows; otherwise the centres are then all
        distinct rows.

    Attributes
    ----------
    xp, device
        Where the computation is.
    kernel : Kernel or None
        None for "precomputed".
    train, validation, all : Rows
        `all` are train and held-out rows; `validation` may be None.
    full : bool
        Whether every row is a centre.
    n_centers : int or None
        None if `full`.
    center_indices : ndarray of shape (p,) or None
        Rows of X that are centres; None if `full` or where centres are no rows.
    shift : ndarray of shape (l,)
        What was subtracted from all targets, so that sums of squares are accurate.
    """

    def __init__(
        self, estimator, data, train, held_out, centers=None, *, one_matrix=True
    ):
        super().__init__(estimator.device, data.X)
        X = self._here_if_small(data.X)
        self._dtype = self._here(X[:0, :]).dtype
        self.full = estimator.n_centers is None and centers is None
        self._data = data
        order = train if held_out is None else np.concatenate([train, held_out])
        weights = data.weights if data.weights is not None else np.ones(X.shape[0])
        weights = weights / weights[order].mean()
        if not np.array_equal(order, np.arange(X.shape[0])):
            X = self._take(X, order)
        self.shift = np.average(data.targets[order], axis=0, weights=weights[order])
        self.all = self._rows(X, data.targets[order], weights[order], order)
        self.train = Rows(*(part[: len(train), ...] for part in self.all))
        self.validation = None
        if held_out is not None:
            self.validation = Rows(*(part[len(train) :, ...] for part in self.all))
        elif data.validation is not None:
            X_val, Y_val, w_val = data.validation
            w_val = np.ones(len(Y_val)) if w_val is None else w_val / w_val.mean()
            X_val = self.xp.astype(self._here(X_val), self._dtype)
            self.validation = self._rows(X_val, Y_val, w_val, np.arange(0))
        self.kernel = self._centers = self.center_indices = None
        self._choose_kernel(estimator)
        choice = "array" if centers is not None else estimator.centers
        self._choose_centers(estimator.n_centers, centers, choice, one_matrix)

    def _rows(self, X, targets, weights, index):
        xp = self.xp
        options = {"dtype": xp.float64, "device": self.device}
        targets = xp.asarray(targets - self.shift, **options)
        return Rows(X, targets, xp.asarray(weights, **options), index)

    @property
    def dtype(self):
        """Data type of the kernel's values."""
        return self._dtype

    def _choose_kernel(self, estimator):
        if self._data.precomputed:
            return
        X, rng = self.all.X, self._data.rng
        if isinstance(estimator.bandwidth, str) and isinstance(estimator.kernel, str):
            X = self._take(X, self._data.distinct(self.all.index)[0])
        self.kernel = make_kernel(estimator.kernel, estimator.bandwidth, X, rng)

    def _choose_centers(self, n_centers, centers, choice, one_matrix):
        xp = self.xp
        self.n_centers = self._center_weights = None
        if self.full and one_matrix:
            return
        if centers is not None:
            self._centers = xp.astype(self._here(centers), self._dtype, copy=True)
            self.n_centers = centers.shape[0]
            return
        first, which = self._data.distinct(self.train.index)
        n_centers = len(first) if n_centers is None else n_centers
        totals = np.bincount(which, weights=to_numpy(self.train.weights))
        alike = choice == "uniform" or n_centers >= len(first)
        if alike:
            chosen = uniform(len(first), n_centers, self._data.rng)
        else:
            X = self._take(self.train.X, first)
            if self.kernel is None:
                X = self._take(X, self.train.index[first], axis=1)
            rng = self._data.rng
            centers, chosen = choose(choice, self.kernel, X, n_centers, rng, totals)
        if chosen is None:
            self._centers, self.n_centers = self._here(centers), n_centers
            return
        if alike or self.kernel is None:
            self._center_weights = totals[chosen]
        self._chosen = first[chosen]
        self.center_indices = self.train.index[self._chosen]
        self.n_centers = len(chosen)
        if self.kernel is not None:
            self._centers = self._here(self._take(self.train.X, self._chosen))

    def n_distinct(self, rows):
        """Return the number of distinct rows with distinct targets among some."""
        if len(rows.index):
            return len(self._data.distinct_with_targets(rows.index)[0])
        # Validation rows that were given; those without weight may be among them.
        pairs = np.column_stack([distinct_rows(rows.X)[1], to_numpy(rows.targets)])
        return len(np.unique(pairs[to_numpy(rows.weights) > 0], axis=0))

    def has_memory(self, plan):
        """Whether the free memory holds a `NystromPlan`."""
        return plan.bytes <= available_memory(self.xp, self.device)

    def check_memory(self, plan):
        """Raise a ValueError unless the free memory holds a `NystromPlan`."""
        if not self.has_memory(plan):
            free = available_memory(self.xp, self.device)
            size = self.n_centers or len(self.all.index)
            raise ValueError(
                f"n_centers={self.n_centers} needs {plan.bytes / 1e6:.0f} MB, most of "
                f"it for matrices of {size} x {size}, but {free / 1e6:.0f} MB of "
                "memory are free; pass a smaller n_centers"
            )

    def center_matrix(self):
        """Return K(Z, Z) in float64."""
        xp = self.xp
        if self.kernel is None:
            K = self._take(self.all.X, self._chosen)
            K = self._here(self._take(K, self.center_indices, axis=1))
            return xp.astype(K, xp.float64)
        return KernelOperator(self.kernel, xp.astype(self._centers, xp.float64)).block()

    def operator(self, rows, kept):
        """Return K(X, Z) of some rows and of the centres with indices `kept`."""
        if self.kernel is None:
            K = self._take(rows.X, self.center_indices[kept], axis=1)
            return KernelOperator.from_matrix(self._here(K))
        kept = self._take(self._centers, kept)
        return make_operator(self.kernel, kept, self._places, rows.X)

    def full_operator(self, centers, rows=None):
        """Return K(X, X) of the rows `centers`, or of other rows and them."""
        if self.kernel is None:
            X = (centers if rows is None else rows).X
            K = self._take(X, centers.index, axis=1)
            return KernelOperator.from_matrix(self._here(K))
        rows = None if rows is None else rows.X
        return make_operator(self.kernel, centers.X, self._places, rows)

    def center_model(self, coef, intercept, kept):
        """Return the attributes that prediction needs, of coefficients of centres."""
        coef = self._checked(coef)
        if self.full or self.kernel is None:
            kept = self.center_indices[kept]
        coef = self._scatter(coef, kept, self.n_coefficients)
        if self.full:
            return self._model(coef, self._unshifted(intercept), self._X) | {
                "center_indices_": None
            }
        centers = None if self._centers is None else self.at_home(self._centers)
        indices = self.center_indices
        if indices is not None:
            indices = self.at_home(self.xp.asarray(indices, device=self.device))
        return self._model(coef, self._unshifted(intercept), centers) | {
            "center_indices_": indices
        }

    def home_floats(self, values):
        """Return values of the host (or None) in float64 where X lives."""
        if values is None:
            return None
        return self._home_array(values)

    def has_centers(self, centers, indices):
        """Whether the fitted `centers_` and `center_indices_` are this problem's."""
        mine = (self._X, None) if self.full else (self._centers, self.center_indices)
        my_centers = None if self.kernel is None else mine[0]
        return _same(my_centers, centers) and _same(mine[1], indices)

    @property
    def n_coefficients(self):
        """Rows of the `dual_coef_` of a model."""
        of_rows = self.full or self.kernel is None
        return self._X.shape[0] if of_rows else self.n_centers

    def weights_of_centers(self, kept):
        """Return what each of the centres with indices `kept` stands for.

        The weight of the rows that are equal to it; or, where centres are no uniform
        sample of the rows, and rows have distances, of those that are nearest to it.
        """
        if self._center_weights is None:
            X, weights = self.train.X, to_numpy(self.train.weights)
            centers = self._take(self._centers, kept)
            of_kept = masses(X, move(centers, namespace(X), device_of(X)), weights)
        else:
            of_kept = self._center_weights[kept]
        return self.xp.asarray(of_kept, device=self.device)

    def center_coef(self, dual_coef, kept):
        """Return coefficients of the centres `kept`, of `dual_coef_` of a model."""
        dual_coef = move(dual_coef, self.xp, self.device)
        rows = self.full or self.kernel is None
        index = self.center_indices[kept] if rows else kept
        return self.xp.astype(self._take(dual_coef, index), self.xp.float64)

    def full_model(self, coef, intercept, rows):
        """Return the attributes that prediction needs, of coefficients of rows of X."""
        coef = self._checked(coef)
        coef = self._scatter(coef, rows.index, self._X.shape[0])
        return self._model(coef, self._unshifted(intercept), self._X) | {
            "center_indices_": None
        }

    def _checked(self, coef):
        """Return coefficients in the data type of X, if they are finite in it."""
        coef = self.xp.astype(coef, self._dtype, copy=False)
        if not bool(self.xp.all(self.xp.isfinite(coef))):
            raise ValueError(
                "the coefficients are not finite: scale y, X or sample_weight, or pass "
                "a larger alpha or another kernel"
            )
        return coef

    def _unshifted(self, intercept):
        return to_numpy(intercept) + self.shift


def _same(one, other):
    """Whether two arrays, or None, are equal."""
    if one is None or other is None:
        return one is other
    return np.array_equal(to_numpy(one), to_numpy(other))
