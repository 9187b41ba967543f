"""Fits in processes with limited address space: a result, or one clear error."""

import re
import subprocess
import sys

import numpy as np
import pytest
from sklearn.base import clone, is_classifier

from eigenkern import (
    DSGRegressor,
    EigenProClassifier,
    EigenProRegressor,
    FalkonLikeRegressor,
    LinearEigenProRegressor,
    NystromClassifier,
    NystromRegressor,
    NytroRegressor,
    RFMRegressor,
)
from eigenkern.arrays import memory
from eigenkern.fitting.planning import plan_of, rows_at_a_time
from eigenkern.rows.dask_rows import Here
from eigenkern.rows.input import stand_in

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="elsewhere such limits don't hold"
)

# Every process tries several models, each with a limit in MB on top of what is in use.
# The kernel matrix of the 4000 rows takes 128 MB, or 64 MB in float32.
CODE = """
import re, resource, sys, warnings
import numpy as np, psutil
from sklearn.exceptions import ConvergenceWarning
from eigenkern import *

warnings.simplefilter("ignore", ConvergenceWarning)
rng = np.random.default_rng(0)
X = rng.standard_normal((4000, 10))
y = np.sin(X[:, 0]) + X[:, 1]
UNLIMITED = resource.RLIM_INFINITY

def limit(megabytes):
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + int(megabytes * 1e6), UNLIMITED))

def attempt(model, megabytes):
    before = dict(vars(model))
    limit(megabytes)
    try:
        model.fit(X, y)
        print("fitted", np.mean((model.predict(X) - y) ** 2) < 0.5 * np.var(y))
    except (ValueError, MemoryError) as error:
        assert vars(model) == before
        print(type(error).__name__, error)
    resource.setrlimit(resource.RLIMIT_AS, (UNLIMITED, UNLIMITED))

"""


def outcomes(code):
    """Return the lines that a process prints; it must exit without error."""
    found = subprocess.run(
        [sys.executable, "-c", CODE + code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()


def test_sizes_do_not_follow_a_limit():
    """What does not fit is an error that says what would: it is no other model."""
    models = (
        "EigenProRegressor(**options)",
        "EigenProRegressor(algorithm='sgd', bandwidth='median', **options)",
        "EigenProRegressor(n_centers=500, **options)",
        "LinearEigenProRegressor(**options)",
    )
    options = "options = {'random_state': 0, 'max_iter': 3}\n"
    attempts = {
        limit: options + "".join(f"attempt({model}, {limit})\n" for model in models)
        for limit in (120, 400)
    }
    assert outcomes(attempts[400]) == ["fitted True"] * 4
    lines = outcomes(attempts[120])
    assert lines[2:] == ["fitted True"] * 2
    for line in lines[:2]:
        assert re.match(r"MemoryError EigenProRegressor.fit ran out of memory", line)
        assert re.search(r"\d+ MB are free .* fewer centers \(n_centers\)", line)


def test_what_has_to_be_in_memory_says_what_it_needs():
    lines = outcomes(
        "for name in ('Nystrom', 'Nytro', 'FalkonLike'):\n"
        "    cls = globals()[name + 'Regressor']\n"
        "    attempt(cls(n_centers=2000, random_state=0), 250)\n"
        "attempt(EigenProRegressor(algorithm='eigenpro3-exact', n_centers=2000), 150)\n"
        "attempt(EigenProRegressor(cache_size=500, alpha=0.0), 150)\n"
    )
    assert len(lines) == 5
    for line in lines:
        assert re.match(r"ValueError .* \d+ MB.*, but \d+ MB of memory are free", line)
        assert re.search(r"pass (a smaller n_centers|cache_size)", line)


def test_what_no_plan_foresees_says_what_to_do():
    lines = outcomes(
        "features = RandomFourierFeatures(n_components=6000).fit(X)\n"
        "limit(120)\n"
        "try:\n"
        "    features.transform(X)\n"
        "except MemoryError as error:\n"
        "    print(said := error)\n"
        "n_rows = int(re.search(r'; (\\d+) rows', str(said))[1])\n"
        "print(features.transform(X[:n_rows]).shape == (n_rows, 6000))\n"
    )
    assert len(lines) == 2 and lines[1] == "True"
    assert re.fullmatch(
        r"RandomFourierFeatures.transform ran out of memory \(Unable to allocate .*\); "
        r"\d+ MB are free besides what it holds. .*: fewer rows at a time"
        r"; \d+ rows take about \d+ MB",
        lines[0],
    )


PROPOSAL = re.compile(
    r"; (even )?(estimator=\w+\()?(?:(\w+)=)?(\d+)\)?( rows)? takes? about (\d+) MB"
)


@pytest.mark.parametrize(
    "model, megabytes",
    [
        (EigenProRegressor(algorithm="eigenpro1", n_components=300), 10),
        (EigenProRegressor(cache_size=100, alpha=0.0), 10),
        (EigenProRegressor(algorithm="eigenpro2", cache_size=100, max_iter=2), 10),
        (EigenProRegressor(algorithm="eigenpro3-exact", n_centers=900), 15),
        (EigenProClassifier(), 10),
        (NystromRegressor(n_centers=700), 25),
        (NystromRegressor(n_centers=None, alpha=1e-3), 1),
        (NystromRegressor(n_centers=400, alpha=1e-3, centers="rpcholesky"), 12),
        (NystromRegressor(n_centers=400, alpha=1e-3, centers="leverage_scores"), 2),
        (NystromRegressor(alpha="path"), 20),
        (NystromClassifier(n_centers=500, loss="log_loss", alpha=1e-3), 12),
        (NytroRegressor(n_centers=700), 20),
        (FalkonLikeRegressor(n_centers=700, alpha=1e-3), 25),
        (DSGRegressor(block_size=10**12, alpha=0.0, max_iter=2), 12),
        (DSGRegressor(block_size=10**12, alpha=0.0, max_iter=2), 1),
        (RFMRegressor(NystromRegressor(n_centers=700, alpha=1e-3), max_rounds=1), 12),
        (RFMRegressor(EigenProRegressor(alpha=1e-3), max_rounds=0), 10),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.* distinct rows to choose from")
def test_the_proposal_of_an_error_fits(model, megabytes, rng, monkeypatch):
    X = rng.standard_normal((1200, 4))
    y = np.sin(X[:, 0]) > 0.3 * X[:, 1]
    y = y if is_classifier(model) else 1.0 * y
    free = 1e6 * megabytes
    monkeypatch.setattr(memory, "available", lambda xp, device: free)
    with pytest.raises((ValueError, MemoryError)) as found:
        model.fit(X, y)
    even, inner, name, value, rows, told = PROPOSAL.search(str(found.value)).groups()
    assert float(told) >= megabytes if even else float(told) <= megabytes
    if even:
        free = 1e6 * (float(told) + 1.0)
    if inner:
        name = "estimator__" + name
    if rows:
        X, y = X[: int(value)], y[: int(value)]
    else:
        model = clone(model).set_params(**{name: int(value)})
    assert np.all(np.isfinite(model.fit(X, y).predict(X)))


def test_the_proposal_for_sparse_rows_fits():
    lines = outcomes(
        "import scipy.sparse\n"
        "X = scipy.sparse.random(8000, 2000, 0.01, 'csc', random_state=0)\n"
        "y = np.asarray(X[:, :5].sum(axis=1)).ravel()\n"
        "for model in (LinearEigenProRegressor(), LinearEigenProClassifier()):\n"
        "    limit(120)\n"
        "    try:\n"
        "        model.fit(X, y > 0)\n"
        "    except MemoryError as error:\n"
        "        n = int(re.search(r'; (\\d+) rows take about', str(error))[1])\n"
        "        print(n > 300, model.fit(X[:n], y[:n] > 0).n_features_in_)\n"
    )
    assert lines == 2 * ["True 2000"]


@pytest.mark.parametrize("kind", ["dask", "away", "file"])
def test_rows_that_are_not_read_have_a_proposal(kind, rng, monkeypatch, tmp_path):
    X = rng.standard_normal((8000, 400))
    if kind == "file":
        h5py = pytest.importorskip("h5py")
        rows = h5py.File(tmp_path / "rows.h5", "w").create_dataset("X", data=X)
        monkeypatch.setattr("eigenkern.rows.input._FEW_ROWS", 0)
    else:
        rows = pytest.importorskip("dask.array").from_array(X, chunks=(500, -1))
    if kind == "away":  # the chunks are not in this process
        monkeypatch.setattr("eigenkern.rows.input.Workers", Here)
    monkeypatch.setattr(memory, "available", lambda xp, device: 8e7)
    copied = plan_of(LinearEigenProRegressor(), stand_in(rows), 1).memory["data copy"]
    assert copied == (25.6 if kind == "dask" else 0.0)
    model = FalkonLikeRegressor(n_centers=900, alpha=1e-3, tol=0.1)
    with pytest.raises(ValueError, match="n_centers=900 needs") as found:
        model.fit(rows, X[:, 0])
    *_, name, value, few_rows, told = PROPOSAL.search(str(found.value)).groups()
    assert name == "n_centers" and not few_rows
    assert int(value) > 100 and float(told) <= 80
    model.set_params(n_centers=int(value)).fit(rows, X[:, 0])
    assert np.all(np.isfinite(model.predict(X[:10])))


def test_a_block_of_random_features_that_is_too_large(rng):
    """Without running values, `cache_size=0`, a fit would take far longer."""
    X = rng.standard_normal((40, 3))
    message = "block_size=1000000000000 and batch_size=2 need .*; block_size="
    with pytest.raises(ValueError, match=message) as found:
        DSGRegressor(block_size=10**12).fit(X, X[:, 0])
    assert "cache_size" not in str(found.value)


def test_rows_at_a_time_are_as_many_as_fit(rng):
    X = rng.standard_normal((300, 3))
    model = NystromRegressor(n_centers=100).fit(X, X[:, 0])
    few, many = (rows_at_a_time(model, X, free) for free in (1e6, 1e9))
    assert re.fullmatch(r"\d\d rows take about 1 MB", few)
    assert re.fullmatch(r"\d{4} rows take about 900 MB", many)
    least = rows_at_a_time(model, X, 10.0)
    assert re.fullmatch(r"even 1 row takes about 0.0 MB, which must be free", least)


def test_too_little_for_any_product():
    """BLAS would end the process."""
    lines = outcomes("attempt(EigenProRegressor(), 40)\nattempt(DSGRegressor(), 40)")
    for line in lines:
        assert re.match(r"MemoryError .* 80 MB, but \d+ MB .*; raise its limit", line)
    assert len(lines) == 2
