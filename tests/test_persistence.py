"""Fitted models in files of skops: which types they need, what they predict."""

import pickle
import warnings

import numpy as np
import pytest
import skops.io
from numpy.testing import assert_array_equal

import eigenkern
from eigenkern import (
    DSGClassifier,
    DSGRegressor,
    EigenProRegressor,
    LinearEigenProClassifier,
    NystromClassifier,
    NystromRegressor,
    RFMClassifier,
    RFMRegressor,
)
from eigenkern.kernels import Gaussian

# Types of a fitted model apart from its own class and those that skops trusts.
PARTS = {
    "eigenkern.kernels.Gaussian",
    "eigenkern.kernels.Laplacian",
    "eigenkern.kernels.Manhattan",
    "eigenkern.kernels.Matern",
    "eigenkern.fitting.calibration.Calibration",  # a dataclass of numbers
    "eigenkern.fitting.error_bars.ErrorBars",  # a dataclass of arrays and a kernel
    *(f"eigenkern.estimators.tables.{name}" for name in ("Columns", "Preparation")),
    # In scikit-learn's transformers, of which a column transformer is made.
    "eigenkern.estimators.tables.as_numbers",
    "eigenkern.rows.frames.as_levels",
    "eigenkern.estimators.tables.smoothly_clipped",
    "numpy.dtype",
}
FAST = {"DSG": {"max_iter": 3}, "RFM": {"max_rounds": 1}}


def public_estimators():
    """Yield one of every public class."""
    for name in eigenkern.__all__:
        cls = getattr(eigenkern, name)
        if hasattr(cls, "get_params"):
            yield cls(random_state=0, **FAST.get(name[:3], {}))


def data(rng, model):
    X = rng.standard_normal((120, 3))
    y = np.sin(X[:, 0]) + X[:, 1]
    if "Classifier" in type(model).__name__:
        y = np.array(["low", "middle", "high"])[(y > -0.5).astype(int) + (y > 0.5)]
    return X, y


def assert_round_trip(model, X):
    """The file needs only public classes, and predictions agree to the last bit."""
    dumped = skops.io.dumps(model)
    untrusted = skops.io.get_untrusted_types(data=dumped)
    own = {cls for cls in untrusted if cls.startswith("eigenkern.estimators.")}
    own -= PARTS
    assert set(untrusted) <= own | PARTS
    assert {cls.rpartition(".")[2] for cls in own} <= set(eigenkern.__all__)
    loaded = skops.io.loads(dumped, trusted=untrusted)
    for method in ("predict", "predict_proba", "decision_function", "transform"):
        if hasattr(model, method):
            expected = getattr(model, method)(X)
            assert_array_equal(getattr(loaded, method)(X), expected, strict=True)


@pytest.mark.parametrize(
    "model", list(public_estimators()), ids=lambda m: type(m).__name__
)
def test_every_estimator(model, rng):
    X, y = data(rng, model)
    assert_round_trip(model.fit(X, y), X)


@pytest.mark.parametrize(
    "model",
    [
        EigenProRegressor(algorithm="eigenpro1", max_iter=2, random_state=0),
        EigenProRegressor(algorithm="eigenpro4", n_centers=20, random_state=0),
        EigenProRegressor(Gaussian(2.0), random_state=np.random.RandomState(0)),
        NystromRegressor(n_centers=20, centers="kmeans", random_state=0),
        NystromClassifier(loss="log_loss", n_centers=20, random_state=0),
        DSGRegressor(loss="pinball", quantile=[0.1, 0.9], max_iter=3, random_state=0),
        DSGClassifier(loss="hinge", max_iter=3, random_state=0),
    ],
    ids=["eigenpro1", "eigenpro4", "kernel", "kmeans", "log_loss", "pinball", "hinge"],
)
@pytest.mark.filterwarnings("ignore:the quantile .* is corrected on")
def test_other_attributes(model, rng):
    X, y = data(rng, model)
    assert_round_trip(model.fit(X, y), X)


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("model", [RFMRegressor, RFMClassifier])
def test_tables(model, library, rng):
    pandas, frames = (pytest.importorskip(name) for name in ("pandas", library))
    n = 120
    X = pandas.DataFrame(
        {
            "size": rng.standard_normal(n),
            "age": np.where(rng.random(n) < 0.2, np.nan, rng.random(n)),
            "fuel": rng.choice(["gas", "oil", None], n),
            "town": pandas.Categorical([f"t{i % 40}" for i in range(n)]),
        }
    )
    y = X["size"] + (X["fuel"] == "gas")
    if model is RFMClassifier:
        y = np.where(y > 0, "high", "low")
    model = model(max_rounds=1, random_state=0)
    for columns in (["size", "age"], list(X.columns)):
        table = X[columns] if library == "pandas" else frames.from_pandas(X[columns])
        assert_round_trip(model.fit(table, y), table)
        assert_array_equal(
            pickle.loads(pickle.dumps(model)).predict(table), model.predict(table)
        )


@pytest.mark.parametrize(
    "model",
    [
        DSGRegressor(random_state=0),
        LinearEigenProClassifier(random_state=0),
        EigenProRegressor(n_centers=20, random_state=0),
    ],
    ids=["dsg", "linear", "eigenpro4"],
)
def test_learning_goes_on_where_it_was(model, rng):
    X, y = data(rng, model)
    classes = {"classes": np.unique(y)} if y.dtype.kind == "U" else {}
    model.partial_fit(X[:60], y[:60], **classes)
    dumped = skops.io.dumps(model)
    untrusted = skops.io.get_untrusted_types(data=dumped)
    loaded = skops.io.loads(dumped, trusted=untrusted)
    for one in (model, loaded):
        one.partial_fit(X[60:], y[60:])
    assert_array_equal(loaded.predict(X), model.predict(X), strict=True)


def test_a_model_of_another_version_warns(rng, monkeypatch):
    model = NystromRegressor(n_centers=20).fit(*data(rng, NystromRegressor()))
    saved, dumped = pickle.dumps(model), skops.io.dumps(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_array_equal(pickle.loads(saved).dual_coef_, model.dual_coef_)
    version = eigenkern.__version__
    monkeypatch.setattr(eigenkern, "__version__", "0.0.9")
    trusted = skops.io.get_untrusted_types(data=dumped)
    for load in (
        lambda: pickle.loads(saved),
        lambda: skops.io.loads(dumped, trusted=trusted),
    ):
        message = f"NystromRegressor was saved by eigenkern {version} .* by 0.0.9"
        with pytest.warns(UserWarning, match=message):
            loaded = load()
        assert not hasattr(loaded, "_eigenkern_version")
