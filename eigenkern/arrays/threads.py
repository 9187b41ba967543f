"""Teams of threads that share tasks, each BLAS call running on one thread.

A fit limits BLAS to one thread (`single_threaded_blas`) and divides large products
itself (`run_on_threads`). The threads of BLAS would wait for each other by spinning,
and if another process has a core, every wait lasts until the scheduler gives it back.
Factorizations by LAPACK run on the idle cores (`idle_threads`).
"""

import functools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar

import joblib
import numpy as np
import scipy.linalg
from threadpoolctl import ThreadpoolController, threadpool_limits

from . import memory
from .machine import SHARED_SECONDS

# Most readings of the number of busy cores: the smallest one counts, so that a process
# that wakes up for a moment is ignored.
_N_READINGS = 3
# Bytes of a limited address space (ulimit -v) that BLAS takes in the calling thread,
# and that every other worker takes. Measured: 32 MB for each OpenBLAS, NumPy's and
# SciPy's, which end the process if they don't get them; 72 MB for each of a worker's
# two threads, its helper and that of a `SleepingTeam`.
_CALLER_BYTES, _HELPER_BYTES = 80e6, 210e6
# Share of the free address space that other workers may take.
_HELPERS_SHARE = 0.25


_T = TypeVar("_T")


class _SingleThreadedBlas:
    """Context in which each BLAS call runs on one thread; nestable and thread-safe.

    The limit applies to the whole process: the first thread to enter sets it and the
    last one to leave restores it, so that concurrent fits don't undo each other's.
    """

    def __init__(self):
        self._controller, self._before, self._n_modules = None, [], 0
        # A signal handler may predict while its thread has the lock.
        self._lock, self._depths = threading.RLock(), {}  # how often each has entered
        self._n_threads, self._n_ready = 1, 0  # that `_make_room` has made room for

    def begin_after_fork(self):
        """Start anew in a forked process, where no thread is inside."""
        self._lock, inside, self._depths = threading.RLock(), self._depths, {}
        self._n_ready = 0
        if inside:
            self._set()

    def n_threads(self):
        """Return how many threads BLAS may use outside of this context."""
        with self._lock:
            if not self._depths:
                self._look_up()
            return self._n_threads

    @property
    def is_shared(self):
        """Whether several threads are inside."""
        with self._lock:
            return len(self._depths) > 1

    def _look_up(self):
        # Finding the libraries takes milliseconds: repeated only after new imports.
        if self._controller is None or len(sys.modules) != self._n_modules:
            self._controller = ThreadpoolController().select(user_api="blas")
            self._n_modules = len(sys.modules)
        self._before = [one.num_threads for one in self._controller.lib_controllers]
        n_threads = max((n for n in self._before if n), default=1)
        n_with_room = 1 + _HELPERS_SHARE * memory.address_space() / _HELPER_BYTES
        self._n_threads = int(min(n_threads, n_cores(), n_with_room))

    def _make_room(self, n_threads):
        """Let BLAS take what it needs while a limited address space has room."""
        if n_threads > self._n_ready:
            free = memory.address_space()
            if free < _CALLER_BYTES:
                raise MemoryError(
                    f"products of matrices need {_CALLER_BYTES / 1e6:.0f} MB, but "
                    f"{free / 1e6:.0f} MB of this process's address space are free; "
                    "raise its limit (ulimit -v)"
                )
            if free < float("inf"):
                _use_blas()
                self._n_ready = n_threads

    def __enter__(self):
        thread, depth = threading.get_ident(), self.depth
        try:
            with self._lock:
                # Helper threads made room when they started.
                if not (depth or hasattr(_this_thread, "is_limited")):
                    self._make_room(len(self._depths) + 1)
                is_first = not self._depths
                self._depths[thread] = depth + 1  # before a handler looks up limits
                if is_first:
                    self._look_up()
                    self._set(1)
        except BaseException:
            self.back_to(depth)
            raise

    def __exit__(self, *exc_info):
        self.back_to(self.depth - 1)

    @property
    def depth(self):
        """How often this thread is inside; never, if the process was forked inside."""
        return self._depths.get(threading.get_ident(), 0)

    def back_to(self, depth):
        """Leave, until this thread is inside `depth` times."""
        with self._lock:
            if self.depth <= max(depth, 0):
                return
            thread = threading.get_ident()
            if depth > 0:
                self._depths[thread] = depth
                return
            if len(self._depths) == 1:
                self._set()
            del self._depths[thread]

    @contextmanager
    def lifted(self, n_threads):
        """Return a context in which BLAS runs on `n_threads` in the whole process."""
        with self:
            self.allow(n_threads)
            try:
                yield
            finally:
                if self.depth:
                    self.allow(1)

    def allow(self, n_threads):
        """Limit BLAS in the process; in this thread only, if limits are per thread."""
        with self._lock:
            self._set(n_threads)

    def _set(self, n_threads=float("inf")):
        """Limit BLAS to `n_threads`, and to what it had before."""
        libraries = self._controller.lib_controllers if self._controller else []
        for library, before in zip(libraries, self._before, strict=True):
            if before is None:
                continue
            # threadpoolctl lets only the thread that first set a limit change it, so
            # that threads don't compete; here the lock and the depths ensure that.
            release = getattr(library, "clear_controlling_thread", lambda force: None)
            release(force=True)
            library.set_num_threads(min(before, n_threads))
            release(force=True)


single_threaded_blas = _SingleThreadedBlas()


def restores_blas(function):
    """Decorate a function: after an error or interrupt BLAS is as it was before.

    An interrupt may come before the first line of `__exit__`.
    """

    @wraps(function)
    def run(*args, **options):
        depth = single_threaded_blas.depth
        try:
            return function(*args, **options)
        except BaseException:
            single_threaded_blas.back_to(depth)
            raise

    return run


class cached_property(functools.cached_property[_T]):
    """One without the lock of Python 3.11, which a forked process may find taken."""

    def __init__(self, function: Callable[[Any], _T]) -> None:
        super().__init__(function)
        self.lock = nullcontext()


def n_blas_threads():
    """Return how many threads BLAS, or a team of this module, may use."""
    return single_threaded_blas.n_threads()


def n_cores():
    """Cores that this process may use; in a container, its share of them."""
    if hasattr(os, "sched_getaffinity"):
        return _share(len(os.sched_getaffinity(0)))
    return _share(os.cpu_count())


@cache
def _share(n_allowed):
    # Reading the limits of a container takes 0.1 ms, too long for every prediction.
    return joblib.cpu_count()


def openmp_with_room():
    """Return a context for OpenMP, which ends a process that can't start a thread."""
    if memory.address_space() == float("inf"):
        return nullcontext()
    return threadpool_limits(n_blas_threads(), user_api="openmp")


def _use_blas():
    """Call each BLAS with matrices so large that it allocates its buffer."""
    A = np.ones((256, 256))
    np.matmul(A, A)
    scipy.linalg.blas.dgemm(1.0, A, A)


def idle_threads():
    """Return how many threads LAPACK should use: one per idle core, at least 1.

    LAPACK's threads wait for each other thousands of times: if another process has one
    of the cores, a factorization on all of them took up to ten times as long as on one.
    """
    n_threads = n_blas_threads()
    if n_threads == 1 or single_threaded_blas.is_shared:
        return 1
    n_busy = _n_busy_elsewhere()
    for _ in range(_N_READINGS - 1):
        if n_busy <= 0:
            break
        time.sleep(0.001)
        n_busy = min(n_busy, _n_busy_elsewhere())
    return max(1, min(n_threads, os.cpu_count() - max(n_busy, 0)))


def _n_busy_elsewhere():
    """Return how many threads of other processes use or want a core (Linux only)."""
    try:
        n_busy = int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])
        own = list(Path("/proc/self/task").iterdir())
    except (OSError, ValueError, IndexError):  # not Linux
        return 0
    for thread in own:
        with suppress(OSError):  # it has ended
            state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
            n_busy -= state == "R"
    return n_busy


class Team:
    """Threads that share tasks: the calling thread and helpers of the process.

    Concurrent fits share the helpers, and none depends on them. `n_workers` includes
    the calling thread.
    """

    caller_works = True

    def __init__(self, n_workers):
        self.n_workers = n_workers

    def _threads(self):
        """Return the executor of the helpers, or None if there are none."""
        global _helpers, _n_helpers
        with _helpers_lock:
            if _n_helpers < self.n_workers - 1:
                _n_helpers = self.n_workers - 1
                _helpers = _started(_n_helpers)
            return _helpers

    def run(self, task, arguments, seconds):
        """Call ``task(*args)`` for all `arguments`; whoever is free takes the next.

        The caller does not wait for helpers that have not begun.
        """
        n_threads = int(min(self.n_workers, len(arguments), seconds / SHARED_SECONDS))
        alone = n_threads < 2 or _submits()
        threads = None if alone else self._threads()
        n_helpers = 0 if threads is None else n_threads - self.caller_works
        left, helpers = deque(arguments), []

        def work():
            try:
                for args in taken_from(left):
                    task(*args)
            except BaseException:  # start nothing more
                left.clear()
                raise

        try:
            _this_thread.submits = n_helpers > 0
            for _ in range(n_helpers):
                # In the caller's context: NumPy's `errstate` applies to helpers too.
                helpers.append(threads.submit(copy_context().run, _help, work))
            _this_thread.submits = False
            if helpers and not self.caller_works:
                wait(helpers)
            else:
                work()
        except BaseException:
            left.clear()
            _this_thread.submits = False
            raise
        finally:  # also after an error or Ctrl-C: no helper goes on writing
            running = [helper for helper in helpers if not helper.cancel()]
            for helper in running:
                helper.exception()
        for helper in running:
            helper.result()


class SleepingTeam(Team):
    """Threads that share tasks while the calling thread sleeps: for many short calls.

    If other processes compete, the scheduler prefers a thread that wakes up to one that
    keeps running. (Next to them "dsg" in benchmarks/busy.py takes 1.7 times as long as
    alone; with a working caller, 3 to 5 times.) Tasks must not share work on the same
    team.
    """

    caller_works = False

    def __init__(self, n_workers):
        self._own = _started(n_workers) if n_workers > 1 else None
        super().__init__(1 if self._own is None else n_workers)

    def _threads(self):
        return self._own


def taken_from(left):
    """Yield what is left in a deque, from which several threads take."""
    with suppress(IndexError):  # it is empty
        while True:
            yield left.popleft()


def _started(n_threads):
    """Return an executor with running threads: as many as can start, None if none can.

    Later submissions start no thread, so they can't fail.
    """
    if _submits():
        return None
    executor, all_run = ThreadPoolExecutor(n_threads, "eigenkern"), threading.Event()
    started = []

    def begin():
        all_run.wait()
        if memory.address_space() < float("inf"):
            _use_blas()  # all at the same time: each gets a buffer of its own

    try:
        _this_thread.submits = True
        for _ in range(n_threads):  # each in a new thread, since the others wait
            started.append(executor.submit(begin))
    except RuntimeError:  # no more threads, of this user or in this container
        executor.shutdown(wait=False)
        all_run.set()
        _this_thread.submits = False
        return _started(len(started)) if started else None
    finally:
        _this_thread.submits = False
        all_run.set()
    return executor


_helpers, _n_helpers, _helpers_lock = None, 0, threading.RLock()
_this_thread = threading.local()


def _submits():
    """Whether this thread is just entering an executor, which it can't do twice.

    A signal handler that predicts then works alone.
    """
    return getattr(_this_thread, "submits", False)


def _help(work):
    """Do part of the work in a helper thread, where BLAS uses one thread too."""
    if not hasattr(_this_thread, "is_limited"):  # the limit may be per thread
        single_threaded_blas.allow(1)
        _this_thread.is_limited = True
    work()


def _begin_after_fork():
    """Reset: a forked process lacks the threads, but may have locks that they held."""
    global _helpers, _n_helpers, _helpers_lock
    _helpers, _n_helpers, _helpers_lock = None, 0, threading.RLock()
    single_threaded_blas.begin_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_after_fork)


@restores_blas
def run_on_threads(pool, task, arguments, seconds=float("inf")):
    """Call ``task(*args)`` for all `arguments` on the threads of a `Team`, or here.

    While it works, each BLAS call runs on one thread. `seconds` is the time of all
    tasks on one thread: little work is not worth a helper.
    """
    if pool is None:
        for args in arguments:
            task(*args)
        return
    with single_threaded_blas:
        pool.run(task, arguments, seconds)
