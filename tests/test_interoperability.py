"""Inside other tools of scikit-learn, and searches by Optuna."""

import re

import numpy as np
import optuna
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import randint
from sklearn import config_context
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import BaggingClassifier, StackingRegressor
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.inspection import PartialDependenceDisplay, permutation_importance
from sklearn.linear_model import Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    RandomizedSearchCV,
    train_test_split,
)
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import eigenkern
from eigenkern import (
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeRegressor,
    KernelPCA,
    LinearEigenProClassifier,
    NystromClassifier,
    NystromRegressor,
    RandomFourierFeatures,
    RBFNetworkFeatures,
    RFMRegressor,
)
from eigenkern.arrays.array import to_numpy
from eigenkern.fitting import conveniences as documentation


@pytest.mark.filterwarnings("ignore:.* learned nothing")  # with the bandwidth 1e-3
def test_successive_halving(regression):
    X, y, X_test, y_test = regression
    grid = {"bandwidth": [1e-3, 0.1, 1.0, 2.0], "n_centers": [5, 10]}
    search = HalvingGridSearchCV(
        NystromRegressor(random_state=0), grid, cv=2, min_resources=40, random_state=0
    ).fit(X, y)
    assert search.n_resources_ == [40, 120]
    assert search.best_params_["bandwidth"] >= 1
    assert search.score(X_test, y_test) > 0.2
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_randomized_search_of_centers(regression):
    X, y, *_ = regression
    search = RandomizedSearchCV(
        EigenProRegressor(max_iter=3, random_state=0),
        {"n_centers": randint(20, 60)},
        n_iter=2,
        cv=2,
        random_state=0,
        error_score="raise",
    ).fit(X, y)
    chosen = search.best_params_["n_centers"]
    assert search.best_estimator_.centers_.shape == (chosen, 3)


def test_bagging(three_classes):
    X, y = three_classes
    model = EigenProClassifier(random_state=0)
    bag = BaggingClassifier(model, n_estimators=4, max_samples=0.5, random_state=0)
    assert bag.fit(X[:120], y[:120]).score(X[120:], y[120:]) > 0.5
    # A bag of one model without bootstrap is the model.
    one = BaggingClassifier(model, n_estimators=1, bootstrap=False, random_state=0)
    one.fit(X, y)
    alone = clone(one.estimators_[0]).fit(X, y)
    assert_array_equal(one.predict(X), alone.predict(X))


def test_stacking(regression):
    X, y, X_test, y_test = regression
    models = {
        "eigenpro": EigenProRegressor(random_state=0),
        "nystrom": NystromRegressor(n_centers=60, random_state=0),
        "falkon": FalkonLikeRegressor(n_centers=60, alpha=1e-3, random_state=0),
    }
    stack = StackingRegressor(list(models.items()), Ridge(), cv=3).fit(X, y)
    alone = [model.fit(X, y) for model in models.values()]
    columns = [model.predict(X_test) for model in alone]
    assert_allclose(stack.transform(X_test), np.stack(columns, axis=1))
    assert stack.score(X_test, y_test) > 0.7


def test_many_outputs_one_by_one(regression):
    X, y, X_test, _ = regression
    Y = np.stack([y, -2 * y + 1], axis=1)
    model = NystromRegressor(n_centers=40, bandwidth=1.0, random_state=0)
    each = MultiOutputRegressor(model).fit(X, Y).predict(X_test)
    together = clone(model).fit(X, Y).predict(X_test)
    assert_allclose(each, together, atol=1e-8)


def test_calibrated_classifier(three_classes):
    X, y = three_classes
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    model = NystromClassifier(n_centers=40, random_state=0)
    calibrated = CalibratedClassifierCV(model, cv=3).fit(X_train, y_train)
    P = calibrated.predict_proba(X_test)
    assert_allclose(P.sum(axis=1), 1.0)
    own = model.fit(X_train, y_train).predict_proba(X_test)
    # As good as the model's own probabilities; a blind guess has log(3).
    assert log_loss(y_test, P) < 0.95
    assert log_loss(y_test, P) == pytest.approx(log_loss(y_test, own), abs=0.05)


def test_transformed_target(regression):
    X, y, X_test, _ = regression
    model = EigenProRegressor(random_state=0)
    wrapped = TransformedTargetRegressor(model, func=np.exp, inverse_func=np.log)
    wrapped.set_params(check_inverse=False)
    inner = clone(model).fit(X, np.exp(y)).predict(X)
    assert_allclose(wrapped.fit(X, y).regressor_.predict(X), inner)
    # Scaling the targets changes nothing.
    scaled = TransformedTargetRegressor(model, transformer=StandardScaler()).fit(X, y)
    expected = model.fit(X, y).predict(X_test)
    assert_allclose(scaled.predict(X_test), expected, rtol=1e-6)


def test_permutation_importance(regression, rng):
    X, y, *_ = regression
    X = np.column_stack([X, rng.standard_normal(len(X))])
    model = NystromRegressor(alpha=1e-3, bandwidth=3.0).fit(X, y)
    found = permutation_importance(model, X, y, n_repeats=5, random_state=0)
    means = found.importances_mean
    # The last column is unrelated to y.
    assert means.argmin() == 3 and means[:3].min() > 3 * means[3]


def test_partial_dependence(regression):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    X, y, *_ = regression
    model = EigenProRegressor(random_state=0).fit(X, y)
    display = PartialDependenceDisplay.from_estimator(
        model, X, [0], grid_resolution=20, percentiles=(0.1, 0.9)
    )
    (curve,) = display.pd_results
    values, (grid,) = curve["average"][0], curve["grid_values"]
    pyplot.close("all")
    means = [model.predict(np.column_stack([np.full(160, x), X[:, 1:]])) for x in grid]
    assert_allclose(values, np.mean(means, axis=1), rtol=1e-6)
    # y rises and falls as sin(2 x).
    assert np.corrcoef(values, np.sin(2 * grid))[0, 1] > 0.9


def test_sample_weights_are_routed(regression):
    X, y, *_ = regression
    w = np.arange(160) % 2.0
    with config_context(enable_metadata_routing=True):
        model = NystromRegressor(n_centers=20, bandwidth=2.0, random_state=0)
        model.set_fit_request(sample_weight=True)
        model.set_score_request(sample_weight=True)
        scaler = StandardScaler().set_fit_request(sample_weight=True)
        pipeline = make_pipeline(scaler, model)
        grid = {"nystromregressor__alpha": [1e-6, 1e-2]}
        search = GridSearchCV(pipeline, grid, cv=2).fit(X, y, sample_weight=w)
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()
        found = pipeline.fit(X, y, sample_weight=w).predict(X)
    # Rows without weight might as well be missing.
    rows = make_pipeline(StandardScaler(), clone(model)).fit(X[1::2], y[1::2])
    assert_allclose(found, rows.predict(X), rtol=1e-6)
    assert_allclose(search.best_estimator_[0].mean_, X[1::2].mean(axis=0))


class Pruning:
    """A callback that reports a score per epoch to a trial, and may prune it."""

    def __init__(self, trial, X, y):
        self.trial, self.X, self.y = trial, X, y
        self.was_torn_down = False

    def setup(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context, **given):
        pass

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None, **given):
        if context.task_name != "epoch":
            return False
        self.trial.report(fitted_estimator.score(self.X, self.y), context.task_id)
        if self.trial.should_prune():
            raise optuna.TrialPruned
        return False

    def teardown(self, estimator, context):
        self.was_torn_down = True


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_optuna_prunes_in_a_fit(regression):
    X, y, X_test, y_test = regression
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    models, callbacks = [], []

    def objective(trial):
        bandwidth = trial.suggest_categorical("bandwidth", [1e-3, 2.0])
        model = EigenProRegressor(
            algorithm="eigenpro2", bandwidth=bandwidth, max_iter=4, random_state=0
        )
        models.append(model)
        callbacks.append(Pruning(trial, X_test, y_test))
        model.set_callbacks(callbacks[-1]).fit(X, y)
        return model.score(X_test, y_test)

    pruner = optuna.pruners.ThresholdPruner(lower=0.1)
    sampler = optuna.samplers.GridSampler({"bandwidth": [1e-3, 2.0]}, seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    study.optimize(objective)
    states = {t.params["bandwidth"]: t.state.name for t in study.trials}
    assert states == {1e-3: "PRUNED", 2.0: "COMPLETE"}
    assert study.best_params == {"bandwidth": 2.0} and study.best_value > 0.5
    for model, callback in zip(models, callbacks, strict=True):
        assert callback.was_torn_down
        assert hasattr(model, "dual_coef_") == (model.bandwidth == 2.0)
        # Nothing remains: the next fit equals that of a new model.
        model.set_callbacks().fit(X, y)
        new = clone(model).fit(X, y)
        assert_array_equal(model.dual_coef_, new.dual_coef_)


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize(
    "transformer",
    [
        RandomFourierFeatures(n_components=4, random_state=0),
        RBFNetworkFeatures(n_centers=4, random_state=0),
        KernelPCA(n_centers=4, random_state=0),
        RFMRegressor(max_rounds=1, random_state=0),
    ],
    ids=lambda transformer: type(transformer).__name__,
)
def test_set_output(library, transformer, regression):
    frames = pytest.importorskip(library)
    X, y, *_ = regression
    frame = frames.DataFrame(dict(zip("abc", X[:40].T, strict=True)))
    plain = clone(transformer).fit(frame, y[:40])
    values, names = plain.transform(frame), plain.get_feature_names_out()
    made = plain.set_output(transform=library).transform(frame)
    assert isinstance(made, frames.DataFrame)
    assert list(made.columns) == list(names)
    assert_array_equal(made.to_numpy(), values)


@pytest.mark.parametrize("dispatch", [False, True])
def test_tensors_with_gradients(dispatch, regression):
    torch = pytest.importorskip("torch")
    X, y, X_new, _ = regression
    tensors = [torch.asarray(a).requires_grad_() for a in (X, y, X_new)]
    with config_context(array_api_dispatch=dispatch):
        for model in (
            NystromRegressor(n_centers=20, random_state=0),
            EigenProRegressor(random_state=0),
        ):
            expected = clone(model).fit(X, y).predict(X_new)
            found = model.fit(*tensors[:2]).predict(tensors[2])
            assert_allclose(to_numpy(found), expected, atol=1e-9)


ESTIMATORS = [
    name
    for name in eigenkern.__all__
    if hasattr(getattr(eigenkern, name), "get_params")
]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_html_links_to_the_documentation_once_there_is_one(name, monkeypatch):
    model = getattr(eigenkern, name)()
    assert "href" not in model._repr_html_()
    monkeypatch.setattr(documentation, "DOCUMENTATION_URL", "https://x.org/stable")
    links = re.findall(r'href="([^"#]*)', model._repr_html_())
    assert set(links) == {f"https://x.org/stable/generated/eigenkern.{name}.html"}


def test_html_shows_what_was_chosen(regression):
    model = EigenProRegressor(algorithm="eigenpro2", max_iter=2).fit(*regression[:2])
    html = model._repr_html_()
    names = re.findall(r'class="param-doc-link"[^>]*>(\w+_)[\s<]', html)
    assert {"algorithm_", "batch_size_", "n_components_", "step_size_"} <= set(names)
    assert "eigenpro2" in html and str(model.batch_size_) in html


def test_lines_of_progress_in_a_notebook(regression, capsys):
    """Without a terminal: whole lines, and nothing that moves the cursor."""
    DSGRegressor(max_iter=3, verbose=1).fit(*regression[:2])
    out = capsys.readouterr().out
    assert "\r" not in out
    *setup, one, two, three = out.splitlines()
    assert [line.split("  ")[0] for line in setup] == [
        "DSGRegressor: setting up the kernel",
        "DSGRegressor: choosing the penalty",
        "DSGRegressor: choosing the step",
    ]
    assert [line.split()[3] for line in (one, two, three)] == ["1/3", "2/3", "3/3"]
    DSGRegressor(verbose=1).partial_fit(*regression[:2])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "model",
    [
        EigenProClassifier(),
        LinearEigenProClassifier(),
        NystromClassifier(n_centers=30),
    ],
    ids=repr,
)
def test_labels_that_an_array_library_cannot_hold(model, three_classes, other_xp):
    X, y = three_classes
    labels = np.array(["low", "mid", "high"])[y]
    model = clone(model).set_params(random_state=0)
    expected = clone(model).fit(X, labels).predict(X)
    with config_context(array_api_dispatch=True):
        predicted = model.fit(other_xp.asarray(X), labels).predict(other_xp.asarray(X))
    assert isinstance(predicted, np.ndarray)
    assert_array_equal(predicted, expected)
