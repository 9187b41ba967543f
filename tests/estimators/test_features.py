"""Explicit features against the kernels that they approximate."""

import pickle
import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from threadpoolctl import threadpool_limits

from eigenkern import (
    NystromRegressor,
    RandomFourierFeatures,
    RBFNetworkFeatures,
    kernels,
)
from eigenkern.arrays import array
from eigenkern.arrays.array import namespace, to_numpy
from eigenkern.estimators import features as features_module

KERNELS = [
    kernels.Gaussian(1.5),
    kernels.Laplacian(1.5),
    kernels.Manhattan(1.5),
    kernels.Cauchy(1.5),
    kernels.Matern(1.5, nu=1.5),
    kernels.Matern(1.5, nu=2.5),
]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=repr)
# The parameter that sets the number of features.
SIZE = {RandomFourierFeatures: "n_components", RBFNetworkFeatures: "n_centers"}
both = pytest.mark.parametrize("cls", [RandomFourierFeatures, RBFNetworkFeatures])


def products(kernel, X, n_components, seed):
    features = RandomFourierFeatures(
        kernel, n_components=n_components, random_state=seed
    )
    phi = features.fit_transform(X)
    assert phi.shape == (len(X), n_components)
    return phi @ phi.T


def variance(kernel, X):
    """Return the variances of cos w'(x - z) over w, from cos^2 a = (1 + cos 2a) / 2."""
    return (1 + kernel(2 * X)) / 2 - kernel(X) ** 2


@every_kernel
def test_errors_fall_as_the_root_of_the_features(kernel, rng):
    X = rng.standard_normal((40, 5))
    exact, sizes = kernel(X), np.array([64, 256, 1024, 4096])
    errors = [
        np.sqrt(
            np.mean([(products(kernel, X, D, seed) - exact) ** 2 for seed in range(10)])
        )
        for D in sizes
    ]
    # D / 2 frequencies: the mean of that many cosines.
    expected = np.sqrt(np.mean(variance(kernel, X)) / (sizes / 2))
    assert_allclose(errors, expected, rtol=0.15)
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.04)


@pytest.mark.parametrize("n_components", [1, 3])
def test_the_mean_over_seeds_is_the_kernel(n_components, rng):
    # Far from the mean and near it, where a plain cosine would be biased.
    X = rng.standard_normal((12, 3)) * np.linspace(0, 1, 12)[:, None]
    kernel = KERNELS[0]
    P = [products(kernel, X, n_components, seed) for seed in range(200)]
    error = np.std(P, axis=0) / np.sqrt(len(P)) + 1e-12
    assert np.abs((np.mean(P, axis=0) - kernel(X)) / error).max() < 4.5


def test_even_numbers_of_features_have_unit_norm(rng):
    X = rng.standard_normal((50, 3))
    for n_components in (2, 10, 1300):
        assert_allclose(products(KERNELS[0], X, n_components, 0).diagonal(), 1)


@pytest.mark.parametrize("vector_math", [False, True])
@pytest.mark.parametrize("n_components", [1, 2, 9, 10, 2200, 2201])
def test_columns(n_components, vector_math, rng, monkeypatch):
    monkeypatch.setattr(array, "_NUMPY_HAS_VECTOR_MATH", vector_math)
    X = rng.standard_normal((700, 3)) + 5
    features = RandomFourierFeatures(n_components=n_components, random_state=0).fit(X)
    assert_array_equal(features.offset_, np.sort(X, axis=0)[349])
    T = (X - features.offset_) @ features.frequencies_
    assert T.shape[1] == -(-n_components // 2)
    cosines, sines = np.cos(T), np.sin(T)
    if n_components % 2:
        cosines[:, -1], sines = np.cos(T[:, -1] - np.pi / 4), sines[:, :-1]
    expected = np.hstack([cosines, sines]) * np.sqrt(2 / n_components)
    assert_allclose(features.transform(X), expected, atol=1e-13)


@pytest.mark.parametrize("centers", ["uniform", "kmeans", "array"])
@pytest.mark.parametrize("kernel", ["laplacian", "linear", lambda X, Z: X @ Z.T + 1])
def test_values_at_centers(kernel, centers, rng):
    X, new = rng.standard_normal((300, 4)), rng.standard_normal((1100, 4))
    given = rng.standard_normal((30, 4)) if centers == "array" else centers
    features = RBFNetworkFeatures(kernel, n_centers=30, centers=given, random_state=0)
    phi = features.fit(X).transform(new)
    Z = features.centers_
    if callable(kernel):
        expected = kernel(new, Z)
        assert features.bandwidth_ is None
    else:
        expected = features.kernel_(new, Z)
    assert_allclose(phi, expected, rtol=1e-12, atol=1e-12)
    if centers == "uniform":
        assert len(set(features.center_indices_)) == 30
        assert_array_equal(Z, X[features.center_indices_])
    else:
        assert features.center_indices_ is None
    if centers == "array":
        assert_array_equal(Z, given)


def test_ridge_on_the_features_is_nystrom_regression(regression):
    X, y, X_test, _ = regression
    features = RBFNetworkFeatures(n_centers=40, random_state=0).fit(X)
    Z = features.centers_
    R = np.linalg.inv(np.linalg.cholesky(features.kernel_(Z))).T
    ridge = Ridge(alpha=1e-4 * len(X), fit_intercept=False)
    ridge.fit(features.transform(X) @ R, y - y.mean())
    expected = NystromRegressor(features.kernel_, centers=Z, alpha=1e-4).fit(X, y)
    F = ridge.predict(features.transform(X_test) @ R) + y.mean()
    assert_allclose(F, expected.predict(X_test), atol=1e-6)


def test_the_median_is_the_bandwidth(rng):
    X = rng.standard_normal((100, 4))
    for cls in (RandomFourierFeatures, RBFNetworkFeatures):
        features = cls(random_state=0).fit(X)
        expected = kernels.median_distance(X, np.random.RandomState(0))
        assert features.bandwidth_ == features.kernel_.bandwidth == expected
        assert cls(bandwidth=3.0).fit(X).kernel_ == kernels.Gaussian(3.0)
        assert cls(kernels.Cauchy(2.0)).fit(X).bandwidth_ == 2.0


@both
@pytest.mark.parametrize("dtype, atol", [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("n_components", [60, 61])
def test_other_libraries(cls, n_components, dtype, atol, rng, other_xp, monkeypatch):
    X = rng.standard_normal((200, 5)).astype(dtype)
    features = cls("laplacian", **{SIZE[cls]: n_components}, random_state=0)
    expected = features.fit_transform(X)
    there = other_xp.asarray(X)
    with config_context(array_api_dispatch=True):
        phi = features.fit(there).transform(there)
        assert namespace(phi) == namespace(getattr(features, features._coef_attribute))
        assert namespace(phi) == other_xp and phi.dtype == there.dtype
        assert_allclose(to_numpy(phi), expected, atol=atol)
        # To the host and back, in slabs.
        monkeypatch.setattr(features_module, "_SLAB_BYTES", 8 * n_components * 70)
        back = features.set_params(device="cpu").transform(there)
        assert namespace(back) == other_xp
        assert_allclose(to_numpy(back), expected, atol=atol)
        with pytest.raises(ValueError, match=r"transform\(\) must use the same name"):
            features.transform(X)


@both
def test_single_precision(cls, rng):
    X = rng.standard_normal((300, 5))
    features = cls(random_state=0)
    exact = features.fit_transform(X)
    single = features.fit_transform(X.astype(np.float32))
    assert single.dtype == getattr(features, cls._coef_attribute).dtype == np.float32
    assert_allclose(single, exact, atol=2e-6)
    # The data type is that of the new rows, not of the training rows.
    assert_allclose(features.transform(X), exact, atol=2e-6)
    assert features.transform(X).dtype == np.float64


@both
@pytest.mark.parametrize("dtype, atol", [("float32", 2e-3), ("float64", 1e-11)])
def test_offsets_change_nothing(cls, dtype, atol, rng):
    # X lies on a grid that float32 represents exactly, even far from zero: only the
    # computation can lose digits.
    X = np.round(rng.standard_normal((200, 5)) * 64) / 64
    X[:, 0] = np.round(X[:, 0]) / 16
    features = cls(bandwidth=2.0, random_state=0)
    expected = features.fit_transform(X)
    moved = features.fit_transform((X + 1000).astype(dtype))
    assert_allclose(moved @ moved.T, expected @ expected.T, atol=atol * 30)
    assert_allclose(moved, expected, atol=atol)


def test_bandwidth_in_units_of_the_data(rng):
    X = rng.standard_normal((100, 4))
    for cls in (RandomFourierFeatures, RBFNetworkFeatures):
        expected = cls(random_state=0).fit_transform(X)
        for scale in (1e-12, 1e12):
            phi = cls(random_state=0).fit_transform(scale * X)
            assert_allclose(phi, expected, atol=1e-9)


@both
def test_files_and_clones(cls, rng):
    X = rng.standard_normal((120, 4))
    features = cls(random_state=0).fit(X)
    expected = features.transform(X)
    # Fitted attributes stay, whatever happens to parameters and generator.
    features.set_params(**{SIZE[cls]: 3}, random_state=1)
    again = pickle.loads(pickle.dumps(features))
    assert_array_equal(again.transform(X), expected)
    copy = clone(features)
    with pytest.raises(NotFittedError):
        copy.transform(X)


def test_names_and_frames(rng):
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame(rng.standard_normal((30, 2)), columns=["first", "second"])
    for cls in (RandomFourierFeatures, RBFNetworkFeatures):
        features = cls(**{SIZE[cls]: 3}, random_state=0)
        expected = features.fit_transform(X)
        assert isinstance(expected, np.ndarray)
        assert_array_equal(features.feature_names_in_, ["first", "second"])
        names = [f"{cls.__name__.lower()}{i}" for i in range(3)]
        assert_array_equal(features.get_feature_names_out(), names)
        frame = features.set_output(transform="pandas").transform(X)
        assert list(frame.columns) == names
        assert_array_equal(frame, expected)
        assert_array_equal(frame.index, X.index)


@both
def test_in_a_search(cls, regression):
    X, y, X_test, y_test = regression
    name = cls.__name__.lower()
    pipeline = make_pipeline(cls(random_state=0), Ridge(alpha=1e-3))
    grid = {f"{name}__bandwidth": [0.01, 1.5], f"{name}__{SIZE[cls]}": [3, 100]}
    search = GridSearchCV(pipeline, grid, cv=3, error_score="raise").fit(X, y)
    best = {f"{name}__bandwidth": 1.5, f"{name}__{SIZE[cls]}": 100}
    assert search.best_params_ == best
    assert search.score(X_test, y_test) > 0.8


BAD_FOR_BOTH = [
    ({"bandwidth": 0}, "bandwidth must be positive and finite; got 0"),
    ({"bandwidth": "mean"}, "bandwidth must be .* 'median' or 'scale' .*; got 'mean'"),
    ({"device": "gpu"}, "device must be 'auto', 'cpu', .*; got 'gpu'"),
]
NO_SPECTRAL_LAW = [
    "polynomial",
    "linear",
    "precomputed",
    "foo",
    None,
    kernels.Linear(),
    kernels.Gaussian,
    np.dot,
]
BAD_PARAMETERS = [
    *((RandomFourierFeatures, *case) for case in BAD_FOR_BOTH),
    *((RBFNetworkFeatures, *case) for case in BAD_FOR_BOTH),
    *(
        (cls, {name: value}, f"{name} must be an integer >= 1; got {value}")
        for cls, name in SIZE.items()
        for value in (0, 2.0, None)
    ),
    *(
        (
            RandomFourierFeatures,
            {"kernel": kernel},
            "kernel must be a function of x - z",
        )
        for kernel in NO_SPECTRAL_LAW
    ),
    (RBFNetworkFeatures, {"kernel": "foo"}, "kernel must be one of .*; got 'foo'"),
    (
        RBFNetworkFeatures,
        {"kernel": "precomputed"},
        r"kernel must be one of 'gaussian', [^(]*'linear', a kernel .*'precomputed'",
    ),
    (
        RBFNetworkFeatures,
        {"centers": "rpcholesky"},
        "centers must be 'uniform', 'kmeans' or an array .*; got 'rpcholesky'",
    ),
    (RBFNetworkFeatures, {"centers": None}, "centers must be 'uniform'.*; got None"),
    (
        RBFNetworkFeatures,
        {"centers": np.ones((5, 3))},
        r"centers must have the 2 features of X; got shape \(5, 3\)",
    ),
    (RBFNetworkFeatures, {"centers": [[np.nan, 0]]}, "centers contains NaN"),
]


@pytest.mark.parametrize("centers", ["uniform", "kmeans"])
def test_all_rows_are_centers_where_they_are_few(centers, rng):
    X = np.repeat(rng.standard_normal((30, 2)), 2, axis=0)
    features = RBFNetworkFeatures(centers=centers, random_state=0)
    message = "n_centers=100 is more than the 30 distinct rows .* all 30 are centers"
    with pytest.warns(UserWarning, match=message):
        phi = features.fit_transform(X)
    assert phi.shape == (60, 30)
    assert_array_equal(features.centers_, X[::2])
    features.set_params(n_centers=30).fit(X)  # no warning
    assert_array_equal(features.centers_, X[::2])


@pytest.mark.parametrize("cls, parameters, message", BAD_PARAMETERS)
def test_bad_parameters(cls, parameters, message, rng):
    X = rng.standard_normal((30, 2))
    features = cls(**{SIZE[cls]: 10}, random_state=0).fit(X)
    expected = features.transform(X)
    old = features.get_params()
    with pytest.raises(ValueError, match=message):
        features.set_params(**parameters).fit(X[:, ::-1])
    # The previously fitted model stays usable.
    assert_array_equal(features.set_params(**old).transform(X), expected)


@both
def test_bad_data(cls, rng):
    X = rng.standard_normal((30, 2))
    features = cls(**{SIZE[cls]: 1})
    with pytest.raises(NotFittedError):
        features.transform(X)
    with pytest.raises(ValueError, match="minimum of 2 is required"):
        features.fit(X[:1])
    # Of equal rows: as good as any, as in scikit-learn.
    assert clone(features).fit(np.ones((30, 2))).bandwidth_ == 1.0
    with pytest.raises(ValueError, match=r"3 features, but .* expecting 2"):
        features.fit(X).transform(np.ones((3, 3)))


def test_bandwidths_that_are_too_small_for_the_type(rng):
    X = rng.standard_normal((30, 2)).astype(np.float32)
    features = RandomFourierFeatures(bandwidth=1e-30)
    with pytest.raises(ValueError, match="bandwidth 1e-30 is too small for float32"):
        features.fit(X)
    assert np.isfinite(features.fit_transform(X.astype(np.float64))).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20])
def test_what_transform_would_refuse_is_not_fitted(scale, rng):
    X = (scale * rng.standard_normal((30, 2))).astype(np.float32)
    features = RBFNetworkFeatures(n_centers=10, random_state=0)
    with pytest.raises(
        ValueError, match=r"too (small|large) for float32: pass float64"
    ):
        features.fit(X)
    assert np.isfinite(features.fit_transform(X.astype(np.float64))).all()


@both
def test_memory_is_that_of_the_features(cls, rng):
    X = rng.standard_normal((20_000, 5)).astype(np.float32)
    features = cls(**{SIZE[cls]: 400}, bandwidth=2.0, random_state=0).fit(X)
    tracemalloc.start()
    try:
        with threadpool_limits(2, user_api="blas"):
            phi = features.transform(X)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < phi.nbytes + 16e6


@both
def test_threads_and_order_of_rows_change_nothing(cls, rng):
    X = rng.standard_normal((1500, 5))
    features = cls("cauchy", **{SIZE[cls]: 700}, random_state=0).fit(X)
    with threadpool_limits(1, user_api="blas"):
        expected = features.transform(X)
    assert_allclose(features.transform(X), expected, atol=1e-13)
    order = rng.permutation(1500)
    assert_allclose(features.transform(X[order]), expected[order], atol=1e-13)
