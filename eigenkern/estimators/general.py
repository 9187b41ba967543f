"""Models with their own centers: EigenPro 3, 4, or a direct solution."""

from functools import partial

import numpy as np

from ..backend.array import to_numpy
from ..backend.lazy import is_lazy
from ..centers import METHODS, distinct_rows
from ..problems.general import GeneralProblem
from ..solvers.projected import Iterate, projected_exactly
from ..solvers.projection import CenterFactor, ExactProjection
from ..tuning.sizes import direct_pays_on_centers
from .base import epoch_rule, given_penalty
from .kernel_check import check_given_kernel
from .learner import Learner, ProjectedRule
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
from .validation import check_centers, is_auto, warn_of_few_rows

# Minimum number of batches in an epoch: a direct solution counts as this many
# projections for each epoch that it replaces, in case more rows are learned later.
_LEAST_BATCHES = 8


def prepare_on_centers(model, merged, held_out, spared):
    """Return problem, solver, chosen attributes and rule of EigenPro 3 and 4.

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
    predicted = held_out if spared is None else spared.rows
    problem = _chosen_problem(model, merged.data, merged.rows, predicted)
    problem.within = merged.within
    if merged.data.indefinite:  # no projection exists, and no penalty can be chosen
        ridge = given_penalty(model) * problem.n_rows
        prepared = _prepare_direct_on_centers(model, problem, ridge, merged)
        if prepared is not None:
            return prepared
    K = problem.sampled_kernel()
    ridge = chosen_ridge(model, problem, K, merged, problem.sampled_kernel_in_double)
    if may_be_direct(model) and not is_lazy(merged.data.X):
        prepared = None
        if _direct_pays(model, problem):
            prepared = _prepare_direct_on_centers(model, problem, ridge, merged)
        if prepared is not None:
            return prepared
    start = first_coef(model, problem)
    learner = Learner.make(
        model,
        problem,
        ridge / problem.n_rows,
        start,
        n_rows=problem.n_rows,
        n_epochs=model.max_iter,
    )
    problem = problem.cached(model.cache_size, model.max_iter)
    batches = partial(problem.batches, learner.tuning.batch_size)
    visited = batches if spared is None else partial(batches, spared.visited)
    solver = learner.solver(visited, try_half_steps=is_auto(model.step_size))
    if spared is not None:
        solver = spared.states(solver, partial(learner.gone_on, batches))
    chosen = learner.chosen_attributes() | {
        "algorithm_": chosen_algorithm(model),
        "cache_size_": problem.cache_megabytes,
    }
    rule = epoch_rule(
        model,
        problem,
        merged.data,
        held_out,
        kind=ProjectedRule,
        start=start,
        spared=spared,
    )
    return problem, solver, chosen, rule


def prepare_exact(model, merged, held_out):
    """Return the same for EigenPro 3 with exact projections of full batches."""
    data = merged.data
    if data.indefinite:
        return prepare_on_centers(model, merged, held_out, None)
    problem = _chosen_problem(model, data, merged.rows, held_out)
    problem.within = merged.within
    n, start = problem.n_rows, first_coef(model, problem)
    if not is_auto(model.batch_size) and model.batch_size != n:
        raise ValueError(
            "batch_size must be 'auto' with algorithm='eigenpro3-exact', whose "
            f"steps take all {n} training rows; got {model.batch_size}"
        )
    problem.check_memory()
    tuning = tuned(
        model,
        problem,
        problem.row_operator(),
        model.n_components,
        of_all_rows=True,
        in_batches=False,
    )
    K = problem.matrix()
    solver = projected_exactly(
        K,
        problem.targets,
        problem.weights,
        tuning.preconditioner,
        ExactProjection(CenterFactor(problem.center_matrix)),
        iterate=Iterate.of(start),
        step_size=tuning.step_size,
    )
    chosen = tuned_attributes(tuning, problem) | {
        "algorithm_": chosen_algorithm(model),
        "alpha_": 0.0,
        "cache_size_": K.shape[0] * K.shape[1] / 1e6 * problem.center_matrix.itemsize,
        "projection_interval_": 1,
    }
    rule = epoch_rule(model, problem, data, held_out, kind=ProjectedRule, start=start)
    return problem, solver, chosen, rule


def _direct_pays(model, problem):
    return direct_pays_on_centers(
        problem.center_matrix,
        problem.n_rows,
        problem.n_features,
        problem.targets.shape[1],
        model.max_iter,
        model.cache_size,
    )


def _prepare_direct_on_centers(model, problem, ridge, merged):
    """Return the same for a direct solution, or None if it fails."""
    least, size = problem.least_ridge(), problem.entry_size()
    if not 0 < size < np.inf or (given_penalty(model) > 0 and ridge <= least):
        return None
    if ridge:
        ridge = max(ridge, least)
    penalty = max(EPOCH_PENALTY / model.max_iter * size, least)
    coef, out_of_sample = problem.solved(ridge or penalty, merged)
    if coef is None:
        return None
    loss = problem.loss(coef)
    chosen = {
        "cache_size_": 0.0,
        "alpha_": ridge / problem.n_rows,
        "projection_interval_": None,
        "t_": _LEAST_BATCHES * model.max_iter,
        "projection_residual_": 0.0,
    }
    return prepared_solution(problem, coef, loss, chosen, out_of_sample)


def _chosen_problem(model, data, train, held_out=None, *, streams=False):
    """Return the problem with the model's kernel and centers.

    Fewer distinct rows than centers are an error in a stream, whose centers stay, and
    otherwise a warning.
    """
    centers = _centers_at_hand(model, data.X)
    problem = GeneralProblem(
        data,
        train,
        held_out,
        kernel=model.kernel,
        bandwidth=model.bandwidth,
        centers=model.centers if centers is None else centers,
        n_centers=model.n_centers if centers is None else None,
        device=model.device,
    )
    n_distinct = _too_few_rows(model, problem, data, train)
    if n_distinct and streams:
        raise ValueError(
            f"n_centers must be at most {n_distinct}, the number of distinct rows that "
            f"came first, because the centers stay; got {model.n_centers}"
        )
    if n_distinct:
        warn_of_few_rows(model.n_centers, n_distinct)
    return problem


def _centers_at_hand(model, X):
    """Return the given centers, or those of a fit to continue from, or None."""
    centers, p = check_centers(model.centers, X, METHODS), model.n_centers
    if centers is not None:
        if p not in (None, centers.shape[0]):
            raise ValueError(
                f"n_centers must be None or {centers.shape[0]}, the number of "
                f"centers that are given; got {p!r}"
            )
        if len(distinct_rows(centers)[0]) < centers.shape[0]:
            raise ValueError("centers must be distinct; got rows that are equal")
        return centers
    going_on = model.warm_start and hasattr(model, "dual_coef_")
    if going_on and p in (None, model.centers_.shape[0]):
        return model.centers_
    return None


def _too_few_rows(model, problem, data, train):
    """Return the number of distinct rows if it is below `n_centers`, or 0."""
    given = model.n_centers is None or not isinstance(model.centers, str)
    if given or problem.n_coefficients >= model.n_centers:
        return 0
    if model.centers != "rpcholesky":
        return problem.n_coefficients
    # RPCholesky ends once the centers span the rows.
    n_distinct = len(data.distinct(train)[0])
    return n_distinct if n_distinct < model.n_centers else 0


def new_learner(model, data):
    """Return the `Learner` of a stream that begins with some rows."""
    rows = data.rows_with_weight()
    ends = check_given_kernel(model.kernel, data.X, rows, model.device)
    if ends is not None:
        raise ValueError(
            f"kernel must be positive semi-definite for data in pieces; got {ends}"
        )
    problem = _chosen_problem(model, data, _in_random_order(data), streams=True)
    m = getattr(model, "batch_size_", None)  # as in the pieces so far
    return Learner.make(model, problem, given_penalty(model), batch_size=m)


def learner_of_fitted(model, data):
    """Return the `Learner` of a stream that continues with a fitted model."""
    problem = GeneralProblem(
        data,
        _in_random_order(data),
        None,
        kernel=model.kernel_,
        centers=model.centers_,
        device=model.device,
        intercept=to_numpy(model.intercept_).astype(np.float64),
        weight_scale=model.weight_scale_,
    )
    coef = problem.coef_of(model.dual_coef_)
    learner = Learner.make(model, problem, given_penalty(model), coef)
    learner.iterate.n_projections = model.t_
    return learner


def _in_random_order(data):
    """Return the rows with weight, to choose from, in random order."""
    return data.rng.permutation(data.rows_with_weight())
