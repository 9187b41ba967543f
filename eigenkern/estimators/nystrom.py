"""Nystrom kernel ridge regression, with its regularization path."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from ..arrays.array import ArrayLike, Device, KernelLike, RandomState, to_numpy
from ..fitting.conveniences import keep_parameters
from ..fitting.model import KernelModel
from ..fitting.posterior import Posterior, posterior_attributes
from ..fitting.rules import SolutionRule
from ..fitting.targets import ClassificationTargets, RegressionTargets
from ..fitting.validation import (
    check_flag,
    check_kernel_parameters,
    check_number,
    on_its_device,
    warn_user,
)
from ..methods.newton import KEPT_TOL, MOST_STEPS, best_of_path, minimized, way_down
from ..methods.paths import RidgePath
from ..methods.state import State
from ..plan.parameters import has_log_loss, is_auto
from .on_centers import (
    check_loss,
    check_selection,
    choosing_problem,
    chosen_alpha,
    make_problem,
    path_errors,
    plan_of_least_squares,
    ridge_coef,
    warn_at_end,
    warn_if_indefinite,
)

# Penalties above rounding, in units of it.
ABOVE_ROUNDING = 100
# Errors of a path are equal up to this fraction, or if noise alone may make the
# difference, but at most up to the second number divided by that of the rows: then a
# larger penalty is taken (`_equal`). sin(3 x), 300 rows in one dimension, noise 0.3,
# gaussian, leave-one-out, six draws: the largest mean squared error up to half a unit
# outside the rows is 1460 with the least error, 0.5 with this rule; on new rows it is
# the same. On 50 to 300 rows in one and three dimensions the rule changes the error on
# new noisy targets by -22 to 7 %, mean -1 %; without the limit by up to 18 %.
_EQUAL, _MOST_EQUAL = 1e-3, 5.0


class _Nystrom(KernelModel):
    """Kernel least squares in closed form, for targets and for labels."""

    _calibrates = True
    #: Whether fitted models have what variances of predictions need.
    _has_variance = False

    def __init__(
        self,
        kernel: KernelLike = "laplacian",
        *,
        bandwidth: float | str = "auto",
        n_centers: int | str | None = "auto",
        centers: str | ArrayLike = "uniform",
        alpha: float | str = "auto",
        alphas: ArrayLike | None = None,
        selection: str = "auto",
        one_standard_error: bool = False,
        validation_fraction: float = 0.2,
        store_coef_path: bool = False,
        cache_size: float | str = "auto",
        device: Device = "auto",
        random_state: RandomState = None,
        verbose: int | bool = 0,
    ) -> None:
        keep_parameters(self, locals())

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        X_val: ArrayLike | None = None,
        y_val: ArrayLike | None = None,
        sample_weight_val: ArrayLike | None = None,
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Training rows; kernel values and the linear algebra are float64, and with
            float32 rows only a log loss takes float32 kernel values. With
            kernel="precomputed": the kernel matrix of the training rows. With fewer
            centers than rows, X may be a file or a Dask array, see :ref:`large_data`.
        y : array of shape (n_samples,) or (n_samples, n_outputs)
            Targets; one label per row for a classifier.
        sample_weight : float or array of shape (n_samples,), default=None
            Nonnegative weights of the squared residuals. A weight of 2 counts as two
            copies of the row.
        X_val, y_val : arrays, default=None
            Rows to select alpha on, instead of rows held out of X; only with
            ``alpha="path"`` and ``selection="holdout"``.
        sample_weight_val : float or array, default=None
            Their weights.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the data or a parameter is wrong, or memory does not suffice; a model
            fitted before stays usable.
        MemoryError
            If memory runs out; the message says what needs less.

        Warns
        -----
        ConvergenceWarning
            If nothing is learned; if the kernel is not positive semi-definite, and its
            negative part is dropped; or if the least error of a path is at an end of
            `alphas` and still falls there.
        """
        return self._fit(X, y, sample_weight, X_val, y_val, sample_weight_val)

    def _check_parameters(self):
        check_kernel_parameters(self)
        check_selection(self, ("auto", "holdout", "gcv", "loo"))
        if not isinstance(self.alpha, str):
            check_number("alpha", self.alpha, 0)
        elif self.alpha not in ("auto", "path"):
            raise ValueError(
                f"alpha must be a number >= 0, 'auto' or 'path'; got {self.alpha!r}"
            )
        check_flag("one_standard_error", self.one_standard_error)
        if self.one_standard_error and self.selection not in ("auto", "holdout"):
            raise ValueError(
                "one_standard_error=True needs errors of single rows that are held out,"
                f" with selection='holdout'; got selection={self.selection!r}"
            )
        check_alphas(self.alphas)
        if self.alphas is not None and self.alpha != "path":
            raise ValueError(
                f"alphas are the values of a path: pass alpha='path' with them, or "
                f"alphas=None; got alpha={self.alpha!r}"
            )

    _plan = plan_of_least_squares

    def _prepare(self, data):
        """Return problem, solver, chosen attributes and rule of a fit."""
        problem, plan = make_problem(self, data)
        alphas = plan.path
        if alphas is None:
            alphas = np.array([chosen_alpha(self, problem)])
        found = {"alphas_": None, "validation_path_": None, "coef_path_": None}
        found["selection_"] = plan.selection
        chooser = choosing_problem(self, data, problem, plan)
        solver = self._solution(problem, alphas, plan.selection, chooser)
        return problem, solver, found, SolutionRule(problem)

    def _replaced(self, data):
        # No penalty is known to suit a kernel that is not positive semi-definite.
        by_path = data.indefinite and is_auto(self.alpha) and not data.constant
        return {"alpha": "path"} if by_path else super()._replaced(data)

    def _solution(self, problem, alphas, selection, chooser):
        """Yield the model of the best lambda, that of `chooser`, fitted to all rows."""
        path = RidgePath(alphas)
        self._say(f"normal equations of {len(problem.train.index)} rows")
        alpha, found, spectrum = float(alphas[0]), {}, None
        ends = alphas.min(), alphas.max()
        if selection is not None:
            spectrum = chooser.path_spectrum(selection, *ends)
            warn_if_indefinite(self, spectrum)
            errors = path_errors(chooser, spectrum, path, selection)
            warn_at_end(self, alphas, errors, spectrum.resolved(ABOVE_ROUNDING))
            alpha = self._best_alpha(chooser, spectrum, path, errors)
            self._say(f"path of {len(errors)} values: alpha = {alpha:.3g}")
            found["alphas_"] = problem.to_source(alphas)
            found["validation_path_"] = problem.to_source(errors)
            if problem.refits or chooser is not problem:
                del chooser  # two problems at a time take twice the memory
                spectrum = problem.everything.spectrum if spectrum.indefinite else None
        everything = problem.everything
        if self.store_coef_path:
            found["coef_path_"] = problem.dual_coef_path(
                everything.spectrum_between(*ends), path
            )
        b, factor = ridge_coef(self, everything, alpha, spectrum)
        left_out = problem.left_out(alpha, factor) if problem.calibrates else None
        if self._has_variance:
            found |= posterior_attributes(problem, alpha, spectrum, factor)
        del factor
        found |= {"alpha_": alpha, "n_centers_": problem.n_coefs}
        yield State(b, found, out_of_sample=left_out)

    def _best_alpha(self, problem, spectrum, path, errors):
        """Return lambda with the least error, or the largest within its deviation.

        Errors are equal up to a small fraction. Those of penalties near rounding count
        only if there are no others.
        """
        least = spectrum.resolved(ABOVE_ROUNDING)
        sound = np.isfinite(errors) & (path.alphas >= least)
        sound = sound if sound.any() else np.isfinite(errors)
        errors = np.where(sound, errors, np.inf)
        best = int(np.argmin(errors))
        tolerance = errors[best] * _equal(problem, spectrum, path.alphas, best)
        if self.one_standard_error:
            b = spectrum.coef(path.filters(spectrum)[:, best])
            matrix, mean = problem.matrix_of_validation(b), problem.training.mean
            losses = problem.validation_losses(matrix, b, mean)
            tolerance = problem.deviation(losses)
        return float(path.alphas[errors <= errors[best] + tolerance].max())


def _equal(problem, spectrum, alphas, best):
    """Return up to which fraction the errors of a path equal the least one, (k,).

    Let H be the smoother of a penalty, with the eigenvalues h = e / (e + lambda). On
    targets that are noise of variance s^2, two models differ by D = (H - H') y, and
    their mean squared errors on m rows by a number of standard deviation
    2 s |D| / (n m)^1/2, where ``|D|^2 = s^2 sum (h - h')^2``.
    """
    e = to_numpy(spectrum.values)[:, None]
    h = e / np.maximum(e + alphas, np.finfo(float).tiny)
    distance = np.sqrt(np.sum((h - h[:, best, None]) ** 2, axis=0))
    judges = problem.train if problem.validation is None else problem.validation
    n, m = (problem.n_observations(rows) for rows in (problem.train, judges))
    return np.maximum(_EQUAL, np.minimum(2 * distance, _MOST_EQUAL) / (n * m) ** 0.5)


def check_alphas(alphas):
    """Raise a ValueError unless `alphas` is None or the values of a path."""
    if alphas is None:
        return
    try:
        values = np.asarray(alphas, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty(0)
    valid = values.ndim == 1 and len(values) and np.isfinite(values).all()
    if not valid or (values < 0).any():
        raise ValueError(
            f"alphas must be None or a list of finite numbers >= 0; got {alphas!r}"
        )


class NystromRegressor(RegressionTargets, _Nystrom):
    """Kernel ridge regression on all rows or on Nystrom centers, with its path.

    Finds ``f(x) = sum_j a_j k(x, z_j) + intercept``, with m centers z_j, to minimize ::

        mean_i (y_i - f(x_i))^2 + alpha |f|^2

    in closed form: with all rows as centers this is kernel ridge regression (KRLS),
    with ``alpha=0`` kernel least squares (KOLS). A path of 100 values of alpha costs a
    few Cholesky factors, or an eigendecomposition if it is not selected on held-out
    rows. Time is n m^2 + m^3, memory a few m^2 numbers: the n m kernel values are
    computed in blocks.

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
        kernel object has its own. "median": the median distance between 600 distinct
        rows drawn at random. "auto": 1/4, 1/2, ..., or 16 times that, whichever has the
        least error of kernel ridge regression on rows left out of a sample of up to
        3000, with the given penalty or the best; if several are equally good within
        noise, the nearest to the median. "scale": as ``SVC(gamma="scale")``,
        (n_features X.var() / 2)^1/2 for radial kernels.
    n_centers : int, "auto" or None, default="auto"
        Number m of distinct training rows that become centers: more of them make the
        model more accurate and the fit slower. If there are fewer rows, all become
        centers, with a warning. "auto": all rows while that is fast (up to some 16 000
        rows on two cores, 11000 for a path), then 5 n^1/2 log n, or as many as a minute
        and half the memory allow; but a regressor takes at most 6000, with which it has
        standard deviations, and no fewer if time allows; if `centers` is an array, its
        rows. None: all rows.
    centers : str or array, default="uniform"
        How to choose the centers. "uniform": random rows. "rpcholesky": rows by
        randomly pivoted Cholesky, in time n m^2; for unevenly spread data it needs
        fewer centers for the same accuracy. "leverage_scores": random rows, drawn with
        probabilities given by approximate ridge leverage scores; for such data too, in
        the same time. "kmeans": means of clusters of rows. Or an array of shape
        (n_centers, n_features): the centers, which need not be rows of X. With
        kernel="precomputed" neither "kmeans" nor an array is possible.
    alpha : float, "auto" or "path", default="auto"
        Strength of the ridge penalty: raise it if targets are noisy. It is lambda in
        ``lambda |f|^2``, added to the *mean* squared error: alpha n on the diagonal of
        the kernel matrix, so scikit-learn's ``KernelRidge(alpha=a)`` is alpha = a / n.
        "auto": the one that best predicts new rows in kernel ridge regression on part
        of the rows, at most 4000, or by leave-one-out on up to 1000; 1e-6 below
        20 rows, and as "path" for a kernel that is not positive semi-definite. "path":
        the best of `alphas` for these centers, refitted to all rows. 0: least squares
        by the pseudo-inverse. If X is float32 and the penalty so small
        that rounding would change predictions, the model is float64.
    alphas : array-like or None, default=None
        The values of a path, only with ``alpha="path"``. None: 100 from 1e-15 to 1,
        evenly in the logarithm.
    selection : {"auto", "holdout", "gcv", "loo"}, default="auto"
        How to select from a path: by the error on held-out rows (or on `X_val`, `y_val`
        of `fit`), by generalized cross-validation or by the exact leave-one-out error,
        the last two in closed form on all rows. "auto": "loo" below 1000 distinct rows
        that are all centers, unless there is `X_val`; otherwise "holdout". If noise
        alone may have made errors different, the largest alpha among them is chosen.
    one_standard_error : bool, default=False
        Whether to take, with ``selection="holdout"``, the largest alpha whose error is
        within one standard error of the least. Within the noise it is as good, and it
        is safer if new data may differ from the held-out rows.
    validation_fraction : float, default=0.2
        Fraction of the rows to hold out. Equal rows with equal targets stay together.
        The model is refitted to all rows, so the default is more than the 0.1 of
        `EigenProRegressor`, which is not.
    store_coef_path : bool, default=False
        Whether to keep all models of the path, in `coef_path_`.
    cache_size : float or "auto", default="auto"
        MB of kernel matrix to keep in memory for ``selection="loo"``, which reads it
        twice. "auto": what fits, if keeping it is faster. 0: none.
    device : {"auto", "cpu", "cuda", "cuda:N"} or list of them, default="auto"
        Where to compute. "auto": where X lives. "cuda": on a GPU; X may stay on the
        host. A list, such as ["cuda:0", "cuda:1"], splits the centers over them.
    random_state : int, RandomState instance or None, default=None
        Controls what is drawn at random: centers, validation rows, subsample for the
        median distance. Pass an int for reproducible results.
    verbose : int, default=0
        1 shows lines of progress.

    Attributes
    ----------
    dual_coef_ : array of shape (n_centers, n_outputs)
        Coefficients a of ``f(x) = K(x, centers_) a + intercept_``. They are 0 for
        centers that are copies of others, or in the span of others up to rounding.
    centers_ : array of shape (n_centers, n_features) or None
        The centers; X itself if all rows are centers. None for kernel="precomputed",
        when `dual_coef_` has a row for every training row.
    center_indices_ : array of shape (n_centers,) or None
        Their indices in X. None if all rows, means or an array are the centers.
    n_centers_ : int
        Number of centers that are not left out.
    intercept_ : array of shape (n_outputs,)
        Weighted mean of the targets.
    kernel_ : Kernel or None
        The kernel object with its bandwidth. None for kernel="precomputed".
    bandwidth_ : float or None
        sigma in use, if the kernel has one.
    alpha_ : float
        lambda in use.
    alphas_ : array of shape (n_alphas,) or None
        Values of the path; None for a single alpha, like `validation_path_`.
    selection_ : str or None
        Criterion that selected from the path.
    validation_path_ : array of shape (n_alphas,) or None
        Their mean squared errors by the criterion `selection`.
    coef_path_ : array of shape (n_alphas, n_centers, n_outputs) or None
        `dual_coef_` of each value (or of the single alpha), fitted to all rows, in
        float64, if ``store_coef_path=True``.
    prior_variance_ : array of shape (n_outputs,) or None
        s^2 of the Gaussian process with covariance s^2 k whose posterior mean is the
        model, in float64. None if predictions have no variances.
    noise_variance_ : array of shape (n_outputs,) or None
        sigma^2, the noise variance of a target; sigma^2 / w for a row with w times the
        mean weight. It is ``alpha_ * n_samples * prior_variance_`` if no rows are
        equal, or more if left-out residuals are too large for that.
    n_features_in_ : int
        Number of features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X has string names.

    See Also
    --------
    NystromClassifier : The same for class labels.
    NytroRegressor : Early stopping in place of a penalty.
    FalkonLikeRegressor : The same model by conjugate gradients, for many centers.
    EigenProRegressor : By iteration, for more rows or centers.
    DSGRegressor : Streams, and other losses.
    RFMRegressor : Learns which features matter, by several such fits.

    Notes
    -----
    Targets are centered by their mean, which becomes `intercept_`. A weight of 2 is the
    same as having the row twice; but ``selection="loo"`` leaves out a row with all its
    weight.

    With ``selection="holdout"``, at least 600 centers and 200 per output, the models of
    a path are computed in a rational Krylov space, accurate to some 1e-6 of the
    targets; penalties below the rounding error of the kernel matrix change nothing.

    The model is the posterior mean of a Gaussian process with noise.
    ``predict(X, return_std=True)`` returns its standard deviation, on centers that of
    the DTC approximation, scaled to agree with the residuals of 300 to 1000 rows left
    out one by one; far from all rows it is that of the targets. For this a fitted model
    keeps a Cholesky factor of 8 n_centers^2 bytes, or two if not all rows are centers.

    Nearly dependent centers are found by a pivoted Cholesky factor of their kernel
    matrix and left out (pivots below 1e-12 of the largest). Sums over rows are float64
    throughout.

    References
    ----------
    Camoriano, Angles, Rudi, Rosasco, "NYTRO: when subsampling meets early stopping",
    AISTATS 2016: equations 10 and 18.

    Williams and Seeger, "Using the Nystrom method to speed up kernel machines", NIPS
    2000.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from eigenkern import NystromRegressor
    >>> X, y = make_friedman1(n_samples=600, noise=0.1, random_state=0)
    >>> model = NystromRegressor(n_centers=200, alpha="path", random_state=0)
    >>> round(model.fit(X[:500], y[:500]).score(X[500:], y[500:]), 2)
    0.91

    Intervals that hold 90 % of such targets, for the last rows:

    >>> y_mean, y_std = model.predict(X[500:], return_std=True)
    >>> inside = abs(y[500:] - y_mean) < 1.645 * y_std
    >>> bool(inside.mean() > 0.85)
    True
    """

    _has_variance = True

    @on_its_device
    def predict(
        self, X: ArrayLike, return_std: bool = False, return_cov: bool = False
    ) -> Any:
        """Predict the targets of the rows of X, and how far they may be off.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Rows; with kernel="precomputed", the kernel matrix of the rows and the
            training rows.
        return_std : bool, default=False
            Whether to return the standard deviation of a new target, too. It includes
            the noise of the target, as a ``WhiteKernel`` in `GaussianProcessRegressor`
            does: ``y_mean +- 1.645 y_std`` is a 90 % interval for the target, if it
            has the mean weight. Takes n_centers^2 / 2 multiply-adds per row, or
            n_centers^2 if not all rows are centers.
        return_cov : bool, default=False
            Whether to return the covariance of new targets instead.

        Returns
        -------
        y_mean : array of shape (n_samples,) or (n_samples, n_outputs)
        y_std : array of shape (n_samples,) or (n_samples, n_outputs)
            With `return_std`.
        y_cov : array of shape (n_samples, n_samples[, n_outputs])
            With `return_cov`.

        Raises
        ------
        RuntimeError
            If both are requested.
        ValueError
            If one is requested, but the model has a precomputed kernel or one that is
            not positive semi-definite, no penalty, or more than 6000 centers.
        """
        if return_std and return_cov:
            raise RuntimeError(
                "At most one of return_std or return_cov can be requested."
            )
        y_mean = super().predict(X)
        if return_std:
            return y_mean, Posterior(self, X).deviation()
        if return_cov:
            return y_mean, Posterior(self, X).covariance()
        return y_mean


class NystromClassifier(ClassificationTargets, _Nystrom):
    """Kernel ridge classification on all rows or on Nystrom centers, with its path.

    Least squares: two classes are coded as targets -1 and +1, and the sign of the
    output gives the class; more classes have a column each, and the column with the
    largest value gives the class. The algorithm is that of `NystromRegressor`. With
    ``loss="log_loss"`` it is logistic regression, by Newton's method.

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
        kernel object has its own. "median": the median distance between 600 distinct
        rows drawn at random. "auto": 1/4, 1/2, ..., or 16 times that, whichever has the
        least error of kernel ridge regression on rows left out of a sample of up to
        3000, with the given penalty or the best; if several are equally good within
        noise, the nearest to the median. "scale": as ``SVC(gamma="scale")``,
        (n_features X.var() / 2)^1/2 for radial kernels.
    n_centers : int, "auto" or None, default="auto"
        Number m of distinct training rows that become centers: more of them make the
        model more accurate and the fit slower. If there are fewer rows, all become
        centers, with a warning. "auto": all rows while that is fast (up to some 16 000
        rows on two cores, 11000 for a path), then 5 n^1/2 log n, or as many as a minute
        and half the memory allow; but a regressor takes at most 6000, with which it has
        standard deviations, and no fewer if time allows; if `centers` is an array, its
        rows. None: all rows.
    centers : str or array, default="uniform"
        How to choose the centers. "uniform": random rows. "rpcholesky": rows by
        randomly pivoted Cholesky, in time n m^2; for unevenly spread data it needs
        fewer centers for the same accuracy. "leverage_scores": random rows, drawn with
        probabilities given by approximate ridge leverage scores; for such data too, in
        the same time. "kmeans": means of clusters of rows. Or an array of shape
        (n_centers, n_features): the centers, which need not be rows of X. With
        kernel="precomputed" neither "kmeans" nor an array is possible.
    loss : {"squared_error", "log_loss"}, default="squared_error"
        Loss to minimize. "squared_error": least squares on labels. "log_loss": kernel
        logistic regression, multinomial for more than two classes, whose probabilities
        need no calibration; it iterates, with the kernel matrix in memory if
        `cache_size` allows; see Notes.
    alpha : float, "auto" or "path", default="auto"
        Strength of the ridge penalty: raise it if targets are noisy. It is lambda in
        ``lambda |f|^2``, added to the *mean* squared error: alpha n on the diagonal of
        the kernel matrix, so scikit-learn's ``KernelRidge(alpha=a)`` is alpha = a / n.
        "auto": the one that best predicts new rows in kernel ridge regression on part
        of the rows, at most 4000, or by leave-one-out on up to 1000; 1e-6 below
        20 rows, and as "path" for a kernel that is not positive semi-definite. "path":
        the best of `alphas` for these centers, refitted to all rows. 0: least squares
        by the pseudo-inverse. If X is float32 and the penalty so small
        that rounding would change predictions, the model is float64.
    alphas : array-like or None, default=None
        The values of a path, only with ``alpha="path"``. None: 100 from 1e-15 to 1,
        evenly in the logarithm.
    selection : {"auto", "holdout", "gcv", "loo"}, default="auto"
        How to select from a path: by the error on held-out rows (or on `X_val`, `y_val`
        of `fit`), by generalized cross-validation or by the exact leave-one-out error,
        the last two in closed form on all rows. "auto": "loo" below 1000 distinct rows
        that are all centers, unless there is `X_val`; otherwise "holdout". If noise
        alone may have made errors different, the largest alpha among them is chosen.
    one_standard_error : bool, default=False
        Whether to take, with ``selection="holdout"``, the largest alpha whose error is
        within one standard error of the least. Within the noise it is as good, and it
        is safer if new data may differ from the held-out rows.
    validation_fraction : float, default=0.2
        Fraction of the rows to hold out, the same from every class. Equal rows with
        equal targets stay together. The model is refitted to all rows, so the default
        is more than the 0.1 of `EigenProRegressor`, which is not.
    store_coef_path : bool, default=False
        Whether to keep all models of the path, in `coef_path_`.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, multiplied by `sample_weight`.
    cache_size : float or "auto", default="auto"
        MB of kernel matrix to keep in memory for ``selection="loo"``, which reads it
        twice. "auto": what fits, if keeping it is faster. 0: none.
    device : {"auto", "cpu", "cuda", "cuda:N"} or list of them, default="auto"
        Where to compute. "auto": where X lives. "cuda": on a GPU; X may stay on the
        host. A list, such as ["cuda:0", "cuda:1"], splits the centers over them.
    random_state : int, RandomState instance or None, default=None
        Controls what is drawn at random: centers, validation rows, subsample for the
        median distance. Pass an int for reproducible results.
    verbose : int, default=0
        1 shows lines of progress.

    Attributes
    ----------
    dual_coef_ : array of shape (n_centers, n_outputs)
        Coefficients a of ``f(x) = K(x, centers_) a + intercept_``. They are 0 for
        centers that are copies of others, or in the span of others up to rounding.
    centers_ : array of shape (n_centers, n_features) or None
        The centers; X itself if all rows are centers. None for kernel="precomputed",
        when `dual_coef_` has a row for every training row.
    center_indices_ : array of shape (n_centers,) or None
        Their indices in X. None if all rows, means or an array are the centers.
    n_centers_ : int
        Number of centers that are not left out.
    intercept_ : array of shape (n_outputs,)
        Weighted mean of the targets; with ``loss="log_loss"`` fitted without a penalty.
    kernel_ : Kernel or None
        The kernel object with its bandwidth. None for kernel="precomputed".
    bandwidth_ : float or None
        sigma in use, if the kernel has one.
    alpha_ : float
        lambda in use.
    alphas_ : array of shape (n_alphas,) or None
        Values of the path; None for a single alpha, like `validation_path_`.
    selection_ : str or None
        Criterion that selected from the path.
    validation_path_ : array of shape (n_alphas,) or None
        Their mean squared errors by the criterion `selection`, or mean log losses with
        ``loss="log_loss"``; NaN for values that were not tried.
    coef_path_ : array of shape (n_alphas, n_centers, n_outputs) or None
        `dual_coef_` of each value (or of the single alpha), fitted to all rows, in
        float64, if ``store_coef_path=True``.
    calibration_ : object
        How `predict_proba` maps values to probabilities: `scale`, `offsets`, `floor`;
        absent with ``loss="log_loss"``.
    classes_ : ndarray of shape (n_classes,)
        Labels; a NumPy array even if X comes from another library.
    n_features_in_ : int
        Number of features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X has string names.

    See Also
    --------
    NystromRegressor : The same for real targets.
    NytroClassifier : Early stopping in place of a penalty.
    EigenProClassifier : By iteration, for more rows or centers.
    DSGClassifier : Streams, and other losses.
    RFMClassifier : Learns which features matter, by several such fits.

    Notes
    -----
    With ``loss="log_loss"`` the model minimizes ::

        mean_i loss(y_i, f(x_i)) + alpha / 2 |f - intercept|^2

    where the loss is ``log(1 + exp(-y f))`` for two classes, y = -1 or 1, and the
    softmax loss for more, with one column per class and sum zero. `alpha` means what it
    does with half the squared error; it must be positive. "auto" is the value with the
    least log loss on held-out rows, with at most 2000 rows and 1000 centers; 1 / n for
    fewer than 20. For ``LogisticRegression`` of scikit-learn on features it corresponds
    to ``C = 1 / (alpha n)``, where the sum of the weights, if any, replaces n.
    `decision_function` returns f, the log odds for two classes.

    The path goes from large values to small ones, each model the start of the next. It
    ends when the held-out log loss rises, or has fallen by less than 1 % over a factor
    of 10; ``alphas=None`` means 31 values. The objective is minimized to within some
    1e-5 of its value. `selection` must be "holdout" and `store_coef_path` False. With
    all rows as centers some Newton steps take time n^3; "auto" uses all rows up to
    some 4500. The centers are then the distinct rows of nonzero weight, listed in
    `center_indices_`. Every iteration uses the kernel matrix of rows and centers, which
    is kept in memory up to `cache_size`.

    References
    ----------
    Camoriano, Angles, Rudi, Rosasco, "NYTRO: when subsampling meets early stopping",
    AISTATS 2016: equations 10 and 18.

    Williams and Seeger, "Using the Nystrom method to speed up kernel machines", NIPS
    2000.

    Marteau-Ferey, Bach, Rudi, "Globally convergent Newton methods for ill-conditioned
    generalized self-concordant losses", NeurIPS 2019 (arXiv:1907.01771): the log loss.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from eigenkern import NystromClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = NystromClassifier(n_centers=300, alpha="path", random_state=0)
    >>> model.fit(X[:1500], y[:1500]).score(X[1500:], y[1500:]) > 0.9
    True
    >>> model = NystromClassifier(loss="log_loss", n_centers=100, alpha=1e-5)
    >>> model.fit(X[:500], y[:500]).predict_proba(X[500:]).shape
    (1297, 10)
    """

    def __init__(
        self,
        kernel: KernelLike = "laplacian",
        *,
        bandwidth: float | str = "auto",
        n_centers: int | str | None = "auto",
        centers: str | ArrayLike = "uniform",
        loss: str = "squared_error",
        alpha: float | str = "auto",
        alphas: ArrayLike | None = None,
        selection: str = "auto",
        one_standard_error: bool = False,
        validation_fraction: float = 0.2,
        store_coef_path: bool = False,
        class_weight: Mapping[Any, float] | str | None = None,
        cache_size: float | str = "auto",
        device: Device = "auto",
        random_state: RandomState = None,
        verbose: int | bool = 0,
    ) -> None:
        keep_parameters(self, locals())

    def _check_parameters(self):
        super()._check_parameters()
        check_loss(self)
        if not has_log_loss(self):
            return
        if self.alphas is not None and (np.asarray(self.alphas) == 0).any():
            raise ValueError(
                "alphas must be positive with loss='log_loss'; got one that is 0"
            )
        if self.selection not in ("auto", "holdout"):
            raise ValueError(
                "selection must be 'auto' or 'holdout' with loss='log_loss': the "
                "others have a closed form for the squared loss only; got "
                f"{self.selection!r}"
            )
        if self.store_coef_path:
            raise ValueError(
                "store_coef_path must be False with loss='log_loss', whose models "
                "differ in their intercepts too; got True"
            )

    def _solution(self, *given):
        return (self._by_newton if has_log_loss(self) else super()._solution)(*given)

    def _by_newton(self, problem, alphas, selection, chooser):
        """Yield the model of the best lambda, that of `chooser`, fitted to all rows."""
        selects = selection is not None
        problem.iterates(float(alphas.min()), to_its_end=not selects)
        chooser.iterates(float(alphas.min()), to_its_end=not selects)
        self._say(f"Newton steps on {len(problem.train.index)} rows")
        alpha, found, coef = float(alphas[0]), {}, problem.start
        if not problem.constant:
            lead = way_down(alpha)
            if selects:
                one_deviation = self.one_standard_error
                alpha, other, errors = best_of_path(chooser, alphas, one_deviation)
                coef = other if chooser is problem else coef
                del chooser, other
                warn_at_end(self, alphas, errors)
                n_tried = int(np.sum(~np.isnan(errors)))
                self._say(f"path of {n_tried} values: alpha = {alpha:.3g}")
                found["alphas_"] = problem.to_source(alphas)
                found["validation_path_"] = problem.to_source(errors)
                lead = [alpha]
            rows = problem.all if problem.refits else problem.train
            objective = problem.objective(rows)
            preconditioner = problem.preconditioner(objective, rows)
            given = objective, preconditioner, coef, lead
            state = minimized(*given, KEPT_TOL, MOST_STEPS)
            if not state.converged:
                warn_user(
                    f"{type(self).__name__} stopped after {MOST_STEPS} Newton steps "
                    f"with a residual of {state.residual:.1e}; the best model is kept: "
                    "raise alpha"
                )
            coef = state.coef
        yield State(coef, found | {"alpha_": alpha, "n_centers_": problem.n_coefs})
