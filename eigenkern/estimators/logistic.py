"""Classifiers on centers with the log loss."""

import numpy as np

from ..problems.data import hold_out
from ..problems.logistic import LogisticProblem
from ..solvers.logistic import minimized, newton, way_down
from ..solvers.state import State
from .least_squares import make_problem, warn_at_end
from .training import SolutionRule
from .validation import is_auto, warn_user

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
# Number of penalties of a path: two per factor of ten.
N_ALPHAS = 31
# The sample of an automatic penalty. Fewer observations get C = 1 of scikit-learn.
SAMPLED_SETS, SAMPLED_CENTERS, _PART_HELD_OUT, _FEWEST = 2000, 1000, 0.2, 20

# Expected products with the kernel matrix, which decide whether to keep it: per penalty
# of a path, and per Newton step.
_PRODUCTS_OF_ALPHA, _PRODUCTS_OF_STEP = 20, 5


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


def expected_products(estimator, n_alphas=None):
    """Return the expected number of products with the kernel matrix in a fit.

    `n_alphas` is the number of penalties of a Nystrom classifier.
    """
    if n_alphas is None:
        return _PRODUCTS_OF_STEP * estimator.max_iter
    return _PRODUCTS_OF_ALPHA * n_alphas


def prepare_nystrom(estimator, data, path):
    """Return problem, solver, chosen attributes and rule of a Nystrom classifier.

    Parameters
    ----------
    estimator : estimator
    data : Data
    path : ndarray of shape (k,) or None
        Penalties of a path. None: there is a single one.
    """
    selects = path is not None
    problem = make_problem(
        estimator,
        data,
        selection="holdout",
        n_passes=expected_products(estimator, len(path) if selects else 1),
    )
    alphas = path if selects else np.array([_chosen_alpha(estimator, problem, data)])
    problem.iterates(float(alphas.min()), to_its_end=not selects)
    problem.check_memory(problem.plan("logistic"))
    solver = _nystrom(estimator, problem, alphas, selects)
    found = {"alphas_": None, "validation_path_": None, "coef_path_": None}
    found["selection_"] = "holdout" if selects else None
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
    choose lambda n, as the squared loss does (`tuning.penalty`).
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
        n_passes=expected_products(estimator, N_ALPHAS),
    )
    if sample.constant:
        return 1.0 / n
    # With less, Newton's method takes long where classes can be separated.
    alpha, _, _ = _path(sample, np.logspace(-8, 0, N_ALPHAS // 2 + 2))
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
    problem = make_problem(estimator, data, n_passes=expected_products(estimator))
    alpha = _chosen_alpha(estimator, problem, data)
    problem.iterates(alpha)
    problem.check_memory(problem.plan("falkon logistic"))
    start = estimator._start(problem, ("dual_coef_", "intercept_"))
    chosen = {"alpha_": alpha, "cache_size_": problem.cache_megabytes}
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
