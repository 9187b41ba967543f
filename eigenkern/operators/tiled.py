"""A kernel matrix that is computed tile by tile, and never stored.

F = K(X, Z) A with X (m, d), Z (p, d), A (p, l) costs at least the matrix product X Z'
inside the kernel, 2 m p d flops. A tile of it is finished (exponential, square root)
and multiplied by its block of A while it is in cache, so nothing of size (m, p) is
written to memory. Tiles run on as many threads as BLAS may use, each with BLAS limited
to one thread: so the elementwise part, which NumPy runs on one core, uses all cores,
and nested parallelism does not oversubscribe them.
"""

import numpy as np

from ..arrays.array import equal_slices, is_numpy, location_of, slices
from ..arrays.linalg import large_product, plus_diagonal
from ..arrays.machine import CPU, machine_of
from ..arrays.threads import Team, n_blas_threads, run_on_threads
from ..rows.dask_rows import DaskRows
from ..rows.robust import cast
from ..rows.transfer import StreamedRows
from .blocks import BlockPlan
from .distributed import matrix_on_workers
from .matrix import GivenMatrix, Matrix, sum_of

# Columns of a tile that `write_rows` computes and then copies.
_WRITTEN_COLUMNS = 1024


class TiledKernel(Matrix):
    """The kernel matrix K(X, Z), computed tile by tile in every product.

    Rows X (m, d), an array or StoredRows on any device, are moved when they are used;
    without them X = Z, the centers (p, d), with an exact diagonal. The tiles of one
    thread, or of a GPU, may take `tile_memory` MB. The frame is that of the centers,
    unless it is given as returned by ``kernel.frame``.
    """

    def __init__(self, kernel, centers, rows=None, *, tile_memory=None, frame=None):
        self._describe(centers)
        self._frame = kernel.frame(centers) if frame is None else frame
        self._right = kernel.encode(centers, **self._frame)
        self.row_width = self._right.shape[1]
        self.kernel = kernel.adapted_to(self._right)
        self.factored, self.feature_work = kernel.factored, kernel.feature_work
        tile_bytes = machine_of(self).tile_bytes
        self._start_pool(tile_bytes if tile_memory is None else tile_memory * 1e6)
        # Row i is center `first` + i, unless `first` is None.
        self._first = self._diagonal = self._added = None
        if rows is None:
            self.symmetric, self._first = True, 0
            self._diagonal = kernel.diagonal(centers)
            self.encoded_rows = encoded_slices(self._right)
        else:
            self.encoded_rows = self.encoder(rows)
        self.shape = (centers if rows is None else rows).shape[0], centers.shape[0]

    def _start_pool(self, tile_bytes):
        """Set up the threads, each with tiles of this many bytes."""
        if self.kernel.fused and is_numpy(self.xp):
            self.n_workers = n_blas_threads()
            self.pool = Team(self.n_workers)
        self.budget = tile_bytes * self.n_workers

    def encoder(self, X):
        """Return a function that encodes a range of the rows X, on this device."""
        here = self.xp, self.device
        if not isinstance(X, StreamedRows) and location_of(X) != here:
            X = StreamedRows(X, *here)

        def encoded_rows(start, stop):
            return self.kernel.encode(cast(X[start:stop, :], self.dtype), **self._frame)

        return encoded_rows

    def rows(self, X):
        """Return K(X, Z), with the same encoded centers and the same threads."""
        if isinstance(X, DaskRows):
            return matrix_on_workers(self, X)
        return self._with_rows(self.encoder(X), X.shape[0])

    def _with_rows(self, encoded_rows, m, first=None):
        """Return K(X, Z) of other rows; ``encoded_rows(start, stop)`` encodes them."""
        shape = m, self._right.shape[0]
        return self._changed(
            encoded_rows=encoded_rows, shape=shape, _first=first, symmetric=False
        )

    def with_encoded_rows(self, E, first=None):
        """Return K(X, Z) of encoded rows; row i is center `first` + i, if given."""
        return self._with_rows(encoded_slices(E), E.shape[0], first)

    def without_rows(self):
        """Return K(X, Z) without rows, to send elsewhere and call `rows` there."""
        return self.with_encoded_rows(self._right[:0, :])

    def of_centers(self, part):
        """Return K(X, Z) of a range of the centers, without rows."""
        right = self._right[part, :]
        other = self._changed(_right=right, _diagonal=None, _added=None)
        return other.without_rows()

    def __copy__(self):
        return self._changed()

    def __getstate__(self):
        # Rows stay where they are, and so do the threads.
        stays = ("encoded_rows", "pool")
        return {name: value for name, value in vars(self).items() if name not in stays}

    def __setstate__(self, state):
        vars(self).update(state)
        self._start_pool(self.budget // self.n_workers)
        vars(self).update(vars(self.without_rows()))

    def plus_diagonal(self, values):
        """Return K(X, X) + diag(values), of rows that are the centers."""
        added = values if self._added is None else self._added + values
        return self._changed(_diagonal=self._diagonal + values, _added=added)

    def product_and_columns(self, A, start=0, stop=None, n_columns=0):
        """Return rows [start:stop] of K(X, Z) @ A, and of the first columns of K."""
        stop = self.shape[0] if stop is None else stop
        if self.factored:
            left = self.kernel.left(self.encoded_rows(start, stop))
            leading = large_product(left, self._right[:n_columns, :].T)
            F = large_product(left, self._right.T @ A)
            if self._added is not None and self._first is not None:
                self._add_diagonal(F, leading, A, start + self._first)
            return F, leading
        m, p = stop - start, self.shape[1]
        options = {"dtype": self.dtype, "device": self.device}
        leading = self.xp.empty((m, n_columns), **options)
        plan = self.plan(m)
        centers = equal_slices(p, plan.n_parts)
        parts = [self.xp.zeros((m, A.shape[1]), **options) for _ in range(plan.n_parts)]

        def task(part, rows):
            F, own = parts[part], centers[part]
            tiles = self._tiles(start, rows, own.start, own.stop, plan.center_tile)
            for columns, tile in tiles:
                F[rows, :] += tile @ A[columns, :]
                if columns.start < n_columns:
                    end = min(columns.stop, n_columns)
                    leading[rows, columns.start : end] = tile[:, : end - columns.start]

        ranges = list(slices(m, plan.row_tile))
        tasks = [(part, rows) for part in range(plan.n_parts) for rows in ranges]
        run_on_threads(self.pool, task, tasks, self._seconds(m * p, A.shape[1]))
        return sum_of(parts), leading

    def _add_diagonal(self, F, leading, A, start):
        """Add to F = K A, and to the leading columns of K, what `plus_diagonal` added.

        The rows are the centers from `start` on.
        """
        first, last = max(start, 0), min(start + F.shape[0], self.shape[1])
        if first >= last:
            return
        F[first - start : last - start, :] += (
            self._added[first:last, None] * A[first:last, :]
        )
        last = min(last, leading.shape[1])
        if first < last:
            rows, own = slice(first - start, last - start), slice(first, last)
            leading[rows, own] = plus_diagonal(leading[rows, own], self._added[own])

    def evaluated(self, A):
        """Return K @ A, and K in memory: computed once for this and for `adjoint`."""
        F, K = self.product_and_columns(A, n_columns=self.shape[1])
        return F, GivenMatrix(K, self)

    def block(self, start=0, stop=None, first=0, last=None, dtype=None, out=None):
        """Return rows [start:stop], columns [first:last] of K(X, Z) as an array.

        If rows and columns of a symmetric matrix are the same, only the lower triangle
        is computed.
        """
        stop, last, K = self._target(start, stop, first, last, dtype, out)
        m, plan = stop - start, self.plan(stop - start)
        width = plan.center_tile
        halved = self.symmetric and (start, stop) == (first, last)

        def task(rows):
            end = first + rows.stop if halved else last
            for columns, tile in self._tiles(start, rows, first, end, width):
                target = slice(columns.start - first, columns.stop - first)
                K[rows, target] = self.xp.astype(tile, K.dtype, copy=False)

        def reflect(rows):
            for columns in slices(rows.start, width):
                K[columns, rows] = K[rows, columns].T

        tasks = [(rows,) for rows in slices(m, plan.row_tile)]
        seconds = self._seconds(m * (last - first))
        reflected = m * (last - first) * self.itemsize / CPU.read_one
        if halved:  # the longest rows first, so that the workers finish together
            run_on_threads(self.pool, task, tasks[::-1], seconds / 2)
            run_on_threads(self.pool, reflect, tasks[::-1], reflected)
        else:  # in order, as rows that come from another device are prefetched
            run_on_threads(self.pool, task, tasks, seconds)
        return K

    def write_rows(self, K, start):
        """Write rows from `start` on, and as many columns as K has, in this thread."""
        rows = slice(0, K.shape[0])
        width = _WRITTEN_COLUMNS
        if self.pool is None:
            width = self.plan(K.shape[0]).center_tile
        # Computed in a compact tile, then copied: a fifth faster than in place, where
        # every row of the tile is on a different page.
        for columns, tile in self._tiles(start, rows, 0, K.shape[1], width):
            K[:, columns] = tile

    def plan(self, m):
        """Return the `BlockPlan` of a product of m rows."""
        sizes = max(m, 1), self.shape[1], self.row_width, self.itemsize
        if self.pool is None:
            return BlockPlan.of_library(*sizes, self.budget)
        return BlockPlan.make(*sizes, self.n_workers, self.budget)

    def _seconds(self, n_entries, n_columns=0):
        """Return one thread's time for entries of K, and for a product with them."""
        width = self.feature_work * self.row_width + n_columns
        return n_entries * CPU.kernel_seconds(width, self.itemsize, 1)

    def _tiles(self, start, rows, first, last, width):
        """Yield ranges of `width` centers in [first:last], and the tile of K of each.

        The tile's rows are `rows`, counted from `start`; the next tile overwrites it.
        """
        start, m, tile = start + rows.start, rows.stop - rows.start, None
        left = self.kernel.left(self.encoded_rows(start, start + m))
        center = None if self._first is None else self._first + start
        for j in range(first, last, width):
            columns = slice(j, min(j + width, last))
            if tile is not None and tile.shape[1] != columns.stop - j:
                tile = None
            tile = self.kernel.evaluate(self.xp, left, self._right[columns, :], tile)
            if center is not None and center < columns.stop and j < center + m:
                tile = self._with_exact_diagonal(tile, center, columns)
            yield columns, tile

    def _with_exact_diagonal(self, tile, start, columns):
        """Return a tile whose rows are the centers from `start` on, k(x, x) exact."""
        xp = self.xp
        if self.pool is not None:  # the tile can be changed in place
            stop = start + tile.shape[0]
            own = np.arange(max(start, columns.start), min(stop, columns.stop))
            tile[own - start, own - columns.start] = self._diagonal[own]
            return tile
        rows = xp.arange(start, start + tile.shape[0], device=self.device)
        cols = xp.arange(columns.start, columns.stop, device=self.device)
        values = self._diagonal[columns]
        return xp.where(rows[:, None] == cols[None, :], values[None, :], tile)


def encoded_slices(E):
    """Return a function that returns a range of already encoded rows."""
    return lambda start, stop: E[start:stop, :]
