"""Kernels: small frozen dataclasses that evaluate a block in place.

A kernel that is a function of one matrix product (a radial or inner-product kernel)
encodes rows so that the product ``left(E_x) @ E_z.T`` is the argument of its
elementwise function; the function is then applied to the block while it is in cache.
Such kernels are *fused*: `TiledKernel` runs them tile by tile on threads. So is
`Manhattan`, which adds up one product of two columns per feature.

Notation: x, z are rows, ``r = |x - z|`` is the *Euclidean* distance, sigma the
bandwidth.
"""

from .bandwidth import MEDIAN_ROWS as MEDIAN_ROWS
from .bandwidth import answering_gamma, median_distance
from .bandwidth import check_positive_bandwidth as check_positive_bandwidth
from .bandwidth import scale_gamma as scale_gamma
from .kernel import CallableKernel as CallableKernel
from .kernel import Kernel
from .kernel import Slope as Slope
from .manhattan import Manhattan
from .products import Linear, Polynomial
from .radial import Cauchy, Gaussian, Laplacian, Matern

__all__ = [
    "Cauchy",
    "Gaussian",
    "Kernel",
    "Laplacian",
    "Linear",
    "Manhattan",
    "Matern",
    "Polynomial",
    "median_distance",
]


def is_semidefinite(kernel: object) -> bool:
    """Whether a kernel is one of this package, all of which are semi-definite.

    Functions and subclasses of users may not be.

    Parameters
    ----------
    kernel : object
    """
    classes = Cauchy, Gaussian, Laplacian, Linear, Manhattan, Matern, Polynomial
    return type(kernel) in classes


# Pickles and files of skops name a class by its module: the one from which users
# import it, whichever file defines it. Doctest skips methods outside of the module of
# their class.
for name in (*__all__, "CallableKernel"):
    public = globals()[name]
    public.__module__ = __name__
    if hasattr(public, "from_gamma"):
        public.from_gamma.__func__.__module__ = __name__
        public.__init__ = answering_gamma(public.__init__)
