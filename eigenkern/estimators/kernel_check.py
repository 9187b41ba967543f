"""One check of kernels that are not eigenkern's own: functions, objects, matrices."""

from typing import NamedTuple

import numpy as np

from ..backend.array import move, to_numpy
from ..backend.devices import compute_device
from ..backend.lazy import rows_at
from ..kernels import CallableKernel, Kernel
from ..problems.problem import shuffled, take_entries

# Rows whose kernel matrix is checked: it takes some 10 ms.
_CHECKED_ROWS = 300
# Differences of K(x, z) and K(z, x), relative to the rows' largest values, above which
# a kernel is not symmetric, and eigenvalues, relative to the largest, below which it is
# not positive semi-definite. Rounding leaves up to 2e-5 and -3e-6 (300 rows; gaussian,
# laplacian and degree 3, bandwidths of 1 to 64 medians; norms expanded in float32).
_ASYMMETRY, _INDEFINITE = 1e-3, 1e-4


class Ends(NamedTuple):
    """The ends of the spectrum of an indefinite kernel on some rows."""

    lowest: float
    top: float
    n_rows: int

    def __str__(self):
        return (
            "a kernel that is not positive semi-definite: its smallest eigenvalue on "
            f"{self.n_rows} rows is {self.lowest:.3g}, its largest {self.top:.3g}"
        )


def is_own(kernel):
    """Whether a kernel is one of eigenkern's, which need no check."""
    if isinstance(kernel, str):
        return kernel != "precomputed"
    module = type(kernel).__module__
    known = isinstance(kernel, Kernel) and not isinstance(kernel, CallableKernel)
    return known and module.split(".")[0] == __package__.split(".")[0]


def check_given_kernel(kernel, X, rows, device="auto"):
    """Check a kernel that is not eigenkern's own on a sample of the rows.

    Parameters
    ----------
    kernel : str, Kernel or callable
        The parameter of the estimator.
    X : array or LazyRows of shape (n, d) or, with kernel="precomputed", (n, n)
    rows : ndarray of int
        Those to sample from.
    device : str or list, default="auto"
        The parameter of the estimator.

    Returns
    -------
    Ends or None
        None: the kernel is positive semi-definite on the sample, or one of eigenkern's.

    Raises
    ------
    ValueError
        If its values are complex, all zero, or not symmetric.
    """
    if is_own(kernel):
        return None
    rows, precomputed = np.sort(shuffled(rows)[:_CHECKED_ROWS]), isinstance(kernel, str)
    if precomputed:
        name, K = "kernel='precomputed'", take_entries(X, rows, rows)
    else:
        name = f"kernel={kernel!r}"
        made = kernel if isinstance(kernel, Kernel) else CallableKernel(kernel)
        K = made(move(rows_at(X, rows), *compute_device(device, X)))
    K = to_numpy(K).astype(np.float64)
    if not np.isfinite(K).all():
        return None  # the fit says so
    size = np.abs(K).max()
    if size == 0.0:
        raise ValueError(
            f"{name} must have positive k(x, x); got zero for every pair of "
            f"{len(rows)} rows"
        )
    K /= size
    largest = np.abs(K).max(axis=1)
    difference = np.abs(K - K.T)
    wrong = difference > _ASYMMETRY * np.sqrt(np.outer(largest, largest.T))
    if wrong.any():
        i, j = np.unravel_index(np.argmax(difference * wrong), K.shape)
        raise ValueError(
            f"{name} must be symmetric, k(x, z) = k(z, x); got {size * K[i, j]:.6g} "
            f"and {size * K[j, i]:.6g} for rows {rows[i]} and {rows[j]}"
        )
    values = np.linalg.eigvalsh(0.5 * (K + K.T))
    if values[0] >= -_INDEFINITE * max(values[-1], 0.0):
        return None
    return Ends(size * values[0], size * values[-1], len(rows))
