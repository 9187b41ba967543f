"""Nystrom kernel ridge regression and NYTRO, with their regularisation paths."""

import numpy as np

from ..backend.array import device_of, namespace
from ..nystrom.filters import path_coefs, ridge_filter, ridge_kept
from ..nystrom.selection import gcv_errors, loo_errors
from ..nystrom.systems import OnCenters, OnRows
from ..nystrom.whitening import NystromPlan
from .base import KernelModel
from .targets import ClassificationTargets, RegressionTargets
from .validation import check_flag, check_number, warn_user


class _PathModel(KernelModel):
    """Kernel least squares on centers with a path of models to select from."""

    def fit(
        self,
        X,
        y,
        sample_weight=None,
        *,
        X_val=None,
        y_val=None,
        sample_weight_val=None,
    ):
        """Fit the model.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Training rows; the values of the kernel are computed in their data type,
            the linear algebra in float64. In kernel="precomputed": the kernel matrix
            of the training rows.
        y : array of shape (n_samples,) or (n_samples, n_outputs)
            Targets; one label a row for a classifier.
        sample_weight : array of shape (n_samples,), default=None
            Weights of the squared residuals, not negative. A weight of 2 equals the
            same row twice.
        X_val, y_val : arrays, default=None
            Rows to select by, instead of rows of X that are held out; only where
            something is selected with ``selection="holdout"``.
        sample_weight_val : array, default=None
            Their weights; `class_weight` counts for them too.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the data or a parameter are wrong, or the memory does not suffice; a
            model fitted before stays usable.

        Warns
        -----
        ConvergenceWarning
            If the kernel is not positive semi-definite, and its negative part is
            dropped.
        """
        return self._fit_or_restore(
            X,
            y,
            sample_weight,
            X_val=X_val,
            y_val=y_val,
            sample_weight_val=sample_weight_val,
        )

    def _max_subtasks(self):
        return 0

    def _check_common(self, selections):
        check_number(
            "validation_fraction", self.validation_fraction, 0, 1, open_ends=True
        )
        check_flag("store_coef_path", self.store_coef_path)
        named = self.selection is None or isinstance(self.selection, str)
        if not named or self.selection not in selections:
            names = ", ".join(repr(name) for name in selections)
            raise ValueError(
                f"selection must be one of {names}; got {self.selection!r}"
            )

    def _make_problem(self, data, held_out):
        """Return the problem, with validation rows if `held_out` asks for them."""
        given = data.validation is not None
        if given and not held_out:
            raise ValueError(
                "X_val and y_val must be None unless a model is selected by them, with "
                f"selection='holdout'; got an array with selection={self.selection!r}"
                + (f" and alpha={self.alpha!r}" if hasattr(self, "alpha") else "")
            )
        fraction = self.validation_fraction if held_out and not given else None
        return self._make_center_problem(data, fraction=fraction)

    def _memory_plan(self, problem, *, path, n_candidates):
        n, n_outputs = problem.all.targets.shape
        size = n if problem.full else problem.n_centers
        kind = ("full " if problem.full else "") + ("path" if path else "ridge")
        return NystromPlan.make(
            kind,
            size,
            n,
            validated=problem.validation is not None and not problem.full,
            n_kept=3 * size * n_candidates * n_outputs if self.store_coef_path else 0,
        )

    def _select(self, system, training, filters_of, kept_of):
        """Return the errors of a path, and what else a refit can use.

        Parameters
        ----------
        system : OnCenters or OnRows
        training : object
            ``system.training(rows)``.
        filters_of : callable
            ``filters_of(spectrum)`` returns filters of shape (p, k).
        kept_of : callable
            ``kept_of(spectrum, n)`` returns what they leave of the targets.

        Returns
        -------
        errors : ndarray of shape (k,) or None
        spectrum : Spectrum
            Of the training rows.
        everything : object
            Training and held-out rows; `training` itself if none are.
        """
        problem = system.problem
        everything, rows = training, problem.train
        if problem.validation is not None:
            validation = system.validation(problem.validation)
            if len(problem.validation.index):
                everything = system.union(training, validation)
        mean = system.mean(training)
        spectrum = system.spectrum(training)
        self._warn_if_indefinite(spectrum)
        if self.selection is None:
            return None, spectrum, everything
        if problem.validation is not None:
            errors = system.errors(spectrum, filters_of(spectrum), mean, validation)
        elif self.selection == "gcv":
            n = problem.n_distinct(problem.train)
            errors = gcv_errors(spectrum, kept_of(spectrum, n), n)
        else:
            kept = kept_of(spectrum, None)
            width = 3 * (rows.targets.shape[1] + 1) * kept.shape[1]
            blocks = system.scores(spectrum, rows, width)
            Y = rows.targets - mean
            errors = loo_errors(spectrum, kept, blocks, Y, rows.weights)
        if not np.isfinite(errors).any():
            raise ValueError(
                f"selection={self.selection!r} found no model with a finite error: "
                "scale y, X or sample_weight, or choose another selection"
            )
        return errors, spectrum, everything

    def _coef_path(self, system, spectrum, filters):
        """Return the coefficients of a path where X lives, (k, p, l)."""
        xp, rows = namespace(filters), system.problem.all
        pieces = []
        for b in path_coefs(spectrum, filters):
            shape = b.shape
            coefs = system.coef(xp.reshape(b, (shape[0], -1)), rows)
            zero = xp.zeros_like(spectrum.squares)
            coefs = system.model(coefs, zero, rows)["dual_coef_"]
            home = namespace(coefs)
            coefs = home.reshape(coefs, (-1, *shape[1:]))
            pieces.append(home.permute_dims(coefs, (2, 0, 1)))
        return home.concat(pieces)

    def _warn_if_indefinite(self, spectrum):
        if spectrum.indefinite:
            warn_user(
                f"{type(self).__name__} dropped the negative part of a kernel that is "
                "not positive semi-definite: its smallest eigenvalue is "
                f"{spectrum.lowest:.3g}, its largest {float(spectrum.values[-1]):.3g}"
            )

    def _make_system(self, problem, n_epochs):
        """Return the problem in its features; a cache serves `n_epochs` products."""
        system = OnRows if problem.full else OnCenters
        return system(problem, self.cache_size, n_epochs)


class _Nystrom(_PathModel):
    def __init__(
        self,
        kernel="laplacian",
        *,
        bandwidth="median",
        n_centers=None,
        centers="uniform",
        alpha=1e-6,
        alphas=None,
        selection="holdout",
        one_standard_error=False,
        validation_fraction=0.2,
        store_coef_path=False,
        cache_size="auto",
        device="auto",
        random_state=None,
        verbose=0,
    ):
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.n_centers = n_centers
        self.centers = centers
        self.alpha = alpha
        self.alphas = alphas
        self.selection = selection
        self.one_standard_error = one_standard_error
        self.validation_fraction = validation_fraction
        self.store_coef_path = store_coef_path
        self.cache_size = cache_size
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _check_parameters(self):
        self._check_common(("holdout", "gcv", "loo"))
        if isinstance(self.alpha, str):
            if self.alpha != "path":
                raise ValueError(
                    f"alpha must be a number >= 0 or 'path'; got {self.alpha!r}"
                )
        else:
            check_number("alpha", self.alpha, 0)
        check_flag("one_standard_error", self.one_standard_error)
        if self.one_standard_error and self.selection != "holdout":
            raise ValueError(
                "one_standard_error=True needs errors of single rows that are held out,"
                f" with selection='holdout'; got selection={self.selection!r}"
            )
        self._grid()

    def _grid(self):
        """Return the values of lambda that are tried."""
        if self.alphas is None:
            return np.logspace(-15, 0, 100)
        try:
            alphas = np.asarray(self.alphas, dtype=np.float64)
        except (TypeError, ValueError):
            alphas = np.empty(0)
        right = alphas.ndim == 1 and len(alphas) and np.isfinite(alphas).all()
        if not right or (alphas < 0).any():
            raise ValueError(
                "alphas must be None or a list of finite numbers >= 0; "
                f"got {self.alphas!r}"
            )
        return alphas

    def _solve(self, data, context, given):
        along_path = isinstance(self.alpha, str)
        held_out = along_path and self.selection == "holdout"
        problem = self._make_problem(data, held_out)
        path = along_path or self.alpha == 0
        alphas = self._grid() if along_path else np.asarray([float(self.alpha)])
        plan = self._memory_plan(problem, path=path, n_candidates=len(alphas))
        problem.check_memory(plan)
        system = self._make_system(problem, 2 if self.selection == "loo" else 1)
        training = system.training(problem.train)
        self._say(f"normal equations of {len(problem.train.index)} rows")
        everything, spectrum = training, None
        fitted = {"alphas_": None, "validation_path_": None, "coef_path_": None}
        alpha = float(alphas[0])
        if along_path:
            mean = system.mean(training)
            errors, spectrum, everything = self._select(
                system,
                training,
                lambda spectrum: _ridge(spectrum, alphas),
                lambda spectrum, n: self._kept(spectrum, alphas, n),
            )
            alpha = float(alphas[np.nanargmin(errors)])
            if self.one_standard_error:
                deviation = self._deviation(system, spectrum, alpha, mean)
                within = errors <= np.nanmin(errors) + deviation
                alpha = float(alphas[within].max())
            self._say(f"path of {len(alphas)} values: alpha = {alpha:.3g}")
            fitted["alphas_"] = problem.source_floats(alphas)
            fitted["validation_path_"] = problem.source_floats(errors)
        if everything is not training:
            indefinite = spectrum is not None and spectrum.indefinite
            spectrum = system.spectrum(everything) if indefinite else None
        b, spectrum = self._solution(system, everything, spectrum, alpha)
        if self.store_coef_path:
            spectrum = spectrum or system.spectrum(everything)
            path = self._coef_path(system, spectrum, _ridge(spectrum, alphas))
            fitted["coef_path_"] = path
        coef = system.coef(b, problem.all)
        fitted |= {"alpha_": alpha, "n_centers_": system.n_centers}
        return system.model(coef, system.mean(everything), problem.all) | fitted

    def _solution(self, system, training, spectrum, alpha):
        """Return b for one alpha, and the spectrum if there is one."""
        if spectrum is None and alpha > 0:
            b = system.ridge(training, alpha)
            if b is not None:
                return b, None
        if spectrum is None:
            spectrum = system.spectrum(training)
            self._warn_if_indefinite(spectrum)
        return spectrum.coef(_ridge(spectrum, [alpha])[:, 0]), spectrum

    def _deviation(self, system, spectrum, alpha, mean):
        """Return the standard error of the validation error of one alpha."""
        problem = system.problem
        rows, xp = problem.validation, problem.xp
        b = spectrum.coef(_ridge(spectrum, [alpha])[:, 0])
        squares = system.squares(rows, mean)(system.coef(b, problem.train))
        w = rows.weights / xp.sum(rows.weights)
        variance = float(xp.sum(w * (squares - xp.sum(w * squares)) ** 2))
        return (variance / problem.n_distinct(rows)) ** 0.5

    def _kept(self, spectrum, alphas, n):
        scaled = spectrum.complete and n in (None, spectrum.values.shape[0])
        return ridge_kept(spectrum, _like(spectrum, alphas), scaled=scaled)


def _like(spectrum, values):
    """Return values of the host as an array beside those of the spectrum."""
    xp = namespace(spectrum.values)
    return xp.asarray(values, dtype=xp.float64, device=device_of(spectrum.values))


def _ridge(spectrum, alphas):
    return ridge_filter(spectrum.values, _like(spectrum, alphas), spectrum.floor)


class NystromRegressor(RegressionTargets, _Nystrom):
    """Kernel ridge regression on all rows or on Nystrom centers, with its path.

    Finds ``f(x) = sum_j a_j k(x, z_j) + intercept``, with m centers z_j, that has the
    least ::

        mean_i (y_i - f(x_i))^2 + alpha |f|^2

    in closed form: with all rows as centers this is kernel ridge regression (KRLS),
    with ``alpha=0`` kernel least squares (KOLS). A path of 100 values of alpha costs
    one eigendecomposition. Time is n m^2 + m^3, memory some m^2 numbers: the n m kernel
    values are computed in blocks.

    Parameters
    ----------
    kernel : str, Kernel or callable, default="laplacian"
        "gaussian" (alias "rbf"), "laplacian", "cauchy", "matern32", "matern52",
        "polynomial" (of degree 3), "linear", "precomputed", an object of
        `eigenkern.kernels`, or a callable ``k(X, Z)`` that returns the kernel matrix of
        two blocks of rows. The laplacian takes the Euclidean distance.
    bandwidth : float or "median", default="median"
        sigma of a kernel given by name, in the units of X. "median": the median
        distance on a subsample of 600 distinct rows. A kernel object brings its own.
    n_centers : int or None, default=None
        m, how many of the distinct training rows become centers, or all if they are
        fewer. None: all rows (kernel ridge regression).
    centers : str or array, default="uniform"
        How they are chosen. "uniform": rows at random. "rpcholesky": rows by randomly
        pivoted Cholesky, which needs fewer centers for the same accuracy where the data
        are unevenly spread, and time n m^2. "leverage_scores": rows at random, by
        approximate ridge leverage scores, for the same data, in as much time. "kmeans":
        means of clusters of rows. Or the centers themselves, shape (n_centers,
        n_features); they need not be rows of X. For kernel="precomputed" neither means
        nor an array.
    alpha : float or "path", default=1e-6
        lambda, of ``lambda |f|^2`` beside the *mean* squared error: alpha n on the
        diagonal of the kernel matrix, so that ``KernelRidge(alpha=a)`` of scikit-learn
        is alpha = a / n. 0: least squares by the pseudo-inverse. "path": the best of
        `alphas`, then fitted to all rows.
    alphas : array-like or None, default=None
        The values of a path. None: 100 from 1e-15 to 1, evenly in their logarithm.
    selection : {"holdout", "gcv", "loo"}, default="holdout"
        What a path is selected by: the error on rows held out (or on `X_val`, `y_val`
        of `fit`), generalised cross-validation, or the exact leave-one-out error, both
        in closed form and on all rows.
    one_standard_error : bool, default=False
        Whether to take, with ``selection="holdout"``, the largest alpha whose error is
        within one standard error of the least. It is as good as the best one can tell,
        and safer where the data to come may be others than those held out.
    validation_fraction : float, default=0.2
        Fraction of the rows to hold out. Equal rows with equal targets stay together.
    store_coef_path : bool, default=False
        Whether to keep `coef_path_`.
    cache_size : float or "auto", default="auto"
        MB of kernel matrix to keep in memory for
        ``selection="loo"``, which reads it twice. "auto": what really fits, where
        it pays. 0: none.
    device : {"auto", "cpu", "cuda", "cuda:N"} or list of them, default="auto"
        "auto" computes where X lives. "cuda" computes on a GPU, X may stay on the host;
        a list, such as ["cuda:0", "cuda:1"], splits the centers over several.
    random_state : int, RandomState instance or None, default=None
        Centers, validation rows, subsample of the median distance.
    verbose : int, default=0
        1 shows lines of progress.

    Attributes
    ----------
    dual_coef_ : array of shape (n_centers, n_outputs)
        Coefficients a of ``f(x) = K(x, centers_) a + intercept_``. Centers that are
        copies of others, or in the span of others to the accuracy of the computation,
        have 0.
    centers_ : array of shape (n_centers, n_features) or None
        The centers; X itself for ``n_centers=None``. None for kernel="precomputed",
        where `dual_coef_` has a row for every training row.
    center_indices_ : array of shape (n_centers,) or None
        Their places in X. None where all rows, means or an array are the centers.
    n_centers_ : int
        Centers that are not left out.
    intercept_ : array of shape (n_outputs,)
        Weighted mean of the targets.
    kernel_ : Kernel or None
        The kernel object with its bandwidth. None for kernel="precomputed".
    bandwidth_ : float or None
        sigma in use, where the kernel has one.
    alpha_ : float
        lambda in use.
    alphas_ : array of shape (n_alphas,) or None
        Values of the path; None for a single alpha, as `validation_path_`.
    validation_path_ : array of shape (n_alphas,) or None
        Their mean squared errors, of the criterion `selection`.
    coef_path_ : array of shape (n_alphas, n_centers, n_outputs) or None
        `dual_coef_` of each value (or of the single alpha), fitted to all rows; with
        ``store_coef_path=True``.
    n_features_in_ : int
        Features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, where X has string names.

    See Also
    --------
    NystromClassifier : The same for class labels.
    NytroRegressor : Early stopping in place of a penalty.
    FalkonLikeRegressor : The same model by conjugate gradients, for many centers.

    Notes
    -----
    Targets are centered by their mean, which becomes `intercept_`. A weight of 2 equals
    the same row twice; only ``selection="loo"`` leaves a row out with all its weight.

    Centers that are nearly dependent are found by a pivoted Cholesky factor of their
    kernel matrix and left out (pivots below 1e-12 of the largest, 1e-7 for float32).
    Sums over rows are float64 throughout.

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
    0.89
    """


class NystromClassifier(ClassificationTargets, _Nystrom):
    """Kernel ridge classification on all rows or on Nystrom centers, with its path.

    Least squares on -1 and +1 for two classes, on one column a class for more; the sign
    or the largest column decides. The algorithm is that of `NystromRegressor`.

    Parameters
    ----------
    kernel : str, Kernel or callable, default="laplacian"
        "gaussian" (alias "rbf"), "laplacian", "cauchy", "matern32", "matern52",
        "polynomial" (of degree 3), "linear", "precomputed", an object of
        `eigenkern.kernels`, or a callable ``k(X, Z)`` that returns the kernel matrix of
        two blocks of rows. The laplacian takes the Euclidean distance.
    bandwidth : float or "median", default="median"
        sigma of a kernel given by name, in the units of X. "median": the median
        distance on a subsample of 600 distinct rows. A kernel object brings its own.
    n_centers : int or None, default=None
        m, how many of the distinct training rows become centers, or all if they are
        fewer. None: all rows (kernel ridge regression).
    centers : str or array, default="uniform"
        How they are chosen. "uniform": rows at random. "rpcholesky": rows by randomly
        pivoted Cholesky, which needs fewer centers for the same accuracy where the data
        are unevenly spread, and time n m^2. "leverage_scores": rows at random, by
        approximate ridge leverage scores, for the same data, in as much time. "kmeans":
        means of clusters of rows. Or the centers themselves, shape (n_centers,
        n_features); they need not be rows of X. For kernel="precomputed" neither means
        nor an array.
    alpha : float or "path", default=1e-6
        lambda, of ``lambda |f|^2`` beside the *mean* squared error: alpha n on the
        diagonal of the kernel matrix, so that ``KernelRidge(alpha=a)`` of scikit-learn
        is alpha = a / n. 0: least squares by the pseudo-inverse. "path": the best of
        `alphas`, then fitted to all rows.
    alphas : array-like or None, default=None
        The values of a path. None: 100 from 1e-15 to 1, evenly in their logarithm.
    selection : {"holdout", "gcv", "loo"}, default="holdout"
        What a path is selected by: the error on rows held out (or on `X_val`, `y_val`
        of `fit`), generalised cross-validation, or the exact leave-one-out error, both
        in closed form and on all rows.
    one_standard_error : bool, default=False
        Whether to take, with ``selection="holdout"``, the largest alpha whose error is
        within one standard error of the least. It is as good as the best one can tell,
        and safer where the data to come may be others than those held out.
    validation_fraction : float, default=0.2
        Fraction of the rows to hold out, the same of every class. Equal rows with
        equal targets stay together.
    store_coef_path : bool, default=False
        Whether to keep `coef_path_`.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, times `sample_weight`.
    cache_size : float or "auto", default="auto"
        MB of kernel matrix to keep in memory for
        ``selection="loo"``, which reads it twice. "auto": what really fits, where
        it pays. 0: none.
    device : {"auto", "cpu", "cuda", "cuda:N"} or list of them, default="auto"
        "auto" computes where X lives. "cuda" computes on a GPU, X may stay on the host;
        a list, such as ["cuda:0", "cuda:1"], splits the centers over several.
    random_state : int, RandomState instance or None, default=None
        Centers, validation rows, subsample of the median distance.
    verbose : int, default=0
        1 shows lines of progress.

    Attributes
    ----------
    dual_coef_ : array of shape (n_centers, n_outputs)
        Coefficients a of ``f(x) = K(x, centers_) a + intercept_``. Centers that are
        copies of others, or in the span of others to the accuracy of the computation,
        have 0.
    centers_ : array of shape (n_centers, n_features) or None
        The centers; X itself for ``n_centers=None``. None for kernel="precomputed",
        where `dual_coef_` has a row for every training row.
    center_indices_ : array of shape (n_centers,) or None
        Their places in X. None where all rows, means or an array are the centers.
    n_centers_ : int
        Centers that are not left out.
    intercept_ : array of shape (n_outputs,)
        Weighted mean of the targets.
    kernel_ : Kernel or None
        The kernel object with its bandwidth. None for kernel="precomputed".
    bandwidth_ : float or None
        sigma in use, where the kernel has one.
    alpha_ : float
        lambda in use.
    alphas_ : array of shape (n_alphas,) or None
        Values of the path; None for a single alpha, as `validation_path_`.
    validation_path_ : array of shape (n_alphas,) or None
        Their mean squared errors, of the criterion `selection`.
    coef_path_ : array of shape (n_alphas, n_centers, n_outputs) or None
        `dual_coef_` of each value (or of the single alpha), fitted to all rows; with
        ``store_coef_path=True``.
    classes_ : ndarray of shape (n_classes,)
        Labels, as a NumPy array whichever library X is from.
    n_features_in_ : int
        Features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, where X has string names.

    See Also
    --------
    NystromRegressor : The same for real targets.
    NytroClassifier : Early stopping in place of a penalty.

    References
    ----------
    Camoriano, Angles, Rudi, Rosasco, "NYTRO: when subsampling meets early stopping",
    AISTATS 2016: equations 10 and 18.

    Williams and Seeger, "Using the Nystrom method to speed up kernel machines", NIPS
    2000.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from eigenkern import NystromClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = NystromClassifier(n_centers=300, alpha="path", random_state=0)
    >>> model.fit(X[:1500], y[:1500]).score(X[1500:], y[1500:]) > 0.9
    True
    """

    def __init__(
        self,
        kernel="laplacian",
        *,
        bandwidth="median",
        n_centers=None,
        centers="uniform",
        alpha=1e-6,
        alphas=None,
        selection="holdout",
        one_standard_error=False,
        validation_fraction=0.2,
        store_coef_path=False,
        class_weight=None,
        cache_size="auto",
        device="auto",
        random_state=None,
        verbose=0,
    ):
        super().__init__(
            kernel,
            bandwidth=bandwidth,
            n_centers=n_centers,
            centers=centers,
            alpha=alpha,
            alphas=alphas,
            selection=selection,
            one_standard_error=one_standard_error,
            validation_fraction=validation_fraction,
            store_coef_path=store_coef_path,
            cache_size=cache_size,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight
