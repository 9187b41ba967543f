"""Gradient descent on the normal equations, step by step."""

from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ..backend import memory
from ..backend.array import device_of, namespace
from ..backend.devices import on_gpu
from ..backend.machine import machine_of
from ..backend.threads import n_blas_threads
from ..operators.matrix import check_finite
from ..operators.plan import cache_budget
from .krylov import top_eigenvalue

# The norm of a gradient over that before, above which it grows. Without negative
# eigenvalues only rounding makes it grow, by at most 1e-6 in 136 fits (2000 rows of
# four data sets, five kernels, four bandwidths, single and double precision, 200
# iterations each); with one it grows without end.
_GROWS = 1.0001


def factorising_pays(
    machine,
    n_rows,
    n_centers,
    n_features,
    n_outputs,
    n_iter,
    *,
    itemsize,
    cached,
    n_threads,
):
    """Whether a factorization gives the path of gradient descent sooner than iterating.

    Parameters
    ----------
    machine : Machine
    n_rows, n_centers, n_features, n_outputs, n_iter : int
        n_centers None: all rows, the full kernel.
    itemsize : int
        Bytes of a value of the kernel; the linear algebra is in float64.
    cached : bool
        Whether the kernel matrix is cached between iterations.
    n_threads : int
    """
    n, p = n_rows, n_centers or n_rows
    # Eigenvectors twice, on the training rows and on all of them, and half of K'K.
    factorise = machine.product_seconds(7 * p**3 + n * p**2 / 2, 8, n_threads)
    # Two products with a value of the kernel, once it is there.
    entry = machine.product_seconds(2 * n_outputs, 8, n_threads)
    entry += machine.convert / n_threads
    if cached:
        entry += itemsize / machine.read
    else:
        entry += machine.kernel_seconds(n_features, itemsize, n_threads)
    return factorise < 2 * n_iter * n * p * entry


def factorises(place, plan, sizes, itemsize, max_iter, cache_size):
    """Whether one factorization is cheaper than iterating, and fits the memory.

    Parameters
    ----------
    place : object with xp and device
        Where it is computed.
    plan : NystromPlan
        Of the factorization.
    sizes : tuple of int
        Rows, centers (None: all rows), features and outputs.
    itemsize : int
        Bytes of a value of the kernel.
    max_iter : int or None
        None: as many as it takes.
    cache_size : float or "auto"
        MB for the kernel matrix.
    """
    if plan.bytes > memory.available(place.xp, place.device):
        return False
    if max_iter is None:
        return True
    n, p, *_ = sizes
    return factorising_pays(
        machine_of(place),
        *sizes,
        max_iter,
        itemsize=itemsize,
        cached=n * (p or n) * itemsize <= cache_budget(cache_size, place),
        n_threads=1 if on_gpu(place.xp, place.device) else n_blas_threads(),
    )


class IndefiniteKernelError(ValueError):
    """A kernel has negative eigenvalues, along which gradient descent diverges."""


class State(NamedTuple):
    """What a solver in closed form yields.

    Attributes
    ----------
    coef : array of shape (p, l)
        b.
    counts : dict
        Fitted attributes that were found with them.
    out_of_sample : OutOfSample or None
        Values to calibrate probabilities on.
    """

    coef: Any
    counts: dict
    out_of_sample: Any = None


class Descent:
    """Gradient descent, b_t = b_{t-1} - gamma (B b_{t-1} - q), from zero.

    Parameters
    ----------
    gradient : callable
        ``gradient(b, Y)`` returns B b - q with the q of targets Y; for Y None: B b.
    targets : array of shape (n, l)
        Less their mean, in float64.
    n_coefs : int
        p.
    noise : float
        A gradient that is less than this fraction of the first one may be rounding.

    Attributes
    ----------
    start : array of shape (p, l)
        Zero.
    top : float
        Largest eigenvalue of B.

    Raises
    ------
    ValueError
        If the kernel has values that are not finite.
    """

    def __init__(self, gradient, targets, n_coefs, noise):
        xp = namespace(targets)
        self._gradient, self._targets, self._noise = gradient, targets, noise
        shape, device = (n_coefs, targets.shape[1]), device_of(targets)
        self.start = xp.zeros(shape, dtype=xp.float64, device=device)
        check_finite(gradient(self.start, targets))
        self.top = top_eigenvalue(lambda V: gradient(V, None), self.start)

    def iterates(self, step_size):
        """Yield b after 1, 2, ... steps.

        Parameters
        ----------
        step_size : float
            gamma < 2 / e_max.

        Raises
        ------
        IndefiniteKernelError
            If the gradient grows: with positive eigenvalues it cannot.
        """
        xp, b = namespace(self.start), self.start
        first = previous = None
        while True:
            g = self._gradient(b, self._targets)
            norm = float(xp.linalg.vector_norm(g))
            first = norm if first is None else first
            grows = previous is not None and norm > _GROWS * previous
            if not np.isfinite(norm) or (grows and norm > self._noise * first):
                raise IndefiniteKernelError
            previous = norm
            b = b - step_size * g
            yield b

    def stopped(self, step_size, error_of, max_iter, tol):
        """Return the errors of b_0, b_1, ..., the t to stop at, and b_t.

        That is the t with the least error, or the first where the error falls by less
        than `tol`.

        Parameters
        ----------
        step_size : float
        error_of : callable
            ``error_of(b)``, on rows held out.
        max_iter : int
        tol : float or None
            Of the relative decrease of the error.
        """
        errors, best = [error_of(self.start)], self.start
        least = errors[0]
        for b in islice(self.iterates(step_size), max_iter):
            errors.append(error_of(b))
            t = len(errors) - 1
            if tol is not None and decrease(errors, t) < tol:
                return errors, t, b
            if errors[t] < least:
                least, best = errors[t], b
        return errors, int(np.nanargmin(errors)), best

    def followed(self, step_size, t, last):
        """Return b_t, and the list of b_0 to b_k for k = `last`."""
        found, path = self.start, [self.start]
        for k, b in enumerate(islice(self.iterates(step_size), max(t, last)), 1):
            if k == t:
                found = b
            if k <= last:
                path.append(b)
        return found, path


def best_iteration(errors, tol):
    """Return the place of the least error, or of the first small decrease."""
    if tol is not None:
        for t in range(1, len(errors)):
            if decrease(errors, t) < tol:
                return t
    return int(np.nanargmin(errors))


def decrease(errors, t):
    """Return the relative decrease of the error at iteration t."""
    return (errors[t - 1] - errors[t]) / errors[t - 1] if errors[t - 1] > 0 else 0.0


def stable_step(step, top, t):
    """Return a step that is stable on all rows, and how many of it make t steps."""
    if step * top < 2:
        return step, t
    return 1.0 / top, round(t * step * top)
