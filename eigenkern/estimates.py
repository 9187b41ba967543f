"""What a fit would take, told before it: sizes, memory, flops and seconds.

The sizes come from the functions that choose them in a fit, called with matrices of
which nothing but the shape is right. Memory and seconds follow from them: what is in
memory together where most of it is, and the work of each part over the rates of this
machine, which are measured once a process.
"""

import time
from copy import copy
from dataclasses import dataclass, field, replace
from html import escape
from inspect import isclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from .backend import memory
from .backend.devices import compute_devices
from .backend.linalg import large_product
from .backend.machine import CPU, MEASURED_TOUCH_BYTES
from .backend.threads import n_blas_threads
from .centers import METHODS
from .estimators.base import is_precomputed, stops_early
from .estimators.doubly_stochastic import DSGClassifier, DSGRegressor
from .estimators.eigenpro import EigenProClassifier, EigenProRegressor
from .estimators.falkon import FalkonLikeClassifier, FalkonLikeRegressor
from .estimators.least_squares import chosen_n_centers, given_centers
from .estimators.linear_eigenpro import (
    LinearEigenProClassifier,
    LinearEigenProRegressor,
)
from .estimators.nystrom import NystromClassifier, NystromRegressor
from .estimators.nytro import NytroClassifier, NytroRegressor, factorises
from .estimators.validation import check_centers, check_number, is_auto
from .nystrom.krylov import krylov_pays
from .nystrom.plan import NystromPlan
from .operators.cached import kept_bytes
from .operators.given import GivenMatrix
from .operators.linear import CenteredFeatures
from .operators.plan import cache_budget, cache_pays
from .operators.tiled import TiledKernel
from .problems.data import Data
from .problems.least_squares import rounding
from .problems.parameters import make_kernel
from .solvers.projection import factor_pays, projection_interval, projection_work
from .solvers.step_search import StepSearch
from .tuning.penalty import n_ridge_rows
from .tuning.sizes import (
    EIGENVECTOR_CUBES,
    FALKON_ITERATIONS,
    MEASURING_PASSES,
    MIN_ROWS,
    N_MEASURED,
    affordable_rows,
    auto_batch_size,
    check_sizes,
    default_subsample_of_centers,
    default_subsample_size,
    direct_pays,
    direct_pays_on_centers,
    direct_pays_on_features,
    max_batch_size,
    max_components,
    max_components_on_centers,
    n_sampled_rows,
)

# What follows counts what depends on the data; benchmarks/estimates.py shows how well.
# Epochs, times sides beside the first, that a race of six sides takes: its rules drop
# most of them early (`solvers.step_search`).
_RACE_SIDES = 16
# Multiply-adds of a Cholesky factor over n^3.
_FACTOR_CUBES = 0.25
# Seconds to tell a row from others, and bytes/s of its content, on one thread: 0.5 us a
# row of 8 features in single precision, 5.4 us with 784. A row in double precision is
# told by its content in single precision as well.
_ROW_SECONDS, _CONTENT = 0.5e-6, 0.65e9
# Work of a path over what `NystromPlan` says, where it takes all eigenvectors.
_ALL_EIGENVECTORS = 3
# Iterations of a Falkon classifier without the rows that it is calibrated on.
_N_HELD_OUT = 3
# Factors that a penalty on a subsample takes, of half the rows and of all of these.
_N_FACTORS = 4
# Half a product F' F, whose pieces are slower than whole ones; and passes over the rows
# for means, copies and the loss.
_HALF, _PASSES_OF_SETUP = 0.8, 8
# Products with the kernel matrix that refine a direct solution.
_N_REFINEMENTS = 3

_EIGENPRO = EigenProRegressor, EigenProClassifier
_NYSTROM = NystromRegressor, NystromClassifier
_NYTRO = NytroRegressor, NytroClassifier
_FALKON = FalkonLikeRegressor, FalkonLikeClassifier
_LINEAR = LinearEigenProRegressor, LinearEigenProClassifier
_DSG = DSGRegressor, DSGClassifier


def estimate(
    estimator: Any,
    n_samples: int,
    n_features: int,
    n_outputs: int = 1,
    *,
    dtype: Any = "float64",
) -> "Estimate":
    """Return what a fit of an estimator would take on this machine.

    Nothing is fitted. The number of centers, the batch and whether a kernel matrix is
    kept are what a fit chooses by the memory that is free now; the rates of this
    machine are measured once a process, in up to 0.3 s. Where early stopping or a
    tolerance ends a fit, it takes less time.

    Parameters
    ----------
    estimator : estimator
        Of this package, on the CPU; not a transformer, and not `RFMRegressor` or
        `RFMClassifier`, whose rounds fit another estimator: estimate that.
    n_samples : int
        Training rows.
    n_features : int
        Columns of X.
    n_outputs : int, default=1
        Columns of y. Of a classifier 1 for two classes, and their number for more.
    dtype : {"float32", "float64"}, default="float64"
        Data type of X. Matrices in float32 take half of the memory.

    Returns
    -------
    estimate : Estimate
        With attributes `method`, `n_centers`, `batch_size`, `n_epochs`, `memory` (a
        dict of MB with a "total"), `flops` and `seconds`. It prints as a table.

    Raises
    ------
    ValueError
        If the estimator is none of this package, or computes on a GPU, or a size is not
        a positive integer.

    See Also
    --------
    show_versions : What the machine has.

    Examples
    --------
    >>> from eigenkern import EigenProRegressor, estimate
    >>> cost = estimate(EigenProRegressor(), n_samples=50_000, n_features=20)
    >>> cost.method, cost.n_centers
    ('eigenpro2', 50000)
    """
    families = {
        _EIGENPRO: _estimate_eigenpro,
        _NYSTROM: _estimate_centers,
        _NYTRO: _estimate_centers,
        _FALKON: _estimate_centers,
        _LINEAR: _estimate_linear,
        _DSG: _estimate_dsg,
    }
    family = [
        one for classes, one in families.items() if isinstance(estimator, classes)
    ]
    if not family:
        name = estimator.__name__ if isclass(estimator) else type(estimator).__name__
        remedy = "an instance of" if isclass(estimator) else "one of"
        raise ValueError(
            f"estimator must be {remedy} EigenPro*, Nystrom*, Nytro*, FalkonLike*, "
            f"LinearEigenPro* or DSG*; got {name}"
        )
    sizes = {
        "n_samples": n_samples,
        "n_features": n_features,
        "n_outputs": n_outputs,
    }
    for name, value in sizes.items():
        check_number(name, value, 2 if name == "n_samples" else 1, integer=True)
    if dtype not in ("float32", "float64"):
        raise ValueError(f"dtype must be 'float32' or 'float64'; got {dtype!r}")
    if estimator.device not in ("auto", "cpu"):
        raise ValueError(
            "estimates are of the CPU: device must be 'auto' or 'cpu'; got "
            f"{estimator.device!r}"
        )
    estimator._check_parameters()
    n_centers = getattr(estimator, "n_centers", None)
    if n_centers is not None and not is_auto(n_centers):
        check_number("n_centers", n_centers, 1, integer=True)
    fit = _Fit(estimator, int(n_samples), int(n_features), int(n_outputs), dtype)
    return family[0](fit)


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
        "iterations".
    n_centers : int or None
        Centers of the model; None where it has features in their place.
    batch_size : int or None
        Rows of a step; None where there are no steps.
    n_epochs : int
        Epochs or iterations assumed: as many as are allowed, or usual. 1 for a
        solution in closed form.
    memory : dict of float
        MB that are in use together when most is: "data copy", "centers", "kernel
        matrix", "preconditioner", "workspace", and their "total".
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
        rows = [
            ("method", self.method),
            ("centers", "-" if self.n_centers is None else str(self.n_centers)),
            ("batch size", "-" if self.batch_size is None else str(self.batch_size)),
            ("epochs assumed", str(self.n_epochs)),
        ]
        rows += [(f"memory: {name}", _text(mb, "MB")) for name, mb in self._items()]
        rows += [
            ("operations", f"{self.flops:.2g} flop"),
            ("time", _text(self.seconds, "s")),
        ]
        return rows

    def _items(self):
        return [(k, mb) for k, mb in self.memory.items() if mb >= 0.05 or k == "total"]

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


@dataclass(frozen=True)
class _Rates:
    """Seconds that this machine was measured to take, on all its threads.

    Attributes
    ----------
    product : float
        A multiply-add of a large product in float64.
    entry : float
        An entry of a kernel matrix; 0 where none is computed.
    """

    product: float
    entry: float


_measured = {}


def _rates(key=None, operator=None):
    """Return the rates, measured once a process, of a kernel for every `key`."""
    if "product" not in _measured:
        A = np.ones((1024, 1024))
        _measured["product"] = _best_seconds(lambda: large_product(A, A)) / 1024**3
    if key is not None and key not in _measured:
        m = operator.shape[0]
        ones = np.ones((m, 1), dtype=operator.dtype)
        _measured[key] = _best_seconds(lambda: operator @ ones) / m**2
    return _Rates(_measured["product"], _measured.get(key, 0.0))


def _best_seconds(function):
    """Return the least time of up to five calls, for 0.1 s."""
    begin, seconds = time.perf_counter(), []
    while not seconds or (len(seconds) < 5 and time.perf_counter() - begin < 0.1):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


@dataclass
class _Fit:
    """A fit that is planned: what is known of it, and the costs so far."""

    estimator: object
    n: int
    d: int
    n_outputs: int
    dtype: str
    flops: float = 0.0
    seconds: float = 0.0
    held: dict = field(default_factory=dict)
    peak: float = 0.0

    def __post_init__(self):
        e = self.estimator
        self.itemsize = np.dtype(self.dtype).itemsize
        self.precomputed = is_precomputed(e)
        self.d = self.n if self.precomputed else self.d
        X = np.broadcast_to(np.zeros((), self.dtype), (self.n, self.d))
        targets = np.broadcast_to(0.0, (self.n, self.n_outputs))
        rng = np.random.RandomState(0)
        groups = np.zeros(1) if hasattr(e, "class_weight") else None
        self.data = Data(X, targets, targets, None, rng, groups, None, self.precomputed)
        self.xp, self.device = compute_devices(e.device, X)[0]
        self.n_threads = n_blas_threads()
        if self.precomputed or not hasattr(e, "kernel"):
            self.rates = _rates()
            return
        # Few rows of random numbers, at most 80 MB, on which the kernel is measured;
        # not negative, as functions of the user's own may ask.
        n_rows = max(min(1024 if self.d > 100 else 2048, 10**7 // self.d), 64)
        sample = rng.random_sample((n_rows, self.d)).astype(self.dtype)
        word = e.bandwidth if not isinstance(e.bandwidth, str) else self.d**0.5
        self._kernel = make_kernel(e.kernel, word, sample, rng)
        self._sample = sample[:2]
        key = repr(e.kernel), self.d, self.dtype
        self.rates = _rates(key, TiledKernel(self._kernel, sample))

    def matrix(self, m, p, *, symmetric=False):
        """Return a kernel matrix with the shape (m, p), and nothing else of it."""
        if self.precomputed:
            return GivenMatrix(np.broadcast_to(np.zeros((), self.dtype), (m, p)))
        made = copy(TiledKernel(self._kernel, self._sample))
        made.shape, made.symmetric = (m, p), symmetric
        return made

    def drowns(self, alpha, n_columns):
        """Whether the fit goes on in float64, as float32 would drown the penalty."""
        if self.precomputed or self.itemsize == 8 or alpha == 0:
            return False
        size = float(np.mean(self._kernel.diagonal(self._sample)))
        return alpha <= rounding(np, np.float32, n_columns) * size

    # Time

    def products(self, multiply_adds, itemsize=8):
        """Add large matrix products."""
        self.flops += 2.0 * multiply_adds
        self.seconds += multiply_adds * self.rates.product * itemsize / 8

    def entries(self, count, n_columns=0):
        """Add entries of a kernel matrix, and products with them."""
        if self.precomputed:
            self.reads(count, n_columns)
            return
        self.flops += count * (2.0 * self.d + 2.0)
        self.seconds += count * self.rates.entry
        self.products(count * n_columns, self.itemsize)

    def reads(self, count, n_columns=0, itemsize=None):
        """Add the reading of a matrix, or a product with it if that takes longer."""
        itemsize = self.itemsize if itemsize is None else itemsize
        product = count * n_columns * self.rates.product * itemsize / 8
        self.flops += 2.0 * count * n_columns
        self.seconds += max(count * itemsize / CPU.read, product)

    def touches(self, n_bytes):
        """Add the first use of memory."""
        rate = CPU.touch
        if n_bytes >= MEASURED_TOUCH_BYTES:
            rate = memory.touch_rate(n_bytes) * self.n_threads
        self.seconds += n_bytes / rate

    def tells_rows(self):
        """Add what it takes to find equal rows."""
        if not self.precomputed:
            n_bytes = self.d * (4 if self.itemsize == 4 else 12)
            self.seconds += self.n * (_ROW_SECONDS + n_bytes / _CONTENT)

    # Memory

    def holds(self, name, n_bytes):
        """Add what is held from here on."""
        self.held[name] = self.held.get(name, 0.0) + n_bytes
        self.peak = max(self.peak, sum(self.held.values()))

    def uses(self, n_bytes):
        """Tell what is in use for a while, beside what is held."""
        self.peak = max(self.peak, sum(self.held.values()) + n_bytes)

    def tiles(self, operator, m=None):
        """Return the bytes that the tiles of a product take.

        The plan has room for more temporaries: half of it was seen to be in use in
        float32, and a quarter in float64.
        """
        if self.precomputed:
            return 0
        m = operator.shape[0] if m is None else m
        return operator._plan(m).bytes * 2 / self.itemsize

    def result(self, method, *, n_centers=None, batch_size=None, n_epochs=1):
        """Return the `Estimate`."""
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


# EigenPro


def _estimate_eigenpro(fit):
    e = fit.estimator
    held_out = int(np.ceil(e.validation_fraction * fit.n)) if stops_early(e) else 0
    n = fit.n - held_out
    if e._general:
        return _estimate_general(fit, n, held_out)
    k, size = fit.n_outputs, fit.itemsize
    K = fit.matrix(n, n, symmetric=True)
    fit.holds("data copy", n * fit.d * size)
    if not fit.precomputed:
        fit.holds("centers", n * K.row_width * size)
    fit.holds("targets", (8 + 2 * size) * n * k)
    _add_ridge(fit, K)
    if e._may_be_direct and direct_pays(K, e.cache_size):
        return _direct(fit, K)
    q = 0 if e.algorithm == "sgd" else e.n_components
    check_sizes(n, e.subsample_size, q, e.batch_size)
    s = e.subsample_size
    if is_auto(s):
        s = max(min(default_subsample_size(n), affordable_rows(K)), 1)
    q = max_components(n, s, None) if is_auto(q) else q
    m = e.batch_size
    if is_auto(m):
        m = auto_batch_size(max_batch_size(K, fit.d, k), n)
    operators = [K]
    if held_out:
        operators.append(fit.matrix(held_out, n))
    extra = int(e.algorithm == "eigenpro1")
    sizes = kept_bytes(operators, e.cache_size, e.max_iter + extra, fit.d)
    for n_bytes in sizes:
        if n_bytes:
            fit.holds("kernel matrix", n_bytes)
            fit.entries(n_bytes / size)
            fit.touches(n_bytes)
    kept = sizes[0] is not None
    _add_tuning(fit, K, s, q, kept)
    n_vectors = n if extra else s
    fit.holds("preconditioner", 2 * n_vectors * q * size)
    if extra:
        fit.entries(n * s)
        fit.products(n * s * q, size)
    # Epochs.
    sides = StepSearch(k, -(-n // m), tries=is_auto(e.step_size)).n_sides
    columns = k * (e.max_iter + _RACE_SIDES * (sides - 1) / 5)
    per_epoch = n * (n + held_out)
    add = fit.reads if kept else fit.entries
    add(e.max_iter * per_epoch, columns / e.max_iter)
    corrected = n * n_vectors + n / m * 2 * s * q
    fit.products(columns * corrected, size)
    fit.uses(4 * n * k * sides * size + m * s * size + fit.tiles(K, m))
    return fit.result(e._algorithm, n_centers=fit.n, batch_size=m, n_epochs=e.max_iter)


def _add_ridge(fit, K):
    """Add the choice of a penalty on a subsample, where it is asked for."""
    e, size = fit.estimator, fit.itemsize
    if not is_auto(e.early_stopping) or getattr(e, "alpha", 0.0) not in (0, "auto"):
        return
    if fit.n < 20:
        return
    s, judges = n_ridge_rows(K)
    judges = min(judges, max(K.shape[0] - s, 0))
    fit.entries((s + judges) * s)
    fit.products(_N_FACTORS * _FACTOR_CUBES * (s**3 + (s / 2) ** 3), size)
    fit.products(2 * _N_FACTORS * judges * s * fit.n_outputs, size)
    fit.uses((s + judges) * s * size + 2 * s * s * size + fit.tiles(K, s))


def _direct(fit, K):
    """Return the estimate of one factor of the kernel matrix."""
    e, n, size = fit.estimator, K.shape[0], fit.itemsize
    # In single precision, as long as the penalty is above its rounding.
    factor_size = 4 if not e.alpha or size == 4 else 8
    fit.holds("kernel matrix", n * n * factor_size)
    left = n / 8
    fit.uses(fit.tiles(K) + 3 * left**2 * factor_size + 8 * n * fit.n_outputs * 4)
    fit.entries(n * n / 2 + _N_REFINEMENTS * n * n, fit.n_outputs)
    fit.touches(n * n * factor_size)
    fit.products(_FACTOR_CUBES * n**3, factor_size)
    return fit.result("direct", n_centers=fit.n)


def _add_tuning(fit, K, s, q, kept):
    """Add preconditioner and step: eigenvectors of s rows, measured on others."""
    size, n = fit.itemsize, K.shape[0]
    N = max(min(n, N_MEASURED, affordable_rows(K)), 1)
    (fit.reads if kept else fit.entries)(s * s + N * N + N * s)
    fit.products(N * s * q, size)
    if q:
        fit.products(EIGENVECTOR_CUBES * s**3)
    _add_measuring(fit, N, q)
    single = 4 * N * (N + q) if size == 8 else 0
    fit.uses(s * s * (size + 16) + 2 * s * q * 8)
    fit.uses(
        (N * N + 2 * N * q + s * q) * size + max(single, N * s * size, fit.tiles(K))
    )


def _add_measuring(fit, N, q):
    """Add the measurement of eigenvalues, and of the step in trial runs."""
    fit.reads(MEASURING_PASSES * N * (N + 2 * q), 12, 4)


def _estimate_general(fit, n, held_out):
    e, k, size = fit.estimator, fit.n_outputs, fit.itemsize
    centers = check_centers(e.centers, fit.data.X, METHODS)
    p = min(e.n_centers or n, n) if centers is None else centers.shape[0]
    Z = fit.matrix(p, p, symmetric=True)
    K = fit.matrix(n, p)
    fit.holds("centers", p * (fit.d + Z.row_width) * size)
    fit.holds("targets", (8 + size) * n * k)
    _add_ridge(fit, fit.matrix(n_sampled_rows(n), n_sampled_rows(n)))
    may_be_direct = e._may_be_direct and not fit.drowns(e.alpha, p)
    if may_be_direct and direct_pays_on_centers(
        Z, n, fit.d, k, e.max_iter, e.cache_size
    ):
        return _estimate_direct_on_centers(fit, K)
    n_learned = min(n * e.max_iter, 100 * p)
    factor = factor_pays(Z, fit.d, k, n_learned, e.cache_size) or None
    largest = max_batch_size(Z, fit.d, k, n_rows=n)
    m = auto_batch_size(largest, n, MIN_ROWS) if is_auto(e.batch_size) else e.batch_size
    N = min(n_sampled_rows(n), N_MEASURED, max(affordable_rows(Z), 1))
    c = e.subsample_size
    if is_auto(c):
        c = default_subsample_of_centers(p, n, max(affordable_rows(Z), 1))
    q = e.n_components
    if is_auto(q):
        q = max_components_on_centers(c, n, N)
    if e.algorithm == "eigenpro3-exact":
        return _estimate_exact(fit, n, p, e.subsample_size, q)
    interval = 1
    if e.algorithm != "eigenpro3":
        interval = projection_interval(Z, factor, m, fit.d, k)
    # Projection.
    if factor:
        fit.uses(3 * 8 * p * p)
        fit.holds("preconditioner", 8 * p * p)
        fit.entries(p * p / 2)
        fit.products(CPU.factor_work(p), 4)
    else:
        fit.holds("preconditioner", p * 2 * q * size)
    # Preconditioner and step.
    whitened = 0
    if factor and interval == 1 and p <= n:
        whitened = n_sampled_rows(n) * p * size
        fit.products(n_sampled_rows(n) * p * p / 2)
        fit.uses(whitened + 2 * n_sampled_rows(n) * p * 8)
    fit.entries(c * c / 2 + 2 * N * c + N * N)
    fit.products((EIGENVECTOR_CUBES + _FACTOR_CUBES) * c**3)
    fit.products(N * c * c)
    _add_measuring(fit, N, q)
    fit.uses(8 * (2 * c * c + 4 * N * c) + whitened)
    fit.uses((N * N + 2 * N * q) * size + 4 * N * N * (size == 8) + whitened)
    fit.holds("preconditioner", c * q * size)
    # The kernel matrix and the rows, if both are kept.
    needed = (p + fit.d) * n * size
    kept = needed <= cache_budget(e.cache_size, Z) and not Z.factored
    if kept and is_auto(e.cache_size):
        kept = cache_pays(e.max_iter, fit.d, K)
    if kept:
        fit.holds("data copy", n * fit.d * size)
        fit.holds("kernel matrix", n * p * size)
        fit.entries(n * p)
        fit.touches(n * p * size)
    # Epochs: rows and centers, temporary centers, corrections, projections.
    epochs, batches = e.max_iter, n / m
    (fit.reads if kept else fit.entries)(epochs * n * p, 2 * k)
    fit.entries(epochs * held_out * p, k)
    fit.entries(epochs * n * m * (interval - 1) / 2, 2 * k)
    fit.products(epochs * n * c * k, size)
    work = projection_work(Z, factor, fit.d, k)
    fit.products(epochs * batches / interval * work, 4)
    fit.uses(m * (fit.d + c + interval * m) * size + fit.tiles(Z, m) + 8 * p * k * size)
    return fit.result(e._algorithm, n_centers=p, batch_size=m, n_epochs=epochs)


def _estimate_direct_on_centers(fit, K):
    """Return the estimate of the normal equations of a model on centers."""
    n, p = K.shape
    fit.holds("targets", 8 * n * (2 * fit.n_outputs + 1))
    fit.holds("centers", p * (fit.d + K.row_width) * fit.itemsize)
    _add_normal_equations(fit, "ridge", K, NystromPlan.make("ridge", p, n))
    fit.entries(n * p, fit.n_outputs)
    if fit.data.groups is not None:  # rows to leave out, which are no centers
        fit.tells_rows()
        fit.tells_rows()
    return fit.result("direct", n_centers=p)


def _estimate_exact(fit, n, p, s, q):
    """Return the estimate of full-batch steps that are projected exactly."""
    e, size, k = fit.estimator, fit.itemsize, fit.n_outputs
    s = default_subsample_size(n) if is_auto(s) else s
    rows = fit.matrix(n, n, symmetric=True)
    fit.holds("data copy", 2 * n * fit.d * size)
    fit.holds("preconditioner", 8 * p * p + n * q * size)
    _add_tuning(fit, rows, s, q, False)
    fit.entries(n * s + n * p + p * p)
    fit.holds("kernel matrix", n * p * size)
    fit.uses(16 * p * p)
    fit.products(CPU.factor_work(p), 4)
    fit.reads(e.max_iter * n * (2 * p + 2 * q), k)
    return fit.result(e._algorithm, n_centers=p, batch_size=n, n_epochs=e.max_iter)


# Least squares on centers


def _estimate_centers(fit):
    e = fit.estimator
    logistic = getattr(e, "loss", "squared_error") == "log_loss"
    selects = isinstance(e.alpha, str) if hasattr(e, "alpha") else True
    holds_out = selects and getattr(e, "selection", None) == "holdout"
    holds_out = holds_out or (logistic and selects)
    falkon = isinstance(e, _FALKON)
    kind = "path" if selects or getattr(e, "alpha", 1) == 0 else "ridge"
    kind = "falkon" if falkon else kind
    if logistic:
        kind = "falkon logistic" if falkon else "logistic"
    n = fit.n
    n_held = round(e.validation_fraction * n) if holds_out else 0
    n_train = n - n_held
    centers = given_centers(e, fit.data.X)
    p = e.n_centers if centers is None else centers.shape[0]
    if is_auto(p):
        p = chosen_n_centers(e, fit.data, kind, holds_out, 0)
    if p is not None and centers is None:
        p = min(p, n_train)
    every_row = not logistic and (p is None or (falkon and p == n))
    p = p or n_train
    if not selects and fit.drowns(e.alpha, p):
        return _estimate_centers(replace(fit, dtype="float64"))
    fit.tells_rows()
    if every_row:
        return _estimate_rows(fit, kind)
    return _estimate_on_centers(fit, kind, n_train, p, holds_out)


def _estimate_rows(fit, kind):
    """Return the estimate of the full kernel of all rows."""
    e, n, k = fit.estimator, fit.n, fit.n_outputs
    path = kind == "path" or (kind == "falkon" and e.alpha == 0)
    plan = NystromPlan.make("full path" if path else "full ridge", n, n)
    K = fit.matrix(n, n, symmetric=True)
    fit.holds("data copy", n * fit.d * fit.itemsize)
    fit.holds("kernel matrix", 8 * n * n)
    fit.holds("centers", n * K.row_width * fit.itemsize)
    fit.uses(8 * n * n * (2 if path else 0.25) + fit.tiles(K) + 40 * n * k)
    fit.entries((2 if path else 1) * n * n / 2)
    fit.touches(8 * n * n)
    all_vectors = path and not krylov_pays(n, k)
    fit.products(plan.work * (_ALL_EIGENVECTORS if all_vectors else 1))
    return fit.result("path" if path else "factor", n_centers=n)


def _estimate_on_centers(fit, kind, n_train, p, holds_out):
    """Return the estimate of least squares on p centers."""
    e, n, k, size = fit.estimator, fit.n, fit.n_outputs, fit.itemsize
    K = fit.matrix(n_train, p)
    plan = NystromPlan.make(kind, p, n, validated=holds_out)
    method, n_epochs, falkon = kind, 1, kind.startswith("falkon")
    if kind == "ridge":
        method = "factor"
    if holds_out:
        fit.holds("data copy", n * fit.d * size)
        fit.touches(n * fit.d * size)
    fit.holds("targets", 8 * n * (2 * k + 1))
    fit.holds("centers", p * (2 * fit.d + K.row_width) * size)
    iterates = isinstance(e, _NYTRO) and not _factorises(fit, plan, p)
    square = 8 * p * p
    if falkon or iterates:
        n_epochs = FALKON_ITERATIONS if falkon else e._n_iterations
        n_epochs = min(n_epochs, e.max_iter) if falkon else n_epochs
        n_passes = n_epochs
        if kind == "falkon" and fit.data.groups is not None:
            n_passes += _N_HELD_OUT
        n_products = 2 * e.max_iter if falkon else n_epochs
        (kept,) = kept_bytes([K], e.cache_size, n_products, fit.d)
        fit.holds("preconditioner", 2 * square)
        fit.products(NystromPlan.CUBES["falkon"] * p**3)
        if kept:
            fit.holds("kernel matrix", kept)
            fit.entries(n_train * p)
            fit.touches(kept)
            fit.seconds += n_passes * n_train * p * CPU.convert / fit.n_threads
            fit.reads(n_passes * n_train * p, 2 * k, 8)
        else:
            fit.entries(n_passes * n_train * p, 2 * k)
        # Blocks of a matrix that is kept in float32 are brought to float64.
        converted = kept and size == 4
        block = min(CPU.tile_bytes, 8 * n * p) if converted else fit.tiles(K)
        fit.uses(2 * square + block)
        method = "iterations"
    else:
        _add_normal_equations(fit, kind, K, plan, holds_out)
        return fit.result(method, n_centers=p)
    _add_pivoted_factor(fit, p)
    return fit.result(method, n_centers=p, n_epochs=n_epochs)


def _add_normal_equations(fit, kind, K, plan, holds_out=False):
    """Add sums over all rows, by the matrix K of those to train with, and factors."""
    # Sums over the rows pass through a buffer; a tile a thread, L of the centers, the
    # sums, and halves of these are there then. The plan has room for a matrix more than
    # was seen where the models are computed.
    p = K.shape[1]
    square = 8 * p * p
    tiles = 8 * CPU.row_tile * CPU.center_tile * fit.n_threads
    fit.uses(8 * p * K.gram_rows() + tiles + 4 * square)
    squares = NystromPlan.SQUARES[kind] - 1 + 2 * holds_out
    fit.uses(squares * square)
    fit.holds("preconditioner", square)
    n_evaluations = NystromPlan.SUMS.get(kind, 1)
    fit.entries(n_evaluations * fit.n * p + p * p / 2)
    fit.products(plan.work)
    if kind == "path" and not krylov_pays(p, fit.n_outputs):
        fit.products((_ALL_EIGENVECTORS - 1) * NystromPlan.CUBES[kind] * p**3)
    _add_pivoted_factor(fit, p)


def _add_pivoted_factor(fit, p):
    """Add `pivoted_cholesky`, on a thread."""
    fit.products(_FACTOR_CUBES * p**3 * fit.n_threads)


def _factorises(fit, plan, p):
    """Whether NYTRO takes a factorization."""
    e = fit.estimator
    if e.selection == "gcv":
        return True
    problem = SimpleNamespace(
        xp=fit.xp,
        device=fit.device,
        dtype=np.dtype(fit.dtype),
        all=fit.data,
        n_centers=p,
        n_features=fit.d,
        has_memory=lambda plan: plan.bytes <= memory.available(fit.xp, fit.device),
    )
    n_iter = None if is_auto(e.max_iter) else e.max_iter
    return factorises(problem, plan, n_iter, e.cache_size)


# Features


def _estimate_linear(fit):
    e, d, k, size = fit.estimator, fit.d, fit.n_outputs, fit.itemsize
    held_out = int(np.ceil(e.validation_fraction * fit.n)) if stops_early(e) else 0
    n = fit.n - held_out
    X = CenteredFeatures(fit.data.X[:n], fit.data.X[0])
    fit.holds("data copy", n * d * size)
    fit.holds("targets", (8 + 2 * size) * n * k)
    penalised = is_auto(e.early_stopping) and e._may_be_direct
    if penalised and direct_pays_on_features(X, e.max_iter):
        return _direct_on_features(fit, X)
    alpha = float(is_auto(e.early_stopping))  # whether there is one is what matters
    _, m, s = e._sizes(X, k, alpha)
    q = max_components(n, s, None) if is_auto(e.n_components) else e.n_components
    q = min(q, s - 1, d)
    fit.holds("preconditioner", d * q * size)
    N = min(n, N_MEASURED)
    narrow = CPU.narrow_product_work
    fit.uses((2 * min(s, n) * d + 2 * N * q) * size)
    fit.products(EIGENVECTOR_CUBES * min(s, d) ** 3)
    fit.products(s * d * min(s, d), size)
    fit.reads(2 * MEASURING_PASSES * N * d, 12)
    sides = StepSearch(k, -(-n // m), tries=is_auto(e.step_size)).n_sides
    columns = k * (e.max_iter + _RACE_SIDES * (sides - 1) / 5)
    fit.products(columns * min(2 * n * d, n * d * narrow), size)
    fit.reads(e.max_iter * 2 * n * d)
    fit.products(columns * n / m * 2 * q * d, size)
    return fit.result("eigenpro", batch_size=m, n_epochs=e.max_iter)


def _direct_on_features(fit, X):
    """Return the estimate of a factor of the normal matrix, and of the penalties."""
    (n, d), size = X.shape, fit.itemsize
    s, left = min(n // 4, 4000), min(max(n / 8, 300), 4000)
    fewer, judges = min(s, d), min(n - s, 4000)
    # In single precision, as the penalties usually allow.
    fit.uses(((s + judges) * d + 3 * fewer**2) * 4)
    fit.products(_HALF * s * d * fewer + _N_FACTORS * _FACTOR_CUBES * fewer**3, 4)
    fit.reads(_N_FACTORS * (judges * d + 2 * fewer**2), fit.n_outputs, 4)
    converted = 4 if size == 8 else 0
    fit.uses(X.gram_rows() * d * (size + converted) + (3 * d * d + 3 * left * d) * 4)
    fit.products(_HALF * (n + left) * d * d + _FACTOR_CUBES * d**3, 4)
    fit.reads((_PASSES_OF_SETUP + 2 * _N_REFINEMENTS) * n * d, fit.n_outputs)
    return fit.result("direct")


def _estimate_dsg(fit):
    e, d, k, size = fit.estimator, fit.d, fit.n_outputs, fit.itemsize
    held_out = int(np.ceil(e.validation_fraction * fit.n)) if e._holds_out(fit.n) else 0
    n = fit.n - held_out
    K = fit.matrix(n, n, symmetric=True)
    keep = 8.0 * n * k <= cache_budget(e.cache_size, K)
    F, m = e._sizes(n, keep_values=keep)
    fit.holds("data copy", n * d * size)
    fit.holds("targets", (8 + 3 * size) * n * k)
    rows = min(n, 20_000)
    _add_ridge(fit, fit.matrix(rows, rows, symmetric=True))
    # Steps of an epoch, and blocks that a batch evaluates: its own, and those since its
    # last visit, or all so far.
    steps = max(-(-n // m), 32)
    total = steps * e.max_iter
    most = (e.max_features or np.inf) // F
    blocks = min(n / m, most) if keep else min(total / 2, most)
    values = total * m * F * (1 + blocks)
    fit.products(values * (d + 2 * k), size)
    fit.seconds += values * CPU.function * size / 4 / fit.n_threads
    fit.flops += 2 * values
    fit.uses((2 * m * F + 2 * m * k) * size)
    return fit.result(e.algorithm, batch_size=m, n_epochs=e.max_iter)
