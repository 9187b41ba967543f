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
from functools import cache, cached_property
from typing import Any, NamedTuple

import array_api_compat
import numpy as np
import psutil

from ..arrays import memory
from ..arrays.array import joined, namespace
from .lazy_rows import LazyRows, check_finite_rows, extremes_of, rows_at

# Bytes from which values are sent to the workers directly, once, not with each task.
_SCATTERED_BYTES = 2**18
# How often to try work that lost data with a worker, and the seconds between tries.
_TRIALS, _PAUSE = 5, 1.0
# Number of arrays whose parts are remembered on the workers: targets and weights.
_N_PARTS = 2
# A thread keeps its chunks if it has no more than this many times the average number.
_MAX_UNEVENNESS = 1.1
# Share of a worker's memory limit that may be in use, cached matrices included: Dask
# begins to write data to disk at 0.6 of the limit.
_PART_OF_LIMIT = 0.5
# Share of the limit that centers may take: the rest is for rows and products.
_CENTERS_PART_OF_LIMIT = _PART_OF_LIMIT / 2
# glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD; Dask's value of the first, and the
# largest values that glibc reaches by itself if none is set.
_TRIM_OPTION, _MMAP_OPTION = -1, -3
_DASK_TRIM, _TRIM_BYTES, _MMAP_BYTES = "65536", 2**26, 2**25


class Here:
    """A cluster of one: this process, if there is no client.

    It has the methods of `Workers`; handles are the values themselves.
    """

    n_workers, message_seconds = 1, 0.0

    def compute_chunks(self, X):
        import dask

        return list(dask.compute(*X.to_delayed().reshape(-1)))

    def places(self, chunks):
        return ["here"] * len(chunks)

    def n_threads(self, place):
        return 1

    def threads(self):
        return ["here"]

    def is_too_large(self, n_bytes):
        return False

    def send(self, value):
        return value

    def send_to(self, place, value):
        return value

    def submit(self, function, *args):
        return function(*args)

    def submit_to(self, place, function, *args):
        return function(*args)

    def gather(self, handles):
        return handles

    def attempt(self, step, forget=None):
        return step()

    def room(self):
        return {"here": _PART_OF_LIMIT * memory.available(np, "cpu")}


class Workers:
    """The workers of a client.

    Parameters
    ----------
    client : distributed.Client
    """

    def __init__(self, client):
        self._client = client

    @property
    def n_workers(self):
        """Threads of all workers."""
        return max(len(self.threads()), 1)

    @cached_property
    def message_seconds(self):
        """Measured seconds of a message to a worker and back."""
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            self.gather([self.submit(_sum, 0, 0)])
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    def n_threads(self, place):
        """Return the threads of a worker."""
        return self._client.nthreads().get(place, 1)

    def compute_chunks(self, X):
        """Return futures of the chunks of a Dask array, in order.

        Each step waits for the thread with the most rows, so if Dask leaves one worker
        with many more chunks than others, some move to these: 5 of 8 chunks on one of
        two workers cost a quarter of the speed. Persisted chunks stay where they are.
        """
        from distributed import futures_of, wait

        persisted = {future.key: future for future in futures_of(X)}
        keys = [key for (key,) in X.__dask_keys__()]
        stay = persisted.keys() >= set(keys)
        if stay:
            chunks = [persisted[key] for key in keys]
        else:
            chunks = self._client.compute(list(X.to_delayed().reshape(-1)))
        wait(chunks)
        self.gather([chunk for chunk in chunks if chunk.status == "error"])
        return chunks if stay else self._spread(chunks)

    def _spread(self, chunks):
        """Return the chunks, the surplus of a worker moved to workers with few."""
        from distributed import wait

        threads = Counter(self.threads())
        fair = len(chunks) / max(threads.total(), 1)
        most = max(math.ceil(fair), int(_MAX_UNEVENNESS * fair))
        free = Counter({place: most * n for place, n in threads.items()})
        for i, place in enumerate(self.places(chunks)):
            free[place] -= 1
            if free[place] < 0:
                place, room = free.most_common(1)[0]
                if room <= 0:
                    break
                free[place] -= 1
                chunks[i] = self._client.submit(
                    _same,
                    chunks[i],
                    pure=False,
                    workers=[place],
                    allow_other_workers=True,
                )
        wait(chunks)
        return chunks

    def places(self, chunks):
        """Return the worker of each chunk."""
        who_has = self._client.who_has(chunks)
        return [min(who_has.get(chunk.key) or ("lost",)) for chunk in chunks]

    def threads(self):
        """Return each worker once per thread; wait until there is a worker."""
        if not self._client.nthreads():
            self._client.wait_for_workers(1)
        threads = self._client.nthreads()
        return [place for place, n in threads.items() for _ in range(n)]

    def is_too_large(self, n_bytes):
        """Whether a value takes too much of the memory limit of a worker."""
        return n_bytes > _CENTERS_PART_OF_LIMIT * self._least_limit

    @cached_property
    def _least_limit(self):
        """Bytes: the least memory limit of a worker; infinity without limits."""
        limits = self._client.run(_memory_limit, on_error="ignore").values()
        return min(limits, default=math.inf)

    def send(self, value):
        """Return a handle of a value; functions receive the value itself.

        A value sent to all workers is not lost with one of them.
        """
        if getattr(value, "nbytes", _SCATTERED_BYTES) < _SCATTERED_BYTES:
            return value
        return self._client.scatter(value, broadcast=True, hash=False)

    def send_to(self, place, value):
        """Return a handle of a value for functions that run on one worker."""
        if getattr(value, "nbytes", _SCATTERED_BYTES) < _SCATTERED_BYTES:
            return value
        known = place in self._client.nthreads()
        return self._client.scatter(value, [place] if known else None, hash=False)

    def submit(self, function, *args):
        """Return a handle of ``function(*args)``."""
        return self._client.submit(function, *args, pure=False)

    def submit_to(self, place, function, *args):
        """Return a handle of ``function(*args)`` on a worker."""
        return self._client.submit(function, *args, pure=False, workers=[place])

    def gather(self, handles):
        """Return the values of handles."""
        from distributed import KilledWorker

        try:
            return self._client.gather(handles)
        except KilledWorker as error:
            raise RuntimeError(
                "workers of the Dask cluster died again and again at the same task, "
                "most often because it takes more memory than they have: raise their "
                "memory_limit, or pass X with smaller chunks (X.rechunk) or a smaller "
                f"n_centers. Dask says: {error}"
            ) from error

    def attempt(self, step, forget=None):
        """Return ``step()``, retried if data was lost with a worker.

        The scheduler computes lost chunks again, but not values that were sent;
        ``forget()`` makes sure that these are sent again.
        """
        for trial in range(_TRIALS):
            try:
                return step()
            except (CancelledError, OSError) as error:
                if self._client.status != "running":
                    raise ConnectionError(
                        "the connection to the scheduler of the Dask cluster is lost: "
                        "connect to a cluster and fit again; a fit with checkpoint= "
                        "goes on where it was, with resume=True"
                    ) from error
                if trial == _TRIALS - 1 or not isinstance(error, CancelledError):
                    raise
                if forget is not None:
                    forget()
                time.sleep(_PAUSE)

    def room(self):
        """Return the bytes that may be cached on each worker; 0 without a limit."""
        return self._client.run(_room, on_error="ignore")


def cluster():
    """Return the `Workers` of the current client, or `Here` without one."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return Here()
    try:
        return Workers(distributed.default_client())
    except ValueError:
        return Here()


class Group(NamedTuple):
    """Rows on one worker.

    Attributes
    ----------
    place : str
        The worker.
    chunks : list
        Handles.
    indices : list of ndarray or None
        Which rows of each chunk; None: all.
    position : ndarray
        Their positions among the rows.
    """

    place: str
    chunks: list
    indices: list
    position: Any


class DaskRows(LazyRows):
    """Rows of a Dask array.

    Parameters
    ----------
    X : dask.array.Array of shape (n, d)
        Chunked along the rows only, in chunks of known sizes.
    dtype : data type
    """

    def __init__(self, X, dtype):
        self.shape = tuple(map(int, X.shape))
        self._bounds = np.concatenate([[0], np.cumsum(X.chunks[0])]).astype(np.int64)
        self.cluster = cluster()
        self._chunks = self.cluster.compute_chunks(X.astype(dtype))
        self._group_chunks()
        self._made = None
        self._parts = []  # (array, handles of its parts) of the last ones
        like = self.cluster.submit(_first_row, self._chunks[0])
        self.like = self.cluster.gather([like])[0]
        self.dtype = self.like.dtype
        self.device = array_api_compat.device(self.like)
        self._run_all(_check_finite)

    def _group_chunks(self):
        """Group the chunks: each thread of a worker computes with one group."""
        n_seen, number, groups = Counter(), {}, []
        for place in self.cluster.places(self._chunks):
            name = place, n_seen[place] % self.cluster.n_threads(place)
            n_seen[place] += 1
            groups.append(number.setdefault(name, len(number)))
        self._names = [place for place, _ in number]
        self._group_of = np.array(groups)

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
            group.chunks.append(self._chunks[c])
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
                yield c, index[position] - bounds[c], position

    def run(self, function, *args, by_row=()):
        """Return handles of ``function(*args, *parts, indices, *chunks)``, by group.

        Parameters
        ----------
        function : callable
            Defined in a module, so that workers find it.
        *args : objects
            Handles, or small values.
        by_row : tuple of arrays of shape (n, ...), default=()
            Each group gets its own rows of these. None stays None.
        """
        parts = zip(*map(self.parts_of, by_row), strict=True)
        parts = parts if by_row else [()] * len(self.groups)
        return [
            self.cluster.submit(function, *args, *own, group.indices, *group.chunks)
            for group, own in zip(self.groups, parts, strict=True)
        ]

    def parts_of(self, values):
        """Return handles of the rows of an array that belong to each group.

        Parts of the last arrays are remembered, and not sent again.
        """
        if values is None:
            return [None] * len(self.groups)
        for known, handles in self._parts:
            if known is values:
                return handles
        handles = [
            self.cluster.send_to(group.place, rows_at(values, group.position))
            for group in self.groups
        ]
        self._parts = [*self._parts[-_N_PARTS:], (values, handles)]
        return handles

    def forget(self):
        """Forget what was sent, because some of it was lost."""
        self._parts = []
        if self._made is not None:
            self._made.forget()
            vars(self).pop("groups", None)

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
        return rows.arranged(rows._run_all(rows_of_chunks))[:, key[1]]

    def by_rows(self, function):
        """Return a function's values, one row for each of these, as a host array."""
        return self.arranged(self._run_all(_of_rows, function))

    def extremes(self):
        """Return the least and the largest number."""
        low, high = zip(*self._run_all(_extremes), strict=True)
        return min(low), max(high)

    def _run_all(self, function, *args):
        """Return the values of ``function(*args, indices, *chunks)`` of all groups."""
        return self.cluster.attempt(
            lambda: self.cluster.gather(self.run(function, *args))
        )


class MadeRows(DaskRows):
    """Rows computed from other rows, chunk by chunk, that stay on the workers.

    Parameters
    ----------
    rows : DaskRows
    width : int
        Number of their columns.
    make : callable
        ``make()`` returns handles of the results for each chunk of each group.
    """

    def __init__(self, rows, width, make):
        vars(self).update(vars(rows))
        self._source, self._make, self._chunks = rows, make, []
        self.shape, groups = (rows.shape[0], width), rows.groups
        self._names = [group.place for group in groups]
        self._group_of = np.repeat(np.arange(len(groups)), [len(g[1]) for g in groups])
        positions = [position for *_, position in rows._rows_by_chunk()]
        self._bounds = np.cumsum([0, *map(len, positions)])
        self._index = np.argsort(np.concatenate(positions))
        self.forget()

    def take(self, index):
        """Return the rows at some indices; if lost, all of these are computed again."""
        other = object.__new__(DaskRows)
        vars(other).update(vars(self), _made=self)
        return other.take(index)

    @cached_property
    def groups(self):
        """The rows on each worker: all rows of each chunk."""
        chunks, found = iter(self._chunks), []
        for group in self._source.groups:
            own = [next(chunks) for _ in group.chunks]
            found.append(group._replace(chunks=own, indices=[None] * len(own)))
        return found

    def forget(self):
        """Compute the rows again, because some of their sources were lost."""
        self._parts = []
        self._chunks[:] = self._make()
        vars(self).pop("groups", None)


def pieces(indices, chunks):
    """Yield ranges of the rows of a group, and the rows; whole chunks separately.

    The rows of partial chunks are joined, because a batch may have few of each.
    """
    if any(index is not None for index in indices):
        rows = rows_of_chunks(indices, *chunks)
        yield slice(0, rows.shape[0]), rows
        return
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
    freed block above 128 kB to the system. The next block costs a page fault for every
    4 kB: measured, kernel products then take four times as long. Any other value was
    set by the user, and stays.
    """
    if os.environ.get("MALLOC_TRIM_THRESHOLD_") != _DASK_TRIM:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        mallopt(_MMAP_OPTION, _MMAP_BYTES)
        mallopt(_TRIM_OPTION, _TRIM_BYTES)


def _memory_limit(dask_worker):
    return dask_worker.memory_manager.memory_limit or math.inf


def _room(dask_worker):
    limit = dask_worker.memory_manager.memory_limit or 0
    return _PART_OF_LIMIT * limit - psutil.Process().memory_info().rss


def _same(chunk):
    return chunk


def _sum(one, other):
    if isinstance(one, tuple):
        return tuple(map(_sum, one, other))
    return one + other


def _of_rows(function, indices, *chunks):
    return np.concatenate([function(rows) for _, rows in pieces(indices, chunks)])


def _first_row(chunk):
    return chunk[:1, :]


def _check_finite(indices, *chunks):
    for _, rows in pieces(indices, chunks):
        check_finite_rows(rows)


def _extremes(indices, *chunks):
    return extremes_of(rows for _, rows in pieces(indices, chunks) if rows.shape[0])
