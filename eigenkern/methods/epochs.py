"""EigenPro: preconditioned stochastic gradient descent, kernel machines and linear."""

from functools import partial

import numpy as np

from ..arrays.array import device_of, namespace
from ..arrays.linalg import large_product
from .guard import Epoch, EpochWatch, Guard, Guarded
from .step_search import StepSearch

# The three steps have one signature; an underscore marks an argument that is not used.


def step_on_rows(_A, P, a, b, K_bs, g):
    """a_b -= g,  a_s += V D V' K(X_s, X_b) g: a kernel machine by EigenPro 2."""
    a[b, :] -= g
    if P.n_components:
        image = P.vectors.T @ large_product(g.T, K_bs).T
        a[: P.subsample_size, :] += large_product(P.vectors, P.scales[:, None] * image)


def step_on_all_rows(_A, P, a, b, _K_bs, g):
    """a_b -= g,  a += V D V' K(X, X_b) g: a kernel machine by EigenPro 1."""
    a[b, :] -= g
    if P.n_components:
        a += P.correction(b, g)


def step_on_features(A, P, a, b, _K_bs, g):
    """a -= (I - V D V') A_b' g: a linear model."""
    gradient = A.adjoint(g, b.start, b.stop)
    a -= gradient
    if P.n_components:
        a += P.correction(gradient)


def eigenpro(
    A,
    y,
    P,
    *,
    coef,
    weights,
    batch_size,
    step_size,
    rng,
    step=step_on_rows,
    alpha=0.0,
    try_steps=True,
    zero_loss=0.0,
    n_halvings=0,
    may_restart=True,
    accepts=lambda model: True,
    row_steps=None,
    twin=None,
):
    """Minimize mean_i w_i (f(x_i) - y_i)^2 by preconditioned steps on batches.

    One step on a batch b of m rows of the matrix A (K(X, X), or the features)::

        g = (eta / m) W (A_b a - y_b)
        a_b <- a_b - g,  a_s <- a_s + V D V' K(X_s, X_b) g              (`step_on_rows`)
        a_b <- a_b - g,  a <- a + V D V' K(X, X_b) g                (`step_on_all_rows`)
        a <- a - (I - V D V') A_b' g                                (`step_on_features`)

    Algorithm 1 of EigenPro 2 has alpha for a, blocks t and r for b and s, and sigma_q
    for sigma_{q+1} in D; our eta is twice its eta. Tables 1 and 2 of EigenPro 1, the
    other two updates, have our eta, k for q, and D for our V D V'.

    On features a penalty alpha |a|^2, another alpha, may be added. Its part of the step
    is implicit: the new a solves ``(I + kappa P) a = `` the a above, with kappa = alpha
    eta. However large alpha is, no shorter step is needed.

    On a kernel machine of n rows the first line costs n m (d + l) multiply-adds (n m l
    where K is cached), the mean of the iterates n l, and the correction

    - s m l + 2 s q l in EigenPro 2, whose eigenvectors live on the first s rows,
    - n q l in EigenPro 1, whose eigenvectors live on all of them;

    On a linear model the whole step costs 2 m d l + 2 q d l. A last, shorter batch is
    divided by m too, so that its rows count as much as the others.

    The papers sample the rows of every batch. Here the batches are fixed slices of the
    given order of rows, and an epoch visits each of them once, in a new random order.
    The papers return the last iterate; here the model of an epoch is the mean of the
    iterates of its second half, which has less of the steps' noise.

    `Guarded` runs the epochs, and goes back and halves eta when one diverges.
    `StepSearch` tries several step sizes side by side in the first epochs, as
    additional columns of a. So is the `twin`, a second model on other targets: it takes
    the same steps, and its coefficients are the `rest` of each state.

    Parameters
    ----------
    A : Matrix
        K(X, X), or the features.
    y : array of shape (n, l)
        Targets, centered.
    P : Spectral, GlobalSpectral or LinearSpectral
    coef : array of shape (n, l) or (d, l)
        a to start from.
    weights : array of shape (n,) or None
        w, with mean 1.
    batch_size, step_size : int, float
        m and eta.
    rng : numpy.random.RandomState
        Order of the batches.
    step : callable, default=step_on_rows
        One of the three updates above.
    alpha : float, default=0.0
        On features only.
    try_steps : bool, default=True
        Whether to try other step sizes.
    zero_loss : float, default=0.0
        Lower bound on what the guard takes for the mean loss of f = 0, summed over the
        outputs: on rows that are not a fair sample that loss may be too small.
    n_halvings : int, default=0
        How often the guard has halved the step before.
    may_restart : bool, default=True
        Whether to start from zero if the given coefficients trip the guard.
    accepts : callable
        ``accepts(coef)`` returns whether the model of an epoch is good; if not, the
        epoch counts as diverged.
    row_steps : RowSteps, default=None
        Factors of the steps on single rows.
    twin : tuple of arrays (n, l) and (n,), default=None
        Targets and weights of a second model. None: there is none.

    References
    ----------
    Ma and Belkin, "Diving into the shallows: a computational perspective on large-scale
    shallow learning", NIPS 2017: tables 1 and 2.
    Ma and Belkin, "Kernel machines that adapt to GPUs for effective large batch
    training", MLSys 2019: algorithm 1.
    """
    xp, (n, n_outputs) = namespace(coef), y.shape
    coef = xp.asarray(coef, copy=True)
    w = xp.ones_like(y[:, :1]) if weights is None else weights[:, None]
    if twin is not None:
        ones = xp.ones_like(y)
        w = xp.concat([w * ones, twin[1][:, None] * ones], axis=1)
        y, coef = xp.concat([y, twin[0]], axis=1), xp.concat([coef, coef], axis=1)
    starts = np.arange(0, n, batch_size)
    zero_losses = xp.sum(w * (y * y), axis=1)
    zero_loss = max(float(xp.sum(zero_losses)) / n, zero_loss)
    guard = Guard(zero_loss, n_halvings)
    n_copies = y.shape[1] // n_outputs
    search = StepSearch(n_outputs, len(starts), tries=try_steps, n_copies=n_copies)
    sides = search.side_by_side(coef)

    def run_epoch():
        nonlocal sides
        sides = search.remaining(sides) if search.n_sides > 1 else coef
        rates = guard.factor * step_size / batch_size * search.factors
        watch = EpochWatch(guard, zero_loss, rates.shape, len(starts) // 2)
        # Sides that diverge may overflow before the guard sees it.
        with A.exclusive_threads(), np.errstate(over="ignore", invalid="ignore"):
            mean = epoch_steps(rates, watch)
            search.choose(watch.losses, watch.late, partial(judge, mean))
            coef[...] = search.chosen_columns(sides)
            model = search.chosen_columns(mean)
            least = watch.losses[:, :n_outputs].min(axis=0).sum() / n
            if np.isfinite(least) and not accepts(model):
                least = np.inf
        losses = search.chosen(watch.losses) / n
        return Epoch(model, losses, least, watch.has_stepped)

    def epoch_steps(rates, watch):
        """Step on every batch; return the mean of the iterates of the second half.

        The k iterates side by side, a of shape (n, k l) or (d, k l), change in place.
        `rates` (k, l) is eta / m; with a twin, 2 l stands for l. Numbers are the steps
        of algorithm 1 of EigenPro 2.
        """
        a, k, mean = sides, rates.shape[0], xp.zeros_like(sides)
        rates = xp.asarray(rates.reshape(-1), dtype=a.dtype, device=device_of(a))
        for i in A.shuffled_ranges(starts, rng).tolist():  # 1
            b = slice(i, min(i + batch_size, n))
            F, K_bs = A.product_and_columns(a, b.start, b.stop, P.n_columns)  # 2, 4
            error = F - repeated(y[b, :], k)
            weighted = repeated(w[b, :], k) * error
            losses, of_zero = xp.sum(weighted * error, axis=0), xp.sum(zero_losses[b])
            if watch.add(losses, float(of_zero), b.stop - b.start):
                break
            # An iterate that diverged stays at zero, where it cannot overflow.
            for side in np.flatnonzero(watch.lost):
                columns = slice(side * y.shape[1], (side + 1) * y.shape[1])
                a[:, columns], rates[columns] = 0.0, 0.0
            factors = None if row_steps is None else row_steps.of(b, K_bs)
            g = rates * (weighted if factors is None else factors * weighted)
            step(A, P, a, b, K_bs, g)  # 3, 5
            if alpha > 0:
                a[...] = P.shrunk(a, a, alpha * (b.stop - b.start) * rates)
            if watch.n_late > 0:  # `watch.add` has counted this batch
                mean += (a - mean) / watch.n_late
        return mean

    def repeated(A, k):
        """Return columns for each of k sides; a single one is that of all."""
        return A if k == 1 or A.shape[1] == 1 else xp.concat([A] * k, axis=1)

    def judge(mean):
        """Return the losses of the models on the last rows, and that of f = 0."""
        # The mean loss of 1000 rows has a standard deviation of 4 % if they are normal,
        # and the difference of two similar models a smaller one.
        last = slice(max(n - 1000, 0), n)
        error = A.product(mean, last.start, last.stop)
        k = mean.shape[1] // y.shape[1]
        error = error - repeated(y[last, :], k)
        losses = xp.sum(repeated(w[last, :], k) * error * error, axis=0)
        own = slice(min(n_outputs, w.shape[1]))
        of_zero = w[last, own] * y[last, :n_outputs] ** 2
        return losses, float(xp.sum(of_zero))

    def parts_of(a):
        if twin is None:
            return a, None
        # Copies: products with slices have other last digits than those resumed with.
        both = a[:, :n_outputs], a[:, n_outputs:]
        return tuple(xp.asarray(part, copy=True) for part in both)

    def restore(good):
        nonlocal sides
        coef[...] = good
        sides = search.side_by_side(coef)

    def load_rest(saved):
        nonlocal sides
        sides = coef if saved is None else saved

    return Guarded(
        run_epoch,
        guard,
        snapshot=lambda: xp.asarray(coef, copy=True),
        restore=restore,
        step_size=step_size,
        origin=xp.zeros_like(coef) if may_restart else None,
        search=search,
        parts_of=parts_of,
        save_rest=lambda: sides if search.n_sides > 1 else None,
        load_rest=load_rest,
    )
