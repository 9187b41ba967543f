"""Which rows are distinct, by hashes of their content."""

from hashlib import blake2b

import numpy as np
import scipy.sparse

from ..arrays.array import slices, to_numpy
from ..rows.lazy_rows import is_lazy

# Numbers of X whose keys are computed at a time: copies of 8 MB.
_KEYS_BLOCK = 2**20


def distinct_rows(X):
    """Return the first of every set of equal rows, in an order of their content.

    Copies of rows, another order, and float32 in place of float64 change only the
    indices: a given seed draws the same rows from the distinct ones. X may be an array
    or LazyRows.

    Returns
    -------
    first : ndarray of shape (k,)
        Indices of the distinct rows.
    which : ndarray of shape (n,)
        For each row, the index in `first` of the row that equals it.
    """
    return _distinct(X.by_rows(_all_keys) if is_lazy(X) else _all_keys(X))


def rows_among(X, Z):
    """Return which rows of X equal a row of Z, of the same data type, bool (n,)."""
    which = _distinct(np.concatenate([_all_keys(X), _all_keys(Z)]))[1]
    return np.isin(which[: X.shape[0]], which[X.shape[0] :])


def _distinct(keys):
    """Return `first` and `which` of `distinct_rows`, by keys of the rows."""
    order = np.lexsort(keys.T[::-1])
    coarse, exact = keys[order].T
    new = np.ones(len(order), dtype=bool)
    new[1:] = (coarse[1:] != coarse[:-1]) | (exact[1:] != exact[:-1])
    which = np.empty(len(order), dtype=np.int64)
    which[order] = np.cumsum(new) - 1
    return order[new], which


def _all_keys(X):
    """Return keys of the rows in single precision and as they are, shape (n, 2)."""
    if scipy.sparse.issparse(X):
        return _keys_of_sparse(X)
    X = to_numpy(X)
    keys = np.empty((X.shape[0], 2), dtype=np.uint64)
    for rows in slices(X.shape[0], max(_KEYS_BLOCK // max(X.shape[1], 1), 1)):
        block = X[rows]
        with np.errstate(over="ignore"):
            keys[rows, 0] = _keys(block.astype(np.float32))
        keys[rows, 1] = keys[rows, 0] if X.dtype == np.float32 else _keys(block)
    return keys


def _keys_of_sparse(X):
    """Return the same of a sparse array: of the places and values of its entries."""
    X = X.tocsr(copy=True)
    X.sum_duplicates()
    X.eliminate_zeros()
    with np.errstate(over="ignore"):
        kinds = X.data.astype(np.float32), X.data
    keys = np.empty((X.shape[0], 2), dtype=np.uint64)
    for i, values in enumerate(kinds):
        for row, (start, stop) in enumerate(zip(X.indptr, X.indptr[1:])):
            content = X.indices[start:stop].tobytes() + values[start:stop].tobytes()
            digest = blake2b(content, digest_size=8).digest()
            keys[row, i] = np.frombuffer(digest, dtype=np.uint64)[0]
    return keys


def _keys(rows):
    """Return 64 bits for the content of every row."""
    rows = np.ascontiguousarray(rows + 0.0)  # -0.0 becomes 0.0
    digests = (blake2b(row, digest_size=8).digest() for row in rows)
    return np.frombuffer(b"".join(digests), dtype=np.uint64)
