"""Gradients of a kernel machine, as products of another kernel matrix.

Of f(x) = sum_j a_j k(x, z_j) with grad k(x, z) = c w(x, z) (z - x)::

    grad f(x) = c (sum_j w(x, z_j) a_j z_j - x sum_j w(x, z_j) a_j)

is a product of W = w(X, Z) with the columns [a, a z]: l (d + 1) columns for l outputs
and d features. If only the signs of z - x count, W is multiplied by them, feature by
feature. Nothing of size (m, p, d) is ever in memory.
"""

import numpy as np

from ..arrays.array import (
    clipped,
    device_of,
    is_numpy,
    location_of,
    move,
    namespace,
    slices,
    to_numpy,
)
from ..arrays.machine import GRADIENT_BYTES, SIGNED_ROWS, SIGNED_TILE
from ..arrays.threads import run_on_threads
from ..rows.robust import cast, centered, cut, cutoffs, medians, sampled
from ..rows.transfer import StreamedRows
from .sharded import kernel_operator

# Bandwidths from which signs of differences are not needed: exp(-1e4) is zero.
_FAR = 1e4


class KernelGradient:
    """Gradients of f = K(., Z) a at the rows of X (m, d), `kernel` with a slope.

    Computing them costs m p (d + l (d + 1)) multiply-adds and m p evaluations of w. Z
    (p, d), a (p, l) and X may be on any device; results are on the first of `devices`.
    """

    def __init__(self, kernel, centers, coef, devices, X):
        self._slope = kernel.slope()
        self._matrix = kernel_operator(self._slope.kernel, centers, devices, X)
        self.xp, device = self._matrix.xp, self._matrix.device
        self.dtype = self._matrix.dtype
        self._coef = move(coef, self.xp, device)
        self._Z = move(centers, self.xp, device)
        self._rows, self._frame = StreamedRows(X, *devices[0]), {}
        # Far from the origin the difference of the two sums would lose digits.
        if self._slope.direction != "z":
            self._frame = self._slope.kernel.frame(self._Z)
        self.shape = *X.shape, coef.shape[1]

    def block(self, start, stop, mix=None):
        """Return the gradients at rows [start:stop], shape (m, d, l).

        With `mix` (l, r), those of the r combinations ``f(x) @ mix`` of the outputs.
        """
        xp, coef = self.xp, _mixed(self._coef, mix)
        x = cast(self._rows[start:stop, :], self.dtype)
        if self._slope.direction == "sign(z - x)":
            return self._slope.factor * self._by_signs(x, coef)
        (p, d), itemsize = self._Z.shape, self._matrix.itemsize
        Z, parts = self._Z, []
        if "offset" in self._frame:
            offset, limits = self._frame["offset"], self._frame["limits"]
            x, Z = centered(x, offset, limits), centered(Z, offset, limits)
        n_at_once = max(int(GRADIENT_BYTES // (itemsize * p * (d + 1))), 1)
        for outputs in slices(coef.shape[1], n_at_once):
            a = coef[:, outputs]
            k = a.shape[1]
            moments = xp.reshape(Z[:, :, None] * a[:, None, :], (p, d * k))
            sums = self._matrix.product(xp.concat([a, moments], axis=1), start, stop)
            G = xp.reshape(sums[:, k:], (stop - start, d, k))
            if self._slope.direction == "z - x":
                G = G - x[:, :, None] * sums[:, None, :k]
            parts.append(self._slope.factor * G)
        return parts[0] if len(parts) == 1 else xp.concat(parts, axis=2)

    def _by_signs(self, x, coef):
        """Return sum_j w(x, z_j) sign(z_j - x) a_j of the rows x."""
        xp, kernel, (m, d), p = self.xp, self._slope.kernel, x.shape, self._Z.shape[0]
        left, right = (kernel.encode(rows, **self._frame) for rows in (x, self._Z))
        left, x, Z = kernel.left(left), self._near(x), self._near(self._Z)
        huge = kernel.left(kernel.encode(x, **self._frame))
        huge *= xp.repeat(self._huge(x, Z), 2)
        signed = kernel.encode(Z, **self._frame)
        G = xp.zeros((m, d, coef.shape[1]), dtype=self.dtype, device=device_of(x))
        # Four tiles: W, -W, the differences, and another one inside `evaluate`.
        n_centers, n_rows = p, max(int(GRADIENT_BYTES // (32 * p)), 1)
        pool = self._matrix.pool
        if is_numpy(xp):
            n_workers = 1 if pool is None else pool.n_workers
            n_rows = min(SIGNED_ROWS, -(-m // n_workers))
            n_centers = SIGNED_TILE // n_rows

        def task(i):
            rows = slice(i, min(i + n_rows, m))
            for columns in slices(p, n_centers):
                Z, a, tile = signed[columns, :], coef[columns, :], None
                W = kernel.evaluate(xp, left[rows, :], right[columns, :])
                least = -W
                for j in range(d):
                    tile = kernel.difference(xp, huge[rows, :], Z, j, tile)
                    # W sign(x - z): the differences are 0 or much larger than W.
                    tile = clipped(xp, tile, least, W)
                    G[rows, j, :] -= tile @ a

        run_on_threads(pool, task, [(i,) for i in range(0, m, n_rows)])
        return G

    def _near(self, X):
        """Return rows with fill values cut off, so that they cost signs no digits."""
        xp, some = self.xp, sampled(self._Z)
        offset = medians(some)
        far, most = _FAR * self._slope.kernel.bandwidth, self._frame["limits"]
        limits = cutoffs(medians(xp.abs(some - offset)), far, float(xp.min(most)))
        return cut(xp, xp.asarray(X, copy=True), limits, offset)

    def _huge(self, x, Z):
        """Return the power of two of each feature that makes its differences huge."""
        xp = self.xp
        sizes = [to_numpy(xp.max(xp.abs(rows), axis=0)) for rows in (x, Z)]
        limit = np.finfo(sizes[0].dtype).maxexp - 2
        powers = limit - np.frexp(np.maximum(*sizes))[1]
        huge = np.ldexp(np.ones_like(sizes[0]), np.minimum(powers, limit))
        return xp.asarray(huge, device=device_of(x))


class FourierGradient:
    """Gradients of f = sum_k phi_k' A_k, phi_k random features, at the rows of X.

    The gradients of ``cos w'x`` and ``sin w'x`` are ``-w sin w'x`` and ``w cos w'x``: a
    product of the same features with l d columns. The coefficients A_k have shape
    (n_blocks, 2 F, l), and X (m, d) may be on any device.
    """

    def __init__(self, features, coef, X):
        self._features, self._coef = features, coef
        self.xp, self.dtype = features.xp, coef.dtype
        self._rows = StreamedRows(X, self.xp, features.device)
        self.shape = *X.shape, coef.shape[2]

    def block(self, start, stop, mix=None):
        """Return the gradients at rows [start:stop], shape (m, d, l)."""
        xp, d = self.xp, self.shape[1]
        coef = _mixed(self._coef, mix)
        (n_blocks, width, n_outputs), size = coef.shape, xp.finfo(self.dtype).bits // 8
        x, F = cast(self._rows[start:stop, :], self.dtype), width // 2
        total = 0.0
        n_at_once = max(int(GRADIENT_BYTES // (size * width * d * n_outputs)), 1)
        for blocks in slices(n_blocks, n_at_once):
            columns, chosen = [], range(blocks.start, blocks.stop)
            for k in chosen:
                A, W = coef[k, :, :], self._features.frequencies(k).T
                waves = xp.concat([A[F:, :], -A[:F, :]])  # of cosines and sines
                W = xp.concat([W, W])
                products = W[:, :, None] * waves[:, None, :]
                columns.append(xp.reshape(products, (width, d * n_outputs)))
            total = total + self._features.product(x, chosen, columns, d * n_outputs)
        return xp.reshape(total, (stop - start, d, n_outputs))


def _mixed(coef, mix):
    """Return the coefficients of the outputs, or of combinations of them."""
    if mix is None:
        return coef
    xp = namespace(coef)
    return coef @ xp.astype(xp.asarray(mix, device=device_of(coef)), coef.dtype)


class MappedGradient:
    """Gradients in x of a function of x R, from those at the rows of X R.

    The root R is symmetric, (d, d), or given by its diagonal (d,).
    """

    def __init__(self, inner, root):
        self._inner, self._root = inner, root
        self.xp, self.shape = inner.xp, inner.shape

    def block(self, start, stop, mix=None):
        """Return the gradients at rows [start:stop], shape (m, d, l)."""
        G = self._inner.block(start, stop, mix)
        root = move(self._root, *location_of(G))
        if root.ndim == 1:
            return G * root[None, :, None]
        return self.xp.matmul(root[None, :, :], G)
