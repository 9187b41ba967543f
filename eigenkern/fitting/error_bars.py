"""Standard deviations of new targets, measured on rows that were left out.

With the symbols of `methods.left_out`, a new target has the variance ::

    (s^2 v(x) + sigma^2) exp(2 h(x)),    v(x) = k(x, x) - k(x)' (K + c W^-1)^-1 k(x)

v is that of the Gaussian process whose mean is the model, on all of its rows or on some
of them; s^2 and sigma^2 are the most likely ones for the left-out residuals; and h says
where these are larger or smaller than that: Laplacian regression of their logarithm.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from scipy.linalg import eigh

from ..arrays.array import location_of, move, namespace, to_numpy
from ..arrays.devices import compute_devices
from ..arrays.linalg import cholesky, large_product, solve_triangular
from ..kernels import Laplacian
from ..methods.left_out import scales, unseen
from ..operators.blocks import blocks
from ..operators.sharded import kernel_operator
from ..operators.tiled import TiledKernel
from ..plan.of_rounds import ERROR_BAR_ROWS
from ..problems.problem import take
from ..rows.robust import cast

# The kernel of h is z z' plus this laplacian, in units of the standard deviations of z.
# Lengths of 1.7 and 3.3 have the same log densities up to 0.01.
_SPREAD = Laplacian(bandwidth=1 / 0.3)
# Penalties of h, from none of it to all.
_PENALTIES = np.geomspace(1e4, 1.0, 17)
# Fewest left-out rows from which to learn h.
_FEWEST = 30
# No h is below that of this many percent of the left-out rows. With 0 the mean log
# density of 41 fits is the same; that of their worst 2 % of blocks of 50 rows is
# 0.0015 lower with 0 and 0.0010 higher with 10.
_LEAST_PERCENT = 5
# Least part of the deviation of left-out values that does not come from own targets.
_LEAST_HONEST = 1e-3
# Smallest part of the usual v that counts, v of rows equal to training rows.
_LEAST_UNSEEN = 1e-3


@dataclass(frozen=True)
class ErrorBars:
    """What standard deviations of new targets need, on the host.

    Attributes
    ----------
    kernel : Kernel
    centers, factor : ndarrays of shape (p, d) and (p, p)
        Rows of the Gaussian process, and L with L L' = K + c W^-1 of them.
    prior, noise : ndarrays of shape (l,)
        s^2 and sigma^2.
    mean, spread : ndarrays of shape (l,)
        Those of the targets; a spread of NaN: they say nothing about far rows.
    largest : float
        v of the farthest row that was left out.
    frame : ndarray of shape (4, q)
        Least, largest, center and scale of z = (f(x) / l^1/2, log v(x), x / d^1/2).
    known : ndarray of shape (m, q)
        z of the left-out rows.
    slope, coef, level, limits : ndarrays of shape (q, l), (m, l), (l,) and (2, l)
        ``h = level + clip(z slope + k(z, known) coef, *limits)``.
    """

    kernel: Any
    centers: np.ndarray
    factor: np.ndarray
    prior: np.ndarray
    noise: np.ndarray
    mean: np.ndarray
    spread: np.ndarray
    largest: float
    frame: np.ndarray
    known: np.ndarray
    slope: np.ndarray
    coef: np.ndarray
    level: np.ndarray
    limits: np.ndarray

    @np.errstate(over="ignore", invalid="ignore")
    def deviation(self, X, F, device="auto"):
        """Return the standard deviation of targets of rows, where X lives, in its type.

        F are the predictions, (n, l); all is computed in float64.
        """
        devices = compute_devices(device, X)
        on = _Moved(self, devices[0])
        xp, rows = on.xp, move(X, *devices[0])
        rows = xp.astype(rows, xp.float64, copy=False)
        F = xp.astype(move(F, *devices[0]), xp.float64, copy=False)
        parts = [
            on.variance(rows[part, :], F[part, :])
            for part in blocks(X.shape[0], 3 * (len(self.centers) + len(self.known)))
        ]
        values = xp.sqrt(xp.concat(parts)) if parts else 0.0 * F
        return cast(move(values, *location_of(X)), X.dtype)


class _Moved:
    """The arrays of `ErrorBars` on a device."""

    def __init__(self, bars, location):
        for field in fields(bars):
            value = getattr(bars, field.name)
            moved = move(value, *location) if isinstance(value, np.ndarray) else value
            setattr(self, field.name, moved)
        self.xp, self.locations = location[0], [location]

    def variance(self, X, F):
        """Return the variance of targets, (n, l), of rows with predictions F."""
        xp, diagonal = self.xp, self.kernel.diagonal(X)
        K = kernel_operator(self.kernel, self.centers, self.locations, X).block()
        v = unseen(solve_triangular(self.factor, K.T), diagonal)
        low, high, center, scale = (self.frame[i, :] for i in range(4))
        z = _within(_described(F, v, X, self.frame), low, high)
        z = (z - center) / scale
        h = large_product(z, self.slope)
        if self.known.shape[0]:
            matrix = kernel_operator(_SPREAD, self.known, self.locations, z)
            h = h + matrix.block() @ self.coef
        h = self.level + _within(h, self.limits[0, :], self.limits[1, :])
        of_f = v[:, None] * self.prior
        # Rather than more than the targets vary, f is as far off as from their mean.
        limit = xp.maximum(self.spread + 0.0 * F, (F - self.mean) ** 2)
        of_f = xp.where(of_f > limit, limit, of_f)  # NaN is no limit
        variance = (of_f + self.noise) * xp.exp(2 * h)
        # Beyond the farthest left-out row the logarithm of the variance changes to that
        # of the limit, as v does to k(x, x).
        rest = diagonal - self.largest
        part = (v - self.largest) / xp.where(rest > 0, rest, xp.full_like(rest, xp.inf))
        part = xp.clip(part, 0.0, 1.0)[:, None]
        far = (part > 0) & (limit > 0) & (variance > 0)
        one = xp.ones_like(variance)
        ratio = xp.where(far, limit, one) / xp.where(far, variance, one)
        return variance * ratio**part


def _within(values, low, high):
    """Return values with their columns cut off at limits."""
    xp = namespace(values)
    return xp.minimum(xp.maximum(values, low), high)


def _described(F, v, X, frame):
    """Return (f / l^1/2, log v, x / d^1/2) of rows, not centered: (n, q)."""
    xp = namespace(X)
    least = xp.exp(frame[0, F.shape[1]])
    log_v = xp.log(xp.maximum(v, least + 0.0 * v))
    parts = F / F.shape[1] ** 0.5, log_v[:, None], X / X.shape[1] ** 0.5
    return xp.concat(parts, axis=1)


@np.errstate(over="ignore", divide="ignore", invalid="ignore")
def measured(kernel, X, targets, weights, left_out):
    """Return the `ErrorBars` of kernel ridge regression.

    It takes at most 1000 rows of X and 1000 left-out ones, so that memory is 8 MB, 40
    MB while it runs, and time that of an eigendecomposition of that size.

    Parameters
    ----------
    kernel : Kernel
    X : array of shape (n, d)
        The rows that the model is fitted to.
    targets, weights : ndarrays of shape (n, l) and (n,)
    left_out : LeftOut
        Observations, each with its value in a model without it.
    """
    rows, m = left_out.rows, len(left_out.values)
    chosen = np.linspace(0, m - 1, min(m, ERROR_BAR_ROWS)).astype(int)
    values, Y, w = (part[chosen] for part in left_out[1:4])
    Z = _on_host(take(left_out.X, chosen))
    exact = left_out.unseen is not None and len(rows) <= ERROR_BAR_ROWS
    p = len(rows) if exact else min(left_out.n_others, ERROR_BAR_ROWS)
    centers = _on_host(take(X, rows[:p]))
    K = TiledKernel(kernel, centers).block()
    ridges = left_out.ridges[:p]
    L = _factor(K, ridges)
    if L is None:
        return None
    if exact:
        v = left_out.unseen[chosen]
    else:
        P = solve_triangular(L, TiledKernel(kernel, centers, Z).block().T)
        v = unseen(P, kernel.diagonal(Z))
    diagonal = kernel.diagonal(centers)
    residuals, largest = Y - values, float(diagonal.mean())
    prior, noise = scales(residuals, v, 1 / w, left_out.ratio, largest)
    variances = v[:, None] * prior + noise / w[:, None]
    mean = np.average(targets, axis=0, weights=weights)
    spread = np.average((targets - mean) ** 2, axis=0, weights=weights)
    if np.ptp(diagonal) > 1e-6 * largest:  # such a kernel has no limit far away
        spread = np.full_like(spread, np.nan)
    k, d = Y.shape[1], Z.shape[1]
    frame = np.zeros((4, k + 1 + d))
    frame[0, k] = np.log(max(_LEAST_UNSEEN * np.median(v), np.finfo(float).tiny))
    honest = _without_own_targets(values, Y, w)
    z = _described(honest, v, Z, frame)
    frame = np.stack([z.min(axis=0), z.max(axis=0), z.mean(axis=0), z.std(axis=0)])
    constant = frame[3] <= 1e-9 * np.abs(frame[:2]).max(axis=0)
    constant[:k] |= honest.std(axis=0) <= _LEAST_HONEST * values.std(axis=0)
    frame[3] = np.where(constant, np.inf, frame[3]) * _shares(k, d)
    z = (z - frame[2]) / frame[3]
    found = _spread_of(z, residuals, variances)
    arrays = prior, noise, mean, spread, float(v.max()), frame
    return ErrorBars(kernel, centers, L, *arrays, *found)


def _without_own_targets(values, Y, w):
    """Return left-out values without the part that falls with a row's own target.

    What is left of nearly constant models is the mean of the other targets, which tells
    the own one, and so the size of its residual. An own target counts as its weight.
    """
    Y = w[:, None] * (Y - np.average(Y, axis=0, weights=w))
    squares = np.sum(Y**2, axis=0)
    slope = np.sum(Y * values, axis=0) / np.where(squares > 0, squares, 1.0)
    return values - np.minimum(slope, 0.0) * Y


def of_equal_rows(kernel, X, targets, weights):
    """Return the `ErrorBars` of a constant: everywhere the variance of the targets."""
    mean = np.average(targets, axis=0, weights=weights)
    variance = np.average((targets - mean) ** 2, axis=0, weights=weights)
    variance *= len(targets) / max(len(targets) - 1, 1)
    center, k = _on_host(X[:1, :]), len(mean)
    frame = np.zeros((4, k + 1 + X.shape[1]))
    frame[3] = 1.0
    nothing = _nothing(frame.shape[1], k)
    far = np.full(k, np.nan)
    scales_of_both = np.zeros(k), variance
    return ErrorBars(
        kernel, center, np.eye(1), *scales_of_both, mean, far, 0.0, frame, *nothing
    )


def _nothing(q, n_outputs):
    """Return the `known`, `slope`, `coef`, `level` and `limits` of h = 0."""
    zero = np.zeros((q, n_outputs))
    level, limits = np.zeros(n_outputs), np.zeros((2, n_outputs))
    return np.zeros((0, q)), zero, zero[:0], level, limits


def _shares(k, d):
    """Return what to divide z by: k predictions, log v, and d features count alike."""
    return np.sqrt(np.concatenate([np.full(k, k), [1.0], np.full(d, d)]))


def _on_host(X):
    return to_numpy(X).astype(np.float64)


def _factor(K, ridges):
    """Return the factor of K + diag(ridges), raised above rounding if necessary."""
    least = np.finfo(float).eps * len(K) * float(np.diagonal(K).mean())
    for _ in range(4):
        L = cholesky(K + np.diag(ridges))
        if L is not None:
            return np.tril(L)
        ridges, least = np.maximum(ridges, least), 10 * least
    return None


def _spread_of(z, residuals, variances):
    """Return `known`, `slope`, `coef`, `level` and `limits` of h, for every output.

    u, the absolute residual over its standard deviation and mean, has the density
    ``exp(-h - u exp(-h))``, if it is that of Laplace. With S = K (K + lambda I)^-1, h
    is the limit of Fisher's scoring ``h <- S (h + u exp(-h) - 1)``. lambda maximizes
    the Gaussian log density of the residuals at values of h without their rows; h is 0
    if that gains less than 2 over all rows, as in `scales`.
    """
    (m, q), k = z.shape, residuals.shape[1]
    coef, level, limits = np.zeros((m, k)), np.zeros(k), np.zeros((2, k))
    able = np.all((variances > 0) & np.isfinite(variances), axis=0)
    u = np.abs(residuals) / np.sqrt(np.where(able, variances, 1.0))
    able &= u.mean(axis=0) > 0
    if m < _FEWEST or not able.any():
        return _nothing(q, k)
    squares = u[:, able] ** 2
    u = u[:, able] / u[:, able].mean(axis=0)
    K = z @ z.T + TiledKernel(_SPREAD, z).block()
    values, U = eigh(K, driver="evd")
    values = np.maximum(values, 0.0)
    where = np.flatnonzero(able)
    best = 0.5 * m * np.log(np.maximum(squares.mean(axis=0), np.finfo(float).tiny)) - 2
    h = np.zeros_like(u)
    for penalty in _PENALTIES:
        part = (values / (values + penalty))[:, None]
        for _ in range(8):
            response = h + u * np.exp(-h) - 1
            change = U @ (part * (U.T @ response)) - h
            h = h + change * np.minimum(1.0, 2.0 / np.abs(change).max(axis=0))
            if np.abs(change).max() < 1e-3:
                break
        response = h + u * np.exp(-h) - 1
        components = U.T @ response
        kept = 1.0 - U**2 @ part
        out = response - (response - U @ (part * components)) / kept
        ratio = np.mean(squares * np.exp(-2 * out), axis=0)
        surprise = 0.5 * m * np.log(ratio) + out.sum(axis=0)
        better = surprise < best
        best = np.where(better, surprise, best)
        some = where[better]
        solved = U @ (components / (values[:, None] + penalty))
        coef[:, some] = solved[:, better]
        level[some] = 0.5 * np.log(ratio[better])
        limits[:, some] = np.percentile(out[:, better], (_LEAST_PERCENT, 100), axis=0)
    if not coef.any():
        return _nothing(q, k)
    return z, z.T @ coef, coef, level, limits
