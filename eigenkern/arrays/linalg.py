"""Linear algebra that the array standard lacks.

Cholesky factors in place, in tiles that threads share. (The threads of LAPACK wait for
each other thousands of times, each time until the scheduler gives a core back, and
OpenBLAS 0.3.30 crashes in potrf from about 15500 rows.) Seconds for 6000 rows in single
precision on two cores, idle, beside two endless loops, and beside products of NumPy on
two threads::

                               idle   loops   products
    LAPACK on two threads      0.39    0.97       1.08
    LAPACK on one thread       0.73    1.11       1.12
    tiles on two threads       0.46    0.94       0.94
"""

from collections import deque
from contextlib import nullcontext
from functools import partial
from itertools import combinations_with_replacement
from threading import Condition

import array_api_compat
import numpy as np
import scipy.linalg

from .array import (
    device_of,
    equal_slices,
    is_cupy,
    is_numpy,
    namespace,
    slices,
    take,
    to_numpy,
)
from .machine import CPU, SHARED_SECONDS
from .threads import (
    Team,
    idle_threads,
    n_blas_threads,
    run_on_threads,
    single_threaded_blas,
    taken_from,
)

# Rows of a panel of `inverse_squares`. With 6000 rows and 2000 columns, panels of 64,
# 128, 256, 512 and 1024 rows take 0.86, 0.73, 1.15, 1.02 and 0.86 s.
_NARROW_PANEL = 128
# Rows and columns of a tile of a symmetric matrix, which is read twice, the second time
# from the cache. The fastest of 256, 512 and 1024, with one column and with ten.
_TILE = 256
# Rows whose diagonal entries are changed together if the library can't address a
# diagonal: 8 MB, and few calls.
_DIAGONAL_ROWS = 1024
# Ratio of the least to the largest diagonal entry from which a Cholesky factor in
# float64 makes columns orthonormal: up to 1e-4, and up to rounding if done twice.
_SMALLEST_PIVOT = 1e-6
# Fewest rows of a piece of a product: BLAS is slow with few.
_PIECE_ROWS = 64
# Order from which LAPACK gets all idle cores: below it, a factorization takes less than
# 50 ms on one core, and two cores gain a quarter.
SHARED_ORDER = 750
# Most and fewest rows of a tile of a factor, and how many rows of tiles there are in
# between. With tiles of 256, 512 and 1024 rows 6000 rows take 0.47, 0.44 and 0.49 s.
_WIDEST, _NARROWEST, _TILE_ROWS = 512, 128, 16


def large_product(A, B):
    """Return A @ B; if it is large, threads compute some of its rows, or columns."""
    if not (isinstance(A, np.ndarray) and isinstance(B, np.ndarray)):
        return A @ B
    (m, k), n, dtype = A.shape, B.shape[1], np.result_type(A, B)
    seconds = max(
        CPU.product_seconds(m * n * k, dtype.itemsize, 1),
        dtype.itemsize * k * (m + n) / CPU.read_one,
    )
    if seconds < 2 * SHARED_SECONDS:
        return A @ B
    team, out = Team(n_blas_threads()), np.empty((m, n), dtype=dtype)
    # Several pieces per thread, so that the threads finish together.
    n_pieces = max(min(2 * team.n_workers, max(m, n) // _PIECE_ROWS), 1)
    pieces = [(piece,) for piece in equal_slices(max(m, n), n_pieces)]

    def task(piece):
        if m >= n:
            np.matmul(A[piece, :], B, out=out[piece, :])
        else:
            np.matmul(A, B[:, piece], out=out[:, piece])

    run_on_threads(team, task, pieces, seconds)
    return out


def large_gram(A):
    """Return A @ A.T; if it is large, half of it is computed, on all threads."""
    if not isinstance(A, np.ndarray):
        return A @ A.T
    m, k = A.shape
    seconds = CPU.product_seconds(0.5 * m * m * k, A.itemsize, 1)
    if seconds < 2 * SHARED_SECONDS:
        return A @ A.T
    team, K = Team(n_blas_threads()), np.empty((m, m), dtype=A.dtype)
    width = max(-(-m // (4 * team.n_workers)), _PIECE_ROWS)

    def task(rows):
        np.matmul(A[rows, :], A[: rows.stop, :].T, out=K[rows, : rows.stop])

    # The longest rows first, so that the threads finish together.
    tasks = [(rows,) for rows in slices(m, width)][::-1]
    run_on_threads(team, task, tasks, seconds)
    reflect = partial(reflect_rows, K)
    run_on_threads(team, reflect, tasks, m * m * A.itemsize / CPU.read_one)
    return K


def reflect_rows(K, rows):
    """Copy rows of the lower triangle of a NumPy array to the upper one."""
    K[: rows.start, rows] = K[rows, : rows.start].T
    square = K[rows, rows]  # a product may be symmetric only up to rounding
    square[...] = np.tril(square) + np.tril(square, -1).T


def _lapack_threads(order):
    """Return a context for a factorization: a large one gets the idle cores."""
    n_threads = idle_threads() if order >= SHARED_ORDER else 1
    return single_threaded_blas.lifted(n_threads)


def top_eigh(K, q):
    """Return the q largest eigenvalues of K, and vectors (s, q), largest first."""
    xp, s = namespace(K), K.shape[0]
    if is_numpy(xp):
        # Computing a subset is several times faster than the whole spectrum.
        with _lapack_threads(s):
            values, vectors = scipy.linalg.eigh(
                K, subset_by_index=(s - q, s - 1), check_finite=False
            )
    else:
        values, vectors = xp.linalg.eigh(K)
    return xp.flip(values[-q:]), xp.flip(vectors[:, -q:], axis=1)


def right_singular_vectors(product, adjoint, shape, k, like, rng):
    """Return the k largest singular values of A, and right singular vectors (d, k).

    A of `shape` (n, d) is given by its products A B and A' B. They are computed in the
    range of (A A')^2 A B for a random B, orthonormalized after each product with A;
    exact if A B already has the range of A. The library, device and data type are those
    of the array `like`. Halko, Martinsson, Tropp, "Finding structure with randomness",
    SIAM Review 53, 2011: algorithms 4.4 and 5.1.
    """
    xp = namespace(like)
    # A few more columns than are wanted, so that the last of them are accurate too.
    width = min(k + max(k // 4, 10), *shape)
    B = rng.standard_normal((shape[1], width))
    B = xp.asarray(B, dtype=like.dtype, device=device_of(like))
    n_iterations = 2 if width < min(shape) else 0
    Q = _orthonormal(product(B), accurate=n_iterations == 0)
    for i in range(n_iterations):
        Q = _orthonormal(product(adjoint(Q)), accurate=i == n_iterations - 1)
    B = adjoint(Q)
    B_64 = xp.astype(B, xp.float64, copy=False)
    squares, U = top_eigh(B_64.T @ B_64, k)
    # The Gram matrix does not determine the vectors of smaller singular values.
    if not bool(squares[-1] > 1e-8 * squares[0]):
        vectors, values, _ = xp.linalg.svd(B, full_matrices=False)
        # Columns of zeros have no part in the vectors, not even by rounding.
        none = ~xp.any(B != 0, axis=1)[:, None] & (values > 1e-8 * values[0])
        return values[:k], xp.where(none, xp.zeros_like(vectors), vectors)[:, :k]
    values = xp.sqrt(squares)
    vectors = B @ xp.astype(U / values, B.dtype)
    if B.dtype == xp.float64:  # the last vectors contain parts of the first
        vectors = _orthonormal(vectors)
    return xp.astype(values, B.dtype), vectors


def _orthonormal(B, *, accurate=False):
    """Return a nearly orthonormal basis of the columns of B; `accurate`: to rounding.

    It comes from the Cholesky factor of B' B, in half the time of a QR factorization,
    which is used if columns are nearly dependent.
    """
    xp = namespace(B)
    B_64 = xp.astype(B, xp.float64, copy=False)
    # Not SciPy's factor: its threads and NumPy's would wait for each other.
    L, ratio = _library_cholesky(B_64.T @ B_64), 0.0
    if L is not None:
        pivots = xp.linalg.diagonal(L)
        ratio = float(xp.min(pivots) / xp.max(pivots))
    if not ratio > _SMALLEST_PIVOT:
        return xp.linalg.qr(B)[0]
    Q = xp.astype(B_64 @ _triangular_inverse(L).T, B.dtype)
    error = 100 * float(xp.finfo(xp.float64).eps) / ratio**2
    if accurate and error > float(xp.finfo(B.dtype).eps):
        return _orthonormal(Q)
    return Q


def _triangular_inverse(L):
    """Return the inverse of a lower triangular matrix, recursively by halves."""
    xp, n = namespace(L), L.shape[0]
    if n <= 64:
        return xp.linalg.inv(L)
    k = n // 2
    top, end = _triangular_inverse(L[:k, :k]), _triangular_inverse(L[k:, k:])
    corner = -(end @ (L[k:, :k] @ top))
    above = xp.zeros((k, n - k), dtype=L.dtype, device=device_of(L))
    return xp.concat(
        [xp.concat([top, above], axis=1), xp.concat([corner, end], axis=1)]
    )


def largest_eigenvalues(apply, start, *, n_steps=24, tol=1e-3):
    """Return the largest eigenvalues of k symmetric operators, by Lanczos iteration.

    ``apply(V)`` returns the product of each operator with its column of V (N, k);
    `start` (N, k) are the first vectors, in any scale. The values are lower bounds,
    tight after few products because the top of a kernel's spectrum is well separated:
    accepted once they change by less than the fraction `tol`, 0.0 for a zero operator.
    """
    xp, k = namespace(start), start.shape[1]
    diagonal, off_diagonal = [], []
    values, found = np.zeros(k), np.zeros(k, dtype=bool)
    W, V = start, xp.zeros_like(start)
    length = xp.linalg.vector_norm(W, axis=0)
    for _ in range(min(n_steps, start.shape[0])):
        previous, V = V, W / xp.where(length > 0, length, xp.ones_like(length))
        # Rounding brings back only directions, and values, that were found before: the
        # largest value needs no second orthogonalization.
        W = apply(V) - previous * length
        along = xp.sum(W * V, axis=0)
        W = W - V * along
        length = xp.linalg.vector_norm(W, axis=0)
        diagonal.append(to_numpy(along))
        norms, before = to_numpy(length), values.copy()
        for j in np.flatnonzero(~found):
            T = np.stack(diagonal)[:, j], np.reshape(off_diagonal, (-1, k))[:, j]
            values[j] = scipy.linalg.eigh_tridiagonal(*T, eigvals_only=True)[-1]
        # Small change, or the Krylov space is exhausted.
        size = np.abs(values)
        found |= (np.abs(values - before) <= tol * size) | (norms <= 1e-6 * size)
        if found.all():
            break
        off_diagonal.append(norms)
    return np.maximum(values, 0.0).tolist()


def eigh(K):
    """Return eigenvalues, increasing, and eigenvectors of K, which may be lost."""
    if is_numpy(namespace(K)):
        with _lapack_threads(K.shape[0]):
            # Divide and conquer is a fifth faster than the default.
            return scipy.linalg.eigh(
                K, driver="evd", overwrite_a=True, check_finite=False
            )
    return namespace(K).linalg.eigh(K)


def absolute(K):
    """Return the matrix with the absolute eigenvalues of a symmetric matrix."""
    values, V = eigh(namespace(K).asarray(0.5 * (K + K.T)))
    return (V * namespace(K).abs(values)) @ V.T


def plus_diagonal(K, value):
    """Return K + c I, in `K` itself; c is a `value` or an array of shape (n,)."""
    xp = namespace(K)
    if is_numpy(xp):
        K.flat[:: len(K) + 1] += value
        return K
    for rows in slices(K.shape[0], _DIAGONAL_ROWS):
        own = value[rows] if getattr(value, "ndim", 0) else value
        size = rows.stop - rows.start
        K[rows, rows] += own * xp.eye(size, dtype=K.dtype, device=device_of(K))
    return K


def cholesky(K):
    """Return the lower Cholesky factor of K, which may be lost, or None.

    None if K is not positive definite in its precision.
    """
    L = factor_in_place(K) if is_numpy(namespace(K)) else _library_cholesky(K)
    return L if _is_factor(L) else None


def _is_factor(L):
    """Whether a factor was found; some libraries do not report NaN."""
    if L is None:
        return False
    xp = namespace(L)
    return bool(xp.all(xp.isfinite(xp.linalg.diagonal(L))))


def first_cholesky(K, shifts):
    """Return the lower Cholesky factor of K + c I for the first c that has one.

    K is made of K(Z, Z), and the `shifts` c are numbers or arrays of shape (n,). Raises
    a ValueError if none has a factor.
    """
    for shift in shifts:
        L = cholesky(plus_diagonal(namespace(K).asarray(K, copy=True), shift))
        if L is not None:
            return L
    raise ValueError(
        "the kernel matrix of the centers has no Cholesky factor: the kernel must be "
        "positive semi-definite; scale X, or choose another kernel or bandwidth"
    )


def _library_cholesky(K):
    """Return the factor that the array library finds, or None where it fails."""
    xp, errors = namespace(K), nullcontext()
    if is_cupy(xp):  # reports failures only if asked to
        import cupyx

        errors = cupyx.errstate(linalg="raise")
    try:
        with errors:
            return xp.linalg.cholesky(K)
    except (ArithmeticError, RuntimeError, ValueError):  # each library raises its own
        return None


def shifted_cholesky(K, shift):
    """Return the lower Cholesky factor L of K + c I, and a function that returns K V.

    K is lost, but L needs one triangle of its array, so the other one still holds it: a
    product with a column takes 10 ms for 6400 rows in single precision, evaluating K
    again 30 ms. L is None if there is no factor, the function if K is not kept.
    """
    if not is_numpy(namespace(K)):
        return cholesky(plus_diagonal(K, shift)), None
    diagonal = K.diagonal().copy()
    L = factor_in_place(plus_diagonal(K, shift), clean=False)
    if not _is_factor(L):
        return None, None

    def product(V):
        # In tiles, whose short sums have smaller rounding errors than BLAS's symv.
        KV = diagonal[:, None] * V
        with single_threaded_blas:
            for i, j in combinations_with_replacement(slices(len(L), _TILE), 2):
                tile = np.triu(L[i, i], 1) if i == j else L[i, j]
                KV[i] += tile @ V[j]
                KV[j] += tile.T @ V[i]
        return KV

    return L, product


def solve_triangular(L, B, *, transposed=False):
    """Return L^-1 B, or L'^-1 B if `transposed`, for a lower triangular L."""
    xp, A = namespace(L), L.T if transposed else L
    options = {"lower": True, "trans": int(transposed), "check_finite": False}
    if is_numpy(xp):
        # LAPACK divides many columns between threads.
        seconds = CPU.product_seconds(0.5 * L.size * B.shape[1], B.itemsize, 1)
        many = B.shape[1] >= 2 * _PIECE_ROWS and seconds >= 2 * SHARED_SECONDS
        with single_threaded_blas.lifted(n_blas_threads() if many else 1):
            return scipy.linalg.solve_triangular(L, B, **options)
    if is_cupy(xp):
        from cupyx.scipy.linalg import solve_triangular

        return solve_triangular(L, B, **options)
    if array_api_compat.is_torch_namespace(xp):
        return xp.linalg.solve_triangular(A, B, upper=transposed)
    return xp.linalg.solve(A, B)


def cholesky_solve(L, B):
    """Return (L L')^-1 B for a lower triangular L."""
    return solve_triangular(L, solve_triangular(L, B), transposed=True)


def inverse_squares(L, index, column, values):
    """Return u' (L L')^-1 u of r sparse columns u, shape (r,).

    The k entries of all columns are in the rows `index`, increasing, and in the columns
    `column`, 0 to r - 1, on the host. L^-1 u is zero above the first entry of u: evenly
    spread columns take r n^2 / 6 multiply-adds.
    """
    xp, n = namespace(L), L.shape[0]
    # Columns in the order of their first entries.
    _, firsts, number = np.unique(column, return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    column, begins = np.argsort(order)[number], index[firsts[order]]
    like = {"dtype": L.dtype, "device": device_of(L)}
    V, total = xp.zeros((n, len(order)), **like), xp.zeros(len(order), **like)
    top = int(index[0])
    for start in range(top, n, _NARROW_PANEL):
        stop = min(start + _NARROW_PANEL, n)
        k = int(np.searchsorted(begins, stop))
        entries = slice(*np.searchsorted(index, [start, stop]))
        U = np.zeros((stop - start, k))
        U[index[entries] - start, column[entries]] = values[entries]
        B = xp.asarray(U, **like)
        B = B - large_product(L[start:stop, top:start], V[top:start, :k])
        B = solve_triangular(L[start:stop, start:stop], B)
        V[start:stop, :k] = B
        total[:k] += xp.sum(B * B, axis=0)
    return take(total, np.argsort(order))


def inverse_diagonal(L):
    """Return the diagonal of (L L')^-1 for a lower triangular L, shape (n,)."""
    xp = namespace(L)
    if not is_numpy(xp):
        return xp.sum(_triangular_inverse(L) ** 2, axis=0)
    with single_threaded_blas:
        (invert,) = scipy.linalg.get_lapack_funcs(("trtri",), (L,))
        inverse, _ = invert(L.T, lower=0)  # in LAPACK's order
    return np.einsum("ij,ij->i", inverse, inverse)


def orthonormal_beside(V, U):
    """Return an orthonormal basis of V (n, l) minus its part in the span of U (n, k).

    The columns of U are orthonormal, and preferably contiguous.
    """
    xp = namespace(V)
    for _ in range(2):  # the second time removes rounding errors
        V = V - large_product(U, large_product(U.T, V))
        V = xp.linalg.qr(V)[0]
    return V


def spanning_factor(K, tol):
    """Return rows of a positive semi-definite K that span it, and their factor L.

    They are all rows, in their order, if all squares on the diagonal of K's factor are
    at least `tol`. Otherwise rows are taken greedily, the one with the largest Schur
    complement first, until all complements are below `tol`: without copies of rows, or
    rows in the span of others up to the accuracy of K, in float64. The indices `kept`
    are on the host, and L L' = K[kept][:, kept].
    """
    xp = namespace(K)
    L = cholesky(xp.asarray(K, copy=True))
    if L is not None and bool(xp.min(xp.linalg.diagonal(L)) ** 2 >= tol):
        return np.arange(K.shape[0]), L
    with single_threaded_blas:
        factor, pivots, rank, _ = scipy.linalg.lapack.dpstrf(
            to_numpy(K), tol=tol, lower=1
        )
    L = np.tril(factor[:rank, :rank])
    return pivots[:rank] - 1, xp.asarray(L, device=device_of(K))


def factor_in_place(K, clean=True):
    """Return the lower Cholesky factor of a NumPy array, in its place, or None.

    The upper triangle is zero if `clean`, and that of K otherwise. Large matrices are
    factorized in tiles: the same numbers on any number of threads.
    """
    if K.shape[0] >= SHARED_ORDER:
        return _Tiles(K, clean, n_blas_threads()).factor()
    with single_threaded_blas:
        return _potrf(K, clean)


def _potrf(K, clean):
    """Return the lower factor by LAPACK, in the place of K; None if it fails."""
    potrf = scipy.linalg.get_lapack_funcs("potrf", (K,))
    # The array, or its transpose, is in LAPACK's order: no copy, and half the memory.
    lower = K.flags.f_contiguous
    L, failed = potrf(K if lower else K.T, lower=lower, clean=clean, overwrite_a=1)
    if failed:
        return None
    return L if lower else L.T


class _Tiles:
    """Tiles of a symmetric matrix, which threads turn into those of its factor.

    Tile (i, j) becomes ``(K_ij - sum_k L_ik L_jk') L_jj^-T``, with k < j; on the
    diagonal it becomes the factor of the bracket. Tiles are taken column by column:
    each waits only for some that were taken before. They have a queue of their own,
    because an error must also end the waits, wherever it comes.
    """

    def __init__(self, K, clean, n_threads):
        self._K, self._clean, self._n_threads = K, clean, n_threads
        width = -(-len(K) // _TILE_ROWS)
        self._rows = list(slices(len(K), min(max(width, _NARROWEST), _WIDEST)))
        n = len(self._rows)
        self._left = deque([(0, 0)])
        for j in range(n - 1):
            column = [(i, j) for i in range(j + 1, n)]
            # All others of the next column wait for the tile on its diagonal. It comes
            # early, but after its neighbor has been computed.
            column.insert(n_threads, (j + 1, j + 1))
            self._left += column
        self._n_done = [0] * n  # tiles of L in each row
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
            for i, j in taken_from(self._left):
                self._compute(i, j)
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
