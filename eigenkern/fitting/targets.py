"""Regression, classification and quantiles: targets in, predictions out."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, d2_pinball_score, r2_score
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets

from ..arrays.array import ArrayLike, device_of, is_numpy, namespace, to_numpy
from ..losses import LogLoss
from ..plan.parameters import has_log_loss
from .calibration import OFFSET_PENALTY_OF_WEIGHTED, Calibration, calibrate
from .rules import EpochRule
from .validation import check_labels, check_number, on_host, on_its_device


class RegressionTargets(RegressorMixin):
    """Targets as they are, one column per output."""

    #: Options of scikit-learn's check of y.
    _checks_of_y = {"multi_output": True, "y_numeric": True}
    #: Whether `_score_values` counts right labels, and may say nothing of a rare class.
    _score_is_accuracy = False

    def _encode(self, y, dtype, *, reset=True, name=None):
        """Return (Y, y): float64 targets (n, l), and y, on the host.

        With `reset`, y sets the number of outputs. `dtype` is that of X. `name` is only
        used for labels.
        """
        y = to_numpy(y).astype(np.float64)
        check_scale(y, dtype, small=reset)
        if reset:
            self._one_dimensional = y.ndim == 1
        Y = y.reshape(len(y), -1)
        return Y, Y[:, 0] if self._one_dimensional else Y

    def _set_classes(self, classes, labels):
        if classes is not None:
            raise ValueError(f"classes must be None for a regressor; got {classes!r}")

    def _weights_of_classes(self, y):
        return None

    def _stratify(self, y):
        return None

    def _calibrated(self, data, found):
        """Return no attributes: numbers have no probabilities."""
        return {}

    def _score_values(self, F, labels, weights):
        """Return R^2 of the values F (n, l) on the host."""
        return r2_score(labels, F.reshape(labels.shape), sample_weight=weights)

    @on_its_device
    def predict(self, X: ArrayLike) -> Any:
        """Predict the targets of the rows of X.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Rows; with kernel="precomputed", the kernel matrix of the rows and the
            training rows.

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


def check_scale(y, dtype, *, small):
    """Raise a ValueError unless a data type can hold the squares of the targets.

    Targets of a later piece of a stream may be too `small`; else they may not.
    """
    low, high = (1e-150, 1e150) if "64" in str(dtype) else (1e-19, 1e19)
    largest = np.atleast_1d(np.abs(y).max(axis=0))
    wrong = largest[(largest > high) | (small & (largest < low) & (largest > 0))]
    if len(wrong):
        raise ValueError(
            f"y must be scaled: its largest target must be between {low:.0e} and "
            f"{high:.0e} with X in {dtype}; got {wrong[0]:.3g}"
        )


def _has_probabilities(model):
    if has_log_loss(model) or hasattr(model, "calibration_"):
        return True
    fitted = hasattr(model, model._coef_attribute)
    if not fitted and model._calibrates:
        return True
    advice = f"fit with {model._calibrates_with}, take DSGClassifier(loss='log_loss'), "
    advice += "or wrap the estimator in sklearn.calibration.CalibratedClassifierCV"
    if "_memory_" in vars(model):  # of pieces
        advice = (
            "take DSGClassifier(loss='log_loss'), or keep some rows and fit "
            "CalibratedClassifierCV(FrozenEstimator(model)) of scikit-learn to them"
        )
    raise AttributeError(
        "probabilities are calibrated on values of rows that were held out, and none "
        f"{'were' if fitted else 'will be'}: {advice}"
    )


class ClassificationTargets(ClassifierMixin):
    """Labels as -1, +1 in one column (two classes), or as one column per class."""

    _checks_of_y = {}
    _score_is_accuracy = True

    def _encode(self, y, dtype, *, reset=True, name=None):
        """Return (Y, codes): float64 targets (n, l), and codes of the classes.

        If `name` is None, the labels of y become the classes; if it is "y" or "y_val",
        they must be among them. The other parameters are only used for numbers.
        """
        if name != "y_val":
            check_classification_targets(y)
        y = to_numpy(y)
        if name is None:
            self.classes_ = np.unique(y)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            known = {
                "y_val": "classes of y",
                "y": f"classes that were given or came first, {self.classes_.tolist()}",
            }
            advice = "; pass all of them as classes to a new model" * (name == "y")
            raise ValueError(
                f"{name} must hold only {known[name]}; got {unknown.tolist()[0]!r}"
                f"{advice}"
            )
        codes = np.searchsorted(self.classes_, y)
        if len(self.classes_) > 2:
            return np.eye(len(self.classes_))[codes], codes
        return (2.0 * codes - 1.0)[:, None], codes

    def _check_classes(self, classes):
        """Return `classes` on the host if they suit this call of partial_fit."""
        fitted = hasattr(self, self._coef_attribute)
        if not fitted and classes is None:
            raise ValueError("classes must be passed to the first call of partial_fit")
        classes = check_labels(classes)
        if fitted and classes is not None:
            if not np.array_equal(np.unique(classes), self.classes_):
                raise ValueError(
                    "classes must be None, or those of the first call of partial_fit, "
                    f"{self.classes_.tolist()}; got {np.unique(classes).tolist()}"
                )
        return classes

    def _set_classes(self, classes, labels):
        """Set `classes_` to the given classes, or else to those of `labels`."""
        classes = check_labels(classes)
        if classes is None:
            classes = np.concatenate([on_host(y).ravel() for y in labels])
        self.classes_ = np.unique(classes)

    def _weights_of_classes(self, codes):
        """Return the weight of each class, (k,); 0 of one that has no row."""
        if self.class_weight is None:
            return None
        weights, given = np.zeros(len(self.classes_)), self.class_weight
        named = isinstance(given, str) and given == "balanced"
        if not (named or isinstance(given, Mapping)):
            raise ValueError(
                "class_weight must be 'balanced', a dict from classes to weights, or "
                f"None; got {given!r}"
            )
        if named:
            weights[codes] = compute_sample_weight(self.class_weight, codes)
        else:
            weights[:] = compute_sample_weight(self.class_weight, self.classes_)
        if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
            raise ValueError(
                "class_weight must give finite, nonnegative weights, not all zero; got "
                f"{self.class_weight!r}"
            )
        return weights

    def _stratify(self, codes):
        return codes

    def _calibrated(self, data, found):
        """Return the calibration as an attribute; `found` is an `OutOfSample` or None.

        The probabilities respect `sample_weight` but not `class_weight`, which only
        moves the decision.
        """
        if found is None or has_log_loss(self):
            return {}
        if len(self.classes_) == 1:
            return {"calibration_": Calibration(1.0, 1.0, (0.0,))}
        weights, codes, options = found.weights, _codes_of(found.targets), {}
        of_class = self._weights_of_classes(data.labels)
        if of_class is not None:
            weights = weights / np.where(of_class > 0, of_class, np.inf)[codes]
            options["offset_penalty"] = OFFSET_PENALTY_OF_WEIGHTED
        found = calibrate(
            self._as_indicators(found.values),
            codes,
            weights,
            found.n_observations,
            keeps_decision=of_class is None,
            **options,
        )
        return {"calibration_": found}

    def _calibrated_losses(self, found):
        """Return the log loss of each row of an `OutOfSample`, times its weight.

        The probabilities are calibrated on these rows, with all weights.
        """
        F, codes = self._as_indicators(found.values), _codes_of(found.targets)
        n_rows, w = found.n_observations, found.weights
        scores = calibrate(F, codes, w, n_rows).scores(F)
        log_P = LogLoss(F.shape[1]).log_probabilities(scores)
        return -log_P[np.arange(len(codes)), codes] * w / w.mean()

    def _as_indicators(self, F):
        """Return values with one column per class, on the scale of targets 0 and 1."""
        if F.shape[1] > 1:
            return F
        return namespace(F).concat([0.5 - 0.5 * F, 0.5 + 0.5 * F], axis=1)

    def _score_values(self, F, labels, weights):
        """Return the accuracy of the values F (n, l) on the host."""
        return accuracy_score(labels, _codes_of(F), sample_weight=weights)

    @on_its_device
    def decision_function(self, X: ArrayLike) -> Any:
        """Return the values by which rows are classified.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)

        Returns
        -------
        values : array of shape (n_samples,) or (n_samples, n_classes)
            For two classes one number a row, positive for ``classes_[1]``; for more a
            column per class, of which the largest wins.
        """
        F = self._values(X, "decision_function")
        return F[:, 0] if F.shape[1] == 1 else F

    @on_its_device
    def predict(self, X: ArrayLike) -> Any:
        """Predict the class of the rows of X.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Rows; with kernel="precomputed", the kernel matrix of the rows and the
            training rows.

        Returns
        -------
        y : array of shape (n_samples,)
            Labels from ``classes_``; a NumPy array if X's array library cannot hold
            them: strings, for example.
        """
        F = self._values(X, "predict")
        xp = namespace(F)
        if len(self.classes_) == 1:
            codes = xp.zeros(F.shape[0], dtype=xp.int64, device=device_of(F))
        else:
            codes = _codes_of(F)
        if is_numpy(xp) or self.classes_.dtype.kind not in "biuf":
            return self.classes_[to_numpy(codes)]
        return xp.take(xp.asarray(self.classes_, device=device_of(F)), codes, axis=0)

    @available_if(_has_probabilities)
    @on_its_device
    def predict_proba(self, X: ArrayLike) -> Any:
        """Return the probabilities of the classes.

        For models that minimize the log loss they are a function of the values;
        otherwise `calibration_` calibrates the values first. The likeliest class is the
        one that `predict` returns, except with `class_weight`, which moves the decision
        but not the probabilities.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)

        Returns
        -------
        P : array of shape (n_samples, n_classes)
            Columns in the order of `classes_`.

        Raises
        ------
        AttributeError
            If no rows were held out to calibrate on.
        """
        log_P = self._log_probabilities(X, "predict_proba")
        return namespace(log_P).exp(log_P)

    @available_if(_has_probabilities)
    @on_its_device
    def predict_log_proba(self, X: ArrayLike) -> Any:
        """Return the logarithms of the probabilities of the classes.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)

        Returns
        -------
        log_P : array of shape (n_samples, n_classes)
            Finite if the values are, even if a probability rounds to zero.
        """
        return self._log_probabilities(X, "predict_log_proba")

    def _log_probabilities(self, X, method):
        F = self._values(X, method)
        if len(self.classes_) == 1:
            return namespace(F).zeros_like(F)
        if not has_log_loss(self):
            F = self.calibration_.scores(self._as_indicators(F))
        return LogLoss(F.shape[1]).log_probabilities(F)


def _codes_of(F):
    """Return the class codes of values or targets (n, l)."""
    xp = namespace(F)
    return xp.astype(F[:, 0] > 0, xp.int64) if F.shape[1] == 1 else xp.argmax(F, axis=1)


def check_quantiles(quantile):
    """Raise a ValueError unless `quantile` is one quantile or a sequence of them."""
    quantiles = [quantile] if np.ndim(quantile) == 0 else quantile
    if np.ndim(quantiles) != 1 or len(quantiles) == 0:
        raise ValueError(
            "quantile must be a number, or a sequence of at least one; "
            f"got {quantile!r}"
        )
    for one in quantiles:
        check_number("quantile", one, 0, 1, open_ends=True)


def without_crossing(F, quantiles):
    """Return F (n, l) with each row sorted in the order of the quantiles."""
    xp = namespace(F)
    ranks = np.argsort(np.argsort(quantiles, kind="stable"), kind="stable")
    ranks = xp.asarray(ranks, device=device_of(F))
    return xp.take(xp.sort(F, axis=1), ranks, axis=1)


def mean_d2(labels, F, quantile, weights):
    """Return the mean D^2 of the pinball loss of the values F (n, l) on the host."""
    if np.ndim(quantile) == 0:
        columns = [F.reshape(labels.shape)]
    else:
        columns = without_crossing(F, quantile).T
    scores = [
        d2_pinball_score(labels, column, sample_weight=weights, alpha=q)
        for q, column in zip(np.ravel(quantile), columns, strict=True)
    ]
    return float(np.mean(scores))


class CalibratedRule(EpochRule):
    """The rule of epochs, with the best constant for the held-out rows added.

    Conditional quantiles overfit the training rows: less than a fraction q of new rows
    lies below. With the quantile q of the held-out residuals added, q of those rows do.
    """

    def _best_coef(self):
        return self._problem.with_held_out_constant(super()._best_coef())
