"""Parameters: kept, wrong ones, those of a kernel object; versions of saved models."""

import inspect
import sys
import warnings
from dataclasses import replace
from functools import wraps
from numbers import Real

from ..kernels import Kernel

# Address of the pages, such as "https://eigenkern.example.org/stable". None: they are
# on no public host yet, and estimators show no link.
DOCUMENTATION_URL = None


def keep_parameters(estimator, given):
    """Keep what a constructor was given, its ``locals()``, under the same names."""
    for name, value in given.items():
        if name != "self":
            setattr(estimator, name, value)


class Conveniences:
    """Parameters of kernel objects, answers to `gamma` and `C`, versions, links.

    Its ``_alpha_of_C`` is the alpha that equals C in SVC's objective
    1/2 |f|^2 + C sum_i loss_i. Errors about arguments name the class that was used.
    """

    #: Whether X may have gaps, and a DataFrame categories; ``_frame_rows(X, reset)``
    #: returns the rows of such a DataFrame, and None for other X.
    _takes_tables = False

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        for name in ("__init__", "fit"):
            if name in vars(cls):
                setattr(cls, name, _with_answers(vars(cls)[name]))

    def set_params(self, **params):
        """Set parameters of this estimator or of its nested objects.

        Parameters
        ----------
        **params : dict
            Parameters by name; those of a kernel object as ``kernel__bandwidth``. They
            replace the kernel: other estimators that share it do not change.

        Returns
        -------
        self : object
        """
        known = self.get_params(deep=False)
        _answer_users_of_svc(type(self), known, params, ValueError)
        names = [name for name in params if name.startswith("kernel__")]
        kernel = params.get("kernel", getattr(self, "kernel", None))
        # A user's own kernel function may set its parameters itself.
        if not names or not hasattr(self, "kernel") or hasattr(kernel, "set_params"):
            return super().set_params(**params)
        of_kernel = {name.removeprefix("kernel__"): params.pop(name) for name in names}
        super().set_params(**params)
        kernel = self.kernel
        if not isinstance(kernel, Kernel):
            hint = "; its bandwidth is the parameter bandwidth"
            raise ValueError(
                f"kernel must be a kernel object to set {names[0]}; got {kernel!r}"
                f"{hint * isinstance(kernel, str)}"
            )
        known = kernel.get_params()
        for name in of_kernel:
            if name not in known:
                raise ValueError(
                    f"kernel has no parameter {name!r}: {kernel!r} has {list(known)}"
                )
        self.kernel = replace(kernel, **of_kernel)
        return self

    def __getstate__(self):
        return super().__getstate__() | {"_eigenkern_version": _own_version()}

    def __setstate__(self, state):
        state = dict(state)
        saved = state.pop("_eigenkern_version", None)
        if saved not in (None, _own_version()):
            warnings.warn(
                f"{type(self).__name__} was saved by eigenkern {saved} and is loaded "
                f"by {_own_version()}: it may fail, or predict something else; load it "
                f"with eigenkern {saved}, or fit it again",
                UserWarning,
                stacklevel=2,
            )
        super().__setstate__(state)

    def _get_doc_link(self):
        """Return the address of the page of an estimator; "" if there is none."""
        if not DOCUMENTATION_URL:
            return ""
        return f"{DOCUMENTATION_URL}/generated/eigenkern.{type(self).__name__}.html"


def _own_version():
    return sys.modules[__package__.partition(".")[0]].__version__


def _with_answers(method):
    """Return a method whose errors about arguments have the name of the user's class.

    A constructor also answers `gamma` and `C`. The signature is the same.
    """
    signature, is_init = inspect.signature(method), method.__name__ == "__init__"

    @wraps(method)
    def answering(self, *args, **parameters):
        if is_init:
            known = signature.parameters
            _answer_users_of_svc(type(self), known, parameters, TypeError)
        try:
            signature.bind(self, *args, **parameters)
        except TypeError as error:
            name = type(self).__name__ + ("" if is_init else f".{method.__name__}")
            raise TypeError(f"{name}() {error}") from None
        return method(self, *args, **parameters)

    return answering


def _answer_users_of_svc(cls, known, parameters, error):
    """Raise an error that says what to pass if parameters are those of SVC alone."""
    unknown = {"gamma", "C"} & parameters.keys() - set(known)
    if unknown and "bandwidth" in known:
        name = "gamma" if "gamma" in unknown else "C"
        raise error(_answer(cls, name, parameters, "alpha" in known))


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
