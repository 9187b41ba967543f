"""Sums over the rows of several matrices, one below the other."""

from functools import partial
from itertools import accumulate


class StackedRows:
    """Some matrices with the same columns, one below the other.

    Logistic regression on training and held-out rows, which have separate matrices,
    needs only two sums over all rows, `gram` and `adjoint_of`. It is not a `Matrix`: it
    has no products and no blocks.

    Parameters
    ----------
    matrices : list of Matrix
    """

    def __init__(self, matrices):
        stops = accumulate(matrix.shape[0] for matrix in matrices)
        self._parts = [
            (matrix, slice(stop - matrix.shape[0], stop))
            for matrix, stop in zip(matrices, stops, strict=True)
        ]

    def gram(self, T, weights, *, transform=None):
        """Return C' W C and C' W T in float64, as `Matrix.gram` does."""
        sums = [
            matrix.gram(T[rows, :], weights[rows], transform=transform)
            for matrix, rows in self._parts
        ]
        grams, crosses = zip(*sums, strict=True)
        return sum(grams[1:], grams[0]), sum(crosses[1:], crosses[0])

    def adjoint_of(self, V, function):
        """Return K' G in float64, G = ``function(rows, K V)``, as `Matrix` does."""

        def of_part(first, rows, F):
            return function(slice(first + rows.start, first + rows.stop), F)

        found = [
            matrix.adjoint_of(V, partial(of_part, rows.start))
            for matrix, rows in self._parts
        ]
        return sum(found[1:], found[0])
