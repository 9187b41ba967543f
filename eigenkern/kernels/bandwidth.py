"""Checks of bandwidths, and units for them that are measured on rows."""

import math
from dataclasses import fields
from functools import wraps
from numbers import Real

import numpy as np
from scipy.spatial.distance import pdist

from ..arrays.array import (
    AnyGenerator,
    ArrayLike,
    as_random_state,
    floating,
    location_of,
    move,
    plain,
    slices,
    to_numpy,
)
from ..rows.lazy_rows import in_memory, is_lazy, rows_at
from ..rows.robust import medians, sampled, usual_size

# Distances by name, and what SciPy calls them.
_METRICS = {"euclidean": "euclidean", "manhattan": "cityblock"}
# Rows whose median distance is taken. Over ten draws from each of five data sets its
# standard deviation is at most 1.8 % (with 200 rows at most 5.3 %).
MEDIAN_ROWS = 600
# Usual sizes at which entries are cut off: sums of their squares are finite.
_MOST_SIZES = 1e150
# Usual sizes from which an entry is no measure of the others. Of normal values none is
# more than 10 away, of a Cauchy distribution one in 1600.
_FILL_SIZES = 1000.0
# Numbers of X that `scale_gamma` reads at a time: 8 MB.
_BLOCK = 2**20


def check_positive_bandwidth(value):
    """Raise a ValueError unless the square of a bandwidth is a positive float."""
    value = plain(value)  # the limits are outside the range of float32
    if not is_number(value) or not 0 < value < float("inf"):
        raise ValueError(f"bandwidth must be positive and finite; got {value!r}")
    if not 1e-150 < value < 1e150:  # its square is finite and positive
        raise ValueError(f"bandwidth must be in (1e-150, 1e150); got {value!r}")


def checked_gamma(gamma):
    """Return `gamma` as a float; raise a ValueError unless it is positive."""
    if not is_number(gamma) or not 0 < gamma < float("inf"):
        advice = ""
        if isinstance(gamma, str):
            advice = (
                ": what depends on X is the estimator's; gamma='scale' of SVC is "
                "bandwidth='scale' with kernel='gaussian'"
            )
        raise ValueError(f"gamma must be positive and finite; got {gamma!r}{advice}")
    return float(gamma)


def answering_gamma(init):
    """Return the constructor of a kernel; its error about gamma says what to write."""

    @wraps(init)
    def answering(self, *args, **parameters):
        if "gamma" in parameters:
            name = type(self).__name__
            raise TypeError(
                f"{name}() has no parameter 'gamma': write {name}.from_gamma("
                f"{parameters['gamma']!r}), or pass a bandwidth"
            )
        init(self, *args, **parameters)

    return answering


def is_number(value):
    """Whether a parameter is a number of Python or NumPy, and no array or bool."""
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_)


def check_parameters(kernel):
    """Raise a ValueError unless a kernel's parameters are numbers, its bandwidth valid.

    NumPy scalars become numbers of Python: the square of a small one would be wrong.
    """
    for field in fields(kernel):
        value = getattr(kernel, field.name)
        if not is_number(value):
            raise ValueError(f"{field.name} must be a number; got {value!r}")
        object.__setattr__(kernel, field.name, plain(value))  # kernels are frozen
    check_positive_bandwidth(kernel.bandwidth)


def median_distance(
    X: ArrayLike,
    random_state: AnyGenerator = None,
    *,
    n_rows: int = MEDIAN_ROWS,
    metric: str = "euclidean",
) -> float:
    """Return the median distance between distinct rows of a subsample.

    The bandwidth that ``bandwidth="median"`` means: a unit for a grid of bandwidths.

    Parameters
    ----------
    X : array of shape (n, d)
    random_state : int, RandomState instance, Generator or None, default=None
        Draws the subsample; not used if that is all rows.
    n_rows : int, default=600
        Rows of the subsample.
    metric : {"euclidean", "manhattan"}, default="euclidean"
        Distance; "manhattan" for the kernel of that name.

    Returns
    -------
    distance : float
        In the units of X.

    Raises
    ------
    ValueError
        If all rows of the subsample are equal, or the metric is not known.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenkern.kernels import median_distance
    >>> median_distance(np.array([[0.0], [1.0], [4.0]]))
    3.0
    """
    if metric not in _METRICS:
        raise ValueError(f"metric must be 'euclidean' or 'manhattan'; got {metric!r}")
    X = X if is_lazy(X) else floating(X)
    if X.shape[0] > n_rows:
        rng = as_random_state(random_state)
        X = rows_at(X, np.sort(rng.choice(X.shape[0], n_rows, replace=False)))
    # In units of their usual size, so that squares of it are finite, and those of fill
    # values at most infinite.
    rows = to_numpy(in_memory(X)).astype(np.float64)
    with np.errstate(over="ignore"):
        rows -= medians(rows)
        scale = usual_size(rows)
        np.clip(rows / scale, -_MOST_SIZES, _MOST_SIZES, out=rows)
        distances = pdist(rows, _METRICS[metric]) * scale
    distances = distances[distances > 0]
    if distances.size == 0:
        raise ValueError(
            "bandwidth='median' or 'auto' found a median distance of 0: all rows of X "
            f"(of its subsample of {rows.shape[0]} rows) are equal; pass a positive "
            "bandwidth"
        )
    return float(np.median(distances))


def scale_gamma(X, like=None):
    """Return scikit-learn's gamma="scale": 1 / (d var), or 1 if X is constant.

    ``var`` is the variance of all n d numbers, except fill values: those more than 1000
    usual sizes away from the median of their column, both measured on rows of the array
    `like`, or of X. X may be an array or StreamedRows.
    """
    n, d = X.shape
    some = sampled(X if like is None else like)
    offset = medians(some)
    with np.errstate(over="ignore"):
        far = _FILL_SIZES * usual_size(to_numpy(some) - to_numpy(offset))
    count, mean, squares, lowest, highest = 0, 0.0, 0.0, math.inf, -math.inf
    for rows in slices(n, max(_BLOCK // d, 1)):
        block = X[rows, :]
        xp, device = location_of(block)
        with np.errstate(over="ignore"):
            near = xp.abs(block - move(offset, xp, device)) <= far
        block = xp.astype(block if bool(xp.all(near)) else block[near], xp.float64)
        if 0 in block.shape:
            continue
        lowest = min(lowest, float(xp.min(block)))
        highest = max(highest, float(xp.max(block)))
        # Squares about the common mean: those of the block, and of the two means.
        m, mean_of_block = math.prod(block.shape), float(xp.mean(block))
        moved = mean_of_block - mean
        with np.errstate(over="ignore"):
            squares += float(xp.sum((block - mean_of_block) ** 2))
        squares += moved * moved * m * count / (m + count)
        mean += moved * m / (m + count)
        count += m
    if lowest == highest:
        return 1.0
    return count / (d * squares) if squares else math.inf
