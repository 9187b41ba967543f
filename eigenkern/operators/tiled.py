"""Products with a kernel matrix that is never held whole, unless it is cached.

For F = K(X, Z) A with X (m, d), Z (p, d), A (p, l) the floor is the matrix product
X Z' inside the kernel, 2 m p d flops. A tile of it is finished (exponential, square
root) and multiplied by its block of A while it is in cache, so that nothing of size
(m, p) is written to memory. Tiles run on as many threads as BLAS was allowed, each
with BLAS limited to one thread: the elementwise part, which NumPy runs on one core,
then runs on all of them, and nested parallelism does not oversubscribe.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from copy import copy

import numpy as np

from ..backend.array import device_of, is_numpy, namespace
from ..backend.devices import on_gpu
from ..backend.threads import _single_threaded_blas, run_on_threads
from ..backend.transfer import StreamedRows
from ..kernels import CallableKernel
from .plan import _MEGABYTE, BlockPlan

_CACHE_BLOCK = 1024


# MB that the tiles of a GPU may take. A tile is one call of the library for each of
# the product, the function and the product by A: it must be large beside their launch.
_GPU_TILE_MEMORY = 512.0


class KernelOperator:
    """The matrix K(X, Z) as a linear operator.

    Parameters
    ----------
    kernel : Kernel
    centers : array of shape (p, d)
        Z.
    rows : array of shape (m, d), default=None
        X, which may be in another place: rows are moved when they are used. None:
        X = Z, and the diagonal is exact.
    tile_memory : float, default=None
        MB that the tiles of one thread, or of a GPU, may take; None: 32 and 512.
    frame : dict, default=None
        What ``kernel.frame`` returns; None: that of the centers.

    Attributes
    ----------
    shape : tuple (m, p)
    symmetric : bool
        Whether the rows are the centers.
    xp, device, dtype, itemsize
        Namespace, device, data type and its bytes.
    n_workers : int
        Threads that a product runs on.
    """

    def __init__(self, kernel, centers, rows=None, *, tile_memory=None, frame=None):
        self.xp = xp = namespace(centers)
        self.device = device_of(centers)
        self.dtype = centers.dtype
        self.itemsize = xp.finfo(self.dtype).bits // 8
        self.symmetric = rows is None
        self.shape = ((centers if rows is None else rows).shape[0], centers.shape[0])
        self._frame = kernel.frame(centers) if frame is None else frame
        self._right = kernel.encode(centers, **self._frame)
        self.kernel = kernel.adapted_to(self._right)
        self._set_rows(rows)
        self._diagonal = kernel.diagonal(centers) if rows is None else None
        self._matrix = self._triangle = None
        self._threaded = kernel.fused and is_numpy(xp)
        self.n_workers = _single_threaded_blas.n_threads() if self._threaded else 1
        if tile_memory is None:
            tile_memory = _GPU_TILE_MEMORY if on_gpu(xp, self.device) else 32.0
        self._budget = tile_memory * _MEGABYTE * self.n_workers
        self._pool = ThreadPoolExecutor(self.n_workers) if self._threaded else None

    @classmethod
    def from_matrix(cls, K):
        """Return the operator of a matrix that is given ("precomputed")."""
        operator = cls(CallableKernel(None), K[:, :0], K[:, :0])
        operator.shape, operator._matrix = tuple(K.shape), K
        return operator

    def with_rows(self, rows):
        """Return K(rows, Z): the centers stay encoded, the threads are shared."""
        other = copy(self)
        other._set_rows(rows)
        other.symmetric = False
        other.shape = rows.shape[0], self.shape[1]
        other._matrix = other._triangle = None
        return other

    def _set_rows(self, rows):
        """Set X: rows in any place, or None: the centers."""
        self._encoded, self._first = (self._right, 0) if rows is None else (None, None)
        self._rows = rows
        if rows is not None and not isinstance(rows, StreamedRows):
            if (namespace(rows), device_of(rows)) != (self.xp, self.device):
                self._rows = StreamedRows(rows, self.xp, self.device)

    def with_encoded_rows(self, E, first=None):
        """Return K(rows, Z) of encoded rows; row i is center `first` + i, if given."""
        other = self.with_rows(E)
        other._rows, other._encoded, other._first = None, E, first
        return other

    def exclusive_threads(self):
        """Return a context for loops that mix products with other linear algebra.

        In it BLAS runs one thread a call. Otherwise the threads of a BLAS call go on
        spinning for some 30 ms after it, on the cores of the next product's tiles:
        measured, they double its time.
        """
        return _single_threaded_blas if self._threaded else nullcontext()

    def __matmul__(self, A):
        """Return K(X, Z) @ A, shape (m, l)."""
        return self.product(A)[0]

    def product(self, A, start=0, stop=None, n_kept=0):
        """Return rows [start:stop] of K(X, Z) @ A, and of the first columns of K.

        Parameters
        ----------
        A : array of shape (p, l)
        start, stop : int
            Range of rows, m of them.
        n_kept : int, default=0
            Leading columns of K to return beside the product, computed once for both.

        Returns
        -------
        F : array of shape (m, l)
        kept : array of shape (m, n_kept)
        """
        stop = self.shape[0] if stop is None else stop
        if self._matrix is not None:
            K = self._matrix[start:stop, :]
            return K @ A, K[:, :n_kept]
        if self._triangle is not None:
            return self._cached_product(A, start, stop, n_kept)
        if self.kernel.factored:
            left = self._left(start, stop)
            return left @ (self._right.T @ A), left @ self._right[:n_kept, :].T
        xp = self.xp
        m, p = stop - start, self.shape[1]
        kept = xp.empty((m, n_kept), dtype=self.dtype, device=self.device)
        plan = self._plan(m)
        bounds = [p * part // plan.n_parts for part in range(plan.n_parts + 1)]
        F_parts = [
            xp.zeros((m, A.shape[1]), dtype=self.dtype, device=self.device)
            for _ in range(plan.n_parts)
        ]

        def task(part, i):
            rows = slice(i, min(i + plan.row_tile, m))
            left = self._left(start + rows.start, start + rows.stop)
            F = F_parts[part]
            tile = None
            for j in range(bounds[part], bounds[part + 1], plan.center_tile):
                columns = slice(j, min(j + plan.center_tile, bounds[part + 1]))
                tile = self._tile(left, start + rows.start, columns, tile)
                F[rows, :] += tile @ A[columns, :]
                if j < n_kept:
                    end = min(columns.stop, n_kept)
                    kept[rows, j:end] = tile[:, : end - j]

        self._run(
            task,
            [
                (part, i)
                for part in range(plan.n_parts)
                for i in range(0, m, plan.row_tile)
            ],
        )
        return _sum(F_parts), kept

    def product_and_matrix(self, A, n_kept):
        """Return K(X, Z) @ A, the first columns of K(X, Z), and K(X, Z) for `adjoint`.

        All are computed once.
        """
        F, K = self.product(A, n_kept=self.shape[1])
        return F, K[:, :n_kept], K

    def adjoint(self, K, G):
        """Return K' G of the matrix of `product_and_matrix`, shape (p, l)."""
        if not self._threaded:
            return K.T @ G
        out = np.empty((K.shape[1], G.shape[1]), dtype=G.dtype)

        def task(j):
            columns = slice(j, j + 1024)
            out[columns, :] = (G.T @ K[:, columns]).T

        self._run(task, [(j,) for j in range(0, K.shape[1], 1024)])
        return out

    def block(self, start=0, stop=None, first=0, last=None, dtype=None, out=None):
        """Return rows [start:stop], columns [first:last] of K(X, Z) as an array.

        It is a view of a matrix that is given or cached whole, if that has the data
        type. `dtype` (default: that of the rows) is the type of the array only: the
        values are computed in the rows' type. Another block is written to the first
        rows of `out`, where it is given. Of the same rows and columns of a symmetric
        matrix only the lower triangle is computed.
        """
        stop = self.shape[0] if stop is None else stop
        last = self.shape[1] if last is None else last
        dtype = self.dtype if dtype is None else dtype
        if self._matrix is not None:
            K = self._matrix[start:stop, first:last]
            return self.xp.astype(K, dtype, copy=False)
        m = stop - start
        if out is None:
            out = self.xp.empty((m, last - first), dtype=dtype, device=self.device)
        K = out[:m, :]
        if self._triangle is not None:
            self._copy_cached(K, start, first)
            return K
        plan = self._plan(m)
        halved = self.symmetric and (start, stop) == (first, last)

        def task(i):
            rows = slice(i, min(i + plan.row_tile, m))
            left = self._left(start + rows.start, start + rows.stop)
            tile = None
            end = first + rows.stop if halved else last
            for j in range(first, end, plan.center_tile):
                columns = slice(j, min(j + plan.center_tile, end))
                tile = self._tile(left, start + rows.start, columns, tile)
                target = slice(columns.start - first, columns.stop - first)
                K[rows, target] = self.xp.astype(tile, dtype, copy=False)

        def reflect(i):
            rows = slice(i, min(i + plan.row_tile, m))
            for j in range(0, i, plan.center_tile):
                columns = slice(j, min(j + plan.center_tile, i))
                K[columns, rows] = K[rows, columns].T

        tasks = [(i,) for i in range(0, m, plan.row_tile)]
        if halved:  # the longest rows first, so that the workers end together
            self._run(task, tasks[::-1])
            self._run(reflect, tasks[::-1])
        else:  # in order, as rows that come from elsewhere are expected
            self._run(task, tasks)
        return K

    def _copy_cached(self, out, start, first):
        """Write rows from `start` on and columns from `first` on to `out`."""
        last = first + out.shape[1]

        def task(rows, columns, K, transposed):
            K = K.T if transposed else K
            begin, end = max(columns.start, first), min(columns.stop, last)
            if begin < end:
                part = K[:, begin - columns.start : end - columns.start]
                part = self.xp.astype(part, out.dtype, copy=False)
                out[rows, begin - first : end - first] = part

        self._run(task, self._cached_parts(start, start + out.shape[0]))

    def gram_rows(self, budget=None):
        """Return how many rows of K(X, Z) fit into `budget` bytes in float64.

        None: the memory of the tiles. `gram` holds as many, or with weights or a
        `transform` twice as many.
        """
        budget = self._budget if budget is None else budget
        return int(min(max(budget // (8 * self.shape[1]), 16), max(self.shape[0], 1)))

    def gram(self, T, weights=None, *, transform=None):
        """Return C' W C and C' W T in float64, C = K(X, Z).

        Summing in float64 is what keeps C' W C positive definite: its eigenvalues are
        the squares of those of C. Costs m p^2 multiply-adds beside the kernel.

        Parameters
        ----------
        T : array of shape (m, l)
            In float64.
        weights : array of shape (m,), default=None
            Diagonal of W, not negative, in float64.
        transform : array of shape (p, r), default=None
            Take C = K(X, Z) @ transform, which costs another m p r.

        Returns
        -------
        gram : array of shape (p, p), or (r, r)
        cross : array of shape (p, l), or (r, l)
        """
        xp = self.xp
        m = self.shape[0]
        if weights is not None and bool(xp.all(weights == 1)):
            weights = None
        size = self.shape[1] if transform is None else transform.shape[1]
        options = {"dtype": xp.float64, "device": self.device}
        G = xp.zeros((size, size), **options)
        c = xp.zeros((size, T.shape[1]), **options)
        n_rows = self.gram_rows()
        # One buffer: touching new memory takes as long as computing what goes there.
        buffer = None
        if self._matrix is None:
            buffer = xp.empty((n_rows, self.shape[1]), **options)
        for i in range(0, m, n_rows):
            end = min(i + n_rows, m)
            C = self.block(i, end, dtype=xp.float64, out=buffer)
            if transform is not None:
                C = self._transformed(C, transform)
            T_b = T[i:end, :]
            if weights is not None:
                root = xp.sqrt(weights[i:end])[:, None]
                C, T_b = C * root, T_b * root
            self._add_gram(G, c, C, T_b)
        if self._threaded:  # `_add_gram` filled the lower triangle
            G = np.tril(G) + np.tril(G, -1).T
        return G, c

    def _transformed(self, C, transform):
        if not self._threaded:
            return C @ transform
        out = self.xp.empty((C.shape[0], transform.shape[1]), dtype=transform.dtype)

        def task(i):
            np.matmul(C[i : i + 512, :], transform, out=out[i : i + 512, :])

        self._run(task, [(i,) for i in range(0, C.shape[0], 512)])
        return out

    def _add_gram(self, G, c, C, T):
        """Add C' C to G, on threads only to its lower triangle, and C' T to c."""
        if not self._threaded:
            G += C.T @ C
            c += C.T @ T
            return

        def task(rows, columns):
            G[rows, columns] += C[:, rows].T @ C[:, columns]
            if rows == columns:
                c[rows, :] += C[:, rows].T @ T

        # Wide panels are fast; as many as workers at least, so that they end together.
        width = max(min(512, -(-len(G) // self.n_workers)), 64)
        panels = [slice(i, min(i + width, len(G))) for i in range(0, len(G), width)]
        tasks = [(a, b) for i, a in enumerate(panels) for b in panels[:i]]
        # On the diagonal half the work suffices: these fill up at the end.
        self._run(task, tasks + [(a, a) for a in panels])

    def normal_product(self, V, targets=None, weights=None):
        """Return K' W (K V - targets), K = K(X, Z), in float64.

        One pass: a block of rows is computed (or read) once and used twice. Both
        products are in float64, whatever the type of K: coefficients of centers that
        are nearly dependent are large and cancel.

        Parameters
        ----------
        V : array of shape (p, l)
            In float64, as `targets` and `weights`.
        targets : array of shape (m, l), default=None
            None: zero.
        weights : array of shape (m,), default=None
            Diagonal of W; None: ones.
        """
        xp = self.xp
        m, p = self.shape
        n_rows = max(-(-m // self.n_workers), 1)
        if self._threaded:  # as many as stay in a core's cache between the products
            n_rows = min(n_rows, max(int(2e6 // (8 * p)), 16))
        else:
            row_bytes = 8 * p + 5 * self._right.shape[1] * self.itemsize
            n_rows = min(n_rows, max(int(0.5 * self._budget // row_bytes), 16))
        parts = [
            xp.zeros((p, V.shape[1]), dtype=xp.float64, device=self.device)
            for _ in range(self.n_workers)
        ]
        starts = range(0, m, n_rows)

        def task(part):
            for i in starts[part :: self.n_workers]:
                rows = slice(i, min(i + n_rows, m))
                K = xp.astype(self._whole_rows(rows), xp.float64, copy=False)
                U = K @ V if targets is None else K @ V - targets[rows, :]
                U = U if weights is None else U * weights[rows, None]
                # U' K reads K along its rows, K' U would not.
                parts[part][...] += (U.T @ K).T

        self._run(task, [(part,) for part in range(self.n_workers)])
        return _sum(parts)

    def _whole_rows(self, rows):
        """Return rows of K(X, Z), computed in this thread."""
        if self._matrix is not None:
            return self._matrix[rows, :]
        shape = (rows.stop - rows.start, self.shape[1])
        K = self.xp.empty(shape, dtype=self.dtype, device=self.device)
        left = self._left(rows.start, rows.stop)
        width = 1024 if self._threaded else self._plan(shape[0]).center_tile
        tile = None
        for j in range(0, self.shape[1], width):
            columns = slice(j, min(j + width, self.shape[1]))
            tile = self._tile(left, rows.start, columns, tile)
            K[:, columns] = tile
        return K

    @property
    def cache_bytes(self):
        """Bytes that `fill_cache` takes: about half the matrix if it is symmetric.

        None for a matrix that is given. On a GPU the whole of it: a product is then one
        call, and not one for every block.
        """
        m, p = self.shape
        if self._matrix is not None:
            return 0
        if not self._keeps_triangle:
            return m * p * self.itemsize
        bounds = self._cache_bounds(_CACHE_BLOCK)
        return sum((stop - start) * stop for start, stop in bounds) * self.itemsize

    @property
    def _keeps_triangle(self):
        return self.symmetric and not on_gpu(self.xp, self.device)

    def _cache_bounds(self, size):
        """Ranges of rows of the cached blocks, each up to and with its diagonal."""
        n = self.shape[0]
        return [(i, min(i + size, n)) for i in range(0, n, size)]

    def fill_cache(self, size=_CACHE_BLOCK):
        """Compute the matrix and keep it: every later product only reads it.

        Of a symmetric matrix the lower triangle is computed and kept, in blocks of
        rows: half the flops, half the memory.

        Parameters
        ----------
        size : int, default=1024
            Rows of a block.
        """
        if self._matrix is not None or self._triangle is not None:
            return
        if not self._keeps_triangle:
            self._matrix = self.block()
            return
        bounds = self._cache_bounds(size)
        blocks = [
            self.xp.empty((stop - start, stop), dtype=self.dtype, device=self.device)
            for start, stop in bounds
        ]

        def task(i):
            start, stop = bounds[i]
            left = self._left(start, stop)
            tile = None
            for j in range(0, stop, 1024):
                columns = slice(j, min(j + 1024, stop))
                # Finished in a compact tile, then copied: a fifth faster than in place,
                # where every row of the tile lies on another page.
                tile = self._tile(left, start, columns, tile)
                blocks[i][:, columns] = tile

        # The longest rows first, so that the workers end together.
        self._run(task, [(i,) for i in range(len(blocks))][::-1])
        self._triangle, self._size = blocks, size

    def _cached_parts(self, start, stop):
        """Return what the lower triangle of K holds of rows [start:stop].

        Row r is block[r, :end] followed by the column r of the later blocks.

        Returns
        -------
        list of tuples (rows, columns, K, transposed)
            Rows from `start` on, columns, and the entries, or their transpose.
        """
        blocks, size, parts = self._triangle, self._size, []
        for i in range(start // size, -(-stop // size)):
            own = slice(max(start, i * size), min(stop, (i + 1) * size))
            rows = slice(own.start - start, own.stop - start)
            K = blocks[i][own.start - i * size : own.stop - i * size, :]
            for j in range(0, K.shape[1], 8 * size):
                columns = slice(j, min(j + 8 * size, K.shape[1]))
                parts.append((rows, columns, K[:, columns], False))
            for j in range(i + 1, len(blocks)):
                columns = slice(j * size, j * size + blocks[j].shape[0])
                parts.append((rows, columns, blocks[j][:, own], True))
        return parts

    def _cached_product(self, A, start, stop, n_kept):
        """Rows [start:stop] of K @ A from the lower triangle of a symmetric K."""
        xp, tasks = self.xp, self._cached_parts(start, stop)
        kept = xp.empty((stop - start, n_kept), dtype=self.dtype, device=self.device)
        parts = [
            xp.zeros((stop - start, A.shape[1]), dtype=self.dtype, device=self.device)
            for _ in range(self.n_workers)
        ]

        def task(part):
            for rows, columns, K, transposed in tasks[part :: self.n_workers]:
                if transposed:  # A' K reads K along its rows, K' A would not
                    parts[part][rows, :] += (A[columns, :].T @ K).T
                else:
                    parts[part][rows, :] += K @ A[columns, :]
                if columns.start < n_kept:
                    end = min(columns.stop, n_kept)
                    K = K.T if transposed else K
                    kept[rows, columns.start : end] = K[:, : end - columns.start]

        self._run(task, [(part,) for part in range(self.n_workers)])
        return _sum(parts), kept

    def _plan(self, m):
        sizes = max(m, 1), self.shape[1], self._right.shape[1], self.itemsize
        if not self._threaded:
            return BlockPlan.of_library(*sizes, self._budget)
        return BlockPlan.make(*sizes, self.n_workers, self._budget)

    def _left(self, start, stop):
        return self.kernel.left(self.encoded_rows(start, stop))

    def encoded_rows(self, start, stop):
        """Return a range of the rows, encoded."""
        if self._encoded is not None:
            return self._encoded[start:stop, :]
        rows = self.xp.astype(self._rows[start:stop, :], self.dtype, copy=False)
        return self.kernel.encode(rows, **self._frame)

    def _tile(self, left, start, columns, out):
        """Return K of the encoded rows from `start` on and a range of centers."""
        m, width = left.shape[0], columns.stop - columns.start
        if out is not None and tuple(out.shape) != (m, width):
            out = None
        tile = self.kernel.evaluate(self.xp, left, self._right[columns, :], out)
        if self._first is not None:
            start += self._first
            if start < columns.stop and columns.start < start + m:
                tile = self._with_exact_diagonal(tile, start, columns)
        return tile

    def _with_exact_diagonal(self, tile, start, columns):
        xp = self.xp
        rows = xp.arange(start, start + tile.shape[0], device=self.device)
        cols = xp.arange(columns.start, columns.stop, device=self.device)
        values = self._diagonal[columns]
        return xp.where(rows[:, None] == cols[None, :], values[None, :], tile)

    def _run(self, task, arguments):
        run_on_threads(self._pool, task, arguments)


def _sum(parts):
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total
