"""Kernel operators on several devices, and rows that move to where they are used.

The devices are logical: two or three parts of one CPU.
"""

from concurrent.futures import Future

import array_api_strict as strict
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import clone, config_context

from eigenkern import (
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeRegressor,
    LinearEigenProRegressor,
    NystromRegressor,
    NytroRegressor,
    RandomFourierFeatures,
)
from eigenkern.arrays import devices, memory
from eigenkern.arrays.array import device_of, location_of, to_numpy
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
from eigenkern.operators.sharded import ShardedKernel, kernel_operator
from eigenkern.operators.tiled import TiledKernel
from eigenkern.problems import problem as problem_module
from eigenkern.rows.transfer import StreamedRows, move_what_fits

CPU = location_of(np.empty(0))
KERNELS = [
    Gaussian(1.5),
    Laplacian(1.5),
    Manhattan(1.5),
    Cauchy(1.5),
    Matern(1.5),
    Polynomial(1.5),
    Linear(),
    CallableKernel(lambda X, Z: np.tanh(X @ Z.T)),
]


@pytest.fixture(params=[2, 3])
def places(request):
    return [CPU] * request.param


@pytest.fixture
def data(rng):
    """Rows, centers, and coefficients of the centers."""
    Z = rng.standard_normal((101, 4))
    Z[70] = Z[3]  # equal rows on two devices
    return rng.standard_normal((57, 4)), Z, rng.standard_normal((101, 3))


# Products


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_products_are_those_of_one_device(kernel, places, data):
    X, Z, A = data
    one = TiledKernel(kernel, Z, X)
    several = kernel_operator(kernel, Z, places, X)
    assert isinstance(several, ShardedKernel) and several.shape == (57, 101)
    assert_allclose(several @ A, one @ A, atol=1e-12)
    F, leading = several.product_and_columns(A, 5, 40, n_columns=60)
    expected, expected_leading = one.product_and_columns(A, 5, 40, n_columns=60)
    assert_allclose(F, expected, atol=1e-12)
    assert_allclose(leading, expected_leading, atol=1e-13)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_blocks_are_those_of_one_device(kernel, places, data):
    X, Z, _ = data
    several, one = ShardedKernel(kernel, Z, places, X), TiledKernel(kernel, Z, X)
    assert_allclose(several.block(), one.block(), atol=1e-13)
    K = several.block(3, 20, 25, 80, dtype=np.float32)
    assert K.dtype == np.float32
    assert_allclose(K, one.block(3, 20, 25, 80), rtol=1e-6)
    out = np.full((60, 101), np.nan)
    several.block(0, 57, out=out)
    assert_array_equal(out[:57], several.block())
    assert np.isnan(out[57:]).all()


def test_diagonal_is_exact_on_every_device(places, rng):
    Z = (1e3 + rng.standard_normal((90, 5))).astype(np.float32)
    K = ShardedKernel(Laplacian(1e-3), Z, places).block()
    assert_array_equal(K, TiledKernel(Laplacian(1e-3), Z).block())
    assert_array_equal(np.diag(K), 1.0)
    rows = ShardedKernel(Laplacian(1e-3), Z, places).product(np.eye(90), 40, 70)
    assert_array_equal(rows, np.eye(90)[40:70])


def test_sums_of_products_are_those_of_one_device(places, data, rng):
    X, Z, A = data
    targets, weights = rng.standard_normal((57, 3)), rng.random(57)
    several = ShardedKernel(Gaussian(1.5), Z, places, X)
    one = TiledKernel(Gaussian(1.5), Z, X)
    expected = one.normal_product(A, targets, weights)
    assert_allclose(several.normal_product(A, targets, weights), expected, rtol=1e-10)
    for sums, of_one in zip(
        several.gram(targets, weights), one.gram(targets, weights), strict=True
    ):
        assert_allclose(sums, of_one, rtol=1e-10)
    other = several.rows(X[:9, :])
    assert_allclose(other @ A, (one @ A)[:9], rtol=1e-10)


def test_the_matrix_of_a_step_stays_where_it_is(places, data, rng):
    X, Z, A = data
    G, entries = rng.standard_normal((57, 3)), []

    def watched(X, Z):
        entries.append(X.shape[0] * Z.shape[0])
        return Gaussian(1.5)(X, Z)

    several = ShardedKernel(CallableKernel(watched), Z, places, X)
    K = TiledKernel(Gaussian(1.5), Z, X).block()
    entries.clear()
    F, held = several.evaluated(A)
    assert sum(entries) == 57 * 101
    assert_allclose(F, K @ A, atol=1e-12)
    for n in (0, 20, 60, 101):
        assert_allclose(held.block(last=n), K[:, :n], atol=1e-13)
        assert_allclose(held.adjoint(G), K.T @ G, atol=1e-12)
    assert sum(entries) == 57 * 101  # the whole matrix was kept


def test_fewer_centers_than_devices(places, data):
    X, Z, A = data
    operator = kernel_operator(Gaussian(1.5), Z[:1], places, X)
    assert_allclose(operator @ A[:1], TiledKernel(Gaussian(1.5), Z[:1], X) @ A[:1])
    operator = kernel_operator(Gaussian(1.5), Z[:2], places, X)
    assert len(operator._shards) == 2
    assert_allclose(operator @ A[:2], TiledKernel(Gaussian(1.5), Z[:2], X) @ A[:2])
    assert operator.product(A[:2], 5, 5).shape == (0, 3)


def test_rows_are_sent_in_pieces(places, data, monkeypatch):
    X, Z, A = data
    several = ShardedKernel(Gaussian(1.5), Z, places, X)
    sent = []
    encoded_rows = several.encoded_rows
    monkeypatch.setattr("eigenkern.operators.sharded.SENT_BYTES", 20 * 6 * 8)
    monkeypatch.setattr(
        several, "encoded_rows", lambda a, b: sent.append((a, b)) or encoded_rows(a, b)
    )
    F = several @ A
    assert sent == [(0, 20), (20, 40), (40, 57)]
    assert_allclose(F, TiledKernel(Gaussian(1.5), Z, X) @ A, rtol=1e-10)


# Estimators


@pytest.mark.parametrize("cache_size", [0, 10.0, "auto"])
@pytest.mark.parametrize(
    "model",
    [
        EigenProRegressor(max_iter=3),
        EigenProRegressor(algorithm="eigenpro2", max_iter=50),
        EigenProRegressor(algorithm="eigenpro1", max_iter=3),
        EigenProRegressor(algorithm="eigenpro4", n_centers=50, max_iter=50),
        EigenProRegressor(n_centers=50, max_iter=3),
        EigenProRegressor(kernel="linear", max_iter=3, early_stopping=True),
        NystromRegressor(alpha=1e-3, n_centers=50),
        NystromRegressor(alpha=1e-3),
        NytroRegressor(max_iter=20, n_centers=50),
        FalkonLikeRegressor(alpha=1e-3, n_centers=50),
    ],
    ids=lambda model: f"{type(model).__name__}-{model.n_centers}",
)
@pytest.mark.filterwarnings("ignore:.* it still falls there")
def test_estimators_on_several_devices(model, cache_size, regression):
    X, y, X_test, _ = regression
    # What a cache allows, a factor of 50 centers, is not the same model; all rows have
    # none on several devices.
    same = cache_size if getattr(model, "n_centers", None) else 0
    model = clone(model).set_params(random_state=0, cache_size=same)
    expected = model.fit(X, y).predict(X_test)
    model.set_params(device=["cpu", "cpu"], cache_size=cache_size)
    F = model.fit(X, y).predict(X_test)
    assert_allclose(F, expected, atol=1e-6)
    assert_allclose(model.set_params(device="auto").predict(X_test), F, atol=1e-10)


@pytest.mark.parametrize(
    "device, message",
    [
        ([], r"device must be one device or a list .*; got \[\]"),
        (["cpu", "auto"], r"'auto' not among them; got \['cpu', 'auto'\]"),
        (["cpu", "tpu"], "or a list of devices; got 'tpu'"),
    ],
)
def test_wrong_lists_of_devices(device, message, regression):
    with pytest.raises(ValueError, match=message):
        EigenProRegressor(device=device).fit(*regression[:2])


@pytest.mark.parametrize(
    "model", [DSGRegressor(), LinearEigenProRegressor(), RandomFourierFeatures()]
)
def test_one_device_only(model, regression):
    model.set_params(device=["cpu", "cpu"])
    with pytest.raises(ValueError, match=r"one device: only .*; got \['cpu', 'cpu'\]"):
        model.fit(*regression[:2])


# Rows on another device


@pytest.fixture
def elsewhere(data):
    """Rows on another device than the CPU that computes."""
    return strict.asarray(data[0], device=strict.Device("device1"))


def test_rows_are_moved_when_used(data, elsewhere):
    X, Z, A = data
    operator = TiledKernel(Gaussian(1.5), Z, elsewhere)
    assert_allclose(operator @ A, TiledKernel(Gaussian(1.5), Z, X) @ A, rtol=1e-12)
    assert type(operator @ A) is np.ndarray


def test_rows_are_moved_in_any_order(data, elsewhere, rng):
    order = rng.permutation(57)[:40]
    rows = StreamedRows(elsewhere, *CPU, order)
    assert rows.shape == (40, 4)
    rows.expect(10, 20)
    assert_array_equal(rows[10:20, :], data[0][order[10:20]])
    assert_array_equal(rows[30:99, :], data[0][order[30:]])


@pytest.mark.parametrize(
    "model",
    [
        EigenProClassifier(batch_size=40, n_components=9, early_stopping=True),
        EigenProRegressor(batch_size=40, n_centers=30, n_components=9),
        EigenProRegressor(batch_size=40, algorithm="eigenpro1", n_components=9),
        LinearEigenProRegressor(batch_size=40),
        NystromRegressor(alpha="path", n_centers=30),
        NystromRegressor(alpha="path", selection="loo"),
        NytroRegressor(n_centers=30),
        FalkonLikeRegressor(alpha=1e-3, n_centers=30, centers="kmeans"),
        DSGRegressor(max_iter=2),
    ],
    ids=lambda model: f"{type(model).__name__}-{getattr(model, 'n_centers', None)}",
)
def test_computing_elsewhere_comes_back(model, three_classes, monkeypatch):
    torch = pytest.importorskip("torch")
    X, y = three_classes
    model.set_params(random_state=0)
    here = clone(model).fit(X, y)
    place = location_of(torch.zeros(1))
    used = []
    monkeypatch.setattr(
        devices, "_location", lambda device, X: used.append(device) or place
    )
    monkeypatch.setattr("eigenkern.estimators.doubly_stochastic._N_SENT", 50)
    there = clone(model).fit(X, y)
    fitted = {name: value for name, value in vars(there).items() if name[-1] == "_"}
    for name, value in vars(here).items():
        if name[-1] == "_" and isinstance(value, np.ndarray):
            assert type(fitted[name]) is np.ndarray
            if value.dtype.kind == "f":
                assert_allclose(fitted[name], value, rtol=1e-6, atol=1e-6)
    assert type(there.predict(X)) is np.ndarray
    assert_allclose(there.predict(X), here.predict(X), atol=1e-8)
    assert used


class Copies:
    """A substitute for copies to a GPU: it records starts and copies at once."""

    def __init__(self):
        self.started = []

    def start(self, read, start, shape, dtype):
        copy = Future()
        copy.set_result(read(start, start + shape[0]))
        assert copy.result().shape == shape and copy.result().dtype == dtype
        self.started.append(tuple(np.asarray(copy.result()[:, 0], dtype=int)))
        return copy


def test_the_next_rows_are_on_their_way():
    X = np.arange(10.0)[:, None] * np.ones(2)
    rows = StreamedRows(X, *CPU)
    rows._copies = copies = Copies()
    assert_array_equal(rows[0:4, :], X[:4])
    assert copies.started == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert_array_equal(rows[4:8, :], X[4:8])
    assert copies.started[2:] == [(8, 9)]
    assert_array_equal(rows[8:10, :], X[8:])
    assert len(copies.started) == 3
    rows.expect(2, 5)  # in another order: only announced ranges come early
    assert copies.started[3:] == [(2, 3, 4)]
    assert_array_equal(rows[2:5, :], X[2:5])
    assert_array_equal(rows[0:1, :], X[:1])
    assert copies.started[4:] == [(0,)]


@pytest.mark.parametrize(
    "model",
    [
        EigenProClassifier(n_centers=20, max_iter=3),
        NystromRegressor(alpha="path", n_centers=20),
        NystromRegressor(alpha="path", n_centers=20, centers="kmeans"),
        FalkonLikeRegressor(alpha=1e-3, n_centers=20),
        FalkonLikeRegressor(alpha=1e-3, n_centers=20, centers="rpcholesky"),
    ],
)
@pytest.mark.parametrize("free", [1e12, 3.2e6])
def test_data_that_does_not_fit_is_streamed(model, free, three_classes, monkeypatch):
    X, y = three_classes
    # Wide rows: the memory they leave is enough to measure the step.
    X = np.hstack([X, np.zeros((180, 600))])
    model.set_params(random_state=0, cache_size=0)
    expected = model.fit(X, y).predict(X)
    moved = []
    move = problem_module.move

    def record(values, *place):
        if tuple(values.shape) == X.shape:
            moved.append(values)
        return move(values, *place)

    monkeypatch.setattr(problem_module, "move", record)
    monkeypatch.setattr(memory, "available", lambda xp, device: free)
    if not isinstance(model, EigenProClassifier):
        monkeypatch.setattr(
            "eigenkern.plan.sizes.ClosedForm.check_memory",
            lambda *args: None,
        )
        # Few of many rows are left out, but here it would be all of them.
        monkeypatch.setattr(
            "eigenkern.problems.basis_centers.n_left_out", lambda *args: 20
        )
    device = strict.Device("device1")
    with config_context(array_api_dispatch=True):
        X_there = strict.asarray(X, device=device)
        y_there = strict.asarray(y, device=device)
        F = model.set_params(device="cpu").fit(X_there, y_there).predict(X_there)
    assert device_of(F) == device
    assert_allclose(to_numpy(F), expected, atol=1e-7)
    assert bool(moved) == (free == 1e12)


def test_what_does_not_fit_says_what_would(data, elsewhere, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda xp, device: 1000.0)
    place = location_of(elsewhere)
    assert move_what_fits(elsewhere, *place) is elsewhere
    message = "57 rows and as much .* but 0 MB are free there: 15 rows would fit"
    with pytest.raises(MemoryError, match=message):
        move_what_fits(data[0], *place)
    with pytest.raises(MemoryError, match="15 rows would fit"):
        kernel_operator(Gaussian(), data[0], [place])
