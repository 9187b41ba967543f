"""Projection onto the span of K(., Z): by a Cholesky factor or conjugate gradients."""

from itertools import islice

from ..backend.array import namespace, slices
from ..backend.linalg import (
    cholesky_solve,
    first_cholesky,
    large_product,
    solve_triangular,
)
from .conjugate_gradient import conjugate_gradient
from .state import Saved

# Relative residual at which conjugate gradients stop. The residual is projected the
# next time: with 0.05 fits took two to three times the products and as many epochs.
_TOLERANCE = 0.2
# Most products; three usually reach 0.2.
_MAX_PRODUCTS = 10
# Most eigenvectors in their preconditioner: more would cost as much as a product.
_MAX_VECTORS = 200


class CenterFactor:
    """The Cholesky factor of K(Z, Z) in float64.

    The rounding error of a kernel matrix, p eps k(x, x), is added to its diagonal, and
    more if there is no factor. The fixed point of the iteration, where h = 0, does not
    depend on it.

    Parameters
    ----------
    centers : Matrix
        K(Z, Z).
    """

    def __init__(self, centers):
        xp, p = centers.xp, centers.shape[0]
        self._xp, self._dtype = xp, centers.dtype
        eps, K = float(xp.finfo(centers.dtype).eps), centers.block(dtype=xp.float64)
        shift = p * eps * (float(xp.max(xp.abs(xp.linalg.diagonal(K)))) or 1.0)
        self._L = first_cholesky(K, (shift * 10.0**k for k in range(10)))
        if self._L is None:
            raise ValueError(
                "the kernel matrix of the centers has no Cholesky factor: the kernel "
                "must be positive semi-definite; choose another kernel or bandwidth"
            )

    def solve(self, h):
        """Return K(Z, Z)^-1 h."""
        solution = cholesky_solve(self._L, self._xp.astype(h, self._xp.float64))
        return self._xp.astype(solution, self._dtype)

    def whiten(self, C):
        """Return C L^-T for rows C of K(X, Z): features of the projected kernel."""
        C = self._xp.astype(C, self._xp.float64)
        return self._xp.astype(solve_triangular(self._L, C.T).T, self._dtype)


class ExactProjection(Saved):
    """Projection by a Cholesky factor.

    Parameters
    ----------
    factor : CenterFactor
    P : CenterSpectral, default=None
        Its corrections K V S are projected too.
    """

    _saved = ()
    #: Exact projections have no residual.
    residual = 0.0

    def __init__(self, factor, P=None):
        self._factor, self._P = factor, P

    def __call__(self, h, S=None):
        """Return theta = K(Z, Z)^-1 h + V S, and its residual, zero."""
        coef = self._factor.solve(h)
        if S is not None:  # K(., Z_c) V S lies in the span
            self._P.add_to(coef, S)
        return coef, namespace(h).zeros_like(h)


class InexactProjection(Saved):
    """Projection by a few steps of conjugate gradients, in O(p) memory.

    EigenPro 3 projects by a run of EigenPro 2, whose result may have a larger norm in
    the kernel's space than the function that it projects. Conjugate gradients minimize
    the error in this norm: their result is an orthogonal projection onto a part of the
    span, and its norm is never larger. The residual is returned too, for the next
    projection. Their preconditioner has the eigenvectors U of the Nystrom approximation
    G G' of K(Z, Z), G = K(Z, Z_c) V.

    Parameters
    ----------
    centers : Matrix
        K(Z, Z), in random order.
    P : CenterSpectral
        Its corrections K V S are projected too.

    Attributes
    ----------
    residual : float
        The mean of the relative residuals of projections so far.
    """

    _saved = ("residual", "_n_projections")

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

    def _preconditioned(self, R):
        U = self._vectors
        return R - large_product(U, self._scales * (U.T @ R))

    def __call__(self, h, S=None):
        """Return theta = K(Z, Z)^-1 (h + K V S), approximately, and its residual.

        The two terms are projected together. Both are large along the top eigenvectors,
        where they cancel; the errors of two separate projections would not.
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
