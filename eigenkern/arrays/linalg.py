"""Linear algebra that the array standard lacks.

Cholesky factors in place: by LAPACK, or in tiles that threads share.

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
)

# Rows of a panel of `inverse_squares`: fewer skip more zeros but make products slow.
# With 6000 rows and 2000 columns, panels of 64, 128, 256, 512 and 1024 rows take 0.86,
# 0.73, 1.15, 1.02 and 0.86 s.
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


def large_product(A, B):
    """Return A @ B, on all threads that BLAS may use if the arrays are large.

    Each thread computes some of its rows, or columns if there are more of them.
    """
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
    """Return A @ A.T; if A is large, half of it is computed, on all threads."""
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
    """Return the `q` largest eigenpairs of a symmetric matrix, largest first.

    Parameters
    ----------
    K : array of shape (s, s)
        Symmetric.
    q : int
        Number of eigenpairs, 1 <= q <= s.

    Returns
    -------
    eigenvalues : array of shape (q,)
    eigenvectors : array of shape (s, q)
        Orthonormal columns.
    """
    xp = namespace(K)
    s = K.shape[0]
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
    """Return the `k` largest singular values, and right singular vectors, of a matrix.

    They are computed in the range of (A A')^2 A B for a random B, orthonormalized after
    each product with A; exact if A B already has the range of A.

    Parameters
    ----------
    product, adjoint : callable
        ``product(B)`` returns A @ B, ``adjoint(B)`` A.T @ B.
    shape : tuple (n, d)
        Of A.
    k : int
        At most min(n, d).
    like : array
        Whose library, device and data type to use.
    rng : numpy.random.RandomState

    Returns
    -------
    values : array of shape (k,)
        Decreasing.
    vectors : array of shape (d, k)

    References
    ----------
    Halko, Martinsson, Tropp, "Finding structure with randomness", SIAM Review 53, 2011:
    algorithms 4.4 and 5.1.
    """
    xp = namespace(like)
    # A few more columns than are wanted, so that the last of them are accurate too.
    width = min(k + max(k // 4, 10), *shape)
    start = rng.standard_normal((shape[1], width))
    B = xp.asarray(start, dtype=like.dtype, device=device_of(like))
    n_iterations = 2 if width < min(shape) else 0
    Q = _orthonormal(product(B), accurate=n_iterations == 0)
    for i in range(n_iterations):
        Q = _orthonormal(product(adjoint(Q)), accurate=i == n_iterations - 1)
    B = adjoint(Q)
    B_64 = xp.astype(B, xp.float64, copy=False)
    squares, U = xp.linalg.eigh(B_64.T @ B_64)
    squares, U = xp.flip(squares)[:k], xp.flip(U, axis=1)[:, :k]
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
    """Return a nearly orthonormal basis of the span of the columns of B.

    It comes from the Cholesky factor of B' B, in half the time of a QR factorization,
    which is used if columns are nearly dependent. `accurate`: orthonormal to rounding.
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
    """Return the largest eigenvalues of symmetric operators, by Lanczos iteration.

    The values are lower bounds that are tight after few products, because the top of a
    kernel's spectrum is well separated.

    Parameters
    ----------
    apply : callable
        ``apply(V)`` returns the product of each operator with its column of V. A matrix
        that they share is then read once for all.
    start : array of shape (N, k)
        First Lanczos vectors of k operators; any scale.
    n_steps : int, default=24
        Most products.
    tol : float, default=1e-3
        An eigenvalue is accepted once it changes by less than this fraction.

    Returns
    -------
    list of float
        0.0 for the zero operator.
    """
    xp, k = namespace(start), start.shape[1]
    diagonal, off_diagonal = [], []
    V, values, found = _normalized(start), np.zeros(k), np.zeros(k, dtype=bool)
    previous_part = xp.zeros_like(V)
    for _ in range(min(n_steps, start.shape[0])):
        # Rounding brings back only directions, and values, that were found before: the
        # largest value needs no second orthogonalization.
        W = apply(V) - previous_part
        along = xp.sum(W * V, axis=0)
        W = W - V * along
        size_left = xp.linalg.vector_norm(W, axis=0)
        diagonal.append(to_numpy(along))
        norms = to_numpy(size_left)
        for j in np.flatnonzero(~found):
            previous = values[j]
            values[j] = scipy.linalg.eigh_tridiagonal(
                np.asarray([row[j] for row in diagonal]),
                np.asarray([row[j] for row in off_diagonal]),
                eigvals_only=True,
            )[-1]
            size = abs(values[j])
            # Small change, or the Krylov space is exhausted.
            found[j] = (
                abs(values[j] - previous) <= tol * size or norms[j] <= 1e-6 * size
            )
        if found.all():
            break
        off_diagonal.append(norms)
        previous_part = V * size_left
        V = _normalized(W)
    return np.maximum(values, 0.0).tolist()


def _normalized(V):
    """Return columns of norm 1; zero stays zero."""
    xp = namespace(V)
    norms = xp.linalg.vector_norm(V, axis=0)
    return V / xp.where(norms > 0, norms, xp.ones_like(norms))


def eigh(K):
    """Return eigenvalues, increasing, and eigenvectors of a symmetric matrix.

    `K` may be overwritten.
    """
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
    """Return K + value I, in `K` itself.

    `value` may be an array of shape (n,).
    """
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
    """Return the lower Cholesky factor of a symmetric matrix, or None.

    None if it is not positive definite in its precision. `K` may be overwritten.
    """
    xp = namespace(K)
    if is_numpy(xp):
        L = factor_in_place(K)
    else:
        L = _library_cholesky(K)
    # Some libraries do not report NaN.
    if L is None or not bool(xp.all(xp.isfinite(xp.linalg.diagonal(L)))):
        return None
    return L


def first_cholesky(K, shifts):
    """Return the lower Cholesky factor of K + c I for the first c that has one.

    None if none has. `shifts` are the c, numbers or arrays of shape (n,). `K` is not
    changed.
    """
    for shift in shifts:
        L = cholesky(plus_diagonal(namespace(K).asarray(K, copy=True), shift))
        if L is not None:
            return L
    return None


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
    """Return the lower Cholesky factor of K + c I, and a function that multiplies by K.

    `K` may be overwritten. The factor needs one triangle of the array, so the other one
    still holds K. Its product with a column takes 10 ms for 6400 rows in single
    precision; evaluating K again takes 30 ms.

    Parameters
    ----------
    K : array of shape (n, n)
        Symmetric.
    shift : float
        c.

    Returns
    -------
    L : array of shape (n, n) or None
        Only its lower triangle is the factor. None if there is none.
    product : callable or None
        ``product(V)`` returns K V. None if K is not kept.
    """
    if not is_numpy(namespace(K)):
        return cholesky(plus_diagonal(K, shift)), None
    diagonal = K.diagonal().copy()
    L = factor_in_place(plus_diagonal(K, shift), clean=False)
    if L is None or not np.all(np.isfinite(L.diagonal())):
        return None, None
    return L, partial(_other_triangle_product, L, diagonal)


def _other_triangle_product(L, diagonal, V):
    """Return K V for the strictly upper triangle of K in L, and its diagonal.

    In tiles, whose short sums have smaller rounding errors than BLAS's symv.
    """
    n, product = L.shape[0], diagonal[:, None] * V
    with _lapack_threads(n):
        for i, j in combinations_with_replacement(slices(n, _TILE), 2):
            tile = np.triu(L[i, i], 1) if i == j else L[i, j]
            product[i] += tile @ V[j]
            product[j] += tile.T @ V[i]
    return product


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
    """Return u' (L L')^-1 u of sparse columns u.

    They are the squared norms of L^-1 u, which is zero above the first entry of u: r
    evenly spread columns take r n^2 / 6 multiply-adds.

    Parameters
    ----------
    L : array of shape (n, n)
        Lower triangular.
    index : ndarray of shape (k,)
        Rows of the entries of all columns, increasing, on the host.
    column : ndarray of shape (k,)
        0 to r - 1, the column of each entry.
    values : ndarray of shape (k,)

    Returns
    -------
    array of shape (r,)
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
    with _lapack_threads(L.shape[0]):
        (invert,) = scipy.linalg.get_lapack_funcs(("trtri",), (L,))
        inverse, _ = invert(L.T, lower=0)  # in LAPACK's order
    return np.einsum("ij,ij->i", inverse, inverse)


def orthonormal_beside(V, U):
    """Return an orthonormal basis of V minus its part in the span of U.

    Parameters
    ----------
    V : array of shape (n, l)
    U : array of shape (n, k)
        Orthonormal columns, preferably each contiguous.
    """
    xp = namespace(V)
    for _ in range(2):  # the second time removes rounding errors
        V = V - large_product(U, large_product(U.T, V))
        V = xp.linalg.qr(V)[0]
    return V


def pivoted_cholesky(K, tol):
    """Return rows of a positive semi-definite matrix that span it, and their factor.

    Rows are taken greedily, the one with the largest Schur complement first, until all
    complements are below `tol`. This leaves out copies of rows, and rows in the span of
    others up to the accuracy of K.

    Parameters
    ----------
    K : array of shape (m, m)
        In float64.
    tol : float

    Returns
    -------
    kept : ndarray of shape (p,)
        Indices of the rows, on the host.
    L : array of shape (p, p)
        Lower triangular, L L' = K[kept][:, kept]; the squares of its diagonal are at
        least `tol`.
    """
    xp = namespace(K)
    with single_threaded_blas:
        factor, pivots, rank, _ = scipy.linalg.lapack.dpstrf(
            to_numpy(K), tol=tol, lower=1
        )
    L = np.tril(factor[:rank, :rank])
    return pivots[:rank] - 1, xp.asarray(L, device=device_of(K))


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
