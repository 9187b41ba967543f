"""What the spectral preconditioners share."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..backend.array import namespace


@dataclass(frozen=True)
class TopEigenvectors:
    """What the spectral preconditioners share: k_P(x, z) = k(x, z) - p(x)' D p(z).

    Attributes
    ----------
    vectors : array of shape (s, q), (n, q), (c, q) or (d, q)
        V, of rows, centers or features.
    eigenvalues : array of shape (q + 1,)
        lambda_j, decreasing.
    damping : float
        tau.
    """

    vectors: Any
    eigenvalues: Any
    damping: float

    #: Whether the function p_j has the squared norm s lambda_j, s the rows of V, or 1.
    is_of_rows = False
    #: d, if the model is linear.
    n_features = None

    @property
    def n_components(self):
        """q, the number of eigenvectors."""
        return self.vectors.shape[1]

    @cached_property
    def scales(self):
        """The diagonal of D, shape (q,)."""
        return self.scales_of(self.n_components)

    def truncate(self, q):
        """Return the preconditioner of the first `q` eigenvectors."""
        values = self.eigenvalues[: q + 1]
        return replace(self, vectors=self.vectors[:, :q], eigenvalues=values)

    def scales_of(self, q):
        """Return D of the first `q` eigenvectors."""
        xp = namespace(self.vectors)
        values = xp.astype(self.eigenvalues[: q + 1], xp.float64)
        scales = 1.0 - self.damping * values[-1] / values[:-1]
        if self.is_of_rows:  # over the squared norms
            scales = scales / (values[:-1] * self.vectors.shape[0])
        return xp.astype(scales, self.vectors.dtype)


def n_above_rounding(sigma, n, entry, dtype):
    """Return how many eigenvalues of K(X, X) are more than rounding."""
    xp = namespace(sigma)
    above = sigma > rounding_floor(n, entry, float(xp.finfo(dtype).eps))
    return int(xp.sum(xp.astype(above, xp.int64)))


def rounding_floor(n, entry, eps):
    """Return the size below which eigenvalues of K(X, X) may be rounding.

    Coefficients along u_j grow like 1 / sigma_j, and rounding leaves an error of
    n eps / sigma_j in predictions: at most one in a thousand if sigma_j is above
    1000 n eps. The level of the preconditioned spectrum stays above that too.
    """
    return 1000 * n * eps * entry
