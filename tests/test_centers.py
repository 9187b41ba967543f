"""Which rows are distinct, and which become centers."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import brentq
from scipy.spatial.distance import cdist
from sklearn import config_context

from eigenkern import centers
from eigenkern.arrays import memory
from eigenkern.arrays.array import namespace, to_numpy
from eigenkern.centers import (
    METHODS,
    choose,
    cluster_means,
    distinct_rows,
    masses,
    rows_among,
    uniform_indices,
)
from eigenkern.centers.choice import (
    leverage_indices,
    pivot_indices,
    ridge_leverage_scores,
)
from eigenkern.kernels import Gaussian, Linear, Polynomial


def test_distinct_rows_are_numpys(rng):
    X = rng.integers(0, 3, (200, 3)).astype(float)
    first, which = distinct_rows(X)
    assert len(first) == len(np.unique(X, axis=0))
    assert_array_equal(X[first][which], X)


def test_order_and_copies_change_nothing(rng):
    X = rng.standard_normal((50, 4))
    first, _ = distinct_rows(X)
    more = np.concatenate([X, X[:20]])[rng.permutation(70)]
    again, _ = distinct_rows(more)
    assert_array_equal(more[again], X[first])


def test_zeros_have_no_sign():
    assert len(distinct_rows(np.asarray([[0.0], [-0.0]]))[0]) == 1


def test_single_precision_has_the_same_order(rng):
    X = np.repeat(rng.standard_normal((30, 3)), 2, axis=0)
    first, which = distinct_rows(X)
    single, which_single = distinct_rows(X.astype(np.float32))
    assert len(first) == 30
    assert_array_equal(first, single)
    assert_array_equal(which, which_single)


def test_rows_that_differ_in_the_last_bits(rng):
    X = 1e8 + rng.standard_normal((30, 1))
    assert len(distinct_rows(X)[0]) == 30


def test_uniform_is_without_replacement():
    rng = np.random.RandomState(0)
    counts = np.zeros(20)
    for _ in range(500):
        chosen = uniform_indices(20, 5, rng)
        assert len(chosen) == len(set(chosen)) == 5
        counts[chosen] += 1
    assert 90 < counts.min() and counts.max() < 165
    assert_array_equal(uniform_indices(20, 30, rng), np.arange(20))


def pivots(K, n_centers, seed):
    rng = np.random.RandomState(seed)
    return pivot_indices(K.diagonal(), lambda index: K[:, index], n_centers, rng)


def residual(K, chosen):
    """Return the trace that the Nystrom approximation leaves."""
    A = K[:, chosen]
    inverse = np.linalg.pinv(K[np.ix_(chosen, chosen)], rcond=1e-12)
    return np.trace(K) - np.trace(A @ inverse @ A.T)


def test_rpcholesky_is_nearly_optimal(rng):
    X = 0.2 * rng.standard_normal((600, 2))
    X[:30] += 6
    K = Gaussian(0.3)(X)
    best = np.linalg.eigvalsh(K)[:-50].sum()
    chosen = pivots(K, 50, 0)
    assert len(set(chosen)) == 50
    assert residual(K, chosen) < 15 * best
    assert residual(K, np.arange(550, 600)) > 100 * best


def test_rpcholesky_has_the_distribution_of_one_by_one(rng):
    K = Gaussian(1.0)(rng.standard_normal((5, 1)))
    counts = np.zeros((5, 5))
    for seed in range(3000):
        first, second = pivots(K, 2, seed)
        counts[first, second] += 1
    left = 1 - K**2
    expected = left / left.sum(axis=1, keepdims=True) / 5
    assert abs(counts / 3000 - expected).max() < 0.02


@pytest.mark.parametrize("rank", [3, 12])
def test_rpcholesky_ends_when_nothing_is_left(rank, rng):
    A = rng.standard_normal((40, rank))
    K = A @ A.T
    chosen = pivots(K, 20, 0)
    assert len(chosen) == rank
    assert residual(K, chosen) < 1e-9 * np.trace(K)


def naive_scores(K, total):
    """Return exact ridge leverage scores with a given sum."""
    values = np.linalg.eigvalsh(K)
    ridge = brentq(lambda r: np.sum(values / (values + r)) - total, 1e-6, 1e6)
    return np.diag(K @ np.linalg.inv(K + ridge * np.eye(len(K))))


def scores(K, pilot, total):
    return ridge_leverage_scores(K.diagonal(), lambda i: K[:, i], pilot, total)


def leveraged(K, n_centers, seed=0):
    rng = np.random.RandomState(seed)
    return leverage_indices(K.diagonal(), lambda i: K[:, i], n_centers, rng)


@pytest.fixture
def weighted_matrix(rng):
    """A weighted kernel matrix of 400 rows, some of them far out."""
    X = rng.standard_t(3, (400, 2))
    root = rng.uniform(0.5, 2, 400) ** 0.5
    return root[:, None] * Gaussian(1.0)(X) * root


@pytest.mark.parametrize("total", [5, 40])
def test_leverage_scores_with_all_rows_as_pilot_are_exact(total, weighted_matrix):
    found = scores(weighted_matrix, np.arange(400), total)
    assert_allclose(found, naive_scores(weighted_matrix, total), atol=1e-8)
    assert found.sum() == pytest.approx(total, rel=1e-8)


def test_leverage_scores_with_a_pilot(weighted_matrix):
    exact = naive_scores(weighted_matrix, 40)
    pilot = np.arange(0, 400, 2)
    found = scores(weighted_matrix, pilot, 40)
    assert found.sum() == pytest.approx(40, rel=1e-8)
    assert 0 < found.min() and found.max() < 1
    assert np.median(abs(found / exact - 1)) < 0.2
    # Rows of the pilot are treated like others.
    assert found[pilot].sum() == pytest.approx(exact[pilot].sum(), rel=0.1)


def test_leverage_scores_remember_sparse_regions(rng):
    X = 0.3 * rng.standard_normal((1000, 2))
    X[:40] = 6 * rng.standard_normal((40, 2))
    K = Gaussian(0.7)(X)
    seeds = range(8)
    ours = [leveraged(K, 50, seed) for seed in seeds]
    others = [uniform_indices(1000, 50, np.random.RandomState(seed)) for seed in seeds]
    n_far, n_far_uniform = (np.sum(np.stack(c) < 40) / 8 for c in (ours, others))
    assert n_far > 10 * n_far_uniform
    error, error_uniform = (
        np.mean([residual(K, c) for c in chosen]) for chosen in (ours, others)
    )
    assert error < 0.5 * error_uniform


def test_leverage_scores_of_matrices_of_low_rank(rng):
    A = rng.standard_normal((300, 3))
    A[250:] = 0
    chosen = leveraged(A @ A.T, 20)
    assert len(set(chosen)) == 20
    assert chosen.max() < 250
    # Rows with a zero kernel come last; copies count as separate rows.
    assert len(set(leveraged(A @ A.T, 280))) == 280
    assert len(set(leveraged(np.ones((30, 30)), 10))) == 10
    assert len(set(leveraged(np.zeros((30, 30)), 10))) == 10
    assert len(set(leveraged(np.eye(30), 40))) == 30


def naive_masses(X, Z, weights):
    return np.bincount(cdist(X, Z).argmin(axis=1), weights, minlength=len(Z))


def test_masses(rng, other_xp):
    X, Z = 1e3 + rng.standard_normal((500, 3)), 1e3 + rng.standard_normal((20, 3))
    weights = rng.uniform(0, 2, 500)
    expected = naive_masses(X, Z, weights)
    assert_allclose(masses(X, Z, weights), expected, rtol=1e-12)
    found = masses(other_xp.asarray(X), other_xp.asarray(Z), weights)
    assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_choose(method, weighted, other_xp, rng):
    X = rng.standard_normal((300, 3))
    weights = rng.uniform(0.5, 2, 300) if weighted else None

    def chosen(X, kernel=Gaussian(1.0)):  # noqa: B008
        return choose(method, kernel, X, 30, np.random.RandomState(0), weights)

    expected, indices = chosen(X)
    assert expected.shape == (30, 3)
    if method == "kmeans":
        assert indices is None
    else:
        assert len(set(indices)) == 30
        assert_array_equal(expected, X[indices])
        assert_array_equal(chosen(Gaussian(1.0)(X), None)[1], indices)
    with config_context(array_api_dispatch=True):
        found, indices_xp = chosen(other_xp.asarray(X))
    assert namespace(found) == other_xp
    assert_allclose(to_numpy(found), expected, rtol=1e-12)
    if indices is not None:
        assert_array_equal(indices_xp, indices)


@pytest.mark.parametrize("method", ["kmeans", "leverage_scores", "rpcholesky"])
def test_choose_counts_weights(method, rng):
    X = rng.standard_normal((300, 2))
    X[:, 0] += 20 * (np.arange(300) % 3)
    weights = np.where(np.arange(300) % 3 < 2, 1.0, 1e-9)
    found, _ = choose(method, Gaussian(1.0), X, 20, np.random.RandomState(0), weights)
    assert (found[:, 0] < 30).all()
    scaled, _ = choose(
        method, Gaussian(1.0), X, 20, np.random.RandomState(0), 1024 * weights
    )
    assert_allclose(scaled, found, rtol=1e-9)


@pytest.mark.parametrize("method", ["leverage_scores", "rpcholesky"])
def test_choose_needs_memory_and_values(method, monkeypatch, rng):
    X = rng.standard_normal((300, 3))

    def choice(kernel, X):
        return choose(method, kernel, X, 30, np.random.RandomState(0))

    with pytest.raises(ValueError, match=r"not all be zero; the largest is 0\.0"):
        choice(Linear(), 0 * X)
    huge = pytest.raises(ValueError, match=r"must be finite.* the largest is inf")
    with huge, np.errstate(over="ignore"):
        choice(Polynomial(), 1e150 * X)
    monkeypatch.setattr(memory, "available", lambda xp, device: 1e4)
    with pytest.raises(ValueError, match=rf"centers='{method}' needs .*='uniform'"):
        choice(Gaussian(), X)


@pytest.mark.parametrize("method", ["leverage_scores", "rpcholesky"])
def test_rows_that_explain_nothing_are_no_centers(method, rng):
    """k(x, x) = 0 of the linear kernel at a row of zeros."""
    X = rng.standard_normal((50, 60))
    X[[0, 7, 49]] = 0
    chosen, indices = choose(method, Linear(), X, 47, np.random.RandomState(0))
    assert_array_equal(np.sort(indices), np.flatnonzero(X[:, 0]))
    assert_array_equal(chosen, X[indices])


def test_choose_knows_its_methods(rng):
    with pytest.raises(ValueError, match=r"method must be one of .*; got 'best'"):
        choose("best", Gaussian(), np.ones((3, 1)), 1, np.random.RandomState(0))


@pytest.fixture
def clusters(rng):
    """Rows of four clusters whose means are far apart, and these means."""
    means = 10.0 * rng.standard_normal((4, 3))
    return np.repeat(means, 50, axis=0) + 0.1 * rng.standard_normal((200, 3)), means


def sorted_rows(X):
    return X[np.lexsort(X.T)]


def test_kmeans_finds_clusters(clusters):
    X, means = clusters
    found = cluster_means(X, 4, np.random.RandomState(0))
    assert_allclose(sorted_rows(found), sorted_rows(means), atol=0.1)
    assert_array_equal(cluster_means(X, 4, np.random.RandomState(0)), found)


def test_kmeans_keeps_its_digits_under_an_offset(clusters):
    X = 0.01 * clusters[0].astype(np.float32)
    found = cluster_means(X, 4, np.random.RandomState(0))
    moved = cluster_means(X + np.float32(1000), 4, np.random.RandomState(0))
    assert found.dtype == moved.dtype == np.float32
    assert_allclose(moved - np.float32(1000), found, atol=5e-3)
    assert np.ptp(found, axis=0).min() > 0.05


def test_kmeans_of_another_library(clusters, other_xp):
    X, _ = clusters
    expected = cluster_means(X, 7, np.random.RandomState(0))
    with config_context(array_api_dispatch=True):
        found = cluster_means(other_xp.asarray(X), 7, np.random.RandomState(0))
    assert namespace(found) == other_xp
    assert_array_equal(to_numpy(found), expected)


def test_kmeans_of_distinct_rows_are_distinct(rng):
    X = np.exp(3 * rng.standard_normal((1500, 1)))
    found = cluster_means(X, 1400, np.random.RandomState(0))
    assert found.shape == (1400, 1)
    assert len(np.unique(found)) == 1400


def test_means_of_as_many_clusters_as_rows_are_the_rows(clusters):
    found = cluster_means(clusters[0], 201, np.random.RandomState(0))
    assert_array_equal(found, clusters[0])


@pytest.mark.parametrize("method", METHODS)
def test_functions_of_a_kernel_and_rows(method, rng):
    X = np.repeat(rng.standard_normal((60, 3)), 2, axis=0)
    function = getattr(centers, method)
    found, indices = function(Gaussian(1.0), X, 20, random_state=0)
    assert len(np.unique(found, axis=0)) == 20
    if method != "kmeans":
        assert_array_equal(found, X[indices])
    first, which = distinct_rows(X)
    state, totals = np.random.RandomState(0), np.bincount(which)
    expected = choose(method, Gaussian(1.0), X[first], 20, state, totals)[0]
    assert_array_equal(found, expected)
    # All of them, if there are fewer.
    found, _ = function(Gaussian(1.0), X, 100, random_state=np.random.default_rng(0))
    assert_allclose(sorted_rows(found), sorted_rows(X[first]))


def test_functions_say_what_is_wrong(rng):
    X = rng.standard_normal((30, 3))
    for options, message in (
        ({"n_centers": 0}, "n_centers must be an integer >= 1; got 0"),
        ({"n_centers": 2.0}, "n_centers must be an integer >= 1; got 2.0"),
        ({"kernel": "gaussian"}, "kernel must be a kernel object.*got 'gaussian'"),
        ({"X": X[0]}, r"X must be rows of shape \(n, d\); got shape \(3,\)"),
        ({"weights": np.zeros(30)}, "weights must be 30 positive finite numbers"),
        ({"weights": np.ones(29)}, r"one per row of X; got shape \(29,\)"),
        ({"random_state": "zero"}, "random_state must be None, an integer .*'zero'"),
    ):
        with pytest.raises(ValueError, match=message):
            centers.rpcholesky(
                **{"kernel": Gaussian(1.0), "X": X, "n_centers": 5, **options}
            )


def test_what_the_functions_take(rng):
    X = rng.standard_normal((40, 2))
    for name in METHODS:
        function = getattr(centers, name)
        Z, _ = function(Gaussian(1.0), X.tolist(), 5, weights=[1] * 40)
        assert Z.shape == (5, 2)
        Z, _ = function(Gaussian(1.0), X, 5, random_state=np.random.default_rng(0))
        assert Z.shape == (5, 2)
        with pytest.raises(ValueError, match="X must be finite"):
            function(Gaussian(1.0), np.where(X > 1, np.nan, X), 5)
        with pytest.raises(ValueError, match="40 positive finite numbers"):
            function(Gaussian(1.0), X, 5, weights=np.full(40, np.inf))


def test_rows_among_others(rng):
    X = rng.integers(0, 3, (50, 3)).astype(float)
    Z = X[[3, 7]] + 0.0
    expected = (X[:, None, :] == Z).all(axis=2).any(axis=1)
    assert_array_equal(rows_among(X, Z), expected)
