"""Free memory: of the machine, of its control groups, of a GPU."""

from pathlib import Path

import array_api_compat
import psutil

from .array import is_cupy, namespace

_CGROUP = Path("/sys/fs/cgroup")
# Part of a GPU's free memory that may be planned with: its libraries need some too.
_GPU_SHARE = 0.9


def available(xp, device):
    """Bytes that can be allocated on `device` now, the cgroup limit included.

    On a GPU this is nine tenths of what is free, once the library's memory pool has
    returned its unused blocks.
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
    return min(psutil.virtual_memory().available, _cgroup_headroom())


def n_bytes(X):
    """Bytes of a matrix of floats."""
    return X.shape[0] * X.shape[1] * namespace(X).finfo(X.dtype).bits // 8


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
