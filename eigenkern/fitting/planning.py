"""The plan of a fit, made before any number is computed; what it says of long fits."""

from bisect import bisect_left
from contextlib import suppress
from dataclasses import replace

from sklearn.base import clone

from ..arrays import memory
from ..arrays.devices import on_gpu
from ..arrays.machine import CENTER_TILE, CPU
from ..arrays.threads import n_blas_threads
from ..plan.costs import Shape
from ..plan.parameters import calibrates, has_twin, is_precomputed, n_to_calibrate
from ..problems.kernel_parameters import named_kernel
from ..rows.lazy_rows import is_lazy
from .validation import warn_user

# Seconds of a fit above which a warning says what is faster, unless it has few rows.
_LONG, _FEW_ROWS = 600, 2000
# What to try instead, from the most accurate to the fastest.
_FASTER = (
    *({"n_centers": p} for p in (20_000, 10_000, 5000, 2000, 1000)),
    *({"max_metric_rows": m} for m in (5000, 2000)),
    *({"max_iter": t} for t in (10, 5, 2)),
)
# Where memory is short: the smallest size to propose, and the share of the free memory
# that a proposal may take, as a second try may find less: once 0.93 times as much.
_LEAST, SHARE = 10, 0.9


def plan_of(model, X, n_outputs):
    """Return the plan of a fit to rows, all distinct, or to a stand-in for them."""
    n, labels = X.shape[0], hasattr(model, "class_weight")
    shape = _shape(model, X, n_outputs, labels, *model._parts(n))
    plan = model._plan(shape)
    if plan.method == "direct" or not (labels and calibrates(model)):
        return plan
    n_held_out = n_to_calibrate(n)
    n_train = n if has_twin(model) else n - n_held_out
    return model._plan(replace(shape, n_train=n_train, n_held_out=n_held_out))


def shape_of(model, data, n_train=None, held_out=None, n_distinct=None):
    """Return the `Shape` of a fit to data: to `n_train` rows, or all."""
    n_train = data.X.shape[0] if n_train is None else n_train
    n_held_out = 0 if held_out is None else len(held_out)
    labels, n_outputs = data.groups is not None, data.targets.shape[1]
    return replace(
        _shape(model, data.X, n_outputs, labels, n_train, n_held_out),
        n_distinct=n_distinct,
        given=data.validation is not None,
        indefinite=data.indefinite,
    )


def _shape(model, X, n_outputs, labels, n_train, n_held_out):
    has_kernel = hasattr(model, "kernel") and not is_precomputed(model)
    kernel, machines = named_kernel(model.kernel) if has_kernel else None, (1, 0.0)
    if is_lazy(X):
        machines = X.n_machines, X.message_seconds
    return Shape(
        model, X, n_outputs, labels, kernel, n_train, n_held_out, None, *machines
    )


def _others(model, X, n_outputs):
    """Yield other parameters of a model, and the plans of fits with them."""
    if hasattr(model, "estimator"):  # fitted to rows of a learned metric
        inner = clone(model._inner())
        for text, _ in _others(inner, X, n_outputs):
            name, value = text.split("=")
            if name == "n_centers":
                inner = clone(inner).set_params(n_centers=int(value))
                other = clone(model).set_params(estimator=inner)
                text = f"estimator={type(inner).__name__}({text})"
                yield text, plan_of(other, X, n_outputs)
    for parameters in _FASTER:
        ((name, value),) = parameters.items()
        given = getattr(model, name, 0)
        smaller = not isinstance(given, int) or given > value
        if hasattr(model, name) and smaller and value < X.shape[0]:
            with suppress(ValueError):  # parameters that do not go together
                other = clone(model).set_params(**parameters)
                other._check_parameters()
                yield f"{name}={value}", plan_of(other, X, n_outputs)


@memory.read_once()
def planned_seconds(model, X, n_outputs):
    """Return the seconds that a fit should take, or None if that is not known."""
    if X.shape[0] <= _FEW_ROWS:
        return None
    plan = plan_of(model, X, n_outputs)
    return plan.seconds if _is_on_this_cpu(plan, X) else None


def _is_on_this_cpu(plan, X):
    """Whether the rates of this machine are those of a fit."""
    return not (on_gpu(plan.shape.xp, plan.shape.device) or is_lazy(X))


@memory.read_once()
def warn_of_long_fit(model, X, n_outputs):
    """Warn of a fit of more than ten minutes, and say what takes less."""
    if X.shape[0] <= _FEW_ROWS:
        return
    plan = plan_of(model, X, n_outputs)
    if 1e6 * plan.memory["total"] > memory.available(plan.shape.xp, plan.shape.device):
        return  # it ends soon
    # Rates are only measured if it matters.
    if not _is_on_this_cpu(plan, X) or plan.usual_seconds < _LONG / 3:
        return
    if plan.seconds <= _LONG:
        return
    faster = [(text, other.seconds) for text, other in _others(model, X, n_outputs)]
    faster = [one for one in faster if one[1] < 0.5 * plan.seconds]
    enough = [one for one in faster if one[1] <= _LONG] or faster[-1:]
    advice = "; fewer rows take less"
    if enough:
        text, seconds = enough[0]
        advice = f"; {text} takes about {_duration(seconds)}"
    warn_user(
        f"{type(model).__name__}.fit is expected to take {_duration(plan.seconds)}"
        f"{advice}",
        UserWarning,
    )


@memory.read_once()
def what_fits(model, X, free, n_outputs=1):
    """Return what takes at most `free` bytes, or the least, as text; "" if unknown.

    It is the largest value of the first parameter that is enough by itself, or else the
    most rows.
    """
    inner = clone(model._inner()) if hasattr(model, "estimator") else None

    def needed(name, value):
        rows, smaller = X, clone(model)
        if name == "rows":
            rows = X[:value, : value if is_precomputed(model) else None]
        elif hasattr(model, name):
            smaller.set_params(**{name: value})
        else:
            smaller.set_params(estimator=clone(inner).set_params(**{name: value}))
        try:
            smaller._check_parameters()
            return plan_of(smaller, rows, n_outputs).needed
        except (ValueError, TypeError, MemoryError, RuntimeError):
            return float("inf")  # parameters that do not go together

    def text_of(name, value):
        text = f"{name}={value} takes"
        if name == "rows":
            text = f"{value} rows take"
        elif not hasattr(model, name):
            text = f"estimator={type(inner).__name__}({name}={value}) takes"
        return f"{text} about {needed(name, value) / 1e6:.0f} MB"

    whole, least = needed("rows", X.shape[0]), []
    # If the whole fit should be possible, the plan has too little for it.
    limit = whole / 2 if whole <= free else SHARE * free
    names = [n for n in model._takes_less if hasattr(model, n) or hasattr(inner, n)]
    for name in (*names, "rows"):
        given = getattr(model, name, None)
        most = given - 1 if isinstance(given, int) else X.shape[0] - 1
        values = range(_LEAST, most + 1)
        if name == "cache_size":
            values = () if given == 0 else (0,)
        n_fitting = bisect_left(values, True, key=lambda v: needed(name, v) > limit)
        if n_fitting:
            return text_of(name, values[n_fitting - 1])
        if values and needed(name, values[0]) < float("inf"):
            least.append((needed(name, values[0]), name, values[0]))
    if not least:
        return ""
    least, *proposal = min(least)
    if least <= free:
        return text_of(*proposal)
    return f"even {text_of(*proposal)}, which must be free"


def rows_at_a_time(model, X, free):
    """Return how many rows a fitted model takes at a time in `free` bytes, as text."""
    # Checked, converted and encoded rows, values, columns of features; tiles, or rows.
    free, d = SHARE * free, X.shape[1]
    width = 8 * (4 * d + 2 * getattr(model, "_n_features_out", 16))
    tiles, of_row = CPU.tile_bytes * n_blas_threads(), 8 * (4 * CENTER_TILE + 5 * d)
    factor = getattr(model, "_posterior_factor", None)
    if factor is not None:  # K, P, U and copies; in a covariance m numbers for each row
        width += 48 * factor.shape[0] + 8 * int(free**0.5)
    n_rows = int(max(free / (width + of_row), (free - tiles) / width))
    if n_rows:
        return f"{n_rows} rows take about {free / 1e6:.0f} MB"
    needed = (width + of_row) / 1e6
    return f"even 1 row takes about {needed:.1f} MB, which must be free"


def _duration(seconds):
    """Return seconds as text, in a unit that suits them."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
