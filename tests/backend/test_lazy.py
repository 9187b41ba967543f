import tracemalloc

import numpy as np

from eigenkern.backend.lazy import rows_at


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
