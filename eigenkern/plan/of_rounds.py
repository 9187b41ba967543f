"""Plans of recursive feature machines."""

from .costs import Costs

# Rounds that a kind of metric usually takes, of those that are allowed.
_USUAL_ROUNDS = 4


def plan_of_rounds(
    shape, part, compared, final, *, n_kinds, n_rounds, n_graded, n_compared
):
    """Return the plan of fits with learned metrics, and of one to all rows.

    Parameters
    ----------
    shape : Shape
    part, compared, final : Plan
        Of fits to the rows that the metric is learned on, to those that choose a kernel
        in the end, and to all rows.
    n_kinds, n_rounds, n_graded : int
        Kinds of metric, most rounds of each, and rows that gradients are averaged over.
    n_compared : int
        Fits that choose a kernel.
    """
    fit, d, k = Costs(shape), shape.d, shape.n_outputs
    n_part, n_held_out = part.n_samples, shape.n_held_out
    n_some = compared.n_samples
    n_fits = 1 + n_kinds * min(n_rounds, _USUAL_ROUNDS)
    # The rows without far values; those of the metric and those to judge it; X R.
    fit.holds("data copy", (shape.n + 2 * n_part + n_held_out) * d * shape.itemsize)
    fit.includes(part.costs, n_fits)
    fit.includes(compared.costs, n_compared)
    fit.entries((n_fits * n_part + n_compared * n_some) * n_held_out, k)
    for n, n_times in ((n_part, n_fits), (shape.n, 1)):
        fit.entries(n_times * n_graded * n)
        fit.products(n_times * n_graded * n * k * (d + 1), shape.itemsize)
    fit.holds("data copy", shape.n * d * shape.itemsize)
    fit.includes(final.costs)
    return fit.plan(
        final.method,
        n_centers=final.n_centers,
        batch_size=final.batch_size,
        n_epochs=final.n_epochs,
    )
