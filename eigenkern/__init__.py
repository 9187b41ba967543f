"""Large-scale kernel machines for scikit-learn."""

from . import inspection, kernels
from .backend.versions import show_versions
from .display import (
    ConvergenceDisplay,
    MetricDisplay,
    RegularizationPathDisplay,
    SpectrumDisplay,
)
from .estimates import estimate
from .estimators.checkpoint import Checkpoint
from .estimators.doubly_stochastic import DSGClassifier, DSGRegressor
from .estimators.eigenpro import EigenProClassifier, EigenProRegressor
from .estimators.falkon import FalkonLikeClassifier, FalkonLikeRegressor
from .estimators.features import RandomFourierFeatures, RBFNetworkFeatures
from .estimators.linear_eigenpro import (
    LinearEigenProClassifier,
    LinearEigenProRegressor,
)
from .estimators.nystrom import NystromClassifier, NystromRegressor
from .estimators.nytro import NytroClassifier, NytroRegressor
from .estimators.rfm import RFMClassifier, RFMRegressor

__version__ = "0.1.0"

__all__ = [
    "Checkpoint",
    "ConvergenceDisplay",
    "DSGClassifier",
    "DSGRegressor",
    "EigenProClassifier",
    "EigenProRegressor",
    "FalkonLikeClassifier",
    "FalkonLikeRegressor",
    "LinearEigenProClassifier",
    "LinearEigenProRegressor",
    "MetricDisplay",
    "NystromClassifier",
    "NystromRegressor",
    "NytroClassifier",
    "NytroRegressor",
    "RBFNetworkFeatures",
    "RFMClassifier",
    "RFMRegressor",
    "RandomFourierFeatures",
    "RegularizationPathDisplay",
    "SpectrumDisplay",
    "estimate",
    "inspection",
    "kernels",
    "show_versions",
]
