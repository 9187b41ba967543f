"""The training problem of a general kernel model: a model with its own centers."""

from copy import copy

import numpy as np

from .. import centers as choice_of_centers
from ..arrays import memory
from ..arrays.array import move, slices, to_numpy
from ..arrays.linalg import absolute
from ..losses import mean_of_targets
from ..methods.direct import N_DIAGONAL, usual_size
from ..methods.projected import Batch
from ..operators.cached import keep
from ..operators.matrix import GivenMatrix
from ..operators.sharded import kernel_operator
from ..operators.tiled import TiledKernel
from ..plan.sizes import exact_bytes, n_sampled_rows, rounding
from ..rows.dask_rows import DaskRows
from ..rows.lazy_rows import StoredRows, check_in_memory, is_lazy, rows_at
from ..rows.robust import cast
from ..rows.transfer import StreamedRows
from .centers_at_once import CenterProblem
from .closed_form import Sample
from .kernel_parameters import make_kernel
from .problem import Problem, take

# Rows per block of the loss, on each machine. With 2000 centers, the loss of 60000 rows
# took 0.23 s with blocks of 256 rows, 0.15 s with 1024, 0.11 to 0.13 s with 4096 and
# 0.10 s with all rows: larger blocks gain little and take more memory.
_LOSS_ROWS = 4096


class GeneralProblem(Problem):
    """Least squares with f = K(., Z) a + intercept on rows of data.

    "General" as in EigenPro 3: the centers Z of a general kernel model need not be
    training rows.

    Parameters
    ----------
    data : Data
        Its X need not be in memory: rows are read when they are used.
    train, held_out : ndarray of int
        Rows to train with, in the solver's order; rows to score (or None).
    kernel, device
        Parameters of the estimator.
    centers : str or array of shape (p, d)
        Z, or one of `centers.METHODS` to choose them.
    bandwidth : float or str, default=None
        Parameter of the estimator; None if the kernel already has one.
    n_centers : int, default=None
        p, if centers are chosen; None: all distinct rows.
    intercept : ndarray of shape (l,), default=None
        None: the weighted mean of the targets.
    weight_scale : float, default=None
        Factor for the weights. None: the one that makes their mean 1.
    zero_loss : float, default=None
        Mean loss of f = 0, summed over the outputs. None: that of the training rows.

    Attributes
    ----------
    center_matrix : Matrix
        K(Z, Z), the centers in random order.
    weights : array of shape (n,)
        With mean 1; in a stream, scaled by the factor of the first rows.
    intercept : ndarray of shape (l,)
    n_machines, message_seconds : int, float
        Machines that share a batch, and the seconds that a step waits for them.
    cache_megabytes : float
        Size of the cached K(X, Z) in MB.
    """

    cache_megabytes = 0.0

    def __init__(
        self,
        data,
        train,
        held_out,
        *,
        kernel,
        centers,
        device,
        bandwidth=None,
        alpha=None,
        n_centers=None,
        intercept=None,
        weight_scale=None,
        zero_loss=None,
    ):
        super().__init__(device, data.X)
        self._device, self._data = device, data
        self._X = self.to_compute_if_small(data.X)
        self.rng, self._train = data.rng, train
        self.n_machines, self.message_seconds = 1, 0.0
        if is_lazy(self._X):
            self.n_machines = self._X.n_machines
            self.message_seconds = self._X.message_seconds
        self._streamed = StreamedRows(self._X, self.xp, self.device, train)
        self._on_workers = self._rows = self._matrix = None
        weights = None if data.weights is None else data.weights[train]
        if bandwidth is not None:
            kernel = self._measured(kernel, bandwidth, weights, alpha)
        self.kernel = kernel
        if isinstance(centers, str):
            centers = _chosen(
                centers, n_centers, kernel, self._X, train, weights, self.rng
            )
        centers = self.to_compute(centers)
        like = self.to_compute(self._X[:0, :]) if intercept is None else centers
        self.dtype = like.dtype
        w = np.ones(len(train)) if weights is None else weights
        if intercept is None:
            intercept = mean_of_targets(data.targets[train], w)
        self.intercept = intercept
        self.weight_scale = 1.0 / w.mean() if weight_scale is None else weight_scale
        self._centers = self.xp.astype(centers, self.dtype, copy=True)
        self.targets = self.array(data.targets[train] - self.intercept)
        self.weights = self.array(w * self.weight_scale)
        self._zero_loss = zero_loss
        # Centers are in random order, so that the first ones are a sample of all.
        self._order = np.random.RandomState(0).permutation(centers.shape[0])
        self.center_matrix = kernel_operator(
            self.kernel, take(self._centers, self._order), self.devices
        )
        if isinstance(self._X, DaskRows):
            self._on_workers = self.center_matrix.rows(self._X.take(train))
        self._validation = None
        if held_out is not None:
            self._validation = self.center_matrix.rows(take(self._X, held_out))

    def _measured(self, kernel, bandwidth, weights, alpha):
        """Return the kernel with its bandwidth measured on some training rows."""
        first = slice(0, n_sampled_rows(len(self._train)))
        weights = None if weights is None else weights[first]
        rows, Y = self._streamed[first, :], self._data.targets[self._train[first]]
        return make_kernel(
            kernel, bandwidth, rows, self.rng, Y, weights, self._data, alpha
        )

    def _gather(self, rows):
        """Return a slice of the training rows in the solver's order."""
        if self._rows is not None:
            return self._rows[rows, :]
        return cast(self._streamed[rows, :], self.dtype)

    @property
    def n_rows(self):
        """Number of training rows."""
        return len(self._train)

    @property
    def n_coefficients(self):
        """Number of rows of `dual_coef_`."""
        return self.center_matrix.shape[0]

    def has_centers(self, centers):
        """Whether the centers equal those of a fitted model."""
        return np.array_equal(to_numpy(centers), to_numpy(self._centers))

    def sample(self, whiten=None):
        """Return the rows to measure the step on, and their weights."""
        rows = slice(0, n_sampled_rows(self.n_rows))
        sample = Sample(self.center_matrix, self._gather(rows), whiten)
        return sample, self.weights[rows]

    def batches(self, batch_size):
        """Yield the batches of an epoch, in random order."""
        starts = np.arange(0, self.n_rows, batch_size)
        starts = self._streamed.shuffled_ranges(starts, self.rng).tolist()
        batches = [slice(i, min(i + batch_size, self.n_rows)) for i in starts]
        for b, following in zip(batches, [*batches[1:], None], strict=True):
            if self._on_workers is not None:
                operator = self._on_workers.part(b.start, b.stop)
                X_b = operator.lazy_rows
            else:
                X_b = self._gather(b)
                if following is not None and self._rows is None:
                    self._streamed.expect(following.start, following.stop)
                if self._matrix is None:
                    operator = self.center_matrix.rows(X_b)
                else:
                    operator = GivenMatrix(self._matrix[b, :])
            yield Batch(operator, X_b, self.targets[b, :], self.weights[b])

    def batch(self, X, Y, weights):
        """Return a batch of new rows; `Y` and `weights` are on the host."""
        rows = cast(self.to_compute(X), self.dtype)
        return Batch(
            self.center_matrix.rows(rows),
            rows,
            self.array(Y - self.intercept),
            self.array(weights * self.weight_scale),
        )

    def kept(self, cache_size):
        """Return the problem with K(X, Z) and X in memory."""
        other = copy(self)
        other._rows = self._gather(slice(0, self.n_rows))
        K = self.center_matrix.rows(other._rows)
        n_bytes = K.shape[0] * K.shape[1] * K.itemsize
        (K,), other.cache_megabytes = keep([K], [n_bytes], cache_size)
        other._matrix = K.block()
        return other

    def entry_size(self):
        """Return the usual size of w k(x, x)."""
        if self._data.indefinite:
            K = absolute(self.center_matrix.block(dtype=self.xp.float64))
            return float(self.xp.linalg.trace(K)) / K.shape[0]
        first = slice(0, min(self.n_rows, N_DIAGONAL))
        entries = self.kernel.diagonal(self._gather(first))
        return usual_size(entries, self.weights[first])

    def least_ridge(self):
        """Return the c below which rounding of the kernel matrix drowns the penalty."""
        least = rounding(self.xp, self.dtype, self.n_coefficients)
        return least * self.n_rows * self.entry_size()

    def solved(self, ridge, merged):
        """Return the minimizer of ``sum_i w_i (f(x_i) - y_i)^2 + c |f|^2``.

        It solves the normal equations of the Nystrom method on all rows, of which this
        problem has the `Merged`; c is `ridge`.

        Returns
        -------
        coef : array of shape (p, l) or None
            None if the equations have no Cholesky factor.
        out_of_sample : OutOfSample or None
            Values of a sample of rows, for a classifier.
        """
        squares = CenterProblem(
            self._device,
            merged.source,
            np.sort(merged.members),
            None,
            kernel=self.kernel,
            bandwidth=None,
            n_centers=None,
            centers=self._centers,
        )
        alpha = ridge / self.n_rows
        squares.iterates(alpha)
        equations = squares.training
        factor = equations.factor(alpha)
        if factor is None:
            return None, None
        b = equations.solve(factor)[:, :-1]
        coef, left_out = self.coef_of(squares.dual_coef(b)), None
        if squares.calibrates:
            # Leave out no center: without its row, almost nothing would determine its
            # coefficient, and new rows are not centers.
            others = ~choice_of_centers.rows_among(squares.all.X, self._centers)
            left_out = squares.left_out(alpha, factor, among=others)
        return coef, left_out

    def check_memory(self):
        """Raise a ValueError unless K(X, Z) and two factors fit in free memory."""
        n, p = self.n_rows, self.center_matrix.shape[0]
        needed = exact_bytes(n, p, self.center_matrix.itemsize)
        needs = f"algorithm='eigenpro3-exact' with {p} centers of {n} rows needs "
        needs += f"{needed / 1e6:.0f} MB"
        remedy = "pass a smaller n_centers or algorithm='eigenpro3'"
        memory.check(needed, self.xp, self.device, needs, remedy)

    def matrix(self):
        """Return K(X, Z) of the training rows."""
        return self.center_matrix.rows(self._gather(slice(0, self.n_rows))).block()

    def sampled_kernel(self):
        """Return K(X, X) of a sample: the first training rows in the solver's order."""
        rows = slice(0, n_sampled_rows(self.n_rows))
        return TiledKernel(self.kernel, self._gather(rows))

    def sampled_kernel_in_double(self, n):
        """Return the same in double precision, of the first `n` rows."""
        X = self.xp.astype(self._gather(slice(0, n)), self.xp.float64)
        return TiledKernel(self.kernel, X)

    def row_operator(self):
        """Return K(X, X) of the training rows."""
        return TiledKernel(self.kernel, self._gather(slice(0, self.n_rows)))

    def initial_coef(self):
        """Return coefficients of zero."""
        shape = self.n_coefficients, self.targets.shape[1]
        return self.xp.zeros(shape, dtype=self.dtype, device=self.device)

    def coef_of(self, dual_coef):
        """Return the coefficients of a fitted model, in the solver's order."""
        dual_coef = move(dual_coef, self.xp, self.device)
        return take(self.xp.astype(dual_coef, self.dtype, copy=False), self._order)

    def validation_values(self, coef):
        """Return f on the held-out rows, on the host, shape (m, l)."""
        return to_numpy(self._validation @ coef) + self.intercept

    def loss(self, coef, n_rows=None):
        """Return the weighted mean squared residual of the first rows, or of all."""
        n, total = min(n_rows or self.n_rows, self.n_rows), 0.0
        zero = not bool(self.xp.any(coef != 0))
        for rows in slices(n, _LOSS_ROWS * self.n_machines):
            residual = self.targets[rows, :]
            if not zero:
                residual = self._values(coef, rows) - residual
            squares = self.xp.mean(residual * residual, axis=1)
            total += float(self.xp.sum(self.weights[rows] * squares))
        return total / n

    def _values(self, coef, rows):
        """Return f without the intercept on a range of the training rows."""
        if self._on_workers is not None:
            return self._on_workers.product(coef, rows.start, rows.stop)
        return self.center_matrix.rows(self._gather(rows)) @ coef

    @property
    def zero_loss(self):
        """Mean loss of f = 0, summed over the outputs."""
        if self._zero_loss is not None:
            return self._zero_loss
        squares = self.xp.sum(self.targets**2, axis=1)
        return float(self.xp.mean(self.weights * squares))

    def fitted_attributes(self, coef):
        """Return the attributes that prediction and further steps need."""
        dual_coef = take(coef, np.argsort(self._order))
        centers = self.to_source(self._centers)
        return self.kernel_attributes(dual_coef, self.intercept, centers) | {
            "weight_scale_": float(self.weight_scale)
        }


def _chosen(method, p, kernel, X, train, weights, rng):
    """Return p centers among the rows `train`.

    These are all distinct rows if `p` is None or there are at most p of them.
    """
    n = len(train)
    if method != "uniform" or p is None:
        check_in_memory(X, "centers='uniform' and n_centers, or an array as centers")
        rows = take(X, train)
        first, which = choice_of_centers.distinct_rows(rows)
        if p is None:
            return take(rows, np.sort(first))
        totals = np.bincount(which, weights=weights)
        rows = take(rows, first)
        return choice_of_centers.choose(method, kernel, rows, p, rng, totals)[0]
    # Take the last distinct rows, as the step is measured on the first rows. In a file
    # the last rows would be neighbors: draw rows instead.
    order = rng.permutation(train) if isinstance(X, StoredRows) else train
    found, taken = (), min(p, n)
    while len(found) < p and taken < 2 * n:
        last = order[max(n - taken, 0) :]
        first = choice_of_centers.distinct_rows(rows_at(X, last))[0]
        found, taken = last[np.sort(first)[-p:]], 2 * taken
    if len(found) < p:  # all distinct rows, in the order of their content
        found = last[first]
    return rows_at(X, found)
