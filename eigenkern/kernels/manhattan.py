"""The kernel of the Manhattan distance: one matrix product per feature."""

from dataclasses import dataclass
from typing import Self

from ..arrays.array import device_of, in_place, is_numpy, matmul, namespace, slices
from ..rows.robust import cut, cutoffs, medians, sampled
from .bandwidth import check_parameters, checked_gamma
from .kernel import Kernel, Slope, exp_of_minus

# Numbers of a tile in which the differences of all features are added up: few enough
# for the cache, enough that threads seldom wait between calls of NumPy.
_SUMMED_TILE = 2**18


@dataclass(frozen=True)
class Manhattan(Kernel):
    """Laplacian kernel of the Manhattan distance, ``exp(-sum |x - z| / sigma)``.

    The product of one kernel per feature. It suits tables whose features matter one by
    one, as for trees, and not along rotated axes. A feature takes about as long as ten
    in other kernels, so it is slow with hundreds of features. In scikit-learn it is
    ``sklearn.metrics.pairwise.laplacian_kernel``.

    Parameters
    ----------
    bandwidth : float, default=1.0
        sigma.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenkern.kernels import Manhattan
    >>> Manhattan(bandwidth=7.0)(np.array([[0.0, 0.0], [3.0, 4.0]])).round(4)
    array([[1.    , 0.3679],
           [0.3679, 1.    ]])
    """

    bandwidth: float = 1.0

    shift_invariant = True
    metric = "manhattan"
    # 0.3 ns per entry and feature (float32, d = 100, tiles of 1024 x 512); the model of
    # the machine has 0.025 ns per column of a product.
    feature_work = 12

    def __post_init__(self):
        check_parameters(self)

    @classmethod
    def from_gamma(cls, gamma: float) -> Self:
        """Return ``exp(-gamma sum |x - z|)``, scikit-learn's "laplacian".

        Parameters
        ----------
        gamma : float
            1 / sigma.

        Returns
        -------
        kernel : Manhattan

        Examples
        --------
        >>> from eigenkern.kernels import Manhattan
        >>> Manhattan.from_gamma(0.25)
        Manhattan(bandwidth=4.0)
        """
        return cls(1.0 / checked_gamma(gamma))

    def frame(self, centers):
        # Differences are exact, so that fill values cost no digits; only sums of them,
        # in bandwidths, must not overflow.
        xp = namespace(centers)
        most = float(xp.finfo(centers.dtype).max) * min(self.bandwidth, 1.0)
        most /= 64 * centers.shape[1]
        usual = medians(xp.abs(sampled(centers)))
        return {"limits": cutoffs(usual, most, most)}

    def encode(self, X, limits):
        xp, (m, d) = namespace(X), X.shape
        # Stored by columns: products of two columns are then twice as fast.
        columns = xp.ones((2 * d, m), dtype=X.dtype, device=device_of(X))
        for rows in slices(m):
            slab = xp.asarray(X[rows, :], copy=True)
            columns[0::2, rows] = cut(xp, slab, limits).T
        return columns.T

    def left(self, E):
        L = -E
        L[:, 0::2], L[:, 1::2] = -E[:, 1::2], E[:, 0::2]
        return L

    def adapted_to(self, E):
        xp = namespace(E)
        largest = float(xp.max(xp.abs(E))) if E.shape[0] else 0.0
        length, limit = 2 * E.shape[1] * largest, float(xp.finfo(E.dtype).max) / 8
        entries = f"entries of up to {largest:.3g}"
        advice = "pass float64 data, X in another unit"
        if not length < limit:
            raise ValueError(
                f"the rows of X, with {entries}, are too large for {E.dtype}: {advice}"
            )
        if not max(length, 1.0) / self.bandwidth < limit:
            raise ValueError(
                f"bandwidth {self.bandwidth:.3g} is too small for rows of X with "
                f"{entries} in {E.dtype}: {advice}, or a larger bandwidth"
            )
        return self

    def evaluate(self, xp, left, right, out=None):
        shape = left.shape[0], right.shape[0]
        if not is_numpy(xp):
            return self.finish(xp, self._distances(xp, left, right, out))
        T = xp.empty(shape, dtype=right.dtype) if out is None else out
        for rows in slices(shape[0], max(_SUMMED_TILE // max(shape[1], 1), 16)):
            self._distances(xp, left[rows, :], right, T[rows, :])
        return self.finish(xp, T)

    def _distances(self, xp, left, right, out):
        T = in_place(xp, "abs", self.difference(xp, left, right, 0, out))
        each = None
        for j in range(1, left.shape[1] // 2):
            each = in_place(xp, "abs", self.difference(xp, left, right, j, each))
            T += each
        return T

    def difference(self, xp, left, right, j, out=None):
        """Return x_j - z_j of encoded rows and centers, in `out` if given."""
        # A matrix product of two columns: NumPy's own difference of a column and a row
        # takes four times as long.
        pair = slice(2 * j, 2 * j + 2)
        return matmul(xp, left[:, pair], right[:, pair].T, out)

    def finish(self, xp, T):
        T /= self.bandwidth
        return exp_of_minus(xp, T)

    def diagonal(self, X):
        return namespace(X).ones(X.shape[0], dtype=X.dtype, device=device_of(X))

    def slope(self):
        return Slope(self, 1.0 / self.bandwidth, "sign(z - x)")

    def log_factors(self, differences):
        return abs(differences) / -self.bandwidth

    def frequencies(self, rng, n_features, n_frequencies):
        return rng.standard_cauchy((n_features, n_frequencies)) / self.bandwidth
