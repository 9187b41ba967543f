"""CuPy on a CUDA device agrees with NumPy; skipped where there is none."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn import config_context

from eigenkern import (
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeRegressor,
    LinearEigenProRegressor,
    NystromRegressor,
    NytroRegressor,
    RandomFourierFeatures,
    RBFNetworkFeatures,
)
from eigenkern._operator import KernelOperator
from eigenkern.kernels import Cauchy, Gaussian, Laplacian, Matern, Polynomial

pytestmark = pytest.mark.gpu


@pytest.fixture
def cupy():
    library = pytest.importorskip("cupy")
    try:
        n_devices = library.cuda.runtime.getDeviceCount()
    except library.cuda.runtime.CUDARuntimeError:
        n_devices = 0
    if n_devices == 0:
        pytest.skip("no CUDA device")
    return library


@pytest.mark.parametrize(
    "kernel", [Gaussian(2.0), Laplacian(2.0), Cauchy(2.0), Matern(2.0), Polynomial(2.0)]
)
def test_operator(kernel, cupy, rng):
    X, A = rng.standard_normal((300, 5)), rng.standard_normal((300, 3))
    expected = KernelOperator(kernel, X) @ A
    operator = KernelOperator(kernel, cupy.asarray(X), tile_memory=0.1)
    assert_allclose((operator @ cupy.asarray(A)).get(), expected, rtol=1e-10)
    operator.fill_cache(128)
    assert_allclose((operator @ cupy.asarray(A)).get(), expected, rtol=1e-10)


@pytest.mark.parametrize("dtype, rtol", [(np.float32, 1e-3), (np.float64, 1e-9)])
@pytest.mark.parametrize(
    "model",
    [
        EigenProRegressor(),
        EigenProRegressor(algorithm="eigenpro1"),
        EigenProRegressor(algorithm="eigenpro1", svd_solver="randomized"),
        EigenProRegressor(n_centers=30),
        EigenProRegressor(n_centers=30, cache_size=0),
        LinearEigenProRegressor(),
    ],
)
def test_arrays_stay_on_the_device(model, dtype, rtol, cupy, regression):
    X, y, X_test, _ = (array.astype(dtype) for array in regression)
    model.set_params(batch_size=20, n_components=10, step_size=1.0, random_state=0)
    expected = model.fit(X, y).predict(X_test)
    with config_context(array_api_dispatch=True):
        model.fit(cupy.asarray(X), cupy.asarray(y))
        F = model.predict(cupy.asarray(X_test))
    assert isinstance(F, cupy.ndarray) and isinstance(model.eigenvalues_, cupy.ndarray)
    assert_allclose(F.get(), expected, rtol=rtol, atol=rtol)


def test_host_data_on_the_device(cupy, three_classes):
    X, y = three_classes
    options = {"batch_size": 20, "n_components": 10, "random_state": 0}
    expected = EigenProClassifier(**options).fit(X, y).decision_function(X)
    model = EigenProClassifier(device="cuda", **options).fit(X, y)
    assert isinstance(model.dual_coef_, np.ndarray)
    assert_allclose(model.decision_function(X), expected, atol=1e-8)


@pytest.mark.parametrize(
    "model",
    [
        FalkonLikeRegressor(alpha=1e-4, max_iter=50),
        NystromRegressor(alpha="path"),
        NystromRegressor(alpha="path", selection="loo"),
        NytroRegressor(max_iter=50),
    ],
)
@pytest.mark.parametrize("n_centers", [None, 40])
def test_models_on_centers(model, n_centers, cupy, regression):
    X, y, X_test, _ = regression
    model.set_params(n_centers=n_centers, random_state=0)
    expected = model.fit(X, y).predict(X_test)
    with config_context(array_api_dispatch=True):
        model.fit(cupy.asarray(X), cupy.asarray(y))
        F = model.predict(cupy.asarray(X_test))
    assert isinstance(F, cupy.ndarray) and isinstance(model.dual_coef_, cupy.ndarray)
    assert_allclose(F.get(), expected, atol=1e-6)


@pytest.mark.parametrize("cache_size", ["auto", 0])
def test_random_features_are_the_same(cache_size, cupy, regression):
    X, y, X_test, _ = regression
    model = DSGRegressor(
        batch_size=40, max_iter=2, cache_size=cache_size, random_state=0
    )
    expected = model.fit(X, y).partial_fit(X, y).predict(X_test)
    with config_context(array_api_dispatch=True):
        X, y, X_test = (cupy.asarray(part) for part in (X, y, X_test))
        model.fit(X, y).partial_fit(X, y)
        assert isinstance(model.coef_, cupy.ndarray)
        assert_allclose(model.predict(X_test).get(), expected, atol=1e-8)


@pytest.mark.parametrize(
    "model",
    [
        RandomFourierFeatures(n_components=101, random_state=0),
        RBFNetworkFeatures(n_components=60, random_state=0),
        RBFNetworkFeatures(n_components=20, centers="kmeans", random_state=0),
    ],
)
@pytest.mark.parametrize("dtype, atol", [(np.float32, 1e-5), (np.float64, 1e-10)])
def test_features(model, dtype, atol, cupy, regression):
    X = regression[0].astype(dtype)
    expected = model.fit_transform(X)
    on_device = model.set_params(device="cuda").fit_transform(X)
    assert isinstance(on_device, np.ndarray) and on_device.dtype == dtype
    assert_allclose(on_device, expected, atol=atol)
    model.set_params(device="auto")
    with config_context(array_api_dispatch=True):
        phi = model.fit_transform(cupy.asarray(X))
    assert isinstance(phi, cupy.ndarray)
    assert_allclose(phi.get(), expected, atol=atol)
