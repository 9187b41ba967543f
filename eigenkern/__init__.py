"""Large-scale kernel machines for scikit-learn."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import centers as centers
    from . import inspection as inspection
    from . import kernels as kernels
    from .arrays.versions import show_versions as show_versions
    from .display import ConvergenceDisplay as ConvergenceDisplay
    from .display import MetricDisplay as MetricDisplay
    from .display import RegularizationPathDisplay as RegularizationPathDisplay
    from .display import SpectrumDisplay as SpectrumDisplay
    from .estimates import estimate as estimate
    from .estimators.doubly_stochastic import DSGClassifier as DSGClassifier
    from .estimators.doubly_stochastic import DSGRegressor as DSGRegressor
    from .estimators.eigenpro import EigenProClassifier as EigenProClassifier
    from .estimators.eigenpro import EigenProRegressor as EigenProRegressor
    from .estimators.falkon_like import FalkonLikeClassifier as FalkonLikeClassifier
    from .estimators.falkon_like import FalkonLikeRegressor as FalkonLikeRegressor
    from .estimators.features import RandomFourierFeatures as RandomFourierFeatures
    from .estimators.features import RBFNetworkFeatures as RBFNetworkFeatures
    from .estimators.kernel_pca import KernelPCA as KernelPCA
    from .estimators.linear_eigenpro import (
        LinearEigenProClassifier as LinearEigenProClassifier,
    )
    from .estimators.linear_eigenpro import (
        LinearEigenProRegressor as LinearEigenProRegressor,
    )
    from .estimators.novelty import KernelNoveltyDetector as KernelNoveltyDetector
    from .estimators.nystrom import NystromClassifier as NystromClassifier
    from .estimators.nystrom import NystromRegressor as NystromRegressor
    from .estimators.nytro import NytroClassifier as NytroClassifier
    from .estimators.nytro import NytroRegressor as NytroRegressor
    from .estimators.rfm import RFMClassifier as RFMClassifier
    from .estimators.rfm import RFMRegressor as RFMRegressor
    from .fitting.checkpoint import Checkpoint as Checkpoint

__version__ = "0.1.0"

# Public names by module. A module, with the parts of scikit-learn that it needs, is
# imported when one of its names is first used.
_MODULES = {
    "arrays.versions": ["show_versions"],
    "display": [
        "ConvergenceDisplay",
        "MetricDisplay",
        "RegularizationPathDisplay",
        "SpectrumDisplay",
    ],
    "estimates": ["estimate"],
    "fitting.checkpoint": ["Checkpoint"],
    "estimators.doubly_stochastic": ["DSGClassifier", "DSGRegressor"],
    "estimators.eigenpro": ["EigenProClassifier", "EigenProRegressor"],
    "estimators.falkon_like": ["FalkonLikeClassifier", "FalkonLikeRegressor"],
    "estimators.features": ["RBFNetworkFeatures", "RandomFourierFeatures"],
    "estimators.kernel_pca": ["KernelPCA"],
    "estimators.linear_eigenpro": [
        "LinearEigenProClassifier",
        "LinearEigenProRegressor",
    ],
    "estimators.novelty": ["KernelNoveltyDetector"],
    "estimators.nystrom": ["NystromClassifier", "NystromRegressor"],
    "estimators.nytro": ["NytroClassifier", "NytroRegressor"],
    "estimators.rfm": ["RFMClassifier", "RFMRegressor"],
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted([*_HOME, "centers", "inspection", "kernels"])


def __getattr__(name):
    if name in _HOME:
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    elif name in __all__:
        value = import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
