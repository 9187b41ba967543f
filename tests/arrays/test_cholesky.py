"""Cholesky factors in tiles against NumPy's."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenkern.arrays import linalg
from eigenkern.arrays.linalg import factor_in_place


@pytest.fixture
def tiles(monkeypatch):
    """Factors in small tiles on a number of threads, as on a busy machine."""

    def on_threads(n_threads):
        monkeypatch.setattr(linalg, "SHARED_ORDER", 0)
        monkeypatch.setattr(linalg, "_WIDEST", 16)
        monkeypatch.setattr(linalg, "_NARROWEST", 8)
        monkeypatch.setattr(linalg, "n_blas_threads", lambda: n_threads)
        monkeypatch.delattr(linalg, "_potrf", raising=False)

    return on_threads


def positive(size, rng, dtype=np.float64):
    A = rng.standard_normal((size, size))
    return (A @ A.T + np.eye(size)).astype(dtype)


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("n_threads", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [1, 9, 64, 70, 300])
def test_tiles(size, n_threads, clean, tiles, rng):
    tiles(n_threads)
    K = positive(size, rng)
    L = K.copy()
    assert factor_in_place(L, clean) is L
    assert_allclose(np.tril(L), np.linalg.cholesky(K), rtol=1e-9, atol=1e-12)
    above = np.zeros_like(K) if clean else K
    assert np.array_equal(np.triu(L, 1), np.triu(above, 1))


def test_tiles_in_single_precision(tiles, rng):
    tiles(2)
    K = positive(100, rng, np.float32)
    L = factor_in_place(K.copy())
    assert L.dtype == np.float32
    assert_allclose(L @ L.T, K, atol=1e-5 * K.max())


@pytest.mark.parametrize("place", [0, 3, 40, 69])
def test_there_is_no_factor(place, tiles, rng):
    tiles(2)
    K = positive(70, rng)
    K[place, place] = -1.0
    assert factor_in_place(K) is None
    for value in (np.nan, np.inf):
        assert linalg.cholesky(np.full((70, 70), value)) is None


def test_the_number_of_threads_changes_no_digit(tiles, rng):
    K, found = positive(300, rng), []
    for n_threads in (1, 2, 5):
        tiles(n_threads)
        found.append(factor_in_place(K.copy()))
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
def test_small_matrices_are_left_to_lapack(order, clean, monkeypatch, rng):
    K = np.asarray(positive(20, rng), order=order)
    kept, expected = K.copy(), np.linalg.cholesky(K)
    monkeypatch.delattr(linalg, "_Tiles")
    L = factor_in_place(K, clean)
    assert np.shares_memory(L, K)
    assert_allclose(np.tril(L), expected, atol=1e-12)
    above = np.zeros_like(K) if clean else kept
    assert np.array_equal(np.triu(L, 1), np.triu(above, 1))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_error_ends_all_threads(error, monkeypatch, tiles, rng):
    """No thread waits for the tile that was not computed."""
    tiles(3)
    compute = linalg._Tiles._compute

    def fail(self, i, j):
        if (i, j) == (4, 2):
            raise error
        compute(self, i, j)

    monkeypatch.setattr(linalg._Tiles, "_compute", fail)
    with pytest.raises(error):
        factor_in_place(positive(150, rng))
