"""The parameters of EigenPro that tuning chooses, and the attributes that tell them."""

from .base import check_epochs
from .validation import check_flag, check_number, is_auto


def check_tuning(estimator):
    """Raise a ValueError unless the parameters of the iteration are right."""
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


def tuned_attributes(tuning, problem):
    """Return the fitted attributes that tell what was chosen."""
    return {
        "batch_size_": tuning.batch_size,
        "step_size_": tuning.step_size,
        "n_components_": tuning.preconditioner.n_components,
        "subsample_size_": tuning.subsample_size,
        "max_batch_size_": tuning.max_batch_size,
        "critical_batch_size_": tuning.plain.critical_batch_size,
        "adapted_critical_batch_size_": tuning.adapted.critical_batch_size,
        "beta_": tuning.adapted.beta,
        "top_eigenvalue_": tuning.adapted.top_eigenvalue,
        "eigenvalues_": problem.to_source(tuning.preconditioner.eigenvalues),
        "acceleration_": tuning.acceleration,
        "tuning_results_": tuning.results,
    }
