"""Errors of a whole path: on held-out rows, by cross-validation, or leaving one out."""

import numpy as np

from ..backend.array import namespace, to_numpy
from ..backend.linalg import large_product
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
