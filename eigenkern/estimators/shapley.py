"""Exact Shapley values of models on product kernels."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays.array import (
    ArrayLike,
    into,
    is_numpy,
    location_of,
    move,
    namespace,
    slices,
    take,
)
from ..arrays.devices import compute_devices
from ..arrays.machine import CPU, SHAPLEY_TILE, WAVE_TILE_UNTHREADED
from ..arrays.threads import Team, n_blas_threads, run_on_threads
from ..fitting.model import KernelModel
from ..fitting.validation import check_rows, computing
from ..operators.tiled import TiledKernel
from ..rows.frames import (
    NUMBERS,
    FrameRows,
    as_levels,
    columns_at,
    kinds_of_columns,
)
from ..rows.lazy_rows import check_in_memory
from ..rows.robust import cast, cut
from .gradients import check_on_kernels
from .rfm import mapped
from .tables import as_numbers

# Ranges of the centers, if there are enough, so that threads can share a single row.
_N_RANGES = 16
# Least logarithm of a factor that is divided by: exp(-690) is 1e-300.
_LEAST_LOG = -690.0


@dataclass(frozen=True)
class ShapleyValues:
    """What `shapley_values` returns."""

    values: Any
    base_values: Any
    data: Any
    feature_names: list[str]


def shapley_values(
    model: Any,
    X: ArrayLike,
    *,
    background: ArrayLike | None = None,
    groups: Mapping[str, Sequence[int | str]] | None = None,
) -> ShapleyValues:
    """Return the exact Shapley values of a model's outputs at the rows of X.

    They divide f(x) minus a base value among the columns, where f is ``predict`` of a
    regressor or ``decision_function`` of a classifier. The model's kernel must be a
    product of one kernel per column: "gaussian" or "manhattan".

    Parameters
    ----------
    model : estimator
        A fitted model of this package: EigenPro, Nystrom, NYTRO, Falkon, or a recursive
        feature machine with ``metric="diagonal"`` and an estimator with such a kernel.
    X : array of shape (n_samples, n_features)
        Rows to explain.
    background : array of shape (n_background, n_features), default=None
        Rows from which absent columns take their values; results are averages over
        these rows, and the time is proportional to their number. Ten to a hundred
        training rows usually suffice. None: an absent column counts as equal to that of
        each center, which is fast, but the base value is not the prediction of any row.
    groups : dict, default=None
        Columns that are present or absent together, such as those that encode one
        category: a list of columns for each name, by position or by name. Other columns
        stand alone; columns that a recursive feature machine makes from one column
        count as one.

    Returns
    -------
    result : ShapleyValues
        With the attributes:

        values : array of shape (n_samples, n_players) or (n_samples, n_players, \
n_outputs)
            The Shapley values in float64, where X lives. A player is a column or a
            group, in the order of their first columns.
        base_values : array of shape (n_samples,) or (n_samples, n_outputs)
            What has to be added to them to give f(x), the same for every row: the mean
            of f over `background`, or the sum of the coefficients and the intercept.
        data : array of shape (n_samples, n_players)
            The values of the columns, NaN for a group of several. Of a table with
            categories an array of objects: numbers and levels.
        feature_names : list of str
            The names of the players.

        The plots of the package `shap` take ``shap.Explanation(**vars(result))``.

    Raises
    ------
    ValueError
        If the model is of another kind, its kernel is not a product, its metric is
        full, or a parameter is wrong.

    See Also
    --------
    gradient : How f changes near a row, for more kernels.
    average_gradient_outer_product : Which features, together, change the model most.

    Notes
    -----
    For f(x) = sum_j a_j prod_l k_l(x_l, z_jl), and b a row of the background (or 1 in
    place of k_l(b_l, z_jl)), the value of column i is ::

        sum_j a_j (k_ij - b_ij) int_0^1 prod_(l != i) (t k_lj + (1 - t) b_lj) dt

    with k_lj = k_l(x_l, z_jl) and b_lj = k_l(b_l, z_jl). A Gauss-Legendre rule of d / 2
    nodes integrates this polynomial in t exactly, and all factors are positive, so that
    nothing cancels: errors are some 1e-16 times the sum of the absolute values of all
    a_j.

    Takes some 5 n p d m operations for p centers, d columns and m nodes, d / 2 or about
    5 d^(1/2) if that is less, times the number of background rows; and a few MB per
    thread.

    Where columns depend on each other, rows that mix x and b are unlike any in the
    data, and the model's values there enter the result.

    References
    ----------
    Owen, "Multilinear extensions of games", Management Science 18, 1972.
    Mohammadi, Chau and Muandet, "Computing exact Shapley values in polynomial time for
    product-kernel methods", arXiv:2505.16516, 2025.
    Mohammadi, Reznikov, Sinitcyn, Muandet and Chau, "QuadraSHAP: stable and scalable
    Shapley values for product games via Gauss-Legendre quadrature", arXiv:2605.05870.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenkern import EigenProRegressor
    >>> from eigenkern.inspection import shapley_values
    >>> X = np.random.default_rng(0).uniform(-1, 1, (500, 2))
    >>> model = EigenProRegressor("gaussian", random_state=0).fit(X, 3 * X[:, 0])
    >>> rows, background = np.array([[0.5, 0.0]]), np.zeros((1, 2))
    >>> result = shapley_values(model, rows, background=background)
    >>> result.values.round(2) + 0.0
    array([[1.5, 0. ]])
    """
    check_on_kernels(model)
    X = check_rows(model, X, "shapley_values")
    check_in_memory(X, "the rows to explain as an array")
    if background is not None:
        try:
            background = check_rows(model, background, "shapley_values")
            check_in_memory(background, "an array")
        except ValueError as error:
            raise ValueError(f"background is not valid: {error}") from error
    names, players = _players(model, groups)
    machine = _machine_of_product(model)
    with computing(model, "shapley_values", X):
        prepared = _prepared_columns(model, players)
        game = _ProductGame(model, machine, background, prepared, X)
        values = move(game.values(X), *location_of(X))
        xp, base = namespace(values), move(game.base, *location_of(X))
        base = base + xp.zeros_like(values[:, 0, :])
    if values.shape[2] == 1:
        values, base = values[:, :, 0], base[:, 0]
    return ShapleyValues(
        values=values,
        base_values=base,
        data=_values_of(X, players, values),
        feature_names=names,
    )


def _values_of(X, players, like):
    """Return the values of each player, (n, n_players): NaN for several columns."""
    xp, first = namespace(like), like[:, 0]
    gap = xp.full_like(first if first.ndim == 1 else first[:, 0], math.nan)
    if not isinstance(X, FrameRows):
        columns = [X[:, j] if not more else gap for j, *more in players]
        return xp.stack([xp.astype(one, like.dtype) for one in columns], axis=1)
    kinds, found = kinds_of_columns(X.frame), []
    for j, *more in players:
        read = as_numbers if kinds[j] == NUMBERS else as_levels
        found.append(gap if more else read(columns_at(X.frame, [j]))[:, 0])
    of_objects = any(one.dtype == object for one in found)
    return np.stack([one.astype(object) if of_objects else one for one in found], 1)


def _prepared_columns(model, players):
    """Return players as the columns that a recursive feature machine makes of them."""
    if not hasattr(model, "metric_root_"):
        return players
    sources = model._preparation.sources
    return [np.flatnonzero(np.isin(sources, one)).tolist() for one in players]


def _machine_of_product(model):
    """Return the kernel machine with a product kernel that a model is, or is made of.

    Raises a ValueError that says which models are.
    """
    root = getattr(model, "metric_root_", None)
    machine = model if root is None else model.estimator_
    if not isinstance(machine, KernelModel):
        raise ValueError(
            "model must be a sum over centers, and not over random features; got "
            f"{machine!r}: fit EigenProRegressor('gaussian'), for example"
        )
    if machine.kernel_ is None:
        raise ValueError(
            "model must have a kernel of rows; got one with kernel='precomputed'"
        )
    try:
        machine.kernel_.log_factors(0.0)
    except ValueError as error:
        advice = "kernel='gaussian' or 'manhattan'"
        if root is not None:
            example = f"{type(machine).__name__}('gaussian')"
            advice = f"estimator={example} and metric='diagonal'"
        raise ValueError(
            f"model must have a product kernel: {error}; fit it with {advice}"
        ) from error
    if root is not None and root.ndim == 2:
        raise ValueError(
            "model must have a metric that weighs columns one by one; this one is "
            "full: fit it with metric='diagonal'"
        )
    return machine


def _players(model, groups):
    """Return the names of the players, and the columns of each."""
    d = model.n_features_in_
    names = [str(name) for name in getattr(model, "feature_names_in_", ())]
    given = names or [f"x{j}" for j in range(d)]
    if groups is None:
        return given, [[j] for j in range(d)]
    if not isinstance(groups, Mapping):
        raise ValueError(
            f"groups must be a dict of lists of columns, or None; got {groups!r}"
        )
    places = {name: j for j, name in enumerate(names)} | {j: j for j in range(d)}
    player_of = {}
    for name, columns in groups.items():
        listed = np.ndim(columns) == 1 and len(columns) > 0
        for column in columns if listed else [None]:
            j = places.get(column)
            if j is None or j in player_of:
                raise ValueError(
                    f"groups must list columns by position from 0 to {d - 1}, or by "
                    "the names that the model was fitted with, each column once; got "
                    f"{columns!r} for {name!r}"
                )
            player_of[j] = str(name)
    players = {}
    for j in range(d):
        key = (player_of[j],) if j in player_of else j
        players.setdefault(key, []).append(j)
    found = [given[key] if isinstance(key, int) else key[0] for key in players]
    return found, list(players.values())


class _ProductGame:
    """Games of players (lists of columns) whose values are sums of products.

    A present player has the factors of a row x, an absent one those of a row of the
    background, or 1. The `machine` is that of `model`, whose rows it takes times R.
    """

    def __init__(self, model, machine, background, players, X):
        self._model, self._kernel = model, machine.kernel_
        self.xp, device = compute_devices(machine.device, X)[0]
        xp = self.xp
        self._options = {"dtype": xp.float64, "device": device}
        self._A = xp.astype(move(machine.dual_coef_, xp, device), xp.float64)
        Z = xp.astype(move(machine.centers_, xp, device), xp.float64)
        frame = self._kernel.frame(Z)
        self._limits, self._offset = frame["limits"], frame.get("offset", 0.0)
        self._Z = self._near(Z)
        alone = [[j] for j in range(Z.shape[1])]
        self._groups = None if players == alone else players
        self._n_players, self._background = len(players), None
        if background is None:
            sums = xp.sum(self._A, axis=0)
        else:
            self._background = self._rows(background)
            K = TiledKernel(self._kernel, Z, self._background)
            sums = xp.mean(K @ self._A, axis=0)
        intercept = move(machine.intercept_, xp, device)
        self.base = sums + xp.astype(intercept, xp.float64)

    def _near(self, X):
        """Return rows with the entries cut off that the kernel cuts off."""
        X = self.xp.asarray(X, copy=True)
        return cut(self.xp, X, self._limits, self._offset)

    def _rows(self, X):
        """Return validated rows of the model as those of its machine, in float64."""
        here = self.xp, self._options["device"]
        root = getattr(self._model, "metric_root_", None)
        if root is not None:
            X = self._model._prepared(X)
        X = move(cast(X, namespace(X).float64), *here)
        return self._near(X if root is None else mapped(X, move(root, *here)))

    def _logs(self, x, z):
        """Return log k_i(x, z) of all players, rows x and centers z."""
        xp, shape = self.xp, (x.shape[1], x.shape[0], z.shape[0])
        options = self._options
        with np.errstate(over="ignore"):  # the factor is zero
            differences = xp.empty(shape, **self._options)  # contiguous in centers
            differences[...] = x.T[:, :, None]
            differences -= z.T[:, None, :]
            logs = self._kernel.log_factors(differences)
            if self._groups is not None:
                parts = [
                    xp.sum(take(logs, one), axis=0)
                    if one
                    else xp.zeros(shape[1:], **options)
                    for one in self._groups
                ]
                logs = xp.stack(parts)
        return logs

    def values(self, X):
        """Return the Shapley values of rows, shape (n, n_players, n_outputs)."""
        xp, A, rows = self.xp, self._A, self._rows(X)
        (n, d), (p, n_outputs), options = rows.shape, A.shape, self._options
        nodes, weights = (
            xp.asarray(one, **options) for one in _gauss_legendre(self._n_players)
        )
        n_absent = 1 if self._background is None else self._background.shape[0]
        pool = Team(n_blas_threads()) if is_numpy(xp) else None
        size = max((WAVE_TILE_UNTHREADED if pool is None else SHAPLEY_TILE) // d, 1)
        width = min(size, -(-p // _N_RANGES))
        height = min(max(size // width, 1), n)
        n_at_once = max(size // (width * height), 1)  # rows of the background
        n_factors = height * p * self._n_players * nodes.shape[0] * n_absent
        result = xp.zeros((n, self._n_players, n_outputs), **options)

        def task(sums, x, own):
            z, a = self._Z[own, :], A[own, :]
            present = xp.exp(self._logs(x, z))
            for part in slices(n_absent, n_at_once):
                K = xp.ones((self._n_players, 1, z.shape[0]), **options)
                if self._background is not None:
                    logs = self._logs(self._background[part, :], z)
                    K = xp.exp(xp.maximum(logs, xp.full_like(logs, _LEAST_LOG)))
                K = K[:, None, :, :]
                D = present[:, :, None, :] - K
                total, V = xp.zeros_like(D), xp.empty_like(D)
                for k in range(nodes.shape[0]):
                    # All factors K + t D, then their product over each of them.
                    V = xp.multiply(D, nodes[k], **into(xp, V))
                    V += K
                    product = xp.prod(V, axis=0)
                    product *= weights[k]
                    V = xp.divide(product[None, :, :, :], V, **into(xp, V))
                    total += V
                total *= D
                total = xp.reshape(xp.sum(total, axis=2), (-1, z.shape[0]))
                sums += xp.reshape(total @ a, sums.shape)

        ranges = list(slices(p, width))
        for part in slices(n, height):
            x = rows[part, :]
            # Sums of each range: the order of additions does not depend on threads.
            shape = len(ranges), self._n_players, x.shape[0], n_outputs
            sums = xp.zeros(shape, **options)
            tasks = [(sums[i, ...], x, own) for i, own in enumerate(ranges)]
            run_on_threads(pool, task, tasks, 2 * CPU.function * n_factors)
            result[part, :, :] = xp.permute_dims(xp.sum(sums, axis=0), (1, 0, 2))
        return result / n_absent


def _gauss_legendre(d):
    """Return nodes in (0, 1) and weights that integrate products of d - 1 factors.

    Each factor is t k + (1 - t) b, so that the product is a sum of multiples of
    t^r (1 - t)^(N - r), N = d - 1, none of them negative, and d / 2 nodes are exact. In
    Chebyshev polynomials the coefficient k of such a term is at most 2 exp(-k^2 / 2N)
    times its largest value, and that is at most N + 1 times its integral: so m nodes
    have an error of at most 4 d^2 exp(-2 m^2 / d) times the integral, here 2^-53.
    """
    n_nodes = math.sqrt(0.5 * d * math.log(4 * d**2 * 2.0**53))
    n_nodes = min(-(-d // 2), math.ceil(n_nodes))
    nodes, weights = np.polynomial.legendre.leggauss(n_nodes)
    return 0.5 + 0.5 * nodes, 0.5 * weights
