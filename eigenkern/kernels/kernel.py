"""The base class of kernels, and users' own functions as kernels."""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import (
    ArrayLike,
    device_of,
    floating,
    has_vector_math,
    in_place,
    is_cupy,
    matmul,
    namespace,
    run_cuda,
    slices,
)

LOG2_E = math.log2(math.e)
# Rows of a kernel matrix that are computed at a time.
_ROWS = 1024


class Slope(NamedTuple):
    """The gradient of a kernel k(x, z) in x: ``factor * w(x, z) * direction``.

    `kernel` is w, evaluated like a kernel; directions are "z - x", "z", "sign(z - x)".
    """

    kernel: Any
    factor: float
    direction: str = "z - x"


class Kernel:
    """Base class of the kernels: what `TiledKernel` asks of one."""

    #: Whether a block is one matrix product and an elementwise function.
    fused = True
    #: Whether the kernel matrix is the matrix product itself: (L E') A = L (E' A).
    factored = False
    #: Whether it is a function of x - z, with a law to draw frequencies from.
    shift_invariant = False
    #: The distance of rows that is measured in bandwidths.
    metric = "euclidean"
    #: Columns of a matrix product that take as long as one feature.
    feature_work = 1
    #: `finish` as a line of CUDA C++ that sets k from t, both of type T (`run_cuda`).
    cuda = None

    def __init_subclass__(cls, **options):
        # A subclass that overrides `finish` needs its own line of CUDA, slope and
        # factors; one that overrides a method before `finish`, the last two.
        super().__init_subclass__(**options)

        def defined(*names):
            bases = enumerate(cls.__mro__)
            return next(i for i, base in bases if any(n in vars(base) for n in names))

        if defined("finish") < defined("cuda"):
            cls.cuda = None
        for name in ("slope", "log_factors"):
            if defined("finish", "left", "encode", "frame", "_scale") < defined(name):
                setattr(cls, name, vars(Kernel)[name])

    def get_params(self, deep=True):
        """Return the parameters by name, such as ``{"bandwidth": 1.0}``.

        Estimators offer them as ``kernel__bandwidth``, to search over; setting one
        gives the estimator a new kernel, because kernels never change.

        Parameters
        ----------
        deep : bool, default=True
            Not used: there are no nested parameters.

        Returns
        -------
        params : dict
        """
        # A user's own subclass need not be a dataclass.
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
        for rows in slices(shape[0], _ROWS):
            E = right[rows, :] if Z is None else self.encode(X[rows, :], **frame)
            K[rows, :] = kernel.evaluate(xp, kernel.left(E), right)
        if Z is None:
            diagonal, index = self.diagonal(X), xp.arange(shape[0], device=device_of(X))
            K = xp.where(index[:, None] == index[None, :], diagonal[None, :], K)
        return K

    def frame(self, centers):
        """Return what `encode` needs to know of centers, as keyword arguments."""
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

    @np.errstate(over="ignore", invalid="ignore")  # infinite values are found later
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

    def log_factors(self, differences):
        """Return the logarithms of the factors k_l of a product kernel.

        Parameters
        ----------
        differences : array
            x_l - z_l, of any shape, where k(x, z) is the product of k_l(x_l - z_l) over
            the columns l, and no factor is above 1.

        Returns
        -------
        logs : array of the same shape

        Raises
        ------
        ValueError
            If the kernel is not such a product.
        """
        raise ValueError(
            f"{self!r} is not a product over columns, as 'gaussian' and 'manhattan' are"
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
            If the kernel is not a function of x - z.
        """
        raise ValueError(f"{self!r} has no spectral law: it is no function of x - z")


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
        if "complex" in str(getattr(found, "dtype", "")):
            raise ValueError(
                f"kernel={self.function!r} must return real numbers; got {found.dtype}"
            )
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
        """Return the error for a function whose result is no kernel matrix."""
        return ValueError(
            "kernel must be a function k(X, Z) of two blocks of rows that returns an "
            f"array of shape (len(X), len(Z)) = {expected}; got {found} from "
            f"{self.function!r}"
        )

    def diagonal(self, X):
        xp = namespace(X)
        blocks = (X[rows, :] for rows in slices(X.shape[0], 256))
        return xp.concat([xp.linalg.diagonal(self.evaluate(xp, B, B)) for B in blocks])


def exp_of_minus(xp, T):
    """Return exp(-T), in `T` itself if `xp` can."""
    if has_vector_math(xp):
        T *= -LOG2_E
        return in_place(xp, "exp2", T)
    return in_place(xp, "exp", in_place(xp, "negative", T))
