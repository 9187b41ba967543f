"""Whether two sets of rows differ in a column."""

import numpy as np
import pytest
import scipy.sparse

from eigenkern.problems.data import Data, differing_column


def rows(X, y=None, weights=None):
    Y = np.zeros((X.shape[0], 1)) if y is None else y[:, None]
    return Data(X, Y, Y, weights, None)


def test_the_column_that_was_sorted_is_found():
    X = np.random.RandomState(0).randn(600, 5) * [1, 1e6, 1e-6, 1, 1]
    for column in range(5):
        ordered = X[np.argsort(X[:, column])]
        assert differing_column(rows(ordered[400:]), rows(ordered[:400])) == column


def test_a_target_is_negative():
    y = np.sort(np.random.RandomState(0).randn(300))
    X = np.random.RandomState(1).randn(300, 4)
    X[:, 2] = 3 * y  # a tie
    assert differing_column(rows(X[200:], y[200:]), rows(X[:200], y[:200])) == -1


@pytest.mark.parametrize("n", [32, 200, 5000])
@pytest.mark.parametrize("d", [1, 50])
def test_fair_pieces_do_not_differ(n, d):
    rng = np.random.RandomState(n + d)
    for draw in (rng.randn, rng.rand, lambda *shape: np.exp(3 * rng.randn(*shape))):
        assert differing_column(rows(draw(n, d)), rows(draw(500, d))) is None


@pytest.mark.parametrize("share", [0.5, 0.05, 0.005])
def test_rare_ones_are_no_difference(share):
    rng = np.random.RandomState(0)
    for _ in range(10):
        X = rng.rand(532, 100) < share
        found = differing_column(rows(X[500:] * 1.0), rows(X[:500] * 1.0))
        assert found is None


def test_sparse_rows_as_dense_ones():
    rng = np.random.RandomState(0)
    X = np.where(rng.rand(400, 6) < 0.3, rng.randn(400, 6), 0)
    X = X[np.argsort(X[:, 2])]
    for part in (slice(300, 400), slice(150, 250)):
        rest = np.delete(np.arange(400), part)
        expected = differing_column(rows(X[part]), rows(X[rest]))
        S = scipy.sparse.csr_matrix(X)
        assert differing_column(rows(S[part]), rows(S[rest])) == expected
    assert differing_column(rows(S[300:]), rows(S[:300])) == 2


def test_rows_without_weight_do_not_count():
    X = np.random.RandomState(0).randn(400, 2)
    weights = np.ones(300)
    weights[100:] = 0
    X[200:] += 10
    assert differing_column(rows(X[100:]), rows(X[:100])) is not None
    weighted = rows(X[100:], weights=weights)
    assert differing_column(weighted, rows(X[:100])) is None
    weighted = rows(X[100:], weights=np.zeros(300))
    assert differing_column(weighted, rows(X[:100])) is None
