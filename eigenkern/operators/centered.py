"""Features minus their mean: the matrix of a linear model, and sums over its rows."""

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from ..arrays.array import joined, namespace, slices, to_numpy
from ..arrays.linalg import large_product, reflect_rows
from ..arrays.machine import CORE_CACHE_BYTES, CPU
from ..arrays.threads import Team, n_blas_threads
from ..rows.dask_rows import DaskRows
from ..rows.lazy_rows import is_lazy
from .distributed import DaskMatrix
from .matrix import PANEL_WIDTH, Matrix, add_gram, sum_of

# Rows of a file that are in memory at a time.
_READ_ROWS = 65536
# Numbers of a dense matrix that take as long in a product as one of a sparse matrix.
_SPARSE_SLOWNESS = 10
# How far the entries of a constant column may be from its value, in units of eps times
# that value: the rounding of a few operations. First rows, which suffice to show that
# most columns vary.
_CONSTANT_EPS, _ROWS_AT_FIRST = 10, 8
# First rows of a file, whose mean is subtracted from all rows. If they are unlike the
# others, errors are at most n / 8000 times the rounding of double precision.
_ROWS_OF_SHIFT = 8000


class CenteredFeatures(Matrix):
    """Rows of features minus their mean: the matrix of a linear model.

    X (n, d) is an array, a sparse array in CSR or StoredRows. The mean (d,) is
    subtracted from every row; X is not copied and stays sparse. `varies` (d,) is 1, or
    0 in constant columns, which become exactly zero; None: ones.
    """

    can_be_cached = False

    def __init__(self, X, mean, varies=None):
        self._describe(mean)
        self.shape = tuple(X.shape)
        if varies is not None and scipy.sparse.issparse(X):
            X, mean = X @ scipy.sparse.diags_array(varies), varies * mean
        self._X, self._mean, self._varies = X, mean, varies
        self.in_core, self.is_dense = not is_lazy(X), not scipy.sparse.issparse(X)

    @property
    def width(self):
        """As in `Matrix`. Numbers of sparse rows take longer, but there are fewer."""
        n, d = self.shape
        if self.is_dense:
            return d
        return min(max(int(_SPARSE_SLOWNESS * self._X.nnz / max(n, 1)), 1), d)

    def product_and_columns(self, A, start=0, stop=None, n_columns=0):
        """Return rows [start:stop] of (X - mean) A, and of its first columns."""
        A = A if self._varies is None else self._varies[:, None] * A
        F = joined(large_product(X, A) for _, X in self._read(start, stop))
        F = F - self._mean @ A
        return F, self.block(start, stop, 0, n_columns) if n_columns else F[:, :0]

    def block(self, start=0, stop=None, first=0, last=None, dtype=None, out=None):
        """Return rows [start:stop], columns [first:last] of X - mean as an array."""
        block = self._X[start:stop, first:last]
        if not self.is_dense:
            block = block.toarray()
        block = block - self._mean[first:last]
        if self._varies is not None:
            block = block * self._varies[first:last]
        return block if dtype is None else self.xp.astype(block, dtype, copy=False)

    def _read(self, start, stop):
        """Yield ranges of the rows [start:stop], with their rows; a file in parts."""
        start, stop, _ = slice(start, stop).indices(self.shape[0])
        size = max(stop - start, 1) if self.in_core else _READ_ROWS
        for rows in slices(max(stop - start, 1), size):
            end = min(start + rows.stop, stop)
            yield rows, self._X[start + rows.start : end, :]

    def shuffled_ranges(self, starts, rng):
        """Return the starts of ranges of the rows in random order."""
        source = super() if self.in_core else self._X
        return source.shuffled_ranges(starts, rng)

    def rows(self, X):
        """Return the matrix of other rows X."""
        return features_of(X, self._mean, self._varies)

    def without_rows(self):
        """Return the matrix without rows, to send elsewhere and call `rows` there."""
        return CenteredFeatures(self._X[:0, :], self._mean, self._varies)

    def adjoint(self, G, start=0, stop=None):
        """Return (X_b - mean)' G of the rows [start:stop], shape (d, l)."""
        product = -self._mean[:, None] * self.xp.sum(G, axis=0)
        for rows, X in self._read(start, stop):
            product = product + large_product(X.T, G[rows, :])
        return product if self._varies is None else self._varies[:, None] * product

    def gradient(self, A, targets, weights, rates):
        """Return F A - targets and its image, as `Matrix` does; a file is read once."""
        if self.in_core:
            return super().gradient(A, targets, weights, rates)
        pool = Team(n_blas_threads())
        error, images = self.xp.empty_like(targets), [0.0] * self._X.n_parts(pool)

        def add(part, places, X):
            own = targets[places, :], weights[places], rates
            error[places, :], image = self.rows(X).gradient(A, *own)
            images[part] = images[part] + image

        self._X.visit(lambda *first: add, pool)
        return error, sum_of(images)

    def row_gram(self, stop, last):
        """Return (x_i - mean)'(x_j - mean), i < stop, j < last <= stop, in float64."""
        double = self.xp.float64
        if not self.is_dense:
            X, mean = self._X[:stop, :].astype(double), self._mean.astype(double)
            products = (X @ X[:last, :].T).toarray()
            along = np.asarray(X @ mean).reshape(-1)
            return products - along[:, None] - along[:last] + mean @ mean
        columns = self.block(0, last, dtype=double).T
        return joined(
            large_product(self.block(rows.start, rows.stop, dtype=double), columns)
            for rows in slices(stop)
        )

    def normal_equations(self, y, w):
        """Return F' W F and F' W y of sparse rows in float64, without dense rows."""
        X, mean, w = (values.astype(np.float64) for values in (self._X, self._mean, w))
        sums = X.T @ w
        G = (X.T @ (scipy.sparse.diags_array(w) @ X)).toarray()
        G -= np.outer(sums, mean)
        G -= np.outer(mean, sums - w.sum() * mean)
        return G, X.T @ (w[:, None] * y) - np.outer(mean, w @ y)

    def row_kernel(self, start, stop):
        """Return the kernel matrix of some rows with themselves, a `FeatureKernel`."""
        return FeatureKernel(self.rows(self._X[start:stop, :]))

    def astype(self, dtype):
        """Return this matrix in another data type, dense rows minus their mean."""
        if dtype == self.dtype:
            return self
        mean = self.xp.astype(self._mean, dtype)
        if not self.is_dense:
            return CenteredFeatures(self._X.astype(dtype), mean)
        # If the deviations are much smaller than the mean, rounding would hide them.
        return CenteredFeatures(self.block(dtype=dtype), self.xp.zeros_like(mean))

    def row_squares(self):
        """Return the squared norm of every row of X - mean."""
        if self.is_dense:
            rows = self.block()
            return self.xp.vecdot(rows, rows)
        squares = np.asarray(self._X.multiply(self._X).sum(axis=1)).reshape(-1)
        along = np.asarray(self._X @ self._mean)
        return squares - 2 * along + self._mean @ self._mean


def features_of(X, mean, varies=None):
    """Return rows minus their mean as an operator, where the rows are."""
    if isinstance(X, DaskRows):
        return DaskMatrix(CenteredFeatures(mean[None, :][:0, :], mean, varies), X)
    return CenteredFeatures(X, mean, varies)


class FeatureKernel:
    """The kernel matrix K = F F' of rows with features F, represented by its products.

    Computing K for 4000 rows and 2000 features takes as long as thirty products in this
    form with 18 columns.
    """

    def __init__(self, features):
        self.features = features
        self.shape = 2 * features.shape[:1]
        self.dtype = features.dtype

    def diagonal(self):
        """Return the diagonal of K."""
        return self.features.row_squares()

    def astype(self, dtype):
        """Return K in another data type."""
        return FeatureKernel(self.features.astype(dtype))

    def __matmul__(self, U):
        """Return K @ U."""
        return self.features @ self.features.adjoint(U)


def near(x, level):
    """Whether numbers equal a level up to rounding; false if that is zero or NaN."""
    xp = namespace(level)
    limit = _CONSTANT_EPS * float(xp.finfo(level.dtype).eps) * xp.abs(level)
    return (xp.abs(x - level) <= limit) & (level != 0)


def levels_of(X, zeros):
    """Return the value of each constant column, and NaN for the others.

    Values are compared with the first one, because the mean of equal numbers is off by
    up to n eps. Columns of zeros have no level, and need none. The `zeros` (d,) have
    the data type and device of the computation.
    """
    xp, features = namespace(zeros), features_of(X, zeros)
    few = features.block(0, _ROWS_AT_FIRST)
    first = few[0, :]
    found = np.array(to_numpy(xp.all(near(few, first), axis=0)))
    for rows in slices(X.shape[0], features.gram_rows()):
        places = np.flatnonzero(found)
        if not len(places):
            break
        for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
            columns = slice(int(run[0]), int(run[-1]) + 1)
            block = features.block(rows.start, rows.stop, columns.start, columns.stop)
            found[columns] = to_numpy(xp.all(near(block, first[columns]), axis=0))
    found = xp.asarray(found, device=features.device)
    return xp.where(found, first, zeros + np.nan)


class FeatureSums(NamedTuple):
    """Sums over rows x with weights w and targets y, from which a mean is subtracted.

    A shift c, the mean of some rows, is subtracted from all rows. The mean of all rows
    is no farther from c than rows vary, so little cancels when it is subtracted later.

    """

    extremes: tuple  # the least and the largest number
    levels: np.ndarray  # (d,) as `levels_of`
    shift: np.ndarray  # (d,) c; all sums are in float64
    totals: np.ndarray  # (1 + l,) sums of w and w y
    cross: np.ndarray  # (d, 1 + l) sums of w (x - c) and w (x - c) y'
    gram: Any  # (d, d) sum of w (x - c) (x - c)', or None: l is 0 above

    @property
    def mean(self):
        """The mean of the rows; the value of columns that are constant."""
        mean = self.shift + self.cross[:, 0] / self.totals[0]
        return np.where(np.isnan(self.levels), mean, self.levels)

    def normal_equations(self, mean):
        """Return sums of w (x - mean) (x - mean)' (in `gram`) and w (x - mean) y'."""
        d, G = mean.astype(np.float64) - self.shift, self.gram
        along = np.outer(self.cross[:, 0], d)
        G -= along
        G -= along.T
        G += np.outer(self.totals[0] * d, d, out=along)
        return G, self.cross[:, 1:] - np.outer(d, self.totals[1:])


@np.errstate(over="ignore", invalid="ignore")  # the extremes show it
def sums_of_features(rows, targets, weights, target_mean, *, center, with_gram):
    """Return the `FeatureSums` of `StoredRows`; their file is read once.

    Targets (n, l) are in float64, and their mean (l,) is subtracted. Without `center`
    nothing is subtracted from rows, and no column counts as constant.

    That takes n d (d / 2 + 1 + l) multiply-adds with the Gram matrix, and n d without.
    Memory holds n (1 + l) numbers, and for each thread a block of the file and a matrix
    of d x d; with wide rows all threads share a product.
    """
    d = rows.shape[1]
    w = np.ones(len(targets)) if weights is None else weights
    T = np.ones((len(targets), 1 + (targets.shape[1] if with_gram else 0)))
    if with_gram:
        np.subtract(targets, target_mean, out=T[:, 1:])
    team, pool = Team(n_blas_threads()), None
    if d <= PANEL_WIDTH or not with_gram:
        team, pool = None, team
    row, shift, parts = np.zeros(d, dtype=rows.dtype), np.zeros(d), []

    def begin(places, some):
        if center:
            few, w_few = some[:_ROWS_OF_SHIFT, :], w[places[:_ROWS_OF_SHIFT]]
            row[:], shift[:] = some[0, :], np.average(few, axis=0, weights=w_few)
        for _ in range(rows.n_parts(pool)):
            parts.append(_Part(row, shift, T, weights, with_gram, team))
        return lambda part, *block: parts[part].add(*block)

    rows.visit(begin, pool)
    gram = sum_of([part.gram for part in parts]) if with_gram else None
    if with_gram and team is not None:
        for panel in slices(d, PANEL_WIDTH):
            reflect_rows(gram, panel)
    constant = np.all([part.constant for part in parts], axis=0)
    return FeatureSums(
        (float(min(p.low for p in parts)), float(max(p.high for p in parts))),
        np.where(constant, row, np.full(d, np.nan, dtype=rows.dtype)),
        shift,
        w @ T,
        sum(part.cross for part in parts),
        gram,
    )


class _Part:
    """The sums over some blocks of rows, as in `sums_of_features`.

    Targets (n, 1 + l) begin with a column of ones. Columns that equal `row` throughout
    are constant, except where it is 0. The threads of a team share a product.
    """

    def __init__(self, row, shift, targets, weights, with_gram, team):
        d = len(shift)
        self._row, self._shift, self._team = row, shift, team
        self._targets, self._weights = targets, weights
        self.low, self.high, self.constant = np.inf, -np.inf, row != 0
        self.cross = np.zeros((d, targets.shape[1]))
        self.gram = np.zeros((d, d)) if with_gram else None
        # Rows that stay in a core's cache from one use to the next; more for a team.
        n_bytes = CORE_CACHE_BYTES / 4 if team is None else CPU.tile_bytes
        self._buffer = np.empty((max(int(n_bytes) // (8 * d), 16), d))

    def add(self, places, X):
        """Add a block of rows, whose targets are at some places."""
        for rows in slices(len(X), len(self._buffer)):
            self._add(places[rows], X[rows, :])

    def _add(self, places, X):
        self.low, self.high = min(self.low, X.min()), max(self.high, X.max())
        for few in (slice(_ROWS_AT_FIRST), slice(None)):
            columns = np.flatnonzero(self.constant)
            same = near(X[few, columns], self._row[columns])
            self.constant[columns] = np.all(same, axis=0)
        A = np.subtract(X, self._shift, out=self._buffer[: len(X), :])
        T = self._targets[places, :]
        if self._weights is not None:
            root = np.sqrt(self._weights[places])[:, None]
            A, T = np.multiply(A, root, out=A), root * T
        if self.gram is None:
            self.cross += A.T @ T
        else:
            add_gram(self.gram, A, self._team, self.cross, T)
