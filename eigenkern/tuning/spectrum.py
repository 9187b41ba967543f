"""What the step may be, measured on rows not only of the subsample."""

import numpy as np

from ..backend.array import device_of, namespace, to_numpy
from ..backend.linalg import large_product, largest_eigenvalues
from ..operators.linear import FeatureKernel
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
    K_hh : array of shape (N, N) or FeatureKernel
    P : array of shape (N, q)
        p(x) of the rows, of ``k_P(x, z) = k(x, z) - p(x)' D p(z)``.
    preconditioner : Spectral, GlobalSpectral, LinearSpectral or CenterSpectral
        With the most eigenvectors that will be asked for.
    weights : array of shape (N,), default=None
        Weights of the rows.
    """

    def __init__(self, K_hh, P, preconditioner, weights=None):
        xp = namespace(P)
        self._xp, self._preconditioner = xp, preconditioner
        self._K, self._P = K_hh, P
        if isinstance(K_hh, FeatureKernel):
            self._diagonal = K_hh.diagonal()
        else:
            self._diagonal = xp.linalg.diagonal(K_hh)
        # The unit of the products: squares of a kernel's values may overflow.
        self._unit = float(xp.max(xp.abs(self._diagonal))) or 1.0
        if weights is None:
            weights = xp.ones_like(self._diagonal)
        self._root = xp.sqrt(weights)
        # A fixed start: the same data give the same step.
        start = np.random.RandomState(0).standard_normal(K_hh.shape[0])
        self._start = xp.asarray(start, dtype=P.dtype, device=device_of(P))
        self._single = None  # K and P in single precision

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
        parts = self._in_single(q)
        grid = near * 2.0 ** (np.arange(-3, 9) / 6)
        below = above = None  # the nearest grids that were stable, unstable throughout
        for _ in range(20):
            stable = self._stable(q, *parts, batch_size, grid)
            if stable.all():
                below, grid = grid, 4 * grid
            elif not stable[0]:
                above, grid = grid, grid / 4
            else:  # beyond the first unstable step it is noise
                return float(grid[np.argmin(stable) - 1])
            if below is not None and above is not None:
                return float(below[-1])
        return near

    def _in_single(self, q):
        """Return K and P, in single precision where that does.

        It is twice as fast, and tells stable steps from others wherever the level of
        the preconditioned spectrum is above its rounding.
        """
        xp, K, P = self._xp, self._K, self._P
        level = float(self._preconditioner.eigenvalues[q])
        floor = rounding_floor(1, self._unit, float(xp.finfo(xp.float32).eps))
        if P.dtype == xp.float32 or level <= floor or not 1e-30 < self._unit < 1e30:
            return K, P
        if self._single is None:
            if isinstance(K, FeatureKernel):
                K = K.astype(xp.float32)
            else:
                K = xp.astype(K, xp.float32)
            self._single = K, xp.astype(P, xp.float32)
        return self._single

    def _stable(self, q, K, P, m, steps):
        """Return which of `steps` keep the iteration for zero targets bounded."""
        xp, n_rows = self._xp, P.shape[0]
        rates = xp.asarray(steps / m, dtype=P.dtype, device=device_of(P))
        weights = xp.astype(self._root * self._root, P.dtype)[:, None]
        start = xp.astype(self._start, P.dtype)[:, None] / self._unit
        D = xp.astype(self._preconditioner.scales_of(q), P.dtype)[:, None]
        if isinstance(K, FeatureKernel):
            V = xp.astype(self._preconditioner.vectors[:, :q], P.dtype)
            run = _FeatureIteration(K.features, V, D, start, len(steps))
        else:
            run = _KernelIteration(K, P[:, :q], D, start, len(steps))
        rng, norms, quarter = np.random.RandomState(0), [], 4
        with np.errstate(over="ignore", invalid="ignore"):
            for epoch in range(4 * quarter):
                squares = xp.zeros_like(rates)
                for i in rng.permutation(np.arange(0, n_rows, m)):
                    b = slice(int(i), min(int(i) + m, n_rows))
                    f = run.values(b)
                    squares = squares + xp.sum(f * f, axis=0)
                    run.step(b, rates * (weights[b, :] * f))
                # What vanishes ends in subnormal numbers, ten times as slow.
                run.scale(xp.where(squares < 1e-30, 0.0 * rates, 0.0 * rates + 1.0))
                if epoch // quarter in (1, 3):
                    f = run.values(slice(0, n_rows))
                    norms.append(to_numpy(xp.linalg.vector_norm(f, axis=0)))
            middle, end = (
                np.mean(part, axis=0) for part in np.split(np.array(norms), 2)
            )
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
        xp, K, P = self._xp, self._K, self._P
        if isinstance(K, FeatureKernel):  # whose products take most of a setup
            K, P = self._in_single(max(numbers))
        scales, roots, largest = [], [], []
        diagonal, root, start = (
            xp.astype(part, P.dtype)
            for part in (self._diagonal, self._root, self._start)
        )
        for q in numbers:
            D = xp.astype(self._preconditioner.scales_of(q), P.dtype)
            w = diagonal - xp.sum(P[:, :q] * (P[:, :q] * D), axis=1)
            w = w / self._unit
            # diag k_P enters with the weight of its row, as the noise of a step does.
            noise = xp.sqrt(xp.where(w > 0, w, xp.zeros_like(w)))
            largest.append(float(xp.max(w)))
            roots += [root, root * root * noise]
            scales += 2 * [xp.concat([D, xp.zeros_like(P[0, q:])])]
        D, R = xp.stack(scales, axis=1), xp.stack(roots, axis=1)

        def apply(V):
            U = R * V / self._unit
            return R * (_product(K, U) - large_product(P, D * (P.T @ U))) / P.shape[0]

        values = largest_eigenvalues(apply, xp.zeros_like(R) + start[:, None])
        return [
            # With the zero kernel any step will do.
            (self._unit * (noisy / top if top > 0 else most), top * self._unit)
            for top, noisy, most in zip(values[::2], values[1::2], largest, strict=True)
        ]


def _product(K, U):
    """Return K @ U, of an array or a `FeatureKernel`."""
    return K @ U if isinstance(K, FeatureKernel) else large_product(K, U)


class _KernelIteration:
    """f <- f - k_P(H, b) g from k_P(H, H) times a start, with K in memory."""

    def __init__(self, K, P, D, start, n_columns):
        xp = namespace(K)
        self._K, self._P, self._D = K, P, D
        f = large_product(K, start) - large_product(P, D * (P.T @ start))
        self._f = xp.tile(f / xp.linalg.vector_norm(f), (1, n_columns))

    def values(self, b):
        """Return f on some rows."""
        return self._f[b, :]

    def step(self, b, g):
        """Subtract k_P(H, b) g."""
        lowered = large_product(self._P, self._D * (self._P[b, :].T @ g))
        # The symmetric K is read along its rows.
        self._f = self._f - large_product(g.T, self._K[b, :]).T + lowered

    def scale(self, factors):
        """Multiply every column by a factor."""
        self._f = self._f * factors


class _FeatureIteration:
    """The same where K = F F' and P = F V, as f = F w."""

    def __init__(self, F, V, D, start, n_columns):
        xp = namespace(V)
        self._F, self._V, self._D = F, V, D
        w = self._lowered(F.adjoint(start))
        self._w = xp.tile(w / xp.linalg.vector_norm(F @ w), (1, n_columns))

    def _lowered(self, gradient):
        along = self._D * (self._V.T @ gradient)
        return gradient - large_product(self._V, along)

    def values(self, b):
        """Return f on some rows."""
        return self._F.product(self._w, b.start, b.stop)[0]

    def step(self, b, g):
        """Subtract k_P(H, b) g."""
        self._w = self._w - self._lowered(self._F.adjoint(g, b.start, b.stop))

    def scale(self, factors):
        """Multiply every column by a factor."""
        self._w = self._w * factors
