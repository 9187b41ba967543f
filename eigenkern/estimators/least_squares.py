"""What Nystrom, NYTRO and Falkon share: checks, problem, path."""

import numpy as np

from ..backend.devices import compute_devices
from ..backend.lazy import check_in_memory
from ..centers import METHODS
from ..nystrom.filters import RidgePath
from ..problems.centers import CenterProblem
from ..problems.data import hold_out
from ..problems.logistic import LogisticProblem
from ..problems.problem import shuffled
from ..problems.rows import RowProblem
from ..tuning.sizes import default_n_centers
from .base import is_precomputed
from .gaussian_process import most_centers
from .kernel_check import is_own
from .validation import (
    check_centers,
    check_flag,
    check_number,
    is_auto,
    warn_of_few_rows,
    warn_user,
)

# Distinct rows from which ``selection="auto"`` holds rows out instead of leaving each
# out: a fifth of fewer rows is too few to tell a small penalty from a large one.
_ENOUGH_TO_HOLD_OUT = 1000


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


def chosen_selection(estimator, n_distinct, *, given, indefinite=False):
    """Return how a path is selected: what "auto" means, or the parameter.

    Parameters
    ----------
    estimator : estimator
    n_distinct : int
        Number of distinct training rows.
    given : bool
        Whether there are validation rows.
    indefinite : bool, default=False
        Whether the kernel is known to be: then the left-out values, of which the
        negative part is dropped, are not those of predictions.
    """
    selection = getattr(estimator, "selection", None)
    if not is_auto(selection):
        return selection
    single_rows = getattr(estimator, "one_standard_error", False)
    logistic = getattr(estimator, "loss", None) == "log_loss"
    if given or single_rows or logistic or indefinite:
        return "holdout"
    if n_distinct >= _ENOUGH_TO_HOLD_OUT:
        return "holdout"
    # Little determines the coefficient of a center whose row is left out, unless all
    # rows are centers: a path would be judged by rows unlike new ones.
    every_row = estimator.n_centers is None or is_auto(estimator.n_centers)
    chosen_by_name = isinstance(estimator.centers, str | None)
    return "loo" if every_row and chosen_by_name else "holdout"


def selection_for(estimator, data):
    """Return `chosen_selection` for some data."""
    n_distinct = len(data.distinct(data.rows_with_weight())[0])
    given = {"given": data.validation is not None, "indefinite": data.indefinite}
    return chosen_selection(estimator, n_distinct, **given)


def what_is_solved(estimator, selection=None):
    """Return the kind of `NystromPlan`, and whether a model is selected on other rows.

    These are held out, unless some are given.

    Parameters
    ----------
    estimator : estimator
    selection : str or None
        Of a path: from `chosen_selection`.
    """
    logistic = getattr(estimator, "loss", None) == "log_loss"
    if not hasattr(estimator, "selection"):
        return "falkon logistic" if logistic else "falkon", False
    # NYTRO has no alpha: it selects the number of iterations.
    alpha = getattr(estimator, "alpha", "path")
    kind = "path" if alpha in ("path", 0) else "ridge"
    holds_out = alpha == "path" and selection == "holdout"
    return "logistic" if logistic else kind, holds_out


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


def make_problem(
    estimator, data, *, selection=None, n_stored=0, n_passes=1, shuffles=False
):
    """Return the problem of an estimator, see `what_is_solved`.

    Parameters
    ----------
    estimator : estimator
    data : Data
    selection : str or None
        As for `what_is_solved`.
    n_stored : int, default=0
        Number of models of a path whose coefficients are stored.
    n_passes : int, default=1
        How often the kernel matrix of rows and centers is used, in closed form or, for
        the log loss, in products.
    shuffles : bool, default=False
        Whether to shuffle the rows if all are centers.
    """
    kind, holds_out = what_is_solved(estimator, selection)
    _check_given_rows(estimator, data, holds_out)
    centers, n_centers = given_centers(estimator, data.X), estimator.n_centers
    train, held_out = data.rows_with_weight(), None
    if holds_out and data.validation is None:
        train, held_out = hold_out(data, train, estimator.validation_fraction)
    merged = None
    if selection in ("gcv", "loo"):
        merged = data.merged(train)
        data, train = merged.data, np.sort(merged.rows)
    if n_centers is None and centers is None:
        check_in_memory(data.X, "n_centers")
    n_distinct = len(train)
    if is_auto(n_centers):
        validated = held_out is not None or data.validation is not None
        n_centers = chosen_n_centers(estimator, data, kind, validated, n_stored)
        n_centers = None if n_centers is None else min(n_centers, len(train))
    elif n_centers is not None and centers is None:
        n_distinct = len(data.distinct(train)[0])
        warn_of_few_rows(n_centers, n_distinct)
    if kind.startswith("falkon") and centers is None and n_distinct == len(train):
        if (n_centers or 0) >= data.X.shape[0]:
            n_centers = None  # one Cholesky factor gives the same model
    shared = {"kernel": estimator.kernel, "bandwidth": estimator.bandwidth}
    shared["merged"] = merged
    logistic = kind.endswith("logistic")
    if n_centers is None and centers is None and not logistic:
        train = shuffled(train) if shuffles else train
        return RowProblem(estimator.device, data, train, held_out, **shared)
    problem = LogisticProblem if logistic else CenterProblem
    return problem(
        estimator.device,
        data,
        train,
        held_out,
        n_centers=n_centers,
        centers=estimator.centers if centers is None else centers,
        cache_size=estimator.cache_size,
        n_passes=n_passes,
        **shared,
    )


def chosen_n_centers(estimator, data, kind, validated, n_stored):
    """Return the number of centers of "auto"; None: all rows, or given centers."""
    if data.precomputed or not isinstance(estimator.centers, str):
        return None
    return default_n_centers(
        kind,
        data.X,
        data.targets.shape[1],
        *compute_devices(estimator.device, data.X)[0],
        centers=estimator.centers,
        validated=validated,
        n_stored=n_stored,
        most=most_centers(estimator),
    )


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


def _check_given_rows(estimator, data, used):
    """Raise a ValueError if validation rows are given but not used."""
    if data.validation is None or used:
        return
    raise ValueError(
        "X_val and y_val must be None unless a model is selected by them, with "
        "selection='holdout'; got an array with "
        f"selection={estimator.selection!r}"
        + (f" and alpha={estimator.alpha!r}" if hasattr(estimator, "alpha") else "")
    )


def path_errors(estimator, problem, spectrum, path, selection):
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
