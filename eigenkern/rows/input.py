"""Input that is not in memory: files, Dask arrays and DataFrames."""

from copy import copy
from functools import partial

import numpy as np
import scipy.sparse
from array_api_compat import is_array_api_obj

from ..arrays import memory
from .dask_rows import DaskRows, Workers, cluster
from .lazy_rows import LazyRows, StoredRows, check_readable

# Rows up to which a model may differ if they are not an array.
_FEW_ROWS = 20_000


def is_dask(X):
    """Whether X is a Dask collection."""
    return hasattr(X, "__dask_graph__")


def is_file(X, name="X"):
    """Whether X is a memory map, or an array in an HDF5 or Zarr file."""
    if isinstance(X, np.memmap):
        return True
    package = type(X).__module__.partition(".")[0]
    check_readable(X, name)
    return package in ("h5py", "zarr") and hasattr(X, "shape")


def read(X, name="X"):
    """Return what is in a file, which may change, as an array; others as is."""
    if isinstance(X, np.memmap):
        return np.array(X)
    if not is_file(X, name):
        return X
    try:
        return np.asarray(X[...])
    finally:  # what is missing in a Zarr store reads as zeros
        check_readable(X, name)


def lazy_rows(X):
    """Return the rows of X without reading them, or None if X is to become an array."""
    if is_dask(X):
        X = _array_of(X, lengths=True)
        if np.isnan(X.shape[0]):
            raise ValueError(
                "X must have chunks of known sizes; got unknown ones: call "
                "X.compute_chunk_sizes() first"
            )
        return DaskRows(X, _float_of(X))
    if not is_file(X) or _fits(X):
        return None
    if len(X.shape) != 2:
        raise ValueError(
            f"X must have shape (n_samples, n_features); got shape {tuple(X.shape)}"
        )
    return StoredRows(X, _float_of(X))


def _fits(X):
    """Whether the rows of a file are few enough to be read as an array."""
    n_bytes = np.prod(X.shape, dtype=float) * np.dtype(X.dtype).itemsize
    free = memory.available(np, "cpu")
    if X.shape[0] <= _FEW_ROWS:  # they may all be centers: free memory has no say
        free = max(free, memory.installed(np, "cpu") / 2)
    return 4 * n_bytes <= free


class _Unread(LazyRows):
    """Lazy rows of which only the shape is known."""

    def __init__(self, shape):
        self.shape, self.dtype = shape, np.dtype(np.float64)

    def __getitem__(self, key):
        """Return a range of the rows, as little known."""
        return _Unread((len(range(self.shape[0])[key[0]]), self.shape[1]))


def stand_in(X):
    """Return rows for a plan in place of X, without reading it; none if it is odd."""
    if scipy.sparse.issparse(X):
        return X.tocsr()
    if is_dask(X):
        shape = tuple(X.shape)
        if len(shape) != 2 or not all(isinstance(size, int) for size in shape):
            return np.empty(0)
        away = isinstance(cluster(), Workers)  # or else the chunks are in memory here
        return _Unread(shape) if away else np.broadcast_to(0.0, shape)
    if is_file(X) and len(X.shape) == 2 and not _fits(X):
        return _Unread(tuple(X.shape))
    return X if is_array_api_obj(X) else np.broadcast_to(0.0, np.shape(X))


def check_not_half(X, name="X"):
    """Raise a ValueError if an array is of 16-bit floats."""
    if str(getattr(X, "dtype", "")).rpartition(".")[2] in ("float16", "bfloat16"):
        raise ValueError(
            f"{name} must be float32 or float64, or integers; got {X.dtype}, which is "
            f"not supported: pass {name}.astype('float32')"
        )


def _float_of(X):
    """Return the data type to compute rows in."""
    check_not_half(X)
    dtype = np.dtype(X.dtype)
    if dtype.kind not in "biuf":
        raise ValueError(f"X must hold numbers; got the data type {dtype}")
    return np.float32 if dtype == np.float32 else np.float64


def _array_of(X, lengths=None):
    """Return a Dask array of rows, with chunks of whole rows."""
    if hasattr(X, "to_dask_array"):  # a DataFrame
        X = _in_floats(X)
        lengths = tuple(computed(X.map_partitions(len))) if lengths else None
        X = X.to_dask_array(lengths=lengths)
    if X.ndim != 2:
        raise ValueError(
            f"X must have shape (n_samples, n_features); got {X.ndim} dimension(s)"
        )
    if len(X.chunks[1]) > 1:
        raise ValueError(
            "X must have its features in one chunk; got chunks of "
            f"{X.chunks[1]} features: call X.rechunk({{1: -1}}) first"
        )
    return X


def _in_floats(X):
    """Return a DataFrame; one of numbers with a single data type, like an array."""
    from pandas.api.types import is_numeric_dtype  # includes the types with NA

    dtypes = set(X.dtypes)
    plain = len(dtypes) == 1 and isinstance(X.dtypes.iloc[0], np.dtype)
    if plain or not all(map(is_numeric_dtype, dtypes)):
        return X
    single = {str(dtype).lower() for dtype in dtypes} == {"float32"}
    return X.astype(np.float32 if single else np.float64)


def computed(values):
    """Return values in memory; those of Dask are computed."""
    return cluster().compute(values) if is_dask(values) else values


def by_chunks(model, method, X, *args, **options):
    """Return a Dask array of a fitted model's method applied to every chunk of X.

    It is not computed yet, and will be by the model as it is now. The method takes no
    other arguments.
    """
    from dask import delayed
    from dask.base import tokenize

    if args or any(options.values()):
        raise ValueError(
            f"{method} of a Dask array takes no other parameters: call it on chunks, "
            "with X.map_blocks"
        )
    call = partial(_call, method)
    names = getattr(X, "columns", None)
    example = call(np.zeros((1, X.shape[1])), model, names)
    if not is_array_api_obj(example):
        raise ValueError(
            f"{method} of a Dask array returns a Dask array; got set_output, or the "
            f"configuration transform_output, for {type(example).__name__}: call "
            "set_output(transform='default')"
        )
    X = _array_of(X)
    shape = {"drop_axis": [1], "dtype": example.dtype, "meta": example[:0, ...]}
    if example.ndim == 2:
        shape |= {"new_axis": [1], "chunks": (X.chunks[0], example.shape[1:])}
    # The model is a separate task, which all chunks share.
    shared = delayed(copy(model), name=f"eigenkern-{tokenize(id(model), vars(model))}")
    return X.map_blocks(call, shared, names, **shape)


def _call(method, X, model, names=None):
    """Return the result of a method of a model on rows, even if there are none."""
    n = X.shape[0]
    rows = X if n else np.zeros((1, X.shape[1]), dtype=X.dtype)
    if names is not None:
        import pandas as pd

        rows = pd.DataFrame(rows, columns=names)
    found = getattr(model, method)(rows)
    return found if n else found[:0, ...]
