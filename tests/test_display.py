"""What the displays draw."""

import re
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.linear_model import LinearRegression
from sklearn.tree import DecisionTreeRegressor

from eigenkern import (
    ConvergenceDisplay,
    EigenProRegressor,
    MetricDisplay,
    NystromRegressor,
    NytroRegressor,
    RegularizationPathDisplay,
    RFMRegressor,
    SpectrumDisplay,
)

plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def no_window():
    plt.switch_backend("agg")
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def model():
    rng = np.random.RandomState(0)
    X = rng.standard_normal((200, 3))
    return EigenProRegressor(max_iter=5, early_stopping=True, random_state=0).fit(
        X, np.sin(X[:, 0])
    )


def test_spectrum(model):
    display = SpectrumDisplay.from_estimator(model)
    in_sample, held_out, chosen = display.ax_.get_lines()
    results = model.tuning_results_
    assert_array_equal(in_sample.get_xdata(), results["n_components"])
    assert_array_equal(in_sample.get_ydata(), results["in_sample_eigenvalue"])
    assert_array_equal(held_out.get_ydata(), results["top_eigenvalue"])
    assert chosen.get_xdata()[0] == model.n_components_
    assert display.figure_ is display.ax_.figure
    assert display.ax_.get_title() == "EigenProRegressor"


def test_convergence(model):
    display = ConvergenceDisplay.from_estimator(model, name="ours", color="red")
    (line,) = display.ax_.get_lines()
    assert_array_equal(line.get_ydata(), model.loss_curve_)
    assert_array_equal(line.get_xdata(), np.arange(1, model.n_iter_ + 1))
    assert (line.get_label(), line.get_color()) == ("ours", "red")
    (scores,) = display.score_ax_.get_lines()
    assert_array_equal(scores.get_ydata(), model.validation_scores_)


def test_epochs_are_counted_whole_and_explained(model):
    display = ConvergenceDisplay.from_estimator(model, name="ours")
    display.figure_.canvas.draw()
    ticks = display.ax_.get_xticks()
    assert_array_equal(ticks, np.round(ticks))
    assert display.ax_.get_lines()[0].get_marker() == "o"
    texts = [text.get_text() for text in display.score_ax_.get_legend().get_texts()]
    assert texts == ["ours", "ours, score"]


def test_a_direct_solution_is_a_point_that_says_so():
    model = EigenProRegressor().fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 3.0])
    display = ConvergenceDisplay.from_estimator(model)
    display.figure_.canvas.draw()
    (line,) = display.ax_.get_lines()
    assert_array_equal(line.get_xydata(), [[1.0, *model.loss_curve_]])
    assert line.get_marker() == "o"
    assert line.get_label() == "EigenProRegressor, solved directly"
    low, high = display.ax_.get_xlim()
    assert [x for x in display.ax_.get_xticks() if low <= x <= high] == [1.0]


def test_labels_of_the_spectrum_do_not_collide(model):
    ax = SpectrumDisplay.from_estimator(model).ax_
    ax.figure.canvas.draw()
    assert set(ax.get_xticks()) <= set(model.tuning_results_["n_components"])
    assert ax.get_xticks()[-1] == model.tuning_results_["n_components"][-1]
    boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes))


def test_the_flat_valley_of_a_path_is_shaded():
    display = RegularizationPathDisplay(
        values=[1e-3, 1e-2, 1e-1, 1.0],
        errors=[2.0, 1.999, 2.001, 90.0],
        chosen=1e-1,
        parameter="alpha",
    ).plot()
    (point,) = display.ax_.collections
    assert_array_equal(point.get_offsets(), [[1e-1, 2.001]])
    (shaded,) = display.ax_.patches
    assert shaded.get_x() == 1e-3 and shaded.get_width() == pytest.approx(0.099)
    assert display.ax_.get_yscale() == "log"
    display = RegularizationPathDisplay(
        values=[1, 2, 4], errors=[9.0, 1.0, 2.0], chosen=2, parameter="iterations"
    ).plot()
    assert not display.ax_.patches and display.ax_.get_yscale() == "linear"


def test_axes_are_shared(model):
    first = ConvergenceDisplay(loss_curve=[3.0, 2.0]).plot()
    second = ConvergenceDisplay.from_estimator(model, ax=first.ax_)
    assert second.ax_ is first.ax_ and second.figure_ is first.figure_
    assert len(first.ax_.get_lines()) == 2
    assert first.score_ax_ is None
    third = ConvergenceDisplay.from_estimator(
        model, ax=second.ax_, score_ax=second.score_ax_
    )
    assert third.score_ax_ is second.score_ax_
    assert len(second.score_ax_.get_lines()) == 2


@pytest.mark.parametrize("selection", ["holdout", "gcv"])
def test_path(selection):
    rng = np.random.RandomState(0)
    X = rng.standard_normal((60, 3))
    y = np.sin(X[:, 0])
    first = NystromRegressor(alpha="path", selection=selection).fit(X, y)
    display = RegularizationPathDisplay.from_estimator(first, color="red")
    line, chosen = display.ax_.get_lines()
    assert_array_equal(line.get_xdata(), first.alphas_)
    assert_array_equal(line.get_ydata(), first.validation_path_)
    assert chosen.get_xdata()[0] == first.alpha_
    assert line.get_color() == "red"
    assert display.ax_.get_ylabel().endswith(selection)
    assert display.ax_.get_xscale() == "log"
    second = NytroRegressor(selection=selection).fit(X, y)
    display = RegularizationPathDisplay.from_estimator(second, name="ours")
    line, chosen = display.ax_.get_lines()
    assert_array_equal(line.get_xdata(), second.iterations_)
    assert_array_equal(line.get_ydata(), second.validation_path_)
    assert chosen.get_xdata()[0] == second.n_iter_
    assert line.get_label() == f"ours: {second.n_iter_}"


def test_no_path():
    model = NystromRegressor().fit([[0.0], [1.0]], [0.0, 1.0])
    message = r"validation_path_, such as NystromRegressor\(alpha='path'\); got Nystrom"
    with pytest.raises(ValueError, match=message):
        RegularizationPathDisplay.from_estimator(model)


@pytest.fixture(scope="module")
def metric_model():
    rng = np.random.RandomState(0)
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame(rng.standard_normal((100, 6)), columns=list("abcdef"))
    model = RFMRegressor(EigenProRegressor("gaussian"), metric="full", random_state=0)
    return model.fit(X, np.sin(X["b"] + X["d"]))


def test_importances(metric_model):
    display = MetricDisplay.from_estimator(metric_model)
    values = metric_model.feature_importances_
    widths = [bar.get_width() for bar in display.ax_.patches]
    assert_array_equal(widths, sorted(values, reverse=True))
    labels = [label.get_text() for label in display.ax_.get_yticklabels()]
    assert labels == [f for _, f in sorted(zip(-values, "abcdef"))]
    assert set(labels[:2]) == {"b", "d"}
    assert display.ax_.yaxis_inverted()  # the first bar is on top
    assert display.ax_.get_title() == "RFMRegressor"
    assert display.figure_ is display.ax_.figure


def test_twenty_bars():
    values = np.random.RandomState(0).permutation(30)
    display = MetricDisplay(values=values).plot()
    widths = [bar.get_width() for bar in display.ax_.patches]
    assert_array_equal(widths, np.arange(29, 9, -1))
    first = display.ax_.get_yticklabels()[0].get_text()
    assert first == f"x{np.argmax(values)}"
    assert display.ax_.get_xlabel().endswith("the largest 20 of 30")


def test_importances_of_another_estimator():
    tree = DecisionTreeRegressor().fit([[0.0, 0.0], [0.0, 1.0]], [0.0, 1.0])
    display = MetricDisplay.from_estimator(tree, name="tree")
    assert [bar.get_width() for bar in display.ax_.patches] == [1.0, 0.0]
    assert display.ax_.get_title() == "tree"


def test_metric(metric_model):
    figure, ax = plt.subplots()
    display = MetricDisplay.from_estimator(metric_model, kind="matrix", ax=ax)
    (image,) = ax.get_images()
    assert_array_equal(image.get_array(), metric_model.metric_)
    largest = np.abs(metric_model.metric_).max()
    assert image.get_clim() == (-largest, largest)
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels == list("abcdef")
    assert display.ax_ is ax and display.figure_ is figure


def test_metric_as_an_image(metric_model):
    display = MetricDisplay.from_estimator(metric_model, kind="image", shape=(2, 3))
    (image,) = display.ax_.get_images()
    expected = np.diagonal(metric_model.metric_).reshape(2, 3)
    assert_array_equal(image.get_array(), expected)
    assert display.shape == (2, 3) and display.kind == "image"


@pytest.mark.parametrize("shape", [None, (6,), (2, 2), (-2, -3), (1, 2, 3)])
def test_wrong_shape(metric_model, shape):
    message = re.escape(
        f"shape must be the rows and columns of an image, whose product "
        f"is the number of features, 6; got {shape!r}"
    )
    with pytest.raises(ValueError, match=message):
        MetricDisplay.from_estimator(metric_model, kind="image", shape=shape)
    assert plt.get_fignums() == []


def test_wrong_kind(metric_model):
    message = "kind must be 'importances', 'matrix' or 'image'; got 'bars'"
    with pytest.raises(ValueError, match=message):
        MetricDisplay.from_estimator(metric_model, kind="bars")
    with pytest.raises(ValueError, match=message):
        MetricDisplay(values=[1.0], kind="bars").plot()


def test_no_metric():
    tree = DecisionTreeRegressor().fit([[0.0], [1.0]], [0.0, 1.0])
    message = r"metric_, such as RFMRegressor\(\); got DecisionTreeRegressor"
    with pytest.raises(ValueError, match=message):
        MetricDisplay.from_estimator(tree, kind="matrix")


@pytest.mark.parametrize(
    "display, attribute",
    [
        (SpectrumDisplay, "tuning_results_"),
        (ConvergenceDisplay, "loss_curve_"),
        (MetricDisplay, "feature_importances_"),
    ],
)
def test_another_estimator(display, attribute):
    other = LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0])
    with pytest.raises(ValueError, match=f"{attribute}.*got LinearRegression"):
        display.from_estimator(other)


def test_without_matplotlib():
    code = (
        "import sys; sys.modules['matplotlib.pyplot'] = None\n"
        "from eigenkern import ConvergenceDisplay\n"
        "try: ConvergenceDisplay(loss_curve=[1.0]).plot()\n"
        "except ImportError as error: print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "needs matplotlib: install the extra, eigenkern[plot]" in run.stdout
