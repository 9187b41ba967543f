"""Rows that are not in memory: in files, or on the workers of a cluster."""

import threading
from copy import copy
from functools import cached_property

import array_api_compat
import numpy as np

from ..arrays.array import namespace, slices, take
from ..arrays.threads import run_on_threads

# Bytes of a block of rows that is read at once: about 15 ms from a disk, much more than
# the seek and the call. 200 MB in chunks of 2 MB, cached by the system, took 0.055 s
# from HDF5 and 0.17 s from Zarr in blocks of 16 MB, 0.055 to 0.11 s and 0.17 to 0.22 s
# in blocks of 32 MB. Bytes of a section, within which rows are shuffled. Three or four
# blocks and two sections are in memory; in `visit`, a block per thread, at most as many
# as a section has.
_BLOCK_BYTES, _SECTION_BYTES = 2**24, 2**28
# First rows, which stay in memory: bandwidth, step and penalty are chosen from them.
_N_FIRST = 8000


class LazyRows:
    """Rows that are fetched on demand.

    A subclass defines ``rows[start:stop, columns]``, an array in memory,
    ``by_rows(function)`` and ``extremes()``.

    Attributes
    ----------
    shape : tuple (n, d)
    dtype : data type
        float32 or float64.
    n_machines : int
        Number of machines that compute with the rows.
    message_seconds : float
        Seconds that a step waits for the machines.
    """

    device = "cpu"
    n_machines, message_seconds = 1, 0.0
    # Which of the stored rows these are; None: all.
    _index = None

    def __array_namespace__(self, api_version=None):
        """Return the namespace of the rows that are fetched."""
        return array_api_compat.array_namespace(np.empty(0))

    def __len__(self):
        return self.shape[0]

    def to_device(self, device, stream=None):
        """Return the rows unchanged: they move when they are used."""
        return self

    def take(self, index):
        """Return the rows at some indices, not fetched yet."""
        other, index = copy(self), np.asarray(index)
        other._index = index if self._index is None else self._index[index]
        other.shape = len(index), self.shape[1]
        return other

    def part(self, start=0, stop=None):
        """Return a range of the rows, not fetched yet."""
        start, stop, _ = slice(start, stop).indices(self.shape[0])
        if (start, stop) == (0, self.shape[0]):
            return self
        return self.take(np.arange(start, stop))

    def in_order(self, order):
        """Return the rows in a given order, to be read in ranges."""
        return self.take(order)

    def shuffled(self, rows, rng):
        """Return some rows in random order."""
        return rng.permutation(rows)

    def shuffled_ranges(self, starts, rng):
        """Return the starts of ranges of shuffled rows in random order."""
        return rng.permutation(starts)


class MappedRows(LazyRows):
    """Functions of other rows, computed from these when they are fetched.

    Parameters
    ----------
    rows : LazyRows
    function : callable
        ``function(rows)`` returns as many rows, with as many features.
    """

    def __init__(self, rows, function):
        self._rows, self._function = rows, function
        self.shape, self.dtype, self.device = rows.shape, rows.dtype, rows.device

    def __array_namespace__(self, api_version=None):
        """Return the namespace of the rows that are fetched."""
        return self._rows.__array_namespace__()

    def take(self, index):
        """Return the rows at some indices, not fetched yet."""
        return MappedRows(self._rows.take(index), self._function)

    def __getitem__(self, key):
        """Return a range of rows as an array."""
        return self._function(self._rows[key[0], :])[:, key[1]]


def is_lazy(X):
    """Whether rows are not in memory."""
    return isinstance(X, LazyRows)


def check_in_memory(X, advice):
    """Raise a ValueError if rows are not in memory."""
    if is_lazy(X):
        raise ValueError(
            f"X must be an array in memory; got {X.shape[0]} rows that are not (a Dask "
            f"array, or a file that memory does not hold): pass {advice}"
        )


def in_memory(X):
    """Return all rows as an array in memory."""
    return X[:, :] if is_lazy(X) else X


def by_rows(function, X):
    """Return ``function(X)``, computed block by block if X is not in memory."""
    return X.by_rows(function) if is_lazy(X) else function(X)


def rows_at(X, index):
    """Return some rows as an array in memory, by indices on the host."""
    if is_lazy(X):
        return X.take(index)[:, :]
    if isinstance(X, np.ndarray) and not X.flags.aligned:
        return X[index]  # take would copy all of X; chunks sent by Dask may be such
    return take(X, index)


def extremes_of(blocks):
    """Return the least and the largest number in blocks of rows."""
    ends = []
    for rows in blocks:
        xp = namespace(rows)
        ends.append((float(xp.min(rows)), float(xp.max(rows))))
    low, high = zip(*ends, strict=True)
    return min(low), max(high)


def _last_two(recent, key, read):
    """Return the value of `key`, read if not in `recent`, which keeps the last two."""
    value = recent.pop(key, None)
    while len(recent) > 1:
        del recent[next(iter(recent))]
    recent[key] = read() if value is None else value
    return recent[key]


def _are_consecutive(index):
    """Whether each index is one more than the previous one."""
    n = len(index)
    return n > 0 and index[-1] - index[0] == n - 1 and bool(np.all(np.diff(index) == 1))


def check_finite_rows(X):
    """Raise a ValueError if rows hold NaN or infinity."""
    xp = namespace(X)
    if not bool(xp.all(xp.isfinite(X))):
        raise ValueError("Input X contains NaN or infinity.")


class StoredRows(LazyRows):
    """Rows of a file: a memory map, HDF5 or Zarr.

    Blocks are read whole, and the last two are kept, so rows that are used in the order
    of the file are read once.

    Parameters
    ----------
    source : array-like of shape (n, d)
        ``source[start:stop]`` reads rows.
    dtype : data type
        Of the fetched rows.
    block_size : int, default=None
        Rows to read at once; None: about 16 MB, in whole chunks of the file.
    """

    def __init__(self, source, dtype, block_size=None):
        self._source, self.shape, self.dtype = source, source.shape, np.dtype(dtype)
        row_bytes = self.shape[1] * self.dtype.itemsize
        # Whole chunks of the file, so that each is read, and perhaps decompressed,
        # once.
        chunk = (getattr(source, "chunks", None) or (1,))[0]
        if block_size is None:
            block_size = -(-max(_BLOCK_BYTES // row_bytes, 1) // chunk) * chunk
        self.block_size = block_size
        self._section = max(_SECTION_BYTES // row_bytes // block_size, 1) * block_size
        self._blocks, self._lock = {}, threading.Lock()

    def take(self, index):
        """Return the rows at some indices; all of them in file order need no index."""
        other = super().take(index)
        if len(other) == self._source.shape[0] and _are_consecutive(other._index):
            other._index = None
        return other

    def in_order(self, order):
        """Return the rows in an order from `shuffled`, to be read in ranges."""
        return _ShuffledRows(self.take(order))

    def shuffled(self, rows, rng):
        """Return some rows in random order, so that they can be read in large blocks.

        The first rows come from the whole file; then sections of the file follow in
        random order, each with its rows in random order.
        """
        rows = rows if np.all(rows[1:] > rows[:-1]) else np.sort(rows)
        first = rng.permutation(len(rows))[:_N_FIRST]
        rest = np.delete(rows, first)
        parts = np.split(rest, np.flatnonzero(np.diff(rest // self._section)) + 1)
        order = rng.permutation(len(parts))
        rest = [rng.permutation(parts[i]) for i in order]
        return np.concatenate([rows[first], *rest])

    def _places(self, start, stop):
        """Return the indices in the file of a range of rows."""
        if self._index is None:
            return np.arange(start, stop)
        return self._index[start:stop]

    def __getitem__(self, key):
        start, stop, _ = key[0].indices(self.shape[0])
        few = None if self._index is None else self._index[start:stop]
        if start < stop and (few is None or _are_consecutive(few)):
            n = stop - start
            block, first = divmod(
                start if few is None else int(few[0]), self.block_size
            )
            if first + n <= self.block_size:  # no copy is needed
                return self._read(block)[first : first + n, key[1]]
        index = np.arange(start, stop) if few is None else few
        out = np.empty((len(index), self.shape[1]), dtype=self.dtype)
        block_of = index // self.block_size
        for block in np.unique(block_of):
            here = np.flatnonzero(block_of == block)
            out[here] = self._read(int(block))[index[here] - block * self.block_size]
        return out[:, key[1]]

    def _read(self, block):
        """Return a block of rows of the file, remembered or read now."""

        def read():
            start = block * self.block_size
            rows = np.asarray(self._source[start : start + self.block_size])
            rows = rows.astype(self.dtype, copy=False)
            check_finite_rows(rows)
            return rows

        rows = self._blocks.get(block)
        if rows is not None:  # no need to wait for a thread that reads another
            return rows
        with self._lock:
            return _last_two(self._blocks, block, read)

    def n_parts(self, pool):
        """Return how many parts `visit` has, with or without a pool of threads."""
        n_blocks = self._section // self.block_size
        return 1 if pool is None else min(pool.n_workers, n_blocks)

    def visit(self, begin, pool=None):
        """Call ``function(part, places, rows)`` with each block of the file, read once.

        Each part gets its own blocks, in the order of the file; parts run at the same
        time, so that one reads while others compute.

        Parameters
        ----------
        begin : callable
            ``begin(places, rows)``, called with the first block, returns the function.
            `part` is the number of a part; `places` are the positions of the block's
            rows among these rows.
        pool : Team, default=None
        """
        places = np.full(self._source.shape[0], -1)
        places[self._places(0, self.shape[0])] = np.arange(self.shape[0])
        blocks = [
            rows
            for rows in slices(len(places), self.block_size)
            if np.any(places[rows] >= 0)
        ]
        n_parts, stopped = self.n_parts(pool), threading.Event()

        def block(rows):
            here, found = places[rows], self._read(rows.start // self.block_size)
            used = here >= 0
            return (here, found) if np.all(used) else (here[used], found[used, :])

        start = block(blocks[0])
        function = begin(*start)

        def task(part):
            try:
                for rows in blocks[part::n_parts]:
                    if stopped.is_set():
                        return
                    function(part, *(start if rows == blocks[0] else block(rows)))
            except BaseException:
                stopped.set()
                raise

        try:
            run_on_threads(pool, task, [(part,) for part in range(n_parts)])
        finally:  # also if Ctrl-C ends the wait for a part
            stopped.set()

    def _in_blocks(self):
        return (self[rows, :] for rows in slices(self.shape[0], self.block_size))

    def by_rows(self, function):
        """Return a function's values for blocks of rows, joined into a host array."""
        return np.concatenate([function(rows) for rows in self._in_blocks()])

    def extremes(self):
        """Return the least and the largest number, reading in the order of the file."""
        rows = self if self._index is None else self.take(np.argsort(self._index))
        return extremes_of(rows._in_blocks())


class _ShuffledRows(LazyRows):
    """Rows of a file in the order of `StoredRows.shuffled`.

    The first rows and the last two sections are kept in memory. Sections are visited
    one after the other, so that each is read once per epoch.

    Parameters
    ----------
    rows : StoredRows
    """

    def __init__(self, rows):
        self._rows, self.shape, self.dtype = rows, rows.shape, rows.dtype
        n = rows.shape[0]
        first = min(_N_FIRST, n)
        section_of = rows._places(first, n) // rows._section
        bounds = np.flatnonzero(np.diff(section_of)) + first + 1
        self._bounds = np.unique([0, first, *bounds, n])
        self._sections = {}

    @cached_property
    def _first(self):
        return self._rows[: self._bounds[1], :]

    def take(self, index):
        """Return the rows at some indices."""
        return self._rows.take(index)

    def by_rows(self, function):
        """Return a function's values for blocks of rows, joined into a host array."""
        return self._rows.by_rows(function)

    def n_parts(self, pool):
        """Return how many parts `visit` has, with or without a pool of threads."""
        return self._rows.n_parts(pool)

    def visit(self, begin, pool=None):
        """Visit blocks as `StoredRows` does, keeping the first rows on the way."""
        first = np.empty((self._bounds[1], self.shape[1]), dtype=self.dtype)

        def begin_here(places, rows):
            function = begin(places, rows)

            def visited(part, places, rows):
                among = places < len(first)
                first[places[among], :] = rows[among, :]
                function(part, places, rows)

            return visited

        self._rows.visit(begin if "_first" in vars(self) else begin_here, pool)
        vars(self).setdefault("_first", first)

    def extremes(self):
        """Return the least and the largest number."""
        return extremes_of(map(self._section, range(len(self._bounds) - 1)))

    def __getitem__(self, key):
        start, stop, _ = key[0].indices(self.shape[0])
        which = np.searchsorted(self._bounds, [start, max(stop - 1, start)], "right")
        parts = [self._first[:0, :]]
        for section in range(which[0] - 1, which[1]):
            begin, end = self._bounds[section : section + 2]
            rows = self._section(section)
            parts.append(rows[max(start, begin) - begin : min(stop, end) - begin, :])
        rows = np.concatenate(parts) if len(parts) != 2 else parts[1]
        return rows[:, key[1]]

    def _section(self, section):
        """Return the rows of a section."""
        if section == 0:
            return self._first
        begin, end = self._bounds[section : section + 2]
        return _last_two(self._sections, section, lambda: self._rows[begin:end, :])

    def shuffled_ranges(self, starts, rng):
        """Return the starts of ranges in random order, those of a section together."""
        section_of = np.searchsorted(self._bounds, starts, "right")
        sections = np.unique(section_of)
        parts = []
        for section in np.roll(sections, -rng.randint(len(sections))):
            own = np.sort(starts[section_of == section])
            # The last range may reach into the next section, so it comes just before.
            parts += [rng.permutation(own[:-1]), own[-1:]]
        return np.concatenate(parts)
