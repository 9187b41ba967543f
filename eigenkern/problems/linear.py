"""The training problem of a linear model."""

from functools import partial

import numpy as np
import scipy.sparse

from ..backend.array import move, to_numpy
from ..backend.transfer import move_what_fits
from ..operators.linear import CenteredFeatures
from .data import _Located


class LinearProblem(_Located):
    """The training problem of a linear model on given features.

    Parameters
    ----------
    estimator : estimator with device
    data : Data
        Its X may be sparse, in CSR.
    train, held_out : ndarray of int
        Rows to train with, in the solver's order; rows to score (or None).
    center : bool
        Whether there is an intercept.
    seen : tuple (weight, mean, target_mean, n_rows), default=None
        Of the rows seen before, which count in the means: their total weight, the mean
        of their features (where X lives) and of their targets, their number.

    Attributes
    ----------
    xp, device
        Where the computation is.
    operator : CenteredFeatures
        The training rows.
    targets : array of shape (n, l)
        Centered, if there is an intercept.
    weights : array of shape (n,) or None
        With mean 1 over all rows seen.
    rng : numpy.random.RandomState
    """

    def __init__(self, estimator, data, train, held_out, *, center, seen=None):
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
        self._sum_up(rows, Y[train], w, seen, center)
        self._check_scale(rows)
        self.weights, relative = None, self._n_seen / self._weight
        if data.weights is not None or relative != 1.0:
            self.weights = self.array(w * relative)
        self.targets = self.array(Y[train] - self._target_mean)
        self.operator = CenteredFeatures(rows, self._mean)
        self._held_out = None if held_out is None else take(held_out)

    def _sum_up(self, rows, Y, w, seen, center):
        """Set the means of features and targets, and what they are the means of."""
        total = w.sum()
        self._weight, self._n_seen = total, len(w)
        mean = self.array(np.zeros(rows.shape[1]))
        target_mean = np.zeros(Y.shape[1])
        if center:
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
            "coef_": self.to_source(self.xp.asarray(coef, copy=True)),
            "intercept_": self.to_source(intercept),
            "mean_": self.to_source(self._mean),
            "target_mean_": self.to_source(self.array(self._target_mean)),
            "n_samples_seen_": self._n_seen,
            "weight_seen_": float(self._weight),
        }
