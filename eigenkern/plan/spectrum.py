"""How long the step may be, measured on rows beyond the subsample."""

import numpy as np

from ..arrays.array import device_of, namespace, to_numpy
from ..arrays.linalg import large_product, largest_eigenvalues
from ..operators.centered import FeatureKernel
from ..preconditioners.spectral import rounding_floor


class HeldOutSpectrum:
    """How long the stochastic step may be, measured on rows beyond the subsample.

    With N rows H, G = k_P(H, H) / N and C = diag(k_P(h, h)),

        lambda = lambda_max(G),   beta = lambda_max(C^1/2 G C^1/2) / lambda.

    The eigenvectors are fitted to the subsample, so lambda and beta measured on it
    would be several times too small. beta is a mean of k_P(x, x) in which a row
    counts for as much as it adds to the variance of a step: rows with a large k_P(x, x)
    add most.

    Parameters
    ----------
    K_hh : array of shape (N, N) or FeatureKernel
    P : array of shape (N, q)
        p(x) of the rows, of ``k_P(x, z) = k(x, z) - p(x)' D p(z)``.
    preconditioner : Spectral, GlobalSpectral, LinearSpectral or CenterSpectral
        With the largest number of eigenvectors that will be used.
    weights : array of shape (N,), default=None
        Weights of the rows.
    """

    def __init__(self, K_hh, P, preconditioner, weights=None):
        xp = namespace(P)
        self._xp, self._preconditioner = xp, preconditioner
        if isinstance(K_hh, FeatureKernel):
            self._rows = _FeatureRows(K_hh, P, preconditioner.vectors)
        else:
            self._rows = _KernelRows(K_hh, P)
        self._single = None  # the rows in single precision
        self._diagonal = self._rows.diagonal()
        # The unit of products, because squares of a kernel's values may overflow.
        self._unit = float(xp.max(xp.abs(self._diagonal))) or 1.0
        if weights is None:
            weights = xp.ones_like(self._diagonal)
        self._root = xp.sqrt(weights)
        # A fixed start: the same data give the same step.
        start = np.random.RandomState(0).standard_normal(K_hh.shape[0])
        self._start = xp.asarray(start, dtype=P.dtype, device=device_of(P))

    def largest_stable_step(self, q, batch_size, near):
        """Return the largest step eta that is stable in a trial run.

        The iteration for zero targets, ::

            f <- f - (eta / m) k_P(H, b) W_b f(b),

        runs for 16 epochs over random batches b of H, from a random function in the
        range of the kernel, for a grid of steps at once. If the step is too long, the
        norm of f still grows at the end.

        Parameters
        ----------
        q : int
            Eigenvectors in use.
        batch_size : int
            m.
        near : float
            A guess. The grid has 12 steps from 0.7 to 2.5 times the guess, and moves by
            factors of 4 until it contains the limit of stability.

        Returns
        -------
        float
            `near` if no grid contains the limit.
        """
        rows = self._in_single(q)
        grid = near * 2.0 ** (np.arange(-3, 9) / 6)
        below = above = None  # the nearest grids that were all stable, all unstable
        for _ in range(20):
            stable = self._stable(rows, q, batch_size, grid)
            if stable.all():
                below, grid = grid, 4 * grid
            elif not stable[0]:
                above, grid = grid, grid / 4
            else:  # beyond the first unstable step stability is noise
                return float(grid[np.argmin(stable) - 1])
            if below is not None and above is not None:
                return float(below[-1])
        return near

    def _in_single(self, q):
        """Return the rows, in single precision if that suffices.

        It is twice as fast, and suffices if the level of the preconditioned spectrum is
        above its rounding error.
        """
        rows, single = self._rows, self._xp.float32
        level = float(self._preconditioner.eigenvalues[q])
        floor = rounding_floor(1, self._unit, float(self._xp.finfo(single).eps))
        if rows.P.dtype == single or level <= floor or not 1e-30 < self._unit < 1e30:
            return rows
        if self._single is None:
            self._single = rows.astype(single)
        return self._single

    def _stable(self, rows, q, m, steps):
        """Return which of `steps` keep the iteration for zero targets bounded."""
        xp, (n_rows, _), dtype = self._xp, rows.P.shape, rows.P.dtype
        rates = xp.asarray(steps / m, dtype=dtype, device=device_of(rows.P))
        weights = xp.astype(self._root * self._root, dtype)[:, None]
        D = xp.astype(self._preconditioner.scales_of(q), dtype)[:, None]
        start, H = xp.astype(self._start, dtype)[:, None], slice(0, n_rows)
        f = rows.image(H, start / self._unit, D)
        f = f / xp.linalg.vector_norm(rows.values(f, H))
        f = xp.tile(f, (1, len(steps)))
        rng, norms, quarter = np.random.RandomState(0), [], 4
        with np.errstate(over="ignore", invalid="ignore"):
            for epoch in range(4 * quarter):
                squares = xp.zeros_like(rates)
                for i in rng.permutation(np.arange(0, n_rows, m)):
                    b = slice(int(i), min(int(i) + m, n_rows))
                    f_b = rows.values(f, b)
                    squares = squares + xp.sum(f_b * f_b, axis=0)
                    f = f - rows.image(b, rates * (weights[b, :] * f_b), D)
                # A vanishing function would end in subnormal numbers, which are ten
                # times as slow.
                f = f * xp.astype(~(squares < 1e-30), dtype)
                if epoch // quarter in (1, 3):
                    values = rows.values(f, H)
                    norms.append(to_numpy(xp.linalg.vector_norm(values, axis=0)))
            middle, end = np.mean(np.split(np.array(norms), 2), axis=1)
            # Norms that are not finite mean instability; norms below 1e-4 are rounding.
            return (end <= middle) | (end < 1e-4)

    def bound(self, q, batch_size):
        """Return an upper bound of the norm of P K_m, m = `batch_size`.

        It holds for a batch of m rows with a probability of 1 - delta = 0.9 if the
        eigenvectors are exact. The logarithm is that of 2 d / delta for d features
        (theorem 3 of EigenPro 1), or of 8 d / delta for a kernel, where d is the
        intrinsic dimension (theorem 4).
        """
        level = float(self._preconditioner.eigenvalues[q])
        largest = float(self._xp.max(self._diagonal * self._root * self._root))
        n_features = self._preconditioner.n_features
        if n_features is not None:
            directions = 2.0 * n_features
        else:
            directions = 8.0 * self.intrinsic_dimension()
        log = np.log(directions / (1.0 - 0.9)) / batch_size
        mean_square = (2.0 * level * largest * log) ** 0.5
        return level + 2.0 / 3.0 * (level + largest) * log + mean_square

    def intrinsic_dimension(self):
        """Return trace over norm of E[(K_m - K)^2], K_m of a batch and K of all rows.

        Apart from the factor 1 / m it is E[w phi phi'] - K^2 with w = k(x, x), whose
        eigenvalues are those of (W - G) G on the rows.
        """
        xp, K, root = self._xp, self._rows.K, self._root / self._unit**0.5
        w = self._diagonal * root * root
        G = (root / K.shape[0])[:, None] * K * root
        v = self._start / xp.linalg.vector_norm(self._start)
        norm = 0.0
        for _ in range(20):  # only the logarithm of the result is used
            u = G @ v
            v = w * u - G @ u
            norm = float(xp.linalg.vector_norm(v))
            if norm == 0:
                return 1.0
            v = v / norm
        return max(float(xp.mean(w * w) - xp.sum(G * G)) / norm, 1.0)

    def largest_entry(self, q):
        """Return the maximum of w_h k_P(h, h), with the weights w of the rows."""
        P, D, xp = self._rows.P[:, :q], self._preconditioner.scales_of(q), self._xp
        entries = self._diagonal - xp.sum(P * P * D, axis=1)
        return float(xp.max(self._root * self._root * entries))

    def measure(self, numbers):
        """Return a pair (beta, lambda) for each of several numbers q of eigenvectors.

        The kernel matrix of the rows is read once for all numbers.
        """
        xp, rows = self._xp, self._rows
        if rows.measured_in_single:
            rows = self._in_single(max(numbers))
        P, scales, roots, largest = rows.P, [], [], []
        diagonal, root, start = (
            xp.astype(part, P.dtype)
            for part in (self._diagonal, self._root, self._start)
        )
        for q in numbers:
            D = xp.astype(self._preconditioner.scales_of(q), P.dtype)
            w = diagonal - xp.sum(P[:, :q] * (P[:, :q] * D), axis=1)
            w = w / self._unit
            # Like the noise of a step, diag k_P is multiplied by the weight of its row.
            noise = xp.sqrt(xp.where(w > 0, w, xp.zeros_like(w)))
            largest.append(float(xp.max(w)))
            roots += [root, root * root * noise]
            scales += 2 * [xp.concat([D, xp.zeros_like(P[0, q:])])]
        D, R = xp.stack(scales, axis=1), xp.stack(roots, axis=1)

        def apply(V):
            U = R * V / self._unit
            return R * (rows.product(U) - large_product(P, D * (P.T @ U))) / P.shape[0]

        values = largest_eigenvalues(apply, xp.zeros_like(R) + start[:, None])
        return [
            # For the zero kernel any step will do.
            (self._unit * (noisy / top if top > 0 else most), top * self._unit)
            for top, noisy, most in zip(values[::2], values[1::2], largest, strict=True)
        ]


class _KernelRows:
    """Rows with K = k(H, H) as an array; a function is represented by its values f."""

    measured_in_single = False

    def __init__(self, K, P):
        self.K, self.P, self._xp = K, P, namespace(P)

    def diagonal(self):
        """Return the diagonal of K."""
        return self._xp.linalg.diagonal(self.K)

    def astype(self, dtype):
        """Return the rows in another data type."""
        return _KernelRows(*(self._xp.astype(part, dtype) for part in (self.K, self.P)))

    def product(self, U):
        """Return K U."""
        return large_product(self.K, U)

    def values(self, f, b):
        """Return the values of f on the rows b."""
        return f[b, :]

    def image(self, b, g, D):
        """Return k_P(H, b) g."""
        P = self.P[:, : D.shape[0]]
        # The symmetric K is read along its rows.
        image = large_product(g.T, self.K[b, :]).T
        return image - large_product(P, D * (P[b, :].T @ g))


class _FeatureRows:
    """The same with K = F F' and P = F V; a function f = F w is represented by w."""

    measured_in_single = True  # the products take most of a setup

    def __init__(self, K, P, V):
        self.K, self.P, self._V = K, P, V

    def diagonal(self):
        return self.K.diagonal()

    def astype(self, dtype):
        parts = (namespace(self.P).astype(part, dtype) for part in (self.P, self._V))
        return _FeatureRows(self.K.astype(dtype), *parts)

    def product(self, U):
        return self.K @ U

    def values(self, w, b):
        return self.K.features.product(w, b.start, b.stop)

    def image(self, b, g, D):
        V = self._V[:, : D.shape[0]]
        gradient = self.K.features.adjoint(g, b.start, b.stop)
        return gradient - large_product(V, D * (V.T @ gradient))
