"""Rows drawn at random: uniformly, as Cholesky pivots, or by leverage scores."""

import numpy as np
from scipy.optimize import brentq

from ..arrays.array import device_of, namespace, slices, take, to_numpy
from ..arrays.linalg import eigh, large_product, solve_triangular


def uniform_indices(n_rows, n_centers, rng):
    """Return indices drawn without replacement, or of all rows, in increasing order."""
    if n_centers >= n_rows:
        return np.arange(n_rows)
    return np.sort(rng.permutation(n_rows)[:n_centers])


def pivot_indices(diagonal, columns, n_centers, rng):
    """Return rows drawn by randomly pivoted Cholesky.

    The probability of a row is proportional to the part of its k(x, x) that the rows
    drawn before leave unexplained, so that sparse regions get centers and no copy is
    drawn. Rows are proposed in blocks and accepted by rejection, which gives the same
    distribution as drawing one by one. Takes n_centers columns of the kernel matrix and
    n n_centers^2 multiply-adds, and keeps n n_centers numbers.

    Parameters
    ----------
    diagonal : array of shape (n,)
        k(x, x) of the rows, times their weights, in float64.
    columns : callable
        ``columns(index)`` returns the columns of the kernel matrix of some rows,
        weighted by the roots of the weights, shape (n, len(index)), in float64.
    n_centers : int
        Fewer are returned if they span all rows up to rounding.
    rng : numpy.random.RandomState

    Returns
    -------
    ndarray of shape (m,)
        Indices in the order of their choice.

    References
    ----------
    Chen, Epperly, Tropp, Webber, "Randomly pivoted Cholesky: practical approximation of
    a kernel matrix with few entry evaluations", CPAM 2025 (arXiv:2207.06503).

    Epperly, Tropp, Webber, "Embrace rejection: kernel matrix approximation by
    accelerated randomly pivoted Cholesky", 2024 (arXiv:2410.03969).
    """
    xp, device = namespace(diagonal), device_of(diagonal)
    n = diagonal.shape[0]
    left = to_numpy(diagonal).copy()
    floor = 1e-12 * left.max()
    chosen = np.empty(0, dtype=np.int64)
    F = xp.zeros((n, n_centers), dtype=xp.float64, device=device)
    while len(chosen) < n_centers and left.max() > floor:
        n_proposed = min(max(n_centers // 10, 10), 200)
        drawn = rng.choice(n, n_proposed, p=left / left.sum())
        proposed, places = np.unique(drawn, return_inverse=True)
        index, k = xp.asarray(proposed, device=device), len(chosen)
        taken = xp.take(F[:, :k], index, axis=0)
        G = columns(index) - large_product(F[:, :k], taken.T)
        H = to_numpy(xp.take(G, index, axis=0))
        accepted = _accepted(H, places, n_centers - k, floor, rng)
        if not len(accepted):
            continue
        L = xp.asarray(np.linalg.cholesky(H[np.ix_(accepted, accepted)]), device=device)
        new = solve_triangular(L, take(G, accepted, axis=1).T).T
        F[:, k : k + len(accepted)] = new
        chosen = np.concatenate([chosen, proposed[accepted]])
        left = np.maximum(left - to_numpy(xp.sum(new**2, axis=1)), 0.0)
        left[chosen] = 0.0
    return chosen


def _accepted(H, places, n_most, floor, rng):
    """Return the proposals that pivoted Cholesky accepts, one after the other."""
    first, H = np.diagonal(H).copy(), H.copy()
    accepted = []
    for i in places:
        if len(accepted) == n_most:
            break
        if H[i, i] > max(floor, rng.random_sample() * first[i]):
            H -= np.outer(H[:, i], H[i]) / H[i, i]
            accepted.append(i)
    return np.asarray(accepted, dtype=np.int64)


def pilot_size(n_rows, n_centers):
    """Return how many rows `leverage_indices` uses as a pilot."""
    return min(n_rows, max(n_centers, 200), 2000)


def leverage_indices(diagonal, columns, n_centers, rng):
    """Return rows drawn by approximate ridge leverage scores.

    Rows are drawn without replacement, with probabilities proportional to the scores
    (K (K + lambda I)^-1)_ii, the part of each row that others don't explain. lambda is
    such that the scores sum to n_centers. They are those of `ridge_leverage_scores`
    with uniformly drawn rows as a pilot. Takes and keeps `pilot_size` columns of the
    kernel matrix, and takes that many multiply-adds for each of their entries.

    `diagonal` and `columns` are as for `pivot_indices`. Indices are in the order of
    their choice.
    """
    n = diagonal.shape[0]
    pilot = uniform_indices(n, pilot_size(n, n_centers), rng)
    scores = ridge_leverage_scores(diagonal, columns, pilot, n_centers)
    scores = np.maximum(scores, 1e-300)  # rows with score 0 come last
    return rng.choice(n, min(n_centers, n), replace=False, p=scores / scores.sum())


def ridge_leverage_scores(diagonal, columns, pilot, total):
    """Return approximate ridge leverage scores with a given sum.

    With a pilot set J of M rows that represents all n, the score of row i is ::

        h_i = (k_ii - k_iJ (K_JJ + (M / n) lambda I)^-1 k_Ji) / lambda

    as in Rudi et al., whose lambda is n times smaller, with A = (M / n) I. There a row
    of J counts c = n / M times, and any other row c = 0 times. Counting row i once
    instead gives h_i / (1 + (1 - c) h_i), by the Sherman-Morrison formula. The scores
    are then at most 1, and exact if J is all rows.

    Parameters
    ----------
    diagonal, columns
        As for `pivot_indices`.
    pilot : ndarray of shape (M,)
        Indices of the rows J.
    total : float
        The sum, which determines lambda.

    Returns
    -------
    ndarray of shape (n,)
        Their sum is less than `total` if that would need a lambda below 1e-12 times the
        trace of K, as for K of low rank.

    References
    ----------
    Alaoui and Mahoney, "Fast randomized kernel ridge regression with statistical
    guarantees", NIPS 2015 (arXiv:1411.0306).

    Rudi, Calandriello, Carratino, Rosasco, "On fast leverage score sampling and optimal
    learning", NeurIPS 2018 (arXiv:1810.13258).
    """
    xp, device = namespace(diagonal), device_of(diagonal)
    n, part = diagonal.shape[0], len(pilot) / diagonal.shape[0]
    index = xp.asarray(pilot, device=device)
    V = xp.empty((n, len(pilot)), dtype=xp.float64, device=device)
    for block in slices(len(pilot), len(pilot) // 10 + 1):
        V[:, block] = columns(index[block])
    values, U = eigh(xp.take(V, index, axis=0))
    for rows in slices(n, 1000):
        V[rows, :] = large_product(V[rows, :], U) ** 2
    values = np.maximum(to_numpy(values), 0.0)
    diagonal = to_numpy(diagonal)
    count, bound = np.zeros(n), np.full(n, np.inf)
    count[pilot], bound[pilot] = 1 / part, part

    def scores(log_ridge):
        ridge = np.exp(log_ridge)
        inverse = xp.asarray(1 / (values + part * ridge), device=device)
        h = (diagonal - to_numpy(V @ inverse)) / ridge
        h = np.clip(h, 0.0, bound)  # true up to rounding
        return h / (1 + (1 - count) * h)

    trace = diagonal.sum()
    if not trace > 0:
        return np.zeros(n)
    low, high = np.log(1e-12 * trace), np.log(2 * trace / total)
    if scores(low).sum() > total:
        low = brentq(lambda ridge: scores(ridge).sum() - total, low, high, xtol=1e-10)
    return scores(low)
