"""What the parameters `kernel` and `bandwidth` of an estimator mean."""

from dataclasses import replace
from difflib import get_close_matches
from numbers import Real

import numpy as np

from ..arrays.array import namespace
from ..centers import distinct_rows
from ..kernels import (
    CallableKernel,
    Cauchy,
    Gaussian,
    Kernel,
    Laplacian,
    Linear,
    Manhattan,
    Matern,
    Polynomial,
    check_positive_bandwidth,
    median_distance,
    scale_gamma,
)
from ..plan.bandwidth_choice import auto_bandwidth, classes_of
from ..rows.lazy_rows import is_lazy, rows_at

_BY_NAME = {
    "gaussian": Gaussian(),
    "rbf": Gaussian(),
    "laplacian": Laplacian(),
    "manhattan": Manhattan(),
    "cauchy": Cauchy(),
    "matern32": Matern(nu=1.5),
    "matern52": Matern(nu=2.5),
    "polynomial": Polynomial(),
    "linear": Linear(),
}


# What to write for kernels of other names, and for scikit-learn's.
_KERNELS_ELSEWHERE = {
    "poly": "'polynomial', or Polynomial(degree=3, coef0=1.0)",
    "cosine": "'linear' for rows from Normalizer()",
    "matern": "'matern32' or Matern(nu=1.5)",
} | {
    name: f"kernel={name}_kernel, the function of sklearn.metrics.pairwise"
    for name in ("sigmoid", "chi2", "additive_chi2")
}


def check_kernel(kernel, *, precomputed=True):
    """Raise a ValueError unless `kernel` is a name, a kernel object or a callable."""
    names = (*_BY_NAME, "precomputed") if precomputed else tuple(_BY_NAME)
    if isinstance(kernel, str) and kernel in names:
        return
    if isinstance(kernel, Kernel) or (
        callable(kernel) and not isinstance(kernel, type)
    ):
        return
    advice = ""
    if isinstance(kernel, str):
        name = kernel.lower()
        similar = get_close_matches(name, names, 1, 0.6)
        said = _KERNELS_ELSEWHERE.get(name) or (repr(similar[0]) if similar else "")
        advice = f": write {said}" if said else ""
    raise ValueError(
        f"kernel must be one of {', '.join(repr(name) for name in names)}, a kernel "
        "object such as eigenkern.kernels.Gaussian(bandwidth=5.0), or a callable "
        f"k(X, Z); got {kernel!r}{advice}"
    )


def check_spectral_law(kernel):
    """Raise a ValueError unless frequencies can be drawn for a kernel."""
    made = _BY_NAME.get(kernel) if isinstance(kernel, str) else kernel
    if isinstance(made, Kernel) and made.shift_invariant:
        return
    raise ValueError(
        "kernel must be a function of x - z with a known spectral law: 'gaussian', "
        "'laplacian', 'manhattan', 'cauchy', 'matern32', 'matern52' or such an object "
        f"of eigenkern.kernels; got {kernel!r}"
    )


def check_bandwidth(bandwidth, *, targets=True):
    """Raise a ValueError unless `bandwidth` is a known word or a positive number.

    "auto" needs `targets`, which a transformer does not have.
    """
    known = ("median", "scale", "auto") if targets else ("median", "scale")
    if isinstance(bandwidth, str) and bandwidth in known:
        return
    if not isinstance(bandwidth, Real) or isinstance(bandwidth, bool):
        right = "a positive number, 'median', 'scale' or 'auto'"
        if not targets:
            right = "a positive number, 'median' or 'scale' ('auto' needs targets)"
        raise ValueError(f"bandwidth must be {right}; got {bandwidth!r}")
    check_positive_bandwidth(bandwidth)


def check_largest(X, xp, dtype):
    """Raise a ValueError if products of rows would leave the range of a data type.

    Parameters
    ----------
    X : array, or LazyRows with known extremes
    xp : module
        Array library that computes the products.
    dtype : data type of `xp`
    """
    if is_lazy(X):
        check_extremes(*X.extremes(), xp, dtype)
    elif 0 not in X.shape:
        low, high = float(namespace(X).min(X)), float(namespace(X).max(X))
        check_extremes(low, high, xp, dtype)


def check_extremes(low, high, xp, dtype):
    """Raise the ValueError of `check_largest`, given the least and largest entry."""
    limits, largest = xp.finfo(dtype), max(high, -low)
    low, high = limits.smallest_normal**0.5 * 1e4, limits.max**0.5 * 1e-4
    if largest and not low <= largest <= high:
        raise ValueError(
            f"X must be scaled: its largest entry must be between {low:.0e} and "
            f"{high:.0e} in {dtype}; got {largest:.3g}"
        )


def _median_distance(X, rng, metric, bandwidth):
    """Return the median distance; 1 if all rows are equal: no bandwidth matters then.

    If only those of the subsample are, it is measured on the distinct rows.
    """
    try:
        median = median_distance(X, rng, metric=metric)
    except ValueError:
        first = distinct_rows(X)[0]
        if len(first) == 1:
            return 1.0
        if len(first) == X.shape[0]:
            raise
        median = median_distance(rows_at(X, np.sort(first)), rng, metric=metric)
    if 1e-150 < median < 1e150:
        return median
    raise ValueError(
        f"X must be scaled: bandwidth={bandwidth!r} found a median distance of "
        f"{median:.3g}, whose square is out of range"
    )


def make_kernel(
    kernel,
    bandwidth,
    X,
    rng,
    targets=None,
    weights=None,
    data=None,
    alpha=None,
    dtype=None,
    n_centers=None,
):
    """Return the kernel object that the parameters of an estimator mean.

    Parameters
    ----------
    kernel : str, Kernel or callable
        As checked by `check_kernel`; not "precomputed".
    bandwidth : float, "median", "scale" or "auto"
        Used with a kernel's name; a kernel object has its own.
    X : array of shape (n, d)
        Rows on which to measure the median distance or the leave-one-out error.
    rng : numpy.random.RandomState
    targets : ndarray of shape (n, l), default=None
        On the host; only "auto" needs them.
    weights : ndarray of shape (n,), default=None
        On the host, positive.
    data : Data, default=None
        "scale" is measured on all its rows with positive weight. None: on X.
    alpha : float, default=None
        The penalty for which "auto" chooses. None: the best one.
    dtype : numpy.dtype, default=None
        The precision for which "auto" chooses. None: that of X, in epochs.
    n_centers : int, default=None
        Centers of the model for which "auto" chooses. None: all rows.

    Returns
    -------
    Kernel
    """
    made = named_kernel(kernel)
    if isinstance(made, Linear):
        check_largest(X, namespace(X), X.dtype)
    if made is not kernel and hasattr(made, "bandwidth"):
        if not isinstance(bandwidth, str):
            made = replace(made, bandwidth=float(bandwidth))
        elif bandwidth == "scale":
            made = _scaled(made, X, data)
        else:
            median = _median_distance(X, rng, made.metric, bandwidth)
            made = replace(made, bandwidth=median)
        if bandwidth == "auto":
            labels = data is not None and data.groups is not None
            if labels and data.of_class is not None:  # as for the penalty
                weights = weights / data.of_class[classes_of(targets)]
            if alpha == 0 and n_centers is not None:  # which regularize by themselves
                alpha = None
            given = targets, weights, rng, alpha, dtype, n_centers, labels
            chosen = auto_bandwidth(made, X, *given)
            made = replace(made, bandwidth=chosen)
    if isinstance(made, Polynomial):
        _check_powers(made, X)
    return made


def _check_powers(kernel, X):
    """Raise a ValueError if a polynomial kernel overflows on rows of X."""
    xp, most = namespace(X), float(namespace(X).finfo(X.dtype).max)
    with np.errstate(over="ignore"):
        values = kernel.diagonal(X)
    if X.shape[0] and not bool(xp.all(values < most)):
        row = X[int(xp.argmax(xp.where(values < most, xp.zeros_like(values), 1.0))), :]
        raise ValueError(
            f"X must be scaled: {kernel!r} overflows in {X.dtype} on a row whose "
            f"largest entry is {float(xp.max(xp.abs(row))):.3g}; replace fill values, "
            "or scale X"
        )


def named_kernel(kernel):
    """Return the kernel object that a parameter means, with any bandwidth."""
    if isinstance(kernel, Kernel):
        return kernel
    return _BY_NAME[kernel] if isinstance(kernel, str) else CallableKernel(kernel)


def _scaled(kernel, X, data):
    """Return a kernel with the length of the Gaussian's bandwidth="scale"."""
    known = Polynomial if isinstance(kernel, Polynomial) else Gaussian
    gamma = scale_gamma(X if data is None else data.every_row, X)
    if not 1e-300 < gamma < 1e300:
        raise ValueError(
            "X must be scaled: bandwidth='scale' found a variance of "
            f"{1 / (gamma * X.shape[1]) if gamma else float('inf'):.3g}, which is "
            "out of range"
        )
    longer = X.shape[1] ** 0.5 if kernel.metric == "manhattan" else 1.0
    return replace(kernel, bandwidth=known.from_gamma(gamma).bandwidth * longer)
