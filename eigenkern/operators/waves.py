"""Random Fourier features, given or drawn in blocks, and sums over rows of a file."""

from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import (
    device_of,
    equal_slices,
    has_vector_math,
    is_numpy,
    matmul,
    namespace,
    slices,
)
from ..arrays.linalg import reflect_rows
from ..arrays.machine import (
    CORE_CACHE_BYTES,
    CPU,
    FREQUENCY_GROUP_BYTES,
    FREQUENCY_SLAB,
    WAVE_TILE,
    WAVE_TILE_ALONE,
    WAVE_TILE_ROWS,
    WAVE_TILE_UNTHREADED,
)
from ..arrays.threads import SleepingTeam, Team, n_blas_threads, run_on_threads
from ..rows.robust import centered, cutoffs, medians, sampled
from .centered import ROWS_AT_FIRST, near
from .matrix import PANEL_WIDTH, add_gram

# Rounding of a phase w'x, in radians, for a row that is cut off, with w of one over the
# bandwidth: its features are any point of the unit circle, but the same at every call.
_ROUNDING_OF_PHASES = 1e-2


def frame_of_phases(X, bandwidth):
    """Return an offset of rows, and how far from it entries are cut off, (d,) each."""
    xp, some = namespace(X), sampled(X)
    real = xp.finfo(some.dtype)
    offset, far = medians(some), _ROUNDING_OF_PHASES / float(real.eps) * bandwidth
    with np.errstate(over="ignore"):
        usual = medians(xp.abs(some - offset))
    return offset, cutoffs(usual, far, float(real.max) / 4)


class _Waves:
    """Cosines and sines of rows, tile by tile on threads.

    Parameters
    ----------
    like : array of shape (m, d)
        Rows whose library, device and data type to use.
    offset : array of shape (d,)
        Subtracted from all rows.
    limits : array of shape (d,), default=None
        How far from the offset entries are cut off; None: nowhere.
    """

    def __init__(self, like, offset, limits=None):
        self.xp, self.device, self.dtype = namespace(like), device_of(like), like.dtype
        self.offset, self._limits = offset, limits
        threaded = is_numpy(self.xp)
        self.n_workers = n_blas_threads() if threaded else 1
        self._pool = SleepingTeam(self.n_workers) if threaded else None

    @property
    def array_options(self):
        """Data type and device of new arrays."""
        return {"dtype": self.dtype, "device": self.device}

    def centered(self, X):
        """Return rows minus the offset, with entries far away cut off."""
        if self._limits is None:
            return X - self.offset
        return centered(X, self.offset, self._limits)

    def map_tiles(self, task, m, width):
        """Return ``task(rows)`` of all tiles, ranges of `m` rows, in order.

        A tile holds `width` numbers per row.
        """
        size = min(WAVE_TILE // width, WAVE_TILE_ROWS, -(-m // self.n_workers))
        if self._pool is None:
            size = min(WAVE_TILE_UNTHREADED // width, m)
        n_tiles = -(-m // max(size, 1))
        if m * width <= WAVE_TILE_ALONE:
            n_tiles = min(m, 1)
        elif n_tiles > 1:  # equally many for every worker
            n_tiles = min(-(-n_tiles // self.n_workers) * self.n_workers, m)
        return self._map(task, equal_slices(m, n_tiles))

    def _map(self, task, items):
        """Return ``task(item)`` of all items, in order."""
        results = [None] * len(items)

        def work(i):
            results[i] = task(items[i])

        pool = self._pool if len(items) > 1 else None
        run_on_threads(pool, work, [(i,) for i in range(len(items))])
        return results

    def write(self, phi, rows, near, W):
        """Write the features of some rows to `phi`.

        Parameters
        ----------
        phi : array of shape (m, D)
            D = 2 F, or 2 F - 1 as in `fourier_features`.
        rows : slice
        near : array of shape (len(rows), d)
            These rows of X, minus the offset.
        W : array of shape (d, F)
            Halves of the frequencies.
        """
        n_frequencies, n_columns = W.shape[1], phi.shape[1]
        scale = 2.0 * (2.0 / n_columns) ** 0.5
        for start in range(0, n_frequencies, FREQUENCY_SLAB):
            end = min(start + FREQUENCY_SLAB, n_frequencies)
            cosines, sines = _half_waves(self.xp, near @ W[:, start:end])
            cosines -= 0.5
            if end == n_frequencies and n_columns % 2:
                cosines[:, -1] = (cosines[:, -1] + sines[:, -1]) * 0.5**0.5
                sines = sines[:, :-1]
            cosines *= scale
            sines *= scale
            phi[rows, start:end] = cosines
            first = n_frequencies + start
            phi[rows, first : first + sines.shape[1]] = sines


def fourier_features(X, frequencies, offset, limits, n_columns):
    """Return random Fourier features of given frequencies, shape (m, D).

    For D = 2 F columns and frequencies w_1, ..., w_F ::

        phi(x) = (cos w_1'x, ..., cos w_F'x, sin w_1'x, ..., sin w_F'x) sqrt(2 / D)

    For D = 2 F - 1 the last cosine is ``cos(w_F'x - pi / 4)`` and the last sine is left
    out. Over a symmetric distribution of w, ``2 cos(w'x - b) cos(w'z - b)`` has the
    mean ``k(x - z) + cos(2 b) k(x + z)``: a plain cosine, b = 0, would be biased
    whatever its scale, b = pi / 4 is not.

    Parameters
    ----------
    X : array of shape (m, d)
    frequencies : array of shape (d, F)
    offset : array of shape (d,)
        Subtracted from all rows first.
    limits : array of shape (d,)
        How far from the offset entries are cut off.
    n_columns : int
        D.
    """
    waves = _Waves(X, offset, limits)
    half = 0.5 * frequencies
    phi = waves.xp.empty((X.shape[0], n_columns), **waves.array_options)

    def task(rows):
        waves.write(phi, rows, waves.centered(X[rows, :]), half)

    waves.map_tiles(task, X.shape[0], min(half.shape[1], FREQUENCY_SLAB))
    return phi


class FourierBlocks(_Waves):
    """Blocks of random features of a kernel, phi_k(x)' phi_k(z) = k(x, z) on average.

    With F frequencies w per block, drawn from the kernel's spectral distribution::

        phi_k(x) = (cos w_1'x, ..., cos w_F'x, sin w_1'x, ..., sin w_F'x) / sqrt(F)

    Block k is drawn from the seed ``seed + k`` by a counter-based generator, on the
    host in float64: it is the same whenever, wherever and in whatever order it is
    drawn. Evaluating a block on m rows costs m F (d multiply-adds, a cosine and a
    sine).

    Parameters
    ----------
    kernel : Kernel
        With a spectral distribution.
    seed : int
        Not negative.
    block_size : int
        F.
    like : array of shape (m, d)
        Rows whose library, device, data type and number of features to use.
    offset : array of shape (d,)
        Subtracted from all rows. This changes no product of features, and keeps large
        offsets of X from costing digits.
    limits : array of shape (d,), default=None
        How far from the offset entries are cut off; None: nowhere.
    cache_bytes : float, default=0
        Memory for frequencies already drawn.
    """

    def __init__(
        self, kernel, seed, block_size, like, offset, limits=None, *, cache_bytes=0.0
    ):
        super().__init__(like, offset, limits)
        self.kernel, self.seed, self.block_size = kernel, seed, block_size
        self._n_features = like.shape[1]
        itemsize = self.xp.finfo(self.dtype).bits // 8
        self._bytes = itemsize * self._n_features * block_size
        self._cache, self._n_cached = {}, int(cache_bytes // self._bytes)
        self._tiles = {}

    def frequencies(self, k):
        """Return the frequencies of block `k`, shape (d, F)."""
        return 2.0 * self._half_frequencies(k)

    def _half_frequencies(self, k):
        if k in self._cache:
            return self._cache[k]
        rng = np.random.Generator(np.random.Philox(key=self.seed + k))
        W = self.kernel.frequencies(rng, self._n_features, self.block_size)
        W = self.xp.asarray(0.5 * W, device=self.device)
        W = self.xp.astype(W, self.dtype)
        # Keep the first blocks: blocks come in turn, so the latest ones would be
        # dropped before they are needed again.
        if len(self._cache) < self._n_cached:
            self._cache[k] = W
        return W

    def features(self, X, k):
        """Return phi_k of the rows of X, shape (m, 2 F)."""
        tiles, _ = self.adjoint(X, k, X[:, :0])
        return self.xp.concat([phi for _, phi in tiles], axis=1).T

    def adjoint(self, X, k, G):
        """Return phi_k(X), tile by tile, and phi_k(X)' G, shape (2 F, l).

        Parameters
        ----------
        X : array of shape (m, d)
        k : int
        G : array of shape (m, l)

        Returns
        -------
        tiles : list of (slice, array of shape (2 F, r))
            Ranges of rows, and their features, which the next call overwrites.
        product : array of shape (2 F, l)
        """
        xp, W, F = self.xp, self._half_frequencies(k), self.block_size

        def task(rows):
            phi = self._buffer(rows)
            T = matmul(xp, W.T, self.centered(X[rows, :]).T, phi[F:, :])
            _write_waves(xp, T, phi[:F, :], phi[F:, :], F**-0.5)
            return (rows, phi), phi @ G[rows, :]

        tiles, parts = zip(*self.map_tiles(task, X.shape[0], F), strict=True)
        return tiles, sum(parts)

    def _buffer(self, rows):
        """Return an array for the features of a tile, with one row per feature.

        Rows of a narrow block's few features would make short loops. Each tile has its
        own array: in one for all m rows, every feature of a tile would be on a
        different page. The next call reuses it: the C library returns arrays of this
        size to the system, and a new one costs a page fault for every 4 kB. Two
        products with 128 frequencies on 7300 rows take 3.4 ms, with new arrays 6.6. The
        arrays hold 2 F m numbers.
        """
        shape = 2 * self.block_size, rows.stop - rows.start
        if rows.start not in self._tiles or self._tiles[rows.start].shape != shape:
            self._tiles[rows.start] = self.xp.empty(shape, **self.array_options)
        return self._tiles[rows.start]

    def add_products(self, tiles, A, out):
        """Add phi_k(X) A to `out`, in place, for the tiles returned by `adjoint`."""

        def task(tile):
            rows, phi = tile
            out[rows, :] += (A.T @ phi).T  # a quarter faster than phi' A

        self._map(task, tiles)

    def product(self, X, blocks, coef, n_columns):
        """Return sum_k phi_k(X) A_k over some blocks, shape (m, l).

        Parameters
        ----------
        X : array of shape (m, d)
        blocks : sequence of int
        coef : sequence of arrays of shape (2 F, l)
            A_k of each of them.
        n_columns : int
            l.
        """
        xp = self.xp
        # Contiguous columns make losses of few columns faster.
        out = xp.zeros((n_columns, X.shape[0]), **self.array_options).T
        slab = max(FREQUENCY_SLAB // self.block_size, 1)
        size = max(int(FREQUENCY_GROUP_BYTES // self._bytes), slab)
        for start in range(0, len(blocks), size):
            end = min(start + size, len(blocks))
            some = [slice(i, min(i + slab, end)) for i in range(start, end, slab)]
            slabs = self._map(lambda i: self._slab(blocks[i], coef[i]), some)
            constant = -0.5 * sum(xp.sum(A, axis=0) for _, A, _ in slabs)

            def task(rows, slabs=slabs, constant=constant):
                near, total = self.centered(X[rows, :]), constant
                T = buffer = None
                for W, A, B in slabs:
                    if T is not None and T.shape[1] != W.shape[1]:
                        T = buffer = None
                    T = matmul(xp, near, W, T)
                    squares, buffer = _half_waves(xp, T, buffer)
                    total = total + squares @ A
                    total += buffer @ B
                out[rows, :] += total

            self.map_tiles(task, X.shape[0], slab * self.block_size)
        return out

    def _slab(self, blocks, coef):
        """Return half the frequencies, and the coefficients of both `_half_waves`.

        Several blocks are put side by side, because narrow matrix products are slow.
        """
        xp, F = self.xp, self.block_size
        W = xp.concat([self._half_frequencies(k) for k in blocks], axis=1)
        scale = 2.0 * F**-0.5
        A = scale * xp.concat([A[:F, :] for A in coef])
        return W, A, scale * xp.concat([A[F:, :] for A in coef])


def _write_waves(xp, T, cosines, sines, scale):
    """Write cos(2 T) and sin(2 T), times `scale`; `T` may be `sines`.

    They are 2 cos(T)^2 - 1 and 2 sin(T) cos(T), as in `_half_waves`.
    """
    if has_vector_math(xp):
        np.tan(T, out=sines)
        np.multiply(sines, sines, out=cosines)
        cosines += 1.0
        np.divide(2.0 * scale, cosines, out=cosines)
        sines *= cosines
        cosines -= scale
        return
    T = 2.0 * T
    cosines[:, :] = scale * xp.cos(T)
    sines[:, :] = scale * xp.sin(T)


def _half_waves(xp, T, buffer=None):
    """Return cos(T)^2 and sin(T) cos(T), which are (1 + cos 2T) / 2 and sin(2T) / 2.

    The first may overwrite `T`, and the second `buffer`. They are 1 / (1 + t^2) and
    t / (1 + t^2) with t = tan(T).
    """
    if not has_vector_math(xp):
        cosines = xp.cos(T)
        return cosines * cosines, xp.sin(T) * cosines
    t = np.tan(T, out=buffer)
    np.multiply(t, t, out=T)
    T += 1.0
    np.divide(1.0, T, out=T)
    t *= T
    return T, t


# First rows of a file, whose mean is subtracted from all rows. If they are unlike the
# others, errors are at most n / 8000 times the rounding of double precision.
_ROWS_OF_SHIFT = 8000


class FeatureSums(NamedTuple):
    """Sums over rows x with weights w and targets y, from which a mean is subtracted.

    A shift c, the mean of some rows, is subtracted from all rows. The mean of all rows
    is no farther from c than rows vary, so little cancels when it is subtracted later.

    Attributes
    ----------
    extremes : tuple of float
        The least and the largest number.
    levels : ndarray of shape (d,)
        The value of each constant column, and NaN for the others, as `levels_of`.
    shift : ndarray of shape (d,)
        c. All sums are in float64.
    totals : ndarray of shape (1 + l,)
        Sums of w and w y.
    cross : ndarray of shape (d, 1 + l)
        Sums of w (x - c) and w (x - c) y'.
    gram : ndarray of shape (d, d) or None
        Sum of w (x - c) (x - c)'. None: l is 0 above.
    """

    extremes: tuple
    levels: np.ndarray
    shift: np.ndarray
    totals: np.ndarray
    cross: np.ndarray
    gram: Any

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
    """Return the sums over all rows of a file, which is read once.

    That takes n d (d / 2 + 1 + l) multiply-adds with the Gram matrix, and n d without.
    Memory holds n (1 + l) numbers, and for each thread a block of the file and a matrix
    of d x d; with wide rows all threads share a product.

    Parameters
    ----------
    rows : StoredRows or its rows in another order, of shape (n, d)
    targets : ndarray of shape (n, l)
        In float64.
    weights : ndarray of shape (n,) or None
    target_mean : ndarray of shape (l,)
        Subtracted from the targets.
    center : bool
        Whether there is a shift. Without it, no column counts as constant.
    with_gram : bool

    Returns
    -------
    FeatureSums
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
    gram = None
    if with_gram:
        gram = sum((part.gram for part in parts[1:]), parts[0].gram)
        if team is not None:
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
    """The sums over some blocks of rows.

    Parameters
    ----------
    row : ndarray of shape (d,)
        Columns that equal it throughout are constant, except where it is 0.
    shift, targets, weights, with_gram
        As in `sums_of_features`; targets (n, 1 + l) begin with a column of ones.
    team : Team or None
        Threads that share a product.
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
        self._size = max(int(n_bytes) // (8 * d), 16)
        self._buffer = None

    def add(self, places, X):
        """Add a block of rows, whose targets are at some places."""
        T = self._targets[places, :]
        w = None if self._weights is None else self._weights[places]
        if self._buffer is None:
            self._buffer = np.empty((self._size, X.shape[1]))
        for rows in slices(len(X), self._size):
            self._add(X[rows, :], T[rows, :], w if w is None else w[rows])

    def _add(self, X, T, w):
        self.low, self.high = min(self.low, X.min()), max(self.high, X.max())
        for few in (slice(ROWS_AT_FIRST), slice(None)):
            if np.any(self.constant):
                places = np.flatnonzero(self.constant)
                same = near(X[few, places], self._row[places])
                self.constant[places] = np.all(same, axis=0)
        A = np.subtract(X, self._shift, out=self._buffer[: len(X), :])
        if w is not None:
            root = np.sqrt(w)[:, None]
            A, T = np.multiply(A, root, out=A), root * T
        if self.gram is None:
            self.cross += A.T @ T
        else:
            add_gram(self.gram, A, self._team, self.cross, T)
