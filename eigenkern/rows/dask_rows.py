"""Rows in a Dask array: chunks stay on the workers, and functions are sent there.

Only Dask's submit, scatter, gather and futures are used. Without a client the chunks
are in this process, and functions run here, one after the other; each divides its
products between threads.
"""

import ctypes
import math
import os
import sys
import time
from collections import Counter
from concurrent.futures import CancelledError
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import psutil

from ..arrays import memory
from ..arrays.array import device_of, joined, namespace
from ..arrays.threads import cached_property
from .lazy_rows import LazyRows, check_finite_rows, rows_at

# Bytes from which values are sent to the workers directly, once, not with each task.
_SCATTERED_BYTES = 2**18
# How often to try work that lost data with a worker, and the seconds between tries.
_TRIALS, _PAUSE = 5, 1.0
_GO_ON = "a fit with checkpoint= goes on where it was, with resume=True"
# Share of a worker's memory limit that may be in use, cached matrices included: Dask
# begins to write data to disk at 0.6 of the limit.
_PART_OF_LIMIT = 0.5


class Here:
    """This process, with the methods of `Workers`; handles are values themselves."""

    n_workers, message_seconds = 1, 0.0

    def compute(self, value):
        return value.compute()

    def compute_chunks(self, X):
        import dask

        return list(dask.compute(*X.to_delayed().reshape(-1)))

    def places(self, chunks):
        return ["here"] * len(chunks)

    def threads(self):
        return ["here"]

    def is_too_large(self, n_bytes):
        return False

    def can_hold(self, n_bytes):
        return True

    def send(self, value, place=None):
        return value

    def submit(self, function, *args, place=None):
        return function(*args)

    def gather(self, handles):
        return handles

    def attempt(self, step, forget=None):
        return step()

    def room(self):
        return {"here": _PART_OF_LIMIT * memory.available(np, "cpu")}


class Workers:
    """The workers of a client.

    All that is asked of the cluster goes through `_ask`, which decides what its errors
    mean, and in `attempt`, which asks again what was lost with a worker.
    """

    #: Seconds of a message to a worker and back: 7 to 13 ms on one machine.
    message_seconds = 0.01

    def __init__(self, client):
        self._client = client

    def _ask(self, call, *args, handles=(), **options):
        """Return ``call(*args)``; raise a CancelledError if a worker was lost.

        A lost scheduler raises a ConnectionError. Errors of functions, whose handles
        have failed, are raised as they are.
        """
        from distributed import KilledWorker

        try:
            return call(*args, **options)
        except KilledWorker as error:
            raise RuntimeError(
                "workers of the Dask cluster died again and again at the same task, "
                "most often because it takes more memory than they have: raise their "
                "memory_limit, or pass X with smaller chunks (X.rechunk) or a smaller "
                f"n_centers. Dask says: {error}"
            ) from error
        except Exception as error:
            failed = any(handle.status == "error" for handle in handles)
            if failed and not isinstance(error, CancelledError):
                raise
            if self._client.status != "running":
                raise ConnectionError(
                    "the connection to the scheduler of the Dask cluster is lost: "
                    f"connect to a cluster and fit again; {_GO_ON}"
                ) from error
            # The scheduler does not find a worker, the connection ends, a value is
            # gone.
            if isinstance(error, KeyError | OSError | CancelledError):
                raise CancelledError(f"a worker was lost: {error}") from error
            raise

    def attempt(self, step, forget=None):
        """Return ``step()``, retried if data was lost with a worker.

        The scheduler computes lost chunks again, but not values that were sent;
        ``forget()`` makes sure that these are sent again.
        """
        for trial in range(_TRIALS):
            try:
                if trial > 0:
                    time.sleep(_PAUSE)
                    if forget is not None:
                        forget()
                return step()
            except CancelledError as error:
                if trial == _TRIALS - 1:
                    raise ConnectionError(
                        f"data on the Dask cluster was lost {_TRIALS} times, with its "
                        "workers or its scheduler: create X from files, not from what "
                        f"was sent to workers, and fit again; {_GO_ON}"
                    ) from error

    @property
    def n_workers(self):
        """Threads of all workers."""
        return max(len(self.threads()), 1)

    def compute(self, value):
        """Return a Dask collection as an array or DataFrame, here."""
        return self.attempt(
            lambda: self.gather([self._ask(self._client.compute, value)])[0]
        )

    def compute_chunks(self, X):
        """Return futures of the chunks of a Dask array, in order.

        Each step waits for the thread with the most rows, so the surplus of a worker
        moves to others: 5 of 8 chunks on one of two workers cost a quarter of the
        speed. Persisted chunks stay where they are.
        """
        return self.attempt(lambda: self._compute_chunks(X))

    def _compute_chunks(self, X):
        from distributed import futures_of, wait

        persisted = {future.key: future for future in futures_of(X)}
        keys = [key for (key,) in X.__dask_keys__()]
        stay = persisted.keys() >= set(keys)
        if stay:
            chunks = [persisted[key] for key in keys]
        else:
            delayed = list(X.to_delayed().reshape(-1))
            chunks = self._ask(self._client.compute, delayed)
        self._ask(wait, chunks)
        self.gather([chunk for chunk in chunks if chunk.status == "error"])
        if stay:
            return chunks
        threads = Counter(self.threads())
        fair = len(chunks) / max(threads.total(), 1)
        most = max(math.ceil(fair), int(1.1 * fair))
        free = Counter({place: most * n for place, n in threads.items()})
        for i, place in enumerate(self.places(chunks)):
            free[place] -= 1
            if free[place] < 0:
                place, room = free.most_common(1)[0]
                if room <= 0:
                    break
                free[place] -= 1
                chunks[i] = self.submit(_same, chunks[i], place=place)
        self._ask(wait, chunks)
        return chunks

    def places(self, chunks):
        """Return the worker of each chunk."""
        who_has = self.attempt(lambda: self._ask(self._client.who_has, chunks))
        return [min(who_has.get(chunk.key) or ("lost",)) for chunk in chunks]

    def threads(self):
        """Return each worker once per thread; wait until there is a worker."""

        def found():
            if not self._ask(self._client.nthreads):
                self._ask(self._client.wait_for_workers, 1)
            return self._ask(self._client.nthreads)

        threads = self.attempt(found)
        return [place for place, n in threads.items() for _ in range(n)]

    def is_too_large(self, n_bytes):
        """Whether a value takes too much of the memory limit of a worker.

        The rest is for rows and products.
        """
        limits = [limit or math.inf for limit, _ in self._memory().values()]
        return n_bytes > 0.25 * min(limits, default=math.inf)

    def can_hold(self, n_bytes):
        """Whether every thread of each worker may hold so much at the same time."""
        threads = Counter(self.threads())
        return all(
            threads[place] * n_bytes <= _PART_OF_LIMIT * (limit or math.inf)
            for place, (limit, _) in self._memory().items()
        )

    def _memory(self):
        """Return the memory limit of each worker, None without one, and its use."""
        run = partial(self._client.run, _limit_and_use, on_error="ignore")
        return self.attempt(lambda: self._ask(run))

    def send(self, value, place=None):
        """Return a handle of a value for functions on one worker, or on any.

        A worker takes it from another one that has it.
        """
        if getattr(value, "nbytes", _SCATTERED_BYTES) < _SCATTERED_BYTES:
            return value

        def sent():
            workers = [place] if place in self.threads() else None
            return self._ask(self._client.scatter, value, workers, hash=False)

        return self.attempt(sent)

    def submit(self, function, *args, place=None):
        """Return a handle of ``function(*args)``, computed on any worker.

        That is one worker's, if `place` names it and it is there.
        """
        options = {"pure": False}
        if place is not None:
            options |= {"workers": [place], "allow_other_workers": True}
        return self._ask(self._client.submit, function, *args, **options)

    def gather(self, handles):
        """Return the values of handles."""
        return self._ask(self._client.gather, handles, handles=handles)

    def room(self):
        """Return the bytes that may be cached on each worker; none without a limit."""
        found = self._memory().items()
        return {at: _PART_OF_LIMIT * (limit or 0) - used for at, (limit, used) in found}


def cluster():
    """Return the `Workers` of the current client, or `Here` without one."""
    try:
        return Workers(sys.modules["distributed"].default_client())
    except (KeyError, ValueError):  # it is not imported, or there is no client
        return Here()


class Group(NamedTuple):
    """Rows on one worker."""

    place: str
    chunks: list  # their numbers
    indices: list  # which rows of each chunk; None: all
    position: Any  # of these rows among all


class DaskRows(LazyRows):
    """Rows of a Dask array in chunks of rows, of known sizes."""

    def __init__(self, X, dtype):
        self.shape = tuple(map(int, X.shape))
        self._bounds = np.concatenate([[0], np.cumsum(X.chunks[0])]).astype(np.int64)
        self.cluster = cluster()
        self.chunks = self.cluster.compute_chunks(X.astype(dtype))
        # Each thread of a worker computes with one group of chunks.
        n_seen, number, groups = Counter(), {}, []
        n_threads = Counter(self.cluster.threads())
        for place in self.cluster.places(self.chunks):
            name = place, n_seen[place] % max(n_threads[place], 1)
            n_seen[place] += 1
            groups.append(number.setdefault(name, len(number)))
        self._names = [place for place, _ in number]
        self._group_of = np.array(groups)
        self._parts = []  # (array, handles of its parts) of the last ones
        self.like = self.cluster.attempt(
            lambda: self.cluster.gather(
                [self.cluster.submit(_first_row, self.chunks[0])]
            )
        )[0]
        self.dtype, self.device = self.like.dtype, device_of(self.like)
        self.on_blocks(check_finite_rows)

    def __array_namespace__(self, api_version=None):
        """Return the namespace of the chunks."""
        return namespace(self.like)

    @property
    def n_machines(self):
        """Threads of all workers."""
        return self.cluster.n_workers

    @property
    def message_seconds(self):
        """Seconds of a message to a worker and back."""
        return self.cluster.message_seconds

    def take(self, index):
        """Return the rows at some indices."""
        other = super().take(index)
        vars(other).pop("groups", None)
        other._parts = []
        return other

    @cached_property
    def groups(self):
        """The rows on each worker."""
        found = [Group(place, [], [], []) for place in self._names]
        for c, indices, position in self._rows_by_chunk():
            group = found[self._group_of[c]]
            group.chunks.append(c)
            group.indices.append(indices)
            group.position.append(position)
        return [
            group._replace(position=np.concatenate(group.position))
            for group in found
            if group.chunks
        ]

    def _rows_by_chunk(self):
        """Yield chunks, their rows (None: all) and positions, group by group."""
        bounds, index, group_of = self._bounds, self._index, self._group_of
        if index is None:
            for c in np.argsort(group_of, kind="stable"):
                yield c, None, np.arange(*bounds[c : c + 2])
        elif len(index):
            chunk_of = np.searchsorted(bounds, index, "right") - 1
            # Rows of the same chunk become a range.
            order = np.lexsort((chunk_of, group_of[chunk_of]))
            ends = np.flatnonzero(np.diff(chunk_of[order])) + 1
            for position in np.split(order, ends):
                c = chunk_of[position[0]]
                own, n = index[position] - bounds[c], bounds[c + 1] - bounds[c]
                yield c, None if np.array_equal(own, np.arange(n)) else own, position

    def run(self, function, *args, by_row=()):
        """Return handles of ``function(*args, *parts, indices, *chunks)``, by group.

        Workers must find the function in a module. The `args` are handles, or small
        values; each group gets its own part of arrays `by_row`, (n, ...) or None.
        """
        parts = [self.parts_of(values) for values in by_row]
        handles = []
        for g, group in enumerate(self.groups):
            own = [part[g] for part in parts]
            given = [
                *args,
                *own,
                group.indices,
                *(self.chunks[c] for c in group.chunks),
            ]
            handles.append(self.cluster.submit(function, *given))
        return handles

    def parts_of(self, values):
        """Return handles of each group's rows of an array; the last are remembered."""
        if values is None:
            return [None] * len(self.groups)
        for known, handles in self._parts:
            if known is values:
                return handles
        handles = [
            self.cluster.send(rows_at(values, group.position), group.place)
            for group in self.groups
        ]
        # Those of targets and weights are used again.
        self._parts = [*self._parts[-2:], (values, handles)]
        return handles

    def forget(self):
        """Forget what was sent, because some of it was lost."""
        self._parts = []

    def grouped(self, values):
        """Return an array whose rows belong to these, in the order of the groups."""
        return rows_at(values, np.concatenate([g.position for g in self.groups]))

    def arranged(self, parts):
        """Return the arrays of all groups joined into one, in the order of the rows."""
        if not parts:
            raise ValueError("there are no rows")
        order = np.argsort(np.concatenate([group.position for group in self.groups]))
        return rows_at(joined(parts), order)

    def total(self, handles):
        """Return the sum of the values of handles, added up in a tree."""
        while len(handles) > 1:
            pairs = zip(handles[::2], handles[1::2], strict=False)
            odd = handles[len(handles) - len(handles) % 2 :]
            handles = [self.cluster.submit(_sum, *pair) for pair in pairs] + odd
        return self.cluster.gather(handles)[0]

    def __getitem__(self, key):
        """Return a range of rows as an array."""
        start, stop, _ = key[0].indices(self.shape[0])
        if start >= stop:
            return self.like[:0, key[1]]
        rows = self.part(start, stop)
        return rows.arranged(rows.on_blocks(_same))[:, key[1]]

    def by_rows(self, function):
        """Return a function's values, one row for each of these, as a host array."""
        return self.arranged(self.on_blocks(function))

    def on_blocks(self, function):
        """Return a function's values for blocks of rows, group by group."""
        found = self.cluster.attempt(
            lambda: self.cluster.gather(self.run(_on_pieces, function)), self.forget
        )
        return [value for values in found for value in values]


class MadeRows(DaskRows):
    """Rows of some width, computed from other rows, that stay on the workers.

    ``make()`` returns handles of the results for each chunk of each group.
    """

    def __init__(self, rows, width, make):
        groups = rows.groups
        vars(self).update(vars(rows))
        vars(self).pop("groups")
        self._make, self.chunks = make, []
        self.shape, self._names = (rows.shape[0], width), [g.place for g in groups]
        n_chunks = [len(g.chunks) for g in groups]
        self._group_of = np.repeat(np.arange(len(groups)), n_chunks)
        positions = [position for *_, position in rows._rows_by_chunk()]
        self._bounds = np.cumsum([0, *map(len, positions)])
        self._index = np.argsort(np.concatenate(positions))
        self.forget()

    def forget(self):
        """Compute the rows again, because some of their sources were lost."""
        super().forget()
        self.chunks[:] = self._make()


def pieces(indices, chunks):
    """Yield ranges of the rows of a group, and the rows; whole chunks separately.

    The rows of partial chunks are joined, because a batch may have few of each.
    """
    if any(index is not None for index in indices):
        chunks = [rows_of_chunks(indices, *chunks)]
    start = 0
    for chunk in chunks:
        yield slice(start, start + chunk.shape[0]), chunk
        start += chunk.shape[0]


def rows_of_chunks(indices, *chunks):
    """Return the rows of a group as one array."""
    return joined(
        chunk if index is None else rows_at(chunk, index)
        for index, chunk in zip(indices, chunks, strict=True)
    )


@cache
def reuse_freed_memory():
    """Let this worker reuse memory that it freed; needed once per process.

    Dask starts workers with MALLOC_TRIM_THRESHOLD_=65536, with which glibc returns each
    freed block above 128 kB to the system, and kernel products take four times as long.
    Any other value was set by the user, and stays.
    """
    if os.environ.get("MALLOC_TRIM_THRESHOLD_") != "65536":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        # The largest values that glibc reaches by itself if none is set.
        mallopt(-3, 2**25)  # M_MMAP_THRESHOLD
        mallopt(-1, 2**26)  # M_TRIM_THRESHOLD


def _limit_and_use(dask_worker):
    used = psutil.Process().memory_info().rss
    return dask_worker.memory_manager.memory_limit, used


def _same(chunk):
    return chunk


def _sum(one, other):
    if isinstance(one, tuple):
        return tuple(map(_sum, one, other))
    return one + other


def _first_row(chunk):
    return chunk[:1, :]


def _on_pieces(function, indices, *chunks):
    return [function(rows) for _, rows in pieces(indices, chunks) if rows.shape[0]]
