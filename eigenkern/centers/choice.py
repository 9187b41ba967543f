"""Choice of centers by name, and the weighted kernel matrix that some methods use."""

import numpy as np

from ..arrays import memory
from ..arrays.array import device_of, namespace, take
from ..operators.tiled import TiledKernel
from .clusters import cluster_means
from .sampling import leverage_indices, pilot_size, pivot_indices, uniform_indices

#: How centers can be chosen from rows.
METHODS = ("uniform", "kmeans", "leverage_scores", "rpcholesky")


def choose(method, kernel, X, n_centers, rng, weights=None):
    """Return centers chosen from distinct rows by one of `METHODS`.

    Parameters
    ----------
    method : {"uniform", "kmeans", "leverage_scores", "rpcholesky"}
    kernel : Kernel or None
        None: X is the kernel matrix of the rows; "kmeans" needs the rows themselves.
    X : array of shape (n, d)
        Distinct rows, see `distinct_rows`.
    n_centers : int
        m; all rows, if there are fewer.
    rng : numpy.random.RandomState
    weights : ndarray of shape (n,), default=None
        How often each row counts; "uniform" ignores it.

    Returns
    -------
    centers : array of shape (m, d)
        In the library and data type of X, where X lives. "rpcholesky" returns fewer if
        those span all rows.
    indices : ndarray of shape (m,) or None
        Their indices in X. None for "kmeans", whose centers are not rows.

    Raises
    ------
    ValueError
        If memory does not suffice: "rpcholesky" needs 16 n m bytes, "leverage_scores"
        16 n bytes for each of its `pilot_size` columns. Or if no k(x, x) is positive,
        or one is not finite.
    """
    if method not in METHODS:
        names = ", ".join(repr(name) for name in METHODS)
        raise ValueError(f"method must be one of {names}; got {method!r}")
    n_centers = min(n_centers, X.shape[0])
    if method == "kmeans":
        return cluster_means(X, n_centers, rng, weights), None
    if method == "uniform":
        indices = uniform_indices(X.shape[0], n_centers, rng)
    else:
        indices = _by_kernel_matrix(method, kernel, X, n_centers, rng, weights)
    return take(X, indices), indices


def _by_kernel_matrix(method, kernel, X, n_centers, rng, weights):
    """Return indices of rows, by columns of their weighted kernel matrix."""
    xp, device, n = namespace(X), device_of(X), X.shape[0]
    width = n_centers if method == "rpcholesky" else pilot_size(n, n_centers)
    needed, free = 16.0 * n * width, memory.available(xp, device)
    if needed > free:
        raise ValueError(
            f"centers={method!r} needs {needed / 1e6:.0f} MB for {n_centers} "
            f"centers of {n} distinct rows, but {free / 1e6:.0f} MB of "
            "memory are free; pass a smaller n_centers or centers='uniform'"
        )
    diagonal = xp.linalg.diagonal(X) if kernel is None else kernel.diagonal(X)
    diagonal = xp.astype(diagonal, xp.float64)
    largest = float(xp.max(diagonal))
    if not 0 < largest < np.inf:
        raise ValueError(
            "the values k(x, x) of the kernel must be finite, and not all be zero; the "
            f"largest is {largest}: scale X, or choose another kernel or bandwidth"
        )
    weights = np.ones(n) if weights is None else weights
    root = xp.asarray(weights, dtype=xp.float64, device=device) ** 0.5

    def columns(index):
        if kernel is None:
            K = xp.astype(xp.take(X, index, axis=1), xp.float64)
        else:
            Z = xp.take(X, index, axis=0)
            K = TiledKernel(kernel, Z, X).block(dtype=xp.float64)
        return root[:, None] * K * xp.take(root, index)[None, :]

    draw = pivot_indices if method == "rpcholesky" else leverage_indices
    return draw(diagonal * root**2, columns, n_centers, rng)
