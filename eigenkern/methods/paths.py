"""Whitened features, and filters of the spectrum: all models of a path from
one factorization.

With B = V diag(e) V' a model is b = V g(e) V' q, see `eigenkern.methods`. A path is a
class with ``filters(spectrum)``, the values g of all its models, and ``kept(spectrum,
n_rows)``, what they leave of the targets, for the errors in `left_out`.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays.array import device_of, namespace
from ..arrays.linalg import large_product, solve_triangular, spanning_factor
from ..operators.blocks import blocks

#: Relative rounding error in float64.
EPS = float(np.finfo(np.float64).eps)
#: Pivot over the largest that kernel values in single precision resolve.
SINGLE_PIVOT = 1e-7


@dataclass(frozen=True)
class Whitening:
    """R = L^-T, with L L' = K_mm of the kept centers.

    Centers in the span of others are left out, so R R' is the inverse of K_mm for the
    kept ones, and the features span the same functions as with R R' = K_mm^+. The NYTRO
    paper has R = S T^-1 with K_mm = S D (QR) and T' T = S' K_mm S, and keeps all
    centers.

    Attributes
    ----------
    kept : ndarray of shape (p,)
        Indices of centers that span all centers, in the order of L.
    L : array of shape (p, p)
        Lower Cholesky factor of K_mm of those centers.
    smallest : float
        The smallest squared diagonal entry of L divided by the largest.
    R : array of shape (p, p) or None
        R if rows are whitened one by one before they are summed, else None.
    """

    kept: np.ndarray
    L: Any
    smallest: float
    R: Any = None

    # The relative rounding error of K' K in float64 is eps; multiplying by R on both
    # sides makes it eps / smallest. If `smallest` is below this limit, rows are
    # whitened before they are summed: the error stays eps, for n p^2 more work.
    _LIMIT = 1e-6

    @classmethod
    def of(cls, K_mm, dtype):
        """Return the whitening of a kernel matrix in float64.

        The data type is that of the kernel values of the data: values in float32, whose
        rounding error is 1e-7, do not determine directions below that.
        """
        xp = namespace(K_mm)
        relative = 1e-12 if dtype == xp.float64 else SINGLE_PIVOT
        kept, L = spanning_factor(
            K_mm, relative * float(xp.max(xp.linalg.diagonal(K_mm)))
        )
        if not len(kept):
            raise ValueError(
                "the kernel matrix of the centers is zero: choose a kernel and a "
                "bandwidth for which k(x, x) is positive"
            )
        squares = xp.linalg.diagonal(L) ** 2
        smallest = float(xp.min(squares)) / float(xp.max(squares))
        R = None
        if smallest < cls._LIMIT and dtype == xp.float64:
            identity = xp.eye(len(kept), dtype=xp.float64, device=device_of(L))
            R = solve_triangular(L, identity, transposed=True)
        return cls(kept, L, smallest, R)

    @property
    def rounding(self):
        """The rounding error of B divided by its trace."""
        # Measured against extended precision, it is 0.7 to 46 times eps / smallest, the
        # median 8; for whitened rows 0.03 to 5 times eps, the median 1.5 (1000 rows, 40
        # and 100 centers of california_housing, kin8nm, a9a and cpusmall; three
        # kernels, bandwidths of 0.5 to 64 median distances).
        return 10 * EPS / (1.0 if self.R is not None else self.smallest)

    def expand(self, b):
        """Return R b, the coefficients of the kept centers."""
        if self.R is not None:  # the rounding errors are then those of the rows
            return self.R @ b
        return solve_triangular(self.L, b, transposed=True)


@dataclass(frozen=True)
class Spectrum:
    """B = V diag(e) V', and the targets in terms of its eigenvectors.

    `values` are e, increasing: all p of them, or the r that `krylov` found; `vectors`,
    (p, r), are V; `targets`, (r, l + 1), V' Phi' W [Y - mean, 1] / N; and `squares`,
    (l,), the sums of the squares of the weighted, centered targets. `weight` is N.

    Eigenvalues below `floor` are rounding errors of the matrix; those of kernel values
    are larger between rows that are far from the others, and `noise` is their size if
    it is known. `lowest` is the smallest eigenvalue before negative ones were dropped,
    `largest` the largest if `values` may lack it. If it is `complete`, the eigenvectors
    span the targets of all rows, as on the full kernel.
    """

    values: Any
    vectors: Any
    targets: Any
    squares: Any
    weight: float
    floor: float
    noise: float = 0.0
    lowest: float = 0.0
    complete: bool = False
    largest: float = 0.0

    @property
    def top(self):
        """The largest eigenvalue."""
        return max(float(self.values[-1]), self.largest)

    def resolved(self, above):
        """Return the least penalty lambda, or 1 / (gamma t), above all rounding.

        `above` is by what factor it is above `floor`.
        """
        # Above the rounding of kernel values it moves values of the model by at most
        # 1 / 30 of the targets. 400 rows, of which three tenths share a fill value,
        # Cauchy kernel, R^2 on new rows: 0.31 without, 0.85, 0.83 and 0.75 with 10, 30
        # and 100.
        return max(above * self.floor, 30 * self.noise)

    @property
    def indefinite(self):
        """Whether negative eigenvalues beyond rounding were dropped."""
        # In single precision rounding reaches 4e-7 (1000 rows of four data sets, six
        # kernels, bandwidths from 1/4 to 100 times d^1/2), in double 2e-15.
        return self.lowest < -1e-6 * self.top

    @property
    def inside(self):
        """Which eigenvectors belong to the space of the targets, (r,): not rounding."""
        xp = namespace(self.values)
        if self.complete:
            return xp.ones_like(self.values, dtype=xp.bool)
        return self.values > self.floor

    @property
    def components(self):
        """Components of W^1/2 [Y - mean, 1] along the columns of W^1/2 Phi V."""
        xp = namespace(self.values)
        e = xp.where(self.inside, self.values, xp.ones_like(self.values))
        scale = xp.where(self.inside, (self.weight / e) ** 0.5, xp.zeros_like(e))
        return scale[:, None] * self.targets

    def coef(self, g):
        """Return b of a filter g of shape (r,): shape (p, l)."""
        return self.vectors @ (g[:, None] * self.targets[:, :-1])

    def coordinates(self, filters):
        """Yield V' b of filters of shape (r, K), in pieces of shape (r, l, k)."""
        q, p = self.targets[:, :-1], self.vectors.shape[0]
        for piece in blocks(filters.shape[1], p * q.shape[1], least=1):
            yield q[:, :, None] * filters[:, None, piece]

    def coefs(self, filters):
        """Yield b of filters of shape (r, K), in pieces of shape (p, l, k)."""
        xp = namespace(filters)
        for along in self.coordinates(filters):
            b = large_product(self.vectors, xp.reshape(along, (along.shape[0], -1)))
            yield xp.reshape(b, (b.shape[0], *along.shape[1:]))

    def on_device(self, values):
        """Return values of the host as an array like the eigenvalues."""
        xp = namespace(self.values)
        return xp.asarray(values, dtype=xp.float64, device=device_of(self.values))


class RidgePath:
    """Kernel ridge regression, g = 1 / (e + lambda); at 0 the pseudo-inverse."""

    def __init__(self, alphas):
        self.alphas = np.asarray(alphas, dtype=np.float64)

    def filters(self, spectrum):
        """Return g, shape (r, k): 0 where e + lambda is rounding."""
        xp = namespace(spectrum.values)
        total = spectrum.values[:, None] + spectrum.on_device(self.alphas)
        above = total > spectrum.floor
        inverse = 1 / xp.where(above, total, xp.ones_like(total))
        return xp.where(above, inverse, xp.zeros_like(total))

    def kept(self, spectrum, n_rows=None):
        """Return what is left of the targets, lambda / (e + lambda), shape (r, k).

        If the eigenvectors span the targets of all `n_rows` rows, 1 / (e + lambda) is
        returned instead: lambda cancels in the errors, and may be 0.
        """
        xp, alphas = namespace(spectrum.values), spectrum.on_device(self.alphas)
        total = spectrum.values[:, None] + alphas
        floor = max(spectrum.floor, float(np.finfo(np.float64).tiny))
        total = xp.where(total > floor, total, xp.full_like(total, floor))
        spanned = spectrum.complete and n_rows in (None, spectrum.values.shape[0])
        return 1 / total if spanned else alphas / total


class DescentPath:
    """Gradient descent from zero, g = (1 - (1 - gamma e)^t) / e, with gamma e < 2."""

    def __init__(self, steps, step_size):
        self.steps = np.asarray(steps, dtype=np.float64)
        self.step_size = step_size

    def filters(self, spectrum):
        """Return g, shape (r, k)."""
        xp, values = namespace(spectrum.values), spectrum.values
        steps, step_size = spectrum.on_device(self.steps), self.step_size
        e = xp.where(values > 0, values, xp.zeros_like(values))[:, None]
        small, log, power = self._parts(e, steps)
        gain = -xp.where(small, xp.expm1(log), power - 1)  # accurate for small gamma e
        safe = xp.where(e > 0, e, xp.ones_like(e))
        return xp.where(step_size * e * steps > EPS, gain / safe, step_size * steps)

    def kept(self, spectrum, n_rows=None):
        """Return what is left of the targets, (1 - gamma e)^t, shape (r, k).

        It is at least 1e-100, whose square is a number: the left-out residual of a row
        in a direction of its own is a quotient of two such numbers.
        """
        xp, steps = namespace(spectrum.values), spectrum.on_device(self.steps)
        small, log, power = self._parts(spectrum.values[:, None], steps)
        kept = xp.where(small, xp.exp(log), power)
        least = xp.full_like(kept, 1e-100)
        return xp.where(xp.abs(kept) > least, kept, least)

    def _parts(self, e, steps):
        """Return where gamma e is small, the logarithm of the power there, and it."""
        xp, x = namespace(e), self.step_size * e
        small = x < 0.5
        low = xp.where(small, x, xp.zeros_like(x))
        power = (1 - xp.where(small, xp.ones_like(x), x)) ** steps
        return small, steps * xp.log1p(-low), power


#: Later iterations change nothing but rounding errors.
LAST = 10**16


def iterations(last, all_up_to=20):
    """Return the t of a path: all up to one, then by factors of 1.25, to `last`.

    No filter then changes by more than 8.5 % of its limit (gamma e <= 1). Between
    neighbors of the 100 penalties of a path a filter changes by 9 %.
    """
    last, factor = int(last), 1.25
    n_later = max(math.ceil(math.log(max(last, 1) / all_up_to, factor)), 0)
    later = [round(all_up_to * factor**k) for k in range(1, n_later)]
    early = range(min(last, all_up_to) + 1)
    return np.unique(np.asarray([*early, *later, last], dtype=np.int64))


def last_iteration(spectrum, step_size):
    """Return the t after which more iterations change nothing.

    By then every component is fitted, unless its eigenvalue is rounding: after 20 /
    (gamma e) iterations the fraction exp(-20) = 2e-9 is left, less than single
    precision resolves. In the span of equal rows with different targets, and of rows
    far from the others, 1 / (gamma t) has to stay above rounding by a factor, or the
    model is rounding: with 100 one of 22 rows with copies still depends on their order
    by 1e-3.
    """
    least = spectrum.resolved(1e4)
    slowest = step_size * max(float(spectrum.values[0]) / 20, least)
    return math.ceil(1 / max(slowest, 1 / LAST))
