"""Which rows are distinct, by hashes of their content."""

from hashlib import blake2b
from itertools import pairwise

import numpy as np
import scipy.sparse

from ..arrays.array import slices, to_numpy
from ..rows.lazy_rows import is_lazy

# Numbers of X whose keys are computed at a time: copies of 8 MB.
_KEYS_BLOCK = 2**20


def distinct_rows(X):
    """Return the first of every set of equal rows, in an order of their content.

    `first` (k,) has their indices, and `which` (n,) for each row the index in `first`
    of the row that equals it. Copies of rows, another order, and float32 in place of
    float64 change only the indices: a given seed draws the same rows from the distinct
    ones. X may be an array or LazyRows.
    """
    return _distinct(X.by_rows(_all_keys) if is_lazy(X) else _all_keys(X))


def rows_among(X, Z):
    """Return which rows of X equal a row of Z, of the same data type, bool (n,)."""
    which = _distinct(np.concatenate([_all_keys(X), _all_keys(Z)]))[1]
    return np.isin(which[: X.shape[0]], which[X.shape[0] :])


def same_rows(X, Z):
    """Return which row of Z each row of X equals, or -1, (n,).

    The rows of Z are distinct, and of the data type of X.
    """
    which = _distinct(np.concatenate([_all_keys(X), _all_keys(Z)]))[1]
    place = np.full(which.max() + 1, -1)
    place[which[X.shape[0] :]] = np.arange(Z.shape[0])
    return place[which[: X.shape[0]]]


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
    if scipy.sparse.issparse(X):  # of the places and values of entries
        X = X.tocsr(copy=True)
        X.sum_duplicates()
        X.eliminate_zeros()
        rows = [slice(*ends) for ends in pairwise(X.indptr)]
        places = [X.indices[row].tobytes() for row in rows]
        with np.errstate(over="ignore"):
            kinds = X.data.astype(np.float32), X.data
        keys = [
            _keys(at + values[row].tobytes() for at, row in zip(places, rows))
            for values in kinds
        ]
        return np.stack(keys, axis=1)
    X = to_numpy(X)
    keys = np.empty((X.shape[0], 2), dtype=np.uint64)
    for rows in slices(X.shape[0], max(_KEYS_BLOCK // max(X.shape[1], 1), 1)):
        block = X[rows]
        with np.errstate(over="ignore"):
            keys[rows, 0] = _keys(block.astype(np.float32, order="C") + 0.0)
        keys[rows, 1] = keys[rows, 0]
        if X.dtype != np.float32:
            keys[rows, 1] = _keys(np.ascontiguousarray(block) + 0.0)
    return keys


def _keys(contents):
    """Return 64 bits for the content of every row; -0.0 must be 0.0 there."""
    digests = (blake2b(content, digest_size=8).digest() for content in contents)
    return np.frombuffer(b"".join(digests), dtype=np.uint64)
