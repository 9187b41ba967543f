"""The base of all models: fitting, predicted values, tags."""

import math
import time
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.callback import CallbackSupportMixin, with_callbacks

from ..arrays.array import location_of, move, to_numpy
from ..arrays.devices import compute_devices
from ..arrays.linalg import large_product
from ..operators.gradient import KernelGradient
from ..operators.sharded import kernel_operator
from ..plan.parameters import calibrates, has_log_loss, is_precomputed, stops_early
from ..problems.data import Data, hold_out
from ..rows.lazy_rows import check_in_memory
from ..rows.robust import cast
from .checkpoint import open_keeper
from .conveniences import Conveniences
from .outcome import (
    check_given_kernel,
    check_values,
    is_own,
    warn_of_far_values,
    warn_of_outcome,
)
from .planning import planned_seconds, rows_at_a_time, warn_of_long_fit, what_fits
from .rules import Callbacks, ProgressLine, train
from .validation import (
    Interrupted,
    all_or_nothing,
    check_flag,
    check_number,
    check_rows,
    check_verbose,
    publish,
    random_generator,
    replaced_parameters,
    total_weights,
    validated,
    warn_user,
)


class Model(Conveniences, CallbackSupportMixin, BaseEstimator):
    """A model, whose fit succeeds or changes nothing; arrays stay where they are.

    A family of models defines ``_check_parameters()``; ``_prepare(data)``, which
    returns a problem, a solver, the fitted attributes chosen so far, and a rule that
    ends the training; and ``_expand(X)``, the values of a fitted model without its
    intercept, on the device that computes (`KernelModel`). The mixins of `targets`
    handle targets and predictions.
    """

    #: A fitted attribute in the library and on the device of X.
    _coef_attribute = "dual_coef_"
    _accept_sparse = False
    #: Name of an iteration for callbacks; None: a fit without iterations.
    _task = None
    #: What to try if no step is stable.
    _failure_hint = "Pass a smaller step_size."
    #: What may not change before a fit that continues.
    _warm_start_needs = "the same X (or centers)"
    #: What to pass if the rows are not in memory; None: they need not be.
    _in_memory_unless = None
    #: What a fit needs for out-of-sample values, to calibrate probabilities.
    _calibrates_with = "early_stopping=True"
    #: The alpha that equals C in SVC's objective 1/2 |f|^2 + C sum_i loss_i.
    _alpha_of_C = "1 / (2 C n)"
    #: ``_gradients(X)`` of a fitted model on kernels (`KernelModel`).
    _gradients = None
    #: Whether a fit warns if nothing was learned, and of far values; not if another one
    #: judges the model.
    _tells_outcome = True
    #: `Ends` of the kernel's spectrum, if the last fit found it to be indefinite.
    _kernel_ends = None
    #: Parameters whose smaller values take less memory, the most useful first.
    _takes_less = ("n_centers", "cache_size", "n_components", "subsample_size")
    #: Whether epochs with a penalty hold rows out to calibrate on (`calibrates`).
    _epochs_calibrate = False
    #: When a fit with ``verbose`` began, and the seconds it should take (or None).
    _clock = None

    @all_or_nothing
    @with_callbacks
    def _fit(self, X, y, sample_weight, *validation, checkpoint=None, resume=False):
        """Validate, prepare, train, publish."""
        check_verbose(self.verbose)
        start = time.monotonic()
        self._check_parameters()
        callbacks = Callbacks(self, X, y, sample_weight, self._task, self._n_iterations)
        data = self._validate(X, y, sample_weight, *validation)
        keeper = open_keeper(checkpoint, resume, self, data)
        data = self._examined(data if keeper is None else keeper.data)
        with replaced_parameters(self, self._replaced(data)):
            if self._tells_outcome:  # not within another fit, which has told it
                warn_of_long_fit(self, data.X, data.targets.shape[1])
            with replaced_parameters(self, self._started(start, data)):
                rule = self._fit_to(data, callbacks, keeper)
        if self._tells_outcome:
            warn_of_outcome(self, data, rule)
            rows = data.rows_with_weight()
            self._warn_of_far_values(
                data.X if len(rows) == len(data.targets) else data.take(rows).X
            )
        return self

    def _fit_to(self, data, callbacks, keeper):
        """Prepare, train, publish; return the rule that ended the training."""
        progress, all_data = self._progress(), data
        if data.constant and self._takes_constant_targets:
            data = data.with_constant_targets()
        prepared = self._prepare(data) if keeper is None else keeper.prepare(self, data)
        problem, solver, chosen, rule = prepared

        def attributes(interrupted):
            found = chosen | rule.fitted_attributes(interrupted)
            out_of_sample = None if data.groups is None else rule.out_of_sample()
            if data.constant:
                rows = all_data.rows_with_weight()
                mean = all_data.with_constant_targets().targets
                out_of_sample = all_data.out_of_sample(rows, mean[rows])
            return found | self._calibrated(all_data, out_of_sample)

        callbacks.problem = problem
        try:
            if keeper is not None and not hasattr(solver, "save"):  # a closed form
                keeper = keeper.set_aside(type(self).__name__)
            interrupted = train(
                solver, rule, callbacks=callbacks, progress=progress, keeper=keeper
            )
            with nullcontext() if keeper is None else keeper.continuing():
                fitted = attributes(interrupted)
            if progress is not None:
                progress.tell_end(rule, interrupted)
        except KeyboardInterrupt as interrupt:
            if not rule.undo():
                raise
            if progress is not None:
                progress.close()
            publish(self, attributes(True))
            warn_user(
                f"{type(self).__name__} was interrupted after {len(rule.losses)} "
                f"{self._task}s: the best model so far is kept"
            )
            raise Interrupted(self) from interrupt
        callbacks.close(fitted)
        publish(self, fitted)
        return rule

    def _examined(self, data):
        """Return the data with what is odd about them: equal rows, or the kernel."""
        self._kernel_ends, kernel = None, getattr(self, "kernel", "linear")
        constant = data.rows_are_equal()
        if not is_own(kernel) and (data.precomputed or not constant):
            rows = data.rows_with_weight()
            self._kernel_ends = check_given_kernel(kernel, data.X, rows, self.device)
        indefinite = self._kernel_ends is not None
        return replace(data, constant=constant, indefinite=indefinite)

    def _replaced(self, data):
        """Return parameters of a fit to equal rows, of which none can be held out."""
        if not data.constant:
            return {}
        simplest = {"early_stopping": False, "warm_start": False, "selection": None}
        if isinstance(getattr(self, "alpha", None), str):  # "auto" or "path"
            # With a path or a log loss, it must be positive.
            positive = self.alpha == "path" or has_log_loss(self)
            simplest["alpha"] = 1e-6 if positive else 0.0
        if isinstance(getattr(self, "n_centers", None), int):
            if isinstance(self.centers, str):
                simplest |= {"n_centers": 1, "centers": "uniform"}
        return {k: v for k, v in simplest.items() if hasattr(self, k)}

    @property
    def _takes_constant_targets(self):
        """Whether targets may be replaced by their mean, which the model then is."""
        return not has_log_loss(self)

    def _warn_of_far_values(self, X):
        """Warn of entries of training rows that the fitted model cuts off."""
        if getattr(self, "kernel_", None) is not None:
            warn_of_far_values(self, X, self.kernel_, self.centers_)

    def _validate(
        self, X, y, sample_weight, X_val=None, y_val=None, sample_weight_val=None
    ):
        """Return the validated training data."""
        X, y = validated(
            self, X, y, reset=True, ensure_min_samples=2, **self._checks_of_y
        )
        Y, y = self._encode(y, X.dtype)
        precomputed = is_precomputed(self)
        if precomputed or self._in_memory_unless:
            check_in_memory(X, self._in_memory_unless or "rows, and another kernel")
        if precomputed and X.shape[0] != X.shape[1]:
            raise ValueError(
                "kernel='precomputed' needs the square kernel matrix of the training "
                f"rows as X; got shape {tuple(X.shape)}"
            )
        of_class = self._weights_of_classes(y)
        weights = total_weights(sample_weight, of_class, y)
        validation = None
        if X_val is not None and y_val is not None:
            validation = self._validate_given(
                X_val, y_val, sample_weight_val, Y.shape[1], of_class
            )
        elif not (X_val is None and y_val is None and sample_weight_val is None):
            raise ValueError(
                "X_val and y_val must be passed together, and sample_weight_val with "
                f"them; got X_val={'None' if X_val is None else 'an array'} and "
                f"y_val={'None' if y_val is None else 'an array'}"
            )
        rng, groups = self._make_rng(), self._stratify(y)
        if of_class is not None:  # rows of a class that costs nothing have no weight
            of_class = np.where(of_class > 0, of_class, 1.0)
        found = X, Y, y, weights, rng, groups, validation, precomputed
        return Data(*found, of_class=of_class)

    def _validate_given(self, X, y, sample_weight, n_outputs, of_class):
        """Return X, targets, labels and weights of validated rows to select on."""
        try:
            X, y = validated(self, X, y, reset=False, **self._checks_of_y)
            Y, labels = self._encode(y, X.dtype, reset=False, name="y_val")
        except ValueError as error:
            raise ValueError(f"X_val and y_val are not valid: {error}") from error
        if Y.shape[1] != n_outputs:
            raise ValueError(
                f"y_val must have as many outputs as y, {n_outputs}; got {Y.shape[1]}"
            )
        weights = total_weights(sample_weight, of_class, labels, "sample_weight_val")
        labels_with_weight = labels if weights is None else labels[weights > 0]
        codes = self._stratify(labels_with_weight)
        if codes is None and len(labels_with_weight) < 2 and stops_early(self):
            raise ValueError(
                "X_val must have at least two rows with weight, to score epochs on; "
                f"got {len(labels_with_weight)}"
            )
        if codes is not None and len(np.unique(codes)) == 1 < len(self.classes_):
            warn_user(
                f"y_val holds only the class {self.classes_.tolist()[codes[0]]!r}, of "
                "which a constant model may be the best; pass rows of every class"
            )
        return X, Y, labels, weights

    def _holds_out(self, n):
        """Whether a fit holds out some of n rows."""
        return stops_early(self)

    def _parts(self, n):
        """Return how many of n rows a fit learns from, and how many it holds out."""
        part = self.validation_fraction if self._holds_out(n) else 0.0
        n_held_out = math.ceil(part * n - 1e-9)
        return n - n_held_out, n_held_out

    def _plan(self, shape):
        """Return the `Plan` of a fit."""
        raise NotImplementedError

    def _what_fits(self, method, X, y, free):
        """Return with what a method of rows takes at most `free` bytes, as text."""
        if "fit" not in method:
            return rows_at_a_time(self, X, free)
        n_outputs = np.shape(y)[1] if np.ndim(y) == 2 else 1
        if hasattr(self, "class_weight"):
            n_classes = len(getattr(self, "classes_", ()))
            n_outputs = n_classes if n_classes > 2 else 1
        return what_fits(self, X, free, n_outputs)

    @property
    def _n_iterations(self):
        """Maximum number of iterations to report to callbacks."""
        return getattr(self, "max_iter", 0)

    @property
    def _calibrates(self):
        """Whether a fit has out-of-sample values."""
        return stops_early(self) or calibrates(self)

    def _make_rng(self):
        return random_generator(self.random_state)

    def _progress(self):
        """Return the progress display, or None."""
        if not self.verbose or self._task is None:
            return None
        return ProgressLine(type(self).__name__)

    def _started(self, start, data):
        """Return the `_clock` of a fit that began at a time, if ``verbose``."""
        if not self.verbose:
            return {}
        return {"_clock": (start, planned_seconds(self, data.X, data.targets.shape[1]))}

    def _say(self, text):
        """Print a line in `fit` if ``verbose``, with the time so far and to go."""
        if self._clock is None:
            return
        start, planned = self._clock
        passed = time.monotonic() - start
        text += f"  {passed:.1f} s"
        if planned is not None and planned - passed >= 0.5:
            text += f", about {planned - passed:.0f} s to go"
        print(f"{type(self).__name__}: {text}", flush=True)  # noqa: T201

    def _fitted_values(self, X):
        """Return f(X) of validated rows in float64 on the host, shape (m, l)."""
        F = to_numpy(self._expand(X)).astype(np.float64)
        return F + to_numpy(self.intercept_).astype(np.float64)

    def _values(self, X, method):
        """Return f(X), shape (m, l), where X lives."""
        X = check_rows(self, X, method)
        with np.errstate(over="ignore", invalid="ignore"):
            F = move(self._expand(X), *location_of(X)) + self.intercept_
        check_values(F, X)
        return F

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.array_api_support = True
        tags.input_tags.pairwise = is_precomputed(self)
        return tags


class KernelModel(Model):
    """A model f(x) = K(x, centers_) dual_coef_ + intercept_."""

    def _expand(self, X):
        """Return K(X, centers_) dual_coef_, on the device that computes."""
        devices = compute_devices(self.device, X)
        coef = move(self.dual_coef_, *devices[0])
        if self.kernel_ is None:
            X = move(X, *devices[0])
            return large_product(cast(X, coef.dtype), coef)
        return kernel_operator(self.kernel_, self.centers_, devices, X) @ coef

    def _gradients(self, X):
        """Return the gradients of K(., centers_) dual_coef_ at the rows of X."""
        if self.kernel_ is None:
            raise ValueError(
                "gradients need a kernel of rows; got a model with kernel='precomputed'"
            )
        devices = compute_devices(self.device, X)
        fitted = self.kernel_, self.centers_, self.dual_coef_
        return KernelGradient(*fitted, devices, X)


def check_epochs(estimator):
    """Raise a ValueError unless the parameters of the epochs are valid."""
    check_number("max_iter", estimator.max_iter, 1, integer=True)
    check_number("tol", estimator.tol, 0)
    check_flag("early_stopping", estimator.early_stopping)
    check_number(
        "validation_fraction", estimator.validation_fraction, 0, 1, open_ends=True
    )
    check_number("n_iter_no_change", estimator.n_iter_no_change, 1, integer=True)


def start_of(model, problem):
    """Return the coefficients that ``warm_start=True`` continues from, or None."""
    name, fitted = model._coef_attribute, vars(model)
    if not model.warm_start or name not in fitted:
        return None
    if not problem.suits(fitted):
        raise ValueError(
            "warm_start=True continues from the coefficients of the previous fit and "
            f"needs {model._warm_start_needs} and {problem.targets.shape[1]} "
            f"output(s); got {name} of shape {tuple(fitted[name].shape)}"
        )
    return problem.coef_of(fitted)


def split(model, data, holds_out):
    """Return the data, the training rows, and rows to score the epochs on (or None).

    Neither includes rows without weight: their coefficients are zero. Held-out rows are
    the given ones, or a fraction of the rows with weight, per class; at least one row
    of each class stays.
    """
    rows = data.rows_with_weight()
    given = data.validation is not None and not data.constant
    if given and not stops_early(model):
        raise ValueError(
            "X_val and y_val must be None unless epochs are scored on them, with "
            "early_stopping=True; got an array with early_stopping="
            f"{model.early_stopping!r}"
        )
    if not holds_out:
        return data, rows, None
    if given:
        data, held_out = data.with_validation()
        return data, rows, held_out
    part = model.validation_fraction
    return data, *hold_out(data, rows, part, fewest=2, in_given_order=True)
