"""Large-scale kernel machines for scikit-learn."""

from . import kernels
from ._doubly_stochastic import DSGClassifier, DSGRegressor
from ._eigenpro import EigenProClassifier, EigenProRegressor
from ._falkon import FalkonLikeClassifier, FalkonLikeRegressor
from ._features import RandomFourierFeatures, RBFNetworkFeatures
from ._linear_eigenpro import LinearEigenProClassifier, LinearEigenProRegressor
from ._nystrom import (
    NystromClassifier,
    NystromRegressor,
    NytroClassifier,
    NytroRegressor,
)
from ._show_versions import show_versions
from .display import (
    ConvergenceDisplay,
    RegularizationPathDisplay,
    SpectrumDisplay,
)

__version__ = "0.1.0.dev0"

__all__ = [
    "ConvergenceDisplay",
    "DSGClassifier",
    "DSGRegressor",
    "EigenProClassifier",
    "EigenProRegressor",
    "FalkonLikeClassifier",
    "FalkonLikeRegressor",
    "LinearEigenProClassifier",
    "LinearEigenProRegressor",
    "NystromClassifier",
    "NystromRegressor",
    "NytroClassifier",
    "NytroRegressor",
    "RBFNetworkFeatures",
    "RandomFourierFeatures",
    "RegularizationPathDisplay",
    "SpectrumDisplay",
    "kernels",
    "show_versions",
]
