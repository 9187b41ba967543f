"""Which rows become the centers of a kernel model.

Every estimator with a parameter `centers` takes the names of these functions. Called
directly, as functions of a kernel and rows X, they return centers to look at, or to
pass to several models as ``centers=``. Where X has fewer distinct rows than `n_centers`
asks for, all of them are centers.
"""

from hashlib import blake2b
from numbers import Integral
from typing import Any

import numpy as np
from scipy.optimize import brentq

from .backend import memory
from .backend.array import (
    as_random_state,
    device_of,
    floating,
    move,
    namespace,
    slices,
    to_numpy,
)
from .backend.hints import AnyGenerator, ArrayLike
from .backend.lazy import is_lazy
from .backend.linalg import eigh, large_product, solve_triangular
from .backend.threads import openmp_with_room
from .kernels import Kernel
from .operators.tiled import TiledKernel

# Means up to which k-means++ starts. Its time grows with the square of their number
# (4000 means of MNIST: 41 s), and many random rows do as well: 1000 means have 96.7 %
# accuracy, with k-means++ 96.5 %; 10 000 take 21 s in all and have 98.2 %.
_MAX_PLUS_PLUS = 1000
# Numbers of X whose keys are computed at a time: copies of 8 MB.
_KEYS_BLOCK = 2**20
#: How centers can be chosen among rows.
METHODS = ("uniform", "kmeans", "leverage_scores", "rpcholesky")


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
        Rows to choose among. Equal rows are one, with the sum of their weights.
    n_centers : int
        m, how many centers to choose.
    weights : array of shape (n,), default=None
        How often each row counts. All rows are drawn alike. None: once.
    random_state : int, RandomState instance, Generator or None, default=None
        What the choice is drawn by; pass an int to get the same centers again.

    Returns
    -------
    centers : array of shape (m, d)
        In the library and data type of X, where X lives. All distinct rows where there
        are no more than `n_centers`.
    indices : ndarray of shape (m,)
        Their places in X.

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

    They need fewer centers than random rows for the same accuracy, where the rows form
    clusters. By scikit-learn's ``MiniBatchKMeans``, on the host.

    Parameters
    ----------
    kernel : Kernel
        Not used: clusters are those of the Euclidean distance.
    X : array of shape (n, d)
        Rows to choose among. Equal rows are one, with the sum of their weights.
    n_centers : int
        m, how many centers to choose.
    weights : array of shape (n,), default=None
        How often each row counts. None: once.
    random_state : int, RandomState instance, Generator or None, default=None
        What the choice is drawn by; pass an int to get the same centers again.

    Returns
    -------
    centers : array of shape (m, d)
        In the library and data type of X, where X lives. All distinct rows where there
        are no more than `n_centers`.
    indices : ndarray of shape (m,) or None
        None: means are no rows.

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
    """Choose rows at random, the more likely the less other rows explain them.

    By approximate ridge leverage scores: rows of sparse regions are not forgotten.
    Takes up to 2000 columns of the kernel matrix.

    Parameters
    ----------
    kernel : Kernel
        Whose matrix the scores are of.
    X : array of shape (n, d)
        Rows to choose among. Equal rows are one, with the sum of their weights.
    n_centers : int
        m, how many centers to choose.
    weights : array of shape (n,), default=None
        How often each row counts. None: once.
    random_state : int, RandomState instance, Generator or None, default=None
        What the choice is drawn by; pass an int to get the same centers again.

    Returns
    -------
    centers : array of shape (m, d)
        In the library and data type of X, where X lives. All distinct rows where there
        are no more than `n_centers`.
    indices : ndarray of shape (m,)
        Their places in X.

    Raises
    ------
    ValueError
        If a parameter is wrong, the memory does not suffice, or the kernel has no
        finite and positive k(x, x).
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

    Each row is drawn with a probability proportional to what the rows before it leave
    of its k(x, x). Takes time n m^2 and 16 n m bytes.

    Parameters
    ----------
    kernel : Kernel
        Whose matrix the rows approximate.
    X : array of shape (n, d)
        Rows to choose among. Equal rows are one, with the sum of their weights.
    n_centers : int
        m, how many centers to choose.
    weights : array of shape (n,), default=None
        How often each row counts. None: once.
    random_state : int, RandomState instance, Generator or None, default=None
        What the choice is drawn by; pass an int to get the same centers again.

    Returns
    -------
    centers : array of shape (m, d)
        In the library and data type of X, where X lives. All distinct rows where there
        are no more than `n_centers`, and fewer where they span all rows up to rounding.
    indices : ndarray of shape (m,)
        Their places in X.

    Raises
    ------
    ValueError
        If a parameter is wrong, the memory does not suffice, or the kernel has no
        finite and positive k(x, x).

    References
    ----------
    Chen, Epperly, Tropp, Webber, "Randomly pivoted Cholesky: practical approximation of
    a kernel matrix with few entry evaluations", CPAM 2024 (arXiv:2207.06503).

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
    """Return centers for rows that need not be distinct, and their places."""
    right = isinstance(n_centers, Integral) and not isinstance(n_centers, bool)
    if not right or n_centers < 1:
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
        right = np.isfinite(weights) & (weights > 0)
        if weights.shape != (X.shape[0],) or not right.all():
            raise ValueError(
                f"weights must be {X.shape[0]} positive numbers, none infinite, one a "
                f"row of X; got shape {weights.shape}, of which {right.sum()} are right"
            )
    first, which = distinct_rows(X)
    rows = xp.take(X, xp.asarray(first, device=device_of(X)), axis=0)
    totals, rng = np.bincount(which, weights=weights), as_random_state(random_state)
    centers, indices = choose(method, kernel, rows, n_centers, rng, totals)
    return centers, None if indices is None else first[indices]


def choose(method, kernel, X, n_centers, rng, weights=None):
    """Return centers for distinct rows, chosen by one of `METHODS`.

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
        How often each row counts; "uniform" takes all rows alike.

    Returns
    -------
    centers : array of shape (m, d)
        In the library and data type of X, where X lives. "rpcholesky" returns fewer
        where they span all rows.
    indices : ndarray of shape (m,) or None
        Their places in X. None for "kmeans", whose centers are no rows.

    Raises
    ------
    ValueError
        If the memory does not suffice: "rpcholesky" needs 16 n m bytes,
        "leverage_scores" 16 n bytes for each of its `pilot_size` columns. Or if no
        k(x, x) is positive, or one is not finite.
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
    index = namespace(X).asarray(indices, device=device_of(X))
    return namespace(X).take(X, index, axis=0), indices


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


def distinct_rows(X):
    """Return the first of every set of equal rows, in an order of their content.

    Repeating rows, leaving out copies, another order of the rows or float32 in place of
    float64 change nothing but the indices: what is drawn from distinct rows with a
    given seed is the same rows.

    Parameters
    ----------
    X : array or LazyRows of shape (n, d)

    Returns
    -------
    first : ndarray of shape (k,)
        Indices of the distinct rows.
    which : ndarray of shape (n,)
        For each row, the place of its equal in `first`.
    """
    return _distinct(X.by_rows(_all_keys) if is_lazy(X) else _all_keys(X))


def rows_among(X, Z):
    """Return which rows of X equal a row of Z of their data type, bool (n,)."""
    which = _distinct(np.concatenate([_all_keys(X), _all_keys(Z)]))[1]
    return np.isin(which[: X.shape[0]], which[X.shape[0] :])


def _distinct(keys):
    """Return `first` and `which` of `distinct_rows`, by keys of the rows."""
    coarse, exact = keys.T
    order = np.lexsort((exact, coarse))
    new = np.ones(len(order), dtype=bool)
    for keys in (coarse, exact):
        new[1:] &= keys[order[1:]] == keys[order[:-1]]
    new[1:] = ~new[1:]
    which = np.empty(len(order), dtype=np.int64)
    which[order] = np.cumsum(new) - 1
    return order[new], which


def _all_keys(X):
    """Return keys of the rows in single precision, and as they are, shape (n, 2)."""
    X = to_numpy(X)
    keys = np.empty((X.shape[0], 2), dtype=np.uint64)
    for rows in slices(X.shape[0], max(_KEYS_BLOCK // max(X.shape[1], 1), 1)):
        block = X[rows]
        with np.errstate(over="ignore"):
            keys[rows, 0] = _keys(block.astype(np.float32))
        single = X.dtype == np.float32
        keys[rows, 1] = keys[rows, 0] if single else _keys(block)
    return keys


def _keys(rows):
    """Return 64 bits for the content of every row."""
    rows = np.ascontiguousarray(rows + 0.0)  # -0.0 becomes 0.0
    digests = (blake2b(row, digest_size=8).digest() for row in rows)
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def uniform_indices(n_rows, n_centers, rng):
    """Return indices of rows drawn uniformly, without replacement.

    Parameters
    ----------
    n_rows : int
    n_centers : int
        All rows, if there are fewer.
    rng : numpy.random.RandomState

    Returns
    -------
    ndarray of shape (min(n_centers, n_rows),)
        Increasing.
    """
    if n_centers >= n_rows:
        return np.arange(n_rows)
    return np.sort(rng.permutation(n_rows)[:n_centers])


def cluster_means(X, n_centers, rng, weights=None):
    """Return the means of clusters of rows, by scikit-learn's ``MiniBatchKMeans``.

    Batches of 1024 rows: the time grows little with the number of rows. On the host,
    wherever X lives. The first means are those of k-means++, or random rows where
    there are more than 1000.

    Parameters
    ----------
    X : array of shape (n, d)
        In float32 or float64.
    n_centers : int
        All rows are returned if there are fewer.
    rng : numpy.random.RandomState
    weights : ndarray of shape (n,), default=None
        How often each row counts.

    Returns
    -------
    array of shape (min(n_centers, n), d)
        In the library and data type of X, where X lives; distinct if the rows are.
    """
    from sklearn.cluster import MiniBatchKMeans

    if n_centers >= X.shape[0]:
        return X
    if weights is not None:  # rounded: in any unit the same, to the last bit
        weights = np.maximum((weights / weights.max()).astype(np.float32), 1e-30)
    rows = to_numpy(X)
    offset = rows.mean(axis=0)  # a large one would cost digits of the distances
    clusters = MiniBatchKMeans(
        n_centers,
        init="k-means++" if n_centers <= _MAX_PLUS_PLUS else "random",
        n_init=1,
        random_state=rng,
        compute_labels=False,
    )
    with openmp_with_room():
        clusters.fit(rows - offset, sample_weight=weights)
    centers = clusters.cluster_centers_ + offset
    # A mean of few rows is started anew from a row, which another may have taken.
    if len(distinct_rows(centers)[0]) < n_centers:
        centers = np.concatenate([centers, rows[rng.permutation(len(rows))]])
        centers = centers[np.sort(distinct_rows(centers)[0])[:n_centers]]
    return move(centers, namespace(X), device_of(X))


def masses(X, centers, weights):
    """Return what the rows weigh together that are nearest to each of the centers.

    Parameters
    ----------
    X : array of shape (n, d)
    centers : array of shape (m, d)
    weights : ndarray of shape (n,)

    Returns
    -------
    ndarray of shape (m,)
        In float64.
    """
    xp, (n, m) = namespace(X), (X.shape[0], centers.shape[0])
    offset = xp.mean(centers, axis=0)  # a large one would cost digits of the distances
    Z = centers - offset
    norms = xp.sum(Z**2, axis=1)
    nearest = np.empty(n, dtype=np.int64)
    for rows in slices(n, max(2**22 // m, 16)):
        distances = norms - 2 * large_product(X[rows, :] - offset, Z.T)
        nearest[rows] = to_numpy(xp.argmin(distances, axis=1))
    return np.bincount(nearest, weights=weights, minlength=m)


def pivot_indices(diagonal, columns, n_centers, rng):
    """Return rows by randomly pivoted Cholesky: an adaptive, nearly optimal choice.

    A row is drawn with a probability proportional to what the rows before it leave of
    its k(x, x), so that sparse regions are not forgotten and no copy is taken twice.
    Rows are proposed in blocks and accepted by rejection, which draws from the same
    distribution as one by one. Takes n_centers columns of the kernel matrix and
    n n_centers^2 multiply-adds, and keeps n n_centers numbers.

    Parameters
    ----------
    diagonal : array of shape (n,)
        k(x, x) of the rows, times their weights, in float64.
    columns : callable
        ``columns(index)`` returns the columns of the kernel matrix of some rows,
        weighted by the roots of the weights, shape (n, len(index)), in float64.
    n_centers : int
        Fewer are returned if they span all rows up to rounding.
    rng : numpy.random.RandomState

    Returns
    -------
    ndarray of shape (m,)
        Indices in the order of their choice.

    References
    ----------
    Chen, Epperly, Tropp, Webber, "Randomly pivoted Cholesky: practical approximation of
    a kernel matrix with few entry evaluations", CPAM 2024 (arXiv:2207.06503).

    Epperly, Tropp, Webber, "Embrace rejection: kernel matrix approximation by
    accelerated randomly pivoted Cholesky", 2024 (arXiv:2410.03969).
    """
    xp, device = namespace(diagonal), device_of(diagonal)
    n = diagonal.shape[0]
    left = to_numpy(diagonal).copy()
    floor = 1e-12 * left.max()
    chosen = np.empty(0, dtype=np.int64)
    F = xp.zeros((n, n_centers), dtype=xp.float64, device=device)
    while len(chosen) < n_centers and left.max() > floor:
        n_proposed = min(max(n_centers // 10, 10), 200)
        proposed = rng.choice(n, n_proposed, p=left / left.sum())
        index = xp.asarray(np.unique(proposed), device=device)
        k = len(chosen)
        taken = xp.take(F[:, :k], index, axis=0)
        G = columns(index) - large_product(F[:, :k], taken.T)
        H = to_numpy(xp.take(G, index, axis=0))
        places = np.searchsorted(np.unique(proposed), proposed)
        accepted = _accepted(H, places, n_centers - k, floor, rng)
        if not len(accepted):
            continue
        L = xp.asarray(np.linalg.cholesky(H[np.ix_(accepted, accepted)]), device=device)
        new = xp.take(G, xp.asarray(accepted, device=device), axis=1)
        new = solve_triangular(L, new.T).T
        F[:, k : k + len(accepted)] = new
        chosen = np.concatenate([chosen, np.unique(proposed)[accepted]])
        left = np.maximum(left - to_numpy(xp.sum(new**2, axis=1)), 0.0)
        left[chosen] = 0.0
    return chosen


def _accepted(H, proposed, n_most, floor, rng):
    """Return which proposals pivoted Cholesky takes, one after the other."""
    first, H = np.diagonal(H).copy(), H.copy()
    accepted = []
    for i in proposed:
        if len(accepted) == n_most:
            break
        if H[i, i] > max(floor, rng.random_sample() * first[i]):
            H -= np.outer(H[:, i], H[i]) / H[i, i]
            accepted.append(i)
    return np.asarray(accepted, dtype=np.int64)


def pilot_size(n_rows, n_centers):
    """Return how many rows `leverage_indices` takes as a pilot."""
    return min(n_rows, max(n_centers, 200), 2000)


def leverage_indices(diagonal, columns, n_centers, rng):
    """Return rows drawn by approximate ridge leverage scores.

    A row is drawn, without replacement, with a probability proportional to its score
    (K (K + lambda I)^-1)_ii, how much of it other rows don't explain, with the lambda
    whose effective dimension, the sum of the scores, is n_centers. The scores are those
    of `ridge_leverage_scores` with uniformly drawn rows as a pilot. Takes `pilot_size`
    columns of the kernel matrix and that many multiply-adds for each of their entries,
    and keeps them.

    Parameters
    ----------
    diagonal : array of shape (n,)
        k(x, x) of the rows, times their weights, in float64.
    columns : callable
        ``columns(index)`` returns the columns of the kernel matrix of some rows,
        weighted by the roots of the weights, shape (n, len(index)), in float64.
    n_centers : int
        All rows are returned if there are fewer.
    rng : numpy.random.RandomState

    Returns
    -------
    ndarray of shape (min(n_centers, n),)
        Indices in the order of their choice. Rows without a score fill up.
    """
    n = diagonal.shape[0]
    pilot = uniform_indices(n, pilot_size(n, n_centers), rng)
    scores = ridge_leverage_scores(diagonal, columns, pilot, n_centers)
    scores = np.maximum(scores, 1e-300)
    return rng.choice(n, min(n_centers, n), replace=False, p=scores / scores.sum())


def ridge_leverage_scores(diagonal, columns, pilot, total):
    """Return approximate ridge leverage scores with a given sum.

    With a pilot set J of M rows that stands for all n, the score of row i is ::

        h_i = (k_ii - k_iJ (K_JJ + (M / n) lambda I)^-1 k_Ji) / lambda

    as in Rudi et al., whose lambda is n times smaller, with A = (M / n) I. In it a row
    of J counts c = n / M times, and any other c = 0 times. It should count once: by the
    formula of Sherman and Morrison that is h_i / (1 + (1 - c) h_i). The scores are then
    at most 1, and exact if J is all rows.

    Parameters
    ----------
    diagonal, columns
        As for `leverage_indices`.
    pilot : ndarray of shape (M,)
        Indices of the rows J.
    total : float
        The sum, which determines lambda.

    Returns
    -------
    ndarray of shape (n,)
        Their sum is smaller than `total` if that needs a lambda of less than 1e-12
        times the trace of K, when K is of low rank.

    References
    ----------
    Alaoui and Mahoney, "Fast randomized kernel ridge regression with statistical
    guarantees", NIPS 2015 (arXiv:1411.0306).

    Rudi, Calandriello, Carratino, Rosasco, "On fast leverage score sampling and optimal
    learning", NeurIPS 2018 (arXiv:1810.13258).
    """
    xp, device = namespace(diagonal), device_of(diagonal)
    n, part = diagonal.shape[0], len(pilot) / diagonal.shape[0]
    index = xp.asarray(pilot, device=device)
    V = xp.empty((n, len(pilot)), dtype=xp.float64, device=device)
    for block in slices(len(pilot), len(pilot) // 10 + 1):
        V[:, block] = columns(index[block])
    values, U = eigh(xp.take(V, index, axis=0))
    for rows in slices(n, 1000):
        V[rows, :] = large_product(V[rows, :], U) ** 2
    values = np.maximum(to_numpy(values), 0.0)
    diagonal = to_numpy(diagonal)
    count, bound = np.zeros(n), np.full(n, np.inf)
    count[pilot], bound[pilot] = 1 / part, part

    def scores(log_ridge):
        ridge = np.exp(log_ridge)
        inverse = xp.asarray(1 / (values + part * ridge), device=device)
        h = (diagonal - to_numpy(V @ inverse)) / ridge
        h = np.clip(h, 0.0, bound)  # it is there, up to rounding
        return h / (1 + (1 - count) * h)

    trace = diagonal.sum()
    if not trace > 0:
        return np.zeros(n)
    low, high = np.log(1e-12 * trace), np.log(2 * trace / total)
    if scores(low).sum() > total:
        low = brentq(lambda ridge: scores(ridge).sum() - total, low, high, xtol=1e-10)
    return scores(low)
