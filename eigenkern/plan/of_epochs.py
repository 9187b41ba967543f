"""Plans of EigenPro on all rows, on centers and on features."""

from ..arrays import memory
from ..arrays.array import is_numpy
from ..arrays.machine import CPU
from ..centers.choice import bytes_of_choice
from ..methods.krylov import krylov_pays
from ..methods.step_search import StepSearch
from ..operators.cached import cached_bytes, fit_in_memory
from ..preconditioners.global_spectral import bytes_of_vectors
from ..rows.dask_rows import DaskRows
from ..rows.lazy_rows import is_lazy
from .costs import FACTOR_CUBES, Costs
from .parameters import (
    chooses_penalty,
    chosen_algorithm,
    given_penalty,
    has_twin,
    is_auto,
    may_be_direct,
    stops_early,
)
from .penalty import (
    MOST_JUDGES,
    ROWS_LEFT_OUT,
    TOO_FEW_ROWS,
    n_fitted_of_features,
    n_ridge_rows,
)
from .sizes import (
    EIGENVECTOR_CUBES,
    MEASURING_PASSES,
    MIN_ROWS,
    N_MEASURED,
    ClosedForm,
    auto_batch_size,
    check_at_most,
    chosen_sizes,
    chosen_sizes_on_centers,
    direct_bytes,
    direct_pays,
    direct_pays_on_centers,
    exact_bytes,
    factor_pays,
    keeps_rows,
    max_batch_size,
    max_components,
    n_measured_rows,
    n_sampled_rows,
    projection_interval,
    projection_work,
    sizes_of_features,
    tuning_bytes,
)

# What the parts of fits cost; benchmarks/estimates.py shows how accurate it is.

# How far the penalty of a direct solution on centers is above the rounding of the
# kernel's values: with 1, 3 and 10 times that the errors of three bandwidths were up to
# 1.50, 1.05 and 1.006 times those of rows in double precision (2000 x 6, 200 centers).
RESOLVED = 10
# Factors that choose a penalty on a subsample, for half its rows and for all of them.
N_FACTORS = 4
# Work of a path with all eigenvectors, over that in `ClosedForm`.
ALL_EIGENVECTORS = 3
# Products with the kernel matrix that refine a direct solution.
_N_REFINEMENTS = 3
# Work of half of F' F, in slower pieces, over that of the whole product.
_HALF_PRODUCT = 0.8


@memory.read_once()
def plan_on_rows(shape, *, direct=True, n_learned=None):
    """Return the plan of a kernel machine; `direct` says whether it may be solved so.

    A twin learns `n_learned` of the rows; None: all distinct ones but those held out.

    Chosen besides: whether a factor `fits`; for epochs, `sizes`: s, the most q, m and
    the largest m; the bytes of matrices that are `kept`, and whether that comes
    `first`, before the tuning.
    """
    e, n, held_out = shape.estimator, shape.n_train, shape.n_held_out
    k, size = shape.n_outputs, shape.itemsize
    fit, K = Costs(shape), shape.matrix(n, n, symmetric=True)
    fit.holds("data copy", n * shape.row_bytes)
    if not shape.precomputed:
        fit.holds("centers", n * K.row_width * size)
    fit.holds("targets", (8 + 2 * size) * n * k)
    add_ridge(fit, shape, K)
    fits = direct_pays(K, e.cache_size)
    if direct and fits and may_be_direct(e) and not held_out:
        _add_factor(fit, shape, K)
        return fit.plan("direct", n_centers=shape.n, fits=fits)
    q = 0 if e.algorithm == "sgd" else e.n_components
    largest = max_batch_size(K, shape.d, k)
    if n_learned is None:
        n_learned = n - held_out if has_twin(e) else n
    s, q, m = chosen_sizes(K, largest, e.subsample_size, q, e.batch_size, n_learned)
    q = _of_first_epoch(shape, q)
    operators = [K]
    if held_out:
        operators.append(shape.matrix(held_out, n))
    extra = int(e.algorithm == "eigenpro1")  # one more product for eigenvectors
    kept = cached_bytes(operators, e.cache_size, e.max_iter + extra, shape.d)
    # The tuning reads blocks of the kernel matrix: it is kept first, if this leaves
    # enough memory for the tuning.
    first = bool(extra) or fit_in_memory(operators, tuning_bytes(n, e.subsample_size))
    for n_bytes in kept:
        if n_bytes:
            fit.keeps(n_bytes)
    in_memory = kept[0] is not None
    add_tuning(fit, shape, K, s, q, in_memory)
    n_vectors = n if extra else s
    if extra:
        fit.asks(bytes_of_vectors(K, s, q, e.svd_solver))
    fit.holds("preconditioner", 2 * n_vectors * q * size)
    if extra:
        fit.entries(n * s)
        fit.products(n * s * q, size)
    # Epochs.
    sides, columns = _race(shape, n, m)
    add = fit.reads if in_memory else fit.entries
    add(e.max_iter * n * (n + held_out), columns / e.max_iter)
    fit.products(columns * (n * n_vectors + n / m * 2 * s * q), size)
    fit.uses(4 * n * k * sides * size + m * s * size + fit.tiles(K, m))
    return fit.plan(
        chosen_algorithm(e),
        n_centers=shape.n,
        batch_size=m,
        n_epochs=e.max_iter,
        fits=fits,
        sizes=(s, q, m, largest),
        kept=kept,
        first=first,
    )


@memory.read_once()
def plan_on_centers(
    shape, p, *, direct=True, needed=False, n_rows=None, n_epochs=None, batch_size=None
):
    """Return the plan of a model on p centers; `direct` as in `plan_on_rows`.

    `needed` says that there must be a direct solution, whatever it costs.
    `n_rows` are those of an epoch, infinite for a stream, and `batch_size` that of
    earlier pieces. Chosen besides, for epochs: whether a `factor` projects, or
    conjugate gradients; T, the `interval` of projections, and whether `every_step` is
    projected exactly; `sizes`: c, the most q, N and the largest m; whether K(X, Z) and
    the rows are `kept`.
    """
    e, k, size = shape.estimator, shape.n_outputs, shape.itemsize
    n, d, epochs = shape.n_train, shape.d, n_epochs or e.max_iter
    n_rows = n if n_rows is None else n_rows
    fit, Z = Costs(shape), shape.matrix(p, p, symmetric=True)
    fit.asks(bytes_of_choice(e.centers, n, p))
    fit.holds("centers", p * (d + Z.row_width) * size)
    fit.holds("targets", (8 + size) * n * k)
    if e.algorithm == "eigenpro3-exact" and not needed:
        return _exactly_on_centers(fit, shape, p)
    n_sampled = n_sampled_rows(n)
    sample = shape.matrix(n_sampled, n_sampled)
    add_ridge(fit, shape, sample, n_sampled * Z.row_width * size)
    if direct and needed:
        return _directly_on_centers(fit, shape, p)
    direct = direct and not (shape.n_held_out or is_lazy(shape.X))
    if direct and may_be_direct(e):
        if direct_pays_on_centers(Z, n, d, k, e.max_iter, e.cache_size):
            return _directly_on_centers(fit, shape, p)
    largest = max_batch_size(
        Z,
        d,
        k,
        n_rows=min(n_rows, 1e9),
        n_machines=shape.n_machines,
        message_seconds=shape.message_seconds,
    )
    m = e.batch_size if batch_size is None else batch_size
    if is_auto(m):
        # With fewer centers than rows a residual remains, and larger batches reduce
        # its noise. For a stream, the first rows determine the size.
        m = auto_batch_size(largest, n, MIN_ROWS)
    else:
        check_at_most("batch_size", m, n_rows, "training rows")
    sizes = e.subsample_size, e.n_components
    c, q, N = chosen_sizes_on_centers(Z, n_rows, n_sampled, *sizes)
    q = _of_first_epoch(shape, q)
    # Of a stream of unknown length 100 rows per center: more would change no decision.
    # A Cholesky factor, p^3 / 6 multiply-adds, then pays up to at least p = 1800 (d +
    # l) centers (`factor_pays`): 18 000 if d + l = 10, where it takes 5 GB.
    n_learned = min(n_rows * epochs, 100 * p)
    factor = factor_pays(Z, d, k, n_learned, e.cache_size)
    interval = 1
    if e.algorithm != "eigenpro3":
        interval = projection_interval(Z, factor, m, d, k)
    _add_projection(fit, size, p, q, factor)
    # Preconditioner and step.
    whitened, every_step = 0, factor and interval == 1 and p <= n
    if every_step:
        whitened = n_sampled * p * size
        fit.products(n_sampled * p * p / 2)
        fit.uses(whitened + 2 * n_sampled * p * 8)
    _add_sample(fit, size, c, N, q, whitened)
    K = shape.matrix(n, p)
    kept = n_rows == n and not isinstance(shape.X, DaskRows)
    kept = kept and keeps_rows(K, e.cache_size, epochs, d)
    if kept:
        fit.holds("data copy", n * shape.row_bytes)
        fit.keeps(n * p * size)
    # Epochs: rows and centers, temporary centers, corrections, projections.
    (fit.reads if kept else fit.entries)(epochs * n * p, 2 * k)
    fit.entries(epochs * shape.n_held_out * p, k)
    fit.entries(epochs * n * m * (interval - 1) / 2, 2 * k)
    fit.products(epochs * n * c * k, size)
    work = projection_work(Z, factor, d, k)
    fit.products(epochs * n / m / interval * work, 4)
    fit.uses(m * (d + c + interval * m) * size + fit.tiles(Z, m) + 8 * p * k * size)
    return fit.plan(
        chosen_algorithm(e),
        n_centers=p,
        batch_size=m,
        n_epochs=epochs,
        sizes=(c, q, N, largest),
        factor=factor,
        interval=interval,
        every_step=every_step,
        n_learned=n_learned,
        kept=kept,
    )


def _directly_on_centers(fit, shape, p):
    """Return the plan of the normal equations of a model on centers."""
    n, k, alpha = shape.n_train, shape.n_outputs, given_penalty(shape.estimator)
    if alpha > 0 and shape.drowns(alpha / RESOLVED, p):
        shape = shape.in_double
        fit.holds("data copy", n * shape.d * shape.kernel_itemsize)
    K = shape.matrix(n, p)
    fit.holds("targets", 8 * n * (2 * k + 1))
    fit.holds("centers", p * (shape.d + K.row_width) * shape.kernel_itemsize)
    add_normal_equations(fit, shape, "ridge", K)
    fit.entries(n * p, k)
    if shape.labels:  # to find rows that are not centers
        fit.finds_equal_rows()
        fit.finds_equal_rows()
    return fit.plan("direct", n_centers=p)


def _exactly_on_centers(fit, shape, p):
    """Return the plan of full-batch steps that are projected exactly."""
    e, n, k, size = shape.estimator, shape.n_train, shape.n_outputs, shape.itemsize
    rows = shape.matrix(n, n, symmetric=True)
    s, q, _ = chosen_sizes(rows, n, e.subsample_size, e.n_components, n)
    q = _of_first_epoch(shape, q)
    fit.holds("data copy", 2 * n * shape.row_bytes)
    fit.asks(exact_bytes(n, p, size))
    fit.holds("preconditioner", 8 * p * p + n * q * size)
    add_tuning(fit, shape, rows, s, q, False)
    fit.entries(n * s + n * p + p * p)
    fit.holds("kernel matrix", n * p * size)
    fit.uses(16 * p * p)
    fit.products(CPU.factor_work(p), 4)
    fit.reads(e.max_iter * n * (2 * p + 2 * q), k)
    return fit.plan(
        e.algorithm,
        n_centers=p,
        batch_size=n,
        n_epochs=e.max_iter,
        sizes=(s, q, n, n),
    )


@memory.read_once()
def plan_on_features(shape, features, alpha, direct):
    """Return the plan of a linear model, solved directly if `direct` says so.

    `features` are the centered rows, `alpha` is the penalty. Chosen besides, for
    epochs, are `sizes`: the largest m, m and s.
    """
    e, d, k, size = shape.estimator, shape.d, shape.n_outputs, shape.itemsize
    n, fit = features.shape[0], Costs(shape)
    fit.holds("data copy", n * shape.row_bytes)
    fit.holds("targets", (8 + 2 * size) * n * k)
    if direct:
        return _directly_on_features(fit, shape, features)
    _add_ridge_of_features(fit, shape, features)
    given = alpha, e.batch_size, e.subsample_size
    sizes = _, m, s = sizes_of_features(features, k, *given)
    q = max_components(n, s, None) if is_auto(e.n_components) else e.n_components
    q = min(q, s - 1, d)
    fit.holds("preconditioner", d * q * size)
    N, narrow = min(n, N_MEASURED), CPU.narrow_product_work
    sample = 2 * s * d if features.is_dense else 3 * min(s, d) ** 2
    fit.uses((sample + 2 * N * q) * size)
    fit.products(EIGENVECTOR_CUBES * min(s, d) ** 3)
    fit.products(s * d * min(s, d), size)
    fit.reads(2 * MEASURING_PASSES * N * d, 12)
    _, columns = _race(shape, n, m)
    fit.products(columns * min(2 * n * d, n * d * narrow), size)
    fit.reads(e.max_iter * 2 * n * d)
    fit.products(columns * n / m * 2 * q * d, size)
    return fit.plan("eigenpro", batch_size=m, n_epochs=e.max_iter, sizes=sizes)


def _directly_on_features(fit, shape, X):
    """Return the plan of a factor of F' F or F F', and a chosen penalty."""
    (n, d), k, size = X.shape, shape.n_outputs, shape.itemsize
    left = min(max(n / 8, 300), 4000)
    _add_ridge_of_features(fit, shape, X)
    if d >= n:  # the rows in double precision
        fit.uses((n * d + 3 * n * n) * 8)
        fit.products(_HALF_PRODUCT * n * n * d + FACTOR_CUBES * n**3, 8)
    else:
        converted = 4 if size == 8 else 0
        block = X.gram_rows() * d * (size + converted) if X.is_dense else 24 * d * d
        fit.uses(block + (d + left * X.is_dense) * 3 * d * 4)
        fit.products(_HALF_PRODUCT * (n + left) * d * d + FACTOR_CUBES * d**3, 4)
    # Eight passes over the rows for means, copies and the loss.
    fit.reads((8 + 2 * _N_REFINEMENTS) * n * d, k)
    return fit.plan("direct")


# Parts


def _add_ridge_of_features(fit, shape, X):
    """Add a search for the penalty, in single precision as it usually allows."""
    if not chooses_penalty(shape.estimator):
        return
    (n, d), k = X.shape, shape.n_outputs
    s = n_fitted_of_features(n, d)
    fewer, judges = min(s, d), min(n - s, MOST_JUDGES)
    if d < s:  # rows and judges as they are centered; systems in both precisions
        fit.uses(max(8 * d * (s + 2 * judges), 12 * d * (s + d)))
    elif X.is_dense:  # rows and their inner products
        fit.uses(8 * ((s + min(s + judges, 4096)) * d + s * (s + judges)))
    else:  # inner products, sparse and dense, as they are centered
        fit.uses(36 * s * (s + judges))
    fit.products(_HALF_PRODUCT * s * d * fewer + N_FACTORS * FACTOR_CUBES * fewer**3, 4)
    fit.reads(N_FACTORS * (judges * d + 2 * fewer**2), k, 4)


def _of_first_epoch(shape, q):
    """Return q, or a smaller number of eigenvectors with early stopping.

    The first epoch fits all of these directions, and no held-out row can undo it. On
    noisy waves, steps and planes, with smooth kernels and 300 to 2000 rows, squared
    errors are 1.08 to 1.19 times those of the automatic penalty with a fifteenth of the
    rows, 1.07 to 1.15 times with a twentieth, which finds a rare class less well, and
    1.3 to 2.9 times with up to half.
    """
    e = shape.estimator
    if not stops_early(e) or not is_auto(e.n_components):
        return q
    return min(q, max(shape.n_train // 15, 10))


def _race(shape, n, m):
    """Return the models of a race on n rows, and the product columns of all epochs."""
    e, k = shape.estimator, shape.n_outputs
    sides = StepSearch(k, -(-n // m), tries=is_auto(e.step_size)).n_sides
    n_models = 2 if shape.n_held_out and has_twin(e) else 1
    # A race of six sides takes 16 more epochs, summed over all sides but the first:
    # most are dropped early (`methods.step_search`).
    columns = n_models * k * (e.max_iter + 16 * (sides - 1) / 5)
    return n_models * sides, columns


def add_ridge(fit, shape, K, n_bytes=0.0):
    """Add the choice of a penalty on a subsample, if a fit chooses one.

    K is the kernel matrix of rows that take `n_bytes` on top of what is held.
    """
    n, size = K.shape[0], shape.itemsize
    if not chooses_penalty(shape.estimator) or n < TOO_FEW_ROWS:
        return
    if n <= ROWS_LEFT_OUT:  # one by one
        fit.entries(n * n)
        fit.products(EIGENVECTOR_CUBES * n**3, size)
        fit.uses(4 * n * n * size + fit.tiles(K) + n_bytes)
        return
    s, judges = n_ridge_rows(K, shape.labels)
    judges = min(judges, max(K.shape[0] - s, 0))
    fit.entries((s + judges) * s)
    fit.products(N_FACTORS * FACTOR_CUBES * (s**3 + (s / 2) ** 3), size)
    fit.products(2 * N_FACTORS * judges * s * shape.n_outputs, size)
    fit.uses((s + judges + 2 * s) * s * size + fit.tiles(K, s) + n_bytes)


def _add_factor(fit, shape, K):
    """Add a factor of the kernel matrix, in the precision that most penalties need."""
    n, k, size = K.shape[0], shape.n_outputs, shape.itemsize
    fit.asks(direct_bytes(K))
    fit.holds("kernel matrix", n * n * size)
    fit.uses(fit.tiles(K) + 3 * (n / 8) ** 2 * size + 8 * n * k * 4)
    # NumPy's factor keeps the matrix in its other triangle.
    n_evaluated = 0.5 if is_numpy(K.xp) else 0.5 + _N_REFINEMENTS
    fit.entries(n_evaluated * n * n, k)
    fit.touches(n * n * size)
    fit.products(FACTOR_CUBES * n**3, size)


def add_tuning(fit, shape, K, s, q, kept):
    """Add preconditioner and step: eigenvectors of s rows, measured on other rows."""
    size, n = shape.itemsize, K.shape[0]
    N = n_measured_rows(K, n)
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


def _add_projection(fit, size, p, q, factor):
    """Add the projection onto p centers: a Cholesky factor, or q eigenvectors."""
    if not factor:
        fit.holds("preconditioner", p * 2 * q * size)
        return
    fit.uses(3 * 8 * p * p)
    fit.holds("preconditioner", 8 * p * p)
    fit.entries(p * p / 2)
    fit.products(CPU.factor_work(p), 4)


def _add_sample(fit, size, c, N, q, whitened):
    """Add q eigenvectors of c centers, measured on N rows, and `whitened` bytes."""
    fit.entries(c * c / 2 + 2 * N * c + N * N)
    fit.products((EIGENVECTOR_CUBES + FACTOR_CUBES) * c**3)
    fit.products(N * c * c)
    _add_measuring(fit, N, q)
    fit.uses(8 * (2 * c * c + 4 * N * c) + whitened)
    fit.uses((N * N + 2 * N * q) * size + 4 * N * N * (size == 8) + whitened)
    fit.holds("preconditioner", c * q * size)


def add_normal_equations(fit, shape, kind, K, holds_out=False):
    """Add factors, and sums over all rows, with the matrix K of the training rows."""
    # Sums over the rows pass through a buffer, while L of the centers and the sums are
    # in memory. Freed tiles stay with their threads. While the models are computed, the
    # plan has room for one matrix more than was seen in use, and for one more yet where
    # a path on held-out rows takes factors in place.
    p, n_block = K.shape[1], K.gram_rows()
    form = ClosedForm.make(kind, p, shape.n, validated=holds_out)
    square = 8 * p * p
    tiles = fit.tiles(K, n_block)
    fit.holds("tiles", tiles)
    fit.uses(8 * p * n_block + 2 * square)
    by_factors = kind == "path" and holds_out and krylov_pays(p, shape.n_outputs)
    fewer = 2 if by_factors else 1
    n_squares, cubes, n_sums = ClosedForm.KINDS[kind]
    n_squares += 2 * holds_out - fewer
    fit.uses(n_squares * square - tiles / 2)  # about half of the tiles serve again
    fit.holds("preconditioner", square)
    # Panels of blocks of rows take longer than large products with as many
    # multiply-adds: 1.3 to 1.6 times in 24 fits on cpusmall, a9a and covtype, but 1.8
    # to 2.7 times in fits of less than a second.
    fit.slowness = 1.4
    fit.entries(n_sums * shape.n * p + p * p / 2)
    fit.products(form.work)
    if kind == "path" and not by_factors:
        fit.products((ALL_EIGENVECTORS - 1) * cubes * p**3)
    fit.products(FACTOR_CUBES * p**3)
    fit.slowness = 1.0
