"""Linear algebra that the array standard lacks."""

import numpy as np
import scipy.linalg

from ._array import is_numpy, namespace


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


def largest_eigenvalue(apply, start, *, n_steps=24, tol=1e-3):
    """Return the largest eigenvalue of a symmetric operator, by Lanczos iteration.

    The value is a lower bound that is tight after few products, because the top of a
    kernel's spectrum is well separated.

    Parameters
    ----------
    apply : callable
        ``apply(v)`` returns the product with a vector of shape (N,).
    start : array of shape (N,)
        First Lanczos vector; any scale.
    n_steps : int, default=24
        The most products.
    tol : float, default=1e-3
        Stop once the eigenvalue changes by less than this fraction.

    Returns
    -------
    float
        0.0 for the zero operator.
    """
    xp = namespace(start)
    basis, diagonal, off_diagonal = [], [], []
    v, value = start / xp.linalg.vector_norm(start), 0.0
    for _ in range(min(n_steps, start.shape[0])):
        basis.append(v)
        w = apply(v)
        diagonal.append(float(xp.sum(w * v)))
        Q = xp.stack(basis, axis=1)
        for _ in range(2):  # twice is enough, in any precision
            w = w - Q @ (w @ Q)
        previous = value
        value = scipy.linalg.eigh_tridiagonal(
            np.asarray(diagonal), np.asarray(off_diagonal), eigvals_only=True
        )[-1]
        norm = float(xp.linalg.vector_norm(w))
        # Small change, or the Krylov space is exhausted.
        if norm <= 1e-6 * abs(value) or abs(value - previous) <= tol * abs(value):
            break
        off_diagonal.append(norm)
        v = w / norm
    return max(float(value), 0.0)
