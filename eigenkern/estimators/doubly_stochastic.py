"""Doubly stochastic gradients: kernel models of any convex loss by random features."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from os import PathLike
from typing import Any, Self

import numpy as np
from sklearn.base import is_regressor
from sklearn.utils.validation import check_is_fitted

from ..arrays import memory
from ..arrays.array import ArrayLike, RandomState, location_of, move, slices, to_numpy
from ..arrays.devices import compute_device
from ..fitting.checkpoint import Checkpoint
from ..fitting.conveniences import keep_parameters
from ..fitting.model import Model, check_epochs, split
from ..fitting.outcome import warn_of_cutoffs
from ..fitting.planning import shape_of
from ..fitting.rules import EpochRule
from ..fitting.streaming import Streaming
from ..fitting.targets import (
    CalibratedRule,
    ClassificationTargets,
    RegressionTargets,
    check_quantiles,
    mean_d2,
    without_crossing,
)
from ..fitting.validation import (
    check_choice,
    check_kernel_parameters,
    check_number,
    check_one_of,
    check_unless_auto,
    check_weights,
    on_host,
    on_its_device,
    warn_user,
)
from ..kernels import Kernel
from ..losses import EpsilonInsensitive, Hinge, Huber, LogLoss, Pinball, SquaredError
from ..methods.stochastic import doubly_stochastic
from ..operators.gradient import FourierGradient
from ..operators.waves import FourierBlocks
from ..plan.of_random_features import (
    ALPHA,
    FREQUENCY_BYTES,
    make_steps,
    plan_of_random_features,
)
from ..plan.parameters import chooses_penalty, is_auto, kernel_parameters, stops_early
from ..problems.basis_features import FourierProblem, Start
from ..problems.kernel_parameters import check_spectral_law
from ..rows.robust import cast
from ..rows.transfer import StreamedRows

# Rows sent to another device at a time.
_N_SENT = 65536
# Held-out rows beyond a quantile below which it is corrected on too few, and the most
# of all rows to hold out: with 300 rows of california_housing, 3 beyond .05 and .95
# leave .85 of new targets between them, a third of the rows .89 (means of five seeds).
_FEW_BEYOND, _MOST_HELD_OUT = 5, 1 / 3


class _DoublyStochastic(Streaming, Model):
    _in_memory_unless = "pieces of them to partial_fit"
    _task = "epoch"
    _coef_attribute = "coef_"
    _balances_pieces = True
    _takes_constant_targets = False  # its constant need not be their mean
    _failure_hint = "Pass a shorter step_size, or scale y."
    _alpha_of_C = "1 / (C n)"  # the penalty is alpha / 2 |f|^2
    # Without running values, which take less than the targets, fits take much longer.
    _takes_less = ("batch_size", "block_size", "max_features")

    def _check_parameters(self):
        check_kernel_parameters(self)
        check_spectral_law(self.kernel)
        check_choice("algorithm", self.algorithm, ("dsg", "udsg", "cdsg"))
        check_one_of("loss", self.loss, self._losses, {"quantile": "pinball"})
        check_number("alpha", self.alpha, 0, or_auto=True)
        check_number("n_new", self.n_new, 1, integer=True)
        for name, low in {"block_size": 1, "batch_size": 2, "n_old": 0}.items():
            check_unless_auto(name, getattr(self, name), low, integer=True)
        if self.max_features is not None:
            low = 1 if is_auto(self.block_size) else self.block_size
            check_number("max_features", self.max_features, low, integer=True)
        check_epochs(self)
        step = self.step_size
        if isinstance(step, tuple | list):
            if len(step) != 2 or step[0] not in ("theta/t", "1/(1+ct)"):
                raise ValueError(
                    "step_size must be 'auto', a number, ('theta/t', theta) or "
                    f"('1/(1+ct)', c); got {step!r}"
                )
            check_number(f"step_size[1] of {step[0]!r}", step[1], 0, open_ends=True)
        elif not is_auto(step):
            check_number("step_size", step, 0, open_ends=True)
            limit = np.inf if self._alpha == 0 else 1.0 / self._alpha
            if step >= limit:
                raise ValueError(
                    f"step_size must be below 1 / alpha = {limit:.3g}: a step shrinks "
                    f"the model by step_size alpha; got {step!r}"
                )

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        X_val: ArrayLike | None = None,
        y_val: ArrayLike | None = None,
        sample_weight_val: ArrayLike | None = None,
        checkpoint: Checkpoint | str | PathLike[str] | None = None,
        resume: bool = False,
    ) -> Self:
        """Fit the model anew.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Training rows; float32 is computed in float32, which is faster.
        y : array of shape (n_samples,) or (n_samples, n_outputs)
            Targets; one label per row for a classifier.
        sample_weight : float or array of shape (n_samples,), default=None
            Nonnegative weights of the losses.
        X_val, y_val : arrays, default=None
            Rows to score the epochs on, instead of rows held out of X; only with
            ``early_stopping=True``.
        sample_weight_val : float or array, default=None
            Their weights; `class_weight` applies to them too.
        checkpoint : str, path or Checkpoint, default=None
            Folder to write the state of the fit to, once a minute or as often as a
            `Checkpoint` says.
        resume : bool, default=False
            Continue bit for bit from what is in that folder; start anew if it is empty.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the data, a parameter or the folder is wrong; a model fitted before stays
            usable.
        MemoryError
            If memory runs out; the message says what needs less.
        OSError
            If the checkpoint folder cannot be written at the start; later that is a
            RuntimeWarning.
        KeyboardInterrupt
            If interrupted; after the first epoch, the best model so far is kept.

        Warns
        -----
        ConvergenceWarning
            If no step size keeps the iteration bounded, or theta and alpha of a
            schedule violate the condition of the paper.
        """
        rows, validation = (X, y, sample_weight), (X_val, y_val, sample_weight_val)
        return self._fit(*rows, *validation, checkpoint=checkpoint, resume=resume)

    @property
    def _alpha(self):
        return ALPHA if is_auto(self.alpha) else float(self.alpha)

    def _holds_out(self, n):
        # A quantile needs at least one held-out row on either side.
        if self.loss != "pinball" or not chooses_penalty(self):
            return stops_early(self)
        quantiles = np.ravel(self.quantile)
        rarest = np.minimum(quantiles, 1.0 - quantiles).min()
        return self.validation_fraction * n * rarest > 1.0 - 1e-9

    def _plan(self, shape):
        if self.loss == "pinball":  # one output for each quantile
            n_outputs = max(shape.n_outputs, np.size(self.quantile))
            shape = replace(shape, n_outputs=n_outputs)
        return plan_of_random_features(shape)

    def _prepare(self, data):
        holds_out = self._holds_out(len(data.rows_with_weight()))
        data, train, held_out = split(self, data, holds_out)
        data, train = data.without_copies(train)
        plan = plan_of_random_features(shape_of(self, data, len(train), held_out))
        problem, solver, chosen = self._prepared(data, train, held_out, plan)
        calibrated = self.loss == "pinball" and held_out is not None
        chooses = chooses_penalty(self) or stops_early(self)
        tells = self._tells_outcome and data.validation is None
        if self.loss == "pinball" and chooses and tells:
            n_held_out = 0 if held_out is None else len(held_out)
            self._warn_of_few_held_out(len(train) + n_held_out, n_held_out)
        rule = CalibratedRule if calibrated else EpochRule
        chosen["cache_size_"] = plan.kept / 1e6
        return problem, solver, chosen, rule(self, problem, data, held_out)

    def _warn_of_few_held_out(self, n, n_held_out):
        """Warn if the outermost quantile is corrected on too few of n rows."""
        quantiles = np.ravel(self._quantile)
        q = float(quantiles[np.abs(quantiles - 0.5).argmax()])
        beyond = min(q, 1.0 - q)
        wanted = min(_MOST_HELD_OUT, 2 * _FEW_BEYOND / (beyond * n))
        if n_held_out * beyond >= _FEW_BEYOND or self.validation_fraction >= wanted:
            return
        within = ""
        if n_held_out:
            within = f", to within {(q * (1 - q) / n_held_out) ** 0.5:.2g} or so"
        warn_user(
            f"the quantile {q:g} is corrected on {n_held_out} held-out rows{within}; "
            f"pass validation_fraction={wanted:.2g}, or more rows",
            UserWarning,
        )

    def _prepare_piece(self, data, anew):
        rows, start, sizes = data.rows_with_weight(), None, None
        if not anew:
            if self.max_features is not None:
                check_number("max_features", self.max_features, self.block_size_)
            # Seeded by the steps so far, or every call would draw the same old blocks.
            data = replace(data, rng=np.random.RandomState([self.seed_, self.t_]))
            start = Start.of(vars(self))
        if hasattr(self, "coef_"):
            sizes = self.block_size_, self.batch_size_
        shape = shape_of(self, data, len(rows))
        plan = plan_of_random_features(shape, in_pieces=True, sizes=sizes)
        return self._prepared(data, rows, None, plan, start)

    def _prepared(self, data, rows, held_out, plan, start=None):
        """Return problem, solver and what was chosen; with a start, it goes on."""
        self._say("setting up the kernel")
        if start is None:
            needs = f"block_size={plan.block_size} and batch_size={plan.batch_size} "
            needs += f"need {plan.block / 1e6:.0f} MB"
            place = compute_device(self.device, data.X)
            memory.check(plan.block, *place, needs, "pass smaller ones")
        problem = FourierProblem(
            data,
            rows,
            held_out,
            self._loss_of(data.targets.shape[1]),
            numbers=is_regressor(self),
            **kernel_parameters(self),
            device=self.device,
            block_size=plan.block_size,
            frequency_bytes=plan.frequencies,
            start=start,
        )
        if start is None:
            alpha = self._alpha
            if plan.n_ridge_rows:
                self._say("choosing the penalty")
                alpha = problem.auto_alpha(data, rows, plan.n_ridge_rows)
            sizes = {"block_size_": plan.block_size, "batch_size_": plan.batch_size}
            self._say("choosing the step")
            chosen = sizes | {"alpha_": alpha} | self._steps(problem, plan, alpha)
            expansion, n_halvings = problem.initial_coef(), 0
        else:
            names = "alpha_", "step_size_", "step_decay_"
            chosen = {name: getattr(self, name) for name in names}
            expansion, n_halvings = problem.coef_of(vars(self)), self.n_step_halvings_
        longest, decay = chosen["step_size_"], chosen["step_decay_"]
        solver = doubly_stochastic(
            problem.features,
            problem.rows,
            problem.loss_function,
            expansion=expansion,
            alpha=chosen["alpha_"],
            batch_size=plan.batch_size,
            steps=make_steps(self.step_size, longest, decay),
            blocks=plan.blocks,
            keep_values=plan.kept > 0,
            rng=problem.rng,
            n_passes=plan.n_passes,
            shuffle=not plan.in_pieces,
            n_halvings=n_halvings,
        )
        return problem, solver, chosen

    def _steps(self, problem, plan, alpha):
        """Return the longest step and its decay, as fitted attributes."""
        step, decay = self.step_size, 0.0
        longest = step
        if not isinstance(step, Real):
            longest, decay = problem.longest_step(plan, alpha)
        if isinstance(step, tuple | list):
            decay, product = 0.0, step[1] * self._alpha
            whole = round(product) >= 1 and abs(product - round(product)) < 1e-9
            if step[0] == "theta/t" and not (1.0 < product < 2.0 or whole):
                warn_user(  # the condition of theorem 3
                    f"step_size=('theta/t', {step[1]}) with alpha={self._alpha} has "
                    f"theta alpha = {product:.3g}: the error falls as 1 / t where it "
                    "is between 1 and 2 or a positive integer"
                )
        return {"step_size_": float(longest), "step_decay_": decay}

    def _loss_of(self, n_columns):
        return self._losses[self.loss](self, n_columns)

    def _value_and_gradient(self, Y, F):
        loss, scale = self._loss_of(Y.shape[1]), to_numpy(self.target_scale_)
        return loss.value_and_gradient(Y / scale, F / scale)

    def _fitted_features(self, location, cache_bytes):
        """Return the random features of a fitted model, and their coefficients."""
        attributes = self.coef_, self.offset_, self.limits_
        coef, *frame = (move(values, *location) for values in attributes)
        given = self.kernel_, self.seed_, coef.shape[1] // 2, frame[0][None, :], *frame
        return FourierBlocks(*given, cache_bytes=cache_bytes), coef

    def _gradients(self, X):
        location = compute_device(self.device, X)
        return FourierGradient(*self._fitted_features(location, FREQUENCY_BYTES), X)

    def _warn_of_far_values(self, X):
        warn_of_cutoffs(self, X, self.offset_, self.limits_)

    def _expand(self, X):
        xp, _ = location = compute_device(self.device, X)
        n, rows = X.shape[0], StreamedRows(X, *location)
        n_sent = n if location == location_of(X) else _N_SENT
        cache = FREQUENCY_BYTES if n_sent < n else 0.0
        features, coef = self._fitted_features(location, cache)
        n_blocks, _, n_columns = coef.shape
        terms = range(n_blocks), [coef[k, :, :] for k in range(n_blocks)], n_columns
        pieces = (cast(rows[tile, :], coef.dtype) for tile in slices(n, n_sent))
        return xp.concat([features.product(piece, *terms) for piece in pieces])


class DSGRegressor(RegressionTargets, _DoublyStochastic):
    """Kernel regression of any convex loss by doubly stochastic gradients.

    Every step takes a batch of rows and a block of random Fourier features of the
    kernel, which are drawn again from a seed whenever they are needed. So the model
    consists only of its coefficients, its size does not grow with the number of rows,
    and no number of features fixed in advance limits its accuracy. The parameters from
    `algorithm` on are for experts.

    Parameters
    ----------
    kernel : str or Kernel, default="laplacian"
        How similar two rows are: "gaussian" (alias "rbf"), "laplacian", "manhattan",
        "cauchy", "matern32", "matern52", or an object of `eigenkern.kernels` of that
        kind: a function of x - z whose frequencies can be drawn. The laplacian takes
        the Euclidean distance, "manhattan" the sum of absolute differences.
    bandwidth : float, "auto", "median" or "scale", default="auto"
        Length over which a kernel given by name decays, in the units of X: longer for
        smooth functions, shorter for fine detail. This is sigma in the formulas; a
        kernel object has its own. "median": the median distance between 600 rows drawn
        at random. "auto": 1/4, 1/2, ..., or 16 times that, whichever has the least
        error of kernel ridge regression on rows left out of a sample of up to 3000,
        with the given penalty or the best; if several are equally good within noise,
        the nearest to the median. "scale": as ``SVC(gamma="scale")``, (n_features
        X.var() / 2)^1/2 for radial kernels.
    loss : {"squared_error", "huber", "epsilon_insensitive", "pinball"}, \
            default="squared_error"
        Loss to minimize: "squared_error" predicts means, "huber" and
        "epsilon_insensitive" resist outliers, "pinball" predicts quantiles. In this
        order, for a residual r: ``r^2 / 2``; the same up to `epsilon`, then linear;
        ``max(0, |r| - epsilon)``; ``max(q r, (q - 1) r)``, for the `quantile` q.
    epsilon : float, default=0.1
        Threshold of "huber" and "epsilon_insensitive", in standard deviations of y,
        estimated from the median absolute deviation so that outliers don't count.
    quantile : float or sequence of float, default=0.5
        Which quantile q "pinball" predicts, between 0 and 1; other losses ignore it.
        For several quantiles `predict` returns one column each, in the order given and
        without crossing; y must then be one-dimensional. Unless `alpha` is a number,
        rows are held out for the quantiles, as with ``early_stopping=True``: without
        them the quantiles overfit the training rows, and the fraction of new rows below
        them is too near 1/2. With m held-out rows this fraction is off by about
        (q (1 - q) / m)^1/2: raise `validation_fraction` if there are few rows.
    alpha : float or "auto", default="auto"
        Strength of the penalty: raise it if targets are noisy. It is lambda in
        ``lambda / 2 |f|^2``, added to the mean loss; with the squared loss the same as
        in `NystromRegressor`. "auto": the one that best predicts new rows in kernel
        ridge regression on part of the rows, at most 4000, times the curvature of
        the loss at its constant, but at least 1e-6; and 1e-6 in `partial_fit`, or if
        rows are held out.
    max_iter : int, default=100
        Maximum number of epochs: more epochs fit the training rows more closely. An
        epoch is one pass over the rows, or several if it would have fewer than 32
        steps.
    early_stopping : bool, default=False
        Whether to hold out rows, score them every epoch, stop when the score no longer
        improves, and keep the best epoch's coefficients. This, too, keeps the model
        from fitting noise, so ``alpha="auto"`` then chooses no penalty.
    device : {"auto", "cpu", "cuda", "cuda:N"}, default="auto"
        Where to compute. "auto": where X lives. Otherwise X is copied there.
    random_state : int, RandomState instance or None, default=None
        Controls what is drawn at random: frequencies, order of the rows, old blocks,
        validation split. Pass an int for reproducible results.
    verbose : int, default=0
        1 shows a line for each stage of a fit, and the loss, score and time of epochs.
    algorithm : {"dsg", "udsg", "cdsg"}, default="udsg"
        Which block of features a step changes. "dsg": always a new one. "udsg": new or
        old ones, as `n_old` says, which makes smaller models. "cdsg": an old one if the
        paper's check finds one that allows a longer step than a new one, which is rare
        if a batch holds all rows.
    block_size : int or "auto", default="auto"
        Random frequencies per block, each a cosine and a sine: F in the papers. A step
        changes one block, but the first steps change up to 8192 frequencies; larger
        blocks make better but slower steps. "auto": 32 to 128, depending on the number
        of rows; 256 if no running values are kept.
    batch_size : int or "auto", default="auto"
        Rows per step, B; fewer rows need less memory. "auto": all rows, as long as
        their features for one block fit in 128 MB; 4096 if no running values are kept;
        in `partial_fit` 1/32 of the first rows, but 128 to 4096.
    n_new : int, default=1
        How many new blocks "udsg" changes before `n_old` old ones; G in the paper.
    n_old : int or "auto", default="auto"
        How many old blocks, drawn at random, "udsg" then changes; U in the paper. More
        old blocks make smaller models and faster predictions, but larger errors.
        "auto": new blocks in proportion to the change that a step makes (times
        `n_new`), so that few features are enough for small errors. In `partial_fit`
        "auto" is 1.
    step_size : float, "auto" or tuple, default="auto"
        Step gamma of an update; pass a number to repeat an experiment. "auto": 0.8 of
        the longest stable step, measured on up to 2000 rows, decaying as 1 / (1 + c t):
        slowly in `fit`, with c = alpha gamma, and faster in `partial_fit`.
        ``("theta/t", theta)`` and ``("1/(1+ct)", c)`` are the schedules of the papers,
        capped at that step. A number is a constant step. Any step is halved if the
        iteration diverges.
    max_features : int or None, default=None
        Largest size of the model, in frequencies: once it is reached, steps change old
        blocks only. None: no limit.
    tol : float, default=1e-4
        Stop when the training loss, as a fraction of the first epoch's (with early
        stopping: the validation score), has not improved by `tol` in `n_iter_no_change`
        epochs.
    validation_fraction : float, default=0.1
        Fraction of the rows to hold out. They are lost to the fit, so the default is
        less than the 0.2 of `NystromRegressor`, which is refitted to all rows.
    n_iter_no_change : int, default=3
        Number of epochs without improvement before stopping.
    cache_size : float or "auto", default="auto"
        MB for running values of f on the training rows, so that unchanged blocks are
        not evaluated again, and for up to 256 MB of frequencies. "auto": half of the
        memory, and the frequencies that the free memory allows. 0: the algorithms of
        the papers, which evaluate all blocks in each step: far slower.

    Attributes
    ----------
    coef_ : array of shape (n_blocks, 2 * block_size, n_outputs)
        Coefficients A_k of ``f(x) = sum_k phi_k(x)' A_k + intercept_``.
    intercept_ : array of shape (n_outputs,)
        The constant minus `feature_mean_`.
    seed_ : int
        Seed of the first block.
    seeds_ : array of shape (n_blocks,)
        Block k is drawn from a counter-based generator with this seed.
    offset_ : array of shape (n_features,)
        Median of the rows that the model began with, which is subtracted from X.
    limits_ : array of shape (n_features,)
        How far from `offset_` entries of X, such as fill values, are cut off.
    kernel_ : Kernel
        The kernel object with its bandwidth.
    bandwidth_ : float
        sigma in use.
    n_blocks_, n_features_used_ : int
        Number of blocks, and of frequencies in all of them.
    alpha_, block_size_, batch_size_ : float, int, int
        lambda, F and B in use.
    step_size_ : float
        The longest step.
    step_decay_ : float
        c of the steps ``step_size_ / (1 + c t)`` of "auto".
    n_step_halvings_ : int
        How often the guard went back and halved the steps.
    t_ : int
        Steps taken.
    n_iter_ : int
        Epochs run, or calls of `partial_fit`.
    loss_curve_ : list of float
        Mean loss of each epoch, each batch measured before its update, with y divided
        by `target_scale_`.
    validation_scores_ : list of float or None
        R^2 on the held-out rows after each epoch; None without early stopping. For
        "pinball" D^2: the fraction by which the loss is below that of the constant
        quantile, averaged over the quantiles. `score` is R^2 for one quantile.
    feature_mean_ : array of shape (n_outputs,)
        Mean of the sum over blocks; the steps exclude it.
    block_sums_ : array of shape (n_blocks, n_outputs)
        beta_k of "cdsg": the sum of steps times mean gradients, for each block.
    target_scale_ : array of shape (n_outputs,)
        Unit of the loss and of `epsilon`: the deviation of the targets.
    cache_size_ : float
        MB of running values; only after `fit`.
    n_features_in_ : int
        Number of features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X has string names.

    See Also
    --------
    DSGClassifier : The same for class labels.
    EigenProRegressor : Least squares with the kernel itself, in fewer epochs.
    NystromRegressor : Least squares on centers, in closed form.
    RandomFourierFeatures : A fixed number of such features.

    Notes
    -----
    For each block that it evaluates, a step costs ``2 B F (d + 2 l)`` flops and as many
    sines as features. With running values it evaluates the blocks that changed since
    the last visit to the batch; without them, all t (or t / 2) blocks.

    The features are centered on each batch, and a constant is learned separately:
    otherwise, as in the paper, steps would be about ten times shorter.

    The kink of the pinball loss is smoothed over 0.1 of `target_scale_` on both sides.
    With early stopping, the weighted quantiles of the residuals of the held-out rows
    are added to the model at the end, so that a fraction q of these rows is below.

    References
    ----------
    Li and Poczos, "Utilize old coordinates: faster doubly stochastic gradients for
    kernel methods", UAI 2016. Dai et al., "Scalable kernel methods via doubly
    stochastic gradients", NIPS 2014 (arXiv:1407.5599). Fernandes, Guerre and Horta,
    "Smoothing quantile regressions", Journal of Business & Economic Statistics 39,
    2021. Romano, Patterson and Candes, "Conformalized quantile regression", NeurIPS
    2019 (arXiv:1905.03222).

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from eigenkern import DSGRegressor
    >>> X, y = make_friedman1(n_samples=600, noise=0.1, random_state=0)
    >>> model = DSGRegressor(random_state=0).fit(X[:500], y[:500])
    >>> model.score(X[500:], y[500:]) > 0.85
    True
    >>> model = DSGRegressor(
    ...     loss="pinball", quantile=[0.1, 0.9], early_stopping=True, random_state=0
    ... ).fit(X[:500], y[:500])
    >>> low, high = model.predict(X[500:]).T
    >>> bool((low <= high).all())
    True
    """

    _losses = {
        "squared_error": lambda model, _: SquaredError(),
        "huber": lambda model, _: Huber(model.epsilon),
        "epsilon_insensitive": lambda model, _: EpsilonInsensitive(model.epsilon),
        "pinball": lambda model, _: Pinball(tuple(np.ravel(model.quantile))),
    }

    def __init__(
        self,
        kernel: str | Kernel = "laplacian",
        *,
        bandwidth: float | str = "auto",
        loss: str = "squared_error",
        epsilon: float = 0.1,
        quantile: float | Sequence[float] = 0.5,
        alpha: float | str = "auto",
        max_iter: int = 100,
        early_stopping: bool = False,
        device: str = "auto",
        random_state: RandomState = None,
        verbose: int | bool = 0,
        algorithm: str = "udsg",
        block_size: int | str = "auto",
        batch_size: int | str = "auto",
        n_new: int = 1,
        n_old: int | str = "auto",
        step_size: float | str | tuple[str, float] = "auto",
        max_features: int | None = None,
        tol: float = 1e-4,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 3,
        cache_size: float | str = "auto",
    ) -> None:
        keep_parameters(self, locals())

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Continue with a piece of the data: one pass over its rows, in order.

        The first call chooses kernel, constant, alpha, step, and block and batch sizes:
        its rows should be a fair sample, and as many as in later pieces. Each step
        evaluates all blocks: limit them by `max_features`.

        Up to 2000 rows are kept as a sample of all rows so far. If a piece is unlike
        this sample, or makes the model worse on it, as many of the kept rows are
        learned instead. In such a stream everything is chosen and learned anew from the
        kept rows whenever the number of rows has doubled, or the product of that number
        and the loss. Later pieces of fewer than 32 rows wait for more rows.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
        y : array of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        sample_weight : float or array of shape (n_samples,), default=None
            Nonnegative weights of the losses, relative to their mean in the piece.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the data or a parameter is wrong; the model stays as it was.
        MemoryError
            If memory runs out; the message says what needs less.
        """
        return self._partial_fit(X, y, sample_weight)

    def _check_parameters(self):
        super()._check_parameters()
        check_number("epsilon", self.epsilon, 0)
        if self.loss == "huber" and self.epsilon == 0:
            raise ValueError("epsilon must be positive with loss='huber'; got 0")
        check_quantiles(self.quantile)

    @property
    def _quantile(self):
        """Quantile of the loss, an array of several, or None for another loss."""
        if self.loss != "pinball":
            return None
        several = np.ndim(self.quantile) == 1
        return np.asarray(self.quantile, float) if several else float(self.quantile)

    def _check_stream(self):
        super()._check_stream()
        fitted = hasattr(self, self._stream_attribute)
        if fitted and not np.array_equal(self._fitted_quantile, self._quantile):
            raise ValueError(
                "loss='pinball' and quantile must be those of the first call of "
                f"partial_fit, or of fit; got loss={self.loss!r} and "
                f"quantile={self.quantile!r}"
            )

    def _encode(self, y, dtype, *, reset=True, name=None):
        """Return (Y, y); for several quantiles Y has one column per quantile."""
        Y, y = super()._encode(y, dtype, reset=reset, name=name)
        if reset:
            self._fitted_quantile = self._quantile
        if np.ndim(self._fitted_quantile) == 1:
            if y.ndim != 1:
                raise ValueError(
                    "y must be one-dimensional where quantile is a sequence; got shape "
                    f"{y.shape} and quantile={self.quantile!r}"
                )
            Y = np.repeat(Y, len(self._fitted_quantile), axis=1)
        return Y, y

    def _score_values(self, F, labels, weights):
        """Return R^2, or the mean D^2 of the pinball loss, of values on the host."""
        if self.loss != "pinball":
            return super()._score_values(F, labels, weights)
        return mean_d2(labels, F, self._quantile, weights)

    @on_its_device
    def predict(self, X: ArrayLike) -> Any:
        """Predict the targets of the rows of X.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)

        Returns
        -------
        y : array of shape (n_samples,) or (n_samples, n_outputs)
            One column per quantile if there are several: the smallest value of a row
            belongs to the smallest quantile, and so on.
        """
        F = self._values(X, "predict")
        if np.ndim(self._fitted_quantile) == 1:
            return without_crossing(F, self._fitted_quantile)
        return F[:, 0] if self._one_dimensional else F

    def score(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> float:
        """Return R^2, or for several quantiles the mean D^2 of the pinball loss.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
        y : array of shape (n_samples,) or (n_samples, n_outputs)
        sample_weight : array of shape (n_samples,), default=None

        Returns
        -------
        score : float
            1 is best. D^2 is 0 if the quantiles of y, without X, are as good.
        """
        check_is_fitted(self)
        if np.ndim(self._fitted_quantile) != 1:
            return super().score(X, y, sample_weight)
        F = to_numpy(self.predict(X))
        weights = check_weights(sample_weight, len(F))
        return mean_d2(on_host(y), F, self._fitted_quantile, weights)


class DSGClassifier(ClassificationTargets, _DoublyStochastic):
    """Kernel classification of any convex loss by doubly stochastic gradients.

    Kernel logistic regression, a kernel support vector machine or least squares, whose
    memory does not grow with the number of rows. The algorithm is that of
    `DSGRegressor`. The parameters from `algorithm` on are for experts.

    Parameters
    ----------
    kernel : str or Kernel, default="laplacian"
        How similar two rows are: "gaussian" (alias "rbf"), "laplacian", "manhattan",
        "cauchy", "matern32", "matern52", or an object of `eigenkern.kernels` of that
        kind: a function of x - z whose frequencies can be drawn. The laplacian takes
        the Euclidean distance, "manhattan" the sum of absolute differences.
    bandwidth : float, "auto", "median" or "scale", default="auto"
        Length over which a kernel given by name decays, in the units of X: longer for
        smooth functions, shorter for fine detail. This is sigma in the formulas; a
        kernel object has its own. "median": the median distance between 600 rows drawn
        at random. "auto": 1/4, 1/2, ..., or 16 times that, whichever has the least
        error of kernel ridge regression on rows left out of a sample of up to 3000,
        with the given penalty or the best; if several are equally good within noise,
        the nearest to the median. "scale": as ``SVC(gamma="scale")``, (n_features
        X.var() / 2)^1/2 for radial kernels.
    loss : {"log_loss", "hinge", "squared_error"}, default="log_loss"
        Loss to minimize. "log_loss": logistic regression, multinomial for more than two
        classes; gives `predict_proba`. "hinge": a support vector machine, one class
        against the rest. "squared_error": on -1 and +1, or on one column per class.
    alpha : float or "auto", default="auto"
        Strength of the penalty: raise it if targets are noisy. It is lambda in
        ``lambda / 2 |f|^2``, added to the mean loss; with the squared loss the same as
        in `NystromRegressor`. "auto": the one that best predicts new rows in kernel
        ridge regression on part of the rows, at most 4000, times the curvature of
        the loss at its constant, but at least 1e-6; and 1e-6 in `partial_fit`, or if
        rows are held out.
    max_iter : int, default=100
        Maximum number of epochs: more epochs fit the training rows more closely. An
        epoch is one pass over the rows, or several if it would have fewer than 32
        steps.
    early_stopping : bool, default=False
        Whether to hold out rows, score them every epoch, stop when the score no longer
        improves, and keep the best epoch's coefficients. This, too, keeps the model
        from fitting noise, so ``alpha="auto"`` then chooses no penalty.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, multiplied by `sample_weight`. In `partial_fit`,
        "balanced" refers to each piece.
    device : {"auto", "cpu", "cuda", "cuda:N"}, default="auto"
        Where to compute. "auto": where X lives. Otherwise X is copied there.
    random_state : int, RandomState instance or None, default=None
        Controls what is drawn at random: frequencies, order of the rows, old blocks,
        validation split. Pass an int for reproducible results.
    verbose : int, default=0
        1 shows a line for each stage of a fit, and the loss, score and time of epochs.
    algorithm : {"dsg", "udsg", "cdsg"}, default="udsg"
        Which block of features a step changes. "dsg": always a new one. "udsg": new or
        old ones, as `n_old` says, which makes smaller models. "cdsg": an old one if the
        paper's check finds one that allows a longer step than a new one, which is rare
        if a batch holds all rows.
    block_size : int or "auto", default="auto"
        Random frequencies per block, each a cosine and a sine: F in the papers. A step
        changes one block, but the first steps change up to 8192 frequencies; larger
        blocks make better but slower steps. "auto": 32 to 128, depending on the number
        of rows; 256 if no running values are kept.
    batch_size : int or "auto", default="auto"
        Rows per step, B; fewer rows need less memory. "auto": all rows, as long as
        their features for one block fit in 128 MB; 4096 if no running values are kept;
        in `partial_fit` 1/32 of the first rows, but 128 to 4096.
    n_new : int, default=1
        How many new blocks "udsg" changes before `n_old` old ones; G in the paper.
    n_old : int or "auto", default="auto"
        How many old blocks, drawn at random, "udsg" then changes; U in the paper. More
        old blocks make smaller models and faster predictions, but larger errors.
        "auto": new blocks in proportion to the change that a step makes (times
        `n_new`), so that few features are enough for small errors. In `partial_fit`
        "auto" is 1.
    step_size : float, "auto" or tuple, default="auto"
        Step gamma of an update; pass a number to repeat an experiment. "auto": 0.8 of
        the longest stable step, measured on up to 2000 rows, decaying as 1 / (1 + c t):
        slowly in `fit`, with c = alpha gamma, and faster in `partial_fit`.
        ``("theta/t", theta)`` and ``("1/(1+ct)", c)`` are the schedules of the papers,
        capped at that step. A number is a constant step. Any step is halved if the
        iteration diverges.
    max_features : int or None, default=None
        Largest size of the model, in frequencies: once it is reached, steps change old
        blocks only. None: no limit.
    tol : float, default=1e-4
        Stop when the training loss, as a fraction of the first epoch's (with early
        stopping: the validation score), has not improved by `tol` in `n_iter_no_change`
        epochs.
    validation_fraction : float, default=0.1
        Fraction of the rows to hold out, the same from every class. They are lost to
        the fit, so the default is less than the 0.2 of `NystromClassifier`, which is
        refitted to all rows.
    n_iter_no_change : int, default=3
        Number of epochs without improvement before stopping.
    cache_size : float or "auto", default="auto"
        MB for running values of f on the training rows, so that unchanged blocks are
        not evaluated again, and for up to 256 MB of frequencies. "auto": half of the
        memory, and the frequencies that the free memory allows. 0: the algorithms of
        the papers, which evaluate all blocks in each step: far slower.

    Attributes
    ----------
    coef_ : array of shape (n_blocks, 2 * block_size, n_outputs)
        Coefficients A_k of ``f(x) = sum_k phi_k(x)' A_k + intercept_``.
    intercept_ : array of shape (n_outputs,)
        The constant minus `feature_mean_`.
    seed_ : int
        Seed of the first block.
    seeds_ : array of shape (n_blocks,)
        Block k is drawn from a counter-based generator with this seed.
    offset_ : array of shape (n_features,)
        Median of the rows that the model began with, which is subtracted from X.
    limits_ : array of shape (n_features,)
        How far from `offset_` entries of X, such as fill values, are cut off.
    kernel_ : Kernel
        The kernel object with its bandwidth.
    bandwidth_ : float
        sigma in use.
    n_blocks_, n_features_used_ : int
        Number of blocks, and of frequencies in all of them.
    alpha_, block_size_, batch_size_ : float, int, int
        lambda, F and B in use.
    step_size_ : float
        The longest step.
    step_decay_ : float
        c of the steps ``step_size_ / (1 + c t)`` of "auto".
    n_step_halvings_ : int
        How often the guard went back and halved the steps.
    t_ : int
        Steps taken.
    n_iter_ : int
        Epochs run, or calls of `partial_fit`.
    loss_curve_ : list of float
        Mean loss of each epoch, each batch measured before its update.
    validation_scores_ : list of float or None
        Accuracy on the held-out rows after each epoch; None without early stopping.
        As long as it is not above that of the commonest class, as with a rare class,
        the loss on these rows tells which epoch is best; with `class_weight` it is
        their log loss without these weights.
    feature_mean_ : array of shape (n_outputs,)
        Mean of the sum over blocks; the steps exclude it.
    block_sums_ : array of shape (n_blocks, n_outputs)
        beta_k of "cdsg": the sum of steps times mean gradients, for each block.
    target_scale_ : array of shape (n_outputs,)
        Ones.
    cache_size_ : float
        MB of running values; only after `fit`.
    calibration_ : object
        How `predict_proba` maps values to probabilities: `scale`, `offsets`, `floor`;
        only with early stopping and a loss other than "log_loss".
    classes_ : ndarray of shape (n_classes,)
        Labels; a NumPy array even if X comes from another library.
    n_features_in_ : int
        Number of features of X.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X has string names.

    See Also
    --------
    DSGRegressor : The same for real targets.
    EigenProClassifier : Least squares with the kernel itself, in fewer epochs.
    NystromClassifier : Least squares on centers, in closed form.
    RandomFourierFeatures : A fixed number of such features.

    Notes
    -----
    For each block that it evaluates, a step costs ``2 B F (d + 2 l)`` flops and as many
    sines as features. With running values it evaluates the blocks that changed since
    the last visit to the batch; without them, all t (or t / 2) blocks.

    The features are centered on each batch, and a constant is learned separately:
    otherwise, as in the paper, steps would be about ten times shorter.

    References
    ----------
    Li and Poczos, "Utilize old coordinates: faster doubly stochastic gradients for
    kernel methods", UAI 2016. Dai et al., "Scalable kernel methods via doubly
    stochastic gradients", NIPS 2014 (arXiv:1407.5599).

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from eigenkern import DSGClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = DSGClassifier(max_iter=20, random_state=0).fit(X[:1500], y[:1500])
    >>> model.score(X[1500:], y[1500:]) > 0.9
    True
    >>> model.predict_proba(X[1500:]).shape
    (297, 10)
    """

    _losses = {
        "log_loss": lambda model, n_columns: LogLoss(n_columns),
        "hinge": lambda model, _: Hinge(),
        "squared_error": lambda model, _: SquaredError(),
    }

    def __init__(
        self,
        kernel: str | Kernel = "laplacian",
        *,
        bandwidth: float | str = "auto",
        loss: str = "log_loss",
        alpha: float | str = "auto",
        max_iter: int = 100,
        early_stopping: bool = False,
        class_weight: Mapping[Any, float] | str | None = None,
        device: str = "auto",
        random_state: RandomState = None,
        verbose: int | bool = 0,
        algorithm: str = "udsg",
        block_size: int | str = "auto",
        batch_size: int | str = "auto",
        n_new: int = 1,
        n_old: int | str = "auto",
        step_size: float | str | tuple[str, float] = "auto",
        max_features: int | None = None,
        tol: float = 1e-4,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 3,
        cache_size: float | str = "auto",
    ) -> None:
        keep_parameters(self, locals())

    def _as_indicators(self, F):
        """Return values with one column per class, on the scale of targets 0 and 1."""
        if self.loss == "hinge" and F.shape[1] > 1:
            return 0.5 + 0.5 * F
        return super()._as_indicators(F)

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Continue with a piece of the data: one pass over its rows, in order.

        The first call chooses kernel, constant, alpha, step, and block and batch sizes:
        its rows should be a fair sample, and as many as in later pieces. Each step
        evaluates all blocks: limit them by `max_features`.

        Up to 2000 rows are kept as a sample of all rows so far. If a piece is unlike
        this sample, or makes the model worse on it, as many of the kept rows are
        learned instead. In such a stream everything is chosen and learned anew from the
        kept rows whenever the number of rows has doubled, or the product of that number
        and the loss. Later pieces of fewer than 32 rows wait for more rows.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
        y : array of shape (n_samples,)
            Labels.
        classes : array of shape (n_classes,), default=None
            All labels that will occur; needed only in the first call.
        sample_weight : float or array of shape (n_samples,), default=None
            Nonnegative weights of the losses, relative to their mean in the piece.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the data or a parameter is wrong; the model stays as it was.
        MemoryError
            If memory runs out; the message says what needs less.
        """
        classes = self._check_classes(classes)
        return self._partial_fit(X, y, sample_weight, classes)
