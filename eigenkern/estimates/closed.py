"""Least squares and the log loss on centers: Nystrom, NYTRO and Falkon."""

from dataclasses import replace

import numpy as np

from ..arrays.machine import CPU
from ..estimators.falkon_like import FalkonLikeClassifier, FalkonLikeRegressor
from ..estimators.nystrom import NystromRegressor, check_alphas
from ..estimators.nytro import (
    NytroClassifier,
    NytroRegressor,
    n_iterations,
    uses_factors,
)
from ..estimators.on_centers import (
    N_ALPHAS,
    SAMPLED_CENTERS,
    SAMPLED_SETS,
    chosen_n_centers,
    chosen_selection,
    expected_products,
    given_centers,
    what_is_solved,
)
from ..fitting.validation import is_auto
from ..methods.closed_form_plan import NystromPlan, blocks
from ..methods.krylov import krylov_pays
from ..methods.left_out import n_left_out
from ..methods.newton import way_down
from ..methods.paths import LAST, iterations
from ..operators.cached import cached_bytes
from ..operators.matrix import GivenMatrix
from ..plan.penalty import n_sampled
from ..plan.sizes import FALKON_ITERATIONS
from .costs import (
    ALL_EIGENVECTORS,
    FACTOR_CUBES,
    add_normal_equations,
    add_pivoted_factor,
    add_ridge,
)

# Extra iterations that refit a Falkon classifier without its calibration rows.
_HELD_OUT_ITERATIONS = 3

NYTRO = NytroRegressor, NytroClassifier
FALKON = FalkonLikeRegressor, FalkonLikeClassifier


def estimate_centers(fit):
    e = fit.estimator
    n = fit.n
    kind, holds_out = what_is_solved(e, chosen_selection(e, n, given=False))
    n_train = n - round(e.validation_fraction * n) if holds_out else n
    centers = given_centers(e, fit.data.X)
    p = e.n_centers if centers is None else centers.shape[0]
    if is_auto(p):
        p = chosen_n_centers(e, fit.data, kind, holds_out, 0)
    if p is not None and centers is None:
        p = min(p, n_train)
    every_row = p is None or (kind == "falkon" and p == n)
    logistic = kind.endswith("logistic")
    p = p or (n if logistic else n_train)  # held-out rows are centers without weight
    if fit.kernel_dtype != "float64" and _in_double(fit, kind, every_row, p):
        return estimate_centers(replace(fit, kernel_dtype="float64"))
    fit.finds_equal_rows()
    if is_auto(getattr(e, "alpha", None)) and not logistic:
        rows = n_sampled(n_train, None if every_row else p)
        matrix = fit.matrix(rows, rows, symmetric=True)
        add_ridge(fit, matrix, rows * fit.d * fit.itemsize)
    if every_row and not logistic:
        return _estimate_rows(fit, kind, holds_out)
    _add_rows(fit, p, holds_out)
    if logistic:
        return estimate_logistic(fit, kind, n_train, p, every_row)
    return _estimate_on_centers(fit, kind, n_train, p, holds_out)


def _in_double(fit, kind, every_row, p):
    """Whether kernel values are computed in float64, as in every closed form."""
    e = fit.estimator
    if isinstance(e, NYTRO):
        plan, sizes = NystromPlan.make("path", p, fit.n), (p, fit.d, fit.n_outputs)
        selection = chosen_selection(e, fit.n, given=False)
        return uses_factors(e, selection, fit, plan, (fit.n, *sizes), fit.itemsize)
    if not (kind.startswith("falkon") or kind == "logistic"):
        return True
    if every_row and kind == "falkon":
        return True
    return not isinstance(e.alpha, str) and fit.drowns(e.alpha, p)


def _estimate_rows(fit, kind, holds_out):
    """Return the estimate for the full kernel of all rows."""
    e, n, k = fit.estimator, fit.n, fit.n_outputs
    path = kind == "path" or (kind == "falkon" and e.alpha == 0)
    plan = NystromPlan.make("full path" if path else "full ridge", n, n)
    K = fit.matrix(n, n, symmetric=True)
    fit.holds("data copy", n * fit.d * fit.itemsize)
    if fit.kernel_itemsize != fit.itemsize:
        fit.holds("data copy", n * fit.d * fit.kernel_itemsize)
    fit.holds("kernel matrix", 8 * n * n)
    fit.holds("centers", n * K.row_width * fit.kernel_itemsize)
    # All eigenvectors, of which alpha=0 may need none; the factors of a path, 0.34 to
    # 0.4 n^2 numbers with 2000 to 5000 rows; or the part of the inverse for the rows
    # that are left out, 4 to 15 MB with 1000 to 5000 rows.
    all_vectors = path and not (holds_out and krylov_pays(n, k))
    values = 3 * n * n if all_vectors else 0.4 * n * n
    if not path:
        values = n_left_out(n, 1 / 4) ** 2
    fit.uses(8 * values + fit.tiles(K) + 40 * n * k)
    fit.entries((2 if path else 1) * n * n / 2)
    fit.touches(8 * n * n)
    fit.products(plan.work * (ALL_EIGENVECTORS if all_vectors else 1))
    return fit.result("path" if path else "factor", n_centers=n)


def _add_rows(fit, p, holds_out):
    """Add rows, targets and p centers, or the p columns of a given kernel matrix."""
    n, k, size = fit.n, fit.n_outputs, fit.itemsize
    if holds_out:
        fit.holds("data copy", n * fit.d * size)
        fit.touches(n * fit.d * size)
    # Targets as given, centered, and with a column of ones; weights and indices.
    fit.holds("targets", 8 * n * (3 * k + 4))
    if fit.precomputed:  # the columns of the centers
        fit.holds("kernel matrix", n * p * size)
    else:
        width = fit.matrix(n, p).row_width * fit.kernel_itemsize
        fit.holds("centers", p * (2 * fit.d * size + width))


def _estimate_on_centers(fit, kind, n_train, p, holds_out):
    """Return the estimate for least squares on p centers."""
    e, n, k, size = fit.estimator, fit.n, fit.n_outputs, fit.kernel_itemsize
    K = fit.matrix(n_train, p)
    plan = NystromPlan.make(kind, p, n, validated=holds_out)
    square, falkon = 8 * p * p, kind == "falkon"
    sizes = n, p, fit.d, k
    selection = chosen_selection(e, n, given=False)
    iterates = isinstance(e, NYTRO) and not uses_factors(
        e, selection, fit, plan, sizes, size
    )
    if not (falkon or iterates):
        add_normal_equations(fit, kind, K, plan, holds_out)
        if kind == "path" and selection == "loo":
            _add_leave_one_out(fit, K)
        if isinstance(e, NystromRegressor):
            # For variances: kernel values of left-out rows, whitened by L, then by the
            # factor, and squared.
            fit.uses(2 * square + 4 * 8 * p * n_left_out(n, 1 / 8))
        return fit.result("factor" if kind == "ridge" else kind, n_centers=p)
    n_epochs = min(FALKON_ITERATIONS, e.max_iter) if falkon else n_iterations(e)
    n_passes = n_epochs
    if falkon and fit.data.groups is not None:
        n_passes += _HELD_OUT_ITERATIONS
    n_products = 2 * e.max_iter if falkon else n_epochs
    (kept,) = cached_bytes([K], e.cache_size, n_products, fit.d)
    fit.holds("preconditioner", 2 * square)
    fit.products(NystromPlan.CUBES["falkon"] * p**3)
    if kept:
        fit.keeps(kept)
        fit.seconds += n_passes * n_train * p * CPU.convert / fit.n_threads
        fit.reads(n_passes * n_train * p, 2 * k, 8)
    else:
        fit.entries(n_passes * n_train * p, 2 * k)
    # Blocks of a matrix kept in float32 are converted to float64.
    converted = kept and size == 4
    block = min(CPU.tile_bytes, 8 * n * p) if converted else fit.tiles(K)
    fit.uses(2 * square + block)
    add_pivoted_factor(fit, p)
    return fit.result("iterations", n_centers=p, n_epochs=n_epochs)


def _add_leave_one_out(fit, K):
    """Add the exact leave-one-out errors of a path: the second pass over the rows.

    While a block of the kernel matrix is multiplied, the product before is in memory;
    then one product is, with three numbers for each row, output and penalty.
    """
    (n, p), e = K.shape, fit.estimator
    (kept,) = cached_bytes([K], e.cache_size, 2, fit.d)
    if kept:
        fit.holds("kernel matrix", kept)
        fit.touches(kept)
    else:
        fit.entries(n * p)
    path = iterations(LAST) if isinstance(e, NYTRO) else check_alphas(e.alphas)
    width = 3 * (fit.n_outputs + 1) * len(path)
    b = next(blocks(n, p + width)).stop
    n_products = 2 if b == n else 3
    fit.uses(8 * (3 * p * p + b * max(n_products * p, p + width)))
    fit.products(n * p * p + n * p * width)


# Passes over the rows: their number at alpha = 1 and the power of 1 / alpha by which it
# grows; their number for a path; and the factor for more than two classes. Passes
# depend on the data: with 1000 centers and alpha = 1e-6, a9a, coil2000 and ijcnn1 took
# 36 to 62 (Falkon 53 to 105, a path 34 to 142), MNIST, Fashion-MNIST and Covtype 63 to
# 366 (Falkon 183 to 843, a path 252 to 312); with 1e-4 these were 12 to 19 and 45 to 57
# (Falkon 13 to 17, and 65).
_PASSES = {"logistic": (1.4, 0.25), "falkon logistic": (0.32, 0.4)}
_PATH_PASSES, _MULTICLASS_FACTOR = 90, 2.5
# Newton steps in addition to one for each penalty on the way down; those of a path.
_EXTRA_STEPS, _PATH_STEPS = 2, 20
# An automatic penalty, before it is chosen.
_USUAL_ALPHA = 1e-5
# Sums over the rows for preconditioners, for one penalty and for a path.
_SUMS, _PATH_SUMS = 2, 4
# Time of a multiply-add with the few columns of the log loss, in blocks that fit a
# core's cache, over that in the machine's model. On MNIST with ten columns, 1.2e9 of
# them took 0.15 s on two cores of an Intel Xeon, and 0.18 s on an AMD EPYC.
_NARROW_FACTOR = 5
# Float64 numbers in addition to the targets. For every row and output: gradients, and
# curvatures at two points; for every row: losses and weights.
_STORED_PER_OUTPUT, _STORED_PER_ROW = 4, 3


def estimate_logistic(fit, kind, n_train, p, every_row):
    """Return the estimate for Newton steps on p centers.

    The planned fit already includes the memory of rows, targets and centers.
    """
    e, n, k = fit.estimator, fit.n, fit.n_outputs
    falkon, path = kind.startswith("falkon"), e.alpha == "path"
    square = 8 * p * p
    n_alphas = len(check_alphas(e.alphas, N_ALPHAS)) if path else 1
    n_products = expected_products(e, None if falkon else n_alphas)
    parts = [fit.matrix(n_rows, p) for n_rows in (n_train, n - n_train) if n_rows]
    sizes = cached_bytes(parts, e.cache_size, n_products, fit.d)
    kept = fit.precomputed or all(sizes)
    fit.holds("targets", 8 * n * (_STORED_PER_OUTPUT * k + _STORED_PER_ROW))
    fit.holds("preconditioner", square)
    if any(sizes):
        fit.keeps(sum(n_bytes or 0 for n_bytes in sizes))
    if is_auto(e.alpha):
        _add_sample(fit, p)
    n_passes, n_steps = _newton_steps(fit, kind, path)
    _add_passes(fit, n_passes * n * p, kept)
    fit.entries(p * p / 2)
    add_pivoted_factor(fit, p)
    fit.products(n_steps * FACTOR_CUBES * p**3)
    # Sums over centers or rows, while the last sums and their factor are in memory.
    if falkon or every_row:
        fit.products(n_steps * p**3)
        fit.uses(6 * square)
    else:
        n_sums = _PATH_SUMS if path else _SUMS
        _add_sums(fit, n_sums, parts, kept)
    fit.holds("preconditioner", 2 * square)
    method = "iterations" if falkon else kind
    return fit.result(method, n_centers=p, n_epochs=n_steps)


def _add_sample(fit, p):
    """Add the path on a sample of the rows that chooses an automatic penalty."""
    m, s = min(fit.n, SAMPLED_SETS), min(p, SAMPLED_CENTERS)
    n_passes, n_steps = _newton_steps(fit, "logistic", True)
    fit.entries(m * s)
    _add_passes(fit, n_passes * m * s, True)
    fit.products(n_steps * FACTOR_CUBES * s**3 + _PATH_SUMS * m * s**2)
    fit.uses(8 * (m * s + 4 * s * s))


def _newton_steps(fit, kind, path):
    """Return the usual numbers of passes over the rows and of Newton steps."""
    e, factor = fit.estimator, _MULTICLASS_FACTOR if fit.n_outputs > 1 else 1.0
    if path:
        return factor * _PATH_PASSES, _PATH_STEPS
    first, power = _PASSES[kind]
    alpha = _USUAL_ALPHA if is_auto(e.alpha) else e.alpha
    usual = len(way_down(alpha)) + _EXTRA_STEPS
    steps = min(usual, getattr(e, "max_iter", usual))
    passes = factor * first * max(1 / alpha, 1.0) ** power * steps / usual
    return max(passes, 2 * steps), steps


def _add_passes(fit, count, kept):
    """Add products with `count` entries in total, and with their transpose."""
    if not kept:
        fit.entries(count, 2 * fit.n_outputs)
        return
    work = 2 * count * fit.n_outputs
    fit.flops += 2.0 * work
    product = _NARROW_FACTOR * CPU.product_seconds(work, 8, fit.n_threads)
    fit.seconds += max(8 * count / CPU.read, product)
    if fit.kernel_itemsize == 4:
        fit.seconds += count * CPU.convert / fit.n_threads


def _add_sums(fit, n_sums, parts, kept):
    """Add sums over the rows of matrices, with the last sums and a factor in memory."""
    K, p = parts[0], parts[0].shape[1]
    if kept:
        K = GivenMatrix(np.broadcast_to(np.zeros((), fit.kernel_dtype), K.shape))
    else:
        fit.entries(n_sums * fit.n * p)
    work = 1.0 if kept else 0.5  # without its own threads, both triangles
    fit.products(n_sums * (work * fit.n * p**2 + 2 * p**3))
    square, n_sets = 8 * p * p, len(parts)
    # A block times the weights, and the block itself, unless it is a part of K.
    n_blocks = 1 if kept and fit.kernel_itemsize == 8 else 2
    fit.uses(n_blocks * 8 * p * K.gram_rows() + (2 + n_sets) * square)
    fit.uses((4 + n_sets) * square)
