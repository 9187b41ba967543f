"""Least squares in closed form: data type, penalty, targets, left-out values."""

from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import namespace, scatter, to_numpy
from ..arrays.linalg import large_gram, large_product
from ..arrays.threads import cached_property
from ..centers import distinct_rows
from ..kernels import MEDIAN_ROWS
from ..losses import mean_of_targets
from ..methods.direct import N_DIAGONAL
from ..methods.left_out import (
    gcv_errors,
    left_parts,
    loo_errors,
    n_left_out,
    scales,
    unless_sets_contradict,
    values_left_out,
    with_ones,
    without_row,
)
from ..operators.blocks import blocks
from ..operators.matrix import GivenMatrix
from ..operators.sharded import kernel_operator
from ..operators.tiled import TiledKernel
from ..plan.bandwidth_choice import merged
from ..plan.penalty import auto_ridge, may_be_groups, n_sampled, units_of
from ..plan.sizes import rounding
from ..rows.lazy_rows import is_lazy, rows_at
from ..rows.robust import cast
from .data import OutOfSample, sample_of_classes
from .kernel_parameters import make_kernel
from .problem import Problem, shuffled, take, take_entries


class Sample:
    """A sample of rows X, (N, d): blocks of K(X, X) and of K(X, Z), with centers Z.

    `centers` is K(Z, Z). If ``whiten(C)`` is given, which returns C L^-T for C = K(X,
    Z) with L L' = K(Z, Z), `row_kernel` is that of the kernel projected onto the span
    of the centers.
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


def ridge_of_rows(problem, merged, n_sample, dtype, K=None):
    """Return the c of kernel ridge regression that predicts new rows best.

    It is that of `plan.penalty`, on the first `n_sample` of the rows; 0 if there are
    too few to tell. Kernel values have the data type `dtype`, unless the penalty is
    below their rounding. `K` is the kernel matrix, if it is at hand.
    """
    xp, data, rows = problem.xp, merged.data, merged.rows
    kernel = problem.kernel
    # Costs of classes say nothing about noise: a few costly rows would decide alone.
    Y, w = merged.without_class_weights()
    Y, w = Y - mean_of_targets(Y, w), w / w.mean()
    sample = rows[:n_sample]

    def matrix(m=n_sample, dtype=xp.float64):
        X = problem.to_compute(take(data.X, sample[:m]))
        return TiledKernel(kernel, xp.astype(X, dtype, copy=False))

    if K is None and kernel is None:
        K = problem.to_compute(take_entries(data.X, sample, sample))
        K = GivenMatrix(xp.astype(K, dtype, copy=False))
    elif K is None:
        K = matrix(dtype=dtype)
    in_double = None if kernel is None or data.indefinite else matrix
    like, n = {"dtype": dtype, "device": problem.device}, len(sample)
    labels, replicates = data.groups is not None, merged.replicates
    if not labels:
        units = units_of(Y, w)
        Y, replicates = Y / units, merged.replicates_in(units)
    Y, w = (xp.asarray(values[:n], **like) for values in (Y, w))
    options = {"replicates": replicates, "labels": labels}
    return auto_ridge(K, Y, w, **options, in_double=in_double)


# lambda if there are too few rows to choose it, or no penalty is known to suit a kernel
# that is not positive semi-definite.
_UNCHOSEN_ALPHA = 1e-6


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
    """Rows of a least-squares problem: X (n, d); targets (n, l) and weights in float64.

    `index` has their indices in the user's X; it is empty if they are not in X.
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
    """G sets of equal rows of a problem, k rows in all.

    `position` (k,) has the rows, increasing, `row_weights` their weights, `which` their
    sets, and `first` (G,) one row of each; `targets` (G, l) are weighted means, and
    `weights` sums.
    """

    position: np.ndarray
    which: np.ndarray
    row_weights: np.ndarray
    first: np.ndarray
    targets: np.ndarray
    weights: np.ndarray


class LeastSquares(Problem):
    """Weighted least squares with a kernel: the base of models on centers and on rows.

    Coefficients b belong to features phi(x), see `eigenkern.methods`. A subclass
    defines the features:

    - ``expand(b)``: the coefficients of the centers (or rows) themselves;
      ``places(b)``: their rows in `dual_coef_`, and its number of rows;
      ``centers_of(b)``: the centers (or rows), in the data type of X;
    - ``matrix_of(rows)``: the operator of training rows that ``gradient`` needs;
      ``matrix_of_validation(b)``: the one whose product with ``expand(b)`` gives the
      values on the validation rows;
    - ``training`` and ``everything``: the normal equations of the training rows, and of
      training and held-out rows together (the same object if none are held out);
    - ``gradient(matrix, rows, b, Y)``: N (B b - q), with q from the targets Y, or N B b
      if Y is None;
    - ``validation_errors(spectrum, filters)``: the errors, (k,), of filters of the
      training spectrum;
    - ``orthonormal(width)``: ranges of training rows, and these rows of W^1/2 Phi V
      with its columns scaled to norm 1; a range fits into a block even with `width`
      more numbers per row;
    - ``without(sets, factor)``: y - f and 1 - s, (G, l + 1), and 1 - h of `left_out`,
      both divided by a number, and that number, from a `Factor` of ``everything``;
    - ``variance_attributes(factor)``: the attributes that variances of predictions
      need, from a `Factor` of ``everything``.

    The model is fitted to the rows `train` of the data and selected on those held out;
    None: on those of `data.validation`, if there are any. `n_columns` is the number of
    centers; None: all rows, the full kernel matrix. `merged` is given if equal training
    rows have become one.

    Attributes
    ----------
    kernel : Kernel or None
        None for "precomputed".
    train, validation, all : Rows
        `all` are train and held-out rows; `validation` may be None.
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
    dtype, kernel_dtype : data types
        That of the rows, and of the fitted model unless rounding would change it; and
        that of the kernel's values: float64 for a closed form, see `iterates`.
    """

    n_centers = None
    _centered = True

    def __init__(
        self,
        device,
        data,
        train,
        held_out,
        *,
        kernel,
        bandwidth,
        alpha=None,
        n_columns=None,
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
            self.kernel = self._kernel(kernel, bandwidth, alpha, X, train, order)
            self.kernel_dtype = self.xp.float64
        targets, weights = data.targets[order], data.weights_of(order)
        weights = weights / weights.mean()
        self.intercept = np.zeros(targets.shape[1])
        if self._centered:
            self.intercept = mean_of_targets(targets, weights)
        self.all = self._rows(X, targets, weights, order)
        self.train = self.all.part(0, len(train))
        self.targets, self.weights = self.train.targets, self.train.weights
        self.parts = [self.train]
        if self.refits:
            self.validation = self.all.part(len(train), len(order))
        elif data.validation is not None:  # not rows of X
            X, targets, _, w = data.validation
            X = X if is_lazy(X) else cast(self.to_compute(X), self.dtype)
            w = np.ones(len(targets)) if w is None else w / w.mean()
            self.validation = self._rows(X, targets, w, np.arange(0))
        if self.validation is not None:
            self.parts.append(self.validation)

    def _kernel(self, kernel, bandwidth, alpha, X, train, order):
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
            targets, weights = data.targets[train], data.weights_of(train)
            targets, weights = merged(first, which, targets, weights)
            X = take(X, first)
        options = {"alpha": alpha, "dtype": np.dtype(np.float64)}
        if self._n_columns < len(train):
            options["n_centers"] = self._n_columns
        return make_kernel(
            kernel, bandwidth, X, self.rng, targets, weights, data, **options
        )

    def _rows(self, X, targets, weights, index):
        xp = self.xp
        options = {"dtype": xp.float64, "device": self.device}
        targets = xp.asarray(targets - self.intercept, **options)
        return Rows(X, targets, xp.asarray(weights, **options), index)

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
        if self._data.indefinite:
            return _UNCHOSEN_ALPHA
        rows = np.sort(self.train.index)
        merged, n_sample = self._data.merged(rows), n_sampled(len(rows), self.n_centers)
        ridge = ridge_of_rows(self, merged, n_sample, self.dtype)
        return ridge / len(merged.rows) or _UNCHOSEN_ALPHA

    # Data type: a closed form computes kernel values in float64, an iteration in that
    # of the rows, if that does no harm.

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
        X = rows_at(X, np.sort(shuffled(X.shape[0])[:256]))
        kernels = (
            kernel_operator(self.kernel, centers, self.devices, X)
            for centers in (self.in_kernel_dtype(Z), Z)
        )
        F, rounded = (K @ xp.astype(a, K.dtype, copy=False) for K in kernels)
        change = xp.mean((F - xp.astype(rounded, double)) ** 2, axis=0)
        spread = xp.mean((self.targets - self.mean(self.train)) ** 2, axis=0)
        # At a thousandth of the standard deviation R2 changes by 1e-6 to 2e-3.
        harmless = xp.all(change <= 1e-3**2 * spread)
        return self.dtype if bool(harmless) else double

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
        """Return the errors, (k,), of a path of models of the training rows.

        The spectrum is from `path_spectrum`, the selection "holdout", "gcv" or "loo".
        """
        rows = self.train
        if selection == "holdout":
            return self.validation_errors(spectrum, path.filters(spectrum))
        replicates = self._merged.replicates
        in_groups = may_be_groups(replicates, len(self._merged.rows))
        if selection == "gcv" and not in_groups:
            n = self.n_observations(rows)
            kept = path.kept(spectrum, n)
            errors = gcv_errors(spectrum, kept, n, self._merged.within)
            if not np.isfinite(errors).any():
                return errors
            # A mean over rows says nothing of one that the model hardly sees, whose
            # error in a model without it can be a thousand times that of the others.
            best = int(np.nanargmin(errors))
            exact = self._loo_errors(spectrum, path, slice(best, best + 1))[0]
            if exact <= 3.0 * errors[best]:
                return errors
        errors = self._loo_errors(spectrum, path, slice(None))
        if in_groups:
            of_sets = self._loo_errors(spectrum, path, slice(None), of_sets=True)
            errors = unless_sets_contradict(errors, of_sets)
        return errors

    def _loo_errors(self, spectrum, path, some, *, of_sets=False):
        """Return the leave-one-out errors of some models of a path."""
        rows, replicates = self.train, None
        if self._merged.replicates is not None and not of_sets:
            replicates = self._merged.replicates_of(rows.index).of(rows.targets)
        left = path.kept(spectrum, None if replicates is None else np.inf)[:, some]
        Y, parts = rows.targets - self.training.mean, self._left_parts(spectrum, left)
        return loo_errors(parts, Y, rows.weights, replicates)

    def _left_parts(self, spectrum, left):
        """Return the `left_parts` of the training rows, with the constant as target."""
        rows = self.train
        T = with_ones(rows.targets - self.training.mean)
        T = self.xp.sqrt(rows.weights)[:, None] * T
        blocks = self.orthonormal(3 * T.shape[1] * left.shape[1])
        return left_parts(blocks, spectrum.components, left, T, spectrum.complete)

    def validation_losses(self, matrix, coef, mean):
        """Return the squared errors of b and the intercept on the validation rows."""
        residual = self.values(matrix, coef) - (self.validation.targets - mean)
        return self.xp.mean(residual**2, axis=1)

    def validation_loss(self, losses):
        """Return the weighted mean of losses of the validation rows."""
        w = self.validation.weights
        return float(self.xp.sum(w * losses)) / float(self.xp.sum(w))

    def deviation(self, losses):
        """Return the standard error of `validation_loss`."""
        xp, rows = self.xp, self.validation
        w = rows.weights / xp.sum(rows.weights)
        variance = float(xp.sum(w * (losses - xp.sum(w * losses)) ** 2))
        return (variance / self.n_observations(rows)) ** 0.5

    def values(self, matrix, coef):
        """Return f minus the intercept on the rows of an operator."""
        coef = self.xp.astype(self.expand(coef), matrix.dtype, copy=False)
        return self.xp.astype(matrix @ coef, self.xp.float64, copy=False)

    # Values out of sample

    @property
    def calibrates(self):
        """Whether out-of-sample values are needed: for classes."""
        return self._data.groups is not None

    def left_out(self, alpha=0.0, factor=None, *, among=None, path=None):
        """Return the values of a sample of rows, each from a model fitted without it.

        Copies are left out together, so that a copy gives the same result as an integer
        weight; replicates are left out one by one (`Data.observations`). The formula is
        that of `methods.left_out`.

        The models are ridge regressions with lambda, and ``everything.factor(alpha)``;
        without it, of the least lambda >= `alpha` that has one. Or it is the one model
        of a DescentPath `path`; rows must then be `Merged`. `among` (n,) says which
        rows of `all` may be left out, besides replicates; if a class has no such row,
        all of its rows may be. None: rows that are not centers, if there are enough.
        """
        source, members, own, n_observations = self._observations()
        # A sample of the sets of each class that may be left out.
        first, which = source.distinct(self.all.index)
        codes, w = source.groups[members], source.weights_of(members)
        shape = len(first), int(codes.max()) + 1
        of_class = np.bincount(own * shape[1] + codes, w, shape[0] * shape[1])
        classes = of_class.reshape(shape).argmax(axis=1)
        among = self._able_to_leave_out() if among is None else among
        able = among[first] | (n_observations > 1)
        able |= ~np.isin(classes, classes[able])
        n_taken = n_left_out(len(first), 1 / 10)
        chosen, stands_for = sample_of_classes(classes[able], n_taken, self.rng)
        chosen = np.flatnonzero(able)[chosen]
        n_able, n_all = np.bincount(classes[able]), np.bincount(classes)
        stands_for = stands_for * (n_all / np.maximum(n_able, 1))[classes[chosen]]
        sets = self._sets(which, chosen)
        # What the models without them are.
        if path is not None:
            values, kept, unit = self._without_of_path(sets, path)
        else:
            factor = self.everything.nearest_factor(alpha) if factor is None else factor
            values, kept, unit = self.without(sets, factor)
        # Their observations.
        taken = np.isin(own, chosen)
        part = source.parts_of_sets(members)[taken]
        members, own = members[taken], np.searchsorted(chosen, own[taken])
        Y, v = source.targets[members], part * sets.weights[own]
        total, mean = self.everything.weight, sets.targets[own] + self.intercept
        residual = without_row(values[own], Y - self.intercept, v, total)
        values = values_left_out(Y, mean, residual, kept[own], part, unit)
        weights = source.weights_of(members) * stands_for[own]
        n = float(n_observations[chosen].sum())
        return OutOfSample(values, Y, weights, n)

    def _sets(self, which, chosen):
        """Return the rows of some sets; `which` (n,) are the sets of all rows."""
        position = np.flatnonzero(np.isin(which, chosen))
        which = np.searchsorted(chosen, which[position])
        one = np.unique(which, return_index=True)[1]
        rows = self.all
        weights, targets = (to_numpy(a)[position] for a in (rows.weights, rows.targets))
        sets = merged(one, which, targets, weights)
        return Sets(position, which, weights, position[one], *sets)

    def _observations(self):
        """Return data, rows, their sets, and the observations in each set of `all`."""
        source, members = self._data, self.all.index
        if self._merged is not None:
            source, members = self._merged.source, self._merged.members
        own = source.distinct(members)[1]
        return source, members, own, source.observations(members)[2]

    def _without_of_path(self, sets, path):
        """Return the same as ``without`` of a model by its filter; sets are rows."""
        spectrum = self.training.spectrum
        parts = self._left_parts(spectrum, path.kept(spectrum, np.inf))
        found = [(to_numpy(R)[:, :, 0], to_numpy(left)[:, 0]) for _, R, left in parts]
        values, kept = map(np.concatenate, zip(*found, strict=True))
        root = np.sqrt(to_numpy(self.train.weights))[:, None]
        return (values / root)[sets.first], kept[sets.first], 1.0

    def _able_to_leave_out(self):
        """Return which rows may be left out: those that are not centers, or all.

        If the row of a center is left out and the penalty is small, little determines
        the center's coefficient. New rows are not centers: such a row is unlike them.
        """
        everything = np.ones(len(self.all.index), dtype=bool)
        if self.center_indices is None:
            return everything
        able = ~np.isin(self.all.index, self.center_indices)
        return able if np.sum(able) >= 50 else everything

    def rows_to_hold_out(self):
        """Return the positions of some training rows together with all their copies.

        None of them is a center, if there are enough others, unless it has replicates.
        """
        first, which, n_of_set = self._data.observations(self.train.index)
        n_equal = n_of_set[self._data.distinct(self.train.index)[1][first]]
        able = np.flatnonzero(self._able_to_leave_out()[first] | (n_equal > 1))
        n_held = min(max(len(first) // 5, 1), 2000, len(able))
        chosen = self.rng.permutation(able)[:n_held]
        return np.flatnonzero(np.isin(which, chosen))

    def held_out(self, coef, mean, position=None):
        """Return the values of b, fitted to training rows, on the validation rows.

        `mean` is that of the targets that b was fitted to, and is added to the values;
        `position` has rows of `all` to take instead of the validation rows.
        """
        if position is None:
            rows, matrix = self.validation, self.matrix_of_validation(coef)
        else:
            rows = self.all.part_at(position)
            matrix = self.matrix_of(rows)
        values = to_numpy(self.values(matrix, coef) + mean) + self.intercept
        targets = to_numpy(rows.targets) + self.intercept
        weights, n = to_numpy(rows.weights), float(self.n_observations(rows))
        return OutOfSample(values, targets, weights, n)

    def mean(self, rows):
        """Return the weighted mean of the targets of some rows, shape (l,)."""
        return rows.weights @ rows.targets / float(self.xp.sum(rows.weights))

    # Models

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

    def variance_attributes(self, factor):
        """Return the attributes that variances need, arrays where X lives.

        Some observations are left out, as by `left_out`; the symbols are those of
        `methods.left_out`.
        """
        xp, equations, c = self.xp, self.everything, factor.ridge
        source, all_members, own, n_observations = self._observations()
        which = source.distinct(self.all.index)[1]
        chosen = np.unique(which[self._rows_of_variances()])
        sets = self._sets(which, chosen)
        rows = self.all.part_at(sets.first)
        diagonal = self.kernel.diagonal(xp.astype(self.to_compute(rows.X), xp.float64))
        found = self._without_and_unseen(sets, factor, rows, diagonal)
        values, kept, unit, unseen = found
        # Their observations, with the weights v.
        taken = np.isin(own, chosen)
        members, own = all_members[taken], np.searchsorted(chosen, own[taken])
        part = source.parts_of_sets(all_members)[taken]
        w, kept, mean = sets.weights[own], kept[own], sets.targets[own]
        Y, v = source.targets[members] - self.intercept, part * w
        centered = Y - to_numpy(equations.mean)
        residuals = without_row(values[own], centered, v, equations.weight)
        residuals = Y - values_left_out(Y, mean, residuals, kept, part, unit)
        # The variance of the value without an observation is h / (w (1 - v h / w))
        # times sigma^2, with the full kernel s^2 c.
        h = np.clip(1.0 - unit * kept, 0.0, 1.0)
        left = (1.0 - part * h) / unit if unit else np.inf
        left = np.where(part < 1, left, kept)
        of_value = h / (left * w)
        if unseen is None:
            unseen, noise = of_value, 1.0 / v
        else:
            unseen, noise = unseen[own], of_value + 1.0 / v
        largest, spread = float(xp.mean(diagonal)), None
        if float(xp.max(diagonal) - xp.min(diagonal)) <= 1e-6 * largest:
            # A kernel such as the polynomial has no limit far from the rows.
            Y, w = source.targets[all_members], source.weights_of(all_members)
            spread = np.average((Y - np.average(Y, 0, w)) ** 2, 0, w)
        s2, sigma2 = scales(residuals, unseen, noise, c, largest)
        of_f = s2 * unseen[:, None] + sigma2 * (noise - 1.0 / v)[:, None]
        L, index, features = self._posterior_factors(factor)
        # The noise is that of an observation with the mean weight.
        usual = equations.weight / float(n_observations.sum())
        L = L if features is None else L / usual**0.5
        return {
            "prior_variance_": self.to_source(s2),
            "noise_variance_": self.to_source(sigma2 / usual),
            "_posterior_factor": self.to_source(L),
            "_posterior_centers": self.to_source(index),
            "_target_variance": self.to_source_or_none(spread),
            "_usual_variance": self.to_source(np.quantile(of_f, 0.95, axis=0)),
            "_feature_factor": None if features is None else self.to_source(features),
        }

    def to_source_or_none(self, values):
        """Return values of the host where X lives, or None for None."""
        return None if values is None else self.to_source(np.asarray(values))
