"""What every training problem offers."""

import numpy as np
import scipy.sparse

from ..arrays import memory
from ..arrays.array import device_of, move, namespace, slices, to_numpy
from ..arrays.array import take as take_in_memory
from ..arrays.devices import compute_device, compute_devices
from ..arrays.memory import n_bytes
from ..losses import SquaredError
from ..rows.lazy_rows import in_memory, is_lazy


class Problem:
    """A training problem with its arrays on the device that computes.

    It is complete once constructed, and holds the training rows and targets, the rows
    to score, and the operators between them. A solver gets its operators and targets;
    the training loop uses only the methods below. Coefficients are in the solver's
    order; only ``fitted_attributes(coef)`` of a subclass, the attributes that
    prediction needs, returns them in the order of X, where X lives. With `dual_coef_`
    it has ``places(coef)``, their rows in that array, and its number of rows.

    Parameters
    ----------
    device : str or list
        The parameter of the estimator.
    X : array or LazyRows of shape (n, d)
        As the user gave it, validated.
    several : bool, default=True
        Whether several devices may share the computation.

    Attributes
    ----------
    xp, device
        Namespace and device of the computation: the first of several devices, which
        holds everything but the kernel's centers.
    devices : list of (namespace, device)
    targets : array of shape (n, l)
        Targets of the training rows, in the solver's order, minus the intercept.
    weights : array of shape (n,) or None
        With mean 1.
    n_features : int
    rng : numpy.random.RandomState
    operator : Matrix
        Its products with coefficients are f - intercept, if `loss` is that below.
    within : float
        What is missing in the losses: the variance of targets of equal rows, if these
        have become one (`Data.merged`).
    """

    within = 0.0
    #: Centers and their rows in X, if they are known; what predicts held-out rows.
    centers = center_indices = validation = None

    def __init__(self, device, X, *, several=True):
        self._source = namespace(X), device_of(X)
        self._X, self._device = X, device
        devices = compute_devices(device, X) if several else [compute_device(device, X)]
        self.devices = devices
        self.xp, self.device = devices[0]
        self.n_features = X.shape[1]

    @property
    def n_coefs(self):
        """Coefficients per output."""
        return self.operator.shape[1]

    def up_to_rounding(self, loss):
        """Return a bound for losses that are equal to this one but for rounding."""
        return loss * (1 + 10 * float(self.xp.finfo(self.dtype).eps))

    def initial_coef(self):
        """Return the coefficients of the constant model."""
        shape = self.n_coefs, self.targets.shape[1]
        return self.xp.zeros(shape, dtype=self.targets.dtype, device=self.device)

    def coef_of(self, fitted):
        """Return the coefficients of a fitted model, from its attributes."""
        coef = take(self.to_compute(fitted["dual_coef_"]), self.places()[0])
        return self.xp.astype(coef, self.targets.dtype, copy=False)

    def suits(self, fitted):
        """Whether a model with these attributes has the same centers and outputs."""
        shape = self.places()[1], self.targets.shape[1]
        same = tuple(fitted["dual_coef_"].shape) == shape
        return same and all(
            _equal(getattr(self, name), fitted.get(f"{name}_"))
            for name in ("centers", "center_indices")
        )

    def residual(self, coef, n_rows=None):
        """Return f - y, or its negative, on the first training rows, or on all."""
        n = min(n_rows or self.targets.shape[0], self.targets.shape[0])
        residual = self.targets[:n, :]
        if bool(self.xp.any(coef != 0)):
            residual = self.operator.product(coef, 0, n) - residual
        return residual

    def loss(self, coef, n_rows=None):
        """Return the weighted mean loss of the first training rows, or of all."""
        return weighted_mean_square(self.residual(coef, n_rows), self.weights)

    def model_loss(self, coef, n_rows=None):
        """Return the loss of the model itself; `loss` may be of a penalized system."""
        return self.loss(coef, n_rows)

    def validation_values(self, coef):
        """Return f on the held-out rows in units of y, on the host, shape (m, l)."""
        return to_numpy(self.validation @ coef) + self.intercept

    def losses_of(self, Y, F):
        """Return the loss of each value F for targets Y, both on the host."""
        return SquaredError().value(Y, F)

    def to_compute(self, X):
        """Return X on the device that computes."""
        return move(in_memory(X), self.xp, self.device)

    def to_compute_if_small(self, X):
        """Return X on the device that computes, or unchanged if it is too large.

        A reordered copy takes the same memory again. If X stays where it is, operators
        move its rows as they use them.
        """
        if self._source == self.devices[0]:
            return X
        free = memory.available(self.xp, self.device)
        return X if 4 * n_bytes(X) > free else self.to_compute(X)

    def to_source(self, values):
        """Return `values`, from the computing device or the host, where X lives."""
        if isinstance(values, np.ndarray):
            values = self.xp.asarray(values, device=self.device)
        return move(values, *self._source)

    def array(self, values):
        """Return host `values` in the type and on the device of the computation."""
        values = self.xp.asarray(values, device=self.device)
        return self.xp.astype(values, self.dtype, copy=False)

    def kernel_attributes(self, dual_coef, intercept, centers):
        """Return the attributes of a model K(x, centers) dual_coef + intercept."""
        return {
            "dual_coef_": self.to_source(dual_coef),
            "intercept_": self.to_source(
                self.xp.astype(
                    self.xp.asarray(intercept, device=self.device), dual_coef.dtype
                )
            ),
            "kernel_": self.kernel,
            "bandwidth_": getattr(self.kernel, "bandwidth", None),
            "centers_": None if self.kernel is None else centers,
        }


def _equal(one, other):
    """Whether two arrays, or None, are equal."""
    if one is None or one is other:
        return one is other
    return other is not None and np.array_equal(to_numpy(one), to_numpy(other))


def take(values, index, axis=0):
    """Return some rows (or columns) of any array, by indices on the host."""
    if scipy.sparse.issparse(values):
        return values[index]
    if is_lazy(values):
        return values.take(index)
    return take_in_memory(values, index, axis)


def take_entries(K, rows, columns):
    """Return some rows and columns of a matrix, by indices on the host.

    The rows are taken in blocks, to need little memory besides the result.
    """
    xp, shape = namespace(K), (len(rows), len(columns))
    out = xp.empty(shape, dtype=K.dtype, device=device_of(K))
    for part in slices(len(rows), 256):  # 20 MB with 10 000 columns
        out[part, :] = take(take(K, rows[part]), columns, axis=1)
    return out


def shuffled(rows):
    """Return indices in a fixed random order.

    Any range of them is a random sample, whatever was drawn before.
    """
    return np.random.RandomState(0).permutation(rows)


def weighted_mean_square(residual, weights=None):
    """Return the mean, over rows and outputs, of squares with weights of all rows."""
    xp = namespace(residual)
    squares = xp.mean(residual * residual, axis=1)
    if weights is not None:
        squares = squares * weights[: squares.shape[0]]
    return float(xp.mean(squares))
