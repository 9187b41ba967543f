"""Recursive feature machines: kernel machines that learn their metric."""

import math
from dataclasses import replace
from typing import Any, Self

from sklearn.base import (
    ClassNamePrefixFeaturesOutMixin,
    MetaEstimatorMixin,
    TransformerMixin,
    clone,
    is_classifier,
)
from sklearn.utils.metaestimators import available_if

from ..arrays.array import ArrayLike, RandomState, device_of, location_of, namespace
from ..fitting.model import Model
from ..fitting.outcome import check_values, warn_of_cutoffs
from ..fitting.targets import ClassificationTargets, RegressionTargets
from ..fitting.validation import (
    check_number,
    check_rows,
    check_same_location,
    on_its_device,
)
from ..kernels import Kernel
from ..plan.of_rounds import plan_of_rounds
from ..plan.parameters import is_precomputed
from ..problems.kernel_parameters import named_kernel
from ..rows.lazy_rows import by_rows
from ..rows.robust import cast, without_far_values
from .eigenpro import EigenProClassifier, EigenProRegressor
from .gradients import is_on_kernels
from .learned_metric import (
    N_COMPARED,
    MetricProblem,
    RoundRule,
    kernels_to_try,
    kinds_to_learn,
    learned_metrics,
    mapped,
    mapped_gradients,
)


def _has_probabilities(model):
    if hasattr(getattr(model, "estimator_", model._inner()), "predict_proba"):
        return True
    raise AttributeError(
        "probabilities need an estimator that has them, such as NystromClassifier(); "
        f"got {model.estimator!r}"
    )


class _RecursiveFeatureMachine(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, MetaEstimatorMixin, Model
):
    _task = "round"
    _coef_attribute = "metric_root_"
    _in_memory_unless = "a sample of them"
    _takes_constant_targets = False  # its estimator does so

    def __init__(
        self,
        estimator: Any = None,
        *,
        metric: str = "auto",
        max_rounds: int = 5,
        max_gradient_rows: int = 4000,
        max_metric_rows: int = 10_000,
        validation_fraction: float = 0.2,
        random_state: RandomState = None,
        verbose: int | bool = 0,
    ) -> None:
        self.estimator = estimator
        self.metric = metric
        self.max_rounds = max_rounds
        self.max_gradient_rows = max_gradient_rows
        self.max_metric_rows = max_metric_rows
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.verbose = verbose

    def _inner(self):
        return self._default() if self.estimator is None else self.estimator

    @property
    def device(self):
        """The estimator's; "auto" if it has none."""
        return getattr(self._inner(), "device", "auto")

    def _check_parameters(self):
        estimator, of_labels = self._inner(), is_classifier(self)
        # A recursive feature machine has no parameter `kernel`.
        on_kernels = is_on_kernels(estimator) and hasattr(estimator, "kernel")
        if not on_kernels or is_classifier(estimator) != of_labels:
            kind = "a classifier" if of_labels else "a regressor"
            raise ValueError(
                f"estimator must be {kind} on kernels of eigenkern, such as "
                f"{self._default.__name__}(); got {estimator!r}"
            )
        kernel = estimator.kernel
        if is_precomputed(estimator) or not isinstance(kernel, str | Kernel):
            raise ValueError(
                "estimator must have a kernel by name or from eigenkern.kernels, "
                "because a metric is learned from its gradients; got "
                f"kernel={kernel!r}"
            )
        if isinstance(kernel, Kernel):
            kernel.slope()  # raises an error if there is none
        kinds = ("auto", "diagonal", "full")
        if not isinstance(self.metric, str) or self.metric not in kinds:
            raise ValueError(
                f"metric must be 'auto', 'diagonal' or 'full'; got {self.metric!r}"
            )
        check_number("max_rounds", self.max_rounds, 0, integer=True)
        check_number("max_gradient_rows", self.max_gradient_rows, 1, integer=True)
        check_number("max_metric_rows", self.max_metric_rows, 10, integer=True)
        check_number(
            "validation_fraction", self.validation_fraction, 0, 1, open_ends=True
        )

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        X_val: ArrayLike | None = None,
        y_val: ArrayLike | None = None,
        sample_weight_val: ArrayLike | None = None,
    ) -> Self:
        """Learn the metric, and fit the estimator to all rows with it.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Training rows; standardize features that have different units.
        y : array of shape (n_samples,) or (n_samples, n_outputs)
            Targets; one label per row for a classifier.
        sample_weight : float or array of shape (n_samples,), default=None
            Nonnegative weights of the squared residuals.
        X_val, y_val : arrays, default=None
            Rows to compare the metrics on; None: `validation_fraction` of the rows are
            held out for this.
        sample_weight_val : float or array, default=None
            Weights of the rows of X_val.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the data or a parameter is wrong; a model fitted before stays usable.
        MemoryError
            If memory runs out; the message says what needs less.

        Warns
        -----
        ConvergenceWarning
            If a round failed; the best metric before it is kept.
        """
        return self._fit(
            X,
            y,
            sample_weight,
            X_val=X_val,
            y_val=y_val,
            sample_weight_val=sample_weight_val,
        )

    def _plan(self, shape):
        inner, n, n_compared = self._inner(), shape.n, 0
        (first, *others), manhattan = kernels_to_try(self, shape.d, not shape.labels)
        kernel = inner.kernel if first is None else first[0]
        if others:  # and a softer metric; those of the Manhattan distance take longer
            n_compared = 2 + len(others) + 3 * len(manhattan)
        shape = replace(shape, kernel=named_kernel(kernel))
        n_metric = min(n, self.max_metric_rows)
        held_out = math.ceil(self.validation_fraction * n_metric)
        n_part = n_metric - held_out
        part, compared, final = (
            inner._plan(replace(shape, estimator=inner, X=shape.X[:m, :], n_train=m))
            for m in (n_part, min(n_part, max(n_part // 2, N_COMPARED)), n)
        )
        return plan_of_rounds(
            replace(shape, n_held_out=held_out),
            part,
            compared,
            final,
            n_kinds=len(kinds_to_learn(self, shape.d)),
            n_rounds=self.max_rounds,
            n_graded=min(n_part, self.max_gradient_rows),
            n_compared=n_compared,
        )

    def _prepare(self, data):
        estimator = clone(self._inner())
        if getattr(estimator, "random_state", 0) is None:
            estimator.set_params(random_state=data.rng.randint(2**31 - 1))
        problem = MetricProblem(self, estimator, data)
        solver = learned_metrics(problem, self.max_rounds)
        return problem, solver, {}, RoundRule(problem, self._n_iterations, self._tell)

    @property
    def _n_iterations(self):
        return 2 * self.max_rounds + 2

    def _progress(self):
        return None  # `_tell` shows the rounds

    def _tell(self, state):
        one, name = state.coef, "plain kernel"
        if one.kind is not None:
            name = f"{one.kind} metric, round {one.number}"
        if not state.converged:
            self._say(f"{name}: validation error {one.error:.4g}")
        elif one.kernel is not None:
            kernel, width = one.kernel
            self._say(f"{name}, {kernel}, bandwidth {width:g} x median: chosen")

    @property
    def metric_(self):
        """M = R R', shape (n_features, n_features)."""
        root = self.metric_root_
        if root.ndim == 2:
            return root @ root.T
        xp, d = namespace(root), root.shape[0]
        return root * root * xp.eye(d, dtype=root.dtype, device=device_of(root))

    @property
    def _n_features_out(self):
        return self.metric_root_.shape[0]

    def _gradients(self, X):
        return mapped_gradients(self.estimator_, self._near(X), self.metric_root_)

    def _near(self, X):
        """Return rows with entries cut off that are far from the training rows."""
        frame = (cast(values, X.dtype) for values in (self._offset, self._limits))
        return without_far_values(X, *frame)

    def _warn_of_far_values(self, X):
        warn_of_cutoffs(self, X, self._offset, self._limits)

    def _values(self, X, method):
        return self._of_mapped(
            X, method, lambda X_R: self.estimator_._values(X_R, method)
        )

    def _fitted_values(self, X):
        return self.estimator_._fitted_values(mapped(X, self.metric_root_))

    def _of_mapped(self, X, method, function):
        """Return a function of the rows of X R."""
        X = check_rows(self, X)
        check_same_location(self, location_of(X), method)

        def values(rows):
            F = function(mapped(self._near(rows), self.metric_root_))
            check_values(F, rows)
            return F

        return by_rows(values, X)

    @on_its_device
    def transform(self, X: ArrayLike) -> Any:
        """Return X R: features whose Euclidean distance is that of the metric.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)

        Returns
        -------
        X_R : array of shape (n_samples, n_features)
        """
        return self._of_mapped(X, "transform", lambda X_R: X_R)


class RFMRegressor(RegressionTargets, _RecursiveFeatureMachine):
    """Recursive feature machine: kernel regression that learns its metric.

    A kernel of distances weights all features alike. Here the gradients of a fitted
    model show with which features, or along which directions, it changes most, and the
    next model uses distances that weight these most. This helps on tables whose
    features matter unequally; held-out rows decide whether and how often to learn the
    metric.

    Parameters
    ----------
    estimator : estimator, default=None
        A regressor on kernels of this package, to clone and fit; see Notes for None.
        `DSGRegressor` needs a kernel other than its laplacian, whose random features
        have gradients of unbounded variance.
    metric : {"auto", "diagonal", "full"}, default="auto"
        What to learn. "diagonal": a weight for each feature. "full": any linear map of
        the features, for when directions other than the axes matter. "auto": try both,
        but with more than 1000 features only "diagonal".
    max_rounds : int, default=5
        Maximum number of times to learn a metric of each kind. A kind is given up after
        two rounds that do not improve the error on the held-out rows.
    max_gradient_rows : int, default=4000
        Maximum number of rows to average the gradients over.
    max_metric_rows : int, default=10000
        Maximum number of rows to learn the metric on, including the held-out ones: it
        bounds the cost of learning. Only the last fit uses all rows.
    validation_fraction : float, default=0.2
        Fraction of these rows to hold out. The model is refitted to all rows, so the
        default is more than the 0.1 of `EigenProRegressor`, which is not.
    random_state : int, RandomState instance or None, default=None
        Controls what is drawn at random: rows to learn on, and to hold out; the seed of
        an estimator without one. Pass an int for reproducible results.
    verbose : int, default=0
        1 shows a line for each round.

    Attributes
    ----------
    metric_root_ : array of shape (n_features,) or (n_features, n_features)
        R, or its diagonal; distances are those of X R. The mean of the eigenvalues of
        R R' is 1.
    metric_ : array of shape (n_features, n_features)
        M = R R'.
    feature_importances_ : array of shape (n_features,)
        Share of each feature in the squared gradients of the model, in units of X; the
        sum is 1.
    estimator_ : estimator
        Fitted to all rows of X R.
    metric_kind_ : {"diagonal", "full"} or None
        Kind of the chosen metric; None: the plain kernel, ``metric_`` is the identity.
    n_rounds_ : int
        Number of rounds, of both kinds, that led to the chosen metric.
    validation_scores_ : dict of lists
        For every round: "metric", "round" and "score", R^2 on the held-out rows.
    n_features_in_ : int
        Number of features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X has string names.

    See Also
    --------
    RFMClassifier : The same for labels.
    EigenProRegressor : The kernel machine without a learned metric.
    eigenkern.inspection.average_gradient_outer_product : M of any kernel model.
    MetricDisplay : Plots of the metric.
    NystromRegressor : Another model to learn a metric with.

    Notes
    -----
    A round takes a fit of up to 8000 rows; the gradients, at most 4000 x 8000 x l (d +
    1) multiply-adds for d features and l outputs (at most 10); and for "full" an
    eigendecomposition of a d x d matrix. Memory in addition to that of a fit: a copy of
    X, and three matrices of d^2 numbers for "full".

    The default estimator is ``EigenProRegressor()``, which chooses its penalty. The
    metric is learned with the laplacian and a bandwidth of four times the median
    distance. At the end this is compared, on half of the rows, with `matern32` of one,
    two and four times the median, and R with its power 0.7: a smoother kernel and a
    softer metric often suit each other. With up to 50 features, `manhattan` with the
    best diagonal metric is compared too: it suits tables whose features act one by one.

    The full metric starts from the best diagonal one.

    Standardize features that have different units: the first model weights them alike.

    References
    ----------
    Radhakrishnan, Beaglehole, Pandit and Belkin, "Mechanism for feature learning in
    neural networks and backpropagation-free machine learning models", Science 2024.
    Beaglehole et al., "xRFM: accurate, scalable, and interpretable feature learning
    models for tabular data", ICLR 2026 (arXiv:2508.10053).

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from eigenkern import RFMRegressor
    >>> X, y = make_friedman1(n_samples=1000, noise=0.1, random_state=0)
    >>> model = RFMRegressor(random_state=0).fit(X[:800], y[:800])
    >>> model.score(X[800:], y[800:]) > 0.98
    True
    >>> sorted(model.feature_importances_.argsort()[-5:].tolist())
    [0, 1, 2, 3, 4]
    """

    _default = EigenProRegressor


class RFMClassifier(ClassificationTargets, _RecursiveFeatureMachine):
    """Recursive feature machine: kernel classification that learns its metric.

    A kernel of distances weights all features alike. Here the gradients of a fitted
    model show with which features, or along which directions, it changes most, and the
    next model uses distances that weight these most. This helps on tables whose
    features matter unequally; held-out rows decide whether and how often to learn the
    metric.

    Parameters
    ----------
    estimator : estimator, default=None
        A classifier on kernels of this package, to clone and fit; see Notes for None.
        `DSGClassifier` needs a kernel other than its laplacian, whose random features
        have gradients of unbounded variance.
    metric : {"auto", "diagonal", "full"}, default="auto"
        What to learn. "diagonal": a weight for each feature. "full": any linear map of
        the features, for when directions other than the axes matter. "auto": try both,
        but with more than 1000 features only "diagonal".
    max_rounds : int, default=5
        Maximum number of times to learn a metric of each kind. A kind is given up after
        two rounds that do not improve the error on the held-out rows.
    max_gradient_rows : int, default=4000
        Maximum number of rows to average the gradients over.
    max_metric_rows : int, default=10000
        Maximum number of rows to learn the metric on, including the held-out ones: it
        bounds the cost of learning. Only the last fit uses all rows.
    validation_fraction : float, default=0.2
        Fraction of these rows to hold out, the same from every class. The model is
        refitted to all rows, so the default is more than the 0.1 of
        `EigenProClassifier`, which is not.
    random_state : int, RandomState instance or None, default=None
        Controls what is drawn at random: rows to learn on, and to hold out; the seed of
        an estimator without one. Pass an int for reproducible results.
    verbose : int, default=0
        1 shows a line for each round.

    Attributes
    ----------
    metric_root_ : array of shape (n_features,) or (n_features, n_features)
        R, or its diagonal; distances are those of X R. The mean of the eigenvalues of
        R R' is 1.
    metric_ : array of shape (n_features, n_features)
        M = R R'.
    feature_importances_ : array of shape (n_features,)
        Share of each feature in the squared gradients of the model, in units of X; the
        sum is 1.
    estimator_ : estimator
        Fitted to all rows of X R.
    metric_kind_ : {"diagonal", "full"} or None
        Kind of the chosen metric; None: the plain kernel, ``metric_`` is the identity.
    n_rounds_ : int
        Number of rounds, of both kinds, that led to the chosen metric.
    validation_scores_ : dict of lists
        For every round: "metric", "round" and "score", 1 minus the Brier score on the
        held-out rows over that of the class frequencies; probabilities are the softmax
        of the values times the best constant.
    classes_ : ndarray of shape (n_classes,)
        Labels, a NumPy array even if X is of another library.
    n_features_in_ : int
        Number of features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X has string names.

    See Also
    --------
    RFMRegressor : The same for real targets.
    EigenProClassifier : The kernel machine without a learned metric.
    eigenkern.inspection.average_gradient_outer_product : M of any kernel model.
    MetricDisplay : Plots of the metric.
    NystromClassifier : Another model to learn a metric with.

    Notes
    -----
    A round takes a fit of up to 8000 rows; the gradients, at most 4000 x 8000 x l (d +
    1) multiply-adds for d features and l outputs (at most 10); and for "full" an
    eigendecomposition of a d x d matrix. Memory in addition to that of a fit: a copy of
    X, and three matrices of d^2 numbers for "full".

    The default estimator is ``EigenProClassifier()``, which chooses its penalty. The
    metric is learned with the laplacian and a bandwidth of four times the median
    distance. At the end this is compared, on half of the rows, with `matern32` of one,
    two and four times the median, and R with its power 0.7: a smoother kernel and a
    softer metric often suit each other.

    The full metric starts from the best diagonal one.

    Standardize features that have different units: the first model weights them alike.

    References
    ----------
    Radhakrishnan, Beaglehole, Pandit and Belkin, "Mechanism for feature learning in
    neural networks and backpropagation-free machine learning models", Science 2024.
    Beaglehole et al., "xRFM: accurate, scalable, and interpretable feature learning
    models for tabular data", ICLR 2026 (arXiv:2508.10053).

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from eigenkern import RFMClassifier
    >>> X, y = make_classification(
    ...     1000, 10, n_informative=3, n_redundant=0, shuffle=False, random_state=0
    ... )
    >>> model = RFMClassifier(random_state=0).fit(X[:800], y[:800])
    >>> model.score(X[800:], y[800:]) > 0.7  # 0.61 of the plain kernel
    True
    >>> sorted(model.feature_importances_.argsort()[-3:].tolist())
    [0, 1, 2]
    """

    class_weight = None
    _default = EigenProClassifier

    def _prepare(self, data):
        return super()._prepare(replace(data, labels=self.classes_[data.labels]))

    @available_if(_has_probabilities)
    @on_its_device
    def predict_proba(self, X: ArrayLike) -> Any:
        """Return the probabilities of the classes; the estimator must have them.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)

        Returns
        -------
        P : array of shape (n_samples, n_classes)
            Columns in the order of `classes_`.
        """
        return self._of_mapped(
            X, "predict_proba", lambda X_R: self.estimator_.predict_proba(X_R)
        )

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
            Columns in the order of `classes_`.
        """
        return self._of_mapped(
            X, "predict_log_proba", lambda X_R: self.estimator_.predict_log_proba(X_R)
        )
