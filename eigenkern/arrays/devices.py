"""The parameter `device`: where to compute."""

from contextlib import nullcontext, suppress

import array_api_compat
import numpy as np

from .array import Location, is_cupy, location_of


def compute_device(device, X):
    """Return the `Location` that `device` asks for; "auto" is that of the array X."""
    devices = compute_devices(device, X)
    if len(devices) > 1:
        raise ValueError(
            "device must be one device: only models on kernel matrices compute on "
            f"several; got {device!r}"
        )
    return devices[0]


def compute_devices(device, X):
    """Return the `Location` of every device in a list, or of a single device."""
    if not isinstance(device, list | tuple):
        device = [device]
    elif not device or "auto" in map(str, device):
        raise ValueError(
            "device must be one device or a list that names at least one, 'auto' not "
            f"among them; got {device!r}"
        )
    devices = [_location(one, X) for one in device]
    if any(xp != devices[0][0] for xp, _ in devices):
        raise ValueError(
            f"device must not mix 'cpu' and GPUs in a list; got {device!r}"
        )
    xp, first = devices[0]
    if array_api_compat.is_cupy_array(X) and is_cupy(xp) and X.device != first:
        raise ValueError(
            f"device must be 'auto' or begin with the GPU that X is on, {X.device}; "
            f"got {device!r}"
        )
    return devices


def _location(device, X):
    text = str(device)  # an array has no truth value
    if text == "auto":
        return location_of(X)
    if text == "cpu":
        return location_of(np.empty(0))
    name, _, index = text.partition(":")
    if name != "cuda" or (index and not index.isdigit()):
        raise ValueError(
            "device must be 'auto', 'cpu', 'cuda' or 'cuda:N', or a list of devices; "
            f"got {device!r}"
        )
    try:
        import cupy

        n_gpus = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise ValueError(
            f"device={device!r} needs a CUDA GPU and the package CuPy (the extras "
            f"'cuda12' and 'cuda13' install it); got: {error}. Use device='auto' to "
            "compute where X lives"
        ) from error
    if int(index or 0) >= n_gpus:
        raise ValueError(f"device={device!r} is not there: {n_gpus} GPU(s) found")
    import array_api_compat.cupy as xp

    return Location(xp, cupy.cuda.Device(int(index or 0)))


def working_device(device, X):
    """Return a context for work on raw rows X on the device that `device` asks for."""
    # CuPy computes on its current device, wherever the arrays are.
    named = isinstance(device, list | tuple) or str(device).startswith("cuda")
    if named or array_api_compat.is_cupy_array(X):
        with suppress(ValueError):  # `compute_devices` raises it again, later
            location = compute_devices(device, X)[0]
            if is_cupy(location.xp):
                return location.device
    return nullcontext()


def on_gpu(xp, device):
    """Whether arrays of `xp` on `device` are on a CUDA device."""
    return is_cupy(xp) or str(device).startswith("cuda")
