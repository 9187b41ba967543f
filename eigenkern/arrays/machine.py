"""One model of the machine: the constants about hardware, with their evidence.

Decisions about time and memory use it: how large a tile is, whether a kernel matrix is
cached, whether a factorization is cheaper than iterating, how often a gradient is
projected. They choose between ways to the same result. Memory limits of a single
function are defined next to it.
"""

from dataclasses import dataclass

from .devices import on_gpu


@dataclass(frozen=True)
class Machine:
    """Rates of a processor.

    Attributes
    ----------
    product : float
        Flop/s of one thread in large matrix products in float32; twice that of float64.
    function : float
        Seconds of one thread for one value of a kernel's function in float32; twice
        that in float64.
    convert : float
        Seconds of one thread to convert one value to float64.
    read, read_one, touch : float
        Bytes/s at which all threads, or one, read memory, and at which memory is used
        for the first time if that is not measured (`memory.touch_rate`).
    tile_bytes : float
        Bytes that the tiles of one thread may take.
    filling_work : float
        Multiply-adds in float32 that take 20 times as long as the fixed cost of a step,
        a product with tiles of 64 x 64; half as many in float64.
    narrow_product_work : float
        A multiply-add in a product with few columns takes as long as this many in a
        large product, because each number of the matrix is read for few columns only.
    """

    product: float
    function: float
    convert: float
    read: float
    read_one: float
    touch: float
    tile_bytes: float
    filling_work: float
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

        It takes p^3 / 6, at a third of the rate of a large product in float32 (float64
        halves the rate, and a factor reaches two thirds of that): as long as p^3 / 2 in
        float32. Decisions assume twice that.
        """
        return 1.0 * p**3


def machine_of(operator):
    """Return the machine that an object with `xp` and `device` computes on."""
    return GPU if on_gpu(operator.xp, operator.device) else CPU


# Measured on two cores of an AMD EPYC (2.6 GHz, AVX-512) and of an Intel Xeon, NumPy
# 2.4 with OpenBLAS: 70 to 200 Gflop/s per thread; exp 0.45 ns, square root and division
# the same again; 8 to 12 GB/s; first use of memory 0.3 to 15 GB/s; a step's fixed cost
# (benchmarks/filling_work.py).
CPU = Machine(
    product=80e9,
    function=1.25e-9,
    convert=0.6e-9,
    read=10e9,
    read_one=5.3e9,
    touch=1.5e9,
    tile_bytes=32e6,
    filling_work=6e7,
    narrow_product_work=20,
)
# Measured on an H200 (benchmarks/gpu.py product, benchmarks/filling_work.py); `convert`
# was not. A tile takes one library call each for the product, the function and the
# product with A; tiles twice or 16 times as large save at most 10 % of the time.
GPU = Machine(
    product=52e12,
    function=5e-12,
    convert=1e-12,
    read=4e12,
    read_one=4e12,
    touch=4e12,
    tile_bytes=512e6,
    filling_work=2e11,
    narrow_product_work=20,
)

# Rows and centers of a tile on the CPU. This shape is fast for any number of features;
# tall tiles reuse the packed centers; tiles too small for BLAS cost a factor of two
# (benchmarks/kernel_product.py).
ROW_TILE, CENTER_TILE = 1024, 512
# Bytes that stay in a core's cache.
CORE_CACHE_BYTES = 2e6
# Least work for each thread that shares it, in seconds of one thread. Waking a thread
# and waiting for it takes 0.05 ms; next to another process 3 ms, a slice of the
# scheduler.
SHARED_SECONDS = 0.5e-3
# Rows of a block of a cached triangle: fewer make products slow, more give the workers
# unequal shares.
TRIANGLE_ROWS = 1024
# Bytes of a matrix to cache from which the rate of first use of memory is measured, in
# 50 ms: computing the matrix takes tenths of a second, the first use up to a second.
MEASURED_TOUCH_BYTES = 256e6
# Random features: bytes of frequencies that are drawn at a time for a product, and
# frequencies that are multiplied at once, because narrow products are slow.
FREQUENCY_GROUP_BYTES, FREQUENCY_SLAB = 32e6, 512
# Bytes of coefficients, or of tiles, from which gradients are computed at a time.
GRADIENT_BYTES = 256e6
# Gradients by signs, feature by feature: most rows, and most numbers, of a tile. With
# tiles of 256 x 256, which would suit a core's cache, two threads wait for each other
# between NumPy calls and take twice as long; 512 x 512 takes up to a fifth longer.
SIGNED_ROWS, SIGNED_TILE = 1024, 2**18
# Random features: most numbers, and most rows, of a tile. It stays in a core's cache,
# and is so large that threads seldom wait for each other between NumPy calls. Last, the
# most numbers without threads, as on a GPU.
WAVE_TILE, WAVE_TILE_ROWS, WAVE_TILE_UNTHREADED = 2**18, 8192, 2**24
# Shapley values: numbers of a tile, of which four stay in a core's cache. 100 rows of
# 20 columns took 1.2 s with 10 000 centers; 1.8 s with 2^14, 2.0 s with 2^18.
SHAPLEY_TILE = 2**16
# Up to this many numbers are too little work to share: the losses of 7300 rows in ten
# columns took 0.34 ms on one thread and 0.45 ms on two.
WAVE_TILE_ALONE = 2**17
# Most bytes of encoded rows that are sent to several devices at a time, and of
# page-locked memory that rows pass through on their way to a GPU.
SENT_BYTES, PINNED_BYTES = 256e6, 256e6
