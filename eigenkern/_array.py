"""Where an array lives: its namespace, its device, moving it, the free memory."""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import array_api_compat
import numpy as np
import psutil
from array_api_compat import array_namespace as namespace
from array_api_compat import device as device_of
from array_api_compat import is_cupy_namespace as is_cupy
from array_api_compat import is_numpy_namespace as is_numpy

__all__ = [
    "RowsElsewhere",
    "available_memory",
    "compute_devices",
    "compute_location",
    "cut_off_at_zero",
    "device_of",
    "has_vector_math",
    "in_place",
    "is_cupy",
    "is_numpy",
    "matmul",
    "move",
    "move_what_fits",
    "n_bytes",
    "namespace",
    "run_cuda",
    "to_numpy",
    "working_device",
]

_CGROUP = Path("/sys/fs/cgroup")
# Part of a GPU's free memory that may be planned with: its libraries need some too.
_GPU_SHARE = 0.9
# Bytes of page-locked memory that rows pass through on their way to a GPU, at most.
_PINNED_BYTES = 256e6


def to_numpy(x):
    """Return `x` as a NumPy array on the host, without a copy where possible."""
    if array_api_compat.is_torch_array(x):
        return x.detach().cpu().numpy()
    if array_api_compat.is_cupy_array(x):
        return x.get()
    if array_api_compat.is_array_api_strict_namespace(namespace(x)):
        xp = namespace(x)
        x = xp.asarray(x, device=xp.Device("CPU_DEVICE"))
    return np.asarray(x)


def move(x, xp, device):
    """Return `x` as an array of namespace `xp` on `device`."""
    if isinstance(x, np.ndarray) and is_numpy(xp):
        return x
    if array_api_compat.is_array_api_obj(x) and namespace(x) == xp:
        if is_cupy(xp) and x.device != device:
            with x.device:  # CuPy copies only what is contiguous to another device
                x = xp.asarray(x, order="C")
        return array_api_compat.to_device(x, device)
    return xp.asarray(to_numpy(x), device=device)


def compute_location(device, X):
    """Return the namespace and device that the parameter `device` asks for.

    Parameters
    ----------
    device : {"auto", "cpu", "cuda", "cuda:N"}
        "auto" computes where `X` lives.
    X : array
        Validated data.

    Raises
    ------
    ValueError
        If `device` is unknown, names a GPU that is not there, or several devices.
    """
    places = compute_devices(device, X)
    if len(places) > 1:
        raise ValueError(
            "device must be one device: only models on kernel matrices compute on "
            f"several; got {device!r}"
        )
    return places[0]


def compute_devices(device, X):
    """Return namespace and device of every device of a list, or of the one."""
    if not isinstance(device, list | tuple):
        device = [device]
    elif not device or "auto" in device:
        raise ValueError(
            "device must be one device or a list that names at least one, 'auto' not "
            f"among them; got {device!r}"
        )
    places = [_location(one, X) for one in device]
    if any(xp != places[0][0] for xp, _ in places):
        raise ValueError(
            f"device must not mix 'cpu' and GPUs in a list; got {device!r}"
        )
    if array_api_compat.is_cupy_array(X) and is_cupy(places[0][0]):
        if X.device != places[0][1]:
            raise ValueError(
                f"device must be 'auto' or begin with the GPU that X is on, "
                f"{X.device}; got {device!r}"
            )
    return places


def _location(device, X):
    if device == "auto":
        return namespace(X), device_of(X)
    if device == "cpu":
        return array_api_compat.array_namespace(np.empty(0)), "cpu"
    name, _, index = str(device).partition(":")
    if name != "cuda" or (index and not index.isdigit()):
        raise ValueError(
            "device must be 'auto', 'cpu', 'cuda' or 'cuda:N', or a list of devices; "
            f"got {device!r}"
        )
    try:
        import cupy

        n_gpus = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise ValueError(
            f"device={device!r} needs a CUDA GPU and the package CuPy (the extras "
            f"'cuda12' and 'cuda13' install it); got: {error}. Use device='auto' to "
            "compute where X lives"
        ) from error
    if int(index or 0) >= n_gpus:
        raise ValueError(f"device={device!r} is not there: {n_gpus} GPU(s) found")
    import array_api_compat.cupy as xp

    return xp, cupy.cuda.Device(int(index or 0))


def working_device(device, X):
    """Return a context for work that the parameter `device` asks for, on raw rows X.

    CuPy runs what it is given on its current device, wherever the arrays are.
    """
    named = isinstance(device, list | tuple) or str(device).startswith("cuda")
    if named or array_api_compat.is_cupy_array(X):
        try:
            xp, place = compute_devices(device, X)[0]
        except ValueError:  # it is raised where the device is asked for
            return nullcontext()
        if is_cupy(xp):
            return place
    return nullcontext()


def _writes_in_place(xp):
    """Whether functions of `xp` take `out=`."""
    return is_numpy(xp) or is_cupy(xp) or array_api_compat.is_torch_namespace(xp)


def in_place(xp, name, x):
    """Apply the elementwise function `name` to `x`, in `x` itself where `xp` can."""
    function = getattr(xp, name)
    return function(x, out=x) if _writes_in_place(xp) else function(x)


def has_vector_math(xp):
    """Whether `xp` has fast loops of exp2 and tan, as NumPy on Linux with AVX-512.

    exp2 of float32 takes 0.21 ns an element there, exp 0.45 ns; tan 0.4 ns, sin and cos
    together 1.05 ns, and of float64 1.3 ns and 31 ns. Elsewhere exp2 and tan are slow.
    """
    return _NUMPY_HAS_VECTOR_MATH and is_numpy(xp)


def _numpy_has_vector_math():
    features = np.show_config(mode="dicts")["SIMD Extensions"]
    used = {*features.get("baseline", ()), *features.get("found", ())}
    # NumPy 2.4 calls the same set of instructions X86_V4.
    return sys.platform == "linux" and bool(used & {"AVX512_SKX", "X86_V4"})


_NUMPY_HAS_VECTOR_MATH = _numpy_has_vector_math()


def cut_off_at_zero(xp, T):
    """Return max(T, 0), in `T` itself where `xp` can."""
    # A row of zeros, not a scalar: NumPy's loop is vectorised for it, twice as fast.
    zeros = xp.zeros(T.shape[1], dtype=T.dtype, device=device_of(T))
    if _writes_in_place(xp):
        return xp.maximum(T, zeros, out=T)
    return xp.maximum(T, zeros)


def matmul(xp, A, B, out=None):
    """Return `A @ B`, written to `out` where `xp` can."""
    if out is None or not _writes_in_place(xp):
        return xp.matmul(A, B)
    return xp.matmul(A, B, out=out)


def run_cuda(operation, T):
    """Apply a line of CUDA C++ to every element of a CuPy array, in place.

    `operation` sets ``k`` from ``t``, both of the array's type T. One kernel reads and
    writes the array once; a chain of functions would once each.
    """
    kernel = _cuda_kernel(operation)
    return kernel(T, T)


@cache
def _cuda_kernel(operation):
    import cupy

    return cupy.ElementwiseKernel("T t", "T k", operation, "eigenkern_finish")


def available_memory(xp, device):
    """Bytes that can be allocated on `device` now, the cgroup limit included.

    Of a GPU nine tenths of what is free, after what the library's pool hoards has been
    given back: blocks that are free but too small are of no use.
    """
    if is_cupy(xp):
        import cupy

        with device:
            cupy.get_default_memory_pool().free_all_blocks()
            return _GPU_SHARE * cupy.cuda.runtime.memGetInfo()[0]
    if array_api_compat.is_torch_namespace(xp) and str(device).startswith("cuda"):
        import torch

        torch.cuda.empty_cache()
        return _GPU_SHARE * torch.cuda.mem_get_info(device)[0]
    return min(psutil.virtual_memory().available, _cgroup_headroom())


def n_bytes(X):
    """Bytes of a matrix of floats."""
    return X.shape[0] * X.shape[1] * namespace(X).finfo(X.dtype).bits // 8


def move_what_fits(X, xp, device):
    """Return the rows X as `move` does, with room for a second copy of them.

    Raises
    ------
    MemoryError
        If the free memory of a device that they are moved to does not hold both.
    """
    if is_numpy(xp) or (namespace(X), device_of(X)) == (xp, device):
        return move(X, xp, device)
    needed, free = 2.0 * n_bytes(X), available_memory(xp, device)
    if needed > free:
        raise MemoryError(
            f"X needs {needed / 1e6:.0f} MB on the device {device}, {X.shape[0]} rows "
            f"and as much to work with, but {free / 1e6:.0f} MB are free there: "
            f"{int(X.shape[0] * free / needed)} rows would fit. Pass fewer rows, or "
            "n_centers or a list of devices where the estimator has them, or learn "
            "from pieces of the data (partial_fit)"
        )
    return move(X, xp, device)


class RowsElsewhere:
    """Rows of an array in one place that are moved to another as they are asked for.

    Rows on the host that are asked for on a GPU, one range after another, are on their
    way while the range before is in use.

    Parameters
    ----------
    X : array of shape (n, d)
    xp, device
        Namespace and device to move rows to.
    order : ndarray of shape (m,), default=None
        Rows of X to take, in this order; None: all.

    Attributes
    ----------
    shape : tuple (m, d)
    """

    def __init__(self, X, xp, device, order=None):
        self._X, self._xp, self._device, self._order = X, xp, device, order
        self.shape = X.shape[0] if order is None else len(order), X.shape[1]
        self._coming, self._stop, self._copies = {}, 0, None
        if is_cupy(xp) and not array_api_compat.is_cupy_array(X):
            self._X, self._copies = to_numpy(X), _CopiesToGpu(device)

    def __getitem__(self, key):
        start, stop, _ = key[0].indices(self.shape[0])
        if self._copies is None:
            return move(self._read(start, stop), self._xp, self._device)
        self.expect(start, stop)
        copy = self._coming.pop((start, stop))
        in_order, self._stop = start == self._stop, stop
        if in_order and stop < self.shape[0]:
            self.expect(stop, min(2 * stop - start, self.shape[0]))
        return copy.result()

    def expect(self, start, stop):
        """Note which range is asked for next."""
        if self._copies is not None and (start, stop) not in self._coming:
            shape = stop - start, self.shape[1]
            copy = self._copies.start(self._read, start, shape, self._X.dtype)
            self._coming = {(start, stop): copy}

    def _read(self, start, stop):
        """Return a range of rows where they are."""
        if self._order is None:
            return self._X[start:stop, :]
        xp = namespace(self._X)
        index = xp.asarray(self._order[start:stop], device=device_of(self._X))
        return xp.take(self._X, index, axis=0)


class _CopiesToGpu:
    """Copies of host arrays to a GPU that run beside its work.

    They pass through page-locked memory, in a thread and on a stream of their own.
    """

    def __init__(self, device):
        import cupy

        self._device, self._pinned = device, None
        with device:
            self._stream = cupy.cuda.Stream(non_blocking=True)
        self._thread = ThreadPoolExecutor(1)

    def start(self, read, start, shape, dtype):
        """Start a copy of ``read(start, start + m)``; return the future of the array.

        `shape` is that of the copy, (m, d).
        """
        import cupy

        with self._device:
            # Work given to the GPU so far may still use this memory: wait for it.
            out = cupy.empty(shape, dtype)
            free = cupy.cuda.get_current_stream().record()
        return self._thread.submit(self._copy, read, start, out, free)

    def _copy(self, read, start, out, free):
        import cupyx

        row_bytes = out.shape[1] * out.itemsize
        n_rows = max(min(int(_PINNED_BYTES // row_bytes), out.shape[0]), 1)
        with self._device:
            self._stream.wait_event(free)
            if self._pinned is None or self._pinned.nbytes < n_rows * row_bytes:
                self._pinned = cupyx.empty_pinned(n_rows * row_bytes, np.uint8)
            for i in range(0, out.shape[0], n_rows):
                part = out[i : i + n_rows, :]
                rows = self._pinned[: part.nbytes].view(out.dtype).reshape(part.shape)
                rows[...] = read(start + i, start + i + part.shape[0])
                part.set(rows, stream=self._stream)
                self._stream.synchronize()
        return out


def _cgroup_headroom():
    """Bytes left under the memory limits of this process's control groups."""
    headroom = float("inf")
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return headroom
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, limit, usage = _CGROUP, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root = _CGROUP / "memory"
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(root):
                break
            headroom = min(headroom, _group_headroom(folder, limit, usage))
    return headroom


def _group_headroom(folder, limit, usage):
    """Bytes left in one control group; file pages that can be dropped count as free."""
    try:
        bound = int((folder / limit).read_text())
        used = int((folder / usage).read_text())
        stat = dict(
            line.split() for line in (folder / "memory.stat").read_text().splitlines()
        )
    except (OSError, ValueError):  # no such group, or "max": no limit
        return float("inf")
    return max(bound - used + int(stat.get("inactive_file", 0)), 0)
