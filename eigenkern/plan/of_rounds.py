"""The plan of learned metrics: fits in rounds, to some of the rows, then to all."""

from dataclasses import replace

from ..arrays import memory
from .costs import Costs
from .of_parts import plan_of_parts

# Maximum number of features for which "auto" tries a full metric: its root takes 0.2 s
# per round there, and 1.1 s for twice as many features.
_MAX_FULL = 1000
# Kernels and their widths, the bandwidths over the median distance. The first one is to
# learn a metric with in the default estimator: after one full round cpusmall has errors
# of 0.199, 0.165 and 0.155 with widths 1, 2 and 4; of the other tables only ijcnn1 is
# better with 1. The others are to try with the chosen metric, and the best of all with
# a power of R. Errors on new rows of the laplacian, the best kernel, and the best
# kernel with that power, 4000 rows: kin8nm 0.265 0.257 0.252, ijcnn1 2.05 1.97 1.87 %,
# bike_hour 0.246 0.238 0.272. None helps california_housing. Of 12 tables with 1200
# rows, exp(-(r / s)^q) with q = 0.7 or 1.4 was chosen on two, with 1.008 and 1.000
# times the error.
_KERNELS = (("laplacian", 4.0), *(("matern32", width) for width in (1.0, 2.0, 4.0)))
# Kernels of the Manhattan distance to try in regression. Errors with the best kernel
# above, and the best of these, 8000 rows: california_housing 0.430 0.418, bike_hour
# 0.224 0.214, cpusmall 0.156 0.151. In classification coil2000, covtype, krkopt and
# titanic gain nothing, and on ijcnn1 it would be chosen, in one draw of three, with 2.2
# instead of 1.7 % errors. Adult has 14.3 instead of 14.6 %, in twice the time.
_MANHATTAN_KERNELS = (("manhattan", 0.5), ("manhattan", 1.0), ("manhattan", 2.0))
# Scalings of the columns that "auto" compares, by models of the same rows as kernels.
SCALINGS = ("standard", "normal", "robust", None)
# Rounds without a penalty in the second start; each fits `n_compared` rows. Draws, of 8
# with 20 and 32 features of which two matter, in which these had more than .8 of the
# weight after 3, 4, 5 and 6 rounds: 1, 5, 7 and 7.
_WEAK_ROUNDS = 5
# Maximum number of rows of the Gaussian process that error bars come from, and of rows
# left out to measure them: the factor takes 8 MB. Log densities on new rows, models of
# 2000 rows, with 1000, 500 and 250 of them: bike_hour -5.01 -5.00 -4.99, cpusmall -2.35
# -2.36 -2.35, california_housing -12.19 for all; with a factor of all rows -5.00 -2.36
# -12.20. On clean targets 3.98 and 3.91 with 1000 and 500 rows, and 4.03.
ERROR_BAR_ROWS = 1000


@memory.read_once()
def plan_of_rounds(shape, plan_of_fit):
    """Return the plan of fits with learned metrics, and of one to all rows.

    ``plan_of_fit(kernel, m)`` is that of the estimator and m rows; a kernel is a name
    and a width, the bandwidth over the median distance, or None for the estimator's.
    The metric is learned on ``n_train`` rows, and judged on ``n_held_out``.

    Chosen besides: the `scalings` to try, and the `kinds` of metric to learn, in turn,
    in at most `n_rounds` each; over how many rows gradients are averaged, `n_graded`;
    how many fits to `n_compared` rows a second start takes, `n_weak`; `kernels`, the
    first of which is to learn with, and `manhattan` ones, to try in the end, like
    scalings, on `n_compared` rows; and the plans of the `fits`: to the rows of the
    metric, those compared, and all.
    """
    e, n, d, k = shape.estimator, shape.n, shape.d, shape.n_outputs
    n_part, n_held_out = shape.n_train, shape.n_held_out
    kinds = ("diagonal", "full") if d <= _MAX_FULL else ("diagonal",)
    if d == 1 or e.metric != "auto":
        kinds = () if d == 1 else (e.metric,)
    kernels, manhattan, n_comparisons, n_weak = (None,), (), 0, 0
    if e.estimator is None and e.max_rounds > 0:  # else the estimator as it is
        kernels = _KERNELS
        n_weak = min(e.max_rounds, _WEAK_ROUNDS) if kinds else 0
        # The Manhattan distance takes a time that grows with the features: with the 123
        # of a9a a fit took twice as long.
        if not shape.labels and e.metric != "full" and d <= 50:
            manhattan = _MANHATTAN_KERNELS
        # A softer metric, too; fits with the Manhattan distance take longer.
        n_comparisons = len(kernels) + 1 + 3 * len(manhattan)
    scalings = SCALINGS if e.scaling == "auto" else (e.scaling,)
    n_comparisons += len(scalings) if len(scalings) > 1 else 0
    # Results hardly depend on how many rows kernels are compared with: with all instead
    # of half of 4000 the errors are 0.99 times as large (four tables, three seeds), and
    # a fit takes 1.5 times as long.
    n_compared = min(n_part, max(n_part // 2, 2000))
    n_graded = min(n_part, e.max_gradient_rows)
    sizes = n_part, n_compared, n
    fits = part, compared, final = [plan_of_fit(kernels[0], m) for m in sizes]
    if e.estimator is None and final.method != "direct":
        final = plan_of_parts(final.shape, lambda m: plan_of_fit(kernels[0], m))
        fits = part, compared, final
    shape = replace(shape, kernel=final.shape.kernel)
    fit, size = Costs(shape), shape.itemsize
    n_fits = 1 + len(kinds) * min(e.max_rounds, 5)  # usual rounds
    # The scaled rows; those of the metric and those to judge it; X R; those compared.
    copies = (n + 2 * n_part + n_held_out + n_compared % n_part) * d * size
    fit.holds("data copy", copies)
    if "full" in kinds:  # R of each round; M, its eigenvectors and R in float64
        n_metrics = 1 + (len(kinds) + (n_weak > 0)) * e.max_rounds
        fit.holds("metrics", n_metrics * d * d * size)
        fit.uses(24 * d * d)

    def include(one, n_times, factor_size):
        fit.includes(one.costs, n_times)
        if one.method == "direct":  # such penalties need a factor in double precision
            m = one.chosen.get("part_rows", one.n_samples)
            fit.uses(factor_size * m**2 * (1 + 3 / 64) + fit.tiles(shape.matrix(m, m)))

    include(part, n_fits, size)
    include(compared, n_comparisons + n_weak, size)
    # glibc keeps freed arrays of up to 32 MiB, in pieces too small for the arrays of a
    # fit to more rows.
    fit.holds("freed arrays", min(fit.peak - copies, 64e6))
    fit.entries((n_fits * n_part + n_comparisons * n_compared) * n_held_out, k)
    for m, n_times in ((n_part, n_fits), (n, 1)):
        fit.entries(n_times * n_graded * m)
        fit.products(n_times * n_graded * m * k * (d + 1), size)
    fit.holds("data copy", n * shape.row_bytes)
    include(final, 1, 8)
    if not shape.labels:
        if final.method == "direct":  # the inverse of that part of the factor
            p = min(n, final.chosen.get("part_rows", n))
            m = p if p <= ERROR_BAR_ROWS else min(ERROR_BAR_ROWS, p // 2)
            fit.uses(8 * (p**2 + 2 * m**2))
        m = min(n, ERROR_BAR_ROWS)
        fit.holds("error bars", 8 * m * (m + 3 * d))
        fit.uses(3 * 8 * m**2)  # an eigendecomposition
        fit.products(10 * m**3)
    return fit.plan(
        final.method,
        n_centers=final.n_centers,
        batch_size=final.batch_size,
        n_epochs=final.n_epochs,
        scalings=scalings,
        kinds=kinds,
        n_rounds=e.max_rounds,
        n_graded=n_graded,
        n_weak=n_weak,
        kernels=kernels,
        manhattan=manhattan,
        n_compared=n_compared,
        fits=fits,
    )
