"""The training problem of a linear model on explicit features."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from ..arrays.array import move, to_numpy
from ..arrays.linalg import large_product
from ..losses import mean_of_targets
from ..operators.centered import features_of, levels_of, near, sums_of_features
from ..rows.lazy_rows import StoredRows, is_lazy
from ..rows.transfer import move_what_fits
from .kernel_parameters import check_extremes, check_largest
from .problem import Problem, take


class Seen(NamedTuple):
    """Rows seen before, which count in the means: their number and total weight.

    The means are that of their features, (d,), where X lives, and that of their
    targets, (l,), in float64 on the host.
    """

    n_rows: int
    weight: float
    mean: Any
    target_mean: np.ndarray


class LinearProblem(Problem):
    """Least squares with f = (x - mean) w + intercept.

    X may be sparse, in CSR. `center`: there is an intercept. `one_dimensional`: fitted
    coefficients have the shape (d,), of one output. `seen`: rows of earlier pieces;
    unless `counts`, the training rows do not count in the means.
    ``needs_normal(operator)``, if given, returns whether `normal` is needed.

    Attributes
    ----------
    operator : CenteredFeatures or DaskMatrix
        The training rows.
    weights : array of shape (n,) or None
        With mean 1 over all rows seen.
    normal : tuple of ndarray, (d, d) and (d, l), or None
        F' W F and F' W y in float64 if the rows are in a file, F the operator.
    """

    def __init__(
        self,
        data,
        train,
        held_out,
        *,
        device,
        center,
        one_dimensional,
        seen=None,
        counts=True,
        needs_normal=None,
    ):
        X = data.X
        if scipy.sparse.issparse(X):
            if device not in ("auto", "cpu"):
                raise ValueError(
                    f"device must be 'auto' or 'cpu' for a sparse X; got {device!r}"
                )
            like = np.empty((0, X.shape[1]), dtype=X.dtype)
            super().__init__("auto", like, several=False)
            rows_of = X.__getitem__
        else:
            super().__init__(device, X, several=False)
            if not is_lazy(X):
                X = move_what_fits(X, self.xp, self.device)
            rows_of = partial(take, X)
        self.dtype, self.rng = X.dtype, data.rng
        self._one_dimensional = one_dimensional
        rows = X.in_order(train) if is_lazy(X) else rows_of(train)
        w, Y, sums, levels = data.weights_of(train), data.targets[train], None, None
        if isinstance(X, StoredRows):  # read once; a file has no earlier pieces
            zeros = np.zeros(X.shape[1], dtype=self.dtype)
            with_gram = needs_normal is not None
            with_gram = with_gram and needs_normal(features_of(rows, zeros))
            target_mean = mean_of_targets(Y, w) if center else np.zeros(Y.shape[1])
            sums = sums_of_features(
                rows,
                Y,
                None if data.weights is None else w,
                target_mean,
                center=center,
                with_gram=with_gram,
            )
            check_extremes(*sums.extremes, self.xp, self.dtype)
            mean, levels = (sums.mean, sums.levels) if center else (zeros, None)
            seen = Seen(len(w), w.sum(), self.array(mean), target_mean)
        else:
            values = rows.data if scipy.sparse.issparse(rows) else rows
            check_largest(values, self.xp, self.dtype)
            if center:
                levels = levels_of(rows, self.array(np.zeros(X.shape[1])))
            if counts:
                seen = self._sum_up(rows, Y, w, levels, seen)
        self._seen, self._mean = seen, self._on_device(seen.mean)
        self.weights, relative = None, seen.n_rows / seen.weight
        if data.weights is not None or relative != 1.0:
            self.weights = self.array(w * relative)
        self.targets = self.array(Y - seen.target_mean)
        varies = None  # all columns do
        if levels is not None:
            constant = near(levels, self._mean)
            if bool(self.xp.any(constant)):
                varies = self.xp.astype(~constant, self.dtype)
        self.operator, self.normal = features_of(rows, self._mean, varies), None
        if sums is not None and sums.gram is not None:
            G, b = sums.normal_equations(self._mean)
            varies = np.ones_like(self._mean) if varies is None else varies
            G *= varies
            G *= relative * varies[:, None]
            self.normal = G, relative * varies[:, None] * b
        self._held_out = None if held_out is None else rows_of(held_out)

    def _sum_up(self, rows, Y, w, levels, seen):
        """Return the `Seen` of these rows and those seen before."""
        total, n = w.sum(), len(w)
        mean, target_mean = self.array(np.zeros(rows.shape[1])), np.zeros(Y.shape[1])
        if levels is not None:
            sums = features_of(rows, mean).adjoint(self.array(w / total)[:, None])
            mean = sums[:, 0]
            mean = self.xp.where(self.xp.isnan(levels), mean, levels)
            target_mean = mean_of_targets(Y, w)
        if seen is None:
            return Seen(n, total, mean, target_mean)
        weight = seen.weight + total
        part = float(total / weight)
        old = self._on_device(seen.mean)
        target_mean = seen.target_mean + part * (target_mean - seen.target_mean)
        return Seen(seen.n_rows + n, weight, old + part * (mean - old), target_mean)

    def _on_device(self, mean):
        mean = move(mean, self.xp, self.device)
        return self.xp.astype(mean, self.dtype, copy=False)

    def suits(self, fitted):
        """Whether a model with these attributes has as many features and outputs."""
        shape = (1, *fitted["coef_"].shape)[-2:]
        return tuple(shape) == (self.targets.shape[1], self.operator.shape[1])

    def coef_of(self, fitted):
        """Return the coefficients (d, l) of a fitted model, from its attributes."""
        d, n_outputs = self.operator.shape[1], self.targets.shape[1]
        coef = move(fitted["coef_"], self.xp, self.device)
        coef = self.xp.reshape(coef, (n_outputs, d))
        return self.xp.asarray(self.xp.astype(coef, self.dtype).T, copy=True)

    def validation_values(self, coef):
        """Return f on the held-out rows, on the host, shape (m, l)."""
        if is_lazy(self._held_out):
            F = features_of(self._held_out, self._mean) @ coef
        else:
            F = large_product(self._held_out, coef) - self._mean @ coef
        return to_numpy(F) + self._seen.target_mean

    @property
    def rounding(self):
        """Largest mean square that rounding leaves if all targets equal their mean."""
        # Rounding y and its mean leaves at most eps times the mean; the factor allows
        # for the rounding of a few operations by which y was computed.
        eps = float(self.xp.finfo(self.dtype).eps)
        return float(np.max((10 * eps * self._seen.target_mean) ** 2))

    def fitted_attributes(self, coef):
        """Return the attributes that prediction and further steps need."""
        target_mean = self.array(self._seen.target_mean)
        intercept = target_mean - self._mean @ coef
        coef = coef.T
        if self._one_dimensional:
            coef, intercept = coef[0, :], intercept[0]
        return {
            "coef_": self.to_source(self.xp.asarray(coef, copy=True)),
            "intercept_": self.to_source(intercept),
            "mean_": self.to_source(self._mean),
            "target_mean_": self.to_source(target_mean),
            "n_samples_seen_": self._seen.n_rows,
            "weight_seen_": float(self._seen.weight),
        }
