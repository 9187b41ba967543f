"""DataFrames of pandas and polars: what their columns hold, as arrays."""

import numpy as np

from ..arrays.array import namespace

NUMBERS, TEXTS, CATEGORIES, DATES = "numbers", "text", "categories", "dates or times"
# What `infer_dtype` of pandas says of columns of Python objects.
_OF_OBJECTS = {
    **dict.fromkeys(["boolean", "integer", "floating", "decimal", "empty"], NUMBERS),
    "mixed-integer-float": NUMBERS,
    "string": TEXTS,
    "categorical": CATEGORIES,
    **dict.fromkeys(["datetime", "datetime64", "date", "time"], DATES),
    **dict.fromkeys(["timedelta", "timedelta64", "period"], DATES),
    "mixed-integer": "text and numbers",
    "mixed": "objects that are neither numbers nor text",
}


def is_frame(X):
    """Whether X is a DataFrame of pandas or polars."""
    package = type(X).__module__.partition(".")[0]
    return package in ("pandas", "polars") and type(X).__name__ == "DataFrame"


class FrameRows:
    """The rows of a DataFrame with categories, before they become numbers."""

    dtype, device = np.dtype(np.float64), "cpu"

    def __init__(self, frame):
        self.frame, self.shape = frame, frame.shape

    def __array_namespace__(self, api_version=None):
        """Return the namespace of the numbers."""
        return namespace(np.empty(0))

    def __len__(self):
        return self.shape[0]


def columns_of(X):
    """Return the columns of a DataFrame or an array."""
    if not is_frame(X):
        return list(X.T)
    if hasattr(X, "iloc"):
        return [X.iloc[:, j] for j in range(X.shape[1])]
    return X.get_columns()


def kinds_of_columns(frame):
    """Return what each column of a DataFrame holds, in words."""
    kind = _kind_of_pandas if hasattr(frame, "iloc") else _kind_of_polars
    return [kind(column) for column in columns_of(frame)]


def _kind_of_pandas(column):
    from pandas import CategoricalDtype
    from pandas.api import types

    dtype = column.dtype
    if isinstance(dtype, CategoricalDtype):
        return CATEGORIES
    if types.is_object_dtype(dtype):
        found = types.infer_dtype(column, skipna=True)
        return _OF_OBJECTS.get(found, f"objects of the kind {found!r}")
    if types.is_bool_dtype(dtype):
        return NUMBERS
    if types.is_numeric_dtype(dtype) and not types.is_complex_dtype(dtype):
        return NUMBERS
    if types.is_string_dtype(dtype):
        return TEXTS
    if getattr(dtype, "kind", "") in "mM" or str(dtype).startswith("period"):
        return DATES
    return f"the data type {dtype}"


def _kind_of_polars(column):
    dtype = column.dtype
    if dtype.is_numeric() or str(dtype) in ("Boolean", "Null"):
        return NUMBERS
    if dtype.is_temporal():
        return DATES
    kind = str(dtype).partition("(")[0]
    if kind in ("Categorical", "Enum"):
        return CATEGORIES
    return TEXTS if kind == "String" else f"the data type {dtype}"


def as_levels(X):
    """Return columns of categories as an array of objects: numbers, text, or NaN."""
    columns = columns_of(X)
    levels = np.empty((len(columns), X.shape[0]), dtype=object)
    for own, column in zip(levels, columns, strict=True):
        own[:] = _levels(column)
    return levels.T


def _levels(column):
    if hasattr(column, "cat") and hasattr(column.cat, "codes"):  # of pandas
        codes = column.cat.codes.to_numpy()
        known = np.empty(len(column.cat.categories) + 1, dtype=object)
        known[:-1] = _as_text_or_numbers(np.asarray(column.cat.categories, object))
        known[-1] = np.nan
        return known[codes]
    values = np.array(column, dtype=object)
    gaps = _is_gap(column)
    values[gaps] = np.nan
    values[~gaps] = _as_text_or_numbers(values[~gaps])
    return values


def _is_gap(column):
    if hasattr(column, "isna"):
        return np.asarray(column.isna(), dtype=bool)
    values = np.asarray(column)
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind == "O":
        return np.array([one is None or one != one for one in values], dtype=bool)
    return np.zeros(len(values), dtype=bool)


def _as_text_or_numbers(values):
    """Return levels as they are if all are text or all are numbers, or else as text."""
    for kind in (str, (int, float, np.number, np.bool_)):
        if all(isinstance(value, kind) for value in values):
            return values
    return [str(value) for value in values]


def columns_at(X, index):
    """Return some columns of a DataFrame or an array."""
    if is_frame(X):
        return X.iloc[:, index] if hasattr(X, "iloc") else X[:, list(index)]
    return X[:, index]


def first_row(X):
    """Return the first row of a DataFrame or an array, as a table."""
    return X.iloc[:1] if hasattr(X, "iloc") else X[:1]
