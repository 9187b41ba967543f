"""The normal equations B b = q of a model on centers, and of one on the full kernel.

Both classes have the mean of the targets, the `spectrum` of B, ``spectrum_between(low,
high)``, the part of it that models between two penalties need, and ``factor(alpha)``
and ``solve(factor)``, which solve for b with B + lambda I. Code that computes a path
works with either. Neither changes its arrays.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ..arrays.array import namespace
from ..arrays.linalg import (
    cholesky,
    cholesky_solve,
    eigh,
    plus_diagonal,
    solve_triangular,
)
from ..operators.matrix import check_finite
from .krylov import krylov_spectrum
from .paths import Spectrum
from .whitening import EPS, Whitening


class Factor(NamedTuple):
    """Cholesky factor of N (B + lambda I).

    Attributes
    ----------
    L : array of shape (p, p)
        Lower triangular.
    ridge : float
        lambda N.
    """

    L: Any
    ridge: float

    def solve(self, q):
        """Return (N (B + lambda I))^-1 q."""
        return cholesky_solve(self.L, q)


@dataclass(frozen=True)
class Moments:
    """Sums over rows that determine a model on centers, and its errors.

    With C = K(X, Z), or K(X, Z) R if rows are whitened one by one, and T = [Y, 1] they
    are C' W C, C' W T and T' W T. The sums of two sets of rows can be added.

    Attributes
    ----------
    gram : array of shape (p, p)
    cross : array of shape (p, l + 1)
    squares : array of shape (l + 1, l + 1)
    whitening : Whitening
    """

    gram: Any
    cross: Any
    squares: Any
    whitening: Whitening

    @classmethod
    def of(cls, operator, Y, weights, whitening):
        """Return the sums over the rows of K(X, Z).

        Parameters
        ----------
        operator : Matrix
            K(X, Z), with the centers that the whitening keeps.
        Y : array of shape (n, l)
            In float64.
        weights : array of shape (n,)
            In float64.
        whitening : Whitening

        Raises
        ------
        ValueError
            If the kernel has values that are not finite.
        """
        xp = namespace(Y)
        T = xp.concat([Y, xp.ones_like(Y[:, :1])], axis=1)
        gram, cross = operator.gram(T, weights, transform=whitening.R)
        check_finite(xp.linalg.diagonal(gram))
        return cls(gram, cross, T.T @ (T * weights[:, None]), whitening)

    def __add__(self, other):
        return Moments(
            self.gram + other.gram,
            self.cross + other.cross,
            self.squares + other.squares,
            self.whitening,
        )

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
        return _centered(self.cross, intercept)

    def centered_squares(self, intercept):
        """Return the weighted sum of (Y - intercept)^2 of every output, (l,)."""
        xp = namespace(self.squares)
        sums = self.squares[:-1, -1]
        squares = xp.linalg.diagonal(self.squares)[:-1]
        return squares - 2 * intercept * sums + intercept**2 * self.squares[-1, -1]

    def coef(self, b):
        """Return the coefficients of C for a model b."""
        if self.whitening.R is not None:
            return b
        return solve_triangular(self.whitening.L, b, transposed=True)

    def _gram_of_features(self):
        """Return Phi' W Phi in a new array."""
        xp, L = namespace(self.gram), self.whitening.L
        if self.whitening.R is not None:
            return xp.asarray(self.gram, copy=True)
        return solve_triangular(L, solve_triangular(L, self.gram).T)

    @cached_property
    def spectrum(self):
        """The spectrum of B."""
        gram, T = self._gram_of_features(), self._centered_targets()
        xp, N, floor = namespace(gram), self.weight, self._floor(gram)
        values, V = eigh(gram)
        values = xp.where(values > 0, values, xp.zeros_like(values))
        targets = V.T @ T / N
        squares = self.centered_squares(self.mean)
        return Spectrum(values / N, V, targets, squares, N, floor / N)

    def spectrum_between(self, low, high):
        """Return the spectrum, or the part that penalties in this range need."""
        gram, T = self._gram_of_features(), self._centered_targets()
        squares, floor = self.centered_squares(self.mean), self._floor(gram)
        found = krylov_spectrum(gram, T, squares, self.weight, floor, low, high)
        del gram  # `spectrum` makes its own
        return self.spectrum if found is None else found

    @property
    def least_penalty(self):
        """The lambda that is as large as the rounding error."""
        return self._floor(self._gram_of_features()) / self.weight

    def _floor(self, gram):
        return self.whitening.rounding * float(namespace(gram).linalg.trace(gram))

    def _centered_targets(self):
        """Return Phi' W [Y - mean, 1]."""
        xp, cross = namespace(self.cross), self.cross
        if self.whitening.R is None:
            cross = solve_triangular(self.whitening.L, cross)
        return xp.concat([_centered(cross, self.mean), cross[:, -1:]], axis=1)

    def factor(self, alpha, *, raised=False):
        """Return the `Factor` of one lambda, or None if rounding is not below it.

        If `raised`, a lambda that is not above rounding is raised until it is.
        """
        gram = self._gram_of_features()
        ridge, floor = alpha * self.weight, self._floor(gram)
        if ridge <= floor:
            if not raised:
                return None
            ridge = 2 * floor
        L = cholesky(plus_diagonal(gram, ridge))
        return None if L is None else Factor(L, ridge)

    def solve(self, factor):
        """Return the b of [Y - mean, 1], shape (p, l + 1)."""
        return factor.solve(self._centered_targets())


# Smallest pivot of a factor, in units of the rounding error, for which no penalty is
# needed: rounding then changes no pivot by more than about 1 %.
_SAFE_PIVOT = 100
# A quarter of the rows is factorized first, in 1/64 of the time: if these have a pivot
# that is too small, so have all rows. On 6000 rows of cpusmall that saves 0.7 s of the
# 4.9 s of a path.
_FIRST_PART = 4


@dataclass(frozen=True)
class WeightedKernel:
    """The full kernel instead of sums: B = W^1/2 K W^1/2 / N, q = W^1/2 y / N.

    Attributes
    ----------
    matrix : callable
        ``matrix()`` returns K of the rows in float64, a new array every time, which may
        be overwritten.
    targets : array of shape (n, l)
    weights : array of shape (n,)
    rounding : float
        Rounding error of K divided by its trace.
    semidefinite : bool, default=False
        Whether negative eigenvalues can only be rounding.
    """

    matrix: Callable[[], Any]
    targets: Any
    weights: Any
    rounding: float
    semidefinite: bool = False

    @property
    def weight(self):
        """N."""
        return float(namespace(self.weights).sum(self.weights))

    @property
    def mean(self):
        """Mean of the targets, shape (l,)."""
        return self.weights @ self.targets / self.weight

    def _weighted_matrix(self):
        """Return W^1/2 K W^1/2 in a new array."""
        xp, K = namespace(self.weights), self.matrix()
        check_finite(xp.linalg.diagonal(K))
        if bool(xp.all(self.weights == 1)):
            return K
        root = xp.sqrt(self.weights)
        return root[:, None] * K * root[None, :]

    @cached_property
    def spectrum(self):
        """The spectrum of B without its negative part.

        The eigenvectors are divided by (N e)^1/2 and the targets multiplied by it, as
        if the features were R' K(X, x) with R = K^-1/2.
        """
        xp, N = namespace(self.weights), self.weight
        T, K = self._weighted_targets(), self._weighted_matrix()
        floor = self._floor(K)
        values, V = eigh(K)
        lowest, top = float(values[0]), float(values[-1])
        lowest = max(lowest, 0.0) if self.semidefinite else lowest
        # A kernel that is zero, or negative, has no positive eigenvalue.
        negative = (values < -floor) | (values[-1] <= 0)
        tiny = xp.full_like(values, EPS**2 * max(top, -lowest) or 1.0)
        values = xp.where(values > tiny, values, tiny)
        root = xp.sqrt(values)
        targets = root[:, None] * (V.T @ T) / N
        targets = xp.where(negative[:, None], xp.zeros_like(targets), targets)
        squares = xp.sum(T[:, :-1] ** 2, axis=0)
        return Spectrum(
            values / N, V / root, targets, squares, N, floor / N, lowest / N, True
        )

    def spectrum_between(self, low, high):
        """Return the spectrum, or the part that penalties in this range need."""
        T, K = self._weighted_targets(), self._weighted_matrix()
        squares = namespace(T).sum(T[:, :-1] ** 2, axis=0)
        floor = self._floor(K)
        found = krylov_spectrum(K, T, squares, self.weight, floor, low, high)
        del K  # `spectrum` makes its own
        return self.spectrum if found is None else found

    @property
    def least_penalty(self):
        """The lambda that is as large as the rounding error."""
        return self._floor(self._weighted_matrix()) / self.weight

    def _floor(self, K):
        return self.rounding * abs(float(namespace(K).linalg.trace(K)))

    def _weighted_targets(self):
        """Return W^1/2 [Y - mean, 1]."""
        xp, Y = namespace(self.weights), self.targets - self.mean
        T = xp.concat([Y, xp.ones_like(Y[:, :1])], axis=1)
        return xp.sqrt(self.weights)[:, None] * T

    def factor(self, alpha, *, raised=False):
        """Return the `Factor` of one lambda, or None if rounding is not below it.

        If `raised`, a lambda that is not above rounding is raised until it is.
        """
        K, ridge = self._weighted_matrix(), alpha * self.weight
        floor = self._floor(K)
        if raised:
            ridge = max(ridge, 2 * floor)
        if ridge > floor:
            L = cholesky(plus_diagonal(K, ridge))
        else:
            L = _safe_factor(K, ridge, _SAFE_PIVOT * floor)
        return None if L is None else Factor(L, ridge)

    def solve(self, factor):
        """Return the b of [Y - mean, 1], shape (n, l + 1)."""
        return factor.solve(self._weighted_targets())


def _safe_factor(K, ridge, least):
    """Return the Cholesky factor of K + ridge I, or None if a pivot is below `least`.

    K is overwritten.
    """
    xp, n = namespace(K), K.shape[0]
    m = max(n // _FIRST_PART, 1)
    for part in (xp.asarray(K[:m, :m], copy=True), K):
        L = cholesky(plus_diagonal(part, ridge))
        if L is None or bool(xp.any(xp.linalg.diagonal(L) ** 2 < least)):
            return None
    return L


def nearest_factor(equations, alpha):
    """Return the `Factor` of lambda = `alpha`, which is raised until there is one.

    Parameters
    ----------
    equations : Moments or WeightedKernel
    alpha : float
    """
    shift, step = max(alpha, 2 * equations.least_penalty, 1e-100), 1.0
    while (factor := equations.factor(step * shift)) is None:
        step *= 10.0
    return factor


def _centered(cross, intercept):
    """Return C' W (Y - intercept) from C' W [Y, 1]."""
    return cross[:, :-1] - cross[:, -1:] * intercept[None, :]
