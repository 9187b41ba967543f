"""Fill values such as 1e12: the other rows are fitted as if they were not there."""

import warnings
from contextlib import nullcontext

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist, pdist
from sklearn import config_context
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from eigenkern import (
    DSGClassifier,
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeRegressor,
    KernelPCA,
    LinearEigenProClassifier,
    LinearEigenProRegressor,
    NystromClassifier,
    NystromRegressor,
    NytroRegressor,
    RandomFourierFeatures,
    RBFNetworkFeatures,
    RFMRegressor,
)
from eigenkern.arrays.array import to_numpy
from eigenkern.centers import kmeans, masses
from eigenkern.inspection import gradient
from eigenkern.kernels import (
    Cauchy,
    Gaussian,
    Laplacian,
    Manhattan,
    Matern,
    median_distance,
    scale_gamma,
)
from eigenkern.operators.tiled import TiledKernel
from eigenkern.rows.robust import (
    frame_of_distances,
    medians,
    sampled,
    without_far_values,
)

# Values that spoil rows, by data type.
SPOILS = [
    *(("float32", value) for value in (1e6, 1e12, 9.97e36)),
    *(("float64", value) for value in (1e12, 1e20, 9.97e36, 1e200, 1e300)),
]
KERNELS = {
    "gaussian": Gaussian(2.0),
    "laplacian": Laplacian(2.0),
    "matern32": Matern(2.0, nu=1.5),
    "matern52": Matern(2.0, nu=2.5),
    "cauchy": Cauchy(2.0),
    "manhattan": Manhattan(3.0),
}
FAR = "column .* of X holds"
ignore_far = pytest.mark.filterwarnings(f"ignore:{FAR}:UserWarning")
ROWS_AND_COLUMNS = [(1, [1]), (1, [0, 1, 2]), (3, [1]), (3, [0, 1, 2])]


@pytest.fixture
def table(rng):
    """200 rows of a smooth function, 100 new rows, and their targets."""
    X = rng.standard_normal((300, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.05 * rng.standard_normal(300)
    return X[:200], y[:200], X[200:], y[200:]


def spoiled(X, value, n_rows, columns, dtype="float64"):
    """Return X with a value in some columns of the first rows."""
    X = X.copy()
    X[:n_rows, columns] = value
    return X.astype(dtype)


def reference(kernel, X, y, T, penalty):
    """Kernel ridge regression with an intercept of the mean, in float64."""
    K, K_new = dense(kernel, X, X), dense(kernel, T, X)
    mean = y.mean()
    a = np.linalg.solve(K + penalty * np.eye(len(y)), y - mean)
    return K_new @ a + mean


def dense(kernel, X, Z):
    """The kernel matrix by its formula, in float64; infinite distances give zero."""
    with np.errstate(over="ignore"):
        metric = "cityblock" if isinstance(kernel, Manhattan) else "euclidean"
        u = cdist(X, Z, metric) / kernel.bandwidth
        if isinstance(kernel, Gaussian):
            return np.exp(-u * u / 2)
        if isinstance(kernel, Cauchy):
            return 1 / (1 + u * u)
    if isinstance(kernel, Matern):
        u = u * (2 * kernel.nu) ** 0.5
        with np.errstate(invalid="ignore"):
            factor = 1 + u + (kernel.nu == 2.5) * u * u / 3
            return np.where(u < 700, factor * np.exp(-u), 0.0)
    return np.exp(-u)


# Kernels


@pytest.mark.parametrize("n_rows, columns", ROWS_AND_COLUMNS)
@pytest.mark.parametrize("dtype, value", SPOILS)
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_the_matrix_of_spoiled_rows(kernel, dtype, value, n_rows, columns, rng):
    """Ordinary rows are exact, and rows with a fill value are compared by the others.

    They are zero to ordinary ones.
    """
    X = rng.standard_normal((40, 3)).astype(dtype).astype(float)
    A = spoiled(X, value, n_rows, columns, dtype)
    K, rest = kernel(A), slice(n_rows, None)
    single = dtype == "float32"
    expected = dense(kernel, X, X)
    assert_allclose(K[rest, rest], expected[rest, rest], atol=3e-5 if single else 1e-12)
    least = 2e-5 if single else 1e-13
    assert np.all(np.abs(K[:n_rows, rest]) < least)
    others = [j for j in range(3) if j not in columns]
    if others:
        alike = dense(kernel, X[:n_rows, others], X[:n_rows, others])
        # The root of the Laplacian triples the error of near rows.
        atol = 0.1 if isinstance(kernel, Laplacian) else 0.03
        assert_allclose(K[:n_rows, :n_rows], alike, atol=atol)
    else:
        assert_allclose(K[:n_rows, :n_rows], 1.0, atol=0.05)
    assert np.linalg.eigvalsh(K.astype(float))[0] > (-1e-2 if single else -1e-9)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_other_libraries_cut_off_the_same(kernel, other_xp, rng):
    X = spoiled(rng.standard_normal((50, 3)), 9.97e36, 3, [1], "float32")
    T = spoiled(rng.standard_normal((20, 3)), -1e30, 1, [0, 2], "float32")
    K = kernel(other_xp.asarray(T), other_xp.asarray(X))
    assert_allclose(to_numpy(K), kernel(T, X), atol=1e-5)
    K = TiledKernel(kernel, other_xp.asarray(X), other_xp.asarray(T)).block()
    assert_allclose(to_numpy(K), kernel(T, X), atol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_rows_beyond_the_range_of_the_centers_type(kernel, rng):
    Z, X = rng.standard_normal((30, 3)).astype("f4"), rng.standard_normal((5, 3))
    X[0], X[1, 2] = 1e60, -1.7e308
    K = TiledKernel(kernel, Z, X).block()
    assert np.all(K[:2] < 2e-5)
    assert_allclose(K[2:], dense(kernel, X[2:], Z), atol=2e-5)


def test_a_small_bandwidth_cuts_off_no_ordinary_row():
    """Columns of rows in order, many thousands of bandwidths long."""
    X = np.arange(100_000, dtype=np.float32)[:, None]
    frame = Gaussian(100.0).frame(X)
    assert abs(frame["offset"][0] - 5e4) < 5e3 and frame["limits"][0] > 2e6
    Z, T = X[::500], X[130:100_000:5000]
    K = Gaussian(100.0)(T, Z)
    assert_allclose(K, dense(Gaussian(100.0), T, Z), atol=0.05)


def test_frames_do_not_see_periodic_fill_values(rng):
    """Every tenth of 20 000 rows: a regular sample could see nothing else."""
    X = rng.standard_normal((20_000, 2))
    for k in (10, 20):
        A = X.copy()
        A[::k] = 1e12
        offset, limits = frame_of_distances(A, 1.0)
        assert np.all(np.abs(offset) < 0.25) and np.all(limits < 1e8)
        assert_array_equal(offset, medians(sampled(A)))
    assert sampled(X[:1000]).shape == (1000, 2) and sampled(X).shape == (1000, 2)


def test_medians_and_limits_by_their_definition(other_xp, rng):
    X = spoiled(rng.standard_normal((101, 4)) * [1, 1, 100, 0] + 3, 1e20, 2, [1])
    offset, limits = frame_of_distances(other_xp.asarray(X), 0.5)
    assert_array_equal(to_numpy(offset), np.median(X, axis=0))
    usual = np.median(np.abs(X - np.median(X, axis=0)), axis=0)
    far = 0.5 * (1e-2 / np.finfo(float).eps) ** 0.5
    assert_allclose(to_numpy(limits), np.maximum(100 * usual, far))
    near = without_far_values(other_xp.asarray(X), offset, limits)
    expected = np.clip(X - to_numpy(offset), -to_numpy(limits), to_numpy(limits))
    assert_allclose(to_numpy(near) - to_numpy(offset), expected, atol=1e-6)
    ordinary = other_xp.asarray(X[2:])
    assert without_far_values(ordinary, offset, limits) is ordinary


@pytest.mark.parametrize("shift", [1000.0, 1e6])
@pytest.mark.parametrize("name", KERNELS)
def test_a_shift_changes_nothing(name, shift, table):
    X, y, T, _ = table
    options = {"bandwidth": 2.0, "alpha": 1e-3, "random_state": 0}
    expected = NystromRegressor(name, **options).fit(X, y).predict(T)
    model = NystromRegressor(name, **options).fit(X + shift, y)
    assert_allclose(model.predict(T + shift), expected, atol=1e-6)


# Units measured on rows


@pytest.mark.parametrize("metric", ["euclidean", "manhattan"])
@pytest.mark.parametrize("value", [1e12, 9.97e36, 1e200, 1e308, -1e308])
def test_the_median_distance_of_spoiled_rows(metric, value, rng):
    X = rng.standard_normal((200, 4))
    of_rest = pdist(X[3:], {"manhattan": "cityblock"}.get(metric, metric))
    found = median_distance(spoiled(X, value, 3, [1]), metric=metric)
    assert found == pytest.approx(np.median(of_rest), rel=0.05)


def test_the_median_distance_in_any_unit(rng):
    X = rng.standard_normal((60, 5)) * [1, 0, 0, 0, 0.1]
    expected = np.median(pdist(X))
    for unit in (1e-100, 1e-150, 1e100, 1e150):
        assert median_distance(X * unit) == pytest.approx(expected * unit)
    sparse = np.where(rng.random((100, 30)) < 0.02, 1e80, 0.0)
    distances = pdist(sparse / 1e80)
    expected = np.median(distances[distances > 0]) * 1e80
    assert median_distance(sparse) == pytest.approx(expected)


@pytest.mark.parametrize("value", [1e6, 1e12, 1e200, 1e308])
def test_scale_leaves_fill_values_out(value, rng):
    X = rng.standard_normal((200, 4)) + 5
    A = spoiled(X, value, 3, [0, 2])
    kept = np.ones_like(X, dtype=bool)
    kept[:3, [0, 2]] = False
    assert scale_gamma(A) == pytest.approx(1 / (4 * X[kept].var()), rel=1e-12)


@pytest.mark.parametrize("scale, found", [(1e200, "(inf|nan)"), (1e-200, "0")])
def test_a_variance_out_of_range(scale, found, table):
    X, y, *_ = table
    with pytest.raises(ValueError, match=f"bandwidth='scale' found .* {found}, which"):
        EigenProRegressor(bandwidth="scale").fit(X * scale, y)


@pytest.mark.parametrize("dtype, value", SPOILS)
def test_clusters_of_spoiled_rows(dtype, value, rng):
    """Three clusters, and a fill value: each still has its mean."""
    X = rng.standard_normal((300, 2)) * 0.1 + 10 * np.eye(3)[np.arange(300) % 3, :2]
    A = spoiled(X, value, 1, [1], dtype)
    Z = kmeans(None, A, 4, random_state=0)[0]
    near = Z[np.abs(Z).max(axis=1) < 20]
    for k in range(3):
        mean = X[3 + k :: 3].mean(axis=0)
        assert np.linalg.norm(near - mean, axis=1).min() < 0.5
    means = np.array([X[3 + k :: 3].mean(axis=0) for k in range(3)], dtype=dtype)
    found = masses(A, np.concatenate([means, A[:1]]), None)
    assert_array_equal(found, [99, 100, 100, 1])


# Fits


def ridge_models(name):
    given = {"kernel": name, "bandwidth": 2.0, "random_state": 0}
    return {
        "nystrom": NystromRegressor(alpha=1e-3, **given),
        "falkon": FalkonLikeRegressor(alpha=1e-3, n_centers=None, tol=1e-6, **given),
        "eigenpro": EigenProRegressor(alpha=1e-3, max_iter=300, **given),
    }


@ignore_far
@pytest.mark.parametrize("n_rows, columns", ROWS_AND_COLUMNS)
@pytest.mark.parametrize("dtype, value", SPOILS)
@pytest.mark.parametrize("name", KERNELS)
def test_ridge_regression_on_the_other_rows(name, dtype, value, n_rows, columns, table):
    """Far rows, of mean target, change nothing: k is zero between them and others.

    A fill value in every row of the first ones: their targets are the mean, so that
    their coefficients are zero.
    """
    X, y, T, _ = (part.astype(dtype).astype(float) for part in table)
    y[:n_rows] = y[n_rows:].mean()
    kernel = {**KERNELS, "manhattan": Manhattan(2.0)}[name]
    penalty = 1e-3 * len(y)
    expected = reference(kernel, X[n_rows:], y[n_rows:], T, penalty)
    A = spoiled(X, value, n_rows, columns, dtype)
    atol = 5e-3 if dtype == "float32" else 2e-3
    for model in ridge_models(name).values():
        assert_allclose(model.fit(A, y).predict(T.astype(dtype)), expected, atol=atol)


FAMILIES = {
    "eigenpro": EigenProRegressor(random_state=0),
    "eigenpro3": EigenProRegressor(n_centers=100, random_state=0),
    "nystrom": NystromRegressor(random_state=0),
    "leverage": NystromRegressor(
        n_centers=100, centers="leverage_scores", random_state=0
    ),
    "rpcholesky": NystromRegressor(n_centers=100, centers="rpcholesky", random_state=0),
    "kmeans": NystromRegressor(n_centers=100, centers="kmeans", random_state=0),
    "bandwidth": NystromRegressor(bandwidth="auto", random_state=0),
    "scale": EigenProRegressor(bandwidth="scale", random_state=0),
    "nytro": NytroRegressor(random_state=0),
    "falkon": FalkonLikeRegressor(n_centers=100, random_state=0),
    "dsg": DSGRegressor(random_state=0),
    "fourier": make_pipeline(
        RandomFourierFeatures(n_components=100, random_state=0),
        Ridge(alpha=1e-3),
    ),
}


@ignore_far
@pytest.mark.parametrize("dtype, value", [SPOILS[0], SPOILS[2], SPOILS[3], SPOILS[6]])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns_the_other_rows(family, dtype, value, table):
    X, y, T, t = table
    model = FAMILIES[family]
    expected = model.fit(X[1:].astype(dtype), y[1:]).score(T.astype(dtype), t)
    assert expected > 0.75
    A = spoiled(X, value, 1, [1], dtype)
    model.fit(A, y)
    # Centers, and rows that are held out, are drawn anew.
    assert model.score(T.astype(dtype), t) > expected - 0.05
    assert np.all(np.isfinite(model.predict(A)))


@ignore_far
@pytest.mark.parametrize("metric", ["diagonal", "full"])
@pytest.mark.parametrize("dtype, value", [SPOILS[2], SPOILS[6]])
def test_learned_metrics_of_the_other_rows(dtype, value, metric, table):
    X, y, T, t = table
    A = spoiled(X, value, 2, [1], dtype)
    model = RFMRegressor(metric=metric, max_rounds=1, scaling=None, random_state=0)
    expected = model.fit(X[2:].astype(dtype), y[2:]).score(T, t)
    assert model.fit(A, y).score(T.astype(dtype), t) > expected - 0.02
    assert np.all(np.isfinite(model.predict(A)))
    near = spoiled(X, model._offset[1] + model._limits[1], 2, [1], dtype)
    R = model.metric_root_ if metric == "full" else np.diag(model.metric_root_)
    assert_allclose(model.transform(A), near @ R, rtol=1e-4, atol=1e-4)


@ignore_far
@pytest.mark.parametrize("value", [1e12, 9.97e36])
@pytest.mark.parametrize(
    "model",
    [
        EigenProRegressor(n_centers=80, random_state=0),
        DSGRegressor(random_state=0),
        LinearEigenProRegressor(random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_fill_value_in_a_later_piece(model, value, table):
    X, y, T, t = table
    A, scores = X.copy(), []
    A[100, 1] = value
    for data, rows in ((X, slice(101, 200)), (A, slice(100, 200))):
        one = clone(model).partial_fit(X[:100], y[:100])
        scores.append(one.partial_fit(data[rows], y[rows]).score(T, t))
    assert scores[1] > scores[0] - 0.02 > 0.5


def test_a_stream_with_a_fill_value(table):
    X, y, T, t = table
    A, scores = X.copy(), []
    A[150] = 9.97e36
    for data in (X, A):
        pieces = [(data[:100], y[:100]), (data[100:], y[100:])]
        model = EigenProRegressor(n_centers=80, max_iter=5, random_state=0)
        scores.append(model.fit_batches(lambda p=pieces: iter(p)).score(T, t))
    assert scores[1] > scores[0] - 0.05


@pytest.mark.filterwarnings("ignore:.* learned nothing")
@pytest.mark.parametrize("name", ["linear", "polynomial"])
@pytest.mark.parametrize("dtype, value", [("float32", 1e5), ("float64", 1e12)])
def test_a_leverage_point_is_no_worse_than_the_mean(name, dtype, value, table):
    X, y, T, t = table
    A = spoiled(X, value, 1, [1], dtype)
    models = [NystromRegressor(name), EigenProRegressor(name), NytroRegressor(name)]
    for model in [*models, *([LinearEigenProRegressor()] if name == "linear" else [])]:
        model.set_params(random_state=0)
        what = "it costs the others digits"
        if isinstance(model, LinearEigenProRegressor):
            what = "its row was left out"
        with pytest.warns(UserWarning, match=f"column 1 .*: {what}"):
            model.fit(A, y)
        assert model.score(T.astype(dtype), t) > -0.01


def test_a_polynomial_that_overflows(table):
    X, y, *_ = table
    A = spoiled(X, 9.97e36, 1, [1], "float32")
    message = r"Polynomial\(.*overflows in float32 on a row whose .* entry is 9.97e\+36"
    for cls in (EigenProRegressor, NystromRegressor, NytroRegressor):
        with pytest.raises(ValueError, match=message):
            cls("polynomial").fit(A, y)


# Warnings


@pytest.mark.parametrize(
    "model",
    [
        EigenProRegressor(random_state=0),
        EigenProRegressor(n_centers=50, random_state=0),
        NystromRegressor(random_state=0),
        NytroRegressor("manhattan", random_state=0),
        FalkonLikeRegressor(random_state=0),
        DSGRegressor(random_state=0),
        RFMRegressor(random_state=0, max_rounds=1),
        RandomFourierFeatures(random_state=0),
        RBFNetworkFeatures(random_state=0),
        KernelPCA(random_state=0),
    ],
    ids=repr,
)
def test_one_warning_names_the_column_and_the_size(model, table):
    X, y, *_ = table
    A = spoiled(X, -1e37, 2, [2], "float32")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model.fit(A, y)
    (warning,) = found
    usual = np.median(np.abs(A[:, 2] - np.median(A[:, 2])))
    text = str(warning.message)
    assert text.startswith("column 2 of X holds -1e+37, ") and "cut off at -" in text
    assert warning.category is UserWarning and warning.filename == __file__
    times = float(text.partition("-1e+37, ")[2].partition(" times its usual")[0])
    manhattan = getattr(model, "kernel", None) == "manhattan"
    assert times == pytest.approx(1e37 / usual, rel=0.1) or manhattan


def test_the_warning_names_the_users_column(table):
    pandas = pytest.importorskip("pandas")
    X, y, *_ = table
    A = pandas.DataFrame(spoiled(X, 1e12, 1, [1]), columns=["age", "income", "x"])
    with pytest.warns(UserWarning, match="column 'income' of X holds 1e\\+12, "):
        NystromRegressor().fit(A, y)
    A["income"] = np.where(np.arange(200) == 7, 1e30, 4.0)
    with pytest.warns(UserWarning, match="1e\\+30, where most rows hold 4:"):
        NystromRegressor().fit(A, y)


def test_no_warning_without_need(table):
    """Not of ordinary rows, nor of rows without weight, nor of heavy tails."""
    X, y, *_ = table
    EigenProRegressor(random_state=0).fit(X.astype("f4") * 1e6 + 1e6, y)
    weights = np.ones(200)
    weights[0] = 0.0
    NystromRegressor().fit(spoiled(X, 1e12, 1, [1]), y, sample_weight=weights)
    tails = np.random.default_rng(0).standard_t(1.5, (200, 3)).astype("f4")
    for kernel in ("laplacian", "linear"):
        NystromRegressor(kernel, alpha=1e-6).fit(tails, y)


# Predictions


MODELS = {
    "eigenpro": (EigenProRegressor, EigenProClassifier),
    "nystrom": (NystromRegressor, NystromClassifier),
    "dsg": (DSGRegressor, DSGClassifier),
    "linear": (LinearEigenProRegressor, LinearEigenProClassifier),
}
METHODS = "predict", "decision_function", "predict_proba", "predict_log_proba"


@pytest.mark.parametrize("value", [1e30, 1e60, -1.7e308])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("family", MODELS)
def test_finite_rows_have_finite_values_or_an_error(family, dtype, value, table):
    X, y, T, _ = table
    rows = spoiled(T[:6], value, 1, [1])
    rows[4] = value
    for cls, targets in zip(MODELS[family], (y, y > 0), strict=True):
        model = cls(random_state=0).fit(X.astype(dtype), targets)
        for name in METHODS:
            if not hasattr(model, name):
                continue
            method = getattr(model, name)
            try:
                values = method(rows)
            except ValueError as error:
                assert family == "linear"
                message = str(error).partition(", has a value")[0]
                assert message in (
                    f"row {i} of X, whose largest entry is {value:.3g}" for i in (0, 4)
                )
            else:
                assert np.all(np.isfinite(values))
                ordinary = method(rows[[1, 2, 3, 5]])
                assert_allclose(values[[1, 2, 3, 5]], ordinary, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [*KERNELS, "linear", "polynomial"])
def test_gradients_deviations_and_features_of_far_rows(name, table):
    X, y, T, _ = table
    rows = spoiled(T[:4], 1e60, 1, [1])
    model = NystromRegressor(name, bandwidth=2.0, random_state=0).fit(X, y)
    features = RBFNetworkFeatures(name, bandwidth=2.0).fit(X)
    if name in KERNELS:
        G = gradient(model, rows)
        assert_allclose(G[1:], gradient(model, rows[1:]), atol=1e-9)
        assert_allclose(G[0], 0.0, atol=1e-6)
        deviation = model.predict(rows, return_std=True)[1]
        assert_allclose(deviation[0], y.std(), rtol=1e-3)  # that of the targets
        assert_allclose(features.transform(rows)[0], 0.0, atol=1e-12)
        return
    rows *= 1e200
    with pytest.raises(ValueError, match="row 0 of X, whose largest entry is 1e\\+260"):
        model.predict(rows, return_std=True)
    if name == "linear":
        assert np.all(np.isfinite(gradient(model, rows)))
        return
    for function in (features.transform, lambda X: gradient(model, X)):
        with pytest.raises(ValueError, match="row 0 of X, whose largest entry is"):
            function(rows)


@pytest.mark.parametrize("name", ["gaussian", "laplacian", "manhattan"])
def test_gradients_of_a_model_with_a_fill_value(name, table):
    X, y, T, _ = table
    y[0] = y[1:].mean()
    model = NystromRegressor(name, bandwidth=2.0, alpha=1e-3)
    alpha = 1e-3 * 199 / 200
    expected = gradient(clone(model).set_params(alpha=1e-3).fit(X[1:], y[1:]), T)
    with pytest.warns(UserWarning, match=FAR) if name != "manhattan" else nullcontext():
        model.set_params(alpha=alpha).fit(spoiled(X, 9.97e36, 1, [1]), y)
    assert_allclose(gradient(model, T), expected, atol=1e-3)


def test_chunks_of_dask_and_other_libraries(other_xp, table):
    X, y, T, _ = table
    rows = spoiled(T[:6], 1e60, 1, [1])
    expected = NystromRegressor(random_state=0).fit(X.astype("f4"), y).predict(rows)
    with config_context(array_api_dispatch=True):
        model = NystromRegressor(random_state=0)
        model.fit(other_xp.asarray(X.astype("f4")), other_xp.asarray(y.astype("f4")))
        found = to_numpy(model.predict(other_xp.asarray(rows)))
    assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    da = pytest.importorskip("dask.array")
    model = NystromRegressor(random_state=0).fit(X.astype("f4"), y)
    chunks = da.from_array(rows, chunks=(2, 3))
    assert_allclose(model.predict(chunks).compute(), expected, atol=1e-5)


@pytest.mark.parametrize(
    "model",
    [
        EigenProRegressor("gaussian"),
        NystromRegressor("manhattan", n_centers=50),
        DSGRegressor(max_iter=1),
    ],
    ids=str,
)
def test_a_column_that_was_scaled_with_fill_values_is_named(model, rng):
    X = rng.standard_normal((400, 4))
    y = X[:, 0] + np.sin(X[:, 2])
    X[::100, 1] = 1e12
    Z = StandardScaler().fit_transform(X)
    with pytest.warns(UserWarning, match=r"column 1 of X holds 9.95, .* times its usu"):
        model.fit(Z, y)
    # Heavy tails, rare ones, small units and constants are no fill values.
    X[:, 1] = np.exp(2 * rng.standard_normal(400))
    X[:, 3] = np.arange(400) % 100 == 0
    for rows in (StandardScaler().fit_transform(X), X * [1.0, 1e-9, 1.0, 0.0]):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "column")
            model.fit(rows, y)
