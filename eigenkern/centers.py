"""Which rows become the centres of a kernel model."""

from hashlib import blake2b

import numpy as np

from ._array import to_numpy


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
