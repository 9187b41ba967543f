"""Kernel principal components against scikit-learn's, which has the whole matrix."""

import itertools
import pickle
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import eigh, subspace_angles
from sklearn import config_context, decomposition
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from eigenkern import KernelPCA, kernels
from eigenkern.arrays import memory
from eigenkern.arrays.array import namespace, to_numpy
from eigenkern.estimators import kernel_pca
from eigenkern.methods import principal_components
from eigenkern.rows import lazy_rows

OF_SKLEARN = {
    kernels.Gaussian(1.5): {"kernel": "rbf", "gamma": 1 / 4.5},
    kernels.Polynomial.from_gamma(0.25): {"kernel": "poly", "gamma": 0.25},
    kernels.Linear(): {"kernel": "linear"},
}


@pytest.fixture
def X(rng):
    """Rows with variances that differ, so that eigenvalues do."""
    return rng.standard_normal((300, 4)) * [2.0, 1.4, 1.0, 0.7] + 3.0


def of_sklearn(kernel, X, k):
    pca = decomposition.KernelPCA(k, eigen_solver="dense", **OF_SKLEARN[kernel])
    return pca.fit(X)


def angle(A, B):
    """Return the largest principal angle of the spans of columns."""
    return subspace_angles(A.astype(float), B.astype(float))[0]


@pytest.mark.parametrize("kernel", OF_SKLEARN, ids=repr)
def test_those_of_scikit_learn_if_all_rows_are_centers(kernel, X):
    new = X[:50] + 0.3
    expected = of_sklearn(kernel, X, 4)
    for n_centers in (3000, None):
        pca = KernelPCA(4, kernel=kernel, n_centers=n_centers).fit(X)
        assert_allclose(pca.eigenvalues_, expected.eigenvalues_, rtol=1e-10)
        scale = np.abs(expected.transform(X)).max()
        for rows in (X, new):
            error = pca.transform(rows) - expected.transform(rows)
            assert np.abs(error).max() < 1e-8 * scale  # with the same signs
        assert_array_equal(pca.center_indices_, np.arange(300))


def test_a_linear_kernel_is_pca(X):
    expected = decomposition.PCA(4).fit(X)
    for n_centers in (20, 3000):
        pca = KernelPCA(6, kernel="linear", n_centers=n_centers, random_state=0)
        scores = pca.fit_transform(X)
        assert_allclose(pca.eigenvalues_[:4], 299 * expected.explained_variance_)
        assert_allclose(np.abs(scores[:, :4]), np.abs(expected.transform(X)), atol=1e-9)
        assert_array_equal(scores[:, 4:], 0.0)  # as many columns as asked for
        assert_array_equal(pca.eigenvalues_[4:], 0.0)


def test_the_best_functions_in_the_span_of_the_centers(X, naive_gaussian):
    pca = KernelPCA(5, bandwidth=2.0, n_centers=40, random_state=0).fit(X)
    Z = pca.centers_
    assert_array_equal(Z, X[pca.center_indices_])
    # Coefficients that sum to zero, in any basis B; a generalized eigenproblem.
    B = np.linalg.svd(np.ones((1, 40)))[2][1:].T
    C = naive_gaussian(X, Z, 2.0) @ B
    C -= C.mean(axis=0)
    values, V = eigh(C.T @ C, B.T @ naive_gaussian(Z, Z, 2.0) @ B)
    assert_allclose(pca.eigenvalues_, values[:-6:-1], rtol=1e-9)
    scores, expected = pca.transform(X), C @ V[:, :-6:-1]
    signs = np.sign((scores * expected).sum(axis=0))
    assert_allclose(scores, expected * signs, atol=1e-7)
    assert_allclose(scores.mean(axis=0), 0.0, atol=1e-12)
    assert_allclose(scores.T @ scores, np.diag(pca.eigenvalues_), atol=1e-7)
    K = naive_gaussian(X[:3], Z, 2.0)
    assert_allclose(K @ pca.dual_coef_ + pca.intercept_, scores[:3], atol=1e-12)


def test_more_centers_are_more_accurate(X):
    exact = of_sklearn(kernels.Gaussian(1.5), X, 5)
    errors, values = [], []
    for p in (20, 50, 100, 200):
        pca = KernelPCA(5, bandwidth=1.5, n_centers=p, random_state=0)
        errors.append(angle(pca.fit_transform(X), exact.transform(X)))
        values.append(pca.eigenvalues_)
    assert all(b < 0.7 * a for a, b in itertools.pairwise(errors))
    assert errors[-1] < 0.01
    # Lower bounds.
    assert (np.array(values) <= exact.eigenvalues_ * (1 + 1e-12)).all()


@pytest.mark.parametrize("dtype, atol", [("float32", 2e-3), ("float64", 2e-3)])
def test_every_row_as_a_center_by_iteration(dtype, atol, rng, monkeypatch):
    monkeypatch.setattr(kernel_pca, "_N_CENTERS", 120)
    X = rng.standard_normal((900, 4)) * [2.0, 1.4, 1.0, 0.7]
    for kernel in (kernels.Gaussian(1.5), kernels.Linear()):
        exact = of_sklearn(kernel, X, 6)
        pca = KernelPCA(6, kernel=kernel, n_centers=None, random_state=0)
        pca.fit(X.astype(dtype))
        assert_allclose(pca.eigenvalues_, exact.eigenvalues_, rtol=1e-4, atol=1e-2)
        scores = pca.transform(X.astype(dtype))
        k = 4 if kernel == kernels.Linear() else 6  # its rank
        assert angle(scores[:, :k], exact.transform(X)[:, :k]) < atol
        assert_array_equal(scores[:, k:], 0.0)
        assert_allclose(scores.mean(axis=0), 0.0, atol=1e-5)
        assert pca.dual_coef_.shape == (900, 6) and pca.centers_.shape == (900, 4)


def test_an_iteration_that_ends_early_says_so(rng, monkeypatch):
    monkeypatch.setattr(kernel_pca, "_N_CENTERS", 50)
    monkeypatch.setattr(principal_components, "_MOST_PRODUCTS", 1)
    X = rng.standard_normal((300, 6))
    pca = KernelPCA(5, bandwidth=0.8, n_centers=None, random_state=0)
    with pytest.warns(ConvergenceWarning, match="KernelPCA ended .* residual of"):
        scores = pca.fit_transform(X)
    assert np.isfinite(scores).all() and scores.std(axis=0).min() > 0


@pytest.mark.parametrize("n_centers", [50, None])
@pytest.mark.parametrize("dtype, atol", [("float32", 1e-3), ("float64", 1e-9)])
def test_other_libraries(dtype, atol, n_centers, other_xp, X, monkeypatch):
    monkeypatch.setattr(kernel_pca, "_N_CENTERS", 100)
    X = X.astype(dtype)
    pca = KernelPCA(3, kernel="laplacian", n_centers=n_centers, random_state=0)
    expected, values = pca.fit_transform(X), pca.eigenvalues_
    there = other_xp.asarray(X)
    with config_context(array_api_dispatch=True):
        scores = pca.fit(there).transform(there)
        assert namespace(scores) == namespace(pca.dual_coef_) == other_xp
        assert scores.dtype == pca.eigenvalues_.dtype == there.dtype
        assert_allclose(to_numpy(scores), expected, atol=atol)
        assert_allclose(to_numpy(pca.eigenvalues_), values, rtol=1e-5)
        back = pca.set_params(device="cpu").fit_transform(there)
        assert namespace(back) == other_xp
        assert_allclose(to_numpy(back), expected, atol=atol)


def test_single_precision(X):
    pca = KernelPCA(4, n_centers=100, random_state=0).fit(X)
    single = KernelPCA(4, n_centers=100, random_state=0).fit(X.astype(np.float32))
    assert single.dual_coef_.dtype == single.eigenvalues_.dtype == np.float32
    assert_allclose(single.eigenvalues_, pca.eigenvalues_, rtol=1e-5)
    scores = single.transform(X.astype(np.float32))
    assert scores.dtype == np.float32
    assert_allclose(scores, pca.transform(X), atol=1e-3)
    # An offset that float32 represents: the kernel is a function of differences.
    rounded = np.round(X * 64) / 64
    expected = pca.fit_transform(rounded)
    moved = single.fit_transform((rounded + 1000).astype(np.float32))
    assert_allclose(moved, expected, atol=1e-3)


def test_order_of_rows_threads_and_copies(X):
    pca = KernelPCA(4, bandwidth=1.5).fit(X)
    scores, order = pca.transform(X), np.random.default_rng(1).permutation(300)
    again = KernelPCA(4, bandwidth=1.5).fit(X[order])
    assert_allclose(again.transform(X), scores, atol=1e-9)
    with threadpool_limits(1, user_api="blas"):
        alone = KernelPCA(4, bandwidth=1.5).fit(X)
    assert_allclose(alone.transform(X), scores, atol=1e-11)
    # Every row three times: eigenvalues are sums over rows, components are the same.
    copies = KernelPCA(4, bandwidth=1.5).fit(np.repeat(X, 3, axis=0))
    assert_allclose(copies.eigenvalues_, 3 * pca.eigenvalues_, rtol=1e-9)
    assert_allclose(copies.transform(X), scores, atol=1e-7)


def test_the_same_seed_the_same_model(X):
    one, other, third = (
        KernelPCA(2, n_centers=50, random_state=seed).fit(X) for seed in (0, 0, 1)
    )
    assert_array_equal(one.transform(X), other.transform(X))
    assert (one.center_indices_ != third.center_indices_).any()
    again = pickle.loads(pickle.dumps(one))
    assert_array_equal(again.transform(X), one.transform(X))


def test_few_rows_and_equal_rows(X):
    scores = KernelPCA(10, bandwidth=1.5).fit_transform(X[:4])
    assert scores.shape == (4, 4)  # as in scikit-learn
    exact = of_sklearn(kernels.Gaussian(1.5), X[:4], 4)
    assert_allclose(scores[:, :3], exact.transform(X[:4])[:, :3], atol=1e-12)
    assert_array_equal(scores[:, 3], 0.0)
    for value in (1.0, 0.1):
        pca = KernelPCA(3).fit(np.full((20, 2), value))
        assert_array_equal(pca.eigenvalues_, 0.0)
        assert_array_equal(pca.transform(X[:, :2]), np.zeros((300, 3)))


@pytest.mark.parametrize("store", ["file", "dask"])
def test_rows_that_are_not_in_memory(store, X, tmp_path, monkeypatch):
    pca = KernelPCA(3, n_centers=50, random_state=0)
    expected = pca.fit_transform(X)
    if store == "dask":
        rows = pytest.importorskip("dask.array").from_array(X, chunks=(70, 4))
    else:
        np.save(tmp_path / "X.npy", X)
        rows = np.load(tmp_path / "X.npy", mmap_mode="r")
        monkeypatch.setattr(memory, "available", lambda *_: 10_000.0)
        monkeypatch.setattr(memory, "installed", lambda *_: 10_000.0)
        monkeypatch.setattr(lazy_rows, "_BLOCK_BYTES", 2000)
    monkeypatch.setattr(kernel_pca, "rows_at", recorded := Recorded())
    scores = pca.fit(rows).transform(rows)
    assert recorded.lazy  # the rows did not become an array
    assert_allclose(np.asarray(scores), expected, atol=1e-10)
    with pytest.raises(ValueError, match="pass a number of centers as n_centers"):
        pca.set_params(n_centers=None).fit(rows)


class Recorded:
    """`rows_at`, which notes whether rows were in memory."""

    def __call__(self, X, index):
        self.lazy = lazy_rows.is_lazy(X)
        return lazy_rows.rows_at(X, index)


BAD = [
    ({"n_components": 0}, "n_components must be an integer >= 1; got 0"),
    ({"n_components": None}, "n_components must be an integer >= 1; got None"),
    ({"n_centers": 1}, "n_centers must be an integer >= 2; got 1"),
    ({"n_centers": "auto"}, "n_centers must be an integer >= 2; got 'auto'"),
    ({"n_centers": 2}, "n_components must be less than n_centers=2; got 2"),
    ({"kernel": "precomputed"}, "kernel must be one of .*; got 'precomputed'"),
    ({"bandwidth": "auto"}, r"bandwidth must be .* needs targets\); got 'auto'"),
    (
        {"kernel": lambda X, Z: -(X @ Z.T)},
        "kernel must be positive semi-definite; got a kernel .* smallest eigenvalue",
    ),
]


@pytest.mark.parametrize("parameters, message", BAD)
def test_bad_parameters(parameters, message, X):
    pca = KernelPCA(n_centers=20, random_state=0).fit(X)
    expected, old = pca.transform(X), pca.get_params()
    with pytest.raises(ValueError, match=message):
        pca.set_params(**parameters).fit(X)
    assert_array_equal(pca.set_params(**old).transform(X), expected)


def test_what_would_fit_is_said(X, monkeypatch):
    def none_left(*_):
        raise MemoryError("Unable to allocate")

    monkeypatch.setattr(kernel_pca, "components_of_centers", none_left)
    monkeypatch.setattr(memory, "available", lambda *_: 64e6)
    with pytest.raises(MemoryError, match="fewer centers") as error:
        KernelPCA().fit(X)
    size = int(re.search(r"n_centers=(\d+) takes about 64 MB", str(error.value))[1])
    assert 64e6 * 0.85 < 64 * size**2 < 64e6
