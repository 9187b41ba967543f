"""Bad input: errors name the parameter, its value and what would be right."""

import re
from io import StringIO

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone

import eigenkern
from eigenkern import (
    EigenProClassifier,
    EigenProRegressor,
    KernelNoveltyDetector,
    LinearEigenProRegressor,
    NystromRegressor,
    RBFNetworkFeatures,
    RFMClassifier,
    RFMRegressor,
)
from eigenkern.arrays import memory
from eigenkern.kernels import Gaussian


@pytest.fixture
def no_work(monkeypatch):
    """Fail where the expensive part of a fit would begin."""

    def work(*args, **kwargs):
        raise AssertionError("the fit began")

    monkeypatch.setattr("eigenkern.estimators.eigenpro_fit.tune", work)


BAD_PARAMETERS = [
    # (parameters, part of the message)
    ({"kernel": "rbff"}, "kernel must be one of 'gaussian'.*got 'rbff'"),
    ({"kernel": None}, "kernel must be one of .*got None"),
    ({"kernel": 1.0}, "kernel must be one of .*got 1.0"),
    ({"bandwidth": 0}, "bandwidth must be positive and finite; got 0"),
    ({"bandwidth": -1.0}, "bandwidth must be positive and finite; got -1.0"),
    ({"bandwidth": np.nan}, "bandwidth must be positive and finite; got nan"),
    ({"bandwidth": np.inf}, "bandwidth must be positive and finite; got inf"),
    ({"bandwidth": 1e-170}, "bandwidth must be in .*; got 1e-170"),
    ({"bandwidth": 1e170}, r"bandwidth must be in .*; got 1e\+170"),
    (
        {"bandwidth": "mean"},
        "bandwidth must be .* 'median', 'scale' or 'auto'; got 'mean'",
    ),
    ({"bandwidth": True}, "bandwidth must be .*; got True"),
    (
        {"kernel": Gaussian(2.0), "bandwidth": 3.0},
        r"bandwidth must be left at its default with kernel=Gaussian\(.*; got 3.0",
    ),
    (
        {"kernel": Gaussian(2.0), "bandwidth": "scale"},
        "bandwidth must be left .* search over kernel__bandwidth; got 'scale'",
    ),
    (
        {"centers": "kmeans"},
        "n_centers must be given with centers='kmeans': .* got None",
    ),
    ({"bandwidth": None}, "bandwidth must be .*; got None"),
    ({"alpha": -0.1}, "alpha must be 'auto' or a number >= 0; got -0.1"),
    ({"alpha": np.inf}, "alpha must be 'auto' or a number >= 0; got inf"),
    ({"alpha": "path"}, "alpha must be 'auto' or a number >= 0; got 'path'"),
    ({"algorithm": "eigenpro9"}, "algorithm must be 'auto', .*; got 'eigenpro9'"),
    ({"algorithm": None}, "algorithm must be 'auto', .*; got None"),
    ({"algorithm": "sgd", "n_components": 5}, "n_components must be .*; got 5"),
    ({"n_components": -1}, "n_components must be an integer >= 0; got -1"),
    ({"n_components": 2.5}, "n_components must be an integer >= 0; got 2.5"),
    (
        {"n_components": "many"},
        "n_components must be an integer >= 0; got 'many'",
    ),
    (
        {"n_components": None},
        "n_components must be an integer >= 0; got None",
    ),
    ({"subsample_size": 1}, "subsample_size must be an integer >= 2; got 1"),
    (
        {"subsample_size": 0.5},
        "subsample_size must be an integer >= 2; got 0.5",
    ),
    ({"batch_size": 0}, "batch_size must be an integer >= 1; got 0"),
    ({"batch_size": -3}, "batch_size must be an integer >= 1; got -3"),
    ({"batch_size": True}, "batch_size must be an integer >= 1; got True"),
    ({"batch_size": np.nan}, "batch_size must be an integer >= 1; got nan"),
    ({"step_size": 0}, "step_size must be a number > 0; got 0"),
    ({"step_size": np.inf}, "step_size must be a number > 0; got inf"),
    ({"step_size": np.nan}, "step_size must be a number > 0; got nan"),
    ({"step_size": "adaptive"}, "step_size must be 'auto', 'bound' or .* 'adaptive'"),
    ({"svd_solver": "arpack"}, "svd_solver must be 'nystrom' or .*; got 'arpack'"),
    ({"damping": 0.0}, "damping must be a number > 0 and <= 1; got 0.0"),
    ({"damping": -0.1}, "damping must be a number > 0 and <= 1; got -0.1"),
    ({"damping": 1.5}, "damping must be a number > 0 and <= 1; got 1.5"),
    ({"max_iter": 0}, "max_iter must be an integer >= 1; got 0"),
    ({"max_iter": 2.0}, "max_iter must be an integer >= 1; got 2.0"),
    ({"max_iter": None}, "max_iter must be an integer >= 1; got None"),
    (
        {"early_stopping": "auto"},
        "early_stopping must be True or False; got 'auto'",
    ),
    ({"warm_start": 1}, "warm_start must be True or False; got 1"),
    ({"tol": -1e-3}, "tol must be a number >= 0; got -0.001"),
    ({"tol": np.nan}, "tol must be a number >= 0; got nan"),
    ({"n_iter_no_change": 0}, "n_iter_no_change must be an integer >= 1; got 0"),
    ({"validation_fraction": 0.0}, "validation_fraction must be .* > 0 and < 1; got 0"),
    ({"validation_fraction": 1.0}, "validation_fraction must be .* > 0 and < 1; got 1"),
    ({"cache_size": -1}, "cache_size must be a number >= 0; got -1"),
    ({"cache_size": np.nan}, "cache_size must be a number >= 0; got nan"),
    ({"cache_size": "all"}, "cache_size must be a number >= 0; got 'all'"),
    ({"cache_size": None}, "cache_size must be a number >= 0; got None"),
    ({"device": "tpu"}, "device must be 'auto', 'cpu', 'cuda' .*; got 'tpu'"),
    ({"device": None}, "device must be 'auto', 'cpu', 'cuda' .*; got None"),
    ({"device": "cuda:x"}, "device must be 'auto', 'cpu', 'cuda' .*; got 'cuda:x'"),
    ({"random_state": "zero"}, "zero"),
]


@pytest.mark.parametrize("parameters, message", BAD_PARAMETERS)
@pytest.mark.parametrize("cls", [EigenProRegressor, EigenProClassifier])
def test_parameters(cls, parameters, message, three_classes, no_work):
    model = cls(**parameters)
    with pytest.raises(ValueError, match=message):
        model.fit(*three_classes)


# Every family as constructed, with centers of its own, and inside a learned metric.
FAMILIES = [
    cls()
    for name in eigenkern.__all__
    if hasattr(cls := getattr(eigenkern, name), "get_params")
    and "bandwidth" in cls().get_params()
]
FAMILIES += [
    clone(model).set_params(n_centers=20)
    for model in FAMILIES
    if "n_centers" in model.get_params()
]
FAMILIES += [
    RFMRegressor(NystromRegressor()),
    RFMRegressor(EigenProRegressor()),
    RFMClassifier(EigenProClassifier()),
]
BAD_IN_EVERY_FAMILY = [
    *[("kernel", value) for value in ("rbff", None, 1.0, Gaussian, ["gaussian"])],
    *[("bandwidth", value) for value in (0, -1.0, np.nan, np.inf, 1e-170, 1e170)],
    *[("bandwidth", value) for value in ("mean", True, None, [1.0])],
    *[("cache_size", value) for value in (-1, np.nan, np.inf, "all", None, True)],
]


@pytest.mark.parametrize(
    "name, value", BAD_IN_EVERY_FAMILY, ids=lambda value: repr(value)
)
@pytest.mark.parametrize("model", FAMILIES, ids=lambda model: type(model).__name__)
def test_kernel_bandwidth_and_cache_size(model, name, value, three_classes):
    inner, model = "", clone(model)
    if "estimator" in model.get_params():
        inner = "estimator__"
    if inner + name not in model.get_params():
        pytest.skip(f"it has no {name}")
    model.set_params(**{inner + name: value})
    before = dict(vars(model))
    got = re.escape(repr(value))
    message = f"^{name} must be .*; got {got}|^estimator must .*; got {name}={got}"
    with pytest.raises(ValueError, match=message):
        model.fit(*three_classes)
    if hasattr(model, "partial_fit"):
        classes = {"classes": [0, 1, 2]} if "Classifier" in repr(model) else {}
        with pytest.raises(ValueError, match=message):
            model.partial_fit(*three_classes, **classes)
    assert vars(model) == before


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"batch_size": 181}, "batch_size must be at most 180.*; got 181"),
        ({"subsample_size": 181}, "subsample_size must be at most 180.*; got 181"),
        (
            {"n_components": 60, "subsample_size": 60},
            "n_components must be less than subsample_size; got 60 .* 60 of 180",
        ),
        ({"n_components": 180}, "n_components must be less than .*; got 180"),
        (
            {"batch_size": 180, "early_stopping": True},
            "batch_size must be at most 162, the training rows; got 180",
        ),
    ],
)
def test_sizes(parameters, message, three_classes):
    with pytest.raises(ValueError, match=message):
        EigenProRegressor(random_state=0, **parameters).fit(*three_classes)


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_device_without_a_gpu(device, three_classes, no_work):
    if _has_gpu():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match=f"device='{device}' needs a CUDA GPU .*auto"):
        EigenProRegressor(device=device).fit(*three_classes)


@pytest.mark.parametrize(
    "device",
    [np.array(["cpu", "cpu"]), np.ones(2), [np.ones(2)], {"cpu": 1}, "cpu:0", "auto:1"],
    ids=str,
)
def test_a_device_that_is_none(device, three_classes, no_work):
    with pytest.raises(ValueError, match="device must be 'auto', 'cpu', 'cuda' or"):
        EigenProRegressor(device=device).fit(*three_classes)


def _has_gpu():
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount() > 0
    except Exception:
        return False


def test_half_precision(three_classes, no_work):
    X, y = three_classes
    model, X_half = EigenProRegressor(), X.astype(np.float16)
    message = r"must be float32 or float64, .*; got float16, .*astype\('float32'\)"
    with pytest.raises(ValueError, match="X " + message):
        model.fit(X_half, y)
    with pytest.raises(ValueError, match="centers " + message):
        EigenProRegressor(centers=X_half[:9]).fit(X, y)
    with pytest.raises(ValueError, match="sample_weight " + message):
        model.fit(X, y, sample_weight=np.ones(len(y), dtype=np.float16))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("cls", [EigenProRegressor, EigenProClassifier])
def test_data_that_are_not_finite(value, cls, three_classes, no_work):
    X, y = three_classes[0].copy(), three_classes[1].astype(float)
    X[17, 1] = value
    with pytest.raises(ValueError, match=r"Input X contains (NaN|infinity)"):
        cls().fit(X, y)
    y[3] = value
    with pytest.raises(ValueError, match=r"Input y contains (NaN|infinity)"):
        cls().fit(three_classes[0], y)


@pytest.mark.parametrize("cls", [RFMRegressor, LinearEigenProRegressor])
@pytest.mark.parametrize("kind", ["list", "array", "Series", "DataFrame"])
def test_labels_of_a_regressor(cls, kind, three_classes):
    X, as_text = three_classes[0], {"list": list, "array": np.array}.get(kind)
    if as_text is None:
        as_text = getattr(pytest.importorskip("pandas"), kind)
    classifier = cls.__name__.replace("Regressor", "Classifier")
    message = f"^y must hold numbers: .*'no'.*. To learn labels take {classifier}$"
    with pytest.raises(ValueError, match=message):
        cls().fit(X, as_text(["no"] * len(X)))
    if cls is LinearEigenProRegressor:  # numbers as text are numbers
        numbers = [str(value) for value in X[:, 0]]
        assert cls().fit(X, as_text(numbers)).score(X, X[:, 0]) > 0.99


@pytest.mark.parametrize("cls", [EigenProRegressor, RFMRegressor])
def test_an_iterator_in_place_of_rows(cls, three_classes):
    X, y = three_classes
    pandas = pytest.importorskip("pandas")
    for rows in (iter([X, X]), pandas.read_csv(StringIO("a,b\n1,2\n"), chunksize=1)):
        with pytest.raises(
            TypeError, match=r"X is an iterator: read it whole.*partial_fit"
        ):
            cls().fit(rows, y)


@pytest.mark.parametrize("cls", [RBFNetworkFeatures, KernelNoveltyDetector])
def test_a_second_bandwidth(cls, three_classes):
    X, kernel = three_classes[0], Gaussian(2.0)
    clone(cls(kernel=kernel)).fit(X)
    with pytest.raises(
        ValueError, match=r"bandwidth must be left at its default .*got 3"
    ):
        cls(kernel=kernel, bandwidth=3.0).fit(X)


DATA = [
    (np.ones((1, 3)), np.ones(1), "1 sample.* minimum of 2"),
    (np.ones((0, 3)), np.ones(0), "0 sample"),
    (np.ones((5, 0)), np.arange(5) % 2, "0 feature"),
    (np.ones(5), np.arange(5) % 2, "Expected 2D array"),
    (np.ones((5, 3)), np.arange(4) % 2, "inconsistent numbers of samples"),
    (np.ones((5, 3)), None, "requires y to be passed"),
]


@pytest.mark.parametrize("X, y, message", DATA)
@pytest.mark.parametrize("cls", [EigenProRegressor, EigenProClassifier])
def test_data(cls, X, y, message, no_work):
    with pytest.raises(ValueError, match=message):
        cls().fit(X, y)


def test_continuous_labels(three_classes, no_work):
    X, y = three_classes
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        EigenProClassifier().fit(X, y + 0.5 * X[:, 0])


@pytest.mark.parametrize(
    "weights, message",
    [
        (np.ones(179), r"sample_weight must have shape \(180,\).* got shape \(179,\)"),
        (np.ones((180, 1)), r"sample_weight must have shape \(180,\).*\(180, 1\)"),
        (
            np.r_[-1.0, np.ones(179)],
            r"sample_weight must not be negative; the smallest is .*-1\.0",
        ),
        (np.zeros(180), "sample_weight must have a positive weight"),
        (np.r_[np.nan, np.ones(179)], "sample_weight contains NaN"),
        (np.r_[np.inf, np.ones(179)], "sample_weight contains infinity"),
    ],
)
@pytest.mark.parametrize("cls", [EigenProRegressor, EigenProClassifier])
def test_sample_weight(cls, weights, message, three_classes, no_work):
    with pytest.raises(ValueError, match=message):
        cls().fit(*three_classes, sample_weight=weights)


@pytest.mark.parametrize(
    "class_weight",
    ["balance", {0: -1.0}, {0: 0, 1: 0, 2: 0}, {0: np.nan}, {0: np.inf}],
    ids=str,
)
def test_class_weight(class_weight, three_classes, no_work):
    with pytest.raises(ValueError, match="class_weight"):
        EigenProClassifier(class_weight=class_weight).fit(*three_classes)


@pytest.mark.parametrize("shape", [(180, 2), (2, 180)])
def test_precomputed_kernel_is_square(shape, rng, no_work):
    K = rng.standard_normal(shape)
    with pytest.raises(ValueError, match=r"kernel='precomputed' needs the square"):
        EigenProRegressor("precomputed").fit(K, np.arange(len(K)))


def test_early_stopping_leaves_two_rows_to_train_with(rng):
    X = rng.standard_normal((4, 2))
    model = EigenProClassifier(early_stopping=True, validation_fraction=0.7)
    message = "validation_fraction must leave .* 2 to train with, and one of each class"
    with pytest.raises(ValueError, match=message):
        model.fit(X, [0, 0, 0, 0])


def test_early_stopping_needs_two_validation_rows(rng):
    X = rng.standard_normal((6, 2))
    message = "validation_fraction must leave at least 2 rows .* got 0.1 of 6 rows"
    with pytest.raises(ValueError, match=message):
        EigenProRegressor(early_stopping=True).fit(X, X[:, 0])


@pytest.mark.parametrize("cls", [EigenProRegressor, EigenProClassifier])
def test_predict_checks_its_input(cls, three_classes):
    X, y = three_classes
    model = cls(max_iter=1).fit(X, y)
    with pytest.raises(ValueError, match=r"X has 3 features, but .* is expecting 2"):
        model.predict(np.ones((4, 3)))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        model.predict(np.full((4, 2), np.nan))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
@pytest.mark.parametrize("bandwidth", [1e-30, 1e30])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_extreme_bandwidths_stay_finite(kernel, bandwidth, dtype, three_classes):
    X, y = three_classes[0].astype(dtype), three_classes[1]
    model = EigenProRegressor(kernel, bandwidth=bandwidth, max_iter=3)
    if bandwidth < 1 and dtype == np.float32:
        with pytest.raises(ValueError, match=r"bandwidth 1e-30 is too small.*float32"):
            model.fit(X, y)
        return
    F = model.fit(X, y).predict(X)
    assert np.all(np.isfinite(F))
    assert np.mean((F - y) ** 2) <= 1.01 * np.var(y)


def test_distinct_rows_of_a_tiny_bandwidth_are_fitted_apart():
    X = np.arange(20.0)[:, None]
    y = np.sin(X[:, 0])
    model = EigenProRegressor(bandwidth=1e-3, batch_size=20, max_iter=200).fit(X, y)
    assert_allclose(model.predict(X), y, atol=1e-5)
    assert_allclose(model.predict(X + 0.5), y.mean())


def test_a_cache_that_does_not_fit_in_memory(three_classes, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda xp, device: 1e5)
    model = EigenProRegressor(cache_size=5.0)
    message = "cache_size=5.0 MB allows .* of 0 MB, but 0 MB of memory are free"
    with pytest.raises(ValueError, match=message):
        model.fit(*three_classes)


def test_a_huge_number_of_epochs_is_no_mistake(three_classes):
    model = EigenProRegressor(max_iter=10**30, tol=0.5, random_state=0)
    assert model.fit(*three_classes).n_iter_ < 100
