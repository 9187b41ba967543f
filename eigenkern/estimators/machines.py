"""Kernel machines, where every row is a center: EigenPro 1, 2, or a direct solution."""

from functools import partial

import numpy as np

from ..backend.array import to_numpy
from ..problems.kernel import KernelProblem
from ..problems.problem import weighted_mean_square
from ..solvers.direct import solve_directly
from ..solvers.eigenpro import eigenpro, gone_on, step_on_all_rows, step_on_rows
from ..solvers.row_steps import RowSteps
from ..tuning.sizes import check_sizes, direct_pays, tuning_bytes
from .base import epoch_rule
from .tuned import (
    EPOCH_PENALTY,
    chosen_algorithm,
    chosen_ridge,
    first_coef,
    may_be_direct,
    prepared_solution,
    tuned,
    tuned_attributes,
)
from .validation import is_auto


def prepare_machine(model, merged, held_out, spared):
    """Return problem, solver, chosen attributes and rule of a kernel machine.

    Parameters
    ----------
    model : EigenProRegressor or EigenProClassifier
    merged : Merged
        The training rows.
    held_out : ndarray of int or None
        Rows to score the epochs.
    spared : Spared or None
        The spared training rows.
    """
    problem = KernelProblem(
        merged,
        held_out if spared is None else spared.rows,
        kernel=model.kernel,
        bandwidth=model.bandwidth,
        device=model.device,
    )
    n, indefinite = len(merged.rows), merged.data.indefinite
    if indefinite and direct_pays(problem.operator, model.cache_size):
        problem = problem.in_double().positive()
    K, in_double = problem.operator, None
    if not (problem.kernel is None or indefinite):
        in_double = problem.first_rows_in_double
    ridge = chosen_ridge(model, problem, K, merged, in_double)
    if may_be_direct(model) and direct_pays(K, model.cache_size):
        prepared = _prepare_direct_machine(model, problem, ridge, merged)
        if prepared is not None:
            return prepared
    if ridge:
        problem = problem.penalized(ridge)
    q = 0 if model.algorithm == "sgd" else model.n_components
    is_eigenpro1 = model.algorithm == "eigenpro1"
    check_sizes(n, model.subsample_size, q, model.batch_size)
    # The tuning reads blocks of the kernel matrix: cache it first, if this leaves
    # enough memory for the tuning.
    needed = tuning_bytes(n, model.subsample_size)
    first = is_eigenpro1 or problem.can_be_cached_beside(needed)
    n_products = model.max_iter + int(is_eigenpro1)  # one more for eigenvectors
    cache = model.cache_size, n_products, spared is None
    if first:
        problem = problem.cached(*cache)
    tuning = tuned(model, problem, problem.operator, q, of_all_rows=is_eigenpro1)
    if not first:
        problem = problem.cached(*cache)
    P, row_steps = tuning.preconditioner, None
    if tuning.largest_entry is not None:
        largest = tuning.largest_entry
        row_steps = RowSteps(P, problem.diagonal, problem.weights, largest)
    make_solver = partial(
        eigenpro,
        problem.operator,
        problem.targets,
        P,
        weights=problem.weights,
        batch_size=tuning.batch_size,
        step_size=tuning.step_size,
        rng=problem.rng,
        step=step_on_all_rows if is_eigenpro1 else step_on_rows,
        row_steps=row_steps,
    )
    start = first_coef(model, problem)
    solver = make_solver(
        coef=start,
        try_steps=is_auto(model.step_size),
        rows=None if spared is None else spared.visited,
    )
    if spared is not None:
        solver = spared.states(solver, partial(gone_on, make_solver))
    chosen = tuned_attributes(tuning, problem) | {
        "algorithm_": chosen_algorithm(model),
        "alpha_": ridge / n,
        "cache_size_": problem.cache_megabytes,
    }
    rule = epoch_rule(model, problem, merged.data, held_out, start=start, spared=spared)
    return problem, solver, chosen, rule


def _prepare_direct_machine(model, problem, ridge, merged):
    """Return the same for a direct solution, or None if it fails.

    If `ridge` is 0, a small penalty, `EPOCH_PENALTY` over `max_iter`, makes it about as
    smooth as `max_iter` epochs would. A penalty below the rounding of single precision
    needs kernel values in double precision, in the fit and in predictions.
    """
    penalty = EPOCH_PENALTY / model.max_iter
    problem = problem.precise_enough(ridge)
    K = problem.operator
    found = solve_directly(K, problem.targets, problem.weights, penalty, ridge=ridge)
    if found is None:
        return None
    loss = weighted_mean_square(found.residual, problem.weights)
    if not loss <= problem.loss(problem.initial_coef()):
        return None
    chosen = {
        "alpha_": ridge / len(merged.rows),
        "cache_size_": K.shape[0] ** 2 * K.itemsize / 1e6,
    }
    places = np.arange(len(merged.rows) - found.kept.shape[0], len(merged.rows))
    residual = to_numpy(found.residual[int(places[0]) :, :])
    out_of_sample = merged.left_out(places, residual, to_numpy(found.kept))
    return prepared_solution(problem, found.coef, loss, chosen, out_of_sample)
