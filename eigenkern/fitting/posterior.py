"""Kernel ridge regression as a Gaussian process: variances of predictions."""

import numpy as np

from ..arrays.array import device_of, location_of, move, namespace, to_numpy
from ..arrays.devices import compute_devices
from ..arrays.linalg import large_gram, large_product, solve_triangular
from ..methods.left_out import unseen
from ..operators.blocks import blocks
from ..operators.sharded import kernel_operator
from ..problems.problem import take
from ..rows.lazy_rows import by_rows, in_memory
from ..rows.robust import cast
from .outcome import check_values
from .validation import check_rows

_NO_VARIANCES = dict.fromkeys(
    "prior_variance_ noise_variance_ _posterior_factor _posterior_centers"
    " _feature_factor _target_variance _usual_variance".split()
)

# Maximum number p of centers for which a fitted model keeps its factor. That takes 8
# p^2 bytes: 288 MB.
_MOST_CENTERS = 6000


def most_centers(estimator):
    """Return the most centers with which a model has variances.

    None: it has none, however few centers there are.
    """
    offers = getattr(estimator, "_has_variance", False) and estimator.alpha != 0
    return _MOST_CENTERS if offers else None


def posterior_attributes(problem, alpha, spectrum, factor):
    """Return the attributes that variances of predictions need, or None for each.

    A model with more than 6000 centers has no variances. `spectrum` or `factor` gave
    the model; without a factor one is computed here, with `alpha` raised above rounding
    if necessary.
    """
    if problem.kernel is None or problem.n_coefs > _MOST_CENTERS:
        return _NO_VARIANCES
    if spectrum is not None and spectrum.indefinite:
        return _NO_VARIANCES
    if factor is None:
        factor = problem.everything.factor(alpha, raised=alpha > 0)
    return _NO_VARIANCES if factor is None else problem.variance_attributes(factor)


class Posterior:
    """The Gaussian process of a fitted model, at some rows.

    Its variances are differences of nearly equal numbers, so the kernel is computed in
    float64, whatever the data type of the rows. A ValueError is raised if the model has
    no variances.
    """

    def __init__(self, model, X):
        if model.prior_variance_ is None:
            raise ValueError(
                "return_std and return_cov need a positive semi-definite kernel of "
                "rows, a positive alpha (with all rows as centers alpha=0 will do if "
                "their kernel matrix has a Cholesky factor), and at most "
                f"{_MOST_CENTERS} centers, whose factor is kept; got "
                f"kernel={model.kernel!r}, alpha_={model.alpha_!r} and "
                f"n_centers_={model.n_centers_}"
            )
        X = check_rows(model, X, "predict")
        self._source, self._dtype = location_of(X), X.dtype
        self._single = model._one_dimensional
        self._devices = compute_devices(model.device, X)
        self._kernel, self._X = model.kernel_, X
        index = to_numpy(model._posterior_centers)
        self._centers = self._double(take(model.centers_, index))
        factors = model._feature_factor, model._posterior_factor
        self._factors = [self._moved(L) for L in factors if L is not None]
        self._prior = self._moved(model.prior_variance_)
        self._noise = self._moved(model.noise_variance_)
        self._coef = self._double(self._moved(take(model.dual_coef_, index)))
        self._usual, self._spread = self._moved(model._usual_variance), None
        if model._target_variance is not None:
            spread = self._moved(model._target_variance) - self._noise
            self._spread = namespace(spread).clip(spread, 0.0, None)

    def _double(self, values):
        xp = namespace(values)
        return xp.astype(values, xp.float64, copy=False)

    def _moved(self, values):
        return move(values, *self._devices[0])

    def _features(self, K):
        """Return P of some rows, and U (None on the full kernel)."""
        P = solve_triangular(self._factors[0], K.T)
        return P, solve_triangular(self._factors[1], P) if self._factors[1:] else None

    def _limited(self, variance, diagonal, K):
        """Return variances of f, (m, l), that far from all rows are the targets'.

        s^2 was measured on rows like the training rows. If s^2 k(x, x) is less than the
        variance of the targets, variances rise to that on rows where they are larger
        than on 95 % of those. Nor are they larger than that, unless f itself is farther
        from the mean of the targets. `diagonal` is k(x, x) of the rows, K (m, p).
        """
        if self._spread is None:
            return variance
        xp, zeros = namespace(K), 0.0 * variance
        prior, spread = diagonal[:, None] * self._prior, self._spread + zeros
        rest = prior - self._usual
        rest = xp.where(rest > 0, rest, xp.full_like(rest, xp.inf))
        part = xp.clip((variance - self._usual) / rest, 0.0, 1.0)
        raised = variance + part * xp.maximum(spread - prior, zeros)
        return xp.minimum(raised, xp.maximum(spread, large_product(K, self._coef) ** 2))

    @np.errstate(over="ignore", invalid="ignore")
    def deviation(self):
        """Return the standard deviation of new targets, where X lives, in its type."""
        return self._returned(by_rows(self._deviation_of, self._X))

    def _deviation_of(self, X):
        X = self._double(X)
        diagonal = self._moved(self._kernel.diagonal(X))
        matrix = kernel_operator(self._kernel, self._centers, self._devices, X)
        xp, (m, p) = matrix.xp, matrix.shape
        parts = []
        for rows in blocks(m, 3 * p):
            K = matrix.block(rows.start, rows.stop)
            P, U = self._features(K)
            variance = self._prior * unseen(P, diagonal[rows])[:, None]
            if U is not None:
                variance = variance + self._noise * xp.sum(U**2, axis=0)[:, None]
            variance = self._limited(variance, diagonal[rows], K)
            parts.append(xp.sqrt(variance + self._noise))
        return xp.concat(parts)

    @np.errstate(over="ignore", invalid="ignore")
    def covariance(self):
        """Return the covariance of new targets, where X lives, in its type."""
        X = self._double(in_memory(self._X))
        to_centers = kernel_operator(self._kernel, self._centers, self._devices, X)
        to_centers = to_centers.block()
        P, U = self._features(to_centers)
        K = kernel_operator(self._kernel, X, self._devices).block()
        xp = namespace(K)
        noise = xp.eye(K.shape[0], dtype=xp.float64, device=device_of(K))
        rest = K - large_gram(P.T)
        rest = (rest + rest.T) / 2  # exactly symmetric
        both = self._prior * rest[:, :, None]
        if U is not None:
            both = both + self._noise * large_gram(U.T)[:, :, None]
        # Correlations stay, so that the matrix stays positive semi-definite.
        variance = xp.sum(both * noise[:, :, None], axis=1)
        limited = self._limited(variance, xp.linalg.diagonal(K), to_centers)
        some = variance > 0
        ratio = limited / xp.where(some, variance, xp.ones_like(variance))
        root = xp.sqrt(xp.where(some, ratio, xp.ones_like(ratio)))
        both = root[:, None, :] * both * root[None, :, :]
        return self._returned(both + self._noise * noise[:, :, None])

    def _returned(self, values):
        values = values[..., 0] if self._single else values
        values = cast(move(values, *self._source), self._dtype)
        check_values(values, self._X)
        return values
