"""The plan of a fit: its method and sizes, what they cost, and how it is printed.

A plan is made from a `Shape`, before any number. Fits obey it, and `estimate` shows it.
"""

import time
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache
from html import escape
from typing import Any

import numpy as np
import scipy.sparse

from ..arrays import memory
from ..arrays.devices import compute_devices
from ..arrays.linalg import large_product
from ..arrays.machine import CPU, MEASURED_TOUCH_BYTES, WAVE_TILE_ALONE
from ..arrays.threads import cached_property, n_blas_threads, single_threaded_blas
from ..kernels import Kernel
from ..operators.matrix import GivenMatrix
from ..operators.sharded import kernel_operator
from ..operators.tiled import TiledKernel
from ..operators.waves import FourierBlocks
from ..rows.lazy_rows import is_lazy
from .bandwidth_choice import FACTORS, n_fitted_and_judges
from .parameters import is_auto, is_precomputed
from .sizes import rounding

# Multiply-adds of a Cholesky factor over n^3.
FACTOR_CUBES = 0.25


@dataclass(frozen=True)
class Shape:
    """What is known of a fit before any number is computed.

    Attributes
    ----------
    estimator : estimator
        Its parameters.
    X : array of shape (n, d)
        All rows, or a stand-in of that shape, library and place.
    n_outputs : int
    labels : bool
        Whether the targets are those of classes.
    kernel : Kernel or None
        Of any bandwidth; None for features and for a kernel matrix.
    n_train, n_held_out : int
        Training rows, and others that are held out.
    n_distinct : int or None
        Distinct ones among the training rows; None: all.
    given, indefinite : bool
        Whether the user gave rows to select a model on, and whether the kernel is known
        to have negative eigenvalues.
    kernel_dtype : data type
        Of the kernel's values; None: that of the rows.
    n_machines, message_seconds : int, float
        Machines that share a batch, and the seconds that a step waits for them.
    """

    estimator: Any
    X: Any
    n_outputs: int
    labels: bool
    kernel: Kernel | None = None
    n_train: int = 0
    n_held_out: int = 0
    kernel_dtype: Any = None
    n_machines: int = 1
    message_seconds: float = 0.0
    n_distinct: int | None = None
    given: bool = False
    indefinite: bool = False

    @property
    def n(self):
        return self.X.shape[0]

    @property
    def d(self):
        return self.X.shape[1]

    @property
    def precomputed(self):
        """Whether X is a kernel matrix."""
        return is_precomputed(self.estimator)

    @cached_property
    def devices(self):
        return compute_devices(self.estimator.device, self.X)

    @property
    def xp(self):
        return self.devices[0][0]

    @property
    def device(self):
        return self.devices[0][1]

    @cached_property
    def itemsize(self):
        return 4 if str(self.X.dtype).endswith("float32") else 8

    @cached_property
    def row_bytes(self):
        """Bytes of a row that a fit copies, on average: none if it is lazy."""
        if is_lazy(self.X):
            return 0
        if scipy.sparse.issparse(self.X):  # with a column's number for each entry
            return self.X.nnz / self.n * (self.itemsize + self.X.indices.itemsize)
        return self.d * self.itemsize

    @property
    def in_double(self):
        """The same fit with kernel values in double precision."""
        return replace(self, kernel_dtype=self.xp.float64)

    @cached_property
    def kernel_itemsize(self):
        if self.kernel_dtype is None or self.precomputed:
            return self.itemsize
        return self.xp.finfo(self.kernel_dtype).bits // 8

    @cached_property
    def _rows(self):
        """A few rows that stand for all, where the fit computes."""
        dtype = getattr(self.xp, f"float{8 * self.kernel_itemsize}")
        rows = np.random.RandomState(0).random_sample((2 * len(self.devices), self.d))
        return self.xp.asarray(rows, dtype=dtype, device=self.device)

    @cached_property
    def _operator(self):
        # With rows of its own, it has no diagonal to evaluate.
        return kernel_operator(self.kernel, self._rows, self.devices, self._rows)

    def matrix(self, m, p, *, symmetric=False):
        """Return a kernel matrix of shape (m, p), without its numbers."""
        if self.precomputed:
            dtype = getattr(self.xp, f"float{8 * self.itemsize}")
            zero = self.xp.zeros((1, 1), dtype=dtype, device=self.device)
            return GivenMatrix(self.xp.broadcast_to(zero, (m, p)))
        made = copy(self._operator)
        made.shape, made.symmetric = (m, p), symmetric
        return made

    def drowns(self, alpha, n_columns):
        """Whether float32 rounding drowns the penalty of a fit that iterates."""
        if self.precomputed or self.kernel_itemsize == 8:
            return False
        size = float(self.xp.mean(self.kernel.diagonal(self._rows)))
        return alpha <= rounding(self.xp, self.xp.float32, n_columns) * size


class Costs:
    """The work and the memory of a fit, added part by part.

    Parameters
    ----------
    shape : Shape
    """

    def __init__(self, shape):
        self._shape, self.n_threads = shape, n_blas_threads()
        self.flops, self._held, self.peak, self.asked = 0.0, {}, 0.0, 0.0
        # Multiply-adds in float64, entries of the kernel, bytes read with the
        # multiply-adds that hide them, bytes touched, and other seconds, those of a fit
        # to 200 rows at first; rows times frequencies of random features, and how many
        # of each there are at a time.
        self._products, self._entries, self._seconds = 0.0, 0.0, 0.01
        self._reads, self._touched = [], []
        self._waves, self.wave_sizes = 0.0, None
        #: By how much products and entries take longer than large ones.
        self.slowness = 1.0
        e = shape.estimator
        named = isinstance(getattr(e, "kernel", None), str) and not shape.precomputed
        if named and is_auto(getattr(e, "bandwidth", None)):
            self._chooses_bandwidth()

    def _chooses_bandwidth(self):
        """Add the choice on many rows; that on few is part of any fit."""
        shape, centers = self._shape, getattr(self._shape.estimator, "n_centers", None)
        p = centers if isinstance(centers, int) else None
        s, m = n_fitted_and_judges(shape.n_train, p)
        # As many factors of half of the rows as penalties are tried, and one of all: 4
        # to 9 penalties on california_housing, ijcnn1, covtype and kin8nm.
        n_tried = 8
        work = FACTOR_CUBES * (s**3 + n_tried * (s / 2) ** 3)
        work += (1 + n_tried / 2) * s * m * shape.n_outputs
        self.entries(len(FACTORS) * s * (s + m))
        self.products(len(FACTORS) * work)
        self.uses(8 * s * (2 * s + 3 * m))

    # Time

    def products(self, multiply_adds, itemsize=8):
        """Add large matrix products."""
        self.flops += 2.0 * multiply_adds
        self._products += self.slowness * multiply_adds * itemsize / 8

    def entries(self, count, n_columns=0):
        """Add entries of a kernel matrix, and products with them."""
        shape = self._shape
        if shape.precomputed:
            self.reads(count, n_columns)
            return
        self.flops += count * (2.0 * shape.d + 2.0)
        self._entries += self.slowness * count
        self.products(count * n_columns, shape.kernel_itemsize)

    def reads(self, count, n_columns=0, itemsize=None):
        """Add the reading of a matrix, or a product with it if that takes longer."""
        itemsize = self._shape.kernel_itemsize if itemsize is None else itemsize
        self.flops += 2.0 * count * n_columns
        self._reads.append((count * itemsize, count * n_columns * itemsize / 8))

    def waves(self, count, n_rows, block_size):
        """Add random features, and products with them: rows times frequencies.

        Steps evaluate `block_size` frequencies of `n_rows` rows.
        """
        shape = self._shape
        self.flops += count * (2.0 * (shape.d + 2 * shape.n_outputs) + 2.0)
        self._waves += count
        self.wave_sizes = n_rows, block_size

    def touches(self, n_bytes):
        """Add the first use of memory."""
        self._touched.append((n_bytes, 1.0))

    def takes(self, seconds, flops=0.0):
        """Add what else takes time."""
        self._seconds += seconds
        self.flops += flops

    def keeps(self, n_bytes):
        """Add a kernel matrix that is computed once and kept."""
        self.holds("kernel matrix", n_bytes)
        self.entries(n_bytes / self._shape.kernel_itemsize)
        self.touches(n_bytes)

    def includes(self, other, times=1.0):
        """Add the costs of another fit, done several times, one after the other."""
        self.flops += times * other.flops
        self._products += times * other._products
        self._entries += times * other._entries
        self._seconds += times * other._seconds
        self._waves += times * other._waves
        self.wave_sizes = other.wave_sizes or self.wave_sizes
        self._reads += [(times * size, times * work) for size, work in other._reads]
        self._touched += [(size, times * n) for size, n in other._touched]
        self.uses(other.peak)
        self.asks(other.asked)

    def finds_equal_rows(self):
        """Add the time to find equal rows, by hashes on one thread."""
        shape = self._shape
        if not shape.precomputed:
            # In single precision, a row of 8 features takes 0.5 us and a row of 784
            # takes 5.4 us. A row in double precision is hashed in single precision too.
            n_bytes = shape.d * (4 if shape.itemsize == 4 else 12)
            self.takes(shape.n * (0.5e-6 + n_bytes / 0.65e9))

    def seconds(self, product, entry, wave, *, measure_touch=True):
        """Return the time, given that of a multiply-add, an entry and a wave."""
        total = self._seconds + self._products * product + self._entries * entry
        total += self._waves * wave
        for n_bytes, multiply_adds in self._reads:
            total += max(n_bytes / CPU.read, multiply_adds * product)
        for n_bytes, times in self._touched:
            rate = CPU.touch
            if measure_touch and n_bytes >= MEASURED_TOUCH_BYTES:
                rate = memory.touch_rate(n_bytes) * self.n_threads
            total += times * n_bytes / rate
        return total

    # Memory

    def holds(self, name, n_bytes):
        """Add memory that is held from here on."""
        self._held[name] = self._held.get(name, 0.0) + n_bytes
        self.peak = max(self.peak, sum(self._held.values()))

    def uses(self, n_bytes):
        """Add memory that is in use for a while, on top of what is held."""
        self.peak = max(self.peak, sum(self._held.values()) + n_bytes)

    def asks(self, n_bytes):
        """Add memory that a fit checks to be free, on top of what is held."""
        self.asked = max(self.asked, sum(self._held.values()) + n_bytes)

    def tiles(self, operator, m=None):
        """Return the bytes that the tiles of a product take.

        The operator's plan allows for more: half of it was seen in use in float32, and
        a quarter in float64.
        """
        if not isinstance(operator, TiledKernel):
            return 0
        m = operator.shape[0] if m is None else m
        return operator.plan(m).bytes * 2 / self._shape.kernel_itemsize

    def memory(self):
        """Return MB in use at the peak, by name, and their total."""
        # A fit also adds code pages of NumPy, SciPy and BLAS to a process, and panels
        # that each BLAS thread packs: 2 to 4 MB, and 1 to 8 MB per thread, in six fits
        # on cpusmall, a9a and covtype (/proc/self/smaps).
        total = self.peak + 3e6 + 4e6 * self.n_threads
        names = "data copy", "centers", "kernel matrix", "preconditioner"
        held = {name: self._held.get(name, 0.0) for name in names}
        held["workspace"] = total - sum(held.values())
        held["total"] = total
        return {name: n_bytes / 1e6 for name, n_bytes in held.items()}

    def plan(self, method, *, n_centers=None, batch_size=None, n_epochs=1, **chosen):
        """Return the `Plan` of these costs."""
        return Plan(
            method=method,
            n_centers=None if n_centers is None else int(n_centers),
            batch_size=None if batch_size is None else int(batch_size),
            n_epochs=int(n_epochs),
            memory=self.memory(),
            flops=self.flops,
            chosen=chosen,
            shape=self._shape,
            costs=self,
        )


@dataclass(frozen=True)
class Plan:
    """How a model is computed and what that takes, as `estimate` returns it.

    Attributes
    ----------
    estimator : str
        Name of its class.
    n_samples, n_features, n_outputs : int
    dtype : str
    method : str
        How the model is computed: "direct", the name of an algorithm, "factor", "path",
        "logistic" (Newton steps), "iterations".
    n_centers : int or None
        Centers of the model; None if it has features instead.
    batch_size : int or None
        Rows per step; None if there are no steps.
    n_epochs : int
        Epochs, iterations or Newton steps assumed: the maximum or the usual number; 1
        for a solution in closed form.
    memory : dict of float
        MB in use at the peak: "data copy", "centers", "kernel matrix",
        "preconditioner", "workspace", and their "total".
    flops : float
        Floating-point operations.
    seconds : float
        Time on this machine, whose rates are measured once per process.
    """

    method: str
    n_centers: int | None
    batch_size: int | None
    n_epochs: int
    memory: dict
    flops: float
    chosen: dict = field(repr=False)
    shape: Shape = field(repr=False)
    costs: Costs = field(repr=False)

    def __getattr__(self, name):
        if name != "chosen" and name in self.chosen:
            return self.chosen[name]
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    @property
    def estimator(self) -> str:
        return type(self.shape.estimator).__name__

    @property
    def n_samples(self) -> int:
        return self.shape.n

    @property
    def n_features(self) -> int:
        return self.shape.d

    @property
    def n_outputs(self) -> int:
        return self.shape.n_outputs

    @property
    def dtype(self) -> str:
        return f"float{8 * self.shape.itemsize}"

    @cached_property
    def seconds(self) -> float:
        shape, sizes = self.shape, self.costs.wave_sizes
        wave = _wave_seconds(shape, *sizes) if sizes else 0.0
        return self.costs.seconds(_product_seconds(), _entry_seconds(shape), wave)

    @property
    def usual_seconds(self) -> float:
        """Time on a usual CPU: nothing is measured."""
        shape, n_threads = self.shape, self.costs.n_threads
        size = shape.itemsize
        wave = CPU.product_seconds(
            shape.d + CPU.narrow_product_work * shape.n_outputs, size, n_threads
        )
        # A cosine and a sine take the time of six values of a kernel's function: in
        # steps of DSG on two cores of an AMD EPYC without AVX-512, a frequency and a
        # row take 14 ns in double precision and 8 ns in single precision.
        return self.costs.seconds(
            CPU.product_seconds(1, 8, n_threads),
            CPU.kernel_seconds(shape.d, shape.kernel_itemsize, n_threads),
            wave + 6 * CPU.function * size / 4 / n_threads,
            measure_touch=False,
        )

    @property
    def needed(self):
        """Bytes that have to be free: what is in use, and what the fit checks."""
        return max(1e6 * self.memory["total"], self.costs.asked)

    def _lines(self):
        """Return names and values, as text."""
        seen = {k: mb for k, mb in self.memory.items() if mb >= 0.05 or k == "total"}
        return [
            ("method", self.method),
            ("centers", "-" if self.n_centers is None else str(self.n_centers)),
            ("batch size", "-" if self.batch_size is None else str(self.batch_size)),
            ("epochs assumed", str(self.n_epochs)),
            *((f"memory: {name}", _text(mb, "MB")) for name, mb in seen.items()),
            ("operations", f"{self.flops:.2g} flop"),
            ("time", _text(self.seconds, "s")),
        ]

    @property
    def _title(self):
        return (
            f"{self.estimator} on {self.n_samples} x {self.n_features} {self.dtype}, "
            f"{self.n_outputs} output{'s' if self.n_outputs > 1 else ''}"
        )

    def __repr__(self):
        lines = [f"  {name:<24}{value:>14}" for name, value in self._lines()]
        return "\n".join([self._title, *lines])

    def _repr_html_(self):
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th>"
            f"<td style='text-align:right'>{escape(value)}</td></tr>"
            for name, value in self._lines()
        )
        return f"<table><caption>{escape(self._title)}</caption>{rows}</table>"


def _text(value, unit):
    """Return a number with three digits, and its unit."""
    digits = 2 if value < 1 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {unit}"


# Rates of this machine


@cache
def _product_seconds():
    """Return the seconds of a multiply-add in large float64 products."""
    A = np.ones((1024, 1024))
    return _best_seconds(lambda: large_product(A, A)) / 1024**3


_measured_entry_seconds = {}


def _entry_seconds(shape):
    """Return the seconds per entry of a kernel matrix on all threads.

    They are measured once for every kernel, number of features and data type.
    """
    if shape.kernel is None or shape.precomputed:
        return 0.0
    d, dtype = shape.d, f"float{8 * shape.kernel_itemsize}"
    key = repr(shape.kernel), d, dtype
    if key not in _measured_entry_seconds:
        # A few random rows, at most 80 MB; they are not negative, as kernels of users
        # may require.
        n = max(min(1024 if d > 100 else 2048, 10**7 // d), 64)
        rows = np.random.RandomState(0).random_sample((n, d)).astype(dtype)
        kernel = shape.kernel
        if hasattr(kernel, "bandwidth"):
            kernel = replace(kernel, bandwidth=d**0.5)
        K, ones = TiledKernel(kernel, rows), np.ones_like(rows[:, :1])
        _measured_entry_seconds[key] = _best_seconds(lambda: K @ ones) / n**2
    return _measured_entry_seconds[key]


_measured_wave_seconds = {}


def _wave_seconds(shape, n_rows, block_size):
    """Return the seconds per row and frequency of steps on random features.

    They are measured once for all sizes of a block: sines differ between processors by
    a factor of ten, and products with few columns depend on their number. It is done on
    one thread, in a few milliseconds that another program seldom interrupts.
    """
    d, k, dtype = shape.d, shape.n_outputs, f"float{8 * shape.itemsize}"
    n = max(min(n_rows, WAVE_TILE_ALONE // block_size, 400_000 // d), 2)
    key = d, k, dtype, n, block_size
    n_threads = n_blas_threads() if n_rows * block_size > WAVE_TILE_ALONE else 1
    if key not in _measured_wave_seconds:
        rng = np.random.RandomState(0)
        rows = rng.random_sample((n, d)).astype(dtype)
        G, values = np.ones((k + 1, n), dtype).T, np.zeros((k, n), dtype).T
        A = np.zeros((2 * block_size, k), dtype)
        kernel = replace(shape.kernel, bandwidth=d**0.5)
        features = FourierBlocks(
            kernel, 0, block_size, rows, rows[0], np.full_like(rows[0], 1e30)
        )

        def step():
            tiles, _ = features.adjoint(rows, 0, G)
            features.add_products(tiles, A, values)

        with single_threaded_blas:
            seconds = _best_seconds(step, 30)
        _measured_wave_seconds[key] = seconds / (n * block_size)
    return _measured_wave_seconds[key] / n_threads


def _best_seconds(function, n_calls=5):
    """Return the least time of some calls, or of those within 0.1 s."""
    begin, seconds = time.perf_counter(), []
    while not seconds or (len(seconds) < n_calls and time.perf_counter() - begin < 0.1):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
