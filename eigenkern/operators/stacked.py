"""Matrices with the same columns, one below the other."""

from functools import partial

import numpy as np

from .matrix import Matrix


class StackedRows(Matrix):
    """Some matrices with the same columns, one below the other.

    Parameters
    ----------
    matrices : list of Matrix
    """

    def __init__(self, matrices):
        first = matrices[0]
        self.xp, self.device, self.n_workers = first.xp, first.device, first.n_workers
        self.dtype, self.itemsize = first.dtype, first.itemsize
        n_rows = [matrix.shape[0] for matrix in matrices]
        self.shape = sum(n_rows), first.shape[1]
        stops = np.cumsum(n_rows).tolist()
        ranges = [slice(stop - n, stop) for n, stop in zip(n_rows, stops, strict=True)]
        self._parts = list(zip(matrices, ranges, strict=True))

    def gram(self, T, weights, *, transform=None):
        """Return C' W C and C' W T in float64, C = K."""
        sums = [
            matrix.gram(T[rows, :], weights[rows], transform=transform)
            for matrix, rows in self._parts
        ]
        grams, crosses = zip(*sums, strict=True)
        return sum(grams[1:], grams[0]), sum(crosses[1:], crosses[0])

    def adjoint_of(self, V, function):
        """Return K' G in float64, G = ``function(rows, K V)`` of each block of rows."""

        def of_part(first, rows, F):
            return function(slice(first + rows.start, first + rows.stop), F)

        found = [
            matrix.adjoint_of(V, partial(of_part, rows.start))
            for matrix, rows in self._parts
        ]
        return sum(found[1:], found[0])
