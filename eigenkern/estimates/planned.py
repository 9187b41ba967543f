"""A planned fit, and the rates of this machine that determine its costs."""

import math
import time
from copy import copy
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from ..backend import memory
from ..backend.devices import compute_devices
from ..backend.linalg import large_product
from ..backend.machine import CPU, MEASURED_TOUCH_BYTES
from ..backend.threads import n_blas_threads
from ..estimators.base import is_precomputed
from ..operators.given import GivenMatrix
from ..operators.tiled import TiledKernel
from ..problems.data import Data
from ..problems.parameters import make_kernel
from ..problems.precision import rounding
from .result import Estimate

# Costs depend on the data; benchmarks/estimates.py shows the accuracy of estimates.

# Seconds to hash a row, and bytes/s of its content, on one thread. In single precision,
# a row of 8 features takes 0.5 us and a row of 784 takes 5.4 us. A row in double
# precision is hashed in single precision as well.
_HASH_SECONDS, _HASH_BYTE_RATE = 0.5e-6, 0.65e9
# Bytes that a fit adds to a process in addition to its arrays: code pages of NumPy,
# SciPy and BLAS, and the panels that each BLAS thread packs. They are medians of six
# fits on cpusmall, a9a and covtype (/proc/self/smaps): 2 to 4 MB, and 1 to 8 MB per
# thread.
_CODE_BYTES, _PANEL_BYTES = 3e6, 4e6

# Seconds per entry of a kernel matrix on all threads, measured once per process for
# every kernel, number of features and data type.
_measured_entry_seconds = {}


@cache
def _product_seconds():
    """Return the seconds of a multiply-add in large float64 products, cached."""
    A = np.ones((1024, 1024))
    return _best_seconds(lambda: large_product(A, A)) / 1024**3


def _best_seconds(function):
    """Return the least time of up to five calls, within 0.1 s."""
    begin, seconds = time.perf_counter(), []
    while not seconds or (len(seconds) < 5 and time.perf_counter() - begin < 0.1):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


@dataclass
class PlannedFit:
    """A planned fit: what is known about it, and its costs so far."""

    estimator: object
    n: int
    d: int
    n_outputs: int
    dtype: str
    #: Data type of the kernel's values; None: that of the rows.
    kernel_dtype: str | None = None
    flops: float = 0.0
    seconds: float = 0.0
    held: dict = field(default_factory=dict)
    peak: float = 0.0

    def __post_init__(self):
        e = self.estimator
        self.precomputed = is_precomputed(e)
        if self.kernel_dtype is None or self.precomputed:
            self.kernel_dtype = self.dtype
        self.itemsize = np.dtype(self.dtype).itemsize
        self.kernel_itemsize = np.dtype(self.kernel_dtype).itemsize
        self.d = self.n if self.precomputed else self.d
        X = np.broadcast_to(np.zeros((), self.dtype), (self.n, self.d))
        targets = np.broadcast_to(0.0, (self.n, self.n_outputs))
        rng = np.random.RandomState(0)
        groups = np.zeros(1) if hasattr(e, "class_weight") else None
        self.data = Data(X, targets, targets, None, rng, groups, None, self.precomputed)
        self.xp, self.device = compute_devices(e.device, X)[0]
        self.n_threads = n_blas_threads()
        if self.precomputed or not hasattr(e, "kernel"):
            return
        # A few random rows, at most 80 MB, to measure the kernel on; they are not
        # negative, as kernels of users may require.
        n_rows = max(min(1024 if self.d > 100 else 2048, 10**7 // self.d), 64)
        sample = rng.random_sample((n_rows, self.d)).astype(self.kernel_dtype)
        word = e.bandwidth if not isinstance(e.bandwidth, str) else self.d**0.5
        self._kernel = make_kernel(e.kernel, word, sample, rng)
        self._sample = sample[:2]
        key = repr(e.kernel), self.d, self.kernel_dtype
        if key not in _measured_entry_seconds:
            K, ones = TiledKernel(self._kernel, sample), np.ones_like(sample[:, :1])
            seconds = _best_seconds(lambda: K @ ones)
            _measured_entry_seconds[key] = seconds / n_rows**2
        self._entry_seconds = _measured_entry_seconds[key]

    def n_held_out(self, holds_out):
        """Return how many rows are held out: 0 unless `holds_out`."""
        fraction = self.estimator.validation_fraction if holds_out else 0.0
        return math.ceil(fraction * self.n)

    def matrix(self, m, p, *, symmetric=False):
        """Return a dummy kernel matrix of shape (m, p)."""
        if self.precomputed:
            return GivenMatrix(np.broadcast_to(np.zeros((), self.dtype), (m, p)))
        made = copy(TiledKernel(self._kernel, self._sample))
        made.shape, made.symmetric = (m, p), symmetric
        return made

    def drowns(self, alpha, n_columns):
        """Whether float32 rounding drowns the penalty of a fit that iterates."""
        if self.precomputed or self.kernel_itemsize == 8:
            return False
        size = float(np.mean(self._kernel.diagonal(self._sample)))
        return alpha <= rounding(np, np.float32, n_columns) * size

    # Time

    def products(self, multiply_adds, itemsize=8):
        """Add large matrix products."""
        self.flops += 2.0 * multiply_adds
        self.seconds += multiply_adds * _product_seconds() * itemsize / 8

    def entries(self, count, n_columns=0):
        """Add entries of a kernel matrix, and products with them."""
        if self.precomputed:
            self.reads(count, n_columns)
            return
        self.flops += count * (2.0 * self.d + 2.0)
        self.seconds += count * self._entry_seconds
        self.products(count * n_columns, self.kernel_itemsize)

    def reads(self, count, n_columns=0, itemsize=None):
        """Add the reading of a matrix, or a product with it if that takes longer."""
        itemsize = self.kernel_itemsize if itemsize is None else itemsize
        product = count * n_columns * _product_seconds() * itemsize / 8
        self.flops += 2.0 * count * n_columns
        self.seconds += max(count * itemsize / CPU.read, product)

    def touches(self, n_bytes):
        """Add the first use of memory."""
        rate = CPU.touch
        if n_bytes >= MEASURED_TOUCH_BYTES:
            rate = memory.touch_rate(n_bytes) * self.n_threads
        self.seconds += n_bytes / rate

    def keeps(self, n_bytes):
        """Add a kernel matrix that is computed once and kept."""
        self.holds("kernel matrix", n_bytes)
        self.entries(n_bytes / self.kernel_itemsize)
        self.touches(n_bytes)

    def finds_equal_rows(self):
        """Add the time to find equal rows."""
        if not self.precomputed:
            n_bytes = self.d * (4 if self.itemsize == 4 else 12)
            self.seconds += self.n * (_HASH_SECONDS + n_bytes / _HASH_BYTE_RATE)

    # Memory

    def holds(self, name, n_bytes):
        """Add memory that is held from here on."""
        self.held[name] = self.held.get(name, 0.0) + n_bytes
        self.peak = max(self.peak, sum(self.held.values()))

    def uses(self, n_bytes):
        """Add memory that is in use for a while, on top of what is held."""
        self.peak = max(self.peak, sum(self.held.values()) + n_bytes)

    def tiles(self, operator, m=None):
        """Return the bytes that the tiles of a product take.

        The operator's plan allows for more: half of it was seen in use in float32, and
        a quarter in float64.
        """
        if self.precomputed:
            return 0
        m = operator.shape[0] if m is None else m
        return operator.plan(m).bytes * 2 / self.kernel_itemsize

    def result(self, method, *, n_centers=None, batch_size=None, n_epochs=1):
        """Return the `Estimate`."""
        self.peak += _CODE_BYTES + _PANEL_BYTES * self.n_threads
        names = "data copy", "centers", "kernel matrix", "preconditioner"
        held = {name: self.held.get(name, 0.0) for name in names}
        held["workspace"] = self.peak - sum(held.values())
        found = {name: n_bytes / 1e6 for name, n_bytes in held.items()}
        found["total"] = self.peak / 1e6
        return Estimate(
            type(self.estimator).__name__,
            self.n,
            self.d,
            self.n_outputs,
            self.dtype,
            method,
            None if n_centers is None else int(n_centers),
            None if batch_size is None else int(batch_size),
            int(n_epochs),
            found,
            self.flops,
            self.seconds,
        )
