"""EigenPro's preconditioner of a model on centers."""

from dataclasses import dataclass

import numpy as np

from ..backend.array import take
from ..backend.linalg import (
    large_gram,
    large_product,
    pivoted_cholesky,
    solve_triangular,
    top_eigh,
)
from .spectral import TopEigenvectors, n_above_rounding


@dataclass(frozen=True)
class CenterSpectral(TopEigenvectors):
    """EigenPro's preconditioner of a model on centers, computed in their span.

    For c of the centers, Z_c, the functions psi_j = K(., Z_c) v_j with ::

        K(Z_c, X) W K(X, Z_c) v_j / N = lambda_j K(Z_c, Z_c) v_j
        v_i' K(Z_c, Z_c) v_j = 1 if i = j, else 0

    are the best approximations in the span of K(., Z_c) (Rayleigh-Ritz) of the
    eigenfunctions of the kernel on N weighted rows X. The preconditioned kernel is ::

        k_P(x, z) = k(x, z) - K(x, Z_c) V D V' K(Z_c, z),  D_j = 1 - tau l_{q+1} / l_j

    The preconditioner maps the span of K(., Z) to itself and so commutes with the
    projection onto it: where the projected gradient vanishes, so does the gradient of
    least squares on the centers, whatever q. EigenPro 3 takes eigenfunctions in the
    span of all rows (algorithm 1) or of a subsample (algorithm 2), with which the fixed
    point is different; its lemma 6 has that of algorithm 1.
    """

    @classmethod
    def of(cls, centers, sample, n_rows, n_fitted, q, *, weights=None, damping=1.0):
        """Return the preconditioner with at most `q` eigenfunctions.

        Parameters
        ----------
        centers : Matrix
            K(Z, Z), in random order.
        sample : Sample
        n_rows : int
            N, the first rows of the sample.
        n_fitted : int
            c, the first centers.
        q : int
        weights : array, default=None
            Of the rows of the sample.
        damping : float, default=1.0
            tau.
        """
        xp, dtype, f64 = centers.xp, centers.dtype, centers.xp.float64
        B = centers.block(0, n_fitted, 0, n_fitted, dtype=f64)
        entry = float(xp.max(xp.linalg.diagonal(B)))
        eps = float(xp.finfo(dtype).eps)
        # Centers in the span of others up to rounding, times 10, are left out. Squared
        # errors of 56 fits of 10 epochs (400 centers; bandwidths of the median and 30)
        # with other factors, over those with 10: with 1, up to 15, and 14 halved steps,
        # where 10 has none; with 0.1, up to 27; with 100, from 0.5 to 1.9, on average
        # 1.01; with 1000, on average 1.10, up to 4.3.
        places, L = pivoted_cholesky(B, 10 * n_fitted * eps * entry)
        if not len(places):  # the zero kernel
            vectors = xp.zeros((n_fitted, 0), dtype=dtype, device=centers.device)
            values = xp.zeros(1, dtype=dtype, device=centers.device)
            return cls(vectors, values, damping)
        C = sample.center_block(0, n_rows, n_fitted, dtype=f64)
        root = xp.full((n_rows, 1), n_rows**-0.5, dtype=f64, device=centers.device)
        if weights is not None:
            w = xp.astype(weights[:n_rows, None], f64)
            root = xp.sqrt(w / xp.sum(w))
        M = solve_triangular(L, (root * take(C, places, axis=1)).T)
        values, U = top_eigh(large_gram(M), min(q + 1, M.shape[0]))
        n_real = n_above_rounding(values * n_fitted, n_fitted, entry, dtype)
        q = max(min(n_real, values.shape[0]) - 1, 0)
        short = solve_triangular(L, U[:, :q], transposed=True)
        # Zero for centers that are left out.
        place = np.full(n_fitted, len(places))
        place[places] = np.arange(len(places))
        short = xp.concat([short, xp.zeros_like(short[:1, :])])
        vectors = take(short, place)
        values = xp.where(values > 0, values, xp.zeros_like(values))[: q + 1]
        return cls(xp.astype(vectors, dtype), xp.astype(values, dtype), damping)

    def features(self, sample, start, stop):
        """Return p(x) = V' K(Z_c, x) of some rows of the sample, shape (m, q)."""
        block = sample.center_block(start, stop, self.n_centers)
        return large_product(block, self.vectors)

    @property
    def n_centers(self):
        """c, the centers that it lives on."""
        return self.vectors.shape[0]

    def coordinates(self, image):
        """Return D V' K(Z_c, X_b) g of a step g by its image K(Z_c, X_b) g, (q, l)."""
        return self.scales[:, None] * (self.vectors.T @ image)

    def add_to(self, coef, S):
        """Add V S to coefficients (p, l) of the centers, in place."""
        if self.n_components:
            coef[: self.n_centers, :] += large_product(self.vectors, S)

    def shrunk(self, coef, values, kappa):
        """Return the coefficients of (I + kappa P)^-1 f, P the preconditioner.

        P leaves 1 - D_j of psi_j, and everything that is orthogonal to them.

        Parameters
        ----------
        coef : array of shape (p, l)
            Of f = K(., Z) a.
        values : array of shape (c, l)
            f(Z_c).
        kappa : array of shape (l,)
        """
        others, left = 1.0 / (1.0 + kappa), 1.0 - self.scales
        result = others * coef
        of_vectors = self.vectors.T @ values
        factors = 1.0 / (1.0 + left[:, None] * kappa) - others
        self.add_to(result, factors * of_vectors)
        return result
