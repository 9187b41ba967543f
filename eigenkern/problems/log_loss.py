"""Kernel logistic regression on the features of centers."""

from functools import partial

import numpy as np

from ..arrays.array import to_numpy
from ..arrays.linalg import large_product, solve_triangular
from ..arrays.machine import machine_of
from ..arrays.threads import cached_property
from ..losses import LogLoss
from ..methods.newton import Logistic, Preconditioner, best_of_path
from ..operators.matrix import StackedRows
from ..plan.of_closed_forms import (
    N_PENALTIES_OF_LOG_LOSS,
    PRODUCTS_OF_ALPHA,
    SAMPLED_CENTERS,
    SAMPLED_SETS,
)
from ..plan.sizes import n_cores_of, planned_bytes
from .centers_at_once import CenterProblem
from .data import hold_out

# Least class frequency: a class without weight would have no finite intercept.
_MIN_FREQUENCY = 1e-6


class LogisticProblem(CenterProblem):
    """Logistic regression on the features of centers, or of all distinct rows.

    Targets are as `LogLoss` takes them. Coefficients are (p + 1, l), with the
    intercepts as their last row.
    """

    def __init__(self, device, data, train, held_out, **options):
        super().__init__(device, data, train, held_out, centered=False, **options)
        self._device = device

    @property
    def constant(self):
        """Whether only one class has weight."""
        return bool(self.xp.all(self.targets == self.targets[:1, :]))

    @cached_property
    def start(self):
        """The constant model: the log odds, or logarithms of class frequencies."""
        mean = to_numpy(self.mean(self.train))
        if len(mean) == 1:
            mean = 0.5 * (1.0 + mean)
        mean = np.clip(mean, _MIN_FREQUENCY, 1.0 - _MIN_FREQUENCY)
        c = np.log(mean / (1.0 - mean)) if len(mean) == 1 else np.log(mean)
        c = c - c.mean() if len(c) > 1 else c
        c = self.xp.asarray(c[None, :], dtype=self.xp.float64, device=self.device)
        return self.xp.concat([self.initial_coef(), c])

    def auto_alpha(self):
        """Return lambda of the best path on a sample of the rows.

        At most `SAMPLED_SETS` distinct rows and `SAMPLED_CENTERS` of them as centers
        choose lambda n, as the squared loss does (`plan.penalty`).
        """
        data = self._data
        rows = data.rows_with_weight()
        which, (_, _, n_of_set) = data.distinct(rows)[1], data.observations(rows)
        n, n_sets = n_of_set.sum(), len(n_of_set)
        chosen = data.rng.permutation(n_sets)[:SAMPLED_SETS]
        if self.constant or n < 20:
            return 1.0 / n  # C = 1 of scikit-learn
        sampled = rows[np.isin(which, chosen)]
        try:
            train, held_out = hold_out(data, sampled, 0.2)
        except ValueError:  # each row has a class of its own
            return 1.0 / n
        sample = LogisticProblem(
            self._device,
            data,
            train,
            held_out,
            kernel=self.kernel,
            bandwidth=None,
            n_centers=min(SAMPLED_CENTERS, self.n_coefs, len(train)),
            centers="uniform",
            cache_size=self._cache_size,
            n_products=PRODUCTS_OF_ALPHA * N_PENALTIES_OF_LOG_LOSS,
        )
        if sample.constant:
            return 1.0 / n
        # With less, Newton's method takes long where classes can be separated.
        alphas = np.logspace(-8, 0, N_PENALTIES_OF_LOG_LOSS // 2 + 2)
        return best_of_path(sample, alphas)[0] * len(chosen) / n_sets

    # Objectives

    def objective(self, rows):
        """Return the objective on the training rows, or with the held-out rows."""
        matrices = self.matrices[0]
        several = len(rows.index) > len(self.train.index)
        return Logistic(
            StackedRows(matrices) if several else matrices[0],
            rows.targets,
            rows.weights,
            self.expand,
            partial(solve_triangular, self.whitening.L),
        )

    def preconditioner(self, objective, rows, *, of_centers=False):
        """Return the preconditioner of Newton steps on the rows of an objective.

        `of_centers`: the centers stand in for the rows. If all rows are centers, they
        always do, and that is exact.
        """
        L, p, (n, n_outputs) = self.whitening.L, self.n_coefs, rows.targets.shape
        if of_centers or self.center_of_row is not None:
            weights = self.weights_of_centers(rows)
            sums = partial(objective.sums_of_centers, L=L, weights=weights)
            new = p**3 / 2
        else:
            whiten = partial(solve_triangular, L)
            sums = partial(objective.sums, transform=self.whitening.R, whiten=whiten)
            new = n * p**2 / 2 + p**3
        # How many passes over the rows take as long as a preconditioner.
        matrix = self.matrices[0][0]
        machine, n_threads = machine_of(matrix), n_cores_of(matrix)
        entry = machine.product_seconds(2 * n_outputs, 8, n_threads)
        fits = n * p * matrix.itemsize <= planned_bytes(matrix, self._cache_size)
        if fits or self.kernel is None:
            entry += machine.convert / n_threads
        else:
            width = matrix.feature_work * self.n_features
            entry += machine.kernel_seconds(width, matrix.itemsize, n_threads)
        patience = machine.product_seconds(new, 8, n_threads) / (n * p * entry)
        return Preconditioner(objective, sums, patience)

    # Models

    def validation_losses(self, coef):
        """Return the log loss of every validation row, (m,)."""
        F = self.values(self.matrices[0][1], coef[:-1, :]) + coef[-1, :]
        loss = LogLoss(self.targets.shape[1])
        return loss.value(self.validation.targets, F)

    def coef_of(self, fitted):
        """Return the coefficients of a fitted model, from its attributes."""
        coef = large_product(self.whitening.L.T, super().coef_of(fitted))
        c = self.xp.astype(self.to_compute(fitted["intercept_"]), self.xp.float64)
        return self.xp.concat([coef, c[None, :]])

    def fitted_attributes(self, coef):
        """Return the attributes that prediction needs, arrays where X lives."""
        attributes = super().fitted_attributes(coef[:-1, :])
        xp, dtype = self.xp, attributes["dual_coef_"].dtype
        intercept = xp.astype(coef[-1, :], dtype)
        return attributes | {"intercept_": self.to_source(intercept)}
