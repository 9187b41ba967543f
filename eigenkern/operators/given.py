"""A matrix that is in memory."""

import numpy as np

from ..backend.machine import PANEL_COLUMNS
from ..backend.threads import run_on_threads
from .matrix import Matrix


class GivenMatrix(Matrix):
    """A matrix that is in memory: given by the user, or computed once.

    Parameters
    ----------
    K : array of shape (m, p)
    source : Matrix, default=None
        The operator that it was computed from, which can compute more rows.
    pool : ThreadPoolExecutor, default=None
        Threads for `adjoint`.
    """

    in_memory = True

    def __init__(self, K, source=None, pool=None):
        self._describe(K)
        self.shape = tuple(K.shape)
        self._K, self._source, self._threads = K, source, pool

    def rows(self, X):
        """Return K(X, Z), computed as this matrix was."""
        return super().rows(X) if self._source is None else self._source.rows(X)

    def product(self, A, start=0, stop=None, n_kept=0):
        """Return rows [start:stop] of K @ A, and of the first columns of K."""
        K = self._K[start : self.shape[0] if stop is None else stop, :]
        return K @ A, K[:, :n_kept]

    def block(self, start=0, stop=None, first=0, last=None, dtype=None, out=None):
        """Return rows [start:stop], columns [first:last] of K: a view, in its type."""
        stop = self.shape[0] if stop is None else stop
        last = self.shape[1] if last is None else last
        K = self._K[start:stop, first:last]
        return K if dtype is None else self.xp.astype(K, dtype, copy=False)

    def adjoint(self, G, start=0, stop=None):
        """Return K' G of the rows [start:stop], shape (p, l)."""
        K = self.block(start, stop)
        if self._threads is None:
            return K.T @ G
        out = np.empty((K.shape[1], G.shape[1]), dtype=G.dtype)

        def task(j):
            columns = slice(j, j + PANEL_COLUMNS)
            out[columns, :] = (G.T @ K[:, columns]).T

        run_on_threads(
            self._threads, task, [(j,) for j in range(0, len(out), PANEL_COLUMNS)]
        )
        return out
