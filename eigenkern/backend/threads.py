"""Threads: BLAS limited to one a call, and a pool for tiles."""

import os
import threading

from threadpoolctl import ThreadpoolController


class _SingleThreadedBlas:
    """Context in which BLAS runs one thread a call, nestable and safe between threads.

    The limit is a state of the process: the first to enter sets it and the last to
    leave restores it, so that two fits in two threads don't restore each other's limit.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._depth = 0
        self._controller, self._before = None, []
        self._n_threads = 1

    def n_threads(self):
        """Look up the BLAS libraries and return the threads they are allowed now."""
        with self._lock:
            if self._depth == 0:
                # Finding the libraries takes milliseconds, too long for every product.
                self._controller = ThreadpoolController().select(user_api="blas")
                counts = [library["num_threads"] for library in self._controller.info()]
                self._n_threads = max(1, min(max(counts, default=1), n_cores()))
            return self._n_threads

    def __enter__(self):
        with self._lock:
            if self._depth == 0:
                libraries = self._controller.lib_controllers
                self._before = [library.num_threads for library in libraries]
                self._set([1] * len(libraries))
            self._depth += 1

    def __exit__(self, *exc_info):
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                self._set(self._before)

    def _set(self, counts):
        for library, count in zip(
            self._controller.lib_controllers, counts, strict=True
        ):
            # threadpoolctl lets only the thread that set a limit first change it, in
            # order that threads don't fight; here the lock and the depth see to that.
            release = getattr(library, "clear_controlling_thread", None)
            if release is not None:
                release(force=True)
            library.set_num_threads(count)
            if release is not None:
                release(force=True)


def n_cores():
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


single_threaded_blas = _SingleThreadedBlas()


def n_blas_threads():
    """Return how many threads BLAS is allowed, and the products of this module."""
    return single_threaded_blas.n_threads()


def run_on_threads(pool, task, arguments):
    """Call ``task(*args)`` for all `arguments` on the threads of `pool`, or here.

    Parameters
    ----------
    pool : ThreadPoolExecutor or None
        BLAS runs one thread a call in it.
    task : callable
    arguments : list of tuples
    """
    if pool is None:
        for args in arguments:
            task(*args)
        return
    with single_threaded_blas:
        futures = [pool.submit(task, *args) for args in arguments]
        try:
            for future in futures:
                future.result()
        finally:  # an error or Ctrl-C: start nothing more, and leave no writer
            for future in futures:
                future.cancel()
            for future in futures:
                if not future.cancelled():
                    future.exception()
