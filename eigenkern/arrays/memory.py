"""Installed and free memory of the machine and a GPU; the cost of its first use."""

import math
import time
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

import array_api_compat
import numpy as np
import psutil

from .array import is_cupy, namespace

_CGROUP = Path("/sys/fs/cgroup")
# Share of a GPU's free memory to plan with. A margin, not measured, for workspaces of
# cuBLAS and cuSOLVER, and for what a memory pool loses to gaps between blocks.
_GPU_SHARE = 0.9
# Share of the address space left under a limit (ulimit -v) to plan with. With 100 MB
# left, two of 16 fits ran out of memory with a share of nine tenths, one with a half.
_ADDRESS_SHARE = 0.5
# How `touch_rate` measures: bytes per piece, most bytes, seconds after which it ends.
_TOUCHED_PIECE, _MOST_TOUCHED, _TOUCH_SECONDS = 2**23, 2**30, 0.05

# Linux limits reserved memory, and memory that could be written: what counts as used.
_LIMITED = {}
if psutil.LINUX:
    import resource

    _LIMITED = {resource.RLIMIT_AS: "vms", resource.RLIMIT_DATA: "data"}


# What `available` found, within `read_once`.
_read = ContextVar("_read", default=None)


@contextmanager
def read_once():
    """Let `available` read the free memory of the host once: it takes 0.5 ms."""
    token = _read.set({} if _read.get() is None else _read.get())
    try:
        yield
    finally:
        _read.reset(token)


def installed(xp, device):
    """Bytes of the memory of `device`, or of this container: what sizes follow."""
    on_gpu = _of_gpu(xp, device)
    return _of_host() if on_gpu is None else on_gpu[1]


def available(xp, device):
    """Bytes that can be allocated on `device` now, limits of the process included."""
    on_gpu = _of_gpu(xp, device)
    if on_gpu is not None:
        return on_gpu[0]
    known = _read.get()
    if known:
        return known["host"]
    found = min(
        psutil.virtual_memory().available,
        _cgroup_headroom(),
        _ADDRESS_SHARE * address_space(),
    )
    if known is not None:
        known["host"] = found
    return found


class TooLittle(ValueError):
    """Free memory that does not hold a known need; a fit adds to it what would fit."""


def check(n_bytes, xp, device, needs, remedy):
    """Raise an error, that something `needs`, unless `device` has free memory."""
    free = available(xp, device)
    if n_bytes > free:
        raise TooLittle(
            f"{needs}, but {free / 1e6:.0f} MB of memory are free; {remedy}"
        )


def _of_gpu(xp, device):
    """Return the free and the installed bytes of a GPU to plan with, or None."""
    if is_cupy(xp):
        import cupy

        with device:
            cupy.get_default_memory_pool().free_all_blocks()
            info = cupy.cuda.runtime.memGetInfo()
    elif array_api_compat.is_torch_namespace(xp) and str(device).startswith("cuda"):
        import torch

        torch.cuda.empty_cache()
        info = torch.cuda.mem_get_info(device)
    else:
        return None
    return [_GPU_SHARE * n_bytes for n_bytes in info]


@cache
def _of_host():
    limits = (_bytes_in_group(*group)[0] for group in _groups())
    return min(psutil.virtual_memory().total, *limits, float("inf"))


def address_space():
    """Bytes left under the limits of this process; infinite without limits."""
    left = float("inf")
    for kind, name in _LIMITED.items():
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            used = getattr(psutil.Process().memory_info(), name)
            left = min(left, max(limit - used, 0))
    return left


def n_bytes(X):
    """Bytes of a matrix of floats."""
    return X.shape[0] * X.shape[1] * namespace(X).finfo(X.dtype).bits // 8


def touch_rate(n_bytes):
    """Bytes/s at which one thread uses new memory for the first time.

    It took 0.05 to 3.3 s per GB; on one machine 0.07 s for recently freed pages and 2.2
    s for others, which the last pieces of up to a GB should reveal. It is measured once
    per process, in about 50 ms, on at most `n_bytes`, but at least 8 MB.
    """
    if not _measured_rate:
        n_bytes = int(min(n_bytes, _MOST_TOUCHED))
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
        rate = _TOUCHED_PIECE / min(seconds[-2:])
        # Rounded, so that noise seldom changes what is chosen.
        _measured_rate.append(1.5e9 * 4.0 ** round(math.log(rate / 1.5e9, 4)))
    return _measured_rate[0]


_measured_rate = []


def _cgroup_headroom():
    """Bytes left under the memory limits of this process's control groups."""
    left = (_bytes_in_group(*group) for group in _groups())
    return min((max(limit - used, 0) for limit, used in left), default=float("inf"))


def _groups():
    """Yield the control groups of this process: folder, files of limit and use."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
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
            if folder.is_relative_to(root):
                yield folder, limit, usage


def _bytes_in_group(folder, limit, usage):
    """Return the limit of a control group, and what is used but can't be dropped."""
    try:
        bound = int((folder / limit).read_text())
        used = int((folder / usage).read_text())
        stat = dict(
            line.split() for line in (folder / "memory.stat").read_text().splitlines()
        )
    except (OSError, ValueError):  # no such group, or "max": no limit
        return float("inf"), 0
    return bound, used - int(stat.get("inactive_file", 0))
