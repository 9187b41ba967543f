"""Kernels: small frozen dataclasses that evaluate a block in place.

A kernel that is a function of one matrix product (a radial or inner-product kernel)
encodes rows so that the product ``left(E_x) @ E_z.T`` is the argument of its
elementwise function; the function is then applied to the block while it is in cache.
Such kernels are *fused*: the block operator runs them tile by tile on threads. So is
`Manhattan`, which adds up one product of two columns a feature.

Notation: x, z are rows, ``r = |x - z|`` is the *Euclidean* distance, sigma the
bandwidth.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.spatial.distance import pdist

from .backend.array import (
    as_random_state,
    cut_off_at_zero,
    device_of,
    floating,
    has_vector_math,
    in_place,
    is_cupy,
    is_numpy,
    matmul,
    namespace,
    run_cuda,
    slices,
    to_numpy,
)
from .backend.hints import AnyGenerator, ArrayLike
from .backend.lazy import in_memory, is_lazy, rows_at

__all__ = [
    "Cauchy",
    "Gaussian",
    "Kernel",
    "Laplacian",
    "Linear",
    "Manhattan",
    "Matern",
    "Polynomial",
    "median_distance",
]


_LOG2_E = math.log2(math.e)
# Rows of a kernel matrix that are computed at a time.
_ROWS = 1024
# Numbers of a tile to which differences of every feature are added: few enough for the
# cache, enough that threads seldom wait for each other between calls of NumPy.
_SMALL_TILE = 2**18
# Distances by name, and what SciPy calls them.
_METRICS = {"euclidean": "euclidean", "manhattan": "cityblock"}
# Rows of which the median distance is taken.
MEDIAN_ROWS = 600
# Numbers of X that `scale_gamma` reads at a time: 8 MB of them.
_BLOCK = 2**20


def check_positive_bandwidth(value):
    """Raise a ValueError unless the square of a bandwidth is a positive float."""
    if not 0 < value < float("inf"):
        raise ValueError(f"bandwidth must be positive and finite; got {value!r}")
    if not 1e-150 < value < 1e150:  # its square is a float
        raise ValueError(f"bandwidth must be in (1e-150, 1e150); got {value!r}")


def _checked_gamma(gamma):
    """Return `gamma`; raise a ValueError unless it is positive."""
    if not 0 < gamma < float("inf"):
        raise ValueError(f"gamma must be positive and finite; got {gamma!r}")
    return gamma


class Slope(NamedTuple):
    """The gradient of a kernel k(x, z) in x: ``factor * w(x, z) * direction``.

    Attributes
    ----------
    kernel : Kernel
        w, evaluated as kernels are.
    factor : float
    direction : {"z - x", "z", "sign(z - x)"}, default="z - x"
    """

    kernel: Any
    factor: float
    direction: str = "z - x"


class Kernel:
    """Base class of the kernels: what the block operator asks of one."""

    #: Whether a block is one matrix product and an elementwise function.
    fused = True
    #: Whether the kernel matrix is the matrix product itself: (L E') A = L (E' A).
    factored = False
    #: Whether there is a law to draw frequencies from: it is a function of x - z.
    shift_invariant = False
    #: Distance of rows whose unit is the bandwidth.
    metric = "euclidean"
    #: Columns of a matrix product that take as long as a feature does.
    feature_work = 1
    #: `finish` as a line of CUDA C++ that sets k from t, both of type T (`run_cuda`).
    cuda = None

    def __init_subclass__(cls, **options):
        # A subclass with another `finish` needs a line of CUDA and a slope of its own:
        # without them array functions finish its tiles, and it has no gradient. A slope
        # depends on what comes before `finish`, too.
        super().__init_subclass__(**options)

        def defined(*names):
            bases = enumerate(cls.__mro__)
            return next(i for i, base in bases if any(n in vars(base) for n in names))

        if defined("finish") < defined("cuda"):
            cls.cuda = None
        if defined("finish", "left", "encode", "frame", "_scale") < defined("slope"):
            cls.slope = Kernel.slope

    def get_params(self, deep=True):
        """Return the parameters by name, such as ``{"bandwidth": 1.0}``.

        Estimators offer them as ``kernel__bandwidth``, to search over; setting one
        gives the estimator a kernel of its own, for kernels never change.

        Parameters
        ----------
        deep : bool, default=True
            Not used: there are no nested parameters.

        Returns
        -------
        params : dict
        """
        # A subclass of the user's own need not be a dataclass.
        known = fields(self) if is_dataclass(self) else ()
        return {field.name: getattr(self, field.name) for field in known}

    def __sklearn_clone__(self):
        return deepcopy(self)

    def __call__(self, X: ArrayLike, Z: ArrayLike = None) -> Any:
        """Return the kernel matrix K(X, Z).

        Parameters
        ----------
        X : array of shape (m, d)
        Z : array of shape (p, d), default=None
            None: Z = X, with an exact diagonal.

        Returns
        -------
        K : array of shape (m, p)
        """
        xp, X = namespace(X), floating(X)
        centers = X if Z is None else xp.asarray(Z, dtype=X.dtype)
        frame = self.frame(centers)
        right = self.encode(centers, **frame)
        kernel, shape = self.adapted_to(right), (X.shape[0], centers.shape[0])
        K = xp.empty(shape, dtype=X.dtype, device=device_of(X))
        for start in range(0, shape[0], _ROWS):
            rows = slice(start, min(start + _ROWS, shape[0]))
            E = right[rows, :] if Z is None else self.encode(X[rows, :], **frame)
            K[rows, :] = kernel.evaluate(xp, kernel.left(E), right)
        if Z is None:
            diagonal, index = self.diagonal(X), xp.arange(shape[0], device=device_of(X))
            K = xp.where(index[:, None] == index[None, :], diagonal[None, :], K)
        return K

    def frame(self, centers):
        """Return what `encode` needs to know of the centers, as keyword arguments."""
        return {}

    def encode(self, X, **frame):
        """Return the encoded rows E of shape (m, e)."""
        raise NotImplementedError

    def left(self, E):
        """Return L such that ``L @ E_z.T`` is the argument of the kernel's function."""
        raise NotImplementedError

    def finish(self, xp, T):
        """Turn the matrix product `T` into kernel values, in place where possible."""
        raise NotImplementedError

    def adapted_to(self, E):
        """Return the kernel to evaluate on the encoded rows `E`: usually itself."""
        return self

    def evaluate(self, xp, left, right, out=None):
        """Return the block of kernel values of encoded rows, in `out` if given."""
        product = matmul(xp, left, right.T, out)
        if self.cuda is not None and is_cupy(xp):
            return run_cuda(self.cuda, product)
        return self.finish(xp, product)

    def diagonal(self, X):
        """Return k(x, x) of every row, shape (m,)."""
        raise NotImplementedError

    def slope(self):
        """Return the `Slope`: the gradient of k(x, z) in x.

        Raises
        ------
        ValueError
            If the kernel declares none.
        """
        raise ValueError(
            f"{self!r} declares no gradient: use a kernel of eigenkern.kernels, or "
            "define `slope` in your subclass of Kernel"
        )

    def frequencies(self, rng, n_features, n_frequencies):
        """Draw frequencies w of the kernel's spectral law: k(x, z) = E cos w'(x - z).

        Parameters
        ----------
        rng : numpy.random.Generator
        n_features : int
            d.
        n_frequencies : int
            F.

        Returns
        -------
        W : ndarray of shape (d, F)
            In float64.

        Raises
        ------
        ValueError
            If the kernel is no function of x - z.
        """
        raise ValueError(f"{self!r} has no spectral law: it is no function of x - z")


@dataclass(frozen=True)
class _Radial(Kernel):
    """k(x, z) = phi(c r^2): the product yields c r^2 from appended norms.

    E = [x, 1, |x|^2] and L = [-2c x, c |x|^2, c], so that L E' = c |x - z|^2. Rounding
    may turn a tiny c r^2 negative: phi takes its absolute value, or cuts it off.
    """

    bandwidth: float = 1.0

    # Roundings by which the norms are lowered, see Laplacian.
    _norms_lowered = 0.0

    def __post_init__(self):
        check_positive_bandwidth(self.bandwidth)

    @property
    def shift_invariant(self):
        return type(self)._random_lengths is not _Radial._random_lengths

    @property
    def _scale(self):
        """The factor c."""
        return 1.0 / self.bandwidth**2

    def frame(self, centers):
        xp = namespace(centers)
        low = xp.min(centers, axis=0)
        varies = xp.max(centers, axis=0) > low
        # Any offset serves both sides exactly; the mean makes the norms small. Columns
        # that are constant become zero: they count in the norms of other rows only.
        return {
            "offset": xp.where(varies, xp.mean(centers, axis=0), low),
            "features": None if bool(xp.all(varies)) else xp.nonzero(varies)[0],
        }

    def encode(self, X, offset, features):
        xp = namespace(X)
        m = X.shape[0]
        d = X.shape[1] if features is None else features.shape[0]
        E = xp.empty((m, d + 2), dtype=X.dtype, device=device_of(X))
        for start in range(0, m, 4096):  # temporaries of one slab, not of all of X
            rows = slice(start, min(start + 4096, m))
            slab = X[rows, :] - offset
            squares = xp.sum(xp.astype(slab, xp.float64) ** 2, axis=1)
            E[rows, :d] = slab if features is None else xp.take(slab, features, axis=1)
            E[rows, d] = xp.ones(slab.shape[0], dtype=X.dtype, device=device_of(X))
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
        scale, away = abs(self._scale), f"up to {largest**0.5:.3g} away from their mean"
        if max(scale, 1.0) * max(largest, 1.0) < limit:
            return scale * largest
        wrong = f"bandwidth {self.bandwidth:.3g} is too small for rows of X {away}, in"
        if scale >= limit:  # whatever the rows
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
        return cls((2.0 * _checked_gamma(gamma)) ** -0.5)

    @property
    def _scale(self):
        # The sign is in the product: the exponential is then the only pass.
        return -0.5 / self.bandwidth**2

    def left(self, E):
        L = _Radial.left(self, E)
        if has_vector_math(namespace(E)):
            L *= _LOG2_E
        return L

    def finish(self, xp, T):
        return in_place(xp, "exp2" if has_vector_math(xp) else "exp", T)

    def adapted_to(self, E):
        # Clipping costs a third of the exponential, so it is done only where rounding
        # of the product, about eps c |x|^2, can lift k visibly above 1.
        noise = float(namespace(E).finfo(E.dtype).eps) * self._check_range(E)
        known = type(self).finish is Gaussian.finish
        return _ClippedGaussian(self.bandwidth) if known and noise > 1e-4 else self

    def slope(self):
        return Slope(Gaussian(self.bandwidth), 1.0 / self.bandwidth**2)

    def _random_lengths(self, rng, n):
        return np.ones(n)


@dataclass(frozen=True)
class _ClippedGaussian(_Radial):
    """The Gaussian of arguments that rounding may have made positive."""

    cuda = "k = exp(-fabs(t))"
    _scale, left = Gaussian._scale, Gaussian.left

    def finish(self, xp, T):
        T = in_place(xp, "negative", in_place(xp, "abs", T))
        return Gaussian.finish(self, xp, T)


@dataclass(frozen=True)
class Laplacian(_Radial):
    """Laplacian (exponential) kernel, exp(-r / sigma), r the Euclidean distance.

    ``sklearn.metrics.pairwise.laplacian_kernel`` is another kernel: it takes the L1
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

    # The root turns a rounding eps of c r^2 into sqrt(eps) of k: equal rows would have
    # k = 0.999 in float32. So c r^2 is lowered by what rounding was seen to add to it
    # (at most 10 eps |x|^2, up to d = 2000) and cut off at zero: equal rows have k = 1.
    _norms_lowered = 8.0
    cuda = "k = exp(-sqrt(t < T(0) ? T(0) : t))"

    @classmethod
    def from_gamma(cls, gamma: float) -> Self:
        """Return the kernel exp(-gamma r).

        It is not ``laplacian_kernel(X, Z, gamma)`` of scikit-learn, whose distance is
        the sum of absolute differences, save for a single feature.

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
        return cls(1.0 / _checked_gamma(gamma))

    def finish(self, xp, T):
        return _exp_of_minus(xp, in_place(xp, "sqrt", cut_off_at_zero(xp, T)))

    def slope(self):
        return Slope(_LaplacianSlope(self.bandwidth), 1.0 / self.bandwidth**2)

    def _random_lengths(self, rng, n):
        return 1.0 / np.sqrt(rng.chisquare(1, n))


@dataclass(frozen=True)
class _LaplacianSlope(_Radial):
    """exp(-u) / u of u = r / sigma, and zero on the kink, u = 0."""

    _norms_lowered = Laplacian._norms_lowered
    cuda = "T u = sqrt(t); k = t > T(0) ? exp(-u) / u : T(0)"

    def finish(self, xp, T):
        infinite = xp.full(T.shape[1], np.inf, dtype=T.dtype, device=device_of(T))
        u = in_place(xp, "sqrt", xp.where(T > 0, T, infinite))
        decay = _exp_of_minus(xp, xp.asarray(u, copy=True))
        decay /= u
        return decay


@dataclass(frozen=True)
class Manhattan(Kernel):
    """Laplacian kernel of the Manhattan distance, ``exp(-sum |x - z| / sigma)``.

    The product of a kernel of each feature. It suits tables whose features count one
    by one, as trees take them, and not along rotated axes. A feature takes as long as
    some ten of the other kernels, so it is slow with hundreds of them. scikit-learn has
    it as ``sklearn.metrics.pairwise.laplacian_kernel``.

    Parameters
    ----------
    bandwidth : float, default=1.0
        sigma.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenkern.kernels import Manhattan
    >>> Manhattan(bandwidth=7.0)(np.array([[0.0, 0.0], [3.0, 4.0]])).round(4)
    array([[1.    , 0.3679],
           [0.3679, 1.    ]])
    """

    bandwidth: float = 1.0

    shift_invariant = True
    metric = "manhattan"
    # 0.3 ns an entry and feature (float32, d = 100, tiles of 1024 x 512), where the
    # machine's model has 0.025 for a column of a product.
    feature_work = 12

    def __post_init__(self):
        check_positive_bandwidth(self.bandwidth)

    @classmethod
    def from_gamma(cls, gamma: float) -> Self:
        """Return ``exp(-gamma sum |x - z|)``, scikit-learn's "laplacian".

        Parameters
        ----------
        gamma : float
            1 / sigma.

        Returns
        -------
        kernel : Manhattan

        Examples
        --------
        >>> from eigenkern.kernels import Manhattan
        >>> Manhattan.from_gamma(0.25)
        Manhattan(bandwidth=4.0)
        """
        return cls(1.0 / _checked_gamma(gamma))

    def encode(self, X):
        xp, (m, d) = namespace(X), X.shape
        # By columns: products of two of them are twice as fast.
        columns = xp.ones((2 * d, m), dtype=X.dtype, device=device_of(X))
        columns[0::2, :] = X.T
        return columns.T

    def left(self, E):
        L = -E
        L[:, 0::2], L[:, 1::2] = -E[:, 1::2], E[:, 0::2]
        return L

    def adapted_to(self, E):
        xp = namespace(E)
        largest = float(xp.max(xp.abs(E))) if E.shape[0] else 0.0
        length, limit = 2 * E.shape[1] * largest, float(xp.finfo(E.dtype).max) / 8
        advice = "pass float64 data, X in another unit"
        if not length < limit:
            raise ValueError(
                f"the rows of X, with entries of up to {largest:.3g}, are too large "
                f"for {E.dtype}: {advice}"
            )
        if not max(length, 1.0) / self.bandwidth < limit:
            raise ValueError(
                f"bandwidth {self.bandwidth:.3g} is too small for rows of X with "
                f"entries of up to {largest:.3g} in {E.dtype}: {advice}, or a larger "
                "bandwidth"
            )
        return self

    def evaluate(self, xp, left, right, out=None):
        shape = left.shape[0], right.shape[0]
        if not is_numpy(xp):
            return self.finish(xp, self._distances(xp, left, right, out))
        T = xp.empty(shape, dtype=right.dtype) if out is None else out
        for rows in slices(shape[0], max(_SMALL_TILE // max(shape[1], 1), 16)):
            self._distances(xp, left[rows, :], right, T[rows, :])
        return self.finish(xp, T)

    def _distances(self, xp, left, right, out):
        T = in_place(xp, "abs", self.difference(xp, left, right, 0, out))
        each = None
        for j in range(1, left.shape[1] // 2):
            each = in_place(xp, "abs", self.difference(xp, left, right, j, each))
            T += each
        return T

    def difference(self, xp, left, right, j, out=None):
        """Return x_j - z_j of encoded rows and centers, in `out` if given."""
        # A matrix product of two columns: NumPy's own difference of a column and a row
        # takes four times as long.
        pair = slice(2 * j, 2 * j + 2)
        return matmul(xp, left[:, pair], right[:, pair].T, out)

    def finish(self, xp, T):
        T /= self.bandwidth
        return _exp_of_minus(xp, T)

    def diagonal(self, X):
        return namespace(X).ones(X.shape[0], dtype=X.dtype, device=device_of(X))

    def slope(self):
        return Slope(self, 1.0 / self.bandwidth, "sign(z - x)")

    def frequencies(self, rng, n_features, n_frequencies):
        return rng.standard_cauchy((n_features, n_frequencies)) / self.bandwidth


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
class _SquaredCauchy(_Radial):
    """1 / (1 + r^2 / sigma^2)^2."""

    cuda = "T v = T(1) + fabs(t); k = T(1) / (v * v)"

    def finish(self, xp, T):
        T = Cauchy.finish(self, xp, T)
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
        decay = _exp_of_minus(xp, xp.asarray(u, copy=True))
        if self.nu == 2.5:
            slope = u * (1.0 / 3.0)
            slope += 1.0
            u *= slope
        u += 1.0
        u *= decay
        return u

    def slope(self):
        # Of u = sqrt(2 nu) r / sigma: phi'(u) / u is -exp(-u), or -(1 + u) exp(-u) / 3.
        c = 2.0 * self.nu / self.bandwidth**2
        if self.nu == 1.5:
            return Slope(Laplacian(self.bandwidth / 3.0**0.5), c)
        return Slope(Matern(self.bandwidth * 0.6**0.5, nu=1.5), c / 3.0)

    def _random_lengths(self, rng, n):
        return np.sqrt(2.0 * self.nu / rng.chisquare(2.0 * self.nu, n))


@dataclass(frozen=True)
class Polynomial(Kernel):
    """Polynomial kernel, (x . z / sigma^2 + coef0)^degree.

    Parameters
    ----------
    bandwidth : float, default=1.0
        sigma. scikit-learn's ``gamma`` is 1 / sigma^2.
    degree : int, default=3
        At least 1.
    coef0 : float, default=1.0
        Not negative, so that the kernel is positive semi-definite.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenkern.kernels import Polynomial
    >>> Polynomial(degree=2)(np.array([[1.0], [2.0]]))
    array([[ 4.,  9.],
           [ 9., 25.]])
    """

    bandwidth: float = 1.0
    degree: int = 3
    coef0: float = 1.0

    def __post_init__(self):
        check_positive_bandwidth(self.bandwidth)
        if not self.degree >= 1 or int(self.degree) != self.degree:
            raise ValueError(f"degree must be an integer >= 1; got {self.degree!r}")
        if not self.coef0 >= 0:
            raise ValueError(f"coef0 must not be negative; got {self.coef0!r}")

    @classmethod
    def from_gamma(cls, gamma: float, degree: int = 3, coef0: float = 1.0) -> Self:
        """Return the kernel (gamma x . z + coef0)^degree, as scikit-learn has it.

        Parameters
        ----------
        gamma : float
            1 / sigma^2.
        degree : int, default=3
            At least 1.
        coef0 : float, default=1.0
            Not negative. `SVC` has 0 where nothing is given.

        Returns
        -------
        kernel : Polynomial

        Examples
        --------
        >>> from eigenkern.kernels import Polynomial
        >>> Polynomial.from_gamma(0.25, degree=2)
        Polynomial(bandwidth=2.0, degree=2, coef0=1.0)
        """
        return cls(_checked_gamma(gamma) ** -0.5, degree, coef0)

    def encode(self, X):
        xp = namespace(X)
        ones = xp.ones((X.shape[0], 1), dtype=X.dtype, device=device_of(X))
        return xp.concat([X, ones], axis=1)

    def left(self, E):
        L = E / self.bandwidth**2
        L[:, -1] = E[:, -1] * self.coef0
        return L

    @property
    def cuda(self):
        # t and k may be one place: k is set last.
        power = f"for (int i = 1; i < {int(self.degree)}; ++i) u *= v"
        return f"T v = t, u = v; {power}; k = u"

    def finish(self, xp, T):
        return _integer_power(T, int(self.degree))

    def slope(self):
        factor = int(self.degree) / self.bandwidth**2
        if self.degree == 1:
            return Slope(_One(), factor, "z")
        kernel = Polynomial(self.bandwidth, int(self.degree) - 1, self.coef0)
        return Slope(kernel, factor, "z")

    def diagonal(self, X):
        squares = namespace(X).sum(X * X, axis=1) / self.bandwidth**2
        return _integer_power(squares + self.coef0, int(self.degree))


@dataclass(frozen=True)
class Linear(Kernel):
    """Linear kernel, x . z.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenkern.kernels import Linear
    >>> Linear()(np.array([[1.0], [2.0]]))
    array([[1., 2.],
           [2., 4.]])
    """

    factored = True

    def encode(self, X):
        return X

    def left(self, E):
        return E

    def finish(self, xp, T):
        return T

    def slope(self):
        return Slope(_One(), 1.0, "z")

    def diagonal(self, X):
        return namespace(X).sum(X * X, axis=1)


@dataclass(frozen=True)
class _One(Kernel):
    """k(x, z) = 1, the slope of what is linear."""

    factored = True

    def encode(self, X):
        return namespace(X).ones_like(X[:, :1])

    def left(self, E):
        return E

    def finish(self, xp, T):
        return T

    def diagonal(self, X):
        return namespace(X).ones_like(X[:, 0])


@dataclass(frozen=True)
class CallableKernel(Kernel):
    """A function ``k(X, Z)`` of two blocks of rows that returns their kernel matrix."""

    function: Callable

    fused = False

    def encode(self, X):
        return X

    def left(self, E):
        return E

    def evaluate(self, xp, left, right, out=None):
        found, expected = self.function(left, right), (left.shape[0], right.shape[0])
        try:
            K = xp.asarray(found, dtype=left.dtype)
        except (TypeError, ValueError) as error:
            raise self._no_matrix(expected, type(found).__name__) from error
        if tuple(K.shape) != expected:
            raise self._no_matrix(expected, f"{tuple(K.shape)}")
        if not bool(xp.all(xp.isfinite(K))):
            raise ValueError(f"kernel={self.function!r} returned NaN or infinity")
        return K

    def _no_matrix(self, expected, found):
        """Return the error of a function whose result is no kernel matrix."""
        return ValueError(
            "kernel must be a function k(X, Z) of two blocks of rows that returns an "
            f"array of shape (len(X), len(Z)) = {expected}; got {found} from "
            f"{self.function!r}"
        )

    def diagonal(self, X):
        xp = namespace(X)
        parts = []
        for start in range(0, X.shape[0], 256):
            rows = X[start : min(start + 256, X.shape[0]), :]
            parts.append(xp.linalg.diagonal(self.evaluate(xp, rows, rows)))
        return xp.concat(parts)


def median_distance(
    X: ArrayLike,
    random_state: AnyGenerator = None,
    *,
    n_rows: int = MEDIAN_ROWS,
    metric: str = "euclidean",
) -> float:
    """Return the median distance between distinct rows of a subsample.

    The bandwidth that ``bandwidth="median"`` means: a unit for a grid of bandwidths.

    Parameters
    ----------
    X : array of shape (n, d)
    random_state : int, RandomState instance, Generator or None, default=None
        What the subsample is drawn by; not used where it is all rows.
    n_rows : int, default=600
        Rows of the subsample.
    metric : {"euclidean", "manhattan"}, default="euclidean"
        Distance; "manhattan" for the kernel of that name.

    Returns
    -------
    distance : float
        In the units of X.

    Raises
    ------
    ValueError
        If all rows of the subsample are equal, or the metric is not known.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenkern.kernels import median_distance
    >>> median_distance(np.array([[0.0], [1.0], [4.0]]))
    3.0
    """
    if metric not in _METRICS:
        raise ValueError(f"metric must be 'euclidean' or 'manhattan'; got {metric!r}")
    X = X if is_lazy(X) else floating(X)
    n = X.shape[0]
    if n > n_rows:
        rng = as_random_state(random_state)
        X = rows_at(X, np.sort(rng.choice(n, n_rows, replace=False)))
    # Scaled, so that squares of very large or small values stay finite.
    rows = to_numpy(in_memory(X)).astype(np.float64)
    rows -= rows.mean(axis=0)
    scale = np.abs(rows).max()
    distances = np.zeros(1)
    if scale > 0:
        distances = pdist(rows / scale, _METRICS[metric]) * scale
    distances = distances[distances > 0]
    if distances.size == 0:
        raise ValueError(
            "bandwidth='median' or 'auto' found a median distance of 0: all rows of X "
            f"(of its subsample of {rows.shape[0]} rows) are equal; pass a positive "
            "bandwidth"
        )
    return float(np.median(distances))


def scale_gamma(X):
    """Return what scikit-learn's gamma="scale" is: 1 / (d var), or 1 if X is constant.

    Parameters
    ----------
    X : array or StreamedRows of shape (n, d)
        Read in blocks of rows. ``var`` is the variance of all n d numbers.
    """
    n, d = X.shape
    size, count, mean, squares = max(_BLOCK // d, 1), 0, 0.0, 0.0
    lowest, highest = math.inf, -math.inf
    for start in range(0, n, size):
        block = X[start : min(start + size, n), :]
        xp = namespace(block)
        block = xp.astype(block, xp.float64)
        lowest = min(lowest, float(xp.min(block)))
        highest = max(highest, float(xp.max(block)))
        # Squares about the mean so far: those of the block, and of the two means.
        m, mean_of_block = block.shape[0] * d, float(xp.mean(block))
        squares += float(xp.sum((block - mean_of_block) ** 2))
        squares += (mean_of_block - mean) ** 2 * m * count / (m + count)
        mean += (mean_of_block - mean) * m / (m + count)
        count += m
    return 1.0 if lowest == highest else count / (d * squares)


def _exp_of_minus(xp, T):
    """Return exp(-T), in `T` itself where `xp` can."""
    if has_vector_math(xp):
        T *= -_LOG2_E
        return in_place(xp, "exp2", T)
    return in_place(xp, "exp", in_place(xp, "negative", T))


def _integer_power(T, degree):
    """Return T^degree by repeated multiplication: `pow` is ten times slower."""
    if degree == 1:
        return T
    power = T * T
    for _ in range(degree - 2):
        power *= T
    return power
