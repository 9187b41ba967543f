"""Plans of least squares and the log loss on centers: Nystrom, NYTRO and Falkon."""

import numpy as np

from ..arrays import memory
from ..arrays.machine import CPU
from ..methods.krylov import krylov_pays
from ..methods.left_out import n_left_out
from ..methods.newton import way_down
from ..methods.paths import LAST, iterations
from ..operators.blocks import blocks
from ..operators.cached import cached_bytes
from ..operators.matrix import GivenMatrix
from .costs import Costs
from .of_epochs import (
    ALL_EIGENVECTORS,
    FACTOR_CUBES,
    add_normal_equations,
    add_pivoted_factor,
    add_ridge,
)
from .parameters import chosen_selection, has_log_loss, is_auto, what_is_solved
from .penalty import n_sampled
from .sizes import FALKON_ITERATIONS, ClosedForm, default_n_centers, factorizes

# Iterations of NYTRO in the experiments of the paper.
MAX_ITER = 500
# Number of penalties of a path of the squared loss, and of the log loss: two per factor
# of ten.
N_PENALTIES, N_PENALTIES_OF_LOG_LOSS = 100, 31
# The sample of an automatic penalty of the log loss.
SAMPLED_SETS, SAMPLED_CENTERS = 2000, 1000
# Extra iterations that refit a Falkon classifier without its calibration rows.
_HELD_OUT_ITERATIONS = 3
# Expected products with the kernel matrix, which decide whether to keep it: per penalty
# of a path, and per Newton step.
_PRODUCTS_OF_ALPHA, _PRODUCTS_OF_STEP = 20, 5

# Passes of the log loss over the rows: their number at alpha = 1 and the power of
# 1 / alpha by which it grows; their number for a path; and the factor for more than two
# classes. Passes depend on the data: with 1000 centers and alpha = 1e-6, a9a, coil2000
# and ijcnn1 took 36 to 62 (Falkon 53 to 105, a path 34 to 142), MNIST, Fashion-MNIST
# and Covtype 63 to 366 (Falkon 183 to 843, a path 252 to 312); with 1e-4 these were 12
# to 19 and 45 to 57 (Falkon 13 to 17, and 65).
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


def n_iterations(model):
    """Return the iterations of NYTRO to run one by one, or if none is selected."""
    return MAX_ITER if is_auto(model.max_iter) else model.max_iter


def n_penalties(model):
    """Return the number of penalties on a path, or 1."""
    if model.alpha != "path":
        return 1
    if model.alphas is not None:
        return len(np.ravel(model.alphas))
    return N_PENALTIES_OF_LOG_LOSS if has_log_loss(model) else N_PENALTIES


def expected_products(model, n_alphas=None):
    """Return the expected products with the kernel matrix in a fit of the log loss.

    `n_alphas` is the number of penalties; None: there are Newton steps for one.
    """
    if n_alphas is None:
        return _PRODUCTS_OF_STEP * model.max_iter
    return _PRODUCTS_OF_ALPHA * n_alphas


@memory.read_once()
def plan_of_closed_form(shape, given, *, most=None, n_stored=0):
    """Return the plan of a model of least squares or of the log loss.

    Parameters
    ----------
    shape : Shape
    given : int or None
        Number of centers that are given as an array.
    most : int, default=None
        Most centers with which a model offers all that it can.
    n_stored : int, default=0
        Candidates whose coefficients are stored.
    """
    e, n = shape.estimator, shape.n
    selection = chosen_selection(e, n)
    kind, holds_out = what_is_solved(e, selection)
    n_train = n - round(e.validation_fraction * n) if holds_out else n
    p = e.n_centers if given is None else given
    if is_auto(p):
        p = auto_n_centers(shape, kind, holds_out, most, n_stored)
    if p is not None and given is None:
        p = min(p, n_train)
    every_row = p is None or (kind == "falkon" and p == n and given is None)
    logistic = kind.endswith("logistic")
    p = p or (n if logistic else n_train)  # held-out rows are centers without weight
    if shape.kernel_itemsize != 8 and _in_double(shape, kind, every_row, p, selection):
        shape = shape.in_double
    fit = Costs(shape)
    fit.finds_equal_rows()
    if is_auto(getattr(e, "alpha", None)) and not logistic:
        rows = n_sampled(n_train, None if every_row else p)
        matrix = shape.matrix(rows, rows, symmetric=True)
        add_ridge(fit, shape, matrix, rows * shape.d * shape.itemsize)
    if every_row and not logistic:
        return _on_every_row(fit, shape, kind, holds_out)
    _add_rows(fit, shape, p, holds_out)
    if logistic:
        return _of_log_loss(fit, shape, kind, n_train, p, every_row)
    return _on_centers(fit, shape, kind, n_train, p, holds_out, selection)


def auto_n_centers(shape, kind, validated, most, n_stored=0):
    """Return the number of centers of "auto"; None: all rows."""
    e = shape.estimator
    if shape.precomputed or not isinstance(e.centers, str):
        return None
    return default_n_centers(
        kind,
        shape.X,
        shape.n_outputs,
        shape.xp,
        shape.device,
        centers=e.centers,
        validated=validated,
        n_stored=n_stored,
        most=most,
    )


def _is_nytro(e):
    return not hasattr(e, "alpha")


def uses_factors(shape, selection, form, p):
    """Whether the path of NYTRO is computed by factors, see `factorizes`."""
    e = shape.estimator
    n_iter = None if is_auto(e.max_iter) else e.max_iter
    sizes = shape.n, p, shape.d, shape.n_outputs
    return selection in ("gcv", "loo") or factorizes(
        shape, form, sizes, shape.kernel_itemsize, n_iter, e.cache_size
    )


def _in_double(shape, kind, every_row, p, selection):
    """Whether kernel values are computed in float64, as in every closed form."""
    e = shape.estimator
    if _is_nytro(e):
        return uses_factors(shape, selection, ClosedForm.make("path", p, shape.n), p)
    if not (kind.startswith("falkon") or kind == "logistic"):
        return True
    if every_row and kind == "falkon":
        return True
    return not isinstance(e.alpha, str) and shape.drowns(e.alpha, p)


def _on_every_row(fit, shape, kind, holds_out):
    """Return the plan for the full kernel of all rows."""
    e, n, k = shape.estimator, shape.n, shape.n_outputs
    path = kind == "path" or (kind == "falkon" and e.alpha == 0)
    form = ClosedForm.make("full path" if path else "full ridge", n, n)
    K = shape.matrix(n, n, symmetric=True)
    fit.holds("data copy", n * shape.d * shape.itemsize)
    if shape.kernel_itemsize != shape.itemsize:
        fit.holds("data copy", n * shape.d * shape.kernel_itemsize)
    fit.holds("kernel matrix", 8 * n * n)
    fit.holds("centers", n * K.row_width * shape.kernel_itemsize)
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
    fit.products(form.work * (ALL_EIGENVECTORS if all_vectors else 1))
    return fit.plan("path" if path else "factor", n_centers=n)


def _add_rows(fit, shape, p, holds_out):
    """Add rows, targets and p centers, or the p columns of a given kernel matrix."""
    n, k, size = shape.n, shape.n_outputs, shape.itemsize
    if holds_out:
        fit.holds("data copy", n * shape.d * size)
        fit.touches(n * shape.d * size)
    # Targets as given, centered, and with a column of ones; weights and indices.
    fit.holds("targets", 8 * n * (3 * k + 4))
    if shape.precomputed:  # the columns of the centers
        fit.holds("kernel matrix", n * p * size)
    else:
        width = shape.matrix(n, p).row_width * shape.kernel_itemsize
        fit.holds("centers", p * (2 * shape.d * size + width))


def _on_centers(fit, shape, kind, n_train, p, holds_out, selection):
    """Return the plan of least squares on p centers."""
    e, n, k, size = shape.estimator, shape.n, shape.n_outputs, shape.kernel_itemsize
    K = shape.matrix(n_train, p)
    form = ClosedForm.make(kind, p, n, validated=holds_out)
    square, falkon = 8 * p * p, kind == "falkon"
    iterates = _is_nytro(e) and not uses_factors(shape, selection, form, p)
    if not (falkon or iterates):
        add_normal_equations(fit, shape, kind, K, holds_out)
        if kind == "path" and selection == "loo":
            _add_leave_one_out(fit, shape, K)
        if hasattr(e, "alphas") and not shape.labels:
            # For variances: kernel values of left-out rows, whitened by L, then by the
            # factor, and squared.
            fit.uses(2 * square + 4 * 8 * p * n_left_out(n, 1 / 8))
        return fit.plan("factor" if kind == "ridge" else kind, n_centers=p)
    n_epochs = min(FALKON_ITERATIONS, e.max_iter) if falkon else n_iterations(e)
    n_passes = n_epochs
    if falkon and shape.labels:
        n_passes += _HELD_OUT_ITERATIONS
    n_products = 2 * e.max_iter if falkon else n_epochs
    (kept,) = cached_bytes([K], e.cache_size, n_products, shape.d)
    fit.holds("preconditioner", 2 * square)
    fit.products(ClosedForm.CUBES["falkon"] * p**3)
    if kept:
        fit.keeps(kept)
        fit.takes(n_passes * n_train * p * CPU.convert / fit.n_threads)
        fit.reads(n_passes * n_train * p, 2 * k, 8)
    else:
        fit.entries(n_passes * n_train * p, 2 * k)
    # Blocks of a matrix kept in float32 are converted to float64.
    converted = kept and size == 4
    block = min(CPU.tile_bytes, 8 * n * p) if converted else fit.tiles(K)
    fit.uses(2 * square + block)
    add_pivoted_factor(fit, p)
    return fit.plan("iterations", n_centers=p, n_epochs=n_epochs)


def _add_leave_one_out(fit, shape, K):
    """Add the exact leave-one-out errors of a path: the second pass over the rows.

    While a block of the kernel matrix is multiplied, the product before is in memory;
    then one product is, with three numbers for each row, output and penalty.
    """
    (n, p), e = K.shape, shape.estimator
    (kept,) = cached_bytes([K], e.cache_size, 2, shape.d)
    if kept:
        fit.holds("kernel matrix", kept)
        fit.touches(kept)
    else:
        fit.entries(n * p)
    n_models = len(iterations(LAST)) if _is_nytro(e) else n_penalties(e)
    width = 3 * (shape.n_outputs + 1) * n_models
    b = next(blocks(n, p + width)).stop
    n_products = 2 if b == n else 3
    fit.uses(8 * (3 * p * p + b * max(n_products * p, p + width)))
    fit.products(n * p * p + n * p * width)


# The log loss


def _of_log_loss(fit, shape, kind, n_train, p, every_row):
    """Return the plan of Newton steps on p centers."""
    e, n, k = shape.estimator, shape.n, shape.n_outputs
    falkon, path = kind.startswith("falkon"), e.alpha == "path"
    square = 8 * p * p
    n_products = expected_products(e, None if falkon else n_penalties(e))
    parts = [shape.matrix(n_rows, p) for n_rows in (n_train, n - n_train) if n_rows]
    sizes = cached_bytes(parts, e.cache_size, n_products, shape.d)
    kept = shape.precomputed or all(sizes)
    fit.holds("targets", 8 * n * (_STORED_PER_OUTPUT * k + _STORED_PER_ROW))
    fit.holds("preconditioner", square)
    if any(sizes):
        fit.keeps(sum(n_bytes or 0 for n_bytes in sizes))
    if is_auto(e.alpha):
        _add_sample(fit, shape, p)
    n_passes, n_steps = _newton_steps(shape, kind, path)
    _add_passes(fit, shape, n_passes * n * p, kept)
    fit.entries(p * p / 2)
    add_pivoted_factor(fit, p)
    fit.products(n_steps * FACTOR_CUBES * p**3)
    # Sums over centers or rows, while the last sums and their factor are in memory.
    if falkon or every_row:
        fit.products(n_steps * p**3)
        fit.uses(6 * square)
    else:
        _add_sums(fit, shape, _PATH_SUMS if path else _SUMS, parts, kept)
    fit.holds("preconditioner", 2 * square)
    method = "iterations" if falkon else kind
    return fit.plan(method, n_centers=p, n_epochs=n_steps)


def _add_sample(fit, shape, p):
    """Add the path on a sample of the rows that chooses an automatic penalty."""
    m, s = min(shape.n, SAMPLED_SETS), min(p, SAMPLED_CENTERS)
    n_passes, n_steps = _newton_steps(shape, "logistic", True)
    fit.entries(m * s)
    _add_passes(fit, shape, n_passes * m * s, True)
    fit.products(n_steps * FACTOR_CUBES * s**3 + _PATH_SUMS * m * s**2)
    fit.uses(8 * (m * s + 4 * s * s))


def _newton_steps(shape, kind, path):
    """Return the usual numbers of passes over the rows and of Newton steps."""
    e, factor = shape.estimator, _MULTICLASS_FACTOR if shape.n_outputs > 1 else 1.0
    if path:
        return factor * _PATH_PASSES, _PATH_STEPS
    first, power = _PASSES[kind]
    alpha = _USUAL_ALPHA if is_auto(e.alpha) else e.alpha
    usual = len(way_down(alpha)) + _EXTRA_STEPS
    steps = min(usual, getattr(e, "max_iter", usual))
    passes = factor * first * max(1 / alpha, 1.0) ** power * steps / usual
    return max(passes, 2 * steps), steps


def _add_passes(fit, shape, count, kept):
    """Add products with `count` entries in total, and with their transpose."""
    if not kept:
        fit.entries(count, 2 * shape.n_outputs)
        return
    work = 2 * count * shape.n_outputs
    product = _NARROW_FACTOR * CPU.product_seconds(work, 8, fit.n_threads)
    fit.takes(max(8 * count / CPU.read, product), 2.0 * work)
    if shape.kernel_itemsize == 4:
        fit.takes(count * CPU.convert / fit.n_threads)


def _add_sums(fit, shape, n_sums, parts, kept):
    """Add sums over the rows of matrices, with the last sums and a factor in memory."""
    K, p = parts[0], parts[0].shape[1]
    if kept:
        dtype = f"float{8 * shape.kernel_itemsize}"
        K = GivenMatrix(np.broadcast_to(np.zeros((), dtype), K.shape))
    else:
        fit.entries(n_sums * shape.n * p)
    work = 1.0 if kept else 0.5  # without its own threads, both triangles
    fit.products(n_sums * (work * shape.n * p**2 + 2 * p**3))
    square, n_sets = 8 * p * p, len(parts)
    # A block times the weights, and the block itself, unless it is a part of K.
    n_blocks = 1 if kept and shape.kernel_itemsize == 8 else 2
    fit.uses(n_blocks * 8 * p * K.gram_rows() + (2 + n_sets) * square)
    fit.uses((4 + n_sets) * square)
