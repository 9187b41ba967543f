"""How to project onto the span of the centers, and how often."""

from ..backend.machine import machine_of
from ..operators.cached import cached
from ..operators.plan import cache_budget
from ..solvers.projection import CenterFactor, ExactProjection, InexactProjection

# Products that conjugate gradients usually need.
_N_PRODUCTS = 3


def factor_if_cheaper(centers, n_features, n_columns, n_rows, cache_size):
    """Return a `CenterFactor` if `factor_pays`, of the same parameters, or None."""
    pays = factor_pays(centers, n_features, n_columns, n_rows, cache_size)
    return CenterFactor(centers) if pays else None


def factor_pays(centers, n_features, n_columns, n_rows, cache_size):
    """Whether a factor of the centers fits and is cheaper than iterating.

    The factor takes p^3 / 6 multiply-adds once (`Machine.factor_work` has their time)
    and 8 p^2 bytes. Conjugate gradients take three products with K(Z, Z), each of
    p^2 (d + l) multiply-adds, for every p rows that are learned.

    Parameters
    ----------
    centers : Matrix
        K(Z, Z).
    n_features, n_columns : int
    n_rows : float
        Rows to be learned, over all epochs.
    cache_size : float or "auto"
        As in the estimators: the factor counts.
    """
    p, machine = centers.shape[0], machine_of(centers)
    # The factor, and also the matrix if the library does not work in place.
    if 16.0 * p * p > cache_budget(cache_size, centers):
        return False
    width = n_features + n_columns + machine.function_work
    return machine.factor_work(p) <= _N_PRODUCTS * p * width * n_rows


def make_projection(centers, factor, P, n_features, n_rows, cache_size):
    """Return the projection by a factor, or by conjugate gradients if it is None.

    For conjugate gradients K(Z, Z) is cached if that fits and pays.
    """
    if factor is not None:
        return ExactProjection(factor, P)
    n_products = int(min(n_rows, 1e6)) // centers.shape[0]
    (centers,), _ = cached([centers], cache_size, n_products, n_features)
    return InexactProjection(centers, P)


def projection_interval(centers, factor, m, n_features, n_columns):
    """Return T, the batches between projections for which a batch is cheapest.

    Temporary centers add m^2 T (d + l) / 2 multiply-adds to a batch, taken as
    m^2 T (d + 2 l) / 2 here, and its share of a projection is C / T. T is at most
    p / m, so that there are no more temporary centers than others.
    """
    width = n_features + 2 * n_columns + machine_of(centers).function_work
    cost = projection_work(centers, factor, n_features, n_columns)
    best = (2.0 * cost / (m * m * width)) ** 0.5
    return int(max(1, min(round(best), centers.shape[0] // m)))


def projection_work(centers, factor, n_features, n_columns):
    """Return C, the time of a projection in multiply-adds.

    A product of conjugate gradients has p^2 (d + l), taken as p^2 (d + 2 l) here.
    """
    p, machine = centers.shape[0], machine_of(centers)
    if factor is not None:
        return p * p * (machine.factor_reading_work + n_columns)
    width = n_features + 2 * n_columns + machine.function_work
    return _N_PRODUCTS * p * p * width
