"""What a fit says of its outcome: a kernel that is indefinite, or nothing learned."""

import numpy as np

from ..backend.array import to_numpy
from ..losses import LogLoss, SquaredError
from ..problems.data import OutOfSample, rows_of
from ..problems.problem import shuffled
from .validation import warn_user

# A model has learned nothing if its training loss is above 1 - _LEAST_GAIN times that
# of the best constant.
_LEAST_GAIN = 1e-3
# The loss is that of all rows up to _MOST_JUDGED, else of a random sample: the model
# then gets the benefit of _N_STANDARD_ERRORS.
_MOST_JUDGED, _N_STANDARD_ERRORS = 2000, 2.0
# Targets that differ by fewer rounding errors are equal, as in `epochs`.
_SAME_TARGETS_EPS = 10


def warn_of_outcome(model, data, *, has_warned=False):
    """Warn, once, of an indefinite kernel, or of a fit that learned nothing.

    Parameters
    ----------
    model : Model
        Fitted.
    data : Data
        What it was fitted to.
    has_warned : bool, default=False
        Whether the fit has said that the model is bad.
    """
    name, ends = type(model).__name__, getattr(model, "estimator_", model)._kernel_ends
    nothing = data.constant or (not has_warned and learned_nothing(model, data))
    if ends is not None:
        warn_user(
            f"{name} got {ends}; the model is the best that was found with it"
            + (", and learned nothing" if nothing else "")
        )
    elif nothing:
        advice = (
            "all rows of X with weight are equal"
            if data.constant
            else "if y depends on X at all, scale X, or pass another kernel, bandwidth "
            "or penalty"
        )
        warn_user(
            f"{name} learned nothing: its training loss is that of predicting the "
            f"mean; {advice}"
        )


def constant_values(data):
    """Return the mean of the targets as the value of every row, to calibrate on."""
    w = np.ones(len(data.targets)) if data.weights is None else data.weights
    mean = np.average(data.targets, axis=0, weights=w)
    return OutOfSample(np.tile(mean, (len(w), 1)), data.targets, w)


def learned_nothing(model, data):
    """Return whether targets vary, and the model's loss is that of the best constant.

    Parameters are those of `warn_of_outcome`.
    """
    rows = data.rows_with_weight()
    w = np.ones(len(rows)) if data.weights is None else data.weights[rows]
    Y, eps = data.targets[rows], np.finfo(str(data.X.dtype).split(".")[-1]).eps
    spread = np.average((Y - np.average(Y, axis=0, weights=w)) ** 2, 0, w) ** 0.5
    varies = spread > _SAME_TARGETS_EPS * eps * np.abs(Y).max(axis=0)
    if not varies.any():
        return False
    loss, unit = _loss_of(model, np.where(varies, spread, 1.0))
    constant = loss.baseline(Y / unit, w)
    judged = np.sort(shuffled(rows)[:_MOST_JUDGED])
    Y, X = data.targets[judged] / unit, rows_of(data.X, judged)
    w = np.ones(len(judged)) if data.weights is None else data.weights[judged]
    losses, best = loss.value(Y, model._fitted_values(X) / unit), constant + 0.0 * Y
    w, of_constant = w / w.sum(), loss.value(Y, best)
    gains = of_constant - losses
    gain = w @ gains
    error = (w**2 @ (gains - gain) ** 2 * (1 - len(judged) / len(rows))) ** 0.5
    return gain + _N_STANDARD_ERRORS * error <= _LEAST_GAIN * (w @ of_constant)


def _loss_of(model, spread):
    """Return the loss that a model minimizes, and the unit of its targets."""
    if hasattr(model, "target_scale_"):
        unit = to_numpy(model.target_scale_).astype(np.float64)
        return model._loss_of(len(spread)), unit
    if getattr(model, "_has_log_loss", False):
        return LogLoss(len(spread)), 1.0
    return SquaredError(), spread
