"""EigenPro estimators: preconditioned gradient descent on kernel machines."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from os import PathLike
from typing import Any, Self

import numpy as np
from sklearn.utils.metaestimators import available_if

from ..arrays.array import ArrayLike, Device, KernelLike, RandomState
from ..centers import METHODS
from ..fitting.checkpoint import Checkpoint
from ..fitting.conveniences import keep_parameters
from ..fitting.model import KernelModel, split
from ..fitting.streaming import Streaming
from ..fitting.targets import ClassificationTargets, RegressionTargets
from ..fitting.validation import (
    check_centers,
    check_choice,
    check_kernel_parameters,
    check_method,
    check_number,
    computing,
)
from ..plan.of_epochs import plan_on_centers, plan_on_rows
from ..plan.parameters import (
    GENERAL,
    MACHINES,
    chosen_algorithm,
    given_penalty,
    gives_centers,
    has_own_centers,
    is_auto,
    is_precomputed,
    stops_early,
)
from ..plan.sizes import n_sampled_rows
from .eigenpro_fit import (
    ExactlyOnCenters,
    OnCenters,
    OnRows,
    check_tuning,
    learner_of_fitted,
    new_learner,
    prepared,
    warn_of_projections,
)

# Solver options for a stream. The guard's baseline starts as if 1000 rows with the loss
# of f = 0 had been seen, so that one odd early batch does not halve the step.
_STREAM_OPTIONS = {"n_slack_rows": 1000, "may_restart": False, "try_half_steps": False}


def _has_centers(estimator):
    given = estimator.n_centers is not None or gives_centers(estimator)
    exact = estimator.algorithm == "eigenpro3-exact"
    if given and has_own_centers(estimator) and not exact:
        return True
    raise AttributeError(
        "data that come in pieces need a model on centers: pass n_centers, or centers "
        "as an array, and no algorithm that needs all rows at once"
    )


class _EigenPro(Streaming, KernelModel):
    _task = "epoch"
    _stream_attribute = "t_"
    _is_quick = True
    _failure_hint = "Pass a smaller step_size, or scale X."
    _epochs_calibrate = True
    #: How many rows a direct solution leaves out one by one, to keep `_left_out`.
    _n_left_out = 0

    def __init__(
        self,
        kernel: KernelLike = "laplacian",
        *,
        bandwidth: float | str = "auto",
        n_centers: int | None = None,
        centers: str | ArrayLike = "uniform",
        alpha: float | str = "auto",
        max_iter: int = 20,
        early_stopping: bool = False,
        device: Device = "auto",
        random_state: RandomState = None,
        verbose: int | bool = 0,
        algorithm: str = "auto",
        n_components: int | str = "auto",
        subsample_size: int | str = "auto",
        svd_solver: str = "nystrom",
        batch_size: int | str = "auto",
        step_size: float | str = "auto",
        damping: float = 1.0,
        tol: float = 1e-4,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 3,
        warm_start: bool = False,
        cache_size: float | str = "auto",
    ) -> None:
        keep_parameters(self, locals())

    def _check_parameters(self):
        check_kernel_parameters(self)
        check_choice("algorithm", self.algorithm, ("auto", *MACHINES, *GENERAL))
        self._check_general()
        check_number("alpha", self.alpha, 0, or_auto=True)
        if given_penalty(self) > 0 and self.algorithm == "eigenpro3-exact":
            raise ValueError(
                "alpha must be 'auto' or 0 with algorithm='eigenpro3-exact', whose "
                f"fixed point is no minimum; got {self.alpha}; choose 'eigenpro4'"
            )
        check_choice("svd_solver", self.svd_solver, ("nystrom", "randomized"))
        check_tuning(self)
        if self.algorithm == "sgd" and not (
            is_auto(self.n_components) or self.n_components == 0
        ):
            raise ValueError(
                "n_components must be 'auto' or 0 with algorithm='sgd', which has no "
                f"preconditioner; got {self.n_components}"
            )

    def _check_general(self):
        """Raise a ValueError unless centers and algorithm suit each other."""
        check_method(self.centers, METHODS)
        if self.n_centers is not None:
            check_number("n_centers", self.n_centers, 1, integer=True)
        if not has_own_centers(self):
            if self.n_centers is not None or gives_centers(self):
                raise ValueError(
                    "n_centers must be None and centers no array with "
                    f"algorithm={self.algorithm!r}, where every training row is a "
                    "center; choose 'eigenpro3' or 'eigenpro4' for fewer centers"
                )
            if self.centers != "uniform":
                raise ValueError(
                    f"n_centers must be given with centers={self.centers!r}: without "
                    "it every training row is a center; got None"
                )
        elif is_precomputed(self):
            raise ValueError(
                "kernel='precomputed' must go with n_centers=None and algorithm='auto',"
                " 'eigenpro1', 'eigenpro2' or 'sgd': X has no rows to compare with"
            )

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
        X : array of shape (n_samples, n_features)
            Training rows; float32 is computed in float32. In a kernel machine they
            become the centers, and the fitted model refers to X without a copy. With
            kernel="precomputed": the kernel matrix of the training rows. For a model on
            centers, X may be a file or a Dask array, see :ref:`large_data`.
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

    @property
    def _in_memory_unless(self):
        if has_own_centers(self) and self.algorithm != "eigenpro3-exact":
            return None
        return "n_centers, and algorithm='auto', 'eigenpro3' or 'eigenpro4'"

    def _plan(self, shape):
        if not has_own_centers(self):
            return plan_on_rows(shape)
        centers, n = check_centers(self.centers, shape.X, METHODS), shape.n_train
        p = min(self.n_centers or n, n) if centers is None else centers.shape[0]
        return plan_on_centers(shape, p)

    def _prepare(self, data):
        """Return problem, solver, chosen attributes and rule of a fit."""
        basis = OnCenters if has_own_centers(self) else OnRows
        if self.algorithm == "eigenpro3-exact" and not data.indefinite:
            basis = ExactlyOnCenters
        given = split(self, data, stops_early(self))
        return prepared(basis, self, *given, fewest=2)

    def _check_stream(self):
        super()._check_stream()
        if stops_early(self):
            raise ValueError(
                "early_stopping must be False for data that come in pieces, of which "
                "none are held out; got True"
            )

    def _prepare_piece(self, data, anew):
        learner = None if anew else getattr(self, "_learner_", None)
        if learner is None or not learner.suits(self):
            anew = anew and self._can_choose_centers(data)
            learner = (new_learner if anew else learner_of_fitted)(self, data)
        else:  # a copy: the learner must not change if this fails
            if learner.problem is None:
                learner = learner.revived(self, data)
            iterate, n = learner.iterate.copy(), self.n_step_halvings_
            learner = replace(learner, iterate=iterate, n_halvings=n)
        problem, m = learner.problem, learner.tuning.batch_size
        weights = np.ones(len(data.targets)) if data.weights is None else data.weights

        def batches():
            for start in range(0, len(weights), m):
                b = slice(start, min(start + m, len(weights)))
                yield problem.batch(data.X[b, :], data.targets[b], weights[b])

        chosen = {"algorithm_": chosen_algorithm(self), "cache_size_": 0.0}
        chosen |= {"_learner_": learner}
        solver = learner.solver(batches, **_STREAM_OPTIONS)
        return problem, solver, learner.chosen_attributes() | chosen

    def _can_choose_centers(self, data):
        """Whether the data have enough distinct rows to choose all centers anew."""
        if not hasattr(self, "centers_") or self.n_centers is None:
            return True
        return len(data.distinct(data.rows_with_weight())[0]) >= self.n_centers

    @available_if(_has_centers)
    def fit_batches(
        self,
        batches: Iterable[Any] | Callable[[], Iterable[Any]],
        *,
        classes: ArrayLike | None = None,
    ) -> Self:
        """Fit a model on centers to a stream, in memory that does not grow with it.

        The first 8000 rows, or `n_centers` if that is more, decide what `fit` chooses:
        centers, bandwidth, intercept, preconditioner and step. Then every row is read
        once per epoch, about that many rows at a time, and learned as by `partial_fit`.
        The size of the pieces does not matter. If the stream fails or is interrupted,
        what was learned so far is kept and the error is raised. A model that was fitted
        before is replaced.

        Parameters
        ----------
        batches : iterable or callable
            Pieces ``(X, y)`` or ``(X, y, sample_weight)``. A callable is called without
            arguments at the start of every epoch and returns an iterable. An iterator,
            such as a generator, is read once: one epoch, before which the first rows
            are learned up to five times, as long as the loss falls (if ``max_iter>1``).
        classes : array of shape (n_classes,), default=None
            All labels that will occur, for a classifier. None: those of the first rows.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the data or a parameter is wrong.
        MemoryError
            If memory runs out; the message says what needs less.

        Warns
        -----
        ConvergenceWarning
            If nothing is learned from a pass over the stream.
        """
        n_first = n_sampled_rows(np.inf)
        if not gives_centers(self):
            n_first = max(n_first, self.n_centers)
        with computing(self, "fit_batches"):
            self._fit_batches(batches, classes, n_first)
        warn_of_projections(type(self).__name__, vars(self))
        self._warn_of_far_values(self.centers_)
        return self


class EigenProRegressor(RegressionTargets, _EigenPro):
    """Kernel regression by EigenPro: preconditioned stochastic gradient descent.

    Finds f(x) = sum_i a_i k(x, x_i) + intercept with the least squared residual on the
    training rows; `alpha` regularizes. A spectral preconditioner, computed on
    a subsample, lets large batches take large steps; the step is measured on up to 4000
    rows, and a guard halves it if the iteration still diverges. An epoch costs n^2 (d +
    l) multiply-adds, or n^2 l if the kernel matrix fits in memory. The parameters from
    `algorithm` on are for experts.

    Parameters
    ----------
    kernel : str, Kernel or callable, default="laplacian"
        How similar two rows are: "gaussian" (alias "rbf"), "laplacian", "manhattan",
        "cauchy", "matern32", "matern52", "polynomial" (of degree 3), "linear",
        "precomputed", an object of `eigenkern.kernels`, or a callable ``k(X, Z)`` that
        returns the kernel matrix of two blocks of rows. The laplacian takes the
        Euclidean distance, "manhattan" the sum of absolute differences.
    bandwidth : float, "auto", "median" or "scale", default="auto"
        Length over which a kernel given by name decays, in the units of X: longer for
        smooth functions, shorter for fine detail. This is sigma in the formulas; a
        kernel object has its own. "median": the median distance between 600 rows drawn
        at random. "auto": 1/4, 1/2, ..., or 16 times that, whichever has the least
        error of kernel ridge regression on rows left out of a sample of up to 3000,
        with the given penalty or the best; if several are equally good within noise,
        the nearest to the median. "scale": as ``SVC(gamma="scale")``, (n_features
        X.var() / 2)^1/2 for radial kernels.
    n_centers : int, default=None
        Number p of centers, for a model that does not grow with the number of rows:
        more centers make it more accurate, and slower. If there are fewer distinct
        rows, all become centers, with a warning; the first piece of a stream must have
        enough. None: every training row is a center (a kernel machine), or as many as
        `centers` has.
    centers : {"uniform", "kmeans", "leverage_scores", "rpcholesky"} or array of shape \
            (n_centers, n_features), default="uniform"
        How to choose the centers, see `eigenkern.centers`, or the centers themselves,
        which need not be training rows.
    alpha : float or "auto", default="auto"
        Strength of the ridge penalty: raise it if targets are noisy. It is lambda in
        ``lambda |f|^2``, added to the *mean* squared error: ``KernelRidge``'s alpha = a
        is a / n here. A model with its own centers is that of `NystromRegressor`.
        "auto": the one that best predicts new rows in kernel ridge regression on part
        of the rows, at most 4000, or by leave-one-out on up to 1000; but 0 if
        ``early_stopping=True``, with "eigenpro3-exact", and for data in pieces. 0: as
        in the papers, only the number of epochs regularizes.
    max_iter : int, default=20
        Maximum number of epochs: more epochs fit the training rows more closely. By
        default, fits to a few thousand rows run none: ``algorithm_`` is "direct".
    early_stopping : bool, default=False
        Whether to hold out rows, score them every epoch, stop when the score no longer
        improves, and keep the best epoch's coefficients. This, too, keeps the model
        from fitting noise, so ``alpha="auto"`` then chooses no penalty.
    device : {"auto", "cpu", "cuda", "cuda:N"} or list of them, default="auto"
        Where to compute. "auto": where X lives. "cuda": on a GPU; X may stay on the
        host. A list, such as ["cuda:0", "cuda:1"], splits the centers over them.
    random_state : int, RandomState instance or None, default=None
        Controls what is drawn at random: order of the rows, subsample, validation
        split. Pass an int for reproducible results.
    verbose : int, default=0
        1 shows a line for each stage of a fit, and the loss, score and time of epochs.
    algorithm : {"auto", "eigenpro1", "eigenpro2", "eigenpro3", "eigenpro3-exact", \
            "eigenpro4", "sgd"}, default="auto"
        "auto" is "eigenpro2" for a kernel machine and "eigenpro4" for a model with
        centers of its own. With up to 8000 rows it solves a kernel machine directly by
        one Cholesky factor, which is faster: kernel ridge regression with the penalty
        `alpha_`, or if that is 0 with ``0.02 / max_iter`` times the mean of k(x, x) on
        the diagonal, about what that many epochs reach. If you set a size, step or
        damping, early stopping, a warm start or a `cache_size` below 8 n^2 bytes, it
        runs epochs. A model on p centers is solved directly, with the same penalty, if
        that is faster: by the normal equations of the Nystrom method, in n p^2 / 2 + 2
        p^3 multiply-adds. It also runs epochs with a `cache_size` below 40 p^2 bytes,
        or if the rows are in a file, a Dask array or a stream.

        Kernel machines: the preconditioner of "eigenpro2" lives on the subsample, that
        of "eigenpro1" on all rows, which costs n^2 (d + q) more multiply-adds to set up
        and n q l more in each step, and stores 2 n q numbers. "sgd" is plain mini-batch
        gradient descent, EigenPro with q = 0: the baseline.

        Models on centers: an epoch costs n p (d + 2 l) multiply-adds, plus the
        projections onto the span of the centers. "eigenpro3" projects every step,
        "eigenpro4" at the cheapest interval. Both use a Cholesky factor if it fits and
        is faster, else conjugate gradients, which store a few times p (d + l + m)
        numbers. "eigenpro3-exact" takes full-batch steps with a preconditioner on all
        rows: the paper's algorithm 1, for small data.
    n_components : int or "auto", default="auto"
        Number of eigenvectors in the preconditioner, q (not of features, as in
        `RandomFourierFeatures`): more eigenvectors allow longer steps, but cost more. 0
        is plain mini-batch gradient descent. Eigenvectors lost to rounding are left
        out.
    subsample_size : int or "auto", default="auto"
        Number of rows to compute the eigenvectors from, s: more rows make them more
        exact. "auto": all of up to 1000 rows, at most 2000 below 100000 rows,
        else 4000. Time grows as s^3. In a model on centers: how many centers carry the
        preconditioner, at most 2000 or 4000.
    svd_solver : {"nystrom", "randomized"}, default="nystrom"
        How "eigenpro1" and "eigenpro3-exact" find eigenvectors on all n rows from the
        subsample: by the Nystrom method, or as singular vectors of s rows of the kernel
        matrix, which is a little more accurate and stores s n numbers.
    batch_size : int or "auto", default="auto"
        Rows per step, m; fewer rows need less memory. "auto": as many as keep a machine
        of this kind busy and fit its memory, at most an eighth of the rows.
    step_size : float, "auto" or "bound", default="auto"
        Step eta of the update ``a_b -= eta / m * (f(X_b) - y_b)``; pass a number to
        repeat an experiment. "auto": 0.8 of the largest step that is stable in a trial
        run on up to 4000 rows, and less for rows more extreme than these. A kernel
        machine first races up to six steps of 0.5 to 4 times that, fewer for many
        outputs, and continues with the best. If the residual of an output stalls, half
        the step is tried for an epoch and kept if it helps.
        "bound": from theorem 4 of EigenPro 1, which assumes exact eigenvectors; several
        times shorter. Any step is halved if the iteration diverges.
    damping : float in (0, 1], default=1.0
        How far to reduce the q largest eigenvalues: 1 reduces them to the next one, and
        a smaller value reduces them further, which regularizes. This is tau in the
        paper.
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
        Continue from the coefficients of the previous fit, with its centers or, in a
        kernel machine, the same X; the step is measured again. Pass an int as
        `random_state` to keep the median bandwidth and the held-out rows.
    cache_size : float or "auto", default="auto"
        MB of kernel matrix to keep in memory, so that it is computed once instead of
        every epoch; half the matrix of a kernel machine suffices. "auto": what fits, if
        keeping it is faster. 0: none. A model on centers uses a Cholesky factor if
        twice its 8 p^2 bytes fit this limit, in addition to the kernel matrix.

    Attributes
    ----------
    dual_coef_ : array of shape (n_centers, n_outputs)
        Coefficients a of ``f(x) = K(x, centers_) a + intercept_``. In a kernel machine
        they are 0 for rows of zero weight and for held-out rows.
    centers_ : array of shape (n_centers, n_features) or None
        The centers; in a kernel machine the X of the fit, not a copy. None for
        kernel="precomputed".
    intercept_ : array of shape (n_outputs,)
        Weighted mean of the targets.
    kernel_ : Kernel or None
        The kernel object with its bandwidth. None for kernel="precomputed".
    bandwidth_ : float or None
        sigma in use, if the kernel has one.
    alpha_ : float
        lambda in use.
    algorithm_ : str
        The algorithm used, or "direct": one factor instead of epochs. Then attributes
        of batches, step sizes, eigenvectors and `projection_interval_` are None.
    batch_size_ : int
        m.
    max_batch_size_ : int
        The batch size that keeps the machine busy and fits its memory.
    step_size_ : float
        eta at the start.
    n_step_halvings_ : int
        How often the guard went back and halved the step.
    n_components_, subsample_size_ : int
        q and s.
    eigenvalues_ : array of shape (q + 1,)
        The largest eigenvalues of the subsample's kernel matrix, divided by s; for
        "eigenpro1" those of the full matrix, divided by n. Its diagonal includes the
        penalty.
    beta_, top_eigenvalue_ : float
        The noise of a step and the largest eigenvalue of the preconditioned kernel,
        measured on up to 4000 rows.
    tuning_results_ : dict of lists
        What was measured for each number of eigenvectors tried: "n_components",
        "in_sample_eigenvalue" (of the subsample), "top_eigenvalue", "beta", and the
        "step_size" that these predict.
    critical_batch_size_, adapted_critical_batch_size_ : float
        beta divided by the top eigenvalue, of the kernel and of the preconditioned
        kernel: larger batches gain nothing.
    acceleration_ : float
        Predicted gain over plain gradient descent with the same batches: the ratio of
        the steps that beta and the top eigenvalue predict for each.
    cache_size_ : float
        MB of kernel matrix kept in memory during the fit.
    projection_interval_ : int
        T, batches between projections. This and the next three: only models on centers.
    t_ : int
        Projections so far; a direct solution counts as 8 `max_iter` of them.
    projection_residual_ : float
        Average relative residual that the projections left; 0 with a Cholesky factor.
    weight_scale_ : float
        Factor for sample weights: 1 over the mean of the first weights.
    n_iter_ : int
        Epochs run; 1 for a direct solution.
    loss_curve_ : list of float
        Mean squared residual of each epoch, each batch measured before its update, or
        of the direct solution. In epochs of a kernel machine with a penalty it is that
        of the system they solve, ``(K + alpha n W^-1) a - y``, and falls to zero.
    validation_scores_ : list of float or None
        R^2 on the held-out rows after each epoch; None without early stopping.
    n_features_in_ : int
        Number of features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X has string names.

    See Also
    --------
    EigenProClassifier : The same for class labels.
    NystromRegressor : In closed form, with a penalty chosen on its path.
    DSGRegressor : Streams of any length, and other losses.
    RFMRegressor : Learns which features matter, by several such fits.
    LinearEigenProRegressor : The same iteration on explicit features.

    Notes
    -----
    Targets are centered by their mean, which becomes `intercept_`.

    References
    ----------
    Ma and Belkin, "Diving into the shallows: a computational perspective on large-scale
    shallow learning", NIPS 2017 (arXiv:1703.10622).
    Ma and Belkin, "Kernel machines that adapt to GPUs for effective large batch
    training", MLSys 2019 (arXiv:1806.06144).

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from eigenkern import EigenProRegressor
    >>> X, y = make_friedman1(n_samples=600, noise=0.1, random_state=0)
    >>> model = EigenProRegressor(random_state=0).fit(X[:500], y[:500])
    >>> round(model.score(X[500:], y[500:]), 2)
    0.94
    """

    @available_if(_has_centers)
    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Learn from a piece of the data; only for models on centers.

        The first piece decides what `fit` chooses: centers, bandwidth, intercept,
        preconditioner and step; 8000 rows suffice. Rows are taken in the given order,
        but in random order from a piece whose halves differ, because it is sorted.
        Later pieces whose number of rows is a multiple of ``batch_size_ *
        projection_interval_`` give the same model as one call with all of these rows.
        Preconditioner and step are computed again after `fit` and when parameters
        change; kernel and centers stay. A kernel machine that was fitted before is
        replaced.

        Up to 2000 rows are kept as a sample of all rows so far. If a piece is unlike
        this sample, or makes the model worse on it, as many of the kept rows are
        learned instead. In such a stream, or if the model is hardly better than the
        mean of the targets, everything is chosen and learned anew from the kept rows
        whenever the number of rows has doubled, or the product of that number and the
        loss. Later pieces of fewer than 32 rows wait for more rows.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
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


class EigenProClassifier(ClassificationTargets, _EigenPro):
    """Kernel classification by EigenPro: preconditioned stochastic gradient descent.

    Least squares: two classes are coded as targets -1 and +1, and the sign of the
    output gives the class; more classes have a column each, and the column with the
    largest value gives the class. The algorithm is that of `EigenProRegressor`. The
    parameters from `algorithm` on are for experts.

    Parameters
    ----------
    kernel : str, Kernel or callable, default="laplacian"
        How similar two rows are: "gaussian" (alias "rbf"), "laplacian", "manhattan",
        "cauchy", "matern32", "matern52", "polynomial" (of degree 3), "linear",
        "precomputed", an object of `eigenkern.kernels`, or a callable ``k(X, Z)`` that
        returns the kernel matrix of two blocks of rows. The laplacian takes the
        Euclidean distance, "manhattan" the sum of absolute differences.
    bandwidth : float, "auto", "median" or "scale", default="auto"
        Length over which a kernel given by name decays, in the units of X: longer for
        smooth functions, shorter for fine detail. This is sigma in the formulas; a
        kernel object has its own. "median": the median distance between 600 rows drawn
        at random. "auto": 1/4, 1/2, ..., or 16 times that, whichever has the least
        error of kernel ridge regression on rows left out of a sample of up to 3000,
        with the given penalty or the best; if several are equally good within noise,
        the nearest to the median. "scale": as ``SVC(gamma="scale")``, (n_features
        X.var() / 2)^1/2 for radial kernels.
    n_centers : int, default=None
        Number p of centers, for a model that does not grow with the number of rows:
        more centers make it more accurate, and slower. If there are fewer distinct
        rows, all become centers, with a warning; the first piece of a stream must have
        enough. None: every training row is a center (a kernel machine), or as many as
        `centers` has.
    centers : {"uniform", "kmeans", "leverage_scores", "rpcholesky"} or array of shape \
            (n_centers, n_features), default="uniform"
        How to choose the centers, see `eigenkern.centers`, or the centers themselves,
        which need not be training rows.
    alpha : float or "auto", default="auto"
        Strength of the ridge penalty: raise it if targets are noisy. It is lambda in
        ``lambda |f|^2``, added to the *mean* squared error: ``KernelRidge``'s alpha = a
        is a / n here. A model with its own centers is that of `NystromRegressor`.
        "auto": the one that best predicts new rows in kernel ridge regression on part
        of the rows, at most 4000, or by leave-one-out on up to 1000; but 0 if
        ``early_stopping=True``, with "eigenpro3-exact", and for data in pieces. 0: as
        in the papers, only the number of epochs regularizes.
    max_iter : int, default=20
        Maximum number of epochs: more epochs fit the training rows more closely. By
        default, fits to a few thousand rows run none: ``algorithm_`` is "direct".
    early_stopping : bool, default=False
        Whether to hold out rows, score them every epoch, stop when the score no longer
        improves, and keep the best epoch's coefficients. This, too, keeps the model
        from fitting noise, so ``alpha="auto"`` then chooses no penalty.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, multiplied by `sample_weight`.
    device : {"auto", "cpu", "cuda", "cuda:N"} or list of them, default="auto"
        Where to compute. "auto": where X lives. "cuda": on a GPU; X may stay on the
        host. A list, such as ["cuda:0", "cuda:1"], splits the centers over them.
    random_state : int, RandomState instance or None, default=None
        Controls what is drawn at random: order of the rows, subsample, validation
        split. Pass an int for reproducible results.
    verbose : int, default=0
        1 shows a line for each stage of a fit, and the loss, score and time of epochs.
    algorithm : {"auto", "eigenpro1", "eigenpro2", "eigenpro3", "eigenpro3-exact", \
            "eigenpro4", "sgd"}, default="auto"
        "auto" is "eigenpro2" for a kernel machine and "eigenpro4" for a model with
        centers of its own. With up to 8000 rows it solves a kernel machine directly by
        one Cholesky factor, which is faster: kernel ridge regression with the penalty
        `alpha_`, or if that is 0 with ``0.02 / max_iter`` times the mean of k(x, x) on
        the diagonal, about what that many epochs reach. If you set a size, step or
        damping, early stopping, a warm start or a `cache_size` below 8 n^2 bytes, it
        runs epochs. A model on p centers is solved directly, with the same penalty, if
        that is faster: by the normal equations of the Nystrom method, in n p^2 / 2 + 2
        p^3 multiply-adds. It also runs epochs with a `cache_size` below 40 p^2 bytes,
        or if the rows are in a file, a Dask array or a stream.

        Kernel machines: the preconditioner of "eigenpro2" lives on the subsample, that
        of "eigenpro1" on all rows, which costs n^2 (d + q) more multiply-adds to set up
        and n q l more in each step, and stores 2 n q numbers. "sgd" is plain mini-batch
        gradient descent, EigenPro with q = 0: the baseline.

        Models on centers: an epoch costs n p (d + 2 l) multiply-adds, plus the
        projections onto the span of the centers. "eigenpro3" projects every step,
        "eigenpro4" at the cheapest interval. Both use a Cholesky factor if it fits and
        is faster, else conjugate gradients, which store a few times p (d + l + m)
        numbers. "eigenpro3-exact" takes full-batch steps with a preconditioner on all
        rows: the paper's algorithm 1, for small data.
    n_components : int or "auto", default="auto"
        Number of eigenvectors in the preconditioner, q (not of features, as in
        `RandomFourierFeatures`): more eigenvectors allow longer steps, but cost more. 0
        is plain mini-batch gradient descent. Eigenvectors lost to rounding are left
        out.
    subsample_size : int or "auto", default="auto"
        Number of rows to compute the eigenvectors from, s: more rows make them more
        exact. "auto": all of up to 1000 rows, at most 2000 below 100000 rows,
        else 4000. Time grows as s^3. In a model on centers: how many centers carry the
        preconditioner, at most 2000 or 4000.
    svd_solver : {"nystrom", "randomized"}, default="nystrom"
        How "eigenpro1" and "eigenpro3-exact" find eigenvectors on all n rows from the
        subsample: by the Nystrom method, or as singular vectors of s rows of the kernel
        matrix, which is a little more accurate and stores s n numbers.
    batch_size : int or "auto", default="auto"
        Rows per step, m; fewer rows need less memory. "auto": as many as keep a machine
        of this kind busy and fit its memory, at most an eighth of the rows.
    step_size : float, "auto" or "bound", default="auto"
        Step eta of the update ``a_b -= eta / m * (f(X_b) - y_b)``; pass a number to
        repeat an experiment. "auto": 0.8 of the largest step that is stable in a trial
        run on up to 4000 rows, and less for rows more extreme than these. A kernel
        machine first races up to six steps of 0.5 to 4 times that, fewer for many
        outputs, and continues with the best. If the residual of an output stalls, half
        the step is tried for an epoch and kept if it helps.
        "bound": from theorem 4 of EigenPro 1, which assumes exact eigenvectors; several
        times shorter. Any step is halved if the iteration diverges.
    damping : float in (0, 1], default=1.0
        How far to reduce the q largest eigenvalues: 1 reduces them to the next one, and
        a smaller value reduces them further, which regularizes. This is tau in the
        paper.
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
        Continue from the coefficients of the previous fit, with its centers or, in a
        kernel machine, the same X; the step is measured again. Pass an int as
        `random_state` to keep the median bandwidth and the held-out rows.
    cache_size : float or "auto", default="auto"
        MB of kernel matrix to keep in memory, so that it is computed once instead of
        every epoch; half the matrix of a kernel machine suffices. "auto": what fits, if
        keeping it is faster. 0: none. A model on centers uses a Cholesky factor if
        twice its 8 p^2 bytes fit this limit, in addition to the kernel matrix.

    Attributes
    ----------
    dual_coef_ : array of shape (n_centers, n_outputs)
        Coefficients a of ``f(x) = K(x, centers_) a + intercept_``. In a kernel machine
        they are 0 for rows of zero weight and for held-out rows.
    centers_ : array of shape (n_centers, n_features) or None
        The centers; in a kernel machine the X of the fit, not a copy. None for
        kernel="precomputed".
    intercept_ : array of shape (n_outputs,)
        Weighted mean of the targets.
    kernel_ : Kernel or None
        The kernel object with its bandwidth. None for kernel="precomputed".
    bandwidth_ : float or None
        sigma in use, if the kernel has one.
    alpha_ : float
        lambda in use.
    algorithm_ : str
        The algorithm used, or "direct": one factor instead of epochs. Then attributes
        of batches, step sizes, eigenvectors and `projection_interval_` are None.
    batch_size_ : int
        m.
    max_batch_size_ : int
        The batch size that keeps the machine busy and fits its memory.
    step_size_ : float
        eta at the start.
    n_step_halvings_ : int
        How often the guard went back and halved the step.
    n_components_, subsample_size_ : int
        q and s.
    eigenvalues_ : array of shape (q + 1,)
        The largest eigenvalues of the subsample's kernel matrix, divided by s; for
        "eigenpro1" those of the full matrix, divided by n. Its diagonal includes the
        penalty.
    beta_, top_eigenvalue_ : float
        The noise of a step and the largest eigenvalue of the preconditioned kernel,
        measured on up to 4000 rows.
    tuning_results_ : dict of lists
        What was measured for each number of eigenvectors tried: "n_components",
        "in_sample_eigenvalue" (of the subsample), "top_eigenvalue", "beta", and the
        "step_size" that these predict.
    critical_batch_size_, adapted_critical_batch_size_ : float
        beta divided by the top eigenvalue, of the kernel and of the preconditioned
        kernel: larger batches gain nothing.
    acceleration_ : float
        Predicted gain over plain gradient descent with the same batches: the ratio of
        the steps that beta and the top eigenvalue predict for each.
    cache_size_ : float
        MB of kernel matrix kept in memory during the fit.
    projection_interval_ : int
        T, batches between projections. This and the next three: only models on centers.
    t_ : int
        Projections so far; a direct solution counts as 8 `max_iter` of them.
    projection_residual_ : float
        Average relative residual that the projections left; 0 with a Cholesky factor.
    weight_scale_ : float
        Factor for sample weights: 1 over the mean of the first weights.
    n_iter_ : int
        Epochs run; 1 for a direct solution.
    loss_curve_ : list of float
        Mean squared residual of each epoch, each batch measured before its update, or
        of the direct solution. In epochs of a kernel machine with a penalty it is that
        of the system they solve, ``(K + alpha n W^-1) a - y``, and falls to zero.
    validation_scores_ : list of float or None
        Accuracy on the held-out rows after each epoch; None without early stopping.
        As long as it is not above that of the commonest class, as with a rare class,
        the loss on these rows tells which epoch is best; with `class_weight` it is
        their log loss without these weights.
    calibration_ : object
        How `predict_proba` maps values to probabilities: `scale`, `offsets`, `floor`.
        Epochs use a tenth of the rows for this, at most 1000, which a second model
        beside this one does not learn (with `n_centers`, neither does); with
        ``alpha=0.0`` or ``warm_start=True`` it is absent, unless
        ``early_stopping=True``.
    classes_ : ndarray of shape (n_classes,)
        Labels; a NumPy array even if X comes from another library.
    n_features_in_ : int
        Number of features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X has string names.

    See Also
    --------
    EigenProRegressor : The same for real targets.
    NystromClassifier : In closed form, with a penalty chosen on its path.
    DSGClassifier : Streams of any length, and other losses.
    RFMClassifier : Learns which features matter, by several such fits.
    LinearEigenProClassifier : The same iteration on explicit features.

    References
    ----------
    Ma and Belkin, "Diving into the shallows: a computational perspective on large-scale
    shallow learning", NIPS 2017 (arXiv:1703.10622).
    Ma and Belkin, "Kernel machines that adapt to GPUs for effective large batch
    training", MLSys 2019 (arXiv:1806.06144).

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from eigenkern import EigenProClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = EigenProClassifier(random_state=0).fit(X[:1500], y[:1500])
    >>> round(model.score(X[1500:], y[1500:]), 2)
    0.96
    """

    def __init__(
        self,
        kernel: KernelLike = "laplacian",
        *,
        bandwidth: float | str = "auto",
        n_centers: int | None = None,
        centers: str | ArrayLike = "uniform",
        alpha: float | str = "auto",
        max_iter: int = 20,
        early_stopping: bool = False,
        class_weight: Mapping[Any, float] | str | None = None,
        device: Device = "auto",
        random_state: RandomState = None,
        verbose: int | bool = 0,
        algorithm: str = "auto",
        n_components: int | str = "auto",
        subsample_size: int | str = "auto",
        svd_solver: str = "nystrom",
        batch_size: int | str = "auto",
        step_size: float | str = "auto",
        damping: float = 1.0,
        tol: float = 1e-4,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 3,
        warm_start: bool = False,
        cache_size: float | str = "auto",
    ) -> None:
        keep_parameters(self, locals())

    @available_if(_has_centers)
    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn from a piece of the data; only for models on centers.

        The first piece decides what `fit` chooses: centers, bandwidth, intercept,
        preconditioner and step; 8000 rows suffice. Rows are taken in the given order,
        but in random order from a piece whose halves differ, because it is sorted.
        Later pieces whose number of rows is a multiple of ``batch_size_ *
        projection_interval_`` give the same model as one call with all of these rows.
        Preconditioner and step are computed again after `fit` and when parameters
        change; kernel and centers stay. A kernel machine that was fitted before is
        replaced.

        Up to 2000 rows are kept as a sample of all rows so far. If a piece is unlike
        this sample, or makes the model worse on it, as many of the kept rows are
        learned instead. In such a stream, or if the model is hardly better than the
        mean of the targets, everything is chosen and learned anew from the kept rows
        whenever the number of rows has doubled, or the product of that number and the
        loss. Later pieces of fewer than 32 rows wait for more rows.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
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
