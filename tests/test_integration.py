"""Together with other tools: frames, searches, files, callbacks, arrays."""

import os
import pickle
from pathlib import Path

import array_api_compat
import joblib
import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import config_context
from sklearn.base import clone
from sklearn.callback import ProgressBar, ScoringMonitor
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from eigenkern import (
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeClassifier,
    FalkonLikeRegressor,
    NystromClassifier,
    NystromRegressor,
    NytroClassifier,
    NytroRegressor,
)
from eigenkern.arrays.array import to_numpy
from eigenkern.kernels import Gaussian, Laplacian

both = pytest.mark.parametrize("cls", [EigenProRegressor, EigenProClassifier])
every = pytest.mark.parametrize(
    "cls",
    [
        EigenProClassifier,
        EigenProRegressor,
        FalkonLikeClassifier,
        FalkonLikeRegressor,
        NystromClassifier,
        NystromRegressor,
        NytroClassifier,
        NytroRegressor,
    ],
)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames(library, three_classes):
    frames = pytest.importorskip(library)
    X, y = three_classes
    frame = frames.DataFrame({"first": X[:, 0], "second": X[:, 1]})
    labels = frames.Series(np.array(["a", "b", "c"])[y])
    model = EigenProClassifier(random_state=0).fit(frame, labels)
    assert_array_equal(model.feature_names_in_, ["first", "second"])
    expected = EigenProClassifier(random_state=0).fit(X, y)
    assert_array_equal(
        model.predict(frame), expected.predict(X).choose(["a", "b", "c"])
    )
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["second", "first"]])


def test_lists():
    X, y = [[0], [1], [2], [3]], [0, 1, 2, 3]
    model = EigenProRegressor(random_state=0, batch_size=4, max_iter=300).fit(X, y)
    assert_allclose(model.predict([[1], [2]]), [1, 2], atol=1e-2)
    assert model.centers_.dtype == np.float64


@every
@pytest.mark.parametrize("container", ["csr_array", "csc_matrix", "coo_array"])
def test_sparse_data_are_refused_clearly(cls, container, three_classes):
    X, y = three_classes
    with pytest.raises(TypeError, match=r"[Ss]parse data was passed.*dense"):
        cls().fit(getattr(scipy.sparse, container)(X), y)


@every
def test_read_only_memory_map(cls, three_classes, tmp_path):
    X, y = three_classes
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    model = cls(random_state=0).fit(mapped, y)
    expected = cls(random_state=0).fit(X, y).predict(X)
    assert_array_equal(model.predict(mapped), expected)
    assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), expected)


@pytest.mark.parametrize(
    "layout",
    [np.asfortranarray, lambda X: X[::-1][::-1], lambda X: np.repeat(X, 2, 1)[:, ::2]],
    ids=["fortran", "reversed", "strided"],
)
def test_layouts(layout, regression):
    X, y, X_test, _ = regression
    model = EigenProRegressor(random_state=0)
    expected = model.fit(X, y).predict(X_test)
    F = model.fit(layout(X), y).predict(layout(X_test))
    assert_allclose(F, expected, rtol=1e-9)


def test_grid_search_over_bandwidth_and_kernel(regression):
    X, y, X_test, y_test = regression
    grid = {
        "eigenproregressor__kernel": ["gaussian", "laplacian"],
        "eigenproregressor__bandwidth": [2.0, 1e-3],
    }
    pipeline = make_pipeline(StandardScaler(), EigenProRegressor(random_state=0))
    search = GridSearchCV(pipeline, grid, cv=3, error_score="raise").fit(X, y)
    assert search.best_params_["eigenproregressor__bandwidth"] == 2.0
    assert search.best_score_ > 0.7
    assert search.score(X_test, y_test) > 0.7
    wide, narrow = search.cv_results_["mean_test_score"].reshape(2, 2)
    assert np.all(narrow < 0.05) and np.all(wide > 0.4)
    # A kernel object has its own bandwidth.
    grid["eigenproregressor__kernel"].append(Laplacian(3.0))
    with pytest.raises(ValueError, match="search over kernel__bandwidth"):
        GridSearchCV(pipeline, grid, cv=3, error_score="raise").fit(X, y)


def test_cross_validation_in_two_processes(three_classes):
    X, y = three_classes
    model = EigenProClassifier(random_state=0)
    scores = [cross_val_score(model, X, y, cv=3, n_jobs=n_jobs) for n_jobs in (1, 2)]
    assert_array_equal(*scores)
    assert scores[0].min() > 0.4


def test_cross_validation_in_two_threads(three_classes):
    X, y = three_classes
    model = EigenProClassifier(random_state=0)
    scores = cross_val_score(model, X, y, cv=3)
    with joblib.parallel_config("threading", n_jobs=2):
        assert_array_equal(cross_val_score(model, X, y, cv=3), scores)


@every
def test_clone_is_unfitted_and_equal(cls, three_classes):
    model = cls(Gaussian(2.0), random_state=0).fit(*three_classes)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert not hasattr(copy, "dual_coef_")
    assert_array_equal(copy.fit(*three_classes).dual_coef_, model.dual_coef_)


@every
@pytest.mark.parametrize("kernel", ["laplacian", Gaussian(2.0), "linear"], ids=str)
def test_files(cls, kernel, three_classes, tmp_path):
    X, y = three_classes
    model = cls(kernel, random_state=0)
    if cls in (EigenProClassifier, EigenProRegressor):
        model.set_params(n_components=2, max_iter=3)
    model.fit(X, y)
    joblib.dump(model, tmp_path / "model.joblib")
    for copy in (
        pickle.loads(pickle.dumps(model)),
        joblib.load(tmp_path / "model.joblib"),
    ):
        assert_array_equal(copy.predict(X), model.predict(X))
        assert_array_equal(copy.fit(X, y).dual_coef_, model.dual_coef_)


def test_scoring_monitor_sees_every_epoch(regression):
    X, y, *_ = regression
    monitor = ScoringMonitor(scoring="r2")
    model = EigenProRegressor(algorithm="eigenpro2", random_state=0, max_iter=4)
    model.set_callbacks(monitor).fit(X, y)
    log = [row for row in monitor.get_logs().data if row["task_name"] == "epoch"]
    assert [row["task_id"] for row in log] == [0, 1, 2, 3]
    for n_epochs, row in enumerate(log, 1):
        model.set_params(max_iter=n_epochs)
        fitted = clone(model).fit(X, y)
        assert row["r2"] == pytest.approx(r2_score(y, fitted.predict(X)), rel=1e-9)


def test_scoring_monitor_with_sample_weights(three_classes, rng):
    X, y = three_classes
    monitor = ScoringMonitor(scoring="accuracy")
    model = EigenProClassifier(random_state=0, max_iter=2).set_callbacks(monitor)
    w = rng.uniform(size=180)
    model.fit(X, y, sample_weight=w)
    log = [row for row in monitor.get_logs().data if row["task_name"] == "epoch"]
    expected = model.score(X, y, sample_weight=w)
    assert log[-1]["accuracy"] == pytest.approx(expected)


def test_callbacks_change_nothing(regression):
    X, y, *_ = regression
    plain = EigenProRegressor(random_state=0, max_iter=3).fit(X, y)
    watched = EigenProRegressor(random_state=0, max_iter=3)
    watched.set_callbacks(ScoringMonitor(scoring="r2")).fit(X, y)
    assert_array_equal(watched.dual_coef_, plain.dual_coef_)


@pytest.mark.filterwarnings('ignore:install "ipywidgets"')
def test_progress_bar(regression, capsys):
    pytest.importorskip("rich")
    X, y, *_ = regression
    model = EigenProRegressor(random_state=0, max_iter=3)
    model.set_callbacks(ProgressBar()).fit(X, y)
    assert "EigenProRegressor" in capsys.readouterr().out


@both
@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"early_stopping": True}], ids=str)
@pytest.mark.skipif(
    os.environ.get("SCIPY_ARRAY_API") != "1",
    reason="scikit-learn dispatches on arrays only with SCIPY_ARRAY_API=1",
)
def test_other_libraries_agree_with_numpy(cls, options, other_xp, three_classes):
    X, y = three_classes
    model = cls(random_state=0, batch_size=40, n_components=9, max_iter=5)
    model.set_params(bandwidth=1.0, **options)
    expected = clone(model).fit(X, y)
    X_xp, y_xp = other_xp.asarray(X), other_xp.asarray(y)
    with config_context(array_api_dispatch=True):
        model.fit(X_xp, y_xp)
        F = model.predict(X_xp)
        if cls is EigenProClassifier:
            values = to_numpy(model.decision_function(X_xp))
            assert_allclose(values, expected.decision_function(X), atol=1e-10)
        for name in ("dual_coef_", "intercept_", "centers_", "eigenvalues_"):
            found = getattr(model, name)
            assert array_api_compat.array_namespace(found) == other_xp
            assert_allclose(to_numpy(found), getattr(expected, name), atol=1e-10)
        with pytest.raises(ValueError, match="must use the same namespace"):
            model.predict(X)
        host = clone(model).set_params(device="cpu").fit(X_xp, y_xp)
        assert array_api_compat.array_namespace(host.dual_coef_) == other_xp
        assert_allclose(to_numpy(host.predict(X_xp)), expected.predict(X), atol=1e-10)
    assert array_api_compat.array_namespace(F) == other_xp
    assert_allclose(to_numpy(F), expected.predict(X), atol=1e-10)
    assert_allclose(model.loss_curve_, expected.loss_curve_, rtol=1e-9)


def load(name):
    """Return the arrays of a real data set, or skip the test."""
    folder = os.environ.get("EIGENKERN_DATA")
    if folder is None or not (Path(folder) / f"{name}.npz").exists():
        pytest.skip(f"set EIGENKERN_DATA to a folder with {name}.npz to run this")
    with np.load(Path(folder) / f"{name}.npz") as data:
        return [data[k] for k in ("X_train", "X_test", "y_train", "y_test")]


@pytest.fixture
def mnist():
    X, X_test, y, y_test = (Z[:5000] for Z in load("mnist"))
    X, X_test = (Z.reshape(-1, 784).astype(np.float32) / 255 for Z in (X, X_test))
    return X, X_test, y, y_test


def test_mnist(mnist):
    X, X_test, y, y_test = mnist
    model = EigenProClassifier("gaussian", bandwidth=5.0, random_state=0, max_iter=8)
    assert model.fit(X, y).score(X_test, y_test) > 0.94
    assert model.n_step_halvings_ == 0


@pytest.mark.parametrize("n_centers", [None, 30])
@pytest.mark.parametrize(
    "model",
    [
        FalkonLikeClassifier(alpha=1e-2, max_iter=100),
        NystromClassifier(),
        NystromClassifier(alpha="path"),
        NytroClassifier(),
    ],
)
def test_callbacks_of_models_on_centers(model, n_centers, three_classes, capsys):
    X, y = three_classes
    model.set_params(n_centers=n_centers, random_state=0)
    expected = clone(model).fit(X, y).decision_function(X)
    model.set_callbacks(ProgressBar())
    assert_allclose(model.fit(X, y).decision_function(X), expected, atol=1e-12)
    assert type(model).__name__ in capsys.readouterr().out


@pytest.mark.parametrize(
    "model, paper",
    [
        (NystromRegressor("gaussian", bandwidth=6.6, alpha="path"), 0.6462),
        (NytroRegressor("gaussian", bandwidth=6.6), 0.6873),
    ],
)
def test_adult(model, paper):
    """Table 2 of the NYTRO paper: 1000 centers, the error of labels -1 and 1."""
    X, X_test, y, y_test = (Z.astype(np.float32) for Z in load("a9a"))
    model.set_params(n_centers=1000, random_state=0).fit(X, y)
    error = np.mean((model.predict(X_test) - y_test) ** 2) ** 0.5
    assert error < paper + 0.01
