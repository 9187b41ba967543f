"""The guard around the epochs of a solver: go back and halve the step on divergence."""

from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import to_numpy
from .state import Saved, State

# 2^-40 of a step changes nothing in single precision.
_MAX_HALVINGS = 40


class Epoch(NamedTuple):
    """What an epoch of a solver returns.

    `losses` (l,) are the mean losses of its model, `least` the loss that the guard
    checks, summed over outputs: of several iterates side by side the smallest one, not
    finite if the epoch diverged. `has_stepped`: it made at least one step.
    """

    coef: Any
    losses: np.ndarray
    least: float
    has_stepped: bool


class Guard(Saved):
    """Decides whether an iteration diverges, and by how much to shorten its steps.

    `zero_loss` is the mean loss of f = 0, `factor` what to multiply the steps by, and
    `best_loss` the smallest loss of an epoch since the last halving.
    """

    def __init__(self, zero_loss, n_halvings=0):
        self._zero_loss = zero_loss
        if n_halvings > _MAX_HALVINGS:  # an earlier fit failed, perhaps on other rows
            n_halvings = 0
        self.factor, self.n_halvings = 0.5**n_halvings, n_halvings
        self.best_loss = np.inf

    @property
    def failed(self):
        return self.n_halvings > _MAX_HALVINGS

    def trips(self, total, baseline):
        """Whether the sum of losses so far, perhaps NaN, shows that an epoch diverges.

        `baseline` is the sum for f = 0 on the same rows.
        """
        # Batches of noisy targets reach two; four is more than noise.
        return not (total <= 4.0 * baseline and total < np.inf)

    def accepts(self, loss, halve=True):
        """Record the loss of an epoch, NaN if it diverged; return whether it is good.

        If not, the solver has to go back to the start of the best epoch, with half the
        step if `halve`.
        """
        # On noisy targets epochs differ by tens of percent; if the residual is nearly
        # zero, by a factor of two. One of zero can only grow, by rounding: 0 to 1e-4
        # would do.
        bound = 3.0 * self.best_loss + 1e-6 * self._zero_loss
        if loss <= bound and loss < np.inf:
            self.best_loss = min(self.best_loss, loss)
            return True
        # The next epoch starts a new record: at most one halving per epoch.
        self.best_loss = np.inf
        if halve:
            self.factor, self.n_halvings = self.factor / 2, self.n_halvings + 1
        return False


class EpochWatch:
    """The losses in an epoch so far of iterates side by side; which ones diverged.

    `losses` and `late`, (k, l), are sums over all rows so far, and over those of the
    batches after the first `n_early`. Iterates in `lost`, (k,), diverged: their losses
    are infinite. `zero_loss` is the mean loss of f = 0, summed over the outputs;
    `n_slack_rows` extra rows count at the start with that loss, so that a few unusual
    rows are not taken for divergence.
    """

    def __init__(self, guard, zero_loss, shape, n_early=0, n_slack_rows=0):
        self._guard, self._zero_loss, self._n_early = guard, zero_loss, n_early
        self._baseline = n_slack_rows * zero_loss
        self.losses, self.late = np.zeros(shape), np.zeros(shape)
        self.lost = np.zeros(shape[0], dtype=bool)
        self.n_rows = self.n_batches = 0

    @property
    def has_stepped(self):
        """Whether a step was made: none is on a batch on which all iterates diverge."""
        return self.n_batches > bool(self.lost.all())

    @property
    def n_late(self):
        """Number of late batches so far; zero or negative before the first one."""
        return self.n_batches - self._n_early

    def add(self, losses, zero_loss, n_rows):
        """Record a batch; return whether all iterates have diverged.

        `losses` (k l,) and `zero_loss`, that of f = 0, are sums over its rows.
        """
        losses = to_numpy(losses).astype(np.float64).reshape(self.losses.shape)
        self.losses += losses
        self.n_rows, self.n_batches = self.n_rows + n_rows, self.n_batches + 1
        if self.n_late > 0:
            self.late += losses
        # Large targets raise both sums; a batch of zeros counts as an average one.
        self._baseline += max(zero_loss, self._zero_loss * n_rows)
        for side, total in enumerate(self.losses.sum(axis=1)):
            if self._guard.trips(total, self._baseline):
                self.lost[side], self.losses[side, :] = True, np.inf
        return bool(self.lost.all())


class Guarded(Saved):
    """Run epochs; if one diverges, go back and halve the step.

    An iterator of one `State` per epoch, which ends only after it has failed: the
    caller decides when to stop. It knows nothing about what an epoch does. It goes back
    to the start of the epoch with the smallest loss, because any other epoch may have
    ended badly without being noticed.

    Parameters
    ----------
    run_epoch : callable
        Returns an `Epoch`, or None if there were no rows to learn from.
    guard : Guard
        `run_epoch` multiplies its steps by the guard's ``factor``.
    snapshot, restore : callable
        ``snapshot()`` returns a copy of the state; ``restore(copy)`` goes back to it.
    step_size : float, default=1.0
        The step before all factors; states report it times the guard's factor.
    model_of : callable
        ``model_of(copy)`` returns the model of a snapshot; by default the snapshot.
    origin : snapshot, default=None
        Where to start from if the given coefficients trip the guard immediately: they
        may be worse than none.
    search : StepSearch, default=None
    counts : callable, default=dict
        Returns fitted attributes that the solver counts itself.
    parts_of : callable
        ``parts_of(model)`` returns `coef` and `rest` of a state.
    save_rest, load_rest : callable
        ``save_rest()`` returns what a snapshot lacks, ``load_rest(saved)`` restores it.
    """

    _saved = ("_begin", "_good", "_guard", "_search")

    def __init__(
        self,
        run_epoch,
        guard,
        snapshot,
        restore,
        *,
        step_size=1.0,
        model_of=lambda snapshot: snapshot,
        origin=None,
        search=None,
        counts=dict,
        parts_of=lambda model: (model, None),
        save_rest=lambda: None,
        load_rest=lambda saved: None,
    ):
        self._run_epoch, self._guard = run_epoch, guard
        self._snapshot, self._restore = snapshot, restore
        self._step_size, self._model_of, self._origin = step_size, model_of, origin
        self._search, self._counts, self._parts_of = search, counts, parts_of
        self._save_rest, self._load_rest = save_rest, load_rest
        # The starts of this epoch and of the best one.
        self._begin = self._good = snapshot()

    def __iter__(self):
        return self

    def __next__(self):
        guard, search = self._guard, self._search
        if guard.failed:
            raise StopIteration
        while True:
            epoch = self._run_epoch()
            if epoch is None:
                return self._state(self._model_of(self._snapshot()), 0.0, 0.0)
            # The search may have chosen a longer step: blame that first.
            halve = search is None or not search.is_longer
            if guard.accepts(epoch.least, halve=halve):
                break
            if not epoch.has_stepped and self._origin is not None:
                self._good = self._origin
            self._begin = self._good
            self._restore(self._good)
            if search is not None:
                search.forget()
            if guard.failed:
                coef = self._model_of(self._good)
                return self._state(coef, np.nan, 0.0, failed=True)
        if epoch.least == guard.best_loss:
            self._good = self._begin
        self._begin = self._snapshot()
        state = self._state(epoch.coef, float(epoch.losses.mean()), guard.factor)
        if search is not None and search.update(epoch.losses):
            # The race is over: compare later losses with that of the chosen step, not
            # with the smallest of all sides.
            guard.best_loss = epoch.losses.sum()
        return state

    def _state(self, model, loss, factor, failed=False):
        coef, rest = self._parts_of(model)
        return State(
            coef,
            self._counts(),
            loss,
            failed=failed,
            step_size=factor * self._step_size,
            n_step_halvings=self._guard.n_halvings,
            rest=rest,
        )

    def save(self):
        """Return the state between two epochs, for `load`."""
        return super().save() | {"rest": self._save_rest()}

    def load(self, saved):
        """Resume from what `save` of another iterator on the same problem returned."""
        super().load(saved)
        self._restore(self._begin)
        self._load_rest(saved["rest"])
