"""Projection onto the span of K(., Z): by a Cholesky factor or conjugate gradients."""

from ..backend.linalg import cholesky, solve_triangular
from ..operators.plan import cache_budget, fill_caches

# A multiply-add of the Cholesky factor, in float64, over one of a kernel product.
_SLOWNESS = 3.0


# Multiply-adds of a kernel product in the time to read one entry of the factor.
_READING = 60.0


# Multiply-adds in the time of the kernel's function.
_FUNCTION = 50.0


# Relative residual at which conjugate gradients stop. What they leave comes back with
# the next projection: 0.05 took two to three times the products, and as many epochs.
_TOLERANCE = 0.2


_MAX_PRODUCTS = 10


# Products that it usually takes.
_N_PRODUCTS = 3


# Eigenvectors in their preconditioner, at most.
_MAX_VECTORS = 200


_CHUNK = 4096


class ExactProjection:
    """K(Z, Z)^-1 h by one Cholesky factor in float64.

    Rounding of a kernel matrix, p eps k(x, x), is added to its diagonal. The fixed
    point of the iteration, where h = 0, does not depend on it.

    Parameters
    ----------
    centers : KernelOperator
        K(Z, Z).
    """

    residual = 0.0

    def __init__(self, centers):
        xp, p = centers.xp, centers.shape[0]
        eps = float(xp.finfo(centers.dtype).eps)
        K, self._L = centers.block(dtype=xp.float64), None
        entry = float(xp.max(xp.abs(xp.linalg.diagonal(K)))) or 1.0
        shift = p * eps * entry
        for _ in range(10):
            K = K + shift * xp.eye(p, dtype=xp.float64, device=centers.device)
            self._L = cholesky(K)
            if self._L is not None:
                break
            K, shift = centers.block(dtype=xp.float64), 10 * shift
        if self._L is None:
            raise ValueError(
                "the kernel matrix of the centers has no Cholesky factor: the kernel "
                "must be positive semi-definite; choose another kernel or bandwidth"
            )
        self._xp, self._dtype = xp, centers.dtype

    def precondition(self, preconditioner):
        """Take the `CenterSpectral` whose corrections are to be projected."""
        self._preconditioner = preconditioner

    def __call__(self, h, S=None):
        """Return K(Z, Z)^-1 h + V S, and that nothing is left of it."""
        half = solve_triangular(self._L, self._xp.astype(h, self._xp.float64))
        solution = solve_triangular(self._L, half, transposed=True)
        coef = self._xp.astype(solution, self._dtype)
        if S is not None:  # that is in the span already
            self._preconditioner.add_to(coef, S)
        return coef, self._xp.zeros_like(h)

    def whiten(self, C):
        """Return C L^-T of rows C of K(X, Z): features with the projected kernel."""
        C = self._xp.astype(C, self._xp.float64)
        return self._xp.astype(solve_triangular(self._L, C.T).T, self._dtype)


class InexactProjection:
    """K(Z, Z)^-1 h by a few conjugate gradients: O(p) memory.

    Conjugate gradients minimise the error in the norm of the kernel's space, so that
    what they return is an orthogonal projection too, onto a part of the span, and never
    larger than what is projected; stochastic iterations are not so. What they leave of
    h is returned beside it, for the next projection. The preconditioner has the
    eigenvectors of the Nystrom approximation G G', G = K(Z, Z_c) V.

    Parameters
    ----------
    centers : KernelOperator
        K(Z, Z), in random order.

    Attributes
    ----------
    residual : float
        The relative residual that projections ended with, in the mean.
    """

    whiten = None

    def __init__(self, centers):
        self._centers, self._vectors = centers, None
        self.residual, self._n_projections = 0.0, 0

    def precondition(self, preconditioner):
        """Take the `CenterSpectral` whose corrections are to be projected."""
        xp, p = self._centers.xp, self._centers.shape[0]
        V = preconditioner.vectors
        self._images = xp.concat(
            [
                self._centers.block(i, min(i + _CHUNK, p), 0, V.shape[0]) @ V
                for i in range(0, p, _CHUNK)
            ]
        )
        if V.shape[1] == 0:
            return
        U, R = xp.linalg.qr(self._images[:, : min(V.shape[1], _MAX_VECTORS)])
        W, values, _ = xp.linalg.svd(R)
        self._vectors = U @ W
        self._scales = 1.0 - (values[-1] / values[:, None]) ** 2

    def _preconditioned(self, R):
        if self._vectors is None:
            return R
        U = self._vectors
        return R - U @ (self._scales * (U.T @ R))

    def __call__(self, h, S=None):
        """Return K(Z, Z)^-1 h + V S, approximately, and what is left of h + K V S.

        The two are projected together: each of them is long in the directions of the
        large eigenvalues, where they cancel, and an error of the one would stay.
        """
        xp = self._centers.xp
        h = h if S is None else h + self._images @ S
        X, R, size = xp.zeros_like(h), h, _norms(xp, h)
        Z = P = self._preconditioned(R)
        curved, residual = xp.sum(R * Z, axis=0), 0.0
        for _ in range(_MAX_PRODUCTS):
            K_P = self._centers @ P
            bend = xp.sum(P * K_P, axis=0)
            step = _over(xp, curved, bend)
            X, R = X + step * P, R - step * K_P
            residual = float(xp.max(_over(xp, _norms(xp, R), size)))
            if residual <= _TOLERANCE:
                break
            Z, before = self._preconditioned(R), curved
            curved = xp.sum(R * Z, axis=0)
            P = Z + _over(xp, curved, before) * P
        self._n_projections += 1
        self.residual += (residual - self.residual) / self._n_projections
        return X, R


def _norms(xp, V):
    return xp.linalg.vector_norm(V, axis=0)


def _over(xp, a, b):
    """Return a / b, zero where b is not positive."""
    positive = b > 0
    return xp.where(positive, a / xp.where(positive, b, xp.ones_like(b)), 0.0 * b)


def make_projection(centers, n_features, n_columns, n_rows, cache_size):
    """Return the cheaper projection of those that the memory allows.

    The factor takes p^3 / 3 multiply-adds once and 8 p^2 bytes; conjugate gradients
    some p^2 (d + l) for every p rows that are learned.

    Parameters
    ----------
    centers : KernelOperator
    n_features, n_columns : int
    n_rows : float
        Rows to be learned, over all epochs.
    cache_size : float or "auto"
        As in the estimators: the factor, or K(Z, Z), count.
    """
    p, width = centers.shape[0], n_features + n_columns + _FUNCTION
    # The factor, and the matrix beside it where a library does not work in place.
    fits = 16.0 * p * p <= cache_budget(cache_size, centers)
    if fits and _SLOWNESS * p**3 / 3 <= _N_PRODUCTS * p * width * n_rows:
        return ExactProjection(centers)
    fill_caches([centers], cache_size, int(min(n_rows, 1e6)) // p, n_features)
    return InexactProjection(centers)


def projection_interval(projection, p, m, n_features, n_columns):
    """Return T, batches between projections, so that a batch is cheapest on average.

    With temporary centers a batch costs m^2 T (d + 2 l) / 2 multiply-adds, and its part
    of a projection C / T. At most p / m, so that the temporary centers are no more than
    the others.
    """
    width = n_features + 2 * n_columns + _FUNCTION
    if isinstance(projection, ExactProjection):
        cost = p * p * (_READING + n_columns)
    else:
        cost = _N_PRODUCTS * p * p * width
    best = (2.0 * cost / (m * m * width)) ** 0.5
    return int(max(1, min(round(best), p // m)))
