"""Features less their mean: the matrix of a linear model."""

import numpy as np
import scipy.sparse

from ..backend.linalg import large_gram, large_product
from .matrix import Matrix


class CenteredFeatures(Matrix):
    """Rows of features less their mean: the matrix of a linear model.

    Parameters
    ----------
    X : array or sparse array of shape (n, d)
        Sparse ones in CSR.
    mean : array of shape (d,)
        Subtracted from every row; X is not copied and stays sparse.
    """

    can_be_cached = False

    def __init__(self, X, mean):
        self._describe(mean)
        self.shape = tuple(X.shape)
        self._X, self._mean = X, mean

    def product(self, A, start=0, stop=None, n_kept=0):
        """Return rows [start:stop] of (X - mean) A, and of its first columns."""
        F = large_product(self._X[start:stop, :], A) - self._mean @ A
        return F, self.block(start, stop, 0, n_kept) if n_kept else F[:, :0]

    def block(self, start=0, stop=None, first=0, last=None, dtype=None, out=None):
        """Return rows [start:stop], columns [first:last] of X - mean as an array."""
        block = self._X[start:stop, first:last]
        if scipy.sparse.issparse(block):
            block = block.toarray()
        block = block - self._mean[first:last]
        return block if dtype is None else self.xp.astype(block, dtype, copy=False)

    def rows(self, X):
        """Return the matrix of other rows."""
        return CenteredFeatures(X, self._mean)

    def adjoint(self, G, start=0, stop=None):
        """Return (X_b - mean)' G of the rows [start:stop], shape (d, l)."""
        total = self.xp.sum(G, axis=0)
        product = large_product(self._X[start:stop, :].T, G)
        return product - self._mean[:, None] * total

    def row_kernel(self, start, stop):
        """Return the products of some rows with themselves, their kernel matrix."""
        A, mean = self._X[start:stop, :], self._mean
        if scipy.sparse.issparse(A):
            along = np.asarray(A @ mean)
            products = (A @ A.T).toarray()
            return products - along[:, None] - along[None, :] + mean @ mean
        return large_gram(A - mean)
