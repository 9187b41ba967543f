"""Mechanisms together: every family on every messy table.

Each fit is compared with the formula of what it minimizes, in float64, at the penalty
and bandwidth that it chose; with a fit to the same information in another form; and
with its own fit to the clean table.
"""

import os
import warnings
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import eigenkern
from eigenkern import Checkpoint
from eigenkern.fitting.checkpoint import Keeper

N, N_NEW = 120, 200


@pytest.fixture(scope="module", autouse=True)
def small_limits():
    """Let 120 rows meet what otherwise thousands meet: rows that are not measured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eigenkern.plan.sizes.N_MEASURED", 60)
        patch.setattr(os, "fsync", lambda _: None)  # it takes milliseconds
        yield


class Family(NamedTuple):
    """A way to fit.

    Attributes
    ----------
    name : str
        Of the estimators, without their last word.
    parameters : dict
    patches : dict
        What to change in the package meanwhile.
    tolerance : float or None
        Largest difference from the dense formula, in standard deviations of its values;
        None: there is no formula.
    exact : bool
        Whether copies equal integer weights: a closed form.
    resumes : bool
        Whether the fit writes checkpoints.
    """

    name: str
    parameters: dict = {}
    patches: dict = {}
    tolerance: float | None = 1e-6
    exact: bool = True
    resumes: bool = False

    @property
    def draws(self):
        """Whether rows are held out or centers drawn: by their content, and a seed."""
        in_paths = self.name in ("Nystrom", "Nytro")
        holds_out = in_paths and "selection" not in self.parameters
        return holds_out or "n_centers" in self.parameters


ON_CENTERS = {"n_centers": 30}


def epochs(algorithm, **parameters):
    """Return EigenPro with batches so small that steps race.

    The penalty makes the epochs converge.
    """
    defaults = {"alpha": 0.05, "batch_size": 15, "max_iter": 20, "tol": 1e-9}
    parameters = {"algorithm": algorithm} | defaults | parameters
    # On centers the steps have noise, as no model fits all rows.
    tolerance = 0.6 if "n_centers" in parameters else 0.06
    if {"early_stopping", "step_size"} & parameters.keys():
        tolerance = None  # they may end early
    return Family("EigenPro", parameters, {}, tolerance, exact=False, resumes=True)


FEW_MEASURED = {"subsample_size": 30}
ABSURD = {"step_size": 1e4, "n_iter_no_change": 20, "max_iter": 40}
BY_PARTS = {"eigenkern.plan.penalty.ROWS_LEFT_OUT": 40}
ITERATES = {"eigenkern.plan.of_closed_forms.factorizes": lambda *_: False}
EPOCHS = {"batch_size": 15, "max_iter": 10}
DSG = {"max_iter": 3, "block_size": 32, "max_features": 128}
FAMILIES = {
    "direct": Family("EigenPro"),
    "direct, penalty by parts": Family("EigenPro", {}, BY_PARTS, None, exact=False),
    "eigenpro1, nothing cached": epochs("eigenpro1", cache_size=0, **FEW_MEASURED),
    "eigenpro2": epochs("eigenpro2", **FEW_MEASURED),
    "eigenpro2, absurd step": epochs("eigenpro2", **ABSURD),
    "eigenpro2, early stopping": epochs("eigenpro2", early_stopping=True, alpha=0.0),
    "eigenpro3": epochs("eigenpro3", **ON_CENTERS),
    "eigenpro4": epochs("eigenpro4", **ON_CENTERS),
    "linear": Family("LinearEigenPro", tolerance=1e-5),
    "linear, epochs": Family(
        "LinearEigenPro", EPOCHS, {}, None, exact=False, resumes=True
    ),
    "path": Family("Nystrom", {"alpha": "path"}, tolerance=1e-4),
    "path, loo": Family("Nystrom", {"alpha": "path", "selection": "loo"}, {}, 1e-4),
    "path on centers": Family("Nystrom", {"alpha": "path", **ON_CENTERS}, {}, 1e-4),
    "nytro": Family("Nytro", tolerance=1e-4),
    "nytro on centers, iterated": Family(
        "Nytro", {"max_iter": 12, **ON_CENTERS}, ITERATES, 1e-4, resumes=True
    ),
    "falkon": Family(
        "FalkonLike", {"alpha": 0.01, "tol": 1e-8, **ON_CENTERS}, {}, 1e-4
    ),
    "dsg": Family(
        "DSG", DSG | {"bandwidth": "median"}, {}, None, exact=False, resumes=True
    ),
    "rfm": Family("RFM", {"max_rounds": 1, "metric": "diagonal"}, exact=False),
}


class Rows(NamedTuple):
    """Rows, noisy targets, weights."""

    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray | None = None

    def take(self, rows):
        weights = None if self.weights is None else self.weights[rows]
        return Rows(self.X[rows], self.y[rows], weights)


class Table(NamedTuple):
    """A messy table; the same information in another form; new rows and their truth.

    A linear model can only use the columns in `usable`.
    """

    rows: Rows
    other: Rows
    X_new: np.ndarray
    truth: np.ndarray
    usable: tuple = (0, 1, 2)


def smooth(X):
    return np.sin(X[:, 0]) + 0.7 * X[:, 1] + 0.3 * X[:, 2]


def noisy(X, rng):
    return smooth(X) + 0.3 * rng.standard_normal(len(X))


def clean(rng):
    X = rng.standard_normal((N, 3))
    X_new = 0.8 * rng.standard_normal((N_NEW, 3))
    rows = Rows(X, noisy(X, rng))
    return Table(rows, rows.take(rng.permutation(N)), X_new, smooth(X_new))


def outlier(place, value, columns, rng):
    """A fill value in one row, which should matter no more than a missing row."""
    table = clean(rng)
    X = table.rows.X.copy()
    X[place, columns] = value
    usable = tuple(j for j in range(3) if j not in columns)
    rest = table.rows.take(np.arange(N) != place)
    return table._replace(rows=table.rows._replace(X=X), other=rest, usable=usable)


def copies(counts, rng):
    table = clean(rng)
    repeated = table.rows.take(rng.permutation(np.repeat(np.arange(N), counts)))
    weighted = table.rows._replace(weights=counts.astype(np.float64))
    return table._replace(rows=repeated, other=weighted)


def categories(rng):
    """Twelve distinct rows."""
    X = rng.integers(0, [2, 2, 3], size=(2 * N, 3)) - 1.0
    X_new = rng.integers(0, [2, 2, 3], size=(N_NEW, 3)) - 1.0
    rows = Rows(X, noisy(X, rng) + 0.3 * rng.standard_normal(2 * N))
    return Table(rows, rows.take(rng.permutation(2 * N)), X_new, smooth(X_new))


def replicates(rng):
    table = clean(rng)
    X = np.repeat(table.rows.X[: N // 2], 3, axis=0)
    rows = Rows(X, noisy(X, rng))
    return table._replace(rows=rows, other=rows.take(rng.permutation(len(X))))


def zero_weights(rng):
    """Rows without weight hold nonsense."""
    table = clean(rng)
    X, y = table.rows.X.copy(), table.rows.y.copy()
    weights = rng.choice([0.0, 0.5, 1.0, 2.0], size=N)
    absent = weights == 0
    X[absent], y[absent] = 1e6, y[absent][::-1]
    rows = Rows(X, y, weights)
    return table._replace(rows=rows, other=rows.take(~absent))


def constant_column(rng):
    table = clean(rng)
    rows, X_new = table.rows, table.X_new
    X = np.column_stack([rows.X, np.full(N, 1000.0)])
    X_new = np.column_stack([X_new, np.full(N_NEW, 1000.0)])
    return table._replace(rows=rows._replace(X=X), X_new=X_new)


TABLES = {
    "clean": clean,
    "outlier first": partial(outlier, 0, 1e12, [0, 1, 2]),
    "outlier last": partial(outlier, N - 1, 9.97e36, [0]),
    "outlier anywhere": partial(outlier, 77, -1e6, [1]),
    "all rows twice": partial(copies, np.full(N, 2)),
    "ten rows ten times": partial(copies, np.where(np.arange(N) < 10, 10, 1)),
    "categories": categories,
    "replicates": replicates,
    "zero weights": zero_weights,
    "constant column": constant_column,
}
# How many classes, and where the targets are cut into them; 0: numbers.
CUTS = {0: [], 2: [0.0], 5: [-1.2, -0.4, 0.4, 1.2]}


def labels_of(y, n_classes):
    return np.digitize(y, CUTS[n_classes]) if n_classes else y


@cache
def table_of(name):
    return TABLES[name](np.random.default_rng(3))


def estimator_of(family, n_classes):
    kind = "Classifier" if n_classes else "Regressor"
    make = getattr(eigenkern, FAMILIES[family].name + kind)
    return make(random_state=0).set_params(**FAMILIES[family].parameters)


def fitted(family, n_classes, dtype, rows, model=None, **options):
    """Return a fit, in which NumPy may not warn, but the package may."""
    model = estimator_of(family, n_classes) if model is None else model
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        for target, value in FAMILIES[family].patches.items():
            patch.setattr(target, value)
        warnings.simplefilter("ignore", UserWarning)
        y = labels_of(rows.y, n_classes)
        return model.fit(rows.X.astype(dtype), y, rows.weights, **options)


def values(model, X, dtype):
    X = X.astype(dtype)
    if hasattr(model, "decision_function"):
        F = model.decision_function(X)
    else:
        F = model.predict(X)
    return F.reshape(len(X), -1)


def error(model, table, n_classes, dtype):
    """Return the squared error of new rows, or the fraction of wrong labels."""
    predicted = model.predict(table.X_new.astype(dtype))
    if n_classes:
        cuts = np.array(CUTS[n_classes])
        clear = np.abs(table.truth[:, None] - cuts).min(axis=1) > 0.15
        return np.mean((predicted != labels_of(table.truth, n_classes))[clear])
    return np.mean((predicted - table.truth) ** 2) / np.var(table.truth)


@cache
def clean_error(family, n_classes, dtype, columns):
    rows, _, X_new, *_ = table = table_of("clean")
    rows = rows._replace(X=rows.X[:, columns])
    model = fitted(family, n_classes, dtype, rows)
    return error(model, table._replace(X_new=X_new[:, columns]), n_classes, dtype)


# The formulas, in float64.


def kernel_matrix(kernel, X, Z):
    name = "cityblock" if type(kernel).__name__ == "Manhattan" else "euclidean"
    with np.errstate(under="ignore"):
        r = cdist(X, Z, name) / kernel.bandwidth
        return {
            "Gaussian": lambda: np.exp(-(r**2) / 2),
            "Laplacian": lambda: np.exp(-r),
            "Manhattan": lambda: np.exp(-r),
            "Matern": lambda: (1 + 3**0.5 * r) * np.exp(-(3**0.5) * r),
        }[type(kernel).__name__]()


def features(model, X, X_new):
    """Return rows and new rows in a basis in which the penalty is alpha |b|^2."""
    X, X_new = X.astype(np.float64), X_new.astype(np.float64)
    if not hasattr(model, "kernel_"):
        return X, X_new
    # Every distinct row is a center, or those that were chosen.
    Z = X if getattr(model, "center_indices_", None) is None else model.centers_
    if "n_centers" in model.get_params() and model.n_centers == 30:
        Z = model.centers_
    Z = np.unique(np.asarray(Z, dtype=np.float64), axis=0)
    values, U = np.linalg.eigh(kernel_matrix(model.kernel_, Z, Z))
    kept = values > 1e-13 * values[-1]
    R = U[:, kept] / np.sqrt(values[kept])
    return tuple(kernel_matrix(model.kernel_, A, Z) @ R for A in (X, X_new))


def formula(model, rows, X_new, n_classes, dtype):
    """Return the values at new rows of what the model minimizes, or of its path."""
    used = np.ones(len(rows.y), bool) if rows.weights is None else rows.weights > 0
    w = np.ones(used.sum()) if rows.weights is None else rows.weights[used]
    y, X = labels_of(rows.y, n_classes)[used], rows.X.astype(dtype)[used]
    X_new = X_new.astype(dtype)
    if n_classes == 0:
        Y = y[:, None]
    else:
        Y = 2.0 * y[:, None] - 1.0 if n_classes == 2 else np.eye(n_classes)[y]
    if hasattr(model, "transform"):
        X, X_new, model = model.transform(X), model.transform(X_new), model.estimator_
    A, A_new = features(model, X, X_new)
    mean = np.average(Y, axis=0, weights=w)
    if not hasattr(model, "kernel_"):  # a linear model has an intercept
        center = np.average(A, axis=0, weights=w)
        A, A_new = A - center, A_new - center
    root = np.sqrt(w / w.sum())[:, None]
    A, Y = root * A, root * (Y - mean)
    if hasattr(model, "iterations_"):  # t steps of gradient descent from zero
        U, s, Vt = np.linalg.svd(A, full_matrices=False)
        h = (1 - (1 - model.step_size_ * s**2) ** model.n_iter_) / np.maximum(s, 1e-99)
        return A_new @ (Vt.T @ (h[:, None] * (U.T @ Y))) + mean
    alpha = getattr(model, "alpha_", model.get_params().get("alpha"))
    if alpha == 0 and hasattr(model, "kernel_"):
        alpha = 1e-3 / len(A)  # what 20 epochs would reach
    d = A.shape[1]
    b = np.linalg.lstsq(
        np.vstack([A, np.sqrt(alpha) * np.eye(d)]),
        np.vstack([Y, np.zeros((d, Y.shape[1]))]),
    )[0]
    return A_new @ b + mean


def resumed(family, n_classes, dtype, rows, folder):
    """Return a short fit, and the same one that was interrupted and resumed."""
    model = estimator_of(family, n_classes).set_params(max_iter=6)
    whole = fitted(family, n_classes, dtype, rows, model)
    keep, n_kept = Keeper.keep, 0

    def interrupted(self, *args):
        nonlocal n_kept
        keep(self, *args)
        n_kept += 1
        if n_kept == 4:
            raise RuntimeError("interrupted")

    options = {"checkpoint": Checkpoint(folder, seconds=0)}
    model = estimator_of(family, n_classes).set_params(max_iter=6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Keeper, "keep", interrupted)
        try:
            fitted(family, n_classes, dtype, rows, model, **options)
        except RuntimeError:
            pass
    return whole, fitted(family, n_classes, dtype, rows, model, resume=True, **options)


def assert_near(one, other, tolerance, scale):
    difference = np.abs(one - other).max() / scale
    assert difference <= tolerance, f"{difference:.2g} standard deviations apart"


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("n_classes", CUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_together(family, n_classes, table, dtype, subtests, tmp_path_factory):
    name, _, _, tolerance, exact, resumes = FAMILIES[family]
    of_table = table_of(table)
    rows, other, X_new, *_ = of_table
    is_linear, learned = name == "LinearEigenPro", rows
    if is_linear and np.finfo(dtype).eps * np.abs(rows.X).max() ** 2 > 10:
        # A row that would cost the others digits is left out.
        learned, of_table = other, of_table._replace(usable=(0, 1, 2))
    model = fitted(family, n_classes, dtype, rows)
    F = values(model, X_new, dtype)
    assert np.isfinite(F).all()
    scale = F.std() + 0.05
    rounding = 3e-3 if dtype == "f4" else 0.0
    if tolerance is not None and getattr(model, "loss", None) != "log_loss":
        with subtests.test("formula"):
            whole, G = model, F
            if getattr(model, "algorithm_", "direct") != "direct":
                tolerance = max(tolerance, 0.06)
                if n_classes:  # without rows that are held out and end the epochs
                    whole = estimator_of(family, n_classes).set_params(warm_start=True)
                    G = values(
                        fitted(family, n_classes, dtype, rows, whole), X_new, dtype
                    )
            right = formula(whole, learned, X_new, n_classes, dtype)
            assert_near(G, right, max(tolerance, rounding), right.std() + 0.05)
    usable = of_table.usable if is_linear else (0, 1, 2)
    if usable:
        with subtests.test("as good as on the clean table"):
            bound = 1.3 * clean_error(family, n_classes, dtype, usable) + 0.1
            found = error(model, of_table, n_classes, dtype)
            assert found <= bound
    redrawn = FAMILIES[family].draws and table == "constant column"
    comparable = exact and "outlier" not in table and not redrawn
    if comparable or table == "zero weights":
        with subtests.test("the same information"):
            fit = fitted(family, n_classes, dtype, other)
            d = other.X.shape[1]
            G = values(fit, X_new[:, :d], dtype)
            assert_near(F, G, max(1e-5, rounding), scale)
    if resumes and n_classes == 2 and dtype == "f8":
        with subtests.test("resumed"):
            folder = tmp_path_factory.mktemp("checkpoint")
            one, two = resumed(family, n_classes, dtype, rows, folder)
            assert np.array_equal(values(one, X_new, dtype), values(two, X_new, dtype))
    if n_classes:
        with subtests.test("probabilities"):
            P = model.predict_proba(X_new.astype(dtype))
            assert P.shape == (N_NEW, n_classes)
            assert (P > 0).all()
            assert np.allclose(P.sum(axis=1), 1.0, atol=1e-5)
            of_predicted = P[np.arange(N_NEW), model.predict(X_new.astype(dtype))]
            assert (of_predicted >= P.max(axis=1) - 1e-6).all()
