"""What every operator offers: a matrix known by its products; the simplest ones."""

from contextlib import nullcontext
from functools import partial
from itertools import accumulate, pairwise

import numpy as np

from ..arrays.array import device_of, namespace, slices
from ..arrays.linalg import large_product, plus_diagonal, reflect_rows
from ..arrays.machine import CORE_CACHE_BYTES, CPU
from ..arrays.threads import run_on_threads, single_threaded_blas

# Columns of a panel of a Gram matrix: wide ones are fast.
PANEL_WIDTH = 512
# What a kernel matrix on several devices or workers takes from the operator of one.
KERNEL_ATTRIBUTES = "row_width", "feature_work", "kernel", "factored", "budget"


class Matrix:
    """A matrix K of shape (m, p), represented by its products.

    There is a subclass for every kind of storage:

    - `GivenMatrix` is an array;
    - `TiledKernel` computes its entries tile by tile in every product;
    - `CachedTriangle` has computed its entries once;
    - `ShardedKernel` has its columns on several devices, and keeps them there once
      `evaluated`;
    - `CenteredFeatures` is a matrix of features;
    - `DaskMatrix` has its rows on the workers of Dask, `CachedDaskMatrix` also its
      entries; `DaskShards` has its centers split over them, too.

    Each constructor sets `shape` and, by `_describe` or `_describe_as`, the namespace
    `xp`, `device`, `dtype` and its bytes, `itemsize`. All define
    `product_and_columns` and `block`; kernel matrices also `rows`; those that a kernel
    machine starts from, ``plus_diagonal(values)``, which returns K(X, X) +
    diag(values) and leaves what `rows` returns unchanged; those with a pool,
    ``write_rows(K, start)``, which computes rows from `start` on in this thread.

    """

    #: Whether K is the kernel matrix of some rows with themselves.
    symmetric = False
    #: Number of threads of a product; a Team, unless the library has its own threads.
    n_workers, pool = 1, None
    #: None if K is cached, given or a matrix of features.
    kernel = None
    #: Whether `block` returns a view, and needs no memory.
    in_memory = False
    #: Whether its rows are in this machine's memory, and whether they are dense.
    in_core = is_dense = True
    #: Whether `cached` may compute it once for all products.
    can_be_cached = True
    #: Whether products cost no more than products with the rows: K need not be cached.
    factored = False
    #: Numbers per encoded row, from which its entries of K are computed.
    row_width = 0
    #: Columns of a matrix product that take as long as one feature of the kernel.
    feature_work = 1
    #: Bytes that the blocks of rows of `gram` and `normal_product` may take.
    budget = CPU.tile_bytes

    @property
    def width(self):
        """Numbers of a dense row that would take as long in a product as a row here."""
        return self.shape[1]

    def _describe(self, like):
        """Take the namespace, device and data type from an array."""
        self.xp, self.device, self.dtype = namespace(like), device_of(like), like.dtype
        self.itemsize = self.xp.finfo(like.dtype).bits // 8

    def _describe_as(self, other, *names):
        """Take the namespace, device, data type and more from another operator."""
        for name in ("xp", "device", "dtype", "itemsize", *names):
            setattr(self, name, getattr(other, name))

    def _changed(self, **attributes):
        """Return a copy with other attributes."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), **attributes)
        return other

    def product(self, A, start=0, stop=None):
        """Return rows [start:stop] of K @ A, shape (m, l)."""
        return self.product_and_columns(A, start, stop)[0]

    def product_and_columns(self, A, start=0, stop=None, n_columns=0):
        """Return rows [start:stop] of K @ A (m, l), and of the first columns of K."""
        raise NotImplementedError

    def block(self, start=0, stop=None, first=0, last=None, dtype=None, out=None):
        """Return rows [start:stop], columns [first:last] of K as an array.

        Values are computed in the data type of the operator. If K is not in memory,
        they are written to the first rows of `out`.
        """
        raise NotImplementedError

    def _target(self, start, stop, first, last, dtype, out):
        """Return `stop` and `last` of a block, and the array to write it to."""
        stop = self.shape[0] if stop is None else stop
        last = self.shape[1] if last is None else last
        if out is None:
            dtype = self.dtype if dtype is None else dtype
            shape = stop - start, last - first
            out = self.xp.empty(shape, dtype=dtype, device=self.device)
        return stop, last, out[: stop - start, :]

    def rows(self, X):
        """Return the matrix of other rows X: K(X, Z) for a kernel matrix."""
        raise ValueError("a matrix that is given has no kernel to compare rows with")

    def adjoint(self, G, start=0, stop=None):
        """Return K' G of the rows [start:stop], shape (p, l), block by block."""
        stop = self.shape[0] if stop is None else stop
        total = 0.0
        for rows in slices(stop - start, self.gram_rows()):
            block = self.block(start + rows.start, start + rows.stop)
            total = total + block.T @ G[rows, :]
        return total

    def shuffled_ranges(self, starts, rng):
        """Return the starts of ranges of the rows in random order."""
        return rng.permutation(starts)

    def evaluated(self, A):
        """Return K @ A, and K as an operator that keeps the computed entries."""
        return self @ A, self

    def gradient(self, A, targets, weights, rates):
        """Return K A - targets (m, l), and K' G (p, l), G = rates W (K A - targets).

        `weights` (m,) is the diagonal of W, and `rates` has shape (l,).
        """
        # A diverging iterate may overflow, which shows in its error.
        with np.errstate(over="ignore", invalid="ignore"):
            F, K = self.evaluated(A)
            error = F - targets
            return error, K.adjoint(rates * (weights[:, None] * error))

    def row_kernel(self, start, stop):
        """Return the kernel matrix of some rows with themselves, (m, m)."""
        return self.block(start, stop, start, stop)

    def __matmul__(self, A):
        """Return K @ A, shape (m, l)."""
        return self.product(A)

    def exclusive_threads(self):
        """Return a context for loops that mix products with other linear algebra.

        In it BLAS runs each call on one thread. Otherwise the threads of a BLAS call
        spin for about 30 ms after it on the cores that the next product's tiles need,
        which doubles their time. (Fits to NumPy arrays are in it anyway.)
        """
        return nullcontext() if self.pool is None else single_threaded_blas

    def gram_rows(self):
        """Return how many rows of K fit into the budget in float64.

        `gram` holds that many, or with weights or a `transform` twice as many.
        """
        n_rows = self.budget // (8 * self.shape[1])
        return int(min(max(n_rows, 16), max(self.shape[0], 1)))

    def gram(self, T, weights=None, *, transform=None):
        """Return C' W C (p, p) and C' W T (p, l) in float64, C = K or K @ transform.

        T (m, l) and the diagonal of W (m,), not negative, are in float64. Summing in
        float64 keeps C' W C positive definite: its eigenvalues are the squares of the
        singular values of C. Costs m p^2 multiply-adds in addition to K itself, and
        with a transform (p, r) another m p r.
        """
        xp, (m, p), n_rows = self.xp, self.shape, self.gram_rows()
        if weights is not None and bool(xp.all(weights == 1)):
            weights = None
        size = p if transform is None else transform.shape[1]
        options = {"dtype": xp.float64, "device": self.device}
        G = xp.zeros((size, size), **options)
        c = xp.zeros((size, T.shape[1]), **options)
        # One buffer: touching new memory takes as long as computing its contents.
        buffer = None if self.in_memory else xp.empty((n_rows, p), **options)
        for rows in slices(m, n_rows):
            C = self.block(rows.start, rows.stop, dtype=xp.float64, out=buffer)
            if transform is not None:
                C = large_product(C, transform)
            T_b = T[rows, :]
            if weights is not None:
                root = xp.sqrt(weights[rows])[:, None]
                C, T_b = C * root, T_b * root
            add_gram(G, C, self.pool, c, T_b)
        if self.pool is not None:  # `add_gram` filled the lower triangle
            for rows in slices(size, PANEL_WIDTH):
                reflect_rows(G, rows)
        return G, c

    def normal_product(self, V, targets=None, weights=None):
        """Return K' W (K V - targets) in float64, W = I if there are no weights.

        One pass: a block of rows is computed (or read) once and used twice. Both
        products are in float64, whatever the data type of K, because the coefficients
        of nearly dependent centers are large and cancel. So are the arguments.
        """

        def residual(rows, F):
            F = F if targets is None else F - targets[rows, :]
            return F if weights is None else F * weights[rows, None]

        return self.adjoint_of(V, residual)

    def adjoint_of(self, V, function):
        """Return K' G in float64, G = ``function(rows, K V)`` of each block of rows.

        One pass, like `normal_product`. `function` takes a slice of rows and their K V,
        and returns the same rows of G; several threads may call it.
        """
        xp, (m, p) = self.xp, self.shape
        n_rows = max(-(-m // self.n_workers), 1)
        if self.pool is not None:  # what stays in a core's cache between the products
            most = CORE_CACHE_BYTES // (8 * p)
        else:
            most = 0.5 * self.budget // (8 * p + 5 * self.row_width * self.itemsize)
        ranges = list(slices(m, min(n_rows, max(int(most), 16))))
        options = {"dtype": xp.float64, "device": self.device}
        parts = [xp.zeros((p, V.shape[1]), **options) for _ in range(self.n_workers)]

        def task(part):
            for rows in ranges[part :: self.n_workers]:
                if self.pool is None:
                    K = self.block(rows.start, rows.stop)
                else:  # `block` would wait for the pool that this thread belongs to
                    shape = rows.stop - rows.start, p
                    K = xp.empty(shape, dtype=self.dtype, device=self.device)
                    self.write_rows(K, rows.start)
                K = xp.astype(K, xp.float64, copy=False)
                # G' K reads K along its rows, K' G would not.
                parts[part][...] += (function(rows, K @ V).T @ K).T

        run_on_threads(self.pool, task, [(part,) for part in range(self.n_workers)])
        return sum_of(parts)


def add_gram(G, A, pool, c=None, T=None):
    """Add A' A to G (p, p), and A' T to c (p, l) if given.

    With a pool, for arrays of NumPy, only the lower triangle of G is computed.
    """
    if pool is None:
        G += A.T @ A
        if c is not None:
            c += A.T @ T
        return

    def task(rows, columns):
        G[rows, columns] += A[:, rows].T @ A[:, columns]
        if c is not None and rows == columns:
            c[rows, :] += A[:, rows].T @ T

    # Several, so that workers finish together; as many for any number of them, because
    # products of other widths have other last digits, which small penalties magnify.
    p = len(G)
    panels = list(slices(p, max(min(PANEL_WIDTH, -(-p // 4)), 64)))
    tasks = [(a, b) for i, a in enumerate(panels) for b in panels[:i]]
    # On the diagonal half the work suffices: these tasks even out the end.
    tasks += [(a, a) for a in panels]
    work = len(A) * p * (0.5 * p + (0 if T is None else T.shape[1]))
    run_on_threads(pool, task, tasks, CPU.product_seconds(work, A.itemsize, 1))


def sum_of(parts):
    """Return the sum of arrays, in the first of them."""
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total


def check_finite(values):
    """Raise a ValueError unless these values of a kernel matrix are finite."""
    xp = namespace(values)
    if not bool(xp.all(xp.isfinite(values))):
        raise ValueError(
            "the kernel matrix has values that are not finite: scale X, or choose "
            "another kernel or bandwidth"
        )


class GivenMatrix(Matrix):
    """An array K in memory, given by the user or computed once by the `source`."""

    in_memory = True

    def __init__(self, K, source=None):
        self._describe(K)
        self.shape = tuple(K.shape)
        self._K, self._source = K, source

    def rows(self, X):
        """Return K(X, Z), computed like this matrix."""
        return super().rows(X) if self._source is None else self._source.rows(X)

    def plus_diagonal(self, values):
        """Return K + diag(values), which overwrites K."""
        return GivenMatrix(plus_diagonal(self._K, values), self._source)

    def product_and_columns(self, A, start=0, stop=None, n_columns=0):
        """Return rows [start:stop] of K @ A, and of the first columns of K."""
        K = self._K[start:stop, :]
        return large_product(K, A), K[:, :n_columns]

    def block(self, start=0, stop=None, first=0, last=None, dtype=None, out=None):
        """Return rows [start:stop], columns [first:last] of K, if possible a view."""
        K = self._K[start:stop, first:last]
        return K if dtype is None else self.xp.astype(K, dtype, copy=False)

    def adjoint(self, G, start=0, stop=None):
        """Return K' G of the rows [start:stop], shape (p, l)."""
        # G' K reads K along its rows; K' G would not.
        return large_product(G.T, self.block(start, stop)).T


class StackedRows:
    """Some matrices with the same columns, one below the other.

    Logistic regression on training and held-out rows, which have separate matrices,
    needs only two sums over all rows.
    """

    def __init__(self, matrices):
        stops = list(accumulate(matrix.shape[0] for matrix in matrices))
        ranges = [slice(*ends) for ends in pairwise([0, *stops])]
        self._parts = list(zip(matrices, ranges, strict=True))

    def gram(self, T, weights, *, transform=None):
        """Return C' W C and C' W T in float64, as `Matrix.gram` does."""
        found = [
            matrix.gram(T[rows, :], weights[rows], transform=transform)
            for matrix, rows in self._parts
        ]
        return tuple(sum_of(sums) for sums in zip(*found, strict=True))

    def adjoint_of(self, V, function):
        """Return K' G in float64, G = ``function(rows, K V)``, as `Matrix` does."""

        def of_part(first, rows, F):
            return function(slice(first + rows.start, first + rows.stop), F)

        return sum_of(
            [
                matrix.adjoint_of(V, partial(of_part, rows.start))
                for matrix, rows in self._parts
            ]
        )
