"""The kernels against their formulas in float64."""

import inspect

import array_api_compat
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist, pdist
from sklearn.metrics import pairwise
from sklearn.svm import SVC

from eigenkern import kernels
from eigenkern.arrays import array
from eigenkern.arrays.array import to_numpy
from eigenkern.kernels import (
    CallableKernel,
    Cauchy,
    Gaussian,
    Kernel,
    Laplacian,
    Linear,
    Manhattan,
    Matern,
    Polynomial,
    median_distance,
    scale_gamma,
)
from eigenkern.operators.tiled import TiledKernel
from eigenkern.problems.data import Data
from eigenkern.problems.kernel_parameters import (
    check_bandwidth,
    check_kernel,
    make_kernel,
)

SIGMA = 1.7
RADIAL = {
    Gaussian(SIGMA): lambda r: np.exp(-(r**2) / (2 * SIGMA**2)),
    Laplacian(SIGMA): lambda r: np.exp(-r / SIGMA),
    Cauchy(SIGMA): lambda r: 1 / (1 + r**2 / SIGMA**2),
    Matern(SIGMA, nu=1.5): lambda r: (
        (1 + np.sqrt(3) * r / SIGMA) * np.exp(-np.sqrt(3) * r / SIGMA)
    ),
    Matern(SIGMA, nu=2.5): lambda r: (
        (1 + np.sqrt(5) * r / SIGMA + 5 * r**2 / (3 * SIGMA**2))
        * np.exp(-np.sqrt(5) * r / SIGMA)
    ),
}
PRODUCT = {
    Linear(): lambda t: t,
    Polynomial(SIGMA, degree=1, coef0=0.0): lambda t: t / SIGMA**2,
    Polynomial(SIGMA, degree=3, coef0=0.5): lambda t: (t / SIGMA**2 + 0.5) ** 3,
    Polynomial(SIGMA, degree=4): lambda t: (t / SIGMA**2 + 1) ** 4,
}
radial = pytest.mark.parametrize("kernel, phi", RADIAL.items(), ids=map(repr, RADIAL))


@radial
def test_radial_kernels_are_their_formulas(kernel, phi, rng):
    X, Z = rng.standard_normal((30, 4)), rng.standard_normal((20, 4))
    assert_allclose(kernel(X, Z), phi(cdist(X, Z)), rtol=1e-10)
    assert_allclose(kernel(X), phi(cdist(X, X)), rtol=1e-10)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("dtype, rtol", [("float32", 2e-4), ("float64", 1e-12)])
def test_manhattan_is_its_formula(dtype, rtol, offset, rng):
    X = (rng.standard_normal((300, 10)) + offset).astype(dtype)
    Z = np.concatenate([X[:20], X[100:200] + X.dtype.type(0.25)])
    X64, Z64 = X.astype(np.float64), Z.astype(np.float64)
    exact = np.exp(-cdist(X64, Z64, "cityblock") / SIGMA)
    K = Manhattan(SIGMA)(X, Z)
    assert K.dtype == X.dtype
    assert_allclose(K, exact, rtol=rtol)
    assert_array_equal(K[np.arange(20), np.arange(20)], 1.0)
    exact = np.exp(-cdist(X64, X64, "cityblock") / SIGMA)
    assert_allclose(Manhattan(SIGMA)(X), exact, rtol=rtol)


def test_manhattan_counts_columns_that_are_constant_among_the_centers(rng):
    X, Z = rng.standard_normal((20, 3)), rng.standard_normal((10, 3))
    Z[:, 1] = 7.0
    exact = np.exp(-cdist(X, Z, "cityblock"))
    assert_allclose(Manhattan()(X, Z), exact, rtol=1e-12)


def test_manhattan_of_rows_beyond_the_range():
    X = np.full((2, 3), 1e38, dtype=np.float32)
    with pytest.raises(ValueError, match=r"up to 1e\+38, are too large for float32"):
        Manhattan()(X)
    assert_array_equal(Manhattan()(X.astype(np.float64)), 1.0)
    X[1] = 1.0
    with pytest.raises(
        ValueError, match=r"bandwidth 1e-40 is too small .* to 1 in flo"
    ):
        Manhattan(1e-40)(X[1:])


def test_a_bandwidth_in_the_unit_of_the_manhattan_distance(rng):
    X = rng.standard_normal((101, 16))
    expected = np.median(pdist(X, "cityblock"))
    assert_allclose(median_distance(X, metric="manhattan"), expected, rtol=1e-10)
    made = make_kernel("manhattan", "median", X, None)
    assert made.bandwidth == pytest.approx(expected)
    # At most sqrt(d) times the Euclidean distance.
    of_both = [
        make_kernel(name, "scale", X, None).bandwidth
        for name in ("manhattan", "gaussian")
    ]
    assert of_both[0] == pytest.approx(4 * of_both[1])
    with pytest.raises(ValueError, match="'euclidean' or 'manhattan'; got 'cosine'"):
        median_distance(X, metric="cosine")


KERNELS = [
    *RADIAL,
    *PRODUCT,
    Manhattan(SIGMA),
    CallableKernel(lambda X, Z: X @ Z.T + 1.0),
]


@pytest.mark.parametrize("library", ["numpy", "array_api_strict", "torch"])
@pytest.mark.parametrize("dtype, atol", [("float32", 2e-4), ("float64", 1e-12)])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: repr(k).partition(" at ")[0])
def test_the_matrix_is_that_of_the_operator(kernel, dtype, atol, library, rng):
    """With more rows than are computed at a time; the diagonal is exact."""
    xp = array_api_compat.array_namespace(pytest.importorskip(library).zeros(1))
    X, Z = (rng.standard_normal((n, 3)).astype(dtype) for n in (1100, 40))
    X_xp, Z_xp = xp.asarray(X), xp.asarray(Z)
    K = kernel(X_xp, Z_xp)
    assert array_api_compat.array_namespace(K) == xp
    assert K.dtype == X_xp.dtype and K.shape == (1100, 40)
    expected = TiledKernel(kernel, Z_xp, X_xp).block()
    assert_allclose(to_numpy(K), to_numpy(expected), rtol=1e-5, atol=atol)
    K = kernel(X_xp)
    assert K.shape == (1100, 1100)
    expected = to_numpy(TiledKernel(kernel, X_xp).block())
    assert_allclose(to_numpy(K), expected, rtol=1e-5, atol=atol)
    diagonal = np.diagonal(to_numpy(K))
    assert_array_equal(diagonal, np.diagonal(expected))
    assert_array_equal(diagonal, to_numpy(kernel.diagonal(X_xp)))
    if kernel in RADIAL or isinstance(kernel, Manhattan):
        assert_array_equal(diagonal, 1.0)
    else:
        squares = np.sum(X.astype(np.float64) ** 2, axis=1)
        exact = PRODUCT.get(kernel, lambda t: t + 1.0)(squares)
        assert_allclose(diagonal, exact, rtol=1e-5 if dtype == "float32" else 1e-12)


@radial
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("dtype, rtol", [("float32", 3e-5), ("float64", 1e-11)])
def test_powers_of_two_are_exponentials(
    kernel, phi, fast, dtype, rtol, rng, monkeypatch
):
    monkeypatch.setattr(array, "_NUMPY_HAS_VECTOR_MATH", fast)
    X = rng.standard_normal((30, 4)).astype(dtype)
    Z = 3.0 * rng.standard_normal((20, 4)).astype(dtype)
    exact = phi(cdist(X.astype(np.float64), Z.astype(np.float64)))
    assert_allclose(kernel(X, Z), exact, rtol=rtol)


@pytest.mark.parametrize("kernel, phi", PRODUCT.items(), ids=map(repr, PRODUCT))
def test_inner_product_kernels_are_their_formulas(kernel, phi, rng):
    X, Z = rng.standard_normal((30, 4)), rng.standard_normal((20, 4))
    assert_allclose(kernel(X, Z), phi(X @ Z.T), rtol=1e-10, atol=1e-13)
    assert_allclose(kernel(X), phi(X @ X.T), rtol=1e-10, atol=1e-13)


@radial
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_float32_is_accurate_under_offsets(kernel, phi, offset, rng):
    X = (rng.standard_normal((300, 10)) + offset).astype(np.float32)
    Z = np.concatenate([X[:20], X[100:200] + np.float32(0.25)])
    exact = cdist(X.astype(np.float64), Z.astype(np.float64))
    assert kernel(X, Z).dtype == np.float32
    assert_allclose(kernel(X, Z), phi(exact), rtol=1e-3)
    X64 = X.astype(np.float64)
    assert_allclose(kernel(X), phi(cdist(X64, X64)), rtol=1e-3)


@pytest.mark.parametrize("kernel", [*RADIAL, *PRODUCT], ids=repr)
def test_diagonal_is_exact(kernel, rng):
    X = (100 * rng.standard_normal((1500, 3))).astype(np.float32)
    expected = kernel.diagonal(X)
    if not isinstance(kernel, Polynomial | Linear):
        assert_array_equal(expected, np.ones(1500))
    else:
        exact = [kernel(x[None], x[None])[0, 0] for x in X.astype(np.float64)[:50]]
        assert_allclose(expected[:50], exact, rtol=1e-5)
    assert_array_equal(np.diagonal(kernel(X)), expected)


def test_gaussian_of_a_tiny_bandwidth_stays_below_one(rng):
    X = (1e3 * rng.standard_normal((400, 20))).astype(np.float32)
    X[200:] = X[:200] * np.float32(1 + 1e-6)
    for K in (Gaussian(0.05)(X), Gaussian(0.05)(X, X[::-1].copy())):
        assert np.all(K <= 1) and np.all(K >= 0)
    K = Gaussian(0.05)(X[:200])
    assert_array_equal(K, np.eye(200))


def test_gaussian_is_clipped_only_where_rounding_shows(rng):
    X = rng.standard_normal((50, 3)).astype(np.float32)
    assert type(TiledKernel(Gaussian(1.0), X).kernel) is Gaussian
    assert type(TiledKernel(Gaussian(1e-3), X).kernel) is not Gaussian


def test_callable_kernel_is_called_on_blocks(rng):
    X, Z = rng.standard_normal((700, 3)), rng.standard_normal((40, 3))
    kernel = CallableKernel(lambda A, B: cdist(A, B, "cityblock"))
    assert_allclose(kernel(X, Z), cdist(X, Z, "cityblock"))
    assert_array_equal(kernel.diagonal(X), np.zeros(700))


@pytest.mark.parametrize(
    "function, message",
    [
        (lambda X, Z: np.ones(len(X)), r"shape \(len\(X\), len\(Z\)\) = \(4, 3\)"),
        (lambda X, Z: np.ones((len(Z), len(X))), r"got \(3, 4\)"),
        (lambda X, Z: 1.0, r"kernel must be a function .*; got \(\) from <function"),
        (lambda X, Z: "one", "kernel must be a function .*; got str from <function"),
        (lambda X, Z: np.full((len(X), len(Z)), np.nan), "NaN or infinity"),
        (lambda X, Z: np.full((len(X), len(Z)), np.inf), "NaN or infinity"),
    ],
    ids=["vector", "transposed", "scalar", "text", "nan", "inf"],
)
def test_callable_kernel_is_checked(function, message):
    with pytest.raises(ValueError, match=message):
        CallableKernel(function)(np.zeros((4, 2)), np.zeros((3, 2)))


def gradients(kernel, X, Z):
    """Return the gradients in x of k(x, z) by its slope, shape (m, p, d)."""
    slope = kernel.slope()
    away = Z[None, :, :] - (X[:, None, :] if slope.direction != "z" else 0.0)
    if slope.direction == "sign(z - x)":
        away = np.sign(away)
    return slope.factor * slope.kernel(X, Z)[:, :, None] * away


@pytest.mark.parametrize("kernel", [*RADIAL, *PRODUCT, Manhattan(SIGMA)], ids=repr)
def test_slopes_are_differences(kernel, rng):
    X, Z = rng.standard_normal((20, 3)), rng.standard_normal((15, 3))
    step, found = 1e-4, gradients(kernel, X, Z)
    for j, h in enumerate(step * np.eye(3)):
        near, far = (kernel(X + i * h, Z) - kernel(X - i * h, Z) for i in (1, 2))
        expected = (8 * near - far) / (12 * step)
        assert_allclose(found[:, :, j], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("kernel", RADIAL, ids=repr)
def test_a_row_has_no_slope_at_itself(kernel, offset, dtype, rng):
    """Even on the laplacian's kink, and at copies of the row."""
    X = (rng.standard_normal((50, 7)) + offset).astype(dtype)
    Z = np.concatenate([X, X[::-1]])
    slope, same = kernel.slope(), np.concatenate([np.eye(50), np.eye(50)[::-1]], 1)
    values = slope.kernel(X, Z)
    assert np.isfinite(values).all()
    if isinstance(kernel, Laplacian):
        assert_array_equal(values[same == 1], 0.0)
    assert_array_equal(gradients(kernel, X, Z)[same == 1], 0.0)
    assert_array_equal(gradients(Manhattan(), X, Z)[same == 1], 0.0)


@pytest.mark.parametrize(
    "name, change",
    [
        ("finish", lambda self, xp, T: Gaussian.finish(self, xp, T) ** 2),
        ("left", lambda self, E: 2.0 * Gaussian.left(self, E)),
        ("encode", lambda self, X, **frame: Gaussian.encode(self, 2.0 * X, **frame)),
        ("_scale", property(lambda self: -2.0 / self.bandwidth**2)),
    ],
)
def test_another_kernel_has_no_slope_until_it_says_one(name, change):
    other = type("Other", (Gaussian,), {name: change})
    with pytest.raises(ValueError, match=r"Other\(.*\) declares no gradient.*`slope`"):
        other(2.0).slope()
    slope = Gaussian(2.0).slope()
    said = type("Said", (other,), {"slope": lambda self: slope})
    assert said(2.0).slope() == slope
    assert type("Renamed", (Gaussian,), {})(2.0).slope() == slope
    for kernel in (Kernel(), CallableKernel(cdist)):
        with pytest.raises(ValueError, match="declares no gradient"):
            kernel.slope()


def test_integers_are_computed_in_float64():
    K = Gaussian(2.0)(np.array([[0], [2]]), np.array([[0], [4]]))
    assert_allclose(K, np.exp([[0, -2], [-0.5, -0.5]]))


def test_one_row(rng):
    x = rng.standard_normal((1, 3))
    assert_array_equal(Laplacian()(x), [[1.0]])
    assert_allclose(Laplacian()(x, x + 1.0), [[np.exp(-np.sqrt(3))]])


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Gaussian(0.0), "bandwidth must be positive and finite; got 0.0"),
        (lambda: Laplacian(-1.0), "bandwidth must be positive and finite; got -1.0"),
        (lambda: Cauchy(np.nan), "bandwidth must be positive and finite; got nan"),
        (lambda: Matern(np.inf), "bandwidth must be positive and finite; got inf"),
        (lambda: Matern(nu=0.5), "nu must be 1.5 or 2.5; got 0.5"),
        (lambda: Polynomial(degree=0), "degree must be an integer >= 1; got 0"),
        (lambda: Polynomial(degree=1.5), "degree must be an integer >= 1; got 1.5"),
        (lambda: Polynomial(coef0=-1.0), "coef0 must not be negative; got -1.0"),
        (lambda: Polynomial(coef0=np.nan), "coef0 must not be negative; got nan"),
    ],
)
def test_impossible_kernels(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("kernel", ["rbff", None, 3, Gaussian, ["gaussian"]])
def test_check_kernel_names_the_kernels(kernel):
    with pytest.raises(ValueError, match="kernel must be one of 'gaussian', 'rbf'"):
        check_kernel(kernel)


@pytest.mark.parametrize("bandwidth", ["mean", None, True, 0, -1.0, np.nan, [1.0]])
def test_check_bandwidth(bandwidth):
    with pytest.raises(ValueError, match=r"bandwidth must be .*; got "):
        check_bandwidth(bandwidth)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("gaussian", Gaussian(2.0)),
        ("rbf", Gaussian(2.0)),
        ("laplacian", Laplacian(2.0)),
        ("manhattan", Manhattan(2.0)),
        ("cauchy", Cauchy(2.0)),
        ("matern32", Matern(2.0, nu=1.5)),
        ("matern52", Matern(2.0, nu=2.5)),
        ("polynomial", Polynomial(2.0)),
        ("linear", Linear()),
        (Gaussian(3.0), Gaussian(3.0)),
    ],
    ids=repr,
)
def test_make_kernel(name, expected):
    assert make_kernel(name, 2.0, np.ones((2, 1)), None) == expected


@pytest.mark.parametrize("gamma", [1e-3, 0.7, 20.0])
def test_from_gamma_is_the_kernel_of_scikit_learn(gamma, rng):
    X, Z = rng.standard_normal((20, 3)), rng.standard_normal((10, 3))
    assert_allclose(Gaussian.from_gamma(gamma)(X, Z), pairwise.rbf_kernel(X, Z, gamma))
    for options in ({}, {"degree": 2, "coef0": 0.0}):
        assert_allclose(
            Polynomial.from_gamma(gamma, **options)(X, Z),
            pairwise.polynomial_kernel(X, Z, gamma=gamma, **options),
            rtol=1e-10,
        )
    # It uses Manhattan distances: the same for one feature.
    kernel = Laplacian.from_gamma(gamma)
    expected = pairwise.laplacian_kernel(X[:, :1], Z[:, :1], gamma)
    assert_allclose(kernel(X[:, :1], Z[:, :1]), expected)
    assert_allclose(kernel(X, Z), np.exp(-gamma * cdist(X, Z)))
    expected = pairwise.laplacian_kernel(X, Z, gamma)
    assert_allclose(Manhattan.from_gamma(gamma)(X, Z), expected)


@pytest.mark.parametrize("kernel", [Gaussian, Laplacian, Manhattan, Polynomial])
def test_gamma_in_a_constructor_gets_a_hint(kernel):
    with pytest.raises(TypeError, match=rf"write {kernel.__name__}\.from_gamma\(2\)"):
        kernel(gamma=2)
    first = next(iter(inspect.signature(kernel).parameters))
    assert first in kernel().get_params()


@pytest.mark.parametrize("gamma", [0.0, -1.0, np.inf, np.nan])
@pytest.mark.parametrize("kernel", [Gaussian, Laplacian, Manhattan, Polynomial])
def test_gamma_is_positive(kernel, gamma):
    with pytest.raises(ValueError, match="gamma must be positive and finite; got"):
        kernel.from_gamma(gamma)
    with pytest.raises(ValueError, match=r"got 'scale': .*bandwidth='scale' with ker"):
        kernel.from_gamma("scale")


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scale_gamma_is_that_of_scikit_learn(offset, dtype, rng, monkeypatch):
    monkeypatch.setattr(kernels.bandwidth, "_BLOCK", 37)  # 7 rows
    X = rng.standard_normal((101, 5)) * [1, 2, 3, 4, 100] + offset * np.arange(5)
    X = X.astype(dtype)
    svc = SVC(gamma="scale").fit(X, np.arange(101) % 2)
    assert_allclose(scale_gamma(X), svc._gamma, rtol=1e-9)


def test_scale_gamma_of_little_spread_beside_an_offset(rng):
    X = rng.standard_normal((5000, 2)) * 1e-3 + 1e6
    assert_allclose(scale_gamma(X), 1 / (2 * (X - 1e6).var()), rtol=1e-9)


@pytest.mark.parametrize("value", [0.0, 0.1])
def test_scale_gamma_of_constant_rows(value):
    assert scale_gamma(np.full((10, 3), value)) == 1.0


@pytest.mark.parametrize(
    "name, squared",
    [
        ("gaussian", 0.5),
        ("laplacian", 0.5),
        ("cauchy", 0.5),
        ("matern52", 0.5),
        ("polynomial", 1.0),
    ],
)
def test_make_kernel_measures_the_scale(name, squared):
    X = np.array([[1.0, -1.0], [3.0, -3.0]])  # of variance 5
    made = make_kernel(name, "scale", X, None)
    assert made.bandwidth == pytest.approx((squared * 10.0) ** 0.5)
    # Twice as large in twice as large units.
    assert make_kernel(name, "scale", 2 * X, None).bandwidth == 2 * made.bandwidth
    data = Data(X, None, None, None, None)
    assert make_kernel(name, "scale", X[:1], None, data=data) == made


def test_make_kernel_measures_the_median():
    X = np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]])
    assert make_kernel("cauchy", "median", X, None) == Cauchy(5.0)


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
def test_median_distance_of_few_rows(scale, rng):
    X = scale * rng.standard_normal((101, 4))
    expected = np.median(pdist(X / scale)) * scale
    assert_allclose(median_distance(X, None), expected, rtol=1e-10)


def test_median_distance_of_many_rows_takes_a_subsample():
    X = np.random.default_rng(1).standard_normal((5000, 3))
    estimates = [median_distance(X, np.random.RandomState(seed)) for seed in (0, 0, 1)]
    assert estimates[0] == estimates[1] != estimates[2]
    assert_allclose(estimates, np.median(pdist(X)), rtol=0.05)


def test_median_distance_without_a_generator():
    X = np.random.default_rng(0).standard_normal((1000, 3))
    expected = median_distance(X, np.random.RandomState(3))
    assert median_distance(X, 3) == expected
    assert median_distance(X, np.random.default_rng(3)) == pytest.approx(expected, 0.1)
    assert median_distance(X) == pytest.approx(expected, 0.1)
    assert median_distance(X[:50]) == median_distance(X[:50], 1)
    with pytest.raises(ValueError, match=r"random_state must be None, .*; got 'zero'"):
        median_distance(X, "zero")


def test_median_distance_of_equal_rows():
    with pytest.raises(ValueError, match=r"median distance of 0.*positive bandwidth"):
        median_distance(np.full((10, 3), 0.1), None)
