"""Conditional quantiles: check of the parameter, score, order, calibration."""

import numpy as np
from sklearn.metrics import d2_pinball_score

from ..backend.array import device_of, namespace
from .epochs import EpochRule
from .validation import check_number


def check_quantiles(quantile):
    """Raise a ValueError unless `quantile` is one quantile or a sequence of them."""
    quantiles = [quantile] if np.ndim(quantile) == 0 else quantile
    if np.ndim(quantiles) != 1 or len(quantiles) == 0:
        raise ValueError(
            "quantile must be a number, or a sequence of at least one; "
            f"got {quantile!r}"
        )
    for one in quantiles:
        check_number("quantile", one, 0, 1, open_ends=True)


def without_crossing(F, quantiles):
    """Return F (n, l) with each row sorted in the order of the quantiles."""
    xp = namespace(F)
    ranks = np.argsort(np.argsort(quantiles, kind="stable"), kind="stable")
    ranks = xp.asarray(ranks, device=device_of(F))
    return xp.take(xp.sort(F, axis=1), ranks, axis=1)


def mean_d2(labels, F, quantile, weights):
    """Return the mean D^2 of the pinball loss of the values F (n, l) on the host."""
    if np.ndim(quantile) == 0:
        columns = [F.reshape(labels.shape)]
    else:
        columns = without_crossing(F, quantile).T
    scores = [
        d2_pinball_score(labels, column, sample_weight=weights, alpha=q)
        for q, column in zip(np.ravel(quantile), columns, strict=True)
    ]
    return float(np.mean(scores))


class CalibratedRule(EpochRule):
    """The rule of epochs, with the best constant for the held-out rows added.

    Conditional quantiles overfit the training rows: less than a fraction q of new rows
    lies below. With the quantile q of the held-out residuals added, q of those rows do.
    """

    def _best_coef(self):
        return self._problem.with_held_out_constant(super()._best_coef())
