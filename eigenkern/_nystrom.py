"""Nystrom kernel ridge regression and NYTRO, with their regularisation paths."""

import warnings
from itertools import islice

import numpy as np

from ._array import available_memory, device_of, namespace
from ._base import (
    ClassificationTargets,
    ConvergenceWarning,
    KernelModel,
    RegressionTargets,
    check_number,
    is_auto,
)
from ._linalg import largest_eigenvalue, solve_triangular
from ._operator import cache_budget, fill_caches
from .solvers.nystrom import (
    Moments,
    NystromPlan,
    Spectrum,
    Whitening,
    check_finite,
    descend,
    descent_filter,
    descent_kept,
    factorising_pays,
    gcv_errors,
    loo_errors,
    path_coefs,
    ridge_filter,
    ridge_kept,
    solve_ridge,
    validation_errors,
)


class _Descent:
    """Gradient descent on some rows.

    Attributes
    ----------
    mean : array of shape (l,)
        Of the targets.
    start : array
        Coefficients of zero.
    top : float
        Largest eigenvalue of the problem.
    """

    def __init__(self, system, rows):
        xp = namespace(rows.targets)
        self._system, self._rows = system, rows
        self._weight = float(xp.sum(rows.weights))
        self.mean = rows.weights @ rows.targets / self._weight
        self._targets = rows.targets - self.mean
        self._operator = system.cached(system.operator_of(rows))
        shape = (self._operator.shape[1], rows.targets.shape[1])
        like = {"dtype": xp.float64, "device": device_of(rows.targets)}
        self.start = xp.zeros(shape, **like)
        first = np.random.default_rng(0).standard_normal(shape[0])
        first = xp.asarray(first, **like)
        self.top = largest_eigenvalue(
            lambda v: self._product(v[:, None], None)[:, 0],
            first,
            n_steps=100,
            tol=1e-11,
        )

    def _product(self, b, targets):
        g = self._system.gradient(self._operator, b, targets, self._rows)
        return g / self._weight

    def run(self, step_size):
        """Yield the coefficients after 1, 2, ... steps."""
        return descend(lambda b: self._product(b, self._targets), self.start, step_size)

    def dual(self, b):
        """Return the coefficients of the centres."""
        return self._system.coef(b, self._rows)


class _System:
    """The problem in its features: what both kinds of them share."""

    def __init__(self, problem, cache_size, n_epochs):
        self.problem = problem
        self._cache_size, self._n_epochs = cache_size, n_epochs

    def cached(self, operator):
        """Return an operator that keeps its matrix, where it fits and pays."""
        if self._n_epochs > 1:
            n_features = self.problem.n_features
            kept = fill_caches([operator], self._cache_size, self._n_epochs, n_features)
            if not is_auto(self._cache_size):
                self._cache_size -= kept
        return operator

    def error(self, rows, mean):
        """Return a function: mean squared error on rows, of coefficients of centres."""
        xp = self.problem.xp
        operator = self.cached(self.operator_of(rows))
        Y = rows.targets - mean
        scale = 1.0 / (float(xp.sum(rows.weights)) * Y.shape[1])

        def error_of(coef):
            F = operator @ xp.astype(coef, operator.dtype, copy=False)
            squares = xp.sum((xp.astype(F, xp.float64) - Y) ** 2, axis=1)
            return scale * float(xp.sum(rows.weights * squares))

        return error_of


class _OnCenters(_System):
    """The problem in the features R' K(Z, x) of its centres."""

    def __init__(self, problem, cache_size, n_epochs):
        super().__init__(problem, cache_size, n_epochs)
        K_mm = problem.center_matrix()
        check_finite(K_mm)
        self._whitening = Whitening.of(K_mm, problem.dtype)
        self.n_centers = len(self._whitening.kept)
        self._R = self._whitening.transform(problem.dtype)
        self._rounding = self._whitening.rounding(self._R is not None)
        self._of_train = None

    def operator_of(self, rows):
        """Return K(X, Z) of the rows and of the centres that are kept."""
        return self.problem.operator(rows, self._whitening.kept)

    def training(self, rows):
        """Return the sums over the rows."""
        operator = self._operator(rows)
        return Moments.of(operator, rows.targets, rows.weights, self._R)

    def _operator(self, rows):
        """Return `operator_of` the rows; that of the training rows is kept."""
        if rows is not self.problem.train:
            return self.operator_of(rows)
        if self._of_train is None:
            self._of_train = self.cached(self.operator_of(rows))
        return self._of_train

    def whitened(self, sums):
        """Return the sums for the features, of those of `training`."""
        # After all sums: threads of BLAS go on spinning and slow a kernel's tiles.
        return sums if self._R is not None else sums.whitened(self._whitening.L)

    def validation(self, rows, training):
        """Return the sums over the rows for the features of `training`."""
        return self.training(rows)

    def union(self, training, validation):
        """Return the sums over both sets of rows."""
        return training + validation

    def mean(self, training):
        """Return the mean of the targets."""
        return training.mean

    def spectrum(self, training):
        """Return the spectrum; `training` is of no use after it."""
        return Spectrum.of_moments(self.whitened(training), self._rounding)

    def ridge(self, training, alpha):
        """Return b for one lambda > 0, or None if B is not definite."""
        sums = self.whitened(training)
        q = sums.centred_cross(sums.mean) / sums.weight
        return solve_ridge(sums.gram / sums.weight, q, alpha)

    def scores(self, spectrum, rows):
        """Yield ranges of rows and their W^1/2 Phi V, columns of norm 1."""
        xp = self.problem.xp
        operator = self._operator(rows)
        inside, e = spectrum.inside, spectrum.values
        scale = (spectrum.weight * xp.where(inside, e, xp.ones_like(e))) ** -0.5
        scale = xp.where(inside, scale, xp.zeros_like(scale))
        R_V = self.coef(spectrum.vectors * scale, rows)
        size = operator.gram_rows()
        for i in range(0, len(rows.index), size):
            block = slice(i, min(i + size, len(rows.index)))
            K = operator.block(block.start, block.stop, dtype=R_V.dtype)
            yield block, xp.sqrt(rows.weights[block])[:, None] * (K @ R_V)

    def gradient(self, operator, b, targets, rows):
        """Return Phi' W (Phi b - targets)."""
        g = operator.normal_product(self.coef(b, rows), targets, rows.weights)
        return solve_triangular(self._whitening.L, g)

    def coef(self, b, rows):
        """Return the coefficients of the centres that are kept."""
        return self._whitening.expand(b)

    def model(self, coef, intercept, rows):
        """Return the attributes that prediction needs."""
        return self.problem.center_model(coef, intercept, self._whitening.kept)


class _OnRows(_System):
    """The problem in the features W^1/2 K(X, x): every training row is a centre."""

    def __init__(self, problem, cache_size, n_epochs):
        super().__init__(problem, cache_size, n_epochs)
        self.n_centers = len(problem.all.index)
        self._rounding = 10 * float(problem.xp.finfo(problem.dtype).eps)

    def operator_of(self, rows):
        """Return K of the rows and the training rows."""
        train = self.problem.train
        if rows is self.problem.validation:
            return self.problem.full_operator(train, rows)
        return self.problem.full_operator(rows)

    def training(self, rows):
        """Return the rows: their kernel matrix is computed where it is consumed."""
        return rows

    def whitened(self, sums):
        """Return the sums, which are those of the features already."""
        return sums

    def validation(self, rows, training):
        """Return the sums over the rows for the features of `training`."""
        root = namespace(rows.targets).sqrt(training.weights)[:, None]
        sums = Moments.of(self.operator_of(rows), rows.targets, rows.weights)
        return Moments(root * sums.gram * root.T, root * sums.cross, sums.squares)

    def union(self, training, validation):
        """Return the rows of both."""
        return self.problem.all

    def mean(self, training):
        """Return the mean of the targets."""
        weights = training.weights
        return weights @ training.targets / float(namespace(weights).sum(weights))

    def spectrum(self, training):
        """Return the spectrum."""
        Y = training.targets - self.mean(training)
        K = self._matrix(training)
        return Spectrum.of_kernel(K, Y, training.weights, self._rounding)

    def ridge(self, training, alpha):
        """Return b for one lambda > 0, or None if K is not definite."""
        xp = namespace(training.targets)
        q = xp.sqrt(training.weights)[:, None]
        q = q * (training.targets - self.mean(training))
        alpha *= float(xp.sum(training.weights))
        return solve_ridge(self._matrix(training), q, alpha)

    def _matrix(self, rows):
        """Return W^1/2 K W^1/2 in float64, which may be overwritten."""
        xp = namespace(rows.targets)
        K = self.operator_of(rows).block(dtype=xp.float64)
        check_finite(xp.linalg.diagonal(K))
        if not bool(xp.all(rows.weights == 1)):
            root = xp.sqrt(rows.weights)
            K = root[:, None] * K * root[None, :]
        return K

    def scores(self, spectrum, rows):
        """Yield all rows and their W^1/2 Phi V, columns of norm 1."""
        scale = (spectrum.values * spectrum.weight) ** 0.5
        yield slice(0, len(rows.index)), spectrum.vectors * scale

    def gradient(self, operator, b, targets, rows):
        """Return W^1/2 (K W^1/2 b - targets)."""
        xp = namespace(b)
        F = operator @ xp.astype(self.coef(b, rows), operator.dtype, copy=False)
        F = xp.astype(F, xp.float64, copy=False)
        F = F if targets is None else F - targets
        return xp.sqrt(rows.weights)[:, None] * F

    def coef(self, b, rows):
        """Return the coefficients of the rows."""
        return namespace(b).sqrt(rows.weights)[:, None] * b

    def model(self, coef, intercept, rows):
        """Return the attributes that prediction needs."""
        return self.problem.full_model(coef, intercept, rows)


class _PathModel(KernelModel):
    """Kernel least squares on centres with a path of models to select from."""

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
            Rows to select by, instead of rows of X that are held out.
        sample_weight_val : array, default=None
            Their weights.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the data or a parameter are wrong, or the memory does not suffice; a
            model fitted before stays usable.
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
        if self.selection not in selections:
            names = ", ".join(repr(name) for name in selections)
            raise ValueError(
                f"selection must be one of {names}; got {self.selection!r}"
            )

    def _make_problem(self, data, held_out):
        """Return the problem, with validation rows if `held_out` asks for them."""
        if not held_out:
            data = data._replace(validation=None)
        fraction = self.validation_fraction
        given = data.validation is not None
        return self._make_center_problem(
            data, fraction=fraction if held_out and not given else None
        )

    def _check_memory(self, problem, *, path):
        xp = problem.xp
        size = problem.n_centers or len(problem.all.index)
        n_block = min(int(64e6 // (8 * size)) + 16, len(problem.all.index))
        validated = problem.validation is not None
        plan = NystromPlan.make(size, n_block, path=path, validated=validated)
        free = available_memory(xp, problem.device)
        if plan.bytes > free:
            raise ValueError(
                f"n_centers={self.n_centers} needs {plan.bytes / 1e6:.0f} MB for "
                f"matrices of {size} x {size}, but {free / 1e6:.0f} MB of memory are "
                "free; pass a smaller n_centers"
            )
        return plan

    def _select(self, system, training, filters_of, kept_of):
        """Return the errors of a path, and what else a refit can use.

        Parameters
        ----------
        system : _OnCenters or _OnRows
        training : object
            ``system.training(rows)``.
        filters_of : callable
            ``filters_of(spectrum)`` returns filters of shape (p, k).
        kept_of : callable
            ``kept_of(spectrum)`` returns what they leave of the targets.

        Returns
        -------
        errors : ndarray of shape (k,) or None
        spectrum : Spectrum
            Of the training rows.
        everything : object
            Training and held-out rows; `training` itself if none are.
        """
        problem = system.problem
        everything, validation = training, None
        if problem.validation is not None:
            validation = system.validation(problem.validation, training)
            if len(problem.validation.index):
                everything = system.union(training, validation)
        spectrum = system.spectrum(training)
        if validation is not None:
            errors = validation_errors(
                spectrum,
                filters_of(spectrum),
                system.whitened(validation),
                system.mean(training),
            )
        elif self.selection == "gcv":
            errors = gcv_errors(spectrum, kept_of(spectrum))
        elif self.selection == "loo":
            rows = problem.train
            errors = loo_errors(
                spectrum,
                kept_of(spectrum),
                system.scores(spectrum, rows),
                rows.targets - system.mean(training),
                rows.weights,
            )
        else:
            errors = None
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
        if spectrum.lowest < -1e-6 * float(spectrum.values[-1]):
            warnings.warn(
                f"{type(self).__name__} dropped the negative part of a kernel that is "
                "not positive semi-definite: its smallest eigenvalue is "
                f"{spectrum.lowest:.3g}, its largest {float(spectrum.values[-1]):.3g}",
                ConvergenceWarning,
                stacklevel=6,
            )

    def _make_system(self, problem, n_epochs):
        """Return the problem in its features; a cache serves `n_epochs` products."""
        return (_OnRows if problem.full else _OnCenters)(
            problem, self.cache_size, n_epochs
        )


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
        self._check_memory(problem, path=path)
        system = self._make_system(problem, 2 if self.selection == "loo" else 1)
        training = system.training(problem.train)
        self._say(f"normal equations of {len(problem.train.index)} rows")
        everything, spectrum = training, None
        fitted = {"alphas_": None, "validation_path_": None, "coef_path_": None}
        alphas = self._grid() if along_path else np.asarray([float(self.alpha)])
        alpha = float(alphas[0])
        if along_path:
            errors, spectrum, everything = self._select(
                system,
                training,
                lambda spectrum: _ridge(spectrum, alphas),
                lambda spectrum: self._kept(spectrum, alphas),
            )
            alpha = float(alphas[np.nanargmin(errors)])
            self._say(f"path of {len(alphas)} values: alpha = {alpha:.3g}")
            fitted["alphas_"] = problem.home_floats(alphas)
            fitted["validation_path_"] = problem.home_floats(errors)
        if everything is not training:
            spectrum = None
        b = None
        if spectrum is None and alpha > 0 and not self.store_coef_path:
            b = system.ridge(everything, alpha)
        if b is None:
            spectrum = spectrum or system.spectrum(everything)
            self._warn_if_indefinite(spectrum)
            b = spectrum.coef(_ridge(spectrum, [alpha])[:, 0])
        if self.store_coef_path:
            path = self._coef_path(system, spectrum, _ridge(spectrum, alphas))
            fitted["coef_path_"] = path
        coef = system.coef(b, problem.all)
        fitted |= {"alpha_": alpha, "n_centers_": system.n_centers}
        return system.model(coef, system.mean(everything), problem.all) | fitted

    def _kept(self, spectrum, alphas):
        leave_out = self.selection == "loo"
        scaled = spectrum.complete if leave_out else spectrum.whole
        return ridge_kept(spectrum, _like(spectrum, alphas), scaled=scaled)


def _like(spectrum, values):
    """Return values of the host as an array beside those of the spectrum."""
    xp = namespace(spectrum.values)
    return xp.asarray(values, dtype=xp.float64, device=device_of(spectrum.values))


def _ridge(spectrum, alphas):
    return ridge_filter(spectrum.values, _like(spectrum, alphas), spectrum.floor)


class _Nytro(_PathModel):
    def __init__(
        self,
        kernel="laplacian",
        *,
        bandwidth="median",
        n_centers=None,
        centers="uniform",
        max_iter=500,
        step_size="auto",
        tol=None,
        selection="holdout",
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
        self.max_iter = max_iter
        self.step_size = step_size
        self.tol = tol
        self.selection = selection
        self.validation_fraction = validation_fraction
        self.store_coef_path = store_coef_path
        self.cache_size = cache_size
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _check_parameters(self):
        self._check_common(("holdout", "gcv", None))
        check_number("max_iter", self.max_iter, 1, integer=True)
        if not is_auto(self.step_size):
            check_number("step_size", self.step_size, 0, open_ends=True)
        if self.tol is not None:
            check_number("tol", self.tol, 0)

    def _solve(self, data, context, given):
        problem = self._make_problem(data, self.selection == "holdout")
        if self._factorises(problem):
            return self._factorised(problem)
        return self._iterated(problem)

    def _factorises(self, problem):
        """Whether one factorisation is cheaper than iterating."""
        if self.selection == "gcv":
            return True
        n = len(problem.all.index)
        size = problem.n_centers or n
        itemsize = problem.xp.finfo(problem.dtype).bits // 8
        return factorising_pays(
            n,
            None if problem.full else size,
            problem.n_features,
            problem.all.targets.shape[1],
            self.max_iter,
            itemsize=itemsize,
            cached=n * size * itemsize <= cache_budget(self.cache_size, problem),
        )

    def _step(self, top):
        """Return the step for operators with the largest eigenvalue `top`."""
        if is_auto(self.step_size):
            return 1.0 / top if top > 0 else 1.0
        if self.step_size * top >= 2:
            raise ValueError(
                "step_size must be below 2 over the largest eigenvalue of the "
                f"problem, {2 / top:.6g}, or the iteration diverges; got "
                f"{self.step_size!r}"
            )
        return float(self.step_size)

    def _choose(self, errors):
        """Return t: the least error, or the first small relative decrease."""
        if self.tol is not None:
            for t in range(1, len(errors)):
                if _decrease(errors, t) < self.tol:
                    return t
        return int(np.nanargmin(errors))

    def _refit_step(self, step, top, t):
        """Return a step that is stable on all rows, and as many times it as t steps."""
        if step * top < 2:
            return step, t
        return 1.0 / top, round(t * step * top)

    def _factorised(self, problem):
        self._check_memory(problem, path=True)
        system = self._make_system(problem, 1)
        training = system.training(problem.train)
        self._say(f"normal equations of {len(problem.train.index)} rows")
        steps = np.arange(self.max_iter + 1)
        errors, spectrum, everything = self._select(
            system,
            training,
            lambda spectrum: _descent(spectrum, steps, self._step(_top(spectrum))),
            lambda spectrum: descent_kept(
                spectrum, _like(spectrum, steps), self._step(_top(spectrum))
            ),
        )
        step = self._step(_top(spectrum))
        t = self.max_iter if errors is None else self._choose(errors)
        self._say(f"path of {self.max_iter} iterations: t = {t}")
        if everything is not training:
            spectrum = system.spectrum(everything)
        self._warn_if_indefinite(spectrum)
        refit_step, n_steps = self._refit_step(step, _top(spectrum), t)
        b = spectrum.coef(_descent(spectrum, [n_steps], refit_step)[:, 0])
        fitted = {"coef_path_": None}
        if self.store_coef_path:
            filters = _descent(spectrum, steps, refit_step)
            fitted["coef_path_"] = self._coef_path(system, spectrum, filters)
        coef = system.coef(b, problem.all)
        model = system.model(coef, system.mean(everything), problem.all)
        return model | fitted | self._fitted(system, errors, n_steps, refit_step)

    def _fitted(self, system, errors, n_iter, step):
        return {
            "n_iter_": n_iter,
            "step_size_": step,
            "validation_path_": system.problem.home_floats(errors),
            "n_centers_": system.n_centers,
        }

    def _iterated(self, problem):
        system = self._make_system(problem, self.max_iter)
        descent = _Descent(system, problem.train)
        step = self._step(descent.top)
        self._say(f"step {step:.3g} on {len(problem.train.index)} rows")
        t, errors = self.max_iter, None
        if problem.validation is not None:
            error_of = system.error(problem.validation, descent.mean)
            errors = [error_of(descent.dual(descent.start))]
            for coef in islice(descent.run(step), self.max_iter):
                errors.append(error_of(descent.dual(coef)))
                if not np.isfinite(errors[-1]) or (
                    self.tol is not None
                    and _decrease(errors, len(errors) - 1) < self.tol
                ):
                    break
            errors = np.asarray(errors)
            t = self._choose(errors)
            self._say(f"path of {len(errors) - 1} iterations: t = {t}")
            if len(problem.validation.index):
                descent = _Descent(system, problem.all)
        step, n_steps = self._refit_step(step, descent.top, t)
        coefs, coef = [descent.start], descent.start
        n_run = self.max_iter if self.store_coef_path else n_steps
        for i, b in enumerate(islice(descent.run(step), n_run)):
            coef = b if i < n_steps else coef
            if self.store_coef_path:
                coefs.append(b)
        model = system.model(descent.dual(coef), descent.mean, problem.all)
        fitted = {"coef_path_": None}
        if self.store_coef_path:
            zero = descent.mean * 0
            path = [
                system.model(descent.dual(b), zero, problem.all)["dual_coef_"]
                for b in coefs
            ]
            fitted["coef_path_"] = namespace(path[0]).stack(path)
        return model | fitted | self._fitted(system, errors, n_steps, step)


def _top(spectrum):
    return float(spectrum.values[-1])


def _descent(spectrum, steps, step_size):
    return descent_filter(spectrum.values, _like(spectrum, steps), step_size)


def _decrease(errors, t):
    """Return the relative decrease of the error at iteration t."""
    return (errors[t - 1] - errors[t]) / errors[t - 1] if errors[t - 1] > 0 else 0.0


class NystromRegressor(RegressionTargets, _Nystrom):
    """Kernel ridge regression on all rows or on Nystrom centres, with its path.

    Finds ``f(x) = sum_j a_j k(x, z_j) + intercept``, with m centres z_j, that has the
    least ::

        mean_i (y_i - f(x_i))^2 + alpha |f|^2

    in closed form: with all rows as centres this is kernel ridge regression (KRLS),
    with ``alpha=0`` kernel least squares (KOLS). A path of 100 values of alpha costs
    one eigendecomposition. Time is n m^2 + m^3, memory some m^2 numbers: the n m kernel
    values are computed in blocks and never kept.

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
        m, how many of the distinct training rows become centres. None: all rows
        (kernel ridge regression).
    centers : "uniform" or array of shape (n_centers, n_features), default="uniform"
        How rows are chosen, or the centres themselves, which need not be rows of X.
    alpha : float or "path", default=1e-6
        lambda, of lambda |f|^2 beside the *mean* squared error: alpha n on the diagonal
        of the kernel matrix, so that ``KernelRidge(alpha=a)`` of scikit-learn is
        alpha = a / n. 0: least squares by the pseudo-inverse. "path": the best of
        `alphas`, then fitted to all rows.
    alphas : array-like or None, default=None
        The values of a path. None: 100 from 1e-15 to 1, evenly in their logarithm.
    selection : {"holdout", "gcv", "loo"}, default="holdout"
        What a path is selected by: the error on rows held out (or on `X_val`, `y_val`
        of `fit`), generalised cross-validation, or the exact leave-one-out error, both
        in closed form and on all rows.
    validation_fraction : float, default=0.2
        Fraction of the rows to hold out. Equal rows stay together.
    store_coef_path : bool, default=False
        Whether to keep `coef_path_`.
    cache_size : float or "auto", default="auto"
        MB of kernel matrix to keep in memory for
        ``selection="loo"``, which reads it twice. "auto": what really fits, where
        it pays. 0: none.
    device : {"auto", "cpu", "cuda", "cuda:N"}, default="auto"
        "auto" computes where X lives; otherwise X is copied there for the computation.
    random_state : int, RandomState instance or None, default=None
        Centres, validation rows, subsample of the median distance.
    verbose : int, default=0
        1 shows lines of progress.

    Attributes
    ----------
    dual_coef_ : array of shape (n_centers, n_outputs)
        Coefficients a of ``f(x) = K(x, centers_) a + intercept_``. Centres that are
        copies of others, or in the span of others to the accuracy of the computation,
        have 0.
    centers_ : array of shape (n_centers, n_features) or None
        The centres; X itself for ``n_centers=None``. None for kernel="precomputed",
        where `dual_coef_` has a row for every training row.
    center_indices_ : array of shape (n_centers,) or None
        Their places in X. None where all rows, or an array, are the centres.
    n_centers_ : int
        Centres that are not left out.
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
        `dual_coef_` of each value, fitted to all rows; with ``store_coef_path=True``.
    n_features_in_ : int
        Features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, where X has string names.

    See Also
    --------
    NystromClassifier : The same for class labels.
    NytroRegressor : Early stopping in place of a penalty.
    FalkonLikeRegressor : The same model by conjugate gradients, for many centres.

    Notes
    -----
    Targets are centred by their mean, which becomes `intercept_`. A weight of 2 equals
    the same row twice; only ``selection="loo"`` leaves a row out with all its weight,
    and generalised cross-validation takes copies of a row for more than they are.

    Centres that are nearly dependent are found by a pivoted Cholesky factor of their
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
    """Kernel ridge classification on all rows or on Nystrom centres, with its path.

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
        m, how many of the distinct training rows become centres. None: all rows
        (kernel ridge regression).
    centers : "uniform" or array of shape (n_centers, n_features), default="uniform"
        How rows are chosen, or the centres themselves, which need not be rows of X.
    alpha : float or "path", default=1e-6
        lambda, of lambda |f|^2 beside the *mean* squared error: alpha n on the diagonal
        of the kernel matrix, so that ``KernelRidge(alpha=a)`` of scikit-learn is
        alpha = a / n. 0: least squares by the pseudo-inverse. "path": the best of
        `alphas`, then fitted to all rows.
    alphas : array-like or None, default=None
        The values of a path. None: 100 from 1e-15 to 1, evenly in their logarithm.
    selection : {"holdout", "gcv", "loo"}, default="holdout"
        What a path is selected by: the error on rows held out (or on `X_val`, `y_val`
        of `fit`), generalised cross-validation, or the exact leave-one-out error, both
        in closed form and on all rows.
    validation_fraction : float, default=0.2
        Fraction of the rows to hold out, the same of every class. Equal rows stay
        together.
    store_coef_path : bool, default=False
        Whether to keep `coef_path_`.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, times `sample_weight`.
    cache_size : float or "auto", default="auto"
        MB of kernel matrix to keep in memory for
        ``selection="loo"``, which reads it twice. "auto": what really fits, where
        it pays. 0: none.
    device : {"auto", "cpu", "cuda", "cuda:N"}, default="auto"
        "auto" computes where X lives; otherwise X is copied there for the computation.
    random_state : int, RandomState instance or None, default=None
        Centres, validation rows, subsample of the median distance.
    verbose : int, default=0
        1 shows lines of progress.

    Attributes
    ----------
    dual_coef_ : array of shape (n_centers, n_outputs)
        Coefficients a of ``f(x) = K(x, centers_) a + intercept_``. Centres that are
        copies of others, or in the span of others to the accuracy of the computation,
        have 0.
    centers_ : array of shape (n_centers, n_features) or None
        The centres; X itself for ``n_centers=None``. None for kernel="precomputed",
        where `dual_coef_` has a row for every training row.
    center_indices_ : array of shape (n_centers,) or None
        Their places in X. None where all rows, or an array, are the centres.
    n_centers_ : int
        Centres that are not left out.
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
        `dual_coef_` of each value, fitted to all rows; with ``store_coef_path=True``.
    classes_ : ndarray of shape (n_classes,)
        Labels, in NumPy whatever the library of X.
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
            validation_fraction=validation_fraction,
            store_coef_path=store_coef_path,
            cache_size=cache_size,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight


class NytroRegressor(RegressionTargets, _Nytro):
    """Kernel regression by early-stopped gradient descent on Nystrom centres.

    Gradient descent on the mean squared error of ``f(x) = sum_j a_j k(x, z_j) +
    intercept``, from zero, in the geometry of the kernel; the number of iterations is
    what regularises, and is selected in the same fit. With all rows as centres this is
    early stopping (ES). The path of all iterations comes from one eigendecomposition,
    n m^2 + m^3, or from iterating, n m each, whichever is cheaper.

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
        m, how many of the distinct training rows become centres. None: all rows
        (early stopping on the full kernel).
    centers : "uniform" or array of shape (n_centers, n_features), default="uniform"
        How rows are chosen, or the centres themselves, which need not be rows of X.
    max_iter : int, default=500
        t, iterations at most.
    step_size : float or "auto", default="auto"
        gamma. "auto": 1 over the largest eigenvalue of the problem, several times the
        paper's ``1 / max k(x, x)``. A larger one than twice "auto" diverges and raises.
    tol : float or None, default=None
        None: the iteration with the least error. Otherwise the first one that lowers
        the error by less than this fraction of it, as in the paper.
    selection : {"holdout", "gcv", None}, default="holdout"
        What the number of iterations is selected by: the error on rows held out (or on
        `X_val`, `y_val` of `fit`), or generalised cross-validation on all rows. None:
        `max_iter` iterations.
    validation_fraction : float, default=0.2
        Fraction of the rows to hold out. Equal rows stay together.
    store_coef_path : bool, default=False
        Whether to keep `coef_path_`.
    cache_size : float or "auto", default="auto"
        MB of kernel matrix to keep in memory between
        iterations. "auto": what really fits, where
        it pays. 0: none.
    device : {"auto", "cpu", "cuda", "cuda:N"}, default="auto"
        "auto" computes where X lives; otherwise X is copied there for the computation.
    random_state : int, RandomState instance or None, default=None
        Centres, validation rows, subsample of the median distance.
    verbose : int, default=0
        1 shows lines of progress.

    Attributes
    ----------
    dual_coef_ : array of shape (n_centers, n_outputs)
        Coefficients a of ``f(x) = K(x, centers_) a + intercept_``. Centres that are
        copies of others, or in the span of others to the accuracy of the computation,
        have 0.
    centers_ : array of shape (n_centers, n_features) or None
        The centres; X itself for ``n_centers=None``. None for kernel="precomputed",
        where `dual_coef_` has a row for every training row.
    center_indices_ : array of shape (n_centers,) or None
        Their places in X. None where all rows, or an array, are the centres.
    n_centers_ : int
        Centres that are not left out.
    intercept_ : array of shape (n_outputs,)
        Weighted mean of the targets.
    kernel_ : Kernel or None
        The kernel object with its bandwidth. None for kernel="precomputed".
    bandwidth_ : float or None
        sigma in use, where the kernel has one.
    n_iter_ : int
        t in use; 0 predicts the mean.
    step_size_ : float
        gamma in use.
    validation_path_ : array of shape (max_iter + 1,) or None
        Mean squared error after 0, 1, ... iterations, of the criterion `selection`;
        shorter where iterating was stopped by `tol`.
    coef_path_ : array of shape (max_iter + 1, n_centers, n_outputs) or None
        `dual_coef_` after each iteration, fitted to all rows; with
        ``store_coef_path=True``.
    n_features_in_ : int
        Features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, where X has string names.

    See Also
    --------
    NytroClassifier : The same for class labels.
    NystromRegressor : A penalty in place of early stopping.

    Notes
    -----
    Targets are centred by their mean, which becomes `intercept_`. A weight of 2 equals
    the same row twice. After the selection the model is fitted to all rows, with as
    many iterations of the same step.

    References
    ----------
    Camoriano, Angles, Rudi, Rosasco, "NYTRO: when subsampling meets early stopping",
    AISTATS 2016: equations 12 and 19 to 21.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from eigenkern import NytroRegressor
    >>> X, y = make_friedman1(n_samples=600, noise=0.1, random_state=0)
    >>> model = NytroRegressor(n_centers=200, random_state=0)
    >>> round(model.fit(X[:500], y[:500]).score(X[500:], y[500:]), 2)
    0.87
    """


class NytroClassifier(ClassificationTargets, _Nytro):
    """Kernel classification by early-stopped gradient descent on Nystrom centres.

    Least squares on -1 and +1 for two classes, on one column a class for more; the sign
    or the largest column decides. The algorithm is that of `NytroRegressor`.

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
        m, how many of the distinct training rows become centres. None: all rows
        (early stopping on the full kernel).
    centers : "uniform" or array of shape (n_centers, n_features), default="uniform"
        How rows are chosen, or the centres themselves, which need not be rows of X.
    max_iter : int, default=500
        t, iterations at most.
    step_size : float or "auto", default="auto"
        gamma. "auto": 1 over the largest eigenvalue of the problem, several times the
        paper's ``1 / max k(x, x)``. A larger one than twice "auto" diverges and raises.
    tol : float or None, default=None
        None: the iteration with the least error. Otherwise the first one that lowers
        the error by less than this fraction of it, as in the paper.
    selection : {"holdout", "gcv", None}, default="holdout"
        What the number of iterations is selected by: the error on rows held out (or on
        `X_val`, `y_val` of `fit`), or generalised cross-validation on all rows. None:
        `max_iter` iterations.
    validation_fraction : float, default=0.2
        Fraction of the rows to hold out, the same of every class. Equal rows stay
        together.
    store_coef_path : bool, default=False
        Whether to keep `coef_path_`.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, times `sample_weight`.
    cache_size : float or "auto", default="auto"
        MB of kernel matrix to keep in memory between
        iterations. "auto": what really fits, where
        it pays. 0: none.
    device : {"auto", "cpu", "cuda", "cuda:N"}, default="auto"
        "auto" computes where X lives; otherwise X is copied there for the computation.
    random_state : int, RandomState instance or None, default=None
        Centres, validation rows, subsample of the median distance.
    verbose : int, default=0
        1 shows lines of progress.

    Attributes
    ----------
    dual_coef_ : array of shape (n_centers, n_outputs)
        Coefficients a of ``f(x) = K(x, centers_) a + intercept_``. Centres that are
        copies of others, or in the span of others to the accuracy of the computation,
        have 0.
    centers_ : array of shape (n_centers, n_features) or None
        The centres; X itself for ``n_centers=None``. None for kernel="precomputed",
        where `dual_coef_` has a row for every training row.
    center_indices_ : array of shape (n_centers,) or None
        Their places in X. None where all rows, or an array, are the centres.
    n_centers_ : int
        Centres that are not left out.
    intercept_ : array of shape (n_outputs,)
        Weighted mean of the targets.
    kernel_ : Kernel or None
        The kernel object with its bandwidth. None for kernel="precomputed".
    bandwidth_ : float or None
        sigma in use, where the kernel has one.
    n_iter_ : int
        t in use; 0 predicts the mean.
    step_size_ : float
        gamma in use.
    validation_path_ : array of shape (max_iter + 1,) or None
        Mean squared error after 0, 1, ... iterations, of the criterion `selection`;
        shorter where iterating was stopped by `tol`.
    coef_path_ : array of shape (max_iter + 1, n_centers, n_outputs) or None
        `dual_coef_` after each iteration, fitted to all rows; with
        ``store_coef_path=True``.
    classes_ : ndarray of shape (n_classes,)
        Labels, in NumPy whatever the library of X.
    n_features_in_ : int
        Features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, where X has string names.

    See Also
    --------
    NytroRegressor : The same for real targets.
    NystromClassifier : A penalty in place of early stopping.

    References
    ----------
    Camoriano, Angles, Rudi, Rosasco, "NYTRO: when subsampling meets early stopping",
    AISTATS 2016: equations 12 and 19 to 21.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from eigenkern import NytroClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = NytroClassifier(n_centers=300, random_state=0)
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
        max_iter=500,
        step_size="auto",
        tol=None,
        selection="holdout",
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
            max_iter=max_iter,
            step_size=step_size,
            tol=tol,
            selection=selection,
            validation_fraction=validation_fraction,
            store_coef_path=store_coef_path,
            cache_size=cache_size,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight
