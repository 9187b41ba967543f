"""scikit-learn's contract: every check it has, on every public estimator."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

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
    RandomFourierFeatures,
    RBFNetworkFeatures,
    RFMClassifier,
    RFMRegressor,
)

STOCHASTIC = (
    DSGClassifier,
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    LinearEigenProClassifier,
    LinearEigenProRegressor,
)


def is_stochastic(estimator):
    """Whether an estimator, or the default one that it fits, is a stochastic solver."""
    if isinstance(estimator, RFMClassifier | RFMRegressor):
        return estimator.estimator is None
    return isinstance(estimator, STOCHASTIC)


# scikit-learn's own words for its stochastic solvers.
EXPECTED_FAILED_CHECKS = {
    f"check_sample_weight_equivalence_on_{kind}_data": (
        "sample_weight is not equivalent to removing/repeating samples."
    )
    for kind in ("dense", "sparse")
}


class OnCenters(EigenProRegressor):
    """One whose `alpha` stays 0, as it must in models on centers of their own.

    ``check_regressors_train`` sets it where an estimator has no `alphas`.
    """

    alphas = None


@parametrize_with_checks(
    [
        DSGClassifier(),
        DSGClassifier(loss="hinge"),
        DSGRegressor(),
        DSGRegressor(loss="pinball", quantile=0.4),
        EigenProClassifier(),
        EigenProRegressor(),
        EigenProRegressor(algorithm="eigenpro1"),
        EigenProClassifier(n_centers=4),
        EigenProRegressor(alpha=0.1, algorithm="eigenpro2"),
        OnCenters(algorithm="eigenpro3-exact"),
        OnCenters(algorithm="eigenpro4"),
        FalkonLikeClassifier(),
        FalkonLikeClassifier(loss="log_loss", n_centers=4, tol=1e-9),
        FalkonLikeRegressor(),
        LinearEigenProClassifier(),
        LinearEigenProRegressor(),
        NystromClassifier(),
        NystromClassifier(loss="log_loss"),
        NystromRegressor(),
        NystromRegressor(alpha="path"),
        NytroClassifier(),
        NytroRegressor(),
        RandomFourierFeatures(n_components=5, random_state=0),
        RBFNetworkFeatures(n_components=5, random_state=0),
        RBFNetworkFeatures(n_components=5, centers="kmeans", random_state=0),
        RFMClassifier(),
        RFMRegressor(),
        RFMRegressor(NystromRegressor(), max_rounds=2),
    ],
    expected_failed_checks=lambda estimator: (
        EXPECTED_FAILED_CHECKS if is_stochastic(estimator) else {}
    ),
)
# Some of scikit-learn's targets are noise.
@pytest.mark.filterwarnings("ignore:.* it still falls there")
def test_sklearn_checks(estimator, check):
    # scikit-learn skips these only where PyTorch was built without CUDA.
    if "cuda" in devices(check) and not cuda_is_available():
        pytest.skip("no CUDA device")
    check(estimator)


def devices(check):
    """Return the devices that an array API check asks for."""
    options = getattr(check, "keywords", {})
    places = (options.get("X_ns_and_device"), options.get("other_ns_and_device"))
    return {options.get("device_name"), *(place.device for place in places if place)}


def cuda_is_available():
    torch = pytest.importorskip("torch")
    return torch.cuda.is_available()
