"""Random Fourier features, given or drawn in blocks."""

import math
from dataclasses import dataclass, replace
from operator import is_
from typing import Any

import numpy as np

from ..arrays.array import (
    device_of,
    equal_slices,
    has_vector_math,
    is_numpy,
    matmul,
    namespace,
)
from ..arrays.machine import (
    FREQUENCY_GROUP_BYTES,
    FREQUENCY_SLAB,
    WAVE_TILE,
    WAVE_TILE_ALONE,
    WAVE_TILE_ROWS,
    WAVE_TILE_UNTHREADED,
)
from ..arrays.threads import SleepingTeam, n_blas_threads, run_on_threads
from ..rows.robust import centered, cutoffs, medians, sampled

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

    Rows have the library, device and data type of `like`. The offset (d,) is subtracted
    from all rows, and entries are cut off farther from it than the limits (d,), if any.
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


def fourier_features(X, frequencies, offset, limits, n_columns):
    """Return random Fourier features of given frequencies (d, F), shape (m, D).

    For D = 2 F columns and frequencies w_1, ..., w_F ::

        phi(x) = (cos w_1'x, ..., cos w_F'x, sin w_1'x, ..., sin w_F'x) sqrt(2 / D)

    For D = 2 F - 1 the last cosine is ``cos(w_F'x - pi / 4)`` and the last sine is left
    out. Over a symmetric distribution of w, ``2 cos(w'x - b) cos(w'z - b)`` has the
    mean ``k(x - z) + cos(2 b) k(x + z)``: a plain cosine, b = 0, would be biased
    whatever its scale, b = pi / 4 is not.
    """
    waves = _Waves(X, offset, limits)
    xp, half, n_frequencies = waves.xp, 0.5 * frequencies, frequencies.shape[1]
    phi = xp.empty((X.shape[0], n_columns), **waves.array_options)
    scale = (2.0 / n_columns) ** 0.5

    def task(rows):
        near = waves.centered(X[rows, :])
        for start in range(0, n_frequencies, FREQUENCY_SLAB):
            end = min(start + FREQUENCY_SLAB, n_frequencies)
            sines = near @ half[:, start:end]
            cosines = xp.empty_like(sines)
            _write_waves(xp, sines, cosines, sines, scale)
            if end == n_frequencies and n_columns % 2:
                cosines[:, -1] = (cosines[:, -1] + sines[:, -1]) * 0.5**0.5
                sines = sines[:, :-1]
            phi[rows, start:end] = cosines
            first = n_frequencies + start
            phi[rows, first : first + sines.shape[1]] = sines

    waves.map_tiles(task, X.shape[0], min(n_frequencies, FREQUENCY_SLAB))
    return phi


@dataclass(frozen=True)
class _Slab:
    """Blocks side by side: half their frequencies, coefficients of both `_half_waves`.

    `sums` are those of A over its rows, `values` the two products for all rows,
    (2, m, l), or None. If the values are known, nothing else is needed.
    """

    sums: Any
    half_frequencies: Any = None
    A: Any = None
    B: Any = None
    values: Any = None


class KeptSlabs:
    """Products of slabs of blocks on some rows, until the coefficients are others.

    Coefficients are replaced, never changed: the same arrays are equal. At most
    `n_bytes` are kept.
    """

    def __init__(self, n_bytes):
        self._n_bytes, self._slabs = n_bytes, {}

    def get(self, start, coef):
        """Return the slab that begins with a block, or None; drop another one."""
        before, slab = self._slabs.get(start, ((), None))
        if len(before) == len(coef) and all(map(is_, before, coef)):
            return slab
        self._slabs.pop(start, None)
        return None

    def with_room(self, slabs, xp, shape, options):
        """Return slabs with arrays for their values (m, l), where there is room."""
        width = 2 * math.prod(shape) * xp.finfo(options["dtype"]).bits // 8
        room, found = self._n_bytes // max(width, 1) - len(self._slabs), []
        for slab in slabs:
            if slab.values is None and room > 0:
                slab = replace(slab, values=xp.empty((2, *shape), **options))
                room -= 1
            found.append(slab)
        return found

    def keep(self, start, coef, slab):
        """Keep a slab whose values are computed, if it has any."""
        if slab.values is not None:
            self._slabs[start] = coef, _Slab(slab.sums, values=slab.values)


class FourierBlocks(_Waves):
    """Blocks of random features of a kernel, phi_k(x)' phi_k(z) = k(x, z) on average.

    With F frequencies w per block, drawn from the kernel's spectral distribution::

        phi_k(x) = (cos w_1'x, ..., cos w_F'x, sin w_1'x, ..., sin w_F'x) / sqrt(F)

    Block k is drawn from the seed ``seed + k`` by a counter-based generator, on the
    host in float64: it is the same whenever, wherever and in whatever order it is
    drawn. Evaluating a block on m rows costs m F (d multiply-adds, a cosine and a
    sine). F is `block_size`; `cache_bytes` of drawn frequencies are kept. The offset
    changes no product of features, and keeps large offsets of X from costing digits.
    """

    def __init__(
        self, kernel, seed, block_size, like, offset, limits=None, *, cache_bytes=0.0
    ):
        super().__init__(like, offset, limits)
        self.kernel, self.seed, self.block_size = kernel, seed, block_size
        self._n_features = like.shape[1]
        itemsize = self.xp.finfo(self.dtype).bits // 8
        self._bytes = itemsize * self._n_features * block_size
        self._n_cached = int(cache_bytes // self._bytes)
        self._cache, self._tiles = {}, {}

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

        The tiles are pairs of a range of rows and their features (2 F, r), which the
        next call overwrites.
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
        own array, as in one for all m rows every feature would be on a different page.
        The next call reuses it: two products with 128 frequencies on 7300 rows take
        3.4 ms, with new arrays, whose pages are new too, 6.6.
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

    def product(self, X, blocks, coef, n_columns, kept=None):
        """Return sum_k phi_k(X) A_k over some blocks, (m, l); `coef` has their A_k.

        A_k has shape (2 F, l), and l is `n_columns`. With `KeptSlabs` of the same rows
        and blocks, only what has changed is evaluated, with the same result bit for
        bit.
        """
        xp = self.xp
        # Contiguous columns make losses of few columns faster.
        out = xp.zeros((n_columns, X.shape[0]), **self.array_options).T
        width = max(FREQUENCY_SLAB // self.block_size, 1)
        size = max(int(FREQUENCY_GROUP_BYTES // self._bytes), width)
        for start in range(0, len(blocks), size):
            end = min(start + size, len(blocks))
            some = [slice(i, min(i + width, end)) for i in range(start, end, width)]
            known = [None] * len(some)
            if kept is not None:
                known = [kept.get(part.start, coef[part]) for part in some]
            new = [part for part, one in zip(some, known, strict=True) if one is None]
            drawn = iter(self._slabs(blocks, coef, new))
            slabs = [next(drawn) if one is None else one for one in known]
            constant = -0.5 * sum(slab.sums for slab in slabs)
            if kept is not None:
                slabs = kept.with_room(slabs, xp, out.shape, self.array_options)

            def task(rows, slabs=slabs, constant=constant):
                near, total = self.centered(X[rows, :]), constant
                T = buffer = None
                for slab in slabs:
                    W, values = slab.half_frequencies, slab.values
                    if W is None:
                        total = total + values[0, rows, :]
                        total += values[1, rows, :]
                        continue
                    if T is not None and T.shape[1] != W.shape[1]:
                        T = buffer = None
                    T = matmul(xp, near, W, T)
                    squares, buffer = _half_waves(xp, T, T, buffer)
                    of_squares, of_products = squares @ slab.A, buffer @ slab.B
                    total = total + of_squares
                    total += of_products
                    if values is not None:
                        values[0, rows, :], values[1, rows, :] = of_squares, of_products
                out[rows, :] += total

            self.map_tiles(task, X.shape[0], width * self.block_size)
            if kept is not None:
                for part, slab in zip(some, slabs, strict=True):
                    kept.keep(part.start, coef[part], slab)
        return out

    def _slabs(self, blocks, coef, parts):
        """Return the `_slab` of each part of the blocks."""

        def slab(part):
            return self._slab(blocks[part], coef[part])

        # Drawing few numbers is Python's work, in which threads wait for each other.
        shared = self.block_size * self._n_features >= _SHARED_DRAW
        return self._map(slab, parts) if shared else [slab(part) for part in parts]

    def _slab(self, blocks, coef):
        """Return the `_Slab` of some blocks.

        Several blocks are put side by side, because narrow matrix products are slow.
        """
        xp, F = self.xp, self.block_size
        W = xp.concat([self._half_frequencies(k) for k in blocks], axis=1)
        scale = 2.0 * F**-0.5
        A = scale * xp.concat([A[:F, :] for A in coef])
        B = scale * xp.concat([A[F:, :] for A in coef])
        return _Slab(xp.sum(A, axis=0), W, A, B)


def _write_waves(xp, T, cosines, sines, scale):
    """Write cos(2 T) and sin(2 T), times `scale`; `T` may be `sines`."""
    if has_vector_math(xp) or _is_slow(xp, T):
        _half_waves(xp, T, cosines, sines, 2.0 * scale)
        cosines -= scale
    else:
        T = 2.0 * T
        cosines[:, :], sines[:, :] = scale * xp.cos(T), scale * xp.sin(T)


# Numbers of a block of frequencies from which it is drawn by one of several threads.
_SHARED_DRAW = 2**13
# Numbers of an array that is worked on at a time: four stay in a core's cache.
_SCRATCH = 2**14


def _is_slow(xp, T):
    """Whether NumPy has no vector instructions for sines: in double without AVX-512.

    They then take 20 to 30 ns each, 50 operations of arrays in a core's cache 12.
    """
    slow = is_numpy(xp) and not has_vector_math(xp)
    return slow and T.dtype == np.float64 and T.shape[1] > 0


def _in_double(T, cosines, sines, scale, x, y):
    """Write `_half_waves` of T by arithmetic alone; x and y are scratch.

    With u = T / 4, but for multiples of pi, tan(u) is its continued fraction x / (1 -
    x^2 / (3 - x^2 / (5 - ...))), cut off after 13: an error of 1e-17 for |u| < pi / 8.
    Then h = tan(2 u) / 2 = tan(u) / (1 - tan(u)^2) gives cos(4 u) = (1 - 4 h^2) / (1 +
    4 h^2) and sin(4 u) = 4 h / (1 + 4 h^2).
    """
    np.multiply(T, 1.0 / np.pi, out=x)
    x -= np.rint(x, out=y)
    x *= 0.25 * np.pi
    np.multiply(x, x, out=y)
    tangent, below = sines, cosines  # T is no longer needed
    np.subtract(378.0, y, out=tangent)
    np.multiply(y, -28.0, out=below)
    below += 3150.0
    for of_tangent, of_below in ((-17325.0, -62370.0), (135135.0, 135135.0)):
        for fraction, constant in ((tangent, of_tangent), (below, of_below)):
            fraction *= y
            fraction += constant
    tangent *= x
    tangent /= below
    np.multiply(tangent, tangent, out=x)
    tangent /= np.subtract(1.0, x, out=x)  # h
    np.multiply(tangent, tangent, out=x)
    x *= 4.0
    np.subtract(1.0, x, out=y)
    x += 1.0
    y /= x  # cos(T)
    tangent *= 4.0 * scale
    tangent /= x
    tangent *= y  # scale sin(T) cos(T)
    np.multiply(y, y, out=cosines)
    cosines *= scale


def _half_waves(xp, T, cosines, sines, scale=1.0):
    """Return c cos(T)^2 and c sin(T) cos(T), c = `scale`: c (1 + cos 2T, sin 2T) / 2.

    With t = tan(T) they are c / (1 + t^2) and c t / (1 + t^2). They may be written to
    the two arrays, one of which may be `T`.
    """
    if _is_slow(xp, T):
        cosines, sines = (
            np.empty_like(T) if out is None else out for out in (cosines, sines)
        )
        scratch = np.empty((2, max(_SCRATCH // T.shape[1], 1), T.shape[1]))
        for start in range(0, T.shape[0], scratch.shape[1]):
            part = slice(start, min(start + scratch.shape[1], T.shape[0]))
            some = scratch[:, : part.stop - start]
            _in_double(T[part], cosines[part], sines[part], scale, *some)
        return cosines, sines
    if not has_vector_math(xp):
        waves = xp.cos(T)
        return scale * waves * waves, scale * xp.sin(T) * waves
    sines = np.tan(T, out=sines)
    cosines = np.multiply(sines, sines, out=cosines)
    cosines += 1.0
    np.divide(scale, cosines, out=cosines)
    sines *= cosines
    return cosines, sines
