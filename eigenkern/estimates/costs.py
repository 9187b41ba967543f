"""Seconds and bytes of a fit: the rates of this machine, and parts that fits share."""

import math
import time
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from html import escape

import numpy as np

from ..arrays import memory
from ..arrays.devices import compute_devices
from ..arrays.linalg import large_product
from ..arrays.machine import CPU, MEASURED_TOUCH_BYTES
from ..arrays.threads import n_blas_threads
from ..fitting.model import chooses_penalty, is_precomputed
from ..fitting.validation import is_auto
from ..methods.closed_form_plan import NystromPlan
from ..methods.krylov import krylov_pays
from ..methods.step_search import StepSearch
from ..operators.matrix import GivenMatrix
from ..operators.tiled import TiledKernel
from ..plan.penalty import n_ridge_rows
from ..plan.sizes import EIGENVECTOR_CUBES, MEASURING_PASSES, n_measured_rows
from ..problems.closed_form import rounding
from ..problems.data import Data
from ..problems.kernel_parameters import make_kernel

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


@dataclass(frozen=True)
class Estimate:
    """What a fit would take, as `estimate` returns it.

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
        Time on this machine.
    """

    estimator: str
    n_samples: int
    n_features: int
    n_outputs: int
    dtype: str
    method: str
    n_centers: int | None
    batch_size: int | None
    n_epochs: int
    memory: dict
    flops: float
    seconds: float

    def _rows(self):
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
        lines = [f"  {name:<24}{value:>14}" for name, value in self._rows()]
        return "\n".join([self._title, *lines])

    def _repr_html_(self):
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th>"
            f"<td style='text-align:right'>{escape(value)}</td></tr>"
            for name, value in self._rows()
        )
        return f"<table><caption>{escape(self._title)}</caption>{rows}</table>"


def _text(value, unit):
    """Return a number with three digits, and its unit."""
    digits = 2 if value < 1 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {unit}"


# Multiply-adds of a Cholesky factor over n^3.
FACTOR_CUBES = 0.25
# Factors that choose a penalty on a subsample, for half its rows and for all of them.
N_FACTORS = 4
# Work of a path with all eigenvectors, over that in `NystromPlan`.
ALL_EIGENVECTORS = 3
# Extra epochs of a race of six sides, summed over all sides but the first. Most sides
# are dropped early (`methods.step_search`).
_RACE_SIDES = 16
# Seconds of normal equations over those of large products with as many multiply-adds:
# 1.3 to 1.6 in 24 fits on cpusmall, a9a and covtype (benchmarks/estimates.py), but 1.8
# to 2.7 in fits of less than a second. They multiply panels of blocks of rows.
NORMAL_EQUATIONS = 1.4
# Products with the kernel matrix that refine a direct solution.
N_REFINEMENTS = 3


def race(fit, n, m):
    """Return the sides of a race on n rows, and the product columns of all epochs."""
    e, k = fit.estimator, fit.n_outputs
    sides = StepSearch(k, -(-n // m), tries=is_auto(e.step_size)).n_sides
    return sides, k * (e.max_iter + _RACE_SIDES * (sides - 1) / 5)


def add_ridge(fit, K, n_bytes=0.0):
    """Add the choice of a penalty on a subsample, if a fit chooses one.

    K is the kernel matrix of rows that take `n_bytes` on top of what is held.
    """
    e, size = fit.estimator, fit.itemsize
    if not chooses_penalty(e) or fit.n < 20:
        return
    s, judges = n_ridge_rows(K)
    judges = min(judges, max(K.shape[0] - s, 0))
    fit.entries((s + judges) * s)
    fit.products(N_FACTORS * FACTOR_CUBES * (s**3 + (s / 2) ** 3), size)
    fit.products(2 * N_FACTORS * judges * s * fit.n_outputs, size)
    fit.uses((s + judges + 2 * s) * s * size + fit.tiles(K, s) + n_bytes)


def add_tuning(fit, K, s, q, kept):
    """Add preconditioner and step: eigenvectors of s rows, measured on other rows."""
    size, n = fit.itemsize, K.shape[0]
    N = n_measured_rows(K, n)
    (fit.reads if kept else fit.entries)(s * s + N * N + N * s)
    fit.products(N * s * q, size)
    if q:
        fit.products(EIGENVECTOR_CUBES * s**3)
    add_measuring(fit, N, q)
    single = 4 * N * (N + q) if size == 8 else 0
    fit.uses(s * s * (size + 16) + 2 * s * q * 8)
    fit.uses(
        (N * N + 2 * N * q + s * q) * size + max(single, N * s * size, fit.tiles(K))
    )


def add_measuring(fit, N, q):
    """Add the measurement of eigenvalues, and of the step in trial runs."""
    fit.reads(MEASURING_PASSES * N * (N + 2 * q), 12, 4)


def add_normal_equations(fit, kind, K, plan, holds_out=False):
    """Add factors, and sums over all rows, with the matrix K of the training rows."""
    # Sums over the rows pass through a buffer, while L of the centers and the sums are
    # in memory. Freed tiles stay with their threads. While the models are computed, the
    # plan has room for one matrix more than was seen in use, and for one more yet where
    # a path on held-out rows takes factors in place.
    p, n_block = K.shape[1], K.gram_rows()
    square = 8 * p * p
    fit.holds("tiles", fit.tiles(K, n_block))
    fit.uses(8 * p * n_block + 2 * square)
    by_factors = kind == "path" and holds_out and krylov_pays(p, fit.n_outputs)
    fewer = 2 if by_factors else 1
    squares = NystromPlan.SQUARES[kind] - fewer + 2 * holds_out
    fit.uses(squares * square)
    fit.holds("preconditioner", square)
    n_evaluations, before = NystromPlan.SUMS.get(kind, 1), fit.seconds
    fit.entries(n_evaluations * fit.n * p + p * p / 2)
    fit.products(plan.work)
    if kind == "path" and not by_factors:
        fit.products((ALL_EIGENVECTORS - 1) * NystromPlan.CUBES[kind] * p**3)
    add_pivoted_factor(fit, p)
    fit.seconds = before + NORMAL_EQUATIONS * (fit.seconds - before)


def add_pivoted_factor(fit, p):
    """Add `pivoted_cholesky`, which runs on one thread."""
    fit.products(FACTOR_CUBES * p**3 * fit.n_threads)
