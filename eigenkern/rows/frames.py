"""DataFrames of pandas and polars: what their columns hold, as arrays."""

from numbers import Number

import numpy as np

from ..arrays.array import namespace

NUMBERS, TEXTS, CATEGORIES, DATES = "numbers", "text", "categories", "dates or times"
MIXED = "text and numbers"
# What `infer_dtype` of pandas says of columns of Python objects.
_OF_OBJECTS = {
    **dict.fromkeys(["boolean", "integer", "floating", "decimal", "empty"], NUMBERS),
    "mixed-integer-float": NUMBERS,
    "string": TEXTS,
    "categorical": CATEGORIES,
    **dict.fromkeys(["datetime", "datetime64", "date", "time"], DATES),
    **dict.fromkeys(["timedelta", "timedelta64", "period"], DATES),
    "mixed-integer": MIXED,
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


def infinite_column(frame):
    """Return the first column of a DataFrame with infinite numbers, or None."""
    for name, column in zip(frame.columns, columns_of(frame), strict=True):
        values = np.asarray(column)
        if values.dtype.kind == "f" and np.isinf(values).any():
            return name
    return None


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


def as_levels(X, as_text=None):
    """Return columns of categories as an array of objects: numbers, text, or NaN.

    `as_text` says of each column whether its levels become text; None: those that hold
    anything but numbers.
    """
    columns = columns_of(X)
    levels = np.empty((len(columns), X.shape[0]), dtype=object)
    for own, column in zip(levels, columns, strict=True):
        own[:] = _levels(column)
    if as_text is None:
        as_text = [kind != NUMBERS for kind in kinds_of_levels(levels.T)]
    for own, becomes_text in zip(levels, as_text, strict=True):
        if becomes_text:
            own[:] = [_as_text(level) for level in own]
    return levels.T


def kinds_of_levels(levels):
    """Return whether columns hold numbers, text, or else both; None: gaps alone."""
    return [_kind_of_types(set(map(type, own[own == own]))) for own in levels.T]


def _kind_of_types(types):
    for kind, of_kind in ((TEXTS, str), (NUMBERS, (Number, np.bool_))):
        if types and all(issubclass(one, of_kind) for one in types):
            return kind
    return MIXED if types else None


def _levels(column):
    if hasattr(column, "cat") and hasattr(column.cat, "codes"):  # of pandas
        codes = column.cat.codes.to_numpy()
        known = np.empty(len(column.cat.categories) + 1, dtype=object)
        known[:-1] = np.asarray(column.cat.categories, dtype=object)
        known[-1] = np.nan
        return known[codes]
    values = np.array(column, dtype=object)
    values[_is_gap(column)] = np.nan
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


def _as_text(level):
    """Return a level as text; a gap stays, and 1.0 is the same as 1."""
    if isinstance(level, str) or level != level:
        return level
    if isinstance(level, float | np.floating) and float(level).is_integer():
        level = int(level)
    return str(level)


def columns_at(X, index):
    """Return some columns of a DataFrame or an array."""
    if is_frame(X):
        return X.iloc[:, index] if hasattr(X, "iloc") else X[:, list(index)]
    return X[:, index]


def first_row(X):
    """Return the first row of a DataFrame or an array, as a table."""
    return X.iloc[:1] if hasattr(X, "iloc") else X[:1]
