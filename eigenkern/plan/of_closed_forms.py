"""Plans of least squares and the log loss on centers: Nystrom, NYTRO and Falkon."""

import math
from functools import partial

import numpy as np

from ..arrays import memory
from ..arrays.machine import CPU
from ..centers.choice import bytes_of_choice
from ..methods.krylov import krylov_pays
from ..methods.left_out import n_left_out
from ..methods.newton import way_down
from ..methods.paths import LAST, iterations
from ..operators.blocks import blocks
from ..operators.cached import cached_bytes
from ..operators.matrix import GivenMatrix
from .costs import FACTOR_CUBES, Costs
from .of_epochs import (
    ALL_EIGENVECTORS,
    add_normal_equations,
    add_ridge,
)
from .parameters import chosen_selection, has_log_loss, is_auto
from .penalty import n_sampled
from .sizes import FALKON_ITERATIONS, ClosedForm, default_n_centers, factorizes

# Iterations of NYTRO in the experiments of the paper.
MAX_ITER = 500
# Number of penalties of a path of the log loss: two per factor of ten.
N_PENALTIES_OF_LOG_LOSS = 31
# The sample of an automatic penalty of the log loss.
SAMPLED_SETS, SAMPLED_CENTERS = 2000, 1000
# Expected products with the kernel matrix for a penalty of a path of the log loss,
# which decide whether to keep it.
PRODUCTS_OF_ALPHA = 20
# Passes of the log loss over the rows: their number at alpha = 1 and the power of
# 1 / alpha by which it grows. Passes depend on the data: with 1000 centers and alpha =
# 1e-6, a9a, coil2000 and ijcnn1 took 36 to 62 (Falkon 53 to 105, a path 34 to 142),
# MNIST, Fashion-MNIST and Covtype 63 to 366 (Falkon 183 to 843, a path 252 to 312);
# with 1e-4 these were 12 to 19 and 45 to 57 (Falkon 13 to 17, and 65).
_PASSES = {"logistic": (1.4, 0.25), "falkon logistic": (0.32, 0.4)}
# Sums over the rows for the preconditioners of a path of the log loss.
_PATH_SUMS = 4


@memory.read_once()
def plan_of_closed_form(shape, given=None, most=None):
    """Return the plan of a model of least squares or of the log loss.

    `given` are the centers if they are an array, `most` is the number with which a
    model offers all that it can. Chosen besides:

    - `selection`, see `chosen_selection`, and `path`: its penalties, or NYTRO's t;
    - `every_row`: whether the problem is that of the full kernel. Else `n_chosen`, the
      most centers to choose; None: all distinct rows;
    - `form`: the `ClosedForm` that has to fit into memory, or None, and `factors`: that
      of a factorization, to which NYTRO turns if iterating fails;
    - `n_products` with the kernel matrix of the problem, in which it may be kept.
    """
    e, n, k = shape.estimator, shape.n_train, shape.n_outputs
    kind, selection, nytro = _kind(e), chosen_selection(shape), not hasattr(e, "alpha")
    log_loss, falkon = kind.endswith("logistic"), kind.startswith("falkon")
    left_out, validated = selection in ("gcv", "loo"), selection == "holdout"
    n_distinct, n_held_out = shape.n_distinct or n, 0
    if left_out:  # equal rows become one
        n = n_distinct
    if validated and not shape.given:
        n_held_out = min(math.ceil(e.validation_fraction * n - 1e-9), n - 1)
    path = _steps(e, selection) if nytro else _penalties(e)
    n_models = 1 if path is None else len(path)
    n_stored = n_models if getattr(e, "store_coef_path", False) else 0
    n_chosen = _n_centers(shape, kind, given, validated, n_stored, most)
    every_row, p = n_chosen is None and not log_loss, n_chosen
    if every_row:
        p, kind = n, "path" if kind == "path" or e.alpha == 0 else "ridge"
    elif n_chosen is None:  # rows that are held out are centers without weight
        p = n_distinct
    elif given is None:
        p = min(n_chosen, n_distinct, n - n_held_out)

    # The method and its memory.
    make = partial(ClosedForm.make, n_centers=p, n_rows=n)
    sums = validated and not (every_row or log_loss)
    stored = 8 * n * k if log_loss else 3 * p * k * n_stored
    name = f"full {kind}" if every_row else kind
    form = factors = make(name, validated=sums, n_stored=stored)
    method = {"ridge": "factor", "falkon": "iterations"}.get(kind, kind)
    n_epochs, n_products = 1, 2 if left_out else 1
    if log_loss:
        n_products = PRODUCTS_OF_ALPHA * n_models
        if falkon:
            method, n_products = "iterations", 5 * e.max_iter
    elif kind == "falkon":
        n_epochs, n_products = min(FALKON_ITERATIONS, e.max_iter), 2 * e.max_iter
    elif nytro and not (left_out or shape.indefinite):
        limit = None if is_auto(e.max_iter) else e.max_iter
        sizes = n, None if every_row else p, shape.d, k
        known = shape.kernel_itemsize, limit, e.cache_size
        if not factorizes(shape, factors, sizes, *known):
            method, n_epochs, form = "iterations", limit or MAX_ITER, None
            if not every_row:
                stored = 3 * p * k * (n_epochs + 1) if n_stored else 0
                form = make("ridge", validated=sums, n_stored=stored)
    single = log_loss or method == "iterations"
    if single and not (nytro or isinstance(e.alpha, str)):
        single = not shape.drowns(e.alpha, p)
    if not single and shape.kernel_itemsize != 8:
        shape = shape.in_double

    # What it costs.
    fit = Costs(shape)
    fit.finds_equal_rows()
    if not nytro and is_auto(e.alpha) and not log_loss:
        rows = n_sampled(n - n_held_out, None if every_row else p)
        matrix = shape.matrix(rows, rows, symmetric=True)
        add_ridge(fit, shape, matrix, rows * shape.d * shape.itemsize)
    if not every_row:
        fit.asks(bytes_of_choice(e.centers, n, p))
    _add_rows(fit, shape, n, p, every_row, n_held_out)
    fit.asks(0 if form is None else form.bytes)
    K = shape.matrix(n - n_held_out, p, symmetric=every_row)
    parts, everything = [K], K
    if n_held_out:
        parts.append(shape.matrix(n_held_out, p))
        everything = shape.matrix(n, p, symmetric=every_row)
    if log_loss:
        n_epochs = _add_newton_steps(fit, shape, kind, parts, n_products, n_chosen)
    elif method == "iterations":
        phases = [parts, [everything]] if n_held_out else [parts]
        # A classifier is refitted without its calibration rows.
        n_passes = n_epochs + 3 * (falkon and shape.labels)
        to_come, n_factors = (n_epochs, 1) if nytro else (n_products, 2)
        if n_stored:
            fit.holds("coefficients", 8 * p * k * (n_epochs + 1))
        _add_iterations(fit, shape, phases, n_passes, to_come, n_factors)
    elif every_row:
        _add_full_kernel(fit, shape, everything, factors, kind, n_held_out)
    else:
        add_normal_equations(fit, shape, kind, K, n_held_out > 0)
        if left_out:
            _add_leave_one_out(fit, shape, K, n_models)
        if hasattr(e, "alphas") and not shape.labels:
            # For variances: kernel values of left-out rows, whitened by L, then by the
            # factor, and squared.
            fit.uses(8 * p * (2 * p + 4 * n_left_out(n, 1 / 8)))
    return fit.plan(
        method,
        n_centers=p,
        n_epochs=n_epochs,
        selection=selection,
        path=path,
        every_row=every_row,
        n_chosen=n_chosen,
        form=form,
        factors=factors,
        n_products=n_products,
    )


def _kind(e):
    """Return the problem to solve, a key of `ClosedForm.KINDS`."""
    falkon = not hasattr(e, "selection")
    if has_log_loss(e):
        return "falkon logistic" if falkon else "logistic"
    if falkon:
        return "falkon"
    # NYTRO has no alpha: it selects the number of iterations.
    return "path" if getattr(e, "alpha", "path") in ("path", 0) else "ridge"


def _penalties(e):
    """Return the penalties of a path; None: there is none."""
    if e.alpha != "path":
        return None
    if e.alphas is not None:
        return np.asarray(e.alphas, dtype=np.float64)
    n = N_PENALTIES_OF_LOG_LOSS if has_log_loss(e) else 100
    return np.logspace(-15, 0, n)


def _steps(e, selection):
    """Return the t of NYTRO's path; all up to `MAX_ITER` if the user limits it."""
    automatic = is_auto(e.max_iter)
    last = e.max_iter
    if automatic:
        last = MAX_ITER if selection is None else LAST
    if automatic and e.tol is None:
        return iterations(last)
    return iterations(last, all_up_to=MAX_ITER)


def _n_centers(shape, kind, given, validated, n_stored, most):
    """Return the most centers to choose; None: all rows."""
    e, p = shape.estimator, shape.estimator.n_centers
    if given is not None:
        return given.shape[0]
    if is_auto(p):
        if shape.precomputed:
            return None
        p = default_n_centers(
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
    if kind.startswith("falkon") and p is not None and p >= shape.n:
        # One Cholesky factor gives the same model, unless rows are equal.
        return None if shape.n_distinct in (None, shape.n_train) else p
    return p


def _add_rows(fit, shape, n, p, every_row, held_out):
    """Add rows, targets and p centers, or the p columns of a given kernel matrix."""
    k, size = shape.n_outputs, shape.itemsize
    width = 0 if shape.precomputed else shape.matrix(n, p).row_width
    width *= shape.kernel_itemsize
    if every_row:
        fit.holds("data copy", n * shape.row_bytes)
        if shape.kernel_itemsize != size:
            fit.holds("data copy", n * shape.d * shape.kernel_itemsize)
        fit.holds("centers", n * width)
        return
    if held_out:
        fit.holds("data copy", n * shape.row_bytes)
        fit.touches(n * shape.d * size)
    # Targets as given, centered, and with a column of ones; weights and indices.
    fit.holds("targets", 8 * n * (3 * k + 4))
    if shape.precomputed:  # the columns of the centers
        fit.holds("kernel matrix", n * p * size)
    else:
        fit.holds("centers", p * (2 * shape.d * size + width))


def _add_full_kernel(fit, shape, K, form, kind, held_out):
    """Add a factor, or the eigenvectors, of the full kernel of all rows."""
    n, k = K.shape[0], shape.n_outputs
    fit.holds("kernel matrix", 8 * n * n)
    # All eigenvectors, of which alpha=0 may need none; the factors of a path, 0.34 to
    # 0.4 n^2 numbers with 2000 to 5000 rows; or the part of the inverse for the rows
    # that are left out, 4 to 15 MB with 1000 to 5000 rows.
    all_vectors = kind == "path" and not (held_out and krylov_pays(n, k))
    values = 3 * n * n if all_vectors else 0.4 * n * n
    if kind != "path":
        values = n_left_out(n, 1 / 4) ** 2
    fit.uses(8 * values + fit.tiles(K) + 40 * n * k)
    fit.entries((2 if kind == "path" else 1) * n * n / 2)
    fit.touches(8 * n * n)
    fit.products(form.work * (ALL_EIGENVECTORS if all_vectors else 1))


def _add_iterations(fit, shape, phases, n_passes, n_products, n_factors):
    """Add products with kernel matrices: with those of one phase, then of another.

    The matrices are K(X, Z) of rows and centers, which have `n_factors`; or the full
    one, which is symmetric.
    """
    e, K, columns = shape.estimator, phases[-1][0], shape.n_outputs
    if not K.symmetric:
        columns, square = 2 * columns, 8 * K.shape[1] ** 2
        fit.uses(3 * square)
        fit.holds("preconditioner", n_factors * square)
        fit.products(ClosedForm.KINDS["falkon"][1] * K.shape[1] ** 3)
        fit.products(FACTOR_CUBES * K.shape[1] ** 3)
    most, block = 0, fit.tiles(K)
    for matrices in phases:
        kept = cached_bytes(matrices, e.cache_size, n_products, shape.d)
        most = max(most, sum(filter(None, kept)))
        for matrix, n_bytes in zip(matrices, kept, strict=True):
            count = n_passes * matrix.shape[0] * matrix.shape[1]
            if not n_bytes:
                fit.entries(count, columns)
                continue
            fit.entries(n_bytes / matrix.itemsize)
            fit.touches(n_bytes)
            fit.reads(count, columns, None if K.symmetric else 8)
            if not K.symmetric:  # blocks are converted to float64
                fit.takes(count * CPU.convert / fit.n_threads)
                if matrix.itemsize == 4:
                    block = min(CPU.tile_bytes, 8 * count // n_passes)
    fit.holds("kernel matrix", most)
    fit.uses(block)


def _add_leave_one_out(fit, shape, K, n_models):
    """Add the exact leave-one-out errors of a path: the second pass over the rows.

    While a block of the kernel matrix is multiplied, the product before is in memory;
    then one product is, with three numbers for each row, output and penalty, or with
    its squares and one such number.
    """
    (n, p), e = K.shape, shape.estimator
    (kept,) = cached_bytes([K], e.cache_size, 2, shape.d)
    if kept:
        fit.holds("kernel matrix", kept)
        fit.touches(kept)
    else:
        fit.entries(n * p)
    width = 3 * (shape.n_outputs + 1) * n_models
    b = next(blocks(n, p + width)).stop
    n_products = 2 if b == n else 3
    fit.uses(8 * (3 * p * p + b * max(n_products * p + width / 3, p + width)))
    fit.products(n * p * p + n * p * width)


# The log loss


def _add_newton_steps(fit, shape, kind, parts, n_products, n_chosen):
    """Add Newton steps on centers; return their number."""
    e, n, k = shape.estimator, sum(K.shape[0] for K in parts), shape.n_outputs
    falkon, path, p = kind.startswith("falkon"), e.alpha == "path", parts[0].shape[1]
    square = 8 * p * p
    sizes = cached_bytes(parts, e.cache_size, n_products, shape.d)
    kept = shape.precomputed or all(sizes)
    # Targets, gradients, and curvatures at two points; losses and weights.
    fit.holds("targets", 8 * n * (4 * k + 3))
    fit.holds("preconditioner", square)
    if any(sizes):
        fit.keeps(sum(n_bytes or 0 for n_bytes in sizes))
    if is_auto(e.alpha):
        _add_sample(fit, shape, p)
    n_passes, n_steps = _usual_steps(shape, kind, path)
    _add_passes(fit, shape, n_passes * n * p, kept)
    fit.entries(p * p / 2)
    fit.products(FACTOR_CUBES * p**3)
    fit.products(n_steps * FACTOR_CUBES * p**3)
    # Sums over centers or rows, while the last sums and their factor are in memory.
    if falkon or n_chosen is None:
        fit.products(n_steps * p**3)
        fit.uses(6 * square)
    else:
        _add_sums(fit, shape, _PATH_SUMS if path else 2, parts, kept)
    fit.holds("preconditioner", 2 * square)
    return n_steps


def _add_sample(fit, shape, p):
    """Add the path on a sample of the rows that chooses an automatic penalty."""
    m, s = min(shape.n, SAMPLED_SETS), min(p, SAMPLED_CENTERS)
    n_passes, n_steps = _usual_steps(shape, "logistic", True)
    fit.entries(m * s)
    _add_passes(fit, shape, n_passes * m * s, True)
    fit.products(n_steps * FACTOR_CUBES * s**3 + _PATH_SUMS * m * s**2)
    fit.uses(8 * (m * s + 4 * s * s))


def _usual_steps(shape, kind, path):
    """Return the usual numbers of passes over the rows and of Newton steps."""
    e, factor = shape.estimator, 2.5 if shape.n_outputs > 1 else 1.0
    if path:
        return factor * 90, 20
    first, power = _PASSES[kind]
    alpha = 1e-5 if is_auto(e.alpha) else e.alpha
    # One for each penalty on the way down, and two more.
    usual = len(way_down(alpha)) + 2
    steps = min(usual, getattr(e, "max_iter", usual))
    passes = factor * first * max(1 / alpha, 1.0) ** power * steps / usual
    return max(passes, 2 * steps), steps


def _add_passes(fit, shape, count, kept):
    """Add products with `count` entries in total, and with their transpose."""
    if not kept:
        fit.entries(count, 2 * shape.n_outputs)
        return
    # With few columns, in blocks that fit a core's cache, a multiply-add takes five
    # times as long as in the machine's model: on MNIST with ten columns, 1.2e9 of them
    # took 0.15 s on two cores of an Intel Xeon, and 0.18 s on an AMD EPYC.
    work = 2 * count * shape.n_outputs
    product = 5 * CPU.product_seconds(work, 8, fit.n_threads)
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
