"""Kernel logistic regression on the features of centers."""

from functools import cached_property, partial

import numpy as np

from ..arrays.array import to_numpy
from ..arrays.linalg import large_product, solve_triangular
from ..arrays.machine import machine_of
from ..losses import LogLoss
from ..methods.closed_form_plan import NystromPlan
from ..methods.newton import Logistic, Preconditioner
from ..operators.cached import cached
from ..operators.matrix import StackedRows
from .centers_at_once import CenterProblem
from .closed_form import standard_error, weighted_mean
from .problem import Problem

# Least class frequency: a class without weight would have no finite intercept.
_MIN_FREQUENCY = 1e-6


class LogisticProblem(Problem):
    """Logistic regression on centers, or on all distinct rows.

    The features are those of `CenterProblem`; coefficients are (p + 1, l), with the
    intercepts as their last row.

    Parameters
    ----------
    device, data, train, held_out, kernel, bandwidth, n_centers, centers, alpha
        As for `CenterProblem`.
    cache_size : "auto" or float
        MB for the kernel matrices of the rows and the centers.
    n_passes : int
        Approximate number of products with each of them.

    Attributes
    ----------
    train, validation, all, refits
        As in `CenterProblem`.
    targets : array of shape (n, l)
        Targets of the training rows, as `LogLoss` takes them.
    """

    def __init__(
        self, device, data, train, held_out, *, cache_size, n_passes, **options
    ):
        super().__init__(device, data.X)
        self._features = CenterProblem(
            device, data, train, held_out, centered=False, **options
        )
        self.train, self.validation = self._features.train, self._features.validation
        self.all, self.refits = self._features.all, self._features.refits
        self.targets = self.train.targets
        self._cache_size, self._n_passes = cache_size, n_passes
        self._loss = LogLoss(self.targets.shape[1])

    @property
    def kernel(self):
        """The kernel with its bandwidth, or None for a kernel matrix."""
        return self._features.kernel

    @property
    def n_coefs(self):
        """Number of centers that are kept."""
        return self._features.n_coefs

    @property
    def constant(self):
        """Whether only one class has weight."""
        return bool(self.xp.all(self.targets == self.targets[:1, :]))

    @cached_property
    def start(self):
        """The constant model: the log odds, or logarithms of class frequencies."""
        mean = to_numpy(self._features.mean(self.train))
        if len(mean) == 1:
            mean = 0.5 * (1.0 + mean)
        mean = np.clip(mean, _MIN_FREQUENCY, 1.0 - _MIN_FREQUENCY)
        c = np.log(mean / (1.0 - mean)) if len(mean) == 1 else np.log(mean)
        c = c - c.mean() if len(c) > 1 else c
        c = self.xp.asarray(c[None, :], dtype=self.xp.float64, device=self.device)
        return self.xp.concat([self._features.initial_coef(), c])

    def plan(self, kind):
        """Return the memory of a fit.

        Parameters
        ----------
        kind : {"logistic", "falkon logistic"}
        """
        n, n_outputs = self.all.targets.shape
        # Targets, values, curvature and two gradients for every row.
        n_stored = 8 * n * n_outputs
        return NystromPlan.make(kind, self._features.n_centers, n, n_stored=n_stored)

    def check_memory(self, plan):
        """Raise a ValueError unless the free memory holds a `NystromPlan`."""
        self._features.check_memory(plan)

    def iterates(self, alpha, *, to_its_end=True):
        """Let kernel values have the data type of the rows, as in `LeastSquares`."""
        self._features.iterates(alpha, to_its_end=to_its_end)

    # Objectives

    @cached_property
    def _matrices(self):
        """K(X, Z) of training rows and of validation rows; how many MB are cached."""
        return cached(
            [self._features.matrix_of(rows) for rows in self._features.parts],
            self._cache_size,
            self._n_passes,
            self.n_features,
        )

    @property
    def cache_megabytes(self):
        """Size of the cached kernel matrices in MB."""
        return self._matrices[1]

    def objective(self, rows):
        """Return the objective on the training rows, or with the held-out rows."""
        matrices = self._matrices[0]
        several = len(rows.index) > len(self.train.index)
        return Logistic(
            StackedRows(matrices) if several else matrices[0],
            rows.targets,
            rows.weights,
            self._features.expand,
            partial(solve_triangular, self._features.whitening.L),
        )

    def preconditioner(self, objective, rows, *, of_centers=False):
        """Return the preconditioner of Newton steps.

        Parameters
        ----------
        objective : Logistic
        rows : Rows
            Rows of the objective.
        of_centers : bool, default=False
            Whether the centers stand in for the rows. If all rows are centers, they
            always do, and that is exact.
        """
        L, R = self._features.whitening.L, self._features.whitening.R
        of_centers = of_centers or self._features.center_of_row is not None
        if of_centers:
            weights = self._features.weights_of_centers(rows)
            sums = partial(objective.sums_of_centers, L=L, weights=weights)
        else:
            whiten = partial(solve_triangular, L)
            sums = partial(objective.sums, transform=R, whiten=whiten)
        return Preconditioner(objective, sums, self._patience(rows, of_centers))

    def _patience(self, rows, of_centers):
        """Return how many passes over the rows take as long as a preconditioner."""
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
        F = self._features.values(self._matrices[0][1], coef[:-1, :]) + coef[-1, :]
        return self._loss.value(self.validation.targets, F)

    def validation_loss(self, losses):
        """Return the weighted mean of these losses."""
        return weighted_mean(losses, self.validation.weights)

    def deviation(self, losses):
        """Return the standard error of `validation_loss`."""
        n = self._features.n_observations(self.validation)
        return standard_error(losses, self.validation.weights, n)

    def suits(self, *attributes):
        """Whether fitted attributes suit the centers (`CenterProblem.suits`)."""
        return self._features.suits(*attributes)

    def kept_coef(self, dual_coef, intercept):
        """Return the coefficients of fitted attributes."""
        features = self._features
        coef = large_product(features.whitening.L.T, features.kept_coef(dual_coef))
        c = self.xp.astype(self.to_compute(intercept), self.xp.float64)
        return self.xp.concat([coef, c[None, :]])

    def fitted_attributes(self, coef):
        """Return the attributes that prediction needs, arrays where X lives."""
        attributes = self._features.fitted_attributes(coef[:-1, :])
        xp, dtype = self.xp, attributes["dual_coef_"].dtype
        intercept = xp.astype(coef[-1, :], dtype)
        return attributes | {"intercept_": self.to_source(intercept)}
