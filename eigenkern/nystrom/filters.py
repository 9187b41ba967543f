"""Nystrom kernel ridge regression and NYTRO: whole paths from one factorisation.

Notation of the papers: Z holds the m centers, K_mm = K(Z, Z), K_nm = K(X, Z), weights W
of the rows with sum N, R R' = K_mm^+. A model is f(x) = phi(x)' b with the features ::

    phi(x) = R' K(Z, x),   Phi = K_nm R   (the papers' A)

so that ``|f|^2 = |b|^2``, and with B = Phi' W Phi / N, q = Phi' W y / N ::

    NKRLS  b = (B + lambda I)^-1 q
    NYTRO  b_t = b_{t-1} - gamma (B b_{t-1} - q),  b_0 = 0

With B = V diag(e) V' both are filters g of its eigenvalues, b = V g(e) V' q: one
factorisation gives every lambda and every t. On the full kernel (Z = X: KRLS, early
stopping) the same holds for B = W^1/2 K W^1/2 / N, q = W^1/2 y / N and
phi(x) = W^1/2 K(X, x), without squaring the condition of K.

Camoriano, Angles, Rudi, Rosasco, "NYTRO: when subsampling meets early stopping",
AISTATS 2016: equations 15 to 21. In its equation 20 a factor R is missing.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backend.array import device_of, is_numpy, namespace
from ..backend.linalg import cholesky, eigh, solve_triangular
from .whitening import _EPS, BLOCK_BYTES


def ridge_filter(values, alphas, floor):
    """Return the filters of kernel ridge regression, 1 / (e + lambda).

    Parameters
    ----------
    values : array of shape (p,)
        Eigenvalues e.
    alphas : array of shape (k,)
        lambda. 0: the pseudo-inverse.
    floor : float
        What e + lambda must exceed, or else the filter is 0: eigenvalues below it are
        rounding.

    Returns
    -------
    array of shape (p, k)
    """
    xp = namespace(values)
    total = values[:, None] + alphas
    inverse = 1 / xp.where(total > floor, total, xp.ones_like(total))
    return xp.where(total > floor, inverse, xp.zeros_like(total))


def ridge_kept(spectrum, alphas, *, scaled):
    """Return what ridge regression leaves of the targets, lambda / (e + lambda).

    If `scaled` without the factor lambda, so that there is a limit for lambda = 0.
    """
    xp = namespace(spectrum.values)
    total = spectrum.values[:, None] + alphas
    floor = max(spectrum.floor, float(np.finfo(np.float64).tiny))
    total = xp.where(total > floor, total, xp.full_like(total, floor))
    return 1 / total if scaled else alphas / total


def descent_kept(spectrum, steps, step_size):
    """Return what gradient descent leaves of the targets, (1 - gamma e)^t."""
    return (1 - step_size * spectrum.values[:, None]) ** steps


def descent_filter(values, steps, step_size):
    """Return the filters of gradient descent, (1 - (1 - gamma e)^t) / e.

    Parameters
    ----------
    values : array of shape (p,)
        Eigenvalues e; gamma e < 2.
    steps : array of shape (k,)
        t, floating.
    step_size : float
        gamma.

    Returns
    -------
    array of shape (p, k)
    """
    xp = namespace(values)
    e = xp.where(values > 0, values, xp.zeros_like(values))[:, None]
    small = step_size * e < 0.5
    # 1 - (1 - x)^t without cancellation for a small x.
    x = xp.where(small, step_size * e, xp.zeros_like(e))
    gain = -xp.expm1(steps * xp.log1p(-x))
    gain = xp.where(small, gain, 1 - (1 - step_size * e) ** steps)
    safe = xp.where(e > 0, e, xp.ones_like(e))
    return xp.where(step_size * e * steps > _EPS, gain / safe, step_size * steps)


@dataclass(frozen=True)
class Spectrum:
    """B = V diag(e) V' and the targets in its eigenvectors.

    Attributes
    ----------
    values : array of shape (p,)
        e.
    vectors : array of shape (p, p)
        V.
    targets : array of shape (p, l + 1)
        V' Phi' W [Y - mean, 1] / N.
    squares : array of shape (l,)
        Sum of the squares of the weighted, centered targets.
    weight : float
        N.
    floor : float
        Eigenvalues below it are rounding.
    lowest : float
        The smallest eigenvalue before negative ones were dropped.
    complete : bool
        Whether the eigenvectors span the targets of all rows, as for the full kernel.
    """

    values: Any
    vectors: Any
    targets: Any
    squares: Any
    weight: float
    floor: float
    lowest: float = 0.0
    complete: bool = False

    @classmethod
    def of_moments(cls, moments, rounding):
        """Return the spectrum of whitened sums; their `gram` is overwritten."""
        xp = namespace(moments.gram)
        N, mean = moments.weight, moments.mean
        values, V = eigh(moments.gram)
        values = xp.where(values > 0, values, xp.zeros_like(values))
        cross = xp.concat([moments.centered_cross(mean), moments.cross[:, -1:]], axis=1)
        return cls(
            values / N,
            V,
            V.T @ cross / N,
            moments.centered_squares(mean),
            N,
            rounding * float(xp.sum(values)) / N,
        )

    @classmethod
    def of_kernel(cls, K, Y, weights, rounding):
        """Return the spectrum of the full kernel.

        Parameters
        ----------
        K : array of shape (n, n)
            W^1/2 K W^1/2 in float64; overwritten.
        Y : array of shape (n, l)
            Centered targets.
        weights : array of shape (n,)
        rounding : float
            Error of K over its trace.
        """
        xp = namespace(K)
        N = float(xp.sum(weights))
        T = xp.concat([Y, xp.ones_like(Y[:, :1])], axis=1)
        T = xp.sqrt(weights)[:, None] * T
        trace = float(xp.linalg.trace(K))
        values, V = eigh(K)
        lowest, top = float(values[0]), float(values[-1])
        floor = rounding * trace
        negative = values < -floor
        # Scaled by (N e)^1/2 as if the features had been R' K(X, x) with R = K^-1/2.
        tiny = xp.full_like(values, _EPS**2 * top)
        values = xp.where(values > tiny, values, tiny)
        root = xp.sqrt(values)
        squares = xp.sum(T[:, :-1] ** 2, axis=0)
        targets = root[:, None] * (V.T @ T) / N
        targets = xp.where(negative[:, None], xp.zeros_like(targets), targets)
        return cls(
            values / N, V / root, targets, squares, N, floor / N, lowest / N, True
        )

    @property
    def indefinite(self):
        """Whether negative eigenvalues were dropped that are not rounding."""
        return self.lowest < -1e-6 * float(self.values[-1])

    @property
    def inside(self):
        """Whether an eigenvector is one of the targets' space, and not rounding."""
        xp = namespace(self.values)
        if self.complete:
            return xp.ones_like(self.values, dtype=xp.bool)
        return self.values > self.floor

    @property
    def components(self):
        """Components of W^1/2 [Y - mean, 1] along the columns of W^1/2 Phi V."""
        xp = namespace(self.values)
        e = xp.where(self.inside, self.values, xp.ones_like(self.values))
        scale = xp.where(self.inside, (self.weight / e) ** 0.5, xp.zeros_like(e))
        return scale[:, None] * self.targets

    def coef(self, g):
        """Return b of a filter g of shape (p,): shape (p, l)."""
        return self.vectors @ (g[:, None] * self.targets[:, :-1])


def path_coefs(spectrum, filters):
    """Yield the coefficients b of a path in pieces of shape (p, l, k).

    Parameters
    ----------
    spectrum : Spectrum
    filters : array of shape (p, K)
    """
    xp = namespace(filters)
    q = spectrum.targets[:, :-1]
    (p, n_candidates), n_outputs = filters.shape, q.shape[1]
    n_pieces = max(int(BLOCK_BYTES // (8 * p * n_outputs)), 1)
    for i in range(0, n_candidates, n_pieces):
        piece = slice(i, min(i + n_pieces, n_candidates))
        coefs = q[:, :, None] * filters[:, None, piece]
        b = spectrum.vectors @ xp.reshape(coefs, (p, -1))
        yield xp.reshape(b, coefs.shape)


def solve_ridge(B, q, alpha):
    """Return (B + alpha I)^-1 q by a Cholesky factor, or None if B is not definite.

    `B`, of shape (p, p), is overwritten.
    """
    L = cholesky(_add_to_diagonal(B, alpha))
    if L is None:
        return None
    return solve_triangular(L, solve_triangular(L, q), transposed=True)


def _add_to_diagonal(B, value):
    xp = namespace(B)
    if is_numpy(xp):
        B.flat[:: len(B) + 1] += value
        return B
    return B + value * xp.eye(B.shape[0], dtype=B.dtype, device=device_of(B))
