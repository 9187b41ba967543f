"""Least squares in closed form: data type, penalty, targets, left-out values."""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..arrays import memory
from ..arrays.array import namespace, to_numpy
from ..arrays.linalg import large_gram, large_product
from ..centers import distinct_rows
from ..kernels import MEDIAN_ROWS
from ..methods.closed_form_plan import NystromPlan, blocks
from ..methods.descent import Descent
from ..methods.direct import N_DIAGONAL
from ..methods.left_out import gcv_errors, left_parts, loo_errors, scales
from ..methods.moments import nearest_factor
from ..operators.matrix import GivenMatrix
from ..operators.sharded import kernel_operator
from ..operators.tiled import TiledKernel
from ..plan.bandwidth_choice import merged
from ..plan.penalty import auto_ridge, n_sampled
from ..plan.sizes import rounding
from ..rows.lazy_rows import is_lazy, rows_at
from ..rows.robust import cast
from .data import OutOfSample, sample_of_classes
from .kernel_parameters import make_kernel
from .problem import Problem, scatter, shuffled, take, take_entries

# Rows on which predictions in single precision are compared with those in double, and
# the root mean squared difference, in standard deviations of the targets, that is
# harmless: R2 then changes by 1e-6, and by up to 2e-3 if it is not random.
_N_COMPARED_ROWS, _HARMLESS = 256, 1e-3


class InPrecision:
    """The data types of kernel values and models: a part of `LeastSquares`.

    A closed form computes kernel values in float64; an iteration in the data type of
    the rows, if that does no harm.
    """

    def iterates(self, alpha, *, to_its_end=True):
        """Let kernel values have the data type of the rows, to iterate in less time.

        They stay in float64 if rounding to float32 would drown the smallest penalty,
        `alpha`; unless that is the end of a path, which seldom gets there.
        """
        if self.kernel is None or self.dtype == self.xp.float64:
            return
        least = rounding(self.xp, self.dtype, self._n_columns) * self.kernel_size
        if alpha > least or not to_its_end:
            self.kernel_dtype, self.least_alpha = self.dtype, alpha

    def in_double(self):
        """Compute kernel values in float64 from here on."""
        if self.kernel is not None:
            self.kernel_dtype = self.xp.float64

    @cached_property
    def kernel_size(self):
        """The mean of k(x, x) over some training rows."""
        X = self.train.X
        first = np.arange(min(N_DIAGONAL, X.shape[0]))
        rows = self.to_compute(rows_at(X, first))
        if self.kernel is None:
            rows = take(rows, self.train.index[first], axis=1)
            return float(self.xp.mean(self.xp.linalg.diagonal(rows)))
        return float(self.xp.mean(self.kernel.diagonal(rows)))

    def in_kernel_dtype(self, centers):
        """Return centers in the data type of the kernel's values, as rows will be."""
        xp = namespace(centers)
        dtype = xp.float64 if self.kernel_dtype == self.xp.float64 else centers.dtype
        return xp.astype(centers, dtype, copy=False)

    @np.errstate(over="ignore", invalid="ignore")  # in single precision
    def model_dtype(self, coef):
        """Return the data type of a fitted model.

        It is that of the rows, unless single precision would change its predictions.
        """
        xp, double = self.xp, self.xp.float64
        if self.kernel_dtype == self.dtype:
            return self.dtype
        a, Z = self.expand(coef), self.centers_of(coef)
        X = self.train.X
        X = rows_at(X, np.sort(shuffled(X.shape[0])[:_N_COMPARED_ROWS]))
        kernels = (
            kernel_operator(self.kernel, centers, self.devices, X)
            for centers in (self.in_kernel_dtype(Z), Z)
        )
        F, rounded = (K @ xp.astype(a, K.dtype, copy=False) for K in kernels)
        change = xp.mean((F - xp.astype(rounded, double)) ** 2, axis=0)
        spread = xp.mean((self.targets - self.mean(self.train)) ** 2, axis=0)
        harmless = xp.all(change <= _HARMLESS**2 * spread)
        return self.dtype if bool(harmless) else double


class Sample:
    """A sample of rows X: the kernel matrices K(X, X) and K(X, Z), with centers Z.

    It is not a `Matrix`: it has only the blocks that the preconditioner and the step
    need.

    Parameters
    ----------
    centers : Matrix
        K(Z, Z).
    rows : array of shape (N, d)
        X.
    whiten : callable, default=None
        ``whiten(C)`` returns C L^-T for C = K(X, Z), with L L' = K(Z, Z). If given,
        `row_kernel` is that of the kernel projected onto the span of the centers.

    Attributes
    ----------
    shape : tuple (N, p)
    """

    def __init__(self, centers, rows, whiten=None):
        self._centers = centers.rows(rows)
        self._rows = TiledKernel(self._centers.kernel, rows)
        self.shape = self._centers.shape
        self._features = None if whiten is None else whiten(self._centers.block())

    def row_kernel(self, start, stop):
        """Return the kernel matrix of some rows with themselves, (m, m)."""
        if self._features is None:
            return self._rows.row_kernel(start, stop)
        return large_gram(self._features[start:stop, :])

    def center_block(self, start, stop, n_centers, dtype=None):
        """Return K of some rows with the first centers."""
        return self._centers.block(start, stop, 0, n_centers, dtype=dtype)


def auto_alpha(problem, data, rows, dtype, n_centers=None):
    """Return the lambda with which kernel ridge regression predicts new rows best.

    It is that of ``mean_i (y_i - f(x_i))^2 + lambda |f|^2``, see `plan.penalty`.

    Parameters
    ----------
    problem : Problem
        With the kernel, or None for a kernel matrix.
    data : Data
    rows : ndarray of int
        The training rows.
    dtype : data type
        Of the kernel values, unless the penalty is below their rounding.
    n_centers : int, default=None
        None: of a model in which all rows are centers.

    Returns
    -------
    float
        0 if there are too few rows to tell.
    """
    xp, merged = problem.xp, data.merged(rows)
    n = len(merged.rows)
    sample = merged.rows[: n_sampled(n, n_centers)]
    Y, w = merged.data.targets[merged.rows], merged.data.weights_of(merged.rows)
    Y, w = Y - np.average(Y, axis=0, weights=w), w / w.mean()
    in_double = None
    if problem.kernel is None:
        K = problem.to_compute(take_entries(data.X, sample, sample))
        K = GivenMatrix(xp.astype(K, dtype, copy=False))
    else:
        X = problem.to_compute(take(data.X, sample))
        X = xp.astype(X, dtype, copy=False)
        K = TiledKernel(problem.kernel, X)

        def in_double(m):
            return TiledKernel(problem.kernel, xp.astype(X[:m, :], xp.float64))

    Y, w = (
        xp.asarray(values[: len(sample)], dtype=dtype, device=problem.device)
        for values in (Y, w)
    )
    labels = data.groups is not None
    options = {"replicates": merged.replicates, "labels": labels}
    return auto_ridge(K, Y, w, in_double=in_double, **options) / n


# Sets of equal rows that are left out one at a time: a tenth, within these limits. With
# 500, 1000, 2000 and 4000 of 10 000 rows (three draws, alpha=1e-6) the log loss of new
# rows is 0.393, 0.386, 0.386 and 0.385 on fashion_mnist, 0.473, 0.473, 0.472 and 0.472
# on covtype. Compared with 500, a fit takes 7, 20 and 80 % longer.
_MIN_SETS, _MAX_SETS = 300, 1000
# Most distinct rows to hold out together, if no factor can leave out single rows.
_MAX_HELD_OUT = 2000
# With fewer rows that are not centers, centers are left out too.
_MIN_OTHER_ROWS = 50
# The part of the left-out rows that are usual rows, for variances of others.
_USUAL = 0.95
# lambda if there are too few rows to choose it, or no penalty is known to suit a kernel
# that is not positive semi-definite.
_UNCHOSEN_ALPHA = 1e-6


def weighted_mean(losses, weights):
    """Return the weighted mean of the losses of some rows."""
    xp = namespace(weights)
    return float(xp.sum(weights * losses)) / float(xp.sum(weights))


def standard_error(losses, weights, n_observations):
    """Return the standard error of `weighted_mean` of independent observations."""
    xp = namespace(weights)
    w = weights / xp.sum(weights)
    variance = float(xp.sum(w * (losses - xp.sum(w * losses)) ** 2))
    return (variance / n_observations) ** 0.5


def products(matrix, coefs, width):
    """Yield ranges of rows of a matrix, and their products with coefficients.

    A range fits into a block even with `width` more numbers per row.
    """
    for block in blocks(matrix.shape[0], matrix.shape[1] + width):
        K = matrix.block(block.start, block.stop, dtype=coefs.dtype)
        F = large_product(K, coefs)
        del K  # not needed while the caller computes
        yield block, F


class Rows(NamedTuple):
    """Rows of a least-squares problem.

    Attributes
    ----------
    X : array of shape (n, d)
    targets : array of shape (n, l)
        In float64, like all linear algebra with them.
    weights : array of shape (n,)
        In float64.
    index : ndarray of shape (n,)
        Their indices in the user's X; empty for rows that are not in X.
    """

    X: Any
    targets: Any
    weights: Any
    index: np.ndarray

    def part(self, start, stop):
        """Return the rows [start:stop]."""
        X = self.X.part(start, stop) if is_lazy(self.X) else self.X[start:stop, ...]
        return Rows(X, *(values[start:stop, ...] for values in self[1:]))

    def part_at(self, position):
        """Return the rows at some positions."""
        arrays = (take(values, position) for values in self[:-1])
        return Rows(*arrays, self.index[position])


class Sets(NamedTuple):
    """Sets of equal rows.

    Attributes
    ----------
    position : ndarray of shape (k,)
        Positions of their rows in the problem, increasing.
    which : ndarray of shape (k,)
        The set of each row.
    row_weights : ndarray of shape (k,)
    weights : ndarray of shape (G,)
        Total weight of each set.
    targets : ndarray of shape (G, l)
        Weighted mean target of each set.
    n_observations : ndarray of shape (G,)
        u, see `Data.observations`.
    stands_for : ndarray of shape (G,)
        How many sets of its class each one stands for.
    members : ndarray of shape (m,)
        Indices of all their rows in the data, more than k if the problem is `Merged`.
    set_of_member : ndarray of shape (m,)
    part : ndarray of shape (m,)
        The part of the weight of its set that its observation has.
    """

    position: np.ndarray
    which: np.ndarray
    row_weights: np.ndarray
    weights: np.ndarray
    targets: np.ndarray
    n_observations: np.ndarray
    stands_for: np.ndarray
    members: np.ndarray
    set_of_member: np.ndarray
    part: np.ndarray


class LeastSquares(InPrecision, Problem):
    """Weighted least squares with a kernel: the base of models on centers and on rows.

    Coefficients b belong to features phi(x), see `eigenkern.nystrom`. A subclass
    defines the features:

    - ``expand(b)``: the coefficients of the centers (or rows) themselves;
    - ``places(b)``: their rows in `dual_coef_`, and its number of rows;
    - ``centers_of(b)``: the centers (or rows), in the data type of X;
    - ``matrix_of(rows)``: the operator of training rows that `descent` needs;
    - ``matrix_of_validation(b)``: the operator whose product with ``expand(b)`` gives
      the values on the validation rows;
    - ``training`` and ``everything``: the normal equations of the training rows, and of
      training and held-out rows together (the same object if none are held out);
    - ``gradient(matrix, rows, b, Y)``: N (B b - q), with q from the targets Y, or N B b
      if Y is None;
    - ``validation_errors(spectrum, filters)``: the errors, (k,), of filters of the
      training spectrum;
    - ``orthonormal(width)``: ranges of training rows, and these rows of W^1/2 Phi V
      with its columns scaled to norm 1; a range fits into a block even with `width`
      more numbers per row;
    - ``without(sets, factor, solutions)``: f - y, 1 - s and 1 - h of `left_out`,
      divided by a number, and that number, from a `Factor` of ``everything`` and its
      solutions, (p, l + 1);
    - ``variance_attributes(factor)``: the attributes that variances of predictions
      need, from a `Factor` of ``everything``.

    Parameters
    ----------
    device : str or list
        The parameter of the estimator.
    data : Data
    train : ndarray of int
        Rows to train with.
    held_out : ndarray of int or None
        Rows to select on. None: those of `data.validation`, if there are any.
    kernel : str, Kernel or callable
        Not used if the data are a kernel matrix.
    bandwidth : float, "median" or "auto"
    n_columns : int, default=None
        Columns of the kernel matrix, one per center. None: all rows are centers.
    centered : bool, default=True
        Whether the mean of the targets is subtracted from them.
    merged : Merged, default=None
        That of the data, if equal training rows have become one.

    Attributes
    ----------
    kernel : Kernel or None
        None for "precomputed".
    train, validation, all : Rows
        `all` are train and held-out rows; `validation` may be None.
    parts : list of Rows
        `train`, and `validation` if there is one.
    n_centers : int or None
        None for the full kernel matrix, where all rows are centers.
    center_indices : ndarray of shape (n_centers,) or None
        Rows of X that are centers; None if all are, or if centers are not rows of X.
    n_coefs : int
        Coefficients per output: one for each row, or for each center that is kept.
    refits : bool
        Whether rows are held out. If so, the selected model is fitted again at the end,
        to all rows.
    intercept : ndarray of shape (l,)
        Weighted mean of all targets, or zero, on the host. It is subtracted from all
        targets, so that sums of squares are accurate.
    dtype : data type
        That of the rows, and of the fitted model unless rounding would change it.
    kernel_dtype : data type
        That of the kernel's values: float64 for a closed form, see `iterates`.
    """

    n_centers = center_indices = None

    def __init__(
        self,
        device,
        data,
        train,
        held_out,
        *,
        kernel,
        bandwidth,
        n_columns=None,
        centered=True,
        merged=None,
    ):
        super().__init__(device, data.X)
        self._merged = merged
        self._data, self.rng, self.kernel = data, data.rng, None
        X = self.to_compute_if_small(data.X)
        self.dtype = self.kernel_dtype = self.to_compute(X[:0, :]).dtype
        self._n_columns = n_columns or len(train)
        self.refits = held_out is not None
        order = np.concatenate([train, held_out]) if self.refits else train
        if not np.array_equal(order, np.arange(X.shape[0])):
            X = take(X, order)
        if not data.precomputed:
            self.kernel = self._kernel(kernel, bandwidth, X, train, order)
            self.kernel_dtype = self.xp.float64
        weights = np.ones(len(data.targets)) if data.weights is None else data.weights
        targets, weights = data.targets[order], weights[order] / weights[order].mean()
        self.intercept = np.zeros(targets.shape[1])
        if centered:
            self.intercept = np.average(targets, axis=0, weights=weights)
        self.all = self._rows(X, targets, weights, order)
        self.train = self.all.part(0, len(train))
        self.targets, self.weights = self.train.targets, self.train.weights
        self.validation = None
        if self.refits:
            self.validation = self.all.part(len(train), len(order))
        elif data.validation is not None:
            self.validation = self._given_rows(*data.validation)
        both = self.train, self.validation
        self.parts = [rows for rows in both if rows is not None]

    def _kernel(self, kernel, bandwidth, X, train, order):
        """Return the kernel with its bandwidth measured on distinct rows.

        As in scikit-learn, "scale" is measured on all rows. "median" takes held-out
        rows into account; "auto" uses targets, so it sees only training rows.
        """
        data, targets, weights = self._data, None, None
        if isinstance(kernel, str) and bandwidth == "median":
            # Draw the rows that `median_distance` would draw, to avoid a copy of X.
            first = data.distinct(order)[0]
            if len(first) > MEDIAN_ROWS:
                drawn = self.rng.choice(len(first), MEDIAN_ROWS, replace=False)
                first = first[np.sort(drawn)]
            X = take(X, first)
        elif isinstance(kernel, str) and bandwidth == "auto":
            first, which = data.distinct(train)
            weights = None if data.weights is None else data.weights[train]
            targets, weights = merged(first, which, data.targets[train], weights)
            X = take(X, first)
        return make_kernel(kernel, bandwidth, X, self.rng, targets, weights, data)

    def _rows(self, X, targets, weights, index):
        xp = self.xp
        options = {"dtype": xp.float64, "device": self.device}
        targets = xp.asarray(targets - self.intercept, **options)
        return Rows(X, targets, xp.asarray(weights, **options), index)

    def _given_rows(self, X, targets, weights):
        """Return validation rows that are not rows of X."""
        weights = np.ones(len(targets)) if weights is None else weights / weights.mean()
        if not is_lazy(X):
            X = cast(self.to_compute(X), self.dtype)
        return self._rows(X, targets, weights, np.arange(0))

    def n_observations(self, rows):
        """Return the number of independent observations, see `Data.observations`."""
        if self._merged is not None:
            return float(self._merged.n_observations.sum())
        if len(rows.index):
            return float(self._data.observations(rows.index)[2].sum())
        # Validation rows given by the user may have no weight.
        pairs = np.column_stack([distinct_rows(rows.X)[1], to_numpy(rows.targets)])
        return len(np.unique(pairs[to_numpy(rows.weights) > 0], axis=0))

    def auto_alpha(self):
        """Return the lambda that the training rows prefer."""
        found = 0.0
        if not self._data.indefinite:
            rows, p = np.sort(self.train.index), self.n_centers
            found = auto_alpha(self, self._data, rows, self.dtype, p)
        return found or _UNCHOSEN_ALPHA

    # Memory

    def plan(self, path, n_stored=0):
        """Return the memory of a fit in closed form.

        Parameters
        ----------
        path : bool
            Whether eigenvectors are computed.
        n_stored : int, default=0
            Candidates whose coefficients are stored.
        """
        n, n_outputs = self.all.targets.shape
        kind, p = "path" if path else "ridge", self.n_centers
        if p is None:
            stored = 3 * n * n_stored * n_outputs
            return NystromPlan.make(f"full {kind}", n, n, n_stored=stored)
        validated, stored = self.validation is not None, 3 * p * n_stored * n_outputs
        return NystromPlan.make(kind, p, n, validated=validated, n_stored=stored)

    def check_memory(self, plan):
        """Raise a ValueError unless the free memory holds a `NystromPlan`."""
        free = memory.available(self.xp, self.device)
        if plan.bytes > free:
            matrices, remedy = "", "at least that much must be free"
            if 4 * plan.bytes_of_squares > plan.bytes:
                size, megabytes = plan.size, plan.bytes_of_squares / 1e6
                matrices = f"{megabytes:.0f} of it for matrices of {size} x {size}, "
                remedy = "pass a smaller n_centers"
            raise ValueError(
                f"n_centers={plan.n_centers} needs {plan.bytes / 1e6:.0f} MB, "
                f"{matrices}but {free / 1e6:.0f} MB of memory are free; {remedy}"
            )

    # Selection

    def path_spectrum(self, selection, low, high):
        """Return the spectrum of the training rows that a selection needs.

        To predict held-out rows, the models between the penalties `low` and `high` are
        enough; the other criteria need all eigenvectors.
        """
        if selection in ("gcv", "loo"):
            return self.training.spectrum
        return self.training.spectrum_between(low, high)

    def path_errors(self, spectrum, path, selection):
        """Return the errors of a path of models of the training rows.

        Parameters
        ----------
        spectrum : Spectrum
            From `path_spectrum`.
        path : RidgePath or DescentPath
        selection : {"holdout", "gcv", "loo"}

        Returns
        -------
        ndarray of shape (k,)
        """
        rows = self.train
        if selection == "holdout":
            return self.validation_errors(spectrum, path.filters(spectrum))
        replicates, variance = None, 0.0
        if self._merged is not None and self._merged.replicates is not None:
            replicates = self._merged.replicates_of(rows.index).of(rows.targets)
            variance = rows.weights * replicates[1]
            n_outputs = rows.targets.shape[1]
            variance = float(self.xp.sum(variance)) / float(self.xp.sum(rows.weights))
            variance /= n_outputs
        if selection == "gcv":
            n = self.n_observations(rows)
            kept = path.kept(spectrum, n)
            return gcv_errors(spectrum, kept, n, variance)
        left = path.kept(spectrum, None if replicates is None else np.inf)
        parts = self.orthonormal(3 * (rows.targets.shape[1] + 1) * left.shape[1])
        Y = rows.targets - self.training.mean
        return loo_errors(spectrum, left, parts, Y, rows.weights, replicates)

    def validation_error(self, matrix, coef, mean):
        """Return the mean squared error of b and the intercept on validation rows."""
        squares = self._squares(matrix, coef, mean)
        return weighted_mean(squares, self.validation.weights)

    def validation_deviation(self, coef):
        """Return the standard error of the validation error of b."""
        matrix, rows = self.matrix_of_validation(coef), self.validation
        squares = self._squares(matrix, coef, self.training.mean)
        return standard_error(squares, rows.weights, self.n_observations(rows))

    def _squares(self, matrix, coef, mean):
        """Return the squared errors on the validation rows, mean over outputs."""
        residual = self.values(matrix, coef) - (self.validation.targets - mean)
        return self.xp.mean(residual**2, axis=1)

    def values(self, matrix, coef, n_rows=None):
        """Return f minus the intercept on the first rows of an operator, or on all."""
        coef = self.xp.astype(self.expand(coef), matrix.dtype, copy=False)
        F = matrix.product(coef, stop=n_rows)
        return self.xp.astype(F, self.xp.float64, copy=False)

    # Values out of sample

    @property
    def calibrates(self):
        """Whether out-of-sample values are needed: for classes."""
        return self._data.groups is not None

    def left_out(self, alpha=0.0, factor=None, *, among=None, path=None):
        """Return the values of a sample of rows, each from a model fitted without it.

        The models are ridge regressions. Copies are left out together, so that a copy
        gives the same result as an integer weight; replicates are left out one by one
        (`Data.observations`). For a set of equal rows let phi be the features, w the
        weight, f the value in the model of all rows, s the value in the model of
        targets that are all 1, and h = w phi' (Phi' W Phi + lambda N)^-1 phi the
        leverage. The value in the model without an observation y of weight v is ::

            y + (f - y + m (1 - s)) / (1 - h v / w),   m = -v y / (N - v),

        where m is the change of the mean target. The penalty lambda N stays the same.

        Parameters
        ----------
        alpha : float
            lambda.
        factor : Factor, default=None
            ``everything.factor(alpha)``. None: that of the least lambda >= `alpha` that
            has one.
        among : ndarray of bool, shape (n,), default=None
            Which rows of `all` may be left out, besides replicates. If a class has no
            such row, all of its rows may be. None: rows that are not centers, if there
            are enough.
        path : DescentPath, default=None
            Of one model, which is left out in the same way, in place of a ridge
            regression. Rows must be `Merged`.

        Returns
        -------
        OutOfSample
        """
        equations = self.everything
        sets = self._sets(self._able_to_leave_out() if among is None else among)
        if path is not None:
            error, ones, kept, unit = self._without_of_path(sets, path)
        else:
            if factor is None:
                factor = nearest_factor(equations, alpha)
            solutions = equations.solve(factor)
            error, ones, kept, unit = self.without(sets, factor, solutions)
        own, u = sets.set_of_member, sets.n_observations
        source = self._data if self._merged is None else self._merged.source
        targets, weights = source.targets[sets.members], source.weights_of(sets.members)
        part, y = sets.part, targets - self.intercept
        v = part * sets.weights[own]
        rest = equations.weight - v
        moved = -(v / np.where(rest > 0, rest, np.inf))[:, None] * y
        residual, left = error[own] + moved * ones[own, None], kept[own]
        some = part < 1  # for others the unit cancels
        from_mean = (sets.targets[own] - y)[some]
        residual[some] = unit * residual[some] + from_mean
        left[some] = (1.0 - part[some]) + part[some] * unit * left[some]
        weights = weights * sets.stands_for[own]
        values = y + residual / left[:, None] + self.intercept
        return OutOfSample(values, targets, weights, float(u.sum()))

    def _without_of_path(self, sets, path):
        """Return f - y, 1 - s and 1 - h of a model by its filter, and 1."""
        spectrum, rows = self.training.spectrum, self.train
        left_over = path.kept(spectrum, np.inf)
        n, n_outputs = rows.targets.shape
        residual, kept = np.empty((n, n_outputs + 1)), np.empty(n)
        parts = self.orthonormal(3 * (n_outputs + 1))
        Y = rows.targets - self.training.mean
        for block, R, left in left_parts(spectrum, left_over, parts, Y, rows.weights):
            residual[block], kept[block] = to_numpy(R)[:, :, 0], to_numpy(left)[:, 0]
        residual /= np.sqrt(to_numpy(rows.weights))[:, None]
        row = sets.position[np.argsort(sets.which)]  # of each set, which is one row
        residual, kept = residual[row], kept[row]
        return -residual[:, :-1], residual[:, -1], kept, 1.0

    def _able_to_leave_out(self):
        """Return which rows may be left out: those that are not centers, or all.

        If the row of a center is left out and the penalty is small, little determines
        the center's coefficient. New rows are not centers: such a row is unlike them.
        """
        everything = np.ones(len(self.all.index), dtype=bool)
        if self.center_indices is None:
            return everything
        able = ~np.isin(self.all.index, self.center_indices)
        return able if np.sum(able) >= _MIN_OTHER_ROWS else everything

    def _sets(self, among):
        """Return the sets of equal rows that `left_out` leaves out."""
        rows, data, members = self.all, self._data, self.all.index
        if self._merged is not None:
            data, members = self._merged.source, self._merged.members
        first, which = data.distinct(rows.index)
        set_of_member = data.distinct(members)[1]
        n_observations = data.observations(members)[2]
        codes = data.groups[members]
        w = np.ones(len(members)) if data.weights is None else data.weights[members]
        n, n_classes = len(first), int(codes.max()) + 1
        of_class = np.bincount(set_of_member * n_classes + codes, w, n * n_classes)
        classes = of_class.reshape(n, n_classes).argmax(axis=1)
        able = among[first] | (n_observations > 1)
        able |= ~np.isin(classes, classes[able])
        n_taken = min(n, max(_MIN_SETS, min(n // 10, _MAX_SETS)))
        chosen, stands_for = sample_of_classes(classes[able], n_taken, self.rng)
        chosen = np.flatnonzero(able)[chosen]
        n_able, n_all = np.bincount(classes[able]), np.bincount(classes)
        stands_for = stands_for * (n_all / np.maximum(n_able, 1))[classes[chosen]]
        position = np.flatnonzero(np.isin(which, chosen))
        which = np.searchsorted(chosen, which[position])
        weights = to_numpy(rows.weights)[position]
        targets = to_numpy(rows.targets)[position]
        totals = np.bincount(which, weights)
        sums = [np.bincount(which, weights * column) for column in targets.T]
        taken = np.isin(set_of_member, chosen)
        return Sets(
            position,
            which,
            weights,
            totals,
            np.stack(sums, axis=1) / totals[:, None],
            n_observations[chosen].astype(np.float64),
            stands_for,
            members[taken],
            np.searchsorted(chosen, set_of_member[taken]),
            data.parts_of_sets(members)[taken],
        )

    def rows_to_hold_out(self):
        """Return the positions of some training rows together with all their copies.

        None of them is a center, if there are enough others, unless it has replicates.
        """
        first, which, n_of_set = self._data.observations(self.train.index)
        n_equal = n_of_set[self._data.distinct(self.train.index)[1][first]]
        able = np.flatnonzero(self._able_to_leave_out()[first] | (n_equal > 1))
        n_held = min(max(len(first) // 5, 1), _MAX_HELD_OUT, len(able))
        chosen = self.rng.permutation(able)[:n_held]
        return np.flatnonzero(np.isin(which, chosen))

    def held_out(self, coef, mean, position=None):
        """Return the values of b, fitted to training rows, on the validation rows.

        Parameters
        ----------
        coef : array of shape (p, l)
        mean : array of shape (l,)
            Mean of the targets that b was fitted to; it is added to the values.
        position : ndarray of int, default=None
            Rows of `all` to take instead of the validation rows.
        """
        if position is None:
            rows, matrix = self.validation, self.matrix_of_validation(coef)
        else:
            rows = self.all.part_at(position)
            matrix = self.matrix_of(rows)
        values = to_numpy(self.values(matrix, coef) + mean)
        return self._out_of_sample(rows, values)

    def _out_of_sample(self, rows, values):
        targets = to_numpy(rows.targets) + self.intercept
        weights, n = to_numpy(rows.weights), float(self.n_observations(rows))
        return OutOfSample(values + self.intercept, targets, weights, n)

    # Gradient descent

    def descent(self, rows, matrix):
        """Return gradient descent on some rows, started at the mean of their targets.

        `matrix` is ``matrix_of(rows)``, possibly cached.
        """
        weight = float(self.xp.sum(rows.weights))

        def gradient(b, Y):
            return self.gradient(matrix, rows, b, Y) / weight

        # In 39 of 192 fits (400 iterations, four data sets) gradients grew by rounding,
        # all below 0.002 eps^1/2 times the first gradient; in one more fit an
        # eigenvalue was negative.
        noise = 10 * float(self.xp.finfo(matrix.dtype).eps) ** 0.5
        Y = rows.targets - self.mean(rows)
        return Descent(gradient, Y, matrix.shape[1], noise)

    def mean(self, rows):
        """Return the weighted mean of the targets of some rows, shape (l,)."""
        return rows.weights @ rows.targets / float(self.xp.sum(rows.weights))

    # Models

    def loss(self, coef, n_rows=None):
        """Return the weighted mean loss of the first training rows, or of all."""
        rows, matrix = self.train.part(0, n_rows), self.matrix_of(self.train)
        squares = (self.values(matrix, coef, n_rows) - rows.targets) ** 2
        return weighted_mean(self.xp.mean(squares, axis=1), rows.weights)

    def validation_values(self, coef):
        """Return f on the validation rows in units of y, on the host, (m, l)."""
        F = self.values(self.matrix_of_validation(coef), coef)
        return to_numpy(F) + self.intercept

    def dual_coef(self, coef, dtype=None):
        """Return `dual_coef_`, on the device that computes; in float64 for None."""
        index, n = self.places(coef)
        dtype = self.xp.float64 if dtype is None else dtype
        coef = self.xp.astype(self.expand(coef), dtype, copy=False)
        if not bool(self.xp.all(self.xp.isfinite(coef))):
            raise ValueError(
                "the coefficients are not finite: scale y, X or sample_weight, or pass "
                "a larger alpha or another kernel"
            )
        return scatter(coef, index, n)

    def dual_coef_path(self, spectrum, path):
        """Return `dual_coef_` of the models of a path, (k, p, l), where X lives."""
        pieces = []
        for b in spectrum.coefs(path.filters(spectrum)):
            b_all = self.xp.reshape(b, (b.shape[0], -1))
            coefs = self.dual_coef(b_all, self.kernel_dtype)
            coefs = self.xp.reshape(coefs, (-1, *b.shape[1:]))
            pieces.append(self.to_source(self.xp.permute_dims(coefs, (2, 0, 1))))
        return namespace(pieces[0]).concat(pieces)

    def _variance_attributes(
        self, found, diagonal, weights, factor, L, index, features=None
    ):
        """Return the attributes that variances need, arrays where X lives.

        The symbols are those of `eigenkern.nystrom.posterior`.

        Parameters
        ----------
        found : tuple
            What `left_out_of_centers` or `left_out_of_kernel` returned.
        diagonal : array of shape (m,)
            k(x, x) of the rows that were left out.
        weights : array of shape (m,)
            Their weights.
        factor : Factor
        L : array of shape (p, p)
            M, or W^-1/2 M with the full kernel.
        index : ndarray of shape (p,)
            The centers that L belongs to.
        features : array of shape (p, p), default=None
            L of the features L^-1 K(Z, x). None: those of the full kernel.
        """
        rows, largest = self.all, float(self.xp.mean(diagonal))
        spread = None
        if float(self.xp.max(diagonal) - self.xp.min(diagonal)) <= 1e-6 * largest:
            # A kernel such as the polynomial has no limit far from the rows.
            squares = (rows.targets - self.mean(rows)) ** 2
            spread = rows.weights @ squares / float(self.xp.sum(rows.weights))
        prior, noise = scales(*found, factor.ridge, largest)
        # Of f at the left-out rows.
        unseen, noise_factors = (to_numpy(part)[:, None] for part in found[1:])
        own = 1.0 / to_numpy(weights)[:, None]
        variances = prior * unseen + noise * (noise_factors - own)
        usual = np.quantile(variances, _USUAL, axis=0)
        return {
            "prior_variance_": self.to_source(prior),
            "noise_variance_": self.to_source(noise),
            "_posterior_factor": self.to_source(L),
            "_posterior_centers": self.to_source(index),
            "_target_variance": None if spread is None else self.to_source(spread),
            "_usual_variance": self.to_source(usual),
            "_feature_factor": None if features is None else self.to_source(features),
        }

    def to_source_or_none(self, values):
        """Return values of the host where X lives, or None for None."""
        return None if values is None else self.to_source(np.asarray(values))
