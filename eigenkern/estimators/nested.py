"""Parameters of a kernel object, set through the estimator."""

from dataclasses import replace

from ..kernels import Kernel

_PREFIX = "kernel__"


def set_with_kernel(estimator, set_params, params):
    """Set parameters; for ``kernel__bandwidth`` and the like, make a new kernel.

    Kernels never change, as several estimators may share one. `set_params` is
    scikit-learn's method, which sets the other parameters.
    """
    names = [name for name in params if name.startswith(_PREFIX)]
    kernel = params.get("kernel", getattr(estimator, "kernel", None))
    # A user's own kernel function may set its parameters itself.
    if not names or not hasattr(estimator, "kernel") or hasattr(kernel, "set_params"):
        return set_params(**params)
    of_kernel = {name.removeprefix(_PREFIX): params.pop(name) for name in names}
    set_params(**params)
    estimator.kernel = _replaced(estimator.kernel, of_kernel)
    return estimator


def _replaced(kernel, params):
    """Return a kernel object with other parameters."""
    name = next(iter(params))
    if not isinstance(kernel, Kernel):
        hint = "; its bandwidth is the parameter bandwidth" * isinstance(kernel, str)
        raise ValueError(
            f"kernel must be a kernel object to set {_PREFIX}{name}; got "
            f"{kernel!r}{hint}"
        )
    known = kernel.get_params()
    for name in params:
        if name not in known:
            raise ValueError(
                f"kernel has no parameter {name!r}: {kernel!r} has {list(known)}"
            )
    return replace(kernel, **params)
