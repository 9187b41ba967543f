"""Local kernel machines: one for every part of the rows, solved directly."""

from dataclasses import replace
from functools import partial

import numpy as np
from sklearn.base import clone

from ..arrays.array import move, namespace, take, to_numpy
from ..arrays.devices import compute_devices
from ..fitting.planning import shape_of
from ..fitting.rules import Rule, train
from ..fitting.validation import computing
from ..methods.local import partitioned
from ..methods.state import Saved, State
from ..operators.gradient import KernelGradient
from ..operators.sharded import kernel_operator
from ..plan.of_epochs import plan_on_rows
from ..plan.of_parts import plan_of_parts
from ..problems.data import LeftOut, OutOfSample
from ..problems.kernel_parameters import make_kernel
from ..problems.problem import Problem
from ..rows.dask_rows import Here, reuse_freed_memory
from ..rows.robust import cast
from ..rows.transfer import StreamedRows
from .eigenpro import EigenProClassifier, EigenProRegressor


class PartSolver(Saved):
    """Solves one part after the other, or those at hand on the workers of a cluster.

    ``model._part(data)`` is the part; each has random numbers of its own.
    """

    _saved = ("n_done",)

    def __init__(self, model, data, parts, cluster, say):
        self._model, self._data, self._parts = model, data, parts
        self._seeds = data.rng.randint(2**31 - 1, size=len(parts))
        self._cluster, self._say, self._handles = cluster, say, {}
        self.n_done = 0

    def __next__(self):
        i = self.n_done
        self.n_done += 1
        n_rows, n_parts = len(self._parts[i]), len(self._parts)
        self._say(f"part {self.n_done} of {n_parts}: {n_rows} rows")
        try:
            found = self._cluster.attempt(lambda: self._solved(i), self._forget)
        except BaseException:
            self._handles.clear()  # workers begin no other part
            raise
        return State(found.pop("part"), **found)

    def _solved(self, i):
        """Return a part; while one waits for it, workers have the next ones."""
        ahead = 2 * self._cluster.n_workers - 1
        for j in range(i, min(i + ahead, len(self._parts))):
            if j not in self._handles:
                rng = np.random.RandomState(self._seeds[j])
                data = replace(self._data.take(self._parts[j]), rng=rng)
                data = self._cluster.send(data)
                self._handles[j] = self._cluster.submit(_part, self._model, data)
        found = self._cluster.gather([self._handles[i]])[0]
        del self._handles[i]
        return found

    def _forget(self):
        """Forget the parts that were lost with a worker."""
        alive = "pending", "finished"
        self._handles = {j: h for j, h in self._handles.items() if h.status in alive}


def _plan_of_part(shape, m):
    """Return the plan of one part of m rows, whose bandwidth is that of all."""
    part = clone(shape.estimator).set_params(bandwidth=1.0)
    return plan_on_rows(replace(shape, estimator=part, X=shape.X[:m, :], n_train=m))


def _part(model, data):
    """Return a part of a model, in the process that has the data."""
    reuse_freed_memory()
    with computing(model, "fit", data.X):
        return model._part(data)


class PartRule(Rule):
    """All parts are the model."""

    _saved = ("parts", "losses")

    def __init__(self, n_parts, attributes):
        self.max_iter, self._attributes = n_parts, attributes
        self.parts, self.losses = [], []

    def update(self, state):
        """Record a part; return whether it is the last."""
        self.parts.append(state.coef)
        self.losses.append(state.loss)
        return len(self.parts) == self.max_iter

    def out_of_sample(self):
        """Return the left-out values of all parts, which epochs may not have."""
        found = [one["left_out"] for one in self.parts if one["left_out"] is not None]
        if not found:
            return None
        *arrays, counts = zip(*found, strict=True)
        return OutOfSample(*map(np.concatenate, arrays), sum(counts))

    def fitted_attributes(self, interrupted=False):
        """Return the attributes of the model."""
        return self._attributes(self.parts)


def _divided(data, most):
    """Return a `Partition` of the rows, and those of each part: equal ones go together.

    Equal rows are one row of the solution, so that `most` is a number of distinct rows.
    The last result is the smallest such number.
    """
    first, which = data.distinct(np.arange(len(data.targets)))
    X = data.X if len(first) == len(which) else take(data.X, first)
    partition, parts = partitioned(X, most, data.rng)
    fewest = min(map(len, parts))
    if len(first) == len(which):
        return partition, parts, fewest

    def members(part):
        own = np.zeros(len(first), dtype=bool)
        own[part] = True
        return np.flatnonzero(own[which])

    return partition, [members(part) for part in parts], fewest


def _left_out_of_parts(data, parts, solved):
    """Return the `LeftOut` of all parts together, or None.

    Rows that one part leaves out are no rows of the others' Gaussian process.
    """
    found = [
        (rows, LeftOut(*part["observations"]))
        for rows, part in zip(parts, solved, strict=True)
        if "observations" in part
    ]
    if not found:
        return None
    out = np.zeros(len(data.targets), dtype=bool)
    own = np.full(len(out), np.nan)  # c / w
    for rows, part in found:
        k = part.n_others
        out[rows[part.rows[k:]]] = True
        few = part.rows[: len(part.rows) - k]
        own[rows[few]] = part.ridges[: len(few)]
    others = np.flatnonzero(~out & ~np.isnan(own))
    others = data.rng.permutation(others)
    mean = data.weights_of(np.arange(len(out))).mean()
    weights = [data.weights_of(rows).mean() / mean * one.weights for rows, one in found]
    found = [one for _, one in found]
    xp = namespace(data.X)
    return LeftOut(
        xp.concat([one.X for one in found]),
        np.concatenate([one.values for one in found]),
        np.concatenate([one.targets for one in found]),
        np.concatenate(weights),
        None,
        others,
        own[others],
        len(others),
        float(np.mean([one.ratio for one in found])),
    )


class LocalGradient:
    """Gradients of the blended values of some machines at the rows of X (m, d)."""

    def __init__(self, machines, X):
        devices = compute_devices(machines.device, X)
        self.xp, self._device = devices[0]
        self._machines, self._rows = machines, StreamedRows(X, *devices[0])
        self.shape = *X.shape, machines.intercept_.shape[0]

    def block(self, start, stop, mix=None):
        """Return the gradients at rows [start:stop], shape (m, d, l)."""
        x, machines = self._rows[start:stop, :], self._machines
        values = machines._blended(x, slopes=True, mix=mix)
        G = np.moveaxis(values[:, :, 1:], 1, 2)
        G = self.xp.asarray(G, device=self._device)
        return self.xp.astype(G, machines.dual_coef_.dtype)


class _LocalMachines:
    """EigenPro of parts of the rows, each solved directly, in place of all rows.

    Rows are divided as `methods.local` says. All parts have one bandwidth, and each a
    penalty of its own.

    Attributes
    ----------
    n_parts_ : int
    centers_ : array of shape (n, d)
        The rows with weight.
    dual_coef_ : array of shape (N, l)
        Coefficients of one part after the other; `_members` are their rows in
        `centers_`, and `_starts` where each part begins.
    intercept_ : array of shape (l,)
        The mean of those of the parts, from which `_intercepts` are measured.
    alpha_ : ndarray of shape (n_parts,)
    """

    _task = None  # parts are no iterations: together they are the model
    _calibrates = True
    #: What shows a part, in place of `_say`, and what solves it.
    _say_part, _cluster = None, Here()

    def _progress(self):
        return None  # `PartSolver` shows the parts

    def _plan(self, shape):
        return plan_of_parts(shape, partial(_plan_of_part, shape))

    def _replaced(self, data):
        """Return parameters of the fit, with a number as the bandwidth of all parts."""
        rows, found = data.rows_with_weight(), super()._replaced(data)
        X, Y, w = take(data.X, rows), data.targets[rows], data.weights_of(rows)
        given = self.kernel, self.bandwidth, X, data.rng, Y, w, data
        kernel = make_kernel(*given, dtype=np.dtype(float))
        return found | {"bandwidth": getattr(kernel, "bandwidth", self.bandwidth)}

    def _prepare(self, data):
        rows = data.rows_with_weight()
        if len(rows) < len(data.targets):
            data = data.take(rows)
        shape = shape_of(self, data)
        most = self._plan(shape).part_rows
        partition, parts, fewest = _divided(data, most)
        problem, model = Problem(self.device, data.X), clone(self)
        # Some of each part are left out, and the others tell the variance there.
        some = -(-self._n_left_out // len(parts))
        model._n_left_out = min(some, fewest // 3)
        model._tells_outcome = False  # errors of memory are those of the whole fit
        needed = 1e6 * _plan_of_part(shape, min(most, shape.n)).memory["total"]
        cluster = self._cluster if self._cluster.can_hold(needed) else Here()
        say = self._say_part or self._say
        solver = PartSolver(model, data, parts, cluster, say)
        kernel = make_kernel(self.kernel, self.bandwidth, data.X, data.rng)

        def attributes(solved):
            observations = _left_out_of_parts(data, parts, solved)
            some = {} if observations is None else {"_left_out": observations}
            xp, coefs = namespace(data.X), [part["dual_coef_"] for part in solved]
            if any(coef.dtype == xp.float64 for coef in coefs):
                coefs = [xp.astype(coef, xp.float64, copy=False) for coef in coefs]
            intercepts = xp.stack([part["intercept_"] for part in solved])
            intercepts = xp.astype(intercepts, coefs[0].dtype)
            mean = xp.mean(intercepts, axis=0)
            return some | {
                "n_parts_": len(parts),
                "dual_coef_": xp.concat(coefs),
                "intercept_": mean,
                "_intercepts": intercepts - mean,
                "alpha_": np.array([part["alpha_"] for part in solved]),
                "kernel_": kernel,
                "bandwidth_": getattr(kernel, "bandwidth", None),
                "centers_": data.X,
                "_members": np.concatenate(parts),
                "_starts": np.cumsum([0, *map(len, parts)]),
                "_partition": partition,
            }

        return problem, solver, {}, PartRule(len(parts), attributes)

    def _part(self, data):
        """Return a part of the model, and its loss."""
        _, solver, chosen, rule = super()._prepare(data)
        train(solver, rule)
        found, left_out = chosen | rule.fitted_attributes(), rule.out_of_sample()
        names = "dual_coef_", "intercept_", "alpha_"
        part = {name: found[name] for name in names}
        part["left_out"] = None if left_out is None else list(left_out)
        if "_left_out" in found:
            part["observations"] = list(found["_left_out"])
        return {"part": part, "loss": float(found["loss_curve_"][-1])}

    def _expand(self, X):
        xp, device = compute_devices(self.device, X)[0]
        F = xp.asarray(self._blended(X), device=device)
        return xp.astype(F, self.dual_coef_.dtype)

    def _gradients(self, X):
        return LocalGradient(self, X)

    def _blended(self, X, *, slopes=False, mix=None):
        """Return the values of rows on the host, and with `slopes` the gradients.

        With `mix` (l, r) they are those of combinations of the outputs.
        """
        devices = compute_devices(self.device, X)

        def of_part(i, rows):
            own = slice(self._starts[i], self._starts[i + 1])
            coef = self.dual_coef_[own, :]
            centers = cast(take(self.centers_, self._members[own]), coef.dtype)
            a, b = (move(v, *devices[0]) for v in (coef, self._intercepts[i, :]))
            K = kernel_operator(self.kernel_, centers, devices, rows)
            values = to_numpy(K @ a + b).astype(np.float64)
            if not slopes:
                return values
            values = values if mix is None else values @ mix
            G = KernelGradient(self.kernel_, centers, coef, devices, rows)
            G = to_numpy(G.block(0, rows.shape[0], mix))
            return np.concat([values[:, :, None], np.moveaxis(G, 1, 2)], axis=2)

        return self._partition.blended(X, of_part, slopes=slopes)


class LocalRegressor(_LocalMachines, EigenProRegressor):
    """Local kernel machines with targets."""


class LocalClassifier(_LocalMachines, EigenProClassifier):
    """Local kernel machines with labels."""
