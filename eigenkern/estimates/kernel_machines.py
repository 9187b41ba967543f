"""Kernel machines: EigenPro on all rows and on centers."""

from ..backend.machine import CPU
from ..centers import METHODS
from ..estimators.base import given_penalty, stops_early
from ..estimators.learner import chosen_interval, n_learned_rows
from ..estimators.tuned import chosen_algorithm, has_own_centers, may_be_direct
from ..estimators.validation import check_centers, is_auto
from ..nystrom.plan import NystromPlan
from ..operators.cached import cached_bytes
from ..problems.general import keeps_rows
from ..tuning.projection import factor_pays, projection_work
from ..tuning.sizes import (
    EIGENVECTOR_CUBES,
    MIN_ROWS,
    auto_batch_size,
    chosen_sizes,
    chosen_sizes_on_centers,
    default_subsample_size,
    direct_pays,
    direct_pays_on_centers,
    max_batch_size,
    n_sampled_rows,
)
from .parts import (
    FACTOR_CUBES,
    N_REFINEMENTS,
    add_measuring,
    add_normal_equations,
    add_ridge,
    add_tuning,
    race,
)


def estimate_eigenpro(fit):
    e = fit.estimator
    held_out = fit.n_held_out(stops_early(e))
    n = fit.n - held_out
    if has_own_centers(e):
        return _estimate_general(fit, n, held_out)
    k, size = fit.n_outputs, fit.itemsize
    K = fit.matrix(n, n, symmetric=True)
    fit.holds("data copy", n * fit.d * size)
    if not fit.precomputed:
        fit.holds("centers", n * K.row_width * size)
    fit.holds("targets", (8 + 2 * size) * n * k)
    add_ridge(fit, K)
    if may_be_direct(e) and direct_pays(K, e.cache_size):
        return _direct(fit, K)
    q = 0 if e.algorithm == "sgd" else e.n_components
    largest = max_batch_size(K, fit.d, k)
    s, q, m = chosen_sizes(K, largest, e.subsample_size, q, e.batch_size)
    operators = [K]
    if held_out:
        operators.append(fit.matrix(held_out, n))
    extra = int(e.algorithm == "eigenpro1")
    sizes = cached_bytes(operators, e.cache_size, e.max_iter + extra, fit.d)
    for n_bytes in sizes:
        if n_bytes:
            fit.keeps(n_bytes)
    kept = sizes[0] is not None
    add_tuning(fit, K, s, q, kept)
    n_vectors = n if extra else s
    fit.holds("preconditioner", 2 * n_vectors * q * size)
    if extra:
        fit.entries(n * s)
        fit.products(n * s * q, size)
    # Epochs.
    sides, columns = race(fit, n, m)
    per_epoch = n * (n + held_out)
    add = fit.reads if kept else fit.entries
    add(e.max_iter * per_epoch, columns / e.max_iter)
    corrected = n * n_vectors + n / m * 2 * s * q
    fit.products(columns * corrected, size)
    fit.uses(4 * n * k * sides * size + m * s * size + fit.tiles(K, m))
    return fit.result(
        chosen_algorithm(e), n_centers=fit.n, batch_size=m, n_epochs=e.max_iter
    )


def _direct(fit, K):
    """Return the estimate for one factor of the kernel matrix."""
    e, n, size = fit.estimator, K.shape[0], fit.itemsize
    # In single precision if the penalty is above the rounding.
    factor_size = 8 if given_penalty(e) > 0 and size == 8 else 4
    fit.holds("kernel matrix", n * n * factor_size)
    left = n / 8
    fit.uses(fit.tiles(K) + 3 * left**2 * factor_size + 8 * n * fit.n_outputs * 4)
    fit.entries(n * n / 2 + N_REFINEMENTS * n * n, fit.n_outputs)
    fit.touches(n * n * factor_size)
    fit.products(FACTOR_CUBES * n**3, factor_size)
    return fit.result("direct", n_centers=fit.n)


def _estimate_general(fit, n, held_out):
    e, k, size = fit.estimator, fit.n_outputs, fit.itemsize
    centers = check_centers(e.centers, fit.data.X, METHODS)
    p = min(e.n_centers or n, n) if centers is None else centers.shape[0]
    Z = fit.matrix(p, p, symmetric=True)
    K = fit.matrix(n, p)
    fit.holds("centers", p * (fit.d + Z.row_width) * size)
    fit.holds("targets", (8 + size) * n * k)
    n_sampled = n_sampled_rows(n)
    sample = fit.matrix(n_sampled, n_sampled)
    add_ridge(fit, sample, n_sampled * Z.row_width * size)
    alpha = given_penalty(e)
    direct = may_be_direct(e) and not (alpha > 0 and fit.drowns(alpha, p))
    if direct and direct_pays_on_centers(Z, n, fit.d, k, e.max_iter, e.cache_size):
        return _estimate_direct_on_centers(fit, K)
    n_learned = n_learned_rows(Z, n, e.max_iter)
    factor = factor_pays(Z, fit.d, k, n_learned, e.cache_size) or None
    largest = max_batch_size(Z, fit.d, k, n_rows=n)
    m = auto_batch_size(largest, n, MIN_ROWS) if is_auto(e.batch_size) else e.batch_size
    c, q, N = chosen_sizes_on_centers(Z, n, n_sampled, e.subsample_size, e.n_components)
    if e.algorithm == "eigenpro3-exact":
        return _estimate_exact(fit, n, p, e.subsample_size, q)
    interval = chosen_interval(e, Z, factor, m, fit.d, k)
    _add_projection(fit, p, q, factor)
    # Preconditioner and step.
    whitened = 0
    if factor and interval == 1 and p <= n:
        whitened = n_sampled * p * size
        fit.products(n_sampled * p * p / 2)
        fit.uses(whitened + 2 * n_sampled * p * 8)
    _add_sample(fit, c, N, q, whitened)
    kept = keeps_rows(K, e.cache_size, e.max_iter, fit.d)
    if kept:
        fit.holds("data copy", n * fit.d * size)
        fit.keeps(n * p * size)
    # Epochs: rows and centers, temporary centers, corrections, projections.
    epochs, batches = e.max_iter, n / m
    (fit.reads if kept else fit.entries)(epochs * n * p, 2 * k)
    fit.entries(epochs * held_out * p, k)
    fit.entries(epochs * n * m * (interval - 1) / 2, 2 * k)
    fit.products(epochs * n * c * k, size)
    work = projection_work(Z, factor, fit.d, k)
    fit.products(epochs * batches / interval * work, 4)
    fit.uses(m * (fit.d + c + interval * m) * size + fit.tiles(Z, m) + 8 * p * k * size)
    return fit.result(chosen_algorithm(e), n_centers=p, batch_size=m, n_epochs=epochs)


def _add_projection(fit, p, q, factor):
    """Add the projection onto p centers: a Cholesky factor, or q eigenvectors."""
    if not factor:
        fit.holds("preconditioner", p * 2 * q * fit.itemsize)
        return
    fit.uses(3 * 8 * p * p)
    fit.holds("preconditioner", 8 * p * p)
    fit.entries(p * p / 2)
    fit.products(CPU.factor_work(p), 4)


def _add_sample(fit, c, N, q, whitened):
    """Add q eigenvectors of c centers, measured on N rows, and `whitened` bytes."""
    fit.entries(c * c / 2 + 2 * N * c + N * N)
    fit.products((EIGENVECTOR_CUBES + FACTOR_CUBES) * c**3)
    fit.products(N * c * c)
    add_measuring(fit, N, q)
    fit.uses(8 * (2 * c * c + 4 * N * c) + whitened)
    fit.uses(
        (N * N + 2 * N * q) * fit.itemsize + 4 * N * N * (fit.itemsize == 8) + whitened
    )
    fit.holds("preconditioner", c * q * fit.itemsize)


def _estimate_direct_on_centers(fit, K):
    """Return the estimate for the normal equations of a model on centers."""
    n, p = K.shape
    fit.holds("targets", 8 * n * (2 * fit.n_outputs + 1))
    fit.holds("centers", p * (fit.d + K.row_width) * fit.itemsize)
    add_normal_equations(fit, "ridge", K, NystromPlan.make("ridge", p, n))
    fit.entries(n * p, fit.n_outputs)
    if fit.data.groups is not None:  # to find rows that are not centers
        fit.finds_equal_rows()
        fit.finds_equal_rows()
    return fit.result("direct", n_centers=p)


def _estimate_exact(fit, n, p, s, q):
    """Return the estimate for full-batch steps that are projected exactly."""
    e, size, k = fit.estimator, fit.itemsize, fit.n_outputs
    s = default_subsample_size(n) if is_auto(s) else s
    rows = fit.matrix(n, n, symmetric=True)
    fit.holds("data copy", 2 * n * fit.d * size)
    fit.holds("preconditioner", 8 * p * p + n * q * size)
    add_tuning(fit, rows, s, q, False)
    fit.entries(n * s + n * p + p * p)
    fit.holds("kernel matrix", n * p * size)
    fit.uses(16 * p * p)
    fit.products(CPU.factor_work(p), 4)
    fit.reads(e.max_iter * n * (2 * p + 2 * q), k)
    return fit.result(
        chosen_algorithm(e), n_centers=p, batch_size=n, n_epochs=e.max_iter
    )
