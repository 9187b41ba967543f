"""Explicit features whose products approximate a kernel, for linear models."""

from typing import Any, Self

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)

from ..arrays.array import (
    ArrayLike,
    KernelLike,
    RandomState,
    device_of,
    location_of,
    move,
    namespace,
    slices,
)
from ..arrays.devices import compute_device
from ..centers import cluster_means, distinct_rows, uniform_indices
from ..fitting.conveniences import Conveniences, keep_parameters
from ..fitting.outcome import check_values, warn_of_cutoffs, warn_of_far_values
from ..fitting.planning import SHARE, rows_at_a_time
from ..fitting.validation import (
    all_or_nothing,
    check_centers,
    check_number,
    check_one_bandwidth,
    check_rows,
    on_its_device,
    publish,
    random_generator,
    validated,
    warn_of_few_rows,
)
from ..kernels import Kernel
from ..operators.tiled import TiledKernel
from ..operators.waves import fourier_features, frame_of_phases
from ..problems.kernel_parameters import (
    check_bandwidth,
    check_kernel,
    check_spectral_law,
    make_kernel,
)
from ..rows.lazy_rows import check_in_memory, in_memory, rows_at
from ..rows.robust import cast
from ..rows.transfer import StreamedRows

# Bytes of features to compute at a time on another device than that of X.
_SLAB_BYTES = 256e6


class FeatureMap(
    Conveniences,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    BaseEstimator,
):
    """Features phi(x) whose products approximate a kernel.

    A subclass has ``_check_parameters()``, ``_fitted(X, rng)``, a dict of attributes,
    and ``_features(X)``, phi of the rows of X, on the device of X.
    """

    _accept_sparse = False
    #: The parameter with the number of features.
    _size = "n_components"

    @property
    def _takes_less(self):
        return (self._size,)

    @all_or_nothing
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Choose the features.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Training rows. X may be a file or a Dask array, see :ref:`large_data`.
        y : None
            Ignored.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the data or a parameter is wrong; a model fitted before stays usable.
        MemoryError
            If memory runs out; the message says what needs less.
        """
        check_bandwidth(self.bandwidth, targets=False)
        self._check_parameters()
        check_one_bandwidth(self.kernel, self.bandwidth)
        X = validated(self, X, reset=True, ensure_min_samples=2)
        compute_device(self.device, X)
        publish(self, self._fitted(X, random_generator(self.random_state)))
        self._warn_of_far_values(X)
        return self

    @on_its_device
    def transform(self, X: ArrayLike) -> Any:
        """Return the features of the rows of X.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Rows; float32 is computed in float32.

        Returns
        -------
        phi : array of shape (n_samples, n_features_out)
            In the library and data type of X.
        """
        X = in_memory(check_rows(self, X, "transform"))
        source, compute = location_of(X), compute_device(self.device, X)
        n, width = X.shape[0], self._n_features_out
        n_at_once = max(int(_SLAB_BYTES // (8 * width)), 1)
        with np.errstate(over="ignore", invalid="ignore"):
            if compute == source:
                phi = self._features(X)
            else:
                (xp, device), streamed = source, StreamedRows(X, *compute)
                phi = xp.empty((n, width), dtype=X.dtype, device=device)
                for rows in slices(n, n_at_once):
                    phi[rows, :] = move(self._features(streamed[rows, :]), *source)
        check_values(phi, X)
        return phi

    def _what_fits(self, method, X, y, free):
        """Return with what a method of rows takes at most `free` bytes, as text."""
        if method != "fit":
            return rows_at_a_time(self, X, free)
        # Frequencies or centers, as they are drawn and converted; features of the rows.
        size = int(SHARE * free / (40 * X.shape[1] + 16 * X.shape[0]))
        return f"{self._size}={size} takes about {free / 1e6:.0f} MB" if size else ""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.array_api_support = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class RandomFourierFeatures(FeatureMap):
    """Random Fourier features: phi(x)' phi(z) is k(x, z) on average.

    A kernel that is a function of x - z is the mean of ``cos w'(x - z)`` over a
    distribution of frequencies w. With D / 2 of them ::

        phi(x) = (cos w_1'x, ..., sin w_1'x, ...) sqrt(2 / D)

    If D is odd, the last frequency has the one column ``cos(w'x - pi / 4)``, which
    keeps the mean of phi(x)' phi(z) exact.

    Parameters
    ----------
    kernel : str or Kernel, default="gaussian"
        How similar two rows are: "gaussian" (alias "rbf"), "laplacian", "manhattan",
        "cauchy", "matern32", "matern52", or an object of `eigenkern.kernels` of that
        kind: a function of x - z whose frequencies can be drawn. The laplacian takes
        the Euclidean distance, "manhattan" the sum of absolute differences.
    bandwidth : float, "median" or "scale", default="median"
        Length over which a kernel given by name decays, in the units of X: longer for
        smooth functions, shorter for fine detail. This is sigma in the formulas; a
        kernel object has its own. "median": the median distance between 600 rows drawn
        at random. "scale": as ``SVC(gamma="scale")``, (n_features X.var() / 2)^1/2 for
        radial kernels.
    n_components : int, default=100
        Number of features, D (not of eigenvectors, as in EigenPro): more features
        follow the kernel more closely. The error of phi(x)' phi(z) has a standard
        deviation of about sqrt(1 / D) for distant rows, and less for near ones.
    device : {"auto", "cpu", "cuda", "cuda:N"}, default="auto"
        Where to compute. "auto": where X lives. Otherwise rows are copied there, and
        their features back.
    random_state : int, RandomState instance or None, default=None
        Controls what is drawn at random: frequencies, subsample for the median. Pass an
        int for reproducible results.

    Attributes
    ----------
    frequencies_ : array of shape (n_features, n_frequencies)
        Frequencies, half as many as features, rounded up; in the data type of X.
    offset_ : array of shape (n_features,)
        Median of the training rows (1000 of them), subtracted from all rows: k(x, z)
        stays the same, and a large offset would cost accuracy.
    limits_ : array of shape (n_features,)
        How far from `offset_` entries of X, such as fill values, are cut off.
    kernel_ : Kernel
        The kernel object with its bandwidth.
    bandwidth_ : float
        sigma in use.
    n_components_ : int
        D.
    n_features_in_ : int
        Number of features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X has string names.

    See Also
    --------
    RBFNetworkFeatures : Values of the kernel at centers.
    LinearEigenProRegressor : Least squares on many features.
    DSGClassifier : Draws features as needed, and stores none.
    EigenProRegressor : The kernel itself, without features.

    Notes
    -----
    Takes D d / 2 multiply-adds and D sines or cosines per row, and no memory beyond the
    features except for a few tiles. Ma and Belkin use D cosines with random phases,
    which take twice the products and have errors even for x = z.

    References
    ----------
    Rahimi and Recht, "Random features for large-scale kernel machines", NIPS 2007. Ma
    and Belkin, "Diving into the shallows", NIPS 2017, appendix B (arXiv:1703.10622).

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import RidgeClassifier
    >>> from sklearn.pipeline import make_pipeline
    >>> from eigenkern import RandomFourierFeatures
    >>> X, y = load_digits(return_X_y=True)
    >>> features = RandomFourierFeatures(n_components=500, random_state=0)
    >>> model = make_pipeline(features, RidgeClassifier(alpha=1e-3))
    >>> model.fit(X[:1500], y[:1500]).score(X[1500:], y[1500:]) > 0.9
    True
    """

    _coef_attribute = "frequencies_"

    def __init__(
        self,
        kernel: str | Kernel = "gaussian",
        *,
        bandwidth: float | str = "median",
        n_components: int = 100,
        device: str = "auto",
        random_state: RandomState = None,
    ) -> None:
        keep_parameters(self, locals())

    def _check_parameters(self):
        check_number("n_components", self.n_components, 1, integer=True)
        check_spectral_law(self.kernel)

    def _fitted(self, X, rng):
        xp = namespace(X)
        generator = np.random.default_rng(rng.randint(2**31 - 1))
        kernel = make_kernel(self.kernel, self.bandwidth, X, rng)
        n_frequencies = -(-self.n_components // 2)
        W = kernel.frequencies(generator, X.shape[1], n_frequencies)
        largest = np.abs(W).max()
        if not largest < float(xp.finfo(X.dtype).max) ** 0.5:
            raise ValueError(
                f"bandwidth {kernel.bandwidth:.3g} is too small for {X.dtype}, with "
                f"frequencies up to {largest:.3g}: pass float64 data, scale them or "
                "pass a larger bandwidth"
            )
        offset, limits = frame_of_phases(X, kernel.bandwidth)
        return {
            "kernel_": kernel,
            "bandwidth_": kernel.bandwidth,
            "offset_": offset,
            "limits_": limits,
            "frequencies_": like(X, W),
            "n_components_": self.n_components,
        }

    def _warn_of_far_values(self, X):
        warn_of_cutoffs(self, X, self.offset_, self.limits_)

    def _features(self, X):
        attributes = self.frequencies_, self.offset_, self.limits_
        frame = (like(X, values) for values in attributes)
        return fourier_features(X, *frame, self.n_components_)

    @property
    def _n_features_out(self):
        return self.n_components_


class RBFNetworkFeatures(FeatureMap):
    """Values of the kernel at centers, phi(x) = (k(x, z_1), ..., k(x, z_D)).

    A linear model on them is a radial basis function network, or a general kernel
    model. With the kernel matrix K of the centers, ``phi(x)' K^-1 phi(z)`` is the
    Nystrom approximation of the kernel.

    Parameters
    ----------
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
    n_centers : int, default=100
        Number of centers, and so of features: more of them follow the kernel more
        closely, at proportional cost. If there are fewer distinct training rows, all of
        them are centers, with a warning. Not used if `centers` is an array.
    centers : {"uniform", "kmeans"} or array, default="uniform"
        How to choose the centers. "uniform": training rows drawn without replacement.
        "kmeans": means of clusters of the training rows, by scikit-learn's
        ``MiniBatchKMeans``. An array of shape (n_centers, n_features): the centers
        themselves.
    device : {"auto", "cpu", "cuda", "cuda:N"}, default="auto"
        Where to compute. "auto": where X lives. Otherwise rows are copied there, and
        their features back.
    random_state : int, RandomState instance or None, default=None
        Controls what is drawn at random: centers, subsample for the median. Pass an int
        for reproducible results.

    Attributes
    ----------
    centers_ : array of shape (n_centers, n_features)
        In the data type of X.
    center_indices_ : array of shape (n_centers,) or None
        Indices of the rows that are centers, increasing; None for means or an array.
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
    RandomFourierFeatures : Features whose plain products approximate the kernel.
    NystromRegressor : Kernel ridge regression on centers, without features in memory.
    EigenProRegressor : With ``n_centers`` the same model, by iteration.

    Notes
    -----
    Takes D (d + 2) multiply-adds and D evaluations of the kernel's function per row,
    and no memory beyond the features except for a few tiles.

    References
    ----------
    Que and Belkin, "Back to the future: radial basis function networks revisited",
    AISTATS 2016. Ma and Belkin, "Diving into the shallows", NIPS 2017, appendix B
    (arXiv:1703.10622).

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import RidgeClassifier
    >>> from sklearn.pipeline import make_pipeline
    >>> from eigenkern import RBFNetworkFeatures
    >>> X, y = load_digits(return_X_y=True)
    >>> features = RBFNetworkFeatures(centers="kmeans", random_state=0)
    >>> model = make_pipeline(features, RidgeClassifier(alpha=1e-3))
    >>> model.fit(X[:1500], y[:1500]).score(X[1500:], y[1500:]) > 0.9
    True
    """

    _coef_attribute = "centers_"
    _size = "n_centers"

    def __init__(
        self,
        kernel: KernelLike = "gaussian",
        *,
        bandwidth: float | str = "median",
        n_centers: int = 100,
        centers: str | ArrayLike = "uniform",
        device: str = "auto",
        random_state: RandomState = None,
    ) -> None:
        keep_parameters(self, locals())

    def _check_parameters(self):
        check_number("n_centers", self.n_centers, 1, integer=True)
        check_kernel(self.kernel, precomputed=False)

    def _fitted(self, X, rng):
        centers = check_centers(self.centers, X, ("uniform", "kmeans"))
        if centers is None and self.centers == "kmeans":
            check_in_memory(X, "centers='uniform', or an array as centers")
        kernel = make_kernel(self.kernel, self.bandwidth, X, rng)
        if centers is None:
            centers, indices = self._chosen(X, rng)
        else:
            centers, indices = like(X, centers), None
        TiledKernel(kernel, centers, centers[:1, :])  # refuses what `transform` would
        return {
            "kernel_": kernel,
            "bandwidth_": getattr(kernel, "bandwidth", None),
            "centers_": centers,
            "center_indices_": indices,
        }

    def _chosen(self, X, rng):
        """Return centers among the distinct rows of X, and their indices or None."""
        xp, device = namespace(X), device_of(X)
        if self.centers == "uniform" and self.n_centers < X.shape[0]:
            indices = uniform_indices(X.shape[0], self.n_centers, rng)
            centers = rows_at(X, indices)
            if len(distinct_rows(centers)[0]) == self.n_centers:
                return centers, xp.asarray(indices, device=device)
        first = np.sort(distinct_rows(X)[0])  # reads all rows
        if self.n_centers < len(first) and self.centers == "kmeans":
            return cluster_means(X, self.n_centers, rng), None
        warn_of_few_rows(self.n_centers, len(first))
        indices = first[uniform_indices(len(first), self.n_centers, rng)]
        return rows_at(X, indices), xp.asarray(indices, device=device)

    def _warn_of_far_values(self, X):
        warn_of_far_values(self, X, self.kernel_, self.centers_)

    def _features(self, X):
        return TiledKernel(self.kernel_, like(X, self.centers_), X).block()

    @property
    def _n_features_out(self):
        return self.centers_.shape[0]


def like(X, values):
    """Return `values` in the library and data type of X, on its device."""
    xp = namespace(X)
    return cast(move(values, xp, device_of(X)), X.dtype)
