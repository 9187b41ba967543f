"""Which rows become the centres of a kernel model."""

from hashlib import blake2b

import numpy as np

from ._array import to_numpy


def distinct_rows(*arrays):
    """Return the first of every set of equal rows, in an order of their content.

    Repeating rows, leaving out copies, or another order of the rows change nothing but
    the indices: what is drawn from distinct rows with a given seed is the same rows.

    Parameters
    ----------
    *arrays : arrays of shape (n, ...)
        Rows are equal if they are so in all of them.

    Returns
    -------
    first : ndarray of shape (k,)
        Indices of the distinct rows.
    which : ndarray of shape (n,)
        For each row, the place of its equal in `first`.
    """
    # Zero is added, so that -0.0 is 0.0.
    parts = [np.ascontiguousarray(to_numpy(array) + 0.0) for array in arrays]
    keys = np.empty(len(parts[0]), dtype=np.uint64)
    for i, rows in enumerate(zip(*parts, strict=True)):
        digest = blake2b(digest_size=8)
        for row in rows:
            digest.update(row)
        keys[i] = int.from_bytes(digest.digest(), "little")
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    return first, which


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
