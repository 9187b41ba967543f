"""scikit-learn's contract: every check it has, on every public estimator."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from eigenkern import EigenProClassifier, EigenProRegressor

# scikit-learn's own words for its stochastic solvers.
EXPECTED_FAILED_CHECKS = {
    "check_sample_weight_equivalence_on_dense_data": (
        "sample_weight is not equivalent to removing/repeating samples."
    ),
}


@parametrize_with_checks(
    [EigenProClassifier(), EigenProRegressor()],
    expected_failed_checks=lambda estimator: EXPECTED_FAILED_CHECKS,
)
def test_sklearn_checks(estimator, check):
    check(estimator)
