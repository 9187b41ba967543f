"""Threads: tasks that are shared by a team of them, and BLAS limited to one a call.

A fit or a prediction runs with BLAS limited to one thread (`single_threaded_blas`), and
shares out its large products itself (`run_on_threads`): the threads of BLAS wait for
each other by spinning, many times in a product, and where another process has a core
every wait takes until the scheduler gives it back. Factorizations, which only LAPACK
can share out, run on the cores that are idle (`idle_threads`).
"""

import os
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context
from functools import cache, partial
from pathlib import Path

import joblib
import numpy as np
import scipy.linalg
from threadpoolctl import ThreadpoolController, threadpool_limits

from . import memory
from .machine import SHARED_SECONDS

# Times that the number of busy cores is read: of two or three readings the least, for a
# process that wakes up for a moment does not count.
_N_READINGS = 3
# Where the address space is limited (ulimit -v): bytes that BLAS takes of it in the
# thread that calls, and those of another thread. Measured: 32 MB for each OpenBLAS,
# NumPy's and SciPy's, which end the process where they don't get them; 8 MB of stack
# and 64 of malloc's arena for each of the two threads, that of `SleepingTeam` and the
# other.
_CALLER_BYTES, _HELPER_BYTES = 80e6, 210e6
# Part of the address space that other threads may take.
_HELPERS_SHARE = 0.25


class _SingleThreadedBlas:
    """Context in which BLAS runs one thread a call, nestable and safe between threads.

    The limit is a state of the process: the first to enter sets it and the last to
    leave restores it, so that two fits in two threads don't restore each other's limit.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._depths = {}  # of the threads that are inside
        self._controller, self._before, self._n_modules = None, [], 0
        self._n_threads = 1
        self._n_ready = 0  # threads that were inside at a time, under a limit

    def begin_after_fork(self):
        """Start anew in a forked process, where no thread is inside."""
        self._n_ready = 0
        self._lock, inside, self._depths = threading.Lock(), self._depths, {}
        if inside:
            self._set(self._before)

    def n_threads(self):
        """Return how many threads BLAS is allowed; inside, how many it was before."""
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
        # Finding the libraries takes milliseconds: only where others may be loaded.
        if self._controller is None or len(sys.modules) != self._n_modules:
            self._controller = ThreadpoolController().select(user_api="blas")
            self._n_modules = len(sys.modules)
        self._before = [one.num_threads for one in self._controller.lib_controllers]
        n_threads = max((n for n in self._before if n is not None), default=1)
        self._n_threads = max(1, n_threads)
        if self._n_threads > 1:
            self._n_threads = min(self._n_threads, n_cores(), _n_with_room())

    def _make_room(self, n_threads):
        """Let BLAS take what it needs of a limited address space, while it is free.

        Helpers of the process have done that when they were started.
        """
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
        with self._lock:
            thread = threading.get_ident()
            if not (thread in self._depths or hasattr(_this_thread, "is_limited")):
                self._make_room(len(self._depths) + 1)
            if not self._depths:
                self._look_up()
                self._set([n and 1 for n in self._before])
            self._depths[thread] = self._depths.get(thread, 0) + 1

    def __exit__(self, *exc_info):
        with self._lock:
            thread = threading.get_ident()
            if thread not in self._depths:  # in a process that was forked inside
                return
            self._depths[thread] -= 1
            if not self._depths[thread]:
                del self._depths[thread]
            if not self._depths:
                self._set(self._before)

    @contextmanager
    def lifted(self, n_threads):
        """Return a context in which a call of BLAS runs `n_threads`.

        They are those of the process: calls of other threads run on as many.
        """
        with self:
            self.allow(n_threads)
            try:
                yield
            finally:
                if threading.get_ident() in self._depths:
                    self.allow(1)

    def allow(self, n_threads):
        """Limit BLAS in the process, or in this thread where the limit is one of it."""
        with self._lock:
            self._set([n and min(n, n_threads) for n in self._before])

    def _set(self, counts):
        for library, count in zip(
            self._controller.lib_controllers, counts, strict=True
        ):
            if count is None:
                continue
            # threadpoolctl lets only the thread that set a limit first change it, in
            # order that threads don't fight; here the lock and the depth see to that.
            release = getattr(library, "clear_controlling_thread", None)
            if release is not None:
                release(force=True)
            library.set_num_threads(count)
            if release is not None:
                release(force=True)


single_threaded_blas = _SingleThreadedBlas()


def n_cores():
    """Cores that this process may use: of a container the share that it is given."""
    if not hasattr(os, "sched_getaffinity"):
        return _share(os.cpu_count())
    n_allowed = len(os.sched_getaffinity(0))
    return min(n_allowed, _share(n_allowed))


@cache
def _share(n_allowed):
    # Reading the limits of a container takes 0.1 ms, too long for every prediction.
    return joblib.cpu_count()


def _n_with_room():
    """Return how many threads the address space has room for, 1 at least."""
    free = memory.address_space()
    if free == float("inf"):
        return free
    return 1 + int(_HELPERS_SHARE * free / _HELPER_BYTES)


def openmp_with_room():
    """Return a context for OpenMP, which ends the process where no thread starts."""
    if _n_with_room() == float("inf"):
        return nullcontext()
    return threadpool_limits(n_blas_threads(), user_api="openmp")


def _use_blas():
    """Call each BLAS with matrices that are not too small for its buffer."""
    A = np.ones((256, 256))
    np.matmul(A, A)
    scipy.linalg.blas.dgemm(1.0, A, A)


def n_blas_threads():
    """Return how many threads BLAS is allowed, and the tasks of this module."""
    return single_threaded_blas.n_threads()


def idle_threads():
    """Return how many threads find a core that nothing else uses, 1 at least.

    At most as many as BLAS is allowed. For LAPACK, whose threads wait for each other
    thousands of times: where another process has one of the cores, a factorization on
    all of them takes up to ten times as long as on one (benchmarks/busy.py). Blocks
    that the threads of this module share are no remedy: 6000 rows in float32 took
    0.71 s beside two loops of the same session and 1.20 s beside two with sessions of
    their own, and LAPACK on one thread 0.74 s beside either.
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
    """Return how many threads of other processes run or wait for a core, on Linux."""
    try:
        n_busy = int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])
        own = list(Path("/proc/self/task").iterdir())
    except (OSError, ValueError, IndexError):  # another system
        return 0
    for thread in own:
        with suppress(OSError):  # it has ended
            state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
            n_busy -= state == "R"
    return n_busy


class Team:
    """Threads that share tasks: the one that calls, and helpers.

    The helpers are those of the process: fits in several threads share them, and each
    gets on without.

    Parameters
    ----------
    n_workers : int
        The one that calls included.
    """

    def __init__(self, n_workers):
        self.n_workers = n_workers

    def run(self, task, arguments, seconds):
        """Call ``task(*args)`` for all `arguments`; the next goes to whoever is free.

        The caller waits for no helper that has not begun.
        """
        n_helpers = min(self.n_workers, len(arguments), seconds / SHARED_SECONDS) - 1
        left = deque(arguments)

        def work():
            try:
                while left:
                    try:
                        args = left.popleft()
                    except IndexError:  # another was quicker
                        return
                    task(*args)
            except BaseException:  # nothing more is started
                left.clear()
                raise

        helpers = []
        try:
            for _ in range(int(n_helpers)):
                helper = self._submit(work)
                if helper is not None:
                    helpers.append(helper)
            self._do_own_share(work, helpers)
        except BaseException:
            left.clear()
            raise
        finally:  # after an error or Ctrl-C too: no writer is left
            running = [helper for helper in helpers if not helper.cancel()]
            for helper in running:
                helper.exception()
        for helper in running:
            helper.result()

    def _submit(self, work):
        # In the caller's context: NumPy's `errstate` holds for helpers too.
        return _submit(copy_context().run, partial(_help, work), self.n_workers)

    def _do_own_share(self, work, helpers):
        work()


class SleepingTeam(Team):
    """Threads that share tasks, while the one that calls sleeps: for many short calls.

    Beside other processes the scheduler sooner gives a core to a thread that wakes up
    than to one that goes on: in calls of a millisecond the caller would get behind
    (benchmarks/busy.py, "dsg": 1.7 times as long as alone, and 3 to 5 times). The
    threads are its own: no task may share out work to them.
    """

    def __init__(self, n_workers):
        self._threads = _started(n_workers) if n_workers > 1 else None
        super().__init__(1 if self._threads is None else n_workers)

    def _submit(self, work):
        return self._threads.submit(copy_context().run, partial(_help, work))

    def _do_own_share(self, work, helpers):
        if not helpers:
            work()
            return
        helpers.append(self._submit(work))
        wait(helpers)


def _started(n_threads):
    """Return an executor whose threads run: fewer where no more start, None for none.

    What is submitted later starts none: it can't fail.
    """
    executor, all_run = ThreadPoolExecutor(n_threads, "eigenkern"), threading.Event()
    n_started = 0

    def begin():
        all_run.wait()
        if memory.address_space() < float("inf"):
            _use_blas()  # all at the same time: each gets a buffer of its own

    try:
        for _ in range(n_threads):
            executor.submit(begin)  # a new thread, since the others wait
            n_started += 1
    except RuntimeError:  # no more threads, of this user or in this container
        executor.shutdown(wait=False)
        executor = None
    finally:
        all_run.set()
    if executor is None and n_started:
        return _started(n_started)
    return executor


_helpers, _n_helpers, _helpers_lock = None, 0, threading.Lock()
_this_thread = threading.local()


def _help(work):
    """Do a part of the work, in a thread where BLAS runs one thread too."""
    if not hasattr(_this_thread, "is_limited"):  # the limit may be one of the thread
        single_threaded_blas.allow(1)
        _this_thread.is_limited = True
    work()


def _submit(run, work, n_workers):
    """Let one of the helpers of the process ``run(work)``; return its `Future`.

    None if there are no helpers.
    """
    global _helpers, _n_helpers
    with _helpers_lock:
        if _n_helpers < n_workers - 1:
            _n_helpers = n_workers - 1
            _helpers = _started(_n_helpers)
        return None if _helpers is None else _helpers.submit(run, work)


def _begin_after_fork():
    """A forked process has none of the threads, and perhaps locks that they held."""
    global _helpers, _n_helpers, _helpers_lock
    _helpers, _n_helpers, _helpers_lock = None, 0, threading.Lock()
    single_threaded_blas.begin_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_after_fork)


def run_on_threads(pool, task, arguments, seconds=float("inf")):
    """Call ``task(*args)`` for all `arguments` on the threads of `pool`, or here.

    Parameters
    ----------
    pool : Team or None
        BLAS runs one thread a call in it.
    task : callable
    arguments : list of tuples
    seconds : float, default=inf
        What all of them take on one thread: little work is not worth a helper.
    """
    if pool is None:
        for args in arguments:
            task(*args)
        return
    with single_threaded_blas:
        pool.run(task, arguments, seconds)
