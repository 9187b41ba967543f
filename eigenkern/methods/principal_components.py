"""Principal components in the feature space of a kernel.

They are functions f(x) = <phi(x) - mean, g> of n rows, with orthonormal g in the span
of the p centers Z: F = K(X, Z) A + b, and F'F = diag(e), with the largest e that there
are. If all rows are centers, e and F e^-1/2 are the leading eigenpairs of H K H, with H
= I - 1 1' / n.
"""

from typing import Any, NamedTuple

from ..arrays.array import device_of, namespace, scatter, take
from ..arrays.linalg import (
    large_product,
    orthonormal_beside,
    solve_triangular,
    top_eigh,
)
from ..operators.matrix import check_finite
from ..operators.tiled import TiledKernel
from .paths import EPS, Whitening

# Most products with the whole kernel matrix.
_MOST_PRODUCTS = 10


class Components(NamedTuple):
    """F = K(X, Z) A + b, in float64; where e is 0, so is F."""

    values: Any  # (k,) e, decreasing
    coef: Any  # (p, k) A
    intercept: Any  # (k,) b
    error: float = 0.0  # the residual, relative to e, where it did not fall enough


def components_of_centers(kernel, Z, X, k):
    """Return the k leading components of rows X in the span of the centers Z.

    With a factor L L' = H K(Z, Z) H they are eigenvectors of the centered C'C, with C =
    K(X, Z) H L'^-1 (Rayleigh-Ritz). Costs n p (d + p / 2) multiply-adds, or n p (d + 3
    p / 2) if the centers are nearly dependent, and 4 p^3 / 3; memory for 8 p^2 numbers.
    """
    xp, n, p = namespace(Z), X.shape[0], Z.shape[0]
    options = {"dtype": xp.float64, "device": device_of(Z)}
    operator = TiledKernel(kernel, xp.astype(Z, xp.float64))
    K = operator.block()
    check_finite(K)
    rounding = 10 * EPS * float(xp.linalg.trace(K))
    K = _centered(_centered(K).T)
    if float(xp.max(xp.linalg.diagonal(K))) <= rounding:  # all rows are equal
        A = xp.zeros((p, k), **options)
        return Components(A[0, :], A, A[0, :])
    # Without the last row, which is minus the sum of the others, K has a factor.
    whitening = Whitening.of(K[:-1, :-1], Z.dtype)
    kept, L, R = whitening.kept, whitening.L, whitening.R

    def expanded(B):
        """Return H[:, kept] B."""
        return _centered(scatter(B, kept, p))

    def whitened(B):
        """Return L^-1 H[kept, :] B."""
        return solve_triangular(L, take(_centered(B), kept))

    ones = xp.ones((n, 1), **options)
    G, sums = operator.rows(X).gram(ones, transform=R if R is None else expanded(R))
    check_finite(xp.linalg.diagonal(G))
    G -= sums * (sums / n).T
    if R is None:
        G, sums = whitened(whitened(G).T), whitened(sums)
    values, V = top_eigh(G, min(k, G.shape[0]))
    real = values > whitening.rounding * float(xp.linalg.trace(G))
    A = expanded(solve_triangular(L, V, transposed=True))
    b = -(sums.T @ V)[0, :] / n
    return _published(values, A, b, real, large_product(K, A), k)


def components_of_rows(kernel, X, V, k):
    """Return the k leading components of rows X, all of them centers.

    U are Ritz vectors of H K H in its block Krylov space, which begins with V (n, m), m
    >= k. Each product costs n^2 (d + m) multiply-adds. F = H K U e^-1/2 is the result
    of one product more than U, and so closer to the eigenvectors.
    """
    xp, K, n = namespace(X), TiledKernel(kernel, X), X.shape[0]
    eps, trace = float(xp.finfo(X.dtype).eps), float(xp.sum(kernel.diagonal(X)))
    V = xp.astype(V, xp.float64)
    # The constant vector, which H maps to 0, keeps all others centered.
    Q = xp.full_like(V[:, :1], n**-0.5)
    KQ, means = xp.zeros_like(Q), xp.zeros_like(Q[:1, :])
    for _ in range(_MOST_PRODUCTS):
        V = orthonormal_beside(V, Q)
        Q = xp.concat([Q, V], axis=1)
        V = xp.astype(K @ xp.astype(V, X.dtype), xp.float64)
        check_finite(V)
        means = xp.concat([means, xp.mean(V, axis=0, keepdims=True)], axis=1)
        V = _centered(V)
        KQ = xp.concat([KQ, V], axis=1)
        T = large_product(Q.T, KQ)
        values, S = top_eigh(0.5 * (T + T.T), k)
        U, F = large_product(Q, S), large_product(KQ, S)
        residual = float(xp.max(xp.linalg.vector_norm(F - values * U, axis=0)))
        floor = eps * max(100 * float(values[0]), trace)  # rounding
        last = max(float(values[-1]), floor)
        # Angles are then up to 6e-5 (20 components of three data sets,
        # benchmarks/kernel_pca.py).
        converged = residual <= max(3e-3 * last, floor)
        if converged:
            break
    real = values > floor
    root = xp.sqrt(xp.where(real, values, xp.ones_like(values)))
    found = _published(values, U / root, -(means @ S)[0, :] / root, real, F, k)
    return found if converged else found._replace(error=residual / last)


def _published(values, A, b, real, F, k):
    """Return k `Components`, zero where they are not real, from their values F.

    As in scikit-learn, the value farthest from zero is positive.
    """
    xp = namespace(F)
    ones, none = xp.ones_like(values), xp.zeros_like(values)
    signs = xp.where(xp.max(F, axis=0) < -xp.min(F, axis=0), -ones, ones)
    signs = xp.where(real, signs, none)
    missing = xp.zeros((A.shape[0], k - A.shape[1]), dtype=A.dtype, device=device_of(A))
    return Components(
        xp.concat([xp.where(real, values, none), missing[0, :]]),
        xp.concat([signs * A, missing], axis=1),
        xp.concat([signs * b, missing[0, :]]),
    )


def _centered(B):
    """Return H B, H = I - 1 1' / p."""
    return B - namespace(B).mean(B, axis=0)
