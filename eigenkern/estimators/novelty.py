"""Whether rows are like the training rows, by what a kernel's span explains of them."""

import math
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OutlierMixin

from ..arrays import memory
from ..arrays.array import (
    ArrayLike,
    KernelLike,
    RandomState,
    location_of,
    move,
    namespace,
    take,
    to_numpy,
)
from ..arrays.devices import compute_device
from ..arrays.linalg import inverse_diagonal, solve_triangular
from ..centers import distinct_rows, uniform_indices
from ..centers.distinct import same_rows
from ..fitting.conveniences import Conveniences, keep_parameters
from ..fitting.outcome import check_values, warn_of_far_values
from ..fitting.planning import SHARE, rows_at_a_time
from ..fitting.validation import (
    all_or_nothing,
    check_number,
    check_one_bandwidth,
    check_rows,
    on_its_device,
    publish,
    random_generator,
    validated,
    warn_user,
)
from ..methods.direct import Factor, usual_size
from ..operators.blocks import blocks
from ..operators.tiled import TiledKernel
from ..problems.kernel_parameters import check_bandwidth, check_kernel, make_kernel
from ..rows.lazy_rows import by_rows, rows_at
from ..rows.robust import cast

# c over the mean of k(z, z). With 0.01 and 0.1 areas under the curve change by up to
# 0.006 for the default kernel, on digits 0 to 4 of MNIST and eight synthetic sets.
_RIDGE = 0.03
# Most rows besides the centers that p-values are computed from. With 10 000 the rate of
# false alarms at 0.05 has a standard deviation of 0.002.
_MOST_LEFT_OUT = 10_000


class KernelNoveltyDetector(Conveniences, OutlierMixin, BaseEstimator):
    """Tell whether new rows are like the training rows, with p-values.

    The score of a row x is the part of it that the training rows explain: with their
    kernel matrix K, or that of some of them, the centers, and k = (k(x, z_1), ...) ::

        score(x) = k' (K + c I)^-1 k / k(x, x)

    It is near 1 where training rows are, and 0 far from all. Scores of rows that were
    left out turn it into a p-value: the share of rows like the training rows that have
    no higher score. So with ``contamination=0.01`` one in a hundred rows that are like
    the training rows is called an outlier, whatever their distribution.

    Parameters
    ----------
    kernel : str, Kernel or callable, default="laplacian"
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
    n_centers : int, default=2000
        Number of centers p, distinct training rows drawn at random; all of them if
        there are no more. More centers capture more of the training rows: a fit takes
        p^3 / 3 + 5000 p^2 multiply-adds, the score of a row p^2 / 2, and both 8 p^2
        bytes.
    contamination : float, default=0.01
        Share of new rows like the training rows that `predict` calls outliers all the
        same, the rate of false alarms; above 0 and at most 0.5. It is also the share of
        outliers among the training rows, except copies of centers. A smaller value
        needs more rows: at least 1 / contamination - 1 distinct ones.
    device : {"auto", "cpu", "cuda", "cuda:N"}, default="auto"
        Where to compute. "auto": where X lives. Otherwise X is copied there.
    random_state : int, RandomState instance or None, default=None
        Controls what is drawn at random: centers, rows for p-values, subsample for the
        median. Pass an int for reproducible results.

    Attributes
    ----------
    centers_ : array of shape (n_centers, n_features)
        In the data type of X.
    left_out_scores_ : array of shape (n_left_out,)
        Scores of distinct training rows in models without them, increasing: centers,
        left out one by one, and at most 10 000 other rows.
    offset_ : float
        Score below which a row is an outlier.
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
    sklearn.svm.OneClassSVM : The sum of kernels of some training rows as a score.
    sklearn.ensemble.IsolationForest : Scores of random trees, for columns in any units.
    NystromRegressor : The same span as a regression model, with ``return_std``.

    Notes
    -----
    1 - score(x) is the variance of a Gaussian process at x given its values at the
    centers with the noise c, over its variance before; c is 0.03 times the mean of
    k(z, z). A training row that is a center would explain itself. Therefore a row that
    equals a center is scored by the others, exactly, unless the training rows contain
    it more than once.

    This is conformal prediction: for new rows that are exchangeable with the training
    rows, p-values are uniform, whatever the distribution, except that a center which is
    left out is scored by one center fewer. Rows of another time, place or writer are
    not exchangeable, and more of them are outliers.

    References
    ----------
    Vovk, Gammerman and Shafer, "Algorithmic learning in a random world", Springer 2005.
    Hoffmann, "Kernel PCA for novelty detection", Pattern Recognition 40, 2007.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.model_selection import train_test_split
    >>> from eigenkern import KernelNoveltyDetector
    >>> X, y = load_digits(return_X_y=True)
    >>> X, X_new, y, y_new = train_test_split(X, y, random_state=0)
    >>> model = KernelNoveltyDetector(contamination=0.05, random_state=0).fit(X[y < 5])
    >>> outlier = model.predict(X_new) == -1
    >>> print(outlier[y_new < 5].mean() < 0.1, outlier[y_new >= 5].mean() > 0.8)
    True True
    """

    _accept_sparse = False
    _coef_attribute = "centers_"
    _takes_less = ("n_centers",)

    def __init__(
        self,
        kernel: KernelLike = "laplacian",
        *,
        bandwidth: float | str = "median",
        n_centers: int = 2000,
        contamination: float = 0.01,
        device: str = "auto",
        random_state: RandomState = None,
    ) -> None:
        keep_parameters(self, locals())

    @all_or_nothing
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Draw centers, and score the rows that are left out.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Training rows. X may be a file or a Dask array, see :ref:`large_data`. No
            more than n_centers + 10 000 of them, drawn at random, are read.
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
        check_kernel(self.kernel, precomputed=False)
        check_bandwidth(self.bandwidth, targets=False)
        check_one_bandwidth(self.kernel, self.bandwidth)
        check_number("n_centers", self.n_centers, 1, integer=True)
        check_number("contamination", self.contamination, 0, 0.5, open_low=True)
        X = validated(self, X, reset=True, ensure_min_samples=2)
        location = compute_device(self.device, X)
        rng = random_generator(self.random_state)
        n_drawn = self.n_centers + _MOST_LEFT_OUT
        X = rows_at(X, uniform_indices(X.shape[0], n_drawn, rng))
        first, which = distinct_rows(X)
        X, n_copies = rows_at(X, first), np.bincount(which)
        is_center = np.zeros(len(first), dtype=bool)
        is_center[uniform_indices(len(first), self.n_centers, rng)] = True
        kernel = make_kernel(self.kernel, self.bandwidth, X, rng)
        Z = rows_at(X, np.flatnonzero(is_center))
        p = Z.shape[0]
        needs = f"n_centers={self.n_centers} needs {24e-6 * p**2:.0f} MB for {p} rows"
        memory.check(24 * p**2, *location, needs, "pass a smaller n_centers")
        matrix = TiledKernel(kernel, _double(Z, location))
        diagonal = kernel.diagonal(_double(Z, location))
        ridge = _RIDGE * usual_size(diagonal)
        factor = Factor.of(matrix.block(), ridge) if ridge > 0 else None
        if factor is None:
            raise ValueError(
                "kernel must be positive semi-definite, with finite k(x, x) that are "
                f"not all zero; got {self.kernel!r}"
            )
        # With 1 / v_i = k_ii + c - k_i' (K_-i + c I)^-1 k_i for v = diag((K + c I)^-1).
        explained = diagonal + ridge - 1 / inverse_diagonal(factor.L)
        of_centers = to_numpy(_part(explained, diagonal))
        single = n_copies[is_center] == 1
        source = location_of(X)
        publish(
            self,
            {
                "kernel_": kernel,
                "bandwidth_": getattr(kernel, "bandwidth", None),
                "centers_": Z,
                "_factor": move(factor.L, *source),
                # NaN: the training rows contain it more than once.
                "_center_scores": move(np.where(single, of_centers, np.nan), *source),
            },
        )
        others = rows_at(X, np.flatnonzero(~is_center))
        scores = np.concatenate([of_centers, to_numpy(self._explained(others))])
        scores = np.sort(to_numpy(cast(move(scores, *source), X.dtype)))
        self.left_out_scores_ = move(scores, *source)
        self.offset_ = self._offset(scores)
        warn_of_far_values(self, X, kernel, Z)
        return self

    def _offset(self, scores):
        """Return the offset below which p-values are at most `contamination`."""
        m = len(scores)
        k = math.floor(self.contamination * (m + 1) * (1 + 1e-12))
        if k == 0:
            warn_user(
                f"contamination={self.contamination!r} needs "
                f"{math.ceil(1 / self.contamination) - 1} distinct rows or more; X has "
                f"{m}, so no row will be an outlier",
                UserWarning,
            )
            return 0.0
        tied = k < m and scores[k] == scores[k - 1]
        return float(scores[k - 1] if tied else np.nextafter(scores[k - 1], np.inf))

    def _explained(self, X):
        """Return k' (K + c I)^-1 k / k(x, x), in float64, where it is computed."""
        location = compute_device(self.device, X)
        matrix = TiledKernel(self.kernel_, _double(self.centers_, location))
        L, parts = move(self._factor, *location), []
        for rows in blocks(X.shape[0], 3 * L.shape[0] + 2 * X.shape[1]):
            block = _double(X[rows, :], location)
            P = solve_triangular(L, matrix.rows(block).block().T)
            squares = namespace(P).sum(P**2, axis=0)
            parts.append(_part(squares, self.kernel_.diagonal(block)))
        xp, device = location
        return xp.concat([xp.zeros(0, dtype=xp.float64, device=device), *parts])

    def _scores(self, X, method):
        """Return the scores of rows that a method got, where they live."""
        X = check_rows(self, X, method)
        scores = by_rows(self._scores_of, X)
        check_values(scores, X)
        return scores

    @np.errstate(over="ignore", invalid="ignore")
    def _scores_of(self, X):
        """Return the scores of rows in memory, where these are."""
        xp, device = location_of(X)
        scores = move(self._explained(X), xp, device)
        place = same_rows(cast(X, self.centers_.dtype), self.centers_)
        own = take(self._center_scores, np.maximum(place, 0))
        use = xp.asarray(place >= 0, device=device) & ~xp.isnan(own)
        return cast(xp.where(use, own, scores), X.dtype)

    @on_its_device
    def score_samples(self, X: ArrayLike) -> Any:
        """Return the part of each row that the centers explain, at least 0.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        scores : array of shape (n_samples,)
            Larger for rows that are more like the training rows. In the library and
            data type of X; computed in float64.
        """
        return self._scores(X, "score_samples")

    @on_its_device
    def decision_function(self, X: ArrayLike) -> Any:
        """Return the scores minus `offset_`: negative for outliers.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        values : array of shape (n_samples,)
            ``score_samples(X) - offset_``.
        """
        return self._scores(X, "decision_function") - self.offset_

    @on_its_device
    def p_values(self, X: ArrayLike) -> Any:
        """Return the share of rows like the training rows with no higher score.

        With m left-out rows this is (1 + #{their scores <= score}) / (1 + m). A row
        with exactly the score of left-out rows is taken for one of them.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        p : array of shape (n_samples,)
            Of rows that are like the training rows, at most a share a has a p-value of
            at most a. In the library and data type of X.
        """
        scores = self._scores(X, "p_values")
        xp, device = location_of(scores)
        left_out, ours = to_numpy(self.left_out_scores_), to_numpy(scores)
        n_lower = np.searchsorted(left_out, ours, side="left")
        n_as_low = np.searchsorted(left_out, ours, side="right")
        p = np.maximum(n_as_low, 1 + n_lower) / (1 + len(left_out))
        return cast(xp.asarray(p, device=device), scores.dtype)

    @on_its_device
    def predict(self, X: ArrayLike) -> Any:
        """Return -1 for outliers, whose p-value is at most `contamination`, else 1.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        labels : array of shape (n_samples,)
            Integers, in the library of X.
        """
        inside = self._scores(X, "predict") >= self.offset_
        xp = namespace(inside)
        return 2 * xp.astype(inside, xp.int64) - 1

    def _what_fits(self, method, X, y, free):
        """Return with what a method of rows takes at most `free` bytes, as text."""
        if method != "fit":
            return rows_at_a_time(self, X, free)
        size = math.isqrt(int(SHARE * free / 32))
        return f"n_centers={size} takes about {free / 1e6:.0f} MB" if size else ""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.array_api_support = True
        return tags


def _double(X, location):
    """Return an array in float64, on the device that computes."""
    X = move(X, *location)
    return cast(X, namespace(X).float64)


def _part(explained, diagonal):
    """Return the explained part of k(x, x), at least 0; 1 of a row with k(x, x) = 0."""
    xp = namespace(diagonal)
    some = diagonal > 0
    part = explained / xp.where(some, diagonal, xp.ones_like(diagonal))
    part = xp.where(part < 0, xp.zeros_like(part), part)
    return xp.where(some, part, xp.ones_like(part))
