"""The rows of a stream that are retained: a sample of all rows so far."""

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse

from ..arrays.array import namespace
from ..arrays.memory import n_bytes
from ..rows.robust import cast
from .data import Data, hold_out

# Most rows to retain, most bytes, and the number of rows to retain even if they take
# more bytes. Pickles stay small; sorted streams of 4000 rows (cpusmall, a9a) end near
# the shuffled ones, or warn.
_MAX_RETAINED, _MAX_RETAINED_BYTES, _MIN_RETAINED = 2000, 16e6, 250
# Number of judges, the rows that show whether a model has become worse; and the growth
# of the stream after which judges are drawn again. Mean losses of 500 rows have a
# standard deviation of 6 % if residuals are normal; two models are compared on the same
# rows.
_N_JUDGES, _JUDGES_GROWTH = 500, 1.25


@dataclass(frozen=True)
class Retained:
    """A uniform sample of all rows of a stream so far.

    Attributes
    ----------
    data : Data
        The rows, with their sample weights and without a random generator.
    n_seen : int
        Number of rows with positive weight so far.
    n_most : int
        Most rows to retain.
    judges : Data
        Some of them, to compare models on; drawn again once there are a quarter more
        rows.
    n_drawn : int
        `n_seen` when the judges were drawn.
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
        of_row = _n_bytes(data.X) / max(len(data.targets), 1)
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
            retained = joined([retained, data]).take(chosen)
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


def joined(pieces):
    """Return the rows of several pieces as one `Data`."""
    first, weights = pieces[0], None
    if any(piece.weights is not None for piece in pieces):
        weights = np.concatenate(
            [
                np.ones(len(piece.targets)) if piece.weights is None else piece.weights
                for piece in pieces
            ]
        )
    return replace(
        first,
        X=_joined_rows([piece.X for piece in pieces]),
        targets=np.concatenate([piece.targets for piece in pieces]),
        labels=np.concatenate([piece.labels for piece in pieces]),
        weights=weights,
    )


def _with_weight(data):
    data = replace(data, rng=None)
    rows = data.rows_with_weight()
    return data if len(rows) == len(data.targets) else data.take(rows)


def _joined_rows(parts):
    """Return rows as one array, in the data type of the first piece."""
    if scipy.sparse.issparse(parts[0]):
        return scipy.sparse.vstack(parts, format="csr", dtype=parts[0].dtype)
    xp, dtype = namespace(parts[0]), parts[0].dtype
    return xp.concat([cast(X, dtype) for X in parts])


def _n_bytes(X):
    if scipy.sparse.issparse(X):
        return X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
    return n_bytes(X)
