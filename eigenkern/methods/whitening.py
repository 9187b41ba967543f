"""Features that are orthonormal in the span of the centers."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays.array import device_of, namespace
from ..arrays.linalg import pivoted_cholesky, solve_triangular

#: Relative rounding error in float64.
EPS = float(np.finfo(np.float64).eps)
#: Pivots over the largest that kernel values in single and in double precision resolve.
SINGLE_PIVOT, _DOUBLE_PIVOT = 1e-7, 1e-12


@dataclass(frozen=True)
class Whitening:
    """R = L^-T, with L L' = K_mm of the kept centers.

    Centers in the span of others are left out, so R R' is the inverse of K_mm for the
    kept ones, and the features span the same functions as with R R' = K_mm^+. The NYTRO
    paper has R = S T^-1 with K_mm = S D (QR) and T' T = S' K_mm S, and keeps all
    centers.

    Attributes
    ----------
    kept : ndarray of shape (p,)
        Indices of centers that span all centers, in the order of L.
    L : array of shape (p, p)
        Lower Cholesky factor of K_mm of those centers.
    smallest : float
        The smallest squared diagonal entry of L divided by the largest.
    R : array of shape (p, p) or None
        R if rows are whitened one by one before they are summed, else None.
    """

    kept: np.ndarray
    L: Any
    smallest: float
    R: Any = None

    # The relative rounding error of K' K in float64 is eps; multiplying by R on both
    # sides makes it eps / smallest. If `smallest` is below this limit, rows are
    # whitened before they are summed: the error stays eps, for n p^2 more work.
    _LIMIT = 1e-6

    @classmethod
    def of(cls, K_mm, dtype):
        """Return the whitening of a kernel matrix in float64.

        The data type is that of the kernel values of the data: values in float32, whose
        rounding error is 1e-7, do not determine directions below that.
        """
        xp = namespace(K_mm)
        relative = _DOUBLE_PIVOT if dtype == xp.float64 else SINGLE_PIVOT
        kept, L = pivoted_cholesky(
            K_mm, relative * float(xp.max(xp.linalg.diagonal(K_mm)))
        )
        if not len(kept):
            raise ValueError(
                "the kernel matrix of the centers is zero: choose a kernel and a "
                "bandwidth for which k(x, x) is positive"
            )
        squares = xp.linalg.diagonal(L) ** 2
        smallest = float(xp.min(squares)) / float(xp.max(squares))
        R = None
        if smallest < cls._LIMIT and dtype == xp.float64:
            identity = xp.eye(len(kept), dtype=xp.float64, device=device_of(L))
            R = solve_triangular(L, identity, transposed=True)
        return cls(kept, L, smallest, R)

    @property
    def rounding(self):
        """The rounding error of B divided by its trace."""
        # Measured against extended precision, it is 0.7 to 46 times eps / smallest, the
        # median 8; for whitened rows 0.03 to 5 times eps, the median 1.5 (1000 rows, 40
        # and 100 centers of california_housing, kin8nm, a9a and cpusmall; three
        # kernels, bandwidths of 0.5 to 64 median distances).
        return 10 * EPS / (1.0 if self.R is not None else self.smallest)

    def expand(self, b):
        """Return R b, the coefficients of the kept centers."""
        if self.R is not None:  # the rounding errors are then those of the rows
            return self.R @ b
        return solve_triangular(self.L, b, transposed=True)
