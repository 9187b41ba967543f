"""The plan of a fit, made before any number is computed."""

import math

from ..plan.costs import Shape
from ..plan.parameters import is_precomputed
from ..problems.kernel_parameters import named_kernel
from ..rows.lazy_rows import is_lazy


def plan_of(model, X, n_outputs):
    """Return the plan of a fit to rows, all distinct, or to a stand-in for them."""
    labels = hasattr(model, "class_weight")
    n = X.shape[0]
    n_held_out = math.ceil(model._part_held_out(n) * n)
    return model._plan(_shape(model, X, n_outputs, labels, n - n_held_out, n_held_out))


def shape_of(model, data, n_train=None, held_out=None):
    """Return the `Shape` of a fit to data: `n_train` distinct rows, or all."""
    return _shape(
        model,
        data.X,
        data.targets.shape[1],
        data.groups is not None,
        data.X.shape[0] if n_train is None else n_train,
        0 if held_out is None else len(held_out),
    )


def _shape(model, X, n_outputs, labels, n_train, n_held_out):
    has_kernel = hasattr(model, "kernel") and not is_precomputed(model)
    kernel, machines = named_kernel(model.kernel) if has_kernel else None, (1, 0.0)
    if is_lazy(X):
        machines = X.n_machines, X.message_seconds
    return Shape(
        model, X, n_outputs, labels, kernel, n_train, n_held_out, None, *machines
    )
