"""Least squares on centers, or on all rows, in closed form."""

from typing import Any, NamedTuple

import numpy as np

from ..backend import memory
from ..backend.array import device_of, move, namespace, to_numpy
from ..centers import choose, distinct_rows, masses, uniform
from ..operators.given import GivenMatrix
from ..operators.sharded import kernel_operator
from ..operators.tiled import TiledKernel
from .data import _Located
from .parameters import make_kernel


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
    """A least-squares problem on centers: rows, centers, kernel.

    Parameters
    ----------
    estimator : estimator with kernel, bandwidth, n_centers and device
    data : Data
    train, held_out : ndarray of int
        Rows to train with; rows to select by (None: those of `data.validation`).
    centers : array of shape (p, d), default=None
        Centers that were given.
    one_matrix : bool, default=True
        Whether `full` means K(X, X) of the rows; otherwise the centers are then all
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
        Whether every row is a center.
    n_centers : int or None
        None if `full`.
    center_indices : ndarray of shape (p,) or None
        Rows of X that are centers; None if `full` or where centers are no rows.
    shift : ndarray of shape (l,)
        What was subtracted from all targets, so that sums of squares are accurate.
    """

    def __init__(
        self, estimator, data, train, held_out, centers=None, *, one_matrix=True
    ):
        super().__init__(estimator.device, data.X)
        X = self._to_compute_if_small(data.X)
        self._dtype = self._to_compute(X[:0, :]).dtype
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
            X_val = self.xp.astype(self._to_compute(X_val), self._dtype)
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
            self._centers = xp.astype(self._to_compute(centers), self._dtype, copy=True)
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
            self._centers, self.n_centers = self._to_compute(centers), n_centers
            return
        if alike or self.kernel is None:
            self._center_weights = totals[chosen]
        self._chosen = first[chosen]
        self.center_indices = self.train.index[self._chosen]
        self.n_centers = len(chosen)
        if self.kernel is not None:
            self._centers = self._to_compute(self._take(self.train.X, self._chosen))

    def n_distinct(self, rows):
        """Return the number of distinct rows with distinct targets among some."""
        if len(rows.index):
            return len(self._data.distinct_with_targets(rows.index)[0])
        # Validation rows that were given; those without weight may be among them.
        pairs = np.column_stack([distinct_rows(rows.X)[1], to_numpy(rows.targets)])
        return len(np.unique(pairs[to_numpy(rows.weights) > 0], axis=0))

    def has_memory(self, plan):
        """Whether the free memory holds a `NystromPlan`."""
        return plan.bytes <= memory.available(self.xp, self.device)

    def check_memory(self, plan):
        """Raise a ValueError unless the free memory holds a `NystromPlan`."""
        if not self.has_memory(plan):
            free = memory.available(self.xp, self.device)
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
            K = self._to_compute(self._take(K, self.center_indices, axis=1))
            return xp.astype(K, xp.float64)
        return TiledKernel(self.kernel, xp.astype(self._centers, xp.float64)).block()

    def operator(self, rows, kept):
        """Return K(X, Z) of some rows and of the centers with indices `kept`."""
        if self.kernel is None:
            K = self._take(rows.X, self.center_indices[kept], axis=1)
            return GivenMatrix(self._to_compute(K))
        kept = self._take(self._centers, kept)
        return kernel_operator(self.kernel, kept, self._devices, rows.X)

    def full_operator(self, centers, rows=None):
        """Return K(X, X) of the rows `centers`, or of other rows and them."""
        if self.kernel is None:
            X = (centers if rows is None else rows).X
            K = self._take(X, centers.index, axis=1)
            return GivenMatrix(self._to_compute(K))
        rows = None if rows is None else rows.X
        return kernel_operator(self.kernel, centers.X, self._devices, rows)

    def center_model(self, coef, intercept, kept):
        """Return the attributes that prediction needs, of coefficients of centers."""
        coef = self._checked(coef)
        if self.full or self.kernel is None:
            kept = self.center_indices[kept]
        coef = self._scatter(coef, kept, self.n_coefficients)
        if self.full:
            return self._model(coef, self._unshifted(intercept), self._X) | {
                "center_indices_": None
            }
        centers = None if self._centers is None else self.to_source(self._centers)
        indices = self.center_indices
        if indices is not None:
            indices = self.to_source(self.xp.asarray(indices, device=self.device))
        return self._model(coef, self._unshifted(intercept), centers) | {
            "center_indices_": indices
        }

    def source_floats(self, values):
        """Return values of the host (or None) in float64 where X lives."""
        if values is None:
            return None
        return self._host_to_source(values)

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
        """Return what each of the centers with indices `kept` stands for.

        The weight of the rows that are equal to it; or, where centers are no uniform
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
        """Return coefficients of the centers `kept`, of `dual_coef_` of a model."""
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
