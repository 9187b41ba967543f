"""What a fit says of its outcome: far values, an indefinite kernel, nothing learned."""

from typing import NamedTuple

import numpy as np
import scipy.sparse

from ..arrays.array import move, namespace, to_numpy
from ..arrays.devices import compute_device
from ..kernels import CallableKernel, Kernel, Linear, Polynomial
from ..losses import LogLoss, SquaredError, mean_of_targets
from ..plan.parameters import has_log_loss
from ..problems.data import rows_of
from ..problems.problem import shuffled, take_entries
from ..rows.lazy_rows import is_lazy, rows_at
from ..rows.robust import medians, sampled
from .validation import column_name, warn_user

# A model has learned nothing if its training loss is above 1 - _LEAST_SHARE times that
# of the best constant. If the solver knows it to be below 1 - _CLEAR_SHARE, maybe on
# other rows, that is enough.
_LEAST_SHARE, _CLEAR_SHARE = 1e-3, 0.1


def warn_of_outcome(model, data, rule):
    """Warn, once, of an indefinite kernel, or of a fit that learned nothing.

    The model is fitted to the data, and the rule has ended its training.
    """
    name, ends = type(model).__name__, getattr(model, "estimator_", model)._kernel_ends
    nothing, gain = data.constant, rule.gain
    if not (nothing or rule.has_warned or (gain or 0.0) > _CLEAR_SHARE):
        if is_lazy(data.X) and gain is not None:  # read no rows again
            nothing = gain <= _LEAST_SHARE
        else:
            nothing = learned_nothing(model, data)
    if ends is not None:
        warn_user(
            f"{name} got {ends}; the model is the best that was found with it"
            + (", and learned nothing" if nothing else "")
        )
    elif nothing:
        advice = "all rows of X with weight are equal"
        if not data.constant:
            names = {"kernel": "kernel", "bandwidth": "bandwidth", "alpha": "penalty"}
            others = [word for name, word in names.items() if hasattr(model, name)]
            listed = " or ".join(others).replace(" or ", ", ", len(others) - 2)
            advice = "if y depends on X at all, scale X"
            if hasattr(model, "scaling"):
                advice = "check that the rows of y are those of X, or pass more of them"
            advice += f", or pass another {listed}" * bool(others)
        warn_user(
            f"{name} learned nothing: its training loss is that of predicting the "
            f"mean; {advice}"
        )


def learned_nothing(model, data):
    """Whether targets vary, and a model's loss on them is that of the best constant."""
    rows = data.rows_with_weight()
    w = data.weights_of(rows)
    Y, eps = data.targets[rows], np.finfo(str(data.X.dtype).split(".")[-1]).eps
    spread = np.average((Y - mean_of_targets(Y, w)) ** 2, 0, w) ** 0.5
    varies = spread > 10 * eps * np.abs(Y).max(axis=0)
    if not varies.any():
        return False
    spread, fitted = np.where(varies, spread, 1.0), getattr(model, "estimator_", model)
    loss, unit = _loss_of(fitted, spread)
    constant, order = loss.baseline(Y / unit, w), shuffled(len(rows))
    # A few random rows judge or, if they leave a doubt, more; up to as many all do. The
    # model gets the benefit of two standard errors.
    for n in (200, 2000):
        few = np.sort(order[:n])
        F = model._fitted_values(rows_of(data.X, rows[few])) / unit
        of_constant = loss.value(Y[few] / unit, constant + 0.0 * F)
        gains, part = of_constant - loss.value(Y[few] / unit, F), w[few] / w[few].sum()
        gain, least = part @ gains, _LEAST_SHARE * (part @ of_constant)
        left_out = 1.0 - len(few) / len(rows)
        doubt = 2.0 * (part**2 @ (gains - gain) ** 2 * left_out) ** 0.5
        if gain - doubt > least:
            return False
    return bool(gain + doubt <= least)


def _loss_of(model, spread):
    """Return the loss that a model minimizes, and the unit of its targets."""
    if hasattr(model, "target_scale_"):
        unit = to_numpy(model.target_scale_).astype(np.float64)
        return model._loss_of(len(spread)), unit
    if has_log_loss(model):
        return LogLoss(len(spread)), 1.0
    return SquaredError(), spread


def warn_of_far_values(estimator, X, kernel, centers):
    """Warn of the entries of training rows that cost digits, or that are cut off.

    The kernel cuts off by the `centers` of the model. Rows that are not in memory are
    not read again for this.
    """
    if isinstance(kernel, Linear | Polynomial):
        warn_of_leverage(estimator, X, kernel.diagonal)
    elif isinstance(kernel, Kernel):
        frame = kernel.frame(centers)
        if "limits" in frame:
            warn_of_cutoffs(estimator, X, frame.get("offset"), frame["limits"])


# Usual deviations of a column, over those of the other columns and over its largest,
# below which it is as good as constant; and rows that they are taken of. Of 1e4
# standardized values they are .03 of a normal column's and 4e-4 of the largest if these
# are log-normal with sigma = 2 (medians of 20 draws; at least .012 and 9e-5), .001 and
# 9e-6 with sigma = 3, where a logarithm helps, and 3e-11 and 7e-13 with ten of 1e12.
_HIDDEN, _FAR, _FEW = 1e-2, 1e-4, 100


def warn_of_cutoffs(estimator, X, offset, limits, places=None):
    """Warn if an entry of X is farther from the offset than its column's limit.

    `places` are those of the columns in what the user passed.
    """
    if is_lazy(X):
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
        warn_of_hidden_column(estimator, X, ends, places)
        return
    value = float(ends[int(high[column] > low[column])][column])
    limit = float(offset[column] + np.copysign(limits[column], value))
    place = column if places is None else int(places[column])
    _warn(estimator, X, column, value, f"it was cut off at {limit:.3g}", place)


def warn_of_hidden_column(estimator, X, ends, places=None):
    """Warn of a column that a few entries make constant: fill values, then scaled.

    `ends` are the smallest and the largest entry of each column, (d,).
    """
    some = rows_at(X, np.random.RandomState(0).randint(X.shape[0], size=_FEW))
    some = to_numpy(some).astype(np.float64)
    middle = np.median(some, axis=0)
    usual = np.median(np.abs(some - middle), axis=0)
    far = np.maximum(middle - ends[0], ends[1] - middle)
    hidden = (usual > 0) & (usual < _HIDDEN * usual.max()) & (usual < _FAR * far)
    if not hidden.any():
        return
    column = int(np.argmax(hidden * far))
    ends = [float(end[column]) for end in ends]
    value = ends[0] if middle[column] - ends[0] == far[column] else ends[1]
    place = column if places is None else int(places[column])
    consequence = "beside it, the other entries of the column hardly differ"
    _warn(estimator, X, column, value, consequence, place)


def warn_of_leverage(
    estimator, X, squared_norms, consequence="it costs the others digits"
):
    """Warn if rounding of a row's squared norm exceeds those of most rows.

    Return for which rows it does, bool (n,), or None if it does for none. The norms
    ``squared_norms(X)`` are k(x, x), (n,).
    """
    if is_lazy(X):
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


def _warn(estimator, X, column, value, consequence, place=None):
    name = column_name(estimator, column if place is None else place)
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
        "values before the column is scaled and fitted",
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


# Differences of K(x, z) and K(z, x), relative to the rows' largest values, above which
# a kernel is not symmetric, and eigenvalues, relative to the largest, below which it is
# not positive semi-definite. Rounding leaves up to 2e-5 and -3e-6 (300 rows; gaussian,
# laplacian and degree 3, bandwidths of 1 to 64 medians; norms expanded in float32).
_ASYMMETRY, _INDEFINITE = 1e-3, 1e-4


class Ends(NamedTuple):
    """The ends of the spectrum of an indefinite kernel on some rows."""

    lowest: float
    top: float
    n_rows: int

    def __str__(self):
        return (
            "a kernel that is not positive semi-definite: its smallest eigenvalue on "
            f"{self.n_rows} rows is {self.lowest:.3g}, its largest {self.top:.3g}"
        )


def is_own(kernel):
    """Whether a kernel is one of eigenkern's, which need no check."""
    if isinstance(kernel, str):
        return kernel != "precomputed"
    module = type(kernel).__module__
    known = isinstance(kernel, Kernel) and not isinstance(kernel, CallableKernel)
    return known and module.split(".")[0] == __package__.split(".")[0]


def check_given_kernel(kernel, X, rows, device="auto"):
    """Check a kernel that is not eigenkern's own on a sample of the rows.

    Returns the `Ends` of its spectrum; None if it is positive semi-definite on the
    sample. Raises a ValueError if its values are complex, all zero, or not symmetric.
    """
    if is_own(kernel):
        return None
    rows, precomputed = np.sort(shuffled(rows)[:300]), isinstance(kernel, str)
    if precomputed:
        name, K = "kernel='precomputed'", take_entries(X, rows, rows)
    else:
        name = f"kernel={kernel!r}"
        made = kernel if isinstance(kernel, Kernel) else CallableKernel(kernel)
        K = made(move(rows_at(X, rows), *compute_device(device, X)))
    K = to_numpy(K).astype(np.float64)
    if not np.isfinite(K).all():
        return None  # the fit says so
    size = np.abs(K).max()
    if size == 0.0:
        raise ValueError(
            f"{name} must have positive k(x, x); got zero for every pair of "
            f"{len(rows)} rows"
        )
    K /= size
    largest = np.abs(K).max(axis=1)
    difference = np.abs(K - K.T)
    wrong = difference > _ASYMMETRY * np.sqrt(np.outer(largest, largest.T))
    if wrong.any():
        i, j = np.unravel_index(np.argmax(difference * wrong), K.shape)
        raise ValueError(
            f"{name} must be symmetric, k(x, z) = k(z, x); got {size * K[i, j]:.6g} "
            f"and {size * K[j, i]:.6g} for rows {rows[i]} and {rows[j]}"
        )
    values = np.linalg.eigvalsh(0.5 * (K + K.T))
    if values[0] >= -_INDEFINITE * max(values[-1], 0.0):
        return None
    return Ends(size * values[0], size * values[-1], len(rows))
