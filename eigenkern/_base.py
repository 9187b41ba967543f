"""What every estimator shares; the only file that knows scikit-learn."""

import sys
import time
import warnings
from functools import partial, wraps
from numbers import Integral, Real

import numpy as np
import scipy.sparse
from array_api_compat import is_array_api_obj
from sklearn import get_config
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.callback import CallbackSupportMixin, with_callbacks
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from ._array import (
    RowsElsewhere,
    compute_devices,
    compute_location,
    device_of,
    is_numpy,
    move,
    namespace,
    to_numpy,
    working_device,
)
from ._problem import CenterProblem, Data, Problem, hold_out
from ._sharded import make_operator
from .centers import METHODS
from .kernels import check_bandwidth, check_kernel
from .losses import LogLoss

# Training rows that are predicted at the end of a fit, to see that it ended well.
_N_CHECKED = 10_000
# Bytes of features that are computed at a time away from X.
_SLAB_BYTES = 256e6


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
        (__package__, "sklearn.callback")
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
    """Return the centres that the parameter `centers` gives, or None for a method.

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


def place_of(X):
    """Return the namespace and device of validated rows, which may be sparse."""
    if scipy.sparse.issparse(X):
        X = np.empty(0)
    return namespace(X), device_of(X)


def is_auto(value):
    """Whether a parameter is left to be chosen."""
    return isinstance(value, str) and value == "auto"


class RegressionTargets(RegressorMixin):
    """Targets as they are, one column an output."""

    def _encode_targets(self, X, y):
        """Return (X, Y, y): validated data, float64 targets (n, l), y on the host."""
        X, y = validate_data(
            self,
            X,
            y,
            dtype=_floats(X),
            accept_sparse=self._accept_sparse,
            multi_output=True,
            y_numeric=True,
            ensure_min_samples=2,
        )
        y = to_numpy(y).astype(np.float64)
        self._one_dimensional = y.ndim == 1
        return X, y.reshape(len(y), -1), y

    def _encode_validation(self, X, y, *, reset=False):
        """Return (X, Y, y) of validation rows, after `_encode_targets`."""
        X, y = validate_data(
            self,
            X,
            y,
            dtype=_floats(X),
            accept_sparse=self._accept_sparse,
            multi_output=True,
            y_numeric=True,
            reset=reset,
        )
        y = to_numpy(y).astype(np.float64)
        return X, y.reshape(len(y), -1), y

    def _encode_piece(self, X, y, *, first):
        """Return (X, Y, y) of a piece of the training data; `first` of all or not."""
        X, Y, y = self._encode_validation(X, y, reset=first)
        if first:
            self._one_dimensional = y.ndim == 1
        return X, Y, y

    def _weights_of_classes(self, y):
        return None

    def _stratify(self, y):
        return None

    def _score_values(self, F, y, weights):
        """Return R^2 of the values F (n, l) on the host."""
        return r2_score(y, F.reshape(y.shape), sample_weight=weights)

    @on_its_device
    def predict(self, X):
        """Predict the targets of the rows of X.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Rows; of a model with kernel="precomputed": the kernel matrix of the rows
            and the training rows.

        Returns
        -------
        y : array of shape (n_samples,) or (n_samples, n_outputs)
        """
        F = self._values(X, "predict")
        return F[:, 0] if self._one_dimensional else F

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class ClassificationTargets(ClassifierMixin):
    """Labels as -1, +1 in one column (two classes), or as one column a class."""

    def _encode_targets(self, X, y):
        X, y = validate_data(
            self,
            X,
            y,
            dtype=_floats(X),
            accept_sparse=self._accept_sparse,
            ensure_min_samples=2,
        )
        check_classification_targets(y)
        y = to_numpy(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        return X, self._columns_of(codes), codes

    def _encode_validation(self, X, y):
        X, y = validate_data(self, X, y, dtype=_floats(X), reset=False)
        y = to_numpy(y)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(
                f"y_val must hold only classes of y; got {unknown.tolist()[0]!r}"
            )
        codes = np.searchsorted(self.classes_, y)
        return X, self._columns_of(codes), codes

    def _encode_piece(self, X, y, *, first):
        """Return (X, Y, codes) of a piece of the training data; `classes_` is set."""
        X, y = validate_data(
            self,
            X,
            y,
            dtype=_floats(X),
            accept_sparse=self._accept_sparse,
            reset=first,
        )
        check_classification_targets(y)
        y = to_numpy(y)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(
                "y must hold only classes that were given, or came, first, "
                f"{self.classes_.tolist()}; got {unknown.tolist()[0]!r}"
            )
        codes = np.searchsorted(self.classes_, y)
        return X, self._columns_of(codes), codes

    def _check_classes(self, classes):
        """Raise a ValueError unless `classes` suit this call of partial_fit."""
        fitted = hasattr(self, self._coef_attribute)
        if not fitted and classes is None:
            raise ValueError("classes must be passed to the first call of partial_fit")
        check_labels(classes)
        if fitted and classes is not None:
            if not np.array_equal(np.unique(classes), self.classes_):
                raise ValueError(
                    "classes must be None, or those of the first call of partial_fit, "
                    f"{self.classes_.tolist()}; got {np.unique(classes).tolist()}"
                )

    def _columns_of(self, codes):
        if len(self.classes_) <= 2:
            return (2.0 * codes - 1.0)[:, None]
        return np.eye(len(self.classes_))[codes]

    def _weights_of_classes(self, codes):
        if self.class_weight is None:
            return None
        if isinstance(self.class_weight, str):
            weights = compute_sample_weight(self.class_weight, codes)
        else:
            weights = compute_sample_weight(self.class_weight, self.classes_)
        if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
            raise ValueError(
                "class_weight must give finite weights that are not negative, and not "
                f"all of them zero; got {self.class_weight!r}"
            )
        return weights if isinstance(self.class_weight, str) else weights[codes]

    def _stratify(self, codes):
        return codes

    def _score_values(self, F, codes, weights):
        """Return the accuracy of the values F (n, l) on the host."""
        predicted = (F[:, 0] > 0) if F.shape[1] == 1 else F.argmax(axis=1)
        return accuracy_score(codes, predicted.astype(np.int64), sample_weight=weights)

    @on_its_device
    def decision_function(self, X):
        """Return the values whose sign or largest column decides the class.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)

        Returns
        -------
        values : array of shape (n_samples,) or (n_samples, n_classes)
            One column for two classes: positive for ``classes_[1]``.
        """
        F = self._values(X, "decision_function")
        return F[:, 0] if F.shape[1] == 1 else F

    @on_its_device
    def predict(self, X):
        """Predict the class of the rows of X.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Rows; of a model with kernel="precomputed": the kernel matrix of the rows
            and the training rows.

        Returns
        -------
        y : array of shape (n_samples,)
            Of ``classes_``; labels that X's array library cannot hold, such as strings,
            come as a NumPy array.
        """
        F = self._values(X, "predict")
        xp = namespace(F)
        if len(self.classes_) == 1:
            codes = xp.zeros(F.shape[0], dtype=xp.int64, device=device_of(F))
        elif F.shape[1] == 1:
            codes = xp.astype(F[:, 0] > 0, xp.int64)
        else:
            codes = xp.argmax(F, axis=1)
        if is_numpy(xp) or self.classes_.dtype.kind not in "biuf":
            return self.classes_[to_numpy(codes)]
        return xp.take(xp.asarray(self.classes_, device=device_of(F)), codes, axis=0)


def _has_log_loss(estimator):
    if estimator.loss == "log_loss":
        return True
    raise AttributeError(
        f"probabilities need loss='log_loss'; got loss={estimator.loss!r}"
    )


class LogLossProbabilities:
    """Probabilities of the classes, for a classifier with a parameter `loss`."""

    @available_if(_has_log_loss)
    @on_its_device
    def predict_proba(self, X):
        """Return the probabilities of the classes; needs loss="log_loss".

        Parameters
        ----------
        X : array of shape (n_samples, n_features)

        Returns
        -------
        P : array of shape (n_samples, n_classes)
            Columns in the order of `classes_`.
        """
        return self._probabilities(X, "predict_proba")

    @available_if(_has_log_loss)
    @on_its_device
    def predict_log_proba(self, X):
        """Return the logarithms of the probabilities of the classes.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)

        Returns
        -------
        log_P : array of shape (n_samples, n_classes)
            Minus infinity where a probability is zero to rounding.
        """
        P = self._probabilities(X, "predict_log_proba")
        with np.errstate(divide="ignore"):
            return namespace(P).log(P)

    def _probabilities(self, X, method):
        F = self._values(X, method)
        P = LogLoss(F.shape[1]).probabilities(F)
        return P if len(self.classes_) > 1 else namespace(P).ones_like(P[:, :1])


class ArrayEstimator(BaseEstimator):
    """Fits wholly or not at all, on arrays of any library that stay in it."""

    #: Attribute of a fitted model that lives where X lives.
    _coef_attribute = "dual_coef_"
    _accept_sparse = False

    def _or_restore(self, function, *args, **options):
        """Call `function`, or leave everything as it was and raise."""
        before = dict(vars(self))
        try:
            with working_device(self.device, args[0]):
                return function(*args, **options)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    def _make_rng(self):
        return check_random_state(self.random_state)

    def _check_rows(self, X):
        """Return validated rows, to apply a fitted model to."""
        check_is_fitted(self, self._coef_attribute)
        return validate_data(
            self, X, dtype=_floats(X), accept_sparse=self._accept_sparse, reset=False
        )

    def _check_same_namespace(self, home, method):
        coef = getattr(self, self._coef_attribute)
        fitted = namespace(coef), device_of(coef)
        if home != fitted:
            name = type(self).__name__
            raise ValueError(
                f"Inputs passed to {name}.{method}() must use the same namespace and "
                f"the same device as those passed to fit(): {fitted[0].__name__} on "
                f"{fitted[1]}; got {home[0].__name__} on {home[1]}"
            )

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.array_api_support = True
        return tags


class FeatureMap(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ArrayEstimator):
    """Features phi(x) whose products stand for a kernel.

    A subclass defines ``_check_parameters()``, ``_fitted(X, rng)``, which returns a
    dict of fitted attributes, and ``_features(X)``, which returns phi of the rows of X
    where they are.
    """

    def fit(self, X, y=None):
        """Choose the features.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Training rows.
        y : None
            Ignored.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the data or a parameter are wrong; a model fitted before stays usable.
        """
        return self._or_restore(self._fit, X)

    def _fit(self, X):
        check_bandwidth(self.bandwidth)
        check_number("n_components", self.n_components, 1, integer=True)
        self._check_parameters()
        X = validate_data(self, X, dtype=_floats(X), ensure_min_samples=2)
        compute_location(self.device, X)
        for name, value in self._fitted(X, self._make_rng()).items():
            setattr(self, name, value)
        return self

    @on_its_device
    def transform(self, X):
        """Return the features of the rows of X.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Rows; float32 is computed in float32.

        Returns
        -------
        phi : array of shape (n_samples, n_components)
            In the library and data type of X.
        """
        X = self._check_rows(X)
        home = namespace(X), device_of(X)
        self._check_same_namespace(home, "transform")
        place = compute_location(self.device, X)
        return self._features(X) if place == home else self._in_slabs(X, place)

    def _in_slabs(self, X, place):
        """Return the features of rows, computed at another place."""
        xp, device = home = namespace(X), device_of(X)
        shape = (X.shape[0], self._n_features_out)
        phi = xp.empty(shape, dtype=X.dtype, device=device)
        size = max(int(_SLAB_BYTES // (8 * shape[1])), 1)
        rows = RowsElsewhere(X, *place)
        for start in range(0, shape[0], size):
            stop = min(start + size, shape[0])
            phi[start:stop, :] = move(self._features(rows[start:stop, :]), *home)
        return phi

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class KernelModel(CallbackSupportMixin, ArrayEstimator):
    """f(x) = K(x, centers_) dual_coef_ + intercept_: fitting, prediction, progress.

    A subclass defines ``_check_parameters()``, ``_max_subtasks()`` (of scikit-learn's
    callbacks), ``_solve(data, context, given)``, which returns a dict of fitted
    attributes, and a ``fit`` that calls `_fit_or_restore`.
    """

    def _fit_or_restore(self, *args, **options):
        """Fit, or leave everything as it was and raise."""
        return self._or_restore(self._fit, *args, **options)

    @with_callbacks
    def _fit(self, X, y, sample_weight, **validation):
        self._check_shared_parameters()
        self._check_parameters()
        given = {"X": X, "y": y, "metadata": {"sample_weight": sample_weight}}
        context = self._init_callback_context(max_subtasks=self._max_subtasks())
        context.call_on_fit_task_begin(estimator=self, **given)
        data = self._encode(X, y, sample_weight, **validation)
        attributes = self._solve(data, context, given)
        context.call_on_fit_task_end(
            estimator=self, reconstruction_attributes=attributes, **given
        )
        for name, value in attributes.items():
            setattr(self, name, value)
        return self

    def _encode(
        self, X, y, sample_weight, X_val=None, y_val=None, sample_weight_val=None
    ):
        """Return the validated training data."""
        X, Y, y = self._encode_targets(X, y)
        if self._precomputed and X.shape[0] != X.shape[1]:
            raise ValueError(
                "kernel='precomputed' needs the square kernel matrix of the training "
                f"rows as X; got shape {tuple(X.shape)}"
            )
        class_weights = self._weights_of_classes(y)
        weights = self._total_weights(sample_weight, class_weights, len(Y))
        validation = None
        if X_val is not None and y_val is not None:
            validation = self._encode_given(X_val, y_val, sample_weight_val)
            if validation[1].shape[1] != Y.shape[1]:
                raise ValueError(
                    f"y_val must have as many outputs as y, {Y.shape[1]}; "
                    f"got {validation[1].shape[1]}"
                )
            if class_weights is not None:
                of_class = np.zeros(len(self.classes_))
                of_class[y] = class_weights
                X_val, Y_val, codes, w_val = validation
                w_val = of_class[codes] * (1.0 if w_val is None else w_val)
                validation = X_val, Y_val, codes, w_val
            X_val, Y_val, _, w_val = validation
            if w_val is not None and not w_val.any():
                raise ValueError(
                    "sample_weight_val and class_weight must leave a row of X_val with "
                    "weight: their product is zero for every one"
                )
            validation = X_val, Y_val, w_val
        elif not (X_val is None and y_val is None and sample_weight_val is None):
            raise ValueError(
                "X_val and y_val must be passed together, and sample_weight_val with "
                f"them; got X_val={'None' if X_val is None else 'an array'} and "
                f"y_val={'None' if y_val is None else 'an array'}"
            )
        rng = self._make_rng()
        return Data(X, Y, y, weights, rng, validation, self._precomputed)

    def _check_shared_parameters(self):
        check_kernel_parameters(self)

    @property
    def _precomputed(self):
        """Whether X is a kernel matrix."""
        return isinstance(self.kernel, str) and self.kernel == "precomputed"

    def _total_weights(self, sample_weight, class_weights, n):
        """Return the product of both kinds of weights, or None."""
        weights = self._check_weights(sample_weight, n)
        if class_weights is not None:
            weights = class_weights if weights is None else weights * class_weights
            if not weights.any():
                raise ValueError(
                    "sample_weight and class_weight must leave a row with weight: "
                    "their product is zero for every sample"
                )
        return weights

    def _encode_given(self, X, y, sample_weight):
        """Return validated rows to select by: X, targets, labels, weights."""
        try:
            X, Y, labels = self._encode_validation(X, y)
        except ValueError as error:
            raise ValueError(f"X_val and y_val are not right: {error}") from error
        weights = self._check_weights(sample_weight, len(Y), "sample_weight_val")
        return X, Y, labels, weights

    def _make_center_problem(self, data, *, fraction=None, one_matrix=True):
        """Return the problem on centres; hold out a `fraction` of the rows."""
        if self.n_centers is not None:
            check_number("n_centers", self.n_centers, 1, integer=True)
        centers = self._check_centers(data.X)
        rows, held = data.rows_with_weight(), None
        if fraction is not None:
            labels = self._stratify(data.labels)
            rows, held = hold_out(data, rows, labels, fraction)
        if centers is None and (self.n_centers or 0) > len(rows):
            raise ValueError(
                "n_centers must be at most the number of training rows with weight"
                + (" that are not held out" if fraction is not None else "")
                + f", {len(rows)}; got {self.n_centers}"
            )
        return CenterProblem(self, data, rows, held, centers, one_matrix=one_matrix)

    def _check_centers(self, X):
        """Return the centres that the parameter `centers` gives, or None."""
        given = self.centers is not None and not isinstance(self.centers, str)
        if self._precomputed and (given or self.centers == "kmeans"):
            raise ValueError(
                "centers must be 'uniform', 'leverage_scores' or 'rpcholesky' with "
                "kernel='precomputed', where X has no rows to compare with or to take "
                f"means of; got {'an array' if given else repr(self.centers)}"
            )
        centers = check_centers(self.centers, X, METHODS)
        if centers is None:
            return None
        if self.n_centers not in (None, centers.shape[0]):
            raise ValueError(
                f"n_centers must be None or {centers.shape[0]}, the number of centers "
                f"that are given; got {self.n_centers!r}"
            )
        return centers

    def _say(self, text):
        """Show a line of progress if ``verbose``."""
        if self.verbose:
            print(f"{type(self).__name__}: {text}", flush=True)  # noqa: T201

    def _check_weights(self, sample_weight, n, name="sample_weight"):
        """Return the weights as a float64 array on the host, or None."""
        if sample_weight is None:
            return None
        weights = check_array(
            sample_weight,
            ensure_2d=False,
            dtype=_floats(sample_weight, name),
            input_name=name,
        )
        weights = to_numpy(weights).astype(np.float64)
        if weights.shape != (n,):
            raise ValueError(
                f"{name} must have shape ({n},), one weight a row of X; "
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
        return weights

    def _values(self, X, method):
        """Return f(X), shape (m, l), where X lives."""
        X = self._check_rows(X)
        home = namespace(X), device_of(X)
        self._check_same_namespace(home, method)
        return move(self._expand(X), *home) + self.intercept_

    def _expand(self, X):
        """Return f(X) less the intercept, where it is computed."""
        places = compute_devices(self.device, X)
        coef = move(self.dual_coef_, *places[0])
        if self.kernel_ is None:
            X = move(X, *places[0])
            return namespace(X).astype(X, coef.dtype, copy=False) @ coef
        return make_operator(self.kernel_, self.centers_, places, X) @ coef

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self._precomputed
        return tags


class EpochModel(KernelModel):
    """Model of an iteration over epochs: early stopping and the epoch loop.

    A subclass defines ``_check_parameters()``, and ``_make_solver(problem)``, which
    returns a solver for `_run` and a dict of fitted attributes.
    """

    _failure_hint = "Is the kernel positive semi-definite?"

    def fit(self, X, y, sample_weight=None):
        """Fit the model.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Training rows; float32 is computed in float32. In a kernel machine they
            become the centres, and the fitted model refers to X, it makes no copy. In
            kernel="precomputed": the kernel matrix of the training rows.
        y : array of shape (n_samples,) or (n_samples, n_outputs)
            Targets; one label a row for a classifier.
        sample_weight : array of shape (n_samples,), default=None
            Weights of the squared residuals, not negative.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the data or a parameter are wrong; a model fitted before stays usable.

        Warns
        -----
        ConvergenceWarning
            If no step size keeps the iteration bounded.
        """
        return self._fit_or_restore(X, y, sample_weight)

    def _check_epochs(self):
        """Raise a ValueError unless the parameters of the epochs are right."""
        check_number("max_iter", self.max_iter, 1, integer=True)
        check_number("tol", self.tol, 0)
        check_flag("early_stopping", self.early_stopping)
        check_number(
            "validation_fraction", self.validation_fraction, 0, 1, open_ends=True
        )
        check_number("n_iter_no_change", self.n_iter_no_change, 1, integer=True)

    def _max_subtasks(self):
        return self.max_iter

    def _solve(self, data, context, given):
        progress = ProgressLine(type(self).__name__, self.max_iter, self.verbose)
        y, weights = data.labels, data.weights
        train, held_out = self._split(y, weights, data.rng)
        problem = self._make_problem(data, train, held_out)
        solver, tuned = self._make_solver(problem)
        validate = None
        if held_out is not None:
            w = None if weights is None else weights[held_out]

            def validate(coef):
                F = problem.validation_values(coef)
                return self._score_values(F, y[held_out], w)

        return tuned | self._run(solver, problem, validate, context, given, progress)

    def _make_problem(self, data, train, held_out):
        return Problem(self, data, train, held_out)

    def _previous_coef(self, problem):
        """Return the coefficients that ``warm_start=True`` goes on from, or None."""
        if not self.warm_start or not hasattr(self, "dual_coef_"):
            return None
        shape = (problem.n_coefficients, problem.targets.shape[1])
        same = tuple(self.dual_coef_.shape) == shape
        if not same or not problem.has_rows(self.centers_):
            raise ValueError(
                "warm_start=True goes on with the coefficients of the previous fit and "
                f"needs the same X (or centers) and outputs: coefficients of shape "
                f"{shape}; got a previous fit with shape {tuple(self.dual_coef_.shape)}"
                + (" and other rows" if same else "")
            )
        return self.dual_coef_

    def _encode_next(self, X, y, sample_weight, n_outputs=None, *, min_rows=2):
        """Return a validated piece of the training data.

        `n_outputs` is None for the first piece of all.
        """
        first = n_outputs is None
        X, Y, labels = self._encode_piece(X, y, first=first)
        if len(Y) < min_rows:
            raise ValueError(
                f"X must have at least {min_rows} rows in a piece; got {len(Y)}"
            )
        if not first:
            if hasattr(self, self._coef_attribute):
                self._check_same_namespace(place_of(X), "partial_fit")
            if Y.shape[1] != n_outputs:
                raise ValueError(
                    f"y must have {n_outputs} output(s), as in the first call of "
                    f"partial_fit; got {Y.shape[1]}"
                )
        class_weights = self._weights_of_classes(labels)
        weights = self._total_weights(sample_weight, class_weights, len(Y))
        return Data(X, Y, labels, weights, self._make_rng())

    def _split(self, y, weights, rng):
        """Return the shuffled training rows and the validation rows (or None).

        Rows without weight are in neither: they get the coefficient zero.
        """
        rows = np.arange(len(y))
        if weights is not None:
            rows = rows[weights > 0]
        if not self.early_stopping:
            return rng.permutation(rows), None
        labels = self._stratify(y)
        splitter = ShuffleSplit if labels is None else StratifiedShuffleSplit
        splitter = splitter(1, test_size=self.validation_fraction, random_state=rng)
        labels = None if labels is None else labels[rows]
        try:
            train, held_out = next(splitter.split(rows[:, None], labels))
        except ValueError as error:
            raise ValueError(
                f"early_stopping=True with validation_fraction="
                f"{self.validation_fraction} cannot split {len(rows)} rows: {error}"
            ) from error
        if len(held_out) < 2:
            raise ValueError(
                f"validation_fraction must leave at least 2 rows to score; got "
                f"{self.validation_fraction} of {len(rows)} rows"
            )
        return rng.permutation(rows[train]), rows[held_out]

    def _run(self, solver, problem, validate, context, given, progress):
        """Drive a solver with callbacks, progress and early stopping.

        Parameters
        ----------
        solver : generator
            Yields states with `coef`, `loss`, `n_step_halvings` and `failed`.
        problem : Problem
        validate : callable or None
            ``validate(coef)`` returns the validation score; the best one's coefficients
            become the model.
        context : sklearn.callback.CallbackContext
            Of the fit.
        given : dict
            X, y and metadata as the user gave them, for the callbacks.
        progress : ProgressLine

        Returns
        -------
        dict
            Fitted attributes.
        """
        losses, scores = [], []
        coef, best, waited = None, np.inf, 0
        # Where an epoch with the least loss began; the last one can end badly.
        begin = fallback = problem.initial_coef()
        progress.start_epochs()
        for _ in range(self.max_iter):
            epoch = context.subcontext(task_name="epoch")
            epoch.call_on_fit_task_begin(estimator=self, **given)
            state = next(solver)
            losses.append(state.loss)
            if validate is not None:
                scores.append(validate(state.coef))
            progress.update(losses, scores)
            # What decides is the validation score, or else the loss.
            value = -scores[-1] if scores else losses[-1]
            margin = self.tol * (1.0 if scores else losses[0])
            waited = 0 if value < best - margin else waited + 1
            if not scores or coef is None or value < best:
                coef = state.coef
            if losses[-1] <= min(losses):
                fallback = begin
            begin = state.coef
            best = min(best, value)
            stop = epoch.call_on_fit_task_end(
                estimator=self,
                reconstruction_attributes=partial(problem.model, state.coef),
                **given,
            )
            exact = not scores and value == 0.0
            if stop or state.failed or exact or waited >= self.n_iter_no_change:
                break
        progress.close()
        if state.failed:
            warn_user(
                f"{type(self).__name__} found no step size that keeps the iteration "
                f"bounded: halved {state.n_step_halvings} times; the best coefficients "
                f"before that are kept. {self._failure_hint}"
            )
        if validate is None:
            if losses[-1] > 1.2 * min(losses) and not state.failed:
                # It may be the noise of the last epoch, or it may diverge slowly.
                coef = min((coef, fallback), key=problem.loss)
            coef = self._no_worse_than_mean(coef, fallback, problem, losses)
        elif -validate(problem.initial_coef()) < best:
            coef = problem.initial_coef()
        return problem.model(coef) | {
            "n_iter_": len(losses),
            "loss_curve_": losses,
            "validation_scores_": scores if scores else None,
            "n_step_halvings_": state.n_step_halvings,
        }

    def _no_worse_than_mean(self, coef, fallback, problem, losses):
        """Return `coef` if it is no worse than zero, or else `fallback` or zero."""
        zero = problem.initial_coef()
        limit = problem.loss(zero)
        # The loss of an epoch is measured on its way: only if it is high, or some rows
        # are worse off at the end, look closer.
        low = losses[-1] <= 0.9 * limit
        if low and problem.loss(coef, _N_CHECKED) <= problem.loss(zero, _N_CHECKED):
            return coef
        if problem.loss(coef) <= limit:
            return coef
        better = problem.loss(fallback) < limit
        warn_user(
            f"{type(self).__name__} stopped after {len(losses)} epochs with a training "
            "loss above that of predicting the mean; "
            + ("an earlier epoch's model is kept" if better else "it predicts the mean")
            + "; pass a smaller step_size, or more epochs (max_iter)"
        )
        return fallback if better else zero


class ProgressLine:
    """One line that shows epochs, loss, score and time, for ``verbose=1``."""

    def __init__(self, name, n_epochs, verbose):
        self._name, self._n_epochs, self._on = name, n_epochs, verbose
        self._start = time.monotonic()
        # A terminal shows one line that moves; a log or a notebook one line an epoch.
        self._ends = ("\r", "\n") if sys.stdout.isatty() else ("\n", "")

    def start_epochs(self):
        """Note that the setup is over: it tells nothing of an epoch's time."""
        self._first_epoch = time.monotonic()

    def update(self, losses, scores):
        """Show the state after an epoch."""
        if not self._on:
            return
        done, now = len(losses), time.monotonic()
        remaining = (now - self._first_epoch) / done * (self._n_epochs - done)
        filled = 20 * done // self._n_epochs
        score = f"  score {scores[-1]:.4f}" if scores else ""
        line = (
            f"{self._name} [{'#' * filled}{'.' * (20 - filled)}] "
            f"epoch {done}/{self._n_epochs}  loss {losses[-1]:.4g}{score}  "
            f"{now - self._start:.1f} s, {remaining:.1f} s to go "
        )
        print(line, end=self._ends[0], flush=True)  # noqa: T201

    def close(self):
        """End the line."""
        if self._on:
            print(end=self._ends[1], flush=True)  # noqa: T201
