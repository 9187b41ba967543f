"""Linear EigenPro: preconditioned gradient descent on explicit features."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, Self

import numpy as np
import scipy.sparse

from ..arrays.array import (
    ArrayLike,
    Device,
    RandomState,
    location_of,
    move,
    namespace,
    to_numpy,
)
from ..arrays.devices import compute_device
from ..arrays.linalg import large_product
from ..fitting.checkpoint import Checkpoint
from ..fitting.conveniences import keep_parameters
from ..fitting.model import Model, split
from ..fitting.outcome import have_leverage, warn_of_leverage
from ..fitting.planning import shape_of
from ..fitting.streaming import Streaming
from ..fitting.targets import ClassificationTargets, RegressionTargets
from ..fitting.validation import check_flag, check_number
from ..methods.direct import solve_features_directly
from ..methods.epochs import eigenpro, step_on_features
from ..operators.centered import features_of
from ..plan.of_epochs import plan_on_features
from ..plan.parameters import (
    given_penalty,
    has_penalty,
    is_auto,
    may_be_direct,
    stops_early,
)
from ..plan.penalty import auto_ridge_of_features, units_of
from ..plan.sizes import direct_pays_on_features, sizes_of_features
from ..plan.step import tune_on_features
from ..preconditioners.spectral import LinearSpectral
from ..problems.basis_features import LinearProblem, Seen
from ..problems.problem import weighted_mean_square
from ..rows.lazy_rows import is_lazy
from ..rows.robust import cast
from .eigenpro_fit import EPOCH_PENALTY, Basis, check_tuning, prepared, tuned_attributes


def is_solved_directly(model, features):
    """Whether a model is solved directly; not if it chooses alpha=0 for a file."""
    may_be = has_penalty(model) or features.in_core
    may_be = may_be and may_be_direct(model, damping=0.25)
    return may_be and direct_pays_on_features(features, model.max_iter)


class _LinearEigenPro(Streaming, Model):
    _task = "epoch"
    _coef_attribute = "coef_"
    _accept_sparse = "csr"
    _failure_hint = "Scale X, or pass a shorter step_size."
    _warm_start_needs = "as many features"
    _takes_less = ("subsample_size", "batch_size", "n_components")
    _epochs_calibrate = True

    def __init__(
        self,
        n_components: int | str = "auto",
        *,
        alpha: float | str = "auto",
        fit_intercept: bool = True,
        max_iter: int = 20,
        early_stopping: bool = False,
        device: Device = "auto",
        random_state: RandomState = None,
        verbose: int | bool = 0,
        subsample_size: int | str = "auto",
        batch_size: int | str = "auto",
        step_size: float | str = "auto",
        damping: float = 0.25,
        tol: float = 1e-4,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 3,
        warm_start: bool = False,
    ) -> None:
        keep_parameters(self, locals())

    def _check_parameters(self):
        check_number("alpha", self.alpha, 0, or_auto=True)
        check_tuning(self)
        check_flag("fit_intercept", self.fit_intercept)

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        X_val: ArrayLike | None = None,
        y_val: ArrayLike | None = None,
        sample_weight_val: ArrayLike | None = None,
        checkpoint: Checkpoint | str | PathLike[str] | None = None,
        resume: bool = False,
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array or sparse array of shape (n_samples, n_features)
            Training rows; float32 is computed in float32. X may be a file or a Dask
            array, see :ref:`large_data`.
        y : array of shape (n_samples,) or (n_samples, n_outputs)
            Targets; one label per row for a classifier.
        sample_weight : float or array of shape (n_samples,), default=None
            Nonnegative weights of the squared residuals.
        X_val, y_val : arrays, default=None
            Rows to score the epochs on, instead of rows held out of X; only with
            ``early_stopping=True``.
        sample_weight_val : float or array, default=None
            Their weights; `class_weight` applies to them too.
        checkpoint : str, path or Checkpoint, default=None
            Folder to write the state of the fit to, once a minute or as often as a
            `Checkpoint` says.
        resume : bool, default=False
            Continue bit for bit from what is in that folder; start anew if it is empty.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the data, a parameter or the folder is wrong; a model fitted before stays
            usable.
        MemoryError
            If memory runs out; the message says what needs less.
        OSError
            If the checkpoint folder cannot be written at the start; later that is a
            RuntimeWarning.
        KeyboardInterrupt
            If interrupted; after the first epoch, the best model so far is kept.

        Warns
        -----
        ConvergenceWarning
            If nothing is learned, or no step size keeps the iteration bounded.
        """
        rows, validation = (X, y, sample_weight), (X_val, y_val, sample_weight_val)
        return self._fit(*rows, *validation, checkpoint=checkpoint, resume=resume)

    def _plan(self, shape):
        X = shape.X if is_lazy(shape.X) else shape.X[: shape.n_train, :]
        mean = shape.xp.zeros(shape.d, dtype=X.dtype, device=shape.device)
        features = features_of(X, mean)
        alpha = float(has_penalty(self))  # only whether it is 0 matters
        direct = is_solved_directly(self, features) and not shape.n_held_out
        return plan_on_features(shape, features, alpha, direct)

    def _prepare(self, data):
        data, train, held_out = split(self, data, stops_early(self))
        data, train = _without_leverage(data, train)
        rows, fewest = (train, held_out), data.X.shape[1]
        return prepared(OnFeatures, self, data, *rows, fewest=fewest)

    def _problem(self, data, train, held_out, center, seen=None, **options):
        return LinearProblem(
            data,
            train,
            held_out,
            device=self.device,
            center=center,
            one_dimensional=getattr(self, "_one_dimensional", False),
            seen=seen,
            **options,
        )

    def _solver(self, problem, preconditioner, chosen, **options):
        return eigenpro(
            problem.operator,
            problem.targets,
            preconditioner,
            weights=problem.weights,
            batch_size=chosen["batch_size_"],
            step_size=chosen["step_size_"],
            alpha=chosen["alpha_"],
            rng=problem.rng,
            step=step_on_features,
            **options,
        )

    def _tuned(self, problem, sizes):
        """Return preconditioner and step; `sizes` are those of `sizes_of_features`."""
        return tune_on_features(
            problem.operator,
            sizes,
            problem.rng,
            weights=problem.weights,
            n_components=self.n_components,
            step_size=self.step_size,
            damping=self.damping,
        )

    def _chosen(self, problem, alpha, tuning=None):
        """Return the fitted attributes of what was chosen, without epochs or with."""
        chosen = {
            "alpha_": alpha,
            "components_": None,
            "damping_": float(self.damping),
            "fit_intercept_": bool(self.fit_intercept),
        }
        if tuning is None:
            return chosen
        vectors = problem.xp.asarray(tuning.preconditioner.vectors.T, copy=True)
        chosen |= {"algorithm_": "eigenpro", "components_": problem.to_source(vectors)}
        return chosen | tuned_attributes(tuning, problem)

    @property
    def _seen(self):
        """Counts and means of the rows seen so far."""
        target_mean = to_numpy(self.target_mean_).astype(np.float64)
        counts = self.n_samples_seen_, self.weight_seen_
        return Seen(*counts, self.mean_, target_mean)

    def _count_rows(self, piece):
        rows, center = piece.rows_with_weight(), self.fit_intercept_
        problem = self._problem(piece, rows, None, center, self._seen)
        coef = problem.coef_of(vars(self))
        vars(self).update(problem.fitted_attributes(coef))

    def _take_model(self, attributes):
        # The means, and so the intercept, are those of all rows seen.
        names = "mean_", "target_mean_", "n_samples_seen_", "weight_seen_"
        of_rows = {name: getattr(self, name) for name in names}
        super()._take_model(attributes | of_rows)
        if not self.fit_intercept_:
            return
        shape = self.target_mean_.shape[0], self.mean_.shape[0]
        coef = namespace(self.coef_).reshape(self.coef_, shape)
        intercept = self.target_mean_ - coef @ self.mean_
        self.intercept_ = intercept[0] if self.coef_.ndim == 1 else intercept

    def _prepare_piece(self, data, anew):
        anew = anew or self.step_size_ is None  # the last fit was direct
        rows = data.rng.permutation(data.rows_with_weight())
        if hasattr(self, "n_samples_seen_"):
            center, seen = self.fit_intercept_, self._seen
            problem = self._problem(data, rows, None, center, seen, counts=False)
            coef = problem.coef_of(vars(self))
            m = self.batch_size_  # None after a direct solution: chosen anew
        else:
            problem = self._problem(data, rows, None, self.fit_intercept)
            coef, m = problem.initial_coef(), self.batch_size
        alpha, halvings = given_penalty(self), 0
        if anew:
            in_pieces, m = m is not None, self.batch_size if m is None else m
            given = 0.0, m, self.subsample_size
            X, n_outputs = problem.operator, problem.targets.shape[1]
            sizes = sizes_of_features(X, n_outputs, *given, in_pieces=in_pieces)
            tuning = self._tuned(problem, sizes)
            preconditioner = tuning.preconditioner
            chosen = self._chosen(problem, alpha, tuning)
        else:
            halvings, xp = self.n_step_halvings_, problem.xp
            vectors, values = (
                xp.astype(move(array, xp, problem.device), problem.dtype, copy=False)
                for array in (self.components_, self.eigenvalues_)
            )
            preconditioner = LinearSpectral(vectors.T, values, self.damping_)
            preconditioner = preconditioner.truncate(self.n_components_)
            sizes = {"batch_size_": m, "step_size_": self.step_size_}
            chosen = sizes | {"alpha_": alpha}
        # The few steps on a piece may end badly unnoticed if all its targets are near
        # the mean. Its loss may exceed that before or that of zero, but not both.
        loss = problem.loss(coef)
        limit = max(loss, problem.loss(problem.initial_coef()), problem.rounding)
        solver = self._solver(
            problem,
            preconditioner,
            chosen,
            coef=coef,
            try_steps=False,
            zero_loss=max(loss, problem.rounding) * problem.targets.shape[1],
            n_halvings=halvings,
            may_restart=False,
            accepts=lambda coef: problem.loss(coef) <= limit,
        )
        return problem, solver, chosen

    def _warn_of_far_values(self, X):
        if not is_lazy(X) and self.coef_.dtype != X.dtype:  # see _without_leverage
            X = _in_double(X)
        self._rows_with_leverage(X)

    def _rows_with_leverage(self, X):
        return warn_of_leverage(self, X, _squared_norms, "its row was left out")

    def _without_leverage(self, piece):
        # A few steps on a piece can't fit such rows, which would only move the means.
        found = self._rows_with_leverage(piece.X)
        return piece if found is None else piece.take(np.flatnonzero(~found))

    def _expand(self, X):
        """Return f(X) without the intercept, on the device that computes."""
        shape = self.target_mean_.shape[0], X.shape[1]
        coef = namespace(self.coef_).reshape(self.coef_, shape)
        if is_lazy(X):
            coef = move(coef, *location_of(X))
            return features_of(X, namespace(X).zeros_like(coef[0, :])) @ coef.T
        if not scipy.sparse.issparse(X):
            device = compute_device(self.device, X)
            X, coef = move(X, *device), move(coef, *device)
            X = cast(X, coef.dtype)
        return large_product(X, coef.T)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class OnFeatures(Basis):
    """Rows of features: linear EigenPro, or one factor of F' F or F F'."""

    _begun, parts = None, "the features"

    def _problem(self):
        model, merged = self.model, self.merged
        return model._problem(
            merged.data,
            merged.rows,
            self.held_out,
            model.fit_intercept,
            needs_normal=partial(is_solved_directly, model),
        )

    def _chosen_ridge(self):
        problem, merged = self.problem, self.merged
        Y, replicates = problem.targets, merged.replicates
        if merged.data.groups is None:
            units = units_of(Y, problem.weights)
            Y = Y / problem.xp.asarray(units, dtype=Y.dtype, device=problem.device)
            replicates = merged.replicates_in(units)
        ridge, self._begun = auto_ridge_of_features(
            problem.operator, Y, problem.weights, replicates=replicates
        )
        return ridge

    def plan(self, ridge, *, direct):
        X, n = self.problem.operator, len(self.merged.rows)
        direct = direct and (ridge > 0 or X.in_core)
        direct = direct and is_solved_directly(self.model, X)
        if not direct:
            self._begun = self.problem.normal = None  # free d x d numbers
        shape = shape_of(self.model, self.merged.data, n, self.held_out)
        return plan_on_features(shape, X, ridge / n, direct)

    def solved(self, ridge):
        # One step of EigenPro with all eigenvectors. Without a penalty a small one
        # makes the model about as smooth as `max_iter` epochs would.
        model, problem, n = self.model, self.problem, len(self.merged.rows)
        found = solve_features_directly(
            problem.operator,
            problem.targets,
            problem.weights,
            ridge,
            EPOCH_PENALTY / model.max_iter,
            has_mean=model.fit_intercept,
            begun=self._begun,
            normal=problem.normal,
        )
        of_mean = weighted_mean_square(problem.targets, problem.weights)
        if found is None or not found.loss <= problem.up_to_rounding(of_mean):
            return None
        problem.normal = None
        places, kept = np.arange(found.kept.shape[0]), to_numpy(found.kept)
        left_out = self.merged.left_out(places, to_numpy(found.residual), kept)
        return found.coef, found.loss, model._chosen(problem, ridge / n), left_out

    def epochs(self, plan, ridge, start):
        model, problem = self.model, self.problem
        tuning, alpha = model._tuned(problem, plan.sizes), ridge / len(self.merged.rows)
        self.chosen = model._chosen(problem, alpha, tuning)
        options = {"try_steps": is_auto(model.step_size), "twin": self.twin()}
        given = problem, tuning.preconditioner, self.chosen
        return model._solver(*given, coef=start, **options)


def _without_leverage(data, rows):
    """Return data and the rows whose size costs the others no digits.

    More than a few such rows are no fill values: the data become float64, if they are
    not. Rows in files are as given.
    """
    X = data.X
    if is_lazy(X):
        return data, rows
    with np.errstate(over="ignore"):
        norms = to_numpy(_squared_norms(X)).astype(np.float64)
        if not np.isfinite(norms).all():  # in float32
            norms = to_numpy(_squared_norms(_in_double(X)))
    norms = norms[rows]
    far = have_leverage(norms, X.dtype)
    if far.sum() > max(3, 0.01 * len(rows)):
        data = replace(data, X=_in_double(X))
        far = have_leverage(norms, data.X.dtype)
    return data, rows if far.all() else rows[~far]


def _in_double(X):
    """Return rows in float64."""
    if scipy.sparse.issparse(X):
        return X.astype(np.float64)
    return namespace(X).astype(X, namespace(X).float64, copy=False)


def _squared_norms(X):
    """Return |x|^2 of every row, dense or sparse."""
    if scipy.sparse.issparse(X):
        return np.asarray(X.multiply(X).sum(axis=1)).reshape(-1)
    return namespace(X).vecdot(X, X)


class LinearEigenProRegressor(RegressionTargets, _LinearEigenPro):
    """Linear least squares by EigenPro iteration: preconditioned gradient descent.

    For many strongly correlated features, such as random Fourier features of a kernel
    (EigenPro-RF), on which plain gradient descent is slow. A preconditioner from the
    top eigenvectors of the covariance of a subsample allows long steps. The solution is
    the same, least squares with the penalty `alpha`. An epoch costs
    2 n d l multiply-adds, and 2 q d l more for every batch. Directions in which X
    varies by less than 1e-7 of the largest (0.003 in float32) are learned slowly: scale
    X first. The parameters from `subsample_size` on are for experts.

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        Number of eigenvectors in the preconditioner, q (not of features, as in
        `RandomFourierFeatures`): more eigenvectors allow longer steps, but cost more. 0
        is plain mini-batch gradient descent; n_features or more means all of them.
        Those lost to rounding are left out.
    alpha : float or "auto", default="auto"
        Strength of the ridge penalty: raise it if targets are noisy. It is lambda in
        ``lambda |w|^2``, added to the *mean* squared error: ``Ridge``'s alpha = a is a
        / n here. "auto": the one that best predicts new rows in ridge regression on
        part of the rows, at most 4000, or by leave-one-out on up to 1200; but 0 if
        ``early_stopping=True`` and in `partial_fit`. 0: as in the paper, only the
        number of epochs regularizes.
    fit_intercept : bool, default=True
        Whether the model has an intercept: features and targets are then centered,
        while a sparse X stays sparse. A column that is constant, or within 10 eps of
        its first entry, is then ignored by the fit.
    max_iter : int, default=20
        Maximum number of epochs: more epochs fit the training rows more closely. By
        default, fits to a few thousand rows run none: ``algorithm_`` is "direct".
    early_stopping : bool, default=False
        Whether to hold out rows, score them every epoch, stop when the score no longer
        improves, and keep the best epoch's coefficients. This, too, keeps the model
        from fitting noise, so ``alpha="auto"`` then chooses no penalty.
    device : {"auto", "cpu", "cuda", "cuda:N"}, default="auto"
        Where to compute. "auto": where X lives. Otherwise X is copied there.
    random_state : int, RandomState instance or None, default=None
        Controls what is drawn at random: order of the rows, eigenvectors, validation
        split. Pass an int for reproducible results.
    verbose : int, default=0
        1 shows a line for each stage of `fit`, and the loss, score and time of epochs.
    subsample_size : int or "auto", default="auto"
        Number of rows to compute the eigenvectors from, s: more rows make them more
        exact. "auto": all of up to 1000 rows, at most 2000 below 100000 rows, else
        4000; with fewer features than that, eight rows per feature.
    batch_size : int or "auto", default="auto"
        Rows per step, m; fewer rows need less memory. "auto": as many as keep this
        machine busy, at least 256; but at most an eighth of the rows if they are fewer
        than the features, or a piece of the data.
    step_size : float, "auto" or "bound", default="auto"
        Step eta of the update ``w -= eta / m * P X_b' (f(X_b) - y_b)``; pass a number
        to repeat an experiment. "auto": 0.8 of the largest step that is stable in a
        trial run on up to 4000 rows. `fit` first races up to six steps of 0.5 to 4
        times that, fewer for many outputs, and continues with the best. If the residual
        of an output stalls, half the step is tried for an epoch and kept if it helps.
        "bound": from theorem 3 of the paper, which assumes exact eigenvectors. Any step
        is halved if the iteration diverges.
    damping : float in (0, 1], default=0.25
        How far to reduce the q largest eigenvalues: 1 reduces them to the next one, and
        a smaller value reduces them further, to allow for inexact eigenvectors. This is
        tau in the paper: 1/4 for random features, and 1 for kernels as in
        `EigenProRegressor`.
    tol : float, default=1e-4
        Stop when the training loss, as a fraction of the first epoch's (with early
        stopping: the validation score), has not improved by `tol` in `n_iter_no_change`
        epochs.
    validation_fraction : float, default=0.1
        Fraction of the rows to hold out. They are lost to the fit, so the default is
        less than the 0.2 of `NystromRegressor`, which is refitted to all rows.
    n_iter_no_change : int, default=3
        Number of epochs without improvement before stopping.
    warm_start : bool, default=False
        Continue from the coefficients of the previous fit; preconditioner and step are
        computed again.

    Attributes
    ----------
    coef_ : array of shape (n_features,) or (n_outputs, n_features)
        Weights of the features.
    intercept_ : float or array of shape (n_outputs,)
        Zero without `fit_intercept`.
    components_ : array of shape (q, n_features)
        Eigenvectors in the preconditioner.
    eigenvalues_ : array of shape (q + 1,)
        The largest eigenvalues of the covariance of the subsample.
    alpha_ : float
        lambda in use.
    algorithm_ : str
        "eigenpro", or "direct" if no size, step, damping, early stopping or warm start
        was set, and X has up to 2000 rows or features, or a Cholesky factor is faster
        than epochs. Then the attributes of batches, step sizes and eigenvectors are
        None.
    mean_, target_mean_ : array of shape (n_features,), (n_outputs,)
        Means of features and targets of all rows seen; zeros without an intercept.
    n_samples_seen_, weight_seen_ : int, float
        Rows and total weight of all calls of `partial_fit`, or of the fit.
    batch_size_, max_batch_size_ : int
        m, and the batch size that keeps this machine busy.
    step_size_ : float
        eta at the start.
    n_step_halvings_ : int
        How often the guard went back and halved the step; after `partial_fit`, the
        halvings in force.
    n_components_, subsample_size_, damping_, fit_intercept_ : int, float, bool
        q and s; the parameters that preconditioner and means were made with.
    beta_, top_eigenvalue_ : float
        The noise of a step and the largest eigenvalue of the preconditioned features,
        measured on up to 4000 rows.
    tuning_results_ : dict of lists
        What was measured for each number of eigenvectors tried: "n_components",
        "in_sample_eigenvalue" (of the subsample), "top_eigenvalue", "beta", and the
        "step_size" that these predict.
    critical_batch_size_, adapted_critical_batch_size_ : float
        beta divided by the top eigenvalue, of the features and of the preconditioned
        ones: larger batches gain nothing.
    acceleration_ : float
        Predicted gain over plain gradient descent with the same batches: the ratio of
        the steps that beta and the top eigenvalue predict for each.
    n_iter_ : int
        Epochs run, or calls of `partial_fit`.
    loss_curve_ : list of float
        Mean squared residual of each epoch, each batch measured before its update.
    validation_scores_ : list of float or None
        R^2 on the held-out rows after each epoch; None without early stopping.
    n_features_in_ : int
        Number of features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X has string names.

    See Also
    --------
    LinearEigenProClassifier : The same for class labels.
    RandomFourierFeatures : Features that make it a kernel machine.
    EigenProRegressor : The kernel machine itself.

    References
    ----------
    Ma and Belkin, "Diving into the shallows: a computational perspective on large-scale
    shallow learning", NIPS 2017 (arXiv:1703.10622): table 1.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from sklearn.pipeline import make_pipeline
    >>> from eigenkern import LinearEigenProRegressor, RandomFourierFeatures
    >>> X, y = make_friedman1(n_samples=600, noise=0.1, random_state=0)
    >>> features = RandomFourierFeatures(n_components=500, random_state=0)
    >>> model = make_pipeline(features, LinearEigenProRegressor(random_state=0))
    >>> round(model.fit(X[:500], y[:500]).score(X[500:], y[500:]), 2)
    0.96
    """

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Run one epoch over a piece of the data.

        The first piece decides preconditioner, batch, step, and whether there is an
        intercept: it should have a thousand rows or more. The means are those of all
        rows seen.

        Up to 2000 rows are kept as a sample of all rows so far. If a piece is unlike
        this sample, or makes the model worse on it, as many of the kept rows are
        learned instead. In such a stream preconditioner and step are chosen anew
        whenever the number of rows has doubled. Later pieces of fewer than 32 rows wait
        for more rows.

        Parameters
        ----------
        X : array or sparse array of shape (n_samples, n_features)
        y : array of shape (n_samples,) or (n_samples, n_outputs)
        sample_weight : float or array of shape (n_samples,), default=None
            Nonnegative weights of the squared residuals.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the data or a parameter is wrong; the model stays as it was.
        MemoryError
            If memory runs out; the message says what needs less.

        Warns
        -----
        ConvergenceWarning
            If every step size tried makes the model worse; the best model is kept.
        """
        return self._partial_fit(X, y, sample_weight)


class LinearEigenProClassifier(ClassificationTargets, _LinearEigenPro):
    """Linear classification by EigenPro iteration: preconditioned gradient descent.

    Least squares: two classes are coded as targets -1 and +1, and the sign of the
    output gives the class; more classes have a column each, and the column with the
    largest value gives the class. The algorithm is that of `LinearEigenProRegressor`.
    The parameters from `subsample_size` on are for experts.

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        Number of eigenvectors in the preconditioner, q (not of features, as in
        `RandomFourierFeatures`): more eigenvectors allow longer steps, but cost more. 0
        is plain mini-batch gradient descent; n_features or more means all of them.
        Those lost to rounding are left out.
    alpha : float or "auto", default="auto"
        Strength of the ridge penalty: raise it if targets are noisy. It is lambda in
        ``lambda |w|^2``, added to the *mean* squared error: ``Ridge``'s alpha = a is a
        / n here. "auto": the one that best predicts new rows in ridge regression on
        part of the rows, at most 4000, or by leave-one-out on up to 1200; but 0 if
        ``early_stopping=True`` and in `partial_fit`. 0: as in the paper, only the
        number of epochs regularizes.
    fit_intercept : bool, default=True
        Whether the model has an intercept: features and targets are then centered,
        while a sparse X stays sparse. A column that is constant, or within 10 eps of
        its first entry, is then ignored by the fit.
    max_iter : int, default=20
        Maximum number of epochs: more epochs fit the training rows more closely. By
        default, fits to a few thousand rows run none: ``algorithm_`` is "direct".
    early_stopping : bool, default=False
        Whether to hold out rows, score them every epoch, stop when the score no longer
        improves, and keep the best epoch's coefficients. This, too, keeps the model
        from fitting noise, so ``alpha="auto"`` then chooses no penalty.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, multiplied by `sample_weight`. "balanced" only in `fit`.
    device : {"auto", "cpu", "cuda", "cuda:N"}, default="auto"
        Where to compute. "auto": where X lives. Otherwise X is copied there.
    random_state : int, RandomState instance or None, default=None
        Controls what is drawn at random: order of the rows, eigenvectors, validation
        split. Pass an int for reproducible results.
    verbose : int, default=0
        1 shows a line for each stage of `fit`, and the loss, score and time of epochs.
    subsample_size : int or "auto", default="auto"
        Number of rows to compute the eigenvectors from, s: more rows make them more
        exact. "auto": all of up to 1000 rows, at most 2000 below 100000 rows, else
        4000; with fewer features than that, eight rows per feature.
    batch_size : int or "auto", default="auto"
        Rows per step, m; fewer rows need less memory. "auto": as many as keep this
        machine busy, at least 256; but at most an eighth of the rows if they are fewer
        than the features, or a piece of the data.
    step_size : float, "auto" or "bound", default="auto"
        Step eta of the update ``w -= eta / m * P X_b' (f(X_b) - y_b)``; pass a number
        to repeat an experiment. "auto": 0.8 of the largest step that is stable in a
        trial run on up to 4000 rows. `fit` first races up to six steps of 0.5 to 4
        times that, fewer for many outputs, and continues with the best. If the residual
        of an output stalls, half the step is tried for an epoch and kept if it helps.
        "bound": from theorem 3 of the paper, which assumes exact eigenvectors. Any step
        is halved if the iteration diverges.
    damping : float in (0, 1], default=0.25
        How far to reduce the q largest eigenvalues: 1 reduces them to the next one, and
        a smaller value reduces them further, to allow for inexact eigenvectors. This is
        tau in the paper: 1/4 for random features, and 1 for kernels as in
        `EigenProRegressor`.
    tol : float, default=1e-4
        Stop when the training loss, as a fraction of the first epoch's (with early
        stopping: the validation score), has not improved by `tol` in `n_iter_no_change`
        epochs.
    validation_fraction : float, default=0.1
        Fraction of the rows to hold out, the same from every class. They are lost to
        the fit, so the default is less than the 0.2 of `NystromClassifier`, which is
        refitted to all rows.
    n_iter_no_change : int, default=3
        Number of epochs without improvement before stopping.
    warm_start : bool, default=False
        Continue from the coefficients of the previous fit; preconditioner and step are
        computed again.

    Attributes
    ----------
    coef_ : array of shape (1, n_features) or (n_classes, n_features)
        Weights of the features.
    intercept_ : array of shape (1,) or (n_classes,)
        Zero without `fit_intercept`.
    components_ : array of shape (q, n_features)
        Eigenvectors in the preconditioner.
    eigenvalues_ : array of shape (q + 1,)
        The largest eigenvalues of the covariance of the subsample.
    alpha_ : float
        lambda in use.
    algorithm_ : str
        "eigenpro", or "direct" if no size, step, damping, early stopping or warm start
        was set, and X has up to 2000 rows or features, or a Cholesky factor is faster
        than epochs. Then the attributes of batches, step sizes and eigenvectors are
        None.
    mean_, target_mean_ : array of shape (n_features,), (n_outputs,)
        Means of features and targets of all rows seen; zeros without an intercept.
    n_samples_seen_, weight_seen_ : int, float
        Rows and total weight of all calls of `partial_fit`, or of the fit.
    batch_size_, max_batch_size_ : int
        m, and the batch size that keeps this machine busy.
    step_size_ : float
        eta at the start.
    n_step_halvings_ : int
        How often the guard went back and halved the step; after `partial_fit`, the
        halvings in force.
    n_components_, subsample_size_, damping_, fit_intercept_ : int, float, bool
        q and s; the parameters that preconditioner and means were made with.
    beta_, top_eigenvalue_ : float
        The noise of a step and the largest eigenvalue of the preconditioned features,
        measured on up to 4000 rows.
    tuning_results_ : dict of lists
        What was measured for each number of eigenvectors tried: "n_components",
        "in_sample_eigenvalue" (of the subsample), "top_eigenvalue", "beta", and the
        "step_size" that these predict.
    critical_batch_size_, adapted_critical_batch_size_ : float
        beta divided by the top eigenvalue, of the features and of the preconditioned
        ones: larger batches gain nothing.
    acceleration_ : float
        Predicted gain over plain gradient descent with the same batches: the ratio of
        the steps that beta and the top eigenvalue predict for each.
    n_iter_ : int
        Epochs run, or calls of `partial_fit`.
    loss_curve_ : list of float
        Mean squared residual of each epoch, each batch measured before its update.
    validation_scores_ : list of float or None
        Accuracy on the held-out rows after each epoch; None without early stopping.
        As long as it is not above that of the commonest class, as with a rare class,
        the loss on these rows tells which epoch is best; with `class_weight` it is
        their log loss without these weights.
    calibration_ : object
        How `predict_proba` maps values to probabilities: `scale`, `offsets`, `floor`.
        Epochs use a tenth of the rows for this, at most 1000, which a second model
        beside this one does not learn; with ``alpha=0.0`` or ``warm_start=True`` it is
        absent, unless ``early_stopping=True``.
    classes_ : ndarray of shape (n_classes,)
        Labels; a NumPy array even if X comes from another library.
    n_features_in_ : int
        Number of features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X has string names.

    See Also
    --------
    LinearEigenProRegressor : The same for real targets.
    RandomFourierFeatures : Features that make it a kernel machine.
    EigenProClassifier : The kernel machine itself.

    References
    ----------
    Ma and Belkin, "Diving into the shallows: a computational perspective on large-scale
    shallow learning", NIPS 2017 (arXiv:1703.10622): table 1.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.pipeline import make_pipeline
    >>> from eigenkern import LinearEigenProClassifier, RandomFourierFeatures
    >>> X, y = load_digits(return_X_y=True)
    >>> features = RandomFourierFeatures(n_components=1000, random_state=0)
    >>> classifier = LinearEigenProClassifier(batch_size=256, random_state=0)
    >>> model = make_pipeline(features, classifier)
    >>> round(model.fit(X[:1500], y[:1500]).score(X[1500:], y[1500:]), 2)
    0.96
    """

    def __init__(
        self,
        n_components: int | str = "auto",
        *,
        alpha: float | str = "auto",
        fit_intercept: bool = True,
        max_iter: int = 20,
        early_stopping: bool = False,
        class_weight: Mapping[Any, float] | str | None = None,
        device: Device = "auto",
        random_state: RandomState = None,
        verbose: int | bool = 0,
        subsample_size: int | str = "auto",
        batch_size: int | str = "auto",
        step_size: float | str = "auto",
        damping: float = 0.25,
        tol: float = 1e-4,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 3,
        warm_start: bool = False,
    ) -> None:
        keep_parameters(self, locals())

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Run one epoch over a piece of the data.

        The first piece decides preconditioner, batch, step, and whether there is an
        intercept: it should have a thousand rows or more. The means are those of all
        rows seen.

        Up to 2000 rows are kept as a sample of all rows so far. If a piece is unlike
        this sample, or makes the model worse on it, as many of the kept rows are
        learned instead. In such a stream preconditioner and step are chosen anew
        whenever the number of rows has doubled. Later pieces of fewer than 32 rows wait
        for more rows.

        Parameters
        ----------
        X : array or sparse array of shape (n_samples, n_features)
        y : array of shape (n_samples,)
        classes : array of shape (n_classes,), default=None
            All labels that will occur; needed only in the first call.
        sample_weight : float or array of shape (n_samples,), default=None
            Nonnegative weights of the squared residuals.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the data or a parameter is wrong; the model stays as it was.
        MemoryError
            If memory runs out; the message says what needs less.

        Warns
        -----
        ConvergenceWarning
            If every step size tried makes the model worse; the best model is kept.
        """
        classes = self._check_classes(classes)
        return self._partial_fit(X, y, sample_weight, classes)
