"""Data in pieces, in the worst orders."""

import pickle
import warnings

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from eigenkern import (
    DSGClassifier,
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    LinearEigenProClassifier,
    LinearEigenProRegressor,
)
from eigenkern.estimators import eigenpro
from eigenkern.fitting import streaming

SIZE = 50
REGRESSORS = {
    "eigenpro": EigenProRegressor(n_centers=50, random_state=0),
    "linear": LinearEigenProRegressor(random_state=0),
    "dsg": DSGRegressor(block_size=64, max_features=1024, random_state=0),
}
CLASSIFIERS = {
    "eigenpro": EigenProClassifier(n_centers=50, random_state=0),
    "linear": LinearEigenProClassifier(random_state=0),
    "dsg": DSGClassifier(block_size=64, max_features=1024, random_state=0),
}


def wave(seed, n=300):
    rng = np.random.RandomState(seed)
    X = rng.randn(n, 3)
    return X, np.sin(X[:, 0]) + 0.1 * rng.randn(n)


def fresh(model):
    return pickle.loads(pickle.dumps(model))


def learned(model, X, y, n_passes=5, size=SIZE, **first):
    """Return a model after some passes, and its warnings."""
    model = fresh(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(n_passes):
            for i in range(0, len(y), size):
                model.partial_fit(X[i : i + size], y[i : i + size], **first)
                first = {}
    assert all(issubclass(one.category, ConvergenceWarning) for one in caught)
    return model, [str(one.message) for one in caught]


def one_pass(model, X, y):
    """Continue to learn without a copy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for i in range(0, len(y), 100):
            model.partial_fit(X[i : i + 100], y[i : i + 100])
    return model


def orders(X, y):
    return {"y": np.argsort(y), "-y": np.argsort(-y), "x": np.argsort(X[:, 0])}


@pytest.mark.parametrize("order", ["y", "-y", "x"])
@pytest.mark.parametrize("family", REGRESSORS)
def test_sorted_streams_end_near_the_shuffled_one(family, order):
    X, y = wave(0)
    shuffled, _ = learned(REGRESSORS[family], X, y)
    rows = orders(X, y)[order]
    model, _ = learned(REGRESSORS[family], X[rows], y[rows])
    assert model.score(X, y) > shuffled.score(X, y) - 0.05
    assert model.n_iter_ == 30


@pytest.mark.parametrize("family", REGRESSORS)
@pytest.mark.parametrize("order", ["y", "x"])
def test_one_sorted_piece_is_learned_in_random_order(family, order):
    X, y = wave(0, 1200)
    shuffled = fresh(REGRESSORS[family]).partial_fit(X, y)
    rows = orders(X, y)[order]
    model = fresh(REGRESSORS[family]).partial_fit(X[rows], y[rows])
    assert model.score(X, y) > shuffled.score(X, y) - 0.05


def test_centers_stay_where_fewer_rows_are_kept(monkeypatch):
    monkeypatch.setattr("eigenkern.fitting.streaming._MAX_RETAINED", 40)
    X, y = wave(0)
    rows = np.r_[:SIZE, SIZE + np.argsort(y[SIZE:])]
    model, _ = learned(REGRESSORS["eigenpro"], X[rows], y[rows])
    assert_array_equal(np.sort(model.centers_, 0), np.sort(X[:SIZE], 0))
    assert model.score(X, y) > 0.85


@pytest.mark.parametrize("order", ["y", "-y", "x"])
@pytest.mark.parametrize("family", REGRESSORS)
def test_sorted_streams_say_so_once(family, order):
    X, y = wave(0)
    _, said = learned(REGRESSORS[family], X, y)
    assert not said
    rows = orders(X, y)[order]
    _, said = learned(REGRESSORS[family], X[rows], y[rows])
    said = [text for text in said if "gets unshuffled data: 3 pieces in a row" in text]
    assert len(said) == 1
    assert order == "x" or "the last one in the target;" in said[0]


def test_a_feature_that_the_target_does_not_depend_on():
    X, y = wave(0)
    rows = np.argsort(X[:, 2])
    _, said = learned(REGRESSORS["eigenpro"], X[rows], y[rows], 1)
    said = [text for text in said if "gets unshuffled data" in text]
    assert len(said) == 1 and "in feature 2;" in said[0]
    frame = pytest.importorskip("pandas").DataFrame(X, columns=list("abc"))
    _, said = learned(REGRESSORS["eigenpro"], frame.iloc[rows], y[rows], 1)
    assert "in feature 'c';" in said[-1]


@pytest.mark.parametrize("order", ["y", "x"])
def test_few_kept_rows_do_not_replace_what_many_taught(order, monkeypatch):
    monkeypatch.setattr("eigenkern.fitting.streaming._MAX_RETAINED", 100)
    rng = np.random.RandomState(2)
    X = rng.randn(800, 3)
    y = np.sin(X[:, 0]) + 0.3 * rng.randn(800)
    X_new = rng.randn(2000, 3)
    rows = orders(X, y)[order]
    model, _ = learned(REGRESSORS["dsg"], X[rows], y[rows], 4)
    # 0.90 and 0.85 if restarted models are compared on rows that they learned.
    assert model.score(X_new, np.sin(X_new[:, 0])) > 0.915


def test_two_pieces_that_differ_are_no_order():
    X, y = wave(0)
    other = X + 10.0
    model, said = learned(REGRESSORS["linear"], X, y, 1)
    for _ in range(3):
        for rows in (other[:50], other[50:100], X[:50]):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model.partial_fit(rows, y[:50])
            assert not [one for one in caught if "unshuffled" in str(one.message)]
    assert not said


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_streams_sorted_by_class(family):
    X, y = wave(0)
    labels, classes = y > 0, {"classes": [False, True]}
    shuffled, _ = learned(CLASSIFIERS[family], X, labels, **classes)
    rows = np.argsort(labels, kind="stable")
    model, _ = learned(CLASSIFIERS[family], X[rows], labels[rows], **classes)
    assert model.score(X, labels) > shuffled.score(X, labels) - 0.02


@pytest.mark.parametrize("family", REGRESSORS)
def test_a_first_piece_of_one_target(family):
    X, y = wave(0)
    shuffled, _ = learned(REGRESSORS[family], X, y)
    first = np.full(SIZE, 0.1) * (1 + 1e-16 * np.arange(SIZE))
    model = fresh(REGRESSORS[family]).partial_fit(X[:SIZE], first)
    assert model.n_step_halvings_ == 0
    model, warned = learned(model, X, y)
    assert not warned
    assert model.score(X, y) > shuffled.score(X, y) - 0.05


@pytest.mark.parametrize("kernel", ["laplacian", "gaussian"])
@pytest.mark.parametrize("seed", range(6))
def test_a_small_first_piece_is_no_worse_than_its_mean(kernel, seed):
    """One step on all its rows, projected to few centers, was in half of these."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((100, 4))
    y = X[:, 0] + 0.1 * rng.standard_normal(100)
    model = EigenProRegressor(kernel, n_centers=20, random_state=0).partial_fit(X, y)
    assert model.score(X, y) > 0.02
    assert model.n_iter_ == 1


@pytest.mark.parametrize("kind", [OSError, ValueError])
def test_rows_before_a_piece_that_fails_are_learned(kind, monkeypatch):
    """They wait for others, and whoever goes on from that piece would miss them."""
    monkeypatch.setattr(eigenpro, "n_sampled_rows", lambda n: 500)
    X, y = wave(0, 2000)
    fresh_model = EigenProRegressor(n_centers=40, random_state=0)

    def pieces(fails):
        for i in range(0, 1950, 150):
            yield X[i : i + 150], y[i : i + 150]
        if fails and kind is OSError:
            raise OSError("the disk is gone")
        if fails:
            yield X[:5, :2], y[:5]

    model = clone(fresh_model)
    with pytest.raises(kind, match=r"disk is gone|2 features"):
        model.fit_batches(pieces(True))
    expected = clone(fresh_model).fit_batches(pieces(False))
    assert_array_equal(model.predict(X), expected.predict(X))


@pytest.mark.filterwarnings("default::sklearn.exceptions.ConvergenceWarning")
def test_a_first_piece_of_which_nothing_is_learned(monkeypatch):
    X = np.random.default_rng(4).standard_normal((100, 4))
    monkeypatch.setattr(streaming, "_N_EPOCHS_ANEW", 1)
    model = EigenProRegressor(n_centers=20, random_state=0)
    with pytest.warns(ConvergenceWarning, match="this piece of the data changed nothi"):
        model.partial_fit(X, X[:, 0])
    assert_allclose(model.predict(X), X[:, 0].mean(), atol=1e-12)


def test_a_target_constant_to_rounding_halves_no_step():
    X, y = wave(0)
    constant = 0.1 + 1e-17 * np.arange(SIZE)
    for shift in (3.0, 1e6):
        first = constant + shift
        first[::7] = np.nextafter(first[::7], np.inf)
        model = LinearEigenProRegressor(random_state=0).partial_fit(X[:SIZE], first)
        assert model.n_step_halvings_ == 0
        model.partial_fit(X, y + shift)
        assert model.n_step_halvings_ <= 2
        assert model.score(X, y + shift) > 0.7


@pytest.mark.parametrize("family", REGRESSORS)
@pytest.mark.parametrize("columns_first", [False, True])
def test_targets_in_one_column_or_none(family, columns_first):
    X, y = wave(0)
    one, two = (y, y[:, None])[:: -1 if columns_first else 1]
    model = fresh(REGRESSORS[family]).partial_fit(X[:100], one[:100])
    expected = fresh(model).partial_fit(X[100:], one[100:])
    model.partial_fit(X[100:], two[100:])
    assert_array_equal(model.predict(X), expected.predict(X))
    assert model.predict(X).shape == one.shape


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("kernel", "least"), [("gaussian", 0.88), ("laplacian", 0.35)])
def test_pieces_that_go_beyond_the_rows_so_far(kernel, least, seed):
    rng = np.random.RandomState(seed)
    X = rng.uniform(-1, 1, (5000, 5))
    y = np.sin(4 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.randn(5000)
    order = np.argsort(X[:, 0])
    options = {"bandwidth": "median", "n_centers": 200, "random_state": 0}
    model = EigenProRegressor(kernel, **options)
    model, said = learned(model, X[order], y[order], n_passes=1, size=250)
    assert len(said) == 1 and "the last one in feature 0" in said[0]
    assert model.score(X, y) > least


@pytest.mark.parametrize("family", REGRESSORS)
def test_rows_of_small_pieces_wait_for_others(family):
    X, y = wave(0, 200)
    model = fresh(REGRESSORS[family]).partial_fit(X[:100], y[:100])
    before = model.predict(X)
    for i in range(100, 131):
        model.partial_fit(X[i : i + 1], y[i : i + 1])
    if family != "linear":  # its means count every row
        assert_array_equal(model.predict(X), before)
    assert (model.n_iter_, len(model.loss_curve_)) == (32, 32)
    pieces, rows = fresh(model), slice(131, 132)
    model.partial_fit(X[rows], y[rows])
    assert np.abs(model.predict(X) - before).max() > 1e-3
    # As one piece of 32 rows.
    assert_array_equal(
        pieces.partial_fit(X[rows], y[rows]).predict(X), model.predict(X)
    )


@pytest.mark.parametrize("family", REGRESSORS)
def test_pieces_of_one_row(family):
    X, y = wave(0, 200)
    start = fresh(REGRESSORS[family])
    if family == "eigenpro":
        start.set_params(bandwidth="median")
    shuffled, _ = learned(start, X, y, 2)
    rows = np.r_[np.arange(SIZE), SIZE + np.argsort(y[SIZE:])]
    model = fresh(start).partial_fit(X[:SIZE], y[:SIZE])
    in_order, said = learned(model, X, y, 2, size=1)
    assert not said and in_order.score(X, y) > shuffled.score(X, y) - 0.02
    ordered, said = learned(model, X[rows], y[rows], 2, size=1)
    assert len(said) == 1 and "the last one in the target;" in said[0]
    assert ordered.score(X, y) > shuffled.score(X, y) - 0.03


@pytest.mark.parametrize("family", REGRESSORS)
def test_each_fair_piece_undoes_one_halving(family):
    X, y = wave(0, 500)
    model = fresh(REGRESSORS[family]).partial_fit(X[:200], y[:200])
    model.n_step_halvings_ = 2
    for i, expected in zip(range(200, 500, 100), (1, 0, 0), strict=True):
        model.partial_fit(X[i : i + 100], y[i : i + 100])
        assert model.n_step_halvings_ == expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("family", REGRESSORS)
def test_pickled_models_go_on_as_those_in_memory(family, dtype):
    X, y = wave(0, 400)
    X, rows = X.astype(dtype), np.argsort(y)
    for order in (np.arange(400), rows):
        model, _ = learned(REGRESSORS[family], X[order][:300], y[order][:300], 1)
        model.partial_fit(X[:5], y[:5])
        again = fresh(model)
        again = one_pass(again, X[order], y[order])
        model = one_pass(model, X[order], y[order])
        assert_array_equal(again.predict(X), model.predict(X))
        assert again.step_size_ == model.step_size_


def test_pickled_models_go_on_with_conjugate_gradients():
    X, y = wave(0, 600)
    model = EigenProRegressor(n_centers=200, cache_size=0, random_state=0)
    model.partial_fit(X[:300], y[:300])
    again = fresh(fresh(model))
    for one in (model, again):
        one.partial_fit(X, y)
    assert_array_equal(again.dual_coef_, model.dual_coef_)
    assert again.projection_residual_ == model.projection_residual_


def test_what_is_kept_does_not_grow():
    X, y = wave(0, 6000)
    model = EigenProRegressor(n_centers=20, random_state=0).partial_fit(X, y)
    size = len(pickle.dumps(model))
    model.partial_fit(X, y)
    assert len(pickle.dumps(model)) < size + 20_000 < 200_000


def test_the_best_model_is_kept_where_no_step_helps():
    X, y = wave(0)
    model = LinearEigenProRegressor(random_state=0).partial_fit(X[:200], y[:200])
    before, step = model.coef_, model.step_size_
    model.step_size_ = 1e60
    for _ in range(2):  # the model can still change
        with pytest.warns(ConvergenceWarning, match="this piece of the data changed"):
            model.partial_fit(X[200:250], y[200:250])
        assert_array_equal(model.coef_, before)
    model.step_size_ = step
    for _ in range(5):
        model.partial_fit(X, y)
    assert model.score(X, y) > 0.8


@pytest.mark.parametrize("order", ["y", "x"])
def test_batches_in_an_order(order):
    X, y = wave(1, 1200)
    rows = orders(X, y)[order]

    def fitted(X, y):
        model = EigenProRegressor(n_centers=50, max_iter=5, random_state=0)
        return model.fit_batches([(X[i::6], y[i::6]) for i in range(6)])

    def in_order(X, y):
        model = EigenProRegressor(n_centers=50, max_iter=5, random_state=0)
        parts = [slice(i, i + 100) for i in range(0, 1200, 100)]
        return model.fit_batches([(X[part], y[part]) for part in parts])

    shuffled = fitted(X, y).score(X, y)
    assert in_order(X[rows], y[rows]).score(X, y) > shuffled - 0.05


def test_sparse_rows_are_kept():
    X, y = wave(0)
    S, rows = scipy.sparse.csr_matrix(X), np.argsort(y)
    dense, _ = learned(REGRESSORS["linear"], X[rows], y[rows], 2)
    sparse, _ = learned(REGRESSORS["linear"], S[rows], y[rows], 2)
    assert abs(sparse.score(S, y) - dense.score(X, y)) < 0.05


def test_a_pickle_learns_on_and_is_pickled_again(rng):
    X, y = rng.standard_normal((600, 3)), rng.standard_normal(600)
    model = EigenProRegressor(n_centers=20, batch_size=50, random_state=0)
    model.partial_fit(X[:300], y[:300])
    again = pickle.loads(pickle.dumps(model)).partial_fit(X[300:450], y[300:450])
    again = pickle.loads(pickle.dumps(again)).partial_fit(X[450:], y[450:])
    model.partial_fit(X[300:450], y[300:450]).partial_fit(X[450:], y[450:])
    np.testing.assert_allclose(again.predict(X), model.predict(X), rtol=1e-12)


@pytest.mark.parametrize("kernel", ["laplacian", "gaussian"])
@pytest.mark.parametrize("classes", [False, True])
def test_a_fit_to_other_targets_is_given_up(kernel, classes):
    """Rows of a fit are not kept, and a model that contradicts the stream stays bad."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((1600, 5))
    y = X[:, 0] + 2 * X[:, 1]
    model = EigenProRegressor(kernel, n_centers=50, random_state=0)
    if classes:
        model = EigenProClassifier(kernel, n_centers=50, random_state=0)
        y = np.where(y > 0, 1, -1)
    model.fit(X[:200], y[:200])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for i in range(200, 1200, 100):
            model.partial_fit(X[i : i + 100], -y[i : i + 100])
    assert model.score(X[1200:], -y[1200:]) > 0.9


@pytest.mark.parametrize("kernel", ["laplacian", "gaussian"])
def test_a_first_piece_much_nearer_together_is_outgrown(kernel):
    """Its bandwidth and step suit no later piece; means of the pieces are equal."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((900, 3))
    X[:60] *= 0.01
    y = np.sin(X[:, 0]) + 0.7 * X[:, 1]
    model = EigenProRegressor(kernel, n_centers=50, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for i in range(0, 600, 60):
            model.partial_fit(X[i : i + 60], y[i : i + 60])
    assert model.score(X[600:], y[600:]) > 0.9
