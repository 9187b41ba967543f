"""Gradients as products of another kernel matrix, against their formula."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenkern.arrays.array import location_of
from eigenkern.kernels import (
    Cauchy,
    Gaussian,
    Laplacian,
    Linear,
    Manhattan,
    Matern,
    Polynomial,
)
from eigenkern.operators.gradient import FourierGradient, KernelGradient, MappedGradient
from eigenkern.operators.waves import FourierBlocks

CPU = location_of(np.empty(0))
KERNELS = [
    Gaussian(2.0),
    Laplacian(2.0),
    Manhattan(2.0),
    Cauchy(2.0),
    Matern(2.0, nu=1.5),
    Matern(2.0, nu=2.5),
    Polynomial(2.0, degree=1),
    Polynomial(2.0, degree=3),
    Linear(),
]
kernels = pytest.mark.parametrize("kernel", KERNELS, ids=repr)


@pytest.fixture
def data(rng):
    """Rows, centers (some equal to rows), and coefficients."""
    X, Z = rng.standard_normal((30, 4)), rng.standard_normal((25, 4))
    Z[:5] = X[:5]
    return X, Z, rng.standard_normal((25, 3))


def naive(kernel, X, Z, coef):
    """Return the sum over the centers, one gradient at a time."""
    slope = kernel.slope()
    away = Z[None, :, :] - (X[:, None, :] if slope.direction != "z" else 0.0)
    if slope.direction == "sign(z - x)":
        away = np.sign(away)
    each = slope.factor * slope.kernel(X, Z)[:, :, None] * away
    return np.einsum("ijd,jl->idl", each, coef)


@kernels
@pytest.mark.parametrize("n_devices", [1, 2])
def test_kernel_gradient_is_the_sum(kernel, n_devices, data):
    X, Z, coef = data
    expected = naive(kernel, X, Z, coef)
    gradient = KernelGradient(kernel, Z, coef, n_devices * [CPU], X)
    assert gradient.shape == expected.shape == (30, 4, 3)
    assert_allclose(gradient.block(0, 30), expected, rtol=1e-10, atol=1e-12)
    assert_allclose(gradient.block(7, 9), expected[7:9], rtol=1e-10, atol=1e-12)
    mix = np.array([[1.0, -1.0], [1.0, 1.0], [-1.0, 0.5]])
    mixed = gradient.block(3, 20, mix)
    assert_allclose(mixed, expected[3:20] @ mix, rtol=1e-10, atol=1e-11)


@kernels
def test_kernel_gradient_in_float32(kernel, data):
    X, Z, coef = data
    arrays = (array.astype(np.float32) for array in (Z, coef))
    gradient = KernelGradient(kernel, *arrays, [CPU], X.astype(np.float32))
    found = gradient.block(0, 30)
    assert found.dtype == gradient.block(0, 2, np.ones((3, 1))).dtype == np.float32
    expected = naive(kernel, X, Z, coef)
    assert_allclose(found, expected, atol=1e-4 * abs(expected).max())


@pytest.fixture
def fourier(data, rng):
    X, Z, _ = data
    features = FourierBlocks(Gaussian(2.0), 3, 16, X, Z[0])
    return features, rng.standard_normal((5, 32, 3)), X


def test_fourier_gradient_is_the_sum(fourier):
    features, coef, X = fourier
    expected = 0.0
    for k, A in enumerate(coef):
        W = features.frequencies(k)
        T = (X - features.offset) @ W
        waves = np.concatenate([-np.sin(T), np.cos(T)], axis=1) / 16**0.5
        directions = np.concatenate([W, W], axis=1)
        expected = expected + np.einsum("if,df,fl->idl", waves, directions, A)
    gradient = FourierGradient(features, coef, X)
    assert gradient.shape == (30, 4, 3)
    assert_allclose(gradient.block(0, 30), expected, rtol=1e-10, atol=1e-11)
    mix = np.array([[1.0], [-1.0], [2.0]])
    found = gradient.block(4, 9, mix)
    assert_allclose(found, expected[4:9] @ mix, rtol=1e-10, atol=1e-11)


def test_memory_changes_nothing(data, fourier, monkeypatch):
    X, Z, coef = data
    both = KernelGradient(Laplacian(2.0), Z, coef, [CPU], X), FourierGradient(*fourier)
    expected = [gradient.block(0, 30) for gradient in both]
    monkeypatch.setattr("eigenkern.operators.gradient.GRADIENT_BYTES", 1.0)
    for gradient, values in zip(both, expected, strict=True):
        assert_allclose(gradient.block(0, 30), values, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("full", [False, True])
def test_mapped_gradient_is_the_chain_rule(full, data, rng):
    X, Z, coef = data
    R = rng.standard_normal((4, 4))
    R = R @ R.T if full else np.diag(rng.uniform(size=4))
    inner = KernelGradient(Gaussian(2.0), Z @ R, coef, [CPU], X @ R)
    root = R if full else np.diagonal(R)
    found = MappedGradient(inner, root).block(2, 11)
    K = Gaussian(2.0)
    for j, h in enumerate(1e-5 * np.eye(4)):
        values = (K((X[2:11] + i * h) @ R, Z @ R) @ coef for i in (1, -1))
        expected = (next(values) - next(values)) / 2e-5
        assert_allclose(found[:, j, :], expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_signs_of_features_in_any_unit(rng, dtype):
    """With differences far below one, equal numbers, and a feature that is zero."""
    units = np.array([1.0, 1e-30, 1e-7, 1e4, 0.0])
    X, Z = ((rng.integers(-5, 6, (m, 5)) * units).astype(dtype) for m in (9, 700))
    a, kernel = rng.standard_normal((700, 2)).astype(dtype), Manhattan(3e4)
    found = KernelGradient(kernel, Z, a, [CPU], X).block(0, 9)
    signs = np.sign(Z[None, :, :] - X[:, None, :])
    expected = np.einsum("mp,mpd,pl->mdl", kernel(X, Z), signs, a) / 3e4
    assert found.dtype == dtype
    assert_allclose(found, expected, rtol=1e-4, atol=1e-6 * abs(expected).max())
