"""Models on features: explicit ones, and blocks of random ones."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from ..arrays.array import move, to_numpy
from ..arrays.linalg import large_product
from ..losses import SquaredError, mean_of_targets, weighted_median
from ..methods.stochastic import Expansion, TrainingRows
from ..operators.centered import features_of, levels_of, near, sums_of_features
from ..operators.waves import FourierBlocks, KeptSlabs, frame_of_phases
from ..plan.of_random_features import (
    ALPHA,
    KEPT_BYTES,
    N_SAMPLED,
    longest_safe_step,
)
from ..rows.lazy_rows import StoredRows, is_lazy
from ..rows.robust import cast
from ..rows.transfer import move_what_fits
from .closed_form import ridge_of_rows
from .kernel_parameters import check_extremes, check_largest, make_kernel
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
        else:
            super().__init__(device, X, several=False)
            if not is_lazy(X):
                X = move_what_fits(X, self.xp, self.device)
        self.dtype, self.rng = X.dtype, data.rng
        self._one_dimensional = one_dimensional
        rows = X.in_order(train) if is_lazy(X) else take(X, train)
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
        self.targets = self.centered(Y)
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
        self._held_out = None if held_out is None else take(X, held_out)

    def centered(self, targets):
        """Return targets without their mean, on the device that computes."""
        return self.array(targets - self._seen.target_mean)

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


class Start(NamedTuple):
    """What is chosen on the first rows and kept for later rows.

    `seed` is that of the frequencies; `offset` is subtracted from all rows, whose
    entries are cut off at the `limits`, (d,) each. `target_scale` (l,) is the unit of
    the targets, `constant` (l,) the one to start from, in units of y.
    """

    kernel: Any
    seed: int
    offset: Any
    limits: Any
    target_scale: np.ndarray
    constant: np.ndarray

    @classmethod
    def of(cls, fitted):
        """Return that of a fitted model, from its attributes."""
        names = "target_scale_", "intercept_", "feature_mean_"
        scale, *parts = (to_numpy(fitted[name]).astype(np.float64) for name in names)
        rest = fitted["kernel_"], fitted["seed_"], fitted["offset_"], fitted["limits_"]
        return cls(*rest, scale, sum(parts))


class FourierProblem(Problem):
    """Any convex loss of f = b + sum_k (phi_k - mu_k)' A_k, phi_k random features.

    With `numbers`, targets are numbers, which are centered and scaled, not labels. With
    a `start`, that of a fitted model, it continues with this model.

    Attributes
    ----------
    rows : TrainingRows
        Training rows, with shifted and scaled targets.
    kernel : Kernel
    loss_function : Loss
    features : FourierBlocks
    """

    def __init__(
        self,
        data,
        train,
        held_out,
        loss,
        *,
        numbers,
        kernel,
        bandwidth,
        device,
        block_size,
        frequency_bytes,
        alpha=None,
        start=None,
    ):
        super().__init__(device, data.X, several=False)
        all_rows = move_what_fits(data.X, self.xp, self.device)
        self.rng, self.loss_function = data.rng, loss
        X, Y, w = take(all_rows, train), data.targets[train], data.weights_of(train)
        w = w / w.mean()
        if start is None:
            start = self._choose(data, X, Y, w, numbers, kernel, bandwidth, alpha)
        self.kernel, self._target_scale = start.kernel, start.target_scale
        self._offset, self._limits = (
            move(values, self.xp, self.device)
            for values in (start.offset, start.limits)
        )
        X = cast(X, self._offset.dtype)
        self.dtype, constant = X.dtype, start.constant
        # A loss of numeric targets depends only on y - f: shift the targets by the
        # constant, and scale them so that a threshold of the loss means the same in
        # every unit.
        self._shift = np.zeros_like(constant)
        if numbers:
            Y, self._shift = (Y - constant) / self._target_scale, constant
            constant = np.zeros_like(constant)
        # Contiguous columns make losses of few columns faster.
        self.targets = self.array(Y.T.copy()).T
        self.weights, self._constant = self.array(w), self.array(constant)
        self.rows = TrainingRows(X, self.targets, self.weights)
        if held_out is not None:
            self._held_out = take(all_rows, held_out)
            w = data.weights_of(held_out)
            self._held_out_targets = data.targets[held_out], w
        given = self.kernel, start.seed, block_size, X, self._offset, self._limits
        self.features = FourierBlocks(*given, cache_bytes=frequency_bytes)
        self._kept = KeptSlabs(KEPT_BYTES)

    def _choose(self, data, X, Y, w, numbers, kernel, bandwidth, alpha):
        """Return the `Start` for the training rows."""
        constant = self.loss_function.baseline(Y, w)
        scale, shift = np.ones(Y.shape[1]), constant if numbers else 0.0
        if numbers:
            # The standard deviation of normal targets, estimated robustly.
            residual = Y - self.loss_function.middle(Y, w)
            deviation = 1.4826 * weighted_median(np.abs(residual), w)
            spread = np.average(residual**2, axis=0, weights=w) ** 0.5
            # If nearly all targets are equal, it may be rounding: use their spread.
            deviation = np.where(deviation > 1e-6 * spread, deviation, spread)
            rounding = 1e-12 * np.abs(Y).max(axis=0)
            scale = np.where(deviation > rounding, deviation, 1.0)
        if alpha is not None:
            alpha /= self.loss_function.curvature_at(constant - shift)
        usual = self._without_outliers((Y - shift) / scale)
        kernel = make_kernel(kernel, bandwidth, X, self.rng, usual, w, data, alpha)
        seed = int(self.rng.randint(2**31 - 1))
        frame = frame_of_phases(X, kernel.bandwidth)
        return Start(kernel, seed, *frame, scale, constant)

    def initial_coef(self):
        """Return the constant model."""
        return Expansion(self._constant, self.xp.zeros_like(self._constant))

    def coef_of(self, fitted):
        """Return the expansion of a fitted model, from its attributes."""
        scale = self.array(self._target_scale)
        coef = move(fitted["coef_"], self.xp, self.device)
        return Expansion(
            self._constant,
            move(fitted["feature_mean_"], self.xp, self.device) / scale,
            [coef[k, :, :] / scale for k in range(coef.shape[0])],
            list(to_numpy(fitted["block_sums_"]).astype(np.float64)),
            n_steps=fitted["t_"],
        )

    def auto_alpha(self, data, train, n_rows):
        """Return the lambda with which kernel ridge regression predicts new rows best.

        Near the constant model a loss of curvature L is the squared loss times L, and
        so is its lambda.
        """
        Y = self._without_outliers((data.targets - self._shift) / self._target_scale)
        data = replace(data, targets=Y)
        merged = data.merged(train)
        alpha = ridge_of_rows(self, merged, n_rows, self.dtype) / len(merged.rows)
        return max(self.loss_function.curvature_at(self._constant) * alpha, ALPHA)

    def _without_outliers(self, Y):
        """Return scaled targets without what a loss that tolerates outliers ignores."""
        if isinstance(self.loss_function, SquaredError):
            return Y
        return np.clip(Y, -3.0, 3.0)

    def longest_step(self, plan, alpha):
        """Return the `longest_safe_step` for a random sample of the rows."""
        index = self.rng.permutation(self.rows.X.shape[0])[:N_SAMPLED]
        rows, weights = take(self.rows.X, index), take(self.weights, index)
        curvature = self.loss_function.curvature
        return longest_safe_step(self.kernel, rows, weights, curvature, plan, alpha)

    def validation_values(self, coef):
        """Return f on the held-out rows in units of y, on the host, shape (m, l)."""
        F = coef.predict(self.features, self._held_out, self._kept)
        return to_numpy(F) * self._target_scale + self._shift

    def losses_of(self, Y, F):
        """Return the loss of each value F for targets Y, both on the host."""
        return self.loss_function.value(Y / self._target_scale, F / self._target_scale)

    def with_held_out_constant(self, coef):
        """Return `coef` plus the best constant for its residuals on held-out rows."""
        Y, w = self._held_out_targets
        shift = self.loss_function.baseline(Y - self.validation_values(coef), w)
        shift = self.array(shift / self._target_scale)
        return replace(coef, constant=coef.constant + shift)

    def loss(self, coef, n_rows=None):
        """Return the weighted mean loss of the first rows, or of all."""
        n = self.rows.X.shape[0]
        rows = slice(0, min(n_rows or n, n))
        F = coef.predict(self.features, self.rows.X[rows, :])
        losses = self.loss_function.value(self.targets[rows, :], F)
        return float(self.xp.mean(losses * self.weights[rows]))

    def fitted_attributes(self, coef):
        """Return the attributes that prediction and further steps need."""
        xp, n_blocks, n_columns = self.xp, len(coef.coef), self.targets.shape[1]
        scale = self.array(self._target_scale)
        shape = n_blocks, 2 * self.features.block_size, n_columns
        blocks = xp.zeros(shape, **self.features.array_options)
        for k, A in enumerate(coef.coef):
            blocks[k, :, :] = coef.scale * scale * A
        constant = to_numpy(coef.constant) * self._target_scale + self._shift
        mean = coef.scale * to_numpy(coef.mean) * self._target_scale
        sums = coef.block_sums().reshape(n_blocks, n_columns)
        return {
            "coef_": self.to_source(blocks),
            "intercept_": self.to_source(self.array(constant - mean)),
            "feature_mean_": self.to_source(self.array(mean)),
            "target_scale_": self.to_source(scale),
            "offset_": self.to_source(self._offset),
            "limits_": self.to_source(self._limits),
            "kernel_": self.kernel,
            "bandwidth_": self.kernel.bandwidth,
            "seed_": self.features.seed,
            "seeds_": self.to_source(self.features.seed + np.arange(n_blocks)),
            "block_sums_": self.to_source(self.array(sums)),
            "n_blocks_": n_blocks,
            "n_features_used_": n_blocks * self.features.block_size,
            "t_": coef.n_steps,
        }
