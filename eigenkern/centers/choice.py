"""Choice of centers by name: at random, means of clusters, pivots, leverage scores."""

import numpy as np
from scipy.optimize import brentq

from ..arrays import memory
from ..arrays.array import device_of, move, namespace, slices, take, to_numpy
from ..arrays.linalg import eigh, large_product, solve_triangular
from ..arrays.threads import openmp_with_room
from ..operators.tiled import TiledKernel
from ..rows.robust import centered, frame_of_distances
from .distinct import distinct_rows

#: How centers can be chosen from rows.
METHODS = ("uniform", "kmeans", "leverage_scores", "rpcholesky")
# Most means for which k-means++ chooses the start. Its time grows with the square of
# their number, and many random rows are as good: 1000 means of MNIST give 96.7 %
# accuracy, with k-means++ 96.5 %.
_MAX_PLUS_PLUS = 1000


def choose(method, kernel, X, n_centers, rng, weights=None):
    """Return centers chosen from distinct rows X (n, d) by one of `METHODS`.

    Without a kernel, X is the kernel matrix of the rows; "kmeans" needs the rows.
    Weights (n,), on the host, say how often each row counts; "uniform" ignores them.
    "rpcholesky" needs 16 n m bytes, and "leverage_scores" 16 n for each of its
    `pilot_size` columns.

    Returns
    -------
    centers : array of shape (m, d)
        In the library and data type of X, where X lives. "rpcholesky" returns fewer if
        those span all rows.
    indices : ndarray of shape (m,) or None
        Their indices in X. None for "kmeans", whose centers are not rows.
    """
    if method not in METHODS:
        names = ", ".join(repr(name) for name in METHODS)
        raise ValueError(f"method must be one of {names}; got {method!r}")
    xp, device, n = namespace(X), device_of(X), X.shape[0]
    n_centers = min(n_centers, n)
    if method == "kmeans":
        return cluster_means(X, n_centers, rng, weights), None
    if method == "uniform":
        indices = uniform_indices(n, n_centers, rng)
        return take(X, indices), indices
    needed = bytes_of_choice(method, n, n_centers)
    needs = f"centers={method!r} needs {needed / 1e6:.0f} MB for {n_centers} centers "
    needs += f"of {n} distinct rows"
    remedy = "pass a smaller n_centers or centers='uniform'"
    memory.check(needed, xp, device, needs, remedy)
    diagonal = xp.linalg.diagonal(X) if kernel is None else kernel.diagonal(X)
    diagonal = xp.astype(diagonal, xp.float64)
    largest = float(xp.max(diagonal))
    if not 0 < largest < np.inf:
        raise ValueError(
            "the values k(x, x) of the kernel must be finite, and not all be zero; the "
            f"largest is {largest}: scale X, or choose another kernel or bandwidth"
        )
    weights = np.ones(n) if weights is None else weights
    root = xp.asarray(weights, dtype=xp.float64, device=device) ** 0.5

    def columns(index):
        if kernel is None:
            K = xp.astype(xp.take(X, index, axis=1), xp.float64)
        else:
            Z = xp.take(X, index, axis=0)
            K = TiledKernel(kernel, Z, X).block(dtype=xp.float64)
        return root[:, None] * K * xp.take(root, index)[None, :]

    draw = pivot_indices if method == "rpcholesky" else leverage_indices
    indices = draw(diagonal * root**2, columns, n_centers, rng)
    return take(X, indices), indices


def bytes_of_choice(method, n_rows, n_centers):
    """Return the bytes of the columns that a choice of centers computes and keeps."""
    if not isinstance(method, str) or method in ("uniform", "kmeans"):
        return 0.0
    width = n_centers if method == "rpcholesky" else pilot_size(n_rows, n_centers)
    return 16.0 * n_rows * width


def uniform_indices(n_rows, n_centers, rng):
    """Return indices drawn without replacement, or of all rows, in increasing order."""
    if n_centers >= n_rows:
        return np.arange(n_rows)
    return np.sort(rng.permutation(n_rows)[:n_centers])


def cluster_means(X, n_centers, rng, weights=None):
    """Return the means of clusters of rows, by scikit-learn's ``MiniBatchKMeans``.

    It takes batches of 1024 rows, on the host. Means of distinct rows are distinct; if
    there are no more rows than `n_centers`, they are returned as they are.
    """
    from sklearn.cluster import MiniBatchKMeans

    if n_centers >= X.shape[0]:
        return X
    if weights is not None:  # rounded, so that their scale changes no bit
        weights = np.maximum((weights / weights.max()).astype(np.float32), 1e-30)
    rows = to_numpy(X)
    offset, limits = frame_of_distances(rows)  # far rows cost digits of distances
    clusters = MiniBatchKMeans(
        n_centers,
        init="k-means++" if n_centers <= _MAX_PLUS_PLUS else "random",
        n_init=1,
        random_state=rng,
        compute_labels=False,
    )
    with openmp_with_room():
        clusters.fit(centered(rows, offset, limits), sample_weight=weights)
    centers = clusters.cluster_centers_ + offset
    # A mean of few rows is restarted from a row, possibly the same as another mean.
    if len(distinct_rows(centers)[0]) < n_centers:
        centers = np.concatenate([centers, rows[rng.permutation(len(rows))]])
        centers = centers[np.sort(distinct_rows(centers)[0])[:n_centers]]
    return move(centers, namespace(X), device_of(X))


def masses(X, centers, weights):
    """Return the total weight of the rows nearest to each center, (m,)."""
    xp, (n, m) = namespace(X), (X.shape[0], centers.shape[0])
    offset, limits = frame_of_distances(centers)  # far rows cost digits of distances
    Z = centered(centers, offset, limits)
    norms = xp.sum(Z**2, axis=1)
    nearest = np.empty(n, dtype=np.int64)
    for rows in slices(n, max(2**22 // m, 16)):
        distances = norms - 2 * large_product(centered(X[rows, :], offset, limits), Z.T)
        nearest[rows] = to_numpy(xp.argmin(distances, axis=1))
    return np.bincount(nearest, weights=weights, minlength=m)


def pivot_indices(diagonal, columns, n_centers, rng):
    """Return rows drawn by randomly pivoted Cholesky.

    The probability of a row is proportional to the part of its k(x, x) that the rows
    drawn before leave unexplained, so that sparse regions get centers and no copy is
    drawn. Rows are proposed in blocks and accepted by rejection, which gives the same
    distribution as drawing one by one. Takes n_centers columns of the kernel matrix and
    n n_centers^2 multiply-adds, and keeps n n_centers numbers.

    The diagonal (n,) has k(x, x) of the rows, times their weights. ``columns(index)``
    returns columns of the kernel matrix, weighted by the roots of the weights, shape
    (n, len(index)). Both are in float64. Returns indices in the order of their choice,
    fewer than `n_centers` if they span all rows up to rounding.

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
    such that the scores sum to n_centers, and a pilot of rows is drawn uniformly. Takes
    and keeps `pilot_size` columns of the kernel matrix, and takes that many
    multiply-adds for each of their entries. Arguments are as for `pivot_indices`.
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
    are then at most 1, and exact if J is all rows. Their sum is less than `total` if
    that would need a lambda below 1e-12 times the trace of K, as for K of low rank.
    `diagonal` and `columns` are as for `pivot_indices`.

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
