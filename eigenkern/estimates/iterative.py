"""EigenPro on all rows, on centers and on features; random Fourier features."""

import numpy as np

from ..arrays.machine import CPU
from ..centers import METHODS
from ..estimators.doubly_stochastic import holds_rows_out
from ..estimators.eigenpro_fit import (
    chosen_algorithm,
    chosen_interval,
    has_own_centers,
    may_be_direct,
    n_learned_rows,
)
from ..estimators.linear_eigenpro import is_solved_directly
from ..fitting.model import given_penalty, has_penalty, stops_early
from ..fitting.validation import check_centers, is_auto
from ..methods.closed_form_plan import NystromPlan
from ..operators.blocks import cache_budget
from ..operators.cached import cached_bytes
from ..operators.centered import CenteredFeatures
from ..plan.penalty import n_sampled
from ..plan.sizes import (
    EIGENVECTOR_CUBES,
    MEASURING_PASSES,
    MIN_ROWS,
    N_MEASURED,
    auto_batch_size,
    chosen_sizes,
    chosen_sizes_on_centers,
    default_subsample_size,
    direct_pays,
    direct_pays_on_centers,
    factor_pays,
    max_batch_size,
    max_components,
    n_sampled_rows,
    projection_work,
)
from ..plan.step import sizes_of_features
from ..plan.stochastic_step import choose_sizes, first_blocks, passes_of_epoch
from ..problems.centers_in_batches import keeps_rows
from .costs import (
    FACTOR_CUBES,
    N_FACTORS,
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


# Work of half of F' F, in slower pieces, over that of the whole product; and passes
# over the rows for means, copies and the loss.
_HALF_PRODUCT, _SETUP_PASSES = 0.8, 8


def estimate_linear(fit):
    e, d, k, size = fit.estimator, fit.d, fit.n_outputs, fit.itemsize
    n = fit.n - fit.n_held_out(stops_early(e))
    X = CenteredFeatures(fit.data.X[:n], fit.data.X[0])
    fit.holds("data copy", n * d * size)
    fit.holds("targets", (8 + 2 * size) * n * k)
    if is_solved_directly(e, X):
        return _direct_on_features(fit, X)
    alpha = float(has_penalty(e))  # only whether it is 0 matters
    _, m, s = sizes_of_features(X, k, alpha, e.batch_size, e.subsample_size)
    q = max_components(n, s, None) if is_auto(e.n_components) else e.n_components
    q = min(q, s - 1, d)
    fit.holds("preconditioner", d * q * size)
    N = min(n, N_MEASURED)
    narrow = CPU.narrow_product_work
    fit.uses((2 * min(s, n) * d + 2 * N * q) * size)
    fit.products(EIGENVECTOR_CUBES * min(s, d) ** 3)
    fit.products(s * d * min(s, d), size)
    fit.reads(2 * MEASURING_PASSES * N * d, 12)
    _, columns = race(fit, n, m)
    fit.products(columns * min(2 * n * d, n * d * narrow), size)
    fit.reads(e.max_iter * 2 * n * d)
    fit.products(columns * n / m * 2 * q * d, size)
    return fit.result("eigenpro", batch_size=m, n_epochs=e.max_iter)


def _direct_on_features(fit, X):
    """Return the estimate for a factor of F' F or F F', and a chosen penalty."""
    (n, d), size = X.shape, fit.itemsize
    s, left = min(n // 4, 4000), min(max(n / 8, 300), 4000)
    fewer, judges = min(s, d), min(n - s, 4000)
    # In single precision, as the penalties usually allow.
    fit.uses(((s + judges) * d + 3 * fewer**2) * 4)
    fit.products(_HALF_PRODUCT * s * d * fewer + N_FACTORS * FACTOR_CUBES * fewer**3, 4)
    fit.reads(N_FACTORS * (judges * d + 2 * fewer**2), fit.n_outputs, 4)
    if d >= n:  # the rows in double precision
        fit.uses((n * d + 3 * n * n) * 8)
        fit.products(_HALF_PRODUCT * n * n * d + FACTOR_CUBES * n**3, 8)
    else:
        converted = 4 if size == 8 else 0
        fit.uses(X.gram_rows() * d * (size + converted) + (d + left) * 3 * d * 4)
        fit.products(_HALF_PRODUCT * (n + left) * d * d + FACTOR_CUBES * d**3, 4)
    fit.reads((_SETUP_PASSES + 2 * N_REFINEMENTS) * n * d, fit.n_outputs)
    return fit.result("direct")


def estimate_dsg(fit):
    e, d, k, size = fit.estimator, fit.d, fit.n_outputs, fit.itemsize
    n = fit.n - fit.n_held_out(holds_rows_out(e, fit.n))
    F, m, kept = choose_sizes(e, n, k, cache_budget(e.cache_size, fit))
    fit.holds("data copy", n * d * size)
    fit.holds("targets", (8 + 3 * size) * n * k)
    rows = n_sampled(n)
    add_ridge(fit, fit.matrix(rows, rows, symmetric=True))
    # Steps, and the blocks that a batch evaluates: its own, and those changed since its
    # last visit, or else all so far. Early steps t change n_1 / t blocks instead of
    # one, about n_1 log(n_1) blocks more.
    total = passes_of_epoch(n, m) * -(-n // m) * e.max_iter
    most = (e.max_features or np.inf) // F
    blocks = min(n / m, most) if kept else min(total / 2, most)
    first = min(first_blocks(F), most)
    values = m * F * (total * (1 + blocks) + first * np.log(first))
    fit.products(values * (d + 2 * k), size)
    fit.seconds += values * CPU.function * size / 4 / fit.n_threads
    fit.flops += 2 * values
    fit.uses((2 * m * F + 2 * m * k) * size)
    return fit.result(e.algorithm, batch_size=m, n_epochs=e.max_iter)
