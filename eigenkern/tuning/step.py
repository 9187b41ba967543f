"""What "auto" means: the sizes of subsample, batch and preconditioner, and the step.

The papers choose m as what the resource holds and fills, and q as the largest for which
the critical batch size m* = beta / lambda_1 of the preconditioned kernel is at most m.
Here m is chosen likewise, and q where the step that beta and lambda predict stops
growing; `spectrum.HeldOutSpectrum` measures these, and the step itself.
"""

from dataclasses import dataclass, fields
from typing import Any

from ..preconditioners.centers import CenterSpectral
from ..preconditioners.eigenpro2 import Spectral
from .sizes import (
    N_MEASURED,
    affordable_rows,
    auto_batch_size,
    check_at_most,
    check_sizes,
    default_subsample_of_centers,
    default_subsample_size,
    max_components,
    max_components_on_centers,
)
from .spectrum import HeldOutSpectrum

# theta, the step over the largest stable one: of 0.7 to 0.95 the one with the fewest
# epochs on problems of the kind of benchmarks/robustness.py.
SAFETY = 0.8


@dataclass(frozen=True)
class Measured:
    """Step and critical batch size of one preconditioner, estimated on held-out rows.

    Attributes
    ----------
    n_components : int
        q.
    beta, top_eigenvalue : float
        Of the preconditioned kernel, as `HeldOutSpectrum` measures them.
    in_sample_eigenvalue : float
        lambda_{q+1}, what the subsample itself takes for the top eigenvalue.
    """

    n_components: int
    beta: float
    top_eigenvalue: float
    in_sample_eigenvalue: float

    @property
    def critical_batch_size(self):
        """m* = beta / lambda, infinite for the zero kernel."""
        top = self.top_eigenvalue
        return self.beta / top if top > 0 else float("inf")

    def step_size(self, m):
        """Predicted eta = theta 2 m / (beta + (m - 1) lambda) for batches of m rows."""
        curvature = self.beta + (m - 1) * self.top_eigenvalue
        return SAFETY * 2.0 * m / curvature if curvature > 0 else 1.0


@dataclass(frozen=True)
class Tuning:
    """All that a fit of EigenPro needs to know, chosen or given.

    Attributes
    ----------
    preconditioner : Spectral, GlobalSpectral, LinearSpectral or CenterSpectral
    subsample_size, batch_size, max_batch_size : int
    step_size : float
    adapted : Measured
        Of the preconditioned kernel.
    candidates : tuple of Measured
        All that were measured, by increasing q from 0: the kernel itself.
    """

    preconditioner: Any
    subsample_size: int
    batch_size: int
    max_batch_size: int
    step_size: float
    adapted: Measured
    candidates: tuple

    @property
    def plain(self):
        """What was measured of the kernel itself."""
        return self.candidates[0]

    @property
    def results(self):
        """The candidates as a dict of columns, with the predicted step."""
        columns = {
            field.name: [getattr(one, field.name) for one in self.candidates]
            for field in fields(Measured)
        }
        steps = [one.step_size(self.batch_size) for one in self.candidates]
        return columns | {"step_size": steps}

    @property
    def acceleration(self):
        """Predicted gain over plain SGD an epoch: the ratio of predicted steps."""
        m = self.batch_size
        return self.adapted.step_size(m) / self.plain.step_size(m)


def tune(
    operator,
    largest_batch,
    *,
    make_preconditioner=Spectral.of,
    weights=None,
    subsample_size="auto",
    n_components="auto",
    batch_size="auto",
    step_size="auto",
    damping=1.0,
    cost=None,
):
    """Choose what is "auto", and measure the step.

    Parameters
    ----------
    operator : Matrix
        Its rows in random order.
    largest_batch : int
        Rows that the resource can hold and fill.
    make_preconditioner : callable
        ``make_preconditioner(operator, s, q, weights=, damping=)``.
    weights : array of shape (n,), default=None
        Weights of the rows, with mean 1.
    subsample_size, n_components, batch_size, step_size, damping
        As in the estimators.
    cost : callable, default=None
        ``cost(q, m)``, the time of a step with q eigenvectors over that with none;
        None: they cost next to nothing.

    Returns
    -------
    Tuning

    Raises
    ------
    ValueError
        If a given size is impossible for so many rows.
    """
    n = operator.shape[0]
    n_affordable = affordable_rows(operator)
    s = subsample_size
    if s == "auto":
        s = max(min(default_subsample_size(n), n_affordable), 1)
    check_sizes(n, s, n_components, batch_size)
    m = auto_batch_size(largest_batch, n) if batch_size == "auto" else batch_size
    weights_s = None if weights is None else weights[:s]
    q = max_components(n, s, weights_s) if n_components == "auto" else n_components
    full = make_preconditioner(operator, s, q, weights=weights, damping=damping)
    n_measured = max(min(n, N_MEASURED, n_affordable), 1)
    spectrum = _spectrum(operator, n, s, full, weights, n_measured)
    return _choose_step(
        spectrum,
        full,
        n,
        n_measured,
        n_components=n_components,
        batch_size=m,
        step_size=step_size,
        subsample_size=s,
        max_batch_size=largest_batch,
        cost=cost,
    )


def tune_on_centers(
    centers,
    sample,
    n_rows,
    *,
    weights=None,
    subsample_size="auto",
    n_components="auto",
    batch_size,
    max_batch_size,
    step_size="auto",
    damping=1.0,
):
    """Choose the preconditioner of a model on centers, and measure the step.

    Parameters
    ----------
    centers : Matrix
        K(Z, Z), in random order.
    sample : Sample
        Rows of the data in random order; `n_sampled_rows` of them suffice.
    n_rows : float
        n, all rows of the data; infinite for a stream.
    weights : array, default=None
        Weights of the rows of the sample, with mean 1.
    subsample_size : int or "auto", default="auto"
        c, the centers that the preconditioner lives on.
    batch_size, max_batch_size : int
    n_components, step_size, damping
        As in the estimators.

    Returns
    -------
    Tuning

    Raises
    ------
    ValueError
        If a given size is impossible for so many centers.
    """
    p, n_sampled = centers.shape[0], sample.shape[0]
    n_affordable = max(affordable_rows(centers), 1)
    c = subsample_size
    if c == "auto":
        c = default_subsample_of_centers(p, n_rows, n_affordable)
    check_at_most("subsample_size", c, p, "centers")
    n_measured = min(n_sampled, N_MEASURED, n_affordable)
    q = n_components
    if q == "auto":
        q = max_components_on_centers(c, n_rows, n_measured)
    elif q >= c:
        raise ValueError(
            "n_components must be less than subsample_size, which is at most the "
            f"number of centers; got {q} with {c} of {p} centers"
        )
    full = CenterSpectral.of(
        centers, sample, n_measured, c, q, weights=weights, damping=damping
    )
    # The eigenfunctions are fitted to the rows before those that are measured on, and
    # these may overlap by as large a part as the fitted rows are of all.
    n = n_rows if n_sampled >= 2 * n_measured else n_sampled
    spectrum = _spectrum(sample, n, n_measured, full, weights, n_measured)
    return _choose_step(
        spectrum,
        full,
        n_rows,
        n_measured,
        n_components=n_components,
        batch_size=batch_size,
        step_size=step_size,
        subsample_size=c,
        max_batch_size=max_batch_size,
    )


def _choose_step(
    spectrum,
    full,
    n,
    n_measured,
    *,
    n_components,
    batch_size,
    step_size,
    subsample_size,
    max_batch_size,
    cost=None,
):
    """Choose the number of eigenvectors of a preconditioner, and the step."""
    m, q_max = batch_size, full.n_components
    grid = {0, q_max}
    if n_components == "auto":
        grid |= {q for q in (5 * 2**i for i in range(20)) if q < q_max}
    grid = sorted(grid)
    candidates = tuple(
        Measured(q, *measured, float(full.eigenvalues[q]))
        for q, measured in zip(grid, spectrum.measure(grid), strict=True)
    )
    adapted = (
        _best_candidate(candidates, m, n, cost)
        if n_components == "auto"
        else candidates[-1]
    )
    if step_size == "bound":
        bound = spectrum.bound(adapted.n_components, m)
        step_size = 1.0 / bound if bound > 0 else 1.0
    elif step_size == "auto":
        step_size = adapted.step_size(m)
        # A full batch has no noise that could be seen, the zero kernel no edge.
        if m < n and adapted.top_eigenvalue > 0:
            # Of fewer rows than all several batches: one alone has no noise. The edge
            # of larger ones follows from the formula.
            simulated = m if n_measured == n else max(min(m, n_measured // 4), 1)
            predicted = adapted.step_size(simulated)
            edge = spectrum.largest_stable_step(
                adapted.n_components, simulated, predicted
            )
            step_size *= SAFETY * edge / predicted
    return Tuning(
        preconditioner=full.truncate(adapted.n_components),
        batch_size=m,
        subsample_size=subsample_size,
        max_batch_size=max_batch_size,
        step_size=float(step_size),
        adapted=adapted,
        candidates=candidates,
    )


def _spectrum(operator, n, s, preconditioner, weights, n_measured):
    """Return the spectrum on rows with as large a part of the subsample as all have.

    Where n is large that is next to none of it.
    """
    start = s - int(n_measured * s / n)
    stop = start + n_measured
    return HeldOutSpectrum(
        operator.row_kernel(start, stop),
        preconditioner.features(operator, start, stop),
        preconditioner,
        None if weights is None else weights[start:stop],
    )


def _best_candidate(candidates, m, n, cost=None):
    """Return the best of the measured preconditioners.

    An epoch makes n (eta / m) lambda_i of progress along the eigenvector of lambda_i.
    The many trailing ones want the longest step, of the time that it takes, so the
    smallest q within 5 % of it is taken; the leading ones, brought down to
    lambda_{q+1}, must still make 1 an epoch.
    """

    def rate(one):
        return one.step_size(m) / (1.0 if cost is None else cost(one.n_components, m))

    able = [
        one
        for one in candidates
        if one.n_components == 0
        or n * one.step_size(m) / m * one.in_sample_eigenvalue >= 1.0
    ]
    longest = max(rate(one) for one in able)
    return next(one for one in able if rate(one) >= 0.95 * longest)
