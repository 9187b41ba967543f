"""What Nystrom, NYTRO and Falkon share: checks, plan and problem, ends of paths."""

import numpy as np

from ..centers import METHODS
from ..fitting.outcome import is_own
from ..fitting.planning import shape_of
from ..fitting.posterior import most_centers
from ..fitting.validation import (
    check_centers,
    check_flag,
    check_number,
    check_one_of,
    warn_of_few_rows,
    warn_user,
)
from ..methods.paths import RidgePath
from ..plan.of_closed_forms import plan_of_closed_form
from ..plan.parameters import (
    has_log_loss,
    is_auto,
    is_precomputed,
    kernel_parameters,
)
from ..problems.basis_centers import CenterProblem, LogisticProblem
from ..problems.basis_rows import RowProblem
from ..problems.data import hold_out
from ..problems.problem import shuffled
from ..rows.lazy_rows import check_in_memory


def check_selection(estimator, selections):
    """Raise a ValueError unless the parameters of a selection are valid."""
    check_number(
        "validation_fraction", estimator.validation_fraction, 0, 1, open_ends=True
    )
    check_flag("store_coef_path", estimator.store_coef_path)
    check_one_of("selection", estimator.selection, selections)


def plan_of_least_squares(model, shape):
    """Return the `Plan` of a fit."""
    return plan_of_closed_form(
        shape, given_centers(model, shape.X), most_centers(model)
    )


def chosen_alpha(estimator, problem):
    """Return lambda: the parameter `alpha`, or the one that "auto" means."""
    if is_auto(estimator.alpha):
        estimator._say("choosing the penalty")
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


def choosing_problem(model, data, problem, plan):
    """Return the problem whose path tells the regularization, maybe that of the model.

    What classes cost says nothing about noise: a few costly rows would choose alone.
    """
    if plan.selection is None or data.of_class is None:
        return problem
    known = {} if problem.kernel is None else {"kernel": problem.kernel}
    return make_problem(model, data.without_class_weights(), **known)[0]


def make_problem(model, data, **known):
    """Return the problem of a model, which fits into memory, and its plan.

    A kernel that is `known` is not chosen.
    """
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
    options = kernel_parameters(model) | {"merged": merged} | known
    parts = "the kernel" if plan.every_row else "kernel and centers"
    model._say(f"setting up {parts}")
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
    needs, got = "selection='holdout'", f"selection={estimator.selection!r}"
    if hasattr(estimator, "alpha"):
        needs += " and alpha='path'"
        got += f" and alpha={estimator.alpha!r}"
    raise ValueError(
        "X_val and y_val must be None unless a model is selected by them, with "
        f"{needs}; got an array with {got}"
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


def check_loss(estimator):
    """Raise a ValueError unless `loss` is valid, and alpha suits it."""
    check_one_of("loss", estimator.loss, ("squared_error", "log_loss"))
    if has_log_loss(estimator) and estimator.alpha == 0:
        raise ValueError(
            "alpha must be positive with loss='log_loss': without a penalty classes "
            "that can be separated have no best model; got 0"
        )
