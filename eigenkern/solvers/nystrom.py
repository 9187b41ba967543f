"""Nystrom kernel ridge regression and NYTRO: whole paths from one factorisation.

Notation of the papers: Z holds the m centres, K_mm = K(Z, Z), K_nm = K(X, Z), weights W
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

from .._array import device_of, is_numpy, namespace
from .._linalg import cholesky, eigh, pivoted_cholesky, solve_triangular

_EPS = float(np.finfo(np.float64).eps)
# Bytes that a block of rows, or a part of a path, may take at a time.
BLOCK_BYTES = 64e6


@dataclass(frozen=True)
class NystromPlan:
    """The memory that a fit takes beside its rows, in float64.

    With p centres, k matrices of p x p numbers at a time, blocks of b rows and c
    numbers that are kept for the candidates of a path, a plan has ::

        8 (k p^2 + 3 b p + c) + 2 BLOCK_BYTES <= free memory

    Attributes
    ----------
    bytes : int
        The left-hand side.
    """

    bytes: int

    #: Matrices: K_mm or its factor, sums over the training rows (and over the
    #: validation rows), what is whitened, eigenvectors and their workspace.
    SQUARES = {"ridge": 5, "path": 7, "full ridge": 3, "full path": 6, "falkon": 7}

    @classmethod
    def make(cls, kind, n_centers, n_rows, *, validated=False, n_kept=0):
        """Return the plan of a fit.

        Parameters
        ----------
        kind : str
            Of `SQUARES`.
        n_centers, n_rows : int
        validated : bool, default=False
            Whether sums over validation rows are kept.
        n_kept : int, default=0
            c.
        """
        n_squares = cls.SQUARES[kind] + 2 * validated
        n_block = min(int(BLOCK_BYTES // (8 * n_centers)) + 16, n_rows)
        floats = n_squares * n_centers**2 + 3 * n_block * n_centers + n_kept
        return cls(int(8 * floats + 2 * BLOCK_BYTES))


@dataclass(frozen=True)
class Whitening:
    """R with R R' = K_mm^+ on the centres that are kept: R = L^-T.

    Attributes
    ----------
    kept : ndarray of shape (p,)
        Indices of centres that span all of them, in the order of L.
    L : array of shape (p, p)
        Lower Cholesky factor of K_mm of those centres.
    smallest : float
        The smallest squared diagonal entry of L, over the largest.
    R : array of shape (p, p) or None
        R itself, where rows are whitened one by one before they are summed.
    """

    kept: np.ndarray
    L: Any
    smallest: float
    R: Any = None

    # The relative rounding error of K' K, in float64, is eps; R on both sides makes
    # it eps / smallest. Below this limit rows are whitened before they are summed up,
    # which leaves the error at eps, and costs n p^2 more.
    _LIMIT = 1e-6

    @classmethod
    def of(cls, K_mm, dtype):
        """Return the whitening of a kernel matrix in float64.

        Parameters
        ----------
        K_mm : array of shape (m, m)
        dtype : data type
            Of the kernel values of the data. In float32 their rounding, 1e-7, would
            drown directions below it.
        """
        xp = namespace(K_mm)
        relative = 1e-12 if dtype == xp.float64 else 1e-7
        kept, L = pivoted_cholesky(
            K_mm, relative * float(xp.max(xp.linalg.diagonal(K_mm)))
        )
        if not len(kept):
            raise ValueError(
                "the kernel matrix of the centres is zero: choose a kernel and a "
                "bandwidth for which k(x, x) is positive"
            )
        squares = xp.linalg.diagonal(L) ** 2
        smallest = float(xp.min(squares)) / float(xp.max(squares))
        R = None
        if smallest < cls._LIMIT and dtype == xp.float64:
            identity = xp.eye(len(kept), dtype=xp.float64, device=device_of(L))
            R = solve_triangular(L, identity, transposed=True)
        return cls(kept, L, smallest, R)

    @property
    def rounding(self):
        """The rounding error of B over its trace."""
        return 10 * _EPS / (1.0 if self.R is not None else self.smallest)

    def expand(self, b):
        """Return R b, the coefficients of the kept centres."""
        if self.R is not None:  # the same rounding as in the rows
            return self.R @ b
        return solve_triangular(self.L, b, transposed=True)


@dataclass(frozen=True)
class Moments:
    """Sums over rows that a least-squares fit and its error depend on.

    With features C (rows phi(x)', or K(x, Z)) and T = [Y, 1] they are C' W C, C' W T
    and T' W T: sums over two sets of rows add up.
    """

    gram: Any
    cross: Any
    squares: Any

    @classmethod
    def of(cls, operator, Y, weights, transform=None):
        """Return the sums over the rows of K(X, Z), or of K(X, Z) @ transform.

        Parameters
        ----------
        operator : KernelOperator
        Y : array of shape (n, l)
            In float64.
        weights : array of shape (n,)
            In float64.

        Raises
        ------
        ValueError
            If the kernel has values that are not finite.
        """
        xp = namespace(Y)
        T = xp.concat([Y, xp.ones_like(Y[:, :1])], axis=1)
        gram, cross = operator.gram(T, weights, transform=transform)
        check_finite(xp.linalg.diagonal(gram))
        return cls(gram, cross, T.T @ (T * weights[:, None]))

    def __add__(self, other):
        return Moments(
            self.gram + other.gram,
            self.cross + other.cross,
            self.squares + other.squares,
        )

    def whitened(self, L):
        """Return the sums for the features L^-1 C."""
        half = solve_triangular(L, self.gram)
        gram = solve_triangular(L, half.T)
        return Moments(gram, solve_triangular(L, self.cross), self.squares)

    @property
    def weight(self):
        """N."""
        return float(self.squares[-1, -1])

    @property
    def mean(self):
        """Mean of the targets, shape (l,)."""
        return self.squares[:-1, -1] / self.squares[-1, -1]

    def centred_cross(self, intercept):
        """Return C' W (Y - intercept)."""
        return self.cross[:, :-1] - self.cross[:, -1:] * intercept[None, :]

    def centred_squares(self, intercept):
        """Return the sum of the squares of Y - intercept of every output, (l,)."""
        xp = namespace(self.squares)
        sums = self.squares[:-1, -1]
        squares = xp.linalg.diagonal(self.squares)[:-1]
        return squares - 2 * intercept * sums + intercept**2 * self.squares[-1, -1]


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
        Sum of the squares of the weighted, centred targets.
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
        cross = xp.concat([moments.centred_cross(mean), moments.cross[:, -1:]], axis=1)
        return cls(
            values / N,
            V,
            V.T @ cross / N,
            moments.centred_squares(mean),
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
            Centred targets.
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


def validation_errors(spectrum, filters, moments, intercept, expand):
    """Return the mean squared error of a path on the rows of `moments`.

    It is a quadratic form in b: the validation rows are not visited again.

    Parameters
    ----------
    spectrum : Spectrum
        Of the training rows.
    filters : array of shape (p, k)
    moments : Moments
        Of the validation rows, for the same features or for K(x, Z).
    intercept : array of shape (l,)
        Of the training rows.
    expand : callable
        ``expand(b)`` returns the coefficients of the features of `moments`, for b of
        shape (p, c). For fewer than p candidates that is less than to whiten the sums.

    Returns
    -------
    ndarray of shape (k,)
        Over rows and outputs, on the host.
    """
    xp = namespace(filters)
    cross = moments.centred_cross(intercept)[:, :, None]
    constant = float(xp.sum(moments.centred_squares(intercept)))
    errors = []
    for b in path_coefs(spectrum, filters):
        coef = expand(xp.reshape(b, (b.shape[0], -1)))
        G_coef = xp.reshape(moments.gram @ coef, b.shape)
        coef = xp.reshape(coef, b.shape)
        errors.append(constant + xp.sum(coef * (G_coef - 2 * cross), axis=(0, 1)))
    return _host(xp.concat(errors)) / (moments.weight * cross.shape[1])


def prediction_errors(spectrum, filters, blocks, Y, weights):
    """Return the mean squared error of a path on rows, (k,), from their features.

    On the full kernel b grows like 1 / e, and the quadratic form of `validation_errors`
    would cancel to nothing; the features along eigenvectors are bounded.

    Parameters
    ----------
    spectrum : Spectrum
        Of the training rows.
    filters : array of shape (p, k)
    blocks : iterable of (slice, array of shape (b, p))
        Rows phi(x)' V, block by block.
    Y : array of shape (n, l)
        Targets less the intercept.
    weights : array of shape (n,)
    """
    xp = namespace(filters)
    coefs = spectrum.targets[:, :-1, None] * filters[:, None, :]
    coefs = xp.reshape(coefs, (filters.shape[0], -1))
    total = xp.zeros_like(filters[0, :])
    for rows, P in blocks:
        shape = (P.shape[0], Y.shape[1], filters.shape[1])
        residual = xp.reshape(P @ coefs, shape) - Y[rows, :, None]
        squares = xp.sum(residual**2, axis=1)
        total = total + xp.sum(weights[rows, None] * squares, axis=0)
    return _host(total / (float(xp.sum(weights)) * Y.shape[1]))


def gcv_errors(spectrum, kept, n_rows):
    """Return the generalised cross-validation error of a path, (k,).

    GCV = |y - H y|^2 / N / (tr(I - H) / n)^2 for the linear smoother H of the centred
    fit. It subtracts the mean, I - H = (I - S) (I - 1 1' / N), and S takes the fraction
    1 - `kept` of every component of the targets.

    Parameters
    ----------
    spectrum : Spectrum
    kept : array of shape (p, k)
        1 - e g, what a filter g leaves of the targets along an eigenvector; any
        multiple of it if ``spectrum.complete`` and n = p.
    n_rows : int
        n, rows that differ: a copy, or a weight of 2, is no more information.
    """
    xp = namespace(kept)
    N, parts, inside = spectrum.weight, spectrum.components**2, spectrum.inside
    n_outputs = parts.shape[1] - 1
    y_parts = xp.sum(parts[:, :-1], axis=1)
    kept = xp.where(inside[:, None], kept, xp.zeros_like(kept))
    residual = (kept**2).T @ y_parts
    trace = xp.sum(kept, axis=0) - kept.T @ parts[:, -1] / N
    if not (spectrum.complete and n_rows == kept.shape[0]):
        outside = float(xp.sum(spectrum.squares)) - float(xp.sum(y_parts))
        residual = residual + max(outside, 0.0)
        n_inside = float(xp.sum(xp.astype(inside, xp.float64)))
        trace = trace + n_rows - n_inside - 1 + float(xp.sum(parts[:, -1])) / N
    # Less than rounding leaves of a trace: such a model has no freedom left to judge.
    left = trace > 1e-10 * xp.max(xp.abs(trace))
    safe = xp.where(left, trace, xp.ones_like(trace))
    errors = residual / (n_outputs * N) * (n_rows / safe) ** 2
    return _host(xp.where(left, errors, xp.full_like(errors, np.inf)))


def loo_errors(spectrum, kept, blocks, Y, weights):
    """Return the exact leave-one-out error of kernel ridge regression, (k,).

    Leaving row i out changes its residual r_i to ::

        (r_i + c_i (1 - s_i)) / (1 - h_i),   c_i = w_i y_i / (N - w_i)

    with the leverage h_i = S_ii and s = S 1; c_i is how far the mean of the centred
    targets moves. The penalty lambda N is kept. With U the orthonormal columns of
    W^1/2 Phi V, r = y - U U'y + U kept U'y, and 1 - h likewise.

    Parameters
    ----------
    spectrum : Spectrum
    kept : array of shape (p, k)
        1 - e g = lambda / (e + lambda); any multiple of it if ``spectrum.complete``.
    blocks : iterable of (slice, array of shape (b, p))
        Rows of U, block by block.
    Y : array of shape (n, l)
        Centred targets.
    weights : array of shape (n,)
    """
    xp = namespace(kept)
    N, n_outputs = spectrum.weight, Y.shape[1]
    components = spectrum.components
    kept_components = components[:, :, None] * kept[:, None, :]
    kept_components = xp.reshape(kept_components, (kept.shape[0], -1))
    total = xp.zeros_like(kept[0, :])
    for rows, U in blocks:
        w = weights[rows]
        T = xp.concat([Y[rows, :], xp.ones_like(w)[:, None]], axis=1)
        T = xp.sqrt(w)[:, None] * T
        shape = (U.shape[0], n_outputs + 1, kept.shape[1])
        residual = xp.reshape(U @ kept_components, shape)
        left = U**2 @ kept
        if not spectrum.complete:
            residual = residual + (T - U @ components)[:, :, None]
            left = left + (1 - xp.sum(U**2, axis=1))[:, None]
        moved = (w / (N - w))[:, None] * Y[rows, :]
        residual = residual[:, :-1, :] + moved[:, :, None] * residual[:, -1:, :]
        left = xp.where(left > 0, left, xp.full_like(left, _EPS))
        total = total + xp.sum((residual / left[:, None, :]) ** 2, axis=(0, 1))
    return _host(total / (N * n_outputs))


def solve_ridge(B, q, alpha):
    """Return (B + alpha I)^-1 q by a Cholesky factor, or None if B is not definite.

    `B`, of shape (p, p), is overwritten.
    """
    L = cholesky(_add_to_diagonal(B, alpha))
    if L is None:
        return None
    return solve_triangular(L, solve_triangular(L, q), transposed=True)


def factorising_pays(
    n_rows, n_centers, n_features, n_outputs, n_iter, *, itemsize, cached, n_threads
):
    """Whether a factorisation gives the path of gradient descent sooner than iterating.

    A model of seconds: 40 Gflop/s a thread in float64 and twice that in float32, 1 ns
    for a value of the kernel's function, 0.6 ns to bring one to float64, 10 GB/s for
    all threads to read a kernel matrix that is kept.

    Parameters
    ----------
    n_rows, n_centers, n_features, n_outputs, n_iter : int
        n_centers None: all rows, the full kernel.
    itemsize : int
        Bytes of a value of the kernel.
    cached : bool
        Whether the kernel matrix is kept between iterations.
    n_threads : int
    """
    n, p = n_rows, n_centers or n_rows
    flop = 1 / (40e9 * n_threads)
    # Eigenvectors twice, on the training rows and on all of them.
    factorise = 2 * 7 * p**3 * flop + n * p**2 * flop
    entry = 4 * n_outputs * flop + 0.6e-9 / n_threads
    if cached:
        entry += itemsize / 10e9
    else:
        entry += (2 * n_features * flop + 1e-9 / n_threads) * itemsize / 8
    return factorise < 2 * n_iter * n * p * entry


def _add_to_diagonal(B, value):
    xp = namespace(B)
    if is_numpy(xp):
        B.flat[:: len(B) + 1] += value
        return B
    return B + value * xp.eye(B.shape[0], dtype=B.dtype, device=device_of(B))


def check_finite(values):
    """Raise a ValueError unless these values of a kernel matrix are finite."""
    xp = namespace(values)
    if not bool(xp.all(xp.isfinite(values))):
        raise ValueError(
            "the kernel matrix has values that are not finite: scale X, or choose "
            "another kernel or bandwidth"
        )


class IndefiniteKernelError(ValueError):
    """A kernel has negative eigenvalues, along which gradient descent diverges."""


def descend(gradient, coef, step_size, noise):
    """Yield the coefficients after 1, 2, ... steps of gradient descent.

    Parameters
    ----------
    gradient : callable
        ``gradient(coef)`` returns B b - q.
    coef : array of shape (p, l)
        Where it starts.
    step_size : float
        gamma < 2 / e_max.
    noise : float
        Fraction of the first gradient below which only rounding is left of one.

    Raises
    ------
    IndefiniteKernelError
        If the gradient grows: with positive eigenvalues it cannot.
    """
    xp = namespace(coef)
    first = previous = None
    while True:
        g = gradient(coef)
        norm = float(xp.linalg.vector_norm(g))
        first = norm if first is None else first
        grows = previous is not None and norm > 1.0001 * previous
        if not np.isfinite(norm) or (grows and norm > noise * first):
            raise IndefiniteKernelError
        previous = norm
        coef = coef - step_size * g
        yield coef


def _host(values):
    return np.asarray([float(value) for value in values])
