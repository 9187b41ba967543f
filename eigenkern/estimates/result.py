"""The estimate of a fit, and how it is printed."""

from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Estimate:
    """What a fit would take, as `estimate` returns it.

    Attributes
    ----------
    estimator : str
        Name of its class.
    n_samples, n_features, n_outputs : int
    dtype : str
    method : str
        How the model is computed: "direct", the name of an algorithm, "factor", "path",
        "logistic" (Newton steps), "iterations".
    n_centers : int or None
        Centers of the model; None if it has features instead.
    batch_size : int or None
        Rows per step; None if there are no steps.
    n_epochs : int
        Epochs, iterations or Newton steps assumed: the maximum or the usual number; 1
        for a solution in closed form.
    memory : dict of float
        MB in use at the peak: "data copy", "centers", "kernel matrix",
        "preconditioner", "workspace", and their "total".
    flops : float
        Floating-point operations.
    seconds : float
        Time on this machine.
    """

    estimator: str
    n_samples: int
    n_features: int
    n_outputs: int
    dtype: str
    method: str
    n_centers: int | None
    batch_size: int | None
    n_epochs: int
    memory: dict
    flops: float
    seconds: float

    def _rows(self):
        """Return names and values, as text."""
        seen = {k: mb for k, mb in self.memory.items() if mb >= 0.05 or k == "total"}
        return [
            ("method", self.method),
            ("centers", "-" if self.n_centers is None else str(self.n_centers)),
            ("batch size", "-" if self.batch_size is None else str(self.batch_size)),
            ("epochs assumed", str(self.n_epochs)),
            *((f"memory: {name}", _text(mb, "MB")) for name, mb in seen.items()),
            ("operations", f"{self.flops:.2g} flop"),
            ("time", _text(self.seconds, "s")),
        ]

    @property
    def _title(self):
        return (
            f"{self.estimator} on {self.n_samples} x {self.n_features} {self.dtype}, "
            f"{self.n_outputs} output{'s' if self.n_outputs > 1 else ''}"
        )

    def __repr__(self):
        lines = [f"  {name:<24}{value:>14}" for name, value in self._rows()]
        return "\n".join([self._title, *lines])

    def _repr_html_(self):
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th>"
            f"<td style='text-align:right'>{escape(value)}</td></tr>"
            for name, value in self._rows()
        )
        return f"<table><caption>{escape(self._title)}</caption>{rows}</table>"


def _text(value, unit):
    """Return a number with three digits, and its unit."""
    digits = 2 if value < 1 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {unit}"
