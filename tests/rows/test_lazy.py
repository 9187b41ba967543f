import threading
import time
import tracemalloc

import numpy as np
import pytest

from eigenkern.arrays.threads import Team
from eigenkern.rows.lazy_rows import StoredRows, rows_at


def test_rows_of_an_unaligned_array_are_taken_without_a_copy_of_it():
    aligned = np.arange(1_000_000.0).reshape(-1, 10)
    X = np.frombuffer(b" " + aligned.tobytes(), offset=1).reshape(aligned.shape)
    assert not X.flags.aligned
    tracemalloc.start()
    found = rows_at(X, np.array([7, 3]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(found, aligned[[7, 3]])
    assert peak < X.nbytes / 10


@pytest.mark.parametrize("n_workers", [1, 3])
def test_a_visit_reads_each_block_once(n_workers, rng):
    X, read = rng.standard_normal((1000, 3)), []

    class Counted:
        shape, dtype = X.shape, X.dtype

        def __getitem__(self, key):
            read.append(key.start)
            return X[key]

    index = rng.permutation(1000)[:900]
    index = index[(index < 300) | (index >= 400)]  # no row of the fourth block
    rows = StoredRows(Counted(), float, 100)
    found, first = np.zeros((len(index), 3)), []

    def begin(places, values):
        first.append((places, values))

        def function(part, places, values):
            found[places] += values

        return function

    order = rows.in_order(index)
    order.visit(begin, Team(n_workers))
    np.testing.assert_array_equal(found, X[index])
    np.testing.assert_array_equal(first[0][1], X[index[first[0][0]]])
    assert sorted(read) == [100 * i for i in range(10) if i != 3]
    np.testing.assert_array_equal(order[:500, :], X[index[:500]])  # kept from the visit
    assert len(read) == 9


@pytest.mark.parametrize("fails_in", ["file", "caller", "helper"])
@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_an_error_in_a_visit_ends_all_of_it(kind, fails_in):
    error, calls, here = kind("no"), [], threading.get_ident()
    helped = threading.Event()

    class File:
        shape, dtype = (100_000, 1), np.dtype(float)

        def __getitem__(self, key):
            if fails_in == "file" and key.start == 500:
                raise error
            return np.zeros((100, 1))

    def function(part, places, values):
        calls.append(places)
        mine = threading.get_ident() == here
        if not mine:
            helped.set()
        elif fails_in != "caller":
            helped.wait(5)
        time.sleep(0.001)
        if fails_in == ("caller" if mine else "helper") and len(calls) > 4:
            raise error

    with pytest.raises(kind) as caught:
        StoredRows(File(), float, 100).visit(lambda *first: function, Team(2))
    assert caught.value is error
    assert len(calls) < 100
    n_calls = len(calls)
    time.sleep(0.05)
    assert len(calls) == n_calls
