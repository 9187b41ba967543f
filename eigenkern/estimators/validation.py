"""What users pass: checks with errors that say what is right."""

import sys
import warnings
from functools import wraps
from numbers import Integral, Real

import numpy as np
from array_api_compat import is_array_api_obj
from sklearn import get_config
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_array, check_is_fitted

from ..backend.array import namespace
from ..backend.devices import working_device
from ..kernels import check_bandwidth, check_kernel


def _floats(X, name="X"):
    """Return the data types that X is computed in, of the library that X stays in."""
    if str(getattr(X, "dtype", "")).rpartition(".")[2] in ("float16", "bfloat16"):
        raise ValueError(
            f"{name} must be float32 or float64, or integers; got {X.dtype}, which "
            f"nothing here computes in: pass {name}.astype('float32')"
        )
    if get_config()["array_api_dispatch"] and is_array_api_obj(X):
        xp = namespace(X)
        return [xp.float64, xp.float32]
    return [np.float64, np.float32]


def check_number(
    name, value, low, high=None, *, integer=False, open_ends=False, open_low=False
):
    """Raise a ValueError unless `value` is a number between `low` and `high`.

    Parameters
    ----------
    name : str
        The parameter, for the message.
    value : object
    low, high : float
        Bounds, included unless `open_ends`; no upper bound if `high` is None.
    integer : bool, default=False
        Whether only integers are right.
    open_ends : bool, default=False
        Whether the bounds are excluded.
    open_low : bool, default=False
        Whether the lower one is.
    """
    kind = Integral if integer else Real
    right = isinstance(value, kind) and not isinstance(value, bool | np.bool_)
    if right and open_ends:
        right = low < value and (high is None or value < high)
    elif right:
        right = low <= value and (high is None or value <= high)
        right = right and not (open_low and value == low)
    if right and value < float("inf"):
        return
    noun = "an integer" if integer else "a number"
    above = ">" if open_ends or open_low else ">="
    below = "<" if open_ends else "<="
    bounds = f"{above} {low}" + ("" if high is None else f" and {below} {high}")
    raise ValueError(f"{name} must be {noun} {bounds}; got {value!r}")


def check_flag(name, value):
    """Raise a ValueError unless `value` is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False; got {value!r}")


def warn_user(message):
    """Give a ConvergenceWarning that points to the caller of the package."""
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(
        (__package__.partition(".")[0], "sklearn.callback")
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, ConvergenceWarning, stacklevel=level)


def check_kernel_parameters(estimator):
    """Raise a ValueError unless the parameters shared by all estimators are right."""
    check_kernel(estimator.kernel)
    check_bandwidth(estimator.bandwidth)
    if not is_auto(estimator.cache_size):
        check_number("cache_size", estimator.cache_size, 0)


def check_centers(centers, X, methods):
    """Return the centers that the parameter `centers` gives, or None for a method.

    Raises
    ------
    ValueError
        Unless it is one of `methods`, or an array of rows with the features of X.
    """
    if isinstance(centers, str) and centers in methods:
        return None
    if centers is None or isinstance(centers, str):
        names = ", ".join(repr(name) for name in methods)
        raise ValueError(
            f"centers must be {names} or an array of shape "
            f"(n_centers, n_features); got {centers!r}"
        )
    centers = check_array(
        centers, dtype=_floats(centers, "centers"), input_name="centers"
    )
    if centers.shape[1] != X.shape[1]:
        raise ValueError(
            f"centers must have the {X.shape[1]} features of X; "
            f"got shape {tuple(centers.shape)}"
        )
    return centers


def check_labels(classes):
    """Raise a ValueError unless `classes` is None or an array of labels."""
    if classes is not None and (np.ndim(classes) != 1 or np.size(classes) == 0):
        raise ValueError(
            f"classes must be an array of all labels to come; got {classes!r}"
        )


def check_has_fitted(estimator, attribute, user, example="EigenProRegressor()"):
    """Raise an error unless `estimator` is fitted and has `attribute`."""
    check_is_fitted(estimator)
    if getattr(estimator, attribute, None) is None:
        raise ValueError(
            f"{user} needs an estimator with the attribute {attribute}, such as "
            f"{example}; got {type(estimator).__name__}"
        )


def on_its_device(method):
    """Make a method of an estimator and X run on the device that computes it."""

    @wraps(method)
    def run(self, X):
        with working_device(self.device, X):
            return method(self, X)

    return run


def is_auto(value):
    """Whether a parameter is left to be chosen."""
    return isinstance(value, str) and value == "auto"
