"""Tables as people have them: many fill values, copies, few levels, heavy tails."""

import warnings
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import RidgeCV
from sklearn.metrics import log_loss, r2_score
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel

import eigenkern
from eigenkern import (
    DSGClassifier,
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeClassifier,
    FalkonLikeRegressor,
    LinearEigenProClassifier,
    LinearEigenProRegressor,
    NystromClassifier,
    NystromRegressor,
    NytroClassifier,
    NytroRegressor,
    RFMClassifier,
    RFMRegressor,
)
from eigenkern.problems.data import _first_of_equal

FAMILIES = "EigenPro", "LinearEigenPro", "Nystrom", "Nytro", "FalkonLike", "RFM"


def made(family, kind):
    return getattr(eigenkern, family + kind)(random_state=0)


def with_fill_values(value, part, n=400):
    """Return rows of which a part has a fill value, and targets without noise."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((2 * n, 3))
    y = X[:, 0] + np.sin(2 * X[:, 1])
    X[rng.random(2 * n) < part, 1] = value
    return X[:n], y[:n], X[n:], y[n:]


@pytest.mark.filterwarnings("ignore:column 1 of X holds")
@pytest.mark.parametrize("value", [-999_999.0, 3e6, 1e12])
@pytest.mark.parametrize("part", [0.1, 0.3])
@pytest.mark.parametrize("kernel", ["laplacian", "gaussian", "cauchy"])
@pytest.mark.parametrize("cls", [EigenProRegressor, NystromRegressor, NytroRegressor])
def test_a_fill_value_in_many_rows_is_a_far_group(cls, kernel, part, value):
    """Its size says no more than that of a value 300 bandwidths away.

    Except for a kernel with a long tail, where far values cost others more digits.
    """
    X, y, T, t = with_fill_values(300.0, part)
    expected = cls(kernel, bandwidth=2.0, random_state=0).fit(X, y).score(T, t)
    X, y, T, t = with_fill_values(value, part)
    model = cls(kernel, bandwidth=2.0, random_state=0).fit(X, y)
    assert abs(model.score(T, t) - expected) < (0.04 if kernel == "cauchy" else 0.01)
    assert model.score(X, y) > 0.85


def test_a_group_of_fill_values_is_named():
    X, y, *_ = with_fill_values(-999_999.0, 0.1)
    with pytest.warns(UserWarning, match="column 1 of X holds -1e\\+06, .* cut off"):
        EigenProRegressor(random_state=0).fit(X, y)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("times", [2, 10])
def test_an_oversampled_class_on_few_levels_has_the_probabilities_of_weights(
    family, times
):
    rng = np.random.default_rng(4)
    X = rng.integers(0, 3, (200, 3)).astype(float)
    y = (rng.random(200) < 1 / (1 + np.exp(5 - 2 * X[:, 0]))).astype(int)
    w = np.where(y == 1, float(times), 1.0)
    copies = rng.permutation(np.repeat(np.arange(200), w.astype(int)))
    weighted = made(family, "Classifier").fit(X, y, sample_weight=w)
    repeated = made(family, "Classifier").fit(X[copies], y[copies])
    assert_allclose(repeated.predict_proba(X), weighted.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("n", [500, 1100])
@pytest.mark.parametrize("family", ["EigenPro", "Nystrom", "Nytro", "FalkonLike"])
def test_copies_of_many_rows_have_the_model_of_weights(family, n):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 5))
    y, w = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(n), rng.integers(1, 4, n)
    weighted = made(family, "Regressor").fit(X, y, sample_weight=w)
    repeated = made(family, "Regressor").fit(np.repeat(X, w, axis=0), np.repeat(y, w))
    assert_allclose(repeated.predict(X), weighted.predict(X), atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("tails", ["mostly zero", "lognormal"])
def test_a_linear_model_of_heavy_tails(tails, dtype):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((1000, 3))
    if tails == "lognormal":
        X[:, 2] = rng.lognormal(0, 4, 1000)
    else:
        X[:, 2] = 1e4 * rng.standard_normal(1000) * (rng.random(1000) < 0.05)
    y = X[:, 0] - X[:, 1] + 0.5 * rng.standard_normal(1000)
    X, T, t = X[:500].astype(dtype), X[500:].astype(dtype), y[500:]
    expected = RidgeCV(np.logspace(-6, 6, 25)).fit(X.astype(float), y[:500])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = LinearEigenProRegressor(random_state=0).fit(X, y[:500])
    assert abs(model.score(T, t) - expected.score(T.astype(float), t)) < 0.01


@pytest.mark.filterwarnings("ignore:column 1 of X holds")
@pytest.mark.parametrize("n", [300, 1200])
def test_no_numpy_warning_of_rows_alone(n):
    """Rows of heavy tails have directions of their own, which are fitted at once."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((n, 3))
        X[:, 1] = rng.lognormal(0, 3, n)
        y = X[:, 0] + 0.3 * rng.standard_normal(n)
        for model in (NytroRegressor(selection="loo"), NytroRegressor()):
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)
                model.set_params(random_state=0).fit(X, y)
            assert np.isfinite(model.validation_path_).any()


# Penalties


def tanh(A, B):
    return np.tanh(A @ B.T - 1)


def hat(A, B):
    return np.maximum(0, 1 - ((A[:, None] - B[None]) ** 2).sum(-1) / 20)


@pytest.mark.filterwarnings("ignore:.* got a kernel")
@pytest.mark.filterwarnings("ignore:.* it still falls there")
@pytest.mark.parametrize("kernel", [tanh, hat])
@pytest.mark.parametrize(
    "model",
    [NystromRegressor(), NystromRegressor(alpha="path"), NytroRegressor()],
    ids=["auto", "path", "nytro"],
)
def test_an_indefinite_kernel_does_not_explode(model, kernel):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1400, 5))
    f = np.sin(2 * X[:, 0])
    y = f[:400] + 0.3 * rng.standard_normal(400)
    model.set_params(kernel=kernel, random_state=0).fit(X[:400], y)
    assert np.mean((model.predict(X[400:]) - f[400:]) ** 2) < f.var()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_falkon_converges_on_smooth_targets(dtype):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (2000, 3)).astype(dtype)
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = FalkonLikeRegressor("gaussian", n_centers=200, random_state=0)
        model.fit(X[:1000], y[:1000])
    assert model.score(X[1000:], y[1000:]) > 0.9999


@pytest.mark.parametrize("n", [500, 2000])
@pytest.mark.parametrize("family", ["EigenPro", "Nystrom", "FalkonLike"])
def test_single_precision_sees_smooth_targets(family, n):
    rng = np.random.default_rng(6)
    X = rng.standard_normal((n + 500, 3))
    y = X[:, 0] + np.sin(2 * X[:, 1])
    model = made(family, "Regressor").set_params(kernel="gaussian")
    double = model.fit(X[:n], y[:n]).score(X[n:], y[n:])
    X = X.astype(np.float32)
    assert model.fit(X[:n], y[:n]).score(X[n:], y[n:]) > double - 0.005


@pytest.mark.parametrize("cls", [NystromClassifier, FalkonLikeClassifier])
def test_the_log_loss_chooses_its_own_penalty(cls):
    """The best squared error of labels needs a far smaller one."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 6))
    y = X[:, 0] + X[:, 1] * X[:, 2] + 0.2 * rng.standard_normal(3000) > 1
    losses = []
    for alpha in (*10.0 ** np.arange(-7, -1), "auto"):
        model = cls(loss="log_loss", n_centers=200, alpha=alpha, random_state=0)
        model.fit(X[:800], y[:800])
        losses.append(log_loss(y[800:], model.predict_proba(X[800:])))
    assert losses[-1] < 1.15 * min(losses[:-1])


@pytest.mark.parametrize("cls", [NystromClassifier, FalkonLikeClassifier])
@pytest.mark.parametrize("n_kinds", [8, 18])
def test_the_log_loss_of_few_kinds_of_rows(cls, n_kinds):
    """Many observations, which tell the penalty, of few distinct rows."""
    rng = np.random.default_rng(0)
    kinds = np.array([[i >> j & 1 for j in range(5)] for i in range(n_kinds)], float)
    p, which = rng.uniform(0.1, 0.9, n_kinds), rng.integers(0, n_kinds, 6000)
    X, y = kinds[which], (rng.random(6000) < p[which]).astype(int)
    model = cls(loss="log_loss", random_state=0).fit(X[:2000], y[:2000])
    best = log_loss(y[2000:], p[which[2000:]])
    assert log_loss(y[2000:], model.predict_proba(X[2000:])) < 1.05 * best


@pytest.mark.filterwarnings("ignore:The number of unique classes")
@pytest.mark.parametrize("cls", [NystromClassifier, FalkonLikeClassifier])
def test_the_log_loss_of_a_class_for_each_row(cls):
    X = np.random.default_rng(0).standard_normal((25, 3))
    model = cls(loss="log_loss", random_state=0).fit(X, np.arange(25))
    assert model.alpha_ == 1 / 25
    assert np.isfinite(model.predict_proba(X)).all()


def test_few_centers_need_few_rows(monkeypatch):
    sizes = []
    ridge = eigenkern.problems.closed_form.auto_ridge

    def remember(K, *args, **options):
        sizes.append(K.shape[0])
        return ridge(K, *args, **options)

    monkeypatch.setattr("eigenkern.problems.closed_form.auto_ridge", remember)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5000, 3))
    y = X[:, 0] + rng.standard_normal(5000)
    for n_centers in (100, 500, 2000):
        NystromRegressor(n_centers=n_centers, random_state=0).fit(X, y)
    assert sizes == [1000, 2000, 5000]


def test_a_table_of_classes_copied_five_times():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 4, (150, 3)).astype(float)
    y = (X[:, 0] + rng.standard_normal(150) > 1.5).astype(int)
    one = EigenProClassifier(random_state=0).fit(X, y).predict_proba(X)
    five = EigenProClassifier(random_state=0).fit(np.tile(X, (5, 1)), np.tile(y, 5))
    assert_allclose(five.predict_proba(X), one, atol=1e-6)


# Weights


@pytest.mark.parametrize("unit", [1e-310, 1e-200, 1e20, 1e200, 1e306])
@pytest.mark.parametrize(
    "model",
    [
        EigenProRegressor(),
        EigenProRegressor(algorithm="eigenpro2", max_iter=2),
        EigenProRegressor(n_centers=20, max_iter=2, algorithm="eigenpro4"),
        LinearEigenProRegressor(),
        NystromRegressor(),
        NytroRegressor(),
        FalkonLikeRegressor(),
        DSGRegressor(max_iter=2),
        RFMRegressor(max_rounds=1),
        EigenProClassifier(),
        LinearEigenProClassifier(),
        NystromClassifier(loss="log_loss"),
        NytroClassifier(),
        FalkonLikeClassifier(),
        DSGClassifier(max_iter=2),
        RFMClassifier(max_rounds=1),
    ],
    ids=repr,
)
def test_only_ratios_of_weights_matter(model, unit, rng):
    X = rng.standard_normal((90, 3))
    y = X[:, 0] + np.sin(X[:, 1])
    y = (y > 0).astype(int) if is_classifier(model) else 1e5 * y
    weights = rng.integers(1, 4, 90).astype(float)
    model = clone(model).set_params(random_state=0)
    expected = model.fit(X, y, weights).predict(X)
    found = model.fit(X, y, weights * unit).predict(X)
    # Below 1e-308 weights have few digits.
    assert_allclose(found, expected, rtol=1e-6, atol=1e-3 * abs(expected).max())


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=str)
@pytest.mark.parametrize(
    "model",
    [
        EigenProRegressor(),
        EigenProRegressor(algorithm="eigenpro1", max_iter=2),
        EigenProClassifier(algorithm="eigenpro2", max_iter=2),
        EigenProRegressor(algorithm="sgd", max_iter=2),
        LinearEigenProClassifier(),
        NystromRegressor(),
        FalkonLikeClassifier(),
        DSGRegressor(max_iter=2),
        RFMClassifier(max_rounds=1),
    ],
    ids=repr,
)
def test_weights_far_below_the_largest_are_none(model, dtype, rng):
    X = rng.standard_normal((120, 3)).astype(dtype)
    y = X[:, 0] + np.sin(X[:, 1])
    y = (y > 0).astype(int) if is_classifier(model) else y
    model = clone(model).set_params(random_state=0)
    weights = rng.integers(1, 4, 120) * np.where(np.arange(120) < 30, 1e-310, 1.0)
    found = model.fit(X, y, weights).predict(X)
    weights[:30] = 0.0
    assert_array_equal(found, model.fit(X, y, weights).predict(X))
    with warnings.catch_warnings():  # one row has nearly all of the weight
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y, 10.0 ** rng.uniform(-307, 307, 120))
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize("weight", [1e-310, 1e306])
def test_one_weight_of_all_rows(weight, rng):
    X = rng.standard_normal((90, 3))
    y = 1e5 * X[:, 0]
    expected = EigenProRegressor(random_state=0).fit(X, y).predict(X)
    found = EigenProRegressor(random_state=0).fit(X, y, weight).predict(X)
    assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "model",
    [
        EigenProRegressor(),
        EigenProRegressor("gaussian", n_centers=60),
        EigenProRegressor(algorithm="eigenpro2", max_iter=5),
        EigenProRegressor(algorithm="eigenpro1", max_iter=5),
        LinearEigenProRegressor(),
        NystromRegressor(),
        FalkonLikeRegressor(),
        DSGRegressor(max_iter=3),
        RFMRegressor(max_rounds=1),
    ],
    ids=str,
)
@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_an_output_in_other_units_changes_nothing(model, copies):
    """What is chosen for all outputs counts them alike, even if one is noise."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((240, 4))
    Y = np.c_[X[:, 0] + 0.5 * X[:, 1], rng.standard_normal(240)]
    if copies:  # the second has other targets
        X, Y = np.r_[X, X[:80]], np.r_[Y, Y[:80] + 0.1]
    units = np.array([1.0, 2.0**14])
    model.set_params(random_state=0)
    expected = clone(model).fit(X, Y).predict(X)
    found = clone(model).fit(X, Y * units).predict(X) / units
    assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert r2_score(Y[:, 0], expected[:, 0]) > 0.7
    if isinstance(model, RFMRegressor):
        fits = [clone(model).fit(X, each) for each in (Y, Y * units)]
        assert_allclose(*(one.feature_importances_ for one in fits), rtol=1e-6)
    constant = clone(model).fit(X, np.c_[Y[:, 0], np.full(len(Y), 1e9)]).predict(X)
    assert_allclose(constant[:, 1], 1e9, rtol=1e-12)
    assert r2_score(Y[:, 0], constant[:, 0]) > 0.7


@pytest.mark.parametrize("family", [*FAMILIES, "DSG"])
@pytest.mark.parametrize("n", [300, 2000])
@pytest.mark.filterwarnings("ignore:n_centers=")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_targets_that_a_category_determines(family, n):
    """Rows that stand there a dozen times are no copies: they tell that noise is 0."""
    rng = np.random.default_rng(0)
    level = rng.integers(0, 25, n)
    X, y, labels = np.eye(25)[level], rng.standard_normal(25), rng.integers(0, 3, 25)
    assert made(family, "Regressor").fit(X, y[level]).score(X, y[level]) > 0.99
    model = made(family, "Classifier").fit(X, labels[level])
    assert model.score(X, labels[level]) == 1.0
    assert log_loss(labels[level], model.predict_proba(X)) < 0.05


def joined(rng, n=300, fewest=8, most=13):
    """Return rows, a function of them, and each row several times, as in a join."""
    X = rng.standard_normal((n, 3))
    f = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]
    return X, f, np.repeat(np.arange(n), rng.integers(fewest, most + 1, n))


def best_score(X, y, w, T, t):
    """Return the best R2 of `KernelRidge`, over penalties, with weights."""
    penalties = 10.0 ** np.arange(-6, 4, 0.5)
    ridges = [KernelRidge(alpha=c, kernel="rbf", gamma=0.125) for c in penalties]
    return max(ridge.fit(X, y, w).score(T, t) for ridge in ridges)


@pytest.mark.parametrize("part", [0.0, 0.25, 0.6])
@pytest.mark.parametrize("family", ["EigenPro", "Nystrom", "Nytro", "FalkonLike"])
def test_rows_repeated_unequally_are_no_replicates(family, part):
    """Of a part of the rows each copy has noise of its own."""
    rng = np.random.default_rng(0)
    X, f, i = joined(rng)
    y = (f + 0.7 * rng.standard_normal(300))[i]
    differ = (rng.random(300) < part)[i]
    y[differ] = f[i][differ] + 0.7 * rng.standard_normal(differ.sum())
    T, f, _ = joined(rng, 1000)
    t = f + 0.7 * rng.standard_normal(1000)
    model = made(family, "Regressor").set_params(kernel="gaussian", bandwidth=2.0)
    found = model.fit(X[i], y).score(T, t)
    counts = np.bincount(i)
    best = best_score(X, np.bincount(i, y) / counts, counts, T, t)
    assert 1 - found < 1.1 * (1 - best)
    if part == 0:
        model.fit(X, y[np.unique(i, return_index=True)[1]], sample_weight=counts)
        assert_allclose(model.score(T, t), found, rtol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_labels_of_rows_repeated_unequally(family):
    rng = np.random.default_rng(0)
    X, f, i = joined(rng, fewest=5, most=29)
    y = (rng.random(300) < 1 / (1 + np.exp(-3 * f))).astype(int)
    copied = made(family, "Classifier").fit(X[i], y[i])
    weighted = made(family, "Classifier").fit(X, y, sample_weight=np.bincount(i))
    assert_allclose(copied.predict_proba(X), weighted.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("family", ["EigenPro", "Nystrom", "Nytro", "FalkonLike"])
def test_measurements_that_are_joined_are_no_more_of_them(family):
    rng = np.random.default_rng(0)
    X, f, i = joined(rng, 100)
    two = np.repeat(np.arange(100), 2)
    y, T = f[two] + 0.7 * rng.standard_normal(200), rng.standard_normal((200, 3))
    model = made(family, "Regressor").set_params(kernel="gaussian")
    one = model.fit(X[two], y).predict(T)
    every = np.concatenate([2 * i, 2 * i + 1])
    copied = model.fit(X[two][every], y[every]).predict(T)
    assert r2_score(one, copied) > 0.95


@pytest.mark.parametrize("family", ["EigenPro", "Nystrom", "Nytro", "FalkonLike"])
@pytest.mark.parametrize("levels", [12, 300])
def test_ten_noisy_measurements_of_each_row(family, levels):
    """Replicates tell the noise, of few and of many distinct rows."""
    rng = np.random.default_rng(0)
    X, f, _ = joined(rng, levels)
    i = np.repeat(np.arange(levels), 10)
    y = f[i] + 0.7 * rng.standard_normal(len(i))
    model = made(family, "Regressor").set_params(kernel="gaussian", bandwidth=2.0)
    found = model.fit(X[i], y).score(X, f)
    means = y.reshape(levels, 10).mean(axis=1)
    best = best_score(X, means, np.full(levels, 10.0), X, f)
    # The means alone leave a tenth of the variance of the noise.
    assert 1 - found < 1.1 * max(1 - best, 0.05 / f.var())


def smoothed(cell, labels, shape):
    """Return the frequencies of labels in cells, with half an observation of each."""
    counts = np.zeros(shape)
    np.add.at(counts, (cell, labels), 1)
    return (counts + 0.5) / (counts + 0.5).sum(axis=1, keepdims=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_class_is_one_row(family):
    rng = np.random.default_rng(0)
    for n_classes, n in ((2, 200), (3, 3000), (5, 30)):
        codes = rng.permutation(np.arange(n) % n_classes)
        rows = np.eye(n_classes) if n_classes > 2 else np.array([[0.0], [1.0]])
        model = made(family, "Classifier").fit(rows[codes], codes)
        P, best = model.predict_proba(rows), smoothed(codes, codes, (n_classes,) * 2)
        assert (np.diag(P) > np.diag(best)).all()


@pytest.mark.parametrize("wrong", [0.02, 0.1])
@pytest.mark.parametrize("cells, n", [(5, 60), (5, 200), (30, 180)])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore:n_centers=")
def test_probabilities_of_cells_are_frequencies(family, cells, n, wrong):
    rng = np.random.default_rng(1)
    cell, of_cell = rng.permutation(np.arange(n) % cells), np.arange(cells) % 5
    labels = np.where(rng.random(n) < wrong, rng.integers(0, 5, n), of_cell[cell])
    model = made(family, "Classifier").fit(np.eye(cells)[cell], labels)
    P = (1 - wrong) * np.eye(5)[of_cell] + wrong / 5

    def loss(Q):
        return -np.mean(np.sum(P * np.log(Q), axis=1))

    best = loss(smoothed(cell, labels, (cells, 5)))
    assert loss(model.predict_proba(np.eye(cells))) < 1.05 * best


GRID = np.array(list(product(range(4), repeat=3)), dtype=float)


@pytest.mark.parametrize("family", ["EigenPro", "Nystrom", "FalkonLike", "RFM"])
def test_targets_of_columns_with_few_values(family):
    """A grid of 64 cells, whose targets say nothing of each other."""
    rng = np.random.default_rng(0)
    of_cell, cell = rng.standard_normal(64), rng.integers(0, 64, 1000)
    model = made(family, "Regressor").fit(GRID[cell], of_cell[cell])
    assert_allclose(model.predict(GRID), of_cell, atol=1e-3)


@pytest.mark.parametrize("family", ["EigenPro", "Nystrom", "FalkonLike", "RFM"])
def test_numbers_of_observations_of_cells_are_copies(family):
    rng = np.random.default_rng(0)
    of_cell, counts = rng.integers(0, 2, 64), rng.integers(7, 30, 64)
    cell = rng.permutation(np.repeat(np.arange(64), counts))
    one_hot = np.concatenate([np.eye(4)[column.astype(int)] for column in GRID.T], 1)
    for grid in (GRID, one_hot):
        model = made(family, "Classifier").fit(grid[cell], of_cell[cell])
        P = model.predict_proba(grid)
        assert log_loss(of_cell, P) < 0.01
        model.fit(grid, of_cell, sample_weight=counts)
        assert_allclose(model.predict_proba(grid), P, atol=1e-6)


@pytest.mark.parametrize("levels, d", [(4, 6), (3, 6), (4, 4)])
@pytest.mark.parametrize("family", ["EigenPro", "Nystrom", "Nytro", "RFM"])
def test_whole_weights_of_a_survey_are_no_numbers_of_observations(family, levels, d):
    """Nor are copies of rows of which many combinations do not occur."""
    rng = np.random.default_rng(0)
    X = 1.0 * rng.integers(0, levels, (800, d))
    y = X[:, 0] + X[:, 1] * (X[:, 2] > 1) + 2 * rng.standard_normal(800)
    w = rng.integers(100, 2000, 800)
    for kind, targets in (("Regressor", y), ("Classifier", (y > 2).astype(int))):
        model = made(family, kind)
        if family == "RFM":
            model.set_params(max_rounds=1)
        predict = "predict" if kind == "Regressor" else "predict_proba"
        whole = getattr(model.fit(X, targets, sample_weight=w), predict)(X)
        other = getattr(model.fit(X, targets, sample_weight=w + 0.3), predict)(X)
        assert_allclose(whole, other, atol=0.01)
    if levels**d > 4000:
        i = np.repeat(np.arange(800), rng.integers(5, 10, 800))
        copied = made(family, "Regressor").fit(X[i], y[i]).predict(X)
        weighted = made(family, "Regressor").fit(X, y, sample_weight=np.bincount(i))
        assert_allclose(copied, weighted.predict(X), atol=1e-5)


def counted(rng, n):
    """Return a table of rows, labels and their numbers, and the probabilities."""
    X = 1.0 * rng.integers(0, 4, (n, 3))

    def probability(X):
        return 1 / (1 + np.exp(2 - 0.6 * X[:, 0] + (X[:, 1] > 1) - 0.3 * X[:, 2]))

    y = rng.binomial(1, probability(X))
    table, counts = np.unique(np.c_[X, y], axis=0, return_counts=True)
    p = probability(GRID)
    return table[:, :3], table[:, 3].astype(int), counts, np.c_[1 - p, p]


@pytest.mark.parametrize("class_weight", ["balanced", {0: 0.3, 1: 0.7}])
@pytest.mark.parametrize("family", ["EigenPro", "Nystrom", "Nytro", "RFM"])
def test_class_weights_of_a_table_of_counts(family, class_weight):
    """They leave numbers of observations what they are."""
    X, y, counts, P = counted(np.random.default_rng(0), 3000)
    model = made(family, "Classifier").set_params(class_weight=class_weight)
    Q = model.fit(X, y, sample_weight=counts).predict_proba(GRID)
    entropy = -np.mean(np.sum(P * np.log(P), axis=1))
    assert -np.mean(np.sum(P * np.log(Q), axis=1)) < 1.015 * entropy
    if class_weight != "balanced":  # which counts rows, whatever their weights
        i = np.repeat(np.arange(len(y)), counts)
        copied = model.fit(X[i], y[i]).predict_proba(GRID)
        assert_allclose(Q, copied, atol=0.01)


@pytest.mark.parametrize(
    "model",
    [
        NystromClassifier(loss="log_loss", random_state=0),
        EigenProClassifier(early_stopping=True, algorithm="eigenpro2", random_state=0),
        NytroClassifier(selection="holdout", random_state=0),
    ],
    ids=["log loss", "early stopping", "holdout"],
)
def test_held_out_rows_of_a_table_of_counts(model):
    """All rows with one label of a cell are not held out without the others."""
    X, y, counts, P = counted(np.random.default_rng(0), 3000)
    Q = clone(model).fit(X, y, sample_weight=counts).predict_proba(GRID)
    entropy = -np.mean(np.sum(P * np.log(P), axis=1))
    assert -np.mean(np.sum(P * np.log(Q), axis=1)) < 1.05 * entropy


@pytest.mark.parametrize("wrong", [0.0, 0.03])
@pytest.mark.parametrize("family", ["EigenPro", "Nystrom", "Nytro", "FalkonLike"])
def test_probabilities_of_columns_with_few_values(family, wrong):
    rng, grid = np.random.default_rng(0), GRID
    of_cell, cell = rng.integers(0, 2, 64), rng.integers(0, 64, 2000)
    labels = np.where(rng.random(2000) < wrong, 1 - of_cell[cell], of_cell[cell])
    P = made(family, "Classifier").fit(grid[cell], labels).predict_proba(grid)
    truth = (1 - wrong) * np.eye(2)[of_cell] + wrong * np.eye(2)[1 - of_cell]
    best = -np.mean(np.sum(truth * np.log(np.maximum(truth, 1e-12)), axis=1))
    assert -np.mean(np.sum(truth * np.log(P), axis=1)) < 1.05 * best + 1e-3


@pytest.mark.parametrize("family", ["EigenPro", "Nystrom", "FalkonLike"])
def test_copies_of_columns_with_few_values(family):
    """All of a table six times: each row may stand for one."""
    rng = np.random.default_rng(0)
    X = 1.0 * rng.integers(0, 2, (300, 9))
    y = X[:, 0] + X[:, 1] * X[:, 2] + rng.standard_normal(300)
    model, T = made(family, "Regressor"), np.eye(9)
    once = model.fit(X, y).predict(T)
    six = model.fit(np.tile(X, (6, 1)), np.tile(y, 6)).predict(T)
    assert_allclose(six, once, rtol=1e-5, atol=1e-6)


def test_cells_that_are_sparse_or_scaled_are_the_same():
    rng = np.random.default_rng(0)
    level, of_level = rng.integers(0, 25, 150), rng.integers(0, 2, 25)
    X, labels, scale = np.eye(25)[level], of_level[level], rng.uniform(1, 9, 25)
    for rows in (X, csr_array(X), X * scale):
        model = LinearEigenProClassifier(random_state=0).fit(rows, labels)
        assert log_loss(labels, model.predict_proba(rows)) < 0.05


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=str)
@pytest.mark.parametrize("kind", ["Regressor", "Classifier"])
@pytest.mark.parametrize(
    "family, options",
    [
        ("EigenPro", {}),
        ("EigenPro", {"algorithm": "eigenpro2", "alpha": 1e-3, "tol": 1e-8}),
        ("Nystrom", {}),
        ("Nystrom", {"alpha": "path"}),
        ("Nystrom", {"n_centers": 60}),
        ("Nytro", {"selection": "loo"}),
        ("FalkonLike", {}),
    ],
)
def test_copies_in_a_given_kernel_matrix(family, options, kind, dtype):
    """They are weights of its distinct rows; K has them only up to rounding."""
    rng = np.random.default_rng(0)
    X, y, i = joined(rng, 150, 2, 4)
    y, i = y + 0.5 * rng.standard_normal(150), rng.permutation(i)
    y = (y > 0).astype(int) if kind == "Classifier" else y
    first = np.sort(np.unique(i, return_index=True)[1])
    K = rbf_kernel(X[i], gamma=0.125).astype(dtype)
    model = made(family, kind).set_params(kernel="precomputed", **options)
    F = model.fit(K, y[i]).predict(K)
    weights = np.bincount(i)[i[first]]
    model.fit(K[np.ix_(first, first)], y[i[first]], sample_weight=weights)
    G = model.predict(K[:, first])
    assert r2_score(G, F) > (1 - 1e-6 if dtype == np.float64 else 0.99)
    if dtype == np.float64 and not options:
        model.set_params(kernel="gaussian", bandwidth=2.0).fit(X[i], y[i])
        assert r2_score(model.predict(X[i]), F) > 0.999


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=str)
@pytest.mark.parametrize("shift", [0.0, 1e3])
def test_equal_rows_of_a_kernel_matrix(shift, dtype, rng):
    X = shift + rng.standard_normal((400, 3))
    i = rng.permutation(np.r_[np.arange(400), np.zeros(30, dtype=int), np.arange(100)])
    first = np.unique(i, return_index=True, return_inverse=True)
    for K in (laplacian_kernel(X[i]), (X[i] - shift) @ (X[i] - shift).T):
        assert_array_equal(_first_of_equal(K.astype(dtype)), first[1][first[2]])
    assert_array_equal(_first_of_equal(np.zeros((5, 5), dtype)), 0)
    assert_array_equal(_first_of_equal(np.eye(5, dtype=dtype)), np.arange(5))


@pytest.mark.parametrize("family", ["EigenPro", "LinearEigenPro", "Nystrom"])
@pytest.mark.parametrize("n", [8, 19])
def test_few_rows_repeated_unequally_have_the_penalty_of_weights(family, n):
    rng = np.random.default_rng(0)
    X, f, i = joined(rng, n, fewest=5)
    y, model = f + 0.7 * rng.standard_normal(n), made(family, "Regressor")
    copied = model.fit(X[i], y[i]).predict(X + 0.1)
    weighted = model.fit(X, y, sample_weight=np.bincount(i)).predict(X + 0.1)
    assert_allclose(copied, weighted, atol=1e-6)


@pytest.mark.parametrize(
    "model",
    [
        EigenProRegressor("gaussian", random_state=0),
        NystromRegressor("gaussian", random_state=0),
        NystromRegressor("gaussian", alpha="path", random_state=0),
        NystromRegressor("gaussian", alpha="path", selection="gcv", random_state=0),
        NytroRegressor("gaussian", selection="loo", random_state=0),
        FalkonLikeRegressor("gaussian", random_state=0),
    ],
    ids=str,
)
def test_measurements_of_persons_tell_of_other_persons(model):
    """Replicates share what other rows lack, and tell less noise than there is."""
    rng = np.random.default_rng(0)
    X, f, _ = joined(rng, 150)
    i = np.repeat(np.arange(150), 6)
    y = (f + 0.7 * rng.standard_normal(150))[i] + 0.2 * rng.standard_normal(len(i))
    T, t, _ = joined(rng, 2000)
    found = clone(model).fit(X[i], y).score(T, t)
    of_means = clone(model).fit(X, y.reshape(150, 6).mean(axis=1)).score(T, t)
    assert of_means > 0.7
    assert 1 - found < 1.1 * (1 - of_means)


@pytest.mark.parametrize("family", ["EigenPro", "LinearEigenPro", "Nystrom"])
def test_copies_of_noisy_targets_of_two_distinct_rows_are_weights(family):
    rng = np.random.default_rng(0)
    X = np.c_[np.full(23, 7.0), rng.choice([-1.0, 1.0], 23), np.full(23, 7.0)]
    y, w = X[:, 1] + rng.standard_normal(23), rng.integers(1, 5, 23)
    i, model = np.repeat(np.arange(23), w), made(family, "Regressor")
    weighted = model.fit(X, y, sample_weight=w).predict(X)
    assert_allclose(model.fit(X[i], y[i]).predict(X), weighted, atol=1e-6)
