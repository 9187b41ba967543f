"""Least squares and the log loss on centers: in closed form, and in batches."""

from copy import copy
from functools import partial

import numpy as np

from ..arrays.array import device_of, move, namespace, scatter, slices, to_numpy
from ..arrays.linalg import absolute, large_product, solve_triangular
from ..arrays.machine import machine_of
from ..arrays.threads import cached_property
from ..centers import choose, distinct_rows, masses, uniform_indices
from ..losses import LogLoss, mean_of_targets
from ..methods.direct import N_DIAGONAL, usual_size
from ..methods.left_out import (
    kept_of_features,
    n_left_out,
    unseen,
    validation_errors,
    with_ones,
)
from ..methods.moments import Moments
from ..methods.newton import Logistic, Preconditioner, best_of_path
from ..methods.paths import EPS, SINGLE_PIVOT, Whitening
from ..methods.projected import Batch
from ..operators.blocks import blocks
from ..operators.cached import cached, keep
from ..operators.matrix import GivenMatrix, StackedRows, check_finite
from ..operators.sharded import kernel_operator
from ..operators.tiled import TiledKernel
from ..plan.of_closed_forms import (
    N_PENALTIES_OF_LOG_LOSS,
    PRODUCTS_OF_ALPHA,
    SAMPLED_CENTERS,
    SAMPLED_SETS,
)
from ..plan.penalty import TOO_FEW_ROWS
from ..plan.sizes import n_cores_of, n_sampled_rows, planned_bytes
from ..rows.dask_rows import DaskRows
from ..rows.lazy_rows import StoredRows, check_in_memory, is_lazy, rows_at
from ..rows.robust import cast
from ..rows.transfer import StreamedRows
from .closed_form import LeastSquares, Sample, products
from .data import hold_out
from .kernel_parameters import make_kernel
from .problem import Problem, shuffled, take


class CenterProblem(LeastSquares):
    """Least squares on centers: phi(x) = R' K(Z, x).

    Parameters
    ----------
    device, data, train, held_out, **options
        As for `LeastSquares`.
    n_centers : int or None
        Most centers to choose among the distinct training rows. None: the centers are
        given, or are all distinct rows. These include held-out rows, which change
        nothing while their weight is zero.
    centers : str or array of shape (p, d)
        One of `eigenkern.centers.METHODS`, or the centers.
    cache_size, n_products : "auto" or float, int
        MB for the kernel matrices of the rows, and the number of products with them to
        come, see `operators.cached`.

    Attributes
    ----------
    n_centers : int
        p, including those that are not kept.
    center_of_row : ndarray of shape (n,) or None
        The center that equals each row, if all distinct rows are centers.
    """

    def __init__(
        self,
        device,
        data,
        train,
        held_out,
        *,
        n_centers,
        centers,
        cache_size=0,
        n_products=1,
        **options,
    ):
        n, given = len(train), not isinstance(centers, str)
        n_columns = centers.shape[0] if given else min(n_centers or n, n)
        options["n_columns"] = n_columns
        super().__init__(device, data, train, held_out, **options)
        self._cache_size, self._n_products = cache_size, n_products
        self._center_weights = self.center_of_row = None
        if given:
            centers = self.to_compute(centers)
            self.centers = self.xp.astype(centers, self.dtype, copy=True)
            self.n_centers = n_columns
        elif n_centers is None:
            first, self.center_of_row = data.distinct(self.all.index)
            self._take_centers(first)
        else:
            self._choose_centers(n_centers, centers)

    def _choose_centers(self, n_centers, method):
        """Choose centers among the distinct training rows."""
        if method != "uniform":
            check_in_memory(self._X, "centers='uniform', or an array as centers")
        if self._data.indefinite:  # the other methods need a norm
            method = "uniform"
        first, which = self._data.distinct(self.train.index)
        totals = np.bincount(which, weights=to_numpy(self.train.weights))
        alike = method == "uniform" or n_centers >= len(first)
        if alike:
            chosen = uniform_indices(len(first), n_centers, self.rng)
        else:
            X = take(self.train.X, first)
            if self.kernel is None:
                X = take(X, self.train.index[first], axis=1)
            centers, chosen = choose(
                method, self.kernel, X, n_centers, self.rng, totals
            )
        if chosen is None:  # means of rows
            self.centers, self.n_centers = self.to_compute(centers), n_centers
            return
        if alike or self.kernel is None:
            self._center_weights = totals[chosen]
        self._take_centers(first[chosen])

    def _take_centers(self, position):
        """Make the rows of `all` at some positions the centers."""
        self.center_indices, self.n_centers = self.all.index[position], len(position)
        if self.kernel is not None:
            self.centers = self.to_compute(take(self.all.X, position))

    @property
    def n_coefs(self):
        """Number of centers that are kept."""
        return len(self.whitening.kept)

    @cached_property
    def whitening(self):
        """R of the centers, computed only once memory has been checked."""
        xp = self.xp
        if self.kernel is None:
            K = take(self._X, self.center_indices)
            K = self.to_compute(take(K, self.center_indices, axis=1))
            K = xp.astype(K, xp.float64)
        else:
            # What is cut off is the same as in the kernel values of other rows.
            frame = self.kernel.frame(self.centers)
            centers = xp.astype(self.centers, xp.float64)
            K = TiledKernel(self.kernel, centers, frame=frame).block()
        check_finite(K)
        if self._data.indefinite:
            K = absolute(K)  # the norm of the span of its columns
        if self._data.constant and not bool(xp.any(K != 0)):
            K = xp.eye(K.shape[0], dtype=xp.float64, device=device_of(K))
        found = Whitening.of(K, self.kernel_dtype)
        if self.kernel is None or self.kernel_dtype == xp.float64:
            return found
        # The directions that single precision leaves out have eigenvalues of B up to
        # this; with a larger penalty there is little of them in a model.
        if self.least_alpha > 10 * SINGLE_PIVOT * self.kernel_size:
            return found
        double = Whitening.of(K, xp.float64)
        if len(double.kept) == len(found.kept):
            return found
        self.in_double()
        return double

    def matrix_of(self, rows):
        """Return K(X, Z) of some rows and the centers that are kept."""
        used = self.whitening.kept
        if self.kernel is None:
            K = take(rows.X, self.center_indices[used], axis=1)
            return GivenMatrix(self.to_compute(K))
        centers = self.in_kernel_dtype(take(self.centers, used))
        return kernel_operator(self.kernel, centers, self.devices, rows.X)

    def centers_of(self, coef):
        return take(self.centers, self.whitening.kept)

    def in_double(self):
        super().in_double()
        for name in ("whitening", "matrices", "_moments", "everything"):
            vars(self).pop(name, None)

    def matrix_of_validation(self, coef):
        """Return K(X, Z) of the validation rows."""
        return self.matrix_of(self.validation)

    @cached_property
    def matrices(self):
        """K(X, Z) of the training and the validation rows; how many MB are cached."""
        matrices = [self.matrix_of(rows) for rows in self.parts]
        if self._n_products == 1:
            return matrices, 0.0
        return cached(matrices, self._cache_size, self._n_products, self.n_features)

    # Normal equations

    @cached_property
    def _moments(self):
        """Sums over the training rows, and over the validation rows if there are any.

        They are computed before any linear algebra, after which BLAS threads keep
        spinning and slow down the kernel's tiles.
        """
        return [
            Moments.of(matrix, rows.targets, rows.weights, self.whitening)
            for matrix, rows in zip(self.matrices[0], self.parts, strict=True)
        ]

    @property
    def training(self):
        """The sums over the training rows."""
        return self._moments[0]

    @cached_property
    def everything(self):
        """The sums over the training rows and the held-out rows."""
        return sum(self._moments[1:], self.training) if self.refits else self.training

    def validation_errors(self, spectrum, filters):
        training, validation = self._moments
        return validation_errors(spectrum, filters, validation, training.mean)

    def orthonormal(self, width):
        xp, rows, spectrum = self.xp, self.train, self.training.spectrum
        inside, e = spectrum.inside, spectrum.values
        scale = (spectrum.weight * xp.where(inside, e, xp.ones_like(e))) ** -0.5
        scale = xp.where(inside, scale, xp.zeros_like(scale))
        R_V = self.expand(spectrum.vectors * scale)
        for block, U in products(self.matrices[0][0], R_V, width):
            U *= xp.sqrt(rows.weights[block])[:, None]
            yield block, U

    def without(self, sets, factor):
        xp, matrix = self.xp, self.matrix_of(self.all.part_at(sets.first))
        b = self.everything.solve(factor)
        w = xp.asarray(sets.weights, device=self.device)
        least, F, kept = float(xp.finfo(self.kernel_dtype).eps) ** 0.5, [], []
        for block in blocks(matrix.shape[0], 3 * matrix.shape[1]):
            K = matrix.block(block.start, block.stop, dtype=xp.float64)
            if self.whitening.R is None:
                Phi_T = solve_triangular(self.whitening.L, K.T)
            else:
                Phi_T = large_product(K, self.whitening.R).T
            F.append(to_numpy(Phi_T.T @ b))
            kept.append(to_numpy(kept_of_features(factor.L, Phi_T, w[block], least)))
        return with_ones(sets.targets) - np.concatenate(F), np.concatenate(kept), 1.0

    def gradient(self, matrix, rows, b, Y):
        g = matrix.normal_product(self.expand(b), Y, rows.weights)
        return solve_triangular(self.whitening.L, g)

    # Models

    def _rows_of_variances(self):
        able = np.flatnonzero(self._able_to_leave_out())
        return np.sort(shuffled(able)[: n_left_out(len(self.all.index), 1 / 8)])

    def _without_and_unseen(self, sets, factor, rows, diagonal):
        xp, L = self.xp, self.whitening.L
        K = self.matrix_of(rows).block(dtype=xp.float64)
        P = solve_triangular(L, K.T)
        w = xp.asarray(sets.weights, device=self.device)
        kept = to_numpy(kept_of_features(factor.L, P, w, EPS))
        values = with_ones(sets.targets) - to_numpy(P.T @ self.everything.solve(factor))
        return values, kept, 1.0, to_numpy(unseen(P, diagonal))

    def _posterior_factors(self, factor):
        return factor.L, self.whitening.kept, self.whitening.L

    def expand(self, b):
        """Return R b, the coefficients of the centers that are kept."""
        return self.whitening.expand(b)

    def places(self, coef=None):
        """Return the rows of the kept centers in `dual_coef_`, and how many it has."""
        used = self.whitening.kept
        if self.kernel is None:
            return self.center_indices[used], self._X.shape[0]
        return used, self.n_centers

    def fitted_attributes(self, coef):
        """Return the attributes that prediction needs, arrays where X lives."""
        dtype, centers = self.model_dtype(coef), None
        if self.centers is not None:
            centers = self.to_source(self.xp.astype(self.centers, dtype, copy=False))
        dual_coef, indices = self.dual_coef(coef, dtype), self.center_indices
        attributes = self.kernel_attributes(dual_coef, self.intercept, centers)
        return attributes | {"center_indices_": self.to_source_or_none(indices)}

    def weights_of_centers(self, rows=None):
        """Return the weight that each kept center represents.

        It is the weight of the rows that equal the center. If the centers are not a
        uniform sample of the rows, and X is not a kernel matrix, it is the weight of
        the rows that are nearest to the center. `rows` are `train`, or `all` if all
        distinct rows are centers.
        """
        used, rows = self.whitening.kept, self.train if rows is None else rows
        weights = to_numpy(rows.weights)
        if self.center_of_row is not None:
            center = self.center_of_row[: len(weights)]
            found = np.bincount(center, weights, self.n_centers)[used]
        elif self._center_weights is not None:
            found = self._center_weights[used]
        else:
            X = rows.X
            if is_lazy(X):
                chosen = shuffled(len(weights))[:20_000]
                X, weights = rows_at(X, chosen), weights[chosen]
            centers = take(self.centers, used)
            found = masses(X, move(centers, namespace(X), device_of(X)), weights)
        return self.xp.asarray(found, device=self.device)


class LogisticProblem(CenterProblem):
    """Logistic regression on the features of centers, or of all distinct rows.

    Targets are as `LogLoss` takes them. Coefficients are (p + 1, l), with the
    intercepts as their last row.
    """

    _centered = False

    @property
    def constant(self):
        """Whether only one class has weight."""
        return bool(self.xp.all(self.targets == self.targets[:1, :]))

    @cached_property
    def start(self):
        """The constant model: the log odds, or logarithms of class frequencies."""
        mean = to_numpy(self.mean(self.train))
        if len(mean) == 1:
            mean = 0.5 * (1.0 + mean)
        # A class without weight would have no finite intercept.
        mean = np.clip(mean, 1e-6, 1.0 - 1e-6)
        c = np.log(mean / (1.0 - mean)) if len(mean) == 1 else np.log(mean)
        c = c - c.mean() if len(c) > 1 else c
        c = self.xp.asarray(c[None, :], dtype=self.xp.float64, device=self.device)
        return self.xp.concat([self.initial_coef(), c])

    def auto_alpha(self):
        """Return lambda of the best path on a sample of the rows.

        At most `SAMPLED_SETS` distinct rows and `SAMPLED_CENTERS` of them as centers
        choose lambda n, as the squared loss does (`plan.penalty`).
        """
        data = self._data
        rows = data.rows_with_weight()
        which, (_, _, n_of_set) = data.distinct(rows)[1], data.observations(rows)
        n, n_sets = n_of_set.sum(), len(n_of_set)
        chosen = data.rng.permutation(n_sets)[:SAMPLED_SETS]
        if self.constant or n < TOO_FEW_ROWS:
            return 1.0 / n  # C = 1 of scikit-learn
        sampled = rows[np.isin(which, chosen)]
        try:
            train, held_out = hold_out(data, sampled, 0.2)
        except ValueError:  # each row has a class of its own
            return 1.0 / n
        sample = LogisticProblem(
            self._device,
            data,
            train,
            held_out,
            kernel=self.kernel,
            bandwidth=None,
            n_centers=min(SAMPLED_CENTERS, self.n_coefs, len(train)),
            centers="uniform",
            cache_size=self._cache_size,
            n_products=PRODUCTS_OF_ALPHA * N_PENALTIES_OF_LOG_LOSS,
        )
        if sample.constant:
            return 1.0 / n
        # With less, Newton's method takes long where classes can be separated.
        alphas = np.logspace(-8, 0, N_PENALTIES_OF_LOG_LOSS // 2 + 2)
        return best_of_path(sample, alphas)[0] * len(chosen) / n_sets

    # Objectives

    def objective(self, rows):
        """Return the objective on the training rows, or with the held-out rows."""
        matrices = self.matrices[0]
        several = len(rows.index) > len(self.train.index)
        return Logistic(
            StackedRows(matrices) if several else matrices[0],
            rows.targets,
            rows.weights,
            self.expand,
            partial(solve_triangular, self.whitening.L),
        )

    def preconditioner(self, objective, rows, *, of_centers=False):
        """Return the preconditioner of Newton steps on the rows of an objective.

        `of_centers`: the centers stand in for the rows. If all rows are centers, they
        always do, and that is exact.
        """
        L, p, (n, n_outputs) = self.whitening.L, self.n_coefs, rows.targets.shape
        if of_centers or self.center_of_row is not None:
            weights = self.weights_of_centers(rows)
            sums = partial(objective.sums_of_centers, L=L, weights=weights)
            new = p**3 / 2
        else:
            whiten = partial(solve_triangular, L)
            sums = partial(objective.sums, transform=self.whitening.R, whiten=whiten)
            new = n * p**2 / 2 + p**3
        # How many passes over the rows take as long as a preconditioner.
        matrix = self.matrices[0][0]
        machine, n_threads = machine_of(matrix), n_cores_of(matrix)
        entry = machine.product_seconds(2 * n_outputs, 8, n_threads)
        fits = n * p * matrix.itemsize <= planned_bytes(matrix, self._cache_size)
        if fits or self.kernel is None:
            entry += machine.convert / n_threads
        else:
            width = matrix.feature_work * self.n_features
            entry += machine.kernel_seconds(width, matrix.itemsize, n_threads)
        patience = machine.product_seconds(new, 8, n_threads) / (n * p * entry)
        return Preconditioner(objective, sums, patience)

    # Models

    def validation_losses(self, coef):
        """Return the log loss of every validation row, (m,)."""
        F = self.values(self.matrices[0][1], coef[:-1, :]) + coef[-1, :]
        loss = LogLoss(self.targets.shape[1])
        return loss.value(self.validation.targets, F)

    def coef_of(self, fitted):
        """Return the coefficients of a fitted model, from its attributes."""
        coef = large_product(self.whitening.L.T, super().coef_of(fitted))
        c = self.xp.astype(self.to_compute(fitted["intercept_"]), self.xp.float64)
        return self.xp.concat([coef, c[None, :]])

    def fitted_attributes(self, coef):
        """Return the attributes that prediction needs, arrays where X lives."""
        attributes = super().fitted_attributes(coef[:-1, :])
        xp, dtype = self.xp, attributes["dual_coef_"].dtype
        intercept = xp.astype(coef[-1, :], dtype)
        return attributes | {"intercept_": self.to_source(intercept)}


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
    alpha, bandwidth_dtype
        The penalty and the precision for which bandwidth="auto" chooses: `make_kernel`.
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
        bandwidth_dtype=None,
        n_centers=None,
        intercept=None,
        weight_scale=None,
        zero_loss=None,
    ):
        super().__init__(device, data.X)
        self._data, self._X = data, self.to_compute_if_small(data.X)
        self.rng, self._train, self._held_out = data.rng, train, held_out
        self.n_machines, self.message_seconds = 1, 0.0
        if is_lazy(self._X):
            self.n_machines = self._X.n_machines
            self.message_seconds = self._X.message_seconds
        self._streamed = StreamedRows(self._X, self.xp, self.device, train)
        self._on_workers = self._rows = self._matrix = None
        w = data.weights_of(train)
        if bandwidth is not None:
            # It is measured on some training rows.
            first = slice(0, n_sampled_rows(len(train)))
            rows, Y = self._streamed[first, :], data.targets[train[first]]
            kernel = make_kernel(
                kernel,
                bandwidth,
                rows,
                self.rng,
                Y,
                w[first],
                data,
                alpha=alpha,
                dtype=bandwidth_dtype,
                n_centers=n_centers if isinstance(centers, str) else len(centers),
            )
        self.kernel = kernel
        if isinstance(centers, str):
            given = n_centers, kernel, self._X, train, w, self.rng
            centers = _chosen(centers, *given)
        centers = self.to_compute(centers)
        like = self.to_compute(self._X[:0, :]) if intercept is None else centers
        self.dtype = like.dtype
        if intercept is None:
            intercept = mean_of_targets(data.targets[train], w)
        self.intercept = intercept
        self.weight_scale = 1.0 / w.mean() if weight_scale is None else weight_scale
        self.centers = self.xp.astype(centers, self.dtype, copy=True)
        self.targets = self.array(data.targets[train] - self.intercept)
        self.weights = self.array(w * self.weight_scale)
        self._zero_loss = zero_loss
        # Centers are in random order, so that the first ones are a sample of all.
        self._order = np.random.RandomState(0).permutation(centers.shape[0])
        self.center_matrix = kernel_operator(
            self.kernel, take(self.centers, self._order), self.devices
        )
        if isinstance(self._X, DaskRows):
            self._on_workers = self.center_matrix.rows(self._X.take(train))
        if held_out is not None:
            self.validation = self.center_matrix.rows(take(self._X, held_out))

    def in_double(self):
        """Return the problem in double precision."""
        if self.dtype == self.xp.float64 or is_lazy(self._X):
            return self
        return GeneralProblem(
            self._data.in_double(),
            self._train,
            self._held_out,
            kernel=self.kernel,
            centers=self.xp.astype(self.centers, self.xp.float64),
            device=self._device,
        )

    def gather(self, rows):
        """Return a slice of the training rows in the solver's order."""
        if self._rows is not None:
            return self._rows[rows, :]
        return cast(self._streamed[rows, :], self.dtype)

    @property
    def n_rows(self):
        """Number of training rows."""
        return len(self._train)

    @property
    def n_coefs(self):
        """Number of centers."""
        return self.center_matrix.shape[0]

    def places(self, coef=None):
        """Return the rows of coefficients in `dual_coef_`, and how many it has."""
        return self._order, self.n_coefs

    def sample(self, whiten=None):
        """Return the rows to measure the step on, and their weights."""
        rows = slice(0, n_sampled_rows(self.n_rows))
        sample = Sample(self.center_matrix, self.gather(rows), whiten)
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
                X_b = self.gather(b)
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
        other._rows = self.gather(slice(0, self.n_rows))
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
        entries = self.kernel.diagonal(self.gather(first))
        return usual_size(entries, self.weights[first])

    def loss(self, coef, n_rows=None):
        """Return the weighted mean squared residual of the first rows, or of all."""
        n, total = min(n_rows or self.n_rows, self.n_rows), 0.0
        zero = not bool(self.xp.any(coef != 0))
        # Larger blocks take more memory, and less time by 0.01 s of 0.11 s.
        for rows in slices(n, 4096 * self.n_machines):
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
        return self.center_matrix.rows(self.gather(rows)) @ coef

    @property
    def zero_loss(self):
        """Mean loss of f = 0, summed over the outputs."""
        if self._zero_loss is not None:
            return self._zero_loss
        squares = self.xp.sum(self.targets**2, axis=1)
        return float(self.xp.mean(self.weights * squares))

    def fitted_attributes(self, coef):
        """Return the attributes that prediction and further steps need."""
        dual_coef, centers = scatter(coef, *self.places()), self.to_source(self.centers)
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
        first, which = distinct_rows(rows)
        if p is None:
            return take(rows, np.sort(first))
        totals = np.bincount(which, weights=weights)
        rows = take(rows, first)
        return choose(method, kernel, rows, p, rng, totals)[0]
    # Take the last distinct rows, as the step is measured on the first rows. In a file
    # the last rows would be neighbors: draw rows instead.
    order = rng.permutation(train) if isinstance(X, StoredRows) else train
    found, taken = (), min(p, n)
    while len(found) < p and taken < 2 * n:
        last = order[max(n - taken, 0) :]
        first = distinct_rows(rows_at(X, last))[0]
        found, taken = last[np.sort(first)[-p:]], 2 * taken
    if len(found) < p:  # all distinct rows, in the order of their content
        found = last[first]
    return rows_at(X, found)
