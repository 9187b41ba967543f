"""Costs of the parts that fits of several estimators share."""

from ..estimators.base import chooses_penalty
from ..estimators.validation import is_auto
from ..nystrom.krylov import krylov_pays
from ..nystrom.plan import NystromPlan
from ..solvers.step_search import StepSearch
from ..tuning.penalty import n_ridge_rows
from ..tuning.sizes import (
    EIGENVECTOR_CUBES,
    MEASURING_PASSES,
    n_measured_rows,
)

# Multiply-adds of a Cholesky factor over n^3.
FACTOR_CUBES = 0.25
# Factors that choose a penalty on a subsample, for half its rows and for all of them.
N_FACTORS = 4
# Work of a path with all eigenvectors, over that in `NystromPlan`.
ALL_EIGENVECTORS = 3
# Extra epochs of a race of six sides, summed over all sides but the first. Most sides
# are dropped early (`solvers.step_search`).
_RACE_SIDES = 16
# Seconds of normal equations over those of large products with as many multiply-adds:
# 1.3 to 1.6 in 24 fits on cpusmall, a9a and covtype (benchmarks/estimates.py), but 1.8
# to 2.7 in fits of less than a second. They multiply panels of blocks of rows.
NORMAL_EQUATIONS = 1.4
# Products with the kernel matrix that refine a direct solution.
N_REFINEMENTS = 3


def race(fit, n, m):
    """Return the sides of a race on n rows, and the product columns of all epochs."""
    e, k = fit.estimator, fit.n_outputs
    sides = StepSearch(k, -(-n // m), tries=is_auto(e.step_size)).n_sides
    return sides, k * (e.max_iter + _RACE_SIDES * (sides - 1) / 5)


def add_ridge(fit, K, n_bytes=0.0):
    """Add the choice of a penalty on a subsample, if a fit chooses one.

    K is the kernel matrix of rows that take `n_bytes` on top of what is held.
    """
    e, size = fit.estimator, fit.itemsize
    if not chooses_penalty(e) or fit.n < 20:
        return
    s, judges = n_ridge_rows(K)
    judges = min(judges, max(K.shape[0] - s, 0))
    fit.entries((s + judges) * s)
    fit.products(N_FACTORS * FACTOR_CUBES * (s**3 + (s / 2) ** 3), size)
    fit.products(2 * N_FACTORS * judges * s * fit.n_outputs, size)
    fit.uses((s + judges + 2 * s) * s * size + fit.tiles(K, s) + n_bytes)


def add_tuning(fit, K, s, q, kept):
    """Add preconditioner and step: eigenvectors of s rows, measured on other rows."""
    size, n = fit.itemsize, K.shape[0]
    N = n_measured_rows(K, n)
    (fit.reads if kept else fit.entries)(s * s + N * N + N * s)
    fit.products(N * s * q, size)
    if q:
        fit.products(EIGENVECTOR_CUBES * s**3)
    add_measuring(fit, N, q)
    single = 4 * N * (N + q) if size == 8 else 0
    fit.uses(s * s * (size + 16) + 2 * s * q * 8)
    fit.uses(
        (N * N + 2 * N * q + s * q) * size + max(single, N * s * size, fit.tiles(K))
    )


def add_measuring(fit, N, q):
    """Add the measurement of eigenvalues, and of the step in trial runs."""
    fit.reads(MEASURING_PASSES * N * (N + 2 * q), 12, 4)


def add_normal_equations(fit, kind, K, plan, holds_out=False):
    """Add factors, and sums over all rows, with the matrix K of the training rows."""
    # Sums over the rows pass through a buffer, while L of the centers and the sums are
    # in memory. Freed tiles stay with their threads. While the models are computed, the
    # plan has room for one matrix more than was seen in use, and for one more yet where
    # a path on held-out rows takes factors in place.
    p, n_block = K.shape[1], K.gram_rows()
    square = 8 * p * p
    fit.holds("tiles", fit.tiles(K, n_block))
    fit.uses(8 * p * n_block + 2 * square)
    by_factors = kind == "path" and holds_out and krylov_pays(p, fit.n_outputs)
    fewer = 2 if by_factors else 1
    squares = NystromPlan.SQUARES[kind] - fewer + 2 * holds_out
    fit.uses(squares * square)
    fit.holds("preconditioner", square)
    n_evaluations, before = NystromPlan.SUMS.get(kind, 1), fit.seconds
    fit.entries(n_evaluations * fit.n * p + p * p / 2)
    fit.products(plan.work)
    if kind == "path" and not by_factors:
        fit.products((ALL_EIGENVECTORS - 1) * NystromPlan.CUBES[kind] * p**3)
    add_pivoted_factor(fit, p)
    fit.seconds = before + NORMAL_EQUATIONS * (fit.seconds - before)


def add_pivoted_factor(fit, p):
    """Add `pivoted_cholesky`, which runs on one thread."""
    fit.products(FACTOR_CUBES * p**3 * fit.n_threads)
