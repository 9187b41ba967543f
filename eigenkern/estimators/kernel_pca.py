"""Principal components in the feature space of a kernel, of any number of rows."""

import numpy as np

from ..arrays.array import KernelLike, RandomState, device_of, move, namespace
from ..arrays.devices import compute_device
from ..centers import uniform_indices
from ..fitting.conveniences import keep_parameters
from ..fitting.outcome import check_given_kernel, warn_of_far_values
from ..fitting.planning import SHARE, rows_at_a_time
from ..fitting.validation import check_number, warn_user
from ..methods.principal_components import components_of_centers, components_of_rows
from ..operators.tiled import TiledKernel
from ..problems.kernel_parameters import check_kernel, make_kernel
from ..rows.lazy_rows import check_in_memory, rows_at
from ..rows.robust import cast
from ..rows.transfer import move_what_fits
from .features import FeatureMap, like

# Centers by default, and those that begin the iteration on all rows: angles below 0.01
# to the exact components of images, in 550 MB (benchmarks/kernel_pca.py).
_N_CENTERS = 3000


class KernelPCA(FeatureMap):
    """Kernel principal component analysis of any number of rows.

    The directions along which the rows vary most, not in the space of the columns but
    in the feature space of a kernel: scikit-learn's ``KernelPCA`` without the kernel
    matrix of all rows. The components are the best ones in the span of `n_centers` of
    the rows; if these are all rows, the components are those of scikit-learn.

    Parameters
    ----------
    n_components : int, default=2
        Number of components, the columns of the output. If there are fewer rows, as
        many components as rows.
    kernel : str, Kernel or callable, default="gaussian"
        How similar two rows are: "gaussian" (alias "rbf"), "laplacian", "manhattan",
        "cauchy", "matern32", "matern52", "polynomial", "linear", an object of
        `eigenkern.kernels`, or a function ``k(X, Z)`` that returns the kernel matrix of
        two blocks of rows. The laplacian takes the Euclidean distance, "manhattan" the
        sum of absolute differences.
    bandwidth : float, "median" or "scale", default="median"
        Length over which a kernel given by name decays, in the units of X: longer for
        smooth functions, shorter for fine detail. This is sigma in the formulas; a
        kernel object has its own. "median": the median distance between 600 rows drawn
        at random. "scale": as ``SVC(gamma="scale")``, (n_features X.var() / 2)^1/2 for
        radial kernels.
    n_centers : int or None, default=3000
        Number of rows, drawn at random, whose span contains the components. If there
        are no more rows than that, all are centers, and the components are exact. More
        centers make the components more accurate, but time and memory grow as the
        square of their number. None: every row is a center, without a matrix of them,
        in time that grows as the square of the number of rows; only for rows in memory.
    device : {"auto", "cpu", "cuda", "cuda:N"}, default="auto"
        Where to compute. "auto": where X lives. Otherwise rows are copied there, and
        their features back.
    random_state : int, RandomState instance or None, default=None
        Controls what is drawn at random: centers, subsample for the median. Pass an int
        for reproducible results.

    Attributes
    ----------
    eigenvalues_ : array of shape (n_components,)
        Leading eigenvalues of the centered kernel matrix of all training rows,
        decreasing; with fewer centers than rows, lower bounds of them. Divided by the
        number of rows they are the variances of the components.
    dual_coef_ : array of shape (n_centers, n_components)
        Coefficients A of the kernel's values at the centers.
    intercept_ : array of shape (n_components,)
        b, which makes the mean of every component zero on the training rows.
    centers_ : array of shape (n_centers, n_features)
        In the data type of X.
    center_indices_ : array of shape (n_centers,)
        Indices of the rows that are centers, increasing.
    kernel_ : Kernel
        The kernel object with its bandwidth.
    bandwidth_ : float or None
        sigma in use; None if the kernel has none.
    n_features_in_ : int
        Number of features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X has string names.

    See Also
    --------
    RBFNetworkFeatures : Values of the kernel at centers, for linear models.
    SpectrumDisplay : Plot of the eigenvalues that a fit of ``EigenPro*`` found.

    Notes
    -----
    A row's components are ``K(x, Z) A + b``, with centers Z. In the span of p centers
    the best components (Rayleigh-Ritz) come from one p x p matrix, a sum over all n
    rows: n p (d + p / 2) multiply-adds, 4 p^3 / 3 for its eigenvectors, and memory for
    8 p^2 numbers in float64, 600 MB for 3000 centers. The rows are read once, from
    memory, a file or Dask, and centered exactly.

    With ``n_centers=None`` a block Krylov iteration on all rows begins with such
    components on 3000 centers, a few more than asked for. It ends when the residual of
    the last eigenvector is 0.3 % of its eigenvalue, usually after one to three products
    with the kernel matrix, n^2 d multiply-adds each. The components of new rows then
    take n values of the kernel each.

    The closer the last eigenvalue is to the next one, the larger is the largest
    principal angle between the components and the exact ones; see :doc:`the user guide
    <../user_guide/kernel_pca>`. As in scikit-learn, components without variance are
    zero. The sign is such that the value farthest from zero among the centers is
    positive.

    References
    ----------
    Schölkopf, Smola and Müller, "Nonlinear component analysis as a kernel eigenvalue
    problem", Neural Computation 10, 1998. Sterge, Sriperumbudur, Rosasco and Rudi,
    "Gain with no pain: efficiency of kernel-PCA by Nyström sampling", AISTATS 2020.
    Musco and Musco, "Randomized block Krylov methods for stronger and faster
    approximate singular value decomposition", NIPS 2015.

    Examples
    --------
    Two circles, which no line separates, but the first component of a kernel does:

    >>> from sklearn.datasets import make_circles
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from eigenkern import KernelPCA
    >>> X, y = make_circles(n_samples=1000, factor=0.3, noise=0.05, random_state=0)
    >>> LogisticRegression().fit(X, y).score(X, y) < 0.7
    True
    >>> pca = KernelPCA(n_components=3, n_centers=200, bandwidth=0.5, random_state=0)
    >>> make_pipeline(pca, LogisticRegression()).fit(X, y).score(X, y) > 0.99
    True
    """

    _coef_attribute = "dual_coef_"
    _size = "n_centers"

    def __init__(
        self,
        n_components: int = 2,
        *,
        kernel: KernelLike = "gaussian",
        bandwidth: float | str = "median",
        n_centers: int | None = _N_CENTERS,
        device: str = "auto",
        random_state: RandomState = None,
    ) -> None:
        keep_parameters(self, locals())

    def _check_parameters(self):
        check_kernel(self.kernel, precomputed=False)
        check_number("n_components", self.n_components, 1, integer=True)
        if self.n_centers is None:
            return
        check_number("n_centers", self.n_centers, 2, integer=True)
        if self.n_components >= self.n_centers:
            raise ValueError(
                f"n_components must be less than n_centers={self.n_centers}; got "
                f"{self.n_components}"
            )

    def _fitted(self, X, rng):
        n, every_row = X.shape[0], self.n_centers is None
        if every_row:
            check_in_memory(X, "a number of centers as n_centers")
        ends = check_given_kernel(self.kernel, X, np.arange(n), self.device)
        if ends is not None:
            raise ValueError(f"kernel must be positive semi-definite; got {ends}")
        kernel = make_kernel(self.kernel, self.bandwidth, X, rng)
        there = compute_device(self.device, X)
        k = min(self.n_components, n)
        # With more components than are kept, the last of them converge too.
        n_started = 2 * k + 10
        p = max(_N_CENTERS, 4 * n_started) if every_row else self.n_centers
        indices = uniform_indices(n, p, rng)
        centers = rows_at(X, indices)
        TiledKernel(kernel, centers, centers[:1, :])  # refuses what `transform` would
        Z = move(centers, *there)
        if p < n and every_row:
            start = components_of_centers(kernel, Z, X, n_started)
            V = TiledKernel(kernel, Z, X) @ cast(start.coef, Z.dtype)
            centers, indices = X, np.arange(n)
            found = components_of_rows(kernel, move_what_fits(X, *there), V, k)
        else:
            found = components_of_centers(kernel, Z, X, k)
        if found.error:
            warn_user(
                "KernelPCA ended its iteration with a relative residual of "
                f"{found.error:.1e}: the kernel's eigenvalues decay slowly; pass a "
                "longer bandwidth, or n_centers"
            )
        return {
            "kernel_": kernel,
            "bandwidth_": getattr(kernel, "bandwidth", None),
            "centers_": centers,
            "center_indices_": namespace(X).asarray(indices, device=device_of(X)),
            "eigenvalues_": like(centers, found.values),
            "dual_coef_": like(centers, found.coef),
            "intercept_": like(centers, found.intercept),
        }

    def _what_fits(self, method, X, y, free):
        """Return with what a method of rows takes at most `free` bytes, as text."""
        if method != "fit":
            return rows_at_a_time(self, X, free)
        # 64 p^2 bytes of matrices, and 24 d p of centers, as drawn, moved and encoded.
        half = 12 * X.shape[1]
        size = int(((half**2 + 64 * SHARE * free) ** 0.5 - half) / 64)
        return f"n_centers={size} takes about {free / 1e6:.0f} MB" if size > 1 else ""

    def _warn_of_far_values(self, X):
        warn_of_far_values(self, X, self.kernel_, self.centers_)

    def _features(self, X):
        K = TiledKernel(self.kernel_, like(X, self.centers_), X)
        return K @ like(X, self.dual_coef_) + like(X, self.intercept_)

    @property
    def _n_features_out(self):
        return self.eigenvalues_.shape[0]
