"""Errors of a whole path, and values of rows in models without them.

Let S be a linear smoother, f = S y, with the leverages h = diag(S) and s = S 1. In the
model without row i, with the same penalty lambda N, the residual r = y - f becomes ::

    (r_i + m_i (1 - s_i)) / (1 - h_i),   m_i = w_i y_i / (N - w_i)

where m_i is how far the mean of the centered targets y moves. Of a row that stands for
several observations, and has their mean target, an observation y with the part v of the
weight has r + y - mean and 1 - v h in place of r and 1 - h. 1 - h itself is ::

    c [(W^1/2 K W^1/2 + c I)^-1]_ii              of the full kernel, c = lambda N
    1 - w |M^-1 phi|^2,  M M' = Phi' W Phi + c I                      of features
    1 - |U_i|^2 + U_i diag(kept) U_i'       of eigenvectors, of which S leaves `kept`

Kernel ridge regression is the mean of a Gaussian process, whose variance is as follows.
Let f be a Gaussian process with covariance s^2 k, and let the noise of row i have the
variance sigma^2 / w_i. With sigma^2 = s^2 lambda N the posterior mean of f is the model
on the full kernel. A model on centers sees f only through its features: f = phi' b + g
with b ~ N(0, s^2 I), and the rest g, with covariance s^2 (k - phi' phi), is independent
of the data. The target of a new row x then has the variance ::

    s^2 (k(x, x) - |P|^2) + sigma^2 (|U|^2 + 1)
    P = phi(x),   U = M^-1 phi(x)

Far from all rows this is the variance of the prior. (On the full kernel there is no U,
and P = M^-1 W^1/2 K(X, x) with M M' = W^1/2 K W^1/2 + lambda N I.)

Quinonero-Candela and Rasmussen, "A unifying view of sparse approximate Gaussian process
regression", JMLR 6, 2005: section 5, deterministic training conditional (DTC).

lambda N is the ratio of sigma^2 to s^2. Their size is chosen so that the residuals of
left-out rows agree with their variances. But a model may do well with a lambda far
below the noise: few centers regularize too, and a kernel with a peak may interpolate
noisy targets. New rows equal to training rows would then have no variance. So if the
residuals contradict the ratio, a larger sigma^2 is used.
"""

import numpy as np

from ..arrays.array import namespace, to_numpy
from ..arrays.linalg import large_product, solve_triangular
from .paths import EPS


def validation_errors(spectrum, filters, moments, intercept):
    """Return the mean squared error of a path on the rows of `moments`, (k,).

    It is a quadratic form in b: the validation rows are not visited again. `spectrum`
    and `intercept` are those of the training rows.
    """
    xp = namespace(filters)
    cross = moments.centered_cross(intercept)
    constant, n_outputs = moments.centered_squares(intercept), cross.shape[1]
    constant, errors = float(xp.sum(constant)), []
    # Multiply the matrix by eigenvectors, or by models: whichever are fewer.
    by_vectors = spectrum.vectors.shape[1] < n_outputs * filters.shape[1]
    if by_vectors:
        C = moments.coef(spectrum.vectors)
        G_C = large_product(moments.sums, C)
        gram, cross = large_product(C.T, G_C), C.T @ cross
        pieces = spectrum.coordinates(filters)
    else:
        gram, pieces = moments.sums, spectrum.coefs(filters)
    for b in pieces:
        coef = xp.reshape(b, (b.shape[0], -1))
        coef = coef if by_vectors else moments.coef(coef)
        G_coef = xp.reshape(large_product(gram, coef), b.shape)
        coef = xp.reshape(coef, b.shape)
        terms = coef * (G_coef - 2 * cross[:, :, None])
        errors.append(constant + xp.sum(terms, axis=(0, 1)))
    return to_numpy(xp.concat(errors)) / (moments.weight * n_outputs)


def prediction_errors(spectrum, filters, blocks, Y, weights):
    """Return the mean squared error of a path on rows, (k,), from their features.

    For the full kernel, where b grows like 1 / e, the terms of the quadratic form of
    `validation_errors` would cancel; the features along eigenvectors are bounded.
    `blocks` yields ranges of the rows and their phi(x)' V, (b, r).
    """
    xp = namespace(filters)
    coefs = spectrum.targets[:, :-1, None] * filters[:, None, :]
    coefs = xp.reshape(coefs, (filters.shape[0], -1))
    total = xp.zeros_like(filters[0, :])
    for rows, P in blocks:
        shape = (P.shape[0], Y.shape[1], filters.shape[1])
        residual = xp.reshape(large_product(P, coefs), shape) - Y[rows, :, None]
        squares = xp.sum(residual**2, axis=1)
        total = total + xp.sum(weights[rows, None] * squares, axis=0)
    return to_numpy(total / (float(xp.sum(weights)) * Y.shape[1]))


def gcv_errors(spectrum, kept, n_rows, within=0.0):
    """Return the generalized cross-validation error of a path, (k,).

    GCV = |y - H y|^2 / N / (tr(I - H) / n)^2 for the linear smoother H of the centered
    fit. It subtracts the mean, I - H = (I - S) (I - 1 1' / N), and S leaves `kept`,
    (p, k), of the components of the targets; if ``spectrum.complete`` and n = p, a
    multiple of it will do. n is the number of independent observations: a copy, or a
    weight of 2, adds no information. `within` is the mean variance of targets that have
    become one (`Data.merged`).
    """
    xp = namespace(kept)
    N, parts, inside = spectrum.weight, spectrum.components**2, spectrum.inside
    n_outputs = parts.shape[1] - 1
    y_parts = xp.sum(parts[:, :-1], axis=1)
    kept = xp.where(inside[:, None], kept, xp.zeros_like(kept))
    residual = (kept**2).T @ y_parts
    trace = xp.sum(kept, axis=0) - kept.T @ parts[:, -1] / N
    if not (spectrum.complete and n_rows == kept.shape[0]):
        outside = float(xp.sum(spectrum.squares)) - float(xp.sum(y_parts))
        residual = residual + max(outside, 0.0)
        n_inside = float(xp.sum(xp.astype(inside, xp.float64)))
        trace = trace + n_rows - n_inside - 1 + float(xp.sum(parts[:, -1])) / N
    # A model whose trace is rounding fits all targets, and can't be judged.
    left = trace > 1e-10 * xp.max(xp.abs(trace))
    safe = xp.where(left, trace, xp.ones_like(trace))
    errors = (residual / (n_outputs * N) + within) * (n_rows / safe) ** 2
    return to_numpy(xp.where(left, errors, xp.full_like(errors, np.inf)))


def with_ones(Y):
    """Return [Y, 1]."""
    xp = namespace(Y)
    return xp.concat([Y, xp.ones_like(Y[:, :1])], axis=1)


def left_parts(blocks, components, kept, T, complete):
    """Yield ranges of rows, and for them (I - S) T, (b, l, k), and 1 - h, (b, k).

    S is U diag(1 - kept) U' for each column of `kept`, (r, k). `blocks` yields ranges
    and their rows of U, `components` is U'T, (r, l). If U is `complete`, T lies in its
    span, and multiples of `kept` give multiples of both.
    """
    xp = namespace(kept)
    kept_components = components[:, :, None] * kept[:, None, :]
    kept_components = xp.reshape(kept_components, (kept.shape[0], -1))
    for rows, U in blocks:
        residual = large_product(U, kept_components)
        residual = xp.reshape(residual, (U.shape[0], T.shape[1], kept.shape[1]))
        squares = U**2
        left = large_product(squares, kept)
        if not complete:
            residual = residual + (T[rows, :] - U @ components)[:, :, None]
            left = left + (1 - xp.sum(squares, axis=1))[:, None]
        del squares  # as large as U
        yield rows, residual, xp.where(left > 0, left, xp.full_like(left, EPS))


def kept_of_features(L, Phi_T, weights, least):
    """Return 1 - h, at least `least`, of rows with the features `Phi_T`, (p, m).

    L L' = Phi' W Phi + c I of all rows.
    """
    xp = namespace(L)
    squares = xp.sum(solve_triangular(L, Phi_T) ** 2, axis=0)
    kept = 1.0 - weights * xp.astype(squares, weights.dtype, copy=False)
    return xp.where(kept < least, xp.full_like(kept, least), kept)  # NaN stays


def without_row(values, Y, weights, total):
    """Return r + m (1 - s) from `values`, which hold r and, in the last column, 1 - s.

    Their shape is (b, l + 1) or (b, l + 1, k), that of the centered targets (b, l).
    """
    xp, rest = namespace(values), total - weights
    rest = xp.where(rest > 0, rest, xp.full_like(rest, xp.inf))
    moved = (weights / rest)[:, None] * Y
    moved = moved if values.ndim == 2 else moved[:, :, None]
    return values[:, :-1, ...] + moved * values[:, -1:, ...]


def squared_errors(residual, kept, weights, replicates=None):
    """Return the squared errors of rows that are left out, (b, k).

    They are summed over the outputs of `residual`, (b, l, k); `kept` is 1 - h, (b, k).
    If a row stands for u observations one of them is left out; `replicates` are u and
    the variance of their targets, summed over the outputs.
    """
    squares = namespace(kept).sum(residual**2, axis=1)
    if replicates is not None:
        n_observations, variance = replicates
        n_observations = n_observations[:, None]
        kept = (kept + (n_observations - 1)) / n_observations
        squares = squares + (weights * variance)[:, None]
    return squares / kept**2


def loo_errors(parts, Y, weights, replicates=None):
    """Return the exact leave-one-out error of kernel ridge regression, (k,).

    `parts` are the `left_parts` of W^1/2 [Y, 1], with targets that are centered.
    """
    xp, N, total = namespace(Y), float(namespace(Y).sum(weights)), 0.0
    for rows, values, kept in parts:
        w, own = weights[rows], None
        share = w
        if replicates is not None:
            own = tuple(part[rows] for part in replicates)
            share = w / own[0]
        residual = without_row(values, Y[rows, :], share, N)
        total = total + xp.sum(squared_errors(residual, kept, w, own), axis=0)
    return to_numpy(total / (N * Y.shape[1]))


# With replicates that share noise, or have their own, the penalty of a Gaussian kernel
# that suits observations best has 121 to 4e6, or 1.00 to 1.55, times the least error of
# sets (60 to 300 rows, 2 to 8 replicates of each, 30 draws).
_MOST_OF_SETS = 3.0


def unless_sets_contradict(errors, of_sets):
    """Return errors (k,) of observations that are left out, or of their sets.

    Equal rows may share what others lack, as measurements of one person do: then the
    model that is best for observations is bad for sets of them, as for all new rows.
    """
    best = of_sets[np.nanargmin(errors)]
    return of_sets if best > _MOST_OF_SETS * np.nanmin(of_sets) else errors


def values_left_out(Y, mean, residual, kept, part, unit=1.0):
    """Return the values of observations in models without them, ndarray (m, l).

    Parameters
    ----------
    Y, mean : ndarrays of shape (m, l)
        The observations, and the mean targets of their rows.
    residual, kept : ndarrays of shape (m, l) and (m,)
        Mean minus f, and 1 - h, of their rows; both over `unit`, which may be zero.
    part : ndarray of shape (m,)
        v; at 1 there is one target, and the unit cancels.
    """
    some, residual, kept = part < 1, residual.copy(), kept.copy()
    residual[some] = unit * residual[some] + (Y - mean)[some]
    kept[some] = (1.0 - part[some]) + part[some] * unit * kept[some]
    return Y - residual / kept[:, None]


def n_left_out(n_rows, fraction, most=1000):
    """Return how many rows to leave out: a `fraction` of them, within limits."""
    # From 1000 residuals with a kurtosis of 7, as on real data, s is known to 4 %, and
    # the coverage of 90 % intervals to 1.3 %.
    return min(max(int(fraction * n_rows), 300), most, n_rows)


def unseen(P, diagonal):
    """Return k(x, x) - |P|^2, at least 0."""
    xp = namespace(P)
    rest = diagonal - xp.sum(P**2, axis=0)
    return xp.where(rest < 0, xp.zeros_like(rest), rest)  # NaN stays


@np.errstate(over="ignore", invalid="ignore")  # squares of large targets
def scales(residuals, unseen, noise, ratio, largest):
    """Return the most likely s^2 and sigma^2 of every output, ndarrays (l,).

    `unseen` and `noise`, (m,), are the factors of s^2 and of sigma^2 in the variances
    of the `residuals`, (m, l). `ratio` is sigma^2 / s^2 according to the penalty,
    lambda N: the smallest one tried, and used unless the residuals contradict it.
    `largest` is the largest ratio to try.
    """
    least = max(ratio, EPS * largest)
    # With 1600 ratios deviations change by 0.1 %.
    ratios = np.geomspace(least, max(least, largest), 100)
    ratios[0] = ratio
    variances = to_numpy(unseen)[:, None] + to_numpy(noise)[:, None] * ratios
    sizes = np.mean(
        to_numpy(residuals)[:, :, None] ** 2 / variances[:, None, :], axis=0
    )
    surprise = np.log(np.maximum(sizes, np.finfo(float).tiny))
    surprise = 0.5 * len(variances) * (surprise + np.log(variances).mean(axis=0))
    best = np.argmin(surprise, axis=1)
    outputs = np.arange(len(best))
    # By chance alone the log likelihood gains more than 2 in 2 of 100 cases.
    best[surprise[:, 0] <= surprise[outputs, best] + 2.0] = 0
    prior = sizes[outputs, best]
    return prior, ratios[best] * prior
