"""Principal components in the feature space of a kernel, of any number of rows."""

import numpy as np

from ..arrays.array import KernelLike, RandomState, device_of, location_of, move
from ..arrays.array import namespace, take
from ..arrays.devices import compute_device
from ..arrays.linalg import large_product, solve_triangular, top_eigh
from ..centers import uniform_indices
from ..fitting.conveniences import keep_parameters
from ..fitting.outcome import check_given_kernel, warn_of_far_values
from ..fitting.planning import SHARE, rows_at_a_time
from ..fitting.validation import check_number
from ..kernels import Kernel
from ..methods.paths import EPS, Whitening
from ..operators.matrix import check_finite
from ..operators.tiled import TiledKernel
from ..problems.kernel_parameters import check_kernel, make_kernel
from ..rows.lazy_rows import rows_at
from ..rows.robust import cast
from .features import FeatureMap, like


class KernelPCA(FeatureMap):
    """Kernel PCA."""

    _coef_attribute = "dual_coef_"
    _size = "n_centers"

    def __init__(
        self,
        n_components: int = 2,
        *,
        kernel: KernelLike = "gaussian",
        bandwidth: float | str = "median",
        n_centers: int = 3000,
        device: str = "auto",
        random_state: RandomState = None,
    ) -> None:
        keep_parameters(self, locals())

    def _check_parameters(self):
        check_kernel(self.kernel, precomputed=False)
        check_number("n_components", self.n_components, 1, integer=True)
        if self.n_components >= self.n_centers:
            raise ValueError(
                f"n_components must be less than n_centers={self.n_centers}; got "
                f"{self.n_components}"
            )

    def _fitted(self, X, rng):
        n = X.shape[0]
        ends = check_given_kernel(self.kernel, X, np.arange(n), self.device)
        if ends is not None:
            raise ValueError(f"kernel must be positive semi-definite; got {ends}")
        kernel = make_kernel(self.kernel, self.bandwidth, X, rng)
        indices = uniform_indices(n, self.n_centers, rng)
        centers = rows_at(X, indices)
        there = move(centers, *compute_device(self.device, X))
        TiledKernel(kernel, centers, centers[:1, :])  # refuses what `transform` would
        found = components(kernel, there, X, min(self.n_components, n))
        values, A, intercept = (like(centers, one) for one in found)
        return {
            "kernel_": kernel,
            "bandwidth_": getattr(kernel, "bandwidth", None),
            "centers_": centers,
            "center_indices_": namespace(X).asarray(indices, device=device_of(X)),
            "eigenvalues_": values,
            "dual_coef_": A,
            "intercept_": intercept,
        }

    def _warn_of_far_values(self, X):
        warn_of_far_values(self, X, self.kernel_, self.centers_)

    def _features(self, X):
        K = TiledKernel(self.kernel_, like(X, self.centers_), X)
        return K @ like(X, self.dual_coef_) + like(X, self.intercept_)

    @property
    def _n_features_out(self):
        return self.eigenvalues_.shape[0]


def components(kernel, Z, X, k):
    """Return the k leading principal components of phi(x), in the span of centers.

    They are functions F = K(X, Z) A + b with columns of mean 0, F'F = diag(e), the best
    ones (Rayleigh-Ritz) of the form f(x) = <phi(x) - mean, g>, |g| = 1, with g in the
    span of phi(z_i) - phi(z_j). With H = I - 1 1' / p and a factor L L' = H K(Z, Z) H,
    they are eigenvectors of the centered C'C, C = K(X, Z) H L'^-1.

    Returns e (k,), decreasing, A (p, k) and b (k,), in float64. Costs n p (d + p / 2)
    multiply-adds, or n p (d + 3 p / 2) if the centers are nearly dependent, and p^3.
    """
    xp, (n, p), dtype = namespace(Z), (X.shape[0], Z.shape[0]), Z.dtype
    operator = TiledKernel(kernel, xp.astype(Z, xp.float64))
    K = operator.block()
    check_finite(K)
    rounding = p * EPS * float(xp.max(xp.abs(xp.linalg.diagonal(K))))
    K = _centered(_centered(K).T)
    zeros = xp.zeros((p, k), dtype=xp.float64, device=device_of(Z))
    if float(xp.max(xp.linalg.diagonal(K))) <= rounding:  # all rows are equal
        return zeros[0, :], zeros, zeros[0, :]
    # Without the last row, which is minus the sum of the others, it has a factor.
    whitening = Whitening.of(K[:-1, :-1], dtype)
    kept, L, R = whitening.kept, whitening.L, whitening.R

    def expanded(B):
        """Return H[:, kept] B."""
        place = np.full(p, len(kept))
        place[kept] = np.arange(len(kept))
        return _centered(take(xp.concat([B, xp.zeros_like(B[:1, :])]), place))

    def whitened(B):
        """Return L^-1 H[kept, :] B."""
        return solve_triangular(L, take(_centered(B), kept))

    ones = xp.ones((n, 1), dtype=xp.float64, device=device_of(Z))
    G, sums = operator.rows(X).gram(ones, transform=R if R is None else expanded(R))
    G -= sums * (sums / n).T
    if R is None:
        G, sums = whitened(whitened(G).T), whitened(sums)
    check_finite(xp.linalg.diagonal(G))
    values, V = top_eigh(G, min(k, G.shape[0]))
    real = values > whitening.rounding * float(xp.linalg.trace(G))
    A = expanded(solve_triangular(L, V, transposed=True))
    # Zero where there is no variance. The value farthest from 0 at a center is positive.
    F = large_product(K, A)
    signs = xp.where(xp.max(F, axis=0) < -xp.min(F, axis=0), -1.0, 1.0)
    signs = xp.where(real, signs, xp.zeros_like(signs))
    found = xp.abs(signs) * values, signs * A, -signs * (V.T @ sums)[:, 0] / n
    missing = zeros[:, : k - values.shape[0]]
    ends = missing[0, :], missing, missing[0, :]
    return tuple(
        xp.concat(pair, axis=-1) for pair in zip(found, ends, strict=True)
    )


def _centered(B):
    """Return H B, H = I - 1 1' / p."""
    return B - namespace(B).mean(B, axis=0)
