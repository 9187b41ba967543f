"""Normal equations of a problem on centers, or on all rows: one interface for both.

A system knows its problem's features phi, in which a model is b: see
`solvers.nystrom`. What it calls `training` is what it needs of some training rows:
`OnCenters` sums over them, `OnRows` the rows themselves.
"""

from ..backend.array import namespace
from ..backend.linalg import solve_triangular
from ..operators.plan import fill_caches
from .filters import Spectrum, solve_ridge
from .moments import Moments
from .selection import prediction_errors, validation_errors
from .whitening import BLOCK_BYTES, Whitening, check_finite


class _System:
    """What both kinds of systems share.

    Parameters
    ----------
    problem : CenterProblem
    cache_size : "auto" or float
        MB of kernel matrices to keep.
    n_epochs : int
        How often they are used.

    Attributes
    ----------
    n_centers : int
        Centers that are kept.
    """

    def __init__(self, problem, cache_size, n_epochs):
        self.problem = problem
        self._cache_size, self._n_epochs = cache_size, n_epochs

    def cached(self, operator):
        """Return an operator that keeps its matrix, where it fits and pays."""
        if self._n_epochs > 1:
            n_features = self.problem.n_features
            kept = fill_caches([operator], self._cache_size, self._n_epochs, n_features)
            if self._cache_size != "auto":
                self._cache_size -= kept
        return operator

    def squares(self, rows, mean):
        """Return a function: squared errors of rows, of coefficients of centers."""
        xp = self.problem.xp
        operator = self.cached(self.operator_of(rows))
        Y = rows.targets - mean

        def squares_of(coef):
            F = operator @ xp.astype(coef, operator.dtype, copy=False)
            return xp.mean((xp.astype(F, xp.float64) - Y) ** 2, axis=1)

        return squares_of

    def error(self, rows, mean):
        """Return a function: mean squared error on rows, of coefficients of centers."""
        xp, squares_of = self.problem.xp, self.squares(rows, mean)
        total = float(xp.sum(rows.weights))

        def error_of(coef):
            return float(xp.sum(rows.weights * squares_of(coef))) / total

        return error_of

    def _blocks(self, operator, width):
        """Yield ranges of rows whose features and `width` numbers more fit a block."""
        m, p = operator.shape
        size = max(int(BLOCK_BYTES // (8 * (p + width))), 16)
        for i in range(0, m, size):
            yield slice(i, min(i + size, m))


class OnCenters(_System):
    """The problem in the features R' K(Z, x) of its centers."""

    def __init__(self, problem, cache_size, n_epochs):
        super().__init__(problem, cache_size, n_epochs)
        K_mm = problem.center_matrix()
        check_finite(K_mm)
        self._whitening = Whitening.of(K_mm, problem.dtype)
        self.n_centers = len(self._whitening.kept)
        self._R = self._whitening.R
        self._rounding = self._whitening.rounding
        self._of_train = None

    def operator_of(self, rows):
        """Return K(X, Z) of the rows and of the centers that are kept."""
        if rows is not self.problem.train or self._n_epochs == 1:
            return self.problem.operator(rows, self._whitening.kept)
        if self._of_train is None:
            operator = self.problem.operator(rows, self._whitening.kept)
            self._of_train = self.cached(operator)
        return self._of_train

    def training(self, rows):
        """Return the sums over the rows."""
        return Moments.of(self.operator_of(rows), rows.targets, rows.weights, self._R)

    def validation(self, rows):
        """Return the sums over the rows."""
        return self.training(rows)

    def union(self, training, validation):
        """Return the sums over both sets of rows."""
        return training + validation

    def mean(self, training):
        """Return the mean of the targets."""
        return training.mean

    def _whitened(self, sums):
        # After all sums: threads of BLAS go on spinning and slow a kernel's tiles.
        return sums if self._R is not None else sums.whitened(self._whitening.L)

    def spectrum(self, training):
        """Return the spectrum; `training` is of no use after it."""
        return Spectrum.of_moments(self._whitened(training), self._rounding)

    def errors(self, spectrum, filters, mean, validation):
        """Return the errors of a path on what `validation` returned."""
        L = self._whitening.L if self._R is None else None

        def expand(b):
            return b if L is None else solve_triangular(L, b, transposed=True)

        return validation_errors(spectrum, filters, validation, mean, expand)

    def ridge(self, training, alpha):
        """Return b for one lambda, or None if rounding is not below it."""
        sums = self._whitened(training)
        B = sums.gram / sums.weight
        if alpha <= self._rounding * float(namespace(B).linalg.trace(B)):
            return None
        return solve_ridge(B, sums.centered_cross(sums.mean) / sums.weight, alpha)

    def scores(self, spectrum, rows, width):
        """Yield ranges of rows and their W^1/2 Phi V, columns of norm 1."""
        xp = self.problem.xp
        operator = self.operator_of(rows)
        inside, e = spectrum.inside, spectrum.values
        scale = (spectrum.weight * xp.where(inside, e, xp.ones_like(e))) ** -0.5
        scale = xp.where(inside, scale, xp.zeros_like(scale))
        R_V = self.coef(spectrum.vectors * scale, rows)
        for block in self._blocks(operator, width):
            K = operator.block(block.start, block.stop, dtype=R_V.dtype)
            yield block, xp.sqrt(rows.weights[block])[:, None] * (K @ R_V)

    def gradient(self, operator, b, targets, rows):
        """Return Phi' W (Phi b - targets)."""
        g = operator.normal_product(self.coef(b, rows), targets, rows.weights)
        return solve_triangular(self._whitening.L, g)

    def coef(self, b, rows):
        """Return the coefficients of the centers that are kept."""
        return self._whitening.expand(b)

    def model(self, coef, intercept, rows):
        """Return the attributes that prediction needs."""
        return self.problem.center_model(coef, intercept, self._whitening.kept)


class OnRows(_System):
    """The problem in the features W^1/2 K(X, x): every training row is a center."""

    def __init__(self, problem, cache_size, n_epochs):
        super().__init__(problem, cache_size, n_epochs)
        self.n_centers = n = len(problem.all.index)
        # Errors of the entries are as good as random: their norm grows as n^1/2, that
        # of K as n.
        self._rounding = 10 * float(problem.xp.finfo(problem.dtype).eps) / n**0.5

    def operator_of(self, rows):
        """Return K of the rows and the training rows."""
        train = self.problem.train
        if rows is self.problem.validation:
            return self.problem.full_operator(train, rows)
        return self.problem.full_operator(rows)

    def training(self, rows):
        """Return the rows: their kernel matrix is computed where it is consumed."""
        return rows

    def validation(self, rows):
        """Return the rows."""
        return rows

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

    def errors(self, spectrum, filters, mean, validation):
        """Return the errors of a path on what `validation` returned."""
        Y = validation.targets - mean
        width = 2 * Y.shape[1] * filters.shape[1]
        blocks = self._features(spectrum, validation, width)
        return prediction_errors(spectrum, filters, blocks, Y, validation.weights)

    def _features(self, spectrum, rows, width):
        """Yield ranges of validation rows and their phi(x)' V."""
        operator = self.operator_of(rows)
        vectors = self.coef(spectrum.vectors, self.problem.train)
        for block in self._blocks(operator, width):
            K = operator.block(block.start, block.stop, dtype=vectors.dtype)
            yield block, K @ vectors

    def ridge(self, training, alpha):
        """Return b for one lambda, or None if rounding is not below it."""
        xp = namespace(training.targets)
        K = self._matrix(training)
        if alpha <= self._rounding * float(xp.linalg.trace(K)) / K.shape[0]:
            return None
        root = xp.sqrt(training.weights)[:, None]
        q = root * (training.targets - self.mean(training))
        return solve_ridge(K, q, alpha * float(xp.sum(training.weights)))

    def _matrix(self, rows):
        """Return W^1/2 K W^1/2 in float64, which may be overwritten."""
        xp = namespace(rows.targets)
        operator = self.operator_of(rows)
        K = operator.block(dtype=xp.float64)
        check_finite(xp.linalg.diagonal(K))
        if not bool(xp.all(rows.weights == 1)):
            root = xp.sqrt(rows.weights)
            K = root[:, None] * K * root[None, :]
        return K

    def scores(self, spectrum, rows, width):
        """Yield ranges of rows and their W^1/2 Phi V, columns of norm 1."""
        scale = (spectrum.values * spectrum.weight) ** 0.5
        U = spectrum.vectors * scale
        size = max(int(BLOCK_BYTES // (8 * width)), 16)
        for i in range(0, U.shape[0], size):
            block = slice(i, min(i + size, U.shape[0]))
            yield block, U[block, :]

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
