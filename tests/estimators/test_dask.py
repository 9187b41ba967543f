"""Rows in Dask arrays and DataFrames, with and without the workers of a cluster."""

import gc
import itertools
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import joblib
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import clone, config_context
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from eigenkern import (
    Checkpoint,
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeClassifier,
    FalkonLikeRegressor,
    KernelPCA,
    LinearEigenProClassifier,
    LinearEigenProRegressor,
    NystromClassifier,
    NystromRegressor,
    NytroClassifier,
    NytroRegressor,
    RandomFourierFeatures,
    RBFNetworkFeatures,
    RFMClassifier,
    RFMRegressor,
)
from eigenkern.arrays.array import namespace, to_numpy
from eigenkern.arrays.threads import n_blas_threads
from eigenkern.estimators.local_machines import PartSolver, _part
from eigenkern.inspection import average_gradient_outer_product, gradient
from eigenkern.kernels import Gaussian, Laplacian, Linear
from eigenkern.operators.distributed import (
    CachedDaskMatrix,
    DaskMatrix,
    DaskShards,
    _gradient,
    _normal_product,
)
from eigenkern.operators.tiled import TiledKernel
from eigenkern.rows.dask_rows import (
    DaskRows,
    Here,
    Workers,
    reuse_freed_memory,
    rows_of_chunks,
)
from eigenkern.rows.input import lazy_rows
from eigenkern.rows.lazy_rows import in_memory

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")
# From the client's own threads and sockets, when it is closed.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

N = 600


def rows_with_copies():
    """Return rows, two of them equal within a chunk and two in different ones."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 4))
    X[7], X[500] = X[3], X[5]
    return X, np.sin(X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.normal(size=N)


X, Y = rows_with_copies()
LABELS = np.array(["a", "b", "c"])[np.digitize(Y, [-0.4, 0.4])]
BATCHES = {"n_centers": 60, "batch_size": 100, "max_iter": 3}

MODELS = {
    "eigenpro4": EigenProRegressor(**BATCHES),
    "eigenpro3": EigenProRegressor(algorithm="eigenpro3", **BATCHES),
    "eigenpro_held_out": EigenProRegressor(early_stopping=True, **BATCHES),
    "eigenpro_penalty": EigenProRegressor(alpha=1e-3, **BATCHES),
    "eigenpro_classes": EigenProClassifier(**BATCHES),
    "nystrom": NystromRegressor(n_centers=60),
    "nystrom_path": NystromRegressor(n_centers=60, alpha="path"),
    "nystrom_loo": NystromRegressor(n_centers=60, alpha="path", selection="loo"),
    "nystrom_classes": NystromClassifier(n_centers=60),
    "falkon": FalkonLikeRegressor(n_centers=60, max_iter=100),
    "falkon_classes": FalkonLikeClassifier(n_centers=60, max_iter=100),
    "nytro": NytroRegressor(n_centers=60),
    "nytro_classes": NytroClassifier(n_centers=60),
    "linear": LinearEigenProRegressor(batch_size=100, max_iter=5),
    "linear_classes": LinearEigenProClassifier(batch_size=100, max_iter=5),
    "linear_direct": LinearEigenProRegressor(),
    "linear_direct_classes": LinearEigenProClassifier(),
}


@contextmanager
def two_workers():
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client
    gc.collect()  # remaining sockets, while their warnings are ignored


@pytest.fixture(scope="module")
def client():
    with two_workers() as client:
        yield client


@pytest.fixture
def mortal_client():
    """Return a client whose workers may be killed.

    A worker that is killed while its nanny still waits for it is not started again,
    and one may register with the scheduler before that: such workers are not shared.
    """
    with two_workers() as client, client.as_current():
        yield client


@pytest.fixture(autouse=True)
def no_client(request, monkeypatch):
    """Without a client, chunks are computed here even if one exists."""
    if not {"client", "mortal_client"} & set(request.fixturenames):
        monkeypatch.setattr("eigenkern.rows.dask_rows.cluster", Here)


def fitted(name, X, weights=None):
    model = MODELS[name]
    y = LABELS if hasattr(model, "predict_proba") or "classes" in name else Y
    return type(model)(**model.get_params() | {"random_state": 0}).fit(X, y, weights)


def assert_same(model, expected):
    rows = X[:50] + 0.1
    assert_allclose(values(model, rows), values(expected, rows), rtol=1e-6, atol=1e-7)
    assert model.intercept_.shape == expected.intercept_.shape


def values(model, X):
    return getattr(model, "decision_function", model.predict)(X)


def iterated(name, X, **parameters):
    """Return a model that iterates, on 60 centers."""
    model = {"falkon": FalkonLikeRegressor, "nytro": NytroRegressor}[name]
    parameters |= {"n_centers": 60, "max_iter": 12, "random_state": 0}
    return model(**parameters).fit(X, Y)


@pytest.fixture
def iterates(monkeypatch):
    """Make NYTRO iterate; neither it nor Falkon warns at the last iteration."""
    monkeypatch.setattr("eigenkern.plan.of_closed_forms.factorizes", lambda *_: False)
    monkeypatch.setattr("eigenkern.estimators.nytro.warn_user", lambda *_: None)
    monkeypatch.setattr("eigenkern.estimators.falkon_like.warn_user", lambda *_: None)


@pytest.fixture
def made(monkeypatch):
    """Return the MB of the matrices that were cached on workers."""
    found, init = [], CachedDaskMatrix.__init__

    def cached(self, source):
        found.append(8 * source.shape[0] * source.shape[1] / 1e6)
        init(self, source)

    monkeypatch.setattr(CachedDaskMatrix, "__init__", cached)
    return found


def test_linear_models_are_solved_directly():
    assert fitted("linear_direct", da.from_array(X)).algorithm_ == "direct"


@pytest.mark.parametrize("name", MODELS)
def test_without_a_client_it_is_the_same_model(name):
    assert_same(fitted(name, da.from_array(X, chunks=(170, 4))), fitted(name, X))


def test_a_constant_column_has_no_part():
    constants = np.tile([3.3, 0.1], (len(X), 1))
    lazy = da.from_array(np.hstack([constants, X]), chunks=(170, 6))
    model, expected = fitted("linear", lazy), fitted("linear", X)
    assert_array_equal(model.coef_[:2], 0.0)
    assert_array_equal(model.mean_[:2], constants[0])
    assert_allclose(model.coef_[2:], expected.coef_, atol=0.02)


@pytest.mark.parametrize(
    "name",
    [
        "eigenpro4",
        "eigenpro_classes",
        "nystrom_path",
        "falkon",
        "linear",
        "linear_direct",
    ],
)
def test_on_workers_it_is_the_same_model(name, client):
    assert_same(fitted(name, da.from_array(X, chunks=(170, 4))), fitted(name, X))


@pytest.mark.parametrize("library", ["array_api_strict", "torch"])
@pytest.mark.parametrize("name", ["eigenpro4", "nystrom_path", "falkon", "linear"])
def test_chunks_of_another_library(name, library, monkeypatch):
    xp = pytest.importorskip(library)

    def compute_chunks(self, X):
        return [xp.asarray(chunk) for chunk in chunks_of(self, X)]

    chunks_of = Here.compute_chunks
    monkeypatch.setattr(Here, "compute_chunks", compute_chunks)
    found = fitted(name, da.from_array(X, chunks=(170, 4)))
    assert namespace(found.intercept_) == namespace(xp.zeros(0))
    with config_context(array_api_dispatch=True):
        predicted = found.predict(xp.asarray(X[:50]))
    assert_allclose(to_numpy(predicted), fitted(name, X).predict(X[:50]), atol=1e-7)


@pytest.mark.parametrize("chunks", [(600,), (1, 599), (200, 100, 300)])
def test_any_chunks(chunks):
    D = da.from_array(X, chunks=(chunks, 4))
    assert_same(fitted("nystrom", D), fitted("nystrom", X))
    assert_same(fitted("eigenpro4", D), fitted("eigenpro4", X))


def test_weights(client, rng):
    weights = rng.uniform(size=N)
    weights[::9] = 0
    D = da.from_array(X, chunks=(170, 4))
    for name in ("nystrom", "eigenpro4", "linear"):
        assert_same(fitted(name, D, weights), fitted(name, X, weights))
    assert_same(
        fitted("nystrom", D, da.from_array(weights, chunks=100)),
        fitted("nystrom", X, weights),
    )


def test_single_precision_and_integers():
    single = fitted("nystrom", da.from_array(X.astype("float32"), chunks=(170, 4)))
    assert single.dual_coef_.dtype == np.float32
    whole = np.rint(4 * X).astype(int)
    assert_same(fitted("nystrom", da.from_array(whole)), fitted("nystrom", whole))


def test_targets_may_be_lazy():
    D, lazy = da.from_array(X, chunks=(170, 4)), da.from_array(Y, chunks=100)
    model = NystromRegressor(n_centers=60, random_state=0)
    expected = model.fit(X, Y).predict(X)
    assert_allclose(model.fit(D, lazy).predict(X), expected, atol=1e-8)
    assert model.score(D, lazy) == pytest.approx(model.score(X, Y))


def test_predictions_are_lazy():
    D = da.from_array(X, chunks=(170, 4))
    model = NystromClassifier(n_centers=60, random_state=0).fit(X, LABELS)
    for method in ("predict", "decision_function", "predict_proba"):
        found, expected = getattr(model, method)(D), getattr(model, method)(X)
        assert isinstance(found, da.Array)
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        assert found.chunks[0] == D.chunks[0]
        if method == "predict":
            assert_array_equal(found.compute(), expected)
        else:
            assert_allclose(found.compute(), expected, atol=1e-12)
    assert model.score(D, LABELS) == model.score(X, LABELS)


def test_predictions_of_unknown_chunks():
    model = NystromRegressor(n_centers=60, random_state=0).fit(X, Y)
    D = da.from_array(X, chunks=(170, 4))
    D = D[D[:, 0] > 0]  # sizes are unknown
    assert_allclose(model.predict(D).compute(), model.predict(X[X[:, 0] > 0]))
    empty = da.from_array(X, chunks=(170, 4))
    empty = empty[empty[:, 0] > 1e9]
    assert model.predict(empty).compute().shape == (0,)


def test_features(client):
    D = da.from_array(X, chunks=(170, 4))
    for features in (
        RandomFourierFeatures(n_components=20, random_state=0),
        RBFNetworkFeatures(n_centers=20, random_state=0),
    ):
        found = features.fit(D).transform(D)
        assert found.shape == (N, 20)
        assert_allclose(found.compute(), features.fit(X).transform(X), atol=1e-12)


def test_kernel_principal_components(client):
    D = da.from_array(X, chunks=(170, 4))
    pca = KernelPCA(n_components=3, n_centers=60, random_state=0)
    found = pca.fit(D).transform(D).compute()
    assert_allclose(found, pca.fit(X).transform(X), atol=1e-9)


@pytest.mark.parametrize(
    "model",
    [
        NystromRegressor(n_centers=40),
        NystromRegressor("manhattan", n_centers=40),
        RFMRegressor(NystromRegressor(n_centers=40), metric="full", max_rounds=1),
    ],
    ids=["centers", "signs", "rfm"],
)
def test_gradients(model):
    model = clone(model).set_params(random_state=0).fit(X, Y)
    D = da.from_array(X, chunks=(170, 4))
    assert_allclose(gradient(model, D), gradient(model, X), atol=1e-10)
    for options in ({}, {"max_rows": 300, "random_state": 1}):
        expected = average_gradient_outer_product(model, X, **options)
        found = average_gradient_outer_product(model, D, **options)
        assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_pipeline():
    D = da.from_array(X, chunks=(170, 4))
    model = make_pipeline(
        RandomFourierFeatures(n_components=50, random_state=0),
        LinearEigenProRegressor(batch_size=100, random_state=0),
    )
    expected = model.fit(X, Y).predict(X)
    assert_allclose(model.fit(D, Y).predict(D).compute(), expected, atol=1e-8)


def test_data_frames():
    dd = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame(X, columns=["p", "q", "r", "s"])
    lazy = dd.from_pandas(frame, npartitions=3)
    model = NystromRegressor(n_centers=60, random_state=0).fit(lazy, Y)
    expected = NystromRegressor(n_centers=60, random_state=0).fit(frame, Y)
    assert list(model.feature_names_in_) == ["p", "q", "r", "s"]
    assert_allclose(model.predict(lazy).compute(), expected.predict(frame))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(lazy.rename(columns={"p": "x"}))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # pandas' of Dask
def test_parquet(tmp_path):
    dd = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame(X, columns=["p", "q", "r", "s"])
    dd.from_pandas(frame, npartitions=3).to_parquet(tmp_path)
    lazy = dd.read_parquet(tmp_path)
    model = LinearEigenProRegressor(batch_size=100, random_state=0).fit(lazy, Y)
    expected = LinearEigenProRegressor(batch_size=100, random_state=0).fit(frame, Y)
    assert_allclose(model.coef_, expected.coef_, atol=1e-9)
    assert_allclose(model.predict(lazy).compute(), expected.predict(frame), atol=1e-9)


def test_rows_in_any_order(rng):
    rows = lazy_rows(da.from_array(X, chunks=(170, 4)))
    index = rng.permutation(N)[:77]
    taken = rows.take(index)
    assert taken.shape == (77, 4)
    assert_array_equal(in_memory(taken), X[index])
    assert_array_equal(in_memory(taken.take([3, 1])), X[index[[3, 1]]])
    for start, stop in ((5, 9), (5, 6), (76, 99), (5, 5)):
        assert_array_equal(taken[start:stop, :], X[index[start:stop]])
        assert_array_equal(taken[start:stop, 1:3], X[index[start:stop], 1:3])
    assert rows.extremes() == (X.min(), X.max())


def test_here_or_on_workers(client):
    D = da.from_array(X, chunks=(170, 4))
    assert isinstance(lazy_rows(D).cluster, Workers)
    assert lazy_rows(D).n_machines == 2


def test_here():
    assert isinstance(lazy_rows(da.from_array(X)).cluster, Here)


@pytest.fixture
def split_centers(monkeypatch):
    """Too many centers for one worker; without a client, split into three."""
    for cluster in (Here, Workers):
        monkeypatch.setattr(cluster, "is_too_large", lambda *_: True)
    monkeypatch.setattr(Here, "threads", lambda _: 3 * ["here"])


@pytest.mark.parametrize("kernel", [Laplacian(1.5), Linear()])
def test_shards_of_centers(kernel, split_centers):
    rng = np.random.default_rng(1)
    order, Z = rng.permutation(N), X[::7] + 0.1
    A, targets = rng.normal(size=(len(Z), 2)), rng.normal(size=(N, 2))
    weights = rng.random(N)
    local, rates = TiledKernel(kernel, Z), np.array([0.1, 0.2])
    K = local.rows(DaskRows(da.from_array(X, chunks=(199, 4)), X.dtype).take(order))
    assert isinstance(K, DaskShards) and len(K._sent()) == 3
    for some in (K, K.part(100, 420)):
        rows = order if some is K else order[100:420]
        dense, m = local.rows(X[rows]).block(), len(rows)
        F, leading = some.product_and_columns(A, 3, 60, n_columns=5)
        assert_allclose(F, dense[3:60] @ A, rtol=0, atol=1e-12)
        assert_allclose(leading, dense[3:60, :5], rtol=1e-12)
        assert_allclose(some.block(3, 60, 2, 80), dense[3:60, 2:80], rtol=1e-12)
        error, image = some.gradient(A, targets[:m], weights[:m], rates)
        expected = dense @ A - targets[:m]
        assert_allclose(error, expected, rtol=0, atol=1e-12)
        g = rates * weights[:m, None] * expected
        assert_allclose(image, dense.T @ g, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["eigenpro3", "eigenpro_held_out", "eigenpro_classes"])
def test_models_whose_centers_are_split(name, client, split_centers):
    D = da.from_array(X, chunks=(170, 4))
    assert_same(fitted(name, D), fitted(name, X))


def test_centers_are_split_if_a_worker_cannot_hold_them(client):
    """Centers may take a quarter of its memory limit."""
    limit = min(w["memory_limit"] for w in client.scheduler_info()["workers"].values())
    assert not Workers(client).is_too_large(0.24 * limit)
    assert Workers(client).is_too_large(0.26 * limit)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "function, when",
    [
        (_gradient, 2),
        (_gradient, 9),
        (_gradient, 17),
        (_normal_product, 9),
        (rows_of_chunks, 9),
    ],
)
def test_a_worker_that_dies_costs_its_chunks(
    function, when, mortal_client, iterates, made, monkeypatch, request
):
    """It dies after some products of the steps were requested."""
    if function is rows_of_chunks:
        request.getfixturevalue("split_centers")
    asked, run = [], DaskRows.run

    def kill(rows, asked_for, *args, **options):
        handles = run(rows, asked_for, *args, **options)
        if asked_for is function:
            asked.append(1)
            if len(asked) == when:
                os.kill(min(mortal_client.run(os.getpid).values()), signal.SIGKILL)
        return handles

    monkeypatch.setattr(DaskRows, "run", kill)
    D = da.from_array(X, chunks=(170, 4))
    if function is not _normal_product:
        assert_same(fitted("eigenpro4", D), fitted("eigenpro4", X))
        assert len(asked) >= 18
    else:
        found, expected = (iterated("falkon", rows) for rows in (D, X))
        assert_allclose(found.dual_coef_, expected.dual_coef_, rtol=0, atol=1e-10)
        assert len(made) == 1 and len(asked) > when


@pytest.mark.parametrize("name", ["falkon", "nytro"])
def test_kernel_matrices_are_cached_on_workers(
    name, client, iterates, made, monkeypatch
):
    def on_workers():
        return [key for key in client.cluster.scheduler.tasks if "_block" in str(key)]

    def count(self):
        seen.append(len(on_workers()))

    seen = []
    monkeypatch.setattr(CachedDaskMatrix, "__del__", count, raising=False)
    D = da.from_array(X, chunks=(170, 4))
    again = iterated(name, D, cache_size=0)
    assert made == []
    kept = iterated(name, D)
    # 480 training rows and 120 held out, or all rows. With 480 rows it is refitted.
    rows = {"falkon": [600], "nytro": [480, 120, 600]}[name]
    assert_allclose(made, [8e-6 * 60 * n for n in rows])
    assert_allclose(kept.dual_coef_, again.dual_coef_, rtol=0, atol=1e-10)
    if name == "falkon":
        assert kept.cache_size_ == made[0]
    # They are freed without the garbage collector.
    assert len(seen) == len(made) and min(seen) >= 4
    for _ in range(100):
        if not on_workers():
            break
        time.sleep(0.02)
    assert on_workers() == []


def test_cache_size_is_for_all_workers(iterates, made):
    D, size = da.from_array(X, chunks=(170, 4)), 8e-6 * 60
    iterated("nytro", D, cache_size=size * 600)
    assert_allclose(made, [size * 480, size * 120, size * 600])
    iterated("nytro", D, cache_size=size * 599)
    assert_allclose(made[3:], [size * 480])
    assert iterated("falkon", D, cache_size=size * 599).cache_size_ == 0


def test_workers_keep_what_their_memory_limit_allows(iterates, monkeypatch, made):
    D = da.from_array(X, chunks=(170, 4))
    monkeypatch.setattr("eigenkern.arrays.memory.available", lambda *_: 1e9)
    monkeypatch.setattr(Here, "room", lambda _: {"here": 8 * 60 * 600})
    assert iterated("falkon", D).cache_size_ == 8e-6 * 60 * 600
    monkeypatch.setattr(Here, "room", lambda _: {"here": 8 * 60 * 599})
    assert iterated("falkon", D, cache_size=100).cache_size_ == 0
    assert len(made) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_workers_use_freed_memory_again(client):
    def n_faults():
        reuse_freed_memory()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(200):
            np.ones(2**20)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    # Each array has 2048 pages: those of the first array, and some of others.
    assert max(client.gather(client.map(lambda _: n_faults(), range(2)))) < 20 * 2048


def test_room_of_workers(client):
    rows = lazy_rows(da.from_array(X, chunks=(170, 4)))
    limits = client.run(lambda dask_worker: dask_worker.memory_manager.memory_limit)
    room = rows.cluster.room()
    assert room.keys() == limits.keys()
    for place, free in room.items():
        assert 0 < free < limits[place] / 2 - 2e7  # for a process with NumPy


def test_rows_made_of_others(client, rng):
    rows = lazy_rows(da.from_array(X, chunks=(170, 4)))
    index = rng.permutation(N)[:77]
    for source, expected in ((rows, X), (rows.take(index), X[index])):
        K = DaskMatrix(TiledKernel(Gaussian(1.0), X[:9]), source)
        cached, expected = CachedDaskMatrix(K), Gaussian(1.0)(expected, X[:9])
        for _ in range(2):
            assert_allclose(cached.block(), expected, atol=1e-12)
            assert_allclose(cached.block(3, 50, 2, 5), expected[3:50, 2:5], atol=1e-12)
            part = cached.part(5, 30)
            assert_allclose(part @ X[:9], expected[5:30] @ X[:9], atol=1e-12)
            part._rows.forget()  # computed again
        assert cached.rows(X[:3]).shape == (3, 9)


def matrix_of(kind, local, rows):
    """Return K of rows in a Dask array: computed, cached, or with split centers."""
    if kind == "shards":
        return DaskShards(local, rows)
    K = DaskMatrix(local, rows)
    return CachedDaskMatrix(K) if kind == "cached" else K


@pytest.mark.parametrize("kind", ["rows", "cached", "shards"])
@pytest.mark.parametrize(
    "start, stop", [(0, 1), (169, 170), (599, 600), (5, 5), (0, 0), (168, 172)]
)
def test_blocks_of_few_rows(kind, start, stop):
    local = TiledKernel(Gaussian(1.0), X[:9])
    K = matrix_of(kind, local, lazy_rows(da.from_array(X, chunks=(170, 4))))
    expected = Gaussian(1.0)(X[start:stop], X[:9]) if stop > start else np.ones((0, 9))
    out = np.full((9, 9), np.nan)
    assert_allclose(K.block(start, stop), expected, rtol=1e-12)
    for first, last in ((0, 1), (2, 7), (8, None)):
        found = K.block(start, stop, first, last, dtype=np.float32)
        assert found.dtype == np.float32
        assert_allclose(found, expected[:, first:last], rtol=1e-6)
    K.block(start, stop, out=out)
    assert_allclose(out[: stop - start], expected, rtol=1e-12)
    assert np.isnan(out[stop - start :]).all()
    if stop > start:
        F, leading = K.product_and_columns(X[:9], start, stop, n_columns=2)
        assert_allclose(F, expected @ X[:9], rtol=0, atol=1e-12)
        assert_allclose(leading, expected[:, :2], rtol=1e-12)


class Handle:
    """The handle of a value that may be lost, or of one computed from others."""

    status = "finished"

    def __init__(self, value, sources=()):
        self.value, self._sources, self.is_gone = value, sources, False
        self.key = id(self)

    @property
    def is_lost(self):
        return self.is_gone or any(source.is_lost for source in self._sources)


class Unsteady(Here):
    """A cluster that loses what was sent, and so what was computed from that.

    Chunks are not lost, as the scheduler computes them again.
    """

    attempt, _client = Workers.attempt, SimpleNamespace(status="running")

    def __init__(self):
        self._sent, self.n_refused = [], 0

    def lose(self):
        for handle in self._sent:
            handle.is_gone = True

    def compute_chunks(self, X):
        return [Handle(chunk) for chunk in super().compute_chunks(X)]

    def places(self, chunks):
        return [("one", "other")[i % 2] for i in range(len(chunks))]

    def threads(self):
        return ["one", "other"]

    def send(self, value, place=None):
        self._sent.append(Handle(value))
        return self._sent[-1]

    def submit(self, function, *args, place=None):
        sources = [arg for arg in args if isinstance(arg, Handle)]
        values = [arg.value if isinstance(arg, Handle) else arg for arg in args]
        return Handle(function(*values), sources)

    def gather(self, handles):
        if any(handle.is_lost for handle in handles):
            self.n_refused += 1
            raise CancelledError
        return [handle.value for handle in handles]


@pytest.mark.parametrize("kind", ["rows", "cached", "shards"])
def test_what_is_lost_with_a_worker_is_made_again(kind, rng, monkeypatch):
    cluster = Unsteady()
    monkeypatch.setattr("eigenkern.rows.dask_rows.cluster", lambda: cluster)
    monkeypatch.setattr("eigenkern.rows.dask_rows._PAUSE", 0.0)
    index, Z = rng.permutation(N)[:500], X[:9]
    A, targets, weights = rng.normal(size=(9, 2)), X[:500, :2], rng.random(500)
    lazy = DaskRows(da.from_array(X, chunks=(170, 4)), X.dtype)
    K = matrix_of(kind, TiledKernel(Gaussian(1.0), Z), lazy.take(index))
    part, dense = K.part(7, 450), Gaussian(1.0)(X[index], Z)
    calls = ["product_and_columns", "block", "gradient"]
    if kind != "shards":
        calls += ["adjoint", "gram", "normal_product"]
    for some, rows in ((K, slice(500)), (part, slice(7, 450)), (K, slice(500))):
        D, Y, w = dense[rows], targets[rows], weights[rows]
        error = D @ A - Y
        expected = {
            "product_and_columns": [D @ A, D[:, :3]],
            "block": [D],
            "gradient": [error, D.T @ (w[:, None] * error)],
            "adjoint": [D.T @ Y],
            "gram": [D.T @ (w[:, None] * D), D.T @ (w[:, None] * Y)],
            "normal_product": [D.T @ (w[:, None] * error)],
        }
        for name in calls:
            args = {
                "product_and_columns": (A, 0, None, 3),
                "gradient": (A, Y, w, np.ones(2)),
                "adjoint": (Y,),
                "gram": (Y, w),
                "normal_product": (A, Y, w),
            }.get(name, ())
            getattr(some, name)(*args)
            cluster.lose()
            n_refused = cluster.n_refused
            found = getattr(some, name)(*args)
            assert cluster.n_refused > n_refused
            found = found if isinstance(found, tuple) else (found,)
            for values, right in zip(found, expected[name], strict=True):
                assert_allclose(values, right, rtol=0, atol=1e-11)


class ClientHere:
    """The client of two workers in this process: one call raises an error."""

    def __init__(self):
        self.status, self.calls = "running", Counter()
        self.fails()

    def fails(self, road=None, when=0, error=None, status=("running", "running")):
        """Raise an error at a call; the status then, and from the next call on."""
        self.calls.clear()
        self.road, self.when, self.error, self.statuses = road, when, error, status

    def called(self, road):
        self.calls[road] += 1
        if road == self.road and self.calls[road] == self.when:
            self.road, self.status = None, self.statuses[0]
            raise self.error
        if self.road is None:
            self.status = self.statuses[1]
        if self.status != "running":
            raise AttributeError("'NoneType' object has no attribute 'send'")

    def compute(self, collections):
        self.called("compute")
        if not isinstance(collections, list):
            return Handle(collections.compute(scheduler="sync"))
        return [Handle(v) for v in dask.compute(*collections, scheduler="sync")]

    def submit(self, function, *args, pure, workers=None, allow_other_workers=None):
        self.called("submit")
        assert allow_other_workers or workers is None
        values = [arg.value if isinstance(arg, Handle) else arg for arg in args]
        return Handle(function(*values))

    def scatter(self, value, workers, hash):
        self.called("scatter")
        return Handle(value)

    def gather(self, handles):
        self.called("gather")
        return [handle.value for handle in handles]

    def wait(self, handles):
        self.called("wait")

    def who_has(self, handles):
        self.called("who_has")
        places = itertools.cycle(["one", "other"])
        return {h.key: [at] for h, at in zip(handles, places, strict=False)}

    def nthreads(self):
        self.called("nthreads")
        return {"one": 1, "other": 1}

    def run(self, function, on_error):
        self.called("run")
        return {"one": (10**9, 10**8), "other": (10**9, 10**8)}


@pytest.fixture
def client_here(iterates, monkeypatch):
    """Return a client in this process, to which all values are sent."""
    found = ClientHere()
    for module in ("dask_rows", "input"):
        monkeypatch.setattr(f"eigenkern.rows.{module}.cluster", lambda: Workers(found))
    monkeypatch.setattr("eigenkern.rows.dask_rows._PAUSE", 0.0)
    monkeypatch.setattr("eigenkern.rows.dask_rows._SCATTERED_BYTES", 0)
    monkeypatch.setattr(distributed, "wait", found.wait)
    return found


FALKON = FalkonLikeRegressor(n_centers=60, max_iter=3, random_state=0)
ROADS = ["compute", "wait", "who_has", "nthreads", "run", "scatter", "submit", "gather"]
LAZY = [
    da.from_array(one, chunks=(170, 4)[: one.ndim])
    for one in (X, Y, 1.0 + X[:, 0] ** 2)
]


def calls_to_fail(client, road):
    """Return a fitted model, and the first, middle and last call to fail."""
    expected = clone(FALKON).fit(*LAZY)
    n = client.calls[road]
    assert n > 0
    return expected, sorted({1, n // 2 + 1, n})


@pytest.mark.parametrize(
    "error",
    [
        CancelledError("lost"),
        distributed.comm.CommClosedError("closed"),
        KeyError("tcp://127.0.0.1:1234"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("road", ROADS)
def test_a_lost_worker_costs_time(road, error, client_here):
    client, (expected, calls) = client_here, calls_to_fail(client_here, road)
    for when in calls:
        client.fails(road, when, error)
        model = clone(FALKON).fit(*LAZY)
        assert client.calls[road] > when
        assert_allclose(model.dual_coef_, expected.dual_coef_, rtol=0, atol=1e-12)


@pytest.mark.parametrize("status", ["connecting", "running"])  # it is noticed later
@pytest.mark.parametrize("road", ROADS)
def test_a_lost_scheduler_raises_one_error(road, status, client_here, tmp_path):
    client, (expected, calls) = client_here, calls_to_fail(client_here, road)
    for when in calls:
        client.fails(road, when, CancelledError("lost"), (status, "connecting"))
        model, checkpoint = clone(FALKON), Checkpoint(tmp_path / str(when), seconds=0)
        with pytest.raises(ConnectionError, match=r"scheduler.*resume=True"):
            model.fit(*LAZY, checkpoint=checkpoint)
        assert not hasattr(model, "dual_coef_")
        client.fails()
        model.fit(*LAZY, checkpoint=checkpoint, resume=True)
        assert_allclose(model.dual_coef_, expected.dual_coef_, rtol=0, atol=1e-12)


def test_what_is_lost_again_and_again(client_here, monkeypatch):
    def lost(self, handles):
        asked.append(1)
        raise CancelledError("lost")

    asked = []
    monkeypatch.setattr(ClientHere, "gather", lost)
    model = clone(FALKON)
    with pytest.raises(ConnectionError, match=r"lost 5 times.*X from files.*resume="):
        model.fit(*LAZY)
    assert len(asked) == 5 and not hasattr(model, "dual_coef_")


def test_a_worker_that_is_lost_while_values_are_sent_again(client_here):
    def step():
        if len(tried) < 3:
            raise CancelledError("lost")
        return tried

    def forget():
        tried.append(1)
        if len(tried) < 3:
            raise CancelledError("lost, too")

    tried = []
    assert Workers(client_here).attempt(step, forget) == [1, 1, 1]


SCHEDULER = """
import sys
from distributed import LocalCluster
with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, protocol="tcp",
                  dashboard_address=":0") as cluster:
    print(cluster.scheduler_address, flush=True)
    sys.stdin.read()
"""


@pytest.mark.filterwarnings("ignore")
def test_a_lost_scheduler_ends_the_fit(client, iterates, monkeypatch, tmp_path):
    D, run, asked = da.from_array(X, chunks=(170, 4)), DaskRows.run, []
    model = FalkonLikeRegressor(n_centers=60, max_iter=12, random_state=0)
    checkpoint = Checkpoint(tmp_path / "fit", seconds=0)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}

    def kill(rows, function, *args, **options):
        handles = run(rows, function, *args, **options)
        asked.append(function)
        if asked.count(_normal_product) == 6:
            scheduler.kill()
        return handles

    command = [sys.executable, "-c", SCHEDULER]
    with subprocess.Popen(command, **pipes) as scheduler, monkeypatch.context() as m:
        m.setattr(DaskRows, "run", kill)
        try:
            with distributed.Client(scheduler.stdout.readline().strip()):
                start = time.monotonic()
                with pytest.raises(ConnectionError, match=r"scheduler.*resume=True"):
                    model.fit(D, Y, checkpoint=checkpoint)
                assert time.monotonic() - start < 60
        finally:
            scheduler.kill()
    assert not hasattr(model, "dual_coef_")
    n_asked = len(asked)
    with client.as_current():
        model.fit(D, Y, checkpoint=checkpoint, resume=True)
    assert n_asked == len(asked) and model.n_iter_ > 6
    expected = iterated("falkon", X)
    assert_allclose(model.dual_coef_, expected.dual_coef_, rtol=0, atol=1e-10)
    assert_allclose(model.residuals_, expected.residuals_, rtol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_workers_without_enough_memory(monkeypatch):
    def hungry(block):
        while True:
            held.append(np.ones(2**23))
            time.sleep(0.02)

    held = []
    D = da.from_array(X, chunks=(170, 4)).map_blocks(hungry, dtype=float, meta=X[:0])
    memory = "distributed.worker.memory."
    config = {"distributed.scheduler.allowed-failures": 0, memory + "terminate": 0.7}
    config[memory + "monitor-interval"] = "50ms"
    with (
        dask.config.set(config),
        distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            memory_limit="600MB",
            dashboard_address=":0",
        ) as cluster,
        distributed.Client(cluster) as client,
        client.as_current(),
        pytest.raises(RuntimeError, match="memory_limit, or pass X with smaller"),
    ):
        monkeypatch.undo()  # not `Here`
        lazy_rows(D)


def test_chunks_are_spread_evenly(client, monkeypatch):
    """Even if they share a task; persisted chunks stay where they are."""
    first = min(client.nthreads())
    D = da.from_array(X, chunks=(75, 4))
    for lazy in (D, D - D.mean(axis=0)):
        rows = DaskRows(lazy, X.dtype)
        assert [len(group.position) for group in rows.groups] == [300, 300]
    assert_allclose(rows[:, :], X - X.mean(axis=0), rtol=1e-12, atol=1e-12)
    kept = da.from_array(X + 1, chunks=(75, 4)).persist(workers=[first])
    assert {group.place for group in DaskRows(kept, X.dtype).groups} == {first}
    # One worker computes all of them, and keeps half.
    on_first = partial(client.compute, workers=[first])
    monkeypatch.setattr(client, "compute", on_first)
    rows = DaskRows(D, X.dtype)
    assert [len(group.position) for group in rows.groups] == [300, 300]
    assert_array_equal(rows[:, :], X)


def test_sums_by_a_tree(client, monkeypatch):
    monkeypatch.setattr("eigenkern.operators.distributed._MAX_GATHERED", 0)
    D = da.from_array(X, chunks=(170, 4))
    assert_same(fitted("eigenpro4", D), fitted("eigenpro4", X))


@pytest.mark.parametrize("error", [RuntimeError, FileNotFoundError, KeyError])
def test_a_task_that_fails(error, client):
    def broken(block):
        raise error("no such file")

    D = da.from_array(X, chunks=(170, 4)).map_blocks(broken, dtype=float, meta=X[:0])
    model = fitted("nystrom", X)
    with pytest.raises(error, match="no such file"):
        model.fit(D, Y)
    assert_same(model, fitted("nystrom", X))  # as it was


@pytest.mark.parametrize(
    "D, y, message",
    [
        (da.from_array(X, chunks=(170, 2)), Y, "features in one chunk.*rechunk"),
        (da.from_array(X[:, 0], chunks=170), Y, "X must have shape"),
        (da.from_array(X, chunks=(170, 4)), Y[:-1], "inconsistent numbers of samples"),
        (da.from_array(X.astype(complex)), Y, "must hold numbers; got the data type"),
        (da.from_array(np.where(X == X[9, 0], np.nan, X)), Y, "NaN or infinity"),
    ],
    ids=["features", "vector", "lengths", "complex", "nan"],
)
def test_wrong_rows(D, y, message):
    with pytest.raises(ValueError, match=message):
        NystromRegressor(n_centers=60).fit(D, y)


def test_unknown_chunks():
    D = da.from_array(X, chunks=(170, 4))
    with pytest.raises(ValueError, match=r"known sizes.*compute_chunk_sizes"):
        NystromRegressor(n_centers=60).fit(D[D[:, 0] > 0], Y)


@pytest.mark.parametrize(
    "model, advice",
    [
        (EigenProRegressor(), "pass n_centers"),
        (EigenProRegressor(algorithm="eigenpro3-exact", n_centers=9), "pass n_centers"),
        (NystromRegressor(n_centers=None), "pass n_centers"),
        (NytroRegressor(n_centers=None), "pass n_centers"),
        (NystromRegressor(kernel="precomputed"), "pass rows, and another kernel"),
        (NystromRegressor(n_centers=9, centers="kmeans"), "pass centers='uniform'"),
        (EigenProRegressor(n_centers=9, centers="kmeans"), "pass centers='uniform'"),
        (DSGRegressor(), "pass pieces of them to partial_fit"),
        (RFMRegressor(EigenProRegressor()), "in memory"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_models_that_need_their_rows(model, advice):
    D = da.from_array(
        X if model.get_params().get("kernel") != "precomputed" else X @ X.T
    )
    with pytest.raises(ValueError, match=advice):
        model.fit(D, Y)


def test_log_loss_is_not_for_workers():
    model = NystromClassifier(n_centers=20, loss="log_loss", alpha=1e-3)
    with pytest.raises(ValueError, match="loss must be 'squared_error'"):
        model.fit(da.from_array(X), LABELS)


def test_other_features_than_in_training():
    model = fitted("nystrom", X)
    with pytest.raises(ValueError, match="4 features"):
        model.predict(da.from_array(X[:, :3]))


def test_a_prediction_is_of_the_model_as_it_was():
    model = fitted("linear_direct", X)
    expected, lazy = model.predict(X), model.predict(da.from_array(X, chunks=(200, -1)))
    model.partial_fit(X, -3 * Y)
    assert abs(model.predict(X) - expected).max() > 0.1
    assert_array_equal(lazy, expected)
    lazy = model.predict(da.from_array(X, chunks=(200, -1)))
    expected = model.predict(X)
    model.fit(X, 7 * Y)
    assert_array_equal(lazy, expected)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_transformed_chunks_are_arrays(library):
    pytest.importorskip(library)
    features = RandomFourierFeatures(n_components=4, random_state=0).fit(X)
    rows = da.from_array(X, chunks=(200, -1))
    with config_context(transform_output=library):
        with pytest.raises(ValueError, match=r"call set_output\(transform='default'"):
            features.transform(rows)
        features.set_output(transform="default")
        assert isinstance(features.transform(rows), da.Array)


def test_columns_of_other_data_types():
    dataframe = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame(X, columns=list("abcd"))
    frame["b"] = frame["b"] > 0
    frame["c"] = pd.array(np.round(X[:, 2]), dtype="Int64")
    frame["d"] = pd.array(X[:, 3], dtype="Float32")
    lazy = dataframe.from_pandas(frame, npartitions=3)
    model = fitted("nystrom", lazy)
    expected = fitted("nystrom", frame)
    assert_allclose(model.predict(frame), expected.predict(frame), rtol=1e-6)
    assert_allclose(model.predict(lazy), expected.predict(frame), rtol=1e-6)
    frame.loc[3, "c"] = pd.NA
    with pytest.raises(ValueError, match="NaN"):
        fitted("nystrom", dataframe.from_pandas(frame, npartitions=3))
    frame["c"] = "text"
    with pytest.raises(ValueError, match="X must hold numbers"):
        fitted("nystrom", dataframe.from_pandas(frame, npartitions=3))
    assert lazy_rows(lazy[["d"]]).dtype == np.float32


def test_floats_of_16_bits():
    with pytest.raises(ValueError, match="got float16, which is not supported"):
        fitted("nystrom", da.from_array(X.astype(np.float16), chunks=(200, -1)))


def test_parts_of_the_posterior_are_for_arrays():
    model = NystromRegressor(n_centers=60).fit(X, Y)
    with pytest.raises(ValueError, match="map_blocks"):
        model.predict(da.from_array(X), return_std=True)


@pytest.fixture
def small_parts(monkeypatch):
    """Let direct solutions, and so parts, have at most 150 rows."""
    monkeypatch.setattr("eigenkern.plan.sizes._DIRECT_ROWS", 150)


def test_workers_solve_parts_with_weights_and_go_on(
    client, small_parts, monkeypatch, tmp_path
):
    """In single precision, with copies, a far row, and rows without weight."""
    Z, y, w = X.astype(np.float32), Y.copy(), np.arange(N) % 3.0
    Z[11], y[11] = 1e12, 0.0
    Z[300:330], y[300:330] = Z[:30], Y[:30]
    model, solved = RFMRegressor(random_state=0, max_rounds=1), PartSolver._solved
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        expected = clone(model).fit(Z, y, w)
    assert expected.n_parts_ > 3

    def interrupted(solver, i):
        if i == 2:
            raise KeyboardInterrupt
        return solved(solver, i)

    D = da.from_array(Z, chunks=(170, 4))
    where = {"checkpoint": Checkpoint(tmp_path / "fit", seconds=0), "resume": True}
    with monkeypatch.context() as m, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        m.setattr(PartSolver, "_solved", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.fit(D, y, w, **where)
    assert not hasattr(model, "estimator_")
    with warnings.catch_warnings(record=True) as again:
        warnings.simplefilter("always")
        model.fit(D, y, w, **where)
    assert {str(one.message) for one in again} == {str(one.message) for one in caught}
    found, same = (one.predict(X[:50], return_std=True) for one in (model, expected))
    assert_allclose(found, same, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cls", [RFMRegressor, RFMClassifier])
def test_workers_solve_parts(cls, client, small_parts, monkeypatch, tmp_path):
    """The model is that of rows in memory; one that is resumed is bit for bit so."""
    model, solved, submit = cls(random_state=0, max_rounds=1), [], client.submit

    def count(function, *args, **options):
        solved.append(function is _part)
        return submit(function, *args, **options)

    y = Y if cls is RFMRegressor else LABELS
    expected = clone(model).fit(X, y)
    monkeypatch.setattr(client, "submit", count)
    D = da.from_array(X, chunks=(170, 4))
    model.fit(D, da.from_array(y, chunks=170), checkpoint=tmp_path / "fit")
    assert sum(solved) == model.n_parts_ > 4
    again = clone(model).fit(D, y, checkpoint=tmp_path / "fit", resume=True)
    assert sum(solved) == model.n_parts_  # none once more
    assert_array_equal(values(again, X), values(model, X))
    assert_allclose(values(model, X), values(expected, X), rtol=1e-9, atol=1e-12)
    for one in (model, again):
        assert "_cluster" not in vars(one) | vars(one.estimator_)
    plain = clone(model).fit(X, y)
    assert sum(solved) == model.n_parts_  # rows in memory stay here
    assert_array_equal(values(plain, X), values(expected, X))


def test_parts_that_workers_cannot_hold_are_solved_here(
    client, small_parts, monkeypatch
):
    asked, submit = [], client.submit

    def count(function, *args, **options):
        asked.append(function)
        return submit(function, *args, **options)

    workers = Workers(client)
    limit = min(w["memory_limit"] for w in client.scheduler_info()["workers"].values())
    assert workers.can_hold(0.49 * limit) and not workers.can_hold(0.51 * limit)
    monkeypatch.setattr("eigenkern.rows.dask_rows._PART_OF_LIMIT", 1e-5)
    monkeypatch.setattr(client, "submit", count)
    model = RFMRegressor(random_state=0, max_rounds=0)
    model.fit(da.from_array(X, chunks=(170, 4)), Y)
    assert model.n_parts_ > 4 and asked and _part not in asked
    model._cluster = workers  # as while a fit goes on: callbacks may copy and pickle
    assert "_cluster" not in vars(pickle.loads(pickle.dumps(model)))


@pytest.mark.filterwarnings("ignore")
def test_workers_that_die_while_they_solve_parts(
    mortal_client, small_parts, monkeypatch
):
    asked, solved = [], PartSolver._solved

    def kill(solver, i):
        asked.append(i)
        if len(asked) == 3:  # one of the two might have no part just then
            for pid in mortal_client.run(os.getpid).values():
                os.kill(pid, signal.SIGKILL)
        return solved(solver, i)

    monkeypatch.setattr(PartSolver, "_solved", kill)
    model = RFMRegressor(random_state=0, max_rounds=1)
    model.fit(da.from_array(X, chunks=(170, 4)), Y)
    assert len(asked) > model.n_parts_ > 4  # some were solved once more
    expected = clone(model).fit(X, Y)
    assert_allclose(model.predict(X), expected.predict(X), rtol=1e-9, atol=1e-12)


def test_a_search_on_workers(client):
    assert set(client.run(n_blas_threads).values()) == {1}
    grid = {"n_centers": [5, 60]}
    search = GridSearchCV(NystromRegressor(random_state=0), grid, cv=3)
    expected = search.fit(X, Y).cv_results_["mean_test_score"]
    with joblib.parallel_config(backend="dask"):
        found = search.fit(X, Y).cv_results_["mean_test_score"]
    assert_allclose(found, expected, atol=1e-9)
