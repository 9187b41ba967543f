"""Local kernel machines: parts of the rows, what is blended, and RFM of many rows."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from sklearn import config_context
from sklearn.base import clone

from eigenkern import (
    Checkpoint,
    EigenProRegressor,
    RFMClassifier,
    RFMRegressor,
    estimate,
)
from eigenkern.arrays.array import to_numpy
from eigenkern.estimators.local_machines import LocalRegressor, PartSolver
from eigenkern.inspection import average_gradient_outer_product, gradient
from eigenkern.methods.local import OVERLAP, partitioned

MOST = 150


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Let direct solutions, and so parts, have at most 150 rows."""
    monkeypatch.setattr("eigenkern.plan.sizes._DIRECT_ROWS", MOST)


def machine(cls=RFMRegressor, **options):
    given = {"max_metric_rows": 120, "max_rounds": 1, "random_state": 0}
    return cls(**given | options)


def function(X):
    return np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]


@pytest.fixture
def table(rng):
    """600 rows of three columns, targets, and 200 other rows."""
    X = rng.standard_normal((800, 3))
    return X[:600], function(X[:600]), X[600:]


def local(**options):
    return LocalRegressor("matern32", bandwidth=3.0, random_state=0, **options)


def matern32(X, Z):
    a = 3**0.5 * cdist(X, Z) / 3.0
    return (1 + a) * np.exp(-a)


def by_definition(X, y, alphas, X_new, most=MOST):
    """The values of the blended machines, by their formulas; lists of what is used."""
    if len(X) > most:
        u = np.linalg.eigh(np.cov(X.T))[1][:, -1]
        u *= np.sign(u[np.argmax(abs(u))])
        p, s = X @ u, np.sort(X @ u)
        place = int((0.5 - OVERLAP) * (len(X) - 1))
        low, high = s[place], s[-1 - place]
        f, g = (
            by_definition(X[half], y[half], alphas, X_new, most)
            for half in (p < high, p > low)
        )
        share = np.clip((high - X_new @ u) / (high - low), 0, 1)
        return share * f + (1 - share) * g
    K = matern32(X, X) + alphas.pop(0) * len(X) * np.eye(len(X))
    return y.mean() + matern32(X_new, X) @ np.linalg.solve(K, y - y.mean())


# The machines


@pytest.mark.parametrize("n, n_parts", [(140, 1), (200, 2), (600, 8)])
def test_values_by_definition(n, n_parts, table):
    X, y, X_new = table
    model = local().fit(X[:n], y[:n])
    assert model.n_parts_ == n_parts == len(model.alpha_)
    expected = by_definition(X[:n], y[:n], list(model.alpha_), X_new)
    assert_allclose(model.predict(X_new), expected, rtol=1e-6, atol=1e-8)
    assert model.score(X_new, function(X_new)) > (0.9 if n > 200 else 0.6)


def test_values_and_gradients_are_continuous(table):
    X, y, X_new = table
    model = local().fit(X, y)
    line = np.linspace(X_new[0], X_new[1], 20_001)
    values = model.predict(line)
    slopes = gradient(model, line)[:, :, 0] @ (line[1] - line[0])
    assert abs(np.diff(values)).max() < 2 * abs(slopes).max() < 0.01
    for j, step in enumerate(1e-5 * np.eye(3)):
        change = model.predict(X_new + step) - model.predict(X_new - step)
        assert_allclose(gradient(model, X_new)[:, j, 0], change / 2e-5, atol=1e-6)


def test_the_order_of_the_rows_changes_no_part(table, rng):
    X, *_ = table
    order = rng.permutation(len(X))
    sets = []
    for rows in (np.arange(len(X)), order):
        _, parts = partitioned(X[rows], MOST, np.random.RandomState(0))
        sets.append([sorted(rows[part]) for part in parts])
    assert sets[0] == sets[1] and len(sets[0]) == 8
    assert set(np.concatenate(sets[0])) == set(range(len(X)))
    assert sum(map(len, sets[0])) == pytest.approx(600 * 1.1**3, rel=0.02)


def test_equal_rows_are_one_row_of_one_part(rng):
    codes = rng.integers(0, 4, (3000, 5))
    X = codes.astype(float) @ np.diag([1.0, 0.9, 0.8, 0.7, 0.6])
    y = np.sin(X).sum(axis=1) + rng.standard_normal(3000)
    n_distinct = len(np.unique(codes, axis=0))
    model = local().fit(X, y)
    sets = np.split(model._members, model._starts[1:-1])
    number = codes @ 4 ** np.arange(5)
    for part in sets:
        assert np.isin(number, number[part]).sum() == len(part)
        assert 10 < len(np.unique(number[part])) <= MOST
    assert n_distinct / MOST < len(sets) < 4 * n_distinct / MOST
    assert np.corrcoef(model.predict(X), np.sin(X).sum(axis=1))[0, 1] > 0.8
    most_are_equal = np.concatenate([np.ones((500, 5)), X[:400]])
    assert local().fit(most_are_equal, np.arange(900) % 2.0).n_parts_ <= 8


@pytest.mark.parametrize("share", [0.02, 0.2])
def test_rare_values_make_no_small_part(share, rng):
    X = np.unique((rng.random((3000, 40)) < share).astype(float), axis=0)
    X[:, 0] += 10.0 * (np.arange(len(X)) < 5)
    _, parts = partitioned(X, MOST, np.random.RandomState(0))
    assert MOST >= max(map(len, parts)) >= min(map(len, parts)) > MOST / 5


# RFM of more rows than a direct solution takes


def test_more_rows_are_fitted_in_parts(table, capsys):
    X, y, X_new = table
    model = machine(verbose=1).fit(X, y)
    assert model.n_parts_ == 8 and model.estimator_.n_parts_ == 8
    lines = capsys.readouterr().out.splitlines()
    shown = [line for line in lines if " part " in line]
    assert len(shown) == 8 and "solving" not in str(lines)
    assert shown[1].startswith("RFMRegressor: part 2 of 8: 9")
    error = np.mean((model.predict(X_new) - function(X_new)) ** 2)
    # Not far from all rows at once, and better than those of the metric.
    others = []
    for rows, most in ((slice(None), 10_000), (slice(120), MOST)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("eigenkern.plan.sizes._DIRECT_ROWS", most)
            other = machine().fit(X[rows], y[rows])
        assert other.n_parts_ == 1 and type(other.estimator_) is EigenProRegressor
        others.append(np.mean((other.predict(X_new) - function(X_new)) ** 2))
    assert error < 5 * others[0] and error < 0.5 * others[1]
    assert_array_equal(model.estimator_.centers_, model.transform(X))
    M = average_gradient_outer_product(model, X, kind="diagonal")
    assert_allclose(model.feature_importances_, M / M.sum(), atol=0.1)


def test_a_given_estimator_is_not_divided(table):
    X, y, _ = table
    model = machine(estimator=EigenProRegressor(max_iter=2, random_state=0)).fit(X, y)
    assert model.n_parts_ == 1 and type(model.estimator_) is EigenProRegressor


def test_the_plan_knows_the_parts(table):
    X, y, _ = table
    plan = estimate(machine(), 600, 3)
    assert plan.method == "direct" and plan.n_centers == 600
    assert plan.fits[-1].n_parts == machine().fit(X, y).n_parts_ == 8
    few, many = (estimate(machine(), n, 3) for n in (5000, 40_000))
    assert 5 < many.fits[-1].flops / few.fits[-1].flops < 16
    # not the 12 800 MB of one factor; 17 MB are for error bars
    assert few.memory["total"] < many.memory["total"] < 50


def test_copies_are_weights(table):
    X, y, X_new = table
    counts = 1 + np.arange(600) % 3
    repeated = machine().fit(np.repeat(X, counts, axis=0), np.repeat(y, counts))
    weighted = machine().fit(X, y, counts)
    assert repeated.n_parts_ == weighted.n_parts_ == 8
    assert_allclose(repeated.predict(X_new), weighted.predict(X_new), atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sorted_rows_with_an_idle_column(dtype, table):
    X, y, X_new = table
    order = np.argsort(X[:, 0])
    X, y = X[order].astype(dtype), y[order]
    X = np.column_stack([X, np.full(600, 7, dtype)])
    X_new = np.column_stack([X_new, np.full(200, 7)]).astype(dtype)
    model = machine().fit(X, y)
    assert model.n_parts_ == 8
    assert model.score(X_new, function(X_new)) > 0.9
    assert model.feature_importances_[3] < 1e-6
    one = model.predict(X_new[:1])
    assert_allclose(one, model.predict(X_new)[:1], rtol=1e-5)


def test_several_outputs_of_which_one_is_constant_in_places(table):
    X, y, X_new = table
    step = np.where(X[:, 0] > 0.5, y, 3.0)
    model = machine().fit(X, np.column_stack([y, step]))
    assert model.n_parts_ == 8
    found = model.predict(X_new)
    expected = np.column_stack([function(X_new), function(X_new)])
    expected[X_new[:, 0] <= 0.5, 1] = 3.0
    assert (np.mean((found - expected) ** 2, axis=0) < 0.2).all()


@pytest.mark.parametrize("n_classes", [2, 4])
def test_classes_of_which_parts_lack_some(n_classes, table, rng):
    X, _, X_new = table
    bounds = {2: [1.0], 4: [-1.0, 0.0, 1.0]}[n_classes]
    names = np.array(["a", "b", "c", "d"])

    def labels(X, noise):
        return names[np.digitize(X[:, 0] + noise, bounds)]

    y = labels(X, 0.2 * rng.standard_normal(600))
    y_new = labels(X_new, 0.2 * rng.standard_normal(200))
    model = machine(RFMClassifier).fit(X, y)
    assert model.n_parts_ == 8
    P = model.predict_proba(X_new)
    assert_allclose(P.sum(axis=1), 1.0)
    assert_array_equal(model.classes_[P.argmax(axis=1)], model.predict(X_new))
    chances = P[np.arange(200), np.searchsorted(model.classes_, y_new)]
    assert np.mean(model.predict(X_new) == y_new) > 0.85
    assert np.mean(-np.log(chances)) < 0.45
    weights = {"a": 20.0, "b": 1.0, "c": 1.0, "d": 1.0}
    weights = {name: weights[name] for name in model.classes_}
    other = machine(RFMClassifier, class_weight=weights).fit(X, y)
    gained = np.sum(other.predict(X_new) == "a") - np.sum(model.predict(X_new) == "a")
    assert gained > 0


@pytest.mark.filterwarnings("ignore:.* learned nothing")
def test_equal_rows_only(table):
    X, y, _ = table
    X = np.ones_like(X[:200])
    model = machine().fit(X, y[:200])
    assert_allclose(model.predict(X[:1]), y[:200].mean())
    model = machine(RFMClassifier).fit(X, np.arange(200) % 4 == 0)
    assert_allclose(model.predict_proba(X[:1]), [[0.75, 0.25]], atol=0.1)


def test_more_outputs_than_are_differentiated_one_by_one(table, rng):
    X, y, _ = table
    model = machine(max_rounds=0).fit(X, y[:, None] * rng.normal(size=12))
    one = machine(max_rounds=0).fit(X, y)
    assert_allclose(model.feature_importances_, one.feature_importances_, atol=0.05)


def test_pickles(table):
    X, y, X_new = table
    model = machine().fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.predict(X_new), model.predict(X_new))
    assert (len(pickle.dumps(model.estimator_))) < 20 * X.nbytes


def test_a_fit_continues_with_the_next_part(table, tmp_path, monkeypatch):
    X, y, X_new = table
    labels = y > 0
    expected = machine(RFMClassifier).fit(X, labels)
    solve, done = PartSolver.__next__, []

    def interrupted(self):
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(self.n_done)
        return solve(self)

    monkeypatch.setattr(PartSolver, "__next__", interrupted)
    model = machine(RFMClassifier)
    where = {"checkpoint": Checkpoint(tmp_path / "here", seconds=0), "resume": True}
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, labels, **where)
    assert not hasattr(model, "estimator_")
    done[:] = [None, None]
    model.fit(X, labels, **where)
    assert done == [None, None, 5, 6, 7]
    for method in ("predict_proba", "decision_function"):
        found, same = (getattr(one, method)(X_new) for one in (model, expected))
        assert_array_equal(found, same)
    done[:] = []
    model.fit(X, labels, **where)  # nothing is left to do
    assert done == []
    assert_array_equal(model.predict(X_new), expected.predict(X_new))


def test_other_array_libraries(table, other_xp):
    X, y, X_new = table
    labels = (y > 0).astype(int)
    with config_context(array_api_dispatch=True):
        given = other_xp.asarray(X), other_xp.asarray(labels)
        model = machine(RFMClassifier).fit(*given)
        P = model.predict_proba(other_xp.asarray(X_new))
        G = gradient(model, other_xp.asarray(X_new))
    expected = machine(RFMClassifier).fit(X, labels)
    assert type(P) is type(given[0])
    assert_allclose(to_numpy(P), expected.predict_proba(X_new), atol=1e-5)
    assert_allclose(to_numpy(G), gradient(expected, X_new), atol=1e-4)


def test_rows_that_are_not_in_memory(table, monkeypatch):
    dask = pytest.importorskip("dask.array")
    X, y, X_new = table
    model = machine(max_rounds=0)
    expected = clone(model).fit(X, y).predict(X_new)
    model.fit(dask.from_array(X, chunks=(100, -1)), y)
    assert model.n_parts_ == 8
    assert_allclose(model.predict(X_new), expected)
    found = model.predict(dask.from_array(X_new, chunks=(50, -1)))
    assert_allclose(np.asarray(found), expected)
    monkeypatch.setattr("eigenkern.arrays.memory.available", lambda *_: 10_000)
    with pytest.raises(ValueError, match=r"600 rows as centers needs .* a sample"):
        model.fit(dask.from_array(X, chunks=(100, -1)), y)


@pytest.mark.parametrize("weights", [None, "pattern"])
def test_standard_deviations_of_parts(weights, rng):
    X = rng.standard_normal((2600, 3))
    noise = 0.1 + 0.4 * (X[:, 0] > 0)
    y = function(X) + noise * rng.standard_normal(2600)
    if weights is not None:
        weights = 1.0 + np.arange(600) % 2
    model = machine().fit(X[:600], y[:600], weights)
    assert model.n_parts_ == 8 and not hasattr(model.estimator_, "_left_out")
    mean, std = model.predict(X[600:], return_std=True)
    assert_array_equal(mean, model.predict(X[600:]))
    inside = np.abs(y[600:] - mean) < 1.645 * std
    assert 0.86 < inside.mean() < 0.94
    quiet, loud = (std[part].mean() for part in (X[600:, 0] < -0.3, X[600:, 0] > 0.3))
    assert loud > 1.3 * quiet
    far = model.predict(1e3 + X[:5], return_std=True)[1]
    assert_allclose(far, np.std(y[:600]), rtol=0.1)
    other = pickle.loads(pickle.dumps(model))
    assert_array_equal(other.predict(X[600:], return_std=True)[1], std)


@pytest.mark.parametrize("n_levels", [3, 6, 9])
def test_standard_deviations_of_copies(n_levels, rng):
    """Few distinct rows, in one part or several: all of them are not left out."""
    X = 1.0 * rng.integers(n_levels, size=(2000, 3))
    y = X[:, 0] + 0.3 * rng.standard_normal(2000)
    model = machine().fit(X[:1000], y[:1000])
    assert (model.n_parts_ > 1) == (n_levels > 5)
    mean, std = model.predict(X[1000:], return_std=True)
    assert 0.85 < np.mean(np.abs(y[1000:] - mean) < 1.645 * std) < 0.95
