"""Projection onto the span of K(., Z): by a Cholesky factor or conjugate gradients."""

from itertools import islice

from ..backend.array import namespace, slices
from ..backend.linalg import cholesky, large_product, solve_triangular
from ..backend.machine import machine_of
from ..operators.cached import kept
from ..operators.plan import cache_budget
from .conjugate_gradient import conjugate_gradient

# Relative residual at which conjugate gradients stop. What they leave comes back with
# the next projection: 0.05 took two to three times the products, and as many epochs.
_TOLERANCE = 0.2
# Products at most, and how many it usually takes to 0.2.
_MAX_PRODUCTS, _N_PRODUCTS = 10, 3
# Eigenvectors in their preconditioner, at most: more cost what a product costs.
_MAX_VECTORS = 200


class CenterFactor:
    """One Cholesky factor of K(Z, Z) in float64.

    Rounding of a kernel matrix, p eps k(x, x), is added to its diagonal. The fixed
    point of the iteration, where h = 0, does not depend on it.

    Parameters
    ----------
    centers : Matrix
        K(Z, Z).
    """

    def __init__(self, centers):
        xp, p = centers.xp, centers.shape[0]
        self._xp, self._dtype = xp, centers.dtype
        options = {"dtype": xp.float64, "device": centers.device}
        eps, K = float(xp.finfo(centers.dtype).eps), centers.block(dtype=xp.float64)
        shift = p * eps * (float(xp.max(xp.abs(xp.linalg.diagonal(K)))) or 1.0)
        for _ in range(10):
            self._L = cholesky(K + shift * xp.eye(p, **options))
            if self._L is not None:
                return
            shift = 10 * shift
        raise ValueError(
            "the kernel matrix of the centers has no Cholesky factor: the kernel must "
            "be positive semi-definite; choose another kernel or bandwidth"
        )

    def solve(self, h):
        """Return K(Z, Z)^-1 h."""
        half = solve_triangular(self._L, self._xp.astype(h, self._xp.float64))
        solution = solve_triangular(self._L, half, transposed=True)
        return self._xp.astype(solution, self._dtype)

    def whiten(self, C):
        """Return C L^-T of rows C of K(X, Z): features with the projected kernel."""
        C = self._xp.astype(C, self._xp.float64)
        return self._xp.astype(solve_triangular(self._L, C.T).T, self._dtype)


class ExactProjection:
    """Projection by a Cholesky factor.

    Parameters
    ----------
    factor : CenterFactor
    P : CenterSpectral, default=None
        Whose corrections are to be projected.
    """

    residual = 0.0

    def __init__(self, factor, P=None):
        self._factor, self._P = factor, P

    def __call__(self, h, S=None):
        """Return K(Z, Z)^-1 h + V S, and that nothing is left of it."""
        coef = self._factor.solve(h)
        if S is not None:  # that is in the span already
            self._P.add_to(coef, S)
        return coef, namespace(h).zeros_like(h)

    def save(self):
        """Return None: every projection is alike."""

    def load(self, saved):
        """Do nothing."""


class InexactProjection:
    """Projection by a few conjugate gradients: O(p) memory.

    Conjugate gradients minimize the error in the norm of the kernel's space, so that
    what they return is an orthogonal projection too, onto a part of the span, and never
    larger than what is projected; stochastic iterations are not so. What they leave of
    h is returned beside it, for the next projection. Their preconditioner has the
    eigenvectors U of the Nystrom approximation G G', G = K(Z, Z_c) V.

    Parameters
    ----------
    centers : Matrix
        K(Z, Z), in random order.
    P : CenterSpectral
        Whose corrections are to be projected.

    Attributes
    ----------
    residual : float
        The relative residual that projections ended with, on average.
    """

    def __init__(self, centers, P):
        xp, (c, q) = centers.xp, P.vectors.shape
        self._centers, self.residual, self._n_projections = centers, 0.0, 0
        blocks = (
            centers.block(rows.start, rows.stop, 0, c)
            for rows in slices(centers.shape[0])
        )
        self._images = xp.concat([large_product(K, P.vectors) for K in blocks])
        self._vectors, self._scales = self._images, 1.0
        if q:
            U, R = xp.linalg.qr(self._images[:, :_MAX_VECTORS])
            W, values, _ = xp.linalg.svd(R)
            self._vectors = large_product(U, W)
            self._scales = 1.0 - (values[-1] / values[:, None]) ** 2

    def save(self):
        """Return what the mean residual is made of, to `load`."""
        return [self.residual, self._n_projections]

    def load(self, saved):
        """Go on counting."""
        if saved is not None:
            self.residual, self._n_projections = saved

    def _preconditioned(self, R):
        U = self._vectors
        return R - large_product(U, self._scales * (U.T @ R))

    def __call__(self, h, S=None):
        """Return K(Z, Z)^-1 h + V S, approximately, and what is left of h + K V S.

        The two are projected together: each of them is long in the directions of the
        large eigenvalues, where they cancel, and an error of the one would stay.
        """
        h = h if S is None else h + large_product(self._images, S)
        solver = conjugate_gradient(
            lambda P: self._centers @ P,
            h,
            self._centers.xp.zeros_like(h),
            _TOLERANCE,
            precondition=self._preconditioned,
            together=True,
        )
        solution = next(islice(solver, _MAX_PRODUCTS - 1, None))
        self._n_projections += 1
        change = float(solution.residuals.max()) - self.residual
        self.residual += change / self._n_projections
        return solution.coef, solution.rest


def factor_if_cheaper(centers, n_features, n_columns, n_rows, cache_size):
    """Return a `CenterFactor` if `factor_pays`, of the same parameters, or None."""
    pays = factor_pays(centers, n_features, n_columns, n_rows, cache_size)
    return CenterFactor(centers) if pays else None


def factor_pays(centers, n_features, n_columns, n_rows, cache_size):
    """Whether a factor of the centers fits and is cheaper than iterating.

    It takes p^3 / 3 multiply-adds once and 8 p^2 bytes; conjugate gradients some
    p^2 (d + l) for every p rows that are learned.

    Parameters
    ----------
    centers : Matrix
        K(Z, Z).
    n_features, n_columns : int
    n_rows : float
        Rows to be learned, over all epochs.
    cache_size : float or "auto"
        As in the estimators: the factor counts.
    """
    p, machine = centers.shape[0], machine_of(centers)
    # The factor, and the matrix beside it where a library does not work in place.
    if 16.0 * p * p > cache_budget(cache_size, centers):
        return False
    width = n_features + n_columns + machine.function_work
    return machine.factor_work(p) <= _N_PRODUCTS * p * width * n_rows


def make_projection(centers, factor, P, n_features, n_rows, cache_size):
    """Return the projection by a factor, or if it is None by conjugate gradients.

    The matrix K(Z, Z) of these is kept where that fits and pays.
    """
    if factor is not None:
        return ExactProjection(factor, P)
    n_products = int(min(n_rows, 1e6)) // centers.shape[0]
    (centers,), _ = kept([centers], cache_size, n_products, n_features)
    return InexactProjection(centers, P)


def projection_interval(centers, factor, m, n_features, n_columns):
    """Return T, batches between projections, so that a batch is cheapest on average.

    With temporary centers a batch costs m^2 T (d + 2 l) / 2 multiply-adds, and its part
    of a projection C / T. At most p / m, so that the temporary centers are no more than
    the others.
    """
    width = n_features + 2 * n_columns + machine_of(centers).function_work
    cost = projection_work(centers, factor, n_features, n_columns)
    best = (2.0 * cost / (m * m * width)) ** 0.5
    return int(max(1, min(round(best), centers.shape[0] // m)))


def projection_work(centers, factor, n_features, n_columns):
    """Return the multiply-adds in the time of a projection."""
    p, machine = centers.shape[0], machine_of(centers)
    if factor is not None:
        return p * p * (machine.factor_reading_work + n_columns)
    width = n_features + 2 * n_columns + machine.function_work
    return _N_PRODUCTS * p * p * width
