"""What users of SVC pass: gamma="scale", gamma and C."""

import copy
import inspect
import pickle

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

import eigenkern
from eigenkern import (
    DSGClassifier,
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeClassifier,
    KernelPCA,
    LinearEigenProClassifier,
    NystromClassifier,
    NystromRegressor,
    NytroClassifier,
    RandomFourierFeatures,
    RBFNetworkFeatures,
    RFMClassifier,
    RFMRegressor,
)
from eigenkern.kernels import Gaussian

MODELS = [
    DSGClassifier(max_iter=2),
    EigenProClassifier(),
    EigenProClassifier(early_stopping=True),
    EigenProClassifier(n_centers=20, max_iter=2),
    FalkonLikeClassifier(),
    NystromClassifier(alpha="path"),
    NytroClassifier(),
    RandomFourierFeatures(),
    RBFNetworkFeatures(n_centers=10),
]
with_bandwidth = pytest.mark.parametrize(
    "cls",
    [
        cls
        for name in eigenkern.__all__
        if hasattr(cls := getattr(eigenkern, name), "get_params")
        and "bandwidth" in cls().get_params()
    ],
)


@pytest.fixture
def two_classes(rng):
    """Rows with dissimilar columns, some rows repeated."""
    X = rng.standard_normal((150, 3)) * [1.0, 2.0, 5.0] + [0.0, 4.0, 1.0]
    X = np.concatenate([X, X[:30]])
    return X, (X[:, 0] > 0).astype(int)


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_scale_is_the_bandwidth_of_svc(model, two_classes):
    X, y = two_classes
    gamma = SVC(gamma="scale").fit(X, y)._gamma
    model.set_params(kernel="gaussian", bandwidth="scale", random_state=0)
    assert model.fit(X, y).bandwidth_ == pytest.approx((2 * gamma) ** -0.5)


@pytest.mark.parametrize("model", MODELS[:-2], ids=repr)
def test_scale_knows_no_rows_without_weight(model, two_classes):
    X, y = two_classes
    w = np.where(np.arange(180) < 160, 0.5 + np.arange(180) % 3, 0.0)
    model.set_params(kernel="laplacian", bandwidth="scale", random_state=0)
    expected = (3 * X[:160].var() / 2) ** 0.5
    assert model.fit(X, y, w).bandwidth_ == pytest.approx(expected)


def test_scale_of_the_first_piece(two_classes):
    X, y = two_classes
    model = EigenProClassifier(bandwidth="scale", n_centers=20, random_state=0)
    model.partial_fit(X[:100], y[:100], classes=[0, 1]).partial_fit(X[100:], y[100:])
    assert model.bandwidth_ == pytest.approx((3 * X[:100].var() / 2) ** 0.5)


def test_scale_in_learned_metrics(two_classes):
    X, y = two_classes
    model = RFMRegressor(NystromRegressor(alpha=1e-2, bandwidth="scale"), max_rounds=1)
    model.fit(X, y + X[:, 0])
    distinct = np.unique(X, axis=0)  # y is a function of X: equal rows are copies
    expected = (3 * model.transform(distinct).var() / 2) ** 0.5
    assert model.estimator_.bandwidth_ == pytest.approx(expected)


@pytest.mark.parametrize(
    "model", [EigenProRegressor(), RandomFourierFeatures(random_state=0)], ids=repr
)
def test_scale_of_other_array_libraries(model, two_classes, other_xp):
    X, y = two_classes
    model.set_params(bandwidth="scale")
    with config_context(array_api_dispatch=True):
        model.fit(other_xp.asarray(X), other_xp.asarray(y, dtype=other_xp.float64))
    assert model.bandwidth_ == pytest.approx((3 * X.var() / 2) ** 0.5)


def test_it_is_the_machine_of_svc_but_for_the_loss(two_classes):
    # C and gamma translated: a hinge loss with the same penalty, which minimizes the
    # objective of SVC and so agrees with its values.
    X, y = two_classes
    y, n = (X[:, 0] + X[:, 1] > 4).astype(int), len(X)
    svc = SVC(C=0.5).fit(X, y)
    model = DSGClassifier(
        "gaussian",
        bandwidth="scale",
        loss="hinge",
        alpha=1 / (0.5 * n),
        max_iter=300,
        random_state=0,
    ).fit(X, y)
    expected = svc.decision_function(X)
    error = model.decision_function(X) - expected
    assert np.abs(error).max() < 0.15 and np.sqrt(np.mean(error**2)) < 0.04
    assert 1 < np.std(expected) < 1.2


def test_gamma_of_other_kernels_is_that_of_their_objects():
    made = r"gamma=0\.1 .* is kernel=%s\.from_gamma\(0\.1\) of eigenkern\.kernels"
    with pytest.raises(TypeError, match=made % "Manhattan"):
        EigenProRegressor("laplacian", gamma=0.1)
    with pytest.raises(TypeError, match=made % "Polynomial"):
        EigenProClassifier(kernel="poly", gamma=0.1)


def test_return_std_is_a_parameter_of_predict():
    with pytest.raises(TypeError, match="return_std': it is a parameter of predict"):
        NystromRegressor(return_std=True)


@with_bandwidth
def test_gamma_is_answered_with_a_bandwidth(cls):
    message = rf"{cls.__name__} has no parameter 'gamma': .*='gaussian' .* = 2\.236"
    with pytest.raises(TypeError, match=message):
        cls(gamma=0.1)
    with pytest.raises(TypeError, match=r"gamma='scale' .* bandwidth = 'scale'"):
        cls(gamma="scale", C=1.0)
    with pytest.raises(TypeError, match=r"bandwidth = \(n_features / 2\) \*\* 0.5"):
        cls(gamma="auto")
    for gamma in (None, -1.0, [1.0]):
        with pytest.raises(TypeError, match=r"bandwidth = 1 / \(2 gamma\) \*\* 0.5$"):
            cls(gamma=gamma)


@with_bandwidth
def test_wrong_arguments_are_told_by_the_name_of_the_class(cls):
    with pytest.raises(TypeError, match=rf"^{cls.__name__}\(\) got .* 'depth'"):
        cls(depth=3)
    with pytest.raises(TypeError, match=rf"^{cls.__name__}.fit\(\) got .* 'depth'"):
        cls().fit([[0.0], [1.0]], [0, 1], depth=3)
    with pytest.raises(TypeError, match=rf"^{cls.__name__}.fit\(\) missing .* 'X'"):
        cls().fit()


@with_bandwidth
def test_c_is_answered_with_a_penalty(cls):
    expected = "there is no penalty of its own"
    if "alpha" in cls().get_params():
        expected = r"C=10 .* alpha = 1 / \(2 C n\), for n training rows; alpha='auto'"
        if cls.__name__.startswith("DSG"):
            expected = r"C=10 .* alpha = 1 / \(C n\), for n"
    with pytest.raises(TypeError, match=f"{cls.__name__} has no parameter 'C'.*"):
        cls(C=10)
    with pytest.raises(TypeError, match=expected):
        cls(C=10)


@with_bandwidth
def test_other_unknown_names_are_python_s_matter(cls):
    with pytest.raises(TypeError, match="unexpected keyword argument 'gama'"):
        cls(gama=0.1)
    model = cls("rbf", bandwidth=2.0)
    for twin in (clone(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.get_params() == model.get_params()


@pytest.mark.parametrize(
    "cls, parameters, answer",
    [
        (LinearEigenProClassifier, {"gamma": 0.1}, ": it is linear; Eigen"),
        (LinearEigenProClassifier, {"kernel": "rbf"}, ": it is linear"),
        (LinearEigenProClassifier, {"C": 2.0}, ": C=2.0 weighs loss and penalty"),
        (RFMClassifier, {"C": 2.0}, ": the penalty is chosen"),
        (RFMClassifier, {"gamma": 2.0}, r"RFMClassifier\(EigenProClassifier\('gauss"),
        (RFMRegressor, {"kernel": "rbf"}, r"RFMRegressor\(EigenProRegressor\('gauss"),
        (EigenProClassifier, {"probability": True}, "predict_proba needs none"),
        (EigenProClassifier, {"degree": 2}, r"kernel=Polynomial\(degree=3"),
        (EigenProClassifier, {"decision_function_shape": "ovo"}, "column for each"),
        (EigenProRegressor, {"epsilon": 0.1}, "loss='epsilon_insensitive'"),
        (EigenProRegressor, {"n_jobs": 2}, "all cores are used"),
        (NystromClassifier, {"n_components": 100}, "it has n_centers"),
        (NystromClassifier, {"early_stopping": True}, "penalty is chosen instead"),
        (NytroClassifier, {"early_stopping": True}, r"the iteration \(selection\)"),
        (LinearEigenProClassifier, {"degree": 2}, ": it is linear"),
        (EigenProRegressor, {"loss": "huber"}, "DSGRegressor has other losses"),
        (LinearEigenProClassifier, {"loss": "hinge"}, "FalkonLikeClassifier have oth"),
        (LinearEigenProClassifier, {"penalty": "l2"}, "squared norm, times alpha"),
        (RFMRegressor, {"normalize_y": True}, "its scale changes nothing"),
        (EigenProRegressor, {"checkpoint": "file"}, "it is an argument of fit"),
        (DSGRegressor, {"quantiles": [0.1]}, r"loss='pinball', quantile=\[0.1\]"),
    ],
)
def test_other_parameters_of_scikit_learn_are_answered(cls, parameters, answer):
    ((name, _),) = parameters.items()
    with pytest.raises(TypeError, match=f"{cls.__name__} has no .*{name}.*{answer}"):
        cls(**parameters)
    with pytest.raises(ValueError, match=f"{cls.__name__} has no .*{name}.*{answer}"):
        cls().set_params(**parameters)


@pytest.mark.parametrize(
    "cls, name",
    [
        (EigenProRegressor, "probability"),
        (EigenProRegressor, "decision_function_shape"),
        (NystromRegressor, "checkpoint"),
        (EigenProClassifier, "epsilon"),
        (EigenProClassifier, "quantile"),
        (RandomFourierFeatures, "early_stopping"),
        (RBFNetworkFeatures, "quantiles"),
    ],
)
def test_what_does_not_concern_a_class_is_not_answered(cls, name):
    with pytest.raises(TypeError, match=f"got an unexpected keyword argument '{name}'"):
        cls(**{name: 0.1})
    with pytest.raises(ValueError, match=f"Invalid parameter '{name}'"):
        cls().set_params(**{name: 0.1})


def test_eval_set_is_answered(two_classes):
    X, y = two_classes
    with pytest.raises(TypeError, match=r"eval_set'.*: rows .* are X_val and y_val"):
        EigenProClassifier().fit(X, y, eval_set=(X, y))


def test_all_are_answered_at_once():
    with pytest.raises(TypeError, match=r"parameter 'C': .*parameter 'gamma': "):
        EigenProClassifier(C=10, gamma=0.1)
    message = r"no parameter 'gamma': .*; write Gaussian.from_gamma\(gamma\)"
    with pytest.raises(ValueError, match=message):
        EigenProClassifier(Gaussian(2.0)).set_params(kernel__gamma=0.1)


def test_a_missing_method_says_why(two_classes):
    X, y = two_classes
    with pytest.raises(
        AttributeError, match=r"has no attribute 'partial_fit': .* pass"
    ):
        EigenProClassifier().partial_fit(X, y)
    with pytest.raises(AttributeError, match=r"'fit_batches': .* EigenPro\*\(n_cen"):
        RFMClassifier().fit_batches([(X, y)])
    model = EigenProClassifier(n_centers=20, random_state=0).fit_batches([(X, y)])
    with pytest.raises(AttributeError, match=r"'predict_proba': .*FrozenEstimator"):
        model.predict_proba(X)
    with pytest.raises(
        TypeError, match=r"^EigenProClassifier.predict.*'return_std': pre"
    ):
        model.predict(X, return_std=True)
    with pytest.raises(
        TypeError, match=r"^EigenProClassifier.fit_batches.*iterable of"
    ):
        model.fit_batches(X, y)
    with pytest.raises(AttributeError, match="object has no attribute 'depth'"):
        model.depth  # noqa: B018
    for name, answer in (
        ("coef_", "columns have no weights of their own"),
        ("support_vectors_", "every row of centers_ counts"),
        ("feature_importances_", "permutation_importance measures them"),
    ):
        with pytest.raises(AttributeError, match=f"no attribute '{name}': .*{answer}"):
            getattr(model, name)
        with pytest.raises(AttributeError, match=f"no attribute '{name}'$"):
            getattr(KernelPCA(10).fit(X), name)
    assert not hasattr(model, "predict_proba") and hasattr(model, "partial_fit")
    with pytest.raises(AttributeError, match=r"no attribute 'partial_fit'$"):
        RandomFourierFeatures().partial_fit(X)


@pytest.mark.parametrize("given", ["balance", [1.0, 2.0], np.ones(2)], ids=repr)
def test_class_weight_says_what_it_may_be(given, two_classes):
    message = "class_weight must be 'balanced', a dict from classes to weights, or None"
    with pytest.raises(ValueError, match=message):
        EigenProClassifier(class_weight=given).fit(*two_classes)


def test_a_subclass_may_have_a_parameter_of_the_name():
    class WithGamma(EigenProClassifier):
        def __init__(self, kernel="rbf", *, bandwidth=1.0, gamma=1.0):
            super().__init__(kernel, bandwidth=bandwidth)
            self.gamma = gamma

    assert WithGamma(gamma=3.0).gamma == 3.0


@pytest.mark.parametrize("name", sorted(eigenkern.__all__))
def test_signatures_are_those_of_the_constructors(name):
    cls = getattr(eigenkern, name)
    if isinstance(cls, type) and hasattr(cls, "get_params"):
        parameters = inspect.signature(cls).parameters
        assert sorted(parameters) == sorted(cls().get_params(deep=False))
        assert list(parameters) == list(inspect.signature(cls.__init__).parameters)[1:]


@with_bandwidth
def test_set_params_and_grids_answer_too(cls):
    with pytest.raises(ValueError, match=r"no parameter 'gamma': .* = 2\.236"):
        cls().set_params(gamma=0.1)
    grid = GridSearchCV(cls(), {"gamma": [0.1, 1.0]}, scoring=lambda *_: 0.0)
    with pytest.raises(ValueError, match="no parameter 'gamma'"):
        grid.fit(np.ones((20, 2)), np.arange(20) % 2)
    with pytest.raises(ValueError, match="Invalid parameter 'gama'"):
        cls().set_params(gama=0.1)
