"""Novelty detection against refits without a row, and the rate of false alarms."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import config_context

from eigenkern import KernelNoveltyDetector, kernels
from eigenkern.arrays.array import to_numpy
from eigenkern.operators import blocks

KERNELS = [
    kernels.Laplacian(2.0),
    kernels.Gaussian(1.5),
    kernels.Polynomial(degree=2),
    kernels.Linear(),
]


def detector(*args, **parameters):
    return KernelNoveltyDetector(*args, random_state=0, **parameters)


def explained(kernel, Z, X):
    """Return k' (K + c I)^-1 k / k(x, x), with c of the centers Z."""
    K, k = kernel(Z), kernel(Z, X)
    c = 0.03 * np.trace(K) / len(Z)
    return explained_with(c, K, k) / kernel.diagonal(X)


def explained_with(c, K, k):
    return np.sum(k * np.linalg.solve(K + c * np.eye(len(K)), k), axis=0)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_scores_are_the_explained_part(kernel, rng):
    X, X_new = rng.standard_normal((150, 3)), rng.standard_normal((40, 3))
    model = detector(kernel, n_centers=60).fit(X)
    assert model.centers_.shape == (60, 3)
    expected = explained(kernel, model.centers_, X_new)
    assert_allclose(model.score_samples(X_new), expected, atol=1e-10)
    # The rows that are no centers, and each center by the others.
    is_center = (X[:, None] == model.centers_).all(axis=2).any(axis=1)
    scores = explained(kernel, model.centers_, X)
    diagonal = kernel.diagonal(X)
    c = 0.03 * diagonal[is_center].mean()
    for i in np.flatnonzero(is_center):
        Z = X[is_center & (np.arange(150) != i)]
        of_row = explained_with(c, kernel(Z), kernel(Z, X[[i]]))[0]
        scores[i] = of_row / diagonal[i]
    assert_allclose(model.score_samples(X), scores, atol=1e-10)
    assert_allclose(model.left_out_scores_, np.sort(scores), atol=1e-10)


def test_p_values_and_labels(rng):
    X, X_new = rng.standard_normal((250, 2)), 2 * rng.standard_normal((300, 2))
    model = detector(n_centers=100, contamination=0.1).fit(X)
    scores, left_out = model.score_samples(X_new), model.left_out_scores_
    expected = [(1 + np.sum(left_out <= score)) / 251 for score in scores]
    p = model.p_values(X_new)
    assert_allclose(p, expected)
    assert_array_equal(model.predict(X_new), np.where(p <= 0.1, -1, 1))
    decision = model.decision_function(X_new)
    assert_array_equal(decision < 0, p <= 0.1)
    assert_array_equal(decision, scores - model.offset_)
    assert 0.1 < np.mean(p <= 0.1) < 0.7
    # The training rows, each once: their ranks, and the part that was asked for.
    ranks = np.argsort(np.argsort(model.score_samples(X)))
    assert_allclose(model.p_values(X), (1 + ranks) / 251)
    assert np.sum(model.fit_predict(X) == -1) == 25


@pytest.mark.parametrize("n_centers", [40, 1000])
def test_false_alarms(n_centers):
    levels, found = np.array([0.01, 0.05, 0.1]), []
    for seed in range(40):
        rng = np.random.RandomState(seed)
        X = rng.standard_t(3, (700, 4)) @ rng.standard_normal((4, 4))
        model = KernelNoveltyDetector(n_centers=n_centers, random_state=seed)
        p = model.fit(X[:300]).p_values(X[300:])
        found.append(np.mean(p[:, None] <= levels, axis=0))
    # Four standard errors.
    assert_allclose(np.mean(found, axis=0), levels, atol=0.012)


def test_copies_and_order_change_nothing(rng):
    X, X_new = rng.standard_normal((120, 3)), rng.standard_normal((50, 3))
    model = detector(n_centers=50, contamination=0.1).fit(X)
    expected = model.score_samples(X_new)
    order = rng.permutation(np.repeat(np.arange(120), rng.integers(1, 5, 120)))
    for other in (X[::-1], X[order]):
        again = detector(n_centers=50, contamination=0.1).fit(other)
        assert_array_equal(again.score_samples(X_new), expected)
        assert_array_equal(again.p_values(X_new), model.p_values(X_new))
    # A center that the training rows contain twice is no stranger to them.
    twice = detector(n_centers=50).fit(np.concatenate([X, X]))
    Z = twice.centers_
    assert_allclose(twice.score_samples(Z), explained(twice.kernel_, Z, Z), atol=1e-12)
    assert (twice.score_samples(Z) > model.score_samples(Z)).all()


def test_blocks_and_precision(rng, monkeypatch):
    X, X_new = rng.standard_normal((110, 3)), rng.standard_normal((50, 3))
    model = detector().fit(X)
    expected = model.score_samples(X_new)
    single = detector().fit(X.astype(np.float32))
    found = single.score_samples(X_new.astype(np.float32))
    assert found.dtype == single.left_out_scores_.dtype == np.float32
    assert_allclose(found, expected, atol=1e-5)
    n_outliers = [np.sum(m.predict(m.centers_) == -1) for m in (model, single)]
    assert n_outliers == [1, 1]
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1)
    assert_allclose(model.score_samples(X_new), expected, rtol=1e-12)
    assert model.score_samples(X_new[:16]).shape == (16,)


def test_many_rows_are_drawn_from(rng, monkeypatch):
    monkeypatch.setattr("eigenkern.estimators.novelty._MOST_LEFT_OUT", 70)
    X = rng.standard_normal((500, 2))
    model = detector(n_centers=30).fit(X)
    assert model.centers_.shape == (30, 2)
    assert model.left_out_scores_.shape == (100,)
    with pytest.warns(UserWarning, match="contamination=0.01 needs 99 .* X has 98"):
        model = detector(n_centers=28).fit(X)
    assert (model.predict(100 + X) == 1).all()


def test_far_rows_are_outliers_in_order(rng):
    X = rng.standard_normal((200, 2))
    model = detector().fit(X)
    far = np.array([[10.0, 0.0], [100.0, 0.0], [500.0, 0.0]])
    scores = model.score_samples(far)
    assert (np.diff(scores) < 0).all() and scores[-1] > 0
    assert_array_equal(model.predict(far), [-1, -1, -1])
    assert_allclose(model.p_values(far), 1 / 201)
    assert model.predict(np.zeros((1, 2))) == [1]


def test_equal_rows(rng):
    X = np.repeat(rng.standard_normal((1, 3)), 50, axis=0)
    with pytest.warns(UserWarning, match="needs 99 distinct rows or more; X has 1,"):
        model = detector().fit(X)
    assert_array_equal(model.predict(X), np.ones(50))
    # With the linear kernel a row of zeros has nothing to explain.
    Z = np.vstack([np.zeros(3), rng.standard_normal((20, 3))])
    model = detector("linear", contamination=0.1).fit(Z)
    assert model.score_samples(Z)[0] == 1


@pytest.mark.parametrize("library", ["array_api_strict", "torch"])
def test_array_libraries(library, rng):
    xp = pytest.importorskip(library)
    X, X_new = rng.standard_normal((150, 3)), 2 * rng.standard_normal((30, 3))
    model = detector(n_centers=60, contamination=0.1).fit(X)
    with config_context(array_api_dispatch=True):
        ours = detector(n_centers=60, contamination=0.1).fit(xp.asarray(X))
        assert_allclose(to_numpy(ours.left_out_scores_), model.left_out_scores_)
        for method in ("score_samples", "decision_function", "p_values", "predict"):
            found = getattr(ours, method)(xp.asarray(X_new))
            assert type(found) is type(xp.asarray(X))
            expected = getattr(model, method)(X_new)
            assert_allclose(to_numpy(found), expected, atol=1e-12)
        with pytest.raises(ValueError, match=r"Detector.p_values\(\) must use the"):
            ours.p_values(X_new)


def test_files_and_dask(rng, tmp_path):
    X = rng.standard_normal((300, 3))
    expected = detector(n_centers=60, contamination=0.1).fit(X)
    path = tmp_path / "rows.dat"
    rows = np.memmap(path, dtype=X.dtype, mode="w+", shape=X.shape)
    rows[:] = X
    found = detector(n_centers=60, contamination=0.1).fit(rows)
    assert_array_equal(found.p_values(rows), expected.p_values(X))
    dask = pytest.importorskip("dask.array")
    lazy = dask.from_array(X, chunks=(70, 3))
    with config_context(assume_finite=False):
        found = detector(n_centers=60, contamination=0.1).fit(lazy)
    p = found.p_values(lazy)
    assert p.shape == (300,)
    assert_array_equal(p.compute(), expected.p_values(X))


BAD = [
    ({"contamination": 0}, "contamination must be a number > 0 and <= 0.5; got 0"),
    ({"contamination": 0.6}, "contamination must be .* got 0.6"),
    ({"contamination": "auto"}, "contamination must be .* got 'auto'"),
    ({"n_centers": 0}, "n_centers must be an integer >= 1; got 0"),
    ({"n_centers": None}, "n_centers must be an integer >= 1; got None"),
    ({"kernel": "precomputed"}, "kernel must be one of .* got 'precomputed'"),
    ({"kernel": lambda X, Z: -X @ Z.T}, "kernel must be positive semi-definite"),
    ({"kernel": lambda X, Z: 0 * X @ Z.T}, "kernel must be .* not all zero"),
    ({"bandwidth": "auto"}, "bandwidth must be .*"),
    ({"bandwidth": -1.0}, "bandwidth must be positive"),
    ({"device": "gpu"}, "device must be 'auto', 'cpu'"),
]


@pytest.mark.parametrize("parameters, message", BAD)
def test_bad_parameters(parameters, message, rng):
    X = rng.standard_normal((30, 2))
    model = detector(contamination=0.1).fit(X)
    expected, old = model.score_samples(X), model.get_params()
    with pytest.raises(ValueError, match=message):
        model.set_params(**parameters).fit(X[:, ::-1])
    assert_array_equal(model.set_params(**old).score_samples(X), expected)
