"""What "auto" means: the number of eigenvectors, and the step, measured.

The papers choose m as large as the resource can hold and use, and q as the largest for
which the critical batch size m* = beta / lambda_1 of the preconditioned kernel is at
most m. Here m is chosen in the same way, and q where the step predicted from beta and
lambda stops growing; `spectrum.HeldOutSpectrum` measures beta, lambda and the step
itself.
"""

from dataclasses import dataclass, replace
from typing import Any

from ..preconditioners.spectral import CenterSpectral, LinearSpectral, Spectral
from .sizes import check_sizes, max_components, n_measured_rows
from .spectrum import HeldOutSpectrum

# theta, the step divided by the largest stable one: of the values from 0.7 to 0.95 this
# one took the fewest epochs on problems like those of benchmarks/robustness.py.
SAFETY = 0.8


@dataclass(frozen=True)
class Measured:
    """Step and critical batch size of one preconditioner, estimated on held-out rows.

    Attributes
    ----------
    n_components : int
        q.
    beta, top_eigenvalue : float
        Those of the preconditioned kernel, as measured by `HeldOutSpectrum`.
    in_sample_eigenvalue : float
        lambda_{q+1}, the top eigenvalue as estimated on the subsample itself.
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
    """The preconditioner, sizes and step of EigenPro, chosen or given.

    Attributes
    ----------
    preconditioner : Spectral, GlobalSpectral, LinearSpectral or CenterSpectral
    subsample_size, batch_size, max_batch_size : int
    step_size : float
    adapted : Measured
        The measurement of that preconditioner.
    candidates : tuple of Measured
        All measurements, by increasing q; q = 0 is the kernel itself.
    largest_entry : float or None
        The largest w_h k_P(h, h) of the rows that the step was measured on; None if
        these are all rows, or if the step was not measured.
    """

    preconditioner: Any
    subsample_size: int
    batch_size: int
    max_batch_size: int
    step_size: float
    adapted: Measured
    candidates: tuple
    largest_entry: float | None = None

    @property
    def plain(self):
        """The measurement of the kernel itself."""
        return self.candidates[0]

    @property
    def results(self):
        """The candidates as a dict of columns, with the predicted step."""
        rows = [
            vars(one) | {"step_size": one.step_size(self.batch_size)}
            for one in self.candidates
        ]
        return {name: [row[name] for row in rows] for name in rows[0]}

    @property
    def acceleration(self):
        """Predicted step divided by that of plain SGD, the gain per epoch."""
        m = self.batch_size
        return self.adapted.step_size(m) / self.plain.step_size(m)


def tune(
    operator,
    sizes,
    *,
    make_preconditioner=Spectral.of,
    weights=None,
    n_components="auto",
    step_size="auto",
    damping=1.0,
    cost=lambda q, m: 1.0,
):
    """Choose the number of eigenvectors, and measure the step.

    Parameters
    ----------
    operator : Matrix
        Its rows in random order.
    sizes : tuple of int
        s, the most q to try, m, and the most rows that the resource can hold and use.
    make_preconditioner : callable
        ``make_preconditioner(operator, s, q, weights=, damping=)``.
    weights : array of shape (n,), default=None
        Weights of the rows, with mean 1.
    n_components, step_size, damping
        As in the estimators.
    cost : callable
        ``cost(q, m)`` is the time of a step with q eigenvectors divided by that with
        none; by default they cost nothing.

    Returns
    -------
    Tuning
    """
    n, (s, q, m, largest) = operator.shape[0], sizes
    if weights is not None and n_components == "auto":
        q = min(q, max_components(n, s, weights[:s]))
    n_measured = n_measured_rows(operator, n)
    full = make_preconditioner(operator, s, q, weights=weights, damping=damping)
    spectrum = _spectrum(operator, n, s, full, weights, n_measured)
    tuning = _choose_step(
        spectrum, full, n, n_measured, (s, m, largest), n_components, step_size, cost
    )
    if step_size == "auto" and n_measured < n and tuning.adapted.top_eigenvalue > 0:
        largest = spectrum.largest_entry(tuning.preconditioner.n_components)
        tuning = replace(tuning, largest_entry=largest)
    return tuning


def tune_on_centers(
    centers, sample, n_rows, plan, *, weights, n_components, step_size, damping
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
    plan : Plan
        From `plan_on_centers`.
    weights : array or None
        Weights of the rows of the sample, with mean 1.
    n_components, step_size, damping
        As in the estimators.

    Returns
    -------
    Tuning
    """
    n_sampled, (c, q, n_measured, largest) = sample.shape[0], plan.sizes
    full = CenterSpectral.of(
        centers, sample, n_measured, c, q, weights=weights, damping=damping
    )
    # The eigenfunctions are fitted to the rows before those that are measured on. The
    # two sets may overlap by the fraction of the fitted rows among all rows.
    n = n_rows if n_sampled >= 2 * n_measured else n_sampled
    spectrum = _spectrum(sample, n, n_measured, full, weights, n_measured)
    sizes = c, plan.batch_size, largest
    return _choose_step(
        spectrum, full, n_rows, n_measured, sizes, n_components, step_size
    )


def _choose_step(
    spectrum, full, n, n_measured, sizes, n_components, step_size, cost=lambda q, m: 1.0
):
    """Return a `Tuning` with the best number of eigenvectors, and the step.

    `sizes` are s, m and the largest m.
    """
    (_, m, _), q_max, several = sizes, full.n_components, n_components == "auto"
    grid = {0, q_max}
    if several:
        grid |= {q for q in (5 * 2**i for i in range(20)) if q < q_max}
    grid = sorted(grid)
    candidates = tuple(
        Measured(q, *measured, float(full.eigenvalues[q]))
        for q, measured in zip(grid, spectrum.measure(grid), strict=True)
    )
    adapted = _best_candidate(candidates, m, n, cost) if several else candidates[-1]
    q = adapted.n_components
    if step_size == "bound":
        bound = spectrum.bound(q, m)
        step_size = 1.0 / bound if bound > 0 else 1.0
    elif step_size == "auto":
        step_size = adapted.step_size(m)
        # A full batch has no noise, and the zero kernel no limit of stability.
        if m < n and adapted.top_eigenvalue > 0:
            # A sample of the rows is split into several batches, because a single one
            # has no noise. To larger batches the limit is extrapolated by the formula.
            simulated = m if n_measured == n else max(min(m, n_measured // 4), 1)
            predicted = adapted.step_size(simulated)
            edge = spectrum.largest_stable_step(q, simulated, predicted)
            step_size *= SAFETY * edge / predicted
    return Tuning(full.truncate(q), *sizes, float(step_size), adapted, candidates)


def _spectrum(operator, n, s, preconditioner, weights, n_measured):
    """Return the spectrum on rows of which a fraction s / n is in the subsample.

    This is its fraction of all rows: next to none if n is large.
    """
    start = s - int(n_measured * s / n)
    stop = start + n_measured
    return HeldOutSpectrum(
        operator.row_kernel(start, stop),
        preconditioner.features(operator, start, stop),
        preconditioner,
        None if weights is None else weights[start:stop],
    )


def _best_candidate(candidates, m, n, cost):
    """Return the best of the measured preconditioners.

    An epoch makes a progress of n (eta / m) lambda_i along eigenvector i. For the many
    trailing eigenvectors the longest step, relative to its time, is best: the smallest
    q within 5 % of it is chosen. Along the leading ones, whose eigenvalues are lowered
    to lambda_{q+1}, the progress must still be at least 1 per epoch.
    """

    def rate(one):
        return one.step_size(m) / cost(one.n_components, m)

    able = [
        one
        for one in candidates
        if one.n_components == 0
        or n * one.step_size(m) / m * one.in_sample_eigenvalue >= 1.0
    ]
    longest = max(rate(one) for one in able)
    return next(one for one in able if rate(one) >= 0.95 * longest)


def tune_on_features(
    features, sizes, rng, *, weights, n_components, step_size, damping
):
    """Choose the preconditioner of a linear model, and measure the step.

    Parameters
    ----------
    features : CenteredFeatures or DaskMatrix
        Its rows in random order.
    sizes : tuple of int
        `sizes_of_features`.
    rng : numpy.random.RandomState
    weights : array of shape (n,) or None
        Of the rows, with mean 1.
    n_components, step_size, damping
        As in the estimators.

    Returns
    -------
    Tuning
    """
    largest, m, s = sizes

    def cost(q, m):
        """Return the time of a step divided by that of one without eigenvectors.

        A step reads the rows of the batch twice, and the eigenvectors, which are dense
        even if the rows are sparse, up to four times.
        """
        return 1.0 + 4 * q * features.shape[1] / (2 * m * features.width)

    if n_components == "auto":
        # They may take ten times as long as a step without them. On 20 000 sparse rows
        # with 65 536 columns, finding 400 of them takes 7 s, and all epochs 0.5 s.
        most = int(10 / (cost(1, m) - 1.0))
    else:  # there are no more eigenvectors
        most = n_components = min(n_components, s - 1)

    def make_preconditioner(operator, s, q, **options):
        return LinearSpectral.of(operator, s, min(q, most), rng=rng, **options)

    check_sizes(features.shape[0], s, n_components, m)
    q = n_components
    if q == "auto":
        q = max_components(features.shape[0], s, None)
    return tune(
        features,
        (s, q, m, largest),
        make_preconditioner=make_preconditioner,
        weights=weights,
        n_components=n_components,
        step_size=step_size,
        damping=damping,
        cost=cost,
    )
