"""How EigenPro is fitted: directly, by epochs on all rows, or on centers."""

from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

from ..arrays import memory
from ..arrays.array import to_numpy
from ..centers import METHODS, distinct_rows, rows_among
from ..fitting.model import check_epochs, start_of
from ..fitting.outcome import check_given_kernel
from ..fitting.planning import shape_of
from ..fitting.rules import EpochRule, SolutionRule
from ..fitting.validation import (
    check_centers,
    check_flag,
    check_number,
    check_unless_auto,
    warn_of_few_rows,
    warn_user,
)
from ..methods.direct import solve_directly
from ..methods.epochs import eigenpro, step_on_all_rows, step_on_rows
from ..methods.projected import (
    CenterFactor,
    ExactProjection,
    InexactProjection,
    Iterate,
    projected,
    projected_exactly,
)
from ..methods.state import State
from ..methods.step_search import RowSteps
from ..operators.cached import cached, check_free
from ..operators.tiled import TiledKernel
from ..plan.of_epochs import RESOLVED, plan_on_centers, plan_on_rows
from ..plan.parameters import (
    calibrates,
    chooses_penalty,
    chosen_algorithm,
    given_penalty,
    has_twin,
    is_auto,
    kernel_parameters,
    largest_size,
    n_to_calibrate,
)
from ..plan.penalty import N_RIDGE_ROWS
from ..plan.sizes import direct_bytes, exact_bytes, n_sampled_rows, rounding
from ..plan.step import Tuning, tune, tune_on_centers
from ..preconditioners.global_spectral import GlobalSpectral
from ..preconditioners.spectral import Spectral
from ..problems.basis_centers import CenterProblem, GeneralProblem
from ..problems.basis_rows import KernelProblem
from ..problems.closed_form import ridge_of_rows
from ..problems.data import hold_out
from ..problems.problem import weighted_mean_square

# The penalty equivalent to one epoch, in units of the mean of k(x, x). With 20 epochs
# the errors on new rows of eleven data sets are at most 0.1 points above EigenPro 2's
# (200 to 7000 rows, alpha=0); a penalty five times as large costs up to
# 0.8 % on clean targets.
EPOCH_PENALTY = 0.02


def check_tuning(estimator):
    """Raise a ValueError unless the parameters of the iteration are valid."""
    smallest = {"n_components": 0, "subsample_size": 2, "batch_size": 1}
    for name, low in smallest.items():
        check_unless_auto(name, getattr(estimator, name), low, integer=True)
    step = estimator.step_size
    if not isinstance(step, str):
        check_number("step_size", step, 0, open_ends=True)
    elif step not in ("auto", "bound"):
        raise ValueError(
            f"step_size must be 'auto', 'bound' or a number > 0; got {step!r}"
        )
    check_number("damping", estimator.damping, 0, 1, open_low=True)
    check_flag("warm_start", estimator.warm_start)
    check_epochs(estimator)


class Basis:
    """What a model is fitted on: a problem, and the two ways to solve it.

    A subclass defines what `prepared` calls, in its order:

    - ``_problem()``: the problem, with the held-out rows to predict;
    - ``_chosen_ridge()``: c = alpha n, if a fit chooses it;
    - ``plan(ridge, direct=)``: the `Plan`, direct only if it may be so;
    - ``solved(ridge)``: coefficients, loss, chosen attributes and left-out values of a
      direct solution, or None;
    - ``epochs(plan, ridge, start)``: the solver, with preconditioner, batch and step
      that it chooses; it sets `chosen`, the fitted attributes of all that.
    """

    rule = EpochRule
    #: What `_problem` sets up, as text.
    parts = "the kernel"

    def __init__(self, model, merged, held_out):
        self.model, self.merged, self.held_out = model, merged, held_out
        self.problem = self._problem()
        self.problem.within = merged.within

    def ridge(self):
        """Return c = alpha n: given, or chosen."""
        if chooses_penalty(self.model):
            return self._chosen_ridge()
        return given_penalty(self.model) * len(self.merged.rows)

    @property
    def has_twin(self):
        """Whether a second model beside this one does not learn the held-out rows."""
        some = self.held_out is not None and len(self.held_out) > 0
        return some and has_twin(self.model)

    def twin(self):
        """Return targets and weights of a model that does not learn held-out rows.

        None: there is no twin.
        """
        if not self.has_twin:
            return None
        merged, problem = self.merged, self.problem
        targets, weights = merged.without(self.held_out)
        unit = merged.data.weights_of(merged.rows).mean()
        return problem.centered(targets), problem.array(weights / unit)


def prepared(kind, model, data, train, held_out, *, fewest, direct=True):
    """Return problem, solver, chosen attributes and rule: directly, or by epochs.

    `kind` is a class of `Basis`, and `fewest` sets of equal rows are merged. For epochs
    a classifier holds rows out to calibrate on: from the model, or from its twin only.
    A direct solution learns them, and leaves them out one by one.
    """
    fewest = max(fewest, largest_size(model))
    merged = data.merged(train, fewest=fewest)
    holds_out = data.groups is not None and calibrates(model)
    if holds_out and direct and not data.indefinite:
        shape = shape_of(model, data, len(merged.rows))
        direct = model._plan(shape).method == "direct"
    if holds_out and not direct:
        part = n_to_calibrate(len(train)) / len(train)
        others, held_out = hold_out(data, train, part, fewest=0, in_given_order=True)
        if not has_twin(model):
            train = others
            merged = data.merged(train, fewest=fewest)
    model._say(f"setting up {kind.parts}")
    basis = kind(model, merged, held_out)
    if chooses_penalty(model):
        model._say("choosing the penalty")
    ridge = basis.ridge()
    plan, found = basis.plan(ridge, direct=direct), None
    if plan.method == "direct":
        model._say(f"solving for {len(merged.rows)} rows directly")
        found = basis.solved(ridge)
    if found is not None:
        return _solution(basis.problem, *found)
    if holds_out and direct:
        return prepared(kind, model, data, train, None, fewest=fewest, direct=False)
    if plan.method == "direct":
        plan = basis.plan(ridge, direct=False)
    start = start_of(model, basis.problem)
    if start is None:
        start = basis.problem.initial_coef()
    model._say("choosing preconditioner, batch and step")
    solver = basis.epochs(plan, ridge, start)
    given = model, basis.problem, basis.merged.source, held_out
    rule = basis.rule(*given, start=start, scored=not holds_out)
    return basis.problem, solver, basis.chosen, rule


def _solution(problem, coef, loss, chosen, left_out):
    """Return problem, solver, chosen attributes and rule of a direct solution."""
    loss += problem.within
    chosen = dict.fromkeys(_CHOSEN) | chosen
    chosen |= {
        "algorithm_": "direct",
        "n_iter_": 1,
        "loss_curve_": [loss],
        "validation_scores_": None,
        "n_step_halvings_": 0,
    }
    solver = iter([State(coef, chosen, out_of_sample=left_out)])
    return problem, solver, chosen, SolutionRule(problem, [loss])


def _tuned(basis, K, sizes, *, of_all_rows):
    """Return preconditioner, batch and step, measured on K(X, X).

    The eigenvectors are those of a subsample, or with `of_all_rows` those of all rows.
    """
    model, problem, make_preconditioner = basis.model, basis.problem, Spectral.of
    if of_all_rows:
        options = {"svd_solver": model.svd_solver, "rng": problem.rng}
        make_preconditioner = partial(GlobalSpectral.of, **options)
    return tune(
        K,
        sizes,
        make_preconditioner=make_preconditioner,
        weights=problem.weights,
        n_components=0 if model.algorithm == "sgd" else model.n_components,
        step_size=model.step_size,
        damping=model.damping,
    )


# Fitted attributes of what was chosen, and their places in `Tuning`.
_CHOSEN = {
    "batch_size_": "batch_size",
    "step_size_": "step_size",
    "n_components_": "preconditioner.n_components",
    "subsample_size_": "subsample_size",
    "max_batch_size_": "max_batch_size",
    "critical_batch_size_": "plain.critical_batch_size",
    "adapted_critical_batch_size_": "adapted.critical_batch_size",
    "beta_": "adapted.beta",
    "top_eigenvalue_": "adapted.top_eigenvalue",
    "eigenvalues_": "preconditioner.eigenvalues",
    "acceleration_": "acceleration",
    "tuning_results_": "results",
}


def tuned_attributes(tuning, problem):
    """Return the fitted attributes of what was chosen."""
    attributes = {name: attrgetter(path)(tuning) for name, path in _CHOSEN.items()}
    return attributes | {"eigenvalues_": problem.to_source(attributes["eigenvalues_"])}


class OnRows(Basis):
    """Every training row is a center: EigenPro 1 and 2, or one Cholesky factor."""

    def _problem(self):
        model, n_learned = self.model, None
        if self.has_twin:
            # The eigenvectors, of the first rows, have to be of rows that it learns.
            self.merged = self.merged.with_last(self.held_out)
            n_learned = int((self.merged.without(self.held_out)[1] > 0).sum())
        data = self.merged.data
        shape = shape_of(model, data, len(self.merged.rows), self.held_out)
        self._make_plan = partial(plan_on_rows, shape, n_learned=n_learned)
        self._plan = self._make_plan()
        problem = KernelProblem(
            self.merged,
            self.held_out,
            **kernel_parameters(model),
            # Direct solutions are in double precision where that matters.
            bandwidth_dtype=np.dtype(float) if self._plan.method == "direct" else None,
            device=model.device,
        )
        if data.indefinite and self._plan.fits:
            problem = problem.in_double().positive()
        return problem

    def _chosen_ridge(self):
        problem = self.problem
        K, sizes = problem.operator, (N_RIDGE_ROWS, problem.dtype)
        return ridge_of_rows(problem, self.merged, *sizes, K)

    def plan(self, ridge, *, direct):
        return self._plan if direct else self._make_plan(direct=False)

    def solved(self, ridge):
        # Without a penalty a small one makes the model about as smooth as `max_iter`
        # epochs would. A penalty below the rounding of single precision needs kernel
        # values in double precision, in the fit and in predictions.
        penalty, n = EPOCH_PENALTY / self.model.max_iter, len(self.merged.rows)
        some = self.model._n_left_out
        if n > some:  # the others tell the variance there
            some = min(some, n // 2)
        first = self.problem.precise_enough(ridge)
        for problem in dict.fromkeys([first, first.in_double()]):
            K, y, w = problem.operator, problem.targets, problem.weights
            check_free(direct_bytes(K), K, self.model.cache_size)
            found = solve_directly(K, y, w, penalty, ridge=ridge, least_left_out=some)
            if found is not None:
                break
        else:
            return None
        loss = weighted_mean_square(found.residual, w)
        of_mean = problem.loss(problem.initial_coef())
        if not loss <= problem.up_to_rounding(of_mean):
            return None
        self.problem = problem
        places = np.arange(n - found.kept.shape[0], n)
        residual = to_numpy(found.residual[int(places[0]) :, :])
        sets = places, residual, to_numpy(found.kept)
        left_out = self.merged.left_out(*sets)
        chosen = {"alpha_": ridge / n, "cache_size_": n**2 * K.itemsize / 1e6}
        if some:
            last = (part[-some:] for part in sets)
            left = self.merged.observations_left_out(*last, found.ridge)
            chosen["_left_out"] = left
        return found.coef, loss, chosen, left_out

    def epochs(self, plan, ridge, start):
        model, problem = self.model, self.problem
        if ridge:
            problem = problem.penalized(ridge)
        all_rows = model.algorithm == "eigenpro1"
        if plan.first:
            problem = self._kept(problem, plan)
        tuning = _tuned(self, problem.operator, plan.sizes, of_all_rows=all_rows)
        if not plan.first:
            problem = self._kept(problem, plan)
        self.problem, P, row_steps = problem, tuning.preconditioner, None
        if tuning.largest_entry is not None:
            largest = tuning.largest_entry
            row_steps = RowSteps(P, problem.diagonal, problem.weights, largest)
        self.chosen = tuned_attributes(tuning, problem) | {
            "algorithm_": chosen_algorithm(model),
            "alpha_": ridge / len(self.merged.rows),
            "cache_size_": problem.cache_megabytes,
        }
        return eigenpro(
            problem.operator,
            problem.targets,
            P,
            coef=start,
            weights=problem.weights,
            batch_size=tuning.batch_size,
            step_size=tuning.step_size,
            rng=problem.rng,
            step=step_on_all_rows if all_rows else step_on_rows,
            try_steps=is_auto(model.step_size),
            row_steps=row_steps,
            twin=self.twin(),
        )

    def _kept(self, problem, plan):
        """Return the problem with the matrices in memory that a plan keeps."""
        megabytes = sum(size or 0 for size in plan.kept) / 1e6
        if megabytes:
            self.model._say(f"computing the kernel matrix, {megabytes:.0f} MB")
        return problem.cached(self.model.cache_size, plan.kept)


class ProjectedRule(EpochRule):
    """The rule of epochs that also warns if projections were inaccurate."""

    def fitted_attributes(self, interrupted=False):
        attributes = super().fitted_attributes(interrupted)
        warn_of_projections(self._name, attributes)
        return attributes


class OnCenters(Basis):
    """A model has centers of its own: EigenPro 3 and 4, or normal equations."""

    rule, parts = ProjectedRule, "kernel and centers"

    def _problem(self):
        model, data, rows = self.model, self.merged.data, self.merged.rows
        self._shape = shape_of(model, data, len(rows), self.held_out)
        directly = model._plan(self._shape).method == "direct"
        # Direct solutions are in double precision where that matters.
        dtype = np.dtype(float) if directly else None
        return _chosen_problem(model, data, rows, self.held_out, bandwidth_dtype=dtype)

    def _chosen_ridge(self):
        problem, merged = self.problem, self.merged
        if merged.data.indefinite:  # none can be chosen
            return 0.0
        n_sample = n_sampled_rows(problem.n_rows)
        return ridge_of_rows(problem, merged, n_sample, problem.dtype)

    def plan(self, ridge, *, direct):
        p, indefinite = self.problem.n_coefs, self.merged.data.indefinite
        # On indefinite kernels no projection exists.
        return plan_on_centers(self._shape, p, direct=direct, needed=indefinite)

    def solved(self, ridge):
        # The normal equations of the Nystrom method on all rows.
        model, problem, n = self.model, self.problem, self.problem.n_rows
        size, double = problem.entry_size(), problem.xp.float64
        # Less is drowned by rounding of the kernel matrix, even in double precision.
        least = rounding(problem.xp, double, problem.n_coefs) * n * size
        if not 0 < size < np.inf or (given_penalty(model) > 0 and ridge <= least):
            return None
        if ridge:
            ridge = max(ridge, least)
        alpha = (ridge or max(EPOCH_PENALTY / model.max_iter * size, least)) / n
        squares = CenterProblem(
            model.device,
            self.merged.source,
            np.sort(self.merged.members),
            None,
            kernel=problem.kernel,
            bandwidth=None,
            n_centers=None,
            centers=problem.centers,
        )
        squares.iterates(alpha / RESOLVED)
        equations = squares.training
        factor = equations.factor(alpha)
        if factor is None:
            return None
        found = equations.solve(factor)[:, :-1]
        if squares.model_dtype(found) == double:
            self.problem = problem = problem.in_double()
        dual_coef = squares.dual_coef(found)
        coef, left_out = problem.coef_of({"dual_coef_": dual_coef}), None
        if squares.calibrates:
            # Leave out no center: without its row, almost nothing would determine its
            # coefficient, and new rows are not centers.
            others = ~rows_among(squares.all.X, problem.centers)
            left_out = squares.left_out(alpha, factor, among=others)
        chosen = {
            "cache_size_": 0.0,
            "alpha_": ridge / n,
            "projection_interval_": None,
            "t_": 8 * model.max_iter,  # epochs have 8 batches or more
            "projection_residual_": 0.0,
        }
        return coef, problem.loss(coef), chosen, left_out

    def epochs(self, plan, ridge, start):
        model, problem = self.model, self.problem
        n, alpha = problem.n_rows, ridge / problem.n_rows
        learner = Learner.make(model, problem, plan, alpha, start, n_rows=n)
        if plan.kept:
            p = problem.center_matrix.shape[0]
            model._say(f"computing the kernel matrix of {n} rows and {p} centers")
            self.problem = problem = problem.kept(model.cache_size)
        self.chosen = learner.chosen_attributes() | {
            "algorithm_": chosen_algorithm(model),
            "cache_size_": problem.cache_megabytes,
        }
        batches = partial(problem.batches, plan.batch_size)
        return learner.solver(batches, try_half_steps=is_auto(model.step_size))


class ExactlyOnCenters(OnCenters):
    """EigenPro 3 with exact projections of full batches."""

    def _chosen_ridge(self):
        return 0.0

    def plan(self, ridge, *, direct):
        n, m = self.problem.n_rows, self.model.batch_size
        if not is_auto(m) and m != n:
            raise ValueError(
                "batch_size must be 'auto' with algorithm='eigenpro3-exact', whose "
                f"steps take all {n} training rows; got {m}"
            )
        K = self.problem.center_matrix
        needed = exact_bytes(n, K.shape[0], K.itemsize)
        needs = f"algorithm='eigenpro3-exact' with {K.shape[0]} centers of {n} rows "
        needs += f"needs {needed / 1e6:.0f} MB"
        remedy = "pass a smaller n_centers or algorithm='eigenpro3'"
        memory.check(needed, K.xp, K.device, needs, remedy)
        return super().plan(ridge, direct=False)

    def epochs(self, plan, ridge, start):
        problem, X = self.problem, self.problem.gather(slice(0, self.problem.n_rows))
        rows = TiledKernel(problem.kernel, X)
        tuning = _tuned(self, rows, plan.sizes, of_all_rows=True)
        K = problem.center_matrix.rows(X).block()
        n_bytes = K.shape[0] * K.shape[1] * problem.center_matrix.itemsize
        self.chosen = tuned_attributes(tuning, problem) | {
            "algorithm_": self.model.algorithm,
            "alpha_": 0.0,
            "cache_size_": n_bytes / 1e6,
            "projection_interval_": 1,
        }
        return projected_exactly(
            K,
            problem.targets,
            problem.weights,
            tuning.preconditioner,
            ExactProjection(CenterFactor(problem.center_matrix)),
            iterate=Iterate.of(start),
            step_size=tuning.step_size,
        )


def _chosen_problem(
    model, data, train, held_out=None, *, streams=False, bandwidth_dtype=None
):
    """Return the problem with the model's kernel and centers.

    Fewer distinct rows than centers are an error in a stream, whose centers stay, and
    otherwise a warning.
    """
    centers = _centers_at_hand(model, data.X)
    problem = GeneralProblem(
        data,
        train,
        held_out,
        **kernel_parameters(model),
        bandwidth_dtype=bandwidth_dtype,
        centers=model.centers if centers is None else centers,
        n_centers=model.n_centers if centers is None else None,
        device=model.device,
    )
    n_distinct = _too_few_rows(model, problem, data, train)
    if n_distinct and streams:
        raise ValueError(
            f"n_centers must be at most {n_distinct}, the number of distinct rows that "
            f"came first, because the centers stay; got {model.n_centers}: begin with "
            "a larger piece, or use fit_batches"
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
        if model.centers_.shape[1] != X.shape[1]:
            raise ValueError(
                "warm_start=True continues from the centers of the previous fit and "
                f"needs X with {model.centers_.shape[1]} columns; got {X.shape[1]}"
            )
        return model.centers_
    return None


def _too_few_rows(model, problem, data, train):
    """Return the number of distinct rows if it is below `n_centers`, or 0."""
    given = model.n_centers is None or not isinstance(model.centers, str)
    if given or problem.n_coefs >= model.n_centers:
        return 0
    if model.centers != "rpcholesky":
        return problem.n_coefs
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
    plan = _plan_of_stream(model, data, problem, m)
    return Learner.make(model, problem, plan, given_penalty(model))


def _plan_of_stream(model, data, problem, batch_size=None):
    options = {"n_rows": float("inf"), "n_epochs": 1, "batch_size": batch_size}
    shape = shape_of(model, data, problem.n_rows)
    return plan_on_centers(shape, problem.n_coefs, direct=False, **options)


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
    coef = problem.coef_of(vars(model))
    plan = _plan_of_stream(model, data, problem)
    learner = Learner.make(model, problem, plan, given_penalty(model), coef)
    learner.iterate.n_projections = model.t_
    return learner


def _in_random_order(data):
    """Return the rows with weight, to choose from, in random order."""
    return data.rng.permutation(data.rows_with_weight())


# Relative residual of projections above which to warn: less than half is solved.
_LARGEST_RESIDUAL = 0.5
# Estimator parameters that a learner depends on.
_PARAMETERS = (
    "algorithm",
    "alpha",
    "n_components",
    "subsample_size",
    "batch_size",
    "step_size",
    "damping",
    "cache_size",
    "device",
)


def _projection(problem, factor, P, n_learned, cache_size):
    """Return the projection by a factor, or by conjugate gradients if it is None.

    For conjugate gradients K(Z, Z) is cached if that fits and pays.
    """
    if factor is not None:
        return ExactProjection(factor, P)
    centers = problem.center_matrix
    n_products = int(min(n_learned, 1e6)) // centers.shape[0]
    (centers,), _ = cached([centers], cache_size, n_products, problem.n_features)
    return InexactProjection(centers, P)


@dataclass
class Learner:
    """Projection, preconditioner, step and iterate of a model on centers.

    Attributes
    ----------
    problem : GeneralProblem or None
        The problem of all rows, or of the first ones of a stream; None after
        unpickling, see `revived`.
    n_learned : float
        Rows to learn, as the plan assumes.
    tuning : Tuning
    project : ExactProjection, InexactProjection or None
    interval : int
        T, the number of batches between projections.
    iterate : Iterate
    parameters : list
        Estimator parameters that it was made with.
    alpha : float
        The penalty.
    n_halvings : int
        How often the step was halved.
    pickled : dict or None
        The pickled parts of problem and projection.
    """

    problem: GeneralProblem
    n_learned: float
    tuning: Tuning
    project: Any
    interval: int
    iterate: Iterate
    parameters: list
    alpha: float = 0.0
    n_halvings: int = 0
    pickled: dict | None = None

    def __getstate__(self):
        # Problem and projection are large, and are made again when needed.
        if self.problem is None:
            return vars(self)
        names = "intercept", "weight_scale", "zero_loss"
        pickled = {
            "problem": {name: getattr(self.problem, name) for name in names},
            "exact": isinstance(self.project, ExactProjection),
            "residuals": self.project.save(),
        }
        return vars(self) | {"problem": None, "project": None, "pickled": pickled}

    def revived(self, estimator, data):
        """Return the learner, restored from its pickle, to learn more rows."""
        pickled, P = self.pickled, self.tuning.preconditioner
        problem = GeneralProblem(
            data,
            np.arange(0),
            None,
            kernel=estimator.kernel_,
            centers=estimator.centers_,
            device=estimator.device,
            **pickled["problem"],
        )
        centers = problem.center_matrix
        factor = CenterFactor(centers) if pickled["exact"] else None
        given = factor, P, self.n_learned, estimator.cache_size
        project = _projection(problem, *given)
        project.load(pickled["residuals"])
        return replace(self, problem=problem, project=project)

    @classmethod
    def make(cls, estimator, problem, plan, alpha, coef=None, n_rows=float("inf")):
        """Return the learner for a problem, as planned (`plan_on_centers`).

        Parameters
        ----------
        estimator : EigenProRegressor or EigenProClassifier
        problem : GeneralProblem
        plan : Plan
        alpha : float
        coef : array of shape (p, l), default=None
            Coefficients to start from. None: zero.
        n_rows : float, default=inf
            Rows of an epoch; infinite for a stream.
        """
        centers = problem.center_matrix
        factor = CenterFactor(centers) if plan.factor else None
        # Steps may be longer if each is projected.
        sample, weights = problem.sample(factor.whiten if plan.every_step else None)
        tuning = tune_on_centers(
            centers,
            sample,
            n_rows,
            plan,
            weights=weights,
            n_components=estimator.n_components,
            step_size=estimator.step_size,
            damping=estimator.damping,
        )
        P, cache_size = tuning.preconditioner, estimator.cache_size
        project = _projection(problem, factor, P, plan.n_learned, cache_size)
        iterate = Iterate.of(problem.initial_coef() if coef is None else coef)
        parameters = [getattr(estimator, name) for name in _PARAMETERS]
        given = tuning, project, plan.interval, iterate, parameters, alpha
        return cls(problem, plan.n_learned, *given)

    def suits(self, estimator):
        """Whether the learner was made with the parameters of this estimator."""
        return self.parameters == [getattr(estimator, name) for name in _PARAMETERS]

    def solver(self, next_epoch, **options):
        """Return `projected` on batches, starting from the iterate."""
        return projected(
            next_epoch,
            self.problem.center_matrix,
            self.tuning.preconditioner,
            self.project,
            iterate=self.iterate,
            batch_size=self.tuning.batch_size,
            interval=self.interval,
            step_size=self.tuning.step_size,
            zero_loss=self.problem.zero_loss,
            alpha=self.alpha,
            n_halvings=self.n_halvings,
            **options,
        )

    def chosen_attributes(self):
        """Return the fitted attributes of what was chosen."""
        return tuned_attributes(self.tuning, self.problem) | {
            "alpha_": self.alpha,
            "projection_interval_": self.interval,
        }


def warn_of_projections(name, attributes):
    """Warn if the projections of a fit were too inaccurate."""
    residual = attributes["projection_residual_"]
    if residual > _LARGEST_RESIDUAL:
        warn_user(
            f"{name} did not solve the system of the centers: a "
            f"relative residual of {residual:.2g} was left, on average; pass a "
            "larger cache_size, for a Cholesky factor, or fewer centers"
        )
