"""Kernel logistic regression on centers."""

from functools import cached_property, partial

import numpy as np

from ..backend.array import to_numpy
from ..backend.linalg import large_product, solve_triangular
from ..backend.machine import machine_of
from ..losses import LogLoss
from ..nystrom.plan import NystromPlan
from ..operators.cached import kept
from ..operators.stacked import StackedRows
from ..solvers.logistic import Logistic, Preconditioner
from .centers import CenterProblem
from .problem import take

# The frequency of a class without weight, which would have no finite intercept.
_RARE = 1e-6


class LogisticProblem(CenterProblem):
    """Logistic regression on centers, or on all distinct rows.

    The features are those of `CenterProblem`; coefficients are (p + 1, l), with the
    intercepts as their last row.

    Parameters
    ----------
    device, data, train, held_out, kernel, bandwidth, centers, alpha
        As for `CenterProblem`.
    n_centers : int or None
        None where centers are given, or for all rows: rows held out are centers then
        too, which changes nothing while they have no weight.
    cache_size : "auto" or float
        MB for the kernel matrices of the rows and the centers.
    n_passes : int
        Products with each of them that are to come, some.
    """

    def __init__(self, *args, n_passes, **options):
        self._places = None
        super().__init__(*args, n_passes=n_passes, **options)
        self._loss = LogLoss(self.targets.shape[1])

    @staticmethod
    def _intercept_of(targets, weights):
        return np.zeros(targets.shape[1])

    def _choose_centers(self, n_centers, method):
        if n_centers is not None:
            super()._choose_centers(n_centers, method)
            return
        first, self._places = self._data.distinct(self.all.index)
        self.center_indices, self.n_centers = self.all.index[first], len(first)
        if self.kernel is not None:
            self._centers = self.to_compute(take(self.all.X, first))

    @property
    def constant(self):
        """Whether rows of one class alone have weight."""
        Y = self.train.targets
        return bool(self.xp.all(Y == Y[:1, :]))

    @cached_property
    def start(self):
        """The constant model: logarithms of the odds, or of the frequencies."""
        rows = self.train
        mean = to_numpy(self.mean(rows))
        if len(mean) == 1:
            mean = 0.5 * (1.0 + mean)
        mean = np.clip(mean, _RARE, 1.0 - _RARE)
        c = np.log(mean / (1.0 - mean)) if len(mean) == 1 else np.log(mean)
        c = c - c.mean() if len(c) > 1 else c
        c = self.xp.asarray(c[None, :], dtype=self.xp.float64, device=self.device)
        return self.xp.concat([super().initial_coef(), c])

    def initial_coef(self):
        """Return the coefficients of the constant model."""
        return self.start

    def plan(self, kind):
        """Return the memory of a fit.

        Parameters
        ----------
        kind : {"logistic", "falkon logistic"}
        """
        n, n_outputs = self.all.targets.shape
        # Targets, values, curvature and two gradients of every row.
        n_kept = 8 * n * n_outputs
        return NystromPlan.make(kind, self.n_centers, n, n_kept=n_kept)

    # Objectives

    @cached_property
    def _matrices(self):
        """K(X, Z) of the training rows and of the validation rows, and MB kept."""
        rows = (
            [self.train] if self.validation is None else [self.train, self.validation]
        )
        return kept(
            [self.matrix_of(part) for part in rows],
            self._cache_size,
            self._n_passes,
            self.n_features,
        )

    @property
    def cache_megabytes(self):
        """MB of kernel matrix that are kept."""
        return self._matrices[1]

    def objective(self, rows):
        """Return the objective on the training rows, or these and those held out."""
        matrices = self._matrices[0]
        matrix = matrices[0]
        if len(rows.index) > matrix.shape[0]:
            matrix = StackedRows(matrices)
        return Logistic(matrix, rows.targets, rows.weights, self.expand, self._whitened)

    def _whitened(self, g):
        """Return R' g."""
        return solve_triangular(self.whitening.L, g)

    def preconditioner(self, objective, rows, *, of_centers=False):
        """Return what solves for a Newton step, nearly.

        Parameters
        ----------
        objective : Logistic
        rows : Rows
            Those of the objective.
        of_centers : bool, default=False
            Whether the centers stand for the rows, which where all rows are centers
            is exact.
        """
        of_centers = of_centers or self._places is not None
        if of_centers:
            weights = self._center_weights_of(rows)
            L = self.whitening.L
            sums = partial(objective.sums_of_centers, L=L, weights=weights)
        else:
            R = self.whitening.R
            sums = partial(objective.sums, transform=R, whiten=self._whitened)
        return Preconditioner(objective, sums, self._patience(rows, of_centers))

    def _center_weights_of(self, rows):
        if self._places is None:
            return self.weights_of_centers()
        weights = to_numpy(rows.weights)
        places = self._places[: len(weights)]
        totals = np.bincount(places, weights=weights, minlength=self.n_centers)
        return self.xp.asarray(totals[self.whitening.kept], device=self.device)

    def _patience(self, rows, of_centers):
        """Return how many passes over the rows cost as much as a preconditioner."""
        n, n_outputs = rows.targets.shape
        p, matrix = self.n_coefs, self._matrices[0][0]
        machine, n_threads = machine_of(matrix), matrix.n_workers
        new = p**3 / 2 if of_centers else n * p**2 / 2 + p**3
        entry = machine.product_seconds(2 * n_outputs, 8, n_threads)
        if matrix.in_memory:
            entry += machine.convert / n_threads
        else:
            width = matrix.feature_work * self.n_features
            entry += machine.kernel_seconds(width, matrix.itemsize, n_threads)
        return machine.product_seconds(new, 8, n_threads) / (n * p * entry)

    # Models

    def validation_losses(self, coef):
        """Return the log loss of every validation row, (m,)."""
        matrix = self._matrices[0][1]
        F = self._values(matrix, coef[:-1, :]) + coef[-1, :]
        return self._loss.value(self.validation.targets, F)

    def validation_loss(self, losses):
        """Return their weighted mean."""
        weights = self.validation.weights
        return float(self.xp.sum(weights * losses)) / float(self.xp.sum(weights))

    def deviation(self, losses):
        """Return the standard error of that mean."""
        xp, rows = self.xp, self.validation
        w = rows.weights / xp.sum(rows.weights)
        variance = float(xp.sum(w * (losses - xp.sum(w * losses)) ** 2))
        return (variance / self.n_distinct(rows)) ** 0.5

    def kept_coef(self, dual_coef, intercept):
        """Return the coefficients of fitted attributes."""
        coef = large_product(self.whitening.L.T, super().kept_coef(dual_coef))
        c = self.xp.astype(self.to_compute(intercept), self.xp.float64)
        return self.xp.concat([coef, c[None, :]])

    def fitted_attributes(self, coef):
        """Return the attributes that prediction needs, arrays where X lives."""
        intercept = self.xp.astype(coef[-1, :], self.dtype)
        return super().fitted_attributes(coef[:-1, :]) | {
            "intercept_": self.to_source(intercept)
        }
