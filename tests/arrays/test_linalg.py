"""Linear algebra against NumPy's."""

import array_api_compat
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from eigenkern.arrays import linalg
from eigenkern.arrays.array import to_numpy
from eigenkern.arrays.linalg import (
    cholesky,
    eigh,
    inverse_diagonal,
    largest_eigenvalues,
    plus_diagonal,
    right_singular_vectors,
    solve_triangular,
    spanning_factor,
    top_eigh,
)


def symmetric(eigenvalues, rng):
    """Return a symmetric matrix with the given eigenvalues."""
    Q = np.linalg.qr(rng.standard_normal((len(eigenvalues),) * 2))[0]
    return (Q * eigenvalues) @ Q.T


@pytest.mark.parametrize("q", [1, 7, 40])
def test_top_eigh(q, rng):
    K = symmetric(0.8 ** np.arange(40), rng)
    values, vectors = top_eigh(K, q)
    assert_allclose(values, np.linalg.eigvalsh(K)[::-1][:q], rtol=1e-9)
    assert_allclose(K @ vectors, vectors * values, atol=1e-12)
    assert_allclose(vectors.T @ vectors, np.eye(q), atol=1e-12)


def test_top_eigh_in_other_libraries(other_xp, rng):
    K = symmetric(0.8 ** np.arange(20), rng)
    values, vectors = (to_numpy(x) for x in top_eigh(other_xp.asarray(K), 5))
    assert_allclose(values, np.linalg.eigvalsh(K)[::-1][:5], rtol=1e-9)
    assert_allclose(K @ vectors, vectors * values, atol=1e-12)


SPECTRA = {
    "geometric": 0.9 ** np.arange(200),
    "polynomial": 1.0 / (1 + np.arange(200)) ** 1.5,
    "close": np.concatenate([[1.0, 0.99, 0.98], 0.5 / (1 + np.arange(197))]),
    "flat": np.ones(200),
    "rank one": np.eye(200)[0],
    "zero": np.zeros(200),
    "negative": -1.0 / (1 + np.arange(200)),
    "one row": np.array([3.0]),
}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_largest_eigenvalues(name, dtype, rng):
    eigenvalues = 100 * SPECTRA[name]
    K = symmetric(eigenvalues, rng).astype(dtype)
    scales = np.asarray([1.0, 0.0, 1e-3], dtype=dtype)
    start = rng.standard_normal((len(K), 3)).astype(dtype)
    values = largest_eigenvalues(lambda V: K @ V * scales, start)
    assert_allclose(values, max(eigenvalues.max(), 0) * scales, rtol=0.01, atol=1e-5)


def test_largest_eigenvalue_ignores_the_scale_of_the_start(rng):
    K, start = symmetric(0.9 ** np.arange(50), rng), rng.standard_normal((50, 1))
    values = [largest_eigenvalues(lambda V: K @ V, c * start) for c in (1.0, 1e8)]
    assert_allclose(values[0], values[1], rtol=1e-10)


@pytest.fixture(params=["numpy", "array_api_strict", "torch"])
def any_xp(request):
    return array_api_compat.array_namespace(pytest.importorskip(request.param).zeros(1))


def test_eigh(any_xp, rng):
    K = symmetric(0.5 ** np.arange(12), rng)
    values, vectors = (to_numpy(x) for x in eigh(any_xp.asarray(K.copy())))
    assert_allclose(values, np.linalg.eigvalsh(K), atol=1e-14)
    assert_allclose(K @ vectors, vectors * values, atol=1e-14)


@pytest.mark.parametrize("size", [1024, 7])
@pytest.mark.parametrize("of_rows", [True, False])
def test_plus_diagonal_changes_the_matrix(of_rows, size, any_xp, monkeypatch, rng):
    monkeypatch.setattr(linalg, "_DIAGONAL_ROWS", size)
    A, values = rng.standard_normal((20, 20)), rng.random(20) if of_rows else 0.5
    K = any_xp.asarray(A, copy=True)
    value = any_xp.asarray(values) if of_rows else values
    assert plus_diagonal(K, value) is K
    assert_allclose(to_numpy(K), A + values * np.eye(20), rtol=1e-15)
    part = plus_diagonal(K[2:12, 5:15], 1.0)  # a view
    assert_allclose(to_numpy(part), (A + values * np.eye(20))[2:12, 5:15] + np.eye(10))
    assert_allclose(to_numpy(K)[2:12, 5:15], to_numpy(part))


def test_cholesky(any_xp, rng):
    K = symmetric(0.5 ** np.arange(12), rng)
    L = to_numpy(cholesky(any_xp.asarray(K.copy())))
    assert_allclose(L, np.linalg.cholesky(K), atol=1e-13)
    assert cholesky(any_xp.asarray(-K)) is None
    assert cholesky(any_xp.asarray(np.full((3, 3), np.nan))) is None


@pytest.mark.parametrize(("size", "tile"), [(5, 256), (20, 6), (21, 7)])
@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_shifted_cholesky_keeps_the_matrix(size, tile, shift, monkeypatch, rng):
    monkeypatch.setattr(linalg, "_TILE", tile)
    K = symmetric(np.linspace(1.0, 2.0, size), rng)
    expected = np.linalg.cholesky(K + shift * np.eye(size))
    V = rng.standard_normal((size, 3))
    L, product = linalg.shifted_cholesky(K.copy(), shift)
    assert_allclose(np.tril(L), expected, atol=1e-13)
    assert_allclose(solve_triangular(L, V), np.linalg.solve(expected, V), atol=1e-12)
    assert_allclose(product(V), K @ V, atol=1e-13)
    assert linalg.shifted_cholesky(-K, shift)[0] is None
    assert linalg.shifted_cholesky(np.full_like(K, np.nan), shift)[0] is None


def test_first_cholesky_takes_the_first_shift_that_has_a_factor(other_xp, rng):
    K = other_xp.asarray(symmetric(np.linspace(-0.5, 2.0, 20), rng))
    kept, shifts = to_numpy(K).copy(), [0.0, 0.4, other_xp.ones_like(K[0, :]), 9.0]
    L = to_numpy(linalg.first_cholesky(K, shifts))
    assert_allclose(L @ L.T, kept + np.eye(20), atol=1e-12)
    assert np.array_equal(to_numpy(K), kept)
    with pytest.raises(ValueError, match="no Cholesky factor"):
        linalg.first_cholesky(K, shifts[:2])


@pytest.mark.parametrize("transposed", [False, True])
def test_solve_triangular(transposed, any_xp, rng):
    L, B = np.tril(rng.random((9, 9))) + np.eye(9), rng.random((9, 2))
    found = solve_triangular(
        any_xp.asarray(L), any_xp.asarray(B), transposed=transposed
    )
    A = L.T if transposed else L
    assert_allclose(to_numpy(found), np.linalg.solve(A, B), atol=1e-12)


def test_inverse_diagonal(any_xp, rng):
    A = rng.standard_normal((70, 70))
    A = A @ A.T + np.eye(70)
    L = any_xp.asarray(np.linalg.cholesky(A))
    before = to_numpy(L).copy()
    expected = np.diag(np.linalg.inv(A))
    assert_allclose(to_numpy(inverse_diagonal(L)), expected, rtol=1e-10)
    expected = np.diag(np.linalg.inv(before[30:, 30:] @ before[30:, 30:].T))
    assert_allclose(to_numpy(inverse_diagonal(L[30:, 30:])), expected, rtol=1e-10)
    assert_allclose(to_numpy(L), before)


def test_spanning_factor(any_xp, rng):
    A = rng.standard_normal((20, 6))
    K = A @ A.T
    kept, L = spanning_factor(any_xp.asarray(K), 1e-10)
    L = to_numpy(L)
    assert len(kept) == 6
    assert_allclose(L @ L.T, K[np.ix_(kept, kept)], atol=1e-12)
    rest = np.linalg.solve(L, K[kept])
    assert_allclose(rest.T @ rest, K, atol=1e-9)
    # The largest first.
    assert kept[0] == K.diagonal().argmax()
    assert (np.diff(L.diagonal()) <= 0).all()
    kept, L = spanning_factor(any_xp.asarray(K + np.eye(20)), 1e-10)
    assert_array_equal(kept, np.arange(20))
    assert_allclose(to_numpy(L), np.linalg.cholesky(K + np.eye(20)), atol=1e-12)


def test_spanning_factor_of_nothing():
    kept, L = spanning_factor(np.zeros((4, 4)), 0.0)
    assert len(kept) == 0 and L.shape == (0, 0)


@pytest.mark.parametrize("shape", [(60, 40), (30, 90), (300, 200)])
def test_right_singular_vectors(shape, any_xp, rng):
    """Exact where few columns span the range, accurate where the values decay."""
    U, _, Vt = np.linalg.svd(rng.standard_normal(shape), full_matrices=False)
    expected = 0.8 ** np.arange(min(shape))
    A = any_xp.asarray((U * expected) @ Vt)
    values, V = right_singular_vectors(
        lambda B: A @ B, lambda B: A.T @ B, shape, 20, A, np.random.RandomState(0)
    )
    values, V = to_numpy(values), to_numpy(V)
    assert V.shape == (shape[1], 20)
    assert_allclose(values, expected[:20], rtol=1e-4)
    assert_allclose(V.T @ V, np.eye(20), atol=1e-12)
    assert_allclose(np.abs(np.sum(V[:, :10] * Vt[:10].T, axis=0)), 1.0, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("decay", [0.9, 0.7, 0.5, 0.1, 0.0])
def test_singular_vectors_of_any_condition(decay, dtype, rng):
    """Even if a Gram matrix cannot resolve small values, or all are zero."""
    U, _, Vt = np.linalg.svd(rng.standard_normal((150, 90)), full_matrices=False)
    expected = decay ** np.arange(90)
    A = ((U * expected) @ Vt).astype(dtype)
    values, V = right_singular_vectors(
        lambda B: A @ B, lambda B: A.T @ B, A.shape, 20, A, np.random.RandomState(0)
    )
    eps = np.finfo(dtype).eps
    assert values.dtype == V.dtype == dtype
    assert_allclose(values, expected[:20], rtol=1e-3, atol=10 * eps)
    # What is left without them is the next value, or rounding.
    left = np.linalg.norm(A - (A @ V) @ V.T, 2)
    assert left < 1.1 * expected[20] + 10 * eps
    assert_allclose(V.T @ V, np.eye(20), atol=1e3 * eps)


def test_inverse_squares(rng, monkeypatch):
    A = rng.standard_normal((70, 70))
    L = np.linalg.cholesky(A @ A.T + np.eye(70))
    index = np.array([3, 8, 9, 31, 40, 64, 69])
    column = np.array([2, 0, 2, 1, 3, 0, 3])
    values = rng.standard_normal(7)
    U = np.zeros((70, 4))
    U[index, column] = values
    expected = np.diag(U.T @ np.linalg.inv(L @ L.T) @ U)
    for panel in (256, 16):
        monkeypatch.setattr(linalg, "_NARROW_PANEL", panel)
        found = linalg.inverse_squares(L, index, column, values)
        assert_allclose(found, expected, rtol=1e-10)
