"""Kernel matrices of a sample of rows, to measure the steps of a model on centers."""

from ..backend.linalg import large_gram
from ..operators.tiled import TiledKernel


class Sample:
    """A sample of rows X: the kernel matrices K(X, X) and K(X, Z), with centers Z.

    It is not a `Matrix`: it has only the blocks that the preconditioner and the step
    need.

    Parameters
    ----------
    centers : Matrix
        K(Z, Z).
    rows : array of shape (N, d)
        X.
    whiten : callable, default=None
        ``whiten(C)`` returns C L^-T for C = K(X, Z), with L L' = K(Z, Z). If given,
        `row_kernel` is that of the kernel projected onto the span of the centers.

    Attributes
    ----------
    shape : tuple (N, p)
    """

    def __init__(self, centers, rows, whiten=None):
        self._centers = centers.rows(rows)
        self._rows = TiledKernel(self._centers.kernel, rows)
        self.shape = self._centers.shape
        self._features = None if whiten is None else whiten(self._centers.block())

    def row_kernel(self, start, stop):
        """Return the kernel matrix of some rows with themselves, (m, m)."""
        if self._features is None:
            return self._rows.row_kernel(start, stop)
        return large_gram(self._features[start:stop, :])

    def center_block(self, start, stop, n_centers, dtype=None):
        """Return K of some rows with the first centers."""
        return self._centers.block(start, stop, 0, n_centers, dtype=dtype)
