"""Free memory of the machine, the process and a GPU; the cost of its first use."""

import math
import time
from pathlib import Path

import array_api_compat
import numpy as np
import psutil

from .array import is_cupy, namespace

try:
    import resource
except ImportError:  # Windows
    resource = None

_CGROUP = Path("/sys/fs/cgroup")
# Share of a GPU's free memory to plan with. The rest is a margin that was not measured:
# plans count arrays, but not the workspaces of cuBLAS and cuSOLVER, nor what a memory
# pool loses to rounding and to gaps between blocks.
_GPU_SHARE = 0.9
# Share of the address space left under a limit (ulimit -v) to plan with; a quarter is
# for threads, the rest for temporary arrays. With 100 MB left, two of 16 fits still ran
# out of memory with a share of nine tenths, one with a half.
_ADDRESS_SHARE = 0.5
# How the first use of memory is measured: bytes per piece, most bytes, and seconds
# after which the measurement ends. See `touch_rate`.
_TOUCHED_PIECE, _MOST_TOUCHED, _TOUCH_SECONDS = 2**23, 2**30, 0.05

_LIMITED = () if resource is None else (resource.RLIMIT_AS, resource.RLIMIT_DATA)


def available(xp, device):
    """Bytes that can be allocated on `device` now.

    On the host this respects the limits of control groups, and takes half of what a
    limit of the process (``ulimit -v``) leaves. On a GPU it is nine tenths of the free
    memory, after the library's memory pool has returned its unused blocks.
    """
    if is_cupy(xp):
        import cupy

        with device:
            cupy.get_default_memory_pool().free_all_blocks()
            return _GPU_SHARE * cupy.cuda.runtime.memGetInfo()[0]
    if array_api_compat.is_torch_namespace(xp) and str(device).startswith("cuda"):
        import torch

        torch.cuda.empty_cache()
        return _GPU_SHARE * torch.cuda.mem_get_info(device)[0]
    return min(
        psutil.virtual_memory().available,
        _cgroup_headroom(),
        _ADDRESS_SHARE * address_space(),
    )


def address_space():
    """Bytes left under the limits of this process; infinite without limits.

    Linux counts reserved memory (RLIMIT_AS) or memory that could be written
    (RLIMIT_DATA).
    """
    if resource is None or not psutil.LINUX:
        return float("inf")
    limits = [resource.getrlimit(kind)[0] for kind in _LIMITED]
    if all(limit == resource.RLIM_INFINITY for limit in limits):
        return float("inf")
    used = psutil.Process().memory_info()
    return min(
        max(limit - n_bytes, 0)
        for limit, n_bytes in zip(limits, (used.vms, used.data))
        if limit != resource.RLIM_INFINITY
    )


def n_bytes(X):
    """Bytes of a matrix of floats."""
    return X.shape[0] * X.shape[1] * namespace(X).finfo(X.dtype).bits // 8


def touch_rate(n_bytes):
    """Bytes/s at which one thread uses new memory for the first time.

    The operating system clears each page at its first use, and a virtual machine may
    have to get it from its host. This took 0.05 to 3.3 s per GB; on one machine 0.07 s
    for recently freed pages and 2.2 s for others, which the last pieces of up to a GB
    should reveal. The rate is measured once per process, in about 50 ms, and rounded to
    a power of 4 times 1.5e9, so that noise seldom changes what is chosen.

    Parameters
    ----------
    n_bytes : float
        Bytes to be used, at least 8 MB; the measurement touches no more.
    """
    if not _measured_rate:
        rate = _measure_touch_rate(int(min(n_bytes, _MOST_TOUCHED)))
        _measured_rate.append(1.5e9 * 4.0 ** round(math.log(rate / 1.5e9, 4)))
    return _measured_rate[0]


_measured_rate = []


def _measure_touch_rate(n_bytes):
    new = np.empty(n_bytes, dtype=np.uint8)
    begin, seconds = time.perf_counter(), []
    for i in range(0, n_bytes - _TOUCHED_PIECE + 1, _TOUCHED_PIECE):
        start = time.perf_counter()
        new[i : i + _TOUCHED_PIECE : 4096] = 1  # a number on every page
        end = time.perf_counter()
        seconds.append(end - start)
        if end - begin > _TOUCH_SECONDS:
            break
    # The faster of the last two: one may have been interrupted.
    return _TOUCHED_PIECE / min(seconds[-2:])


def _cgroup_headroom():
    """Bytes left under the memory limits of this process's control groups."""
    headroom = float("inf")
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return headroom
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, limit, usage = _CGROUP, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root = _CGROUP / "memory"
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(root):
                break
            headroom = min(headroom, _group_headroom(folder, limit, usage))
    return headroom


def _group_headroom(folder, limit, usage):
    """Bytes left in one control group; file pages that can be dropped count as free."""
    try:
        bound = int((folder / limit).read_text())
        used = int((folder / usage).read_text())
        stat = dict(
            line.split() for line in (folder / "memory.stat").read_text().splitlines()
        )
    except (OSError, ValueError):  # no such group, or "max": no limit
        return float("inf")
    return max(bound - used + int(stat.get("inactive_file", 0)), 0)
