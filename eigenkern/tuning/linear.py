"""What "auto" means for a linear model: sizes, eigenvectors that pay, and the step."""

from ..backend.machine import machine_of
from ..preconditioners.linear import LinearSpectral
from .sizes import MIN_ROWS, default_subsample_size, filling_work
from .step import tune

# Rows of the subsample per feature: with fewer, the last directions are noise.
_ROWS_PER_FEATURE = 8
# Most time that eigenvectors may add to a step, in units of a step without them. On
# 20 000 sparse rows with 65 536 columns, finding 400 of them takes 7 s, and all epochs
# 0.5 s.
_HIGHEST_COST = 10


def sizes_of_features(
    features, n_columns, alpha, batch_size, subsample_size, *, in_pieces=False
):
    """Return the largest useful batch, m and s.

    Parameters
    ----------
    features : CenteredFeatures or DaskMatrix
        Of n rows.
    n_columns : int
        Outputs.
    alpha : float
        The penalty.
    batch_size, subsample_size : int or "auto"
        As in the estimators.
    in_pieces : bool, default=False
        Whether the rows are a piece of the data; given sizes may then be above n.
    """
    n, d = features.shape
    work = filling_work(features.xp, features.device, features.dtype)
    narrow = machine_of(features).narrow_product_work
    largest = max(int(work / (narrow * features.width * n_columns)), MIN_ROWS)
    m, s = batch_size, subsample_size
    if m == "auto":
        # With fewer features than rows, or with a penalty, a residual is left, whose
        # noise larger batches lower. More features can fit the rows, and converge
        # faster in more steps. So do pieces, which are seen once.
        leaves_residual = (n >= d or alpha > 0) and not in_pieces
        m = min(largest, n if leaves_residual else max(n // 8, 1))
    elif in_pieces:
        m = min(m, n)  # later pieces may be larger
    if s == "auto":
        s = default_subsample_size(n)
        if d < s:  # all directions can be estimated
            s = min(max(s, _ROWS_PER_FEATURE * d), n)
    elif in_pieces:
        s = min(s, n)
    return min(largest, n), m, s


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
        most = int(_HIGHEST_COST / (cost(1, m) - 1.0))
    else:  # there are no more eigenvectors
        most = n_components = min(n_components, s - 1)

    def make_preconditioner(operator, s, q, **options):
        return LinearSpectral.of(operator, s, min(q, most), rng=rng, **options)

    return tune(
        features,
        largest,
        make_preconditioner=make_preconditioner,
        weights=weights,
        subsample_size=s,
        n_components=n_components,
        batch_size=m,
        step_size=step_size,
        damping=damping,
        cost=cost,
    )
