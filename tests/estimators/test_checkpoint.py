"""Checkpoints: fits that stop at any moment and resume bit for bit."""

import errno
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path

import joblib
import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from eigenkern import (
    Checkpoint,
    DSGClassifier,
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeClassifier,
    FalkonLikeRegressor,
    LinearEigenProClassifier,
    LinearEigenProRegressor,
    NystromRegressor,
    NytroClassifier,
    NytroRegressor,
    RFMClassifier,
    RFMRegressor,
)
from eigenkern.arrays import memory
from eigenkern.arrays.array import to_numpy
from eigenkern.estimators.rfm import MetricProblem
from eigenkern.fitting import checkpoint
from eigenkern.fitting import rules as callbacks
from eigenkern.fitting import rules as training
from eigenkern.fitting.checkpoint import Keeper
from eigenkern.kernels import Laplacian
from eigenkern.methods.guard import Guarded
from eigenkern.methods.state import State
from eigenkern.plan import sizes
from eigenkern.rows import lazy_rows as lazy

N_EPOCHS = 4


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch):
    """Leave writing to the operating system: each fsync takes milliseconds."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def data(rng):
    """Return 120 rows, noisy targets, and labels of three classes."""
    X = rng.standard_normal((120, 4))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * rng.standard_normal(120)
    return X, y, np.digitize(y, [-0.5, 0.7])


def every_epoch(folder):
    """Return a checkpoint after every epoch."""
    return Checkpoint(folder, seconds=0)


def assert_equal_models(one, other):
    """Compare fitted attributes bit for bit."""
    one, other = vars(one), vars(other)
    assert one.keys() == other.keys()
    for name in one:
        if name.endswith("_") and not name.startswith("_"):
            assert_equal_values(one[name], other[name])


def assert_equal_values(one, other):
    """Compare arrays, and objects that contain arrays."""
    if isinstance(one, np.ndarray):
        assert_array_equal(one, other)
        assert one.dtype == other.dtype
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_equal_values(one[name], other[name])
    else:
        assert one == other or repr(one) == repr(other)


@pytest.fixture
def copies(monkeypatch, tmp_path):
    """Copy the folder of every checkpoint that is written; return the copies."""
    found, keep = [], Keeper.keep

    def kept(self, *args):
        keep(self, *args)
        found.append(tmp_path / f"copy {len(found)}")
        shutil.copytree(self._folder, found[-1])

    monkeypatch.setattr(Keeper, "keep", kept)
    return found


MACHINE = {"algorithm": "eigenpro2", "batch_size": 12}
MODELS = {
    "eigenpro1": EigenProRegressor(algorithm="eigenpro1", batch_size=12),
    "eigenpro2, to the end of the race": EigenProRegressor(**MACHINE),
    "eigenpro2, float32": EigenProRegressor(**MACHINE),
    "sgd": EigenProRegressor(algorithm="sgd", alpha=0.0),
    "eigenpro3": EigenProRegressor(algorithm="eigenpro3", n_centers=40, cache_size=0),
    "eigenpro3-exact": EigenProRegressor(algorithm="eigenpro3-exact", n_centers=40),
    "eigenpro4": EigenProRegressor(algorithm="eigenpro4", n_centers=40),
    "eigenpro4, few rows a step": EigenProRegressor(
        n_centers=60, batch_size=5, cache_size=0
    ),
    "validation": EigenProRegressor(**MACHINE, early_stopping=True),
    "validation of costly classes": EigenProClassifier(
        **MACHINE, early_stopping=True, class_weight={0: 5.0}
    ),
    "an absurd step": EigenProRegressor(algorithm="eigenpro2", step_size=1e6),
    "calibrated": EigenProClassifier(**MACHINE),
    "calibrated, centers": EigenProClassifier(algorithm="eigenpro4", n_centers=40),
    "classes, validation": EigenProClassifier(
        n_centers=40, early_stopping=True, class_weight="balanced"
    ),
    "linear": LinearEigenProRegressor(batch_size=12),
    "linear, validation": LinearEigenProRegressor(early_stopping=True),
    "linear, sparse": LinearEigenProClassifier(batch_size=12, damping=1.0),
    "udsg": DSGRegressor(batch_size=40, block_size=16, max_features=1024),
    "dsg, without values": DSGRegressor(
        algorithm="dsg", cache_size=0, batch_size=60, block_size=2, max_features=20
    ),
    "cdsg": DSGRegressor(algorithm="cdsg", loss="huber", batch_size=40),
    "quantiles": DSGRegressor(loss="pinball", quantile=[0.2, 0.8]),
    "log_loss": DSGClassifier(batch_size=40, block_size=16, max_features=64),
    "hinge, validation": DSGClassifier(loss="hinge", early_stopping=True),
    "falkon": FalkonLikeRegressor(n_centers=40, cache_size=0),
    "falkon, classes": FalkonLikeClassifier(n_centers=40, class_weight="balanced"),
}


@pytest.mark.filterwarnings("ignore:the quantile .* is corrected on")
@pytest.mark.parametrize("name", MODELS)
def test_a_fit_goes_on_bit_for_bit(name, data, copies, tmp_path):
    X, y, labels = data
    n_epochs = 9 if "race" in name or "absurd" in name else N_EPOCHS
    n_epochs = 50 if "falkon" in name else n_epochs  # until each column is done
    model = clone(MODELS[name]).set_params(max_iter=n_epochs, random_state=0)
    y = labels if hasattr(model, "classes_") or "class_weight" in vars(model) else y
    if "sparse" in name:
        X = scipy.sparse.csr_array(np.where(X > 0, X, 0.0))
    X = X.astype(np.float32) if "float32" in name else X
    weights = np.linspace(0.5, 2.0, len(y))
    expected = clone(model).fit(X, y, weights)
    written = clone(model).fit(X, y, weights, checkpoint=every_epoch(tmp_path / "all"))
    assert_equal_models(written, expected)
    assert len(copies) == expected.n_iter_ > 2
    for copy in list(copies):
        resumed = clone(model)
        resumed.fit(X, y, weights, checkpoint=every_epoch(copy), resume=True)
        assert_equal_models(resumed, expected)


INNER = EigenProRegressor(
    algorithm="eigenpro2", bandwidth="median", max_iter=2, early_stopping=True
)
ROUNDS = {
    "default": RFMRegressor(metric="diagonal", max_rounds=1),
    "early stopping, outputs": RFMRegressor(INNER, metric="diagonal", max_rounds=2),
    "float32": RFMRegressor(
        NystromRegressor(n_centers=30, alpha=1e-3, bandwidth="median"), max_rounds=3
    ),
    "random state": RFMRegressor(
        NytroRegressor(n_centers=30, random_state=np.random.RandomState(3)),
        metric="full",
        max_rounds=2,
    ),
    "classes": RFMClassifier(
        EigenProClassifier(alpha=1e-2), max_rounds=2, class_weight="balanced"
    ),
}


def assert_equal_rounds(one, other, X):
    """Compare recursive feature machines bit for bit."""
    attributes = {
        name: value for name, value in vars(other).items() if name != "estimator_"
    }
    for name in attributes:
        if name.endswith("_") and not name.startswith("_"):
            assert_equal_values(getattr(one, name), getattr(other, name))
    assert_array_equal(one.predict(X), other.predict(X))
    coef = other.estimator_._coef_attribute
    assert_array_equal(getattr(one.estimator_, coef), getattr(other.estimator_, coef))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_go_on_bit_for_bit(name, data, copies, tmp_path, monkeypatch):
    X, y, labels = data
    model = clone(ROUNDS[name])
    if name != "random state":
        model.set_params(random_state=0)
    y = np.stack([y, -2.0 * X[:, 1]], axis=1) if "outputs" in name else y
    y = labels if name == "classes" else y
    X = X.astype(np.float32) if name == "float32" else X
    weights = np.linspace(0.5, 2.0, len(y))
    if name == "random state":
        model.set_params(random_state=np.random.RandomState(5))
    expected = clone(model).fit(X, y, weights)
    written = clone(model)
    written.fit(X, y, weights, checkpoint=every_epoch(tmp_path / "all"))
    assert_equal_rounds(written, expected, X)
    n_rounds = len(expected.validation_scores_["score"])
    assert len(copies) == n_rounds + 1 > 2
    learned, learn = [], MetricProblem._outer_product

    def learning(*args):
        learned.append(1)
        return learn(*args)

    monkeypatch.setattr(MetricProblem, "_outer_product", learning)
    for i, copy in enumerate(list(copies)):
        learned.clear()
        resumed = clone(model)
        resumed.fit(X, y, weights, checkpoint=every_epoch(copy), resume=True)
        assert_equal_rounds(resumed, expected, X)
        # The importances are computed at the end.
        assert len(learned) == max(n_rounds - 1 - i, 0) + 1


def test_a_second_start_goes_on_bit_for_bit(copies, tmp_path):
    rng = np.random.RandomState(0)
    X, y = rng.standard_normal((120, 6)), rng.standard_normal(120)
    y += X[:, 0] * X[:, 1]
    model = RFMRegressor(max_rounds=2, random_state=0)
    expected = clone(model).fit(X, y)
    rounds = expected.validation_scores_
    assert rounds["metric"] == [None, *["diagonal"] * 4, *["full"] * 2]
    assert rounds["round"][1:5] == [1, 2, 2, 3]
    clone(model).fit(X, y, checkpoint=every_epoch(tmp_path / "all"))
    assert len(copies) == len(rounds["round"]) + 1
    for copy in list(copies):
        resumed = clone(model)
        resumed.fit(X, y, checkpoint=every_epoch(copy), resume=True)
        assert_equal_rounds(resumed, expected, X)


def test_rounds_of_another_fit_are_refused(data, copies, tmp_path):
    X, y, _ = data
    inner = NystromRegressor(n_centers=30, alpha=1e-3, bandwidth="median")
    model = RFMRegressor(inner, max_rounds=1, random_state=0)
    given = {"X_val": X[80:], "y_val": y[80:]}
    model.fit(X[:80], y[:80], **given, checkpoint=every_epoch(tmp_path / "all"))
    X, y, folder = X[:80], y[:80], copies[1]
    other = clone(model).set_params(max_rounds=2)
    assert_refused(other, X, y, folder, "max_rounds is 1 there and 2 here", **given)
    other = clone(model).set_params(estimator__alpha=1e-2)
    assert_refused(other, X, y, folder, "another fit: estimator is Nystrom", **given)
    assert_refused(model, X, -y, folder, "another fit: y is", **given)
    assert_refused(model, X, y, folder, "another fit: X_val is")
    assert_refused(model, X, y, folder, "resume=True", resume=False, **given)
    forged(folder, inside("state", "tree", "rule", rounds=[{"kind": None}]))
    assert_refused(model, X, y, folder, "is damaged: manifest.json", **given)


def minus_distance(A, B):
    """A kernel with negative eigenvalues."""
    return -((A[:, None, :] - B[None, :, :]) ** 2).sum(axis=2)


NYTRO = {
    "centers": NytroRegressor(n_centers=40),
    "all rows": NytroRegressor(selection="holdout"),
    "path": NytroRegressor(n_centers=40, store_coef_path=True),
    "first small decrease": NytroRegressor(n_centers=40, tol=0.05, bandwidth="median"),
    "nothing selected": NytroRegressor(n_centers=40, selection=None),
    "classes": NytroClassifier(n_centers=40),
    "indefinite": NytroRegressor(minus_distance),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", NYTRO)
def test_early_stopping_goes_on_bit_for_bit(name, data, copies, tmp_path, monkeypatch):
    monkeypatch.setattr("eigenkern.plan.of_closed_forms.factorizes", lambda *_: False)
    X, y, labels = data
    model = clone(NYTRO[name]).set_params(max_iter=6, random_state=0)
    y = labels if name == "classes" else y
    weights = np.linspace(0.5, 2.0, len(y))
    expected = clone(model).fit(X, y, weights)
    written = clone(model).fit(X, y, weights, checkpoint=every_epoch(tmp_path / "all"))
    assert_equal_models(written, expected)
    assert len(copies) > 4 or name == "indefinite"
    for copy in list(copies):
        resumed = clone(model)
        resumed.fit(X, y, weights, checkpoint=every_epoch(copy), resume=True)
        assert_equal_models(resumed, expected)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "model",
    [
        NytroRegressor(n_centers=30),
        EigenProRegressor(early_stopping=True),
        EigenProRegressor(n_centers=30, early_stopping=True),
        LinearEigenProRegressor(early_stopping=True),
        DSGRegressor(batch_size=40, max_features=256, early_stopping=True),
    ],
    ids=repr,
)
def test_early_stopping_on_given_rows(model, data, copies, tmp_path, monkeypatch):
    monkeypatch.setattr("eigenkern.plan.of_closed_forms.factorizes", lambda *_: False)
    X, y, _ = data
    model = clone(model).set_params(max_iter=4, random_state=0)
    given = {"X_val": X[80:], "y_val": y[80:]}
    expected = clone(model).fit(X[:80], y[:80], **given)
    every = every_epoch(tmp_path / "all")
    assert_equal_models(
        clone(model).fit(X[:80], y[:80], **given, checkpoint=every), expected
    )
    assert len(copies) > 3
    for copy in list(copies):
        resumed = clone(model)
        options = given | {"checkpoint": every_epoch(copy), "resume": True}
        assert_equal_models(resumed.fit(X[:80], y[:80], **options), expected)
    others = {"X_val": X[80:], "y_val": -y[80:]}
    assert_refused(model, X[:80], y[:80], copies[1], "another fit: y_val is", **others)


@pytest.mark.filterwarnings("ignore:.*after the last of its iterations")
def test_early_stopping_goes_on_otherwise(data, copies, tmp_path, monkeypatch):
    route = "eigenkern.plan.of_closed_forms.factorizes"
    monkeypatch.setattr(route, lambda *_: False)
    X, y, _ = data
    model = NytroRegressor(n_centers=30, max_iter=4, random_state=0)
    expected = clone(model).fit(X, y, checkpoint=every_epoch(tmp_path / "all"))
    auto = "eigenkern.plan.of_closed_forms.default_n_centers"
    automatic = clone(model).set_params(n_centers="auto", selection="holdout")
    monkeypatch.setattr(auto, lambda *_, **__: 30)
    automatic.fit(X, y, checkpoint=every_epoch(tmp_path / "auto"))
    monkeypatch.setattr(auto, lambda *_, **__: 20)
    with pytest.raises(ValueError, match="has 30 centers and this fit 20: pass"):
        automatic.fit(X, y, checkpoint=copies[-3], resume=True)
    monkeypatch.setattr(route, lambda *_: True)
    with pytest.warns(
        ConvergenceWarning, match="does not continue from the checkpoint"
    ):
        model.fit(X, y, checkpoint=copies[2], resume=True)
    assert_allclose(model.predict(X), expected.predict(X), atol=1e-8)


def test_early_stopping_in_closed_form_is_solved_again(data, tmp_path):
    X, y, _ = data
    model = NytroRegressor(random_state=0)
    expected = clone(model).fit(X, y, checkpoint=tmp_path)
    assert_equal_models(
        clone(model).fit(X, y, checkpoint=tmp_path, resume=True), expected
    )


@pytest.mark.parametrize(
    "model",
    [
        EigenProClassifier(n_centers=30, cache_size=0),
        DSGClassifier(batch_size=40, block_size=16, max_features=256),
        FalkonLikeClassifier(n_centers=30, tol=0.5),
    ],
)
def test_other_array_libraries(model, other_xp, data, copies, tmp_path):
    X, y, labels = data
    X = other_xp.asarray(X)
    y = other_xp.asarray(labels if "class_weight" in vars(model) else y)
    model = clone(model).set_params(max_iter=3, random_state=0)
    with config_context(array_api_dispatch=True):
        expected = clone(model).fit(X, y, checkpoint=every_epoch(tmp_path / "all"))
        assert len(copies) > 1
        for copy in list(copies):
            resumed = clone(model)
            resumed.fit(X, y, checkpoint=every_epoch(copy), resume=True)
            coef = model._coef_attribute
            one, other = (getattr(fitted, coef) for fitted in (resumed, expected))
            assert type(one) is type(other) is type(X)
            assert_array_equal(to_numpy(one), to_numpy(other))
            for name in {"loss_curve_", "residuals_"} & vars(expected).keys():
                assert getattr(resumed, name) == getattr(expected, name)


def test_rows_that_are_not_in_memory(data, copies, tmp_path):
    dask = pytest.importorskip("dask.array")
    X, y, _ = data
    rows = dask.from_array(X, chunks=(50, 4))
    model = EigenProRegressor(n_centers=30, max_iter=3, random_state=0)
    expected = clone(model).fit(rows, y, checkpoint=every_epoch(tmp_path / "all"))
    assert len(copies) == 3
    for copy in list(copies):
        resumed = clone(model).fit(rows, y, checkpoint=every_epoch(copy), resume=True)
        assert_array_equal(resumed.dual_coef_, expected.dual_coef_)
    assert_refused(model, rows[::-1], y, tmp_path / "all", "X is DaskRows float64")
    assert_refused(model, X, y, tmp_path / "all", "X is DaskRows float64")


@pytest.mark.parametrize("cache_size", [0, 1])
def test_falkon_on_rows_that_are_not_in_memory(cache_size, data, copies, tmp_path):
    dask = pytest.importorskip("dask.array")
    X, y, _ = data
    rows = dask.from_array(X, chunks=(50, 4))
    model = FalkonLikeRegressor(
        n_centers=30, max_iter=50, cache_size=cache_size, random_state=0
    )
    expected = clone(model).fit(rows, y, checkpoint=every_epoch(tmp_path / "all"))
    assert expected.cache_size_ == cache_size * 120 * 30 * 8e-6
    assert len(copies) > 3
    for copy in list(copies):
        resumed = clone(model).fit(rows, y, checkpoint=every_epoch(copy), resume=True)
        assert_equal_models(resumed, expected)


def test_a_checkpoint_of_falkon_is_refused(data, copies, tmp_path):
    X, y, labels = data
    model = FalkonLikeRegressor(n_centers=30, max_iter=50, random_state=0)
    model.fit(X, y, checkpoint=every_epoch(tmp_path / "all"))
    other = clone(model).set_params(alpha=1e-3)
    assert_refused(other, X, y, copies[1], "alpha is 'auto' there and 0.001 here")
    assert_refused(model, X, -y, copies[1], "another fit: y is")
    (state,) = copies[1].glob("state-*.npz")
    state.write_bytes(state.read_bytes()[:-30])
    assert_refused(model, X, y, copies[1], "is damaged: state-")
    model = FalkonLikeClassifier(loss="log_loss", n_centers=30)
    with pytest.raises(ValueError, match="checkpoint must be None with loss='log_loss"):
        model.fit(X, labels, checkpoint=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_sizes_stay_where_the_machine_would_choose_others(
    data, copies, tmp_path, monkeypatch
):
    X, y, _ = data
    model = EigenProRegressor(
        algorithm="eigenpro4", n_centers=40, max_iter=8, random_state=0
    )
    monkeypatch.setattr(sizes, "MIN_ROWS", 1)
    monkeypatch.setattr(sizes, "filling_work", lambda *_: 1e3)
    monkeypatch.setattr("eigenkern.plan.of_epochs.MIN_ROWS", 1)
    expected = clone(model).fit(X, y, checkpoint=every_epoch(tmp_path / "all"))
    monkeypatch.setattr(sizes, "filling_work", lambda *_: 1.8e3)
    assert clone(model).fit(X, y).batch_size_ > expected.batch_size_
    resumed = clone(model)
    resumed.fit(X, y, checkpoint=every_epoch(copies[1]), resume=True)
    assert resumed.max_batch_size_ > expected.max_batch_size_
    resumed.max_batch_size_ = expected.max_batch_size_
    assert_equal_models(resumed, expected)
    monkeypatch.setattr(memory, "installed", lambda *_: 1e5)
    with pytest.warns(ConvergenceWarning, match="not bit for bit.* subsample_size_"):
        resumed.fit(X, y, checkpoint=every_epoch(copies[2]), resume=True)
    assert_allclose(resumed.predict(X), expected.predict(X), atol=0.1)


def test_a_direct_solution_is_made_again(data, tmp_path):
    X, y, _ = data
    model = EigenProRegressor()  # random_state=None
    expected = clone(model).fit(X, y, checkpoint=tmp_path)
    assert expected.algorithm_ == "direct"
    assert_equal_models(
        clone(model).fit(X, y, checkpoint=tmp_path, resume=True), expected
    )


@pytest.mark.parametrize("random_state", [None, "instance"])
def test_the_random_state_at_the_start_is_kept(random_state, data, copies, tmp_path):
    X, _, labels = data
    start = np.random.RandomState(3)
    options = {"max_iter": 4, "random_state": random_state, "bandwidth": "median"}
    model = EigenProClassifier(**MACHINE, **options)
    if random_state is not None:
        model.set_params(random_state=start)
    expected = clone(model).fit(X, labels, checkpoint=every_epoch(tmp_path / "all"))
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    assert len(copies) == 4
    for copy in list(copies):
        resumed = clone(model)
        if random_state is not None:
            resumed.set_params(random_state=np.random.RandomState(5))
        resumed.fit(X, labels, checkpoint=every_epoch(copy), resume=True)
        assert_equal_models(resumed, expected)
        if random_state is not None:  # as if all draws had been made
            one, other = (m.random_state.get_state() for m in (resumed, expected))
            assert_array_equal(one[1], other[1])
            assert one[2:] == other[2:]
    if random_state is None:
        assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


@pytest.fixture
def fitted(data, tmp_path):
    """Return a model, its data, and the folder of a finished fit."""
    X, y, _ = data
    model = EigenProRegressor(**MACHINE, max_iter=3, random_state=0)
    model.fit(X, y, checkpoint=tmp_path / "fit")
    return model, X, y, tmp_path / "fit"


def contents(folder):
    """Return the bytes of all files of a folder."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def assert_refused(model, X, y, folder, match, **options):
    """Assert that a fit raises an error and changes neither model nor folder."""
    before, files = dict(vars(model)), contents(folder)
    with pytest.raises(ValueError, match=match):
        model.fit(X, y, checkpoint=folder, **({"resume": True} | options))
    assert contents(folder) == files
    assert vars(model) == before


def test_two_files_are_kept_and_the_manifest_tells_of_the_fit(fitted):
    model, _, _, folder = fitted
    files = contents(folder)
    assert sorted(files) == ["manifest.json", "state-3.npz"]
    manifest = json.loads(files["manifest.json"])
    assert manifest["estimator"] == "EigenProRegressor"
    assert manifest["parameters"]["batch_size"] == "12"
    assert manifest["data"]["X"].startswith("float64 (120, 4)")
    assert manifest["chosen"]["step_size_"] == model.step_size_
    assert manifest["state"]["n_epochs"] == 3 and manifest["state"]["over"]
    with np.load(folder / "state-3.npz", allow_pickle=False) as arrays:
        assert all(arrays[name].dtype.kind in "fiub" for name in arrays.files)


def test_a_checkpoint_is_not_overwritten(fitted):
    model, X, y, folder = fitted
    assert_refused(model, X, y, folder, "resume=True", resume=False)


@pytest.mark.parametrize(
    "change, match",
    [
        ({"max_iter": 4}, "max_iter is 3 there and 4 here"),
        ({"random_state": 1}, "random_state"),
        ({"kernel": "gaussian"}, "kernel is 'laplacian' there and 'gaussian' here"),
        ({"kernel": Laplacian(2.0)}, "kernel"),
        ({"batch_size": 10}, "batch_size"),
    ],
)
def test_other_parameters_are_refused(change, match, fitted):
    model, X, y, folder = fitted
    model = clone(model).set_params(**change)
    assert_refused(model, X, y, folder, f"of another fit: {match}")


def test_verbose_may_change(fitted, capsys):
    model, X, y, folder = fitted
    again = clone(model).set_params(verbose=1)
    again.fit(X, y, checkpoint=folder, resume=True)
    assert_array_equal(again.dual_coef_, model.dual_coef_)


def test_other_data_are_refused(fitted):
    model, X, y, folder = fitted
    other = X.copy()
    other[-1, -1] += 1e-12
    assert_refused(model, other, y, folder, "another fit: X is float64")
    assert_refused(model, X[:-1], y[:-1], folder, r"X is float64 \(120, 4\)")
    assert_refused(model, X, -y, folder, "another fit: y is")
    assert_refused(model, X.astype("f4"), y, folder, "X is float64 .* and float32")
    weights = np.ones(len(y))
    assert_refused(model, X, y, folder, "sample_weight", sample_weight=weights)


def test_another_estimator_is_refused(fitted):
    _, X, y, folder = fitted
    for other in (LinearEigenProRegressor(), DSGRegressor()):
        assert_refused(other, X, y, folder, "estimator is EigenProRegressor there")


def test_a_warm_start_from_another_model_is_refused(data, tmp_path):
    X, y, _ = data
    model = EigenProRegressor(**MACHINE, max_iter=2, warm_start=True, random_state=0)
    model.fit(X, y).fit(X, y, checkpoint=tmp_path)
    assert_refused(model, X, y, tmp_path, "the model of warm_start=True")


def test_other_versions_are_refused(fitted, monkeypatch):
    model, X, y, folder = fitted
    monkeypatch.setattr("eigenkern.__version__", "9.0")
    assert_refused(model, X, y, folder, "of another fit: the version")


def test_every_byte_is_hashed(tmp_path):
    X = np.arange(600.0).reshape(200, 3)
    X.tofile(tmp_path / "X")
    told = checkpoint._text_of_array(X)
    mapped = np.memmap(tmp_path / "X", dtype=np.float64, mode="r", shape=(200, 3))
    assert checkpoint._text_of_array(mapped) == told
    assert checkpoint._text_of_array(np.asfortranarray(X)) == told
    sparse = scipy.sparse.csr_array(X)
    other = sparse.copy()
    other.indices[0] = 0
    told = checkpoint._text_of_array(sparse)
    assert checkpoint._text_of_array(other) != told


def test_states_survive_as_json():
    shared = np.arange(3.0)
    value = {
        "numbers": [1, 0.1, True, None, "text", float("inf"), float("nan")],
        0: State(shared, {"t_": np.int64(3)}, 0.5, step_size=np.float64(0.25)),
        "shared": [shared, np.zeros((0, 2), dtype=np.float32)],
    }
    tree, arrays = checkpoint._to_tree(value)
    assert len(arrays) == 2
    found = checkpoint._from_tree(json.loads(json.dumps(tree)), arrays)
    assert repr(found) == repr(value).replace("np.float64(0.25)", "0.25").replace(
        "np.int64(3)", "3"
    )
    assert found[0].coef is found["shared"][0]


def other_kernel(A, B):
    return Laplacian(2.0)(A, B)


def test_arrays_and_functions_as_parameters(data, tmp_path):
    X, y, _ = data

    def kernel(A, B):
        return Laplacian(2.0)(A, B)

    model = EigenProRegressor(kernel, centers=X[:9], max_iter=2, random_state=0)
    model.fit(X, y, checkpoint=tmp_path)
    again = clone(model).fit(X, y, checkpoint=tmp_path, resume=True)
    assert_equal_models(again, model)
    assert_refused(clone(model).set_params(centers=X[:8]), X, y, tmp_path, "centers")
    other = clone(model).set_params(kernel=other_kernel)
    assert_refused(other, X, y, tmp_path, "other_kernel")


class Power:
    def __init__(self, exponent):
        self.exponent = exponent

    def __call__(self, A, B):
        return Laplacian(2.0)(A, B) ** self.exponent


def power(exponent):
    return lambda A, B: Laplacian(2.0)(A, B) ** exponent


def power_by_default(exponent):
    def kernel(A, B, exponent=exponent):
        return Laplacian(2.0)(A, B) ** exponent

    return kernel


@pytest.mark.parametrize(
    "make", [Power, power, power_by_default, lambda e: partial(np.power, e)]
)
def test_another_function_is_refused(make):
    told = checkpoint._text_of(make(1.0))
    assert checkpoint._text_of(make(1.0)) == told
    assert checkpoint._text_of(make(2.0)) != told


def test_functions_that_refer_to_each_other():
    def one(n):
        return other(n - 1) if n else 0

    def other(n):
        return one(n - 1) if n else 1

    assert checkpoint._text_of(one) != checkpoint._text_of(other)


@pytest.mark.parametrize("held", [False, True])
def test_a_file_is_held_in_memory_or_not_as_at_first(
    held, data, copies, tmp_path, monkeypatch
):
    def fits(value):
        monkeypatch.setattr("eigenkern.rows.input._fits", lambda X: value)

    X, y, _ = data
    monkeypatch.setattr(lazy, "_BLOCK_BYTES", 700)
    monkeypatch.setattr(lazy, "_SECTION_BYTES", 1500)
    monkeypatch.setattr(lazy, "_N_FIRST", 20)
    np.save(tmp_path / "X.npy", X)
    file = np.load(tmp_path / "X.npy", mmap_mode="r")
    model = EigenProRegressor(
        algorithm="eigenpro4", n_centers=30, max_iter=3, random_state=0
    )
    fits(held)
    expected = clone(model).fit(file, y, checkpoint=every_epoch(tmp_path / "all"))
    fits(not held)
    other = clone(model).fit(file, y)
    assert abs(other.dual_coef_ - expected.dual_coef_).max() > 0  # another order
    monkeypatch.setattr(lazy, "_BLOCK_BYTES", 999)  # as in another kind of file
    assert len(copies) == 3
    for copy in list(copies):
        resumed = clone(model).fit(file, y, checkpoint=every_epoch(copy), resume=True)
        assert_equal_models(resumed, expected)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-30])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def edit(path):
    manifest = json.loads(path.read_text())
    manifest["state"]["over"] = False
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "name, damage",
    [
        ("state-3.npz", truncate),
        ("state-3.npz", flip),
        ("state-3.npz", Path.unlink),
        ("state-3.npz", lambda path: path.write_bytes(b"")),
        ("manifest.json", truncate),
        ("manifest.json", flip),
        ("manifest.json", edit),
        ("manifest.json", lambda path: path.write_text("[]")),
        ("manifest.json", lambda path: path.write_text('{"checksum": 1}')),
    ],
)
def test_a_damaged_checkpoint_is_refused(name, damage, fitted):
    model, X, y, folder = fitted
    damage(folder / name)
    assert_refused(model, X, y, folder, f"is damaged: {name}")


def forged(folder, change):
    """Change the manifest of a checkpoint, and make its checksum right."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    change(manifest)
    content = checkpoint._json(manifest)
    checksum = joblib.hash(checkpoint._json(json.loads(content)))
    path.write_text(json.dumps(json.loads(content) | {"checksum": checksum}))


def inside(*names, **values):
    """Return a function that changes an entry of an entry."""

    def change(manifest):
        entry = manifest
        for name in names:
            entry = entry[name]
        entry.update(values)

    return change


def emptied(*names):
    """Return a function that replaces an entry by an empty list."""

    def change(manifest):
        entry = manifest
        for name in names[:-1]:
            entry = entry[name]
        entry[names[-1]] = []

    return change


@pytest.mark.parametrize(
    "change",
    [
        inside("rng", "state", pos=10**9),
        inside("rng", "state", pos=-1),
        inside("rng", "state", key=[1, 2, 3]),
        inside("rng", state=None),
        inside("state", file="../state-3.npz"),
        inside("state", file="/etc/passwd"),
        inside("state", file="manifest.json"),
        inside("state", file=3),
        inside("state", file="state-" + "9" * 300 + ".npz"),
        inside("state", tree=[]),
        inside("state", tree={"rule": {"class": "Popen", "of": {}}}),
        inside("state", tree={"rule": {"array": "host99"}}),
        inside("state", "tree", rng=None),
        inside("state", "tree", rule={}),
        inside(chosen=3),
        inside(data=None),
        inside(state="over"),
        lambda manifest: manifest.pop("parameters"),
        lambda manifest: manifest["state"].pop("checksum"),
        lambda manifest: manifest["state"].pop("over"),
    ],
)
def test_a_forged_checkpoint_is_refused(change, fitted):
    """A right checksum makes no right content; nothing outside the folder is read."""
    model, X, y, folder = fitted
    forged(folder, change)
    assert_refused(model, X, y, folder, "is damaged: manifest.json")


@pytest.mark.parametrize(
    "change",
    [
        inside("state", "tree", "solver", "_search", _losses=""),
        inside("state", "tree", "solver", "_search", _trials=[3]),
        inside("state", "tree", "solver", "_search", _remaining=2**70),
        inside("state", "tree", "rule", losses=[[]]),
        inside("state", "tree", "rule", losses=2**70),
        inside("state", "tree", "rule", losses=[{"array": "host0"}]),
        inside("state", "tree", "rule", scores="/dev/zero"),
        inside("state", "tree", "rule", scores=[[]]),
        inside("state", "tree", "solver", "_guard", factor={"array": "host0"}),
    ],
)
def test_a_forged_state_of_an_unfinished_fit_is_refused(change, data, tmp_path, copies):
    """Some values are used only after an epoch."""
    X, y, _ = data
    model = EigenProRegressor(**MACHINE, max_iter=3, random_state=0)
    clone(model).fit(X, y, checkpoint=every_epoch(tmp_path / "fit"))
    forged(copies[0], change)
    before = dict(vars(model))
    with pytest.raises(ValueError, match=r"is damaged: manifest\.json"):
        model.fit(X, y, checkpoint=copies[0], resume=True)
    assert vars(model) == before


@pytest.mark.parametrize(
    ("model", "change"),
    [
        (FalkonLikeRegressor(n_centers=20), emptied("state", "tree", "solver", 0)),
        (FalkonLikeRegressor(n_centers=20), emptied("state", "tree", "solver", 3)),
        (FalkonLikeRegressor(n_centers=20), inside("state", "tree", solver=[1])),
        (DSGRegressor(), inside("state", "tree", "rule", "_coef", "of", n_due=[])),
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_forged_state_of_others_is_refused(model, change, data, tmp_path, copies):
    X, y, _ = data
    model = clone(model).set_params(tol=0.0, max_iter=3, random_state=0)
    clone(model).fit(X, y, checkpoint=every_epoch(tmp_path / "fit"))
    forged(copies[0], change)
    assert_refused(model, X, y, copies[0], "is damaged: manifest.json")


def test_an_error_of_a_callback_is_no_damage(data, tmp_path, copies, monkeypatch):
    X, y, _ = data
    model = EigenProRegressor(**MACHINE, max_iter=3, random_state=0)
    clone(model).fit(X, y, checkpoint=every_epoch(tmp_path / "fit"))

    def wrong(*args):
        raise TypeError("of the callback")

    monkeypatch.setattr(training.Callbacks, "end", wrong)
    with pytest.raises(TypeError, match="of the callback"):
        model.fit(X, y, checkpoint=copies[0], resume=True)


def test_a_deep_manifest_is_refused(fitted):
    model, X, y, folder = fitted
    (folder / "manifest.json").write_text("[" * 200_000)
    assert_refused(model, X, y, folder, "is damaged: manifest.json")


def test_compressed_arrays_are_not_expanded(fitted):
    model, X, y, folder = fitted
    with np.load(folder / "state-3.npz") as arrays:
        np.savez_compressed(folder / "state-3.npz", **dict(arrays))
    checksum = checkpoint._hash_of_file(folder / "state-3.npz")
    forged(folder, inside("state", checksum=checksum))
    assert_refused(model, X, y, folder, "is damaged: state-3.npz")


def test_arrays_are_as_large_as_they_say(fitted):
    """NumPy allocates what a header says before it reads the array."""
    model, X, y, folder = fitted
    state = folder / "state-3.npz"
    with np.load(state) as arrays:
        name = arrays.files[0]
    header = io.BytesIO()
    claim = {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)}
    np.lib.format.write_array_header_1_0(header, claim)
    with zipfile.ZipFile(state, "w") as archive:
        archive.writestr(f"{name}.npy", header.getvalue() + bytes(8))
    checksum = checkpoint._hash_of_file(state)
    forged(folder, inside("state", checksum=checksum))
    assert_refused(model, X, y, folder, "is damaged: state-3.npz")


@pytest.mark.parametrize("name", ["manifest.json", "state-3.npz"])
def test_what_is_larger_than_the_plan_is_not_read(name, fitted, monkeypatch):
    model, X, y, folder = fitted
    os.truncate(folder / name, 10**10)  # a hole, which takes no place
    monkeypatch.setattr(checkpoint, "_hash_of_file", lambda path: pytest.fail(path))
    with pytest.raises(ValueError, match=f"is damaged: {name}"):
        model.fit(X, y, checkpoint=folder, resume=True)


def test_members_together_are_no_larger_than_the_plan(fitted):
    model, X, y, folder = fitted
    most = checkpoint._most_bytes(model, model_data(model, X, y))
    assert 1e6 < most < 1e9
    state = folder / "state-3.npz"
    checkpoint._check_members(state, most)
    with pytest.raises(ValueError, match="too large"):
        checkpoint._check_members(state, state.stat().st_size / 2)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
@pytest.mark.parametrize("name", ["manifest.json", "state-3.npz"])
def test_devices_and_links_are_not_read(name, fitted, tmp_path):
    model, X, y, folder = fitted
    shutil.move(folder / name, tmp_path / name)
    for target in ("/dev/zero", tmp_path / name):
        (folder / name).symlink_to(target)
        with pytest.raises(ValueError, match=f"is damaged: {name}"):
            model.fit(X, y, checkpoint=folder, resume=True)
        (folder / name).unlink()


@pytest.mark.parametrize("size", [0, -5, "many", 1.5])
def test_a_forged_size_is_refused(size, data, tmp_path):
    X, y, _ = data
    model = EigenProRegressor(algorithm="eigenpro2", max_iter=2, random_state=0)
    model.fit(X, y, checkpoint=tmp_path / "fit")
    forged(tmp_path / "fit", inside("chosen", batch_size_=size))
    assert_refused(model, X, y, tmp_path / "fit", "is damaged: manifest.json")


def test_a_state_without_manifest_is_removed(data, tmp_path, monkeypatch):
    """It may be what filled the disk."""
    X, y, _ = data
    write, n_written = Keeper._write_manifest, []

    def written(self, state):
        n_written.append(state)
        if len(n_written) == 3:
            full_disk()
        write(self, state)

    found = []
    save = np.savez

    def saved(*args, **arrays):
        found.append(sorted(path.name for path in tmp_path.glob("state-?.npz")))
        save(*args, **arrays)

    monkeypatch.setattr(Keeper, "_write_manifest", written)
    monkeypatch.setattr("numpy.savez", saved)
    model = EigenProRegressor(**MACHINE, max_iter=4, random_state=0)
    with pytest.warns(RuntimeWarning, match="No space left"):
        model.fit(X, y, checkpoint=every_epoch(tmp_path))
    assert found == [[], ["state-1.npz"], ["state-1.npz"], ["state-3.npz"]]
    assert sorted(contents(tmp_path)) == ["manifest.json", "state-4.npz"]


def test_objects_are_not_read(fitted):
    model, X, y, folder = fitted
    keeper = checkpoint.open_keeper(folder, True, model, model_data(model, X, y))
    name = keeper._state["file"]
    np.savez(folder / name, a0=np.array([print], dtype=object))
    keeper._state["checksum"] = None
    with pytest.raises(ValueError, match="is damaged"):
        keeper._read_arrays()


def model_data(model, X, y):
    return model._validate(X, y, None)


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_other_files_is_refused(resume, fitted, tmp_path):
    model, X, y, folder = fitted
    (folder / "manifest.json").unlink()
    assert_refused(model, X, y, folder, "state-3.npz", resume=resume)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").write_text("mine")
    assert_refused(model, X, y, tmp_path / "notes", "notes.txt", resume=resume)


def test_a_job_may_always_resume(data, tmp_path):
    X, y, _ = data
    model = EigenProRegressor(**MACHINE, max_iter=2, random_state=0)
    expected = clone(model).fit(X, y)
    folder = tmp_path / "new" / "folder"
    assert_equal_models(
        clone(model).fit(X, y, checkpoint=folder, resume=True), expected
    )
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "manifest.json.tmp").write_text("{")
    model.fit(X, y, checkpoint=str(tmp_path / "killed"), resume=True)
    assert_equal_models(model, expected)


def test_wrong_arguments(data, tmp_path):
    X, y, _ = data
    model = EigenProRegressor(max_iter=2)
    with pytest.raises(ValueError, match="resume=True needs"):
        model.fit(X, y, resume=True)
    with pytest.raises(ValueError, match="resume must be True or False"):
        model.fit(X, y, checkpoint=tmp_path, resume="yes")
    with pytest.raises(ValueError, match=r"checkpoint must be .*; got 3"):
        model.fit(X, y, checkpoint=3)
    with pytest.raises(ValueError, match="seconds must be a number >= 0; got -1"):
        Checkpoint(tmp_path, seconds=-1)
    with pytest.raises(ValueError, match="epochs must be an integer >= 1; got 0"):
        Checkpoint(tmp_path, epochs=0)
    with pytest.raises(ValueError, match="folder must be a path"):
        Checkpoint(None)
    assert not list(tmp_path.iterdir())
    with pytest.raises(TypeError, match="checkpoint"):
        NystromRegressor().fit(X, y, checkpoint=tmp_path)


def test_a_folder_that_cannot_be_written(data, tmp_path):
    X, y, _ = data
    (tmp_path / "file").write_text("")
    model = EigenProRegressor(max_iter=2)
    for folder in (tmp_path / "file", tmp_path / "file" / "folder"):
        with pytest.raises(OSError, match=f"{folder}.*cannot (read|write) this folder"):
            model.fit(X, y, checkpoint=folder)
    assert not hasattr(model, "dual_coef_")


def test_the_intervals(data, tmp_path, monkeypatch):
    X, y, _ = data
    written, now = [], [0.0]

    def epochs(**options):
        written.clear()
        folder = tmp_path / str(options)
        model = EigenProRegressor(**MACHINE, tol=0, max_iter=6, random_state=0)
        model.fit(X, y, checkpoint=Checkpoint(folder, **options))
        return list(written)

    def write(keeper, solver, rule, over):
        written.append(len(rule.losses))

    monkeypatch.setattr(Keeper, "_write_state", write)
    assert epochs(seconds=1e6) == [6]
    assert epochs(seconds=1e6, epochs=4) == [4, 6]
    assert epochs(seconds=0) == [1, 2, 3, 4, 5, 6]

    def monotonic():
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr("eigenkern.fitting.checkpoint.time.monotonic", monotonic)
    ticks = epochs(seconds=5)
    assert 1 < len(ticks) < 5 and ticks[-1] == 6


def full_disk(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["numpy.savez", "os.fsync", "os.replace"])
def test_a_full_disk(where, data, copies, tmp_path, monkeypatch):
    X, y, _ = data
    model = EigenProRegressor(**MACHINE, max_iter=5, random_state=0)
    expected = clone(model).fit(X, y)
    keep = Keeper.keep

    def kept(self, solver, rule, over):
        with monkeypatch.context() as patch:
            if len(rule.losses) > 2:
                patch.setattr(where, full_disk)
            keep(self, solver, rule, over)

    monkeypatch.setattr(Keeper, "keep", kept)
    folder = tmp_path / "fit"
    again = clone(model)
    with pytest.warns(RuntimeWarning, match=f"{folder}.*cannot write.*No space left"):
        again.fit(X, y, checkpoint=every_epoch(folder))
    assert_equal_models(again, expected)
    assert sorted(contents(folder)) == ["manifest.json", "state-2.npz"]
    monkeypatch.undo()
    again = clone(model).fit(X, y, checkpoint=folder, resume=True)
    assert_equal_models(again, expected)


def test_a_disk_that_is_full_at_first(data, tmp_path, monkeypatch):
    X, y, _ = data
    monkeypatch.setattr("os.fsync", full_disk)
    model = EigenProRegressor()
    with pytest.raises(OSError, match=f"{tmp_path}.*cannot write.*No space") as raised:
        model.fit(X, y, checkpoint=tmp_path)
    assert raised.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


# Interrupts


INTERRUPTED = "was interrupted after {} epochs: the best model so far is kept"


@pytest.mark.parametrize("where", ["Plateau.update", "Callbacks.end", "train"])
@pytest.mark.parametrize(
    "model",
    [
        EigenProRegressor(**MACHINE, early_stopping=True),
        EigenProClassifier(**MACHINE, max_iter=20),
        LinearEigenProClassifier(batch_size=12, step_size=0.05),
        DSGClassifier(),
    ],
)
def test_an_interrupt_keeps_the_best_model_so_far(where, model, data, monkeypatch):
    X, y, labels = data
    y = labels if "class_weight" in vars(model) else y
    model, calls = clone(model).set_params(random_state=0, tol=0), []

    def interrupted(function):
        def run(*args):
            calls.append(1)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return function(*args)

        return run

    cls, _, method = where.partition(".")
    if method:
        cls = getattr(training if cls == "Plateau" else callbacks, cls)
        monkeypatch.setattr(cls, method, interrupted(getattr(cls, method)))
        n_epochs = 2 if method == "update" else 3
    else:  # in the solver
        monkeypatch.setattr(Guarded, "__next__", interrupted(Guarded.__next__))
        n_epochs = 2
    warning = pytest.warns(ConvergenceWarning, match=INTERRUPTED.format(n_epochs))
    with warning, pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert model.n_iter_ == len(model.loss_curve_) == n_epochs
    assert model.score(X, y) > 0.3
    monkeypatch.undo()
    if hasattr(model, "predict_proba"):
        assert_array_equal(model.predict_proba(X).argmax(axis=1), model.predict(X))
    if model.early_stopping:
        expected = clone(model).set_params(max_iter=n_epochs).fit(X, y)
        assert_array_equal(model.dual_coef_, expected.dual_coef_)


@pytest.mark.parametrize("classifies", [False, True])
def test_an_interrupt_keeps_the_iteration_of_falkon(classifies, data, monkeypatch):
    X, y, labels = data
    cls = FalkonLikeClassifier if classifies else FalkonLikeRegressor
    model = cls(n_centers=40, cache_size=0, tol=1e-12, random_state=0)
    calls, end = [], callbacks.Callbacks.end

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return end(*args)

    monkeypatch.setattr(callbacks.Callbacks, "end", interrupted)
    warning = pytest.warns(
        ConvergenceWarning, match="was interrupted after 4 iterations: the best model"
    )
    with warning, pytest.raises(KeyboardInterrupt):
        model.fit(X, labels if classifies else y)
    monkeypatch.undo()
    with pytest.warns(ConvergenceWarning, match="stopped after 4 iterations"):
        expected = clone(model).set_params(max_iter=4)
        expected.fit(X, labels if classifies else y)
    assert (model.n_iter_, model.residuals_) == (4, expected.residuals_)
    assert_array_equal(model.dual_coef_, expected.dual_coef_)
    assert not hasattr(model, "predict_proba") and not hasattr(model, "calibration_")


def test_an_interrupt_of_an_inner_estimator_changes_nothing(data, monkeypatch):
    X, y, _ = data
    model = RFMRegressor(EigenProRegressor(**MACHINE, max_iter=3), random_state=0)
    before, update, calls = dict(vars(model)), training.EpochRule.update, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return update(*args)

    monkeypatch.setattr(training.EpochRule, "update", interrupted)
    with pytest.warns(ConvergenceWarning, match=r"EigenProRegressor was interrupted"):
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, y)
    assert vars(model) == before


def test_an_interrupt_before_the_first_epoch_changes_nothing(fitted, monkeypatch):
    model, X, y, _ = fitted
    before = dict(vars(model))

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("eigenkern.fitting.rules.Plateau.update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, -y)
    assert vars(model) == before


@pytest.mark.parametrize("n_calls", range(5, 13))
def test_an_interrupt_while_a_checkpoint_is_written(
    n_calls, data, tmp_path, monkeypatch
):
    X, y, _ = data
    model = EigenProRegressor(**MACHINE, max_iter=4, random_state=0)
    expected, calls = clone(model).fit(X, y), []

    def interrupted(function):
        def run(*args):
            calls.append(1)
            if len(calls) == n_calls:
                raise KeyboardInterrupt
            return function(*args)

        return run

    with monkeypatch.context() as patch:
        for name in ("fsync", "replace"):
            patch.setattr(os, name, interrupted(getattr(os, name)))
        warning = pytest.warns(ConvergenceWarning, match="was interrupted")
        with warning, pytest.raises(KeyboardInterrupt):
            clone(model).fit(X, y, checkpoint=every_epoch(tmp_path))
    again = clone(model).fit(X, y, checkpoint=tmp_path, resume=True)
    assert_equal_models(again, expected)
    assert len(contents(tmp_path)) == 2


# This process forks before it computes, so its children inherit imports but no threads.
# It kills them at random times and starts others that resume, until a fit is finished.
# Files survive a killed process whether or not they have reached the disk.
KILLING = """
import os, random, signal, sys, warnings
import joblib
import numpy as np
from eigenkern import Checkpoint, EigenProRegressor
from eigenkern.plan import sizes

warnings.simplefilter("ignore")
os.fsync = lambda _: None
folder, rng = sys.argv[1], np.random.RandomState(0)
X = rng.standard_normal((120, 4))
y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * rng.standard_normal(120)

def path(name):
    return os.path.join(folder, name)

def fit(name, signal=None, calls=None):
    # Fits in a process of its own, which sends itself the signal after so many
    # calls of functions: at a point that no clock decides, in a write as well.
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    model = EigenProRegressor(
        algorithm="eigenpro2", batch_size=10, max_iter=15, tol=0, random_state=0
    )
    n_calls = 0

    def count(frame, event, function):
        nonlocal n_calls
        n_calls += event in ("call", "c_call")
        if n_calls == calls:
            os.kill(os.getpid(), signal)

    sys.setprofile(count)
    try:
        model.fit(X, y, checkpoint=Checkpoint(path(name), seconds=0), resume=True)
    except KeyboardInterrupt:
        os._exit(2)
    sys.setprofile(None)
    np.savez(path(name + ".npz"), a=model.dual_coef_, b=model.loss_curve_, c=n_calls)
    os._exit(0)

def written(name):
    files = os.listdir(path(name)) if os.path.isdir(path(name)) else []
    numbers = [file.split("-")[1].split(".")[0] for file in files if "-" in file]
    return max(map(int, numbers), default=0)

signal.signal(signal.SIGINT, signal.default_int_handler)
assert fit("whole") == 0
expected = dict(np.load(path("whole.npz")))
signals = [signal.SIGKILL] * 14 + [signal.SIGTERM, signal.SIGINT] * 3
points, n_fits, random = [], 0, random.Random(0)
while signals:
    name = f"fit {n_fits}"
    code = fit(name, signals[0], random.randint(1, expected["c"]))
    if code != 0:
        assert code in (2, -signals.pop(0)), code
        points.append(written(name))
        if not signals:
            code = fit(name)
    if code == 0:
        found = np.load(path(name + ".npz"))
        for key in "ab":
            np.testing.assert_array_equal(found[key], expected[key])
        n_fits += 1
print(n_fits, *points)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fit_that_is_killed_at_20_points_goes_on(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLING, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    n_fits, *points = map(int, done.stdout.split())
    assert n_fits >= 1 and len(points) == 20
    assert len(set(points)) > 1  # epochs that were written before
