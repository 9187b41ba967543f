"""The rows of a stream that are retained: a sample of all rows so far."""

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse

from ..arrays.array import namespace
from ..arrays.memory import n_bytes
from ..rows.robust import cast
from .data import Data, hold_out

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
