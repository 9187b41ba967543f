"""Least squares on centers."""

import numpy as np

from ..arrays.array import device_of, move, namespace, to_numpy
from ..arrays.linalg import absolute, large_product, solve_triangular
from ..arrays.threads import cached_property
from ..centers import choose, masses, uniform_indices
from ..methods.left_out import (
    kept_of_features,
    n_left_out,
    unseen,
    validation_errors,
    with_ones,
    without_row,
)
from ..methods.moments import Moments
from ..methods.paths import EPS, SINGLE_PIVOT, Whitening
from ..operators.blocks import blocks
from ..operators.cached import cached
from ..operators.matrix import GivenMatrix, check_finite
from ..operators.sharded import kernel_operator
from ..operators.tiled import TiledKernel
from ..rows.lazy_rows import check_in_memory, is_lazy, rows_at
from .closed_form import LeastSquares, products
from .problem import shuffled, take


class CenterProblem(LeastSquares):
    """Least squares on centers: phi(x) = R' K(Z, x).

    Parameters
    ----------
    device, data, train, held_out, **options
        As for `LeastSquares`.
    n_centers : int or None
        Most centers to choose among the distinct training rows. None: the centers are
        given, or are all distinct rows. These include held-out rows, which change
        nothing while their weight is zero.
    centers : str or array of shape (p, d)
        One of `eigenkern.centers.METHODS`, or the centers.
    cache_size, n_products : "auto" or float, int
        MB for the kernel matrices of the rows, and the number of products with them to
        come, see `operators.cached`.

    Attributes
    ----------
    n_centers : int
        p, including those that are not kept.
    center_of_row : ndarray of shape (n,) or None
        The center that equals each row, if all distinct rows are centers.
    """

    def __init__(
        self,
        device,
        data,
        train,
        held_out,
        *,
        n_centers,
        centers,
        cache_size=0,
        n_products=1,
        **options,
    ):
        n, given = len(train), not isinstance(centers, str)
        n_columns = centers.shape[0] if given else min(n_centers or n, n)
        options["n_columns"] = n_columns
        super().__init__(device, data, train, held_out, **options)
        self._cache_size, self._n_products = cache_size, n_products
        self._center_weights = self.center_of_row = None
        if given:
            centers = self.to_compute(centers)
            self.centers = self.xp.astype(centers, self.dtype, copy=True)
            self.n_centers = n_columns
        elif n_centers is None:
            first, self.center_of_row = data.distinct(self.all.index)
            self._take_centers(first)
        else:
            self._choose_centers(n_centers, centers)

    def _choose_centers(self, n_centers, method):
        """Choose centers among the distinct training rows."""
        if method != "uniform":
            check_in_memory(self._X, "centers='uniform', or an array as centers")
        if self._data.indefinite:  # the other methods need a norm
            method = "uniform"
        first, which = self._data.distinct(self.train.index)
        totals = np.bincount(which, weights=to_numpy(self.train.weights))
        alike = method == "uniform" or n_centers >= len(first)
        if alike:
            chosen = uniform_indices(len(first), n_centers, self.rng)
        else:
            X = take(self.train.X, first)
            if self.kernel is None:
                X = take(X, self.train.index[first], axis=1)
            centers, chosen = choose(
                method, self.kernel, X, n_centers, self.rng, totals
            )
        if chosen is None:  # means of rows
            self.centers, self.n_centers = self.to_compute(centers), n_centers
            return
        if alike or self.kernel is None:
            self._center_weights = totals[chosen]
        self._take_centers(first[chosen])

    def _take_centers(self, position):
        """Make the rows of `all` at some positions the centers."""
        self.center_indices, self.n_centers = self.all.index[position], len(position)
        if self.kernel is not None:
            self.centers = self.to_compute(take(self.all.X, position))

    @property
    def n_coefs(self):
        """Number of centers that are kept."""
        return len(self.whitening.kept)

    @cached_property
    def whitening(self):
        """R of the centers, computed only once memory has been checked."""
        xp = self.xp
        if self.kernel is None:
            K = take(self._X, self.center_indices)
            K = self.to_compute(take(K, self.center_indices, axis=1))
            K = xp.astype(K, xp.float64)
        else:
            # What is cut off is the same as in the kernel values of other rows.
            frame = self.kernel.frame(self.centers)
            centers = xp.astype(self.centers, xp.float64)
            K = TiledKernel(self.kernel, centers, frame=frame).block()
        check_finite(K)
        if self._data.indefinite:
            K = absolute(K)  # the norm of the span of its columns
        if self._data.constant and not bool(xp.any(K != 0)):
            K = xp.eye(K.shape[0], dtype=xp.float64, device=device_of(K))
        found = Whitening.of(K, self.kernel_dtype)
        if self.kernel is None or self.kernel_dtype == xp.float64:
            return found
        # The directions that single precision leaves out have eigenvalues of B up to
        # this; with a larger penalty there is little of them in a model.
        if self.least_alpha > 10 * SINGLE_PIVOT * self.kernel_size:
            return found
        double = Whitening.of(K, xp.float64)
        if len(double.kept) == len(found.kept):
            return found
        self.in_double()
        return double

    def matrix_of(self, rows):
        """Return K(X, Z) of some rows and the centers that are kept."""
        used = self.whitening.kept
        if self.kernel is None:
            K = take(rows.X, self.center_indices[used], axis=1)
            return GivenMatrix(self.to_compute(K))
        centers = self.in_kernel_dtype(take(self.centers, used))
        return kernel_operator(self.kernel, centers, self.devices, rows.X)

    def centers_of(self, coef):
        return take(self.centers, self.whitening.kept)

    def in_double(self):
        super().in_double()
        for name in ("whitening", "matrices", "_moments", "everything"):
            vars(self).pop(name, None)

    def matrix_of_validation(self, coef):
        """Return K(X, Z) of the validation rows."""
        return self.matrix_of(self.validation)

    @cached_property
    def matrices(self):
        """K(X, Z) of the training and the validation rows; how many MB are cached."""
        matrices = [self.matrix_of(rows) for rows in self.parts]
        if self._n_products == 1:
            return matrices, 0.0
        return cached(matrices, self._cache_size, self._n_products, self.n_features)

    # Normal equations

    @cached_property
    def _moments(self):
        """Sums over the training rows, and over the validation rows if there are any.

        They are computed before any linear algebra, after which BLAS threads keep
        spinning and slow down the kernel's tiles.
        """
        return [
            Moments.of(matrix, rows.targets, rows.weights, self.whitening)
            for matrix, rows in zip(self.matrices[0], self.parts, strict=True)
        ]

    @property
    def training(self):
        """The sums over the training rows."""
        return self._moments[0]

    @cached_property
    def everything(self):
        """The sums over the training rows and the held-out rows."""
        return sum(self._moments[1:], self.training) if self.refits else self.training

    def validation_errors(self, spectrum, filters):
        training, validation = self._moments
        return validation_errors(spectrum, filters, validation, training.mean)

    def orthonormal(self, width):
        xp, rows, spectrum = self.xp, self.train, self.training.spectrum
        inside, e = spectrum.inside, spectrum.values
        scale = (spectrum.weight * xp.where(inside, e, xp.ones_like(e))) ** -0.5
        scale = xp.where(inside, scale, xp.zeros_like(scale))
        R_V = self.expand(spectrum.vectors * scale)
        for block, U in products(self.matrices[0][0], R_V, width):
            U *= xp.sqrt(rows.weights[block])[:, None]
            yield block, U

    def without(self, sets, factor):
        xp, matrix = self.xp, self.matrix_of(self.all.part_at(sets.first))
        b = self.everything.solve(factor)
        w = xp.asarray(sets.weights, device=self.device)
        least, F, kept = float(xp.finfo(self.kernel_dtype).eps) ** 0.5, [], []
        for block in blocks(matrix.shape[0], 3 * matrix.shape[1]):
            K = matrix.block(block.start, block.stop, dtype=xp.float64)
            if self.whitening.R is None:
                Phi_T = solve_triangular(self.whitening.L, K.T)
            else:
                Phi_T = large_product(K, self.whitening.R).T
            F.append(to_numpy(Phi_T.T @ b))
            kept.append(to_numpy(kept_of_features(factor.L, Phi_T, w[block], least)))
        return with_ones(sets.targets) - np.concatenate(F), np.concatenate(kept), 1.0

    def gradient(self, matrix, rows, b, Y):
        g = matrix.normal_product(self.expand(b), Y, rows.weights)
        return solve_triangular(self.whitening.L, g)

    # Models

    def variance_attributes(self, factor):
        # A residual has the variance s^2 (k(x, x) - |P|^2) + sigma^2 / (w (1 - h)).
        xp, equations, L = self.xp, self.everything, self.whitening.L
        able = np.flatnonzero(self._able_to_leave_out())
        n = n_left_out(len(self.all.index), 1 / 8)
        rows = self.all.part_at(np.sort(shuffled(able)[:n]))
        w, Y = rows.weights, rows.targets - equations.mean
        K = self.matrix_of(rows).block(dtype=xp.float64)
        P = solve_triangular(L, K.T)
        kept = kept_of_features(factor.L, P, w, EPS)
        values = with_ones(Y) - P.T @ equations.solve(factor)
        residuals = without_row(values, Y, w, equations.weight) / kept[:, None]
        diagonal = self.kernel.diagonal(xp.astype(self.to_compute(rows.X), xp.float64))
        found = residuals, unseen(P, diagonal), 1 / (w * kept)
        used = self.whitening.kept
        return self._variance_attributes(found, diagonal, w, factor, factor.L, used, L)

    def expand(self, b):
        """Return R b, the coefficients of the centers that are kept."""
        return self.whitening.expand(b)

    def places(self, coef=None):
        """Return the rows of the kept centers in `dual_coef_`, and how many it has."""
        used = self.whitening.kept
        if self.kernel is None:
            return self.center_indices[used], self._X.shape[0]
        return used, self.n_centers

    def fitted_attributes(self, coef):
        """Return the attributes that prediction needs, arrays where X lives."""
        dtype, centers = self.model_dtype(coef), None
        if self.centers is not None:
            centers = self.to_source(self.xp.astype(self.centers, dtype, copy=False))
        dual_coef, indices = self.dual_coef(coef, dtype), self.center_indices
        attributes = self.kernel_attributes(dual_coef, self.intercept, centers)
        return attributes | {"center_indices_": self.to_source_or_none(indices)}

    def weights_of_centers(self, rows=None):
        """Return the weight that each kept center represents.

        It is the weight of the rows that equal the center. If the centers are not a
        uniform sample of the rows, and X is not a kernel matrix, it is the weight of
        the rows that are nearest to the center. `rows` are `train`, or `all` if all
        distinct rows are centers.
        """
        used, rows = self.whitening.kept, self.train if rows is None else rows
        weights = to_numpy(rows.weights)
        if self.center_of_row is not None:
            center = self.center_of_row[: len(weights)]
            found = np.bincount(center, weights, self.n_centers)[used]
        elif self._center_weights is not None:
            found = self._center_weights[used]
        else:
            X = rows.X
            if is_lazy(X):
                chosen = shuffled(len(weights))[:20_000]
                X, weights = rows_at(X, chosen), weights[chosen]
            centers = take(self.centers, used)
            found = masses(X, move(centers, namespace(X), device_of(X)), weights)
        return self.xp.asarray(found, device=self.device)
