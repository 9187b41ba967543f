"""Tables as they come to recursive feature machines: categories, gaps, any units."""

import pickle
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from eigenkern import (
    EigenProClassifier,
    EigenProRegressor,
    MetricDisplay,
    NystromRegressor,
    RFMClassifier,
    RFMRegressor,
)
from eigenkern.inspection import average_gradient_outer_product, gradient

pd = pytest.importorskip("pandas")

GAUSSIAN = EigenProRegressor("gaussian", random_state=0)


def machine(scaling="standard", **options):
    """Return a model of one fit, on prepared columns."""
    options = {"max_rounds": 0, "random_state": 0, "scaling": scaling, **options}
    return RFMRegressor(**{"estimator": GAUSSIAN, **options})


@pytest.fixture
def table(rng):
    """A table of all kinds of columns, and a target that needs each of them."""
    n = 400
    frame = pd.DataFrame(
        {
            "size": 1e4 * rng.standard_normal(n),
            "age": rng.uniform(0, 80, n),
            "new": rng.random(n) < 0.5,
            "fuel": rng.choice(["gas", "oil", "sun"], n),
            "town": pd.Categorical([f"t{i}" for i in rng.integers(0, 40, n)]),
        }
    )
    gaps = rng.random(n) < 0.2
    by_town = np.arange(40) % 7
    y = (
        np.sin(frame["size"] / 1e4)
        + np.where(gaps, 1.0, frame["age"] / 40)
        + frame["new"]
        + 2.0 * (frame["fuel"] == "sun")
        + 0.5 * by_town[frame["town"].str[1:].astype(int)]
    )
    frame.loc[gaps, "age"] = np.nan
    return frame, y.to_numpy()


def prepared(model, X):
    return model.preprocessor_.transform(X)


# What columns become


def test_every_column_counts(table):
    X, y = table
    model = RFMRegressor(random_state=0, max_rounds=2).fit(X[:300], y[:300])
    assert model.score(X[300:], y[300:]) > 0.9
    for name in X.columns:
        shuffled = X[300:].copy()
        shuffled[name] = shuffled[name].sample(frac=1, random_state=0).to_numpy()
        assert model.score(shuffled, y[300:]) < model.score(X[300:], y[300:]) - 0.02
    assert model.feature_importances_.shape == (5,)
    assert model.feature_importances_.sum() == pytest.approx(1.0)
    assert model.feature_importances_.min() > 0.005
    assert model.n_features_in_ == 5
    assert_array_equal(model.feature_names_in_, X.columns)
    assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))


def test_the_preprocessor_is_of_scikit_learn(table):
    X, y = table
    model = machine().fit(X, y)
    assert isinstance(model.preprocessor_, ColumnTransformer)
    names = model.preprocessor_.get_feature_names_out().tolist()
    assert names == [
        *("numbers__size", "numbers__age", "numbers__new"),
        "gaps__missingindicator_age",
        *("levels__fuel_gas", "levels__fuel_oil", "levels__fuel_sun"),
        "wide__town",
    ]
    Z = prepared(model, X)
    for j, name in enumerate(["size", "age", "new"]):
        values = X[name].astype(float)
        filled = values.fillna(values.median())
        expected = (filled - values.mean()) / values.std(ddof=0)
        assert_allclose(Z[:, j], expected, atol=1e-12)
    assert_array_equal(Z[:, 3], X["age"].isna())
    assert_array_equal(Z[:, 4], X["fuel"] == "gas")
    assert_allclose(model.transform(X), Z, rtol=1e-12)
    assert model.metric_.shape == (8, 8)
    assert_array_equal(model.get_feature_names_out()[:1], ["rfmregressor0"])
    # The same by hand, of all but the wide category.
    X = X.drop(columns="town")
    Z = prepared(model.fit(X, y), X)
    expected = clone(GAUSSIAN).fit(Z, y).predict(Z)
    assert_allclose(model.predict(X), expected, rtol=1e-8)


def test_levels_of_a_wide_category_are_mean_targets(table):
    X, y = table
    X = X[["town"]].astype(str)
    model = machine().fit(X, y)
    assert model.preprocessor_.get_feature_names_out().tolist() == ["wide__town"]
    by_town = pd.Series(y).groupby(X["town"]).mean()
    new = pd.DataFrame({"town": by_town.index})
    assert np.corrcoef(prepared(model, new)[:, 0], by_town)[0, 1] > 0.99
    # Targets without any meaning cannot be told from the levels of their own rows.
    noise = np.random.default_rng(1).standard_normal(400)
    each = pd.DataFrame({"town": [f"t{i // 2}" for i in range(400)]})
    with pytest.warns(match="learned nothing"):
        assert clone(model).fit(each, noise).score(each, noise) < 0.1


def test_many_levels_and_several_targets(rng):
    X = pd.DataFrame({"key": [f"k{i}" for i in range(10_000)], "x": 1.0})
    X["x"] = rng.standard_normal(10_000)
    model = RFMRegressor(
        NystromRegressor(n_centers=50, random_state=0), max_rounds=0, random_state=0
    )
    new = X.assign(key="new")
    with pytest.warns(UserWarning, match="column 'key' .* 10000 levels in 10000 rows"):
        model.fit(X, X["x"])
    assert model.score(new, X["x"]) > 0.9
    assert prepared(model, X).shape == (10_000, 2)
    y = np.column_stack([X["x"], -X["x"]])
    with pytest.warns(UserWarning, match="500 levels in 500 rows, too many to learn"):
        model.fit(X[:500], y[:500])  # by the targets of each output
    assert prepared(model, X).shape == (10_000, 3)
    assert model.predict(X[:5]).shape == (5, 2)
    with pytest.warns(UserWarning, match="500 levels in 500 rows, too many to learn"):
        model.fit(X[:500], np.repeat(y[:500, :1], 11, axis=1))
    assert prepared(model, X).shape == (10_000, 31)  # the most frequent levels


def test_many_levels_and_two_targets_are_as_good_as_one(rng):
    level = rng.integers(0, 100, 1500)
    X = pd.DataFrame({"key": [f"k{i}" for i in level], "x": rng.standard_normal(1500)})
    Y = np.c_[rng.standard_normal(100)[level] + X["x"], rng.standard_normal(100)[level]]
    model = RFMRegressor(max_rounds=1, random_state=0)
    for y in (Y, Y[:, 0]):
        assert model.fit(X[:1000], y[:1000]).score(X[1000:], y[1000:]) > 0.85


def test_numbers_that_were_read_as_text_are_named(rng):
    x = rng.standard_normal(300)
    frame = pd.DataFrame({"x": np.char.mod("%.2f", x), "z": x})
    frame.loc[5, "x"] = "?"
    model = RFMRegressor(max_rounds=0, random_state=0)
    message = r"column 'x' of X is text, but \d+ of its \d+ values are numbers: .*to_nu"
    with pytest.warns(UserWarning, match=message) as caught:
        model.fit(frame, x)
    assert [one.filename for one in caught] == [__file__]
    other = frame.assign(x=frame["x"].astype("category"))
    numbers = frame.assign(x=pd.to_numeric(frame["x"], errors="coerce"))
    few = frame.assign(x=np.char.mod("%d", np.round(x)))
    for each in (other, numbers, few):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "column 'x' of X is text")
            warnings.filterwarnings("ignore", "column 'x' of X is a category")
            model.fit(each, x)


def test_a_wide_category_of_three_classes(table):
    X, y = table
    labels = np.digitize(y, np.quantile(y, [0.3, 0.7]))
    model = RFMClassifier(max_rounds=1, random_state=0).fit(X[:300], labels[:300])
    assert model.score(X[300:], labels[300:]) > 0.75
    names = model.preprocessor_.get_feature_names_out()
    assert [name for name in names if name.startswith("wide")] == [
        f"wide__town_{k}" for k in range(3)
    ]
    assert model.feature_importances_.shape == (5,)
    model.fit(X, labels, (labels > 0).astype(float))
    assert "wide__town" in model.preprocessor_.get_feature_names_out()
    assert set(model.predict(X[:50])) <= {1, 2}


def test_unknown_levels_and_new_gaps(table):
    X, y = table
    model = machine().fit(X, y)
    new = X[:3].copy()
    new["town"] = ["elsewhere", None, "t1"]
    new["fuel"] = ["coal", None, "gas"]
    new["size"] = [np.nan, 0.0, 1.0]
    Z = prepared(model, new)
    assert_array_equal(Z[:2, 4:7], 0.0)
    mean = X["size"].median() - X["size"].mean()
    assert Z[0, 0] == pytest.approx(mean / X["size"].std(ddof=0))
    known = prepared(model, X)[:, 7]
    assert Z[0, 7] == Z[1, 7] and known.min() < Z[0, 7] < known.max()
    assert np.isfinite(model.predict(new)).all()


def test_odd_columns(table):
    X, y = table
    X = X.assign(
        empty=np.nan,
        nothing=None,
        same=3.0,
        one="a",
        rare=["once", *["often"] * 399],
        fewer=pd.array([1, None] * 200, dtype="Int64"),
        maybe=pd.array([True, None, False, True] * 100, dtype="boolean"),
        mixed=pd.Series([1, None] * 200, dtype=object),
    )
    model = machine().fit(X[::-1], y[::-1])
    names = model.preprocessor_.get_feature_names_out()
    assert not {"numbers__empty", "numbers__nothing"} & set(names)
    assert {"numbers__same", "levels__rare_once", "gaps__missingindicator_fewer"} < set(
        names
    )
    assert_array_equal(model.feature_importances_[[X.columns.get_loc("empty")]], [0.0])
    assert np.isfinite(model.predict(X.assign(empty=5.0, nothing=1.0))).all()
    with pytest.raises(ValueError, match="X must have a column with values"):
        machine().fit(X[["empty", "nothing"]], y)


def test_everything_is_a_category(rng):
    X = pd.DataFrame(rng.choice(["a", "b", "c"], (300, 4)), columns=list("wxyz"))
    y = (X["w"] == "a") * 1.0 + (X["x"] == X["y"])
    model = RFMRegressor(random_state=0).fit(X[:200], y[:200])
    assert model.scaling_ is None and model.metric_.shape == (12, 12)
    assert model.score(X[200:], y[200:]) > 0.9
    assert model.feature_importances_[3] < 0.05


def test_ordered_and_numeric_categories_are_one_hot():
    codes = np.arange(400) % 3
    y = codes + codes % 2
    X = pd.DataFrame({"a": pd.Categorical(codes, ordered=True), "b": codes % 2})
    X["c"] = pd.cut(codes, 3)
    names = machine().fit(X, y).preprocessor_.get_feature_names_out()
    assert len([name for name in names if name.startswith("levels__a")]) == 3
    assert len([name for name in names if name.startswith("levels__c")]) == 3
    model = machine(categorical_features=["b"]).fit(X[["b"]], X["b"])
    one = prepared(model, pd.DataFrame({"b": [0.0, 1.0, np.nan]}))  # now floats
    assert_array_equal(one, [[1, 0], [0, 1], [0, 0]])


# Which columns are categories


@pytest.mark.parametrize("given", [["b", "d"], [1, 3], [1, -1], [False, True] * 2])
def test_named_categories(given, rng):
    X = rng.integers(0, 3, (200, 4)).astype(float)
    y = X[:, 0] + (X[:, 1] == 1)
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = machine(categorical_features=given).fit(frame, y)
    assert prepared(model, frame).shape == (200, 8)
    if not isinstance(given[0], str):
        other = machine(categorical_features=given).fit(X, y)
        assert_allclose(other.predict(X), model.predict(frame), rtol=1e-12)


@pytest.mark.parametrize(
    "given, message",
    [
        ("all", "categorical_features must be 'from_dtype', None, or .*; got 'all'"),
        (["size", "z"], "categorical_features must name columns of X.*'size'.*got 'z'"),
        ([5], "categorical_features must name columns of X, of which there are 5.*5"),
        ([10], "must name columns of X, .*; got 10, and integers are positions"),
        ([True, False], "must have a value for each of the 5 columns.*got 2"),
        ([[0]], "categorical_features must be"),
        (None, "column 'fuel' of X holds text: name it in categorical_features"),
        (["fuel"], "column 'town' of X holds categories: name it in categorical_feat"),
    ],
)
def test_wrong_categories(given, message, table):
    with pytest.raises(ValueError, match=message):
        machine(categorical_features=given).fit(*table)


@pytest.mark.parametrize(
    "values, message",
    [
        (pd.date_range("2020", periods=400), "dates or times: derive numbers from it"),
        (pd.timedelta_range(0, periods=400), "dates or times: derive numbers"),
        (pd.period_range("2020", periods=400, freq="D"), "dates or times: derive"),
        ([np.datetime64("2020", "D").item()] * 400, "dates or times: derive numbers"),
        ([[1, 2]] * 400, "objects that are neither numbers nor text"),
        (["a", 1] * 200, "text and numbers: name it in categorical_features"),
        ([1j] * 400, "the data type complex128"),
    ],
)
def test_columns_that_are_refused(values, message, table):
    X, y = table
    X = X.assign(odd=values)
    with pytest.raises(ValueError, match=f"column 'odd' of X holds {message}"):
        machine().fit(X, y)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_infinite_values_are_named(library, table):
    X, y = table
    X = X.drop(columns="town")
    wrong = X.assign(age=np.inf)
    if library == "polars":
        polars = pytest.importorskip("polars")
        X, wrong = polars.from_pandas(X), polars.from_pandas(wrong)
    for columns in (["size", "age", "fuel"], ["size", "age"]):
        model = machine().fit(X[columns], y)
        for fail in (model.predict, lambda rows: machine().fit(rows, y)):
            with pytest.raises(ValueError, match=r"X contains infinity.*\s.*'age'"):
                fail(wrong[columns])
    with pytest.raises(
        ValueError, match=r"X contains infinity.*\nIt is in column 'age'"
    ):
        NystromRegressor().fit(wrong[["size", "age"]], y)


def test_text_in_an_array(table):
    X, y = table
    message = "could not convert string to float.*\\. Pass text in a pandas or polars"
    for rows in (X.astype(str).to_numpy(), X.astype(object).to_numpy()):
        with pytest.raises(ValueError, match=message):
            machine().fit(rows, y)


def test_other_columns_at_prediction(table):
    X, y = table
    model = machine().fit(X, y)
    with pytest.raises(ValueError, match="must be in the same order"):
        model.predict(X[X.columns[::-1]])
    with pytest.raises(ValueError, match="Feature names unseen at fit time"):
        model.predict(X.rename(columns={"age": "years"}))
    with pytest.raises(ValueError, match=r"column 'age' of X must hold numbers.*text"):
        model.predict(X.assign(age="old"))
    with pytest.raises(ValueError, match=r"column 'fuel' of X must hold text.*numbers"):
        model.predict(X.assign(fuel=1.0))
    gaps = model.predict(X.assign(fuel=np.nan))
    assert_array_equal(gaps, model.predict(X.assign(fuel="unknown")))
    same = model.predict(X.assign(fuel=X["fuel"].astype("category")))
    assert_array_equal(same, model.predict(X))
    with pytest.raises(
        ValueError, match=r"X must be a DataFrame .*'fuel' is a category"
    ):
        model.predict(X.to_numpy())
    with pytest.raises(NotFittedError):
        machine().predict(X)


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("as_category", [False, True])
def test_levels_that_were_numbers_or_text_stay_so(library, as_category, rng):
    frames = pytest.importorskip(library)
    codes = rng.integers(0, 4, 200)
    numbers, text = (frames.DataFrame({"k": one}) for one in (codes, codes.astype(str)))
    later = text
    if as_category:
        dtype = "category" if library == "pandas" else frames.Categorical
        later = text.cast(dtype) if library == "polars" else text.astype(dtype)
    model = machine(categorical_features=["k"])
    expected = model.fit(numbers, codes % 2).predict(numbers)
    with pytest.raises(
        ValueError, match=r"'k' of X must hold numbers, as in fit.*text"
    ):
        model.predict(later)
    with pytest.raises(
        ValueError, match=r"'k' of X must hold numbers, as in fit.*text"
    ):
        model.fit(numbers, codes % 2, X_val=later, y_val=codes % 2)
    assert_allclose(model.fit(later, codes % 2).predict(text), expected, rtol=1e-12)
    with pytest.raises(
        ValueError, match=r"'k' of X must hold text, as in fit.*numbers"
    ):
        model.predict(numbers)


@pytest.mark.parametrize("n_levels", [4, 40])
def test_levels_of_text_and_numbers_are_the_same_in_any_rows(n_levels, rng):
    levels = np.array([1, 2.0, "other", True, *range(5, n_levels + 1)], dtype=object)
    code = rng.integers(0, n_levels, 300)
    X = pd.DataFrame({"k": levels[code], "x": rng.standard_normal(300)})
    model = machine(categorical_features=["k"]).fit(X, code % 2)
    expected = model.predict(X)
    assert model.score(X, code % 2) > 0.8
    one_by_one = [model.predict(X[i : i + 1]).item() for i in range(300)]
    assert_allclose(one_by_one, expected, atol=1e-6)
    for i in range(40):  # numbers in a column of floats, because of a gap
        row = pd.DataFrame({"k": [X["k"][i], None], "x": X["x"][i]})
        assert model.predict(row)[0] == pytest.approx(expected[i], abs=1e-6)


def test_names_that_are_no_text(table):
    X, y = table
    expected = machine().fit(X, y).predict(X)
    X = X.set_axis(range(5), axis=1)
    model = machine().fit(X, y)
    assert not hasattr(model, "feature_names_in_")
    assert_array_equal(model.predict(X), expected)


# Scaling


def test_scalings(rng):
    X = rng.lognormal(0.0, 2.0, (1000, 2))
    y = np.log(X[:, 0])
    for scaling, most in (("normal", 5.3), ("robust", 3.0)):
        model = machine(scaling).fit(X, y)
        Z = prepared(model, X)
        order = np.argsort(X[:, 0])
        assert (np.diff(Z[order, 0]) >= 0).all() and np.abs(Z).max() < most
        assert model.scaling_ == scaling
    normal = prepared(machine("normal").fit(X, y), X)
    assert_allclose([normal.mean(), normal.std()], [0.0, 1.0], atol=0.05)
    low, middle, high = np.quantile(X[:, 0], [0.25, 0.5, 0.75])
    z = (X[:, 0] - middle) / (high - low) * 1.3489795
    robust = prepared(machine("robust").fit(X, y), X)
    assert_allclose(robust[:, 0], z / (1 + z**2 / 9) ** 0.5, rtol=1e-6)
    assert_array_equal(prepared(machine(None).fit(X, y), X), X)


def test_rows_that_were_held_out_choose_the_scaling(rng):
    X = rng.standard_normal((600, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1]
    model = RFMRegressor(max_rounds=0, random_state=0)
    units = np.array([1e-3, 1.0, 1e3])
    standard = model.fit(X * units, y).score(X * units, y)
    assert model.scaling_ != None and standard > 0.9  # noqa: E711
    model.fit(np.exp(4 * X), y)
    assert model.scaling_ == "normal"
    # Only two of fifty columns vary much, and these matter.
    wide = 0.01 * rng.standard_normal((600, 50))
    wide[:, :2] = X[:, :2]
    assert model.fit(wide, y).scaling_ is None


@pytest.mark.parametrize("labels", [False, True])
def test_columns_with_long_tails_are_clipped(labels, rng):
    """Unless held-out rows are clearly for another scaling."""
    X = rng.standard_normal((400, 5))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(400)
    of_labels = {False: RFMRegressor, True: RFMClassifier}[labels]
    model = of_labels(max_rounds=0, random_state=0)
    y = y > 0 if labels else y
    assert model.fit(X, y).scaling_ == "standard"
    assert model.fit(np.sinh(2 * X), y).scaling_ == "robust"
    assert model.fit(np.sinh(5 * X), y).scaling_ == "normal"


def test_fill_values_do_not_spoil_the_scaling(rng):
    X = rng.standard_normal((500, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1]
    model = machine()
    expected = model.fit(X[1:], y[1:]).predict(X[1:])
    for value in (1e12, -1e30):
        spoiled = X.copy()
        spoiled[0, 0] = value
        with pytest.warns(UserWarning, match="column 0 of X holds.*it was cut off at"):
            model.fit(spoiled, y)
        assert_allclose(model.predict(X[1:]), expected, atol=0.05)


def test_a_wrong_scaling():
    with pytest.raises(ValueError, match=r"scaling must be one of 'auto', .*got 'no'"):
        machine("no").fit(np.eye(9), np.arange(9))


# Gaps in arrays, other libraries


def test_gaps_in_an_array(rng, other_xp):
    X = rng.standard_normal((300, 3))
    y = X[:, 0] + (X[:, 1] > 0.5)
    X[X[:, 1] > 0.5, 1] = np.nan
    model = machine().fit(X, y)
    assert model.score(X, y) > 0.95
    assert model.metric_.shape == (4, 4) and model.n_features_in_ == 3
    other = clone(model).fit(X.astype(np.float32), y)
    assert other.metric_root_.dtype == np.float32
    assert_allclose(other.predict(X), model.predict(X), atol=1e-2)
    from sklearn import config_context

    X_xp = other_xp.asarray(X)
    with config_context(array_api_dispatch=True):
        found = clone(model).fit(X_xp, other_xp.asarray(y)).predict(X_xp)
    assert_allclose(np.asarray(found), model.predict(X), rtol=1e-6, atol=1e-8)


def test_polars(table):
    pl = pytest.importorskip("polars")
    X, y = table
    frame = pl.from_pandas(X)
    model = machine().fit(frame, y)
    expected = machine().fit(X, y)
    assert_allclose(model.predict(frame), expected.predict(X), rtol=1e-10)
    assert_array_equal(
        model.preprocessor_.get_feature_names_out(),
        expected.preprocessor_.get_feature_names_out(),
    )
    numbers = frame[["size", "age", "new"]]
    model = machine().fit(numbers, y)
    assert_allclose(
        model.predict(numbers), machine().fit(X[numbers.columns], y).predict(numbers)
    )
    dated = frame.with_columns(day=pl.date(2020, 1, 1))
    with pytest.raises(ValueError, match="column 'day' of X holds dates or times"):
        machine().fit(dated, y)
    with pytest.raises(ValueError, match=r"'odd' of X holds the data type List"):
        machine().fit(frame.with_columns(odd=pl.Series([[1]] * 400)), y)


# Weights, rows to judge on, and everything else


def test_weights_are_numbers_of_rows(table):
    X, y = table
    counts = np.arange(400) % 4
    rows = np.repeat(np.arange(400), counts)
    model = RFMRegressor(random_state=0, max_rounds=1)
    weighted = clone(model).fit(X, y, counts)
    repeated = clone(model).fit(X.iloc[rows], y[rows])
    assert weighted.scaling_ == repeated.scaling_
    assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-5, atol=1e-6)
    # Rows without weight tell nothing, not even a level.
    other = X.copy()
    other.loc[counts == 0, "fuel"] = "none"
    other.loc[counts == 0, "size"] = 1e9
    same = clone(model).fit(other, y, counts)
    assert_allclose(same.predict(X), weighted.predict(X), rtol=1e-6)


@pytest.mark.parametrize("n_classes", [None, 2, 3])
def test_the_unit_of_weights_does_not_matter_to_wide_categories(n_classes, table):
    X, y = table
    X = X[["town", "age"]]
    estimator = EigenProRegressor("gaussian", alpha=1e-3, random_state=0)
    model = machine(estimator=estimator)
    if n_classes:
        y = np.digitize(y, np.quantile(y, np.arange(1, n_classes) / n_classes))
        estimator = EigenProClassifier("gaussian", alpha=1e-3, random_state=0)
        model = RFMClassifier(estimator, max_rounds=0, random_state=0)

    def columns(rows, *weights):
        model.fit(X.iloc[rows], y[rows], *weights)
        return prepared(model, X), model.predict(X)

    all_rows, counts = np.arange(400), 1 + np.arange(400) % 3
    expected = columns(np.repeat(all_rows, counts))
    for unit in (1.0, 0.5, 0.37, 7.0):
        found = columns(all_rows, unit * counts)
        assert_allclose(found[0], expected[0], rtol=1e-9, atol=1e-9)
        assert_allclose(found[1], expected[1], rtol=1e-6, atol=1e-6)
    assert np.abs(columns(all_rows)[0] - expected[0]).max() > 0.01
    # Weights that are no numbers of rows.
    weights = np.random.default_rng(0).uniform(0.1, 1.0, 400)
    expected = columns(all_rows, weights)[0]
    assert_allclose(columns(all_rows, 7.0 * weights)[0], expected, rtol=1e-9)


def test_class_weights_are_no_numbers_of_rows(table):
    X, y = table
    X, label = X[["town", "age"]], (y > np.quantile(y, 0.9)).astype(int)
    model = RFMClassifier(
        EigenProClassifier("gaussian", random_state=0),
        class_weight={0: 1.0, 1: 50.0},
        max_rounds=0,
        random_state=0,
    ).fit(X, label)
    w = np.where(label == 1, 50.0, 1.0)
    prior, smooth = np.average(label, weights=w), 10.0 * w.mean()
    frame = pd.DataFrame({"town": X["town"].astype(str), "w": w, "wy": w * label})
    sums = frame.groupby("town").sum()
    expected = (sums["wy"] + smooth * prior) / (sums["w"] + smooth)
    encoder = model.preprocessor_.named_transformers_["wide"].estimator["encode"]
    assert_array_equal(encoder.categories_[0], sums.index)
    assert_allclose(encoder.encodings_[0], expected)


def test_given_rows_judge(table):
    X, y = table
    model = RFMRegressor(random_state=0, max_rounds=1)
    model.fit(X[:250], y[:250], X_val=X[250:], y_val=y[250:])
    assert model.validation_scores_["score"][-1] > 0.5
    with pytest.raises(ValueError, match="Feature names"):
        model.fit(X[:250], y[:250], X_val=X.iloc[250:, ::-1], y_val=y[250:])


def test_checkpoints(table, tmp_path):
    X, y = table
    model = RFMRegressor(random_state=0, max_rounds=2)
    model.fit(X, y, checkpoint=tmp_path)
    again = clone(model).fit(X, y, checkpoint=tmp_path, resume=True)
    assert_array_equal(again.predict(X), model.predict(X))
    assert again.scaling_ == model.scaling_


def test_config_of_output(table):
    from sklearn import config_context

    X, y = table
    expected = machine().fit(X, y)
    with config_context(transform_output="pandas"):
        model = machine().fit(X, y)
        assert list(model.transform(X).columns) == [
            f"rfmregressor{i}" for i in range(8)
        ]
        assert_array_equal(model.predict(X), expected.predict(X))


def test_display(table):
    pytest.importorskip("matplotlib")
    X, y = table
    model = machine().fit(X, y)
    display = MetricDisplay.from_estimator(model)
    labels = {label.get_text() for label in display.ax_.get_yticklabels()}
    assert labels == set(X.columns)
    display = MetricDisplay.from_estimator(model, kind="matrix")
    labels = [label.get_text() for label in display.ax_.get_yticklabels()]
    assert labels[3:5] == ["missingindicator_age", "fuel_gas"]


@pytest.mark.parametrize("scaling", ["standard", "robust", "normal", None])
def test_gradients_are_of_the_users_columns(scaling, rng):
    X = rng.lognormal(0.0, 0.5, (300, 3)) * [1.0, 10.0, 0.1]
    y = np.sin(X[:, 0]) + X[:, 1] / 10
    X[:3, 2] = np.nan
    X = np.column_stack([X, np.full(300, np.nan)])
    smooth = EigenProRegressor("gaussian", alpha=1e-3, random_state=0)
    model = machine(scaling, estimator=smooth).fit(X, y)
    A = np.quantile(X[3:, :3], np.linspace(0.2, 0.8, 7) + 0.0003, axis=0)
    A = np.column_stack([A, np.ones(7)])
    G = gradient(model, A)[:, :, 0]
    for j in range(3):
        step = 1e-6 * X[3:, j].std() * np.eye(4)[j]
        expected = (model.predict(A + step) - model.predict(A - step)) / (2 * step[j])
        size = np.abs(G[:, j]).max()
        assert_allclose(G[:, j], expected, atol=1e-4 * size)
    assert_array_equal(G[:, 3], 0.0)
    M = average_gradient_outer_product(model, A)
    assert_allclose(M, G.T @ G / 7, rtol=1e-6)
    assert gradient(model, X[:3]).shape == (3, 4, 1)  # at gaps, too


def test_gradients_need_numbers(table):
    model = machine().fit(*table)
    message = "gradients need columns of numbers, and column 'fuel' of X is a category"
    with pytest.raises(ValueError, match=message):
        gradient(model, table[0])
    along = gradient(model.estimator_, model.transform(table[0]))
    assert along.shape == (400, 8, 1)


@pytest.mark.parametrize("model", [EigenProClassifier(), NystromRegressor()])
def test_the_others_name_what_takes_tables(model, table):
    X, y = table
    y = y > np.median(y)
    for rows, words in (
        (X, "could not convert string to float: "),
        (X[["size", "age"]], "Input X contains NaN"),
    ):
        message = f"(?s){words}.*RFMRegressor and RFMClassifier.*make_pipeline"
        with pytest.raises(ValueError, match=message):
            model.fit(rows, y)


def test_as_good_as_by_hand(table):
    X, y = table
    X = X[["size", "new", "fuel"]]
    columns = ColumnTransformer(
        [("n", StandardScaler(), [0, 1]), ("c", OneHotEncoder(), [2])]
    )
    by_hand = make_pipeline(columns, machine(None)).fit(X[:300], y[:300])
    model = machine().fit(X[:300], y[:300])
    assert_allclose(model.predict(X), by_hand.predict(X), rtol=1e-8)


def test_a_rare_level_is_not_important(rng):
    """A steep step along a column that seldom varies says little of the rows."""
    frame = pd.DataFrame({"number": rng.standard_normal(400), "level": "usual"})
    frame.loc[::80, "level"] = "rare"
    y = frame["number"] + 3.0 * (frame["level"] == "rare")
    shares = RFMRegressor(random_state=0).fit(frame, y).feature_importances_
    parts = np.var(frame["number"]), 9.0 * np.var(frame["level"] == "rare")
    assert shares[1] == pytest.approx(parts[1] / sum(parts), abs=0.08)


def test_booleans_of_arrow_are_numbers():
    pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)
    values, marks = rng.standard_normal(200), rng.random(200) < 0.5
    expected = pd.DataFrame({"value": values, "mark": marks.astype(float)})
    expected.loc[7, "mark"] = np.nan
    X = expected.astype({"mark": "bool[pyarrow]", "value": "float64[pyarrow]"})
    y = values + 2 * marks
    found, model = (RFMRegressor(random_state=0).fit(Z, y) for Z in (X, expected))
    assert_array_equal(found.predict(X), model.predict(expected))
