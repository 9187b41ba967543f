"""The log loss on centers: Newton steps of Nystrom and Falkon-like classifiers."""

import numpy as np

from ..backend.machine import CPU
from ..estimators.logistic import (
    N_ALPHAS,
    SAMPLED_CENTERS,
    SAMPLED_SETS,
    expected_products,
)
from ..estimators.nystrom import check_alphas
from ..estimators.validation import is_auto
from ..operators.cached import cached_bytes
from ..operators.given import GivenMatrix
from ..solvers.logistic import way_down
from .parts import FACTOR_CUBES, add_pivoted_factor

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
