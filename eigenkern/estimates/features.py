"""Models of features: linear EigenPro and random Fourier features."""

import numpy as np

from ..backend.machine import CPU
from ..estimators.base import has_penalty, stops_early
from ..estimators.doubly_stochastic import (
    chosen_sizes,
    holds_rows_out,
    passes_of_epoch,
)
from ..estimators.linear_eigenpro import is_solved_directly
from ..estimators.validation import is_auto
from ..operators.linear import CenteredFeatures
from ..operators.plan import cache_budget
from ..tuning.doubly_stochastic import first_blocks
from ..tuning.linear import sizes_of_features
from ..tuning.penalty import n_sampled
from ..tuning.sizes import (
    EIGENVECTOR_CUBES,
    MEASURING_PASSES,
    N_MEASURED,
    max_components,
)
from .parts import FACTOR_CUBES, N_FACTORS, N_REFINEMENTS, add_ridge, race

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
    F, m, kept = chosen_sizes(e, n, k, cache_budget(e.cache_size, fit))
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
