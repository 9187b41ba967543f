"""Matrices of rows in a Dask array, their centers split over the workers."""

from concurrent.futures import CancelledError
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ..backend.array import equal_slices, joined, slices
from ..backend.dask import reuse_freed_memory, rows_of_chunks
from ..backend.devices import on_gpu
from ..backend.machine import SENT_BYTES
from .dask import DaskMatrix, OnWorkers, on_device_of
from .matrix import Matrix


def matrix_on_workers(local, rows):
    """Return K(X, Z) of rows X in a Dask array, computed by the workers.

    Each computes the rows that it has; or, if one worker cannot hold all centers, the
    columns of its own centers. (Each GPU holds all centers, because Dask does not know
    its memory.)

    Parameters
    ----------
    local : TiledKernel
    rows : DaskRows

    Returns
    -------
    DaskMatrix or DaskShards
    """
    n_bytes = local.shape[1] * local.row_width * local.itemsize
    if not on_gpu(local.xp, local.device) and rows.cluster.is_too_large(n_bytes):
        return DaskShards(local, rows)
    return DaskMatrix(local, rows)


class Shard(NamedTuple):
    """Centers on a worker.

    Attributes
    ----------
    place : str
        The worker.
    part : slice
        Which centers.
    operator : object
        Handle of K of these centers, without rows.
    """

    place: str
    part: slice
    operator: Any


class DaskShards(OnWorkers, Matrix):
    """K(X, Z) of rows X in a Dask array, with the centers split over the workers.

    Like `ShardedKernel`: each worker multiplies its columns of K by its part of A, and
    the partial products are summed, here in a tree. Rows go from worker to worker, not
    through this process. Each of S threads of the workers receives m (d + l) + p l / S
    numbers for a gradient and does m p (d + 2 l) / S multiply-adds; until the step
    ends it holds ::

        (p / S) (d + m) + m d numbers

    Parameters
    ----------
    local : TiledKernel
        ``local.of_centers(part)`` is sent to a worker.
    rows : DaskRows
    shards : list of Shard, default=None
        The centers, if they have already been sent.
    """

    def __init__(self, local, rows, shards=None):
        self._describe_on_workers(local, rows)
        self._shards = [] if shards is None else shards

    def rows(self, X):
        """Return the matrix of other rows, on the workers or here."""
        return self._local.rows(X)

    def part(self, start, stop):
        """Return the matrix of a range of the rows."""
        return DaskShards(self._local, self.lazy_rows.part(start, stop), self._shards)

    def product_and_columns(self, A, start=0, stop=None, n_columns=0):
        """Return rows [start:stop] of K @ A, and of the first columns of K."""
        start, stop, _ = slice(start, stop).indices(self.shape[0])
        most = max(int(SENT_BYTES // (self.row_width * self.itemsize)), 1)
        shape, like = (0, A.shape[1]), {"dtype": self.dtype, "device": self.device}
        found = [self.xp.empty(shape, **like)]
        for part in slices(stop - start, most):
            rows = self.lazy_rows.part(start + part.start, start + part.stop)

            def product(rows=rows):
                return rows.total(self._run(_product, rows, A))

            found.append(rows.arranged([self._attempt(product, rows)]))
        return joined(found), self.block(start, stop, 0, n_columns)

    def block(self, start=0, stop=None, first=0, last=None, dtype=None, out=None):
        """Return rows [start:stop], columns [first:last] of K as an array."""
        stop, last, out = self._target(start, stop, first, last, dtype, out)
        rows = self.lazy_rows.part(start, stop)
        if 0 in out.shape:
            return out

        def block():
            return self._cluster.gather(self._run(partial(_block, dtype=dtype), rows))

        K = rows.arranged([self.xp.concat(self._attempt(block, rows), axis=1)])
        out[...] = K[:, first:last]  # simple, because solvers don't need blocks
        return out

    def gradient(self, A, targets, weights, rates):
        """Return K A - targets, and K' G of G = rates W (K A - targets)."""
        rows, cluster = self.lazy_rows, self._cluster

        def step():
            evaluated = self._run(_evaluated, rows, A)  # K A, and K, which stays there
            places = [shard.place for shard in self._sent()]
            pairs = list(zip(places, evaluated, strict=True))
            F = [cluster.submit_to(at, itemgetter(0), pair) for at, pair in pairs]
            with np.errstate(over="ignore", invalid="ignore"):  # if it diverges
                error = rows.arranged([rows.total(F)]) - targets
                G = rows.grouped(rates * (weights[:, None] * error))
            G = cluster.send(G)
            images = [cluster.submit_to(at, _adjoint, pair, G) for at, pair in pairs]
            return error, joined(cluster.gather(images))

        return self._attempt(step, rows)

    def _sent(self):
        """Return the shards: one for each thread of the workers."""
        if not self._shards:
            local = self._local
            places = self._cluster.threads()[: self.shape[1]]
            parts = equal_slices(self.shape[1], len(places))
            sent = [
                Shard(place, part, self._cluster.send_to(place, local.of_centers(part)))
                for place, part in zip(places, parts, strict=True)
            ]
            # The centers of a lost worker went elsewhere, and its tasks would wait for
            # it.
            if not set(places) <= set(self._cluster.threads()):
                raise CancelledError("a worker was lost while centers were sent")
            self._shards += sent
        return self._shards

    def _run(self, function, rows, A=None):
        """Return handles of ``function(operator, A_k, *chunks)`` of every shard k.

        The chunks are the rows, group by group.
        """
        chunks, cluster = rows.run(rows_of_chunks), self._cluster
        handles = []
        for place, part, operator in self._sent():
            own = A if A is None else cluster.send_to(place, A[part, :])
            handles.append(cluster.submit_to(place, function, operator, own, *chunks))
        return handles

    def _attempt(self, step, rows):
        """Return ``step()``, with everything sent again if something was lost."""

        def forget():
            self._shards.clear()
            rows.forget()

        return self._cluster.attempt(step, forget)


# Functions that run on a worker. Their arguments are an operator without rows, the part
# of the coefficients that belongs to its centers, and the rows.


def _product(local, A, *chunks):
    reuse_freed_memory()
    return local.rows(joined(chunks)) @ on_device_of(local, A)


def _block(local, _, *chunks, dtype):
    return local.rows(joined(chunks)).block(dtype=dtype)


def _evaluated(local, A, *chunks):
    reuse_freed_memory()
    return local.rows(joined(chunks)).evaluated(on_device_of(local, A))


def _adjoint(evaluated, G):
    _, K = evaluated
    return K.adjoint(on_device_of(K, G))
