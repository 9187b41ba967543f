"""Estimate the sizes, memory, flops and seconds of a fit beforehand: its plan."""

from inspect import isclass
from typing import Any

import numpy as np

from .fitting.model import Model
from .fitting.planning import plan_of
from .fitting.validation import check_number
from .plan.costs import Plan
from .plan.parameters import is_precomputed


def estimate(
    estimator: Any,
    n_samples: int,
    n_features: int,
    n_outputs: int = 1,
    *,
    dtype: Any = "float64",
) -> Plan:
    """Estimate what a fit of an estimator would take on this machine.

    Nothing is fitted. The sizes are those that a fit would choose; whether it would
    keep a kernel matrix depends on the memory that is free now. The rates of this
    machine are measured once per process, in up to 0.4 s. A fit takes less time if
    early stopping or a tolerance ends it.

    Parameters
    ----------
    estimator : estimator
        Of this package, on the CPU; not a transformer. `RFMRegressor` and
        `RFMClassifier` fit another estimator in each round: five rounds of each kind of
        metric are assumed, and the method and sizes are those of the last fit.
    n_samples : int
        Training rows.
    n_features : int
        Columns of X.
    n_outputs : int, default=1
        Columns of y. For a classifier: 1 for two classes, their number for more. The
        quantiles of a `DSGRegressor` are counted by themselves.
    dtype : {"float32", "float64"} or data type of NumPy, default="float64"
        Data type of X. Matrices in float32 take half the memory.

    Returns
    -------
    plan : Plan
        With attributes `method`, `n_centers`, `batch_size`, `n_epochs`, `memory` (a
        dict of MB with a "total"), `flops` and `seconds`. It prints as a table.

    Raises
    ------
    ValueError
        If the estimator is not of this package, or computes on a GPU, or a size is not
        a positive integer.

    See Also
    --------
    show_versions : What the machine has.

    Examples
    --------
    >>> from eigenkern import EigenProRegressor, estimate
    >>> cost = estimate(EigenProRegressor(), n_samples=50_000, n_features=20)
    >>> cost.method, cost.n_centers
    ('eigenpro2', 50000)
    """
    if not isinstance(estimator, Model):
        name = estimator.__name__ if isclass(estimator) else type(estimator).__name__
        remedy = "an instance of" if isclass(estimator) else "one of"
        raise ValueError(
            f"estimator must be {remedy} EigenPro*, Nystrom*, Nytro*, FalkonLike*, "
            f"LinearEigenPro*, DSG* or RFM*; got {name}"
            f"{': pass its last step, pipeline[-1]' * (name == 'Pipeline')}"
        )
    if np.ndim(n_samples):
        raise ValueError(
            "n_samples must be the number of rows, not the rows: for an array X write "
            "estimate(model, *X.shape)"
        )
    check_number("n_samples", n_samples, 2, integer=True)
    check_number("n_features", n_features, 1, integer=True)
    check_number("n_outputs", n_outputs, 1, integer=True)
    try:
        found = np.dtype(dtype)
    except (TypeError, ValueError):
        found = None
    if dtype is None or found not in (np.float32, np.float64):
        raise ValueError(f"dtype must be 'float32' or 'float64'; got {dtype!r}")
    if estimator.device not in ("auto", "cpu"):
        raise ValueError(
            "estimates are of the CPU: device must be 'auto' or 'cpu'; got "
            f"{estimator.device!r}"
        )
    estimator._check_parameters()
    n, d = int(n_samples), int(n_features)
    if is_precomputed(estimator):
        d = n
    X = np.broadcast_to(np.zeros((), found), (n, d))
    return plan_of(estimator, X, int(n_outputs))
