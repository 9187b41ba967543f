"""Preconditioners: the spectral one of EigenPro, the two-Cholesky one of Falkon."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ._array import device_of, namespace, to_numpy
from ._linalg import cholesky, largest_eigenvalue, solve_triangular, top_eigh


@dataclass(frozen=True)
class Spectral:
    """EigenPro's preconditioner from the top eigenvectors of a subsample.

    With K_s = K(X_s, X_s), K_s u_j = sigma_j u_j and phi(x) = K(X_s, x), the
    preconditioned kernel is ::

        k_P(x, z) = k(x, z) - phi(x)' V D V' phi(z)
        V = (u_1 .. u_q),  D_j = (1 - tau sigma_{q+1} / sigma_j) / sigma_j

    It lowers the q largest eigenvalues of k to about sigma_{q+1} (times tau) and leaves
    the others, and the solution of K a = y, as they are. With weights W of the rows,
    u_j are eigenvectors of W^1/2 K_s W^1/2, and V = W^1/2 (u_1 .. u_q).

    Attributes
    ----------
    vectors : array of shape (s, q)
        V.
    scales : array of shape (q,)
        The diagonal of D.
    eigenvalues : array of shape (q + 1,)
        lambda_j = sigma_j / s, decreasing.
    damping : float
        tau.

    References
    ----------
    Ma and Belkin, "Kernel machines that adapt to GPUs for effective large batch
    training", MLSys 2019: equation 8.
    """

    vectors: Any
    scales: Any
    eigenvalues: Any
    damping: float = 1.0

    @classmethod
    def from_subsample(cls, K_s, n_components, *, weights=None, damping=1.0):
        """Return the preconditioner with at most `n_components` eigenvectors.

        Eigenvalues that rounding makes meaningless are left out, so that there may be
        fewer. Eigenvectors are computed in float64.

        Parameters
        ----------
        K_s : array of shape (s, s)
        n_components : int
            q < s.
        weights : array of shape (s,), default=None
        damping : float, default=1.0
            tau.
        """
        xp = namespace(K_s)
        s, dtype = K_s.shape[0], K_s.dtype
        K = xp.astype(K_s, xp.float64)
        root = None
        if weights is not None:
            root = xp.sqrt(xp.astype(weights, xp.float64))
            K = root[:, None] * K * root[None, :]
        sigma, U = top_eigh(K, n_components + 1)
        # Along lambda_j coefficients grow like 1 / lambda_j and rounding leaves an
        # error of eps / lambda_j in predictions: above 1000 eps, at most one in a
        # thousand. The level lambda_{q+1} of the preconditioned spectrum stays there.
        entry = float(xp.max(xp.abs(xp.linalg.diagonal(K))))
        floor = 1000 * s * float(xp.finfo(dtype).eps) * entry
        q = max(int(xp.sum(xp.astype(sigma > floor, xp.int64))) - 1, 0)
        V = U[:, :q] if root is None else root[:, None] * U[:, :q]
        # Rounding may leave the last eigenvalue below zero.
        sigma = xp.where(sigma > 0, sigma, xp.zeros_like(sigma))
        return cls(
            xp.astype(V, dtype),
            _scales(sigma, q, damping, dtype),
            xp.astype(sigma[: q + 1] / s, dtype),
            damping,
        )

    @property
    def n_components(self):
        """q, the number of eigenvectors."""
        return self.vectors.shape[1]

    @property
    def subsample_size(self):
        """s, the rows of the subsample."""
        return self.vectors.shape[0]

    def truncate(self, q):
        """Return the preconditioner of the first `q` eigenvectors."""
        xp = namespace(self.vectors)
        sigma = xp.astype(self.eigenvalues, xp.float64) * self.subsample_size
        return Spectral(
            self.vectors[:, :q],
            _scales(sigma, q, self.damping, self.vectors.dtype),
            self.eigenvalues[: q + 1],
            self.damping,
        )

    def correction(self, K_bs, G):
        """Return V D V' K(X_s, X_b) G.

        Parameters
        ----------
        K_bs : array of shape (m, s)
            K(X_b, X_s).
        G : array of shape (m, l)

        Returns
        -------
        array of shape (s, l)
        """
        return self.vectors @ (self.scales[:, None] * (self.vectors.T @ (K_bs.T @ G)))


def _scales(sigma, q, damping, dtype):
    xp = namespace(sigma)
    top = sigma[:q]
    return xp.astype((1.0 - damping * sigma[q] / top) / top, dtype)


class HeldOutSpectrum:
    """What the stochastic step may be, measured on rows not only of the subsample.

    With N rows H, G = k_P(H, H) / N and w = diag k_P on H,

        lambda = lambda_max(G),   beta = lambda_max(W^1/2 G W^1/2) / lambda.

    The eigenvectors are fitted to the subsample, so that the same figures taken on it
    are several times too small. The noise-weighted beta comes from the second moment of
    the stochastic step: E[|phi|^2 phi phi'] is what its variance grows by, and where
    k_P(x, x) is large matters.

    Parameters
    ----------
    K_hh : array of shape (N, N)
    K_hs : array of shape (N, s)
    preconditioner : Spectral
        With the most eigenvectors that will be asked for.
    weights : array of shape (N,), default=None
        Weights of the rows.
    """

    def __init__(self, K_hh, K_hs, preconditioner, weights=None):
        xp = namespace(K_hh)
        self._xp, self._preconditioner = xp, preconditioner
        self._K = K_hh
        self._P = K_hs @ preconditioner.vectors
        self._diagonal = xp.linalg.diagonal(K_hh)
        # The unit of the products: squares of a kernel's values may overflow.
        self._unit = float(xp.max(xp.abs(self._diagonal))) or 1.0
        if weights is None:
            weights = xp.ones_like(self._diagonal)
        self._root = xp.sqrt(weights)
        # A fixed start: the same data give the same step.
        start = np.random.RandomState(0).standard_normal(K_hh.shape[0])
        self._start = xp.asarray(start, dtype=K_hh.dtype, device=device_of(K_hh))

    def largest_stable_step(self, q, batch_size, near):
        """Return the largest step eta that the iteration is seen to bear.

        The iteration for zero targets, ::

            f <- f - (eta / m) k_P(H, b) W_b f(b),

        runs for 16 epochs over random batches b of H, from a random function in the
        range of the kernel, for a grid of steps at once. Where the step is too long the
        norm of f still grows at the end.

        Parameters
        ----------
        q : int
            Eigenvectors in use.
        batch_size : int
            m.
        near : float
            A guess. The grid has 12 steps from 0.7 to 2.5 times the guess, and moves by
            factors of 4 until the edge is in it.

        Returns
        -------
        float
            `near` where no grid finds the edge.
        """
        grid = near * 2.0 ** (np.arange(-3, 9) / 6)
        below = above = None  # the nearest grids that were stable, unstable throughout
        for _ in range(20):
            stable = self._stable(q, batch_size, grid)
            if stable.all():
                below, grid = grid, 4 * grid
            elif not stable[0]:
                above, grid = grid, grid / 4
            else:  # the first unstable step ends the range, whatever noise says beyond
                return float(grid[np.argmin(stable) - 1])
            if below is not None and above is not None:
                return float(below[-1])
        return near

    def _stable(self, q, m, steps):
        """Return which of `steps` keep the iteration for zero targets bounded."""
        xp, K = self._xp, self._K
        P, D = self._P[:, :q], self._preconditioner.truncate(q).scales[:, None]
        n_rows = K.shape[0]
        rates = xp.asarray(steps / m, dtype=K.dtype, device=device_of(K))
        start = self._start[:, None] / self._unit
        f = K @ start - P @ (D * (P.T @ start))
        weights = (self._root * self._root)[:, None]
        rng, norms, n_epochs = np.random.RandomState(0), [], 16
        with np.errstate(over="ignore", invalid="ignore"):
            f = f / xp.linalg.vector_norm(f) + xp.zeros_like(rates)[None, :]
            for _ in range(n_epochs):
                for i in rng.permutation(np.arange(0, n_rows, m)):
                    b = slice(int(i), min(int(i) + m, n_rows))
                    g = rates * (weights[b, :] * f[b, :])
                    f = f - K[:, b] @ g + P @ (D * (P[b, :].T @ g))
                norms.append(to_numpy(xp.linalg.vector_norm(f, axis=0)))
            quarter = n_epochs // 4
            middle = np.mean(norms[quarter : 2 * quarter], axis=0)
            end = np.mean(norms[-quarter:], axis=0)
            # Not finite is unstable; what has vanished is at its rounding.
            return (end <= middle) | (end < 1e-4)

    def measure(self, q):
        """Return (beta, lambda) of the preconditioner with `q` eigenvectors."""
        xp, n_rows = self._xp, self._K.shape[0]
        P = self._P[:, :q]
        D = self._preconditioner.truncate(q).scales
        w = (self._diagonal - xp.sum(P * (P * D), axis=1)) / self._unit
        w = xp.where(w > 0, w, xp.zeros_like(w))

        def preconditioned(root):
            def apply(v):
                u = root * v / self._unit
                return root * (self._K @ u - P @ (D * (P.T @ u))) / n_rows

            return apply

        top = largest_eigenvalue(preconditioned(self._root), self._start)
        if top <= 0:  # the zero kernel: any step will do
            return float(xp.max(w)) * self._unit, 0.0
        # diag k_P enters with the weight of its row, as the noise of a step does.
        noisy = largest_eigenvalue(
            preconditioned(self._root * self._root * xp.sqrt(w)), self._start
        )
        return noisy / top * self._unit, top * self._unit


@dataclass(frozen=True)
class TwoCholesky:
    """Falkon's preconditioner of kernel ridge regression on centres.

    With T' T = K_mm the features R' K(Z, x), R = T^-1, have the second moment ::

        B = R' K_nm' W K_nm R / N, about T W_m T' / sum(W_m) = A' A - lambda I

    because the centres are a sample of the rows. R A^-1 therefore brings B + lambda I
    near to I, at the price of two Cholesky factors.

    Attributes
    ----------
    L : array of shape (p, p)
        T', lower triangular.
    C : array of shape (p, p)
        A', lower triangular.

    References
    ----------
    Rudi, Carratino, Rosasco, "FALKON: an optimal large scale kernel method", NeurIPS
    2017: section 3.
    """

    L: Any
    C: Any

    @classmethod
    def of(cls, L, alpha, weights):
        """Return the preconditioner.

        Parameters
        ----------
        L : array of shape (p, p)
            Lower Cholesky factor of K_mm, in float64.
        alpha : float
            lambda.
        weights : array of shape (p,)
            W_m, what each centre stands for.
        """
        xp = namespace(L)
        identity = xp.eye(L.shape[0], dtype=L.dtype, device=device_of(L))
        A = L.T @ (weights[:, None] * L) / float(xp.sum(weights))
        rounding = float(xp.finfo(L.dtype).eps) * float(xp.linalg.trace(A))
        for shift in (alpha, *(max(alpha, rounding) * 10**k for k in range(12))):
            # Rounding can make A indefinite if alpha is tiny.
            C = cholesky(A + shift * identity)
            if C is not None:
                return cls(L, C)
        raise ValueError(
            "the kernel matrix of the centres has no Cholesky factor: scale X, or "
            "choose another kernel or bandwidth"
        )

    def inner(self, c):
        """Return A^-1 c, coefficients b of the features."""
        return solve_triangular(self.C, c, transposed=True)

    def inner_transposed(self, g):
        """Return A'^-1 g."""
        return solve_triangular(self.C, g)

    def expand(self, b):
        """Return R b, coefficients of the centres."""
        return solve_triangular(self.L, b, transposed=True)

    def reduce(self, g):
        """Return R' g."""
        return solve_triangular(self.L, g)

    def preimage(self, coef):
        """Return c with R A^-1 c = coef."""
        return self.C.T @ (self.L.T @ coef)
