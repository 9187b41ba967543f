"""Errors of a whole path: on held-out rows, by cross-validation, or leaving one out.

Kernel ridge regression as the mean of a Gaussian process, and its variance.

Let f be a Gaussian process with covariance s^2 k, and let the noise of row i have the
variance sigma^2 / w_i. With sigma^2 = s^2 lambda N the posterior mean of f is the model
on the full kernel. A model on centers sees f only through its features: f = phi' b + g
with b ~ N(0, s^2 I), and the rest g, with covariance s^2 (k - phi' phi), is independent
of the data. The target of a new row x then has the variance ::

    s^2 (k(x, x) - |P|^2) + sigma^2 (|U|^2 + 1)
    P = phi(x),   U = M^-1 phi(x),   M M' = Phi' W Phi + lambda N I

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
from ..arrays.linalg import inverse_diagonal, large_product
from .whitening import EPS


def validation_errors(spectrum, filters, moments, intercept):
    """Return the mean squared error of a path on the rows of `moments`.

    It is a quadratic form in b: the validation rows are not visited again.

    Parameters
    ----------
    spectrum : Spectrum
        Of the training rows.
    filters : array of shape (r, k)
    moments : Moments
        Of the validation rows.
    intercept : array of shape (l,)
        Of the training rows.

    Returns
    -------
    ndarray of shape (k,)
        Over rows and outputs, on the host.
    """
    xp = namespace(filters)
    cross = moments.centered_cross(intercept)
    constant, n_outputs = moments.centered_squares(intercept), cross.shape[1]
    constant, errors = float(xp.sum(constant)), []
    # Multiply the matrix by eigenvectors, or by models: whichever are fewer.
    by_vectors = spectrum.vectors.shape[1] < n_outputs * filters.shape[1]
    if by_vectors:
        C = moments.coef(spectrum.vectors)
        G_C = large_product(moments.gram, C)
        gram, cross = large_product(C.T, G_C), C.T @ cross
        pieces = spectrum.coordinates(filters)
    else:
        gram, pieces = moments.gram, spectrum.coefs(filters)
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

    Parameters
    ----------
    spectrum : Spectrum
        Of the training rows.
    filters : array of shape (r, k)
    blocks : iterable of (slice, array of shape (b, r))
        Rows phi(x)' V, block by block.
    Y : array of shape (n, l)
        Targets minus the intercept.
    weights : array of shape (n,)
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
    fit. It subtracts the mean, I - H = (I - S) (I - 1 1' / N), and S takes the fraction
    1 - `kept` of every component of the targets.

    Parameters
    ----------
    spectrum : Spectrum
    kept : array of shape (p, k)
        1 - e g, what a filter g leaves of the targets along an eigenvector; or any
        multiple of it if ``spectrum.complete`` and n = p.
    n_rows : float
        n, the independent observations: a copy, or a weight of 2, adds no information.
    within : float, default=0.0
        Mean variance of targets that have become one (`Data.merged`).
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


def loo_errors(spectrum, kept, blocks, Y, weights, replicates=None):
    """Return the exact leave-one-out error of kernel ridge regression, (k,).

    Leaving row i out changes its residual r_i to ::

        (r_i + c_i (1 - s_i)) / (1 - h_i),   c_i = w_i y_i / (N - w_i)

    with the leverage h_i = S_ii and s = S 1; c_i is how far the mean of the centered
    targets moves. The penalty lambda N is kept. With U the orthonormal columns of
    W^1/2 Phi V, r = y - U U'y + U kept U'y, and 1 - h likewise. Of a row that stands
    for u observations one is left out, with the leverage h / u.

    Parameters
    ----------
    spectrum : Spectrum
    kept : array of shape (p, k)
        1 - e g = lambda / (e + lambda), or any multiple of it if ``spectrum.complete``.
    blocks : iterable of (slice, array of shape (b, p))
        Rows of U, block by block.
    Y : array of shape (n, l)
        Centered targets.
    weights : array of shape (n,)
    replicates : tuple of arrays of shape (n,), default=None
        u, and the variance of the targets that have become one, summed over the
        outputs. `kept` must then be no multiple.
    """
    xp = namespace(kept)
    N, n_outputs = spectrum.weight, Y.shape[1]
    if replicates is None:
        replicates = xp.ones_like(weights), xp.zeros_like(weights)
    u, variance = replicates
    total = xp.zeros_like(kept[0, :])
    for rows, residual, left in left_parts(spectrum, kept, blocks, Y, weights):
        w = weights[rows]
        share = w / u[rows]
        moved = (share / (N - share))[:, None] * Y[rows, :]
        residual = residual[:, :-1, :] + moved[:, :, None] * residual[:, -1:, :]
        left = (left + (u[rows] - 1)[:, None]) / u[rows][:, None]
        squares = xp.sum(residual**2, axis=1) + (w * variance[rows])[:, None]
        total = total + xp.sum(squares / left**2, axis=0)
    return to_numpy(total / (N * n_outputs))


def left_parts(spectrum, kept, blocks, Y, weights):
    """Yield ranges of rows, and for them what smoothers leave of their targets.

    These are W^1/2 (I - S) [Y, 1], (b, l + 1, k), and 1 - h, (b, k); see `loo_errors`.
    """
    xp = namespace(kept)
    components, n_columns = spectrum.components, Y.shape[1] + 1
    kept_components = components[:, :, None] * kept[:, None, :]
    kept_components = xp.reshape(kept_components, (kept.shape[0], -1))
    for rows, U in blocks:
        w = weights[rows]
        residual = large_product(U, kept_components)
        residual = xp.reshape(residual, (U.shape[0], n_columns, kept.shape[1]))
        left = large_product(U**2, kept)
        if not spectrum.complete:
            T = xp.concat([Y[rows, :], xp.ones_like(w)[:, None]], axis=1)
            T = xp.sqrt(w)[:, None] * T
            residual = residual + (T - U @ components)[:, :, None]
            left = left + (1 - xp.sum(U**2, axis=1))[:, None]
        yield rows, residual, xp.where(left > 0, left, xp.full_like(left, EPS))


# Fewest and most left-out rows. From 1000 residuals with a kurtosis of 7, as on real
# data, s is known to 4 %, and the coverage of 90 % intervals to 1.3 %.
_FEWEST_UNSEEN, _MOST_UNSEEN = 300, 1000
# By how much the log likelihood of another ratio must be larger for it to be used. By
# chance alone this happens in 2 of 100 cases.
_LIKELIHOOD_GAIN = 2.0
# Number of ratios to try, a geometric sequence. On four data sets with penalties of
# 1e-6, 1e-4 and 1e-2 the standard deviations of new rows are within 0.1 % of those with
# 1600 ratios; with 50 ratios they differ by up to 0.3 %, with 25 by up to 1 %.
_N_RATIOS = 100


def n_left_out(n_rows, fraction):
    """Return how many rows to leave out: a `fraction` of them, within limits.

    On two cores leaving out a quarter of the rows of the full kernel adds 5 to 10 % to
    the time of a fit with one penalty (500 rows: 20 %, 2.5 ms). For a model on centers,
    leaving out an eighth of the rows adds 10 to 20 %, or a third with few centers (4000
    rows, 300 centers: 20 ms).
    """
    return min(max(int(fraction * n_rows), _FEWEST_UNSEEN), _MOST_UNSEEN, n_rows)


def left_out_of_kernel(factor, coefs, Y, weights, total):
    """Return residuals and their variances for the last rows, each left out in turn.

    With A = K + lambda N W^-1, row i has the residual [A^-1 y]_i / [A^-1]_ii with the
    variance s^2 / [A^-1]_ii, of which s^2 lambda N / w_i is noise.

    Parameters
    ----------
    factor : Factor
        Its L has the last rows and columns of the factor of W^1/2 A W^1/2: those of the
        inverse depend on no others.
    coefs : array of shape (m, l + 1)
        b of [Y, 1].
    Y : array of shape (m, l)
        Targets minus their mean over all rows.
    weights : array of shape (m,)
    total : float
        N, the weight of all rows.

    Returns
    -------
    residuals : array of shape (m, l)
    unseen, noise : arrays of shape (m,)
        Factors of s^2 and of sigma^2 in their variances.
    """
    xp = namespace(coefs)
    diagonal = inverse_diagonal(factor.L)
    numerator = _without_row(coefs, Y, weights, total)
    residuals = numerator / (xp.sqrt(weights) * diagonal)[:, None]
    unseen = (1 / diagonal - factor.ridge) / weights
    unseen = xp.where(unseen > 0, unseen, xp.zeros_like(unseen))
    return residuals, unseen, 1 / weights


def left_out_of_centers(P, U, coefs, Y, weights, total, diagonal):
    """Return the same for some rows of a model on centers.

    A row with the residual r and the leverage h has, left out, the residual r / (1 - h)
    with the variance s^2 (k(x, x) - |P|^2) + sigma^2 / (w (1 - h)).

    Parameters
    ----------
    P, U : arrays of shape (p, m)
        Of the rows.
    coefs : array of shape (p, l + 1)
        b of [Y, 1].
    Y, weights, total
        As for `left_out_of_kernel`.
    diagonal : array of shape (m,)
        k(x, x).

    Returns
    -------
    residuals : array of shape (m, l)
    unseen, noise : arrays of shape (m,)
        Factors of s^2 and of sigma^2 in their variances.
    """
    xp = namespace(P)
    left = 1 - weights * xp.sum(U**2, axis=0)
    left = xp.where(left > EPS, left, xp.full_like(left, EPS))
    T = xp.concat([Y, xp.ones_like(Y[:, :1])], axis=1)
    numerator = _without_row(T - P.T @ coefs, Y, weights, total)
    return numerator / left[:, None], unseen(P, diagonal), 1 / (weights * left)


def unseen(P, diagonal):
    """Return k(x, x) - |P|^2, at least 0."""
    xp = namespace(P)
    rest = diagonal - xp.sum(P**2, axis=0)
    return xp.where(rest < 0, xp.zeros_like(rest), rest)  # NaN stays


def _without_row(values, Y, weights, total):
    """Return values for Y minus its mean over the other rows, from those for [Y, 1]."""
    moved = (weights / (total - weights))[:, None] * Y
    return values[:, :-1] + moved * values[:, -1:]


@np.errstate(over="ignore", invalid="ignore")  # squares of large targets
def scales(residuals, unseen, noise, ratio, largest):
    """Return the most likely s^2 and sigma^2 of every output, ndarrays (l,).

    Parameters
    ----------
    residuals : array of shape (m, l)
    unseen, noise : arrays of shape (m,)
        Factors of s^2 and of sigma^2 in their variances.
    ratio : float
        sigma^2 / s^2 according to the penalty, lambda N. It is the smallest ratio
        tried, and is used unless the residuals contradict it.
    largest : float
        The largest ratio to try.
    """
    least = max(ratio, EPS * largest)
    ratios = np.geomspace(least, max(least, largest), _N_RATIOS)
    ratios[0] = ratio
    variances = to_numpy(unseen)[:, None] + to_numpy(noise)[:, None] * ratios
    sizes = np.mean(
        to_numpy(residuals)[:, :, None] ** 2 / variances[:, None, :], axis=0
    )
    surprise = np.log(np.maximum(sizes, np.finfo(float).tiny))
    surprise = 0.5 * len(variances) * (surprise + np.log(variances).mean(axis=0))
    best = np.argmin(surprise, axis=1)
    outputs = np.arange(len(best))
    best[surprise[:, 0] <= surprise[outputs, best] + _LIKELIHOOD_GAIN] = 0
    prior = sizes[outputs, best]
    return prior, ratios[best] * prior
