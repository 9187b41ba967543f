"""The training problem of a general kernel model: one with centers of its own."""

import numpy as np

from .. import centers as choice_of_centers
from ..backend.array import move, to_numpy
from ..backend.transfer import StreamedRows
from ..kernels import make_kernel
from ..operators.given import GivenMatrix
from ..operators.plan import cache_budget, cache_pays, fill_caches
from ..operators.sample import Sample
from ..operators.sharded import kernel_operator
from ..operators.tiled import TiledKernel
from ..solvers.projected import Batch, Iterate
from ..tuning.sizes import n_sampled_rows
from .data import _Located

# Rows whose loss is computed at a time.
_CHUNK = 4096


class GeneralProblem(_Located):
    """The training problem of f = K(., Z) a + intercept on rows of data.

    Parameters
    ----------
    estimator : estimator with kernel, bandwidth, n_centers, centers and device
    data : Data
        Its X may be a `numpy.memmap`: rows are read when they are used.
    train, held_out : ndarray of int
        Rows to train with, in the solver's order; rows to score (or None).
    centers : array of shape (p, d), default=None
        Z, where it was given or fitted. None: chosen as the estimator says.
    fitted : estimator, default=None
        A fitted one, whose kernel, centers and intercept go on: these are more rows.

    Attributes
    ----------
    xp, device
        Where the computation is.
    kernel : Kernel
    centers : TiledKernel
        K(Z, Z), the centers in random order.
    targets : array of shape (n, l)
        Less the intercept.
    weights : array of shape (n,)
        With mean 1; of more rows, relative to those of the first ones.
    intercept : ndarray of shape (l,)
    iterate : Iterate
        Where the iteration is.
    projection : ExactProjection or InexactProjection
        None before a `Learner` is made.
    n_features : int
    rng : numpy.random.RandomState
    """

    def __init__(self, estimator, data, train, held_out, centers=None, fitted=None):
        super().__init__(estimator.device, data.X)
        self._X = self._to_compute_if_small(data.X)
        self.rng, self._train, self._rows = data.rng, train, None
        self._streamed = StreamedRows(self._X, self.xp, self.device, train)
        w = np.ones(len(train)) if data.weights is None else data.weights[train]
        if fitted is None:
            self._dtype = self._to_compute(self._X[:0, :]).dtype
            self.weight_scale = 1.0 / w.mean()
            self.intercept = np.average(data.targets[train], axis=0, weights=w)
            self.kernel = make_kernel(
                estimator.kernel,
                estimator.bandwidth,
                self._gather(slice(0, n_sampled_rows(len(train)))),
                self.rng,
            )
            if centers is None:
                centers = self._choose(estimator.centers, estimator.n_centers, w)
        else:
            centers, self.kernel = fitted.centers_, fitted.kernel_
            self.weight_scale = fitted.weight_scale_
            self.intercept = to_numpy(fitted.intercept_).astype(np.float64)
        centers = self._to_compute(centers)
        if fitted is not None:
            self._dtype = centers.dtype
        self._centers = self.xp.astype(centers, self._dtype, copy=True)
        self.targets = self.array(data.targets[train] - self.intercept)
        self.weights = self.array(w * self.weight_scale)
        # Random, so that the first ones stand for all.
        self._order = np.random.RandomState(0).permutation(centers.shape[0])
        self.centers = kernel_operator(
            self.kernel, self._take(self._centers, self._order), self._devices
        )
        self._validation = None
        if held_out is not None:
            rows = self._take(self._X, held_out)
            self._validation = self.centers.rows(rows)
        self._matrix = self.projection = None
        self.start()

    def _choose(self, method, p, weights):
        """Return centers for the rows: all distinct ones if `p` is None."""
        n = len(self._train)
        if method != "uniform" or p is None:
            rows = self._take(self._X, self._train)
            first, which = choice_of_centers.distinct_rows(rows)
            if p is None:
                return self._take(rows, np.sort(first))
            if p > len(first):
                _raise_too_many(p, len(first))
            rows = self._take(rows, first)
            weights = np.bincount(which, weights=weights)
            return choice_of_centers.choose(
                method, self.kernel, rows, p, self.rng, weights
            )[0]
        # The last ones, for the step is measured on the first. Copies add nothing.
        kept, taken = (), p
        while len(kept) < p and taken < 2 * n:
            rows = self._train[max(n - taken, 0) :]
            first = choice_of_centers.distinct_rows(self._take(self._X, rows))[0]
            kept, taken = rows[np.sort(first)[-p:]], 2 * taken
        if len(kept) < p:
            _raise_too_many(p, len(kept))
        return self._take(self._X, kept)

    def _gather(self, rows):
        """Return a slice of the training rows in the solver's order."""
        if self._rows is not None:
            return self._rows[rows, :]
        taken = self._streamed[rows, :]
        return self.xp.astype(taken, self._dtype, copy=False)

    @property
    def n_rows(self):
        """Training rows."""
        return len(self._train)

    @property
    def n_coefficients(self):
        """Rows of the `dual_coef_` of a model."""
        return self.centers.shape[0]

    def has_rows(self, centers):
        """Whether the centers have the values of `centers`."""
        return np.array_equal(to_numpy(centers), to_numpy(self._centers))

    def sample(self, whiten=None):
        """Return the rows that the step is measured on, and their weights."""
        rows = slice(0, n_sampled_rows(self.n_rows))
        return (
            Sample(self.centers, self._gather(rows), whiten),
            self.weights[rows],
        )

    def batches(self, batch_size):
        """Yield the batches of an epoch, in random order."""
        n = self.n_rows
        starts = self.rng.permutation(np.arange(0, n, batch_size)).tolist()
        batches = [slice(start, min(start + batch_size, n)) for start in starts]
        for b, following in zip(batches, [*batches[1:], None], strict=True):
            rows = self._gather(b)
            if following is not None and self._rows is None:
                self._streamed.expect(following.start, following.stop)
            if self._matrix is None:
                operator = self.centers.rows(rows)
            else:
                operator = GivenMatrix(self._matrix[b, :])
            yield Batch(operator, rows, self.targets[b, :], self.weights[b])

    def batch(self, X, Y, weights):
        """Return a batch of more rows: where X lives, and on the host."""
        rows = self.xp.astype(self._to_compute(X), self._dtype, copy=False)
        return Batch(
            self.centers.rows(rows),
            rows,
            self.array(Y - self.intercept),
            self.array(weights * self.weight_scale),
        )

    def fill_caches(self, cache_size, n_epochs):
        """Keep K(X, Z) in memory where it fits and pays; return the MB."""
        (n, p), d, size = (self.n_rows, self.centers.shape[0]), self.n_features, 0.0
        pays = cache_size != "auto" or cache_pays(n_epochs, d, self.centers)
        needed = (p + d) * n * self.centers.itemsize
        budget = cache_budget(cache_size, self.centers)
        if pays and not self.kernel.factored and needed <= budget:
            self._rows = self._gather(slice(0, n))
            operator = self.centers.rows(self._rows)
            size = fill_caches([operator], cache_size, n_epochs, d)
            self._matrix = operator.block() if size else None
        return size

    def matrix(self):
        """Return K(X, Z) of the training rows."""
        if self._matrix is None:
            self._matrix = self.centers.rows(
                self._gather(slice(0, self.n_rows))
            ).block()
        return self._matrix

    def row_operator(self):
        """Return K(X, X) of the training rows."""
        return TiledKernel(self.kernel, self._gather(slice(0, self.n_rows)))

    def validation_values(self, coef):
        """Return f on the validation rows, on the host, shape (m, l)."""
        return to_numpy(self._validation @ coef) + self.intercept

    def loss(self, coef, n_rows=None):
        """Return the weighted mean squared residual of the first rows, or of all."""
        n, total = min(n_rows or self.n_rows, self.n_rows), 0.0
        zero = not bool(self.xp.any(coef != 0))
        for start in range(0, n, _CHUNK):
            rows = slice(start, min(start + _CHUNK, n))
            residual = self.targets[rows, :]
            if not zero:
                residual = self.centers.rows(self._gather(rows)) @ coef - residual
            squares = self.xp.mean(residual * residual, axis=1)
            total += float(self.xp.sum(self.weights[rows] * squares))
        return total / n

    @property
    def zero_loss(self):
        """Mean loss of f = 0, summed over the outputs."""
        squares = self.xp.sum(self.targets**2, axis=1)
        return float(self.xp.mean(self.weights * squares))

    def initial_coef(self, dual_coef=None):
        """Return coefficients of the centers in the solver's order."""
        shape = self.centers.shape[0], self.targets.shape[1]
        if dual_coef is None:
            return self.xp.zeros(shape, dtype=self._dtype, device=self.device)
        moved = move(dual_coef, self.xp, self.device)
        return self._take(self.xp.astype(moved, self._dtype, copy=False), self._order)

    def start(self, dual_coef=None, n_projections=0):
        """Set `iterate`."""
        self.iterate = Iterate.of(self.initial_coef(dual_coef), n_projections)

    def model(self, coef):
        """Return the attributes that prediction and further steps need."""
        coef = self._take(coef, np.argsort(self._order))
        centers = self.to_source(self._centers)
        return self._model(coef, self.intercept, centers) | {
            "weight_scale_": float(self.weight_scale),
            "t_": self.iterate.n_projections,
            "projection_residual_": getattr(self.projection, "residual", 0.0),
        }


def _raise_too_many(n_centers, n_distinct):
    raise ValueError(
        f"n_centers must be at most {n_distinct}, the number of distinct rows to train "
        f"with; got {n_centers}"
    )
