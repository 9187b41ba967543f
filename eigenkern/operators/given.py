"""A matrix that is in memory."""

from ..backend.linalg import large_product, plus_diagonal
from .matrix import Matrix


class GivenMatrix(Matrix):
    """A matrix that is in memory: given by the user, or computed once.

    Parameters
    ----------
    K : array of shape (m, p)
    source : Matrix, default=None
        The operator that computed it and can compute more rows.
    """

    in_memory = True

    def __init__(self, K, source=None):
        self._describe(K)
        self.shape = tuple(K.shape)
        self._K, self._source = K, source

    def rows(self, X):
        """Return K(X, Z), computed like this matrix."""
        return super().rows(X) if self._source is None else self._source.rows(X)

    def plus_diagonal(self, values):
        """Return K + diag(values), which overwrites K."""
        return GivenMatrix(plus_diagonal(self._K, values), self._source)

    def product_and_columns(self, A, start=0, stop=None, n_columns=0):
        """Return rows [start:stop] of K @ A, and of the first columns of K."""
        K = self._K[start:stop, :]
        return large_product(K, A), K[:, :n_columns]

    def block(self, start=0, stop=None, first=0, last=None, dtype=None, out=None):
        """Return rows [start:stop], columns [first:last] of K, if possible a view."""
        K = self._K[start:stop, first:last]
        return K if dtype is None else self.xp.astype(K, dtype, copy=False)

    def adjoint(self, G, start=0, stop=None):
        """Return K' G of the rows [start:stop], shape (p, l)."""
        # G' K reads K along its rows; K' G would not.
        return large_product(G.T, self.block(start, stop)).T
