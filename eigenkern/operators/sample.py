"""Kernel matrices of a sample of rows."""

from .tiled import KernelOperator


class SampleOperator:
    """Kernel matrices of a sample of rows, to measure the steps of a model on centers.

    Parameters
    ----------
    centers : KernelOperator
        K(Z, Z).
    rows : array of shape (N, d)
        X, the sample.
    whiten : callable, default=None
        ``whiten(C)`` returns C L^-T, with L L' = K(Z, Z), of C = K(X, Z): then `block`
        is that of the kernel projected onto the span of the centers.

    Attributes
    ----------
    shape : tuple (N, p)
    """

    def __init__(self, centers, rows, whiten=None):
        self._rows = KernelOperator(centers.kernel, rows)
        self._centers = centers.with_rows(rows)
        self.shape = self._centers.shape
        self._features = None if whiten is None else whiten(self._centers.block())

    def block(self, start, stop, first, last):
        """Return K of some rows with others of the sample."""
        if self._features is None:
            return self._rows.block(start, stop, first, last)
        return self._features[start:stop, :] @ self._features[first:last, :].T

    def center_block(self, start, stop, n_centers, dtype=None):
        """Return K of some rows with the first centers."""
        return self._centers.block(start, stop, 0, n_centers, dtype=dtype)
