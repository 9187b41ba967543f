"""What every operator promises, against the dense matrix in float64."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist

from eigenkern.arrays.array import location_of
from eigenkern.kernels import Laplacian, Linear
from eigenkern.operators.cached import CachedTriangle, cached
from eigenkern.operators.centered import CenteredFeatures
from eigenkern.operators.matrix import GivenMatrix
from eigenkern.operators.sharded import ShardedKernel
from eigenkern.operators.tiled import TiledKernel

M, P, D = 83, 61, 4
CPU = location_of(np.empty(0))
KERNEL = Laplacian(1.5)
# Penalty on the diagonal.
ADDED = np.linspace(0.1, 2.0, P)


def dense(X, Z):
    return np.exp(-cdist(X, Z) / 1.5)


class Case:
    """An operator, its matrix, and the matrix of other rows (or None)."""

    def __init__(self, operator, K, others=None):
        self.operator, self.K, self.others = operator, K, others


def given(X, Z, other):
    return Case(GivenMatrix(dense(X, Z)), dense(X, Z))


def tiled(X, Z, other):
    operator = TiledKernel(KERNEL, Z, X, tile_memory=0.02)
    return Case(operator, dense(X, Z), dense(other, Z))


def tiled_symmetric(X, Z, other):
    operator = TiledKernel(KERNEL, Z, tile_memory=0.02)
    return Case(operator, dense(Z, Z), dense(other, Z))


def triangle(X, Z, other):
    operator = CachedTriangle(TiledKernel(KERNEL, Z), 16)
    return Case(operator, dense(Z, Z), dense(other, Z))


def cached_rows(X, Z, other):
    (operator,), _ = cached([TiledKernel(KERNEL, Z, X)], 1000, 1, 1)
    assert isinstance(operator, GivenMatrix)
    return Case(operator, dense(X, Z), dense(other, Z))


def sharded(X, Z, other):
    operator = ShardedKernel(KERNEL, Z, [CPU, CPU], X)
    return Case(operator, dense(X, Z), dense(other, Z))


def sharded_symmetric(X, Z, other):
    operator = ShardedKernel(KERNEL, Z, [CPU, CPU])
    return Case(operator, dense(Z, Z), dense(other, Z))


def given_penalized(X, Z, other):
    operator = GivenMatrix(dense(Z, Z)).plus_diagonal(ADDED)
    return Case(operator, dense(Z, Z) + np.diag(ADDED))


def tiled_penalized(X, Z, other):
    operator = TiledKernel(KERNEL, Z, tile_memory=0.02).plus_diagonal(ADDED)
    return Case(operator, dense(Z, Z) + np.diag(ADDED), dense(other, Z))


def factored_penalized(X, Z, other):
    operator = TiledKernel(Linear(), Z).plus_diagonal(ADDED)
    return Case(operator, Z @ Z.T + np.diag(ADDED), other @ Z.T)


def triangle_penalized(X, Z, other):
    operator = CachedTriangle(TiledKernel(KERNEL, Z).plus_diagonal(ADDED), 16)
    return Case(operator, dense(Z, Z) + np.diag(ADDED), dense(other, Z))


def sharded_penalized(X, Z, other):
    operator = ShardedKernel(KERNEL, Z, [CPU, CPU]).plus_diagonal(ADDED)
    return Case(operator, dense(Z, Z) + np.diag(ADDED), dense(other, Z))


def factored_shards_penalized(X, Z, other):
    operator = ShardedKernel(Linear(), Z, [CPU, CPU, CPU]).plus_diagonal(ADDED)
    return Case(operator, Z @ Z.T + np.diag(ADDED), other @ Z.T)


def evaluated(X, Z, other):
    operator = TiledKernel(KERNEL, Z, X).evaluated(np.ones((P, 1)))[1]
    return Case(operator, dense(X, Z), dense(other, Z))


def evaluated_shards(X, Z, other):
    operator = ShardedKernel(KERNEL, Z, [CPU, CPU], X).evaluated(np.ones((P, 1)))[1]
    return Case(operator, dense(X, Z), dense(other, Z))


def features(X, Z, other):
    return Case(CenteredFeatures(X, Z[0]), X - Z[0], other - Z[0])


def sparse_features(X, Z, other):
    X = np.where(abs(X) > 1, X, 0.0)
    operator = CenteredFeatures(scipy.sparse.csr_array(X), Z[0])
    return Case(operator, X - Z[0], other - Z[0])


def varying_features(X, Z, other):
    varies = np.arange(X.shape[1]) != 1.0
    operator = CenteredFeatures(X, Z[0], varies + 0.0)
    return Case(operator, varies * (X - Z[0]), varies * (other - Z[0]))


def varying_sparse_features(X, Z, other):
    varies = np.arange(X.shape[1]) != 1.0
    operator = CenteredFeatures(scipy.sparse.csr_array(X), Z[0], varies + 0.0)
    return Case(operator, varies * (X - Z[0]), varies * (other - Z[0]))


OPERATORS = [
    given,
    tiled,
    tiled_symmetric,
    triangle,
    cached_rows,
    sharded,
    sharded_symmetric,
    given_penalized,
    tiled_penalized,
    factored_penalized,
    triangle_penalized,
    sharded_penalized,
    factored_shards_penalized,
    evaluated,
    evaluated_shards,
    features,
    sparse_features,
    varying_features,
    varying_sparse_features,
]


@pytest.fixture(params=OPERATORS, ids=lambda make: make.__name__)
def case(request, rows):
    return request.param(*rows)


@pytest.fixture
def rows(rng):
    """Rows, centers, other rows."""
    return tuple(rng.standard_normal((n, D)) for n in (M, P, 19))


def ranges(n):
    return [(0, n), (0, 1), (n - 1, n), (7, 40), (5, n - 2), (9, 9)]


def test_description(case):
    operator, (m, p) = case.operator, case.K.shape
    assert operator.shape == (m, p)
    assert operator.dtype == np.float64 and operator.itemsize == 8
    assert (operator.xp, operator.device) == CPU
    assert isinstance(operator.symmetric, bool)
    if operator.symmetric:
        assert_array_equal(case.K, case.K.T)


def test_only_a_kernel_of_rows_with_themselves_is_symmetric(rows):
    names = {make.__name__ for make in OPERATORS if make(*rows).operator.symmetric}
    assert names == {
        "tiled_symmetric",
        "triangle",
        "sharded_symmetric",
        "tiled_penalized",
        "factored_penalized",
        "triangle_penalized",
        "sharded_penalized",
        "factored_shards_penalized",
    }


@pytest.mark.parametrize(
    "make",
    [lambda Z: TiledKernel(KERNEL, Z), lambda Z: ShardedKernel(KERNEL, Z, 2 * [CPU])],
)
def test_a_sum_is_another_operator(make, rows):
    Z = rows[1]
    operator = make(Z)
    twice = operator.plus_diagonal(ADDED).plus_diagonal(ADDED)
    assert_allclose(twice.block(), dense(Z, Z) + 2 * np.diag(ADDED), atol=1e-14)
    assert_allclose(operator.block(), dense(Z, Z), atol=1e-14)


def test_product(case, rng):
    K, operator = case.K, case.operator
    A = rng.standard_normal((K.shape[1], 3))
    assert_allclose(operator @ A, K @ A, atol=1e-12)
    for start, stop in ranges(len(K)):
        for n_columns in (0, 1, K.shape[1]):
            F, leading = operator.product_and_columns(A, start, stop, n_columns)
            assert_allclose(F, K[start:stop] @ A, atol=1e-12)
            if n_columns:
                assert_allclose(leading, K[start:stop, :n_columns], atol=1e-14)


def test_adjoint(case, rng):
    K, operator = case.K, case.operator
    G = rng.standard_normal((len(K), 3))
    assert_allclose(operator.adjoint(G), K.T @ G, atol=1e-12)
    for start, stop in ranges(len(K))[:-1]:
        found = operator.adjoint(G[start:stop], start, stop)
        assert_allclose(found, K[start:stop].T @ G[start:stop], atol=1e-12)


def test_block(case):
    K, operator = case.K, case.operator
    assert_allclose(operator.block(), K, atol=1e-14)
    for start, stop in ranges(len(K))[:-1]:
        for first, last in [(0, K.shape[1]), (0, 1), (1, K.shape[1] - 1)]:
            found = operator.block(start, stop, first, last)
            assert_allclose(found, K[start:stop, first:last], atol=1e-14)
            assert found.dtype == np.float64
            single = operator.block(start, stop, first, last, dtype=np.float32)
            assert single.dtype == np.float32
            assert_allclose(single, K[start:stop, first:last], atol=1e-6)


def test_a_block_may_be_written_to_an_array(case):
    K, operator = case.K, case.operator
    out = np.full((len(K), K.shape[1]), np.nan)
    assert_allclose(operator.block(3, 20, out=out), K[3:20], atol=1e-14)
    assert np.isnan(out[17:]).all()


def test_rows(case, rows, rng):
    other = rows[2]
    if case.others is None:
        with pytest.raises(ValueError, match="a matrix that is given has no kernel"):
            case.operator.rows(other)
        return
    operator = case.operator.rows(other)
    A = rng.standard_normal((case.K.shape[1], 2))
    assert operator.shape == case.others.shape and not operator.symmetric
    assert_allclose(operator @ A, case.others @ A, atol=1e-12)
    assert_allclose(operator.block(2, 9), case.others[2:9], atol=1e-14)
    # The operator itself is unchanged.
    assert_allclose(case.operator @ A, case.K @ A, atol=1e-12)


def test_row_kernel(case):
    K = case.K[5:30] @ case.K[5:30].T
    if not isinstance(case.operator, CenteredFeatures):
        K = case.K[5:30, 5:30]
    found = case.operator.row_kernel(5, 30)
    if isinstance(case.operator, CenteredFeatures):
        found = found @ np.eye(25)
    assert_allclose(found, K, atol=1e-12)


def test_evaluated(case, rng):
    K = case.K
    A, G = rng.standard_normal((K.shape[1], 3)), rng.standard_normal((len(K), 2))
    F, held = case.operator.evaluated(A)
    assert_allclose(F, K @ A, atol=1e-12)
    assert held.shape == K.shape
    for n in (0, 1, 2, K.shape[1]):
        assert_allclose(held.block(last=n), K[:, :n], atol=1e-14)
    assert_allclose(held.adjoint(G), K.T @ G, atol=1e-12)
    assert_allclose(held @ A, F, atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_gram(weighted, case, rng):
    K = case.K
    T, R = rng.standard_normal((len(K), 2)), rng.standard_normal((K.shape[1], 3))
    w = rng.uniform(0, 2, len(K)) if weighted else None
    W = np.eye(len(K)) if w is None else np.diag(w)
    G, c = case.operator.gram(T, w)
    assert_allclose(G, K.T @ W @ K, atol=1e-11)
    assert_allclose(c, K.T @ W @ T, atol=1e-11)
    G, c = case.operator.gram(T, w, transform=R)
    assert_allclose(G, R.T @ K.T @ W @ K @ R, atol=1e-10)
    assert_allclose(c, R.T @ K.T @ W @ T, atol=1e-11)


def test_normal_product(case, rng):
    K = case.K
    V, T = rng.standard_normal((K.shape[1], 3)), rng.standard_normal((len(K), 3))
    w = rng.uniform(0, 2, len(K))
    operator = case.operator
    assert_allclose(operator.normal_product(V), K.T @ K @ V, atol=1e-10)
    expected = K.T @ (K @ V - T)
    assert_allclose(operator.normal_product(V, T), expected, atol=1e-10)
    expected = K.T @ (w[:, None] * (K @ V - T))
    assert_allclose(operator.normal_product(V, T, w), expected, atol=1e-10)


def test_exclusive_threads_nest_with_products(case, rng):
    A = rng.standard_normal((case.K.shape[1], 2))
    with case.operator.exclusive_threads():
        assert_allclose(case.operator @ A, case.K @ A, atol=1e-12)
