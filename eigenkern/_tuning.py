"""What "auto" means: the sizes of subsample, batch and preconditioner, and the step.

The papers choose m as what the resource holds and fills, and q as the largest for which
the critical batch size m* = beta / lambda_1 of the preconditioned kernel is at most m.
Here m is chosen likewise, and q where the measured step stops growing; beta and lambda
are those of `preconditioners.HeldOutSpectrum`.
"""

from dataclasses import dataclass
from typing import Any

from ._array import available_memory, namespace
from .preconditioners import HeldOutSpectrum, Spectral

# C_G, multiply-adds per thread that make the fixed cost of a step negligible.
_FILLING_WORK = 2.5e8
# Rows per thread below which the matrix product of a step loses speed.
_MIN_ROWS = 256
# Rows on which beta and lambda are measured.
_N_MEASURED = 4000
# theta. The largest stable step of seven data sets was 0.85 to 2.5 times the formula's.
_SAFETY = 0.8


@dataclass(frozen=True)
class Measured:
    """Step and critical batch size of one preconditioner, outside its subsample.

    Attributes
    ----------
    n_components : int
        q.
    beta, top_eigenvalue : float
        Of the preconditioned kernel, as `HeldOutSpectrum` measures them.
    """

    n_components: int
    beta: float
    top_eigenvalue: float

    @property
    def critical_batch_size(self):
        """m* = beta / lambda, infinite for the zero kernel."""
        top = self.top_eigenvalue
        return self.beta / top if top > 0 else float("inf")

    def step_size(self, m):
        """eta = theta 2 m / (beta + (m - 1) lambda) for batches of m rows."""
        curvature = self.beta + (m - 1) * self.top_eigenvalue
        return _SAFETY * 2.0 * m / curvature if curvature > 0 else 1.0


@dataclass(frozen=True)
class Tuning:
    """All that a fit of EigenPro 2 needs to know, chosen or given.

    Attributes
    ----------
    preconditioner : Spectral
    batch_size, max_batch_size : int
    step_size : float
    plain, adapted : Measured
        Of the kernel itself, and of the preconditioned kernel.
    """

    preconditioner: Any
    batch_size: int
    max_batch_size: int
    step_size: float
    plain: Measured
    adapted: Measured

    @property
    def acceleration(self):
        """Predicted gain over plain SGD an epoch: the ratio of their measured steps."""
        m = self.batch_size
        return self.adapted.step_size(m) / self.plain.step_size(m)


def tune(
    operator,
    n_features,
    n_columns,
    *,
    weights=None,
    subsample_size="auto",
    n_components="auto",
    batch_size="auto",
    step_size="auto",
    damping=1.0,
):
    """Choose what is "auto", and measure the step.

    Parameters
    ----------
    operator : KernelOperator
        K(X, X), with rows in random order.
    n_features, n_columns : int
        d and l.
    weights : array of shape (n,), default=None
        Weights of the rows, with mean 1.
    subsample_size, n_components, batch_size, step_size, damping
        As in the estimators.

    Returns
    -------
    Tuning

    Raises
    ------
    ValueError
        If a given size is impossible for so many rows.
    """
    n = operator.shape[0]
    s = _subsample_size(n) if subsample_size == "auto" else subsample_size
    _check_at_most("subsample_size", s, n, "training rows")
    if batch_size != "auto":
        _check_at_most("batch_size", batch_size, n, "training rows")
    if n_components != "auto" and n_components >= s:
        raise ValueError(
            f"n_components must be less than subsample_size; got {n_components} with a "
            f"subsample of {s} of {n} training rows"
        )
    largest = max_batch_size(operator, n_features, n_columns)
    m = min(largest, max(n // 8, 1)) if batch_size == "auto" else batch_size
    weights_s = None if weights is None else weights[:s]
    q = _max_components(n, s, weights_s) if n_components == "auto" else n_components
    full = Spectral.from_subsample(
        operator.block(0, s, 0, s),
        q,
        weights=weights_s,
        damping=damping,
    )
    spectrum = _spectrum(operator, full, weights)
    plain = _measure(spectrum, 0)
    if n_components == "auto":
        adapted = _choose(spectrum, full, m, n)
    else:
        adapted = _measure(spectrum, full.n_components)
    return Tuning(
        preconditioner=full.truncate(adapted.n_components),
        batch_size=m,
        max_batch_size=largest,
        step_size=adapted.step_size(m) if step_size == "auto" else float(step_size),
        plain=plain,
        adapted=adapted,
    )


def max_batch_size(operator, n_features, n_columns):
    """Return m_G^max, the rows of a batch that the resource can hold and fill.

    (d + l) m n = C_G fills it and (d + l + m) n = S_G fits its memory; besides, a
    matrix product needs some rows for each thread.
    """
    n, width = operator.shape[0], n_features + n_columns
    filling = max(_FILLING_WORK / (width * n), _MIN_ROWS) * operator.n_workers
    memory = available_memory(operator.xp, operator.device)
    holding = memory / operator.itemsize / n - width
    return int(max(1, min(filling, holding, n)))


def _check_at_most(name, value, largest, noun):
    if value > largest:
        raise ValueError(f"{name} must be at most {largest}, the {noun}; got {value}")


def _subsample_size(n):
    """Return s for n rows: all of a small data set, where nothing need be estimated."""
    if n <= 1000:
        return n
    return min(max(1000, n // 6), 2000) if n < 100_000 else 4000


def _max_components(n, s, weights):
    """Return the most eigenvectors to try: half of what the subsample can support.

    A quarter where they are fitted to it and used on other rows. Rows of weight w count
    as (sum w)^2 / sum w^2 rows.
    """
    supported = s
    if weights is not None:
        xp = namespace(weights)
        total, squares = float(xp.sum(weights)), float(xp.sum(weights**2))
        supported = int(total * total / squares)
    return min(supported // (2 if s == n else 4), 500)


def _spectrum(operator, preconditioner, weights):
    """Return the spectrum outside the subsample, or on all rows of a small set."""
    n, s = operator.shape[0], preconditioner.subsample_size
    start, stop = (0, n) if n <= _N_MEASURED else (s, min(s + _N_MEASURED, n))
    if stop - start < s:  # a large subsample leaves too few others
        start, stop = 0, min(n, 2 * _N_MEASURED)
    return HeldOutSpectrum(
        operator.block(start, stop, start, stop),
        operator.block(start, stop, 0, s),
        preconditioner,
        None if weights is None else weights[start:stop],
    )


def _measure(spectrum, q):
    return Measured(q, *spectrum.measure(q))


def _choose(spectrum, preconditioner, m, n):
    """Return the best of q = 0, 5, 10, 20 .. q_max, measured.

    An epoch makes n (eta / m) lambda_i of progress along the eigenvector of lambda_i.
    The many trailing ones want the longest step, so the smallest q within 5 % of it is
    taken; the leading ones, brought down to lambda_{q+1}, must still make 1 an epoch.
    """
    q_max = preconditioner.n_components
    grid = [0, *(5 * 2**i for i in range(20) if 5 * 2**i < q_max), q_max]
    measured = [_measure(spectrum, q) for q in sorted(set(grid))]
    able = [
        here
        for here in measured
        if here.n_components == 0
        or n
        * here.step_size(m)
        / m
        * float(preconditioner.eigenvalues[here.n_components])
        >= 1.0
    ]
    longest = max(here.step_size(m) for here in able)
    return next(here for here in able if here.step_size(m) >= 0.95 * longest)
