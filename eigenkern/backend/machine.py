"""One model of the machine: the constants about hardware, with their evidence.

Decisions that cost time or memory are made by it: how large a tile is, whether a kernel
matrix is cached, whether a factorization is cheaper than iterating, how often a
gradient is projected. They choose between ways to the same result. Bounds of the memory
that one function takes stand beside it.
"""

from dataclasses import dataclass

from .devices import on_gpu


@dataclass(frozen=True)
class Machine:
    """Rates of a processor.

    Attributes
    ----------
    product : float
        Flop/s of a large matrix product in float32, of one thread; half in float64.
    function : float
        Seconds for one value of a kernel's function in float32, of one thread; twice
        that in float64.
    convert : float
        Seconds to bring one value to float64, of one thread.
    read, read_one, touch : float
        Bytes/s to read memory, of all threads and of one, and to use memory for the
        first time, where that is not measured (`memory.touch_rate`).
    tile_bytes : float
        Bytes that the tiles of one thread may take.
    row_tile, center_tile : int
        Rows and centers of a tile.
    core_cache_bytes : float
        What a thread finds again in its cache.
    narrow_product_work : float
        A multiply-add of a product with few columns takes as long as so many of a large
        one: each number of the matrix is read for a few columns only.
    """

    product: float
    function: float
    convert: float
    read: float
    read_one: float
    touch: float
    tile_bytes: float
    row_tile: int
    center_tile: int
    core_cache_bytes: float
    narrow_product_work: float

    def product_seconds(self, n_multiply_adds, itemsize, n_threads):
        """Return the seconds of large matrix products."""
        return 2.0 * n_multiply_adds * itemsize / 4 / (self.product * n_threads)

    def kernel_seconds(self, n_features, itemsize, n_threads):
        """Return the seconds of one entry of a kernel matrix."""
        function = self.function * itemsize / 4 / n_threads
        return self.product_seconds(n_features, itemsize, n_threads) + function

    @property
    def function_work(self):
        """Multiply-adds in the time of one value of a kernel's function."""
        return self.function * self.product / 2

    @property
    def factor_reading_work(self):
        """Multiply-adds in the time to read an entry of a Cholesky factor."""
        return 8 / self.read_one * self.product / 2

    def factor_work(self, p):
        """Return the multiply-adds in the time of a Cholesky factor in float64.

        It has p^3 / 6 of them, a third as fast as those of a large product in float32
        (float64 halves the rate, and a factor has two thirds of that), which makes
        p^3 / 2. Decisions count twice that.
        """
        return 1.0 * p**3


def machine_of(operator):
    """Return the machine that an object with `xp` and `device` computes on."""
    return GPU if on_gpu(operator.xp, operator.device) else CPU


# Two cores of an AMD EPYC (2.6 GHz, AVX-512) and of an Intel Xeon, NumPy 2.4 with
# OpenBLAS: 70 to 200 Gflop/s a thread; exp 0.45 ns and its square root and division as
# much again; 8 to 12 GB/s; first use of memory 0.3 to 15 GB/s. Tiles of 1024 x 512 are
# fast for any number of features; tall ones use the packed centers again; tiles too
# small for BLAS cost a factor of two (benchmarks/kernel_product.py).
CPU = Machine(
    product=80e9,
    function=1.25e-9,
    convert=0.6e-9,
    read=10e9,
    read_one=5.3e9,
    touch=1.5e9,
    tile_bytes=32e6,
    row_tile=1024,
    center_tile=512,
    core_cache_bytes=2e6,
    narrow_product_work=20,
)
# From data sheets of an A100, not measured. A tile is one call of the library for each
# of the product, the function and the product by A: it must be large beside their
# launch.
GPU = Machine(
    product=40e12,
    function=4e-12,
    convert=1e-12,
    read=4e12,
    read_one=4e12,
    touch=4e12,
    tile_bytes=512e6,
    row_tile=0,
    center_tile=0,
    core_cache_bytes=0.0,
    narrow_product_work=20,
)

# Seconds of work, of one thread, for each that shares it. To wake a thread and to wait
# for it takes 0.05 ms, and beside another process 3 ms: a slice of the scheduler.
SHARED_SECONDS = 0.5e-3
# Kernel matrices that are cached. Rows of a block of the triangle: fewer make products
# slow, more leave the workers unequal shares.
TRIANGLE_ROWS = 1024
# Bytes of one beyond which the rate of its memory's first use is measured, in 50 ms:
# computing it takes tenths of a second, and that use up to a second.
MEASURED_TOUCH_BYTES = 256e6
# Random features. Bytes of frequencies that a product draws at a time, and frequencies
# that are multiplied together: narrow products are slow.
FREQUENCY_GROUP_BYTES, FREQUENCY_SLAB = 32e6, 512
# Bytes of the coefficients, or tiles, of which gradients are computed at a time.
GRADIENT_BYTES = 256e6
# Rows and numbers of a tile whose signs are taken feature by feature. In tiles of 256 x
# 256, which a core's cache would like, two threads wait for each other between calls of
# NumPy and take twice as long; 512 x 512 takes up to a fifth longer.
SIGNED_ROWS, SIGNED_TILE = 1024, 2**18
# Numbers and rows of a tile, at most: it stays in a core's cache, and is large enough
# that the threads seldom wait for each other between two calls of NumPy. And numbers
# where there are no threads, as on a GPU.
WAVE_TILE, WAVE_TILE_ROWS, WAVE_TILE_UNTHREADED = 2**18, 8192, 2**24
# As many numbers are no work for threads: the losses of 7300 rows in ten columns took
# 0.34 ms on one and 0.45 ms on two.
WAVE_TILE_ALONE = 2**17
# Bytes of encoded rows that are sent to several devices at a time, and of page-locked
# memory that rows pass through on their way to a GPU, at most.
SENT_BYTES, PINNED_BYTES = 256e6, 256e6
