"""Random Fourier features in blocks that are drawn anew whenever they are needed."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ._array import device_of, has_vector_math, is_numpy, matmul, namespace
from ._operator import n_blas_threads, run_on_threads

# Bytes of frequencies that a product draws at a time.
_GROUP_BYTES = 32e6
# Frequencies of blocks that are multiplied together.
_SLAB_WIDTH = 512
# Numbers and rows of a tile, at most: it stays in a core's cache, and is large enough
# that the threads seldom wait for each other between two calls of NumPy.
_TILE_SIZE = 2**18
_TILE_ROWS = 8192


class FourierBlocks:
    """Blocks of random features of a kernel, phi_k(x)' phi_k(z) = k(x, z) on average.

    With F frequencies w of the kernel's spectral law in a block::

        phi_k(x) = (cos w_1'x, ..., cos w_F'x, sin w_1'x, ..., sin w_F'x) / sqrt(F)

    Block k is drawn from the seed ``seed + k`` by a counter-based generator, on the
    host in float64: it is the same whenever, wherever and in whatever order it is
    drawn. Evaluating one on m rows costs m F (d multiply-adds, a cosine and a sine).

    Parameters
    ----------
    kernel : Kernel
        With a spectral law.
    seed : int
        Not negative.
    block_size : int
        F.
    like : array of shape (m, d)
        Rows whose library, device, data type and number of features to use.
    offset : array of shape (d,)
        Subtracted from all rows, which changes no product of features: large offsets
        of X would cost digits.
    cache_bytes : float, default=0
        Memory for frequencies that were drawn.
    """

    def __init__(self, kernel, seed, block_size, like, offset, *, cache_bytes=0.0):
        self.kernel, self.seed, self.block_size = kernel, seed, block_size
        self.xp, self.device, self.dtype = namespace(like), device_of(like), like.dtype
        self.offset = offset
        self._n_features = like.shape[1]
        itemsize = self.xp.finfo(self.dtype).bits // 8
        self._bytes = itemsize * self._n_features * block_size
        self._cache, self._n_cached = {}, int(cache_bytes // self._bytes)
        threaded = is_numpy(self.xp)
        self.n_workers = n_blas_threads() if threaded else 1
        self._pool = ThreadPoolExecutor(self.n_workers) if threaded else None

    @property
    def array_options(self):
        """Data type and device of new arrays."""
        return {"dtype": self.dtype, "device": self.device}

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
        # The first stay: blocks come in turn, where the last would go before they are
        # needed again.
        if len(self._cache) < self._n_cached:
            self._cache[k] = W
        return W

    def features(self, X, k):
        """Return phi_k of the rows of X, shape (m, 2 F)."""
        return self.adjoint(X, k, X[:, :0])[0]

    def adjoint(self, X, k, G):
        """Return phi_k(X), shape (m, 2 F), and phi_k(X)' G, shape (2 F, l).

        Parameters
        ----------
        X : array of shape (m, d)
        k : int
        G : array of shape (m, l)
        """
        xp, F = self.xp, self.block_size
        W = self._half_frequencies(k)
        phi = xp.empty((X.shape[0], 2 * F), **self.array_options)
        scale = 2.0 * F**-0.5

        def task(rows):
            squares, products = _half_waves(xp, (X[rows, :] - self.offset) @ W)
            squares -= 0.5
            phi[rows, :F] = squares * scale
            phi[rows, F:] = products * scale
            return phi[rows, :].T @ G[rows, :]

        return phi, sum(self.map_tiles(task, X.shape[0], F))

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
        out = xp.zeros((X.shape[0], n_columns), **self.array_options)
        slab = max(_SLAB_WIDTH // self.block_size, 1)
        size = max(int(_GROUP_BYTES // self._bytes), slab)
        for start in range(0, len(blocks), size):
            end = min(start + size, len(blocks))
            slabs = [
                self._slab(blocks[i : min(i + slab, end)], coef[i : min(i + slab, end)])
                for i in range(start, end, slab)
            ]
            constant = -0.5 * sum(xp.sum(A, axis=0) for _, A, _ in slabs)

            def task(rows, slabs=slabs, constant=constant):
                centred, total = X[rows, :] - self.offset, constant
                T = buffer = None
                for W, A, B in slabs:
                    if T is not None and T.shape[1] != W.shape[1]:
                        T = buffer = None
                    T = matmul(xp, centred, W, T)
                    squares, buffer = _half_waves(xp, T, buffer)
                    total = total + squares @ A
                    total += buffer @ B
                out[rows, :] += total

            self.map_tiles(task, X.shape[0], slab * self.block_size)
        return out

    def _slab(self, blocks, coef):
        """Return half frequencies, and coefficients of squares and of products.

        Of several blocks side by side: narrow ones would make slow matrix products.
        """
        xp, F = self.xp, self.block_size
        W = xp.concat([self._half_frequencies(k) for k in blocks], axis=1)
        scale = 2.0 * F**-0.5
        A = scale * xp.concat([A[:F, :] for A in coef])
        return W, A, scale * xp.concat([A[F:, :] for A in coef])

    def map_tiles(self, task, m, width):
        """Return ``task(rows)`` of all tiles, ranges of `m` rows, in their order.

        A tile holds `width` numbers a row.
        """
        size = max(min(_TILE_SIZE // width, _TILE_ROWS, -(-m // self.n_workers)), 1)
        if self._pool is None:
            size = max(m, 1)
        tiles = [slice(i, min(i + size, m)) for i in range(0, m, size)]
        results = [None] * len(tiles)

        def run(i):
            results[i] = task(tiles[i])

        run_on_threads(self._pool, run, [(i,) for i in range(len(tiles))])
        return results


def _half_waves(xp, T, buffer=None):
    """Return cos(T)^2 and sin(T) cos(T), which are (1 + cos 2T) / 2 and sin(2T) / 2.

    `T` may be overwritten by the first; the second may be in `buffer`. They are
    1 / (1 + t^2) and t / (1 + t^2) with t = tan(T).
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
