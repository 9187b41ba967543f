"""The kernels' lines of CUDA C++ compile, and compute the same as NumPy."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenkern.arrays import array
from eigenkern.kernels import Cauchy, Gaussian, Laplacian, Matern, Polynomial
from eigenkern.kernels.radial import _ClippedGaussian as ClippedGaussian
from eigenkern.kernels.radial import _LaplacianSlope as LaplacianSlope
from eigenkern.kernels.radial import _SquaredCauchy as SquaredCauchy

KERNELS = [
    Gaussian(),
    ClippedGaussian(),
    Laplacian(),
    Cauchy(),
    Matern(nu=1.5),
    Matern(nu=2.5),
    Polynomial(degree=1),
    Polynomial(degree=2),
    Polynomial(degree=5),
    LaplacianSlope(),
    SquaredCauchy(),
]
CPP = shutil.which("c++") or shutil.which("g++")
NVCC = shutil.which("nvcc")
kernels = pytest.mark.parametrize("kernel", KERNELS, ids=map(repr, KERNELS))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A library of all lines, as functions that change an array in place."""
    if CPP is None:
        pytest.skip("no C++ compiler")
    source = ["#include <cmath>", "using namespace std;", 'extern "C" {']
    for i, kernel in enumerate(KERNELS):
        for T in ("float", "double"):
            source.append(
                f"void {T}_{i}({T} *x, int n) {{ typedef {T} T; "
                "for (int j = 0; j < n; ++j) "
                f"{{ const T &t = x[j]; T &k = x[j]; {kernel.cuda}; }} }}"
            )
    folder = tmp_path_factory.mktemp("cpp")
    (folder / "lines.cpp").write_text("\n".join([*source, "}"]))
    command = [CPP, "-shared", "-fPIC", "-O1", "lines.cpp", "-o", "lines.so"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "lines.so"))


@kernels
@pytest.mark.parametrize("dtype, T", [(np.float32, "float"), (np.float64, "double")])
def test_lines_compute_what_numpy_does(kernel, dtype, T, compiled, rng, monkeypatch):
    monkeypatch.setattr(array, "_NUMPY_HAS_VECTOR_MATH", False)
    x = np.concatenate([3 * rng.standard_normal(500), [0.0, -1e-7, 1e-7]]).astype(dtype)
    expected = kernel.finish(np, x.copy()[None, :])[0]
    function = getattr(compiled, f"{T}_{KERNELS.index(kernel)}")
    function(x.ctypes.data_as(ctypes.c_void_p), len(x))
    assert_allclose(x, expected, rtol=20 * np.finfo(dtype).eps)


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
def test_lines_compile_for_a_gpu(tmp_path):
    source = [
        f"template <typename T> __global__ void line_{i}(T *x) "
        f"{{ const T &t = x[threadIdx.x]; T &k = x[threadIdx.x]; {kernel.cuda}; }}"
        for i, kernel in enumerate(KERNELS)
    ]
    source += [
        f"template __global__ void line_{i}<{T}>({T} *);"
        for i in range(len(KERNELS))
        for T in ("float", "double")
    ]
    (tmp_path / "lines.cu").write_text("\n".join(source))
    command = [NVCC, "-ptx", "-Werror", "all-warnings", "lines.cu", "-o", "lines.ptx"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ptx = (tmp_path / "lines.ptx").read_text()
    assert ptx.count(".entry") == 2 * len(KERNELS)


def test_another_function_takes_another_line():
    class Squared(Gaussian):
        def finish(self, xp, T):
            return super().finish(xp, T) ** 2

    class Halved:
        def finish(self, xp, T):
            return super().finish(xp, T) / 2

    class Mixed(Halved, Gaussian):
        pass

    class Renamed(Gaussian):
        pass

    assert Squared().cuda is None and Mixed().cuda is None
    assert Renamed().cuda == Gaussian().cuda is not None
    # Nor is it replaced by the clipped gaussian, which is another function.
    X = np.asarray([[0.0], [0.5], [1000.0]], dtype=np.float32)
    assert_allclose(Squared()(X)[0, 1], np.exp(-0.25), rtol=0.02)
