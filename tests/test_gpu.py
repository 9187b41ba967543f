"""CuPy on a CUDA device agrees with NumPy; skipped where there is none."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
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
from eigenkern.arrays import array, memory
from eigenkern.arrays.array import Location, namespace, run_cuda
from eigenkern.kernels import (
    Cauchy,
    Gaussian,
    Laplacian,
    Manhattan,
    Matern,
    Polynomial,
)
from eigenkern.operators.cached import cached
from eigenkern.operators.sharded import kernel_operator
from eigenkern.operators.tiled import TiledKernel
from eigenkern.rows.transfer import StreamedRows

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "kernel",
    [
        Gaussian(2.0),
        Laplacian(2.0),
        Manhattan(2.0),
        Cauchy(2.0),
        Matern(2.0),
        Polynomial(2.0),
    ],
)
def test_operator(kernel, cupy, rng):
    X, A = rng.standard_normal((300, 5)), rng.standard_normal((300, 3))
    expected = TiledKernel(kernel, X) @ A
    operator = TiledKernel(kernel, cupy.asarray(X), tile_memory=0.1)
    assert_allclose((operator @ cupy.asarray(A)).get(), expected, rtol=1e-10)
    (operator,), _ = cached([operator], 1000, 1, 5)
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


@pytest.mark.parametrize("n_shards", [1, 2, "all"])
def test_host_rows_are_streamed(n_shards, cupy, rng):
    X, Z = rng.standard_normal((3000, 5)), rng.standard_normal((400, 5))
    A, targets = rng.standard_normal((400, 3)), rng.standard_normal((3000, 3))
    one = TiledKernel(Laplacian(2.0), Z, X)
    n = cupy.cuda.runtime.getDeviceCount() if n_shards == "all" else n_shards
    devices = [cupy.cuda.Device(i if n_shards == "all" else 0) for i in range(n)]
    places = [Location(namespace(cupy.empty(0)), device) for device in devices]
    operator = kernel_operator(Laplacian(2.0), Z, places, X)
    operator.budget = 2e5  # of many tiles
    there = cupy.asarray(A)
    for _ in range(3):
        assert_allclose((operator @ there).get(), one @ A, rtol=1e-9)
    sums = operator.normal_product(there, cupy.asarray(targets))
    assert_allclose(sums.get(), one.normal_product(A, targets), rtol=1e-8)
    symmetric = kernel_operator(Laplacian(2.0), Z, places) @ there
    assert_allclose(symmetric.get(), TiledKernel(Laplacian(2.0), Z) @ A, rtol=1e-9)


def test_rows_come_in_any_order(cupy, rng):
    X = rng.standard_normal((5000, 7)).astype(np.float32)
    order = rng.permutation(5000)
    place = Location(namespace(cupy.empty(0)), cupy.cuda.Device(0))
    rows = StreamedRows(X, *place, order)
    starts = rng.permutation(np.arange(0, 5000, 100)).tolist()
    for start, following in zip(starts, [*starts[1:], starts[0]], strict=True):
        block = rows[start : start + 100, :]
        rows.expect(following, following + 100)
        busy = cupy.ones((2000, 2000)) @ cupy.ones((2000, 2000))
        assert_array_equal(block.get(), X[order[start : start + 100]])
        assert float(busy[0, 0]) == 2000.0


def test_what_does_not_fit_says_what_would(cupy, monkeypatch, rng):
    monkeypatch.setattr(memory, "available", lambda xp, device: 1e4)
    X = rng.standard_normal((400, 5))
    with pytest.raises(MemoryError, match="125 rows would fit"):
        EigenProRegressor(device="cuda").fit(X, X[:, 0])


def test_a_device_that_is_not_there(cupy, rng):
    n = cupy.cuda.runtime.getDeviceCount()
    X = rng.standard_normal((40, 5))
    with pytest.raises(ValueError, match=rf"'cuda:{n}' is not there: {n} GPU"):
        EigenProRegressor(device=f"cuda:{n}").fit(X, X[:, 0])


@pytest.mark.parametrize(
    "kernel", [Gaussian(), Laplacian(), Cauchy(), Matern(nu=2.5), Polynomial()]
)
@pytest.mark.parametrize("dtype, rtol", [(np.float32, 1e-5), (np.float64, 1e-13)])
def test_fused_functions(kernel, dtype, rtol, cupy, rng, monkeypatch):
    monkeypatch.setattr(array, "_NUMPY_HAS_VECTOR_MATH", False)
    T = rng.standard_normal((50, 70)).astype(dtype)
    there = cupy.asarray(T)
    found = run_cuda(kernel.cuda, there)
    assert found.data.ptr == there.data.ptr
    assert_allclose(found.get(), kernel.finish(np, T), rtol=rtol)


def test_models_on_several_devices(cupy, regression):
    X, y, X_test, _ = regression
    model = EigenProRegressor(step_size=1.0, batch_size=20, n_components=10)
    model.set_params(random_state=0, cache_size=0)
    expected = model.fit(X, y).predict(X_test)
    model.set_params(device=["cuda:0", "cuda:0"]).fit(X, y)
    assert isinstance(model.dual_coef_, np.ndarray)
    assert_allclose(model.predict(X_test), expected, rtol=1e-8)


@pytest.mark.parametrize(
    "model",
    [
        FalkonLikeRegressor(alpha=1e-4, max_iter=50),
        NystromRegressor(alpha="path"),
        NystromRegressor(alpha="path", selection="loo"),
        NytroRegressor(),
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
        RBFNetworkFeatures(n_centers=60, random_state=0),
        RBFNetworkFeatures(n_centers=20, centers="kmeans", random_state=0),
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
