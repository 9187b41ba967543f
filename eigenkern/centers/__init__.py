"""How to choose the centers of a kernel model.

Every estimator with a parameter `centers` accepts the names of these functions. Called
directly, with a kernel and rows X, they return centers to inspect, or to pass to
several models as ``centers=``. If X has fewer distinct rows than `n_centers`, all of
them are centers.
"""

from numbers import Integral
from typing import Any

import numpy as np

from ..arrays.array import (
    AnyGenerator,
    ArrayLike,
    as_random_state,
    floating,
    namespace,
    take,
    to_numpy,
)
from ..kernels import Kernel
from .choice import METHODS as METHODS
from .choice import choose
from .choice import cluster_means as cluster_means
from .choice import masses as masses
from .choice import uniform_indices as uniform_indices
from .distinct import distinct_rows
from .distinct import rows_among as rows_among


def uniform(
    kernel: Kernel | None,
    X: ArrayLike,
    n_centers: int,
    *,
    weights: ArrayLike | None = None,
    random_state: AnyGenerator = None,
) -> Any:
    """Choose rows at random: nothing to compute, and a good start.

    Parameters
    ----------
    kernel : Kernel
        Not used.
    X : array of shape (n, d)
        Rows to choose from. Equal rows count as one, with the sum of their weights.
    n_centers : int
        m, how many centers to choose.
    weights : array of shape (n,), default=None
        Not used: all rows are equally likely.
    random_state : int, RandomState instance, Generator or None, default=None
        Controls the choice; pass an int to get the same centers again.

    Returns
    -------
    centers : array of shape (m, d)
        In the library and data type of X, where X lives. All distinct rows if there are
        no more than `n_centers`.
    indices : ndarray of shape (m,)
        Their indices in X.

    Raises
    ------
    ValueError
        If a parameter is wrong.
    """
    return _chosen("uniform", kernel, X, n_centers, weights, random_state)


def kmeans(
    kernel: Kernel | None,
    X: ArrayLike,
    n_centers: int,
    *,
    weights: ArrayLike | None = None,
    random_state: AnyGenerator = None,
) -> Any:
    """Choose the means of clusters of rows.

    If the rows form clusters, means need fewer centers than random rows for the same
    accuracy. Uses scikit-learn's ``MiniBatchKMeans``, on the host.

    Parameters
    ----------
    kernel : Kernel
        Not used: clusters are by Euclidean distance.
    X : array of shape (n, d)
        Rows to choose from. Equal rows count as one, with the sum of their weights.
    n_centers : int
        m, how many centers to choose.
    weights : array of shape (n,), default=None
        How often each row counts. None: once.
    random_state : int, RandomState instance, Generator or None, default=None
        Controls the choice; pass an int to get the same centers again.

    Returns
    -------
    centers : array of shape (m, d)
        In the library and data type of X, where X lives. All distinct rows if there are
        no more than `n_centers`.
    indices : ndarray of shape (m,) or None
        None: means are not rows of X.

    Raises
    ------
    ValueError
        If a parameter is wrong.
    """
    return _chosen("kmeans", kernel, X, n_centers, weights, random_state)


def leverage_scores(
    kernel: Kernel | None,
    X: ArrayLike,
    n_centers: int,
    *,
    weights: ArrayLike | None = None,
    random_state: AnyGenerator = None,
) -> Any:
    """Choose rows at random, more likely those that other rows explain less.

    The probabilities are approximate ridge leverage scores, so that sparse regions get
    centers too. Takes up to 2000 columns of the kernel matrix.

    Parameters
    ----------
    kernel : Kernel
        The scores are those of its matrix.
    X : array of shape (n, d)
        Rows to choose from. Equal rows count as one, with the sum of their weights.
    n_centers : int
        m, how many centers to choose.
    weights : array of shape (n,), default=None
        How often each row counts. None: once.
    random_state : int, RandomState instance, Generator or None, default=None
        Controls the choice; pass an int to get the same centers again.

    Returns
    -------
    centers : array of shape (m, d)
        In the library and data type of X, where X lives. All distinct rows if there are
        no more than `n_centers`.
    indices : ndarray of shape (m,)
        Their indices in X.

    Raises
    ------
    ValueError
        If a parameter is wrong, memory does not suffice, or the values k(x, x) are not
        finite or all zero.
    """
    return _chosen("leverage_scores", kernel, X, n_centers, weights, random_state)


def rpcholesky(
    kernel: Kernel | None,
    X: ArrayLike,
    n_centers: int,
    *,
    weights: ArrayLike | None = None,
    random_state: AnyGenerator = None,
) -> Any:
    """Choose rows by randomly pivoted Cholesky: the most accurate for their number.

    The probability of a row is proportional to the part of its k(x, x) that the rows
    chosen before leave unexplained. Takes time n m^2 and 16 n m bytes.

    Parameters
    ----------
    kernel : Kernel
        The rows approximate its matrix.
    X : array of shape (n, d)
        Rows to choose from. Equal rows count as one, with the sum of their weights.
    n_centers : int
        m, how many centers to choose.
    weights : array of shape (n,), default=None
        How often each row counts. None: once.
    random_state : int, RandomState instance, Generator or None, default=None
        Controls the choice; pass an int to get the same centers again.

    Returns
    -------
    centers : array of shape (m, d)
        In the library and data type of X, where X lives. All distinct rows if there are
        no more than `n_centers`; fewer if those span all rows up to rounding.
    indices : ndarray of shape (m,)
        Their indices in X.

    Raises
    ------
    ValueError
        If a parameter is wrong, memory does not suffice, or the values k(x, x) are not
        finite or all zero.

    References
    ----------
    Chen, Epperly, Tropp, Webber, "Randomly pivoted Cholesky: practical approximation of
    a kernel matrix with few entry evaluations", CPAM 2025 (arXiv:2207.06503).

    Examples
    --------
    >>> import numpy as np
    >>> from eigenkern import NystromRegressor, centers
    >>> from eigenkern.kernels import Gaussian
    >>> X = np.random.default_rng(0).uniform(-1, 1, (500, 2))
    >>> Z, indices = centers.rpcholesky(Gaussian(1.0), X, 30, random_state=0)
    >>> bool(np.all(Z == X[indices]))
    True
    >>> model = NystromRegressor(Gaussian(1.0), centers=Z).fit(X, np.sin(3 * X[:, 0]))
    >>> model.n_centers_
    30
    """
    return _chosen("rpcholesky", kernel, X, n_centers, weights, random_state)


def _chosen(method, kernel, X, n_centers, weights, random_state):
    """Return centers chosen from rows, distinct or not, and their indices."""
    is_int = isinstance(n_centers, Integral) and not isinstance(n_centers, bool)
    if not is_int or n_centers < 1:
        raise ValueError(f"n_centers must be an integer >= 1; got {n_centers!r}")
    if not isinstance(kernel, Kernel) and method not in ("uniform", "kmeans"):
        raise ValueError(
            "kernel must be a kernel object such as "
            f"eigenkern.kernels.Gaussian(bandwidth=5.0); got {kernel!r}"
        )
    X = floating(X)
    xp = namespace(X)
    if X.ndim != 2 or not X.shape[0]:
        raise ValueError(f"X must be rows of shape (n, d); got shape {tuple(X.shape)}")
    if not bool(xp.all(xp.isfinite(X))):
        raise ValueError("X must be finite; got NaN or infinity")
    if weights is not None:
        weights = to_numpy(floating(weights))
        valid = np.isfinite(weights) & (weights > 0)
        if weights.shape != (X.shape[0],) or not valid.all():
            raise ValueError(
                f"weights must be {X.shape[0]} positive finite numbers, one per row "
                f"of X; got shape {weights.shape}, of which {valid.sum()} are valid"
            )
    first, which = distinct_rows(X)
    totals, rng = np.bincount(which, weights=weights), as_random_state(random_state)
    centers, indices = choose(method, kernel, take(X, first), n_centers, rng, totals)
    return centers, None if indices is None else first[indices]
