"""Entries of X that are far too large: a warning in fits, an error in predictions."""

from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import scipy.sparse

from ..backend.array import namespace, to_numpy
from ..backend.lazy import is_lazy, rows_at
from ..backend.robust import medians, sampled
from ..kernels import Kernel, Linear, Polynomial
from .validation import warn_user

_COSTS_DIGITS = "it costs the others digits"
_has_warned = ContextVar("has_warned", default=False)


@contextmanager
def no_warning_of_columns():
    """Return a context for fits to rows of which another estimator warns."""
    token = _has_warned.set(True)
    try:
        yield
    finally:
        _has_warned.reset(token)


def warn_of_far_values(estimator, X, kernel, centers):
    """Warn of the entries of training rows that cost digits, or that are cut off.

    Rows that are not in memory are not read again for this.

    Parameters
    ----------
    estimator : estimator
    X : array or LazyRows of shape (n, d)
    kernel : Kernel or None
    centers : array of shape (p, d)
        Those of the model, by which the kernel cuts off.
    """
    if isinstance(kernel, Linear | Polynomial):
        warn_of_leverage(estimator, X, kernel.diagonal)
    elif isinstance(kernel, Kernel):
        frame = kernel.frame(centers)
        if "limits" in frame:
            warn_of_cutoffs(estimator, X, frame.get("offset"), frame["limits"])


def warn_of_cutoffs(estimator, X, offset, limits):
    """Warn if an entry of X is farther from the offset than its column's limit."""
    if _has_warned.get() or is_lazy(X):
        return
    offset, limits = (None if a is None else to_numpy(a) for a in (offset, limits))
    offset = np.zeros_like(limits) if offset is None else offset
    xp = namespace(X)
    with np.errstate(over="ignore"):
        ends = [to_numpy(f(X, axis=0)) for f in (xp.min, xp.max)]
        low, high = (np.abs(end - offset) for end in ends)
        ratios = np.maximum(low, high) / limits
    column = int(np.argmax(ratios))
    if not ratios[column] > 1.0:
        return
    value = float(ends[int(high[column] > low[column])][column])
    limit = float(offset[column] + np.copysign(limits[column], value))
    _warn(estimator, X, column, value, f"it was cut off at {limit:.3g}")


def warn_of_leverage(estimator, X, squared_norms, consequence=_COSTS_DIGITS):
    """Warn if rounding of a row's squared norm exceeds those of most rows.

    Return for which rows it does, bool (n,), or None if it does for none.

    Parameters
    ----------
    estimator : estimator
    X : array or sparse matrix of shape (n, d), or LazyRows
    squared_norms : callable
        ``squared_norms(X)`` returns k(x, x) of every row, (n,).
    consequence : str
        For the message.
    """
    if _has_warned.get() or is_lazy(X):
        return None
    with np.errstate(over="ignore"):
        norms = to_numpy(squared_norms(X)).astype(np.float64)
    row, found = int(np.argmax(norms)), have_leverage(norms, X.dtype)
    if not found[row]:
        return None
    entries = X[[row]].toarray() if scipy.sparse.issparse(X) else to_numpy(X[row, :])
    entries = np.ravel(entries)
    column = int(np.argmax(np.abs(entries)))
    _warn(estimator, X, column, float(entries[column]), consequence)
    return found


def have_leverage(squared_norms, dtype):
    """Return for which rows rounding of |x|^2 exceeds that of most rows, bool (n,)."""
    usual = squared_norms[squared_norms > 0]
    eps = float(np.finfo(str(dtype).rpartition(".")[2]).eps)
    return eps * squared_norms > (np.median(usual) if len(usual) else np.inf)


def _warn(estimator, X, column, value, consequence):
    names = getattr(estimator, "feature_names_in_", None)
    name = column if names is None else repr(str(names[column]))
    if scipy.sparse.issparse(X):
        usual = np.abs(X[:, [column]].data)
        usual = float(np.median(usual)) if len(usual) else 0.0
        middle = 0.0
    else:
        one = sampled(X[:, column : column + 1])
        middle = float(medians(one)[0])
        with np.errstate(over="ignore"):
            usual = float(medians(namespace(X).abs(one - middle))[0])
    if usual > 0:
        size = f"{abs(value - middle) / usual:.2g} times its usual size"
    else:
        size = f"where most rows hold {middle:.3g}"
    warn_user(
        f"column {name} of X holds {value:.3g}, {size}: {consequence}; replace fill "
        "values, or scale the column, before fitting",
        UserWarning,
    )


def check_values(F, X):
    """Raise a ValueError that names the row of X whose value in F is not finite."""
    xp = namespace(F)
    finite = xp.isfinite(F)
    if bool(xp.all(finite)):
        return
    finite = to_numpy(xp.reshape(finite, (F.shape[0], -1)))
    row = int(np.flatnonzero(~np.all(finite, axis=1))[0])
    entries = X[[row]].data if scipy.sparse.issparse(X) else rows_at(X, np.array([row]))
    entries = np.ravel(to_numpy(entries))
    largest = float(entries[np.argmax(np.abs(entries))]) if len(entries) else 0.0
    raise ValueError(
        f"row {row} of X, whose largest entry is {largest:.3g}, has a value that is "
        f"not finite in {F.dtype}: pass rows of the size of the training rows, or fit "
        "to float64 data"
    )
