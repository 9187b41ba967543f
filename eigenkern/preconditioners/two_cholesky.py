"""Falkon's preconditioner: two Cholesky factors of matrices of the centers."""

from dataclasses import dataclass
from typing import Any

from ..arrays.array import namespace
from ..arrays.linalg import first_cholesky, large_product, solve_triangular


@dataclass(frozen=True)
class TwoCholesky:
    """Falkon's preconditioner of kernel ridge regression on centers.

    With T' T = K_mm the features R' K(Z, x), R = T^-1, have the second moment ::

        B = R' K_nm' W K_nm R / N, about T W_m T' / sum(W_m) = A' A - lambda I

    because the centers are a sample of the rows. A'^-1 (B + lambda I) A^-1 is therefore
    close to I, at the cost of two Cholesky factors.
    L = T' and C = A' are lower triangular.

    References
    ----------
    Rudi, Carratino, Rosasco, "FALKON: an optimal large scale kernel method", NIPS
    2017: section 3.
    """

    L: Any
    C: Any

    @classmethod
    def of(cls, L, alpha, weights):
        """Return the preconditioner, by the factor L of K_mm in float64, and lambda.

        The weights W_m (p,) are those of the rows that each center stands for.
        """
        xp = namespace(L)
        A = large_product(L.T, weights[:, None] * L) / float(xp.sum(weights))
        rounding = float(xp.finfo(L.dtype).eps) * float(xp.linalg.trace(A))
        # Rounding can make A + alpha I indefinite if alpha is tiny.
        raised = [max(alpha, rounding) * 10**k for k in range(12)]
        C = first_cholesky(A, [alpha, *raised])
        if C is None:
            raise ValueError(
                "the kernel matrix of the centers has no Cholesky factor: scale X, or "
                "choose another kernel or bandwidth"
            )
        return cls(L, C)

    def inner(self, c):
        """Return A^-1 c, coefficients b of the features."""
        return solve_triangular(self.C, c, transposed=True)

    def inner_transposed(self, g):
        """Return A'^-1 g."""
        return solve_triangular(self.C, g)

    def expand(self, b):
        """Return R b, coefficients of the centers."""
        return solve_triangular(self.L, b, transposed=True)

    def reduce(self, g):
        """Return R' g."""
        return solve_triangular(self.L, g)

    def preimage(self, coef):
        """Return c with R A^-1 c = coef."""
        return self.C.T @ (self.L.T @ coef)
