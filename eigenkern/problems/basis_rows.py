"""Least squares with every row a center: in closed form, and in batches."""

from copy import copy

import numpy as np

from ..arrays.array import scatter, to_numpy
from ..arrays.linalg import eigh, inverse_squares
from ..arrays.threads import cached_property
from ..kernels import is_semidefinite
from ..losses import mean_of_targets
from ..methods.direct import N_DIAGONAL, usual_size
from ..methods.left_out import n_left_out, prediction_errors
from ..methods.moments import WeightedKernel
from ..operators.blocks import blocks
from ..operators.cached import keep
from ..operators.matrix import GivenMatrix
from ..operators.sharded import kernel_operator
from ..plan.sizes import rounding
from .closed_form import LeastSquares, products
from .kernel_parameters import make_kernel
from .problem import Problem, take, take_entries, weighted_mean_square


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

    def _rows_of_variances(self):
        # The last rows, a sample of all: the last entries of the inverse depend on no
        # other rows of L.
        n = len(self.all.index)
        return np.arange(n - n_left_out(n, 1 / 4), n)

    def _without_and_unseen(self, sets, factor, rows, diagonal):
        # The variance of f is that of its value without the row.
        return *self.without(sets, factor), None

    def _posterior_factors(self, factor):
        L, weights = factor.L, self.all.weights
        if not bool(self.xp.all(weights == 1)):
            L = L / self.xp.sqrt(weights)[:, None]
        return L, self.all.index, None

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


class KernelProblem(Problem):
    """Least squares with f = K(., X) a + intercept on all training rows.

    Parameters
    ----------
    merged : Merged
        Rows to train with, in the solver's order.
    held_out : ndarray of int or None
        Rows to predict.
    kernel, bandwidth, device
        Parameters of the estimator.
    alpha, bandwidth_dtype
        The penalty and the precision for which bandwidth="auto" chooses: `make_kernel`.

    Attributes
    ----------
    operator : Matrix
        K(X, X) of the training rows, with a penalty on its diagonal if there is one.
    validation : Matrix or None
        K(X_val, X) of the held-out rows.
    kernel : Kernel or None
        None for "precomputed".
    intercept : ndarray of shape (l,)
        Weighted mean of the targets, on the host.
    cache_megabytes : float
        Size of the cached matrices in MB.
    """

    cache_megabytes = 0.0
    #: The penalty on the diagonal of the operator, (n,), or None.
    _added = None
    #: Eigenvectors that are kept of an indefinite kernel, and W^1/2; or None.
    _kept = None

    def __init__(
        self,
        merged,
        held_out,
        *,
        kernel,
        bandwidth,
        device,
        alpha=None,
        bandwidth_dtype=None,
    ):
        data, train = merged.data, merged.rows
        super().__init__(device, data.X)
        self._merged, self._held_out = merged, held_out
        self._train, self.rng, self.within = train, data.rng, merged.within
        w = data.weights_of(train)
        self.intercept = mean_of_targets(data.targets[train], w)
        self.kernel = None
        if data.precomputed:
            K = take_entries(data.X, train, train)
            self.operator = GivenMatrix(self.to_compute(K))
            if held_out is not None:
                K = take_entries(data.X, held_out, train)
                self.validation = GivenMatrix(self.to_compute(K))
        else:
            self.centers = data.X if data.own is None else data.own
            rows, Y = take(data.X, train), data.targets[train]
            options = {"alpha": alpha, "dtype": bandwidth_dtype}
            self.kernel = make_kernel(
                kernel, bandwidth, rows, self.rng, Y, w, data, **options
            )
            self.operator = kernel_operator(self.kernel, rows, self.devices)
            if held_out is not None:
                self.validation = self.operator.rows(take(data.X, held_out))
        self.dtype = self.operator.dtype
        self.targets = self.centered(data.targets[train])
        self.weights = None if data.weights is None else self.array(w / w.mean())

    def centered(self, targets):
        """Return targets without the intercept, on the device that computes."""
        return self.array(targets - self.intercept)

    def positive(self):
        """Return the problem with the positive part of an indefinite kernel matrix.

        With W^1/2 K W^1/2 = V E V', it is W^-1/2 V E_+ V' W^-1/2. Coefficients are
        projected onto W^1/2 V_+, where both matrices have the same product.
        """
        xp, other = self.xp, copy(self)
        root = xp.ones_like(self.targets[:, :1])
        if self.weights is not None:
            root = xp.sqrt(self.weights)[:, None]
        root = xp.astype(root, xp.float64)
        values, V = eigh(root * self.operator.block(dtype=xp.float64) * root.T)
        # The others are rounding, or negative.
        first = int(xp.sum(xp.astype(values <= 1e-9 * values[-1], xp.int64)))
        values, V = values[first:], V[:, first:]
        matrix = (V * values) @ V.T / root / root.T
        other.operator = GivenMatrix(xp.astype(matrix, self.dtype))
        other._kept = V, root
        return other

    def _projected(self, coef):
        """Return coefficients in the span of the eigenvectors that are kept."""
        if self._kept is None:
            return coef
        V, root = self._kept
        return self.xp.astype(root * (V @ (V.T @ (coef / root))), self.dtype)

    def in_double(self):
        """Return the problem in double precision."""
        if self.kernel is None or self.dtype == self.xp.float64:
            return self  # `positive`, too, is in double precision or precomputed
        return KernelProblem(
            self._merged._replace(data=self._merged.data.in_double()),
            self._held_out,
            kernel=self.kernel,
            bandwidth=None,
            device=self._device,
        )

    def precise_enough(self, ridge):
        """Return the problem in a precision whose rounding does not drown a penalty."""
        n = len(self._train)
        entries = self.diagonal(slice(0, min(n, N_DIAGONAL)))
        w = None if self.weights is None else self.weights[: entries.shape[0]]
        least = n * rounding(self.xp, self.dtype, n) * usual_size(entries, w)
        return self.in_double() if 0 < ridge <= least else self

    def penalized(self, ridge):
        """Return the problem of K + c W^-1, c = `ridge`: kernel ridge regression.

        K + c W^-1 is the kernel matrix of k(x, z) + (c / w) delta_xz, which equals k on
        other rows.
        """
        other, w = copy(self), self.weights
        penalty = ridge / (self.xp.ones_like(self.targets[:, 0]) if w is None else w)
        other.operator, other._added = self.operator.plus_diagonal(penalty), penalty
        return other

    def cached(self, cache_size, sizes):
        """Return the problem with kernel matrices kept, whose bytes are `sizes`.

        They are those of K(X, X) and, if epochs are scored, of the held-out rows.
        """
        other = copy(self)
        matrices = [self.operator, self.validation][: len(sizes)]
        (other.operator, *scored), other.cache_megabytes = keep(
            matrices, sizes, cache_size
        )
        if scored:
            (other.validation,) = scored
        return other

    def diagonal(self, rows):
        """Return the diagonal of the operator in a range of the rows, (m,)."""
        if self.kernel is None or self._kept is not None:
            block = self.operator.block(rows.start, rows.stop, rows.start, rows.stop)
            return self.xp.linalg.diagonal(block)
        X = self.to_compute(take(self._X, self._train[rows]))
        entries = self.xp.astype(self.kernel.diagonal(X), self.dtype)
        return entries if self._added is None else entries + self._added[rows]

    def places(self, coef=None):
        """Return the rows of `dual_coef_`: one per row of X, even without weight."""
        own = self._merged.data.own
        return self._train, (self._X if own is None else own).shape[0]

    def validation_values(self, coef):
        """Return f on the held-out rows, on the host, shape (m, l)."""
        return super().validation_values(self._projected(coef))

    def model_loss(self, coef, n_rows=None):
        """Return the loss without the penalty on the diagonal."""
        residual = self.residual(coef, n_rows)
        if self._added is not None:
            rows = slice(0, residual.shape[0])
            residual = residual - self._added[rows][:, None] * coef[rows, :]
        return weighted_mean_square(residual, self.weights)

    def fitted_attributes(self, coef):
        """Return the attributes that prediction needs, rows in the order of X."""
        dual_coef = scatter(self._projected(coef), *self.places())
        return self.kernel_attributes(dual_coef, self.intercept, self.centers)
