"""Features less their mean: the matrix of a linear model."""

from contextlib import nullcontext

import scipy.sparse

from ..backend.array import device_of, namespace


class LinearOperator:
    """Rows of features less their mean: the matrix of a linear model.

    Parameters
    ----------
    X : array or sparse array of shape (n, d)
        Sparse ones in CSR.
    mean : array of shape (d,)
        Subtracted from every row; X is not copied and stays sparse.

    Attributes
    ----------
    shape : tuple (n, d)
    xp, device, dtype, itemsize
        Namespace, device, data type and its bytes.
    """

    def __init__(self, X, mean):
        self.xp, self.device, self.dtype = namespace(mean), device_of(mean), mean.dtype
        self.itemsize = self.xp.finfo(self.dtype).bits // 8
        self.shape = tuple(X.shape)
        self._X, self._mean = X, mean

    def exclusive_threads(self):
        """Return a context for loops over batches; nothing here competes with BLAS."""
        return nullcontext()

    def product(self, A, start=0, stop=None, n_kept=0):
        """Return (X_b - mean) A of the rows [start:stop], shape (m, l), and None."""
        return self._X[start:stop, :] @ A - self._mean @ A, None

    def adjoint(self, G, start=0, stop=None):
        """Return (X_b - mean)' G of the rows [start:stop], shape (d, l)."""
        total = self.xp.sum(G, axis=0)
        return self._X[start:stop, :].T @ G - self._mean[:, None] * total

    def block(self, start, stop, first, last):
        """Return the products of some rows with others, their kernel matrix."""
        A, B, mean = self._X[start:stop, :], self._X[first:last, :], self._mean
        if scipy.sparse.issparse(A):
            products = (A @ B.T).toarray()
            return products - (A @ mean)[:, None] - (B @ mean)[None, :] + mean @ mean
        return (A - mean) @ (B - mean).T
