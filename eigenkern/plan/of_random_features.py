"""The plan of doubly stochastic gradients, and the longest step that is safe."""

from numbers import Real

import numpy as np

from ..arrays import memory
from ..arrays.linalg import largest_eigenvalues
from ..arrays.machine import FREQUENCY_SLAB, WAVE_TILE_ALONE
from ..methods.stochastic import BlockRule, Steps
from ..operators.blocks import cache_budget
from ..operators.tiled import TiledKernel
from .costs import Costs
from .of_epochs import add_ridge
from .parameters import is_auto
from .penalty import n_sampled
from .sizes import planned_bytes
from .step import SAFETY

# lambda if it is not chosen, and the smallest one that is chosen.
ALPHA = 1e-6
# Frequencies of the first step; all later ones are in proportion. 1 - R2 of fits on new
# rows with 2048, 4096, 8192 and 16384: kin8nm, 6500 rows, 0.133, 0.116, 0.104,
# 0.097; cpusmall, 6500 rows, 0.048, 0.046, 0.044, 0.043; california_housing, 14 000
# rows, 0.226, 0.222, 0.218, 0.218. The number of features grows nearly in proportion:
# for kin8nm 35 000, 63 000, 107 000, 183 000.
_FIRST_FREQUENCIES = 8192
# Least steps in an epoch: fewer measure the loss too poorly. Errors on 800 rows of
# eight data sets with 4, 8 and 16 are 0.96 to 1.02 times those with 32; with
# max_features=2048 the mean error is 0.93 times as large with 8, 1.06 times with 128.
_N_STEPS = 32
# Least rows of a step in a stream. Errors after ten pieces of 1000 rows of a sine with
# 64, 128 and 256, means of three seeds: squared loss 0.342, 0.314, 0.329 of the
# deviation; huber 0.415, 0.453, 0.496; wrong labels 0.062, 0.073, 0.077. With 64 the
# model has 1.4 times as many features, and takes 1.3 times as long.
_LEAST_BATCH = 128
# Bytes that kept frequencies may take.
FREQUENCY_BYTES = 256e6
# Bytes that products of blocks may take on the rows that score the epochs: about 6 MB
# for 800 rows and three quantiles. With them 20 epochs on 8000 rows of
# california_housing took 22 s of CPU, and 35 s without.
KEPT_BYTES = 64e6
# Rows on which the largest eigenvalue of the kernel is measured. Its standard deviation
# over six draws is at most 3 % (with 500 rows at most 7 %; five data sets, gaussian and
# laplacian), much less than the margin of `SAFETY`.
N_SAMPLED = 2000


@memory.read_once()
def plan_of_random_features(shape, *, in_pieces=False, sizes=None):
    """Return the plan of doubly stochastic gradients.

    Of rows `in_pieces` each is seen once; `sizes` are F and B of earlier pieces. Chosen
    besides: the `block_size` F; which `blocks` a step changes; `n_passes` over the rows
    in an epoch; from how many rows a penalty is chosen, `n_ridge_rows`, or 0; and the
    bytes of values of f that are `kept`, of `frequencies`, and of a `block`; and the
    `most_blocks` that there can be.

    With values of f in float64, the blocks since the last visit of a batch cost n F per
    step, whatever B is, so a batch of all rows has the least noise. F is so large that
    the work of a step outweighs its overhead.
    """
    e, n, d, k = shape.estimator, shape.n_train, shape.d, shape.n_outputs
    size, kept = shape.itemsize, 8.0 * n * k
    if in_pieces or kept > planned_bytes(shape, e.cache_size):
        kept = 0.0
    F, m = sizes or (e.block_size, e.batch_size)
    if is_auto(F):
        F = 256  # as in the paper, for steps that evaluate every block again
        if kept:
            # With fewer than 2e6 rows times features in a step, the overhead of NumPy's
            # calls is as large.
            F = int(np.clip(2.0 ** round(np.log2(2e6 / n)), 32, 128))
        F = min(F, e.max_features or F)
    if is_auto(m):
        # The features of a batch may take 128 MB.
        m = max(int(128e6 // (16 * F)), 2) if kept else 4096
        if in_pieces:  # also of later pieces, which may have more rows than this one
            m = int(np.clip(n // _N_STEPS, _LEAST_BATCH, m))
    if sizes is None and not (in_pieces and is_auto(e.batch_size)):
        m = min(m, n)
    n_passes, n_first = 1, max(_FIRST_FREQUENCIES / F, 1.0)
    if not in_pieces:
        n_passes = -(-_N_STEPS // -(-n // m))
    n_old = e.n_old
    if is_auto(n_old):
        n_old = 1 if in_pieces else None
    most = np.inf if e.max_features is None else e.max_features // F
    blocks = BlockRule(e.algorithm, e.n_new, n_old, most, n_first)
    given = in_pieces or shape.n_held_out or not is_auto(e.alpha)
    n_ridge_rows = 0 if given else n_sampled(n)
    frequencies = np.clip(cache_budget(e.cache_size, shape) - kept, 0, FREQUENCY_BYTES)
    fit = Costs(shape)
    fit.holds("data copy", n * shape.row_bytes)
    fit.holds("targets", (8 + 3 * size) * n * k)
    if n_ridge_rows:
        add_ridge(fit, shape, shape.matrix(n_ridge_rows, n_ridge_rows, symmetric=True))
    # Early steps t change n_1 / t blocks instead of one, about n_1 log(n_1) more.
    total, first = n_passes * -(-n // m) * e.max_iter, min(n_first, most)
    early = first * np.log(first)
    n_blocks = min(early + total / 2, most)  # of the others about a half are new
    coef_bytes = 4 * n_blocks * F * k * size  # of a list, and of the array in the end
    fit.holds("coefficients", coef_bytes + min(frequencies, n_blocks * F * d * size))
    # Steps evaluate the blocks that they change: on all rows, batch by batch, if values
    # are kept, or else on their own, on which they evaluate all blocks, too.
    new = 1.0 if e.algorithm == "dsg" else 0.5
    usual = min(early + new * total / 2, most)  # blocks in the middle of the fit
    n_evaluated = n * (total + early) if kept else m * (total * (1 + usual) + early)
    # The last epoch is checked on some rows; or every epoch is scored on held-out rows.
    # Few are scored by one thread: the others wait. Of slabs of blocks that are kept,
    # an epoch evaluates those with a new block, or with an old one that changed.
    last, n_held_out = min(early + new * total, most), shape.n_held_out
    if n_held_out:
        width, changed = max(FREQUENCY_SLAB // F, 1), total / e.max_iter
        n_bytes = 2 * n_held_out * k * size * last / width
        fit.holds("scores", min(n_bytes, KEPT_BYTES))
        part = min(KEPT_BYTES / n_bytes, 1.0)
        other = min(width + changed * (new + (1 - new) * width), usual)
        other = part * other + (1 - part) * usual
        waits = n_held_out * FREQUENCY_SLAB <= WAVE_TILE_ALONE < m * F
        n_scored = n_held_out * (fit.n_threads if waits else 1)
        n_evaluated += n_scored * (early + e.max_iter * other)
    elif not in_pieces:
        n_evaluated += min(n, N_SAMPLED) * last
    fit.waves(n_evaluated * F, m, F)
    # A loss and its derivatives take 0.1 us for a row and output in steps of the
    # logistic and the pinball loss on 2000 and 8000 rows.
    fit.takes(1e-7 * total * m * k / fit.n_threads)
    if not isinstance(e.step_size, Real):
        # 6 to 16 products on california_housing and on 100 columns of random numbers.
        fit.entries(10 * min(n, N_SAMPLED) ** 2)
    fit.uses((2 * m * F + 2 * m * k) * size)
    # Features of a batch and coefficients of a block; frequencies as they are drawn.
    block = (2 * m * F + 2 * F * k) * size + 3 * 8 * F * d
    fit.asks(block)
    return fit.plan(
        e.algorithm,
        batch_size=m,
        n_epochs=e.max_iter,
        in_pieces=in_pieces,
        block_size=F,
        blocks=blocks,
        n_passes=n_passes,
        n_ridge_rows=n_ridge_rows,
        kept=kept,
        frequencies=frequencies,
        block=block,
        most_blocks=min(early + total, most),
    )


def longest_safe_step(kernel, rows, weights, curvature, plan, alpha):
    """Return the longest safe step, and the c of its decay 1 / (1 + c t).

    Let lambda_1 be the largest eigenvalue and beta the trace of the centered kernel,
    both divided by the number of rows, and L the curvature of the loss. A step gamma on
    F features and B rows multiplies the error of f along eigenvector i by 1 - gamma L
    lambda_i on average, and is stable for ::

        gamma L (lambda_1 + beta / (2 F) + beta / B) < 2

    On rows outside the batch, F features stand for the kernel. This adds noise of
    variance gamma^2 / (2 F B) times the residual; in trials it grew within n / B steps
    if ``gamma L n / B > 6 F beta``. A step shrinks f by gamma lambda, at most a half.

    In pieces no row comes again. There the noise beta / (2 F) counts once more for each
    step so far, which makes the decay.

    The rows are a random sample of `N_SAMPLED`, or all.
    """
    operator, m = TiledKernel(kernel, rows), rows.shape[0]
    xp = operator.xp
    weights = (weights / xp.mean(weights))[:, None]
    root = weights**0.5

    def apply(V):
        V = root * V
        V = operator @ (V - weights * xp.mean(V)) / m
        return root * (V - xp.mean(weights * V))

    start = np.random.RandomState(0).standard_normal((m, 1))
    start = xp.asarray(start, dtype=rows.dtype, device=operator.device)
    top = largest_eigenvalues(apply, root * start)[0]
    mean_kernel = float(xp.mean(weights * (operator @ weights))) / m
    beta = max(1.0 - mean_kernel, 0.05)  # for nearly equal rows it is rounding
    heaviest = float(xp.mean(weights**2))
    curvature = curvature / SAFETY
    F, B, n = plan.block_size, plan.batch_size, plan.shape.n_train
    stable = top + beta / (2.0 * F) + heaviest * beta / B
    inverse, noise = 0.5 * curvature * stable, 0.0
    if plan.in_pieces:
        noise = 0.5 * curvature * beta / (2.0 * F)
    else:
        inverse += curvature / (6.0 * F * beta) * (n / B - 1.0)
    longest = 1.0 / inverse
    if alpha > 0:
        longest = min(longest, 0.5 / alpha)
    return longest, longest * (alpha + noise)


def make_steps(step_size, longest, decay):
    """Return the `Steps` for the parameter `step_size`; a number is the longest."""
    if not isinstance(step_size, tuple | list):
        return Steps(lambda t: longest / (1.0 + decay * t), longest)
    constant = float(step_size[1])
    if step_size[0] == "theta/t":
        return Steps(lambda t: constant / t, longest)
    return Steps(lambda t: 1.0 / (1.0 + constant * t), longest)
