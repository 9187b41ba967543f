"""Class probabilities from out-of-sample values."""

from dataclasses import dataclass

import numpy as np

from ..backend.array import device_of, namespace

# The constants were varied on leave-one-out values of 32 models (kernels laplacian and
# gaussian; 200 and 2000 rows of six real sets, and four small sets). Numbers below are
# log losses of new rows, relative to those with the values here.
# Slope below zero, enough to keep the order of the classes: 1.000 with 0 to 0.01, up to
# 1.009 with 0.1.
_LEAK = 1e-3
# Initial logarithms of scale and floor, and the weight, in rows, of the penalty on the
# squared distance from them, which determines both if only their ratio matters. With
# the initial scale times or over 2, or the floor times or over 10: 0.99 to 1.01. With
# weight 0: up to 1.03 (200 rows), 0.1: 0.97 to 1.01, 1: 0.92 to 1.04, 10: 0.91 to 1.19.
_LOG_START, _DISTANCE_PENALTY = (np.log(1.5), np.log(0.03)), 0.01
# Weight, in rows, of the penalty on squared offsets, which a few rows of a class do not
# determine. 0.1: 0.91 (digits) to 1.01, on average 0.995; 10 and 100: on average 1.02
# and 1.03, up to 1.12 and 1.22 (ijcnn1, where one class is rare).
_OFFSET_PENALTY = 1.0
# Maximum number of Newton steps, and the step size below which to stop. Fits took 5 to
# 25 steps, with a median of 10. With 0.01 the loss would be the same to 1e-4, but few
# steps would be saved: near the minimum a step squares the distance to it.
_MAX_NEWTON_STEPS, _MIN_NEWTON_STEP = 100, 1e-9
# Initial damping, its factors after accepted and rejected steps, and its minimum after
# a rejected one. All values tried give the same minimum. The number of steps, over all
# models, is 667; with an initial damping of 0 and 1000 it is 720 and 780, with factors
# after accepted steps of 0.01 and 0.5 703 and 694, after rejected ones of 2 and 100 868
# and 635.
_DAMPING, _IF_ACCEPTED, _IF_REJECTED, _MIN_DAMPING = 1e-3, 0.1, 10, 1e-6


@dataclass(frozen=True)
class Calibration:
    """A map from values to probabilities, see `calibrate`.

    Attributes
    ----------
    scale, floor : float
        a and d.
    offsets : tuple of float
        b, one per class, or none.
    """

    scale: float
    floor: float
    offsets: tuple = ()

    def scores(self, F):
        """Return log probabilities, up to a constant in each row, (m, k)."""
        xp = namespace(F)
        F = self.scale * _logarithms(xp, F, self.floor)
        if not self.offsets:
            return F
        return F + xp.asarray(self.offsets, dtype=F.dtype, device=device_of(F))


def _logarithms(xp, F, floor):
    """Return log(F + d), continued linearly below F = 0."""
    return xp.log(xp.clip(F, min=0.0) + floor) + _LEAK * xp.clip(F, max=0.0)


def calibrate(values, codes, weights, n_rows=None, *, with_offsets=False):
    """Return the calibration with the least log loss.

    Least squares on 1 in class c and 0 in the others gives values f_c that estimate
    probabilities, with errors, and can be negative. So ::

        P(c) proportional to (max(f_c, 0) + d)^a exp(b_c),   a > 0, d > 0

    with b = 0 unless `with_offsets`; then the likeliest class has the largest value.
    Labels are assumed wrong with probability 1 / (n + 1): otherwise classes that the
    values separate would get an infinite scale.

    Test log losses with leave-one-out values of 4000 rows (digits: 1078), of
    softmax(a f), of one sigmoid per class normalized to sum to 1, and of this:
    fashion_mnist 0.469, 0.447, 0.431; covtype 0.748, 0.652, 0.631; digits 0.034, 0.054,
    0.034. Offsets reduce them by up to 1 %, and change up to 1 % of the likeliest
    classes. For one class against the rest the log loss is up to 22 % below that of
    Platt scaling, which has an offset, if classes overlap; the same for even classes;
    and larger if hardly any row is misclassified (breast_cancer 0.066 and 0.060).

    Parameters
    ----------
    values : ndarray of shape (m, k)
        One column per class, for rows that the model was not trained on.
    codes : ndarray of shape (m,)
        Class of each row.
    weights : ndarray of shape (m,)
    n_rows : int, default=None
        n, the number of distinct rows. None: all m.
    with_offsets : bool, default=False

    Returns
    -------
    Calibration
    """
    usable = np.isfinite(values).all(axis=1) & (weights > 0)
    F, codes = np.asarray(values, dtype=np.float64)[usable], codes[usable]
    n, n_classes = len(F) if n_rows is None else n_rows, F.shape[1]
    weights = weights[usable] * (n / weights[usable].sum())
    doubt = 1.0 / (n + 1.0)
    T = (1.0 - doubt) * np.eye(n_classes)[codes] + doubt / n_classes
    loss = _LogLoss(F, T, weights, with_offsets)
    theta = _minimized(loss, np.array([*_LOG_START, *[0.0] * loss.n_offsets]))
    a, d = np.exp(theta[:2])
    return Calibration(float(a), float(d), tuple(map(float, theta[2:])))


class _LogLoss:
    """The log loss plus penalties, as a function of (log a, log d, b)."""

    def __init__(self, F, T, weights, with_offsets):
        self._F, self._T, self._weights = F, T, weights
        self.n_offsets = F.shape[1] if with_offsets else 0
        penalty = [_DISTANCE_PENALTY] * 2 + [_OFFSET_PENALTY] * self.n_offsets
        self._penalty = np.array(penalty)

    def _parts(self, theta):
        """Return x, log P, and the penalized differences."""
        x = _logarithms(np, self._F, np.exp(theta[1]))
        z = np.exp(theta[0]) * x
        z = z + theta[2:] if self.n_offsets else z
        away = np.concatenate([theta[:2] - _LOG_START, theta[2:]])
        z = z - z.max(axis=1, keepdims=True)
        return x, z - np.log(np.exp(z).sum(axis=1, keepdims=True)), away

    def value(self, theta):
        """Return the loss, summed over rows."""
        _, log_P, away = self._parts(theta)
        fit = -self._weights @ np.sum(self._T * log_P, axis=1)
        return fit + self._penalty @ away**2

    def derivatives(self, theta):
        """Return gradient and Hessian."""
        (a, d), w = np.exp(theta[:2]), self._weights
        x, log_P, away = self._parts(theta)
        w_P = w[:, None] * np.exp(log_P)
        residual = w_P - w[:, None] * self._T
        # The derivatives of z in log a, log d and the offsets are a x, a s and 1.
        s = d / (d + np.maximum(self._F, 0.0))
        means = np.stack([np.sum(w_P * part, axis=1) for part in (x, s)]) / w
        xx, xs, ss = np.sum(w_P * x * x), np.sum(w_P * x * s), np.sum(w_P * s * s)
        by_x, by_s = np.sum(residual * x), np.sum(residual * s)
        gradient = a * np.array([by_x, by_s])
        H = a * a * (np.array([[xx, xs], [xs, ss]]) - (w * means) @ means.T)
        H += a * np.array([[by_x, by_s], [by_s, by_s - np.sum(residual * s * s)]])
        if self.n_offsets:
            gradient = np.concatenate([gradient, residual.sum(axis=0)])
            cross = [np.sum(w_P * part, axis=0) for part in (x, s)]
            cross = a * (np.stack(cross) - means @ w_P)
            own = np.diag(w_P.sum(axis=0)) - w_P.T @ (w_P / w[:, None])
            H = np.block([[H, cross], [cross.T, own]])
        return gradient + 2 * self._penalty * away, H + 2 * np.diag(self._penalty)


@np.errstate(over="ignore", invalid="ignore")  # a step that overflows is rejected
def _minimized(loss, theta):
    """Return the minimum by Newton's method, with damping until the loss falls."""
    value, damping = loss.value(theta), _DAMPING
    gradient, H = loss.derivatives(theta)
    for _ in range(_MAX_NEWTON_STEPS):
        values, vectors = np.linalg.eigh(H)
        step = -vectors @ (vectors.T @ gradient / (np.abs(values) + damping))
        new = loss.value(theta + step)
        if new <= value + 1e-14 * abs(value):
            theta, value, damping = theta + step, new, _IF_ACCEPTED * damping
            gradient, H = loss.derivatives(theta)
        else:
            damping = max(_IF_REJECTED * damping, _MIN_DAMPING)
        if np.abs(step).max() < _MIN_NEWTON_STEP:
            break
    return theta
