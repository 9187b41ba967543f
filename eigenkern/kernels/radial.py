"""Kernels of the Euclidean distance: their argument is one matrix product."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from ..arrays.array import (
    cut_off_at_zero,
    device_of,
    has_vector_math,
    in_place,
    is_numpy,
    namespace,
    slices,
)
from ..rows.robust import cut, frame_of_distances
from .bandwidth import check_parameters, checked_gamma
from .kernel import LOG2_E, Kernel, Slope, exp_of_minus


@dataclass(frozen=True)
class _Radial(Kernel):
    """k(x, z) = phi(c r^2): the product yields c r^2 from appended norms.

    E = [x, 1, |x|^2] and L = [-2c x, c |x|^2, c], so that L E' = c |x - z|^2. Rounding
    may turn a tiny c r^2 negative: phi takes its absolute value, or cuts it off.
    """

    bandwidth: float = 1.0

    # Multiples of eps by which the norms are lowered, see Laplacian.
    _norms_lowered = 0.0
    # Least rounding of c x^2 for an entry x that is cut off.
    _rounding_of_far = 0.0

    def __post_init__(self):
        check_parameters(self)

    @property
    def shift_invariant(self):
        return type(self)._random_lengths is not _Radial._random_lengths

    @property
    def _scale(self):
        """The factor c."""
        return 1.0 / self.bandwidth**2

    def frame(self, centers):
        xp = namespace(centers)
        varies = xp.max(centers, axis=0) > xp.min(centers, axis=0)
        # The median as the offset makes norms small, except those of a few rows, which
        # are cut off. Columns in which the centers are constant count only in the norms
        # of other rows.
        unit = ((1.0 + self._norms_lowered) * abs(self._scale)) ** -0.5
        # Rows that share a fill value are compared by their other columns.
        rounding = max(float(xp.finfo(centers.dtype).eps) ** 0.5, self._rounding_of_far)
        offset, limits = frame_of_distances(centers, unit, rounding)
        features = None if bool(xp.all(varies)) else xp.nonzero(varies)[0]
        return {"offset": offset, "limits": limits, "features": features}

    @np.errstate(over="ignore")
    def encode(self, X, offset, limits, features):
        xp, m = namespace(X), X.shape[0]
        d = X.shape[1] if features is None else features.shape[0]
        E = xp.empty((m, d + 2), dtype=X.dtype, device=device_of(X))
        # In NumPy the norms, needed anyway, tell whether any entry may be too large.
        always = not is_numpy(xp)
        least = 0.0 if always else float(xp.min(limits)) ** 2

        def squared_norms(X):
            return xp.sum(xp.astype(X, xp.float64) ** 2, axis=1)

        for rows in slices(m):  # temporaries of one slab, not of all of X
            slab = X[rows, :] - offset
            if always:
                slab = cut(xp, slab, limits)
            squares = squared_norms(slab)
            if not always and not xp.max(squares) <= least:
                squares = squared_norms(cut(xp, slab, limits))
            E[rows, :d] = slab if features is None else xp.take(slab, features, axis=1)
            E[rows, d] = 1.0
            E[rows, d + 1] = xp.astype(squares, X.dtype)
        return E

    def left(self, E):
        xp, c = namespace(E), self._scale
        d = E.shape[1] - 2
        of_norms = c * (1.0 - self._norms_lowered * float(xp.finfo(E.dtype).eps))
        factors = xp.full(d + 2, -2.0 * c, dtype=E.dtype, device=device_of(E))
        factors[d:] = of_norms
        L = E * factors
        L[:, d] = L[:, d + 1]
        L[:, d + 1] = of_norms
        return L

    def adapted_to(self, E):
        self._check_range(E)
        return self

    def _check_range(self, E):
        """Return the largest |c| |x|^2; raise a ValueError if it overflows."""
        xp = namespace(E)
        largest = float(xp.max(E[:, -1])) if E.shape[0] else 0.0
        limit = float(xp.finfo(E.dtype).max) / 8
        scale = abs(self._scale)
        away = f"up to {largest**0.5:.3g} away from their median"
        if max(scale, 1.0) * max(largest, 1.0) < limit:
            return scale * largest
        wrong = f"bandwidth {self.bandwidth:.3g} is too small for rows of X {away}, in"
        if scale >= limit:  # for any rows
            wrong = f"bandwidth {self.bandwidth:.3g} is too small for"
        elif not largest < limit:
            wrong = f"the rows of X, {away}, are too large for"
        raise ValueError(
            f"{wrong} {E.dtype}: pass float64 data, X in another unit"
            + ("" if not largest < limit else ", or a larger bandwidth")
        )

    def diagonal(self, X):
        return namespace(X).ones(X.shape[0], dtype=X.dtype, device=device_of(X))

    def frequencies(self, rng, n_features, n_frequencies):
        # A radial kernel is a mixture of Gaussians: its frequencies are normal vectors
        # times a random length each.
        lengths = self._random_lengths(rng, n_frequencies) / self.bandwidth
        return rng.standard_normal((n_features, n_frequencies)) * lengths

    def _random_lengths(self, rng, n):
        """Draw `n` factors of standard normal vectors, for a bandwidth of 1."""
        raise NotImplementedError


@dataclass(frozen=True)
class Gaussian(_Radial):
    """Gaussian kernel, exp(-r^2 / (2 sigma^2)).

    Parameters
    ----------
    bandwidth : float, default=1.0
        sigma. scikit-learn's ``gamma`` is 1 / (2 sigma^2).

    Examples
    --------
    >>> import numpy as np
    >>> from eigenkern.kernels import Gaussian
    >>> Gaussian(bandwidth=2.0)(np.array([[0.0], [2.0]])).round(4)
    array([[1.    , 0.6065],
           [0.6065, 1.    ]])
    """

    cuda = "k = exp(t)"

    @classmethod
    def from_gamma(cls, gamma: float) -> Self:
        """Return the kernel exp(-gamma r^2), scikit-learn's "rbf".

        Parameters
        ----------
        gamma : float
            1 / (2 sigma^2).

        Returns
        -------
        kernel : Gaussian

        Examples
        --------
        >>> from eigenkern.kernels import Gaussian
        >>> Gaussian.from_gamma(0.125)
        Gaussian(bandwidth=2.0)
        """
        return cls((2.0 * checked_gamma(gamma)) ** -0.5)

    @property
    def _scale(self):
        # The product has the sign, so that the exponential is the only pass.
        return -0.5 / self.bandwidth**2

    def left(self, E):
        L = super().left(E)
        if has_vector_math(namespace(E)):
            L *= LOG2_E
        return L

    def finish(self, xp, T):
        return in_place(xp, "exp2" if has_vector_math(xp) else "exp", T)

    def adapted_to(self, E):
        # Clipping costs a third of the exponential, so it is done only if rounding of
        # the product, about eps c |x|^2, can lift k visibly above 1.
        noise = float(namespace(E).finfo(E.dtype).eps) * self._check_range(E)
        known = type(self).finish is Gaussian.finish
        return _ClippedGaussian(self.bandwidth) if known and noise > 1e-4 else self

    def slope(self):
        return Slope(Gaussian(self.bandwidth), 1.0 / self.bandwidth**2)

    def log_factors(self, differences):
        scaled = differences / self.bandwidth
        return -0.5 * scaled * scaled

    def _random_lengths(self, rng, n):
        return np.ones(n)


@dataclass(frozen=True)
class _ClippedGaussian(Gaussian):
    """The Gaussian, for arguments that rounding may have made positive."""

    cuda = "k = exp(-fabs(t))"

    def finish(self, xp, T):
        return super().finish(xp, in_place(xp, "negative", in_place(xp, "abs", T)))


@dataclass(frozen=True)
class Laplacian(_Radial):
    """Laplacian (exponential) kernel, exp(-r / sigma), r the Euclidean distance.

    ``sklearn.metrics.pairwise.laplacian_kernel`` is another kernel: it uses the L1
    distance.

    Parameters
    ----------
    bandwidth : float, default=1.0
        sigma.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenkern.kernels import Laplacian
    >>> Laplacian(bandwidth=5.0)(np.array([[0.0, 0.0], [3.0, 4.0]])).round(4)
    array([[1.    , 0.3679],
           [0.3679, 1.    ]])
    """

    # The root turns a rounding error eps of c r^2 into sqrt(eps) of k. So c r^2 is
    # lowered by what rounding was seen to add (at most 10 eps |x|^2, up to d = 2000)
    # and cut off at zero: equal rows have k = 1.
    _norms_lowered = 8.0
    cuda = "k = exp(-sqrt(t < T(0) ? T(0) : t))"

    @classmethod
    def from_gamma(cls, gamma: float) -> Self:
        """Return the kernel exp(-gamma r).

        It is not scikit-learn's ``laplacian_kernel(X, Z, gamma)``, whose distance is
        the sum of absolute differences, unless there is a single feature.

        Parameters
        ----------
        gamma : float
            1 / sigma.

        Returns
        -------
        kernel : Laplacian

        Examples
        --------
        >>> from eigenkern.kernels import Laplacian
        >>> Laplacian.from_gamma(0.25)
        Laplacian(bandwidth=4.0)
        """
        return cls(1.0 / checked_gamma(gamma))

    def finish(self, xp, T):
        return exp_of_minus(xp, in_place(xp, "sqrt", cut_off_at_zero(xp, T)))

    def slope(self):
        return Slope(_LaplacianSlope(self.bandwidth), 1.0 / self.bandwidth**2)

    def _random_lengths(self, rng, n):
        return 1.0 / np.sqrt(rng.chisquare(1, n))


@dataclass(frozen=True)
class _LaplacianSlope(_Radial):
    """exp(-u) / u for u = r / sigma, and zero at the kink, u = 0."""

    _norms_lowered = Laplacian._norms_lowered
    cuda = "T u = sqrt(t); k = t > T(0) ? exp(-u) / u : T(0)"

    def finish(self, xp, T):
        infinite = xp.full(T.shape[1], np.inf, dtype=T.dtype, device=device_of(T))
        u = in_place(xp, "sqrt", xp.where(T > 0, T, infinite))
        decay = exp_of_minus(xp, xp.asarray(u, copy=True))
        decay /= u
        return decay


@dataclass(frozen=True)
class Cauchy(_Radial):
    """Cauchy kernel, 1 / (1 + r^2 / sigma^2).

    Parameters
    ----------
    bandwidth : float, default=1.0
        sigma.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenkern.kernels import Cauchy
    >>> Cauchy(bandwidth=1.0)(np.array([[0.0], [1.0]])).round(4)
    array([[1. , 0.5],
           [0.5, 1. ]])
    """

    # Its tail is long: 5e6 bandwidths away, 200 in float32, it is zero.
    _rounding_of_far = 1e-2
    cuda = "k = T(1) / (T(1) + fabs(t))"

    def finish(self, xp, T):
        T = in_place(xp, "abs", T)
        T += 1.0
        return in_place(xp, "reciprocal", T)

    def slope(self):
        return Slope(_SquaredCauchy(self.bandwidth), 2.0 / self.bandwidth**2)

    def _random_lengths(self, rng, n):
        return np.sqrt(2.0 * rng.standard_exponential(n))


@dataclass(frozen=True)
class _SquaredCauchy(Cauchy):
    """1 / (1 + r^2 / sigma^2)^2."""

    cuda = "T v = T(1) + fabs(t); k = T(1) / (v * v)"

    def finish(self, xp, T):
        T = super().finish(xp, T)
        T *= T
        return T


@dataclass(frozen=True)
class Matern(_Radial):
    """Matern kernel of smoothness nu, 3/2 or 5/2.

    With u = sqrt(2 nu) r / sigma: (1 + u) exp(-u) for nu = 3/2, and
    (1 + u + u^2 / 3) exp(-u) for nu = 5/2.

    Parameters
    ----------
    bandwidth : float, default=1.0
        sigma, the length scale.
    nu : {1.5, 2.5}, default=1.5
        Smoothness.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenkern.kernels import Matern
    >>> Matern(bandwidth=1.0, nu=1.5)(np.array([[0.0], [1.0]])).round(4)
    array([[1.    , 0.4834],
           [0.4834, 1.    ]])
    """

    nu: float = 1.5

    def __post_init__(self):
        super().__post_init__()
        if self.nu not in (1.5, 2.5):
            raise ValueError(f"nu must be 1.5 or 2.5; got {self.nu!r}")

    @property
    def _scale(self):
        return 2.0 * self.nu / self.bandwidth**2

    @property
    def cuda(self):
        square = " + u * u / T(3)" if self.nu == 2.5 else ""
        return f"T u = sqrt(fabs(t)); k = (T(1) + u{square}) * exp(-u)"

    def finish(self, xp, T):
        u = in_place(xp, "sqrt", in_place(xp, "abs", T))
        decay = exp_of_minus(xp, xp.asarray(u, copy=True))
        if self.nu == 2.5:
            slope = u * (1.0 / 3.0)
            slope += 1.0
            u *= slope
        u += 1.0
        u *= decay
        return u

    def slope(self):
        # With u = sqrt(2 nu) r / sigma, phi'(u) / u is -exp(-u) for nu = 3/2, and
        # -(1 + u) exp(-u) / 3 for nu = 5/2.
        if self.nu == 1.5:
            return Slope(Laplacian(self.bandwidth / 3.0**0.5), self._scale)
        return Slope(Matern(self.bandwidth * 0.6**0.5, nu=1.5), self._scale / 3.0)

    def _random_lengths(self, rng, n):
        return np.sqrt(2.0 * self.nu / rng.chisquare(2.0 * self.nu, n))
