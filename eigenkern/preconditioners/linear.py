"""EigenPro's preconditioner of a linear model."""

from dataclasses import dataclass

from ..backend.linalg import large_product, right_singular_vectors
from .spectral import TopEigenvectors


@dataclass(frozen=True)
class LinearSpectral(TopEigenvectors):
    """EigenPro's preconditioner of a linear model, P = I - V D V'.

    V = (e_1 .. e_q) are eigenvectors of the covariance of the features, from a
    subsample, with eigenvalues lambda_j, and D_j = 1 - tau lambda_{q+1} / lambda_j.
    Rows x minus their mean have the preconditioned kernel x' P z.

    References
    ----------
    Ma and Belkin, "Diving into the shallows: a computational perspective on large-scale
    shallow learning", NIPS 2017: table 1 and appendix A.
    """

    n_columns = 0

    @property
    def n_features(self):
        """d."""
        return self.vectors.shape[0]

    @classmethod
    def of(
        cls, operator, subsample_size, n_components, *, weights=None, damping=1.0, rng
    ):
        """Return the preconditioner with at most `n_components` eigenvectors.

        There may be fewer: at most one less than there are eigenvalues above rounding.

        Parameters
        ----------
        operator : CenteredFeatures
        subsample_size, n_components : int
            s and q.
        weights : array of shape (n,), default=None
        damping : float, default=1.0
            tau.
        rng : numpy.random.RandomState
        """
        xp, s, d = operator.xp, subsample_size, operator.shape[1]
        root = 1.0 if weights is None else weights[:s, None] ** 0.5
        k = min(n_components + 1, s, d)
        singular, V = right_singular_vectors(
            lambda B: root * operator.product(B, 0, s),
            lambda B: operator.adjoint(root * B, 0, s),
            (s, d),
            k,
            xp.empty(0, dtype=operator.dtype, device=operator.device),
            rng,
        )
        # Rounding leaves parts of the largest directions in P g. Times the long step,
        # they are errors of eps lambda_1 / lambda_{q+1} in predictions: at most 1/100.
        values = xp.astype(singular, xp.float64) ** 2 / s
        floor = 100 * float(xp.finfo(operator.dtype).eps) * values[0]
        q = int(xp.sum(xp.astype(values > floor, xp.int64)))
        q = max(min(q - 1, n_components), 0)
        values = xp.astype(values[: q + 1], operator.dtype)
        return cls(V[:, :q], values, damping)

    def features(self, operator, start, stop):
        """Return p(x) of some rows, shape (m, q)."""
        return operator.product(self.vectors, start, stop)

    def correction(self, gradient):
        """Return V D V' g of a gradient (d, l)."""
        image = large_product(gradient.T, self.vectors).T
        return large_product(self.vectors, self.scales[:, None] * image)

    def shrunk(self, coef, kappa):
        """Return (I + kappa P)^-1 a of coefficients (d, l); kappa has shape (l,)."""
        others, left = 1.0 / (1.0 + kappa), 1.0 - self.scales
        factors = 1.0 / (1.0 + left[:, None] * kappa) - others
        image = factors * (self.vectors.T @ coef)
        return others * coef + large_product(self.vectors, image)
