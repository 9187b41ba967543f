"""The training problem of a model of random features."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import move, to_numpy
from ..losses import SquaredError, weighted_median
from ..methods.stochastic import Expansion, TrainingRows
from ..operators.waves import FourierBlocks, frame_of_phases
from ..plan.of_random_features import ALPHA, N_SAMPLED, longest_safe_step
from ..rows.robust import cast
from ..rows.transfer import move_what_fits
from .closed_form import ridge_of_rows
from .kernel_parameters import make_kernel
from .problem import Problem, take


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
            w = None if data.weights is None else data.weights[held_out]
            self._held_out_targets = data.targets[held_out], w
        given = self.kernel, start.seed, block_size, X, self._offset, self._limits
        self.features = FourierBlocks(*given, cache_bytes=frequency_bytes)

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
        F = coef.predict(self.features, self._held_out)
        return to_numpy(F) * self._target_scale + self._shift

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
