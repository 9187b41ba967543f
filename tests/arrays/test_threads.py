"""Threads share tasks, keep limits and do not change results."""

import multiprocessing
import os
import subprocess
import sys
import threading

import joblib
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from threadpoolctl import threadpool_info, threadpool_limits

from eigenkern import (
    EigenProRegressor,
    FalkonLikeRegressor,
    LinearEigenProRegressor,
    NystromRegressor,
)
from eigenkern.arrays import linalg, threads
from eigenkern.arrays.linalg import large_gram, large_product, solve_triangular
from eigenkern.arrays.threads import (
    SleepingTeam,
    Team,
    idle_threads,
    n_blas_threads,
    run_on_threads,
)
from eigenkern.kernels import Gaussian
from eigenkern.operators.tiled import TiledKernel


def blas_threads():
    return {
        lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"
    }


@pytest.fixture
def shares_everything(monkeypatch):
    """Three threads share the smallest piece of work."""
    monkeypatch.setattr(linalg, "SHARED_SECONDS", 1e-12)
    monkeypatch.setattr(threads, "SHARED_SECONDS", 1e-12)
    monkeypatch.setattr(linalg, "n_blas_threads", lambda: 3)


@pytest.mark.parametrize("team", [Team, SleepingTeam])
@pytest.mark.parametrize("n_workers", [1, 2, 5])
@pytest.mark.parametrize("n_tasks", [0, 1, 3, 100])
def test_every_task_is_called_once(team, n_workers, n_tasks):
    calls = np.zeros(n_tasks, dtype=int)

    def task(i):
        calls[i] += 1

    run_on_threads(team(n_workers), task, [(i,) for i in range(n_tasks)])
    assert_array_equal(calls, 1)


def test_helpers_take_tasks():
    both_work = threading.Barrier(2, timeout=60)
    run_on_threads(Team(2), both_work.wait, [(), ()])


def test_helpers_work_in_the_context_of_the_caller():
    """An overflow that the caller expects gives no warning (an error in tests)."""
    both_work, big = threading.Barrier(2, timeout=60), np.full(4, 1e308)

    def task():
        both_work.wait()
        return big * big

    with np.errstate(over="ignore"):
        run_on_threads(Team(2), task, [(), ()])


def test_little_work_is_done_by_the_caller():
    seen = set()
    arguments = [()] * 20
    run_on_threads(Team(4), lambda: seen.add(threading.get_ident()), arguments, 1e-6)
    assert seen == {threading.get_ident()}


def test_nobody_waits_for_helpers_that_have_not_begun():
    """Another call uses all helpers of the process: this one proceeds alone."""
    go_on, working = threading.Event(), threading.Barrier(2, timeout=60)

    def occupy():
        working.wait()
        assert go_on.wait(60)

    n_workers = max(threads._n_helpers + 1, 2)
    working = threading.Barrier(n_workers + 1, timeout=60)
    arguments = [()] * n_workers
    other = threading.Thread(
        target=run_on_threads, args=(Team(n_workers), occupy, arguments)
    )
    other.start()
    working.wait()
    done = []
    run_on_threads(Team(n_workers), done.append, [(i,) for i in range(9)])
    assert done == list(range(9))
    go_on.set()
    other.join(60)


@pytest.mark.parametrize("team", [Team, SleepingTeam])
def test_an_error_ends_the_others_and_is_raised(team):
    done = []

    def task(i):
        if i == 3:
            raise KeyError(i)
        done.append(i)

    with pytest.raises(KeyError):
        run_on_threads(team(2), task, [(i,) for i in range(100_000)])
    assert len(done) < 99_999


def test_a_task_may_share_out_its_own():
    results = []

    def outer(i):
        run_on_threads(Team(2), lambda j: results.append((i, j)), [(0,), (1,)])

    run_on_threads(Team(2), outer, [(i,) for i in range(4)])
    assert sorted(results) == [(i, j) for i in range(4) for j in range(2)]


@pytest.mark.parametrize("team", [Team, SleepingTeam])
@pytest.mark.parametrize("n_starting", [0, 1, 2])
def test_threads_that_do_not_start_are_done_without(team, n_starting, monkeypatch):
    starts, start, done = [], threading.Thread.start, []

    def fail(thread):
        starts.append(thread)
        if len(starts) == n_starting + 1:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threads, "_helpers", None)
    monkeypatch.setattr(threads, "_n_helpers", 0)
    monkeypatch.setattr(threading.Thread, "start", fail)
    run_on_threads(team(4), lambda i: done.append(i), [(i,) for i in range(50)])
    assert sorted(done) == list(range(50))
    assert len(starts) == 2 * n_starting + 1  # and that many new ones


def test_a_limited_address_space_has_room_for_fewer_threads(monkeypatch):
    monkeypatch.setattr(threads, "n_cores", lambda: 8)
    monkeypatch.setattr(threads.single_threaded_blas, "_n_ready", 1)
    with threadpool_limits(8, user_api="blas"):
        for free, expected in [(float("inf"), 8), (100e6, 1), (2e9, 3), (1e12, 8)]:
            monkeypatch.setattr(threads.memory, "address_space", lambda n=free: n)
            assert n_blas_threads() == expected


@pytest.mark.parametrize(
    "shape", [(1, 5, 1), (700, 40, 3), (3, 40, 700), (300, 9, 301)]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_product(shape, dtype, shares_everything, rng):
    m, k, n = shape
    A, B = rng.standard_normal((k, m)).T, rng.standard_normal((k, n))
    found = large_product(A.astype(dtype), B.astype(dtype))
    assert found.dtype == dtype
    assert_allclose(found, A @ B, atol=1e-12 if dtype == np.float64 else 1e-4)


@pytest.mark.parametrize("m", [1, 63, 64, 500])
def test_large_gram(m, shares_everything, rng):
    A = rng.standard_normal((m, 20))
    K = large_gram(A)
    assert_allclose(K, A @ A.T, atol=1e-12)
    assert_array_equal(K, K.T)


def test_solve_triangular_of_many_columns(shares_everything, rng):
    L, B = np.tril(rng.random((30, 30))) + 9 * np.eye(30), rng.random((30, 400))
    before = blas_threads()
    assert_allclose(L @ solve_triangular(L, B), B, atol=1e-12)
    assert blas_threads() == before


def test_fits_and_predictions_run_blas_on_one_thread(rng):
    X, seen = rng.standard_normal((60, 3)), []

    def kernel(X, Z):
        seen.append(blas_threads())
        return X @ Z.T

    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        model = EigenProRegressor(kernel, max_iter=2).fit(X, X[:, 0])
        n_fit = len(seen)
        model.predict(X)
        assert n_fit and len(seen) > n_fit
        assert all(found == {1} for found in seen)
        assert blas_threads() == before
        with pytest.raises(ValueError, match="X must"):
            LinearEigenProRegressor().fit(1e300 * X, X[:, 0])
        assert blas_threads() == before


@pytest.mark.parametrize(
    "model",
    [
        EigenProRegressor(max_iter=3, random_state=0),
        EigenProRegressor(n_centers=200, max_iter=3, random_state=0),
        LinearEigenProRegressor(max_iter=3, random_state=0),
        NystromRegressor(n_centers=200, random_state=0),
        FalkonLikeRegressor(n_centers=200, alpha=1e-3, random_state=0),
    ],
    ids=["rows", "centers", "linear", "nystrom", "falkon"],
)
def test_predictions_do_not_depend_on_the_threads(model, monkeypatch, rng):
    X = rng.standard_normal((900, 5))
    y = np.sin(X[:, 0])
    # Sizes depend on measurements of the machine with this number of threads.
    monkeypatch.setattr("eigenkern.plan.sizes.filling_work", lambda *args: 3e7)
    found = []
    for n_threads in (1, 3):
        monkeypatch.setattr(linalg, "SHARED_SECONDS", 1e-12)
        monkeypatch.setattr(threads, "SHARED_SECONDS", 1e-12)
        for module in (linalg, "eigenkern.operators.tiled"):
            target = module if isinstance(module, str) else module.__name__
            monkeypatch.setattr(f"{target}.n_blas_threads", lambda n=n_threads: n)
        found.append(model.fit(X, y).predict(X))
    assert_allclose(*found, atol=1e-6)


def n_workers():
    return TiledKernel(Gaussian(), np.ones((3, 2))).n_workers


@pytest.mark.parametrize(
    "name", ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LOKY_MAX_CPU_COUNT"]
)
def test_the_environment_limits_the_threads(name):
    """The last stands for the share of a container: it enters where that does."""
    code = (
        "import numpy as np; from eigenkern.kernels import Gaussian;"
        "from eigenkern.operators.tiled import TiledKernel;"
        "print(TiledKernel(Gaussian(), np.ones((3, 2))).n_workers)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {name: "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "1"


def test_workers_of_joblib_keep_to_their_limit():
    with joblib.parallel_config("loky", inner_max_num_threads=1):
        found = joblib.Parallel(2)(joblib.delayed(n_workers)() for _ in range(2))
    assert found == [1, 1]


def test_the_cores_are_those_of_the_share(monkeypatch):
    monkeypatch.setattr(threads, "_share", lambda n_allowed: 1)
    with threadpool_limits(2, user_api="blas"):
        assert n_blas_threads() == 1


def test_a_factorisation_gets_the_idle_cores(monkeypatch):
    busy = [0]
    monkeypatch.setattr(threads, "n_blas_threads", lambda: 4)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(threads, "_n_busy_elsewhere", lambda: busy[0])
    found = []
    for busy[0] in (0, 2, 3, 5, 20):
        found.append(idle_threads())
    assert found == [4, 4, 3, 1, 1]
    # Another fit in this process counts as busy.
    busy[0] = 0
    inside, go_on = threading.Event(), threading.Event()

    def enter():
        with threads.single_threaded_blas:
            inside.set()
            assert go_on.wait(60)

    other = threading.Thread(target=enter)
    other.start()
    assert inside.wait(60)
    with threads.single_threaded_blas:
        assert idle_threads() == 1
    go_on.set()
    other.join(60)


def test_the_limit_is_lifted_and_set_again():
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        with threads.single_threaded_blas:
            with threads.single_threaded_blas.lifted(2):
                assert blas_threads() == before
            assert blas_threads() == {1}
        with threads.single_threaded_blas.lifted(1):
            assert blas_threads() == {1}
        assert blas_threads() == before


def product_in_fork(queue):
    A = np.ones((300, 300))
    done = []
    run_on_threads(Team(2), done.append, [(i,) for i in range(5)])
    queue.put((sorted(done), float(large_product(A, A)[0, 0]), len(blas_threads())))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    run_on_threads(Team(2), threading.Barrier(2, timeout=60).wait, [(), ()])
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=product_in_fork, args=(queue,))
    process.start()
    done, value, _ = queue.get(timeout=60)
    process.join(60)
    assert done == [0, 1, 2, 3, 4] and value == 300.0
    assert process.exitcode == 0


@pytest.mark.parametrize("call", ["predict", "fit", "kernel"])
@pytest.mark.parametrize("early", [True, False])
def test_an_interrupt_while_the_limit_is_set_or_lifted(call, early, rng, monkeypatch):
    """An interrupt may come before the first line of a context's methods."""
    X = rng.standard_normal((60, 3))
    model = EigenProRegressor(random_state=0).fit(X, X[:, 0])
    calls = {
        "predict": lambda: model.predict(X),
        "fit": lambda: model.fit(X, X[:, 1]),
        "kernel": lambda: run_on_threads(Team(2), abs, [(1,)]),
    }
    before, expected = blas_threads(), model.predict(X)
    limit, interrupts = type(threads.single_threaded_blas), [KeyboardInterrupt]
    name = "_set" if early else "__exit__"
    function = getattr(limit, name)

    def interrupted_once(*args):
        if interrupts:
            raise interrupts.pop()
        return function(*args)

    monkeypatch.setattr(limit, name, interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        calls[call]()
    assert blas_threads() == before
    assert threads.single_threaded_blas.depth == 0
    assert_array_equal(model.predict(X), expected)


@pytest.mark.parametrize("where", ["_look_up", "_set", "_make_room"])
def test_a_signal_handler_may_predict(where, rng, monkeypatch):
    """It runs in the main thread, which may be changing the limit just then."""
    X = rng.standard_normal((60, 3))
    model = EigenProRegressor(random_state=0).fit(X, X[:, 0])
    before, expected = blas_threads(), model.predict(X)
    limit, found = threads.single_threaded_blas, []
    function = getattr(limit, where)

    def with_signal(*args):
        monkeypatch.undo()
        found.append(model.predict(X))
        function(*args)
        found.append(model.predict(X))

    monkeypatch.setattr(limit, where, with_signal)
    assert_array_equal(model.predict(X), expected)
    assert_array_equal(found, [expected] * 2)
    assert blas_threads() == before and limit.depth == 0


def test_a_signal_handler_may_share_out_tasks():
    """An executor can't be entered twice."""
    team, calls = Team(2), []
    executor = team._threads()
    submit = executor.submit

    def with_signal(*args):
        with executor._shutdown_lock:
            executor.submit = submit
            team.run(calls.append, [(i,) for i in range(50)], 1.0)
        return submit(*args)

    executor.submit = with_signal
    team.run(calls.append, [(i,) for i in range(50)], 1.0)
    assert sorted(calls) == sorted([*range(50)] * 2)


def test_a_signal_handler_may_start_a_team():
    """While a thread enters an executor, it can enter no other one."""
    team, calls, found = Team(2), [], []
    executor = team._threads()
    submit = executor.submit

    def with_signal(*args):
        executor.submit = submit
        sleeping = threads.SleepingTeam(2)
        found.append(sleeping._own)
        sleeping.run(calls.append, [(i,) for i in range(50)], 1.0)
        return submit(*args)

    executor.submit = with_signal
    team.run(calls.append, [(i,) for i in range(50)], 1.0)
    assert found == [None]
    assert sorted(calls) == sorted([*range(50)] * 2)
    assert threads.SleepingTeam(2)._own is not None


def test_a_cached_property_has_no_lock():
    """A thread that computes one must not keep another, or a fork, waiting."""
    second = threading.Event()

    class Slow:
        @threads.cached_property
        def value(self):
            if threading.current_thread() is not threading.main_thread():
                assert second.wait(10)
            return 1

    other = threading.Thread(target=lambda: Slow().value)
    other.start()
    assert Slow().value == 1
    second.set()
    other.join(10)
    assert not other.is_alive()
