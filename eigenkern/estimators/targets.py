"""Regression and classification: targets in, predictions out."""

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from ..backend.array import device_of, is_numpy, namespace, to_numpy
from ..losses import LogLoss
from .validation import check_labels, floats, on_its_device


class RegressionTargets(RegressorMixin):
    """Targets as they are, one column an output."""

    def _encode(self, X, y, *, reset=True, min_rows=1, name=None):
        """Return (X, Y, y): validated data, float64 targets (n, l), y on the host.

        Parameters
        ----------
        X, y : arrays
        reset : bool, default=True
            Whether these rows tell the number of features and outputs.
        min_rows : int, default=1
        name : str, default=None
            Not used: labels have to be known, numbers need not.
        """
        X, y = validate_data(
            self,
            X,
            y,
            dtype=floats(X),
            accept_sparse=self._accept_sparse,
            multi_output=True,
            y_numeric=True,
            ensure_min_samples=min_rows,
            reset=reset,
        )
        y = to_numpy(y).astype(np.float64)
        if reset:
            self._one_dimensional = y.ndim == 1
        return X, y.reshape(len(y), -1), y

    def _set_classes(self, classes, labels):
        if classes is not None:
            raise ValueError(f"classes must be None for a regressor; got {classes!r}")

    def _weights_of_classes(self, y):
        return None

    def _stratify(self, y):
        return None

    def _score_values(self, F, labels, weights):
        """Return R^2 of the values F (n, l) on the host."""
        return r2_score(labels, F.reshape(labels.shape), sample_weight=weights)

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

    def _encode(self, X, y, *, reset=True, min_rows=1, name=None):
        """Return (X, Y, codes): validated data, float64 targets (n, l), codes.

        Parameters
        ----------
        X, y : arrays
        reset : bool, default=True
            Whether these rows tell the number of features.
        min_rows : int, default=1
        name : {None, "y", "y_val"}, default=None
            None: the labels of y are the classes. Otherwise they must be among them.
        """
        X, y = validate_data(
            self,
            X,
            y,
            dtype=floats(X),
            accept_sparse=self._accept_sparse,
            ensure_min_samples=min_rows,
            reset=reset,
        )
        if name != "y_val":
            check_classification_targets(y)
        y = to_numpy(y)
        if name is None:
            self.classes_ = np.unique(y)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            known = {
                "y_val": "classes of y",
                "y": "classes that were given, or came, first, "
                f"{self.classes_.tolist()}",
            }
            raise ValueError(
                f"{name} must hold only {known[name]}; got {unknown.tolist()[0]!r}"
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

    def _set_classes(self, classes, labels):
        """Set `classes_` to those that are given, or of the first labels."""
        check_labels(classes)
        if classes is None:
            classes = np.concatenate([np.ravel(np.asarray(y)) for y in labels])
        self.classes_ = np.unique(classes)

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

    def _score_values(self, F, labels, weights):
        """Return the accuracy of the values F (n, l) on the host."""
        predicted = (F[:, 0] > 0) if F.shape[1] == 1 else F.argmax(axis=1)
        return accuracy_score(labels, predicted.astype(np.int64), sample_weight=weights)

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
