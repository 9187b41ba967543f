"""What a fit says of its outcome: a kernel that is indefinite, or nothing learned."""

import numpy as np

from ..backend.array import to_numpy
from ..backend.lazy import is_lazy
from ..losses import LogLoss, SquaredError
from ..problems.data import rows_of
from ..problems.problem import shuffled
from .validation import warn_user

# A model has learned nothing if its training loss is above 1 - _LEAST_SHARE times that
# of the best constant. If the solver knows it to be below 1 - _CLEAR_SHARE, maybe on
# other rows, that is enough.
_LEAST_SHARE, _CLEAR_SHARE = 1e-3, 0.1
# The loss is that of a few random rows or, if they leave a doubt, of more; up to as
# many it is that of all. The model gets the benefit of _DOUBT standard errors.
_JUDGED, _DOUBT = (200, 2000), 2.0
# Targets that differ by fewer rounding errors are equal, as in `epochs`.
_EQUAL_TARGETS_EPS = 10


def warn_of_outcome(model, data, rule):
    """Warn, once, of an indefinite kernel, or of a fit that learned nothing.

    Parameters
    ----------
    model : Model
        Fitted.
    data : Data
        What it was fitted to.
    rule : Rule
        The one that ended the training.
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
    rows = data.rows_with_weight()
    mean = np.average(data.targets[rows], axis=0, weights=data.weights_of(rows))
    return data.out_of_sample(rows, np.tile(mean, (len(rows), 1)))


def learned_nothing(model, data):
    """Return whether targets vary, and the model's loss is that of the best constant.

    Parameters are those of `warn_of_outcome`.
    """
    rows = data.rows_with_weight()
    w = data.weights_of(rows)
    Y, eps = data.targets[rows], np.finfo(str(data.X.dtype).split(".")[-1]).eps
    spread = np.average((Y - np.average(Y, axis=0, weights=w)) ** 2, 0, w) ** 0.5
    varies = spread > _EQUAL_TARGETS_EPS * eps * np.abs(Y).max(axis=0)
    if not varies.any():
        return False
    spread, fitted = np.where(varies, spread, 1.0), getattr(model, "estimator_", model)
    loss, unit = _loss_of(fitted, spread)
    constant, order = loss.baseline(Y / unit, w), shuffled(len(rows))
    for n in _JUDGED:
        few = np.sort(order[:n])
        F = model._fitted_values(rows_of(data.X, rows[few])) / unit
        of_constant = loss.value(Y[few] / unit, constant + 0.0 * F)
        gains, part = of_constant - loss.value(Y[few] / unit, F), w[few] / w[few].sum()
        gain, least = part @ gains, _LEAST_SHARE * (part @ of_constant)
        left_out = 1.0 - len(few) / len(rows)
        doubt = _DOUBT * (part**2 @ (gains - gain) ** 2 * left_out) ** 0.5
        if gain - doubt > least:
            return False
    return bool(gain + doubt <= least)


def _loss_of(model, spread):
    """Return the loss that a model minimizes, and the unit of its targets."""
    if hasattr(model, "target_scale_"):
        unit = to_numpy(model.target_scale_).astype(np.float64)
        return model._loss_of(len(spread)), unit
    if getattr(model, "_has_log_loss", False):
        return LogLoss(len(spread)), 1.0
    return SquaredError(), spread
