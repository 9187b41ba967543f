"""Parameters of a kernel object, as parameters of the estimator."""

from dataclasses import replace

from ..kernels import Kernel

_PREFIX = "kernel__"


class KernelParameters:
    """Sets ``kernel__bandwidth`` and the like by replacing the kernel object.

    Kernels never change, and several estimators may share one.
    """

    def set_params(self, **params):
        """Set parameters of this estimator, or of what it holds.

        Parameters
        ----------
        **params : dict
            By name; those of a kernel object as ``kernel__bandwidth``. They replace
            the kernel, and leave others that share it as they are.

        Returns
        -------
        self : object
        """
        names = [name for name in params if name.startswith(_PREFIX)]
        kernel = params.get("kernel", getattr(self, "kernel", None))
        # A function of the user's own may have parameters, and set them itself.
        if not names or not hasattr(self, "kernel") or hasattr(kernel, "set_params"):
            return super().set_params(**params)
        of_kernel = {name.removeprefix(_PREFIX): params.pop(name) for name in names}
        super().set_params(**params)
        self.kernel = _replaced(self.kernel, of_kernel)
        return self


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
