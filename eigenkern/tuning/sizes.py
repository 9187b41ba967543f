"""The sizes that "auto" means: subsample, batch, eigenvectors."""

import math
import time

from ..backend import memory
from ..backend.array import namespace
from ..backend.devices import on_gpu
from ..backend.linalg import large_product
from ..kernels import Gaussian
from ..operators.tiled import TiledKernel

# Part of a step's time that its fixed cost may be.
_FIXED_COST = 0.05
# Rows per thread below which the matrix product of a step loses speed. A
# preconditioner costs as much as a few hundred rows do.
MIN_ROWS = 256
# Rows on which beta and lambda are measured.
N_MEASURED = 4000
# Bytes that r rows take to measure: half the free memory may be six matrices of r x r
# in float64.
_BYTES_A_SQUARE = 2 * 6 * 8


def n_sampled_rows(n_rows):
    """Return how many of the rows `tune_on_centers` looks at.

    The eigenfunctions are fitted to some and the step is measured on others.
    """
    return min(n_rows, 2 * N_MEASURED)


def max_batch_size(operator, n_features, n_columns, n_rows=None):
    """Return m_G^max, the rows of a batch that the resource can hold and fill.

    (d + l) m n = C_G fills it and (d + l + m) n = S_G fits its memory, with n centers;
    besides, a matrix product needs some rows for each thread. At most `n_rows` (None:
    n).
    """
    n, width = operator.shape[1], n_features + n_columns
    work = filling_work(operator.xp, operator.device, operator.dtype)
    filling = max(work / (width * n), MIN_ROWS * operator.n_workers)
    free = memory.available(operator.xp, operator.device)
    holding = free / operator.itemsize / n - width
    return int(max(1, min(filling, holding, n if n_rows is None else n_rows)))


def filling_work(xp, device, dtype):
    """Return C_G, multiply-adds beside which the fixed cost of a step is negligible.

    It is the machine's rate of matrix products times the seconds of a product so small
    that there is nothing to compute, over the part that these may be. Measured once a
    process, in some 50 ms, and rounded to a power of 4 times 5e8, so that noise in the
    measurement seldom changes what is chosen.
    """
    key = xp.__name__, str(device), str(dtype)
    if key not in _measured_work:
        work = _measure_filling_work(xp, device, dtype)
        _measured_work[key] = 5e8 * 4.0 ** round(math.log(work / 5e8, 4))
    return _measured_work[key]


_measured_work = {}


def _measure_filling_work(xp, device, dtype):
    def best_seconds(function):
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            float(function()[0, 0])  # waits for a GPU
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    size = 8192 if on_gpu(xp, device) else 1024  # as many as reach the full rate
    A = xp.ones((size, size), dtype=dtype, device=device)
    rate = size**3 / best_seconds(lambda: large_product(A, A))
    tiny = TiledKernel(Gaussian(), A[:64, :2])
    with tiny.exclusive_threads():
        fixed = best_seconds(lambda: tiny @ A[:64, :1])
    return rate * fixed / _FIXED_COST


def check_sizes(n, subsample_size, n_components, batch_size):
    """Raise a ValueError if a size is impossible for `n` training rows."""
    s = default_subsample_size(n) if subsample_size == "auto" else subsample_size
    check_at_most("subsample_size", s, n, "training rows")
    if batch_size != "auto":
        check_at_most("batch_size", batch_size, n, "training rows")
    if n_components != "auto" and n_components >= s:
        raise ValueError(
            f"n_components must be less than subsample_size; got {n_components} with a "
            f"subsample of {s} of {n} training rows"
        )


def check_at_most(name, value, largest, noun):
    """Raise a ValueError if a size is too large."""
    if value > largest:
        raise ValueError(f"{name} must be at most {largest}, the {noun}; got {value}")


def affordable_rows(operator):
    """Return how many rows the free memory allows to measure."""
    free = memory.available(operator.xp, operator.device)
    return int((free / _BYTES_A_SQUARE) ** 0.5)


def tuning_bytes(n, subsample_size):
    """Return the free memory in which `tune` need not take fewer rows."""
    s = default_subsample_size(n) if subsample_size == "auto" else subsample_size
    return _BYTES_A_SQUARE * max(s, min(n, N_MEASURED)) ** 2


def default_subsample_size(n):
    """Return s for n rows: all of a small data set, where nothing need be estimated."""
    if n <= 1000:
        return n
    return min(max(1000, n // 6), 2000) if n < 100_000 else 4000


def max_components(n, s, weights):
    """Return the most eigenvectors to try: half of what the subsample can support.

    A quarter where they are fitted to it and used on other rows. Rows of weight w count
    as (sum w)^2 / sum w^2 rows.
    """
    supported = s
    if weights is not None:
        xp = namespace(weights)
        total, squares = float(xp.sum(weights)), float(xp.sum(weights**2))
        supported = int(total * total / squares)
    return min(supported // (2 if s == n else 4), 500)
