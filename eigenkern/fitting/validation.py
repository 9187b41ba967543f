"""Checks of user input, with errors that say what is valid."""

import reprlib
import sys
import warnings
from contextlib import contextmanager, nullcontext
from functools import wraps
from numbers import Integral, Number, Real
from os import PathLike
from traceback import clear_frames

import numpy as np
import scipy.sparse
from array_api_compat import is_array_api_obj, is_numpy_array
from sklearn import get_config
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    check_array,
    check_is_fitted,
    check_X_y,
    validate_data,
)

from ..arrays import memory
from ..arrays.array import detached, location_of, namespace, plain, to_numpy
from ..arrays.devices import compute_devices, working_device
from ..arrays.threads import restores_blas, single_threaded_blas
from ..kernels import Kernel
from ..plan.parameters import is_auto
from ..problems.kernel_parameters import check_bandwidth, check_kernel
from ..rows.frames import infinite_column, is_frame
from ..rows.input import (
    by_chunks,
    check_not_half,
    computed,
    is_dask,
    lazy_rows,
    read,
    stand_in,
)


def floats(X, name="X"):
    """Return the data types that X may have; others are converted to the first."""
    check_not_half(X, name)
    if get_config()["array_api_dispatch"] and is_array_api_obj(X):
        xp = namespace(X)
        return [xp.float64, xp.float32]
    return [np.float64, np.float32]


def check_number(
    name,
    value,
    low,
    high=None,
    *,
    integer=False,
    open_ends=False,
    open_low=False,
    or_auto=False,
):
    """Raise a ValueError unless `value` is a number between `low` and `high`.

    The bounds are included, except both if `open_ends`, or the lower one if `open_low`.
    No `high` is no upper bound. With `or_auto`, "auto" is valid too.
    """
    if or_auto and is_auto(value):
        return
    valid = isinstance(value, Integral if integer else Real)
    if valid and not isinstance(value, bool | np.bool_):
        number = plain(value)  # a bound may be outside the range of float32
        at_low, at_high = not (open_ends or open_low), not open_ends
        fits = low < number or (at_low and low == number)
        fits &= high is None or number < high or (at_high and number == high)
        if fits and number < float("inf"):
            return
    noun = "an integer" if integer else "a number"
    noun = f"'auto' or {noun}" if or_auto else noun
    above = ">" if open_ends or open_low else ">="
    below = "<" if open_ends else "<="
    bounds = f"{above} {low}" + ("" if high is None else f" and {below} {high}")
    raise ValueError(f"{name} must be {noun} {bounds}; got {value!r}")


def check_unless_auto(name, value, low, **options):
    """Raise a ValueError unless `value` is "auto", or valid for `check_number`."""
    if not is_auto(value):
        check_number(name, value, low, **options)


def check_one_of(name, value, choices, others=None):
    """Raise a ValueError unless `value` is one of several texts, or None if that is.

    `others` has the choices that values of other packages mean.
    """
    if not isinstance(value, str | None) or value not in choices:
        names = ", ".join(repr(choice) for choice in choices)
        meant = (others or {}).get(value) if isinstance(value, str) else None
        advice = f": write {meant!r}" * (meant is not None)
        raise ValueError(f"{name} must be one of {names}; got {value!r}{advice}")


def check_choice(name, value, choices):
    """Raise a ValueError unless `value` is one of several texts."""
    if not isinstance(value, str) or value not in choices:
        *some, last = (repr(choice) for choice in choices)
        raise ValueError(f"{name} must be {', '.join(some)} or {last}; got {value!r}")


def check_flag(name, value):
    """Raise a ValueError unless `value` is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False; got {value!r}")


def check_verbose(verbose):
    """Raise a ValueError unless `verbose` is an integer >= 0, or True or False."""
    if not isinstance(verbose, bool | np.bool_):
        check_number("verbose", verbose, 0, integer=True)


def warn_of_few_rows(n_centers, n_distinct):
    """Warn if there are fewer distinct rows than requested centers."""
    if n_centers > n_distinct:
        warn_user(
            f"n_centers={n_centers} is more than the {n_distinct} distinct rows to "
            f"choose from: all {n_distinct} are centers",
            UserWarning,
        )


def column_name(estimator, column):
    """Return what messages call a column of X: its name in quotes, or its number."""
    names = getattr(estimator, "feature_names_in_", None)
    return str(column) if names is None else repr(str(names[column]))


def warn_user(message, category=ConvergenceWarning):
    """Warn, with the line of the caller of the package."""
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(
        (__package__.partition(".")[0], "sklearn.callback", "contextlib")
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def check_kernel_parameters(estimator):
    """Raise a ValueError unless `kernel`, `bandwidth` and `cache_size` are valid."""
    kernel, bandwidth = estimator.kernel, estimator.bandwidth
    check_kernel(kernel)
    check_bandwidth(bandwidth)
    check_one_bandwidth(kernel, bandwidth)
    check_unless_auto("cache_size", estimator.cache_size, 0)


def check_one_bandwidth(kernel, bandwidth):
    """Raise a ValueError if `bandwidth` is set beside a kernel that has its own."""
    if isinstance(kernel, Kernel) and bandwidth not in ("auto", "median"):
        raise ValueError(
            f"bandwidth must be left at its default with kernel={kernel!r}, which has "
            "its own: pass the kernel by name, or search over kernel__bandwidth; got "
            f"{bandwidth!r}"
        )


def check_method(centers, methods):
    """Return True for one of `methods`, False for an array; else raise a ValueError."""
    if isinstance(centers, str) and centers in methods:
        return True
    if centers is None or isinstance(centers, str):
        raise ValueError(_wrong_centers(centers, methods))
    return False


def _wrong_centers(centers, methods):
    names, got = ", ".join(repr(name) for name in methods), reprlib.repr(centers)
    if hasattr(centers, "shape"):
        got = f"{type(centers).__name__} of shape {tuple(centers.shape)}"
    return (
        f"centers must be {names} or an array of shape (n_centers, n_features); "
        f"got {got}"
    )


def check_centers(centers, X, methods):
    """Return given centers, with the features of X, or None for one of `methods`."""
    if check_method(centers, methods):
        return None
    try:
        foreign = is_array_api_obj(centers) and not is_numpy_array(centers)
        if not foreign and np.asarray(centers).dtype.kind in "USMm":
            raise ValueError("texts and times are no numbers")
        found = check_array(
            centers, dtype=floats(centers, "centers"), input_name="centers"
        )
    except (ValueError, TypeError, OverflowError) as error:
        reason, *_ = str(error).splitlines()
        if scipy.sparse.issparse(centers) or reason.startswith("centers must"):
            raise
        wrong = _wrong_centers(centers, methods)
        raise ValueError(f"{wrong}: {reason.rstrip(':')}") from error
    if found.shape[1] != X.shape[1]:
        raise ValueError(
            f"centers must have the {X.shape[1]} features of X; "
            f"got shape {tuple(found.shape)}"
        )
    largest, real = float(namespace(found).max(abs(found))), namespace(X).finfo(X.dtype)
    if largest > float(real.max):
        raise ValueError(
            f"centers must be in the range of {X.dtype}, the data type of X; got "
            f"values up to {largest:.3g}: pass X in float64, or both in another unit"
        )
    return found


def on_host(labels):
    """Return labels, an array of any library or a list, as a NumPy array."""
    return to_numpy(labels) if is_array_api_obj(labels) else np.asarray(labels)


def check_labels(classes):
    """Return `classes` on the host; raise a ValueError unless None or labels."""
    if classes is None:
        return None
    labels = on_host(classes)
    if labels.ndim != 1 or labels.size == 0:
        raise ValueError(
            f"classes must be an array of all labels that will occur; got {classes!r}"
        )
    return labels


def check_has_fitted(
    estimator, attribute, user, example="EigenProRegressor(algorithm='eigenpro2')"
):
    """Raise an error unless `estimator` is fitted and has `attribute`."""
    check_is_fitted(estimator)
    if getattr(estimator, attribute, None) is None:
        raise ValueError(
            f"{user} needs an estimator with the attribute {attribute}, such as "
            f"{example}; got {type(estimator).__name__}"
            f"{': pass its last step, pipeline[-1]' * hasattr(estimator, 'steps')}"
        )


def check_rows(estimator, X, method):
    """Return validated rows to apply a method of a fitted model to."""
    check_is_fitted(estimator, estimator._coef_attribute)
    X = validated(estimator, X, reset=False)
    check_same_location(estimator, location_of(X), method)
    return X


def validated(
    estimator, X, y="no_validation", *, reset, ensure_min_samples=1, **checks_of_y
):
    """Return what scikit-learn's `validate_data` returns, or rows not in memory.

    By default, only X is returned. With `reset`, these rows set the number and names of
    the features. The other options are those of `check_X_y`.
    """
    rows = lazy_rows(X)
    if checks_of_y.get("y_numeric"):
        _check_targets(estimator, y)
    if rows is None and estimator._takes_tables:
        rows = estimator._frame_rows(X, reset)
    if rows is None:
        X = detached(X if isinstance(X, np.memmap) and not reset else read(X))
        options = {"dtype": floats(X), "accept_sparse": estimator._accept_sparse}
        options |= {"reset": reset, "ensure_min_samples": ensure_min_samples}
        if estimator._takes_tables:
            options["ensure_all_finite"] = "allow-nan"
        y = detached(read(computed(y), "y"))
        try:
            return validate_data(estimator, X, y, **options, **checks_of_y)
        except (TypeError, ValueError) as error:
            advice = _advice(estimator, X, str(error))
            if not advice:
                raise
            raise type(error)(f"{error}{advice}") from error
    named = getattr(X, "_meta", rows) if hasattr(X, "columns") else rows
    named = X if is_frame(X) else named
    validate_data(estimator, named, skip_check_array=True, reset=reset)
    if rows.shape[0] < ensure_min_samples:
        raise ValueError(
            f"Found array with {rows.shape[0]} sample(s) while a minimum of "
            f"{ensure_min_samples} is required."
        )
    if isinstance(y, str):
        return rows
    # To check y alone, pass a placeholder for X.
    y = read(computed(y), "y")
    _, y = check_X_y(np.zeros((rows.shape[0], 1)), y, **checks_of_y)
    return rows, y


def _check_targets(estimator, y):
    """Raise a ValueError if the targets of a regressor are text without numbers."""
    if isinstance(y, str) or is_dask(y) or not hasattr(y, "__len__"):
        return
    if is_array_api_obj(y) and not is_numpy_array(y):
        return
    try:
        if getattr(getattr(y, "dtype", None), "kind", "O") in "OUT":
            np.asarray(np.asarray(y), dtype=np.float64)
    except (TypeError, ValueError) as error:
        if not str(error).startswith("could not convert string to float"):
            return  # scikit-learn says it
        classifier = type(estimator).__name__.replace("Regressor", "Classifier")
        raise ValueError(
            f"y must hold numbers: {error}. To learn labels take {classifier}"
        ) from None


def _advice(estimator, X, said):
    """Return what to do about text, gaps, a path or sparse rows, "" if nothing."""
    if hasattr(X, "__next__"):
        return (
            ". X is an iterator: read it whole, such as by pandas.concat(X), or pass "
            "its pieces one by one, in training to partial_fit of EigenPro*, "
            "LinearEigenPro* or DSG*"
        )
    if hasattr(X, "collect") and hasattr(X, "lazy"):
        return "\nX is a LazyFrame: pass X.collect()"
    if "contains infinity" in said and is_frame(X):
        name = infinite_column(X)
        return f"\nIt is in column {name!r}" if name is not None else ""
    if said.startswith("Sparse data was passed"):
        return (
            "\nLinearEigenProRegressor and LinearEigenProClassifier of eigenkern take "
            "sparse X; in a pipeline, OneHotEncoder(sparse_output=False) makes dense "
            "columns, and TruncatedSVD few of many"
        )
    text = said.startswith("could not convert string to float")
    if text and isinstance(X, str | PathLike):
        return (
            ": X is a path. Open the file with np.load(..., mmap_mode='r'), h5py or "
            "zarr; read a CSV file in pieces, and pass them to fit_batches"
        )
    if text and np.ndim(X) == 1:
        return ". For texts, use a pipeline with scikit-learn's TfidfVectorizer"
    if estimator._takes_tables:
        as_frame = ". Pass text in a pandas or polars DataFrame, where it is a category"
        return as_frame * text
    if not (text or said.startswith("Input X contains NaN")):
        return ""
    return (
        "\nRFMRegressor and RFMClassifier of eigenkern take DataFrames with categories "
        "and missing values; for the others use a pipeline, such as "
        "make_pipeline(make_column_transformer(...), estimator) with scikit-learn's "
        "OneHotEncoder(sparse_output=False), SimpleImputer and StandardScaler"
    )


def check_same_location(estimator, location, method):
    """Raise a ValueError unless rows are on the device of the fitted model."""
    fitted = location_of(getattr(estimator, estimator._coef_attribute))
    if location != fitted:
        name = type(estimator).__name__
        raise ValueError(
            f"Inputs passed to {name}.{method}() must use the same namespace and "
            f"the same device as those passed to fit(): {fitted[0].__name__} on "
            f"{fitted[1]}; got {location[0].__name__} on {location[1]}"
        )


def random_generator(random_state):
    """Return the RandomState that `random_state` asks for, as in scikit-learn."""
    try:
        return check_random_state(random_state)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "random_state must be an integer from 0 to 2**32 - 1, a RandomState or "
            f"None; got {random_state!r}"
        ) from error


def check_weights(sample_weight, n, name="sample_weight"):
    """Return the weights as a float64 array on the host, or None.

    A number is the weight of every row.
    """
    if sample_weight is None:
        return None
    if isinstance(sample_weight, Number):
        if isinstance(sample_weight, Real):
            check_number(name, sample_weight, 0, open_ends=True)
            return _with_finite_sums(np.full(n, float(sample_weight)))
        raise ValueError(f"{name} must be real; got {sample_weight!r}")
    if isinstance(sample_weight, str) or getattr(sample_weight, "ndim", 1) == 0:
        raise ValueError(
            f"{name} must be a number or an array of shape ({n},), one weight per row "
            f"of X; got {sample_weight!r}"
        )
    sample_weight = computed(sample_weight)
    weights = check_array(
        sample_weight,
        ensure_2d=False,
        dtype=floats(sample_weight, name),
        input_name=name,
    )
    weights = to_numpy(weights).astype(np.float64)
    if weights.shape != (n,):
        raise ValueError(
            f"{name} must have shape ({n},), one weight per row of X; "
            f"got shape {weights.shape}"
        )
    if (weights < 0).any():
        raise ValueError(
            f"{name} must not be negative; the smallest is {float(weights.min())!r}"
        )
    if not (weights > 0).any():
        raise ValueError(
            f"{name} must have a positive weight; got zero for every sample"
        )
    return _with_finite_sums(weights)


# Weights below this part of the largest are 0: their roots are below its rounding.
_NO_WEIGHT = 1e-30


def _with_finite_sums(weights):
    """Return weights whose sums, inverses and products with y are finite.

    Only ratios matter.
    """
    largest = weights.max()
    if not 1e-100 < largest < 1e100:
        weights = np.ldexp(weights, -np.frexp(largest)[1])
    return np.where(weights < _NO_WEIGHT * weights.max(), 0.0, weights)


def total_weights(sample_weight, of_class, labels, name="sample_weight"):
    """Return the products of weights of rows and of their classes, or None."""
    weights = check_weights(sample_weight, len(labels), name)
    if of_class is not None:
        weights = of_class[labels] * (1.0 if weights is None else weights)
        if not weights.any():
            of_val = name == "sample_weight_val"
            where, noun = (" of X_val", "row") if of_val else ("", "sample")
            raise ValueError(
                f"{name} and class_weight must leave a row{where} with weight: their "
                f"product is zero for every {noun}"
            )
    return weights


def on_its_device(method):
    """Make a method of an estimator and X run as `computing` says.

    For a Dask collection it is called on every chunk, when the result is computed.
    """

    @wraps(method)
    @restores_blas
    def run(self, X, *args, **options):
        if is_dask(X):
            return by_chunks(self, method.__name__, X, *args, **options)
        with computing(self, method.__name__, X):
            return method(self, X, *args, **options)

    return run


@contextmanager
def replaced_parameters(estimator, values):
    """Replace parameters, or other attributes, of an estimator for a while."""
    given = {name: vars(estimator)[name] for name in values if name in vars(estimator)}
    vars(estimator).update(values)
    try:
        yield
    finally:
        for name in values:
            vars(estimator).pop(name, None)
        vars(estimator).update(given)


def _plain_parameters(estimator):
    """Return parameters that are NumPy scalars as Python's numbers.

    Arithmetic of the scalars would stay in float32 or int32, or overflow.
    """
    parameters = estimator.get_params(deep=False)
    for name, value in parameters.items():
        if is_array_api_obj(value) and value.ndim == 0 and not np.isscalar(value):
            raise ValueError(f"{name} must not be an array of shape (); got {value!r}")
    return {k: plain(v) for k, v in parameters.items() if isinstance(v, np.generic)}


class Interrupted(KeyboardInterrupt):
    """An interrupt of a fit whose model so far was published."""

    def __init__(self, estimator):
        super().__init__(f"{type(estimator).__name__} holds the best model so far")
        self.estimator = estimator


def all_or_nothing(method):
    """Make a method of an estimator and X undo all its changes if it fails."""

    @wraps(method)
    @restores_blas
    def run(self, X, *args, **options):
        before = dict(vars(self))
        try:
            with replaced_parameters(self, _plain_parameters(self)):
                with computing(self, method.__name__, X, *args[:1]):
                    return method(self, X, *args, **options)
        except BaseException as error:
            # An interrupt of an inner estimator that this one fits undoes this fit.
            if not (isinstance(error, Interrupted) and error.estimator is self):
                vars(self).clear()
                vars(self).update(before)
            raise

    return run


# Messages of libraries that ran out of memory or threads without a MemoryError.
_RAN_OUT = ("can't start new thread", "can't allocate memory", "out of memory")
# What needs less memory, where that is not a smaller number.
_REMEDIES = {"n_centers": "fewer centers (n_centers)", "cache_size": "cache_size=0"}


@contextmanager
def computing(estimator, method, X=None, y=None):
    """Compute on the estimator's device, where large products are parallelized here.

    BLAS runs on one thread, except for other array libraries than NumPy, which
    parallelize their own products, perhaps with the same BLAS. Every error of running
    out of memory becomes a MemoryError with advice, and one that foresees it says what
    fits; but within another fit only that does.
    """
    foreign = is_array_api_obj(X) and not is_numpy_array(X)
    blas = nullcontext() if foreign else single_threaded_blas
    try:
        with working_device(estimator.device, X), blas:
            yield
    except (MemoryError, RuntimeError, memory.TooLittle) as error:
        said, foreseen = str(error), isinstance(error, memory.TooLittle)
        ran_out = isinstance(error, MemoryError) or any(s in said for s in _RAN_OUT)
        advised = not foreseen and " MB " in said
        inside = not getattr(estimator, "_tells_outcome", True)
        if inside or advised or not (foreseen or ran_out):
            raise
        # Arrays of the calls that failed are free for the next try.
        clear_frames(error.__traceback__)
        rows = stand_in(X)
        free = memory.available(*compute_devices(estimator.device, rows)[0])
        known = ""
        if len(rows.shape) == 2:
            known = estimator._what_fits(method, rows, y, free)
        known = known and f"; {known}"
        if foreseen:
            raise ValueError(said + known) from None
        remedies = ["fewer rows at a time"]
        if "fit" in method:
            names = [name for name in estimator._takes_less if hasattr(estimator, name)]
            remedies = [_REMEDIES.get(name, f"a smaller {name}") for name in names]
            if hasattr(estimator, "partial_fit"):
                remedies.append("pieces of the data (partial_fit)")
            remedies.append("X in float32, fewer rows")
        raise MemoryError(
            f"{type(estimator).__name__}.{method.lstrip('_')} ran out of "
            f"memory ({said or type(error).__name__}); {free / 1e6:.0f} MB are free "
            f"besides what it holds. What takes less: {', '.join(remedies)}{known}"
        ) from error


def publish(estimator, attributes):
    """Set fitted attributes, and delete those of an earlier fit.

    What validation has set stays: classes, number and names of the features.
    """
    for name in [name for name in vars(estimator) if name.endswith("_")]:
        if name not in ("classes_", "n_features_in_", "feature_names_in_"):
            delattr(estimator, name)
    vars(estimator).update(attributes)
