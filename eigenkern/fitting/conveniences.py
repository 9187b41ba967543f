"""Parameters: kept, wrong ones, those of a kernel object; versions of saved models."""

import inspect
import sys
import warnings
from dataclasses import replace
from difflib import get_close_matches
from functools import wraps
from numbers import Real
from typing import TYPE_CHECKING

from sklearn.base import ClassifierMixin, RegressorMixin

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
    """Parameters of kernel objects, answers to those of `SVC`, versions, links.

    Its ``_alpha_of_C`` is the alpha that equals C in SVC's objective
    1/2 |f|^2 + C sum_i loss_i. Errors about arguments name the class that was used.
    """

    #: Whether X may have gaps, and a DataFrame categories; ``_frame_rows(X, reset)``
    #: returns the rows of such a DataFrame, and None for other X.
    _takes_tables = False

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        for name in ("__init__", "fit", "predict", "partial_fit", "fit_batches"):
            method = inspect.getattr_static(cls, name, None)
            if hasattr(method, "check"):  # of `available_if`
                method.fn = _with_answers(method.fn)
            elif method is not getattr(object, name, None):
                setattr(cls, name, _with_answers(method))

    if not TYPE_CHECKING:  # attributes that exist are typed

        def __getattr__(self, name):
            """Raise an AttributeError that says why a method is missing."""
            own = type(self).__name__
            said = f"{own!r} object has no attribute {name!r}"
            method = inspect.getattr_static(type(self), name, None)
            if hasattr(method, "check"):
                try:
                    method.check(self)
                except AttributeError as error:
                    said = f"This {own!r} has no attribute {name!r}: {error}"
            elif name in ("partial_fit", "fit_batches") and _predicts(type(self)):
                said += (
                    ": data that come in pieces need EigenPro*(n_centers=500), "
                    "LinearEigenPro* or DSG*"
                )
            elif name in _FITTED_ANSWERS and "dual_coef_" in vars(self):
                said += f": {_FITTED_ANSWERS[name]}" * hasattr(type(self), "predict")
            elif name.endswith("_") and hasattr(vars(self).get("estimator_"), name):
                said += f": it is estimator_.{name}"
            raise AttributeError(said, name=name, obj=self)

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
        inner = [name for name in params if name.startswith("estimator__")]
        if inner and params.get("estimator", known.get("estimator", self)) is None:
            given = f"{type(self).__name__}({type(self)._default.__name__}())"
            raise ValueError(
                f"estimator must be given to set {inner[0]}: {given}; None chooses its "
                "parameters"
            )
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
                advice = f"; write {type(kernel).__name__}.from_gamma(gamma)"
                advice *= name == "gamma" and hasattr(kernel, "from_gamma")
                raise ValueError(
                    f"kernel has no parameter {name!r}: {kernel!r} has {list(known)}"
                    f"{advice}"
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

    They also answer the parameters of scikit-learn's models. The signature is the same.
    """
    if hasattr(method, "_answers"):
        return method
    signature, is_init = inspect.signature(method), method.__name__ == "__init__"

    @wraps(method)
    def answering(self, *args, **parameters):
        if is_init:
            known = signature.parameters
            passed = dict(zip(list(known)[1:], args, strict=False)) | parameters
            _answer_users_of_svc(type(self), known, passed, TypeError)
        try:
            signature.bind(self, *args, **parameters)
        except TypeError as error:
            name = type(self).__name__ + ("" if is_init else f".{method.__name__}")
            hint = ""
            if method.__name__ == "fit_batches":
                hint = ": it takes an iterable of pieces (X, y)"
            elif "eval_set" in parameters and "X_val" in signature.parameters:
                hint = ": rows to score epochs on are X_val and y_val"
            elif is_init and parameters.keys() & {"return_std", "return_cov"}:
                hint = ": it is a parameter of predict, where a model has it"
            elif "return_std" in parameters and issubclass(type(self), RegressorMixin):
                hint = ": RFMRegressor and NystromRegressor have it"
            elif "return_std" in parameters and hasattr(type(self), "predict_proba"):
                hint = ": predict_proba has the probabilities"
            elif "return_cov" in parameters and hasattr(type(self), "predict"):
                hint = ": RFMRegressor has return_std, NystromRegressor has both"
            else:
                hint = _similar(parameters, signature.parameters)
            raise TypeError(f"{name}() {error}{hint}") from None
        return method(self, *args, **parameters)

    answering._answers = True
    return answering


def _similar(parameters, known):
    """Return the name that an unknown one may mean, as part of a message."""
    for name in sorted(parameters.keys() - known.keys()):
        for other in get_close_matches(name, known, 1, 0.8):
            return f": did you mean {other!r}?"
    return ""


def _predicts(cls):
    """Whether a class is one of regressors or classifiers."""
    return issubclass(cls, RegressorMixin | ClassifierMixin)


def _answer_users_of_svc(cls, known, parameters, error):
    """Raise an error that says what to pass in place of scikit-learn's parameters."""
    answers = []
    for name in parameters.keys() - set(known):
        said = ""
        if name in _ANSWERS:
            said = _ANSWERS[name](cls, known, parameters)
        elif name in _SYNONYMS and _SYNONYMS[name] in known:
            said = f"it is {_SYNONYMS[name]}"
        elif "estimator" in known and name in _parameters_of(cls._default):
            inner = f"{cls._default.__name__}({name}={parameters[name]!r})"
            said = f"it is that of its estimator, {cls.__name__}({inner})"
        if said:
            answers.append(f"{cls.__name__} has no parameter {name!r}: {said}")
    if answers:
        raise error("; ".join(sorted(answers)))


def _parameters_of(cls):
    return inspect.signature(cls).parameters


def _kernel_of(cls, known, _):
    """Return where the kernel is."""
    if "estimator" in known:
        inner = f"{cls._default.__name__}('gaussian')"
        return (
            f"the kernel is that of its estimator: write {cls.__name__}({inner}), "
            "which then has the parameter estimator__kernel"
        )
    return "it is linear; EigenPro*, Nystrom* and DSG* have kernels"


def _gamma_of(cls, known, parameters):
    """Return the bandwidth to pass instead of gamma."""
    if "bandwidth" not in known:
        return _kernel_of(cls, known, parameters)
    gamma, kernel = parameters["gamma"], parameters.get("kernel")
    names = {"laplacian": "Manhattan", "poly": "Polynomial", "polynomial": "Polynomial"}
    if kernel in ("laplacian", "poly", "polynomial") and isinstance(gamma, Real):
        return (
            f"gamma={gamma!r} of scikit-learn's kernel={kernel!r} is "
            f"kernel={names[kernel]}.from_gamma({gamma!r}) of eigenkern.kernels"
        )
    return _bandwidth_of(gamma)


def _alpha_of(cls, known, parameters):
    """Return the penalty to pass instead of C."""
    if "alpha" not in known:
        chosen = "estimator" in known
        return "the penalty is chosen" if chosen else "there is no penalty of its own"
    # With the log loss the penalty is half of |f|^2, as in SVC.
    halved = parameters.get("loss") == "log_loss"
    alpha = "1 / (C n)" if halved else cls._alpha_of_C
    return (
        f"C={parameters['C']!r} weighs loss and penalty like alpha = {alpha}, for n "
        "training rows; alpha='auto', the default, chooses it"
    )


def _polynomial_of(cls, known, parameters):
    """Return the kernel that has a degree."""
    if "bandwidth" not in known:
        return _kernel_of(cls, known, parameters)
    return "kernel=Polynomial(degree=3, coef0=1.0) of eigenkern.kernels has it"


def _regressor_of(cls, _, parameters):
    """Return the regressor that has the parameter."""
    if not issubclass(cls, RegressorMixin):
        return ""
    if "epsilon" in parameters:
        return (
            "the squared error needs none; DSGRegressor(loss='epsilon_insensitive') "
            "has it, and is slower"
        )
    value = parameters.get("quantiles", parameters.get("quantile"))
    return f"DSGRegressor(loss='pinball', quantile={value!r}) has it"


def _losses_of(cls, *_):
    """Return which estimators have other losses."""
    if issubclass(cls, RegressorMixin):
        return "it fits the squared error; DSGRegressor has other losses"
    others = "DSGClassifier, NystromClassifier and FalkonLikeClassifier have others"
    return f"it fits the squared error; {others}" * issubclass(cls, ClassifierMixin)


def _end_of(_, known, __):
    """Return what keeps a model from fitting noise."""
    if "selection" in known and "alpha" not in known:
        return "left-out rows choose the iteration (selection)"
    penalty = "the penalty is chosen instead, on rows that are left out"
    return penalty * ("alpha" in known or "estimator" in known)


def _if_it_has(method, answer):
    """Return a function that returns the answer for classes with a method."""
    return lambda cls, *_: answer * hasattr(cls, method)


# What a model on kernels has instead of attributes of scikit-learn's models.
_FITTED_ANSWERS = dict.fromkeys(
    ("support_vectors_", "support_", "n_support_", "X_fit_"),
    "every row of centers_ counts, with dual_coef_",
) | {
    "coef_": "columns have no weights of their own, only centers_, in dual_coef_",
    "feature_importances_": (
        "sklearn.inspection.permutation_importance measures them, and RFMRegressor and "
        "RFMClassifier have them"
    ),
}
# Parameters with the same meaning as those of other packages.
_SYNONYMS = {
    "epochs": "max_iter",
    "n_epochs": "max_iter",
    "n_iter": "max_iter",
    "seed": "random_state",
    "sigma": "bandwidth",
    "length_scale": "bandwidth",
    "learning_rate": "step_size",
    "eta0": "step_size",
    "lambda_": "alpha",
    "reg_lambda": "alpha",
    "nu": "contamination",
}
# What to pass instead of a parameter of scikit-learn's models; "" if nothing is known.
_ANSWERS = {
    "C": _alpha_of,
    "checkpoint": lambda cls, *_: (
        "it is an argument of fit" * ("checkpoint" in _parameters_of(cls.fit))
    ),
    "coef0": _polynomial_of,
    "decision_function_shape": _if_it_has(
        "decision_function", "decision_function has a column for each class ('ovr')"
    ),
    "degree": _polynomial_of,
    "early_stopping": _end_of,
    "epsilon": _regressor_of,
    "gamma": _gamma_of,
    "kernel": _kernel_of,
    "n_components": lambda _, known, __: "it has n_centers" * ("n_centers" in known),
    "break_ties": _if_it_has("decision_function", "predict breaks ties"),
    "fit_intercept": lambda *_: "every model has an intercept",
    "kernel_params": lambda _, known, __: (
        "a kernel object has them, such as Matern(nu=1.5) of eigenkern.kernels"
        * ("kernel" in known)
    ),
    "loss": _losses_of,
    "normalize_y": lambda cls, *_: (
        "the mean of y is the intercept, and its scale changes nothing"
        * issubclass(cls, RegressorMixin)
    ),
    "penalty": lambda _, known, __: (
        "it is the squared norm, times alpha" * ("alpha" in known)
    ),
    "n_jobs": lambda *_: "all cores are used; OMP_NUM_THREADS limits them",
    "probability": _if_it_has("predict_proba", "predict_proba needs none"),
    "quantile": _regressor_of,
    "quantiles": _regressor_of,
    "shrinking": lambda *_: "nothing is shrunk",
}


def _bandwidth_of(gamma):
    """Return the bandwidth to pass instead of gamma."""
    bandwidth, as_kernel = "1 / (2 gamma) ** 0.5", ""
    if isinstance(gamma, str):
        bandwidth = "(n_features / 2) ** 0.5" if gamma == "auto" else repr(gamma)
    elif isinstance(gamma, Real) and gamma > 0:
        bandwidth += f" = {(2.0 * gamma) ** -0.5:.4g}"
        as_kernel = f", or kernel=Gaussian.from_gamma({gamma!r}) of eigenkern.kernels"
    return (
        f"gamma={gamma!r} of SVC's kernel='rbf' is kernel='gaussian' with bandwidth = "
        f"{bandwidth}{as_kernel}"
    )
