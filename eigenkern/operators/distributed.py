"""Matrices of rows in a Dask array: products are computed where the rows are."""

from collections import Counter
from functools import partial, reduce
from operator import add, itemgetter

import numpy as np

from ..arrays.array import equal_slices, joined, move, slices
from ..arrays.devices import on_gpu
from ..arrays.machine import SENT_BYTES
from ..rows.dask_rows import (
    DaskRows,
    MadeRows,
    pieces,
    reuse_freed_memory,
    rows_of_chunks,
)
from .blocks import cache_pays
from .matrix import KERNEL_ATTRIBUTES, GivenMatrix, Matrix

# Most numbers to gather from all workers at once and add up here: about 10 ms.
_MAX_GATHERED = 2e6


class OnWorkers(Matrix):
    """A matrix of rows in a Dask array, ``local.rows(X)`` of the rows X on a worker.

    `lazy_rows` is X, not fetched; `sent` has handles of what workers hold besides.
    """

    can_be_cached = in_core = False

    def __init__(self, local, rows, sent=None):
        self._describe_as(local, *KERNEL_ATTRIBUTES)
        self.shape = rows.shape[0], local.shape[1]
        self._local, self.lazy_rows, self._rows = local, rows, rows
        self._cluster, self._handles = rows.cluster, [] if sent is None else sent

    def _of(self, rows):
        return type(self)(self._local, rows, self._handles)

    def part(self, start, stop):
        """Return the matrix of a range of the rows."""
        return self._of(self._rows.part(start, stop))

    def _attempt(self, step, rows):
        """Return ``step()``, with everything sent again if something was lost."""

        def forget():
            self._handles.clear()
            rows.forget()

        return self._cluster.attempt(step, forget)


class DaskMatrix(OnWorkers):
    """K(X, Z), or features, of rows X in a Dask array.

    Each worker creates an operator for its own rows and computes with it. The parts of
    a product are joined; sums over rows are added, in a tree if they are large. A
    product sends p l numbers to the workers, and gets n l or p l back.
    """

    def _operator(self):
        """Return the handle of the operator without rows."""
        if not self._handles:
            self._handles.append(self._cluster.send(self._local.without_rows()))
        return self._handles[0]

    def bytes_at(self):
        """Return the bytes of the matrix on each worker."""
        found = Counter()
        for group in self._rows.groups:
            found[group.place] += len(group.position) * self.shape[1] * self.itemsize
        return found

    def rows(self, X):
        """Return the matrix of other rows, on the workers or here."""
        return self._of(X) if isinstance(X, DaskRows) else self._local.rows(X)

    def _run(self, finish, rows, function, *values, by_row=()):
        """Return ``finish(handles)`` of the values of a function on each worker."""

        def step():
            sent = map(self._cluster.send, values)
            return finish(rows.run(function, self._operator(), *sent, by_row=by_row))

        return self._attempt(step, rows)

    def product_and_columns(self, A, start=0, stop=None, n_columns=0):
        """Return rows [start:stop] of K @ A, and of the first columns of K."""
        rows = self._rows.part(start, stop)
        product = partial(_product, n_columns=n_columns)
        parts = self._run(self._cluster.gather, rows, product, A)
        F, leading = zip(*parts, strict=True)
        return rows.arranged(F), rows.arranged(leading)

    def gradient(self, A, targets, weights, rates):
        """Return K A - targets, and K' G of G = rates W (K A - targets)."""
        rows = self._rows

        def finish(parts):
            if len(parts) * A.shape[0] * A.shape[1] <= _MAX_GATHERED:
                errors, images = zip(*self._cluster.gather(parts), strict=True)
                return errors, reduce(add, images)
            # With many workers, or coefficients, a tree adds up the images.
            errors, images = (
                [self._cluster.submit(itemgetter(i), part) for part in parts]
                for i in (0, 1)
            )
            return self._cluster.gather(errors), rows.total(images)

        by_row = targets, weights
        errors, image = self._run(finish, rows, _gradient, A, rates, by_row=by_row)
        return rows.arranged(errors), image

    def block(self, start=0, stop=None, first=0, last=None, dtype=None, out=None):
        """Return rows [start:stop], columns [first:last] of K as an array."""
        rows, dtype = self._rows.part(start, stop), dtype or self.dtype
        if rows.shape[0] == 0:
            width = len(range(self.shape[1])[first:last])
            return self.xp.empty((0, width), dtype=dtype, device=self.device)
        block = partial(_block, first=first, last=last, dtype=dtype)
        found = rows.arranged(self._run(self._cluster.gather, rows, block))
        if out is None:
            return found
        out[: found.shape[0], :] = found
        return out[: found.shape[0], :]

    def row_kernel(self, start, stop):
        """Return the kernel matrix of some rows of features with themselves."""
        fetched = self._local.rows(self._rows[start:stop, :])
        return fetched.row_kernel(0, stop - start)

    def row_gram(self, stop, last):
        """Return the inner products of rows i < stop and j < last of features."""
        return self._local.rows(self._rows[:stop, :]).row_gram(stop, last)

    def adjoint(self, G, start=0, stop=None):
        """Return K' G of the rows [start:stop], shape (p, l)."""
        rows = self._rows.part(start, stop)
        return self._run(rows.total, rows, _adjoint, by_row=(G,))

    def gram(self, T, weights=None, *, transform=None):
        """Return C' W C and C' W T in float64, C = K or K @ transform."""
        rows = self._rows
        return self._run(rows.total, rows, _gram, transform, by_row=(T, weights))

    def normal_product(self, V, targets=None, weights=None):
        """Return K' W (K V - targets) in float64."""
        rows, by_row = self._rows, (targets, weights)
        return self._run(rows.total, rows, _normal_product, V, by_row=by_row)

    def adjoint_of(self, V, function):
        """Raise a ValueError: workers do not get functions of the values."""
        raise ValueError(
            "loss must be 'squared_error' for rows in a Dask array; got 'log_loss'"
        )


class CachedDaskMatrix(DaskMatrix):
    """K(X, Z) of rows X in a Dask array, computed once and cached where the rows are.

    The `source`, a `DaskMatrix`, computes again what is lost with a worker.
    """

    def __init__(self, source):
        block = partial(_block, first=0, last=None, dtype=source.dtype)

        def make():
            source._handles.clear()  # it may have been lost
            rows, submit = source._rows, source._cluster.submit
            return [
                submit(block, source._operator(), [index], rows.chunks[c])
                for group in rows.groups
                for index, c in zip(group.indices, group.chunks, strict=True)
            ]

        self._source = source
        rows = MadeRows(source._rows, source.shape[1], make)
        super().__init__(GivenRows(source._local), rows)
        self.lazy_rows = source.lazy_rows

    def _of(self, rows):
        return DaskMatrix(self._local, rows, self._handles)

    def rows(self, X):
        """Return the matrix of other rows, which is not cached."""
        return self._source.rows(X)


class GivenRows(Matrix):
    """Creates operators of rows of a kernel matrix that `source` has computed."""

    def __init__(self, source):
        self._describe_as(source, "shape", "factored")

    def without_rows(self):
        """Return what to send."""
        return self

    def rows(self, K):
        """Return the operator of rows of K."""
        return GivenMatrix(K)


def cached_on_workers(matrices, cache_size, n_products, n_features):
    """Return matrices, cached where their rows are if they fit there and that pays.

    As `cached`, with the MB of those that were computed; ``cache_size`` is for all
    workers. Each may use half of its memory limit, counting all that it holds.
    """
    cluster, auto = matrices[0]._cluster, cache_size == "auto"
    room = cluster.room() if auto or cache_size > 0 else {}
    budget = float("inf") if auto else cache_size * 1e6
    found, total = [], 0
    for matrix in matrices:
        needed = matrix.bytes_at()
        size, free = sum(needed.values()), budget - total
        fits = all(needed[place] <= room.get(place, 0) for place in needed)
        # Else products are cheap, or the memory is not that of the workers.
        can = not matrix.factored and not on_gpu(matrix.xp, matrix.device)
        if fits and size <= free and can:
            if not auto or cache_pays(n_products, n_features, matrix):
                matrix = cluster.attempt(partial(CachedDaskMatrix, matrix))
                room |= {place: room[place] - needed[place] for place in needed}
                total += size
        found.append(matrix)
    return found, total / 1e6


# Functions that run on a worker. Their arguments are an operator without rows, values
# for all rows, values per row, and the rows.


def on_device_of(local, values):
    """Return values, perhaps from the host, on the device of an operator."""
    return None if values is None else move(values, local.xp, local.device)


def _results(method, local, values, by_row, indices, chunks, **options):
    """Yield what a method returns of the operators of the pieces of a group's rows."""
    reuse_freed_memory()
    values, by_row = (
        [on_device_of(local, one) for one in some] for some in (values, by_row)
    )
    for rows, X in pieces(indices, chunks):
        own = [v if v is None else v[rows, ...] for v in by_row]
        yield getattr(local.rows(X), method)(*values, *own, **options)


def _block(local, indices, *chunks, **options):
    return joined(_results("block", local, (), (), indices, chunks, **options))


def _product(local, A, indices, *chunks, **options):
    name = "product_and_columns"
    found = _results(name, local, (A,), (), indices, chunks, **options)
    return tuple(map(joined, zip(*found, strict=True)))


def _adjoint(local, G, indices, *chunks):
    return reduce(add, _results("adjoint", local, (), (G,), indices, chunks))


def _gram(local, transform, T, weights, indices, *chunks):
    transform = on_device_of(local, transform)
    by_row = T, weights
    found = _results("gram", local, (), by_row, indices, chunks, transform=transform)
    return tuple(reduce(add, parts) for parts in zip(*found, strict=True))


def _normal_product(local, V, targets, weights, indices, *chunks):
    by_row = targets, weights
    return reduce(add, _results("normal_product", local, (V,), by_row, indices, chunks))


def _gradient(local, A, rates, targets, weights, indices, *chunks):
    by_row, rates = (targets, weights), on_device_of(local, rates)
    found = _results("gradient", local, (A,), by_row, indices, chunks, rates=rates)
    errors, images = zip(*found, strict=True)
    return joined(errors), reduce(add, images)


def matrix_on_workers(local, rows):
    """Return K(X, Z) of rows X in a Dask array, computed by the workers.

    Each computes the rows that it has; or, if one worker cannot hold all centers, the
    columns of its own centers. (Each GPU holds all centers, because Dask does not know
    its memory.)
    """
    n_bytes = local.shape[1] * local.row_width * local.itemsize
    if not on_gpu(local.xp, local.device) and rows.cluster.is_too_large(n_bytes):
        return DaskShards(local, rows)
    return DaskMatrix(local, rows)


class DaskShards(OnWorkers):
    """K(X, Z) of rows X in a Dask array, with the centers split over the workers.

    Like `ShardedKernel`: each worker multiplies its columns of K by its part of A, and
    the partial products are summed, here in a tree. Rows go from worker to worker, not
    through this process. Each of S threads of the workers receives m (d + l) + p l / S
    numbers for a gradient and does m p (d + 2 l) / S multiply-adds; until the step
    ends it holds ::

        (p / S) (d + m) + m d numbers
    """

    def rows(self, X):
        """Return the matrix of other rows, on the workers or here."""
        return self._local.rows(X)

    def product_and_columns(self, A, start=0, stop=None, n_columns=0):
        """Return rows [start:stop] of K @ A, and of the first columns of K."""
        start, stop, _ = slice(start, stop).indices(self.shape[0])
        most = max(int(SENT_BYTES // (self.row_width * self.itemsize)), 1)
        shape, like = (0, A.shape[1]), {"dtype": self.dtype, "device": self.device}
        found = [self.xp.empty(shape, **like)]
        for part in slices(stop - start, most):
            rows = self.lazy_rows.part(start + part.start, start + part.stop)

            def product(rows=rows):
                return rows.total(self._run("product", rows, A))

            found.append(rows.arranged([self._attempt(product, rows)]))
        return joined(found), self.block(start, stop, 0, n_columns)

    def block(self, start=0, stop=None, first=0, last=None, dtype=None, out=None):
        """Return rows [start:stop], columns [first:last] of K as an array."""
        stop, last, out = self._target(start, stop, first, last, dtype, out)
        rows = self.lazy_rows.part(start, stop)
        if 0 in out.shape:
            return out

        def block():
            return self._cluster.gather(self._run("block", rows))

        K = rows.arranged([self.xp.concat(self._attempt(block, rows), axis=1)])
        # Simple, because solvers don't need blocks.
        out[...] = self.xp.astype(K[:, first:last], out.dtype, copy=False)
        return out

    def gradient(self, A, targets, weights, rates):
        """Return K A - targets, and K' G of G = rates W (K A - targets)."""
        rows, cluster = self.lazy_rows, self._cluster

        def step():
            found = self._run("evaluated", rows, A)  # K A, and K, which stays there
            places = [place for place, *_ in self._sent()]
            pairs = list(zip(places, found, strict=True))
            F = [cluster.submit(itemgetter(0), pair, place=at) for at, pair in pairs]
            with np.errstate(over="ignore", invalid="ignore"):  # if it diverges
                error = rows.arranged([rows.total(F)]) - targets
                G = rows.grouped(rates * (weights[:, None] * error))
            G = cluster.send(G)
            images = [
                cluster.submit(_shard_adjoint, pair, G, place=at) for at, pair in pairs
            ]
            return error, joined(cluster.gather(images))

        return self._attempt(step, rows)

    def _sent(self):
        """Return the shards: one for each thread of the workers.

        A shard is a worker, a range of the centers, and the handle of their K.
        """
        if not self._handles:
            local = self._local
            places = self._cluster.threads()[: self.shape[1]]
            parts = equal_slices(self.shape[1], len(places))
            self._handles += [
                (place, part, self._cluster.send(local.of_centers(part), place))
                for place, part in zip(places, parts, strict=True)
            ]
        return self._handles

    def _run(self, method, rows, A=None):
        """Return handles of what a method returns of K of the rows, for every shard."""
        chunks, cluster = rows.run(rows_of_chunks), self._cluster
        function, handles = partial(_of_shard, method=method), []
        for place, part, operator in self._sent():
            own = A if A is None else cluster.send(A[part, :], place)
            handles.append(
                cluster.submit(function, operator, own, *chunks, place=place)
            )
        return handles


def _of_shard(local, A, *chunks, method):
    """On a worker: return what a method returns of K of the rows and its centers."""
    reuse_freed_memory()
    own = () if A is None else (on_device_of(local, A),)
    return getattr(local.rows(joined(chunks)), method)(*own)


def _shard_adjoint(evaluated, G):
    _, K = evaluated
    return K.adjoint(on_device_of(K, G))
