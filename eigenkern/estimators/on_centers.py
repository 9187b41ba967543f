"""What Nystrom, NYTRO and Falkon share: checks, problem, path, the log loss."""

import numpy as np

from ..centers import METHODS
from ..fitting.outcome import is_own
from ..fitting.planning import shape_of
from ..fitting.posterior import most_centers
from ..fitting.rules import SolutionRule
from ..fitting.validation import (
    check_centers,
    check_flag,
    check_number,
    warn_of_few_rows,
    warn_user,
)
from ..methods.newton import minimized, newton, way_down
from ..methods.paths import RidgePath
from ..methods.state import State
from ..plan.of_closed_forms import (
    N_PENALTIES_OF_LOG_LOSS,
    PRODUCTS_OF_ALPHA,
    SAMPLED_CENTERS,
    SAMPLED_SETS,
    plan_of_closed_form,
)
from ..plan.parameters import has_log_loss, is_auto, is_precomputed
from ..problems.centers_at_once import CenterProblem
from ..problems.data import hold_out
from ..problems.log_loss import LogisticProblem
from ..problems.problem import shuffled
from ..problems.rows_at_once import RowProblem
from ..rows.lazy_rows import check_in_memory


def check_selection(estimator, selections):
    """Raise a ValueError unless the parameters of a selection are valid."""
    check_number(
        "validation_fraction", estimator.validation_fraction, 0, 1, open_ends=True
    )
    check_flag("store_coef_path", estimator.store_coef_path)
    selection = estimator.selection
    named = selection is None or isinstance(selection, str)
    if not named or selection not in selections:
        names = ", ".join(repr(name) for name in selections)
        raise ValueError(f"selection must be one of {names}; got {selection!r}")


def plan_of_least_squares(model, shape):
    """Return the `Plan` of a fit."""
    return plan_of_closed_form(
        shape, given_centers(model, shape.X), most_centers(model)
    )


def chosen_alpha(estimator, problem):
    """Return lambda: the parameter `alpha`, or the one that "auto" means."""
    if is_auto(estimator.alpha):
        return problem.auto_alpha()
    return float(estimator.alpha)


def given_centers(estimator, X):
    """Return the centers that the parameter `centers` gives, or None for a method."""
    centers, n_centers = estimator.centers, estimator.n_centers
    if n_centers is not None and not is_auto(n_centers):
        check_number("n_centers", n_centers, 1, integer=True)
    given = centers is not None and not isinstance(centers, str)
    if is_precomputed(estimator) and (given or centers == "kmeans"):
        raise ValueError(
            "centers must be 'uniform', 'leverage_scores' or 'rpcholesky' with "
            "kernel='precomputed', where X has no rows to compare with or to take "
            f"means of; got {'an array' if given else repr(centers)}"
        )
    found = check_centers(centers, X, METHODS)
    if found is not None and n_centers not in ("auto", None, found.shape[0]):
        raise ValueError(
            f"n_centers must be 'auto', None or {found.shape[0]}, the number of "
            f"centers that are given; got {n_centers!r}"
        )
    return found


def make_problem(model, data):
    """Return the problem of a model, which fits into memory, and its plan."""
    rows, given = data.rows_with_weight(), given_centers(model, data.X)
    if model.n_centers is None and given is None:
        check_in_memory(data.X, "n_centers")
    n_distinct = len(data.distinct(rows)[0]) if given is None else None
    shape = shape_of(model, data, len(rows), n_distinct=n_distinct)
    plan = plan_of_closed_form(shape, given, most_centers(model))
    _check_given_rows(model, data, plan.selection)
    train, held_out, merged = rows, None, None
    if plan.selection == "holdout" and data.validation is None:
        train, held_out = hold_out(data, rows, model.validation_fraction)
    elif plan.selection in ("gcv", "loo"):
        merged = data.merged(rows)
        data, train = merged.data, np.sort(merged.rows)
    if given is None and not (model.n_centers is None or is_auto(model.n_centers)):
        warn_of_few_rows(model.n_centers, len(data.distinct(train)[0]))
    options = {"kernel": model.kernel, "bandwidth": model.bandwidth, "merged": merged}
    if plan.every_row:
        if getattr(model, "_has_variance", False) and not data.precomputed:
            train = shuffled(train)
        problem = RowProblem(model.device, data, train, held_out, **options)
    else:
        make = LogisticProblem if has_log_loss(model) else CenterProblem
        problem = make(
            model.device,
            data,
            train,
            held_out,
            n_centers=plan.n_chosen,
            centers=model.centers if given is None else given,
            cache_size=model.cache_size,
            n_products=plan.n_products,
            **options,
        )
    if plan.form is not None:
        plan.form.check_memory(problem)
    return problem, plan


def ridge_coef(estimator, equations, alpha, spectrum=None):
    """Return b for one lambda, and the `Factor` that gave it, or None.

    If lambda is below rounding, the spectrum gives b.

    Parameters
    ----------
    estimator : estimator
    equations : Moments or WeightedKernel
    alpha : float
    spectrum : Spectrum, default=None
        Spectrum of the equations, if known.
    """
    if spectrum is None:
        # A penalty may be so large that an indefinite matrix has a factor too.
        factor = None if estimator._kernel_ends else equations.factor(alpha)
        if factor is not None:
            return equations.solve(factor)[:, :-1], factor
        if alpha > 0:
            spectrum = equations.spectrum_between(alpha, alpha)
        else:
            spectrum = equations.spectrum
        warn_if_indefinite(estimator, spectrum)
    return spectrum.coef(RidgePath([alpha]).filters(spectrum)[:, 0]), None


def _check_given_rows(estimator, data, selection):
    """Raise a ValueError if validation rows are given but not used."""
    if data.validation is None or selection == "holdout":
        return
    raise ValueError(
        "X_val and y_val must be None unless a model is selected by them, with "
        "selection='holdout'; got an array with "
        f"selection={estimator.selection!r}"
        + (f" and alpha={estimator.alpha!r}" if hasattr(estimator, "alpha") else "")
    )


def path_errors(problem, spectrum, path, selection):
    """Return the errors of the models of a path, (k,).

    Raises
    ------
    ValueError
        If no error is finite.
    """
    errors = problem.path_errors(spectrum, path, selection)
    if not np.isfinite(errors).any():
        raise ValueError(
            f"selection={selection!r} found no model with a finite error: "
            "scale y, X or sample_weight, or choose another selection"
        )
    return errors


def still_falls(values, errors, end):
    """Whether the error at an end of a path may fall further beyond it.

    Parameters
    ----------
    values : ndarray of shape (k,)
        The regularization parameter.
    errors : ndarray of shape (k,)
    end : int
        Index of the least or the largest value.

    Returns
    -------
    bool
        Whether it has fallen by more than 1 % over the last factor of 10 before the
        end. Error curves of early stopping and of penalties are flatter only where they
        level off.
    """
    order = np.argsort(values)
    values, errors, end = values[order], errors[order], values[end]
    upper = end == values[-1]
    inside = errors[values <= end / 10 if upper else values >= 10 * end]
    if not len(inside):
        return len(values) > 1
    return bool(inside[-1 if upper else 0] > 1.01 * np.nanmin(errors))


def warn_at_end(estimator, alphas, errors, floor=0.0):
    """Warn if the least error is at an end of the path and may fall beyond it.

    Parameters
    ----------
    estimator : estimator
    alphas, errors : ndarrays of shape (k,)
        NaN: not tried.
    floor : float, default=0.0
        Penalties up to this are rounding: smaller ones change nothing.
    """
    best = int(np.nanargmin(errors))
    if floor < alphas[best] == alphas.min():
        wanted = "smaller"
    elif alphas[best] == alphas.max():
        wanted = "larger"
    else:
        return
    if still_falls(alphas, errors, best):
        warn_user(
            f"{type(estimator).__name__} found the least error at the end of its path, "
            f"alpha = {alphas[best]:.3g}, and it still falls there; pass alphas with "
            f"{wanted} values"
        )


def warn_if_indefinite(estimator, spectrum):
    """Warn if negative eigenvalues were dropped, unless the fit warns of the kernel.

    Those of eigenkern's own kernels are rounding.
    """
    warns = estimator._kernel_ends is not None or is_own(estimator.kernel)
    if spectrum.indefinite and not warns:
        warn_user(
            f"{type(estimator).__name__} dropped the negative part of a kernel that is "
            "not positive semi-definite: its smallest eigenvalue is "
            f"{spectrum.lowest:.3g}, its largest {spectrum.top:.3g}"
        )


LOSSES = ("squared_error", "log_loss")
# Residuals to reach for the models of a path, and for the final one: their objectives
# are within 1e-3 and 1e-5 of the minimum, relatively. On 2000 rows of Covertype and
# 1500 of Fashion-MNIST the test log loss is the same to 1e-4 with 1e-2 and 1e-5, which
# take twice as many passes over the rows; with 1e-1 and 1e-2 it is 0.4 % larger on the
# first.
_PATH_TOL, _KEPT_TOL = 3e-2, 3e-3
# Maximum number of Newton steps for one penalty.
_MOST_STEPS = 100
# A path ends if the held-out loss is above _PAST_LEAST times the least one. Once the
# least one is below _BEGUN times that of the constant model, the path also ends if the
# loss rises at all, or is above _FLAT times that of a penalty ten times as large.
# Smaller penalties gain nothing and need ever more iterations. On digits
# (scikit-learn's) a whole path took ten times as long, and its least loss is 0.6 %
# lower.
_PAST_LEAST, _FLAT, _BEGUN = 1.02, 0.99, 0.95
# The part of the sample that an automatic penalty is chosen on. Fewer observations get
# C = 1 of scikit-learn.
_PART_HELD_OUT, _FEWEST = 0.2, 20


def check_loss(estimator, alphas=None):
    """Raise a ValueError unless `loss` is valid, and alpha and alphas suit it."""
    loss = estimator.loss
    if not isinstance(loss, str) or loss not in LOSSES:
        names = ", ".join(repr(name) for name in LOSSES)
        raise ValueError(f"loss must be one of {names}; got {loss!r}")
    if loss == "squared_error":
        return
    if estimator.alpha == 0:
        raise ValueError(
            "alpha must be positive with loss='log_loss': without a penalty classes "
            "that can be separated have no best model; got 0"
        )
    if alphas is not None and (np.asarray(alphas, dtype=np.float64) == 0).any():
        raise ValueError(
            "alphas must be positive with loss='log_loss'; got one that is 0"
        )


def check_log_loss_selection(estimator):
    """Raise a ValueError for options that need the closed form of the squared loss."""
    if estimator.loss != "log_loss":
        return
    if estimator.selection not in ("auto", "holdout"):
        raise ValueError(
            "selection must be 'auto' or 'holdout' with loss='log_loss': the others "
            "have a closed form for the squared loss only; got "
            f"{estimator.selection!r}"
        )
    if estimator.store_coef_path:
        raise ValueError(
            "store_coef_path must be False with loss='log_loss', whose models differ "
            "in their intercepts too; got True"
        )


def prepare_nystrom(estimator, data, path):
    """Return problem, solver, chosen attributes and rule of a Nystrom classifier.

    Parameters
    ----------
    estimator : estimator
    data : Data
    path : ndarray of shape (k,) or None
        Penalties of a path. None: there is a single one.
    """
    selects, (problem, plan) = path is not None, make_problem(estimator, data)
    alphas = path if selects else np.array([_chosen_alpha(estimator, problem, data)])
    problem.iterates(float(alphas.min()), to_its_end=not selects)
    solver = _nystrom(estimator, problem, alphas, selects)
    found = {"alphas_": None, "validation_path_": None, "coef_path_": None}
    found["selection_"] = plan.selection
    return problem, solver, found, SolutionRule(problem)


def _nystrom(estimator, problem, alphas, selects):
    """Yield the model of the best alpha, fitted to all rows."""
    estimator._say(f"Newton steps on {len(problem.train.index)} rows")
    alpha, found, coef = float(alphas[0]), {}, problem.start
    if not problem.constant:
        lead = way_down(alpha)
        if selects:
            one_deviation = estimator.one_standard_error
            alpha, coef, errors = _path(problem, alphas, one_deviation)
            warn_at_end(estimator, alphas, errors)
            n_tried = int(np.sum(~np.isnan(errors)))
            estimator._say(f"path of {n_tried} values: alpha = {alpha:.3g}")
            found["alphas_"] = problem.to_source(alphas)
            found["validation_path_"] = problem.to_source(errors)
            lead = [alpha]
        rows = problem.all if problem.refits else problem.train
        objective = problem.objective(rows)
        preconditioner = problem.preconditioner(objective, rows)
        state = minimized(objective, preconditioner, coef, lead, _KEPT_TOL, _MOST_STEPS)
        if not state.converged:
            warn_user(
                f"{type(estimator).__name__} stopped after {_MOST_STEPS} Newton steps "
                f"with a residual of {state.residual:.1e}; the best model is kept: "
                "raise alpha"
            )
        coef = state.coef
    yield State(coef, found | {"alpha_": alpha, "n_centers_": problem.n_coefs})


def _chosen_alpha(estimator, problem, data):
    """Return lambda: the parameter, or for "auto" that of the best path on a sample.

    At most `SAMPLED_SETS` distinct rows and `SAMPLED_CENTERS` of them as centers
    choose lambda n, as the squared loss does (`plan.penalty`).
    """
    if not is_auto(estimator.alpha):
        return float(estimator.alpha)
    rows = data.rows_with_weight()
    which, (_, _, n_of_set) = data.distinct(rows)[1], data.observations(rows)
    n, n_sets = n_of_set.sum(), len(n_of_set)
    chosen = data.rng.permutation(n_sets)[:SAMPLED_SETS]
    if problem.constant or n < _FEWEST:
        return 1.0 / n
    try:
        train, held_out = hold_out(data, rows[np.isin(which, chosen)], _PART_HELD_OUT)
    except ValueError:  # each row has a class of its own
        return 1.0 / n
    sample = LogisticProblem(
        estimator.device,
        data,
        train,
        held_out,
        kernel=estimator.kernel if problem.kernel is None else problem.kernel,
        bandwidth=estimator.bandwidth,
        n_centers=min(SAMPLED_CENTERS, problem.n_coefs, len(train)),
        centers="uniform",
        cache_size=estimator.cache_size,
        n_products=PRODUCTS_OF_ALPHA * N_PENALTIES_OF_LOG_LOSS,
    )
    if sample.constant:
        return 1.0 / n
    # With less, Newton's method takes long where classes can be separated.
    alpha, _, _ = _path(sample, np.logspace(-8, 0, N_PENALTIES_OF_LOG_LOSS // 2 + 2))
    return alpha * len(chosen) / n_sets


def _path(problem, alphas, one_deviation=False):
    """Return the best alpha, its coefficients, and the errors of all (NaN: not tried).

    The path goes from the largest penalty down; each model starts from those before.
    """
    objective = problem.objective(problem.train)
    preconditioner = problem.preconditioner(objective, problem.train)
    errors, coefs, losses = np.full(len(alphas), np.nan), {}, {}
    coef, done = problem.start, []
    constant = problem.validation_loss(problem.validation_losses(coef))
    for k in np.argsort(-alphas, kind="stable"):
        start = _extrapolated(coefs, done, alphas, k) if len(done) > 1 else coef
        state = minimized(
            objective,
            preconditioner,
            start,
            [float(alphas[k])],
            _PATH_TOL,
            _MOST_STEPS,
        )
        coef = coefs[k] = state.coef
        done.append(k)
        losses[k] = problem.validation_losses(coef)
        errors[k] = problem.validation_loss(losses[k])
        before = errors[(alphas >= 10 * alphas[k]) & ~np.isnan(errors)]
        flat = len(before) and errors[k] > _FLAT * before.min()
        over = flat or errors[k] > np.nanmin(errors)
        begun = np.nanmin(errors) < _BEGUN * constant
        if errors[k] > _PAST_LEAST * np.nanmin(errors) or (over and begun):
            break
    if not np.isfinite(errors).any():
        raise ValueError(
            "no model has a finite log loss on the rows held out: scale X or "
            "sample_weight, or choose another kernel or bandwidth"
        )
    best = int(np.nanargmin(errors))
    if one_deviation:
        limit = errors[best] + problem.deviation(losses[best])
        within = [k for k in coefs if errors[k] <= limit]
        best = max(within, key=lambda k: alphas[k])
    return float(alphas[best]), coefs[best], errors


def _extrapolated(coefs, done, alphas, k):
    """Return coefficients for the next alpha, extrapolated linearly in log(alpha).

    This saves a third of the iterations of a path.
    """
    before, last = done[-2:]
    made = np.log(alphas[before] / alphas[last])
    part = np.log(alphas[last] / alphas[k]) / made if made > 0 else 0.0
    return coefs[last] + min(float(part), 1.0) * (coefs[last] - coefs[before])


def prepare_falkon(estimator, data):
    """Return problem, solver, chosen attributes and rule of a Falkon classifier."""
    problem, _ = make_problem(estimator, data)
    alpha = _chosen_alpha(estimator, problem, data)
    problem.iterates(alpha)
    start = estimator._start(problem, ("dual_coef_", "intercept_"))
    chosen = {"alpha_": alpha, "cache_size_": problem.matrices[1]}
    chosen["n_centers_"] = problem.n_coefs
    solver = _falkon(problem, alpha, start, estimator.tol)
    return problem, solver, chosen, estimator._rule(problem)


def _falkon(problem, alpha, start, tol):
    """Return an iterator of the states of Newton steps."""
    if problem.constant:
        return iter([State(problem.start, converged=True)])
    objective = problem.objective(problem.train)
    preconditioner = problem.preconditioner(objective, problem.train, of_centers=True)
    alphas = way_down(alpha) if start is None else [alpha]
    start = problem.start if start is None else start
    return newton(objective, preconditioner, start, alphas, tol)
