"""The memory of products: how they are cut into tiles, whether matrices are cached."""

from dataclasses import dataclass

from ..arrays import memory
from ..arrays.array import is_numpy
from ..arrays.devices import on_gpu
from ..arrays.machine import CENTER_TILE, MEASURED_TOUCH_BYTES, ROW_TILE, machine_of
from ..arrays.threads import n_blas_threads, n_cores

# Share of the free memory that kernel caches may take. The rest is for other arrays of
# the fit (EigenPro 2, 12 features: 58 MB with a matrix of 18 MB, 98 MB with 72 MB) and
# for other processes, a margin that was not measured.
_CACHE_SHARE = 0.7
# Bytes of a block of rows, or of a part of a path: thousands of rows for 1000 centers,
# enough for fast products, and little compared with the matrices.
BLOCK_BYTES = 64e6


@dataclass(frozen=True)
class BlockPlan:
    """How a product is cut into tiles, and the memory that it takes.

    With w workers, tiles of shape (a, b) and encoded rows of width e, a plan has ::

        w a (4 b + 5 e) itemsize <= budget

    for a tile, the kernel's temporaries, and the tile's rows. The result takes memory
    in addition.

    Attributes
    ----------
    row_tile, center_tile : int
        Shape (a, b) of a tile.
    n_parts : int
        Ranges of centers with sums of their own, so that few rows occupy all workers.
    n_workers : int
        Threads w.
    bytes : int
        The left-hand side.
    """

    row_tile: int
    center_tile: int
    n_parts: int
    n_workers: int
    bytes: int

    @classmethod
    def make(cls, m, p, width, itemsize, n_workers, budget):
        """Return the fastest plan within `budget` bytes, or else the smallest plan.

        Tiles have the CPU's best shape, or are lower if few rows are to be shared.
        """
        row_tile, center_tile = min(m, ROW_TILE), min(p, CENTER_TILE)
        n_row_tiles = -(-m // row_tile)
        if n_row_tiles < n_workers <= 2 * m:
            row_tile = max(-(-m // n_workers), min(m, 256))
            n_row_tiles = -(-m // row_tile)
        n_parts = 1
        if n_row_tiles < n_workers:
            n_parts = max(1, min(-(-n_workers // n_row_tiles), p // center_tile))
        row_bytes = n_workers * (4 * center_tile + 5 * width) * itemsize
        row_tile = max(min(row_tile, int(budget // row_bytes)), 1)
        n_row_tiles = -(-m // row_tile)
        if n_row_tiles >= n_workers:  # equally many for every worker, of equal height
            n_row_tiles = -(-n_row_tiles // n_workers) * n_workers
            row_tile = -(-m // n_row_tiles)
        return cls(row_tile, center_tile, n_parts, n_workers, row_tile * row_bytes)

    @classmethod
    def of_library(cls, m, p, width, itemsize, budget):
        """Return a plan of tiles whose functions the array library runs in parallel.

        They are twice as wide as high. Each, with its temporaries and rows, takes at
        most `budget` bytes, but has at least 16 rows.
        """
        size = max(int(budget // (4 * itemsize)), 1)
        highest = max(int(budget // (5 * max(width, 1) * itemsize)), 16)
        center_tile = min(p, max(int((2 * size) ** 0.5), 1))
        row_tile = min(m, max(size // center_tile, 16), highest)
        center_tile = min(p, max(size // row_tile, 1))
        row_bytes = max(4 * center_tile, 5 * width) * itemsize
        return cls(row_tile, center_tile, 1, 1, row_tile * row_bytes)


def cache_budget(cache_size, operator):
    """Bytes that kernel caches may take.

    Parameters
    ----------
    cache_size : "auto" or float
        MB. "auto": 70 % of the memory that is free now, cgroup limits included. A
        process that is allowed only a share of the cores, as a worker of
        ``GridSearchCV(n_jobs=...)`` is, takes only that share.
    operator : object with xp and device
        Where the memory is.
    """
    if cache_size != "auto":
        return cache_size * 1e6
    share = min(1.0, n_blas_threads() / n_cores()) if is_numpy(operator.xp) else 1.0
    return _CACHE_SHARE * share * memory.available(operator.xp, operator.device)


def cache_pays(n_products, n_features, operator):
    """Whether computing a kernel matrix once beats computing it for every product.

    Caching costs computing it once, the first use of the memory, and reading it for
    every product.

    Parameters
    ----------
    n_products : int
        Products to come.
    n_features : int
    operator : Matrix
    """
    machine, size = machine_of(operator), operator.itemsize
    width = operator.feature_work * n_features
    compute = machine.kernel_seconds(width, size, operator.n_workers)
    read, touch = size / machine.read, size / _touch_rate(operator)
    once = compute + touch
    if operator.symmetric:  # half of it is computed and stored
        once /= 2
    return once + n_products * read < n_products * compute


def _touch_rate(operator):
    """Bytes/s at which an operator's threads use new memory for its matrix."""
    m, p = operator.shape
    n_bytes = m * p * operator.itemsize
    if operator.symmetric:
        n_bytes /= 2
    if n_bytes < MEASURED_TOUCH_BYTES or on_gpu(operator.xp, operator.device):
        return machine_of(operator).touch
    return memory.touch_rate(n_bytes) * operator.n_workers


def blocks(n, width, *, least=16):
    """Yield slices that cover n rows (or candidates), each of `BLOCK_BYTES`.

    Parameters
    ----------
    n : int
    width : int
        Numbers in float64 per row.
    least : int, default=16
        Fewest rows of a block.
    """
    size = max(int(BLOCK_BYTES // (8 * width)), least)
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))
