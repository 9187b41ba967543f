"""What EigenPro estimators share: checks, tuning, direct solutions, attributes."""

from functools import partial
from operator import attrgetter

from sklearn.base import is_classifier

from ..preconditioners.eigenpro1 import GlobalSpectral
from ..preconditioners.eigenpro2 import Spectral
from ..solvers.state import State
from ..tuning.penalty import auto_ridge
from ..tuning.sizes import max_batch_size
from ..tuning.step import tune
from .base import check_epochs, chooses_penalty, given_penalty, stops_early
from .training import SolutionRule
from .validation import check_flag, check_number, is_auto

# The penalty equivalent to one epoch, in units of the mean of k(x, x). With 20 epochs
# the errors on new rows of eleven data sets are at most 0.1 points above EigenPro 2's
# (200 to 7000 rows, alpha=0); a penalty five times as large costs up to
# 0.8 % on clean targets.
EPOCH_PENALTY = 0.02


def check_tuning(estimator):
    """Raise a ValueError unless the parameters of the iteration are valid."""
    smallest = {"n_components": 0, "subsample_size": 2, "batch_size": 1}
    for name, low in smallest.items():
        if not is_auto(getattr(estimator, name)):
            check_number(name, getattr(estimator, name), low, integer=True)
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


# Algorithms of kernel machines, and of models with their own centers.
MACHINES = ("eigenpro1", "eigenpro2", "sgd")
GENERAL = ("eigenpro3", "eigenpro3-exact", "eigenpro4")


def gives_centers(model):
    """Whether `centers` is an array."""
    return model.centers is not None and not isinstance(model.centers, str)


def has_own_centers(model):
    """Whether an EigenPro model has its own centers, unlike a kernel machine."""
    if is_auto(model.algorithm):
        return model.n_centers is not None or gives_centers(model)
    return model.algorithm in GENERAL


def chosen_algorithm(model):
    """Return the algorithm by which an EigenPro model runs epochs."""
    if not is_auto(model.algorithm):
        return model.algorithm
    return "eigenpro4" if has_own_centers(model) else "eigenpro2"


def may_be_direct(model, damping=1):
    """Whether the parameters of the iteration have their defaults.

    `max_iter` may have any value; `damping` is the default of that parameter.
    """
    sizes = ("algorithm", "n_components", "subsample_size", "batch_size", "step_size")
    auto = all(is_auto(getattr(model, name, "auto")) for name in sizes)
    others = model.damping != damping or stops_early(model) or model.warm_start
    return auto and not others


def largest_size(model):
    """Return the largest number of rows that a parameter of the iteration asks for."""
    sizes = (getattr(model, name) for name in ("subsample_size", "batch_size"))
    return max((size for size in sizes if not is_auto(size)), default=0)


def chosen_ridge(model, problem, K, merged, in_double):
    """Return alpha n, which a fit may choose.

    The choice uses K, the kernel matrix of the training rows or a sample of them;
    `merged` are the training rows, and `in_double` as in `auto_ridge`.
    """
    if not chooses_penalty(model):
        return given_penalty(model) * problem.targets.shape[0]
    return auto_ridge(
        K,
        problem.targets,
        problem.weights,
        replicates=merged.replicates,
        labels=is_classifier(model),
        in_double=in_double,
    )


def tuned(model, problem, K, q, *, of_all_rows, in_batches=True):
    """Return preconditioner, batch and step for a model, measured on its matrix K.

    The eigenvectors are those of a subsample, or with `of_all_rows` those of all rows.
    """
    make_preconditioner, m = Spectral.of, model.batch_size
    if of_all_rows:
        options = {"svd_solver": model.svd_solver, "rng": problem.rng}
        make_preconditioner = partial(GlobalSpectral.of, **options)
    if in_batches:
        n_outputs = problem.targets.shape[1]
        largest_batch = max_batch_size(K, problem.n_features, n_outputs)
    else:
        largest_batch = m = K.shape[0]
    return tune(
        K,
        largest_batch,
        make_preconditioner=make_preconditioner,
        weights=problem.weights,
        subsample_size=model.subsample_size,
        n_components=q,
        batch_size=m,
        step_size=model.step_size,
        damping=model.damping,
    )


def first_coef(model, problem):
    """Return zero, or the coefficients that ``warm_start=True`` continues from."""
    if not model.warm_start or not hasattr(model, "dual_coef_"):
        return problem.initial_coef()
    shape = (problem.n_coefficients, problem.targets.shape[1])
    same = tuple(model.dual_coef_.shape) == shape
    if not same or not problem.has_centers(model.centers_):
        raise ValueError(
            "warm_start=True continues from the coefficients of the previous fit and "
            f"needs the same X (or centers) and outputs: coefficients of shape "
            f"{shape}; got a previous fit with shape {tuple(model.dual_coef_.shape)}"
            + (" and other rows" if same else "")
        )
    return problem.coef_of(model.dual_coef_)


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


def prepared_solution(problem, coef, loss, chosen, out_of_sample):
    """Return problem, solver, chosen attributes and rule of a direct solution.

    Parameters
    ----------
    problem : Problem
    coef : array of shape (n, l)
    loss : float
    chosen : dict
        Fitted attributes that only some direct solutions have.
    out_of_sample : OutOfSample or None
    """
    chosen = dict.fromkeys(_CHOSEN) | chosen
    loss += problem.within
    chosen |= {
        "algorithm_": "direct",
        "n_iter_": 1,
        "loss_curve_": [loss],
        "validation_scores_": None,
        "n_step_halvings_": 0,
    }
    solver = iter([State(coef, chosen, out_of_sample=out_of_sample)])
    return problem, solver, chosen, SolutionRule(problem, [loss])
