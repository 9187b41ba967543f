"""Every documented call works after the default fit, however many rows there are."""

import numpy as np
import pytest
from sklearn.base import is_classifier

import eigenkern
from eigenkern.fitting import posterior as gaussian_process
from eigenkern.inspection import average_gradient_outer_product, gradient
from eigenkern.plan import sizes

NAMES = sorted(
    name for name in eigenkern.__all__ if name.endswith(("Regressor", "Classifier"))
)


def check_calls(name, n, **options):
    """Fit to n rows, and make the calls that the guide offers."""
    rng = np.random.default_rng(n)
    X, T = rng.standard_normal((n, 3)), rng.standard_normal((7, 3))
    model = getattr(eigenkern, name)(random_state=0, **options)
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(n)
    y = (y > np.median(y)).astype(int) if is_classifier(model) else y
    model.fit(X, y)
    found = [model.predict(T), model.score(X, y)]
    if is_classifier(model):
        found.append(model.decision_function(T))
        found.append(model.predict_proba(T))
        np.testing.assert_allclose(found[-1].sum(axis=1), 1, rtol=1e-6)
    if name == "NystromRegressor":
        mean, deviation = model.predict(T, return_std=True)
        covariance = model.predict(T, return_cov=True)[1]
        np.testing.assert_allclose(np.diag(covariance), deviation**2, rtol=1e-6)
        found += [mean, deviation, covariance]
    if hasattr(model, "alpha_"):
        found.append(model.alpha_)
    if options.get("store_coef_path"):
        found.append(model.coef_path_)
    if not name.startswith("Linear"):
        found += [gradient(model, T), average_gradient_outer_product(model, X)]
    assert all(np.isfinite(values).all() for values in found)
    return model


@pytest.mark.filterwarnings("ignore:.* learned nothing")  # from two or three rows
@pytest.mark.parametrize("n", [2, 3, 10, 50, 301])
@pytest.mark.parametrize("name", NAMES)
def test_after_the_default_fit(name, n):
    if name.startswith("DSG") and n not in (2, 301):
        pytest.skip("every fit of DSG takes a second")
    check_calls(name, n)


@pytest.mark.filterwarnings("ignore:.*found the least error at the end of its path")
@pytest.mark.parametrize("n", [2, 3, 5, 20, 301])
@pytest.mark.parametrize("name", ["NystromRegressor", "NystromClassifier"])
def test_after_a_path(name, n):
    check_calls(name, n, alpha="path", store_coef_path=True)


@pytest.mark.filterwarnings("ignore:.*found the least error at the end of its path")
@pytest.mark.parametrize("alpha", ["default", "path"])
@pytest.mark.parametrize("name", ["NystromRegressor", "NystromClassifier"])
def test_where_a_limit_chooses_the_centers(name, alpha, monkeypatch):
    """More rows than a model with deviations has centers: 6000, here 150."""
    monkeypatch.setattr(gaussian_process, "_MOST_CENTERS", 150)
    options = {} if alpha == "default" else {"alpha": alpha}
    model = check_calls(name, 301, **options)
    assert model.n_centers_ == (301 if name == "NystromClassifier" else 150)
    assert check_calls(name, 149, **options).n_centers_ == 149


@pytest.mark.parametrize("name", [name for name in NAMES if name[:3] not in "DSG, RFM"])
def test_where_all_rows_would_take_too_long(name, monkeypatch):
    """More rows than are solved directly: 16 000 on centers, 8000 elsewhere."""
    monkeypatch.setattr(sizes, "_ALL_ROWS_SECONDS", 0)
    monkeypatch.setattr(sizes, "_CENTERS_FACTOR", 1)
    monkeypatch.setattr(sizes, "_DIRECT_ROWS", 100)
    model = check_calls(name, 301)
    limited = name[:5] in ("Nytro", "Falko") or name == "NystromClassifier"
    assert not limited or model.centers_.shape[0] < 301
