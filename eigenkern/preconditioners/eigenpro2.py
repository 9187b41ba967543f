"""EigenPro 2's preconditioner: it lives on a subsample of the rows."""

from dataclasses import dataclass

from ..backend.linalg import large_product, top_eigh
from .spectral import TopEigenvectors, n_above_rounding


@dataclass(frozen=True)
class Spectral(TopEigenvectors):
    """EigenPro 2's preconditioner, from the top eigenvectors of a subsample.

    With K_s = K(X_s, X_s), K_s u_j = sigma_j u_j and phi(x) = K(X_s, x), the
    preconditioned kernel is ::

        k_P(x, z) = k(x, z) - phi(x)' V D V' phi(z)
        V = (u_1 .. u_q),  D_j = (1 - tau sigma_{q+1} / sigma_j) / sigma_j

    It lowers the q largest eigenvalues of k to about sigma_{q+1} (times tau) and leaves
    the others, and the solution of K a = y, as they are. With weights W of the rows,
    u_j are eigenvectors of W^1/2 K_s W^1/2, and V = W^1/2 (u_1 .. u_q). The attribute
    `eigenvalues` has lambda_j = sigma_j / s, which estimate those of the kernel.

    References
    ----------
    Ma and Belkin, "Kernel machines that adapt to GPUs for effective large batch
    training", MLSys 2019: equation 8, which has sigma_q for sigma_{q+1} and no tau.
    Both of ours are from the authors' "Diving into the shallows", NIPS 2017: table 2.
    """

    is_of_rows = True

    @classmethod
    def of(cls, operator, subsample_size, n_components, *, weights=None, damping=1.0):
        """Return the preconditioner with at most `n_components` eigenvectors.

        Eigenvalues that rounding makes meaningless are left out, so there may be fewer.
        Eigenvectors are computed in float64.

        Parameters
        ----------
        operator : Matrix
            K(X, X), whose first rows are the subsample.
        subsample_size, n_components : int
            s and q < s.
        weights : array of shape (n,), default=None
        damping : float, default=1.0
            tau.
        """
        xp, dtype, s = operator.xp, operator.dtype, subsample_size
        K = xp.astype(operator.block(0, s, 0, s), xp.float64)
        root = None
        if weights is not None:
            root = xp.sqrt(xp.astype(weights[:s], xp.float64))
            K = root[:, None] * K * root[None, :]
        sigma, U = top_eigh(K, n_components + 1)
        entry = float(xp.max(xp.abs(xp.linalg.diagonal(K))))
        q = max(n_above_rounding(sigma, s, entry, dtype) - 1, 0)
        V = U[:, :q] if root is None else root[:, None] * U[:, :q]
        # Rounding may leave the last eigenvalue below zero.
        sigma = xp.where(sigma > 0, sigma, xp.zeros_like(sigma))
        values = xp.astype(sigma[: q + 1] / s, dtype)
        return cls(xp.astype(V, dtype), values, damping)

    @property
    def subsample_size(self):
        """s, the rows of the subsample."""
        return self.vectors.shape[0]

    @property
    def n_columns(self):
        """Columns of K(X_b, X) that a step needs."""
        return self.subsample_size if self.n_components else 0

    def features(self, operator, start, stop):
        """Return p(x) of some rows, shape (m, q)."""
        block = operator.block(start, stop, 0, self.subsample_size)
        return self.features_of_batch(slice(start, stop), block)

    def features_of_batch(self, _b, K_bs):
        """Return p(x) of a batch of rows b, from K(X_b, X_s)."""
        return large_product(K_bs, self.vectors)
