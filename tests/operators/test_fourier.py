"""Random Fourier features against the kernels that they approximate."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from eigenkern import kernels
from eigenkern.arrays import array
from eigenkern.operators.waves import FourierBlocks, KeptSlabs

KERNELS = [
    kernels.Gaussian(1.5),
    kernels.Laplacian(1.5),
    kernels.Manhattan(1.5),
    kernels.Cauchy(1.5),
    kernels.Matern(1.5, nu=1.5),
    kernels.Matern(1.5, nu=2.5),
]


def blocks_of(kernel, X, **options):
    options = {"seed": 3, "block_size": 64} | options
    return FourierBlocks(kernel, like=X, offset=X.mean(axis=0), **options)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_products_of_features_approach_the_kernel(kernel, rng):
    X = rng.standard_normal((40, 5))
    exact = kernel(X)
    errors = []
    for n_blocks in (4, 64, 1024):
        features = blocks_of(kernel, X)
        K = sum(
            (lambda phi: phi @ phi.T)(features.features(X, k)) for k in range(n_blocks)
        )
        errors.append(np.sqrt(np.mean((K / n_blocks - exact) ** 2)))
    # D^-1/2: a factor of four each time.
    assert_allclose(errors[0] / errors[1], 4, rtol=0.35)
    assert_allclose(errors[1] / errors[2], 4, rtol=0.35)
    assert errors[2] < 0.005


def test_kernels_without_a_spectral_law_say_so(rng):
    for kernel in (kernels.Linear(), kernels.Polynomial(2.0)):
        with pytest.raises(ValueError, match="no function of x - z"):
            kernel.frequencies(rng, 3, 4)


def test_features_of_a_shorter_batch_in_between(rng):
    """Arrays are reused."""
    X, G = rng.standard_normal((5000, 5)), rng.standard_normal((5000, 2))
    features = blocks_of(KERNELS[0], X)
    for rows in (slice(0, 5000), slice(4000, 5000), slice(0, 5000)):
        tiles, product = features.adjoint(X[rows], 1, G[rows])
        phi = blocks_of(KERNELS[0], X).features(X[rows], 1)
        assert_allclose(product, phi.T @ G[rows], rtol=0, atol=1e-10)
        out = np.zeros((len(phi), 2))
        features.add_products(tiles, product, out)
        assert_allclose(out, phi @ product, rtol=0, atol=1e-10)


def test_no_rows(rng):
    X = rng.standard_normal((20, 5))
    features = blocks_of(KERNELS[0], X)
    assert features.product(X[:0], [0], [np.ones((128, 2))], 2).shape == (0, 2)


def test_a_block_drawn_again_is_the_same(rng):
    X = rng.standard_normal((20, 5))
    features = blocks_of(KERNELS[0], X, cache_bytes=3.5 * 8 * 5 * 64)
    first = [features.frequencies(k).copy() for k in range(10)]
    for k in (7, 0, 9, 0, 3, 7):
        assert_array_equal(features.frequencies(k), first[k])
        assert_array_equal(blocks_of(KERNELS[0], X).frequencies(k), first[k])
    assert len(features._cache) == 3
    assert not np.array_equal(first[0], first[1])
    assert_array_equal(blocks_of(KERNELS[0], X, seed=5).frequencies(0), first[2])


@pytest.mark.parametrize("vector_math", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_features_are_cosines_and_sines(vector_math, dtype, rng, monkeypatch):
    monkeypatch.setattr(array, "_NUMPY_HAS_VECTOR_MATH", vector_math)
    X = rng.standard_normal((3000, 5)).astype(dtype)
    X[0, :] = X.mean(axis=0)
    features = blocks_of(KERNELS[0], X)
    T = (X - X.mean(axis=0)).astype(np.float64) @ features.frequencies(2)
    expected = np.column_stack([np.cos(T), np.sin(T)]) / 8
    atol = 3e-7 if dtype == "float32" else 1e-15
    assert_allclose(features.features(X, 2), expected, atol=atol)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_are_sums_of_features(dtype, rng):
    X = rng.standard_normal((3000, 5)).astype(dtype)
    features = blocks_of(KERNELS[1], X)
    coef = rng.standard_normal((6, 128, 3)).astype(dtype)
    blocks = [4, 0, 11, 2, 2, 7]
    expected = sum(
        features.features(X, k) @ A for k, A in zip(blocks, coef, strict=True)
    )
    product = features.product(X, blocks, coef, 3)
    assert product.dtype == np.dtype(dtype)
    rtol = 1e-10 if dtype == "float64" else 1e-3
    assert_allclose(product, expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("n_bytes", [0, 1e5, 1e9])
def test_kept_products_are_the_same_bit_for_bit(n_bytes, rng, monkeypatch):
    X = rng.standard_normal((300, 5))
    features, kept = blocks_of(KERNELS[1], X), KeptSlabs(n_bytes)
    coef, evaluated = [rng.standard_normal((128, 2)) for _ in range(30)], []

    def drawn(self, blocks, coef, parts, of=FourierBlocks._slabs):
        evaluated.append(len(parts))
        return of(self, blocks, coef, parts)

    monkeypatch.setattr(FourierBlocks, "_slabs", drawn)
    for changed in ((), (), (3, 29), (), (30, 31), (0,)):
        for k in changed:
            coef[k : k + 1] = [rng.standard_normal((128, 2))]
        n, product = len(coef), features.product
        found = product(X, range(n), coef, 2, kept)
        assert_array_equal(found, product(X, range(n), coef, 2))
        assert sum(slab.values.nbytes for _, slab in kept._slabs.values()) <= n_bytes
    # Four slabs of eight blocks, of which the last one is not full.
    if n_bytes == 1e9:
        assert evaluated[::2] == [4, 0, 2, 0, 1, 1]


def test_offsets_cost_no_digits(rng):
    X = rng.standard_normal((200, 5)).astype(np.float32)
    moved = X + np.float32(1000)
    back = (moved - np.float32(1000)).astype(np.float64)
    phi = blocks_of(KERNELS[0], moved).features(moved, 0)
    expected = blocks_of(KERNELS[0], back).features(back, 0)
    assert_allclose(phi @ phi.T, expected @ expected.T, atol=1e-3)
