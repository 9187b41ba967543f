"""Gradient descent on the normal equations, step by step."""

import numpy as np

from ..backend.array import device_of, namespace
from ..backend.linalg import largest_eigenvalues
from .whitening import check_finite


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


class Descent:
    """Gradient descent on some rows of a system.

    Attributes
    ----------
    mean : array of shape (l,)
        Of the targets.
    start : array
        Coefficients of zero.
    top : float
        Largest eigenvalue of the problem.
    """

    def __init__(self, system, rows):
        self._xp = xp = namespace(rows.targets)
        self._system, self._rows = system, rows
        self._weight = float(xp.sum(rows.weights))
        self.mean = rows.weights @ rows.targets / self._weight
        self._targets = rows.targets - self.mean
        self._operator = system.cached(system.operator_of(rows))
        shape = (self._operator.shape[1], rows.targets.shape[1])
        like = {"dtype": xp.float64, "device": device_of(rows.targets)}
        self.start = xp.zeros(shape, **like)
        check_finite(self._product(self.start, self._targets))
        first = np.random.default_rng(0).standard_normal(shape[0])
        self.top = largest_eigenvalues(
            lambda V: self._product(V, None),
            xp.asarray(first[:, None], **like),
            n_steps=100,
            tol=1e-11,
        )[0]

    def _product(self, b, targets):
        g = self._system.gradient(self._operator, b, targets, self._rows)
        return g / self._weight

    def run(self, step_size):
        """Yield the coefficients after 1, 2, ... steps."""
        return descend(
            lambda b: self._product(b, self._targets),
            self.start,
            step_size,
            noise=10 * float(self._xp.finfo(self._operator.dtype).eps) ** 0.5,
        )

    def dual(self, b):
        """Return the coefficients of the centers."""
        return self._system.coef(b, self._rows)
