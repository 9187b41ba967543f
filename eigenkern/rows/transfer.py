"""Moving rows to the device that computes with them."""

from concurrent.futures import ThreadPoolExecutor

import array_api_compat
import numpy as np

from ..arrays import memory
from ..arrays.array import is_cupy, is_numpy, location_of, move, to_numpy
from ..arrays.machine import PINNED_BYTES
from ..arrays.memory import n_bytes
from .lazy_rows import is_lazy, rows_at


def move_what_fits(X, xp, device):
    """Move the rows X like `move`; a MemoryError if a second copy does not fit."""
    if is_numpy(xp) or location_of(X) == (xp, device):
        return move(X, xp, device)
    needed, free = 2.0 * n_bytes(X), memory.available(xp, device)
    if needed > free:
        raise MemoryError(
            f"X needs {needed / 1e6:.0f} MB on the device {device}, {X.shape[0]} rows "
            f"and as much to work with, but {free / 1e6:.0f} MB are free there: "
            f"{int(X.shape[0] * free / needed)} rows would fit. Pass fewer rows, or "
            "n_centers or a list of devices where the estimator has them, or learn "
            "from pieces of the data (partial_fit)"
        )
    return move(X, xp, device)


class StreamedRows:
    """Rows of an array, or LazyRows, that are moved to another device on demand.

    These are the rows `order` of X, or all. When a GPU uses host rows one range after
    another, each range is copied while the previous one is in use.
    """

    def __init__(self, X, xp, device, order=None):
        if is_lazy(X) and order is not None:
            X, order = X.in_order(order), None
        self._X, self._xp, self._device, self._order = X, xp, device, order
        self.shape = X.shape[0] if order is None else len(order), X.shape[1]
        self._coming, self._stop, self._copies = {}, 0, None
        if is_cupy(xp) and not array_api_compat.is_cupy_array(X):
            self._X = X if is_lazy(X) else to_numpy(X)
            self._copies = _CopiesToGpu(device)

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

    def shuffled_ranges(self, starts, rng):
        """Return the starts of ranges of the rows in random order."""
        if is_lazy(self._X):
            return self._X.shuffled_ranges(starts, rng)
        return rng.permutation(starts)

    def expect(self, start, stop):
        """Note which range will be needed next."""
        if self._copies is not None and (start, stop) not in self._coming:
            shape = stop - start, self.shape[1]
            copy = self._copies.start(self._read, start, shape, self._X.dtype)
            self._coming = {(start, stop): copy}

    def _read(self, start, stop):
        """Return a range of rows without moving it."""
        if self._order is None:
            return self._X[start:stop, :]
        return rows_at(self._X, self._order[start:stop])


class _CopiesToGpu:
    """Copies of host arrays to a GPU that run alongside its work.

    They pass through page-locked memory, in a thread and a stream of their own.
    """

    def __init__(self, device):
        import cupy

        self._device, self._pinned = device, None
        with device:
            self._stream = cupy.cuda.Stream(non_blocking=True)
        self._thread = ThreadPoolExecutor(1)

    def start(self, read, start, shape, dtype):
        """Start a copy (m, d) of ``read(start, start + m)``; return its future."""
        import cupy

        with self._device:
            # Work queued on the GPU may still use this memory: wait for it.
            out = cupy.empty(shape, dtype)
            free = cupy.cuda.get_current_stream().record()
        return self._thread.submit(self._copy, read, start, out, free)

    def _copy(self, read, start, out, free):
        import cupyx

        row_bytes = out.shape[1] * out.itemsize
        n_rows = max(min(int(PINNED_BYTES // row_bytes), out.shape[0]), 1)
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
