"""Kernel machines, where every row is a center: EigenPro 1 and 2, or one factor."""

from functools import partial

from ..nystrom.descent import State
from ..problems.kernel import KernelProblem
from ..problems.problem import weighted_mean_square
from ..solvers.direct import solve_directly
from ..solvers.eigenpro import eigenpro, gone_on, step_on_all_rows, step_on_rows
from ..tuning.sizes import check_sizes, direct_pays, tuning_bytes
from .base import epoch_rule
from .training import SolutionRule
from .tuned import (
    EPOCH_PENALTY,
    chosen_algorithm,
    chosen_ridge,
    left_out_values,
    may_be_direct,
    previous_coef,
    solved_attributes,
    tuned,
    tuned_attributes,
)
from .validation import is_auto


def prepare_machine(model, data, train, held_out, spared):
    """Return problem, solver, chosen attributes and rule of a kernel machine.

    Parameters
    ----------
    model : EigenProRegressor or EigenProClassifier
    data : Data
    train : ndarray of int
        Training rows, in random order.
    held_out : ndarray of int or None
        Rows to score, or the spared rows.
    spared : Spared or None
        Which of the training rows are spared.
    """
    problem = KernelProblem(
        data,
        train,
        held_out,
        kernel=model.kernel,
        bandwidth=model.bandwidth,
        device=model.device,
    )
    K = problem.operator
    ridge = chosen_ridge(model, problem, K)
    if may_be_direct(model) and direct_pays(K, model.cache_size):
        solution = _solved_directly(model, problem, ridge, data, train)
        if solution is not None:
            rule = SolutionRule(problem, solution.counts["loss_curve_"])
            return problem, iter([solution]), solution.counts, rule
    if ridge:
        problem = problem.penalized(ridge)
    q = 0 if model.algorithm == "sgd" else model.n_components
    on_all_rows = model.algorithm == "eigenpro1"  # its eigenvectors: one more product
    check_sizes(len(train), model.subsample_size, q, model.batch_size)
    # The tuning reads blocks of the kernel matrix: cache that first, if this leaves the
    # tuning enough memory.
    needed = tuning_bytes(len(train), model.subsample_size)
    first = on_all_rows or problem.can_be_cached_beside(needed)
    cache = model.cache_size, model.max_iter + on_all_rows, spared is None
    if first:
        problem = problem.cached(*cache)
    tuning = tuned(model, problem, problem.operator, q, on_all_rows=on_all_rows)
    if not first:
        problem = problem.cached(*cache)
    make_solver = partial(
        eigenpro,
        problem.operator,
        problem.targets,
        tuning.preconditioner,
        weights=problem.weights,
        batch_size=tuning.batch_size,
        step_size=tuning.step_size,
        rng=problem.rng,
        step=step_on_all_rows if on_all_rows else step_on_rows,
    )
    start = previous_coef(model, problem)
    solver = make_solver(
        coef=problem.initial_coef() if start is None else start,
        try_steps=is_auto(model.step_size),
        rows=None if spared is None else spared.visited,
    )
    if spared is not None:
        solver = spared.states(solver, partial(gone_on, make_solver))
    chosen = tuned_attributes(tuning, problem) | {
        "algorithm_": chosen_algorithm(model),
        "alpha_": ridge / len(train),
        "cache_size_": problem.cache_megabytes,
    }
    rule = epoch_rule(model, problem, data, held_out, start=start, spared=spared)
    return problem, solver, chosen, rule


def _solved_directly(model, problem, ridge, data, train):
    """Return the state of the direct solution, with what was chosen, or None.

    It is the state after one step of EigenPro with all eigenvectors. Without a penalty,
    it is about as smooth as `max_iter` epochs would leave it.
    """
    K, penalty = problem.operator, EPOCH_PENALTY / model.max_iter
    found = solve_directly(K, problem.targets, problem.weights, penalty, ridge=ridge)
    if found is None:
        return None
    loss = weighted_mean_square(found.residual, problem.weights)
    if not loss <= problem.loss(problem.initial_coef()):
        return None
    chosen = solved_attributes(problem, loss) | {
        "alpha_": ridge / len(train),
        "cache_size_": K.shape[0] ** 2 * K.itemsize / 1e6,
    }
    rows = train[len(train) - found.left_out.shape[0] :]
    out_of_sample = left_out_values(data, rows, found.left_out)
    return State(found.coef, chosen, out_of_sample)
