"""NYTRO: gradient descent on the normal equations, step by step."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays.array import device_of, namespace
from ..operators.matrix import check_finite
from .krylov import top_eigenvalue

# The norm of a gradient divided by the previous one, above which it counts as growing.
# Without negative eigenvalues only rounding makes it grow, by at most 1e-6 in 136 fits
# (2000 rows of four data sets, five kernels, four bandwidths, single and double
# precision, 200 iterations each); with one it grows without end.
_GROWS = 1.0001


class IndefiniteKernelError(ValueError):
    """A kernel has negative eigenvalues, along which gradient descent diverges."""


class Descent:
    """Gradient descent, b_t = b_{t-1} - gamma (B b_{t-1} - q), from zero.

    Equation 20 of NYTRO on centers, 12 on the full kernel; b is the paper's beta.

    ``gradient(b, Y)`` returns B b - q with the q of targets Y, minus their mean, or B b
    for Y None. A gradient smaller than the fraction `noise` of the first one may be
    rounding. `start` is zero, (p, l), and `top` the largest eigenvalue of B.
    """

    def __init__(self, gradient, targets, n_coefs, noise):
        xp = namespace(targets)
        self._gradient, self._targets, self._noise = gradient, targets, noise
        shape, device = (n_coefs, targets.shape[1]), device_of(targets)
        self.start = xp.zeros(shape, dtype=xp.float64, device=device)
        check_finite(gradient(self.start, targets))
        self.top = top_eigenvalue(lambda V: gradient(V, None), self.start)

    def walked(self, walk, step_size):
        """Return the `Walk` after one more step gamma < 2 / e_max.

        An `IndefiniteKernelError` is raised if the gradient grows, which it cannot if
        all eigenvalues are positive.
        """
        g = self._gradient(walk.b, self._targets)
        norm = float(namespace(g).linalg.vector_norm(g))
        first = norm if walk.first is None else walk.first
        grows = walk.previous is not None and norm > _GROWS * walk.previous
        if not np.isfinite(norm) or (grows and norm > self._noise * first):
            raise IndefiniteKernelError
        return Walk(walk.b - step_size * g, walk.t + 1, first, norm)


@dataclass
class Walk:
    """Gradient descent after t steps; norms of the first and of the last gradient."""

    b: Any
    t: int = 0
    first: float | None = None
    previous: float | None = None


def best_iteration(errors, tol):
    """Return the index of the least error, or of the first small decrease."""
    if tol is not None:
        for t in range(1, len(errors)):
            if decrease(errors, t) < tol:
                return t
    return int(np.nanargmin(errors))


def decrease(errors, t):
    """Return the relative decrease of the error at iteration t."""
    return (errors[t - 1] - errors[t]) / errors[t - 1] if errors[t - 1] > 0 else 0.0


def stable_step(step, top, t):
    """Return a step that is stable on all rows, and how many make up t given ones."""
    if step * top < 2:
        return step, t
    return 1.0 / top, round(t * step * top)
