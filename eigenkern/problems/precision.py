"""Where least squares in single precision would lose digits."""

from functools import cached_property

import numpy as np

from ..backend.array import namespace
from ..backend.lazy import rows_at
from ..operators.sharded import kernel_operator
from ..solvers.direct import N_DIAGONAL
from .problem import shuffled, take

# Rows on which predictions in single precision are compared with those in double, and
# the root mean squared difference, in standard deviations of the targets, that is
# harmless: R2 then changes by 1e-6, and by up to 2e-3 if it is not random.
_N_COMPARED_ROWS, _HARMLESS = 256, 1e-3


def rounding(xp, dtype, n):
    """Return the rounding error of an n x n kernel matrix over its trace.

    The errors of the entries are practically random: their norm grows like n^1/2, that
    of the matrix like n.
    """
    # Measured in units of eps n^-1/2: 0.3 to 27, median 1.5 (300 and 1000 rows of four
    # data sets, three kernels, bandwidths of 0.5 to 32 median distances, both
    # precisions); above 10 only for the laplacian on california_housing. A multiple of
    # K does not count as an error.
    return 10 * float(xp.finfo(dtype).eps) / n**0.5


class InPrecision:
    """The data types of kernel values and models: a part of `LeastSquares`.

    A closed form computes kernel values in float64; an iteration in the data type of
    the rows, if that does no harm.
    """

    def iterates(self, alpha, *, to_its_end=True):
        """Let kernel values have the data type of the rows, to iterate in less time.

        They stay in float64 if rounding to float32 would drown the smallest penalty,
        `alpha`; unless that is the end of a path, which seldom gets there.
        """
        if self.kernel is None or self.dtype == self.xp.float64:
            return
        least = rounding(self.xp, self.dtype, self._n_columns) * self.kernel_size
        if alpha > least or not to_its_end:
            self.kernel_dtype, self.least_alpha = self.dtype, alpha

    def in_double(self):
        """Compute kernel values in float64 from here on."""
        if self.kernel is not None:
            self.kernel_dtype = self.xp.float64

    @cached_property
    def kernel_size(self):
        """The mean of k(x, x) over some training rows."""
        X = self.train.X
        first = np.arange(min(N_DIAGONAL, X.shape[0]))
        rows = self.to_compute(rows_at(X, first))
        if self.kernel is None:
            rows = take(rows, self.train.index[first], axis=1)
            return float(self.xp.mean(self.xp.linalg.diagonal(rows)))
        return float(self.xp.mean(self.kernel.diagonal(rows)))

    def in_kernel_dtype(self, centers):
        """Return centers in the data type of the kernel's values, as rows will be."""
        xp = namespace(centers)
        dtype = xp.float64 if self.kernel_dtype == self.xp.float64 else centers.dtype
        return xp.astype(centers, dtype, copy=False)

    @np.errstate(over="ignore", invalid="ignore")  # in single precision
    def model_dtype(self, coef):
        """Return the data type of a fitted model.

        It is that of the rows, unless single precision would change its predictions.
        """
        xp, double = self.xp, self.xp.float64
        if self.kernel_dtype == self.dtype:
            return self.dtype
        a, Z = self.expand(coef), self.centers_of(coef)
        X = self.train.X
        X = rows_at(X, np.sort(shuffled(X.shape[0])[:_N_COMPARED_ROWS]))
        kernels = (
            kernel_operator(self.kernel, centers, self.devices, X)
            for centers in (self.in_kernel_dtype(Z), Z)
        )
        F, rounded = (K @ xp.astype(a, K.dtype, copy=False) for K in kernels)
        change = xp.mean((F - xp.astype(rounded, double)) ** 2, axis=0)
        spread = xp.mean((self.targets - self.mean(self.train)) ** 2, axis=0)
        harmless = xp.all(change <= _HARMLESS**2 * spread)
        return self.dtype if bool(harmless) else double
