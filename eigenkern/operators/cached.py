"""Kernel matrices that are computed once, and cached in memory."""

from ..arrays import memory
from ..arrays.array import slices
from ..arrays.devices import on_gpu
from ..arrays.machine import CPU, TRIANGLE_ROWS
from ..arrays.threads import run_on_threads
from .blocks import cache_budget, cache_pays
from .distributed import DaskMatrix, cached_on_workers
from .matrix import GivenMatrix, Matrix, sum_of


def cached(operators, cache_size, n_products, n_features):
    """Return operators whose matrices are computed once, if they fit and that pays.

    Of a symmetric matrix only the lower triangle is computed and stored: half the
    flops, half the memory. A GPU stores the whole matrix: a product is then one call
    instead of one per block.

    Operators that are used more often come first; `n_products` are to come, and
    `cache_size` ("auto" or MB) is for all of them. Also returns the MB of the matrices
    that were computed. Raises a ValueError if `cache_size` allows a matrix that the
    free memory does not hold.
    """
    if isinstance(operators[0], DaskMatrix):
        return cached_on_workers(operators, cache_size, n_products, n_features)
    sizes = cached_bytes(operators, cache_size, n_products, n_features)
    return keep(operators, sizes, cache_size)


def keep(operators, sizes, cache_size):
    """Return `cached` for known `cached_bytes`."""
    found = list(operators)
    for i, (operator, size) in enumerate(zip(operators, sizes, strict=True)):
        if not size or operator.in_memory:  # not worth it, or in memory already
            continue
        check_free(size, operator, cache_size)
        if _is_halved(operator):
            found[i] = CachedTriangle(operator)
        else:
            found[i] = GivenMatrix(operator.block(), operator)
    return found, sum(size or 0 for size in sizes) / 1e6


def check_free(size, operator, cache_size):
    """Raise an error unless free memory holds a kernel matrix of `size` bytes."""
    xp, device = operator.xp, operator.device
    if cache_size == "auto" and size > memory.available(xp, device):
        raise MemoryError(f"a kernel matrix takes {size / 1e9:.2g} GB")
    needs = f"cache_size={cache_size} MB allows a kernel matrix of "
    needs += f"{size / 1e6:.0f} MB"
    remedy = "pass cache_size='auto' or a smaller number"
    memory.check(size, xp, device, needs, remedy)


def cached_bytes(operators, cache_size, n_products, n_features):
    """Return the bytes of each matrix that `cached` computes, and None for the others.

    The parameters are those of `cached`; a matrix already in memory takes 0.
    """

    def pays(operator):
        return cache_size != "auto" or (
            not operator.factored and cache_pays(n_products, n_features, operator)
        )

    budget, sizes = cache_budget(cache_size, operators[0]), []
    for operator in operators:
        size = _size(operator)
        sizes.append(size if size <= budget and pays(operator) else None)
        budget -= sizes[-1] or 0
    return sizes


def fit_in_memory(operators, n_bytes):
    """Whether free memory holds the matrices of operators and `n_bytes` more."""
    needed = sum(map(_size, operators)) + n_bytes
    return needed <= memory.available(operators[0].xp, operators[0].device)


def _size(operator):
    """Return the bytes that caching a matrix takes; infinite if that is impossible."""
    m, p = operator.shape
    if operator.in_memory or isinstance(operator, CachedTriangle):
        return 0
    if not operator.can_be_cached:
        return float("inf")
    if not _is_halved(operator):
        return m * p * operator.itemsize
    blocks = slices(m, TRIANGLE_ROWS)
    n_entries = sum((rows.stop - rows.start) * rows.stop for rows in blocks)
    return n_entries * operator.itemsize


def _is_halved(operator):
    return operator.symmetric and not on_gpu(operator.xp, operator.device)


# Tried: 16-bit fixed point filled memory 0.8 s faster (20000 rows of MNIST), but an
# epoch took 0.43 s instead of 0.38 (computed anew 3.2 s).
class CachedTriangle(Matrix):
    """The lower triangle of a symmetric kernel matrix, in blocks of `size` rows.

    The source, a `TiledKernel`, computes the entries.
    """

    symmetric = True

    def __init__(self, source, size=TRIANGLE_ROWS):
        self._describe_as(source, "shape", "pool", "n_workers", "budget")
        self._source, self._size = source, size
        options = {"dtype": self.dtype, "device": self.device}
        # Each block ends with the diagonal.
        self._blocks = [
            self.xp.empty((rows.stop - rows.start, rows.stop), **options)
            for rows in slices(self.shape[0], size)
        ]
        # The longest rows first, so that the workers finish together.
        tasks = [(K, i * size) for i, K in enumerate(self._blocks)][::-1]
        run_on_threads(self.pool, source.write_rows, tasks)

    def rows(self, X):
        """Return K(X, Z) of other rows, which is not cached."""
        return self._source.rows(X)

    def product_and_columns(self, A, start=0, stop=None, n_columns=0):
        """Return rows [start:stop] of K @ A, and of the first columns of K."""
        stop = self.shape[0] if stop is None else stop
        tasks = self._parts(start, stop)
        options = {"dtype": self.dtype, "device": self.device}
        leading = self.xp.empty((stop - start, n_columns), **options)
        # Two sums per worker: one that shares its core with others can do fewer.
        n_sums = 1 if self.pool is None else 2 * self.n_workers
        sums = [
            self.xp.zeros((stop - start, A.shape[1]), **options) for _ in range(n_sums)
        ]

        def task(part):
            for rows, columns, K, transposed in tasks[part::n_sums]:
                if transposed:  # A' K reads K along its rows, K' A would not
                    sums[part][rows, :] += (A[columns, :].T @ K).T
                else:
                    sums[part][rows, :] += K @ A[columns, :]
                if columns.start < n_columns:
                    end = min(columns.stop, n_columns)
                    K = K.T if transposed else K
                    leading[rows, columns.start : end] = K[:, : end - columns.start]

        n_entries = (stop - start) * self.shape[1]
        seconds = max(
            n_entries * self.itemsize / CPU.read_one,
            CPU.product_seconds(n_entries * A.shape[1], self.itemsize, 1),
        )
        run_on_threads(self.pool, task, [(i,) for i in range(n_sums)], seconds)
        return sum_of(sums), leading

    def block(self, start=0, stop=None, first=0, last=None, dtype=None, out=None):
        """Return rows [start:stop], columns [first:last] of K as an array."""
        stop, last, out = self._target(start, stop, first, last, dtype, out)

        def task(rows, columns, K, transposed):
            K = K.T if transposed else K
            begin, end = max(columns.start, first), min(columns.stop, last)
            if begin < end:
                part = K[:, begin - columns.start : end - columns.start]
                part = self.xp.astype(part, out.dtype, copy=False)
                out[rows, begin - first : end - first] = part

        seconds = (stop - start) * (last - first) * self.itemsize / CPU.read_one
        run_on_threads(self.pool, task, self._parts(start, stop), seconds)
        return out

    def write_rows(self, K, start):
        """Write rows from `start` on, copied in this thread."""
        for rows, columns, own, transposed in self._parts(start, start + K.shape[0]):
            K[rows, columns] = own.T if transposed else own

    def _parts(self, start, stop):
        """Return the parts of the lower triangle that make rows [start:stop] of K.

        Row r is row r of its block, followed by column r of the later blocks. The parts
        are tuples of rows from `start` on, columns, the entries, and whether these are
        transposed.
        """
        blocks, size, parts = self._blocks, self._size, []
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
