"""Sums over rows that a least-squares fit and its error depend on."""

from dataclasses import dataclass
from typing import Any

from ..backend.array import namespace
from ..backend.linalg import solve_triangular
from .whitening import check_finite


@dataclass(frozen=True)
class Moments:
    """Sums over rows that a least-squares fit and its error depend on.

    With features C (rows phi(x)', or K(x, Z)) and T = [Y, 1] they are C' W C, C' W T
    and T' W T: sums over two sets of rows add up.
    """

    gram: Any
    cross: Any
    squares: Any

    @classmethod
    def of(cls, operator, Y, weights, transform=None):
        """Return the sums over the rows of K(X, Z), or of K(X, Z) @ transform.

        Parameters
        ----------
        operator : TiledKernel
        Y : array of shape (n, l)
            In float64.
        weights : array of shape (n,)
            In float64.

        Raises
        ------
        ValueError
            If the kernel has values that are not finite.
        """
        xp = namespace(Y)
        T = xp.concat([Y, xp.ones_like(Y[:, :1])], axis=1)
        gram, cross = operator.gram(T, weights, transform=transform)
        check_finite(xp.linalg.diagonal(gram))
        return cls(gram, cross, T.T @ (T * weights[:, None]))

    def __add__(self, other):
        return Moments(
            self.gram + other.gram,
            self.cross + other.cross,
            self.squares + other.squares,
        )

    def whitened(self, L):
        """Return the sums for the features L^-1 C."""
        half = solve_triangular(L, self.gram)
        gram = solve_triangular(L, half.T)
        return Moments(gram, solve_triangular(L, self.cross), self.squares)

    @property
    def weight(self):
        """N."""
        return float(self.squares[-1, -1])

    @property
    def mean(self):
        """Mean of the targets, shape (l,)."""
        return self.squares[:-1, -1] / self.squares[-1, -1]

    def centered_cross(self, intercept):
        """Return C' W (Y - intercept)."""
        return self.cross[:, :-1] - self.cross[:, -1:] * intercept[None, :]

    def centered_squares(self, intercept):
        """Return the sum of the squares of Y - intercept of every output, (l,)."""
        xp = namespace(self.squares)
        sums = self.squares[:-1, -1]
        squares = xp.linalg.diagonal(self.squares)[:-1]
        return squares - 2 * intercept * sums + intercept**2 * self.squares[-1, -1]
