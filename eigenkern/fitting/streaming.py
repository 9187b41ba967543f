"""Data that come in pieces: `partial_fit` of all families, and streams of batches."""

import math
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import scipy.stats

from ..arrays.array import joined, location_of, namespace
from ..arrays.memory import n_bytes
from ..problems.data import Data, differing_column, hold_out
from ..rows.lazy_rows import in_memory
from ..rows.robust import cast
from .rules import Plateau, Rule, SolutionRule, train
from .validation import (
    all_or_nothing,
    check_same_location,
    check_verbose,
    check_weights,
    publish,
    total_weights,
    validated,
    warn_user,
)

# Most rows to retain, most bytes, and the number of rows to retain even if they take
# more bytes. Sorted streams of 4000 rows (cpusmall, a9a) end near the shuffled ones.
_MAX_RETAINED, _MAX_RETAINED_BYTES, _MIN_RETAINED = 2000, 16e6, 250
# Number of judges, whose mean losses have a standard deviation of 6 % if residuals are
# normal, and the growth of the stream after which they are drawn again.
_N_JUDGES, _JUDGES_GROWTH = 500, 1.25


@dataclass(frozen=True)
class Retained:
    """A uniform sample of all rows of a stream so far, without a random generator.

    `n_seen` counts the rows with positive weight so far, and `n_most` is how many to
    retain. The `judges` are some of the retained rows, to compare models on; they were
    drawn after `n_drawn` rows, and are drawn again once there are a quarter more.
    """

    data: Data
    n_seen: int
    n_most: int
    judges: Data
    n_drawn: int = 0

    @classmethod
    def of(cls, data):
        """Return the sample of the first rows."""
        data = _with_weight(data)
        X, n = data.X, max(len(data.targets), 1)
        if scipy.sparse.issparse(X):
            of_row = (X.data.nbytes + X.indices.nbytes + X.indptr.nbytes) / n
        else:
            of_row = n_bytes(X) / n
        n_most = max(_MAX_RETAINED_BYTES / max(of_row, 1.0), _MIN_RETAINED)
        none = data.take(np.arange(0))
        return cls(none, 0, int(min(n_most, _MAX_RETAINED)), none).plus(data)

    def plus(self, data):
        """Return the sample updated with more rows: Vitter's algorithm R."""
        data = _with_weight(data)
        n, n_before = len(data.targets), len(self.data.targets)
        rng, places = np.random.RandomState(self.n_seen), self.n_seen + np.arange(n)
        drawn = (rng.random_sample(n) * (places + 1)).astype(np.int64)
        places = np.where(places < self.n_most, places, drawn)
        taken = np.flatnonzero(places < self.n_most)
        retained = self.data
        if len(taken):
            chosen = np.arange(min(self.n_seen + n, self.n_most))
            chosen[places[taken]] = n_before + taken
            retained = joined_data([retained, data]).take(chosen)
        more = replace(self, data=retained, n_seen=self.n_seen + n)
        if more.n_seen < _JUDGES_GROWTH * self.n_drawn:
            return more
        return more.with_judges()

    def with_judges(self):
        """Return the sample with new judges."""
        return replace(self, judges=self.draw(_N_JUDGES), n_drawn=self.n_seen)

    def parted(self):
        """Return the rows in two parts; the second is a quarter, at most 500 rows.

        Copies stay together.
        """
        data = replace(self.data, rng=np.random.RandomState(self.n_seen))
        n = len(data.targets)
        part = min(_N_JUDGES, n // 4) / max(n, 1)
        rows, judges = hold_out(data, np.arange(n), part)
        order = data.rng.permutation(len(rows))
        return self.data.take(rows[order]), self.data.take(judges)

    def draw(self, n):
        """Return `n` of the rows, or all, in random order."""
        order = np.random.RandomState(self.n_seen).permutation(len(self.data.targets))
        return self.data.take(order[:n])


def joined_data(pieces):
    """Return several pieces as one `Data`, in the data type of the first."""
    first, weights, parts = pieces[0], None, [piece.X for piece in pieces]
    if any(piece.weights is not None for piece in pieces):
        each = [piece.weights_of(np.arange(len(piece.targets))) for piece in pieces]
        weights = np.concatenate(each)
    dtype = first.X.dtype
    if scipy.sparse.issparse(first.X):
        X = scipy.sparse.vstack(parts, format="csr", dtype=dtype)
    else:
        X = namespace(first.X).concat([cast(part, dtype) for part in parts])
    return replace(
        first,
        X=X,
        targets=np.concatenate([piece.targets for piece in pieces]),
        labels=np.concatenate([piece.labels for piece in pieces]),
        weights=weights,
    )


def _with_weight(data):
    data = replace(data, rng=None)
    rows = data.rows_with_weight()
    return data if len(rows) == len(data.targets) else data.take(rows)


# Minimum number of rows to learn from after the first piece: fewer wait for more. R2 of
# eight streams in pieces of 8 rows with 8, 16, 32, 64, 128: .65, .63, .63, .63, .63.
_MIN_ROWS_LEARNED = 32
# A piece is not a fair sample if Welch's t of the ranks of its gradients is larger, as
# for one fair piece in some ten thousand. R2 of twelve sorted streams with 2, 3, 4, 8,
# 16: .60, .61, .61, .63, .63; most change by less than .01.
_UNLIKE = 4.0
# A model is worse if its loss is above WORSE times that of the best one, on the same
# rows. R2 of these streams with 1.02, 1.1, 1.5, 2: .59, .61, .63, .63. Once a piece was
# replaced, steps are halved until the loss is below _WORSE_IF_REPLACED times that. R2
# of four sorted real sets with 1, 1.02, 1.1, 1.3: .51, .57, .50, .49.
WORSE, _WORSE_IF_REPLACED = 1.1, 1.02
# A loss up to this many times the mean square of the targets is rounding.
_ROUNDING_LOSS = 1e-10
# Epochs over the retained rows when a model begins anew. R2 of sorted streams with 1,
# 2, 5, 10, 20: .42, .45, .46, .46, .46; single ones differ by up to .3.
_N_EPOCHS_ANEW = 5
# A model begins anew early if, since it last began, the number of rows has grown by
# _MORE_ROWS and its loss by _MORE_LOSS. Scores of 5000 rows sorted by class with and
# without this: a9a .837, .777 (shuffled .834), covtype .696, .645 (.701).
_MORE_ROWS, _MORE_LOSS = 1.25, 2.0
# Attributes of the stream, not of the model.
_STREAM_ATTRIBUTES = "_memory_", "_waiting_", "loss_curve_", "n_iter_"
# Step sizes to try, each half of the last, if rows drawn from all make the model worse.
# R2 of four real sets .57, with one .51; on twelve streams 4, 8 and 16 are the same.
_N_STEP_SIZES = 8
# A stream is sorted if this many pieces in a row differ from the rows before them. One
# fair piece in a thousand may differ (`differing_column`).
_N_DIFFERING = 3


class Trial(NamedTuple):
    """A state, its model's attributes, and that model's loss on other rows, or NaN."""

    state: Any
    model: dict
    loss: float


class Memory(NamedTuple):
    """What a stream remembers of the rows so far.

    `n_chose` is the number of rows when preconditioner and step were chosen (infinite
    after a fit, whose rows are not retained), `chosen_loss` the loss of the model that
    began then, `best` the attributes of the best model so far (None: the present one),
    `least` its loss on ``retained.judges``, and `n_differing` the number of last
    pieces, in a row, that differed in a column from the rows before them.
    `has_replaced`: a piece was unlike the rows so far, or its model worse.
    """

    retained: Retained | None = None
    n_chose: float = math.inf
    chosen_loss: float = math.inf
    has_replaced: bool = False
    best: dict | None = None
    least: float | None = None
    n_differing: int = 0

    @property
    def is_sorted(self):
        """Whether so many pieces differed that the stream counts as sorted."""
        return self.n_differing == _N_DIFFERING

    @property
    def limit(self):
        """The loss up to which a model is no worse than the best one."""
        limit = (_WORSE_IF_REPLACED if self.has_replaced else WORSE) * self.least
        scale = float(np.mean(self.retained.judges.targets**2))
        return max(limit, _ROUNDING_LOSS * scale)

    def is_due(self, unlike, bad, loss):
        """Whether to begin a model anew, given the loss after the last piece.

        `unlike`: the piece is unlike the rows so far; `bad`: the loss is too large.
        """
        early = unlike and (bad or loss > _MORE_LOSS * self.chosen_loss)
        grown = self.retained.n_seen >= (_MORE_ROWS if early else 2) * self.n_chose
        return grown and (self.has_replaced or unlike or bad)


class Streaming:
    """A model that learns from pieces of the data.

    A piece is learned if it is a fair sample of all rows so far and does not make the
    model worse on them. Otherwise it only adds to the retained rows, and as many of
    those are learned instead. Once the rows have doubled since the preconditioner was
    chosen (or sooner, see `Memory.is_due`), everything is chosen and learned anew from
    the retained rows.

    If three pieces in a row differ from the rows before, in X or the targets, the
    stream is sorted: a warning says so, once.

    A family defines ``_prepare_piece(data, anew)``, which returns a problem, a solver
    whose first state is that after the piece, and fitted attributes; if `anew`, it
    chooses what the first piece chooses. It may define ``_without_leverage(piece)``,
    the piece without rows that would undo what was learned, and ``_count_rows(piece)``.
    """

    #: Attribute of a model that can learn further pieces.
    _stream_attribute = "coef_"
    #: Whether class_weight="balanced" refers to the classes of each piece.
    _balances_pieces = False
    #: State of a stream that begins with a fitted model.
    _waiting_, _memory_ = None, Memory()

    @all_or_nothing
    def _partial_fit(self, X, y, sample_weight, classes=None):
        """Learn from a piece, or let it wait for more rows."""
        self._check_stream()
        first = not hasattr(self, self._stream_attribute)
        if first and classes is not None:
            self.classes_ = np.unique(classes)
        n_outputs = None if first else math.prod(self.intercept_.shape)
        piece = self._validate_piece(X, y, sample_weight, n_outputs, 2 if first else 1)
        piece = self._without_leverage(piece)
        if first:
            state, attributes = self._learned(piece, anew=True)
            attributes |= {
                "n_iter_": 1,
                "loss_curve_": [state.loss],
                "validation_scores_": None,
                "_memory_": Memory(Retained.of(piece), len(piece.targets)),
            }
            publish(self, attributes)
            if state.failed:
                self._warn_of_piece()
        else:
            vars(self).pop("calibration_", None)  # of an earlier fit
            self._count_rows(piece)
            losses = [*self.loss_curve_, self._loss_on(piece)]
            if self._waiting_ is not None:
                piece = joined_data([self._waiting_, piece])
            self._waiting_ = piece
            if len(piece.targets) >= _MIN_ROWS_LEARNED:
                self._waiting_ = None
                losses[-1] = self._learn(piece)
            self.n_iter_, self.loss_curve_ = len(losses), losses
        self._warn_of_far_values(piece.X)
        return self

    def _learn(self, piece):
        """Learn a piece, or retained rows instead of it; return the loss."""
        self._check_sorted(piece)
        memory, unlike = self._memory_with(piece)
        retained = memory.retained
        # A fit retains no rows: the first piece after it may increase the loss.
        limit = math.inf if self._memory_.retained is None else memory.limit
        # Undo one halving per piece: it may have been due to an unusual piece.
        self.n_step_halvings_ = max(self.n_step_halvings_ - 1, 0)
        trial = None if unlike else self._trial_of(piece, retained.judges)
        failed = trial is not None and trial.state.failed
        replaced = unlike or not trial.loss <= limit
        if replaced:
            trial = self._trial_of_drawn_rows(len(piece.targets), memory, limit, trial)
        bad = not trial.loss <= limit
        if memory.is_due(unlike, bad, trial.loss) and not failed:
            memory = memory._replace(n_chose=retained.n_seen)
            present = memory.best if bad else trial.model
            other = self._trial_anew(memory, limit if replaced else trial.loss, present)
            if other is not None:
                memory = memory._replace(chosen_loss=other.loss)
                trial, bad = other, False
        if bad:
            self._warn_of_piece()
            trial = trial._replace(model=memory.best, loss=memory.least)
        self._take_model(trial.model)
        self._memory_ = memory._replace(
            has_replaced=memory.has_replaced or replaced,
            best=None if trial.loss <= memory.least else memory.best,
            least=min(trial.loss, memory.least),
        )
        return trial.state.loss

    def _check_sorted(self, piece):
        """Count pieces that differ from the rows before; warn, once, of three in a row.

        Only `_trial_anew` treats a sorted stream differently.
        """
        memory = self._memory_
        if memory.retained is None or memory.is_sorted:
            return
        column = differing_column(piece, memory.retained.judges)
        n_differing = 0 if column is None else memory.n_differing + 1
        self._memory_ = memory._replace(n_differing=n_differing)
        if self._memory_.is_sorted:
            what = "the target" if column < 0 else f"feature {column}"
            warn_user(
                f"{type(self).__name__} gets unshuffled data: {n_differing} pieces in "
                f"a row differ from the rows before them, the last one in {what}; it "
                "learns less from such pieces: shuffle the rows, or pass pieces so "
                "large that each has rows of all kinds"
            )

    def _memory_with(self, piece):
        """Return the memory with a piece, and whether it is unlike the rows so far.

        The memory includes the best model so far and its loss on the judges.
        """
        memory, unlike = self._memory_, False
        if memory.retained is None:
            retained = Retained.of(piece)
        else:
            retained = memory.retained.plus(piece)
            found = [self._gradients_on(rows)[1:] for rows in (piece, retained.judges)]
            unlike = are_unlike(*zip(*found, strict=True))
            if unlike:  # the judges may lack rows of its kind
                retained = retained.with_judges()
        names = [name for name in vars(self) if name.endswith("_")]
        names = [name for name in names if name not in _STREAM_ATTRIBUTES]
        present = {name: vars(self)[name] for name in names}
        best, least = memory.best or present, memory.least
        if least is None or retained.judges is not memory.retained.judges:
            least = self._loss_with(best, retained.judges)
        return memory._replace(retained=retained, best=best, least=least), unlike

    def _trial_of_drawn_rows(self, n, memory, limit, refused):
        """Return the trial of `n` rows drawn from all, starting from the best model.

        Of eight step sizes, each half of the last, it takes the first with a loss
        within the limit, else the last. They begin with that of a `refused` trial.
        """
        halvings = self.n_step_halvings_
        if refused is not None:
            halvings = max(halvings, refused.model["n_step_halvings_"])
        self._take_model(memory.best)
        data, judges = memory.retained.draw(n), memory.retained.judges
        for self.n_step_halvings_ in range(halvings, halvings + _N_STEP_SIZES):
            trial = self._trial_of(data, judges)
            if trial.loss <= limit:
                break
        return trial

    def _trial_anew(self, memory, limit, present):
        """Return the trial of a model begun anew, or None if it is refused.

        Its loss on the judges must be within the limit, which is easy: it has learned
        them five times. In a sorted stream it must instead be no worse than the present
        model on retained rows that it has not learned, though the present one may have.
        R2 of DSGRegressor on sorted rows by the limit and by the other rows: .75, .80
        (shuffled .79); with noise .35, .37 (.39); bike_hour .541, .550 (.559).
        """
        retained = memory.retained
        if not memory.is_sorted:
            rows = retained.draw(retained.n_most)
            other = self._trial_of(rows, retained.judges, anew=True)
            return other if other.loss <= limit else None
        rows, judges = retained.parted()
        other = self._trial_of(rows, judges, anew=True)
        if not other.loss <= self._loss_with(present, judges):
            return None
        return other._replace(loss=self._loss_with(other.model, retained.judges))

    def _trial_of(self, data, judges, anew=False):
        """Return the trial of a model that learns some rows, judged on others."""
        state, model = self._learned(data, anew)
        loss = math.nan if state.failed else self._loss_with(model, judges)
        return Trial(state, model, loss)

    def _learned(self, data, anew=False):
        """Return the state after some rows, and the attributes of the model."""
        weights = self._weights_of(data)
        data = replace(data, weights=weights, rng=self._make_rng())
        problem, solver, chosen = self._prepare_piece(data, anew)
        again = anew and hasattr(self, self._stream_attribute)
        rule = SolutionRule(problem, max_iter=_N_EPOCHS_ANEW if again else 1)
        train(solver, rule)
        halvings = rule.state.n_step_halvings
        if rule.state.failed:
            halvings = getattr(self, "n_step_halvings_", 0)
        model = chosen | rule.fitted_attributes() | {"n_step_halvings_": halvings}
        return rule.state, model

    def _warn_of_piece(self):
        warn_user(
            f"{type(self).__name__} found no step size that makes the model no worse: "
            "this piece of the data changed nothing; the best model so far is kept"
        )

    def _take_model(self, model):
        vars(self).update(model)

    def _without_leverage(self, piece):
        return piece

    def _count_rows(self, piece):
        pass

    def _weights_of(self, data):
        of_class = self._weights_of_classes(data.labels)
        return total_weights(data.weights, of_class, data.labels)

    def _gradients_on(self, data):
        """Return the losses of rows, their gradients in f, and weights, on the host."""
        F = self._fitted_values(data.X)
        losses, gradients = self._value_and_gradient(data.targets, F)
        weights = self._weights_of(data)
        return losses, gradients, np.ones(len(F)) if weights is None else weights

    def _value_and_gradient(self, Y, F):
        return np.mean((F - Y) ** 2, axis=1), F - Y

    def _loss_on(self, data):
        """Return the mean loss on some rows."""
        losses, _, weights = self._gradients_on(data)
        return float(np.average(losses, weights=weights))

    def _loss_with(self, model, data):
        """Return the mean loss of a model on some rows."""
        other = copy(self)
        other._take_model(model)
        return other._loss_on(data)

    def _check_stream(self):
        """Raise a ValueError unless the parameters suit data that come in pieces."""
        check_verbose(self.verbose)
        self._check_parameters()
        weights = getattr(self, "class_weight", None)
        if isinstance(weights, str) and not self._balances_pieces:
            raise ValueError(
                f"class_weight={weights!r} needs all rows at once; pass a dict of "
                "weights for data that come in pieces"
            )

    def _validate_piece(self, X, y, sample_weight, n_outputs=None, min_rows=2):
        """Return a validated piece of the training data.

        `n_outputs` is None for the very first piece.
        """
        first = n_outputs is None
        X, y = validated(self, X, y, reset=first, **self._checks_of_y)
        Y, labels = self._encode(y, X.dtype, reset=first, name="y")
        X = in_memory(X)
        if len(Y) < min_rows:
            raise ValueError(
                f"X must have at least {min_rows} rows in a piece; got {len(Y)}"
            )
        if not first:
            if hasattr(self, self._coef_attribute):
                check_same_location(self, location_of(X), "partial_fit")
            if Y.shape[1] != n_outputs:
                raise ValueError(
                    f"y must have {n_outputs} output(s), as in the first call of "
                    f"partial_fit; got {Y.shape[1]}"
                )
        return Data(X, Y, labels, check_weights(sample_weight, len(Y)), None)


def are_unlike(values, weights):
    """Whether two sets of rows differ in the mean of a column: Welch's test of ranks.

    `values` are two ndarrays, of shape (n_1, l) and (n_2, l), and `weights` too.
    """
    n = len(weights[0])
    # Ranks, because a few large values would dominate.
    ranks = scipy.stats.rankdata(np.concatenate(values), axis=0)
    means, variances = [], []
    for part, w in zip((ranks[:n], ranks[n:]), weights, strict=True):
        w = w / w.sum()
        means.append(w @ part)
        variances.append(w**2 @ (part - means[-1]) ** 2)
    difference = np.abs(means[0] - means[1])
    return bool((difference > _UNLIKE * np.maximum(sum(variances), 1e-12) ** 0.5).any())


# What no piece of a stream is.
_END = object()


class Stream:
    """Passes over pieces of data of any size, as batches of one size.

    ``pieces()``, or else ``iter(pieces)``, yields the pieces of a pass, and
    ``encode(piece)`` returns arrays with the same number of rows. An iterator can be
    read only once: then `n_passes` is 1, otherwise infinite. `n_rows` is the number of
    rows yielded by the last call of `batches`, `n_rows_of_pass` that of this pass.
    """

    def __init__(self, pieces, encode):
        if not callable(pieces) and not hasattr(pieces, "__iter__"):
            raise ValueError(
                "batches must be an iterable of pieces (X, y), or a callable that "
                f"returns one; got {pieces!r}"
            )
        self._pieces, self._encode, self._rest = pieces, encode, None
        self.n_rows = 0
        self.restart()
        self.n_passes = 1 if self._iterator is pieces else float("inf")

    def restart(self):
        """Begin the next pass."""
        pieces = self._pieces() if callable(self._pieces) else self._pieces
        self._iterator = iter(pieces)
        self.at_end, self.n_rows_of_pass = False, 0

    def head(self, n_rows):
        """Return the first pieces, unchanged, with at least `n_rows` rows in all."""
        pieces, n = [], 0
        while n < n_rows and (piece := next(self._iterator, _END)) is not _END:
            pieces.append(piece)
            n += _n_rows(piece)
        if not pieces:
            raise ValueError("batches must yield pieces (X, y); got none")
        return pieces

    def put_back(self, arrays):
        """Put back what `head` returned, encoded and joined."""
        self._rest = arrays

    def batches(self, size, most):
        """Yield the next batches of the pass, at most `most`, of `size` rows each.

        The last batch of a pass may have fewer. Sets `at_end` and `n_rows`.
        """
        self.n_rows = 0
        for _ in range(most):
            n = min(self._fill(size), size)
            self.at_end = n == 0
            if self.at_end:
                return
            batch = tuple(part[:n, ...] for part in self._rest)
            self._rest = tuple(part[n:, ...] for part in self._rest)
            self.n_rows, self.n_rows_of_pass = self.n_rows + n, self.n_rows_of_pass + n
            yield batch

    def _fill(self, size):
        """Read until there are `size` rows, or the pass ends; return their number."""
        n = 0 if self._rest is None else self._rest[0].shape[0]
        while n < size and (piece := next(self._iterator, _END)) is not _END:
            _n_rows(piece)
            arrays = self._encode(piece)
            if n > 0:
                arrays = tuple(map(joined, zip(self._rest, arrays, strict=True)))
            self._rest = arrays
            n = self._rest[0].shape[0]
        return n

    def passes(self, solver, learner):
        """Yield the state of a solver after each pass, with the loss of all its rows.

        An epoch of the solver is a few batches of the stream. The loss is None if
        nothing was learned. The learner takes over the number of halvings.
        """
        while True:
            total = n_rows = 0
            while not self.at_end:
                state = next(solver)
                learner.n_halvings = state.n_step_halvings
                if state.failed:
                    yield state
                    return
                total, n_rows = total + state.loss * self.n_rows, n_rows + self.n_rows
            if self.n_rows_of_pass == 0:
                raise ValueError(
                    "batches must yield rows in every epoch: a callable must return a "
                    "new iterable; got none"
                )
            yield replace(state, loss=total / n_rows if n_rows else None)
            self.restart()


class PassRule(Rule):
    """Stops when the loss of a pass over a stream no longer improves."""

    def __init__(self, model, max_iter):
        self._name, self._hint = type(model).__name__, model._failure_hint
        self._plateau = Plateau(model.tol, model.n_iter_no_change)
        self.max_iter, self.losses = max_iter, []

    def update(self, state):
        """Record a pass; return whether training ends."""
        if state.failed:
            warn_user(
                f"{self._name} found no step size that keeps the iteration bounded: "
                f"halved {state.n_step_halvings} times; what was learned before that "
                f"is kept. {self._hint}"
            )
            return True
        if state.loss is None:
            warn_user(
                f"{self._name} learned nothing from a pass over the stream: it "
                f"diverged, and the step was halved {state.n_step_halvings} times; "
                "pass a smaller step_size"
            )
            return False
        self.losses.append(state.loss)
        return self._plateau.update(state.loss, self.losses[0])


def _n_rows(piece):
    """Return the number of rows of a piece; raise a ValueError if it is not one."""
    if not isinstance(piece, tuple | list) or len(piece) not in (2, 3):
        raise ValueError(
            "batches must yield pieces (X, y) or (X, y, sample_weight); got "
            f"{type(piece).__name__}"
        )
    y = piece[1]
    return y.shape[0] if hasattr(y, "shape") else len(y)
