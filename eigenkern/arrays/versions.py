"""What a problem report should say about the machine."""

import importlib.metadata
import os
import platform
import sys
from pathlib import Path

import array_api_compat.numpy as xp
import psutil
from threadpoolctl import threadpool_info

from . import memory

_PACKAGES = (
    "eigenkern",
    "numpy",
    "scipy",
    "scikit-learn",
    "array-api-compat",
    "threadpoolctl",
    "joblib",
    "torch",
    "cupy-cuda12x",
    "cupy-cuda13x",
)


def show_versions() -> None:
    """Print versions, the BLAS in use with its kernel and threads, devices, memory.

    Also reports if OpenBLAS does not recognize AVX-512 and runs at half speed.

    See Also
    --------
    sklearn.show_versions : The same for scikit-learn.

    Examples
    --------
    >>> import eigenkern
    >>> eigenkern.show_versions()  # doctest: +SKIP
    """
    system = [
        ("python", sys.version.split()[0]),
        ("machine", platform.platform()),
        ("cores", os.cpu_count()),
        ("memory", f"{psutil.virtual_memory().total / 1e9:.1f} GB"),
        ("free for a fit", f"{memory.available(xp, 'cpu') / 1e9:.1f} GB"),
        ("GPUs", _gpus()),
    ]
    packages = [(name, _version(name)) for name in _PACKAGES]
    report = {"System": system, "Packages": packages, "BLAS": _blas()}
    for title, lines in report.items():
        print(f"{title}:")  # noqa: T201
        for name, value in lines:
            print(f"  {name:>18}: {value}")  # noqa: T201


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _gpus():
    try:
        from cupy.cuda import runtime

        numbers = range(runtime.getDeviceCount())
        names = [runtime.getDeviceProperties(i)["name"].decode() for i in numbers]
    except Exception as error:  # no CuPy, no driver, no device
        return f"none ({type(error).__name__})"
    return ", ".join(names) or "none"


def _blas():
    """Return the name and the description of each BLAS."""
    lines, cpu = [], Path("/proc/cpuinfo")
    has_avx512 = cpu.exists() and "avx512f" in cpu.read_text()
    for library in threadpool_info():
        if library["user_api"] != "blas":
            continue
        kernel = library.get("architecture", "unknown")
        description = (
            f"{library['version']}, kernel {kernel}, "
            f"{library['num_threads']} threads ({library['filepath']})"
        )
        lines.append((library["internal_api"], description))
        if kernel == "Haswell" and has_avx512:
            advice = (
                "this CPU has AVX-512, which OpenBLAS did not recognize: set "
                "OPENBLAS_CORETYPE=SKYLAKEX before Python starts"
            )
            lines.append(("advice", advice))
    return lines
