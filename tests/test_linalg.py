"""Linear algebra against NumPy's."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenkern._array import to_numpy
from eigenkern._linalg import largest_eigenvalue, top_eigh


def symmetric(eigenvalues, rng):
    """Return a symmetric matrix of the given eigenvalues."""
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
def test_largest_eigenvalue(name, dtype, rng):
    eigenvalues = 100 * SPECTRA[name]
    K = symmetric(eigenvalues, rng).astype(dtype)
    start = rng.standard_normal(len(K)).astype(dtype)
    value = largest_eigenvalue(lambda v: K @ v, start)
    assert_allclose(value, max(eigenvalues.max(), 0), rtol=0.01, atol=1e-5)


def test_largest_eigenvalue_ignores_the_scale_of_the_start(rng):
    K, start = symmetric(0.9 ** np.arange(50), rng), rng.standard_normal(50)
    values = [largest_eigenvalue(lambda v: K @ v, c * start) for c in (1.0, 1e8)]
    assert_allclose(values[0], values[1], rtol=1e-10)
