"""Linear algebra that the array standard lacks."""

from contextlib import nullcontext

import array_api_compat
import numpy as np
import scipy.linalg

from .array import device_of, is_numpy, namespace, to_numpy

# OpenBLAS 0.3.30 on two threads crashes in dpotrf from some 15500 rows on.
_LARGEST_POTRF = 8192
_PANEL = 2048


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
        values, vectors = scipy.linalg.eigh(
            K, subset_by_index=(s - q, s - 1), check_finite=False
        )
    else:
        values, vectors = xp.linalg.eigh(K)
    return xp.flip(values[-q:]), xp.flip(vectors[:, -q:], axis=1)


def right_singular_vectors(product, adjoint, shape, k, like, rng):
    """Return the `k` largest singular values, and right singular vectors, of a matrix.

    From the range of (A A')^2 A B with a random B, orthonormalised after every product;
    exactly where A B alone has the range of A.

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
    Q = xp.linalg.qr(product(B))[0]
    for _ in range(2 if width < min(shape) else 0):
        Q = xp.linalg.qr(product(xp.linalg.qr(adjoint(Q))[0]))[0]
    vectors, values, _ = xp.linalg.svd(adjoint(Q), full_matrices=False)
    return values[:k], vectors[:, :k]


def largest_eigenvalues(apply, start, *, n_steps=24, tol=1e-3):
    """Return the largest eigenvalues of symmetric operators, by Lanczos iteration.

    The values are lower bounds that are tight after few products, because the top of a
    kernel's spectrum is well separated.

    Parameters
    ----------
    apply : callable
        ``apply(V)`` returns the product of each operator with its column of V. One
        matrix that all of them share is read once for all.
    start : array of shape (N, k)
        First Lanczos vectors of k operators; any scale.
    n_steps : int, default=24
        The most products.
    tol : float, default=1e-3
        An eigenvalue is taken once it changes by less than this fraction.

    Returns
    -------
    list of float
        0.0 for the zero operator.
    """
    xp, k = namespace(start), start.shape[1]
    diagonal, off_diagonal = [], []
    V, values, found = _normalised(start), np.zeros(k), np.zeros(k, dtype=bool)
    previous_part = xp.zeros_like(V)
    for _ in range(min(n_steps, start.shape[0])):
        # Rounding brings back directions that were found, hence only values that were:
        # the largest needs no second orthogonalisation.
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
        V = _normalised(W)
    return np.maximum(values, 0.0).tolist()


def _normalised(V):
    """Return columns of norm 1; zero stays zero."""
    xp = namespace(V)
    norms = xp.linalg.vector_norm(V, axis=0)
    return V / xp.where(norms > 0, norms, xp.ones_like(norms))


def eigh(K):
    """Return eigenvalues, increasing, and eigenvectors of a symmetric matrix.

    `K` may be overwritten.
    """
    if is_numpy(namespace(K)):
        # Divide and conquer is a fifth faster than the default.
        return scipy.linalg.eigh(K, driver="evd", overwrite_a=True, check_finite=False)
    return namespace(K).linalg.eigh(K)


def cholesky(K):
    """Return the lower Cholesky factor of a symmetric matrix, or None.

    None if it is not positive definite in its precision. `K` may be overwritten.
    """
    xp = namespace(K)
    if is_numpy(xp) and K.shape[0] > _LARGEST_POTRF:
        L, failed = _blocked_cholesky(K)
    elif is_numpy(xp):
        # The transpose is in LAPACK's order: no copy, and half the memory.
        L, failed = scipy.linalg.lapack.dpotrf(K.T, lower=0, clean=1, overwrite_a=1)
        L = L.T
    else:
        try:
            with _linalg_errors(xp):
                L, failed = xp.linalg.cholesky(K), 0
        except (ArithmeticError, RuntimeError, ValueError):  # each library has its own
            return None
    # Some say nothing of NaN.
    finite = bool(xp.all(xp.isfinite(xp.linalg.diagonal(L))))
    return L if finite and not failed else None


def _linalg_errors(xp):
    """Return a context in which a factorisation that fails raises: CuPy's do not."""
    if not array_api_compat.is_cupy_namespace(xp):
        return nullcontext()
    import cupyx

    return cupyx.errstate(linalg="raise")


def _blocked_cholesky(K):
    """Return the lower factor of K in its place, and whether it failed."""
    for start in range(0, K.shape[0], _PANEL):
        rows = slice(start, min(start + _PANEL, K.shape[0]))
        K[start:, rows] -= K[start:, :start] @ K[rows, :start].T
        L, failed = scipy.linalg.lapack.dpotrf(K[rows, rows].T, lower=0, clean=1)
        if failed:
            return K, failed
        K[rows, rows] = L.T
        below = K[rows.stop :, rows]
        below[...] = scipy.linalg.solve_triangular(
            L, below.T, trans=1, check_finite=False
        ).T
        K[:start, rows] = 0.0
    return K, 0


def solve_triangular(L, B, *, transposed=False):
    """Return L^-1 B, or L'^-1 B if `transposed`, for a lower triangular L."""
    xp = namespace(L)
    if is_numpy(xp):
        return scipy.linalg.solve_triangular(
            L, B, lower=True, trans=int(transposed), check_finite=False
        )
    if array_api_compat.is_torch_namespace(xp):
        A = L.T if transposed else L
        return xp.linalg.solve_triangular(A, B, upper=transposed)
    if array_api_compat.is_cupy_namespace(xp):
        from cupyx.scipy.linalg import solve_triangular

        return solve_triangular(
            L, B, lower=True, trans=int(transposed), check_finite=False
        )
    return xp.linalg.solve(L.T if transposed else L, B)


def orthonormal(V, U):
    """Return an orthonormal basis of V less its part in the span of U.

    Parameters
    ----------
    V : array of shape (n, l)
    U : array of shape (n, k)
        Orthonormal columns, best each contiguous.
    """
    xp = namespace(V)
    for _ in range(2):  # after the first time rounding is left
        if is_numpy(xp):
            # SciPy's BLAS, as in `solve_triangular`: the threads of NumPy's would spin
            # beside it and double the time of both.
            along = scipy.linalg.blas.dgemm(1.0, U, V, trans_a=True)
            V = V - scipy.linalg.blas.dgemm(1.0, U, along)
            V = scipy.linalg.qr(V, mode="economic", check_finite=False)[0]
        else:
            V = xp.linalg.qr(V - U @ (U.T @ V))[0]
    return V


def pivoted_cholesky(K, tol):
    """Return rows of a positive semi-definite matrix that span it, and their factor.

    Rows are taken greedily, the one with the largest Schur complement first, until
    every complement is below `tol`: rows that are copies, or in the span of others to
    the accuracy of K, are left out.

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
        Lower triangular, L L' = K[kept][:, kept]; the squares of its diagonal are not
        below `tol`.
    """
    xp = namespace(K)
    factor, pivots, rank, _ = scipy.linalg.lapack.dpstrf(to_numpy(K), tol=tol, lower=1)
    L = np.tril(factor[:rank, :rank])
    return pivots[:rank] - 1, xp.asarray(L, device=device_of(K))
