"""What the step may be, measured on rows not only of the subsample."""

import numpy as np

from ..backend.array import device_of, namespace, to_numpy
from ..backend.linalg import large_product, largest_eigenvalues
from ..preconditioners.spectral import rounding_floor


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
    P : array of shape (N, q)
        p(x) of the rows, of ``k_P(x, z) = k(x, z) - p(x)' D p(z)``.
    preconditioner : Spectral, GlobalSpectral, LinearSpectral or CenterSpectral
        With the most eigenvectors that will be asked for.
    weights : array of shape (N,), default=None
        Weights of the rows.
    """

    def __init__(self, K_hh, P, preconditioner, weights=None):
        xp = namespace(K_hh)
        self._xp, self._preconditioner = xp, preconditioner
        self._K, self._P = K_hh, P
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
        """Return the largest step eta that is stable in a trial run.

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
        matrices = self._matrices(q)
        grid = near * 2.0 ** (np.arange(-3, 9) / 6)
        below = above = None  # the nearest grids that were stable, unstable throughout
        for _ in range(20):
            stable = self._stable(*matrices, batch_size, grid)
            if stable.all():
                below, grid = grid, 4 * grid
            elif not stable[0]:
                above, grid = grid, grid / 4
            else:  # beyond the first unstable step it is noise
                return float(grid[np.argmin(stable) - 1])
            if below is not None and above is not None:
                return float(below[-1])
        return near

    def _matrices(self, q):
        """Return K, P and D of k_P = K - P D P', in single precision where that does.

        It is twice as fast, and tells stable steps from others wherever the level of
        the preconditioned spectrum is above its rounding.
        """
        xp, parts = self._xp, (self._K, self._P[:, :q])
        parts += (self._preconditioner.scales_of(q)[:, None],)
        level = float(self._preconditioner.eigenvalues[q])
        floor = rounding_floor(1, self._unit, float(xp.finfo(xp.float32).eps))
        if level > floor and 1e-30 < self._unit < 1e30:
            parts = tuple(xp.astype(part, xp.float32, copy=False) for part in parts)
        return parts

    def _stable(self, K, P, D, m, steps):
        """Return which of `steps` keep the iteration for zero targets bounded."""
        xp, n_rows = self._xp, K.shape[0]
        rates = xp.asarray(steps / m, dtype=K.dtype, device=device_of(K))
        start = xp.astype(self._start, K.dtype)[:, None] / self._unit
        f = large_product(K, start) - large_product(P, D * (P.T @ start))
        weights = xp.astype(self._root * self._root, K.dtype)[:, None]
        rng, norms, n_epochs = np.random.RandomState(0), [], 16
        with np.errstate(over="ignore", invalid="ignore"):
            f = f / xp.linalg.vector_norm(f) + xp.zeros_like(rates)[None, :]
            for _ in range(n_epochs):
                for i in rng.permutation(np.arange(0, n_rows, m)):
                    b = slice(int(i), min(int(i) + m, n_rows))
                    g = rates * (weights[b, :] * f[b, :])
                    # The symmetric K is read along its rows.
                    f = f - large_product(g.T, K[b, :]).T
                    f += large_product(P, D * (P[b, :].T @ g))
                norm = xp.linalg.vector_norm(f, axis=0)
                # What vanishes ends in subnormal numbers, ten times as slow.
                f = xp.where(norm < 1e-15, xp.zeros_like(f), f)
                norms.append(to_numpy(norm))
            quarter = n_epochs // 4
            middle = np.mean(norms[quarter : 2 * quarter], axis=0)
            end = np.mean(norms[-quarter:], axis=0)
            # Not finite is unstable; what has vanished is at its rounding.
            return (end <= middle) | (end < 1e-4)

    def bound(self, q, batch_size, probability=0.9):
        """Return an upper bound of the norm of P K_m, m = `batch_size`.

        Of theorems 3 and 4 of EigenPro 1: it holds with a `probability` for a batch of
        m rows, if the eigenvectors are exact.
        """
        level = float(self._preconditioner.eigenvalues[q])
        largest = float(self._xp.max(self._diagonal * self._root * self._root))
        directions = max(self._preconditioner.n_directions(self), 1.0)
        log = np.log(directions / (1.0 - probability)) / batch_size
        mean_square = (2.0 * level * largest * log) ** 0.5
        return level + 2.0 / 3.0 * (level + largest) * log + mean_square

    def intrinsic_dimension(self):
        """Return trace over norm of E[(K_m - K)^2], K_m of a batch and K of all rows.

        Up to 1 / m it is E[w phi phi'] - K^2 with w = k(x, x), whose eigenvalues are
        those of (W - G) G on the rows.
        """
        xp, n_rows, root = self._xp, self._K.shape[0], self._root / self._unit**0.5
        w = self._diagonal * root * root
        G = (root / n_rows)[:, None] * self._K * root
        v = self._start / xp.linalg.vector_norm(self._start)
        norm = 0.0
        for _ in range(20):  # it counts within a logarithm
            u = G @ v
            v = w * u - G @ u
            norm = float(xp.linalg.vector_norm(v))
            if norm == 0:
                return 1.0
            v = v / norm
        return max(float(xp.mean(w * w) - xp.sum(G * G)) / norm, 1.0)

    def measure(self, numbers):
        """Return (beta, lambda) of the preconditioner with q eigenvectors.

        Parameters
        ----------
        numbers : list of int
            Several q: the rows' kernel matrix is read once for all.

        Returns
        -------
        list of tuple
            A pair for each q.
        """
        xp, P, n_rows = self._xp, self._P, self._P.shape[0]
        scales, roots, largest = [], [], []
        for q in numbers:
            D = self._preconditioner.scales_of(q)
            w = self._diagonal - xp.sum(P[:, :q] * (P[:, :q] * D), axis=1)
            w = w / self._unit
            # diag k_P enters with the weight of its row, as the noise of a step does.
            noise = xp.sqrt(xp.where(w > 0, w, xp.zeros_like(w)))
            largest.append(float(xp.max(w)))
            roots += [self._root, self._root * self._root * noise]
            scales += 2 * [xp.concat([D, xp.zeros_like(P[0, q:])])]
        D, R = xp.stack(scales, axis=1), xp.stack(roots, axis=1)

        def apply(V):
            U = R * V / self._unit
            K_U = large_product(self._K, U)
            return R * (K_U - large_product(P, D * (P.T @ U))) / n_rows

        values = largest_eigenvalues(apply, xp.zeros_like(R) + self._start[:, None])
        return [
            # With the zero kernel any step will do.
            (self._unit * (noisy / top if top > 0 else most), top * self._unit)
            for top, noisy, most in zip(values[::2], values[1::2], largest, strict=True)
        ]
