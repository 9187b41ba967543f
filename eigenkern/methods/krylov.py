"""The part of a spectrum that the models of a path need, without all eigenvectors.

The model g(B) q needs few directions, those of a rational Krylov space: q, (B + s)^-1
q, (B + s)^-2 q, ..., and the same for other s. In its orthonormal basis U the
eigenvalues of U' B U (Ritz values) take the place of those of B, so that `paths` and
`left_out` work with either. A Cholesky factor for each s, n^3 / 6 multiply-adds, and a
solution with it for each direction, n^2, take a tenth of the time of an
eigendecomposition.

Guettel, "Rational Krylov approximation of matrix functions: numerical methods and
optimal pole selection", GAMM-Mitteilungen 36, 2013.
"""

import math
from functools import partial

import numpy as np

from ..arrays.array import device_of, namespace
from ..arrays.linalg import (
    cholesky,
    cholesky_solve,
    eigh,
    large_product,
    largest_eigenvalues,
    orthonormal_beside,
    plus_diagonal,
)
from .paths import Spectrum

# There is one s for each factor of 1000 between the penalties, with 16 solutions each.
# The approximation is optimal, up to a factor of 2, among the rational functions with
# these poles, whatever the spectrum is. Measured for n = 1500 and eigenvalues k^-1.2 or
# k^-2, the relative error in the norm of B^1/2 is at most 2e-5 over all penalties and
# iterations (1e-9 with 24 solutions; 1e-3 with one s for each factor of 10^4).
# For exp(-e / s), as in early stopping, the error is 0.41^j after j solutions with this
# s alone: 6e-7.
_RATIO, _N_SOLUTIONS = 1e3, 16
# With at least this many coefficients, and this many per output, it is faster than all
# eigenvectors. Seconds of a path with it and with all eigenvectors, two cores: 0.020
# and 0.022 (400 rows, one output); 0.029 and 0.040 (600 rows); 0.084 and 0.090 (1000
# rows, five outputs).
_LEAST_COEFS, _LEAST_PER_OUTPUT = 600, 200


def krylov_spectrum(A, T, squares, weight, floor, low, high):
    """Return the part of the spectrum of B = A / N that filters need, or None.

    None if all eigenvectors are as cheap, or if A has negative eigenvalues. A, positive
    semi-definite up to rounding, may be overwritten. T, (p, l + 1), is N q, also that
    of ones; `squares` are those of `Spectrum`. Eigenvalues of A below `floor` are
    rounding errors. Models should be accurate for penalties lambda, or 1 / (gamma t),
    from `low` to `high`.
    """
    if not krylov_pays(A.shape[0], T.shape[1] - 1):
        return None
    top = top_eigenvalue(partial(large_product, A), A)
    if not floor < top < math.inf:
        return None
    low = min(max(low * weight, floor), top)
    # With a pole at the floor rounding could make the factor fail.
    high = max(min(high * weight, top), min(_RATIO * floor, top), low)
    found = _ritz(A, T[:, :-1], low, high)
    if found is None or float(found[0][0]) < -floor:
        return None
    values, vectors = found
    values = namespace(A).where(values > 0, values, 0 * values)
    return Spectrum(
        values / weight,
        vectors,
        vectors.T @ T / weight,
        squares,
        weight,
        floor / weight,
        largest=top / weight,
    )


def krylov_pays(n, n_outputs):
    """Whether `krylov_spectrum` of n coefficients is faster than all eigenvectors."""
    return n >= max(_LEAST_COEFS, _LEAST_PER_OUTPUT * n_outputs)


def top_eigenvalue(product, like):
    """Return the largest eigenvalue of a matrix from its product with V (n, 1).

    `like` is an array with the n rows, data type and device of V.
    """
    start = np.random.default_rng(0).standard_normal((like.shape[0], 1))
    start = namespace(like).asarray(start, dtype=like.dtype, device=device_of(like))
    return largest_eigenvalues(product, start, n_steps=100, tol=1e-11)[0]


def _ritz(A, q, low, high):
    """Return Ritz values of A, increasing, and their vectors, or None.

    None if a Cholesky factor fails, because of a negative eigenvalue, or if there would
    be more vectors than the matrix has rows. The last factor overwrites A.
    """
    xp, (n, n_outputs) = namespace(A), q.shape
    n_poles = max(math.ceil(math.log(high / low, _RATIO)), 1)
    ratio = (high / low) ** (1 / n_poles)
    size = n_outputs * (1 + n_poles * _N_SOLUTIONS)
    if size > n:
        return None
    # Columns are contiguous.
    like = {"dtype": A.dtype, "device": device_of(A)}
    U, A_U = xp.zeros((size, n), **like).T, xp.zeros((size, n), **like).T
    V = xp.linalg.qr(q)[0]
    U[:, :n_outputs] = V
    first, k = 0, n_outputs
    for pole in range(n_poles):
        shift = high * ratio ** -(pole + 0.5)
        last = pole == n_poles - 1
        if last:
            shifted = A
        elif pole == 0:
            shifted = xp.asarray(A, copy=True)
        else:
            shifted[...] = A
        L = cholesky(plus_diagonal(shifted, shift))
        if L is None:
            return None
        for _ in range(_N_SOLUTIONS):
            V = cholesky_solve(L, V)
            V = orthonormal_beside(V, U[:, :k])
            U[:, k : k + n_outputs] = V
            k += n_outputs
        new = U[:, first:k]
        if last:  # A was overwritten; it is L L' - shift I
            A_new = large_product(L, large_product(L.T, new)) - shift * new
        else:
            A_new = large_product(A, new)
        A_U[:, first:k] = A_new
        first = k
        H = large_product(U[:, :k].T, A_U[:, :k])
        values, vectors = eigh((H + H.T) / 2)
        # No smaller s is needed if all Ritz values are well above the smallest penalty
        # that the s so far cover. The error of paths for eigenvalues k^-2 + 1e-5 is
        # then 3e-11; with 1 in place of 3 it is 2e-4. For k^-1.2 + 1e-4, k^-1.2 + 1e-2
        # and k^-1/2 it is at most 2e-7 with either (n = 1500).
        if float(values[0]) > 3 * shift / ratio**0.5:
            break
    return values, large_product(U[:, :k], vectors)
