"""Convex losses of targets Y (m, l) and values F (m, l): value and gradient in F.

Targets of two classes are one column of -1 and +1; those of more are one column per
class, 1 in the column of the row's class and 0 in the others.
"""

from dataclasses import dataclass

import numpy as np

from .arrays.array import device_of, namespace

__all__ = [
    "EpsilonInsensitive",
    "Hinge",
    "Huber",
    "LogLoss",
    "Pinball",
    "SquaredError",
]


# Half the width of the narrowest tube that limits steps. Mean absolute errors on new
# rows of kin8nm with epsilon=0.01: 0.351 with 0.02, 0.299 with 0.05, 0.308 with 0.1.
_NARROW_TUBE = 0.05
# Slopes this close to those outside the smoothed kink differ from them by rounding.
_SLOPE_ROUNDING = 1e-4


def weighted_median(Y, weights):
    """Return the median of every column of an array on the host."""
    if weights is None:
        return np.median(Y, axis=0)
    return np.quantile(Y, 0.5, axis=0, weights=weights, method="inverted_cdf")


def mean_of_targets(Y, weights=None):
    """Return the mean of every column, which for equal targets is exact, (l,)."""
    mean = np.average(Y, axis=0, weights=weights)
    return np.where((Y == Y[:1]).all(axis=0), Y[0], mean)


class Loss:
    """Base class of the losses.

    Each defines ``value(Y, F)``, the loss of every row, summed over columns, (m,), and
    ``gradient(Y, F)``, its derivative in F, (m, l).

    `curvature` bounds the second derivative in F, which limits the step. Losses with
    kinks have no bound: theirs is the change of the slope over a distance that matters,
    1 for the margin of the hinge, the width of the tube of `EpsilonInsensitive`.
    `moves_constant`: whether the best constant changes as f grows, in a way that
    `second_derivative` determines.
    """

    curvature = 1.0
    moves_constant = False

    def value_and_gradient(self, Y, F):
        """Return both, which may share much of the work."""
        return self.value(Y, F), self.gradient(Y, F)

    def second_derivative(self, gradient):
        """Return the second derivative, or its bound, where the first is `gradient`."""
        return namespace(gradient).full_like(gradient, self.curvature)

    def baseline(self, Y, weights):
        """Return the constant to start from, shape (l,), for targets on the host."""
        return weighted_median(Y, weights)

    def curvature_at(self, constant):
        """Return the mean second derivative at one value of f, shape (l,).

        1 for losses whose second derivative is 1, or that have none.
        """
        return 1.0

    def middle(self, Y, weights):
        """Return the center of the targets, for measuring their deviation, (l,)."""
        return self.baseline(Y, weights)


@dataclass(frozen=True)
class SquaredError(Loss):
    """(f - y)^2 / 2."""

    def value(self, Y, F):
        return 0.5 * namespace(F).sum((F - Y) ** 2, axis=1)

    def gradient(self, Y, F):
        return F - Y

    def baseline(self, Y, weights):
        return mean_of_targets(Y, weights)


@dataclass(frozen=True)
class Huber(Loss):
    """r^2 / 2 for a residual |r| <= epsilon, else epsilon (|r| - epsilon / 2)."""

    epsilon: float

    def value(self, Y, F):
        xp = namespace(F)
        size = xp.abs(F - Y)
        inner = xp.clip(size, max=self.epsilon)
        return xp.sum(inner * (size - 0.5 * inner), axis=1)

    def gradient(self, Y, F):
        return namespace(F).clip(F - Y, min=-self.epsilon, max=self.epsilon)


@dataclass(frozen=True)
class EpsilonInsensitive(Loss):
    """max(0, |f - y| - epsilon)."""

    epsilon: float

    @property
    def curvature(self):
        # Longer steps jump back and forth over the tube. A narrow tube is reached as
        # steps shrink, if at all.
        return max(1.0, 0.5 / max(self.epsilon, _NARROW_TUBE))

    def value(self, Y, F):
        xp = namespace(F)
        return xp.sum(xp.clip(xp.abs(F - Y) - self.epsilon, min=0.0), axis=1)

    def gradient(self, Y, F):
        xp = namespace(F)
        residual = F - Y
        outside = xp.astype(xp.abs(residual) > self.epsilon, F.dtype)
        return xp.sign(residual) * outside


@dataclass(frozen=True)
class Pinball(Loss):
    """max(q r, (q - 1) r) of r = y - f, whose mean is least at the quantile q of y.

    It is replaced by its mean over a distance of `width` to both sides, so that the
    slope in f rises linearly from -q to 1 - q over 2 `width`: smoothing by convolution
    (Fernandes, Guerre and Horta, "Smoothing quantile regressions", JBES 2021), whose
    minimum is the quantile of y plus uniform noise.

    Attributes
    ----------
    quantiles : tuple of float
        One per column, or one for all.
    """

    quantiles: tuple

    # In the unit of the targets; with 0.05 and 0.2, losses are within 0.5 % of these.
    width = 0.1
    moves_constant = True

    @property
    def curvature(self):
        return 0.5 / self.width

    def _middle_slope(self, F):
        slopes = [0.5 - q for q in self.quantiles]
        return namespace(F).asarray(slopes, dtype=F.dtype, device=device_of(F))

    def value(self, Y, F):
        xp = namespace(F)
        residual = F - Y
        size = xp.abs(residual)
        inner = self.width - xp.clip(size, max=self.width)
        kink = 0.5 * size + 0.25 / self.width * inner**2
        return xp.sum(self._middle_slope(F) * residual + kink, axis=1)

    def gradient(self, Y, F):
        xp = namespace(F)
        part = xp.clip((F - Y) / self.width, min=-1.0, max=1.0)
        slope = self._middle_slope(F) + 0.5 * part
        # Zero is a slope of the loss at its kink: an exact fit of equal targets stays.
        return slope * xp.astype(F != Y, F.dtype)

    def second_derivative(self, gradient):
        xp = namespace(gradient)
        distance = xp.abs(gradient - self._middle_slope(gradient))
        inside = xp.astype(distance < 0.5 - _SLOPE_ROUNDING, gradient.dtype)
        return self.curvature * inside

    def baseline(self, Y, weights):
        quantiles = np.broadcast_to(self.quantiles, Y.shape[1])
        options = {"weights": weights, "method": "inverted_cdf"}
        columns = zip(Y.T, quantiles, strict=True)
        return np.array([np.quantile(y, q, **options) for y, q in columns])

    def middle(self, Y, weights):
        return weighted_median(Y, weights)


@dataclass(frozen=True)
class Hinge(Loss):
    """max(0, 1 - y f) with y = -1 or +1; one against the rest for several columns."""

    def _signs(self, Y):
        return Y if Y.shape[1] == 1 else 2.0 * Y - 1.0

    def value(self, Y, F):
        xp = namespace(F)
        return xp.sum(xp.clip(1.0 - self._signs(Y) * F, min=0.0), axis=1)

    def gradient(self, Y, F):
        xp = namespace(F)
        signs = self._signs(Y)
        return -signs * xp.astype(signs * F < 1.0, F.dtype)

    def baseline(self, Y, weights):
        return np.zeros(Y.shape[1])


@dataclass(frozen=True)
class LogLoss(Loss):
    """-log p(y), p = 1 / (1 + exp(-f)) of two classes, or softmax(f) of more."""

    n_columns: int

    moves_constant = True

    @property
    def curvature(self):
        return 0.25 if self.n_columns == 1 else 0.5

    def value(self, Y, F):
        xp = namespace(F)
        if self.n_columns == 1:
            return xp.logaddexp(xp.zeros_like(F), -Y * F)[:, 0]
        return -xp.sum(Y * self.log_probabilities(F), axis=1)

    def gradient(self, Y, F):
        xp = namespace(F)
        if self.n_columns == 1:
            return -0.5 * Y * (1.0 - xp.tanh(0.5 * Y * F))
        return self.probabilities(F) - Y

    def value_and_gradient(self, Y, F):
        if self.n_columns == 1:
            return super().value_and_gradient(Y, F)
        xp = namespace(F)
        F = F - xp.max(F, axis=1, keepdims=True)
        P = xp.exp(F)
        total = xp.sum(P, axis=1)
        return xp.log(total) - xp.sum(Y * F, axis=1), P / total[:, None] - Y

    def second_derivative(self, gradient):
        # p (1 - p): the gradient is p, or p - 1 for the class of the row.
        size = namespace(gradient).abs(gradient)
        return size * (1.0 - size)

    def curvature_of(self, F):
        """Return what `curve` needs to know of values F: p (1 - p), or p, (m, l)."""
        P = self.probabilities(F)
        return P[:, :1] * P[:, 1:] if self.n_columns == 1 else P

    def curve(self, curvature, U):
        """Return the product of each row's second derivative, (l, l), with U (m, l)."""
        if self.n_columns == 1:
            return curvature * U
        mean = namespace(U).sum(curvature * U, axis=1, keepdims=True)
        return curvature * (U - mean)

    def mean_curvature(self, curvature):
        """Return the mean of each row's curvature over the directions of F, (m,).

        For more than two classes it is the trace of diag(p) - p p' over l - 1, because
        nothing depends on the sum of the columns.
        """
        if self.n_columns == 1:
            return curvature[:, 0]
        squares = namespace(curvature).sum(curvature**2, axis=1)
        return (1.0 - squares) / (self.n_columns - 1)

    def curvature_at(self, constant):
        curvature = self.curvature_of(constant[None, :])
        return float(self.mean_curvature(curvature)[0])

    def probabilities(self, F):
        """Return the probabilities of the classes, shape (m, number of classes)."""
        xp = namespace(F)
        if self.n_columns == 1:
            positive = 0.5 * (1.0 + xp.tanh(0.5 * F))
            return xp.concat([1.0 - positive, positive], axis=1)
        P = xp.exp(F - xp.max(F, axis=1, keepdims=True))
        return P / xp.sum(P, axis=1, keepdims=True)

    def log_probabilities(self, F):
        """Return the logarithms of the probabilities, finite where F is."""
        xp = namespace(F)
        if self.n_columns == 1:
            return -xp.logaddexp(xp.zeros_like(F), xp.concat([F, -F], axis=1))
        F = F - xp.max(F, axis=1, keepdims=True)
        return F - xp.log(xp.sum(xp.exp(F), axis=1, keepdims=True))

    def baseline(self, Y, weights):
        # From class frequencies; half a row more of each keeps the logarithms finite.
        weights = np.ones(len(Y)) if weights is None else weights / weights.mean()
        counts = weights @ (0.5 * (Y + 1.0) if self.n_columns == 1 else Y) + 0.5
        if self.n_columns == 1:
            return np.log(counts / (len(Y) + 1.0 - counts))
        return np.log(counts / counts.sum())
