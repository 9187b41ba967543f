"""`TiledKernel` against dense products, its memory, and its threads."""

import threading
import tracemalloc
from copy import copy
from itertools import product

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_info, threadpool_limits

from eigenkern.arrays import memory
from eigenkern.arrays.array import to_numpy
from eigenkern.arrays.machine import CPU
from eigenkern.arrays.threads import n_blas_threads
from eigenkern.kernels import (
    CallableKernel,
    Cauchy,
    Gaussian,
    Laplacian,
    Linear,
    Manhattan,
    Matern,
    Polynomial,
)
from eigenkern.operators import blocks as plan
from eigenkern.operators import tiled
from eigenkern.operators.blocks import BlockPlan, cache_budget, cache_pays
from eigenkern.operators.cached import CachedTriangle, cached, cached_bytes
from eigenkern.operators.centered import CenteredFeatures
from eigenkern.operators.matrix import GivenMatrix
from eigenkern.operators.tiled import TiledKernel

KERNELS = [
    Gaussian(1.5),
    Laplacian(1.5),
    Cauchy(1.5),
    Matern(1.5, nu=1.5),
    Matern(1.5, nu=2.5),
    Polynomial(1.5),
    Linear(),
    CallableKernel(lambda X, Z: X @ Z.T + 1.0),
    Manhattan(1.5),
]
IDS = [f"{type(kernel).__name__}{i}" for i, kernel in enumerate(KERNELS)]


@pytest.fixture
def problem(rng, naive_gaussian):
    """Rows, centers, coefficients, and their dense gaussian matrices."""
    X, Z = rng.standard_normal((150, 4)), rng.standard_normal((1333, 4))
    A = rng.standard_normal((1333, 3))
    return X, Z, A, naive_gaussian(X, Z, 1.5), naive_gaussian(Z, Z, 1.5)


def blas_threads():
    return [
        lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"
    ]


def cached_alone(operator):
    """Return an operator with a cached matrix, whether or not that pays."""
    (operator,), _ = cached([operator], 1000, 1, 1)
    return operator


def test_shape_and_symmetry(problem):
    X, Z, *_ = problem
    assert TiledKernel(Gaussian(), Z).shape == (1333, 1333)
    assert TiledKernel(Gaussian(), Z).symmetric
    assert TiledKernel(Gaussian(), Z, X).shape == (150, 1333)
    assert not TiledKernel(Gaussian(), Z, X).symmetric


def test_product_with_other_rows(problem):
    X, Z, A, K, _ = problem
    operator = TiledKernel(Gaussian(1.5), Z, X)
    assert_allclose(operator @ A, K @ A, atol=1e-10)
    operator = cached_alone(operator)
    assert_allclose(operator @ A, K @ A, atol=1e-10)
    assert_allclose(operator.block(3, 7, 10, 600), K[3:7, 10:600], atol=1e-12)


# The last block of rows is ragged, whole, or the only one.
@pytest.mark.parametrize("size", [None, 1, 200, 31 * 43, 1024, 5000])
def test_product_of_a_symmetric_matrix(size, problem):
    _, Z, A, _, K = problem
    operator = TiledKernel(Gaussian(1.5), Z)
    if size == 1:  # that many blocks take long: fewer rows
        Z, A, K = Z[:60], A[:60], K[:60, :60]
        operator = TiledKernel(Gaussian(1.5), Z)
    if size is not None:
        operator = CachedTriangle(operator, size)
    n = len(Z)
    for start, stop in [(0, n), (0, 1), (n - 1, n), (n // 3, n // 2), (5, n - 2)]:
        for n_columns in (0, 1, n // 4, n):
            F, leading = operator.product_and_columns(A, start, stop, n_columns)
            assert_allclose(F, K[start:stop] @ A, atol=1e-10)
            assert_allclose(leading, K[start:stop, :n_columns], atol=1e-12)


def test_cached_batches_straddle_the_blocks(problem):
    _, Z, A, _, K = problem
    operator = TiledKernel(Gaussian(1.5), Z)
    operator = CachedTriangle(operator, 100)
    for start in range(0, 1333, 130):
        b = slice(start, min(start + 130, 1333))
        F, leading = operator.product_and_columns(A, b.start, b.stop, n_columns=250)
        assert_allclose(F, K[b] @ A, atol=1e-10)
        assert_allclose(leading, K[b, :250], atol=1e-12)


def test_cache_of_a_symmetric_matrix_is_half_of_it(problem):
    operator = TiledKernel(Gaussian(1.5), problem[1])
    # Blocks of 1024 rows, each up to and including its diagonal.
    (size,) = cached_bytes([operator], 1000, 1, 1)
    assert size == (1024 * 1024 + 309 * 1333) * 8
    tracemalloc.start()
    operator = cached_alone(operator)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.9 * size < held < 1.01 * size
    assert cached_bytes([operator], 1000, 1, 1) == [0]


BLOCKS = [
    (0, 1333, 0, 1333),
    (7, 900, 100, 1200),
    (150, 170, 900, 1333),
    (900, 1333, 150, 170),
    (1332, 1333, 0, 1),
    (5, 1300, 5, 1300),
]


@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize("kernel", [Gaussian(1.5), CallableKernel(Gaussian(1.5))])
def test_block(kernel, is_cached, problem):
    _, Z, _, _, K = problem
    operator = TiledKernel(kernel, Z, tile_memory=1.0)
    if is_cached:
        operator = CachedTriangle(operator, 100)
    for a, b, c, d in BLOCKS:
        assert_allclose(operator.block(a, b, c, d), K[a:b, c:d], atol=1e-12)
        single = operator.block(a, b, c, d, dtype=np.float32)
        assert single.dtype == np.float32
        assert_allclose(single, K[a:b, c:d], atol=1e-6)
    exact = np.diagonal(operator.block())
    assert_allclose(exact, 1.0, rtol=0 if kernel.fused else 1e-12)


def test_blocks_of_other_rows_are_computed_in_order(problem, monkeypatch):
    X, Z, *_ = problem
    operator = TiledKernel(CallableKernel(Gaussian(1.5)), Z, X, tile_memory=0.1)
    seen, encoded_rows = [], operator.encoded_rows
    monkeypatch.setattr(
        operator, "encoded_rows", lambda a, b: seen.append(a) or encoded_rows(a, b)
    )
    operator.block()
    assert seen == sorted(seen) and len(seen) > 2


@pytest.mark.parametrize("given_rows", [False, True])
def test_a_symmetric_block_is_computed_by_halves(given_rows, problem):
    Z, entries = problem[1], []

    def watched(X, Z):
        entries.append(X.shape[0] * Z.shape[0])
        return Gaussian(1.5)(X, Z)

    rows = Z if given_rows else None
    operator = TiledKernel(CallableKernel(watched), Z, rows, tile_memory=0.5)
    entries.clear()
    operator.block(0, 1000, 0, 1000)
    whole = 1000 * 1000
    assert sum(entries) == whole if given_rows else sum(entries) < 0.6 * whole
    # Columns that are not those of the rows are computed in full.
    entries.clear()
    operator.block(0, 1000, 100, 1100)
    assert sum(entries) == whole


def test_duplicated_rows_make_a_singular_exact_matrix():
    X = np.repeat(np.arange(6.0).reshape(3, 2), 400, axis=0)
    A = np.ones((1200, 1))
    for operator in (TiledKernel(Cauchy(), X), TiledKernel(Cauchy(), X, X)):
        assert_allclose(operator @ A, (1 / (1 + cdist(X, X) ** 2)) @ A, rtol=1e-12)


def test_given_matrix(problem, rng):
    *_, A, K, _ = problem
    operator = GivenMatrix(K)
    assert operator.shape == K.shape
    assert_allclose(operator @ A, K @ A)
    F, leading = operator.product_and_columns(A, 5, 70, n_columns=9)
    assert_allclose(F, K[5:70] @ A)
    assert_array_equal(leading, K[5:70, :9])
    assert_array_equal(operator.block(1, 4, 2, 8), K[1:4, 2:8])


@pytest.mark.parametrize(
    "tiles", [(1, 50, 1), (7, 13, 1), (64, 5, 3), (100, 512, 2), (2000, 2000, 1)]
)
@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_any_plan_gives_the_same_product(tiles, n_threads, problem, monkeypatch):
    X, Z, A, K, K_zz = problem
    plan = BlockPlan(*tiles, n_threads, 0)
    monkeypatch.setattr(BlockPlan, "make", lambda *args: plan)
    n_blas_threads()  # finds the libraries
    monkeypatch.setattr(tiled, "n_blas_threads", lambda: n_threads)
    F, leading = TiledKernel(Gaussian(1.5), Z, X).product_and_columns(
        A, 20, 120, n_columns=700
    )
    assert_allclose(F, K[20:120] @ A, atol=1e-10)
    assert_allclose(leading, K[20:120, :700], atol=1e-12)
    operator = TiledKernel(Gaussian(1.5), Z)
    assert operator.n_workers == n_threads
    F, leading = operator.product_and_columns(A, 200, 300, n_columns=299)
    assert_allclose(F, K_zz[200:300] @ A, atol=1e-10)
    assert_allclose(leading, K_zz[200:300, :299], atol=1e-12)
    operator = CachedTriangle(operator, 128)
    assert_allclose(operator.product(A, 200, 300), K_zz[200:300] @ A, atol=1e-10)


def test_as_many_workers_as_blas_was_allowed(problem):
    _, Z, A, *_ = problem
    results = []
    for n_threads in (1, 2):
        with threadpool_limits(n_threads, user_api="blas"):
            operator = TiledKernel(Laplacian(1.5), Z)
            assert operator.n_workers <= n_threads
            results.append(operator @ A)
    assert_allclose(*results, atol=1e-10)


SIZES = list(
    product(
        [1, 40, 1000, 5001],  # rows
        [1, 300, 100_000],  # centers
        [3, 786, 4000],  # width
        [1, 2, 16],  # threads
        [16e6, 64e6],  # budget
    )
)


@pytest.mark.parametrize("itemsize", [4, 8])
def test_plans_keep_to_the_budget(itemsize):
    for m, p, width, n_workers, budget in SIZES:
        plan = BlockPlan.make(m, p, width, itemsize, n_workers, budget)
        row = n_workers * (4 * plan.center_tile + 5 * width) * itemsize
        assert plan.bytes == plan.row_tile * row <= budget
        assert 1 <= plan.row_tile <= m and 1 <= plan.center_tile <= p
        assert 1 <= plan.n_parts <= p and plan.n_workers == n_workers


def test_a_budget_too_small_gives_the_smallest_tiles():
    assert BlockPlan.make(5000, 20_000, 800, 4, 2, 1e3).row_tile == 1


def test_many_rows_do_not_shrink_the_tiles():
    # Numbers of rows that two workers share in whole tiles of 1024.
    small = BlockPlan.make(2048 * 50, 20_000, 20, 4, 2, 32e6)
    large = BlockPlan.make(2048 * 5000, 20_000, 20, 4, 2, 32e6)
    assert large.row_tile == small.row_tile == 1024


@pytest.mark.parametrize("kernel", KERNELS[:7], ids=IDS[:7])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("d", [5, 500])
def test_peak_memory_is_the_plan(kernel, symmetric, d, rng):
    X = rng.standard_normal((3000, d)).astype(np.float32)
    A = rng.standard_normal((3000, 10)).astype(np.float32)
    operator = TiledKernel(kernel, X, None if symmetric else X[::-1])
    _ = operator @ A  # threads are started
    tracemalloc.start()
    _ = operator @ A
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    plan, result = operator.plan(3000), A.nbytes
    assert peak <= plan.bytes + plan.n_parts * result + 5e5


class Watched(Gaussian):
    """A gaussian kernel that calls `watch` on every tile."""

    def __init__(self, watch):
        super().__init__(1.5)
        object.__setattr__(self, "watch", watch)

    def finish(self, xp, T):
        self.watch()
        return super().finish(xp, T)


def test_blas_is_limited_in_tiles_and_restored(problem):
    _, Z, A, *_ = problem
    seen = []
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        operator = TiledKernel(Watched(lambda: seen.extend(blas_threads())), Z)
        _ = operator @ A
        assert set(seen) == {1}
        assert blas_threads() == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_blas_is_restored_after_an_error_in_a_tile(error, problem):
    _, Z, A, *_ = problem

    def fail():
        raise error("in a tile")

    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        operator = TiledKernel(Watched(fail), Z)
        for run in (
            lambda: operator @ A,
            operator.block,
            lambda: cached_alone(operator),
        ):
            with pytest.raises(error, match="in a tile"):
                run()
            assert blas_threads() == before


def test_blas_limits_of_two_threads_nest(problem):
    _, Z, A, _, K = problem
    inside, go_on, seen, results = threading.Event(), threading.Event(), [], []

    def wait():
        inside.set()
        assert go_on.wait(60)
        seen.extend(blas_threads())

    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        slow, quick = TiledKernel(Watched(wait), Z), TiledKernel(Gaussian(1.5), Z)
        thread = threading.Thread(target=lambda: results.append(slow @ A))
        thread.start()
        assert inside.wait(60)
        results.append(quick @ A)  # enters and leaves while the other is inside
        go_on.set()
        thread.join(60)
        assert set(seen) == {1}
        assert blas_threads() == before
    for F in results:
        assert_allclose(F, K @ A, atol=1e-10)


def test_blas_is_restored_by_whichever_thread_leaves_last(problem):
    _, Z, A, *_ = problem
    inside, go_on = threading.Event(), threading.Event()

    def wait():
        inside.set()
        assert go_on.wait(60)

    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        operator = TiledKernel(Watched(wait), Z)
        with operator.exclusive_threads():
            thread = threading.Thread(target=lambda: operator @ A)
            thread.start()
            assert inside.wait(60)
        go_on.set()
        thread.join(60)
        assert blas_threads() == before


def test_exclusive_threads_nest_with_products(problem):
    _, Z, A, *_ = problem
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        operator = TiledKernel(Gaussian(1.5), Z)
        with operator.exclusive_threads():
            _ = operator @ A
            assert set(blas_threads()) == {1}
        assert blas_threads() == before


@pytest.mark.parametrize("kernel", KERNELS, ids=IDS)
def test_other_libraries_agree_with_numpy(kernel, other_xp, rng):
    X, Z = rng.standard_normal((40, 4)), rng.standard_normal((90, 4))
    A = rng.standard_normal((90, 3))
    operator = TiledKernel(
        kernel, other_xp.asarray(Z), other_xp.asarray(X), tile_memory=0.01
    )
    expected = kernel(X, Z)
    assert_allclose(to_numpy(operator @ other_xp.asarray(A)), expected @ A, atol=1e-10)
    assert_allclose(to_numpy(operator.block()), expected, atol=1e-10)
    operator = TiledKernel(kernel, other_xp.asarray(Z), tile_memory=0.01)
    expected = kernel(Z)
    for size in (None, 40):
        if size:
            operator = CachedTriangle(operator, size)
        F, leading = operator.product_and_columns(
            other_xp.asarray(A), 30, 75, n_columns=50
        )
        assert_allclose(to_numpy(F), expected[30:75] @ A, atol=1e-10)
        assert_allclose(to_numpy(leading), expected[30:75, :50], atol=1e-10)


def test_cache_budget(problem, monkeypatch):
    operator = TiledKernel(Gaussian(), problem[1])
    assert cache_budget(12.5, operator) == 12.5e6
    monkeypatch.setattr(memory, "available", lambda xp, device: 1e9)
    monkeypatch.setattr(plan, "n_cores", lambda: 8)
    monkeypatch.setattr(plan, "n_blas_threads", lambda: 2)
    assert cache_budget("auto", operator) == pytest.approx(0.7e9 / 4)
    monkeypatch.setattr(plan, "n_blas_threads", lambda: 8)
    assert cache_budget("auto", operator) == pytest.approx(0.7e9)


@pytest.mark.parametrize("p", [1, 100, 10_000])
@pytest.mark.parametrize("width", [3, 5000])
def test_a_plan_of_a_library_counts_tiles_and_rows(p, width):
    plan = BlockPlan.of_library(10**6, p, width, 4, 2e7)
    assert plan.bytes <= 2e7
    assert 16 <= plan.row_tile < 10**6 and 1 <= plan.center_tile <= p
    rows, columns = 2 * plan.row_tile, 2 * plan.center_tile
    assert max(16 * rows * plan.center_tile, 20 * rows * width) > 2e7
    assert columns > p or 16 * plan.row_tile * columns > 2e7 or width == 5000


def test_cache_pays_for_many_features_and_epochs():
    operator = TiledKernel(Gaussian(), np.ones((3, 2), dtype=np.float32))
    operator.n_workers = 2
    assert cache_pays(20, 784, operator)
    assert not cache_pays(1, 5, operator)
    operator.n_workers = 8
    assert not cache_pays(20, 5, operator)


def sized(operator, n, m=None):
    """Return an operator with a false shape; nothing is computed."""
    operator = copy(operator)
    operator.shape, operator.n_workers = (m or n, n), 2
    return operator


def test_cache_pays_counts_the_first_use_of_large_memory(monkeypatch):
    operator = TiledKernel(Gaussian(), np.ones((3, 2), dtype=np.float32))
    asked = []

    def set_rate(rate):
        monkeypatch.setattr(
            memory, "touch_rate", lambda n_bytes: asked.append(n_bytes) or rate
        )

    set_rate(0.375e9)
    assert not cache_pays(6, 5, sized(operator, 30_000))
    assert cache_pays(6, 784, sized(operator, 30_000))  # expensive to recompute
    assert cache_pays(30, 5, sized(operator, 30_000))
    set_rate(24e9)
    assert cache_pays(6, 5, sized(operator, 30_000))
    assert asked == [2 * 30_000**2] * 4
    # Small matrices are not worth the measurement.
    set_rate(1.0)
    assert cache_pays(20, 784, sized(operator, 5000))
    assert len(asked) == 4


def test_half_of_a_symmetric_matrix_is_paid_for(monkeypatch):
    monkeypatch.setattr(memory, "touch_rate", lambda n_bytes: 1.5e9)
    operator = TiledKernel(Gaussian(), np.ones((3, 2), dtype=np.float32))
    machine, n, n_epochs = CPU, 30_000, 4
    compute, read = machine.kernel_seconds(20, 4, 2), 4 / machine.read
    anew, once = n_epochs * compute, compute + 4 / (2 * 1.5e9)
    assert once / 2 + n_epochs * read < anew < once + n_epochs * read
    assert cache_pays(n_epochs, 20, sized(operator, n))
    other = sized(operator, n)
    other.symmetric = False
    assert not cache_pays(n_epochs, 20, other)


def test_the_first_use_is_measured_only_where_a_matrix_fits(monkeypatch):
    def touch_rate(n_bytes):
        raise AssertionError("measured in vain")

    monkeypatch.setattr(memory, "touch_rate", touch_rate)
    operator = TiledKernel(Gaussian(), np.ones((3, 2), dtype=np.float32))
    large = sized(operator, 30_000)
    for size in (0, 1000):
        assert cached([large], size, 20, 2) == ([large], 0)
    monkeypatch.setattr(memory, "available", lambda xp, device: 1e9)
    assert cached([large], "auto", 20, 2) == ([large], 0)


@pytest.mark.parametrize("kernel", KERNELS[:5], ids=IDS[:5])
def test_constant_columns_count_only_in_other_rows(kernel, rng):
    Z, X = rng.standard_normal((40, 6)), rng.standard_normal((30, 6))
    Z[:, [1, 4]] = [1e3, -7.0]  # constant among the centers, not among the rows
    A = rng.standard_normal((40, 2))
    u = cdist(X, Z)
    assert TiledKernel(kernel, Z, X)._right.shape == (40, 4 + 2)
    assert_allclose(TiledKernel(kernel, Z, X) @ A, of_distance(kernel, u) @ A)
    assert_allclose(TiledKernel(kernel, Z) @ A, of_distance(kernel, cdist(Z, Z)) @ A)


def of_distance(kernel, r):
    """The radial kernels as functions of the distance, by their definition."""
    u = r / kernel.bandwidth
    if isinstance(kernel, Gaussian):
        return np.exp(-(u**2) / 2)
    if isinstance(kernel, Laplacian):
        return np.exp(-u)
    if isinstance(kernel, Cauchy):
        return 1 / (1 + u**2)
    u = np.sqrt(2 * kernel.nu) * u
    return (1 + u + (u**2 / 3 if kernel.nu == 2.5 else 0)) * np.exp(-u)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("transformed", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gram(weighted, transformed, dtype, problem, rng):
    X, Z, _, K, _ = problem
    w = rng.uniform(0, 2, 150) if weighted else np.ones(150)
    T, R = rng.standard_normal((150, 2)), rng.standard_normal((1333, 30)) / 30
    # Small tiles, so that rows come in several blocks.
    operator = TiledKernel(
        Gaussian(1.5), Z.astype(dtype), X.astype(dtype), tile_memory=0.2
    )
    assert operator.gram_rows() < 75
    G, c = operator.gram(
        T, w if weighted else None, transform=R if transformed else None
    )
    C = K @ R if transformed else K
    atol = 1e-10 if dtype == np.float64 else 1e-3
    assert_allclose(G, C.T @ (w[:, None] * C), atol=atol)
    assert_allclose(c, C.T @ (w[:, None] * T), atol=atol)
    assert G.dtype == c.dtype == np.float64
    assert_array_equal(G, G.T)


def test_gram_takes_a_buffer_and_one_matrix(rng):
    X = rng.standard_normal((3000, 5))
    K = TiledKernel(Gaussian(1.5), X[:1500], X, tile_memory=5)
    T = np.ones((3000, 1))
    _ = K.gram(T)  # threads are started
    tracemalloc.start()
    G, _ = K.gram(T)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert_array_equal(G, G.T)
    assert peak <= 8 * K.gram_rows() * 1500 + G.nbytes + K.budget + 2e6


def test_gram_in_float64_is_definite(rng):
    """In float32 the smallest eigenvalue would drown in rounding of the largest."""
    X = rng.random((3000, 2)).astype(np.float32)
    operator = TiledKernel(Gaussian(0.25), X[:30], X)
    G, _ = operator.gram(np.ones((3000, 1)))
    K = operator.block().astype(np.float64)
    smallest = np.linalg.svd(K, compute_uv=False)[-1] ** 2
    values = np.linalg.eigvalsh(G)
    assert smallest < 1e-7 * values[-1]
    assert_allclose(values[0], smallest, rtol=1e-2)


def test_gram_of_a_cached_or_given_matrix(problem, rng):
    X, Z, _, K, _ = problem
    T = rng.standard_normal((150, 1))
    operator = TiledKernel(Gaussian(1.5), Z, X)
    operator = cached_alone(operator)
    for whole in (operator, GivenMatrix(K)):
        G, c = whole.gram(T, np.full(150, 2.0))
        assert_allclose(G, 2 * K.T @ K, atol=1e-9)
        assert_allclose(c, 2 * K.T @ T, atol=1e-9)


@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_normal_product(is_cached, symmetric, problem, rng):
    X, Z, A, K, K_Z = problem
    K = K_Z if symmetric else K
    m = len(K)
    w, T = rng.uniform(0, 2, m), rng.standard_normal((m, 3))
    operator = TiledKernel(Gaussian(1.5), Z, None if symmetric else X, tile_memory=0.5)
    if is_cached:
        operator = cached_alone(operator)
    assert_allclose(operator.normal_product(A), K.T @ (K @ A), rtol=1e-9, atol=1e-7)
    expected = K.T @ (w[:, None] * (K @ A - T))
    assert_allclose(operator.normal_product(A, T, w), expected, rtol=1e-9, atol=1e-7)


def test_normal_equations_in_other_libraries(other_xp, problem, rng):
    X, Z, A, K, _ = problem
    w, T = rng.uniform(0, 2, 150), rng.standard_normal((150, 3))
    operator = TiledKernel(Gaussian(1.5), other_xp.asarray(Z), other_xp.asarray(X))
    w_xp, T_xp = other_xp.asarray(w), other_xp.asarray(T)
    G, c = operator.gram(T_xp, w_xp)
    assert_allclose(to_numpy(G), K.T @ (w[:, None] * K), atol=1e-9)
    assert_allclose(to_numpy(c), K.T @ (w[:, None] * T), atol=1e-9)
    found = operator.normal_product(other_xp.asarray(A), T_xp, w_xp)
    assert_allclose(to_numpy(found), K.T @ (w[:, None] * (K @ A - T)), atol=1e-8)


def test_block_of_another_type(problem):
    X, Z, _, K, _ = problem
    operator = TiledKernel(Gaussian(1.5), Z.astype(np.float32), X.astype(np.float32))
    out = np.zeros((200, 1333))
    block = operator.block(10, 60, dtype=np.float64, out=out)
    assert np.shares_memory(block, out) and block.dtype == np.float64
    assert_array_equal(block, operator.block(10, 60))
    assert_allclose(block, K[10:60], atol=1e-5)


@pytest.mark.parametrize("sparse", [False, True])
def test_centered_features_are_their_matrix(sparse, rng):
    X = rng.standard_normal((50, 7)) * (rng.random((50, 7)) < 0.4)
    mean = rng.standard_normal(7)
    operator = CenteredFeatures(scipy.sparse.csr_array(X) if sparse else X, mean)
    A, G = rng.standard_normal((7, 3)), rng.standard_normal((11, 3))
    assert operator.shape == (50, 7) and operator.itemsize == 8
    product, leading = operator.product_and_columns(A, 5, 16, n_columns=2)
    assert_allclose(product, (X - mean)[5:16] @ A, atol=1e-12)
    assert_allclose(leading, (X - mean)[5:16, :2], atol=1e-12)
    assert_allclose(operator.adjoint(G, 5, 16), (X - mean)[5:16].T @ G, atol=1e-12)
    expected = (X - mean)[3:20]
    assert_allclose(operator.block(3, 20), expected, atol=1e-12)
    K = expected @ expected.T
    found, U = operator.row_kernel(3, 20), rng.standard_normal((17, 2))
    assert found.shape == (17, 17)
    assert_allclose(found @ U, K @ U, atol=1e-12)
    assert_allclose(found.diagonal(), np.diagonal(K), atol=1e-12)
    single = found.astype(np.float32)
    assert single.dtype == (single @ U.astype(np.float32)).dtype == np.float32
    assert_allclose(single @ U.astype(np.float32), K @ U, atol=1e-4)
