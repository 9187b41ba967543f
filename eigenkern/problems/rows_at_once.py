"""Least squares on the full kernel of all rows."""

import numpy as np

from ..arrays.array import to_numpy
from ..arrays.linalg import inverse_diagonal, inverse_squares
from ..arrays.threads import cached_property
from ..kernels import is_semidefinite
from ..methods.left_out import n_left_out, prediction_errors, without_row
from ..methods.moments import WeightedKernel
from ..operators.blocks import blocks
from ..operators.matrix import GivenMatrix
from ..operators.sharded import kernel_operator
from ..plan.sizes import rounding
from .closed_form import LeastSquares, products
from .problem import take


class RowProblem(LeastSquares):
    """Least squares on the full kernel of all rows: phi(x) = W^1/2 K(X, x).

    Coefficients b of fewer rows belong to the first rows, the training rows.
    """

    @property
    def n_coefs(self):
        """One for each row, those held out included."""
        return len(self.all.index)

    def _part(self, coef):
        """Return the rows that b belongs to."""
        return self.all.part(0, coef.shape[0])

    def matrix_of(self, rows, others=None):
        """Return K(X, X) of some rows, or K of other rows and these."""
        if self.kernel is None:
            X = (rows if others is None else others).X
            return GivenMatrix(self.to_compute(take(X, rows.index, axis=1)))
        X = None if others is None else others.X
        centers = self.in_kernel_dtype(rows.X)
        return kernel_operator(self.kernel, centers, self.devices, X)

    def centers_of(self, coef):
        return self._part(coef).X

    def matrix_of_validation(self, coef):
        """Return K of the validation rows and the rows that b belongs to."""
        return self.matrix_of(self._part(coef), self.validation)

    # Normal equations

    def _weighted_kernel(self, rows):
        def matrix():
            """Return K(X, X) in float64, in an array of its own."""
            return self.matrix_of(rows).block(dtype=self.xp.float64)

        error = rounding(self.xp, self.kernel_dtype, self.n_coefs)
        known = is_semidefinite(self.kernel)
        return WeightedKernel(matrix, rows.targets, rows.weights, error, known)

    @cached_property
    def training(self):
        """The training rows and their kernel matrix."""
        return self._weighted_kernel(self.train)

    @cached_property
    def everything(self):
        """The training rows and those held out."""
        return self._weighted_kernel(self.all) if self.refits else self.training

    def validation_errors(self, spectrum, filters):
        rows, coefs = self.validation, self.expand(spectrum.vectors)
        matrix, Y = self.matrix_of_validation(coefs), rows.targets - self.training.mean
        parts = products(matrix, coefs, 2 * Y.shape[1] * filters.shape[1])
        return prediction_errors(spectrum, filters, parts, Y, rows.weights)

    def orthonormal(self, width):
        spectrum = self.training.spectrum
        U = spectrum.vectors * (spectrum.values * spectrum.weight) ** 0.5
        return ((block, U[block, :]) for block in blocks(U.shape[0], width))

    def without(self, sets, factor):
        # Let M = L L' = W^1/2 K W^1/2 + c I, and let u hold the square roots of the
        # weights of a set, which sum to w. Then 1 - h = c u' M^-1 u / w, and
        # y - f = c u' b / w: all have the factor c.
        root, w = np.sqrt(sets.row_weights), sets.weights
        kept = inverse_squares(factor.L, sets.position, sets.which, root)
        b = to_numpy(take(self.everything.solve(factor), sets.position))
        sums = [np.bincount(sets.which, column) for column in (b * root[:, None]).T]
        return np.stack(sums, axis=1) / w[:, None], to_numpy(kept) / w, factor.ridge

    def gradient(self, matrix, rows, b, Y):
        # W^1/2 (f - Y): the dual step, equation 12 of the NYTRO paper.
        F = self.values(matrix, b)
        F = F if Y is None else F - Y
        return self.xp.sqrt(rows.weights)[:, None] * F

    def residual(self, b, alpha):
        """Return the largest |(B + lambda) b - q| / |q| of all outputs."""
        xp, rows = self.xp, self._part(b)
        g = self.gradient(self.matrix_of(rows), rows, b, rows.targets)
        g = g + alpha * float(xp.sum(rows.weights)) * b
        q = xp.sqrt(rows.weights)[:, None] * rows.targets
        norms = xp.linalg.vector_norm(q, axis=0)
        norms = xp.where(norms > 0, norms, xp.ones_like(norms))
        return float(xp.max(xp.linalg.vector_norm(g, axis=0) / norms))

    # Models

    def variance_attributes(self, factor):
        # Leave out the last rows, which should be a sample of all rows: the last
        # entries of the inverse depend on no other rows of L. With A = K + c W^-1 the
        # residual [A^-1 y]_i / [A^-1]_ii has the variance s^2 / [A^-1]_ii, of which
        # s^2 c / w_i is noise.
        xp, rows, equations, L = self.xp, self.all, self.everything, factor.L
        first = len(rows.index) - n_left_out(len(rows.index), 1 / 4)
        last = rows.part(first, None)
        w, inverse = last.weights, inverse_diagonal(L[first:, first:])
        b, Y = equations.solve(factor)[first:, :], last.targets - equations.mean
        residuals = without_row(b, Y, w, equations.weight)
        residuals = residuals / (xp.sqrt(w) * inverse)[:, None]
        unseen = (1 / inverse - factor.ridge) / w
        unseen = xp.where(unseen > 0, unseen, xp.zeros_like(unseen))
        X = xp.astype(self.to_compute(last.X), xp.float64)
        if not bool(xp.all(rows.weights == 1)):
            L = L / xp.sqrt(rows.weights)[:, None]
        found, diagonal = (residuals, unseen, 1 / w), self.kernel.diagonal(X)
        return self._variance_attributes(found, diagonal, w, factor, L, rows.index)

    def initial_coef(self):
        """Return the coefficients of the constant model."""
        return self.xp.zeros_like(self.targets)

    def expand(self, b):
        """Return the coefficients of the rows, W^1/2 b."""
        return self.xp.sqrt(self._part(b).weights)[:, None] * b

    def places(self, coef):
        """Return the rows of `dual_coef_` that b belongs to, and how many it has."""
        return self._part(coef).index, self._X.shape[0]

    def fitted_attributes(self, coef):
        """Return the attributes that prediction needs, arrays where X lives."""
        dtype, X = self.model_dtype(coef), self._X
        if dtype != self.dtype:
            X = self.in_kernel_dtype(X)
        dual_coef = self.dual_coef(coef, dtype)
        attributes = self.kernel_attributes(dual_coef, self.intercept, X)
        return attributes | {"center_indices_": None}
