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
    """An estimator whose constructor says what to pass instead of `gamma` and `C`."""

    # Some versions of Python (3.11.2) would take that of ``__new__``.
    __signature__ = _SignatureOfInit()

    def __new__(cls, *args, **parameters):
        # Not in __init__: scikit-learn reads the parameters from its signature.
        refuse_names_of_svc(cls, parameters)
        return super().__new__(cls)


def refuse_names_of_svc(cls, parameters):
    """Raise a TypeError that says what to pass instead of `gamma` and `C`.

    Parameters
    ----------
    cls : type
        The estimator. Its ``_alpha_of_C`` is the alpha that equals C in SVC's objective
        1/2 |f|^2 + C sum_i loss_i.
    parameters : dict
        The arguments of its constructor.
    """
    unknown = {"gamma", "C"} & parameters.keys()
    if not unknown:  # saves inspecting the signature
        return
    known = inspect.signature(cls.__init__).parameters
    unknown -= known.keys()
    if "bandwidth" not in known or not unknown:
        return
    name = "gamma" if "gamma" in unknown else "C"
    answer = f"{cls.__name__} has no parameter {name!r}"
    if name == "gamma":
        answer += f": {_bandwidth_of(parameters[name])}"
    elif "alpha" in known:
        # With the log loss the penalty is half of |f|^2, as in SVC.
        halved = parameters.get("loss") == "log_loss"
        alpha = "1 / (C n)" if halved else cls._alpha_of_C
        answer += (
            f": C={parameters[name]!r} weighs loss and penalty like alpha = "
            f"{alpha}, for n training rows"
        )
    else:
        answer += ", nor a penalty of its own"
    raise TypeError(answer)


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


# Address of the pages, such as "https://eigenkern.example.org/stable". None: they are
# on no public host yet, and estimators show no link.
DOCUMENTATION_URL = None


def link_to_documentation(estimator):
    """Return the address of the page of an estimator; "" if there is none."""
    if not DOCUMENTATION_URL:
        return ""
    return f"{DOCUMENTATION_URL}/generated/eigenkern.{type(estimator).__name__}.html"
