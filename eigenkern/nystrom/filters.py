"""Filters of the spectrum: all models of a path from one factorisation.

With B = V diag(e) V' a model is b = V g(e) V' q, see `eigenkern.nystrom`. A path is a
class with ``filters(spectrum)``, the values g of all its models, and ``kept(spectrum,
n_rows)``, what they leave of the targets, for the errors of `selection`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backend.array import device_of, namespace
from ..backend.linalg import large_product
from .plan import blocks
from .whitening import EPS


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

    @property
    def top(self):
        """The largest eigenvalue."""
        return float(self.values[-1])

    @property
    def indefinite(self):
        """Whether negative eigenvalues were dropped that are not rounding."""
        return self.lowest < -1e-6 * self.top

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

    def coefs(self, filters):
        """Yield b of filters of shape (p, K), in pieces of shape (p, l, k)."""
        xp, q = namespace(filters), self.targets[:, :-1]
        (p, n_candidates), n_outputs = filters.shape, q.shape[1]
        for piece in blocks(n_candidates, p * n_outputs, least=1):
            coefs = q[:, :, None] * filters[:, None, piece]
            b = large_product(self.vectors, xp.reshape(coefs, (p, -1)))
            yield xp.reshape(b, coefs.shape)

    def beside(self, values):
        """Return values of the host as an array beside the eigenvalues."""
        xp = namespace(self.values)
        return xp.asarray(values, dtype=xp.float64, device=device_of(self.values))


class RidgePath:
    """Kernel ridge regression, g = 1 / (e + lambda).

    Parameters
    ----------
    alphas : array-like of shape (k,)
        lambda. 0: the pseudo-inverse.
    """

    def __init__(self, alphas):
        self.alphas = np.asarray(alphas, dtype=np.float64)

    def filters(self, spectrum):
        """Return g, shape (p, k): 0 where e + lambda is rounding."""
        xp = namespace(spectrum.values)
        total = spectrum.values[:, None] + spectrum.beside(self.alphas)
        above = total > spectrum.floor
        inverse = 1 / xp.where(above, total, xp.ones_like(total))
        return xp.where(above, inverse, xp.zeros_like(total))

    def kept(self, spectrum, n_rows=None):
        """Return what is left of the targets, lambda / (e + lambda), shape (p, k).

        Where the eigenvectors span the targets of all `n_rows` rows, without the factor
        lambda: no error needs it there, and there is a limit for lambda = 0.
        """
        xp, alphas = namespace(spectrum.values), spectrum.beside(self.alphas)
        total = spectrum.values[:, None] + alphas
        floor = max(spectrum.floor, float(np.finfo(np.float64).tiny))
        total = xp.where(total > floor, total, xp.full_like(total, floor))
        spanned = spectrum.complete and n_rows in (None, spectrum.values.shape[0])
        return 1 / total if spanned else alphas / total


class DescentPath:
    """Gradient descent from zero, g = (1 - (1 - gamma e)^t) / e.

    Parameters
    ----------
    steps : array-like of shape (k,)
        t.
    step_size : float
        gamma; gamma e < 2.
    """

    def __init__(self, steps, step_size):
        self.steps = np.asarray(steps, dtype=np.float64)
        self.step_size = step_size

    def filters(self, spectrum):
        """Return g, shape (p, k)."""
        xp, values = namespace(spectrum.values), spectrum.values
        steps, step_size = spectrum.beside(self.steps), self.step_size
        e = xp.where(values > 0, values, xp.zeros_like(values))[:, None]
        small = step_size * e < 0.5
        # 1 - (1 - x)^t without cancellation for a small x.
        x = xp.where(small, step_size * e, xp.zeros_like(e))
        gain = -xp.expm1(steps * xp.log1p(-x))
        gain = xp.where(small, gain, 1 - (1 - step_size * e) ** steps)
        safe = xp.where(e > 0, e, xp.ones_like(e))
        return xp.where(step_size * e * steps > EPS, gain / safe, step_size * steps)

    def kept(self, spectrum, n_rows=None):
        """Return what is left of the targets, (1 - gamma e)^t, shape (p, k)."""
        factor = 1 - self.step_size * spectrum.values[:, None]
        return factor ** spectrum.beside(self.steps)
