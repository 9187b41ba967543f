"""Cholesky factors in place: by LAPACK, or in tiles that threads share.

The threads of LAPACK wait for each other thousands of times. Where other processes have
the cores, each wait lasts until the scheduler gives one back. Those that share tiles
rarely wait, and get fair shares. Seconds for 6000 rows in single precision on two
cores, idle, beside two endless loops, and beside products of NumPy on two threads::

                               idle   loops   products
    LAPACK on two threads      0.39    0.97       1.08
    LAPACK on one thread       0.73    1.11       1.12
    tiles on two threads       0.46    0.94       0.94
"""

from collections import deque
from threading import Condition

import numpy as np
import scipy.linalg

from .array import slices
from .threads import (
    Team,
    idle_threads,
    n_blas_threads,
    run_on_threads,
    single_threaded_blas,
)

# Order from which LAPACK gets all idle cores: below it, a factorization takes less than
# 50 ms on one core, and two cores gain a quarter.
SHARED_ORDER = 750
# OpenBLAS 0.3.30 on two threads crashes in potrf from about 15500 rows: half as many
# are safe.
_LARGEST_POTRF = 8192
# Most and fewest rows of a tile, and rows of tiles per thread. With tiles of 256, 512
# and 1024 rows 6000 rows take 0.47, 0.44 and 0.49 s, and 2000 rows take 0.028 and
# 0.031 s with the first two.
_WIDEST, _NARROWEST, _PER_THREAD = 512, 128, 4


def factor_in_place(K, clean=True):
    """Return the lower Cholesky factor of a symmetric NumPy array, in its place.

    None if LAPACK finds none. The upper triangle is zero if `clean`, and that of K
    otherwise.
    """
    n, n_threads = K.shape[0], n_blas_threads()
    is_large = n >= SHARED_ORDER
    n_idle = idle_threads() if is_large else 1
    others_work = 2 * n_idle <= n_threads and not single_threaded_blas.is_shared
    if n > _LARGEST_POTRF or (is_large and others_work):
        return _Tiles(K, clean, n_threads).factor()
    with single_threaded_blas.lifted(n_idle):
        return _potrf(K, clean)


def _potrf(K, clean):
    """Return the lower factor by LAPACK, in the place of K; None if it fails."""
    potrf = scipy.linalg.get_lapack_funcs("potrf", (K,))
    # The array, or its transpose, is in LAPACK's order: no copy, and half the memory.
    if K.flags.f_contiguous:
        L, failed = potrf(K, lower=1, clean=clean, overwrite_a=1)
    else:
        L, failed = potrf(K.T, lower=0, clean=clean, overwrite_a=1)
        L = L.T
    return None if failed else L


class _Tiles:
    """Tiles of a symmetric matrix, which threads turn into those of its factor.

    Tile (i, j) becomes ``(K_ij - sum_k L_ik L_jk') L_jj^-T``, with k < j; on the
    diagonal it becomes the factor of the bracket. Tiles are taken column by column:
    each waits only for some that were taken before. They have a queue of their own,
    because an error must also end the waits, wherever it comes.
    """

    def __init__(self, K, clean, n_threads):
        self._K, self._clean, self._n_threads = K, clean, n_threads
        width = -(-len(K) // (_PER_THREAD * n_threads))
        self._rows = list(slices(len(K), min(max(width, _NARROWEST), _WIDEST)))
        self._left = deque(_in_order(len(self._rows), n_threads))
        self._n_done = [0] * len(self._rows)  # tiles of L in each row
        self._ready, self._failed = Condition(), False
        self._potrf = scipy.linalg.get_lapack_funcs("potrf", (K,))
        self._trsm = scipy.linalg.get_blas_funcs("trsm", (K,))

    def factor(self):
        """Return the lower factor, in the place of K; None if there is none."""
        # A matrix that is not finite has no factor, which needs no other warning.
        with np.errstate(invalid="ignore", over="ignore"):
            workers = [()] * self._n_threads
            run_on_threads(Team(self._n_threads), self._work, workers)
        return None if self._failed else self._K

    def _work(self):
        try:
            while self._left:
                try:
                    tile = self._left.popleft()
                except IndexError:  # another was quicker
                    return
                self._compute(*tile)
        except BaseException:
            self._stop()
            raise

    def _stop(self):
        """Let no thread wait for a tile that does not come."""
        self._left.clear()
        with self._ready:
            self._failed = True
            self._ready.notify_all()

    def _wait(self, row, n_tiles):
        with self._ready:
            self._ready.wait_for(lambda: self._failed or self._n_done[row] >= n_tiles)

    def _compute(self, i, j):
        """Turn tile (i, j) of K into that of L."""
        K, rows, columns = self._K, self._rows[i], self._rows[j]
        tile, before = K[rows, columns], slice(0, columns.start)
        self._wait(i, j)
        self._wait(j, j)
        left = tile - K[rows, before] @ K[columns, before].T
        if i == j:
            L, failed = self._potrf(left.T, lower=0, clean=1, overwrite_a=1)
            if failed:
                self._stop()
            tile[...] = L.T if self._clean else L.T + np.triu(tile, 1)
        else:
            self._wait(j, j + 1)
            L = K[columns, columns].T
            tile[...] = self._trsm(1.0, L, left.T, trans_a=1, overwrite_b=1).T
            if self._clean:
                K[columns, rows] = 0.0
        with self._ready:
            self._n_done[i] += 1
            self._ready.notify_all()


def _in_order(n, n_threads):
    """Yield the tiles (i, j) of n rows, column by column.

    The next column begins with the tile on its diagonal, for which all others of that
    column wait. It comes early, but after its neighbor has been computed.
    """
    yield 0, 0
    for j in range(n - 1):
        column = [(i, j) for i in range(j + 1, n)]
        column.insert(n_threads, (j + 1, j + 1))
        yield from column
