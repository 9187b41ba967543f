"""Spectral preconditioners: of rows (EigenPro 2), of centers, of features."""

from dataclasses import dataclass, replace
from typing import Any

from ..arrays.array import namespace, scatter, take
from ..arrays.linalg import (
    large_gram,
    large_product,
    right_singular_vectors,
    solve_triangular,
    spanning_factor,
    top_eigh,
)
from ..arrays.threads import cached_property


@dataclass(frozen=True)
class TopEigenvectors:
    """What the spectral preconditioners share: k_P(x, z) = k(x, z) - p(x)' D p(z).

    The `vectors` V (N, q) are of rows, centers or features, N of them; the
    `eigenvalues` lambda_j (q + 1,) decrease, and the `damping` is tau.
    """

    vectors: Any
    eigenvalues: Any
    damping: float

    #: Whether the function p_j has the squared norm s lambda_j, s the rows of V, or 1.
    is_of_rows = False
    #: d, if the model is linear.
    n_features = None
    #: Columns of K(X_b, X) that a step needs.
    n_columns = 0

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

    def coordinates(self, image):
        """Return D V' g of g (N, l), shape (q, l)."""
        return self.scales[:, None] * large_product(image.T, self.vectors).T

    def add_to(self, coef, S):
        """Add V S to the first N of coefficients (p, l), in place."""
        if self.n_components:
            coef[: self.vectors.shape[0], :] += large_product(self.vectors, S)

    def shrunk(self, coef, values, kappa):
        """Return the coefficients (p, l) of (I + kappa P)^-1 f, P the preconditioner.

        P leaves 1 - D_j of p_j, and everything that is orthogonal to them. `values` (N,
        l) has f at the centers, or the coefficients of a linear model; kappa is (l,).
        """
        others, left = 1.0 / (1.0 + kappa), 1.0 - self.scales
        result = others * coef
        factors = 1.0 / (1.0 + left[:, None] * kappa) - others
        self.add_to(result, factors * (self.vectors.T @ values))
        return result


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
        """Return the preconditioner of K(X, X), whose first s rows are the subsample.

        It has at most `n_components` eigenvectors, computed in float64: those whose
        eigenvalues rounding would make meaningless are left out.
        """
        xp, dtype, s = operator.xp, operator.dtype, subsample_size
        K = xp.astype(operator.block(0, s, 0, s), xp.float64)
        root = 1.0
        if weights is not None:
            root = xp.sqrt(xp.astype(weights[:s, None], xp.float64))
            K = root * K * root.T
        sigma, U = top_eigh(K, n_components + 1)
        entry = float(xp.max(xp.abs(xp.linalg.diagonal(K))))
        q = max(n_above_rounding(sigma, s, entry, dtype) - 1, 0)
        V = root * U[:, :q]
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

    @property
    def n_features(self):
        """d."""
        return self.vectors.shape[0]

    @classmethod
    def of(
        cls, operator, subsample_size, n_components, *, weights=None, damping=1.0, rng
    ):
        """Return the preconditioner of `CenteredFeatures`, from their first s rows.

        It has at most `n_components` eigenvectors, and one less than there are
        eigenvalues above rounding.
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
        return large_product(self.vectors, self.coordinates(gradient))


@dataclass(frozen=True)
class CenterSpectral(TopEigenvectors):
    """EigenPro's preconditioner of a model on centers, computed in their span.

    For c of the centers, Z_c, the functions psi_j = K(., Z_c) v_j with ::

        K(Z_c, X) W K(X, Z_c) v_j / N = lambda_j K(Z_c, Z_c) v_j
        v_i' K(Z_c, Z_c) v_j = 1 if i = j, else 0

    are the best approximations in the span of K(., Z_c) (Rayleigh-Ritz) of the
    eigenfunctions of the kernel on N weighted rows X. The preconditioned kernel is ::

        k_P(x, z) = k(x, z) - K(x, Z_c) V D V' K(Z_c, z),  D_j = 1 - tau l_{q+1} / l_j

    The preconditioner maps the span of K(., Z) to itself and so commutes with the
    projection onto it: where the projected gradient vanishes, so does the gradient of
    least squares on the centers, whatever q. EigenPro 3 takes eigenfunctions in the
    span of all rows (algorithm 1) or of a subsample (algorithm 2), with which the fixed
    point is different; its lemma 6 has that of algorithm 1.
    """

    @classmethod
    def of(cls, centers, sample, n_rows, n_fitted, q, *, weights=None, damping=1.0):
        """Return the preconditioner of a model on `centers`, K(Z, Z) in random order.

        It has at most `q` eigenfunctions, in the span of the first `n_fitted` centers,
        c, on the first `n_rows` rows of a `Sample`, N, which the weights belong to.
        """
        xp, dtype, f64 = centers.xp, centers.dtype, centers.xp.float64
        B = centers.block(0, n_fitted, 0, n_fitted, dtype=f64)
        entry = float(xp.max(xp.linalg.diagonal(B)))
        eps = float(xp.finfo(dtype).eps)
        # Centers in the span of others up to rounding, times 10, are left out. Squared
        # errors of 56 fits with other factors, over those with 10: with 1, up to 15;
        # with 100, from 0.5 to 1.9, on average 1.01; with 1000, up to 4.3.
        places, L = spanning_factor(B, 10 * n_fitted * eps * entry)
        if not len(places):  # the zero kernel
            zeros = xp.astype(xp.zeros_like(B[:, :1]), dtype)
            return cls(zeros[:, :0], zeros[:1, 0], damping)
        C = sample.center_block(0, n_rows, n_fitted, dtype=f64)
        root = xp.full((n_rows, 1), n_rows**-0.5, dtype=f64, device=centers.device)
        if weights is not None:
            w = xp.astype(weights[:n_rows, None], f64)
            root = xp.sqrt(w / xp.sum(w))
        M = solve_triangular(L, (root * take(C, places, axis=1)).T)
        values, U = top_eigh(large_gram(M), min(q + 1, M.shape[0]))
        n_real = n_above_rounding(values * n_fitted, n_fitted, entry, dtype)
        q = max(min(n_real, values.shape[0]) - 1, 0)
        short = solve_triangular(L, U[:, :q], transposed=True)
        vectors = scatter(short, places, n_fitted)
        values = xp.where(values > 0, values, xp.zeros_like(values))[: q + 1]
        return cls(xp.astype(vectors, dtype), xp.astype(values, dtype), damping)

    def features(self, sample, start, stop):
        """Return p(x) = V' K(Z_c, x) of some rows of the sample, shape (m, q)."""
        block = sample.center_block(start, stop, self.vectors.shape[0])
        return large_product(block, self.vectors)
