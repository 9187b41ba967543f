"""scikit-learn's contract: every check it has, on every public estimator."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import eigenkern
from eigenkern import (
    DSGClassifier,
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeClassifier,
    KernelPCA,
    LinearEigenProClassifier,
    LinearEigenProRegressor,
    NystromClassifier,
    NystromRegressor,
    RBFNetworkFeatures,
    RFMRegressor,
)

#: Every public estimator, as constructed.
DEFAULTS = [
    getattr(eigenkern, name)()
    for name in eigenkern.__all__
    if hasattr(getattr(eigenkern, name), "get_params")
]
STOCHASTIC = (
    DSGClassifier,
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    LinearEigenProClassifier,
    LinearEigenProRegressor,
)


def is_stochastic(estimator):
    """Whether an estimator is stochastic; by default few rows are solved directly."""
    if repr(estimator) in ("EigenProClassifier()", "EigenProRegressor()"):
        return False
    return isinstance(estimator, STOCHASTIC)


# These are scikit-learn's names for its stochastic solvers.
EXPECTED_FAILED_CHECKS = {
    f"check_sample_weight_equivalence_on_{kind}_data": (
        "sample_weight is not equivalent to removing/repeating samples."
    )
    for kind in ("dense", "sparse")
}


class OnCenters(EigenProRegressor):
    """An estimator whose `alpha` stays 0, as required with its own centers.

    ``check_regressors_train`` sets it where an estimator has no `alphas`.
    """

    alphas = None


@parametrize_with_checks(
    [
        *DEFAULTS,
        DSGClassifier(loss="hinge"),
        DSGRegressor(loss="pinball", quantile=0.4),
        EigenProRegressor(algorithm="eigenpro1"),
        EigenProClassifier(n_centers=4),
        EigenProRegressor(alpha=0.1, algorithm="eigenpro2"),
        OnCenters(algorithm="eigenpro3-exact"),
        OnCenters(algorithm="eigenpro4"),
        FalkonLikeClassifier(
            loss="log_loss", n_centers=4, tol=1e-9, bandwidth="median"
        ),
        KernelPCA(n_centers=5, random_state=0),
        KernelPCA(n_centers=None),
        NystromClassifier(loss="log_loss"),
        NystromRegressor(alpha="path"),
        RBFNetworkFeatures(n_centers=5, centers="kmeans", random_state=0),
        RFMRegressor(NystromRegressor(), max_rounds=2),
    ],
    expected_failed_checks=lambda estimator: (
        EXPECTED_FAILED_CHECKS if is_stochastic(estimator) else {}
    ),
)
# Some of scikit-learn's targets are noise.
@pytest.mark.filterwarnings("ignore:.* learned nothing")
@pytest.mark.filterwarnings("ignore:.* it still falls there")
@pytest.mark.filterwarnings("ignore:.* learned nothing")
@pytest.mark.filterwarnings("ignore:the quantile .* is corrected on")
@pytest.mark.filterwarnings("ignore:n_centers=100 is more than the")
@pytest.mark.filterwarnings("ignore:contamination=0.01 needs 99 distinct rows")
# With 4 centers of one class each the last digits of the processor decide whether it
# converges.
@pytest.mark.filterwarnings("ignore:FalkonLikeClassifier stopped after 1000")
# BLAS occasionally sets this flag in correct products of finite numbers:
# https://github.com/numpy/numpy/issues/24067
@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul")
def test_sklearn_checks(estimator, check):
    # scikit-learn skips these only where PyTorch was built without CUDA.
    if "cuda" in devices(check) and not cuda_is_available():
        pytest.skip("no CUDA device")
    check(estimator)


def test_every_public_estimator_is_checked_as_constructed():
    assert len(DEFAULTS) == 18
    families = ["DSG", "EigenPro", "FalkonLike", "LinearEigenPro", "Nystrom", "Nytro"]
    names = {type(estimator).__name__ for estimator in DEFAULTS}
    assert names == {
        *(f + kind for f in [*families, "RFM"] for kind in ("Regressor", "Classifier")),
        "KernelNoveltyDetector",
        "KernelPCA",
        "RBFNetworkFeatures",
        "RandomFourierFeatures",
    }


def devices(check):
    """Return the devices that an array API check asks for."""
    options = getattr(check, "keywords", {})
    places = (options.get("X_ns_and_device"), options.get("other_ns_and_device"))
    return {options.get("device_name"), *(place.device for place in places if place)}


def cuda_is_available():
    torch = pytest.importorskip("torch")
    return torch.cuda.is_available()
