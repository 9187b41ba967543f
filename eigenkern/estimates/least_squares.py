"""Least squares on centers: Nystrom, NYTRO and Falkon."""

from dataclasses import replace

from ..backend.machine import CPU
from ..estimators.falkon import FalkonLikeClassifier, FalkonLikeRegressor
from ..estimators.least_squares import (
    chosen_n_centers,
    chosen_selection,
    given_centers,
    what_is_solved,
)
from ..estimators.nystrom import NystromRegressor, check_alphas
from ..estimators.nytro import (
    NytroClassifier,
    NytroRegressor,
    n_iterations,
    uses_factors,
)
from ..estimators.validation import is_auto
from ..nystrom.filters import LAST, iterations
from ..nystrom.krylov import krylov_pays
from ..nystrom.plan import NystromPlan, blocks
from ..nystrom.posterior import n_left_out
from ..operators.cached import cached_bytes
from ..tuning.penalty import n_sampled
from ..tuning.sizes import FALKON_ITERATIONS
from .logistic import estimate_logistic
from .parts import (
    ALL_EIGENVECTORS,
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
