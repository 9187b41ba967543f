"""What the parameters of an estimator say of its fit."""

# Algorithms of kernel machines, and of models with their own centers.
MACHINES = ("eigenpro1", "eigenpro2", "sgd")
GENERAL = ("eigenpro3", "eigenpro3-exact", "eigenpro4")
# Distinct rows from which ``selection="auto"`` holds rows out instead of leaving each
# out: a fifth of fewer rows is too few to tell a small penalty from a large one.
_ENOUGH_TO_HOLD_OUT = 1000


def is_auto(value):
    """Whether a parameter is "auto"."""
    return isinstance(value, str) and value == "auto"


def is_precomputed(estimator):
    """Whether X is a kernel matrix."""
    kernel = getattr(estimator, "kernel", None)
    return isinstance(kernel, str) and kernel == "precomputed"


def has_log_loss(estimator):
    """Whether the values of a model give probabilities without calibration."""
    return getattr(estimator, "loss", None) == "log_loss"


def stops_early(estimator):
    """Whether rows are held out for early stopping."""
    return bool(getattr(estimator, "early_stopping", False))


def chooses_penalty(estimator):
    """Whether a fit chooses the penalty: early stopping does without one."""
    return is_auto(estimator.alpha) and not stops_early(estimator)


def given_penalty(estimator):
    """Return `alpha`, or 0 if that is "auto"."""
    return 0.0 if is_auto(estimator.alpha) else float(estimator.alpha)


def kernel_parameters(estimator):
    """Return what makes the kernel, by name; `alpha` if that is a number.

    An iteration regularizes without a penalty, too.
    """
    alpha, iterates = getattr(estimator, "alpha", None), hasattr(estimator, "algorithm")
    given = alpha is not None and not isinstance(alpha, str)
    given = given and (alpha > 0 or not iterates)
    return {
        "kernel": estimator.kernel,
        "bandwidth": estimator.bandwidth,
        "alpha": float(alpha) if given else None,
    }


def has_penalty(estimator):
    """Whether a fit has a penalty, or chooses one, which may be 0."""
    if is_auto(estimator.alpha):
        return chooses_penalty(estimator)
    return estimator.alpha != 0


def calibrates(estimator):
    """Whether the epochs of a classifier hold rows out to calibrate on."""
    if not estimator._epochs_calibrate or stops_early(estimator):
        return False
    exact = getattr(estimator, "algorithm", None) == "eigenpro3-exact"
    return has_penalty(estimator) and not (exact or estimator.warm_start)


def has_twin(estimator):
    """Whether the model learns those rows too, and a twin beside it does not."""
    algorithm = getattr(estimator, "algorithm", None)
    if algorithm is not None and (
        algorithm == "eigenpro1" or has_own_centers(estimator)
    ):
        return False
    return calibrates(estimator)


def n_to_calibrate(n):
    """Return how many of n rows to calibrate on: a tenth, at most 1000."""
    # Test log losses with 10000 training rows of a9a, covtype and mnist: 0.365, 0.375,
    # 0.103 with 100 rows; 0.348, 0.372, 0.100 with 300; the same to 0.002 with 2000.
    return min(-(-n // 10), 1000)


def gives_centers(estimator):
    """Whether `centers` is an array."""
    return estimator.centers is not None and not isinstance(estimator.centers, str)


def has_own_centers(estimator):
    """Whether an EigenPro model has its own centers, unlike a kernel machine."""
    if is_auto(estimator.algorithm):
        return estimator.n_centers is not None or gives_centers(estimator)
    return estimator.algorithm in GENERAL


def chosen_algorithm(estimator):
    """Return the algorithm by which an EigenPro model runs epochs."""
    if not is_auto(estimator.algorithm):
        return estimator.algorithm
    return "eigenpro4" if has_own_centers(estimator) else "eigenpro2"


def may_be_direct(estimator, damping=1):
    """Whether the parameters of the iteration have their defaults.

    `max_iter` may have any value; `damping` is the default of that parameter.
    """
    sizes = ("algorithm", "n_components", "subsample_size", "batch_size", "step_size")
    auto = all(is_auto(getattr(estimator, name, "auto")) for name in sizes)
    others = estimator.damping != damping or estimator.warm_start
    return auto and not (others or stops_early(estimator))


def largest_size(estimator):
    """Return the largest number of rows that a parameter of the iteration asks for."""
    sizes = (getattr(estimator, name) for name in ("subsample_size", "batch_size"))
    return max((size for size in sizes if not is_auto(size)), default=0)


def chosen_selection(shape):
    """Return how a path is selected: what "auto" means, or the parameter.

    None: there is no path. On an indefinite kernel the left-out values, of which the
    negative part is dropped, are not those of predictions.
    """
    e = shape.estimator
    selection = getattr(e, "selection", None)
    if getattr(e, "alpha", "path") != "path":
        return None
    if not is_auto(selection):
        return selection
    single_rows = getattr(e, "one_standard_error", False)
    if shape.given or single_rows or has_log_loss(e) or shape.indefinite:
        return "holdout"
    if (shape.n_distinct or shape.n_train) >= _ENOUGH_TO_HOLD_OUT:
        return "holdout"
    # Little determines the coefficient of a center whose row is left out, unless all
    # rows are centers: a path would be judged by rows unlike new ones.
    every_row = e.n_centers is None or is_auto(e.n_centers)
    return "loo" if every_row and not gives_centers(e) else "holdout"
