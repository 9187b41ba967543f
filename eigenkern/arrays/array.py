"""Arrays of any library: namespace, device, moves, in-place functions."""

import operator
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import array_api_compat
import numpy as np
import scipy.sparse
from array_api_compat import array_namespace as namespace
from array_api_compat import device as device_of
from array_api_compat import is_cupy_namespace as is_cupy
from array_api_compat import is_numpy_namespace as is_numpy


def to_numpy(x):
    """Return `x` as a NumPy array on the host, without a copy where possible."""
    if array_api_compat.is_torch_array(x):
        return detached(x).cpu().numpy()
    if array_api_compat.is_cupy_array(x):
        return x.get()
    if array_api_compat.is_array_api_strict_namespace(namespace(x)):
        xp = namespace(x)
        x = xp.asarray(x, device=xp.Device("CPU_DEVICE"))
    return np.asarray(x)


def plain(value):
    """Return a NumPy scalar as a number or string of Python, others as they are."""
    return value.item() if isinstance(value, np.generic) else value


def detached(x):
    """Return a PyTorch tensor without its gradients, other arrays as they are."""
    return x.detach() if array_api_compat.is_torch_array(x) else x


def move(x, xp, device):
    """Return `x` as an array of namespace `xp` on `device`."""
    if isinstance(x, np.ndarray) and is_numpy(xp):
        return x
    if array_api_compat.is_array_api_obj(x) and namespace(x) == xp:
        if is_cupy(xp) and x.device != device:
            with x.device:  # CuPy moves only contiguous arrays between devices
                x = xp.asarray(x, order="C")
        return array_api_compat.to_device(x, device)
    return xp.asarray(to_numpy(x), device=device)


def floating(X):
    """Return an array as it is, or in float64 if its data type is not a real float."""
    X = X if array_api_compat.is_array_api_obj(X) else np.asarray(X)
    xp = namespace(X)
    X = xp.asarray(X)
    return X if xp.isdtype(X.dtype, "real floating") else xp.astype(X, xp.float64)


def as_random_state(random_state):
    """Return the RandomState of a number, a generator, or NumPy's global one."""
    if isinstance(random_state, np.random.RandomState):
        return random_state
    if random_state is None:
        random_state = np.random.randint(2**31)  # noqa: NPY002
    if isinstance(random_state, np.random.Generator):
        random_state = random_state.integers(2**32)
    try:
        return np.random.RandomState(operator.index(random_state))
    except (TypeError, ValueError) as error:
        raise ValueError(
            "random_state must be None, an integer from 0 to 2**32 - 1, a "
            f"numpy.random.RandomState or a Generator; got {random_state!r}"
        ) from error


def into(xp, out):
    """Return the option that makes functions of `xp` write to `out`, if any."""
    has_it = is_numpy(xp) or is_cupy(xp) or array_api_compat.is_torch_namespace(xp)
    return {"out": out} if has_it else {}


def slices(n, size=4096):
    """Yield ranges of at most `size` rows that cover n rows."""
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def equal_slices(n, n_parts):
    """Return `n_parts` ranges of n rows, as equal as possible."""
    ends = [n * part // max(n_parts, 1) for part in range(n_parts + 1)]
    return [slice(*ends[part : part + 2]) for part in range(n_parts)]


def take(x, index, axis=0):
    """Return some rows (or columns) of an array, by indices on the host."""
    xp = namespace(x)
    return xp.take(x, xp.asarray(index, device=device_of(x)), axis=axis)


def scatter(values, index, n):
    """Return `n` rows: `values` at the positions `index`, zeros elsewhere."""
    xp, source = namespace(values), np.full(n, len(index))
    source[index] = np.arange(len(index))
    return take(xp.concat([values, xp.zeros_like(values[:1, :])]), source)


def joined(parts):
    """Return arrays joined along their rows; a single array is not copied."""
    parts = list(parts)
    return namespace(parts[0]).concat(parts) if len(parts) > 1 else parts[0]


def in_place(xp, name, x):
    """Apply the elementwise function `name` to `x`, in place if `xp` can."""
    return getattr(xp, name)(x, **into(xp, x))


def has_vector_math(xp):
    """Whether exp2 and tan are fast in `xp`, as in NumPy on Linux with AVX-512.

    They take 0.21 and 0.4 ns in float32, exp 0.45 ns, sin and cos together 1.05 ns.
    """
    return _NUMPY_HAS_VECTOR_MATH and is_numpy(xp)


_SIMD = np.show_config(mode="dicts")["SIMD Extensions"]
_NUMPY_HAS_VECTOR_MATH = sys.platform == "linux" and not {
    *_SIMD.get("baseline", ()),
    *_SIMD.get("found", ()),
}.isdisjoint(("AVX512_SKX", "X86_V4"))  # the same, before and from NumPy 2.4


def cut_off_at_zero(xp, T):
    """Return max(T, 0), in place if `xp` can."""
    # A row of zeros, not a scalar: twice as fast in NumPy.
    zeros = xp.zeros(T.shape[1], dtype=T.dtype, device=device_of(T))
    return xp.maximum(T, zeros, **into(xp, T))


def clipped(xp, T, least, most):
    """Return T clipped between arrays of its shape, in place if `xp` can."""
    # Twice as fast as NumPy's `clip` with arrays.
    in_T = into(xp, T)
    return xp.minimum(xp.maximum(T, least, **in_T), most, **in_T)


def matmul(xp, A, B, out=None):
    """Return `A @ B`, written to `out` if `xp` can."""
    return xp.matmul(A, B, **into(xp, out))


def run_cuda(operation, T):
    """Apply a line of CUDA C++, which sets ``k`` from ``t``, to a CuPy array in place.

    The array is read and written once, not once for each function in a chain.
    """
    return _cuda_kernel(operation)(T, T)


@cache
def _cuda_kernel(operation):
    import cupy

    return cupy.ElementwiseKernel("T t", "T k", operation, "eigenkern_finish")


class Location(NamedTuple):
    """Where arrays live: their namespace and device."""

    xp: Any
    device: Any


def location_of(X):
    """Return the `Location` of validated rows, which may be sparse."""
    if scipy.sparse.issparse(X):
        X = np.empty(0)
    return Location(namespace(X), device_of(X))


# An array of NumPy, CuPy, PyTorch or Dask, a DataFrame, a sparse matrix, a list.
ArrayLike: TypeAlias = Any
# A kernel's name, a function of two blocks of rows, or an `eigenkern.kernels` object.
KernelLike: TypeAlias = str | Callable[[Any, Any], Any]
RandomState: TypeAlias = int | np.random.RandomState | None
AnyGenerator: TypeAlias = RandomState | np.random.Generator
# "auto", "cpu", "cuda:0", or a list of these.
Device: TypeAlias = str | Sequence[str]
