"""Estimates of fits, against what fits choose and take."""

import re
import tracemalloc
import warnings

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import chi2_kernel
from sklearn.pipeline import make_pipeline

import eigenkern
from eigenkern import (
    DSGClassifier,
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeClassifier,
    FalkonLikeRegressor,
    LinearEigenProRegressor,
    NystromClassifier,
    NystromRegressor,
    NytroRegressor,
    RandomFourierFeatures,
    RFMRegressor,
    estimate,
)
from eigenkern.arrays import memory
from eigenkern.arrays.threads import n_blas_threads
from eigenkern.fitting import planning
from eigenkern.kernels import Gaussian
from eigenkern.methods.descent import EarlyStopping
from eigenkern.operators.waves import FourierBlocks

ITEMS = [
    "data copy",
    "centers",
    "kernel matrix",
    "preconditioner",
    "workspace",
    "total",
]


def data(rng, n, d, dtype="float64"):
    X = rng.standard_normal((n, d)).astype(dtype)
    return X, np.sin(X[:, 0]) + 0.3 * rng.standard_normal(n)


@pytest.mark.parametrize(
    "model",
    [
        EigenProRegressor(),
        EigenProRegressor(algorithm="eigenpro2", max_iter=2),
        EigenProRegressor(algorithm="eigenpro1", max_iter=1),
        EigenProRegressor(algorithm="sgd", max_iter=2, early_stopping=True),
        EigenProRegressor(algorithm="eigenpro2", max_iter=1, cache_size=0),
        EigenProRegressor(n_centers=300, max_iter=3),
        EigenProRegressor(algorithm="eigenpro4", n_centers=300, max_iter=3),
        EigenProRegressor(n_centers=300, max_iter=1, cache_size=0),
        EigenProRegressor(n_centers=50, max_iter=3, algorithm="eigenpro3-exact"),
        FalkonLikeRegressor(n_centers=200),
        LinearEigenProRegressor(max_iter=3),
        LinearEigenProRegressor(max_iter=3, alpha=0.0),
        DSGRegressor(max_iter=2),
        NystromRegressor(n_centers=150),
        NystromRegressor(),
        NytroRegressor(n_centers=150),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_sizes_are_those_that_a_fit_chooses(model, rng):
    X, y = data(rng, 1000, 6)
    told = estimate(model, *X.shape)
    model.set_params(random_state=0).fit(X, y)
    for name in ("batch_size", "n_centers"):
        chosen = getattr(model, f"{name}_", None)
        if chosen is not None:
            assert getattr(told, name) == chosen
    if hasattr(model, "cache_size_") and told.method not in ("direct", "udsg"):
        kept = model.cache_size_
        assert told.memory["kernel matrix"] == pytest.approx(kept, rel=1e-6)
    if hasattr(model, "algorithm_"):
        assert told.method == model.algorithm_
        assert told.n_epochs >= model.n_iter_
        coef = getattr(model, "dual_coef_", None)
        assert told.n_centers == (None if coef is None else coef.shape[0])


@pytest.mark.parametrize(
    "model",
    [
        EigenProRegressor(algorithm="eigenpro2", max_iter=1),
        EigenProRegressor(),
        EigenProRegressor(n_centers=800, max_iter=1),
        EigenProRegressor(algorithm="eigenpro4", n_centers=800, max_iter=1),
        NystromRegressor(n_centers=1000),
        NystromRegressor(n_centers=1000, alpha="path"),
        NystromRegressor(n_centers=1000, alpha="path", selection="gcv"),
        NystromRegressor(n_centers=1000, alpha="path", selection="loo"),
        NystromRegressor(n_centers=1000, alpha="path", selection="loo", cache_size=100),
        NystromRegressor(n_centers=None),
        NystromRegressor(n_centers=None, alpha="path"),
        NystromRegressor(n_centers=None, alpha="path", selection="loo"),
        NystromRegressor("gaussian", n_centers=None, alpha=0.0),
        NytroRegressor(n_centers=None),
        NytroRegressor(n_centers=None, max_iter=3),
        NytroRegressor(n_centers=1000, max_iter=3, cache_size=100),
        FalkonLikeRegressor(n_centers=3000),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_memory_is_what_a_fit_allocates(model, rng):
    X, y = data(rng, 3000, 6)
    told = estimate(model, *X.shape).memory
    assert list(told) == ITEMS
    assert_allclose(sum(told.values()), 2 * told["total"])
    tracemalloc.start()
    try:
        model.set_params(random_state=0).fit(X, y)
        peak = tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()
    # Freed tiles stay with the process, and are not in that peak.
    assert 0.9 * peak < told["total"] < 1.1 * peak + 17


def test_whether_a_fit_takes_long_is_told_without_measurements(monkeypatch):
    """It would take memory: 510 MB where the fit takes 100."""
    monkeypatch.setattr(memory, "touch_rate", lambda n_bytes: pytest.fail("measured"))
    X = np.zeros((3000, 6))
    planning.warn_of_long_fit(RFMRegressor(), X, 1)
    assert planning.plan_of(RFMRegressor(), X, 1).usual_seconds > 1


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("n_features", [600, 1500])
def test_memory_of_linear_models(n_features, sparse, rng):
    X, y = data(rng, 4000, n_features)
    if sparse:
        X = scipy.sparse.random_array(X.shape, density=0.01, format="csr", rng=rng)
        y = X[:, :9].sum(axis=1)
    for model in (LinearEigenProRegressor(), LinearEigenProRegressor(batch_size=300)):
        told = planning.plan_of(model, X, 1).memory["total"]
        tracemalloc.start()
        try:
            model.set_params(max_iter=2, tol=10.0, random_state=0).fit(X, y)
            peak = tracemalloc.get_traced_memory()[1] / 1e6
        finally:
            tracemalloc.stop()
        assert 0.8 * peak < told < 1.5 * peak + 17


@pytest.mark.parametrize("n_centers", [None, 500])
@pytest.mark.parametrize("max_iter", ["auto", 3, 5000])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_nytro_iterates_where_its_plan_does(max_iter, n_centers, rng, monkeypatch):
    X, y = data(rng, 1000, 6)
    model, solvers = NytroRegressor(n_centers=n_centers, max_iter=max_iter), []
    method = estimate(model, *X.shape).method
    if n_centers is None:
        assert method == ("iterations" if max_iter == 3 else "path")

    def remember(*args, **options):
        solvers.append(EarlyStopping(*args, **options))
        return solvers[-1]

    monkeypatch.setattr("eigenkern.estimators.nytro.EarlyStopping", remember)
    model.set_params(random_state=0).fit(X, y)
    assert len(solvers) == (method == "iterations")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_classes", [2, 8])
@pytest.mark.parametrize(
    "model",
    [
        NystromClassifier(loss="log_loss", n_centers=800, alpha=1e-3),
        NystromClassifier(loss="log_loss", n_centers=800, alpha=1e-3, cache_size=0),
        NystromClassifier(loss="log_loss", n_centers=800, alpha="path"),
        FalkonLikeClassifier(loss="log_loss", n_centers=800, alpha=1e-3),
    ],
    ids=["nystrom", "uncached", "path", "falkon"],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_memory_of_the_log_loss(model, n_classes, dtype, rng):
    X = rng.standard_normal((8000, 6)).astype(dtype)
    y = (8 * rng.random(8000) + 3 * np.sin(X[:, 0]) > 4) * 1
    if n_classes > 2:
        y = np.argmax(X @ rng.standard_normal((6, 8)), axis=1)
    model = clone(model).set_params(random_state=0)
    n_outputs = 1 if n_classes == 2 else n_classes
    told = estimate(model, *X.shape, n_outputs, dtype=dtype)
    tracemalloc.start()
    try:
        model.fit(X, y)
        peak = tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()
    kept = 0 if model.cache_size == 0 else X.itemsize * 8000 * 800 / 1e6
    assert told.memory["kernel matrix"] == pytest.approx(kept)
    assert getattr(model, "cache_size_", kept) == pytest.approx(kept)
    assert told.n_centers == 800
    assert 0.9 * peak < told.memory["total"] < 1.1 * peak + 17


def test_work_grows_as_it_should():
    def flops(n, d=20, k=1, **parameters):
        return estimate(EigenProRegressor(**parameters), n, d, k).flops

    many = {"algorithm": "eigenpro2", "cache_size": 0, "alpha": 0.0}
    # Kernel entries of 20 epochs.
    assert 1 <= flops(100_000, **many) / (20 * 100_000**2 * 2 * 21) < 1.3
    assert flops(200_000, **many) / flops(100_000, **many) == pytest.approx(4, rel=0.1)
    twice = {**many, "max_iter": 40}
    assert flops(50_000, **twice) / flops(50_000, **many) == pytest.approx(2, rel=0.1)


def test_data_types_of_numpy():
    for of_numpy, name in ((np.float32, "float32"), (np.dtype("f8"), "float64")):
        found = estimate(EigenProRegressor(), 4000, 784, dtype=of_numpy)
        expected = estimate(EigenProRegressor(), 4000, 784, dtype=name)
        assert found.memory == expected.memory


def test_single_precision_takes_half():
    model = EigenProRegressor(algorithm="eigenpro2", cache_size=3000)
    single, double = (
        estimate(model, 15_000, 10, dtype=dtype) for dtype in ("float32", "float64")
    )
    assert double.memory["kernel matrix"] == 2 * single.memory["kernel matrix"] > 900
    assert 0.4 < single.memory["total"] / double.memory["total"] < 0.6
    assert 0 < single.seconds < double.seconds


@pytest.mark.parametrize(
    "model, sizes",
    [
        (EigenProClassifier(Gaussian(2.0)), (60_000, 784, 10)),
        (EigenProClassifier(lambda X, Z: X @ Z.T, n_centers=20), (500, 3)),
        (EigenProRegressor("precomputed", max_iter=2, batch_size=50), (500, 500)),
        (NystromClassifier(loss="log_loss", n_centers=20), (500, 3, 4)),
        (NystromClassifier(), (2_000_000, 20)),
        (NystromRegressor("precomputed", n_centers=20), (500, 500)),
        (NystromRegressor(centers=np.eye(3)), (500, 3)),
        (NytroRegressor(n_centers=None, max_iter=3), (500, 3)),
        (FalkonLikeRegressor(), (500, 3)),
        (DSGClassifier(cache_size=0), (2_000_000, 20)),
    ],
)
def test_every_kind_of_fit(model, sizes):
    told = estimate(model, *sizes)
    assert told.seconds > 0 and told.flops > 0
    assert all(np.isfinite(mb) and mb >= 0 for mb in told.memory.values())
    if told.n_centers is not None and getattr(model, "n_centers", None) == 20:
        assert told.n_centers == 20
    assert not hasattr(model, "n_features_in_")


def test_table():
    model = EigenProRegressor(algorithm="eigenpro4", n_centers=200, max_iter=5)
    told = estimate(model, 4000, 3)
    lines = repr(told).splitlines()
    assert lines[0] == "EigenProRegressor on 4000 x 3 float64, 1 output"
    rows = dict(line.strip().split("  ", 1) for line in lines[1:])
    assert rows["centers"].strip() == "200" and rows["epochs assumed"].strip() == "5"
    assert rows["memory: total"].strip().endswith(" MB")
    html = told._repr_html_()
    assert html.count("<tr>") == len(lines) - 1
    assert html.startswith("<table>") and "<th" in html and ">200</td>" in html


@pytest.mark.parametrize(
    "name, call, message",
    [
        ("other", lambda: estimate(Ridge(), 10, 2), "got Ridge"),
        ("class", lambda: estimate(EigenProRegressor, 10, 2), "must be an instance of"),
        ("map", lambda: estimate(RandomFourierFeatures(), 10, 2), "got RandomFou"),
        (
            "pipeline",
            lambda: estimate(make_pipeline(EigenProRegressor()), 10, 2),
            "got Pipeline",
        ),
        ("rows", lambda: estimate(EigenProRegressor(), 0, 2), "n_samples must be"),
        ("columns", lambda: estimate(EigenProRegressor(), 9, 0), "n_features must be"),
        ("outputs", lambda: estimate(EigenProRegressor(), 9, 2, 0), "n_outputs must"),
        ("float", lambda: estimate(EigenProRegressor(), 9.5, 2), "n_samples must be"),
        (
            "arrays",
            lambda: estimate(EigenProRegressor(), np.ones((9, 2)), np.ones(9)),
            r"estimate\(model, \*X.shape\)",
        ),
        (
            "dtype",
            lambda: estimate(EigenProRegressor(), 9, 2, dtype="int8"),
            "dtype must be",
        ),
        (
            "no dtype",
            lambda: estimate(EigenProRegressor(), 9, 2, dtype=None),
            "dtype must be 'float32' or 'float64'; got None",
        ),
        (
            "gpu",
            lambda: estimate(EigenProRegressor(device="cuda"), 9, 2),
            "device must",
        ),
        (
            "parameters",
            lambda: estimate(EigenProRegressor(max_iter=0), 9, 2),
            "max_iter must",
        ),
    ],
)
def test_errors(name, call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_measured_once(monkeypatch):
    assert estimate(NystromRegressor(n_centers=10), 100, 4).seconds > 0
    monkeypatch.setattr(eigenkern.plan.costs, "_best_seconds", None)
    first = estimate(NystromRegressor(n_centers=10), 1000, 4)
    assert first.seconds == estimate(NystromRegressor(n_centers=10), 1000, 4).seconds


def test_kernels_of_numbers_that_are_not_negative():
    assert estimate(EigenProRegressor(chi2_kernel), 1000, 5).seconds > 0


def test_sizes_are_checked_as_in_a_fit():
    for n_centers in (2.5, 0, "many"):
        with pytest.raises(ValueError, match="n_centers must be"):
            estimate(NystromRegressor(n_centers=n_centers), 1000, 5)
    with pytest.raises(ValueError, match="centers must have the 7 features of X"):
        estimate(EigenProRegressor(centers=np.eye(3)), 1000, 7)


def test_single_precision_that_would_drown_the_penalty_is_double():
    model = FalkonLikeRegressor(n_centers=100, alpha=1e-10, cache_size=100)
    single, double = (
        estimate(model, 5000, 20, dtype=dtype).memory["kernel matrix"]
        for dtype in ("float32", "float64")
    )
    assert single == double


def test_a_long_fit_warns_and_says_what_takes_less(monkeypatch, rng):
    X, y = data(rng, 3000, 4)
    model = NystromRegressor(n_centers=None, random_state=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".* is expected to take")
        model.fit(X, y)
    monkeypatch.setattr(planning, "_LONG", 0.0)
    monkeypatch.setattr(planning, "_FASTER", ({"n_centers": 100},))
    told = r"NystromRegressor.fit is expected to take \d+ s; n_centers=100 takes about "
    with pytest.warns(UserWarning, match=told):
        model.fit(X, y)
    with warnings.catch_warnings():  # few rows take no time
        warnings.filterwarnings("error", ".* is expected to take")
        model.fit(X[:1000], y[:1000])


def test_rounds_take_longer_than_one_fit():
    one = estimate(EigenProRegressor("laplacian"), 6000, 8)
    few, more = (estimate(RFMRegressor(max_rounds=k), 6000, 8) for k in (1, 4))
    assert 3 * one.flops < few.flops < more.flops
    assert one.seconds < few.seconds < more.seconds
    assert one.memory["total"] < more.memory["total"]
    assert more.method == "direct"
    inner = RFMRegressor(NystromRegressor(n_centers=100))
    assert estimate(inner, 6000, 8).n_centers == 100


@pytest.mark.parametrize("early_stopping", [False, True])
def test_the_work_of_random_features_is_counted(early_stopping, rng, monkeypatch):
    """Rows times frequencies, within a fifth of those that a fit evaluates."""
    X, y = data(rng, 2000, 6)
    model = DSGRegressor(max_iter=4, early_stopping=early_stopping, random_state=0)
    model.set_params(tol=0.0, n_iter_no_change=9)
    told, evaluated = estimate(model, *X.shape).costs._waves, []

    def adjoint(self, X, k, G, of=FourierBlocks.adjoint):
        evaluated.append(len(X) * self.block_size)
        return of(self, X, k, G)

    def product(self, X, *args, of=FourierBlocks.product):
        n_rows.append(len(X))
        return of(self, X, *args)

    def drawn(self, blocks, coef, parts, of=FourierBlocks._slabs):
        n_blocks = sum(len(blocks[part]) for part in parts)
        alone = n_rows[-1] * 512 <= 2**17
        evaluated.append(n_rows[-1] * n_blocks * self.block_size)
        evaluated[-1] *= n_blas_threads() if alone else 1  # the others wait
        return of(self, blocks, coef, parts)

    n_rows = []
    monkeypatch.setattr(FourierBlocks, "adjoint", adjoint)
    monkeypatch.setattr(FourierBlocks, "product", product)
    monkeypatch.setattr(FourierBlocks, "_slabs", drawn)
    model.fit(X, y)
    assert 0.8 < told / sum(evaluated) < 1.25


def test_quantiles_are_outputs():
    quantiles = DSGRegressor(loss="pinball", quantile=[0.1, 0.5, 0.9], max_iter=2)
    told, three = estimate(quantiles, 3000, 5), estimate(quantiles, 3000, 5, 3)
    assert told.n_outputs == 3 and told.flops == three.flops
    assert told.memory == three.memory
    one = estimate(quantiles.set_params(quantile=0.5), 3000, 5)
    assert one.n_outputs == 1 and one.flops < told.flops
    # The other losses have no quantiles.
    squared = quantiles.set_params(loss="squared_error", quantile=[0.1, 0.9])
    assert estimate(squared, 3000, 5).n_outputs == 1


def test_what_fits_is_known():
    X = np.broadcast_to(0.0, (50_000, 20))
    text = planning.what_fits(EigenProRegressor(), X, 5e8)
    p = int(re.match(r"n_centers=(\d+) takes about \d+ MB", text)[1])
    assert estimate(EigenProRegressor(n_centers=p), *X.shape).memory["total"] < 500
    least = planning.what_fits(EigenProRegressor(), X, 1.0)
    assert re.fullmatch(r"even 10 rows take about \d+ MB, which must be free", least)
