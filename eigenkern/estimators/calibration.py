"""From values out of sample to probabilities of the classes."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logsumexp

from ..backend.array import device_of, namespace

# Bounds of scale and floor, whose logarithms are sought for several classes.
_SCALES, _FLOORS = (1e-3, 1e2), (1e-4, 1e1)
# Weight of the squares of offsets, in rows: few rows of a class tell little of it.
_OFFSET_PENALTY = 1.0


@dataclass(frozen=True)
class Calibration:
    """What makes probabilities of values f, of which `calibrate` says how.

    Attributes
    ----------
    scale : float
        a.
    offsets : tuple of float
        b; of several classes one each, or none.
    floor : float or None
        d, of several classes.
    """

    scale: float = 1.0
    offsets: tuple = ()
    floor: float | None = None

    def scores(self, F):
        """Return what the sigmoid, or the softmax, makes probabilities of, (m, l)."""
        xp = namespace(F)
        if self.floor is not None:
            F = xp.log(xp.clip(F, min=0.0) + self.floor)
        F = self.scale * F
        if not self.offsets:
            return F
        return F + xp.asarray(self.offsets, dtype=F.dtype, device=device_of(F))


def calibrate(values, codes, weights, n_rows=None, *, with_offsets=False):
    """Return the calibration with the least log loss.

    Of two classes, values f and labels -1 and +1 (Platt scaling) ::

        P(+1) = 1 / (1 + exp(-a f - b)),   a >= 0

    Of several, where f_c is least squares for 1 in class c and 0 in the others, an
    estimate of its probability that errs ::

        P(c) proportional to (max(f_c, 0) + d)^a exp(b_c),   a > 0, d > 0

    and b = 0 unless offsets are asked for, so that the likeliest class is the one with
    the largest value. Labels are taken to be wrong with the probability 1 / (n + 1), or
    classes that the values separate would get an infinite scale.

    Measured on 4000 training rows (fashion_mnist, covtype; digits: 1078), test log loss
    of softmax(a f), one sigmoid a class made to sum to 1, and this: 0.469, 0.447 and
    0.431; 0.748, 0.652 and 0.631; 0.034, 0.054 and 0.034. Offsets gain up to 1 % of it,
    and change up to 1 % of the likeliest classes. Platt's own, stronger smoothing of
    the labels costs a tenth of the log loss on breast_cancer.

    Parameters
    ----------
    values : ndarray of shape (m, l)
        Of rows that the model was not trained with.
    codes : ndarray of shape (m,)
        Of their classes.
    weights : ndarray of shape (m,)
    n_rows : int, default=None
        n, rows that differ. None: all m.
    with_offsets : bool, default=False
        Whether several classes have offsets, too.

    Returns
    -------
    Calibration
    """
    usable = np.isfinite(values).all(axis=1) & (weights > 0)
    F, codes = np.asarray(values, dtype=np.float64)[usable], codes[usable]
    n = len(F) if n_rows is None else n_rows
    weights = weights[usable] * (n / weights[usable].sum())
    doubt = 1.0 / (n + 1.0)
    if F.shape[1] == 1:
        return _of_two(F[:, 0], (1.0 - doubt) * codes + 0.5 * doubt, weights)
    T = (1.0 - doubt) * np.eye(F.shape[1])[codes] + doubt / F.shape[1]
    return _of_several(F, T, weights, with_offsets)


def _of_two(f, t, weights):
    """Return the calibration of values whose labels are +1 with probability t."""
    size = np.sqrt(np.average(f * f, weights=weights)) or 1.0
    f, weights = f / size, weights / weights.sum()

    def loss(theta):
        z = theta[0] * f + theta[1]
        gradient = weights * (expit(z) - t)
        value = weights @ (np.logaddexp(0.0, z) - t * z)
        return value, np.array([gradient @ f, gradient.sum()])

    p = weights @ t
    start = [0.0, np.log(p / (1.0 - p))]
    a, b = _minimised(loss, start, [(0.0, None), (None, None)])
    return Calibration(float(a / size), (float(b),))


def _of_several(F, T, weights, with_offsets):
    """Return the calibration of values whose labels are c with probability T[:, c]."""
    n_classes = F.shape[1]
    F = np.maximum(F, 0.0)
    total = weights.sum()

    def loss(theta):
        a, d, b = np.exp(theta[0]), np.exp(theta[1]), theta[2:]
        x = np.log(F + d)
        z = a * x
        if with_offsets:
            z = z + b
        log_sum = logsumexp(z, axis=1)
        residual = weights[:, None] * (np.exp(z - log_sum[:, None]) - T)
        value = weights @ (log_sum - np.sum(T * z, axis=1))
        gradient = [a * np.sum(residual * x), a * d * np.sum(residual / (F + d))]
        if with_offsets:
            value += _OFFSET_PENALTY * (b @ b)
            gradient.extend(residual.sum(axis=0) + 2.0 * _OFFSET_PENALTY * b)
        return value / total, np.array(gradient) / total

    n_offsets = n_classes if with_offsets else 0
    start = [np.log(1.5), np.log(0.03), *[0.0] * n_offsets]
    bounds = [np.log(_SCALES), np.log(_FLOORS), *[(None, None)] * n_offsets]
    theta = _minimised(loss, start, bounds)
    a, d = np.exp(theta[:2])
    return Calibration(float(a), tuple(map(float, theta[2:])), float(d))


def _minimised(loss, start, bounds):
    options = {"ftol": 1e-12, "gtol": 1e-7, "maxiter": 500}
    found = minimize(
        loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    return found.x
