"""The normal equations B b = q of a model on centers, and of one on the full kernel."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..arrays.array import namespace
from ..arrays.linalg import eigh, solve_triangular
from ..arrays.threads import cached_property
from ..operators.matrix import check_finite
from .direct import Factor, weighted
from .krylov import krylov_spectrum
from .left_out import with_ones
from .paths import EPS, Spectrum, Whitening


class NormalEquations:
    """N B b = N q, solved with N (B + lambda I) by a factor, or by a `Spectrum`.

    A subclass has ``gram()``, N B in a new array; ``centered_targets()``, N q of the
    targets [Y - mean, 1]; ``squares_of_targets()``, the weighted sum of squares of Y -
    mean, (l,); `rounding`, the error of N B over its trace; and `spectrum`. If it
    `needs_penalty`, there is no factor without a lambda above rounding.
    """

    needs_penalty = True

    def spectrum_between(self, low, high):
        """Return the spectrum, or the part that penalties in this range need."""
        A, T, squares = self.gram(), self.centered_targets(), self.squares_of_targets()
        floor = self._floor(A)
        found = krylov_spectrum(A, T, squares, self.weight, floor, low, high)
        del A  # `spectrum` makes its own
        return self.spectrum if found is None else found

    def _floor(self, A):
        return self.rounding * abs(float(namespace(A).linalg.trace(A)))

    def factor(self, alpha, *, raised=False):
        """Return the `Factor` of lambda N, or None if rounding is not below it.

        If `raised`, a lambda that is not above rounding is raised until it is.
        """
        A, ridge = self.gram(), alpha * self.weight
        floor = self._floor(A)
        if raised:
            ridge = max(ridge, 2 * floor)
        if ridge > floor:
            return Factor.of(A, ridge)
        if self.needs_penalty:
            return None
        # Rounding then changes no pivot by more than about 1 %.
        return _safe_factor(A, ridge, 100 * floor)

    def nearest_factor(self, alpha):
        """Return the `Factor` of lambda, which is raised until there is one."""
        alpha = max(alpha, 2 * self._floor(self.gram()) / self.weight, 1e-100)
        while (factor := self.factor(alpha)) is None:
            alpha *= 10.0
        return factor

    def solve(self, factor):
        """Return the b of [Y - mean, 1], shape (p, l + 1)."""
        return factor.solve(self.centered_targets())


def _safe_factor(K, ridge, least):
    """Return the `Factor` of K, or None if a pivot is below `least`."""
    # If a quarter of the rows has a pivot that is too small, so have all rows.
    xp, m = namespace(K), max(K.shape[0] // 4, 1)
    for part in (xp.asarray(K[:m, :m], copy=True), K):
        factor = Factor.of(part, ridge)
        if factor is None or bool(xp.any(xp.linalg.diagonal(factor.L) ** 2 < least)):
            return None
    return factor


@dataclass(frozen=True)
class Moments(NormalEquations):
    """Sums over rows that determine a model on centers, and its errors.

    With C = K(X, Z), or K(X, Z) R if rows are whitened one by one, and T = [Y, 1] they
    are C' W C, C' W T and T' W T: `sums` of shapes (p, p), (p, l + 1), (l + 1, l + 1).
    Those of two sets of rows can be added.
    """

    sums: Any
    cross: Any
    squares: Any
    whitening: Whitening

    @classmethod
    def of(cls, operator, Y, weights, whitening):
        """Return the sums over the rows of `operator`, K(X, Z), in float64."""
        T = with_ones(Y)
        sums, cross = operator.gram(T, weights, transform=whitening.R)
        check_finite(namespace(Y).linalg.diagonal(sums))
        return cls(sums, cross, T.T @ (T * weights[:, None]), whitening)

    def __add__(self, other):
        return Moments(
            self.sums + other.sums,
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

    @property
    def rounding(self):
        """The rounding error of B divided by its trace."""
        return self.whitening.rounding

    def centered_cross(self, intercept):
        """Return C' W (Y - intercept)."""
        return self.cross[:, :-1] - self.cross[:, -1:] * intercept[None, :]

    def centered_squares(self, intercept):
        """Return the weighted sum of (Y - intercept)^2 of every output, (l,)."""
        xp = namespace(self.squares)
        sums = self.squares[:-1, -1]
        squares = xp.linalg.diagonal(self.squares)[:-1]
        return squares - 2 * intercept * sums + intercept**2 * self.squares[-1, -1]

    def squares_of_targets(self):
        return self.centered_squares(self.mean)

    def coef(self, b):
        """Return the coefficients of C for a model b."""
        if self.whitening.R is not None:
            return b
        return solve_triangular(self.whitening.L, b, transposed=True)

    def gram(self):
        """Return Phi' W Phi in a new array."""
        xp, L = namespace(self.sums), self.whitening.L
        if self.whitening.R is not None:
            return xp.asarray(self.sums, copy=True)
        return solve_triangular(L, solve_triangular(L, self.sums).T)

    def centered_targets(self):
        """Return Phi' W [Y - mean, 1]."""
        cross = [self.centered_cross(self.mean), self.cross[:, -1:]]
        cross = namespace(self.cross).concat(cross, axis=1)
        if self.whitening.R is not None:
            return cross
        return solve_triangular(self.whitening.L, cross)

    @cached_property
    def spectrum(self):
        """The spectrum of B."""
        gram, N = self.gram(), self.weight
        xp, floor = namespace(gram), self._floor(gram)
        values, V = eigh(gram)
        values = xp.where(values > 0, values, xp.zeros_like(values))
        targets = V.T @ self.centered_targets() / N
        return Spectrum(values / N, V, targets, self.squares_of_targets(), N, floor / N)


@dataclass(frozen=True)
class WeightedKernel(NormalEquations):
    """The full kernel instead of sums: B = W^1/2 K W^1/2 / N, q = W^1/2 y / N.

    ``matrix()`` returns K of the rows in float64, a new array every time. With
    `semidefinite` negative eigenvalues can only be rounding.
    """

    matrix: Callable[[], Any]
    targets: Any
    weights: Any
    rounding: float
    semidefinite: bool = False
    needs_penalty = False

    @property
    def weight(self):
        """N."""
        return float(namespace(self.weights).sum(self.weights))

    @property
    def mean(self):
        """Mean of the targets, shape (l,)."""
        return self.weights @ self.targets / self.weight

    def gram(self):
        """Return W^1/2 K W^1/2 in a new array."""
        K = self.matrix()
        check_finite(namespace(K).linalg.diagonal(K))
        return weighted(K, self.weights)

    def centered_targets(self):
        """Return W^1/2 [Y - mean, 1]."""
        root = namespace(self.weights).sqrt(self.weights)[:, None]
        return root * with_ones(self.targets - self.mean)

    def squares_of_targets(self):
        Y = self.targets - self.mean
        return namespace(Y).sum(self.weights[:, None] * Y**2, axis=0)

    @cached_property
    def spectrum(self):
        """The spectrum of B without its negative part.

        The eigenvectors are divided by (N e)^1/2 and the targets multiplied by it, as
        if the features were R' K(X, x) with R = K^-1/2.
        """
        xp, N, K = namespace(self.weights), self.weight, self.gram()
        floor = self._floor(K)
        values, V = eigh(K)
        lowest, top = float(values[0]), float(values[-1])
        noise = max(-lowest, 0.0) if self.semidefinite else 0.0
        lowest += noise
        # A kernel that is zero, or negative, has no positive eigenvalue.
        negative = (values < -floor) | (values[-1] <= 0)
        tiny = xp.full_like(values, EPS**2 * max(top, -lowest) or 1.0)
        values = xp.where(values > tiny, values, tiny)
        root = xp.sqrt(values)
        targets = root[:, None] * (V.T @ self.centered_targets()) / N
        targets = xp.where(negative[:, None], xp.zeros_like(targets), targets)
        squares = self.squares_of_targets()
        return Spectrum(
            values / N,
            V / root,
            targets,
            squares,
            N,
            floor / N,
            noise=noise / N,
            lowest=lowest / N,
            complete=True,
        )
