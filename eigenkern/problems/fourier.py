"""The training problem of a model of random features."""

import numpy as np

from ..backend.array import move, to_numpy
from ..backend.transfer import move_what_fits
from ..kernels import make_kernel
from ..losses import weighted_median
from ..operators.fourier import FourierBlocks
from ..solvers.doubly_stochastic import Expansion
from .data import _Located


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
    center : bool
        Whether the targets are numbers, to be centered and scaled.

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

    def __init__(self, estimator, data, train, held_out, loss, *, center):
        super().__init__(estimator.device, data.X, several=False)
        X = move_what_fits(data.X, self.xp, self.device)
        self.rng, self.loss_function, self._center = data.rng, loss, center
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
        if self._center:
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
        if self._center:
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
            "coef_": self.to_source(coef),
            "intercept_": self.to_source(self.array(constant - mean)),
            "feature_mean_": self.to_source(self.array(mean)),
            "target_scale_": self.to_source(scale),
            "offset_": self.to_source(self._offset),
            "kernel_": self.kernel,
            "bandwidth_": self.kernel.bandwidth,
            "seed_": self.features.seed,
            "seeds_": self._host_to_source(self.features.seed + np.arange(n_blocks)),
            "block_sums_": self.to_source(self.array(sums)),
            "n_blocks_": n_blocks,
            "n_features_used_": n_blocks * self.features.block_size,
            "t_": expansion.n_steps,
        }
