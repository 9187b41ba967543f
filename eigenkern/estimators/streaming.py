"""Data that come in pieces."""

from ..backend.array import namespace
from ..solvers.projected import projected
from ..solvers.projection import make_projection, projection_interval
from ..tuning.sizes import check_at_most, max_batch_size
from ..tuning.step import tune_on_centers

# Rows of a step, where there are as many.
_MIN_ROWS = 256


# Rows for each center that a stream is supposed to have.
_LONG = 100


def _prepare(estimator, problem, n_rows, n_epochs):
    """Return projection, T and tuning of a general kernel model."""
    p, width = problem.centers.shape[0], (problem.n_features, problem.targets.shape[1])
    to_learn = min(n_rows * n_epochs, _LONG * p)
    projection = make_projection(
        problem.centers, *width, to_learn, estimator.cache_size
    )
    largest = max_batch_size(problem.centers, *width, n_rows=min(n_rows, 1e9))
    m = estimator.batch_size
    if m == "auto":
        # Fewer centers than rows leave a residual, whose noise larger batches lower. Of
        # a stream as many as of the rows that come first.
        n = problem.n_rows
        m = min(largest, max(n // 8, min(n, _MIN_ROWS)))
    else:
        check_at_most("batch_size", m, n_rows, "training rows")
    interval = 1
    if estimator.algorithm != "eigenpro3":
        interval = projection_interval(projection, p, m, *width)
    # What is projected at once may take longer steps.
    cheap = interval == 1 and p <= problem.n_rows
    sample, weights = problem.sample(projection.whiten if cheap else None)
    tuning = tune_on_centers(
        problem.centers,
        sample,
        n_rows,
        weights=weights,
        subsample_size=estimator.subsample_size,
        n_components=estimator.n_components,
        batch_size=m,
        max_batch_size=largest,
        step_size=estimator.step_size,
        damping=estimator.damping,
    )
    projection.precondition(tuning.preconditioner)
    return projection, interval, tuning


class Learner:
    """What a general kernel model learns with: projection, preconditioner, step.

    Parameters
    ----------
    estimator : EigenProRegressor or EigenProClassifier
    problem : GeneralProblem
        Of all rows, or the first ones.
    n_rows : float, default=inf
        Rows of an epoch; infinite for a stream.
    n_epochs : int, default=1

    Attributes
    ----------
    problem, tuning, interval
    n_halvings : int
    """

    def __init__(self, estimator, problem, n_rows=float("inf"), n_epochs=1):
        self.problem, self._parameters = problem, _parameters(estimator)
        problem.projection, self.interval, self.tuning = _prepare(
            estimator, problem, n_rows, n_epochs
        )
        self.n_halvings = 0

    def suits(self, estimator):
        """Whether the parameters are those that this was made with."""
        return self._parameters == _parameters(estimator)

    @property
    def iterate(self):
        """Where the iteration is."""
        return self.problem.iterate

    def solver(self, next_epoch, iterate, **options):
        """Return `projected` on batches, from an iterate on."""
        return projected(
            next_epoch,
            self.problem.centers,
            self.tuning.preconditioner,
            self.problem.projection,
            iterate=iterate,
            batch_size=self.tuning.batch_size,
            interval=self.interval,
            step_size=self.tuning.step_size,
            zero_loss=self.problem.zero_loss,
            n_halvings=self.n_halvings,
            **options,
        )


def _parameters(estimator):
    """Return the parameters that a `Learner` depends on."""
    names = "algorithm", "n_components", "subsample_size", "batch_size", "step_size"
    others = "damping", "cache_size", "device"
    return [getattr(estimator, name) for name in (*names, *others)]


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
            self._rest = arrays if n == 0 else _joined(self._rest, arrays)
            n = self._rest[0].shape[0]
        return n


def _n_rows(piece):
    """Return the rows of a piece; raise a ValueError if it is none."""
    if not isinstance(piece, tuple | list) or len(piece) not in (2, 3):
        raise ValueError(
            "batches must yield pieces (X, y) or (X, y, sample_weight); got "
            f"{type(piece).__name__}"
        )
    y = piece[1]
    return y.shape[0] if hasattr(y, "shape") else len(y)


def _joined(one, other):
    pairs = zip(one, other, strict=True)
    return tuple(namespace(a).concat([a, b]) for a, b in pairs)
