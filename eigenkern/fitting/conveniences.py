"""Parameters by the names of SVC, those of a kernel object, the link to the guide."""

import inspect
from dataclasses import replace
from numbers import Real

from ..kernels import Kernel


class _SignatureOfInit:
    """The signature of a class: that of ``__init__``, also where Python has another."""

    def __get__(self, instance, cls):
        signature = inspect.signature(cls.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])


class HelpsUsersOfSVC:
    """An estimator whose constructor says what to pass instead of `gamma` and `C`.

    Its ``_alpha_of_C`` is the alpha that equals C in SVC's objective
    1/2 |f|^2 + C sum_i loss_i.
    """

    # Some versions of Python (3.11.2) would take that of ``__new__``.
    __signature__ = _SignatureOfInit()

    def __new__(cls, *args, **parameters):
        # Not in __init__: scikit-learn reads the parameters from its signature.
        unknown = {"gamma", "C"} & parameters.keys()
        if unknown:  # saves inspecting the signature
            known = inspect.signature(cls.__init__).parameters
            unknown -= known.keys()
            if "bandwidth" in known and unknown:
                name = "gamma" if "gamma" in unknown else "C"
                raise TypeError(_answer(cls, name, parameters, "alpha" in known))
        return super().__new__(cls)


def _answer(cls, name, parameters, has_alpha):
    """Return what to pass instead of `gamma` or `C`."""
    answer, value = f"{cls.__name__} has no parameter {name!r}", parameters[name]
    if name == "gamma":
        return f"{answer}: {_bandwidth_of(value)}"
    if not has_alpha:
        return answer + ", nor a penalty of its own"
    # With the log loss the penalty is half of |f|^2, as in SVC.
    halved = parameters.get("loss") == "log_loss"
    alpha = "1 / (C n)" if halved else cls._alpha_of_C
    return (
        f"{answer}: C={value!r} weighs loss and penalty like alpha = {alpha}, for n "
        "training rows"
    )


def _bandwidth_of(gamma):
    """Return the bandwidth to pass instead of gamma."""
    bandwidth = "1 / (2 gamma) ** 0.5"
    if isinstance(gamma, str):
        bandwidth = "(n_features / 2) ** 0.5" if gamma == "auto" else repr(gamma)
    elif isinstance(gamma, Real) and gamma > 0:
        bandwidth += f" = {(2.0 * gamma) ** -0.5:.4g}"
    return (
        f"gamma={gamma!r} of SVC's kernel='rbf' is kernel='gaussian' with bandwidth = "
        f"{bandwidth}; see also Polynomial.from_gamma of eigenkern.kernels"
    )


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
    kernel = estimator.kernel
    if not isinstance(kernel, Kernel):
        hint = "; its bandwidth is the parameter bandwidth" * isinstance(kernel, str)
        raise ValueError(
            f"kernel must be a kernel object to set {names[0]}; got {kernel!r}{hint}"
        )
    known = kernel.get_params()
    for name in of_kernel:
        if name not in known:
            raise ValueError(
                f"kernel has no parameter {name!r}: {kernel!r} has {list(known)}"
            )
    estimator.kernel = replace(kernel, **of_kernel)
    return estimator


# Address of the pages, such as "https://eigenkern.example.org/stable". None: they are
# on no public host yet, and estimators show no link.
DOCUMENTATION_URL = None


def link_to_documentation(estimator):
    """Return the address of the page of an estimator; "" if there is none."""
    if not DOCUMENTATION_URL:
        return ""
    return f"{DOCUMENTATION_URL}/generated/eigenkern.{type(estimator).__name__}.html"
