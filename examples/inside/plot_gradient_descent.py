"""
What gradient descent cannot reach
==================================

Ten iterations of EigenPro fit a step function on the circle more closely than ten
thousand of gradient descent, with the same Gaussian kernel (after a figure by Ma and
Belkin, NIPS 2017).
"""

# %%
# There are 200 points on the unit circle. The eigenvectors of their kernel matrix are
# sines and cosines, and the eigenvalue of the j-th harmonic falls faster than any power
# of j. The step function has all odd harmonics, with weights that fall only as 1 / j.
import time

import matplotlib.pyplot as plt
import numpy as np

from eigenkern import EigenProRegressor, NystromRegressor


def points(angle):
    """Return the points of the unit circle at these angles."""
    return np.column_stack([np.cos(angle), np.sin(angle)])


n = 200
angle = 2 * np.pi * (np.arange(n) + 0.5) / n
X, y = points(angle), np.where(angle < np.pi, 1.0, -1.0)
kernel = {"kernel": "gaussian", "bandwidth": 0.5}

# %%
# With a batch of all rows, an epoch is one iteration of gradient descent, plain
# (``algorithm="sgd"``) or preconditioned.


def fit(algorithm, max_iter, **parameters):
    """Return the model after `max_iter` iterations."""
    start = time.perf_counter()
    model = EigenProRegressor(
        algorithm=algorithm,
        max_iter=max_iter,
        batch_size=n,
        tol=0,
        alpha=0.0,
        **parameters,
    ).fit(X, y)
    print(
        f"{algorithm:9}, q = {model.n_components_:2d}, {model.n_iter_:5d} iterations: "
        f"{time.perf_counter() - start:.2f} s, R^2 = {model.score(X, y):.4f}"
    )
    return model


short_descent = fit("sgd", 100, **kernel)
long_descent = fit("sgd", 10_000, **kernel)
small = fit("eigenpro2", 1000, n_components=16, **kernel)
short_eigenpro = fit("eigenpro2", 10, **kernel)
long_eigenpro = fit("eigenpro2", 1000, **kernel)
assert short_eigenpro.score(X, y) > long_descent.score(X, y)

# %%
# All of them converge to the same solution, that of a direct solver without a penalty.
# The exact solution passes through every point, but no solver reaches it: most
# eigenvalues of this matrix are smaller than the rounding errors of double precision.
# `NystromRegressor` leaves those directions out, and EigenPro makes next to no progress
# along them.
direct = NystromRegressor(n_centers=None, alpha=0, **kernel).fit(X, y)
print(f"direct solution: R^2 = {direct.score(X, y):.4f}")

# %%
# Along the eigenvector of the eigenvalue lambda_i, t iterations leave about exp(-2 t
# lambda_i / lambda_1) of the error, or more. If lambda_i is less than lambda_1 / (2 t),
# that is at least a third: t iterations do not reach this direction.
eigenvalues = long_eigenpro.eigenvalues_
for t in (1, 100, 10_000, 1_000_000):
    reached = np.sum(eigenvalues > eigenvalues[0] / (2 * t))
    print(f"{t:7d} iterations reach {reached:2d} eigenvectors")
for model in (small, long_eigenpro):
    ratio = model.eigenvalues_[0] / model.eigenvalues_[-1]
    print(f"q = {model.n_components_}: lambda_1 / lambda_(q+1) = {ratio:.2g}")

# %%
# On the left, a hundred times as many iterations of gradient descent hardly make the
# jump steeper. Ten iterations of EigenPro come close to the direct solution. Its
# ripples are those of every sum of a few dozen harmonics.
#
# On the right, EigenPro with q = 16 does in ten iterations what gradient descent does
# in ten thousand: its steps are longer by the ratio of the first eigenvalue and the
# 17th. With all eigenvectors above the rounding error, little remains to be done after
# ten iterations, and the fit ends when rounding errors outweigh the progress.
figure, axes = plt.subplot_mosaic(
    [["first", "residual"], ["second", "residual"], ["third", "residual"]],
    figsize=(8, 5),
    layout="constrained",
)
grid = np.linspace(0, 2 * np.pi, 1000)
panels = {
    "first": (short_descent, "gradient descent", "tab:red"),
    "second": (long_descent, "gradient descent", "tab:red"),
    "third": (short_eigenpro, "EigenPro", "tab:blue"),
}
for name, (model, algorithm, color) in panels.items():
    ax = axes[name]
    ax.plot(angle, y, ".", color="0.6", markersize=3)
    ax.plot(grid, model.predict(points(grid)), color=color)
    ax.set_title(f"{algorithm}, {model.n_iter_} iterations", fontsize="medium")
    ax.set_xticks(np.pi * np.arange(5) / 2, ["0", "π/2", "π", "3π/2", "2π"])
    ax.label_outer()
ax.plot(grid, direct.predict(points(grid)), "k:", linewidth=1, label="direct solution")
ax.legend()
ax.set_xlabel("angle")

ax = axes["residual"]
ax.semilogx(
    np.sqrt(long_descent.loss_curve_), color="tab:red", label="gradient descent"
)
for model, style in ((small, "--"), (long_eigenpro, "-")):
    label = f"EigenPro, q = {model.n_components_}"
    ax.semilogx(np.sqrt(model.loss_curve_), style, color="tab:blue", label=label)
residual = np.sqrt(np.mean((direct.predict(X) - y) ** 2))
ax.axhline(residual, color="black", linestyle=":", label="direct solution")
ax.set(
    xlim=(1, 10_000),
    ylim=(0, 0.55),
    xlabel="iterations",
    ylabel="root mean squared residual",
)
ax.legend()
plt.show()
