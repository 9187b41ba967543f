"""Recursive feature machines: tables, parts, error bars, weights, copies, together."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from eigenkern import NytroRegressor, RFMClassifier, RFMRegressor
from eigenkern.estimators.rfm import MetricProblem
from eigenkern.inspection import gradient

pd = pytest.importorskip("pandas")
MOST = 150


@pytest.fixture
def small_parts(monkeypatch):
    """Let direct solutions, and so parts, have at most 150 rows."""
    monkeypatch.setattr("eigenkern.plan.sizes._DIRECT_ROWS", MOST)


def drawn(n, rng, dtype=np.float64):
    """Return a table with a category, gaps, a skewed and a constant column, targets."""
    X = rng.standard_normal((n, 3))
    level = rng.integers(0, 3, n)
    y = np.sin(2 * X[:, 0]) + (level == 1) * X[:, 1] + 0.1 * rng.standard_normal(n)
    table = pd.DataFrame(
        {
            "wave": X[:, 0].astype(dtype),
            "slope": X[:, 1].astype(dtype),
            "level": pd.Categorical(np.array(["low", "middle", "high"])[level]),
            "income": np.exp(2 * X[:, 2]).astype(dtype),
            "same": np.ones(n, dtype),
        }
    )
    table.loc[::9, "income"] = np.nan
    return table, y


def machine(cls=RFMRegressor, **options):
    given = {"max_rounds": 1, "max_metric_rows": 140, "random_state": 0}
    return cls(**given | options)


def assert_good(model, table, y):
    """Predictions, deviations and what a pickle predicts."""
    if isinstance(model, RFMClassifier):
        assert model.score(table, y) > 0.75
        P = model.predict_proba(table)
        assert_allclose(P.sum(axis=1), 1.0, rtol=1e-5)
        chosen = P[np.arange(len(y)), np.searchsorted(model.classes_, y)]
        assert -np.log(chosen).mean() < 0.6
    else:
        mean, std = model.predict(table, return_std=True)
        assert 1 - np.mean((mean - y) ** 2) / np.var(y) > 0.75
        assert 0.8 < np.mean(abs(mean - y) < 1.645 * std) < 0.98
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.predict(table), model.predict(table))


@pytest.mark.parametrize("cls", [RFMRegressor, RFMClassifier])
@pytest.mark.parametrize("scaling", ["auto", "normal", "robust", None])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tables_in_parts(cls, scaling, dtype, rng, small_parts):
    table, y = drawn(1000, rng, dtype)
    if cls is RFMClassifier:
        y = np.where(y > 0, "more", "less")
    model = machine(cls, scaling=scaling).fit(table[:600], y[:600])
    assert model.n_parts_ > 1
    assert_good(model, table[600:], y[600:])
    importances = model.feature_importances_
    assert importances.shape == (5,) and importances[4] < 1e-9
    assert importances[0] > importances[3]


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("cls", [RFMRegressor, RFMClassifier])
def test_copies_zeros_and_weights(parts, cls, rng, request):
    if parts:
        request.getfixturevalue("small_parts")
    n = 400 if parts else 120
    table, y = drawn(n + 200, rng)
    if cls is RFMClassifier:
        y = (y > 0).astype(int)
    new, table, y = table[n:], table[:n], y[:n]
    counts = np.arange(n) % 3
    rows = np.repeat(np.arange(n), counts)
    weighted = machine(cls).fit(table, y, counts)
    repeated = machine(cls).fit(table.iloc[rows].reset_index(drop=True), y[rows])
    assert weighted.scaling_ == repeated.scaling_
    assert (weighted.n_parts_ > 1) == parts
    expected = weighted.predict_proba(new) if cls is RFMClassifier else None
    if expected is None:
        expected = np.stack(weighted.predict(new, return_std=True))
        found = np.stack(repeated.predict(new, return_std=True))
    else:
        found = repeated.predict_proba(new)
    assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("cls", [RFMRegressor, RFMClassifier])
def test_tables_in_parts_go_on_bit_for_bit(cls, rng, small_parts, tmp_path):
    table, y = drawn(500, rng)
    y = y if cls is RFMRegressor else (y > 0)
    whole = machine(cls).fit(table[:400], y[:400], checkpoint=tmp_path / "fit")
    again = clone(whole).fit(
        table[:400], y[:400], checkpoint=tmp_path / "fit", resume=True
    )
    plain = clone(whole).fit(table[:400], y[:400])
    for model in (again, plain):
        assert_array_equal(model.predict(table), whole.predict(table))
    if cls is RFMRegressor:
        deviations = [m.predict(table, return_std=True)[1] for m in (again, whole)]
        assert_array_equal(*deviations)


def test_given_rows_judge_tables(rng, small_parts):
    table, y = drawn(900, rng)
    model = machine().fit(table[:400], y[:400], None, table[400:600], y[400:600])
    assert_good(model, table[600:], y[600:])


@pytest.mark.parametrize("scaling", ["standard", "normal", "robust", None])
def test_gradients_of_blended_parts_are_in_the_users_units(scaling, rng, small_parts):
    X = np.exp(0.5 * rng.standard_normal((500, 3)))
    y = np.sin(2 * X[:, 0]) + X[:, 1]
    model = machine(scaling=scaling, metric="diagonal").fit(X[:400], y[:400])
    assert model.n_parts_ > 1
    rows, step = X[400:440], 1e-5
    G = gradient(model, rows)[:, :, 0]
    for j in range(3):
        up, down = rows.copy(), rows.copy()
        up[:, j] += step
        down[:, j] -= step
        slope = (model.predict(up) - model.predict(down)) / (2 * step)
        # where no quantile, no kink of the kernel and no end of a part lies between
        same = np.isclose(G[:, j], slope, rtol=1e-2, atol=1e-3)
        assert same.mean() > 0.85


@pytest.mark.parametrize("estimator", [None, NytroRegressor()], ids=str)
def test_validation_rows_without_weight(estimator, rng, monkeypatch):
    """They change nothing, also where a scaling has no model."""
    X = np.sinh(2 * rng.standard_normal((460, 3)))
    y = np.tanh(X[:, 0]) + 0.3 * rng.standard_normal(460)
    y[260:360] = 1e6
    w, calls = np.append(np.zeros(100), np.ones(100)), []
    errors_of = MetricProblem._errors

    def errors(problem, *model):
        calls.append(model)
        if len(calls) == 2:
            raise ArithmeticError
        return errors_of(problem, *model)

    monkeypatch.setattr(MetricProblem, "_errors", errors)
    model = machine(estimator=estimator)
    expected = model.fit(X[:260], y[:260], None, X[360:], y[360:])
    expected = expected.predict(X[:260], return_std=True)
    assert len(calls) > 2
    calls.clear()
    found = model.fit(X[:260], y[:260], None, X[260:], y[260:], w)
    assert_array_equal(found.predict(X[:260], return_std=True), expected)
