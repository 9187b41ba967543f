"""The sizes that "auto" means: centers, subsample, batch, eigenvectors, projections."""

import math
from bisect import bisect_right
from dataclasses import dataclass

from ..arrays import memory
from ..arrays.array import is_numpy, namespace
from ..arrays.devices import on_gpu
from ..arrays.machine import CPU, GPU, machine_of
from ..arrays.threads import n_cores
from ..operators.blocks import BLOCK_BYTES, cache_budget, cache_pays
from ..rows.lazy_rows import is_lazy

# Rows per thread below which the matrix product of a step loses speed. A
# preconditioner costs as much as a few hundred rows.
MIN_ROWS = 256
# Rows on which beta and lambda are measured. Steps divided by those measured on 8000 of
# 16000 rows, three draws from california_housing and a9a (laplacian, gaussian) and
# MNIST (laplacian): 0.4 to 1.4 with 500 rows, 0.5 to 1.5 with 1000, 0.65 to 1.1 with
# 2000, 0.9 to 1.1 with 4000 (but california_housing, gaussian: 1.3 to 1.65). Setup and
# one epoch take 1.3 to 2.1 times as long with 8000 as with 4000.
N_MEASURED = 4000
# Passes over the measured rows that take as long as measuring: eigenvalues take 13 to
# 20 products in ten fits, and a trial run 16 epochs, in which a product has 12 columns.
MEASURING_PASSES = 60
# Multiply-adds of the eigenvectors of an s x s matrix, divided by s^3. It predicts 0.1,
# 0.8 and 6.4 s on two cores for 1000, 2000 and 4000 rows; 100 to 500 eigenvectors take
# 0.10 to 0.15, 0.34 to 0.78 and 3.5 to 4.7 s (benchmarks/eigenvectors.py).
EIGENVECTOR_CUBES = 4.0
# Rows up to which a single factor is faster than epochs with their setup: on two cores
# 0.86 and 1.26 s for 7300 rows of 16 features; the factor's time grows as n^3.
_DIRECT_ROWS = 8000
# The number m of centers for n rows: all rows if a fit takes at most 35 seconds,
# enough for every method with 6000 rows on one core, or with 7300 on two (measured,
# these need at most two thirds of that). For more rows m = C n^1/2 log n, as in the
# papers on Nystrom and Falkon, or as many as a minute allows. With C = 5 that
# takes about as long as all rows at the first limit: with fewer centers a fit to a few
# more rows would be worse. Test error divided by that of all rows, 12 000 rows, C = 1,
# 3, 5: California 1.07, 1.01, 1.00; Covertype 1.40, 1.22, 1.12; MNIST 1.80, 1.36, 1.22.
# Not used for the choice, C = 3, 5: a9a 0.94, 0.94; ijcnn1 1.27, 1.14; Fashion-MNIST
# 1.09, 1.06; bike 1.26, 1.16.
_ALL_ROWS_SECONDS, _CENTERS_FACTOR = 35, 5
# Iterations that Falkon usually needs with many centers.
FALKON_ITERATIONS = 20
# Memory needed to measure on r rows, divided by r^2: six r x r matrices in float64.
_MEASURING_BYTES = 6 * 8


@dataclass(frozen=True)
class ClosedForm:
    """The memory that a fit takes in addition to its rows, in float64.

    With p centers, k matrices of p x p numbers at a time, blocks of b rows, and c other
    stored numbers, such as the candidates of a path, it is ::

        8 (k p^2 + 3 b p + c) + 2 min(8 n w, BLOCK_BYTES)

    where w numbers per row are p, and for a path 600 more, three for each penalty and
    column of its leave-one-out errors.

    Attributes
    ----------
    bytes : int
        These.
    work : float
        The time of the linear algebra, in multiply-adds of large float64 products.
    size : int
        p.
    bytes_of_squares : int
        8 k p^2.
    n_centers : int or None
        p; None for the full kernel.
    """

    bytes: int
    work: float
    size: int
    bytes_of_squares: int
    n_centers: int | None

    #: k, then work divided by p^3, and how often sums over the rows are computed, n p^2
    #: / 2 each. The k matrices are K_mm or its factor, R, sums over the training rows
    #: (and over the validation rows and both), whitened sums, eigenvectors and their
    #: workspace. The work is that of factors, whitening, eigenvectors of the training
    #: rows and of all rows; in logistic regression some Newton steps compute the sums
    #: again, the others only a factor. Seconds on two cores of an AMD EPYC, and those
    #: predicted at the rate of `arrays.machine`: 27 000 rows with 5000 and 8400 centers
    #: 12 and 45 s (15 and 53 s), a path with 5000 centers 29 s (30 s), 12 000 rows of
    #: the full kernel 9 s (14 s), a path of 7300 rows, by factors, 5 s (10 s); with all
    #: eigenvectors the last one takes three times as long as predicted.
    KINDS = {
        "ridge": (5, 2, 1),
        "path": (7, 7, 1),
        "full ridge": (3, 1 / 3, 0),
        "full path": (6, 1, 0),
        "falkon": (7, 2, 0),
        "logistic": (8, 15, 10),
        "full logistic": (8, 15, 0),
        "falkon logistic": (8, 15, 0),
    }

    @classmethod
    def make(cls, kind, n_centers, n_rows, *, validated=False, n_stored=0):
        """Return the form of a fit.

        Parameters
        ----------
        kind : str
            A key of `KINDS`.
        n_centers, n_rows : int
        validated : bool, default=False
            Whether sums over validation rows are kept.
        n_stored : int, default=0
            c.
        """
        n_squares, cubes, n_sums = cls.KINDS[kind]
        n_squares += 2 * validated
        n_block = min(int(BLOCK_BYTES // (8 * n_centers)) + 16, n_rows)
        squares = 8 * n_squares * n_centers**2
        # Leave-one-out errors have three numbers for each of 100 penalties, for a
        # column of targets and one of ones.
        width = n_centers + (600 if "path" in kind else 0)
        needed = squares + 8 * (3 * n_block * n_centers + n_stored)
        needed += 2 * min(8 * n_rows * width, BLOCK_BYTES)
        work = cubes * n_centers**3 + n_sums * n_rows * n_centers**2 / 2
        full = kind.startswith("full")
        shown = None if full else n_centers
        return cls(int(needed), work, n_centers, squares, shown)

    def check_memory(self, place):
        """Raise a ValueError unless the free memory of a device holds the fit."""
        needs = f"n_centers={self.n_centers} needs {self.bytes / 1e6:.0f} MB"
        if 4 * self.bytes_of_squares > self.bytes:
            needs += f", {self.bytes_of_squares / 1e6:.0f} of it for matrices of "
            needs += f"{self.size} x {self.size}"
        remedy = "pass a smaller n_centers"
        memory.check(self.bytes, place.xp, place.device, needs, remedy)


def default_n_centers(
    kind,
    X,
    n_columns,
    xp,
    device,
    *,
    centers="uniform",
    validated=False,
    n_stored=0,
    most=None,
):
    """Return m for least squares on centers, or None: all rows.

    All rows if that is fast; otherwise 5 n^1/2 log n centers, or as many as about a
    minute and half of the memory allow. If there is a limit `most`, all rows up to
    that; for more rows `most`, so that a fit to a few more rows has no fewer centers.

    Parameters
    ----------
    kind : {"ridge", "path", "falkon", "logistic", "falkon logistic"}
        The problem to solve, see `ClosedForm`.
    X : array or LazyRows of shape (n, d)
    n_columns : int
        Outputs.
    xp, device
        Where the fit computes.
    centers : str, default="uniform"
        How centers are chosen.
    validated : bool, default=False
        Whether there are validation rows.
    n_stored : int, default=0
        Candidates whose coefficients are stored.
    most : int, default=None
        Most centers with which a model offers all that it can.
    """
    n, d = X.shape
    machine, n_threads = (GPU, 1) if on_gpu(xp, device) else (CPU, n_cores())
    itemsize = namespace(X).finfo(X.dtype).bits // 8
    entry = machine.kernel_seconds(d, itemsize, n_threads)
    half = memory.installed(xp, device) / 2

    def costs(kind, p, n_evaluations):
        """Return seconds and bytes."""
        stored = 3 * p * n_stored * n_columns
        plan = ClosedForm.make(kind, p, n, validated=validated, n_stored=stored)
        seconds = machine.product_seconds(plan.work, 8, n_threads)
        return seconds + n_evaluations * n * p * entry, plan.bytes

    def too_many(p):
        """Whether p centers take too long or too much memory."""
        n_passes = FALKON_ITERATIONS if kind.startswith("falkon") else 1
        seconds, needed = costs(kind, p, n_passes)
        if centers == "rpcholesky":  # the columns of the centers, and their factor
            seconds += machine.product_seconds(n * p**2, 8, n_threads)
            needed += 16 * n * p
        return seconds > 60 or needed > half

    full = {"path": "full path", "ridge": "full ridge", "falkon": "full ridge"}
    seconds, needed = costs(full.get(kind, "full logistic"), n, 1)
    fast = seconds <= _ALL_ROWS_SECONDS and needed <= half and not is_lazy(X)
    if fast and (most is None or n <= most):
        return None
    if most is None:
        most = int(_CENTERS_FACTOR * n**0.5 * math.log(n))
    return max(1, bisect_right(range(1, min(n, most) + 1), False, key=too_many))


def auto_batch_size(largest, n_rows, least=1):
    """Return m: as many rows as keep the machine busy, at most an eighth of all.

    It is at least `least`, if there are that many rows.
    """
    return min(largest, max(n_rows // 8, min(n_rows, least)))


def n_sampled_rows(n_rows):
    """Return how many of the rows `tune_on_centers` needs.

    The eigenfunctions are fitted to some and the step is measured on others.
    """
    return min(n_rows, 2 * N_MEASURED)


def max_batch_size(
    operator, n_features, n_columns, n_rows=None, *, n_machines=1, message_seconds=0.0
):
    """Return m_G^max, the rows of a batch that the resource can hold and fill.

    With n centers, (d + l) m n = C_G fills it and (d + l + m) n = S_G fits its memory;
    a matrix product also needs some rows per thread. m is at most `n_rows` (None: n).
    Several machines multiply both limits, and a message adds to the fixed cost.
    """
    n, width = operator.shape[1], n_features + n_columns
    work = filling_work(operator)
    filling = max(work / (width * n), MIN_ROWS * n_cores_of(operator))
    entry = machine_of(operator).kernel_seconds(width, operator.itemsize, 1)
    # A message may take a twentieth of a step: larger batches save no more.
    filling = n_machines * max(filling, message_seconds / 0.05 / (n * entry))
    holding = n_machines * planned_bytes(operator) / operator.itemsize / n - width
    return int(max(1, min(filling, holding, n if n_rows is None else n_rows)))


def planned_bytes(place, cache_size="auto"):
    """Return the memory that a fit is planned for: half of it, or of the cache.

    What is free decides how a plan is carried out, and whether it can be.
    """
    if cache_size != "auto":
        return cache_size * 1e6
    return memory.installed(place.xp, place.device) / 2


def n_cores_of(place):
    """Return the threads that share a product, whatever limits them now."""
    return 1 if on_gpu(place.xp, place.device) else n_cores()


def filling_work(operator):
    """Return C_G, the multiply-adds that make the fixed cost of a step negligible."""
    return machine_of(operator).filling_work * 4 / operator.itemsize


def direct_pays(operator, cache_size):
    """Whether to solve a kernel machine directly: few rows, memory for a factor."""
    if operator.shape[0] > _DIRECT_ROWS or not operator.can_be_cached:
        return False
    return direct_bytes(operator) <= planned_bytes(operator, cache_size)


def direct_bytes(operator):
    """Return the memory of the matrices of a direct solution.

    Other libraries factorize a copy: with array-api-strict a fit to a given kernel
    matrix, in float64, took 3.5 times its memory.
    """
    return 8 * operator.shape[0] ** 2 * (1 if is_numpy(operator.xp) else 4)


def exact_bytes(n, p, itemsize):
    """Return the memory of K(X, Z) of n rows and p centers, and of two factors."""
    return itemsize * n * p + 16.0 * p * p


def direct_pays_on_centers(
    centers, n_rows, n_features, n_columns, n_epochs, cache_size
):
    """Whether a model on centers is solved faster directly than by epochs.

    The sums over the rows take n p^2 / 2 multiply-adds, and the linear algebra as long
    as about 2 p^3. The epochs include choosing preconditioner and step, computing or
    reading the kernel matrix in every epoch, and the projections. The matrices of the
    direct solution must fit into the cache.
    """
    (p, _), size, machine = centers.shape, centers.itemsize, machine_of(centers)
    plan, n_threads = ClosedForm.make("ridge", p, n_rows), n_cores_of(centers)
    budget = planned_bytes(centers, cache_size)
    if plan.bytes_of_squares > budget or plan.bytes > planned_bytes(centers):
        return False
    entry = machine.kernel_seconds(centers.feature_work * n_features, size, n_threads)
    value = entry + machine.product_seconds(n_columns, size, n_threads)
    # The kernel once for the sums, and once for the loss.
    direct = 2 * n_rows * p * value + machine.product_seconds(plan.work, 8, n_threads)
    may_be_cached = (p + n_features) * n_rows * size <= budget
    read = min(value, size / machine.read) if may_be_cached else value
    c, N = default_subsample_of_centers(p, n_rows, p), min(n_rows, N_MEASURED)
    epochs = machine.product_seconds(EIGENVECTOR_CUBES * c**3 + N * c**2, 8, n_threads)
    epochs += N * (N + 2 * c) * entry + MEASURING_PASSES * N * N * 4 / machine.read
    epochs += n_epochs * n_rows * p * read
    largest = max_batch_size(centers, n_features, n_columns, n_rows)
    m = auto_batch_size(largest, n_rows, MIN_ROWS)
    width = n_features, n_columns
    factor = factor_pays(centers, *width, n_epochs * n_rows, cache_size) or None
    interval = projection_interval(centers, factor, m, *width)
    work = projection_work(centers, factor, *width) / interval / m
    projections = machine.product_seconds(work, 4, n_threads)
    projections += m * (interval - 1) / 2 * value
    return direct <= epochs + n_epochs * n_rows * projections


def direct_pays_on_features(features, n_epochs):
    """Whether a linear model is solved faster directly than by epochs.

    The sums over the rows take n d^2 / 2 multiply-adds, and the factor, with the
    left-out rows, as long as about d^3. Eigenvectors, the runs that measure the step,
    and epochs take as long as their passes over the rows. With few features or rows a
    direct solution always pays: sparse and dense rows then have the same model.
    """
    (n, d), machine = features.shape, machine_of(features)
    if 4 * 8 * min(n, d) ** 2 > planned_bytes(features):
        return False
    # The products take some 4 s on two cores (10 000 x 4000).
    few = min(n, d) <= 2000 or n * d * min(n, d) <= 2e11
    if features.in_core and few:
        return True
    if d > n or not features.is_dense:
        return False
    n_threads = n_cores_of(features)
    direct = machine.product_seconds(0.5 * n * d**2 + d**3, 8, n_threads)
    # Eigenvectors take as long as 70 passes over the subsample, in fits to 300 x 10,
    # 5000 x 3000 and 400000 x 50 numbers.
    n_read = 70 * min(8 * d, n)
    n_read += MEASURING_PASSES * min(n, N_MEASURED) + 2 * n_epochs * n
    return direct <= n_read * d * features.itemsize / machine.read


def sizes_of_features(
    features, n_columns, alpha, batch_size, subsample_size, *, in_pieces=False
):
    """Return the largest useful batch, m and s.

    Parameters
    ----------
    features : CenteredFeatures or DaskMatrix
        Of n rows.
    n_columns : int
        Outputs.
    alpha : float
        The penalty.
    batch_size, subsample_size : int or "auto"
        As in the estimators.
    in_pieces : bool, default=False
        Whether the rows are a piece of the data; given sizes may then be above n.
    """
    n, d = features.shape
    work = filling_work(features)
    narrow = machine_of(features).narrow_product_work
    largest = max(int(work / (narrow * features.width * n_columns)), MIN_ROWS)
    m, s = batch_size, subsample_size
    if m == "auto":
        # With fewer features than rows, or with a penalty, a residual is left, whose
        # noise larger batches lower. More features can fit the rows, and converge
        # faster in more steps. So do pieces, which are seen once.
        leaves_residual = (n >= d or alpha > 0) and not in_pieces
        m = min(largest, n if leaves_residual else max(n // 8, 1))
    elif in_pieces:
        m = min(m, n)  # later pieces may be larger
    if s == "auto":
        s = default_subsample_size(n)
        if d < s:  # all directions can be estimated, from eight rows per feature
            s = min(max(s, 8 * d), n)
    elif in_pieces:
        s = min(s, n)
    return min(largest, n), m, s


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


def chosen_sizes(
    operator, largest_batch, subsample_size, n_components, batch_size, n_rows=None
):
    """Return s, q and m, with those chosen that are "auto"; q is the most to try.

    They are chosen for the first `n_rows` rows, or for all.

    Raises
    ------
    ValueError
        If a given one is impossible.
    """
    n, s, q, m = n_rows or operator.shape[0], subsample_size, n_components, batch_size
    if s == "auto":
        s = max(min(default_subsample_size(n), _affordable_rows(operator)), 1)
    check_sizes(n, s, q, m)
    if q == "auto":
        q = max_components(n, s, None)
    return s, q, auto_batch_size(largest_batch, n) if m == "auto" else m


def chosen_sizes_on_centers(centers, n_rows, n_sampled, subsample_size, n_components):
    """Return c, q and N of a sample, with those chosen that are "auto".

    Raises
    ------
    ValueError
        If a given one is impossible.
    """
    N, c, q = n_measured_rows(centers, n_sampled), subsample_size, n_components
    if c == "auto":
        n_affordable = max(_affordable_rows(centers), 1)
        c = default_subsample_of_centers(centers.shape[0], n_rows, n_affordable)
    check_at_most("subsample_size", c, centers.shape[0], "centers")
    if q == "auto":
        q = min(c - 1, max(N // 4, 1), 500)
        # With many centers the last eigenfunctions fit the noise of these rows: on
        # other rows they are much larger, on some enormous.
        if N < n_rows and N < 40 * c:
            q = min(q, max(c // 4, 1))
    if q >= c:
        raise ValueError(
            "n_components must be less than subsample_size, which is at most the "
            f"number of centers; got {q} with {c} of {centers.shape[0]} centers"
        )
    return c, q, N


def n_measured_rows(operator, n_rows):
    """Return N, the number of rows that beta and lambda are measured on."""
    return max(min(n_rows, N_MEASURED, _affordable_rows(operator)), 1)


def _affordable_rows(operator):
    """Return how many rows can be measured within the planned memory."""
    return int((planned_bytes(operator) / _MEASURING_BYTES) ** 0.5)


def tuning_bytes(n, subsample_size):
    """Return the memory that `tune` takes."""
    s = default_subsample_size(n) if subsample_size == "auto" else subsample_size
    return _MEASURING_BYTES * max(s, min(n, N_MEASURED)) ** 2


def default_subsample_size(n):
    """Return s for n rows: all rows of a small data set."""
    if n <= 1000:
        return n
    return min(max(1000, n // 6), 2000) if n < 100_000 else 4000


def default_subsample_of_centers(p, n_rows, n_affordable):
    """Return c, how many of p centers the preconditioner lives on."""
    return min(p, 2000 if n_rows < 100_000 else 4000, n_affordable)


def max_components(n, s, weights):
    """Return the most eigenvectors to try: half as many as rows in the subsample.

    If they are used on rows outside the subsample, a quarter. Rows with weights w count
    as (sum w)^2 / sum w^2 rows.
    """
    supported = s
    if weights is not None:
        xp = namespace(weights)
        total, squares = float(xp.sum(weights)), float(xp.sum(weights**2))
        supported = int(total * total / squares)
    return min(supported // (2 if s == n else 4), 500)


# Products that conjugate gradients usually need.
_N_PRODUCTS = 3


def factor_pays(centers, n_features, n_columns, n_rows, cache_size):
    """Whether a factor of the centers fits and is cheaper than iterating.

    The factor takes p^3 / 6 multiply-adds once (`Machine.factor_work` has their time)
    and 8 p^2 bytes. Conjugate gradients take three products with K(Z, Z), each of
    p^2 (d + l) multiply-adds, for every p rows that are learned.

    Parameters
    ----------
    centers : Matrix
        K(Z, Z).
    n_features, n_columns : int
    n_rows : float
        Rows to be learned, over all epochs.
    cache_size : float or "auto"
        As in the estimators: the factor counts.
    """
    p, machine = centers.shape[0], machine_of(centers)
    # The factor, and also the matrix if the library does not work in place.
    if 16.0 * p * p > planned_bytes(centers, cache_size):
        return False
    width = n_features + n_columns + machine.function_work
    return machine.factor_work(p) <= _N_PRODUCTS * p * width * n_rows


def projection_interval(centers, factor, m, n_features, n_columns):
    """Return T, the batches between projections for which a batch is cheapest.

    Temporary centers add m^2 T (d + l) / 2 multiply-adds to a batch, taken as
    m^2 T (d + 2 l) / 2 here, and its share of a projection is C / T. T is at most
    p / m, so that there are no more temporary centers than others.
    """
    width = n_features + 2 * n_columns + machine_of(centers).function_work
    cost = projection_work(centers, factor, n_features, n_columns)
    best = (2.0 * cost / (m * m * width)) ** 0.5
    return int(max(1, min(round(best), centers.shape[0] // m)))


def projection_work(centers, factor, n_features, n_columns):
    """Return C, the time of a projection in multiply-adds.

    A product of conjugate gradients has p^2 (d + l), taken as p^2 (d + 2 l) here.
    """
    p, machine = centers.shape[0], machine_of(centers)
    if factor:
        return p * p * (machine.factor_reading_work + n_columns)
    width = n_features + 2 * n_columns + machine.function_work
    return _N_PRODUCTS * p * p * width


def factorizes(place, form, sizes, itemsize, max_iter, cache_size):
    """Whether NYTRO's path is faster by a factorization, which fits, than by iterating.

    Parameters
    ----------
    place : object with xp and device
        Where the fit is computed.
    form : ClosedForm
        Of the factorization.
    sizes : tuple of int
        Rows n, centers p (None: all rows), features and outputs.
    itemsize : int
        Bytes of a value of the kernel; the linear algebra is in float64.
    max_iter : int or None
        None: no limit.
    cache_size : float or "auto"
    """
    if form.bytes > planned_bytes(place):
        return False
    if max_iter is None:
        return True
    n, p, n_features, n_outputs = sizes
    machine, p, n_threads = machine_of(place), p or n, n_cores_of(place)
    work = ClosedForm.make("path", p, n).work
    factorizing = machine.product_seconds(work, 8, n_threads)
    # Seconds per value of the kernel: two products, and to compute or read it.
    entry = machine.product_seconds(2 * n_outputs, 8, n_threads)
    entry += machine.convert / n_threads
    if n * p * itemsize <= planned_bytes(place, cache_size):
        entry += itemsize / machine.read
    else:
        entry += machine.kernel_seconds(n_features, itemsize, n_threads)
    return factorizing < 2 * max_iter * n * p * entry


def keeps_rows(K, cache_size, n_epochs, n_features):
    """Whether to keep K = K(X, Z) and X in memory: they fit, and keeping them pays."""
    n, p = K.shape
    needed = (p + n_features) * n * K.itemsize
    if needed > cache_budget(cache_size, K) or K.factored or not K.can_be_cached:
        return False
    return cache_size != "auto" or cache_pays(n_epochs, n_features, K)


def rounding(xp, dtype, n):
    """Return the rounding error of an n x n kernel matrix over its trace.

    The errors of the entries are practically random: their norm grows like n^1/2, that
    of the matrix like n.
    """
    # Measured in units of eps n^-1/2: 0.3 to 27, median 1.5 (300 and 1000 rows of four
    # data sets, three kernels, bandwidths of 0.5 to 32 median distances, both
    # precisions); above 10 only for the laplacian on california_housing. A multiple of
    # K does not count as an error.
    return 10 * float(xp.finfo(dtype).eps) / n**0.5
