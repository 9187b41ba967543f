"""The training problem of a kernel machine."""

import numpy as np

from ..backend import memory
from ..backend.array import move, to_numpy
from ..kernels import make_kernel
from ..operators.given import GivenMatrix
from ..operators.plan import fill_caches
from ..operators.sharded import kernel_operator
from .data import _Located


class Problem(_Located):
    """A kernel machine's training problem: arrays, operators, kernel.

    Attributes
    ----------
    xp, device
        Where the computation is.
    targets : array of shape (n, l)
        Centered, of the training rows in the solver's order.
    weights : array of shape (n,) or None
        With mean 1.
    intercept : ndarray of shape (l,)
        Weighted mean of the targets, on the host.
    operator : TiledKernel
        K(X, X) of the training rows.
    validation : TiledKernel or None
        K(X_val, X) of the validation rows.
    n_features : int
    rng : numpy.random.RandomState
    """

    def __init__(self, estimator, data, train, held_out):
        super().__init__(estimator.device, data.X)
        X, Y, weights = data.X, data.targets, data.weights
        self._train = train
        self.rng = rng = data.rng
        w = None if weights is None else weights[train]
        self.intercept = np.average(Y[train], axis=0, weights=w)
        rows = self._take(X, train)
        validation_rows = None if held_out is None else self._take(X, held_out)
        self.kernel = self.validation = None
        if estimator.kernel == "precomputed":
            K = self._to_compute(self._take(rows, train, axis=1))
            self.operator = GivenMatrix(K)
            if held_out is not None:
                K = self._to_compute(self._take(validation_rows, train, axis=1))
                self.validation = GivenMatrix(K)
        else:
            self.kernel = make_kernel(estimator.kernel, estimator.bandwidth, rows, rng)
            self.operator = kernel_operator(self.kernel, rows, self._devices)
            if held_out is not None:
                self.validation = self.operator.rows(validation_rows)
        self._dtype = self.operator.dtype
        self.targets = self.array(Y[train] - self.intercept)
        self.weights = None if w is None else self.array(w / w.mean())

    @property
    def n_coefficients(self):
        """Rows of X, those without weight included."""
        return self._X.shape[0]

    def has_rows(self, centers):
        """Whether X has the values of `centers`."""
        if centers is None:
            return self.kernel is None
        if centers is self._X:
            return True
        return np.array_equal(to_numpy(centers), to_numpy(self._X))

    def fill_caches(self, cache_size, n_epochs):
        """Keep the kernel matrices in memory where they fit and pay; return the MB."""
        return fill_caches(self._operators, cache_size, n_epochs, self.n_features)

    def can_cache_beside(self, n_bytes):
        """Whether the free memory holds the kernel matrices and `n_bytes` besides."""
        needed = sum(operator.cache_bytes for operator in self._operators) + n_bytes
        return needed <= memory.available(self.xp, self.device)

    @property
    def _operators(self):
        """The kernel matrices, the more often used one first."""
        held_out = () if self.validation is None else (self.validation,)
        return [self.operator, *held_out]

    def validation_values(self, coef):
        """Return f on the validation rows, on the host, shape (m, l)."""
        return to_numpy(self.validation @ coef) + self.intercept

    def loss(self, coef, n_rows=None):
        """Return the weighted mean squared residual of the first rows, or of all."""
        rows = slice(0, min(n_rows or len(self._train), len(self._train)))
        residual = self.targets[rows, :]
        if bool(self.xp.any(coef != 0)):
            residual = self.operator.product(coef, 0, rows.stop)[0] - residual
        squares = self.xp.mean(residual * residual, axis=1)
        if self.weights is not None:
            squares = squares * self.weights[rows]
        return float(self.xp.mean(squares))

    def initial_coef(self, dual_coef=None):
        """Return coefficients of the training rows in the solver's order."""
        shape = tuple(self.targets.shape)
        if dual_coef is None:
            return self.xp.zeros(shape, dtype=self._dtype, device=self.device)
        moved = move(dual_coef, self.xp, self.device)
        return self._take(self.xp.astype(moved, self._dtype, copy=False), self._train)

    def model(self, coef):
        """Return the attributes that prediction needs; rows follow those of X."""
        dual_coef = self._scatter(coef, self._train, self.n_coefficients)
        return self._model(dual_coef, self.intercept, self._X)
