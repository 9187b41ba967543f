"""Preconditioners: the spectral ones of EigenPro, the two-Cholesky one of Falkon."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ._array import available_memory, device_of, namespace, to_numpy
from ._linalg import (
    cholesky,
    eigh,
    largest_eigenvalues,
    pivoted_cholesky,
    right_singular_vectors,
    solve_triangular,
    top_eigh,
)

# Rows that are computed at a time.
_CHUNK = 4096


@dataclass(frozen=True)
class _TopEigenvectors:
    """What the spectral preconditioners share: k_P(x, z) = k(x, z) - p(x)' D p(z)."""

    vectors: Any
    scales: Any
    eigenvalues: Any
    damping: float

    @property
    def n_components(self):
        """q, the number of eigenvectors."""
        return self.vectors.shape[1]

    def n_directions(self, spectrum):
        """Return what theorem 4 of EigenPro 1 has in the logarithm, over 1 / delta."""
        return 8.0 * spectrum.intrinsic_dimension()

    def truncate(self, q):
        """Return the preconditioner of the first `q` eigenvectors."""
        return replace(
            self,
            vectors=self.vectors[:, :q],
            scales=self.scales_of(q),
            eigenvalues=self.eigenvalues[: q + 1],
        )

    def scales_of(self, q):
        """Return D of the first `q` eigenvectors."""
        xp = namespace(self.vectors)
        values = xp.astype(self.eigenvalues[: q + 1], xp.float64)
        return xp.astype(self._scales(values), self.vectors.dtype)

    def _scales(self, values):
        """Return D of the eigenvectors of all but the last of some eigenvalues."""
        top = values[:-1]
        return (1.0 - self.damping * values[-1] / top) / (top * self.vectors.shape[0])


@dataclass(frozen=True)
class Spectral(_TopEigenvectors):
    """EigenPro 2's preconditioner, from the top eigenvectors of a subsample.

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

    @classmethod
    def of(cls, operator, subsample_size, n_components, *, weights=None, damping=1.0):
        """Return the preconditioner of the first rows of K(X, X)."""
        return cls.from_subsample(
            operator.block(0, subsample_size, 0, subsample_size),
            n_components,
            weights=None if weights is None else weights[:subsample_size],
            damping=damping,
        )

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
        entry = float(xp.max(xp.abs(xp.linalg.diagonal(K))))
        q = max(_n_above_rounding(sigma, s, entry, dtype) - 1, 0)
        V = U[:, :q] if root is None else root[:, None] * U[:, :q]
        # Rounding may leave the last eigenvalue below zero.
        sigma = xp.where(sigma > 0, sigma, xp.zeros_like(sigma))
        values = xp.astype(sigma[: q + 1] / s, dtype)
        return cls(xp.astype(V, dtype), values[:-1], values, damping).truncate(q)

    @property
    def subsample_size(self):
        """s, the rows of the subsample."""
        return self.vectors.shape[0]

    @property
    def n_kept(self):
        """Columns of K(X_b, X) that a step needs."""
        return self.subsample_size if self.n_components else 0

    def features(self, operator, start, stop):
        """Return p(x) of some rows, shape (m, q)."""
        return operator.block(start, stop, 0, self.subsample_size) @ self.vectors

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

    def descend(self, operator, coef, b, K_bs, step):
        """Change `coef` by a step of the batch `b` of rows, in place."""
        coef[b, :] -= step
        if self.n_components:
            coef[: self.subsample_size, :] += self.correction(K_bs, step)


@dataclass(frozen=True)
class GlobalSpectral(_TopEigenvectors):
    """EigenPro 1's preconditioner: approximate eigenvectors of K(X, X) on all n rows.

    With V (n, q), approximately eigenvectors of K = K(X, X), and p(x) = V' K(X, x)::

        k_P(x, z) = k(x, z) - p(x)' D p(z),  D_j = (1 - tau L_{q+1} / L_j) / L_j

    The eigenvectors come from a subsample of s rows: extended to all rows by the
    Nystrom method, or as right singular vectors of K(X_s, X). They are then made
    orthogonal in the geometry of the kernel too, V' K V = diag(L_1 .. L_q), by one pass
    over K of n^2 (d + q) multiply-adds: the preconditioner is positive definite then,
    however inexact they are. With weights W of the rows they belong to W^1/2 K W^1/2.

    Attributes
    ----------
    vectors : array of shape (n, q)
        V.
    scales : array of shape (q,)
        The diagonal of D.
    eigenvalues : array of shape (q + 1,)
        L_j / n, decreasing; the last one is that of the subsample.
    damping : float
        tau.
    images : array of shape (n, q)
        K V, whose rows are p(x_i): a step then costs no more than n q l multiply-adds.

    References
    ----------
    Ma and Belkin, "Diving into the shallows: a computational perspective on large-scale
    shallow learning", NeurIPS 2017: table 2 and appendix A.
    """

    images: Any

    n_kept = 0

    @classmethod
    def of(
        cls,
        operator,
        subsample_size,
        n_components,
        *,
        weights=None,
        damping=1.0,
        svd_solver,
        rng,
    ):
        """Return the preconditioner with at most `n_components` eigenvectors.

        Parameters
        ----------
        operator : KernelOperator
            K(X, X).
        subsample_size, n_components : int
            s and q < s.
        weights : array of shape (n,), default=None
        damping : float, default=1.0
            tau.
        svd_solver : {"nystrom", "randomized"}
        rng : numpy.random.RandomState
        """
        xp, n = operator.xp, operator.shape[0]
        _check_memory(operator, subsample_size, n_components, svd_solver)
        root = xp.ones((n, 1), dtype=operator.dtype, device=operator.device)
        if weights is not None:
            root = weights[:, None] ** 0.5
        if svd_solver == "nystrom":
            V, level = _nystrom_vectors(operator, subsample_size, n_components, weights)
        else:
            V, level = _singular_vectors(
                operator, subsample_size, n_components, root, rng
            )
        if V.shape[1] == 0:
            values = xp.full_like(root[:1, 0], level)
            return cls(V, values[:0], values, damping, V)
        V = root * V
        images = operator @ V
        gram = sum(
            xp.astype(V[rows, :], xp.float64).T @ xp.astype(images[rows, :], xp.float64)
            for rows in _chunks(n)
        )
        values, R = eigh(0.5 * (gram + gram.T))
        values = xp.flip(values)
        # The level is an estimate: it lies neither above the values it goes with nor,
        # as they do not, below rounding.
        levels = xp.full_like(values[:1], n * level)
        entry, dtype = _largest_entry(operator), operator.dtype
        q = _n_above_rounding(values, n, entry, dtype)
        if q and not _n_above_rounding(levels, n, entry, dtype):
            q -= 1
            levels = values[q : q + 1]
        levels = xp.minimum(levels, values[max(q - 1, 0) : max(q, 1)])
        R = xp.astype(xp.flip(R, axis=1)[:, :q], dtype)
        values = xp.astype(xp.concat([values[:q], levels]) / n, dtype)
        return cls(V @ R, values[:-1], values, damping, images @ R).truncate(q)

    def truncate(self, q):
        """Return a copy with the first `q` eigenvectors."""
        xp, short = namespace(self.vectors), super().truncate(q)
        vectors, images = (
            xp.asarray(part[:, :q], copy=True) for part in (self.vectors, self.images)
        )
        return replace(short, vectors=vectors, images=images)

    def features(self, operator, start, stop):
        """Return p(x) of some rows, shape (m, q)."""
        return self.images[start:stop, :]

    def descend(self, operator, coef, b, kept, step):
        """Change `coef` by a step of the batch `b` of rows, in place."""
        coef[b, :] -= step
        if self.n_components:
            coef += self.vectors @ (self.scales[:, None] * (self.images[b, :].T @ step))


def _check_memory(operator, s, q, svd_solver):
    """Raise a ValueError unless the free memory holds eigenvectors of all rows."""
    n, size = operator.shape[0], operator.itemsize
    # V, K V and their rotations; the rows of K, once weighted.
    needed = 4.0 * size * n * q
    remedy = "a smaller n_components"
    if svd_solver == "randomized":
        needed += 2.0 * size * n * s
        remedy += ", a smaller subsample_size or svd_solver='nystrom'"
    free = available_memory(operator.xp, operator.device)
    if needed > free:
        raise ValueError(
            f"algorithm='eigenpro1' with {q} eigenvectors of {n} rows and svd_solver="
            f"{svd_solver!r} needs {needed / 1e6:.0f} MB, but {free / 1e6:.0f} MB of "
            f"memory are free; pass {remedy}"
        )


def _chunks(n):
    """Yield ranges of `n` rows."""
    for i in range(0, n, _CHUNK):
        yield slice(i, min(i + _CHUNK, n))


def _nystrom_vectors(operator, s, q, weights):
    """Return orthonormal vectors (n, q) by the Nystrom method, and lambda_{q+1}."""
    xp = operator.xp
    top = Spectral.of(operator, s, q, weights=weights)
    V = xp.concat(
        [
            top.features(operator, rows.start, rows.stop)
            for rows in _chunks(operator.shape[0])
        ]
    )
    if weights is not None:
        V = V * weights[:, None] ** 0.5
    if V.shape[1]:
        V = xp.linalg.qr(V / xp.linalg.vector_norm(V, axis=0))[0]
    return V, float(top.eigenvalues[-1])


def _singular_vectors(operator, s, q, root, rng):
    """Return right singular vectors (n, q) of s rows of K, and lambda_{q+1}."""
    n = operator.shape[0]
    A = root[:s, :] * operator.block(0, s) * root[:, 0]
    values, V = right_singular_vectors(
        lambda B: A @ B, lambda B: A.T @ B, (s, n), q + 1, root, rng
    )
    return V[:, :q], float(values[-1]) * (n / s) ** 0.5 / n


def _largest_entry(operator):
    """Return the largest k(x, x) of some rows."""
    xp, m = operator.xp, min(operator.shape[0], 1000)
    return float(xp.max(xp.abs(xp.linalg.diagonal(operator.block(0, m, 0, m)))))


def _n_above_rounding(sigma, n, entry, dtype):
    """Return how many eigenvalues of K(X, X) are more than rounding."""
    xp = namespace(sigma)
    above = sigma > _rounding_floor(n, entry, float(xp.finfo(dtype).eps))
    return int(xp.sum(xp.astype(above, xp.int64)))


def _rounding_floor(n, entry, eps):
    """Return the size of eigenvalues of K(X, X) that may be rounding.

    Along sigma_j coefficients grow like 1 / sigma_j and rounding leaves an error of
    n eps / sigma_j in predictions: above 1000 n eps, at most one in a thousand. The
    level of the preconditioned spectrum stays there.
    """
    return 1000 * n * eps * entry


@dataclass(frozen=True)
class LinearSpectral(_TopEigenvectors):
    """EigenPro's preconditioner of a linear model, P = I - V D V'.

    V = (e_1 .. e_q) are eigenvectors of the covariance of the features, from a
    subsample, with eigenvalues lambda_j, and D_j = 1 - tau lambda_{q+1} / lambda_j.
    Rows x, less their mean, have the preconditioned kernel x' P z.

    Attributes
    ----------
    vectors : array of shape (d, q)
    scales : array of shape (q,)
    eigenvalues : array of shape (q + 1,)
        Decreasing.
    damping : float
        tau.

    References
    ----------
    Ma and Belkin, "Diving into the shallows: a computational perspective on large-scale
    shallow learning", NeurIPS 2017: table 1 and appendix A.
    """

    n_kept = 0

    @classmethod
    def of(
        cls, operator, subsample_size, n_components, *, weights=None, damping=1.0, rng
    ):
        """Return the preconditioner with at most `n_components` eigenvectors.

        There may be fewer: at most one less than the eigenvalues that are not rounding.

        Parameters
        ----------
        operator : LinearOperator
        subsample_size, n_components : int
            s and q.
        weights : array of shape (n,), default=None
        damping : float, default=1.0
            tau.
        rng : numpy.random.RandomState
        """
        xp, s, d = operator.xp, subsample_size, operator.shape[1]
        root = xp.ones((s, 1), dtype=operator.dtype, device=operator.device)
        if weights is not None:
            root = weights[:s, None] ** 0.5
        k = min(n_components + 1, s, d)
        singular, V = right_singular_vectors(
            lambda B: root * operator.product(B, 0, s)[0],
            lambda B: operator.adjoint(root * B, 0, s),
            (s, d),
            k,
            root,
            rng,
        )
        # What rounding leaves of the largest directions in P g, times the long step, is
        # an error in predictions of eps lambda_1 / lambda_{q+1}: one in a hundred.
        values = xp.astype(singular, xp.float64) ** 2 / s
        floor = 100 * float(xp.finfo(operator.dtype).eps) * values[0]
        q = int(xp.sum(xp.astype(values > floor, xp.int64)))
        q = max(min(q - 1, n_components), 0)
        values = xp.astype(values[: q + 1], operator.dtype)
        return cls(V[:, :q], values[:-1], values, damping).truncate(q)

    def n_directions(self, spectrum):
        """Return what theorem 3 has in the logarithm, over 1 / delta."""
        return 2.0 * self.vectors.shape[0]

    def _scales(self, values):
        return 1.0 - self.damping * values[-1] / values[:-1]

    def features(self, operator, start, stop):
        """Return p(x) of some rows, shape (m, q)."""
        return operator.product(self.vectors, start, stop)[0]

    def descend(self, operator, coef, b, kept, step):
        """Change `coef` by a step of the batch `b` of rows, in place."""
        gradient = operator.adjoint(step, b.start, b.stop)
        coef -= gradient
        if self.n_components:
            coef += self.vectors @ (self.scales[:, None] * (self.vectors.T @ gradient))


@dataclass(frozen=True)
class CenterSpectral(_TopEigenvectors):
    """EigenPro's preconditioner of a model on centres, made in the centres' span.

    On c of the centres, Z_c, the functions psi_j = K(., Z_c) v_j with ::

        K(Z_c, X) W K(X, Z_c) v_j / N = lambda_j K(Z_c, Z_c) v_j
        v_i' K(Z_c, Z_c) v_j = 1 if i = j, else 0

    are the best approximations there (Rayleigh-Ritz) of the eigenfunctions of the
    kernel on N weighted rows X. The preconditioned kernel is ::

        k_P(x, z) = k(x, z) - K(x, Z_c) V D V' K(Z_c, z),  D_j = 1 - tau l_{q+1} / l_j

    The preconditioner maps the span of K(., Z) to itself and so commutes with the
    projection onto it: where the projected gradient vanishes, so does the gradient of
    least squares on the centres, whatever q. With eigenfunctions of a subsample of the
    rows, as in EigenPro 3, the fixed point is another (lemma 6 there).

    Attributes
    ----------
    vectors : array of shape (c, q)
        V.
    scales : array of shape (q,)
        The diagonal of D.
    eigenvalues : array of shape (q + 1,)
        lambda_j, decreasing.
    damping : float
        tau.
    """

    @classmethod
    def of(cls, centers, sample, n_rows, n_fitted, q, *, weights=None, damping=1.0):
        """Return the preconditioner with at most `q` eigenfunctions.

        Parameters
        ----------
        centers : KernelOperator
            K(Z, Z), in random order.
        sample : SampleOperator
        n_rows : int
            N, the first rows of the sample.
        n_fitted : int
            c, the first centres.
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
        places, L = pivoted_cholesky(B, 10 * n_fitted * eps * entry)
        if not len(places):  # the zero kernel
            vectors = xp.zeros((n_fitted, 0), dtype=dtype, device=centers.device)
            values = xp.zeros(1, dtype=dtype, device=centers.device)
            return cls(vectors, values[:0], values, damping)
        C = sample.center_block(0, n_rows, n_fitted, dtype=f64)
        root = xp.full((n_rows, 1), n_rows**-0.5, dtype=f64, device=centers.device)
        if weights is not None:
            w = xp.astype(weights[:n_rows, None], f64)
            root = xp.sqrt(w / xp.sum(w))
        kept = xp.asarray(places, device=centers.device)
        M = solve_triangular(L, (root * xp.take(C, kept, axis=1)).T)
        values, U = top_eigh(M @ M.T, min(q + 1, M.shape[0]))
        n_real = _n_above_rounding(values * n_fitted, n_fitted, entry, dtype)
        q = max(min(n_real, values.shape[0]) - 1, 0)
        short = solve_triangular(L, U[:, :q], transposed=True)
        place = np.full(n_fitted, len(places))
        place[places] = np.arange(len(places))
        short = xp.concat([short, xp.zeros_like(short[:1, :])])
        vectors = xp.take(short, xp.asarray(place, device=centers.device), axis=0)
        values = xp.where(values > 0, values, xp.zeros_like(values))[: q + 1]
        values = xp.astype(values, dtype)
        made = cls(xp.astype(vectors, dtype), values[:-1], values, damping)
        return made.truncate(q)

    def _scales(self, values):
        return 1.0 - self.damping * values[-1] / values[:-1]

    def features(self, sample, start, stop):
        """Return p(x) = V' K(Z_c, x) of some rows of the sample, shape (m, q)."""
        block = sample.center_block(start, stop, self.vectors.shape[0])
        return block @ self.vectors

    def correction(self, K_b, step):
        """Return the preconditioner's part of a step, in coordinates of V.

        Parameters
        ----------
        K_b : array of shape (m, c)
            K(X_b, Z_c).
        step : array of shape (m, l)

        Returns
        -------
        array of shape (q, l)
        """
        image = self.vectors.T @ (K_b.T @ step)
        return self.scales[:, None] * image

    def add_to(self, coef, S):
        """Add V S to coefficients (p, l) of the centres, in place."""
        if self.n_components:
            coef[: self.vectors.shape[0], :] += self.vectors @ S


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
        matrices = self._matrices(q)
        grid = near * 2.0 ** (np.arange(-3, 9) / 6)
        below = above = None  # the nearest grids that were stable, unstable throughout
        for _ in range(20):
            stable = self._stable(*matrices, batch_size, grid)
            if stable.all():
                below, grid = grid, 4 * grid
            elif not stable[0]:
                above, grid = grid, grid / 4
            else:  # the first unstable step ends the range, whatever noise says beyond
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
        floor = _rounding_floor(1, self._unit, float(xp.finfo(xp.float32).eps))
        if level > floor and 1e-30 < self._unit < 1e30:
            parts = tuple(xp.astype(part, xp.float32, copy=False) for part in parts)
        return parts

    def _stable(self, K, P, D, m, steps):
        """Return which of `steps` keep the iteration for zero targets bounded."""
        xp, n_rows = self._xp, K.shape[0]
        rates = xp.asarray(steps / m, dtype=K.dtype, device=device_of(K))
        start = xp.astype(self._start, K.dtype)[:, None] / self._unit
        f = K @ start - P @ (D * (P.T @ start))
        weights = xp.astype(self._root * self._root, K.dtype)[:, None]
        rng, norms, n_epochs = np.random.RandomState(0), [], 16
        with np.errstate(over="ignore", invalid="ignore"):
            f = f / xp.linalg.vector_norm(f) + xp.zeros_like(rates)[None, :]
            for _ in range(n_epochs):
                for i in rng.permutation(np.arange(0, n_rows, m)):
                    b = slice(int(i), min(int(i) + m, n_rows))
                    g = rates * (weights[b, :] * f[b, :])
                    f = f - K[:, b] @ g + P @ (D * (P[b, :].T @ g))
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
            return R * (self._K @ U - P @ (D * (P.T @ U))) / n_rows

        values = largest_eigenvalues(apply, xp.zeros_like(R) + self._start[:, None])
        return [
            # With the zero kernel any step will do.
            (self._unit * (noisy / top if top > 0 else most), top * self._unit)
            for top, noisy, most in zip(values[::2], values[1::2], largest, strict=True)
        ]


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
