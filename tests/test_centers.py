"""Which rows are distinct, and which become centres."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import config_context

from eigenkern._array import namespace, to_numpy
from eigenkern.centers import distinct_rows, kmeans, rpcholesky, uniform
from eigenkern.kernels import Gaussian


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
        chosen = uniform(20, 5, rng)
        assert len(chosen) == len(set(chosen)) == 5
        counts[chosen] += 1
    assert 90 < counts.min() and counts.max() < 165
    assert_array_equal(uniform(20, 30, rng), np.arange(20))


def choose(K, n_centers, seed):
    rng = np.random.RandomState(seed)
    return rpcholesky(K.diagonal(), lambda index: K[:, index], n_centers, rng)


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
    chosen = choose(K, 50, 0)
    assert len(set(chosen)) == 50
    assert residual(K, chosen) < 15 * best
    assert residual(K, np.arange(550, 600)) > 100 * best


def test_rpcholesky_has_the_distribution_of_one_by_one(rng):
    K = Gaussian(1.0)(rng.standard_normal((5, 1)))
    counts = np.zeros((5, 5))
    for seed in range(3000):
        first, second = choose(K, 2, seed)
        counts[first, second] += 1
    left = 1 - K**2
    expected = left / left.sum(axis=1, keepdims=True) / 5
    assert abs(counts / 3000 - expected).max() < 0.02


@pytest.mark.parametrize("rank", [3, 12])
def test_rpcholesky_ends_when_nothing_is_left(rank, rng):
    A = rng.standard_normal((40, rank))
    K = A @ A.T
    chosen = choose(K, 20, 0)
    assert len(chosen) == rank
    assert residual(K, chosen) < 1e-9 * np.trace(K)


@pytest.fixture
def clusters(rng):
    """Rows of four clusters whose means are far apart, and these means."""
    means = 10.0 * rng.standard_normal((4, 3))
    return np.repeat(means, 50, axis=0) + 0.1 * rng.standard_normal((200, 3)), means


def sorted_rows(X):
    return X[np.lexsort(X.T)]


def test_kmeans_finds_clusters(clusters):
    X, means = clusters
    found = kmeans(X, 4, np.random.RandomState(0))
    assert_allclose(sorted_rows(found), sorted_rows(means), atol=0.1)
    assert_array_equal(kmeans(X, 4, np.random.RandomState(0)), found)


def test_kmeans_keeps_its_digits_under_an_offset(clusters):
    X = 0.01 * clusters[0].astype(np.float32)
    found = kmeans(X, 4, np.random.RandomState(0))
    moved = kmeans(X + np.float32(1000), 4, np.random.RandomState(0))
    assert found.dtype == moved.dtype == np.float32
    assert_allclose(moved - np.float32(1000), found, atol=5e-3)
    assert np.ptp(found, axis=0).min() > 0.05


def test_kmeans_of_another_library(clusters, other_xp):
    X, _ = clusters
    expected = kmeans(X, 7, np.random.RandomState(0))
    with config_context(array_api_dispatch=True):
        found = kmeans(other_xp.asarray(X), 7, np.random.RandomState(0))
    assert namespace(found) == other_xp
    assert_array_equal(to_numpy(found), expected)


@pytest.mark.parametrize("n_centers", [0, 201])
def test_kmeans_needs_as_many_rows_as_centers(n_centers, clusters):
    with pytest.raises(ValueError, match=f"n_centers must be .* 200; got {n_centers}"):
        kmeans(clusters[0], n_centers, np.random.RandomState(0))
