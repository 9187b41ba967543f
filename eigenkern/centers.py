"""Which rows become the centres of a kernel model."""

from hashlib import blake2b

import numpy as np

from ._array import device_of, move, namespace, to_numpy
from ._linalg import solve_triangular


def distinct_rows(X):
    """Return the first of every set of equal rows, in an order of their content.

    Repeating rows, leaving out copies, another order of the rows or float32 in place of
    float64 change nothing but the indices: what is drawn from distinct rows with a
    given seed is the same rows.

    Parameters
    ----------
    X : array of shape (n, d)

    Returns
    -------
    first : ndarray of shape (k,)
        Indices of the distinct rows.
    which : ndarray of shape (n,)
        For each row, the place of its equal in `first`.
    """
    X = to_numpy(X)
    with np.errstate(over="ignore"):
        coarse = _keys(X.astype(np.float32))
    exact = coarse if X.dtype == np.float32 else _keys(X)
    order = np.lexsort((exact, coarse))
    new = np.ones(len(order), dtype=bool)
    for keys in (coarse, exact):
        new[1:] &= keys[order[1:]] == keys[order[:-1]]
    new[1:] = ~new[1:]
    which = np.empty(len(order), dtype=np.int64)
    which[order] = np.cumsum(new) - 1
    return order[new], which


def _keys(rows):
    """Return 64 bits for the content of every row."""
    rows = np.ascontiguousarray(rows + 0.0)  # -0.0 becomes 0.0
    digests = (blake2b(row, digest_size=8).digest() for row in rows)
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def uniform(n_rows, n_centers, rng):
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


def kmeans(X, n_centers, rng):
    """Return the means of clusters of rows, by scikit-learn's ``MiniBatchKMeans``.

    Batches of 1024 rows: the time grows little with the number of rows. On the host,
    wherever X lives.

    Parameters
    ----------
    X : array of shape (n, d)
        In float32 or float64.
    n_centers : int
        At most n.
    rng : numpy.random.RandomState

    Returns
    -------
    array of shape (n_centers, d)
        In the library and data type of X, where X lives.

    Raises
    ------
    ValueError
        If there are more centres than rows.
    """
    from sklearn.cluster import MiniBatchKMeans

    if not 1 <= n_centers <= X.shape[0]:
        raise ValueError(
            f"n_centers must be at least 1 and at most the number of rows, "
            f"{X.shape[0]}; got {n_centers}"
        )
    rows = to_numpy(X)
    offset = rows.mean(axis=0)  # a large one would cost digits of the distances
    clusters = MiniBatchKMeans(n_centers, random_state=rng).fit(rows - offset)
    return move(clusters.cluster_centers_ + offset, namespace(X), device_of(X))


def rpcholesky(diagonal, columns, n_centers, rng):
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
        G = columns(index) - F[:, :k] @ xp.take(F[:, :k], index, axis=0).T
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
