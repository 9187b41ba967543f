"""Estimators with their own centers: models, streams, choices of centers."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from sklearn import config_context
from sklearn.exceptions import ConvergenceWarning

from eigenkern import EigenProClassifier, EigenProRegressor
from eigenkern.arrays import memory
from eigenkern.arrays.array import to_numpy
from eigenkern.fitting.streaming import Streaming
from eigenkern.kernels import Laplacian

KERNEL = Laplacian(4.0)
OPTIONS = {"kernel": KERNEL, "random_state": 0}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 4))
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(3000)
    return X, y


@pytest.fixture
def quick(monkeypatch):
    """Measure the step on fewer rows."""
    monkeypatch.setattr("eigenkern.plan.sizes.N_MEASURED", 1000)


def least_squares(X, y, Z):
    """Return the loss of the best model on the centers with a fixed constant."""
    K = np.exp(-cdist(X, Z) / 4.0)
    residual = y - y.mean()
    return np.mean((K @ np.linalg.lstsq(K, residual, rcond=None)[0] - residual) ** 2)


@pytest.mark.parametrize("cache_size", ["auto", 0], ids=["exact", "inexact"])
@pytest.mark.parametrize("algorithm", ["eigenpro3", "eigenpro4"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_reaches_least_squares_on_the_centers(dtype, algorithm, cache_size, data):
    X, y = (part[:1500] for part in data)
    model = EigenProRegressor(
        algorithm=algorithm,
        centers=X[:200].astype(dtype),
        cache_size=cache_size,
        batch_size=50,
        max_iter=30,
        **OPTIONS,
    ).fit(X.astype(dtype), y)
    assert model.projection_interval_ == 1 or algorithm == "eigenpro4"
    assert model.dual_coef_.dtype == dtype
    loss = np.mean((model.predict(X.astype(dtype)) - y) ** 2)
    assert loss < 1.01 * least_squares(X, y, X[:200])
    assert 0 < model.projection_residual_ <= 0.2 or cache_size == "auto"


@pytest.mark.parametrize(
    "n, p, options",
    [
        (5000, 300, {}),
        (5000, 300, {"cache_size": 0}),
        (5000, 100, {"kernel": "gaussian"}),
        (2000, 100, {"kernel": "gaussian", "cache_size": 0}),
        (2000, 300, {"kernel": "cauchy"}),
        (40, 40, {}),
    ],
    ids=str,
)
def test_defaults_reach_least_squares(n, p, options):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((n, 5))
    y = np.sin(X[:, 0]) + 0.3 * X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(n)
    model = EigenProRegressor(n_centers=p, random_state=0, **options).fit(X, y)
    K, residual = model.kernel_(X, model.centers_), y - y.mean()
    best = K @ np.linalg.lstsq(K, residual, rcond=1e-10)[0]
    lost = np.mean((best - residual) ** 2) + 0.01 * np.mean(residual**2)
    assert np.mean((model.predict(X) - y) ** 2) < lost
    assert model.n_step_halvings_ <= 1


def test_auto_is_eigenpro_4_where_there_are_centers(data, quick):
    X, y = data
    options = {"n_centers": 50, "max_iter": 2, "batch_size": 300, **OPTIONS}
    auto, named = (
        EigenProRegressor(algorithm=name, **options).fit(X, y)
        for name in ("auto", "eigenpro4")
    )
    assert_array_equal(auto.dual_coef_, named.dual_coef_)
    assert auto.centers_.shape == (50, 4)
    assert auto.dual_coef_.shape == (50, 1)


def test_all_rows_as_centers_give_the_solution_of_eigenpro_2(data):
    X, y = (part[:300] for part in data)
    general, machine = (
        EigenProRegressor(
            algorithm=name, alpha=0.0, max_iter=200, tol=0, **OPTIONS
        ).fit(X, y)
        for name in ("eigenpro4", "eigenpro2")
    )
    rows = data[0][300:400]
    assert_allclose(general.predict(rows), machine.predict(rows), atol=2e-3)
    assert_allclose(general.predict(X), y, atol=2e-3)


def test_algorithm_1(data):
    X, y = (part[:300] for part in data)
    model = EigenProRegressor(
        algorithm="eigenpro3-exact", n_centers=40, max_iter=300, tol=0, **OPTIONS
    ).fit(X, y)
    assert model.batch_size_ == 300
    assert model.t_ == model.n_iter_ == 300  # a projection per step
    assert np.diff(model.loss_curve_).max() < 1e-12
    # Lemma 6 of the paper.
    K_xx, K = (np.exp(-cdist(X, Z) / 4.0) for Z in (X, model.centers_))
    values, E = (part[..., ::-1] for part in np.linalg.eigh(K_xx))
    q = model.n_components_
    Q = E[:, :q] @ np.diag(1 - values[q] / values[:q]) @ E[:, :q].T
    A = K.T @ (np.eye(300) - Q)
    expected = K @ np.linalg.solve(A @ K, A @ (y - y.mean()))
    assert_allclose(model.predict(X) - y.mean(), expected, atol=0.01)


def test_coefficients_follow_the_centers_that_are_given(data):
    X, y = data
    order = np.random.default_rng(1).permutation(60)
    options = {"algorithm": "eigenpro4", "max_iter": 3, **OPTIONS}
    model = EigenProRegressor(centers=X[:60], **options).fit(X, y)
    K = np.exp(-cdist(X, model.centers_) / 4.0)
    assert_array_equal(model.centers_, X[:60])
    expected = K @ model.dual_coef_[:, 0] + model.intercept_
    assert_allclose(model.predict(X), expected, rtol=1e-9)
    other = EigenProRegressor(centers=X[:60][order], **options).fit(X, y)
    assert_allclose(other.predict(X), model.predict(X), atol=1e-9)


@pytest.mark.parametrize(
    "centers", ["uniform", "kmeans", "leverage_scores", "rpcholesky"]
)
def test_choices_of_centers(centers, data, quick):
    X, y = data
    model = EigenProRegressor(n_centers=120, centers=centers, **OPTIONS).fit(X, y)
    assert model.centers_.shape == (120, 4)
    assert len(np.unique(model.centers_, axis=0)) == 120
    rows_of_X = (cdist(model.centers_, X).min(axis=1) == 0).all()
    assert rows_of_X == (centers != "kmeans")
    assert model.score(X, y) > 0.9


def test_copies_of_a_row_are_one_center(data):
    X, y = (np.repeat(part[:40], 5, axis=0) for part in data)
    model = EigenProRegressor(n_centers=40, max_iter=2, **OPTIONS).fit(X, y)
    assert len(np.unique(model.centers_, axis=0)) == 40
    with pytest.warns(UserWarning, match="n_centers=41 is more than the 40 distinct"):
        model.set_params(n_centers=41).fit(X, y)


def test_early_stopping_and_classes(data):
    X, y = data
    labels = np.array(["low", "high", "middle"])[np.digitize(y, [-0.5, 0.5])]
    model = EigenProClassifier(n_centers=200, early_stopping=True, **OPTIONS)
    model.fit(X, labels)
    assert model.dual_coef_.shape == (200, 3)
    assert max(model.validation_scores_) > 0.85
    assert model.score(X, labels) > 0.85


def test_batches_may_be_larger_than_the_number_of_centers(data):
    X, y = data
    model = EigenProRegressor(n_centers=20, batch_size=500, **OPTIONS).fit(X, y)
    assert model.projection_interval_ == 1
    assert model.n_step_halvings_ == 0
    loss = np.mean((model.predict(X) - y) ** 2)
    assert loss < 1.01 * least_squares(X, y, model.centers_)


def test_scale_of_weights_changes_nothing_and_zero_is_left_out(data, quick):
    X, y = data
    options = {"centers": X[:50], "max_iter": 10, **OPTIONS}
    w = np.random.default_rng(0).uniform(0.5, 2, len(y))
    one = EigenProRegressor(**options).fit(X, y, w)
    other = EigenProRegressor(**options).fit(X, y, 1000 * w)
    assert_allclose(one.dual_coef_, other.dual_coef_, rtol=1e-6, atol=1e-9)
    w[::2] = 0
    one = EigenProRegressor(**options).fit(X, np.where(w == 0, 1e6, y), w)
    assert one.score(X[1::2], y[1::2]) > 0.8


def test_warm_start_goes_on_with_the_same_centers(data, quick):
    X, y = data
    model = EigenProRegressor(n_centers=100, max_iter=2, warm_start=True, **OPTIONS)
    first = model.set_params(random_state=None).fit(X, y).loss_curve_
    centers = model.centers_
    model.fit(X, y)
    assert_array_equal(model.centers_, centers)
    assert model.loss_curve_[0] < first[0]


def test_array_libraries(other_xp, data):
    X, y = (part[:400] for part in data)
    options = {"n_centers": 60, "batch_size": 50, "max_iter": 3, **OPTIONS}
    expected = EigenProRegressor(**options).fit(X, y)
    with config_context(array_api_dispatch=True):
        X_other, y_other = other_xp.asarray(X), other_xp.asarray(y)
        model = EigenProRegressor(**options).fit(X_other, y_other)
        predicted = model.predict(X_other)
        stream = EigenProRegressor(**options).fit_batches([(X_other, y_other)])
    assert_allclose(to_numpy(model.dual_coef_), expected.dual_coef_, rtol=1e-6)
    assert_allclose(to_numpy(predicted), expected.predict(X), rtol=1e-8)
    expected = EigenProRegressor(**options).fit_batches([(X, y)])
    assert_allclose(to_numpy(stream.dual_coef_), expected.dual_coef_, rtol=1e-6)


def test_classes_of_other_libraries(other_xp, data):
    X, y = data[0][:200], (data[1][:200] > 0).astype(int)
    stream = EigenProClassifier(n_centers=60, **OPTIONS)
    for _ in range(2):
        expected = stream.partial_fit(X, y, classes=[0, 1]).predict(X)
    other = EigenProClassifier(n_centers=60, **OPTIONS)
    with config_context(array_api_dispatch=True):
        rows, labels = other_xp.asarray(X), other_xp.asarray(y)
        for _ in range(2):
            other.partial_fit(rows, labels, classes=other_xp.asarray([0, 1]))
        predicted = other.predict(rows)
    assert_array_equal(other.classes_, [0, 1])
    assert_array_equal(to_numpy(predicted), expected)


# Data in pieces


def pieces(data, size):
    X, y = data
    for i in range(0, len(y), size):
        yield X[i : i + size], y[i : i + size]


STREAM = {"n_centers": 80, "batch_size": 100, "n_components": 20, **OPTIONS}


@pytest.mark.parametrize("size", [37, 1000])
def test_a_stream_gives_the_same_in_pieces_of_any_size(size, data, quick):
    whole = EigenProRegressor(**STREAM).fit_batches(pieces(data, 3000))
    model = EigenProRegressor(**STREAM).fit_batches(pieces(data, size))
    assert_array_equal(model.dual_coef_, whole.dual_coef_)
    assert model.n_iter_ == 1
    assert model.score(*data) > 0.8


def test_partial_fit_gives_what_a_stream_gives(data):
    X, y = data
    model = EigenProRegressor(**STREAM).partial_fit(X[:1000], y[:1000])
    size = model.batch_size_ * model.projection_interval_
    assert 1000 % size == 0
    for i in range(1000, 3000, size):
        model.partial_fit(X[i : i + size], y[i : i + size])
    # The start uses only the first piece.
    other = EigenProRegressor(**STREAM).partial_fit(X[:1000], y[:1000])
    other.partial_fit(X[1000:], y[1000:])
    assert_allclose(model.dual_coef_, other.dual_coef_, rtol=1e-9)
    assert model.n_iter_ == 1 + 2000 // size
    whole = EigenProRegressor(**STREAM).partial_fit(X, y)
    stream = EigenProRegressor(**STREAM, max_iter=1).fit_batches(pieces(data, 500))
    assert_array_equal(whole.dual_coef_, stream.dual_coef_)


def test_the_first_rows_of_a_stream_that_is_read_once_are_learned_well(rng):
    X = rng.standard_normal((5000, 4))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(5000)
    errors, rows, new = [], (X[:4000], y[:4000]), (X[4000:], y[4000:])
    for max_iter in (1, 20):
        model = EigenProRegressor("gaussian", n_centers=500, random_state=0)
        model.set_params(max_iter=max_iter).fit_batches(pieces(rows, 500))
        assert model.n_iter_ == 1
        errors.append(1 - model.score(*new))
    assert errors[1] < 0.7 * errors[0]


def test_one_epoch_of_fit_is_a_stream_in_its_order(data):
    X, y = data[0][:800], data[1][:800] - data[1][:800].mean()
    order = np.random.RandomState(0).permutation(800)
    options = {**STREAM, "n_centers": None, "centers": data[0][1000:1080]}
    options |= {"step_size": 10.0, "n_components": 0, "batch_size": 800, "max_iter": 1}
    options["alpha"] = 0.0
    fitted = EigenProRegressor(**options).fit(X, y)
    stream = EigenProRegressor(**options).fit_batches([(X[order], y[order])])
    assert_allclose(fitted.dual_coef_, stream.dual_coef_, rtol=1e-9)


def test_passes_over_a_callable_or_a_list(data, quick):
    options = {**STREAM, "max_iter": 4}
    once = {**options, "max_iter": 1}
    once = EigenProRegressor(**once).fit_batches(pieces(data, 500))
    called = EigenProRegressor(**options).fit_batches(lambda: pieces(data, 500))
    listed = EigenProRegressor(**options).fit_batches(list(pieces(data, 750)))
    assert (once.n_iter_, called.n_iter_, listed.n_iter_) == (1, 4, 4)
    assert_array_equal(called.dual_coef_, listed.dual_coef_)
    assert called.loss_curve_[0] == once.loss_curve_[0]
    assert called.loss_curve_[-1] < once.loss_curve_[0]


def test_a_stream_with_weights_and_classes(data):
    X, y = data
    labels = (y > 0).astype(int)
    batches = [(X[i::3], labels[i::3], np.ones(1000)) for i in range(3)]
    model = EigenProClassifier(**STREAM).fit_batches(batches)
    assert_array_equal(model.classes_, [0, 1])
    assert model.score(X, labels) > 0.9


def test_a_stream_that_breaks_off_keeps_what_was_learned(data):
    X, y = data
    labels = (y > 0).astype(int)

    def stream():
        for i in range(0, 2500, 500):
            yield X[i : i + 500], labels[i : i + 500]
        yield X[:5], np.full(5, 7)

    # Everything is known at the start: the classes of the first 8000 rows.
    model = EigenProClassifier(**STREAM)
    with pytest.raises(ValueError, match="y must hold only classes"):
        model.fit_batches(stream(), classes=[0, 1])
    assert not hasattr(model, "dual_coef_")

    def long():
        for _ in range(4):
            yield X, labels
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit_batches(long())
    assert model.score(X, labels) > 0.9
    assert model.predict(X[:3]).shape == (3,)


@pytest.mark.parametrize("reading", [False, True])
@pytest.mark.parametrize("fitted", [False, True])
def test_a_stream_that_breaks_off_before_the_first_step(
    fitted, reading, rng, monkeypatch
):
    X = rng.standard_normal((8000, 2))
    labels = X[:, 0] > 0

    def interrupted(*_):
        raise KeyboardInterrupt

    def stream():
        yield X[:4000], labels[:4000]
        yield (interrupted if reading else tuple)((X[4000:], labels[4000:]))

    model = EigenProClassifier(n_centers=20, random_state=0)
    if fitted:
        model.fit(X[:300], np.where(labels[:300], "yes", "no"))
    expected = model.predict(X) if fitted else None
    before = dict(vars(model))
    monkeypatch.setattr("eigenkern.fitting.streaming.train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit_batches(stream())
    assert vars(model).keys() == before.keys()
    assert all(value is before[name] for name, value in vars(model).items())
    if fitted:
        assert_array_equal(model.predict(X), expected)


def test_classes_that_grow_after_the_first_rows(data):
    X, y = data
    labels = (y > 0).astype(int)

    def stream():
        for _ in range(3):
            yield X, labels
        yield X[:5], np.full(5, 7)

    model = EigenProClassifier(**STREAM)
    with pytest.raises(ValueError, match=r"\[0, 1\]; got 7"):
        model.fit_batches(stream())
    assert model.score(X, labels) > 0.9


def test_a_failed_start_changes_nothing(data):
    X, y = data
    model = EigenProRegressor(**STREAM).fit(X, y)
    before = model.predict(X[:5])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit_batches([(X, y[:-1])])
    assert_array_equal(model.predict(X[:5]), before)


def test_partial_fit_goes_on_after_fit_and_after_pickling(data, quick):
    X, y = data
    model = EigenProRegressor(max_iter=2, **STREAM).fit(X[:1500], y[:1500])
    before = model.score(X, y)
    centers = model.centers_
    model.partial_fit(X[1500:], y[1500:])
    assert_array_equal(model.centers_, centers)
    assert model.score(X, y) > before - 0.02
    dumped = pickle.dumps(model)
    # It is small apart from the eigenvectors and the rows that are kept or judge, with
    # their targets and labels.
    kept = 8 * (1500 + 500) * (X.shape[1] + 2)
    eigenvectors = model._learner_.tuning.preconditioner.vectors.nbytes
    assert len(dumped) - kept - eigenvectors < 20_000
    again = pickle.loads(dumped).partial_fit(X, y)
    assert again.n_iter_ == model.n_iter_ + 1
    assert again.score(X, y) > before - 0.02


def test_a_fit_forgets_what_was_learned_in_pieces(data, quick):
    X, y = data
    model = EigenProRegressor(**STREAM).partial_fit(X, y)
    model.fit(X, y)
    expected = EigenProRegressor(**STREAM).fit(X, y)
    assert_array_equal(model.dual_coef_, expected.dual_coef_)
    model.partial_fit(X[:500], y[:500])
    expected.partial_fit(X[:500], y[:500])
    assert_array_equal(model.dual_coef_, expected.dual_coef_)


@pytest.mark.parametrize("pieces_of", [1000, 3000])
def test_automatic_streams_learn_as_fast_as_a_fit(pieces_of, data, quick):
    X, y = data
    options = {"n_centers": 60, "random_state": 0, "max_iter": 1}
    fitted = EigenProRegressor(**options).fit(X, y).score(X, y)
    model = EigenProRegressor(**options).fit_batches(pieces(data, pieces_of))
    assert model.score(X, y) > fitted - 0.05
    model = EigenProRegressor(**options)
    for piece in pieces(data, pieces_of):
        model.partial_fit(*piece)
    assert model.score(X, y) > fitted - 0.05


def test_a_stream_in_the_order_of_its_rows(data):
    X, y = data
    order = np.argsort(X[:, 0])
    model = EigenProRegressor(n_centers=60, random_state=0)
    model.fit_batches([(X[order], y[order])] * 3)
    assert model.centers_[:, 0].min() < -1.5
    assert model.centers_[:, 0].max() > 1.5


def test_one_row_unlike_the_others_changes_little(data, quick):
    X, y = data
    model = EigenProRegressor(**STREAM).partial_fit(X, y)
    before, values = model.score(X, y), model.predict(X)
    worst = np.argmax(np.abs(values))
    model.partial_fit(X[worst : worst + 1], -values[worst : worst + 1])
    assert model.score(X, y) > before - 0.1
    assert model.n_step_halvings_ == 0


@pytest.mark.parametrize("n_pieces", [1, 4, 5, 11])
def test_goes_on_after_a_stream_that_broke_off(n_pieces, data, quick):
    X, y = data

    def broken():
        yield from [(X, y)] * 3  # more than the start
        for i in range(n_pieces):
            yield X[100 * i : 100 * (i + 1)], y[100 * i : 100 * (i + 1)]
        raise OSError

    options = {**STREAM, "n_centers": 600, "n_components": 100}
    model = EigenProRegressor(**options)
    with pytest.raises(OSError):
        model.fit_batches(broken())
    assert model.projection_interval_ > 1
    before = model.score(X, y)
    model.partial_fit(X[:500], y[:500])
    assert model.score(X, y) > before - 0.05
    assert model.n_step_halvings_ == 0


def test_a_stream_that_diverges_learns_with_shorter_steps(data):
    model = EigenProRegressor(**{**STREAM, "step_size": 1e12})
    model.fit_batches(pieces(data, 500))
    assert 25 < model.n_step_halvings_ < 35
    assert model.score(*data) > 0.8
    used_up = pieces(data, 1000)
    with pytest.raises(ValueError, match="batches must yield rows in every epoch"):
        EigenProRegressor(**STREAM).fit_batches(lambda: used_up)


def test_a_stream_that_no_step_keeps_bounded(data):
    X, y = data
    model = EigenProRegressor(
        **{**STREAM, "step_size": 1e20, "max_iter": 9, "verbose": 1}
    )
    with pytest.warns(ConvergenceWarning) as warned:
        model.fit_batches(list(pieces(data, 500)))
    (said,) = [str(warning.message) for warning in warned]
    assert "learned nothing from a pass over the stream: no step size" in said
    assert (model.n_iter_, model.loss_curve_, model.t_) == (0, [], 0)
    assert_array_equal(model.dual_coef_, 0)
    assert_allclose(model.predict(X), y.mean())
    model.set_params(step_size="auto", max_iter=1).fit_batches(pieces(data, 500))
    assert model.score(X, y) > 0.8


@pytest.mark.parametrize("algorithm", ["eigenpro3", "eigenpro4"])
def test_a_factor_of_the_centers_counts_as_cache(algorithm, data):
    """With its matrix it takes 16 p^2 bytes; with less, projections are inexact."""
    X, y = data[0][:1000], data[1][:1000]
    model = EigenProRegressor(algorithm=algorithm, n_centers=100, max_iter=1, **OPTIONS)
    residuals = [
        model.set_params(cache_size=size).fit(X, y).projection_residual_
        for size in (0, 0.159, 0.161)
    ]
    assert residuals[0] > 0 and residuals[1] > 0 and residuals[2] == 0


def test_what_was_learned_before_a_pass_failed_is_kept(data, monkeypatch):
    n_passes, learn = [], Streaming._learn

    def learned(self, piece):  # the third pass fails
        return learn(self, piece) if len(n_passes) < 3 else None

    def batches():
        n_passes.append(None)
        return pieces(data, 500)

    expected = EigenProRegressor(**STREAM, max_iter=2).fit_batches(batches)
    n_passes.clear()
    monkeypatch.setattr(Streaming, "_learn", learned)
    model = EigenProRegressor(**STREAM, max_iter=9)
    with pytest.warns(ConvergenceWarning, match="what was learned before that is kept"):
        model.fit_batches(batches)
    assert model.n_iter_ == 2 and model.loss_curve_ == expected.loss_curve_
    assert_array_equal(model.dual_coef_, expected.dual_coef_)


def test_projections_that_end_too_soon_warn(data, monkeypatch):
    X, y = data
    monkeypatch.setattr("eigenkern.methods.projected._MAX_PRODUCTS", 1)
    monkeypatch.setattr("eigenkern.estimators.eigenpro_fit._LARGEST_RESIDUAL", 0.1)
    model = EigenProRegressor(n_centers=300, cache_size=0, n_components=0, **OPTIONS)
    with pytest.warns(ConvergenceWarning, match=r"residual of 0\.\d+ was left"):
        model.set_params(max_iter=1).fit(X, y)


def test_rows_without_weight_are_left_out_of_the_start(data):
    X, y = data
    w = np.repeat([0.0, 1.0], [2500, 500])
    model = EigenProRegressor(**STREAM).partial_fit(X, np.where(w, y, 1e9), w)
    assert model.score(X[2500:], y[2500:]) > 0.5


def test_new_parameters_count_from_the_next_piece_on(data, quick):
    X, y = data
    model = EigenProRegressor(**STREAM).partial_fit(X, y)
    model.set_params(batch_size=50).partial_fit(X, y)
    assert model.batch_size_ == 50


def test_centers_that_are_given_are_copied(data):
    X, y = data
    Z = X[:50].copy()
    model = EigenProRegressor(centers=Z, max_iter=2, **OPTIONS).fit(X, y)
    before = model.predict(X[:5])
    Z += 1
    assert_array_equal(model.predict(X[:5]), before)


def test_memory_map(tmp_path, data):
    X, y = data
    mapped = np.memmap(tmp_path / "X.bin", dtype=X.dtype, mode="w+", shape=X.shape)
    mapped[:] = X
    options = {"n_centers": 50, "max_iter": 2, "cache_size": 0, **OPTIONS}
    model = EigenProRegressor(**options).fit(mapped, y)
    expected = EigenProRegressor(**options).fit(X, y)
    assert_array_equal(model.dual_coef_, expected.dual_coef_)


# Invalid input


@pytest.mark.parametrize(
    "options, message",
    [
        ({"n_centers": 0}, "n_centers must be an integer >= 1; got 0"),
        ({"n_centers": 5, "algorithm": "eigenpro2"}, "n_centers must be None"),
        ({"centers": np.zeros((2, 4))}, "centers must be distinct"),
        ({"centers": np.zeros((2, 3))}, r"centers must have the 4 features of X"),
        ({"centers": "grid", "n_centers": 5}, "centers must be 'uniform'.*got 'grid'"),
        ({"n_centers": 5, "centers": np.eye(4)}, "n_centers must be None or 4"),
        ({"n_centers": 5, "kernel": "precomputed"}, "kernel='precomputed' must go"),
        ({"n_centers": 5, "n_components": 5}, "n_components must be less than"),
        ({"n_centers": 5, "subsample_size": 6}, "subsample_size must be at most 5"),
        (
            {"n_centers": 5, "algorithm": "eigenpro3-exact", "batch_size": 10},
            "batch_size must be 'auto'",
        ),
        ({"n_centers": 5, "batch_size": 3001}, "batch_size must be at most 3000"),
    ],
)
def test_wrong_parameters(options, message, data):
    X, y = data
    X = KERNEL(X[:50]) if options.get("kernel") == "precomputed" else X
    y = y[: len(X)]
    with pytest.raises(ValueError, match=message):
        EigenProRegressor(**{**OPTIONS, **options}).fit(X, y)


@pytest.mark.parametrize("p", [20, 60])
def test_exact_projections_need_memory(p, data, monkeypatch):
    """For K(X, Z), and two matrices of the centers in double precision."""
    X, y = data[0][:300], data[1][:300]
    model = EigenProRegressor(
        algorithm="eigenpro3-exact",
        n_centers=p,
        max_iter=2,
        n_components=4,
        subsample_size=50,
        **OPTIONS,
    )
    expected = model.fit(X, y).predict(X)
    needed = 8 * 300 * p + 16 * p**2
    monkeypatch.setattr(memory, "available", lambda *_: needed - 1)
    message = f"eigenpro3-exact' with {p} centers of 300 rows needs 0 MB, but 0 MB .*"
    with pytest.raises(ValueError, match=message + "pass a smaller n_centers or algor"):
        model.fit(X, y)
    assert_array_equal(model.predict(X), expected)
    monkeypatch.setattr(memory, "available", lambda *_: needed)
    model.fit(X, y)


@pytest.mark.parametrize(
    "batches, message",
    [
        ([], "batches must yield pieces"),
        ([None], "got NoneType"),
        ([(np.ones((9, 4)), np.arange(9)), None], "got NoneType"),
        ([(np.ones((9, 4)), np.arange(9)), (np.ones((9, 4)), None)], "None as y"),
        ([(None, None)], "got None as X"),
        (3, "batches must be an iterable of pieces"),
        (
            [np.zeros((5, 4))],
            r"pieces \(X, y\) or \(X, y, sample_weight\); got ndarray",
        ),
        ([(np.zeros((5, 4)), np.zeros(4))], "inconsistent numbers of samples"),
        ([(np.zeros((1, 4)), np.zeros(1))], "at least 2 rows; got 1"),
        ([(np.ones((9, 4)), np.ones(9))], "n_centers must be at most 1, the number"),
        (
            [(np.ones((9, 4)), np.ones(9)), (np.ones((9, 3)), np.ones(9))],
            "X has 3 features",
        ),
    ],
)
def test_wrong_streams(batches, message):
    with pytest.raises(ValueError, match=message):
        EigenProRegressor(**STREAM).fit_batches(batches)


def test_pieces_need_centers_and_nothing_that_wants_all_rows(data):
    assert not hasattr(EigenProRegressor(), "partial_fit")
    assert not hasattr(EigenProRegressor(), "fit_batches")
    X, y = data
    model = EigenProRegressor(n_centers=5, early_stopping=True)
    with pytest.raises(ValueError, match="early_stopping must be False"):
        model.partial_fit(X, y)
    for model in (
        EigenProRegressor(n_centers=5, algorithm="eigenpro3-exact"),
        EigenProRegressor(algorithm="eigenpro4"),
    ):
        with pytest.raises(AttributeError, match="partial_fit"):
            model.partial_fit(X, y)
    with pytest.raises(ValueError, match="class_weight='balanced' needs all rows"):
        EigenProClassifier(n_centers=5, class_weight="balanced").partial_fit(
            X, y > 0, classes=[False, True]
        )


def test_a_kernel_without_a_step_warns(data):
    X, y = data

    def indefinite(A, B):
        return -KERNEL(A, B)

    options = {"kernel": indefinite, "n_centers": 5, "random_state": 0}
    with pytest.raises(ValueError, match="positive semi-definite for data in pieces"):
        EigenProRegressor(**options).partial_fit(X, y)
    with pytest.warns(ConvergenceWarning, match="not positive semi-definite") as record:
        model = EigenProRegressor(**options).fit(X, y)
    assert len(record) == 1 and model.algorithm_ == "direct"
    # The columns of the kernel matrix span the same functions, whatever their sign.
    options |= {"kernel": KERNEL, "centers": model.centers_, "n_centers": None}
    expected = EigenProRegressor(**options, alpha=0.0).fit(X, y)
    assert_allclose(model.predict(X), expected.predict(X), atol=1e-6)
    model = EigenProRegressor(
        n_centers=20, step_size=1e30, max_iter=2, kernel=KERNEL, random_state=0
    )
    with pytest.warns(ConvergenceWarning, match="found no step size"):
        model.fit(X, y)
    assert np.isfinite(model.dual_coef_).all()


def test_warm_start_needs_the_columns_of_its_centers(rng):
    X = rng.standard_normal((60, 3))
    model = EigenProRegressor(n_centers=20, warm_start=True, random_state=0)
    model.fit(X, X[:, 0])
    with pytest.raises(ValueError, match="needs X with 3 columns; got 2"):
        model.fit(X[:, :2], X[:, 0])
