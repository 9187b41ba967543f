"""Rows in files that do not fit in memory."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from eigenkern import (
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeClassifier,
    FalkonLikeRegressor,
    LinearEigenProClassifier,
    LinearEigenProRegressor,
    NystromClassifier,
    NystromRegressor,
    NytroRegressor,
    RandomFourierFeatures,
    RFMClassifier,
    RFMRegressor,
)
from eigenkern.arrays import memory
from eigenkern.inspection import average_gradient_outer_product, gradient
from eigenkern.kernels import Gaussian
from eigenkern.rows import lazy_rows as lazy
from eigenkern.rows.input import lazy_rows
from eigenkern.rows.lazy_rows import StoredRows, in_memory

h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")

N = 3000


def sorted_rows():
    """Return rows and targets in the worst order for a file."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 4))
    y = np.sin(X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.normal(size=N)
    return X[np.argsort(y)], np.sort(y)


X, Y = sorted_rows()
LABELS = (Y > 0).astype(int)


def memory_map(X, folder):
    np.save(folder / "X.npy", X)
    return np.load(folder / "X.npy", mmap_mode="r")


def hdf5(X, folder):
    file = h5py.File(folder / "X.h5", "w")
    return file.create_dataset("X", data=X, chunks=(100, X.shape[1]))


def zarr_array(X, folder):
    kind = {"shape": X.shape, "dtype": X.dtype, "chunks": (100, X.shape[1])}
    array = zarr.create_array(folder / "X.zarr", **kind)
    array[:] = X
    return array


STORES = [memory_map, hdf5, zarr_array]


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
    """Files that do not fit in memory, blocks of 400 rows, sections of 1200."""
    monkeypatch.setattr("eigenkern.rows.input._fits", lambda X: False)
    monkeypatch.setattr(lazy, "_BLOCK_BYTES", 400 * 32)
    monkeypatch.setattr(lazy, "_SECTION_BYTES", 1200 * 32)
    monkeypatch.setattr(lazy, "_N_FIRST", 500)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(
    "model",
    [
        NystromRegressor(n_centers=80, alpha=1e-6, random_state=0),
        NystromRegressor(n_centers=80, alpha="path", random_state=0),
        FalkonLikeRegressor(n_centers=80, alpha=1e-6, random_state=0),
        NytroRegressor(n_centers=80, random_state=0),
    ],
    ids=["nystrom", "path", "falkon", "nytro"],
)
def test_the_same_model_in_closed_form(model, store, tmp_path):
    file = store(X, tmp_path)
    expected = model.fit(X, Y).predict(X)
    assert_allclose(model.fit(file, Y).predict(file), expected, atol=1e-9)


@pytest.mark.parametrize("cache_size", ["auto", 0])
@pytest.mark.parametrize("cls", [NystromClassifier, FalkonLikeClassifier])
def test_the_same_model_with_the_log_loss(cls, cache_size, tmp_path):
    model = cls(loss="log_loss", n_centers=80, alpha=1e-3, cache_size=cache_size)
    model.set_params(random_state=0)
    expected = clone(model).fit(X, LABELS).predict_proba(X)
    file = hdf5(X, tmp_path)
    assert_allclose(model.fit(file, LABELS).predict_proba(file), expected, atol=1e-8)


@pytest.mark.filterwarnings("ignore:.* learned nothing")  # targets are noise
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("store", STORES)
def test_the_same_linear_model_directly(store, dtype, tmp_path, monkeypatch, rng):
    monkeypatch.setattr(lazy, "_N_FIRST", 2000)  # as many rows as choose the penalty
    rows, noisy = X.astype(dtype), Y + 30 * rng.normal(size=N)
    file, weights = store(rows, tmp_path), rng.uniform(size=N)
    weights[::7] = 0
    model = LinearEigenProRegressor(random_state=0)
    expected = clone(model).fit(rows, noisy, weights)
    assert model.fit(file, noisy, weights).algorithm_ == "direct"
    rtol = 1e-9 if dtype == np.float64 else 1e-4
    for name in ("alpha_", "coef_", "intercept_", "loss_curve_"):
        assert_allclose(getattr(model, name), getattr(expected, name), rtol=rtol)


@pytest.mark.filterwarnings("ignore:.* learned nothing")  # targets are noise
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_direct_solution_reads_the_file_twice(dtype, tmp_path, monkeypatch, rng):
    monkeypatch.setattr(lazy, "_N_FIRST", 2000)
    monkeypatch.setattr("eigenkern.plan.penalty.MOST_JUDGES", 1000)
    noisy = Y + 30 * rng.normal(size=N)
    file, read = hdf5(X.astype(dtype), tmp_path), []
    monkeypatch.setattr(lazy, "check_finite_rows", lambda X: read.append(len(X)))
    model = LinearEigenProRegressor(random_state=0).fit(file, noisy)
    assert model.algorithm_ == "direct"
    assert sum(read) == 2 * N  # first for copies of rows


@pytest.mark.filterwarnings("ignore:.* learned nothing")  # targets are noise
def test_the_same_probabilities_of_a_linear_model(tmp_path, monkeypatch, rng):
    monkeypatch.setattr(lazy, "_N_FIRST", 2000)
    model, noisy = LinearEigenProClassifier(random_state=0), Y + 9 * rng.normal(size=N)
    noisy = noisy > 0
    expected = clone(model).fit(X, noisy).predict_proba(X)
    model.fit(hdf5(X, tmp_path), noisy)
    assert model.algorithm_ == "direct"
    assert_allclose(model.predict_proba(X), expected, atol=1e-8)


@pytest.mark.parametrize("store", STORES)
def test_a_sorted_file_is_learned_as_well(store, tmp_path):
    file = store(X, tmp_path)
    for model in (
        EigenProRegressor(n_centers=80, max_iter=5, random_state=0),
        EigenProRegressor(
            n_centers=80, max_iter=5, early_stopping=True, random_state=0
        ),
        LinearEigenProRegressor(max_iter=5, random_state=0),
    ):
        expected = model.fit(X, Y).score(X, Y)
        assert model.fit(file, Y).score(file, Y) > expected - 0.01


def test_classes(tmp_path):
    file = hdf5(X, tmp_path)
    for model in (
        EigenProClassifier(
            bandwidth="median", n_centers=80, max_iter=5, random_state=0
        ),
        NystromClassifier(n_centers=80, random_state=0),
    ):
        expected = model.fit(X, LABELS).score(X, LABELS)
        assert model.fit(file, LABELS).score(X, LABELS) > expected - 0.01
        assert_allclose(model.predict_proba(file), model.predict_proba(X))


def test_features(tmp_path):
    file = hdf5(X, tmp_path)
    features = RandomFourierFeatures(n_components=10, random_state=0)
    expected = features.fit(X).transform(X)
    assert_allclose(features.fit(file).transform(file), expected, atol=1e-9)


def test_weights(tmp_path, rng):
    weights = rng.uniform(size=N)
    weights[::7] = 0
    file = hdf5(X, tmp_path)
    model = NystromRegressor(n_centers=80, alpha=1e-6, random_state=0)
    expected = model.fit(X, Y, weights).predict(X)
    assert_allclose(model.fit(file, Y, weights).predict(X), expected, atol=1e-9)


def test_rows_in_any_order(tmp_path, rng):
    rows = StoredRows(hdf5(X, tmp_path), np.float32)
    index = rng.permutation(N)[:77]
    assert_array_equal(in_memory(rows.take(index)), X[index].astype(np.float32))
    assert_array_equal(rows.take(index)[5:9, 1:3], X[index[5:9], 1:3].astype("f4"))
    assert in_memory(rows.take([])).shape == (0, 4)
    assert rows.extremes() == (np.float32(X.min()), np.float32(X.max()))


def test_shuffled_rows_are_all_of_them_once(tmp_path):
    rows, rng = StoredRows(hdf5(X, tmp_path), float), np.random.RandomState(0)
    some = np.delete(np.arange(N), np.arange(0, N, 10))
    order = rows.shuffled(some, rng)
    assert_array_equal(np.sort(order), some)
    # The first rows are from everywhere, the others from one section at a time.
    assert np.ptp(order[:500]) > 0.95 * N
    assert (np.diff(order[500:] // 1200) != 0).sum() == 2
    assert abs(np.corrcoef(np.arange(500, 1000), order[500:1000])[0, 1]) < 0.2


class Counted:
    """A file that notes what is read."""

    shape, dtype, chunks = X.shape, X.dtype, (100, 4)

    def __init__(self):
        self.read = []

    def __getitem__(self, key):
        self.read.append(key)
        return X[key]


def test_an_epoch_reads_the_file_once():
    file, rng = Counted(), np.random.RandomState(0)
    rows = StoredRows(file, float)
    order = rows.in_order(rows.shuffled(np.arange(N), rng))
    assert order[:500, :].shape == (500, 4)  # in memory from now on
    file.read.clear()
    starts = np.arange(0, N, 70)
    for start in order.shuffled_ranges(starts, rng):
        found = order[int(start) : int(start) + 70, :]
        assert found.shape[0] == min(70, N - start)
    # Eight blocks; those at the ends of the three sections may be read twice.
    assert len(file.read) <= 8 + 3


def test_the_extremes_of_shuffled_rows_read_the_file_once():
    file = Counted()
    rows = StoredRows(file, float)
    order = rows.shuffled(np.arange(0, N, 2), np.random.RandomState(0))
    found = rows.take(order).extremes()
    assert found == (X[::2].min(), X[::2].max())
    assert len(file.read) == 8
    assert rows.in_order(order).extremes() == found


def test_a_file_that_fits_is_read_as_an_array(tmp_path, monkeypatch):
    monkeypatch.undo()
    assert lazy_rows(hdf5(X, tmp_path)) is None
    monkeypatch.setattr(memory, "available", lambda xp, device: 3.9 * X.nbytes)
    assert lazy_rows(hdf5(X, tmp_path)) is None  # few rows
    monkeypatch.setattr(memory, "installed", lambda xp, device: 7.8 * X.nbytes)
    assert isinstance(lazy_rows(zarr_array(X, tmp_path)), StoredRows)


def test_a_model_keeps_no_part_of_a_file(tmp_path, monkeypatch):
    monkeypatch.undo()
    np.save(tmp_path / "X.npy", X[:50])
    file = np.load(tmp_path / "X.npy", mmap_mode="r+")
    model = NystromRegressor(n_centers=None).fit(file, Y[:50])
    expected = model.predict(X)
    file[:] = 0
    assert_array_equal(model.predict(X), expected)


def test_predictions_of_learned_metrics(tmp_path):
    file, options = hdf5(X, tmp_path), {"max_rounds": 1, "random_state": 0}
    model = RFMRegressor(**options).fit(X[::10], Y[::10])
    assert_allclose(model.predict(file), model.predict(X), atol=1e-9)
    assert_allclose(model.transform(file), model.transform(X))
    model = RFMClassifier(**options).fit(X[::10], LABELS[::10])
    assert_array_equal(model.predict(file), model.predict(X))
    for method in ("predict_proba", "predict_log_proba", "decision_function"):
        expected = getattr(model, method)(X)
        assert_allclose(getattr(model, method)(file), expected, atol=1e-9)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(
    "model",
    [
        EigenProRegressor(n_centers=40),
        NystromClassifier("manhattan", n_centers=40),
        DSGRegressor("gaussian", max_iter=2),
        RFMRegressor(NystromRegressor(n_centers=40), metric="diagonal", max_rounds=1),
        RFMRegressor(NystromRegressor(n_centers=40), metric="full", max_rounds=1),
    ],
    ids=["eigenpro", "signs", "dsg", "rfm", "rfm-full"],
)
def test_gradients(model, store, tmp_path, rng):
    model = clone(model).set_params(random_state=0)
    model.fit(X[::10], LABELS[::10] if "Classifier" in repr(model) else Y[::10])
    rows, weights = X[::3].copy(), rng.uniform(size=1000)
    file = store(rows, tmp_path)  # of several blocks
    assert_allclose(gradient(model, file), gradient(model, rows), atol=1e-10)
    for options in ({}, {"kind": "diagonal"}, {"max_rows": 600, "random_state": 1}):
        options["sample_weight"] = weights
        expected = average_gradient_outer_product(model, rows, **options)
        found = average_gradient_outer_product(model, file, **options)
        assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    h = np.array([1e-5, 0, 0, 0])  # along the first feature
    values = getattr(model, "decision_function", model.predict)
    slope = (values(rows[:50] + h) - values(rows[:50] - h)) / 2e-5
    assert_allclose(gradient(model, file)[:50, 0, 0], slope, atol=1e-4)


@pytest.mark.parametrize("n_centers", [80, None])
def test_the_spread_of_new_targets(n_centers, tmp_path):
    model = NystromRegressor(n_centers=n_centers).fit(X[::10], Y[::10])
    file = hdf5(X[:900], tmp_path)  # of several blocks
    for option in ("return_std", "return_cov"):
        found = model.predict(file, **{option: True})
        expected = model.predict(X[:900], **{option: True})
        assert_allclose(found[0], expected[0], atol=1e-9)
        assert_allclose(found[1], expected[1], atol=1e-9)


def test_floats_of_16_bits(tmp_path):
    with pytest.raises(ValueError, match="got float16, which is not supported"):
        NystromRegressor(n_centers=80).fit(hdf5(X.astype(np.float16), tmp_path), Y)


def test_numbers_that_are_not_finite(tmp_path):
    bad = X.copy()
    bad[-1, -1] = np.inf
    with pytest.raises(ValueError, match="X contains NaN or infinity"):
        NystromRegressor(n_centers=80).fit(hdf5(bad, tmp_path), Y)


def test_wrong_files(tmp_path):
    model = NystromRegressor(n_centers=80)
    closed = hdf5(X, tmp_path)
    closed.file.close()
    with pytest.raises(ValueError, match="open file; got a dataset of a closed one"):
        model.fit(closed, Y)
    with pytest.raises(ValueError, match=r"shape \(n_samples, n_features\); got shape"):
        model.fit(memory_map(X[:, None, :], tmp_path), Y)
    with pytest.raises(ValueError, match="pass n_centers"):
        EigenProRegressor().fit(memory_map(X, tmp_path), Y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(memory_map(X, tmp_path), Y[:-1])
    with pytest.raises(ValueError, match="pass centers='uniform'"):
        NystromRegressor(n_centers=80, centers="rpcholesky").fit(
            memory_map(X, tmp_path), Y
        )


@pytest.mark.parametrize("store", [hdf5, zarr_array])
@pytest.mark.parametrize("n_calls", [0, 1, 9])
def test_a_file_that_is_lost_during_a_fit(n_calls, store, tmp_path):
    """What is missing in a Zarr store reads as zeros."""
    file, called = store(X, tmp_path), []

    def lose():
        file.file.close() if store is hdf5 else shutil.rmtree(tmp_path / "X.zarr")

    def kernel(A, B):
        called.append(None)
        if len(called) == n_calls:
            lose()
        return Gaussian(1.0)(A, B)

    model = EigenProRegressor(kernel, n_centers=80, alpha=0.0, max_iter=2, cache_size=0)
    model.set_params(batch_size=100, random_state=0).fit(X[::3], Y[::3])
    before = dict(vars(model))
    called.clear()
    if not n_calls:
        lose()
    named = "X must be in an open file" if store is hdf5 else "X must be in a Zarr sto"
    with pytest.raises(ValueError, match=named):
        model.fit(file, Y)
    assert vars(model) == before


@pytest.mark.parametrize("cls", [NystromRegressor, LinearEigenProRegressor])
def test_a_small_store_that_is_lost_while_it_is_read(cls, tmp_path, monkeypatch):
    """What fits into memory is read at once."""
    store = zarr_array(X[:200], tmp_path)
    get = type(store).__getitem__

    def lost(self, key):
        shutil.rmtree(tmp_path / "X.zarr", ignore_errors=True)
        return get(self, key)

    monkeypatch.setattr(type(store), "__getitem__", lost)
    model = cls()
    with pytest.raises(ValueError, match="X must be in a Zarr store that exists"):
        model.fit(store, Y[:200])
    assert not hasattr(model, "n_features_in_")


def test_targets_in_a_file(tmp_path):
    model = NystromRegressor(random_state=0)
    with h5py.File(tmp_path / "y.h5", "w") as file:
        y = file.create_dataset("y", data=Y[:200])
        found = model.fit(X[:200], y).predict(X)
    assert_array_equal(found, model.fit(X[:200], Y[:200]).predict(X))
    with pytest.raises(ValueError, match="y must be in an open file; got a dataset"):
        model.fit(X[:200], y)


LIMITED = """
import resource, sys
import h5py, numpy as np
from eigenkern import NystromRegressor
from eigenkern.rows.lazy_rows import StoredRows
from eigenkern.rows.input import lazy_rows
from eigenkern.inspection import average_gradient_outer_product, gradient
used = 4096 * int(open("/proc/self/statm").read().split()[5])  # data and stack
limit = used + 700_000_000  # the rows alone are 500
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
X = h5py.File(sys.argv[1])["X"]
assert isinstance(lazy_rows(X), StoredRows)
y = np.arange(len(X)) % 7.0
model = NystromRegressor(n_centers=20, bandwidth=30.0, random_state=0).fit(X, y)
print(model.n_centers_)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_in_less_memory_than_the_file(tmp_path, rng):
    rows = rng.normal(size=(2000, 500)).astype(np.float32)
    with h5py.File(tmp_path / "X.h5", "w") as file:  # 0.5 GB
        stored = file.create_dataset(
            "X", shape=(250_000, 500), dtype="f4", chunks=(2000, 500)
        )
        for start in range(0, len(stored), len(rows)):
            stored[start : start + len(rows)] = rows + start
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "X.h5")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["20"], done.stderr


def test_constant_columns_of_a_file(tmp_path):
    constants = np.tile([3.3, 0.1], (N, 1))
    constants[-1, 1] = 0.2  # a single row is enough
    file = memory_map(np.hstack([constants, X]), tmp_path)
    model = LinearEigenProRegressor(random_state=0).fit(file, Y)
    expected = LinearEigenProRegressor(random_state=0).fit(X, Y)
    assert model.coef_[0] == 0 and model.mean_[0] == 3.3 and model.coef_[1] != 0
    assert_allclose(model.coef_[2:], expected.coef_, atol=0.02)
