"""A kernel matrix on several devices, each with a part of the centers."""

from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

from ..arrays.array import equal_slices, is_cupy, move
from ..arrays.machine import SENT_BYTES
from ..rows.dask_rows import DaskRows
from ..rows.transfer import move_what_fits
from .distributed import DaskMatrix
from .matrix import KERNEL_ATTRIBUTES, GivenMatrix, Matrix
from .tiled import TiledKernel


def kernel_operator(kernel, centers, devices, rows=None):
    """Return K(X, Z), computed on one device, on several, or where the rows are.

    The parameters are those of `ShardedKernel`, but a single device is allowed, and so
    are lazy rows. Raises a MemoryError if a GPU cannot hold its centers.
    """
    devices = devices[: max(centers.shape[0], 1)]
    if isinstance(rows, DaskRows):
        if len(devices) > 1:
            raise ValueError(
                "device must be one device for rows in a Dask array, whose workers "
                f"share the work; got {len(devices)} devices"
            )
        return DaskMatrix(TiledKernel(kernel, move(centers, *devices[0])), rows)
    if len(devices) > 1:
        return ShardedKernel(kernel, centers, devices, rows)
    return TiledKernel(kernel, move_what_fits(centers, *devices[0]), rows)


@contextmanager
def _on(location):
    """Work on a device, and synchronize on exit: other devices don't wait for it."""
    xp, device = location
    if not is_cupy(xp):
        yield
        return
    import cupy

    with device:
        yield
        cupy.cuda.get_current_stream().synchronize()


class ShardedKernel(Matrix):
    """The kernel matrix K(X, Z) with the centers split over devices.

    Rows are encoded on the first device and sent to all. A thread for each device
    multiplies its part of K by its part of A; the partial products are summed on the
    first device, which holds everything else: m (d + l) numbers are sent to a device
    for m p d multiply-adds.

    Abedsoltan, Belkin and Pandit, "Toward large kernel models" (EigenPro 3), ICML 2023,
    split the centers over GPUs in this way.

    The centers Z (p, d) and rows X (m, d) may be on any device; without rows X = Z.
    There are at least two `devices` (namespace, device), which may be repeated.
    """

    can_be_cached = False

    def __init__(self, kernel, centers, devices, rows=None):
        p, n = centers.shape[0], len(devices)
        self._parts = equal_slices(p, n)
        self._devices, self._device_threads = devices, ThreadPoolExecutor(n)
        frame = kernel.frame(centers)
        self._shards = []
        for location, part in zip(devices, self._parts, strict=True):
            with _on(location):
                own = {
                    k: v if v is None else move(v, *location) for k, v in frame.items()
                }
                Z = move_what_fits(centers[part, :], *location)
                self._shards.append(TiledKernel(kernel, Z, frame=own))
        self._describe_as(self._shards[0], *KERNEL_ATTRIBUTES)
        self.symmetric, self.shape = rows is None, (p, p)
        self.encoded_rows = self._encoded_centers
        if rows is not None:
            vars(self).update(vars(self.rows(rows)))

    def rows(self, X):
        """Return K(X, Z), with the centers where they are."""
        encoded_rows, shape = self._shards[0].encoder(X), (X.shape[0], self.shape[1])
        return self._changed(encoded_rows=encoded_rows, shape=shape, symmetric=False)

    def plus_diagonal(self, values):
        """Return K(X, X) + diag(values), of rows that are the centers."""
        parts = self._split(values)
        shards = self._run_all(lambda k: self._shards[k].plus_diagonal(parts[k]))
        return self._changed(_shards=shards)

    def _encoded_centers(self, start, stop):
        """Return a range of the centers, encoded, on the first device."""
        pieces = [self._shards[0].encoded_rows(0, 0)]
        for shard, part in zip(self._shards, self._parts, strict=True):
            first, last = max(start, part.start), min(stop, part.stop)
            if first < last:
                E = shard.encoded_rows(first - part.start, last - part.start)
                pieces.append(move(E, self.xp, self.device))
        return self.xp.concat(pieces)

    def product_and_columns(self, A, start=0, stop=None, n_columns=0):
        """Return rows [start:stop] of K(X, Z) @ A, and of the first columns of K."""
        stop = self.shape[0] if stop is None else stop
        A_parts = self._split(A)

        def task(shard, k):
            own = min(max(n_columns - self._parts[k].start, 0), shard.shape[1])
            return shard.product_and_columns(A_parts[k], n_columns=own)

        products, columns = [], []
        for rows in self._chunks(start, stop):
            F, leading = zip(*self._on_all(task, rows), strict=True)
            products.append(self._total(F))
            columns.append(self.xp.concat(self._gathered(leading), axis=1))
        with _on(self._devices[0]):  # done before parts on other devices are freed
            return self.xp.concat(products), self.xp.concat(columns)

    def evaluated(self, A):
        """Return K @ A, and K, whose parts stay on their devices."""
        A_parts = self._split(A)
        everything = self._on_all(
            lambda shard, k: shard.evaluated(A_parts[k]), slice(0, self.shape[0])
        )
        F, held = zip(*everything, strict=True)
        with _on(self._devices[0]):
            return self._total(F), _HeldShards(self, held)

    def block(self, start=0, stop=None, first=0, last=None, dtype=None, out=None):
        """Return rows [start:stop], columns [first:last] of K(X, Z) as an array."""
        stop, last, out = self._target(start, stop, first, last, dtype, out)

        def task(shard, k):
            part = self._parts[k]
            begin, end = max(first, part.start), min(last, part.stop)
            if begin >= end:
                return None
            columns = begin - part.start, end - part.start
            return begin - first, shard.block(0, None, *columns, dtype=out.dtype)

        for rows in self._chunks(start, stop):
            target = slice(rows.start - start, rows.stop - start)
            blocks = self._on_all(task, rows)
            with _on(self._devices[0]):
                for found in blocks:
                    if found is not None:
                        j, K = found[0], move(found[1], self.xp, self.device)
                        out[target, j : j + K.shape[1]] = K
        return out

    def adjoint_of(self, V, function):
        """Return K' G in float64, G = ``function(rows, K V)`` of each block of rows."""
        V_parts, sums = self._split(V), [0.0] * len(self._devices)
        widest = max(part.stop - part.start for part in self._parts)
        n_rows = max(int(self.budget / 2 // (8 * widest)), 16)
        for rows in self._chunks(0, self.shape[0], n_rows):

            def evaluate(shard, k):
                K = shard.block(dtype=shard.xp.float64)
                return K, K @ V_parts[k]

            blocks, products = zip(*self._on_all(evaluate, rows), strict=True)
            with _on(self._devices[0]):
                U = function(rows, self._total(products))

            def accumulate(k, U=U, blocks=blocks):
                sums[k] = sums[k] + (move(U, *self._devices[k]).T @ blocks[k]).T

            self._run_all(accumulate)
        with _on(self._devices[0]):
            return self.xp.concat(self._gathered(sums))

    def _chunks(self, start, stop, size=None):
        """Return slices of the rows, at least one, that are small enough to be sent."""
        sent = max(int(SENT_BYTES // (self.row_width * self.itemsize)), 1)
        size = sent if size is None else min(size, sent)
        starts = range(start, max(stop, start + 1), size)
        return [slice(i, min(i + size, stop)) for i in starts]

    def _on_all(self, function, rows):
        """Return ``function(shard, k)`` of each shard's K(rows, Z_k)."""
        with _on(self._devices[0]):
            E = self.encoded_rows(rows.start, rows.stop)

        def task(k):
            first = rows.start - self._parts[k].start if self.symmetric else None
            E_k = move(E, *self._devices[k])
            return function(self._shards[k].with_encoded_rows(E_k, first), k)

        return self._run_all(task)

    def _run_all(self, task):
        """Return ``task(k)`` of every device, each in its own thread."""

        def run(k):
            with _on(self._devices[k]):
                return task(k)

        n = len(self._devices)
        futures = [self._device_threads.submit(run, k) for k in range(n)]
        wait(futures)  # also if one fails: the others must not use freed memory
        return [future.result() for future in futures]

    def _split(self, A):
        """Return the rows of A that belong to the centers of each device."""
        with _on(self._devices[0]):
            pass  # wait until A is there
        return self._run_all(lambda k: move(A[self._parts[k], ...], *self._devices[k]))

    def _gathered(self, arrays):
        return [move(array, self.xp, self.device) for array in arrays]

    def _total(self, arrays):
        first, *others = self._gathered(arrays)
        return sum(others, start=first)


class _HeldShards(ShardedKernel):
    """A sharded matrix whose columns are computed and kept on their devices."""

    in_memory = True

    def __init__(self, source, held):
        vars(self).update(vars(source))
        self._source, self._held = source, held

    def rows(self, X):
        """Return K(X, Z), computed as this matrix was."""
        return self._source.rows(X)

    def _on_all(self, function, rows):
        return self._run_all(
            lambda k: function(
                GivenMatrix(self._held[k].block(rows.start, rows.stop)), k
            )
        )

    def adjoint(self, G, start=0, stop=None):
        """Return K' G of the rows [start:stop], shape (p, l)."""
        with _on(self._devices[0]):
            pass  # wait until G is there
        sums = self._run_all(
            lambda k: self._held[k].adjoint(move(G, *self._devices[k]), start, stop)
        )
        with _on(self._devices[0]):
            return self.xp.concat(self._gathered(sums))
