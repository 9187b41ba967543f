"""Fixtures that the tests share: small data, array libraries, naive references."""

import array_api_compat
import numpy as np
import pytest
from scipy.spatial.distance import cdist


@pytest.fixture(autouse=True)
def seeded():
    """Let estimators with random_state=None draw the same numbers in every run."""
    np.random.seed(0)  # noqa: NPY002


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def cuda_library():
    """CuPy, where there is a CUDA device; else the test is skipped."""
    library = pytest.importorskip("cupy")
    try:
        n_devices = library.cuda.runtime.getDeviceCount()
    except library.cuda.runtime.CUDARuntimeError:
        n_devices = 0
    if n_devices == 0:
        pytest.skip("no CUDA device")
    return library


@pytest.fixture
def cupy():
    return cuda_library()


@pytest.fixture(
    params=["array_api_strict", "torch", pytest.param("cupy", marks=pytest.mark.gpu)]
)
def other_xp(request):
    """An array namespace that is not NumPy's."""
    if request.param == "cupy":
        library = cuda_library()
    else:
        library = pytest.importorskip(request.param)
    return array_api_compat.array_namespace(library.zeros(1))


@pytest.fixture
def naive_gaussian():
    """The gaussian kernel matrix by its definition, in float64."""

    def kernel(X, Z, bandwidth):
        return np.exp(-cdist(X, Z, "sqeuclidean") / (2 * bandwidth**2))

    return kernel


@pytest.fixture
def regression(rng):
    """A smooth function on 160 rows, and 40 other rows."""
    X = rng.standard_normal((200, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]
    return X[:160], y[:160], X[160:], y[160:]


@pytest.fixture
def three_classes(rng):
    """Three overlapping clusters with codes 0, 1, 2 as labels."""
    y = np.arange(180) % 3
    X = rng.standard_normal((180, 2)) + 1.5 * np.eye(3)[y][:, :2]
    return X, y
