"""Kernels of the inner product x . z."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from ..arrays.array import device_of, namespace
from .bandwidth import check_parameters, checked_gamma
from .kernel import Kernel, Slope


@dataclass(frozen=True)
class Polynomial(Kernel):
    """Polynomial kernel, (x . z / sigma^2 + coef0)^degree.

    Parameters
    ----------
    bandwidth : float, default=1.0
        sigma. scikit-learn's ``gamma`` is 1 / sigma^2.
    degree : int, default=3
        At least 1.
    coef0 : float, default=1.0
        Not negative, so that the kernel is positive semi-definite.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenkern.kernels import Polynomial
    >>> Polynomial(degree=2)(np.array([[1.0], [2.0]]))
    array([[ 4.,  9.],
           [ 9., 25.]])
    """

    bandwidth: float = 1.0
    degree: int = 3
    coef0: float = 1.0

    def __post_init__(self):
        check_parameters(self)
        if not self.degree >= 1 or int(self.degree) != self.degree:
            raise ValueError(f"degree must be an integer >= 1; got {self.degree!r}")
        if not self.coef0 >= 0:
            raise ValueError(f"coef0 must not be negative; got {self.coef0!r}")

    @classmethod
    def from_gamma(cls, gamma: float, degree: int = 3, coef0: float = 1.0) -> Self:
        """Return the kernel (gamma x . z + coef0)^degree, as in scikit-learn.

        Parameters
        ----------
        gamma : float
            1 / sigma^2.
        degree : int, default=3
            At least 1.
        coef0 : float, default=1.0
            Not negative. The default of `SVC` is 0.

        Returns
        -------
        kernel : Polynomial

        Examples
        --------
        >>> from eigenkern.kernels import Polynomial
        >>> Polynomial.from_gamma(0.25, degree=2)
        Polynomial(bandwidth=2.0, degree=2, coef0=1.0)
        """
        return cls(checked_gamma(gamma) ** -0.5, degree, coef0)

    def encode(self, X):
        xp = namespace(X)
        ones = xp.ones((X.shape[0], 1), dtype=X.dtype, device=device_of(X))
        return xp.concat([X, ones], axis=1)

    def left(self, E):
        L = E / self.bandwidth**2
        L[:, -1] = E[:, -1] * self.coef0
        return L

    @property
    def cuda(self):
        # t and k may be the same variable: k is set last.
        power = f"for (int i = 1; i < {int(self.degree)}; ++i) u *= v"
        return f"T v = t, u = v; {power}; k = u"

    def finish(self, xp, T):
        return _integer_power(T, int(self.degree))

    def slope(self):
        factor = int(self.degree) / self.bandwidth**2
        if self.degree == 1:
            return Slope(_One(), factor, "z")
        kernel = Polynomial(self.bandwidth, int(self.degree) - 1, self.coef0)
        return Slope(kernel, factor, "z")

    @np.errstate(over="ignore")
    def diagonal(self, X):
        squares = namespace(X).sum(X * X, axis=1) / self.bandwidth**2
        return _integer_power(squares + self.coef0, int(self.degree))


@dataclass(frozen=True)
class Linear(Kernel):
    """Linear kernel, x . z.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenkern.kernels import Linear
    >>> Linear()(np.array([[1.0], [2.0]]))
    array([[1., 2.],
           [2., 4.]])
    """

    factored = True

    def encode(self, X):
        return X

    def left(self, E):
        return E

    def finish(self, xp, T):
        return T

    def slope(self):
        return Slope(_One(), 1.0, "z")

    @np.errstate(over="ignore")
    def diagonal(self, X):
        return namespace(X).sum(X * X, axis=1)


@dataclass(frozen=True)
class _One(Linear):
    """k(x, z) = 1, the slope of linear kernels: encoded rows have one feature, 1."""

    def encode(self, X):
        return namespace(X).ones_like(X[:, :1])

    def diagonal(self, X):
        return namespace(X).ones_like(X[:, 0])


def _integer_power(T, degree):
    """Return T^degree by repeated multiplication: `pow` is ten times slower."""
    if degree == 1:
        return T
    power = T * T
    for _ in range(degree - 2):
        power *= T
    return power
