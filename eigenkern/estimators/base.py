"""What every estimator shares; the only file that knows scikit-learn."""

from functools import partial

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.callback import CallbackSupportMixin, with_callbacks
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from ..backend.array import device_of, move, namespace, place_of, to_numpy
from ..backend.devices import compute_devices, compute_device, working_device
from ..backend.transfer import StreamedRows
from ..centers import METHODS
from ..kernels import check_bandwidth
from ..operators.sharded import make_operator
from ..problems.centers import CenterProblem
from ..problems.data import Data, hold_out
from ..problems.kernel import Problem
from .training import ProgressLine
from .validation import (
    _floats,
    check_centers,
    check_flag,
    check_kernel_parameters,
    check_number,
    on_its_device,
    warn_user,
)

# Training rows that are predicted at the end of a fit, to see that it ended well.
_N_CHECKED = 10_000


# Bytes of features that are computed at a time away from X.
_SLAB_BYTES = 256e6


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
        compute_device(self.device, X)
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
        place = compute_device(self.device, X)
        return self._features(X) if place == home else self._in_slabs(X, place)

    def _in_slabs(self, X, place):
        """Return the features of rows, computed at another place."""
        xp, device = home = namespace(X), device_of(X)
        shape = (X.shape[0], self._n_features_out)
        phi = xp.empty(shape, dtype=X.dtype, device=device)
        size = max(int(_SLAB_BYTES // (8 * shape[1])), 1)
        rows = StreamedRows(X, *place)
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
        """Return the problem on centers; hold out a `fraction` of the rows."""
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
        """Return the centers that the parameter `centers` gives, or None."""
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
        devices = compute_devices(self.device, X)
        coef = move(self.dual_coef_, *devices[0])
        if self.kernel_ is None:
            X = move(X, *devices[0])
            return namespace(X).astype(X, coef.dtype, copy=False) @ coef
        return make_operator(self.kernel_, self.centers_, devices, X) @ coef

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
            become the centers, and the fitted model refers to X, it makes no copy. In
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
