"""Plots of fitted models, in scikit-learn's Display convention."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from .arrays.array import ArrayLike, to_numpy
from .fitting.validation import check_has_fitted
from .plan.parameters import has_log_loss

__all__ = [
    "ConvergenceDisplay",
    "MetricDisplay",
    "RegularizationPathDisplay",
    "SpectrumDisplay",
]

# Most features with a bar or a label that can be read in a figure.
_MAX_FEATURES = 20


def _axes(ax):
    """Return (figure, axes); matplotlib is imported only here."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "plotting needs matplotlib: install the extra, eigenkern[plot]"
        ) from error
    if ax is None:
        return plt.subplots(layout="constrained")
    return ax.figure, ax


# The convention: parameters by keyword, stored as attributes; no other comparison than
# by identity.
_display = dataclass(kw_only=True, eq=False, repr=False)


@_display
class SpectrumDisplay:
    """Eigenvalues by which the preconditioner was chosen.

    It shows the eigenvalues of the subsample's kernel matrix, the largest eigenvalue of
    the preconditioned kernel as estimated on held-out rows, and the chosen q. Where the
    second curve leaves the first, the eigenvectors overfit the subsample: the step must
    suit the second curve.

    It is recommended to use `from_estimator`; all parameters are stored as attributes.

    Parameters
    ----------
    n_components : array of shape (k,)
        The values of q that were measured, increasing.
    in_sample : array of shape (k,)
        lambda_{q+1} of the subsample.
    held_out : array of shape (k,)
        The largest eigenvalue of the preconditioned kernel, measured on rows among
        which those of the subsample have no larger a share than among all rows.
    chosen : int
        The q in use.
    name : str, default=None
        For the title.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    See Also
    --------
    ConvergenceDisplay : Loss of the epochs.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from eigenkern import EigenProRegressor, SpectrumDisplay
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = EigenProRegressor(algorithm="eigenpro2", random_state=0)
    >>> display = SpectrumDisplay.from_estimator(model.fit(X, y))
    """

    n_components: Any
    in_sample: Any
    held_out: Any
    chosen: Any
    name: str | None = None

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, ax: Any = None, name: str | None = None
    ) -> Self:
        """Plot the eigenvalues that a fit measured.

        Parameters
        ----------
        estimator : fitted EigenProRegressor or EigenProClassifier
        ax : matplotlib Axes, default=None
            None: a new figure.
        name : str, default=None
            For the title; None: the name of the estimator's class.

        Returns
        -------
        SpectrumDisplay

        Raises
        ------
        ValueError
            If the estimator is of another kind.
        """
        check_has_fitted(estimator, "tuning_results_", cls.__name__)
        results = estimator.tuning_results_
        return cls(
            n_components=results["n_components"],
            in_sample=results["in_sample_eigenvalue"],
            held_out=results["top_eigenvalue"],
            chosen=estimator.n_components_,
            name=type(estimator).__name__ if name is None else name,
        ).plot(ax=ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            None: a new figure.

        Returns
        -------
        SpectrumDisplay
        """
        self.figure_, self.ax_ = _axes(ax)
        ax = self.ax_
        q = self.n_components
        label = "on the subsample, $\\lambda_{q+1}$"
        ax.plot(q, self.in_sample, marker="o", label=label)
        ax.plot(q, self.held_out, marker="s", label="estimated on held-out rows")
        ax.axvline(self.chosen, color="gray", linestyle=":", label=f"q = {self.chosen}")
        ax.set_xscale("symlog", linthresh=5)
        ax.set_xlim(-1, 1.3 * max(q[-1], 5))
        # Not those so close to the next that their labels would overlap.
        ticks = [a for a, b in zip(q, [*q[1:], np.inf], strict=True) if b > 1.4 * a]
        ax.set_xticks(ticks, ticks)
        ax.minorticks_off()
        ax.set_yscale("log")
        ax.set(
            xlabel="eigenvectors q in the preconditioner",
            ylabel="largest eigenvalue",
            title=self.name,
        )
        ax.legend()
        return self


@_display
class ConvergenceDisplay:
    """Training loss of every epoch, and validation score if there is one.

    A direct solution has no epochs: it is one point, and the legend says so.

    It is recommended to use `from_estimator`; all parameters are stored as attributes.

    Parameters
    ----------
    loss_curve : array of shape (n_epochs,)
        Training loss.
    validation_scores : array of shape (n_epochs,), default=None
    name : str, default=None
        For the legend.

    Attributes
    ----------
    ax_ : matplotlib Axes
    score_ax_ : matplotlib Axes or None
        Axes on the right, with the scores.
    figure_ : matplotlib Figure

    See Also
    --------
    SpectrumDisplay : Eigenvalues by which the step was chosen.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from eigenkern import ConvergenceDisplay, EigenProRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = EigenProRegressor(algorithm="eigenpro2", random_state=0)
    >>> display = ConvergenceDisplay.from_estimator(model.fit(X, y))
    """

    loss_curve: Any
    validation_scores: Any = None
    name: str | None = None

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        ax: Any = None,
        score_ax: Any = None,
        name: str | None = None,
        **line_kwargs: Any,
    ) -> Self:
        """Plot the epochs of a fit.

        Parameters
        ----------
        estimator : fitted estimator
            With the attribute ``loss_curve_``.
        ax, score_ax : matplotlib Axes, default=None
            For the losses and the scores; None: new ones. Pass ``ax_`` and
            ``score_ax_`` of another display to compare.
        name : str, default=None
            For the legend; None: the name of the estimator's class.
        **line_kwargs : dict
            For `matplotlib.axes.Axes.plot`.

        Returns
        -------
        ConvergenceDisplay

        Raises
        ------
        ValueError
            If the estimator has no ``loss_curve_``.
        """
        check_has_fitted(estimator, "loss_curve_", cls.__name__)
        name = type(estimator).__name__ if name is None else name
        if getattr(estimator, "algorithm_", None) == "direct":
            name += ", solved directly"
        return cls(
            loss_curve=estimator.loss_curve_,
            validation_scores=getattr(estimator, "validation_scores_", None),
            name=name,
        ).plot(ax=ax, score_ax=score_ax, **line_kwargs)

    def plot(self, ax: Any = None, *, score_ax: Any = None, **line_kwargs: Any) -> Self:
        """Draw the curves.

        Parameters
        ----------
        ax, score_ax : matplotlib Axes, default=None
            For the losses and the scores; None: new ones.
        **line_kwargs : dict
            For `matplotlib.axes.Axes.plot`.

        Returns
        -------
        ConvergenceDisplay
        """
        self.figure_, self.ax_ = _axes(ax)
        ax = self.ax_
        losses = np.asarray(self.loss_curve, dtype=np.float64)
        epochs = np.arange(1, len(losses) + 1)
        options = {"label": self.name, "marker": "o", "markersize": 4} | line_kwargs
        (line,) = ax.plot(epochs, losses, **options)
        ax.set_yscale("log")
        ax.set(xlabel="epoch", ylabel="training loss")
        ax.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        self.score_ax_, lines = score_ax, ax.get_lines()
        if self.validation_scores is not None:
            if score_ax is None:
                self.score_ax_ = ax.twinx()
            options = {"linestyle": "--", "marker": "o", "markersize": 4}
            (scores,) = self.score_ax_.plot(
                epochs, self.validation_scores, color=line.get_color(), **options
            )
            scores.set_label(f"{line.get_label()}, score")
            self.score_ax_.set_ylabel("validation score (dashed)")
        if self.score_ax_ is not None:
            lines = [*lines, *self.score_ax_.get_lines()]
        if line.get_label() and not line.get_label().startswith("_"):
            # Losses fall and scores rise: both leave room at the right.
            above = ax if self.score_ax_ is None else self.score_ax_
            place = "best" if above is ax else "center right"
            above.legend(handles=lines, loc=place)
        return self


@_display
class RegularizationPathDisplay:
    """Validation error along a path of models, and the one that was chosen.

    The chosen penalty is the largest whose error equals the least one within noise, so
    it lies at the right end of a flat valley, which is shaded.

    It is recommended to use `from_estimator`; all parameters are stored as attributes.

    Parameters
    ----------
    values : array of shape (k,)
        What regularizes the models: lambda, or the number of iterations.
    errors : array of shape (k,)
        Mean squared errors, or what `measure` names.
    chosen : float
        The chosen one of `values`.
    parameter : {"alpha", "iterations"}
    criterion : str, default="holdout"
        How the errors were measured.
    name : str, default=None
        For the legend.
    measure : str, default="mean squared error"
        Label of the errors' axis.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    See Also
    --------
    ConvergenceDisplay : Loss of every epoch of an iteration.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from eigenkern import NystromRegressor, RegularizationPathDisplay
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = NystromRegressor(alpha="path", random_state=0).fit(X, y)
    >>> display = RegularizationPathDisplay.from_estimator(model)
    """

    values: ArrayLike
    errors: Any
    chosen: Any
    parameter: Any
    criterion: Any = "holdout"
    name: str | None = None
    measure: Any = "mean squared error"

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        ax: Any = None,
        name: str | None = None,
        **line_kwargs: Any,
    ) -> Self:
        """Plot the path of a fit.

        Parameters
        ----------
        estimator : fitted estimator
            ``NystromRegressor(alpha="path")``, `NytroRegressor`, or a classifier.
        ax : matplotlib Axes, default=None
            None: a new figure.
        name : str, default=None
            For the legend; None: the name of the estimator's class.
        **line_kwargs : dict
            For `matplotlib.axes.Axes.plot`.

        Returns
        -------
        RegularizationPathDisplay

        Raises
        ------
        ValueError
            If the estimator selected nothing from a path.
        """
        example = "NystromRegressor(alpha='path')"
        check_has_fitted(estimator, "validation_path_", cls.__name__, example)
        errors = to_numpy(estimator.validation_path_)
        if hasattr(estimator, "alphas_"):
            parameter, chosen = "alpha", estimator.alpha_
            values = to_numpy(estimator.alphas_)
            order = np.argsort(values)
            values, errors = values[order], errors[order]
        else:
            parameter, chosen = "iterations", estimator.n_iter_
            values = to_numpy(estimator.iterations_)[: len(errors)]
        logistic = has_log_loss(estimator)
        return cls(
            values=values,
            errors=errors,
            chosen=chosen,
            parameter=parameter,
            criterion=getattr(estimator, "selection_", estimator.selection),
            name=type(estimator).__name__ if name is None else name,
            measure="log loss" if logistic else "mean squared error",
        ).plot(ax=ax, **line_kwargs)

    def plot(self, ax: Any = None, **line_kwargs: Any) -> Self:
        """Draw the curve.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            None: a new figure.
        **line_kwargs : dict
            For `matplotlib.axes.Axes.plot`.

        Returns
        -------
        RegularizationPathDisplay
        """
        self.figure_, self.ax_ = _axes(ax)
        ax = self.ax_
        chosen = f"{self.chosen:.3g}" if self.parameter == "alpha" else str(self.chosen)
        label = f"{self.name}: {chosen}" if self.name else chosen
        (line,) = ax.plot(self.values, self.errors, **({"label": label} | line_kwargs))
        color = line.get_color()
        ax.axvline(self.chosen, color=color, linestyle=":")
        values, errors = np.asarray(self.values), np.asarray(self.errors)
        error = errors[np.argmin(np.abs(values - self.chosen))]
        ax.scatter([self.chosen], [error], color=color, zorder=3)
        if self.parameter == "alpha":
            equal = values[errors <= error]
            if len(equal) > 1:
                options = {"color": color, "alpha": 0.1}
                ends = equal.min(), equal.max()
                ax.axvspan(*ends, label="equal within noise", **options)
        sound = errors[np.isfinite(errors)]
        if sound.min(initial=np.inf) > 0 and sound.max() > 10 * sound.min():
            ax.set_yscale("log")
        if (values > 0).all():
            ax.set_xscale("log")
        else:  # 0 iterations, or lambda = 0
            ax.set_xscale("symlog", linthresh=values[values > 0].min(initial=1.0))
            ax.set_xlim(left=0)
        ax.set(
            xlabel="alpha ($\\lambda$)" if self.parameter == "alpha" else "iterations",
            ylabel=f"{self.measure}, {self.criterion}",
        )
        if line.get_label() and not line.get_label().startswith("_"):
            ax.legend()
        return self


@_display
class MetricDisplay:
    """What a kernel model looks at: the features that matter, or a learned metric.

    It is recommended to use `from_estimator`; all parameters are stored as attributes.

    Parameters
    ----------
    values : array of shape (n_features,) or (n_features, n_features)
        Importances, the metric, or its diagonal for "image".
    kind : {"importances", "matrix", "image"}, default="importances"
        "importances": a bar for each feature, the largest first, 20 at most. "matrix":
        a matrix, with zero in white. "image": a value for each pixel.
    shape : tuple of int, default=None
        Rows and columns of "image".
    feature_names : array of shape (n_features,), default=None
        None: x0, x1 and so on.
    name : str, default=None
        For the title.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    See Also
    --------
    RFMRegressor : Learns a metric.
    RFMClassifier : The same for labels.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from eigenkern import MetricDisplay, RFMRegressor
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
    >>> model = RFMRegressor(random_state=0).fit(X, y)
    >>> display = MetricDisplay.from_estimator(model)
    """

    values: ArrayLike
    kind: str = "importances"
    shape: tuple[int, ...] | None = None
    feature_names: ArrayLike | None = None
    name: str | None = None

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        kind: str = "importances",
        shape: tuple[int, ...] | None = None,
        ax: Any = None,
        name: str | None = None,
    ) -> Self:
        """Plot what a fitted model looks at.

        Parameters
        ----------
        estimator : fitted estimator
            For "importances", with the attribute ``feature_importances_``, which trees
            have too; otherwise with ``metric_``, such as `RFMRegressor`.
        kind : {"importances", "matrix", "image"}, default="importances"
            "importances": a bar for each feature, the largest first, 20 at most.
            "matrix": ``metric_``, with zero in white. "image": the diagonal of
            ``metric_`` as an image, whose pixels are the features.
        shape : tuple of int, default=None
            Rows and columns of "image"; their product is the number of features.
        ax : matplotlib Axes, default=None
            None: a new figure.
        name : str, default=None
            For the title; None: the name of the estimator's class.

        Returns
        -------
        MetricDisplay

        Raises
        ------
        ValueError
            If the estimator has no such attribute, or kind or shape is wrong.
        """
        _check_metric_kind(kind)
        attribute = "feature_importances_" if kind == "importances" else "metric_"
        check_has_fitted(estimator, attribute, cls.__name__, "RFMRegressor()")
        values = to_numpy(getattr(estimator, attribute))
        names = getattr(estimator, "feature_names_in_", None)
        preprocessor = getattr(estimator, "preprocessor_", None)
        if kind == "matrix" and preprocessor is not None:
            names = preprocessor.get_feature_names_out()
            names = [name.partition("__")[2] for name in names]
        return cls(
            values=np.diagonal(values) if kind == "image" else values,
            kind=kind,
            shape=shape,
            feature_names=names,
            name=type(estimator).__name__ if name is None else name,
        ).plot(ax=ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw the bars, the matrix or the image.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            None: a new figure.

        Returns
        -------
        MetricDisplay

        Raises
        ------
        ValueError
            If kind or shape is wrong.
        """
        _check_metric_kind(self.kind)
        values, d, names = np.asarray(self.values), len(self.values), self.feature_names
        names = [f"x{j}" for j in range(d)] if names is None else names
        if self.kind == "image":
            values = _image(values, self.shape)
        self.figure_, self.ax_ = _axes(ax)
        ax = self.ax_
        if self.kind == "importances":
            largest = np.argsort(-values, kind="stable")[:_MAX_FEATURES]
            bars = np.arange(len(largest))
            ax.barh(bars, values[largest])
            ax.set_yticks(bars, np.asarray(names)[largest])
            ax.invert_yaxis()
            part = f", the largest {_MAX_FEATURES} of {d}" if d > _MAX_FEATURES else ""
            ax.set_xlabel("importance" + part)
        elif self.kind == "matrix":
            largest = np.abs(values).max()
            image = ax.imshow(values, cmap="RdBu_r", vmin=-largest, vmax=largest)
            if d <= _MAX_FEATURES:
                ax.set_xticks(range(d), names, rotation=90)
                ax.set_yticks(range(d), names)
            self.figure_.colorbar(image, ax=ax, label="metric")
        else:
            image = ax.imshow(values)
            ax.set(xticks=[], yticks=[])
            self.figure_.colorbar(image, ax=ax, label="weight")
        ax.set_title(self.name)
        return self


def _check_metric_kind(kind):
    if kind not in ("importances", "matrix", "image"):
        raise ValueError(
            f"kind must be 'importances', 'matrix' or 'image'; got {kind!r}"
        )


def _image(values, shape):
    """Return the values of pixels in the shape of the image."""
    d = len(values)
    sizes = () if shape is None else tuple(shape)
    if len(sizes) != 2 or min(sizes) < 1 or sizes[0] * sizes[1] != d:
        raise ValueError(
            "shape must be the rows and columns of an image, whose product is the "
            f"number of features, {d}; got {shape!r}"
        )
    return values.reshape(sizes)
