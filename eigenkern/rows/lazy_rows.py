"""Rows that are not in memory: in files, or on the workers of a cluster."""

import threading
from copy import copy

import numpy as np

from ..arrays.array import joined, namespace, slices, take
from ..arrays.threads import cached_property, run_on_threads

# Bytes of a block of rows that is read at once: 200 MB in chunks of 2 MB took 0.055 s
# from HDF5 and 0.17 s from Zarr with 2**24, 0.055 to 0.11 s and 0.17 to 0.22 s with
# 2**25. Bytes of a section, within which rows are shuffled. Three or four blocks and
# two sections are in memory; in `visit`, a block per thread.
_BLOCK_BYTES, _SECTION_BYTES = 2**24, 2**28
# First rows, which stay in memory: bandwidth, step and penalty are chosen from them.
_N_FIRST = 8000


class LazyRows:
    """Rows that are fetched on demand, as arrays of `dtype`, float32 or float64.

    A subclass defines ``rows[start:stop, columns]``, an array in memory, ``by_rows``
    and ``on_blocks``. A step waits `message_seconds` for `n_machines`.
    """

    device = "cpu"
    n_machines, message_seconds = 1, 0.0
    # Which of the stored rows these are; None: all.
    _index = None

    def __array_namespace__(self, api_version=None):
        """Return the namespace of the rows that are fetched."""
        return namespace(np.empty(0))

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
        """Return some rows, or starts of ranges, in random order."""
        return rng.permutation(rows)

    shuffled_ranges = shuffled

    def extremes(self):
        """Return the least and the largest number."""
        low, high = zip(*self.on_blocks(_extremes), strict=True)
        return min(low), max(high)


class MappedRows(LazyRows):
    """``function(rows)`` of other lazy rows, with as many rows, and d features."""

    def __init__(self, rows, function, d=None):
        self._rows, self._function = rows, function
        self.shape = rows.shape[0], rows.shape[1] if d is None else d
        self.dtype, self.device = rows.dtype, rows.device

    def __array_namespace__(self, api_version=None):
        """Return the namespace of the rows that are fetched."""
        return self._rows.__array_namespace__()

    def take(self, index):
        """Return the rows at some indices, not fetched yet."""
        return MappedRows(self._rows.take(index), self._function, self.shape[1])

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


def check_finite_rows(X):
    """Raise a ValueError if rows hold NaN or infinity."""
    xp = namespace(X)
    if not bool(xp.all(xp.isfinite(X))):
        raise ValueError("Input X contains NaN or infinity.")


def check_readable(X, name="X"):
    """Raise a ValueError if values are in an HDF5 file or Zarr store that is gone."""
    package = type(X).__module__.partition(".")[0]
    if package == "h5py" and not X:
        raise ValueError(
            f"{name} must be in an open file; got a dataset of a closed one"
        )
    if package == "zarr" and hasattr(X, "store"):
        from zarr import open_array

        try:
            open_array(X.store, path=X.path, mode="r")
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(
                f"{name} must be in a Zarr store that exists; got an array of "
                f"{X.store}, which was deleted"
            ) from error


def _extremes(rows):
    xp = namespace(rows)
    return float(xp.min(rows)), float(xp.max(rows))


class _LastTwo:
    """Values by key: the last two that were read."""

    def __init__(self):
        self._values, self._lock = {}, threading.RLock()

    def get(self, key, read):
        value = self._values.get(key)
        if value is not None:  # no need to wait for a thread that reads another
            return value
        with self._lock:
            if key not in self._values:
                while len(self._values) > 1:
                    del self._values[next(iter(self._values))]
                self._values[key] = read()
            return self._values[key]


class StoredRows(LazyRows):
    """Rows of a file: a memory map, HDF5 or Zarr; ``source[start:stop]`` reads some.

    Blocks of `block_size` rows are read whole, by default about 16 MB in whole chunks
    of the file. The last two are kept, so rows in the order of the file are read once.
    """

    def __init__(self, source, dtype, block_size=None):
        self._source, self.shape, self.dtype = source, source.shape, np.dtype(dtype)
        row_bytes = self.shape[1] * self.dtype.itemsize
        if block_size is None:
            # Whole chunks, so that each is read, and perhaps decompressed, once.
            chunk = (getattr(source, "chunks", None) or (1,))[0]
            block_size = -(-max(_BLOCK_BYTES // row_bytes, 1) // chunk) * chunk
        self.block_size = block_size
        self._blocks_of_section = max(_SECTION_BYTES // row_bytes // block_size, 1)
        self._blocks = _LastTwo()

    def in_order(self, order):
        """Return the rows in an order from `shuffled`, to be read in ranges."""
        return _ShuffledRows(self.take(order))

    def shuffled(self, rows, rng):
        """Return some rows in random order, so that they can be read in large blocks.

        The first rows come from the whole file; then sections of the file follow in
        random order, each with its rows in random order.
        """
        rows = np.sort(rows)
        first = rng.permutation(len(rows))[:_N_FIRST]
        rest = np.delete(rows, first)
        parts = np.split(rest, np.flatnonzero(np.diff(self._section_of(rest))) + 1)
        order = rng.permutation(len(parts))
        return np.concatenate(
            [rows[first], *(rng.permutation(parts[i]) for i in order)]
        )

    def _section_of(self, index):
        return index // (self.block_size * self._blocks_of_section)

    def _places(self, start, stop):
        """Return the indices in the file of a range of rows."""
        if self._index is None:
            return np.arange(start, stop)
        return self._index[start:stop]

    def __getitem__(self, key):
        start, stop, _ = key[0].indices(self.shape[0])
        block_of, i = np.divmod(self._places(start, stop), self.block_size)
        blocks = np.unique(block_of).tolist()
        if len(blocks) == 1 and np.all(np.diff(i) == 1):  # no copy is needed
            return self._read(blocks[0])[i[0] : i[-1] + 1, key[1]]
        out = np.empty((len(i), self.shape[1]), dtype=self.dtype)
        for block in blocks:
            here = np.flatnonzero(block_of == block)
            out[here] = self._read(block)[i[here]]
        return out[:, key[1]]

    def _read(self, block):
        """Return a block of rows of the file, remembered or read now."""

        def read():
            start = block * self.block_size
            try:
                rows = np.asarray(self._source[start : start + self.block_size])
            finally:  # what is missing in a Zarr store reads as zeros
                check_readable(self._source)
            rows = rows.astype(self.dtype, copy=False)
            check_finite_rows(rows)
            return rows

        return self._blocks.get(block, read)

    def n_parts(self, pool):
        """Return how many parts `visit` has, with or without a pool of threads."""
        return 1 if pool is None else min(pool.n_workers, self._blocks_of_section)

    def visit(self, begin, pool=None):
        """Call ``function(part, places, rows)`` with each block of the file, read once.

        ``begin(places, rows)``, called with the first block, returns the function;
        `places` are the positions of a block's rows among these rows. Each of the
        `n_parts` gets its own blocks, in the order of the file; parts run at the same
        time, so that one reads while others compute.
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

    def on_blocks(self, function):
        """Return a function's values for blocks of rows, in the order of the file."""
        rows = self if self._index is None else self.take(np.argsort(self._index))
        return rows._on_ranges(function)

    def by_rows(self, function):
        """Return a function's values for blocks of rows, joined into a host array."""
        return np.concatenate(self._on_ranges(function))

    def _on_ranges(self, function):
        ranges = slices(self.shape[0], self.block_size)
        return [function(self[rows, :]) for rows in ranges]


class _ShuffledRows(StoredRows):
    """Rows of a file in the order of `StoredRows.shuffled`.

    The first rows and the last two sections are kept in memory. Sections are visited
    one after the other, so that each is read once per epoch.
    """

    def __init__(self, rows):
        vars(self).update(vars(rows))
        n = self.shape[0]
        first = min(_N_FIRST, n)
        bounds = np.flatnonzero(np.diff(self._section_of(self._places(first, n))))
        self._bounds = np.unique([0, first, *(bounds + first + 1), n])
        self._sections, self._rows = _LastTwo(), rows

    @cached_property
    def _first(self):
        return self._rows[: self._bounds[1], :]

    def take(self, index):
        """Return the rows at some indices."""
        return self._rows.take(index)

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

        super().visit(begin if "_first" in vars(self) else begin_here, pool)
        vars(self).setdefault("_first", first)

    def __getitem__(self, key):
        start, stop, _ = key[0].indices(self.shape[0])
        which = np.searchsorted(self._bounds, [start, max(stop - 1, start)], "right")
        parts = []
        for section in range(which[0] - 1, which[1]):
            begin = self._bounds[section]
            rows = self._section(section)
            parts.append(rows[max(start - begin, 0) : stop - begin, :])
        return joined(parts)[:, key[1]]

    def _section(self, section):
        """Return the rows of a section."""
        if section == 0:
            return self._first
        part = slice(*self._bounds[section : section + 2])
        return self._sections.get(section, lambda: self._rows[part, :])

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
