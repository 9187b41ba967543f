"""Data that come in pieces: one partial_fit, and streams of batches."""

import math
from dataclasses import replace

import numpy as np

from ..backend.array import location_of, namespace
from ..backend.lazy import in_memory
from ..problems.data import Data
from .training import Plateau
from .validation import (
    all_or_nothing,
    check_same_location,
    publish,
    total_weights,
    warn_user,
)


class Streaming:
    """A model that learns from pieces of the data.

    A family defines ``_prepare_piece(data, first)``, which returns a problem, a solver
    whose first state is that after the piece, and fitted attributes.
    """

    #: Attribute of a model that can go on.
    _stream_attribute = "coef_"
    #: Rows of a piece, at least, after the first.
    _min_piece_rows = 1
    #: Whether class_weight="balanced" means the classes of a piece.
    _balances_pieces = False

    @all_or_nothing
    def _partial_fit(self, X, y, sample_weight, classes=None):
        """Learn from a piece: validate, prepare, train for an epoch, publish."""
        self._check_stream()
        first = not hasattr(self, self._stream_attribute)
        if first and classes is not None:
            self.classes_ = np.unique(classes)
        min_rows = 2 if first else self._min_piece_rows
        n_outputs = None if first else math.prod(self.intercept_.shape)
        data = self._validate_piece(X, y, sample_weight, n_outputs, min_rows)
        problem, solver, chosen = self._prepare_piece(data, first)
        state = next(solver)
        halvings = 0 if first else self.n_step_halvings_
        if state.failed:
            warn_user(
                f"{type(self).__name__} found no step size that keeps the iteration "
                "bounded: this piece of the data changed nothing"
            )
        else:
            halvings = state.n_step_halvings
        losses = [state.loss] if first else [*self.loss_curve_, state.loss]
        attributes = (
            chosen
            | problem.fitted_attributes(state.coef)
            | state.counts
            | {
                "n_iter_": len(losses),
                "loss_curve_": losses,
                "validation_scores_": None,
                "n_step_halvings_": halvings,
            }
        )
        if first:
            publish(self, attributes)
        else:
            vars(self).pop("calibration_", None)  # it was of the model before
            vars(self).update(attributes)
        return self

    def _check_stream(self):
        """Raise a ValueError unless the parameters suit data that come in pieces."""
        self._check_parameters()
        weights = getattr(self, "class_weight", None)
        if isinstance(weights, str) and not self._balances_pieces:
            raise ValueError(
                f"class_weight={weights!r} needs all rows at once; pass a dict of "
                "weights for data that come in pieces"
            )

    def _validate_piece(self, X, y, sample_weight, n_outputs=None, min_rows=2):
        """Return a validated piece of the training data.

        `n_outputs` is None for the first piece of all.
        """
        first = n_outputs is None
        X, Y, labels = self._encode(X, y, reset=first, name="y")
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
        class_weights = self._weights_of_classes(labels)
        weights = total_weights(sample_weight, class_weights, len(Y))
        return Data(X, Y, labels, weights, self._make_rng())


class Stream:
    """Passes over pieces of data of any size, as batches of one size.

    Parameters
    ----------
    pieces : callable or iterable
        ``pieces()``, or else ``iter(pieces)``, yields the pieces of a pass.
    encode : callable
        ``encode(piece)`` returns arrays with as many rows each.

    Attributes
    ----------
    n_passes : float
        1 for an iterator, which can be read once only; infinite otherwise.
    at_end : bool
        Whether the pass is over.
    n_rows, n_rows_of_pass : int
        Rows of the last call of `batches`, and of all calls in the pass.
    """

    def __init__(self, pieces, encode):
        if not callable(pieces) and not hasattr(pieces, "__iter__"):
            raise ValueError(
                "batches must be an iterable of pieces (X, y), or a callable that "
                f"returns one; got {pieces!r}"
            )
        self._pieces, self._encode = pieces, encode
        self._open = self._start()
        self.n_passes = 1 if self._open is pieces else float("inf")
        self._rest, self.at_end, self.n_rows, self.n_rows_of_pass = None, False, 0, 0

    def _start(self):
        return iter(self._pieces() if callable(self._pieces) else self._pieces)

    def head(self, n_rows):
        """Return the first pieces as they are, of `n_rows` rows or more."""
        pieces, n = [], 0
        while n < n_rows and (piece := next(self._open, None)) is not None:
            pieces.append(piece)
            n += _n_rows(piece)
        if not pieces:
            raise ValueError("batches must yield pieces (X, y); got none")
        return pieces

    def put_back(self, arrays):
        """Put back what `head` returned, encoded and joined."""
        self._rest = arrays

    def restart(self):
        """Begin the next pass."""
        self._open, self.at_end, self.n_rows_of_pass = self._start(), False, 0

    def batches(self, size, most):
        """Yield the next `most` batches of the pass, in tuples of `size` rows.

        The last of a pass has fewer. Sets `at_end` and `n_rows`.
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
        """Read on until `size` rows are there, if so many come; return their number."""
        n = 0 if self._rest is None else self._rest[0].shape[0]
        while n < size and (piece := next(self._open, None)) is not None:
            _n_rows(piece)
            arrays = self._encode(piece)
            self._rest = arrays if n == 0 else joined([self._rest, arrays])
            n = self._rest[0].shape[0]
        return n

    def passes(self, solver, learner):
        """Yield the state of a solver after each pass; its loss is that of all rows.

        The solver takes a few batches of the stream for an epoch; its loss is None
        where it has learned from no row of the pass. The learner takes over how often
        the step was halved.
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


class PassRule:
    """Stop when the loss of a pass over a stream no longer improves.

    Parameters
    ----------
    name, hint : str
        Of the estimator, and what to do where no step is stable, for warnings.
    max_iter : int
    tol : float
        Of the loss of the first pass.
    n_iter_no_change : int

    Attributes
    ----------
    losses, scores : list of float
        One a pass; no scores.
    """

    scores = ()

    def __init__(self, name, hint, max_iter, tol, n_iter_no_change):
        self._name, self._hint, self.max_iter = name, hint, max_iter
        self._plateau, self.losses = Plateau(tol, n_iter_no_change), []

    def update(self, state):
        """Take in a pass; return whether training is over."""
        if state.failed:
            warn_user(
                f"{self._name} found no step size that keeps the "
                f"iteration bounded: halved {state.n_step_halvings} times; what"
                f" was learned before that is kept. {self._hint}"
            )
            return True
        if state.loss is None:
            warn_user(
                f"{self._name} learned nothing from a pass over the "
                f"stream: it diverged, and the step was halved "
                f"{state.n_step_halvings} times; pass a smaller step_size"
            )
            return False
        self.losses.append(state.loss)
        return self._plateau.update(state.loss, self.losses[0])


def _n_rows(piece):
    """Return the rows of a piece; raise a ValueError if it is none."""
    if not isinstance(piece, tuple | list) or len(piece) not in (2, 3):
        raise ValueError(
            "batches must yield pieces (X, y) or (X, y, sample_weight); got "
            f"{type(piece).__name__}"
        )
    y = piece[1]
    return y.shape[0] if hasattr(y, "shape") else len(y)


def joined(pieces):
    """Return tuples of arrays as one tuple, joined along their rows."""
    return tuple(
        namespace(parts[0]).concat(list(parts)) for parts in zip(*pieces, strict=True)
    )
