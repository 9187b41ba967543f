"""The same data, parameters and seed give the same model, whatever else goes on."""

import os
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest
from numpy.testing import assert_allclose

# Fits of every family, by each of its methods, whose sizes are chosen.
FITS = """
import sys, warnings
import numpy as np
import eigenkern as ek

warnings.simplefilter("ignore")
rng = np.random.RandomState(0)
X = rng.standard_normal((4200, 6))
y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.standard_normal(len(X))
c = (y > 0.5).astype(int) + (y > 1.0)
few, half = slice(0, 1500), slice(0, 2100)
epochs = {"algorithm": "eigenpro2", "max_iter": 3}
models = {
    "direct": (ek.EigenProRegressor(), few),
    "direct, labels": (ek.EigenProClassifier(), few),
    "epochs": (ek.EigenProRegressor(**epochs), half),
    "epochs, labels": (ek.EigenProClassifier(**epochs), half),
    "on centers": (ek.EigenProRegressor(n_centers=400, max_iter=2), None),
    "projected": (
        ek.EigenProRegressor(n_centers=400, max_iter=2, algorithm="eigenpro4"), None
    ),
    "linear": (ek.LinearEigenProRegressor(), None),
    "linear, epochs": (ek.LinearEigenProClassifier(batch_size=100, max_iter=3), None),
    "nystrom": (ek.NystromRegressor(n_centers=300), None),
    "nystrom, path": (ek.NystromRegressor(alpha="path"), few),
    "log loss": (ek.NystromClassifier(n_centers=200, loss="log_loss"), few),
    "nytro": (ek.NytroRegressor(), few),
    "nytro, steps": (ek.NytroRegressor(n_centers=300, max_iter=10), None),
    "falkon": (ek.FalkonLikeRegressor(), few),
    "falkon, labels": (ek.FalkonLikeClassifier(n_centers=300), None),
    "dsg": (ek.DSGRegressor(max_iter=2), few),
    "dsg, labels": (ek.DSGClassifier(max_iter=2), few),
    "rfm": (ek.RFMRegressor(max_rounds=1), slice(0, 400)),
}
if len(sys.argv) > 2:  # after a fit, so that the libraries are loaded
    import resource

    ek.EigenProRegressor().fit(X[:50], y[:50])
    used = 4096 * int(open("/proc/self/statm").read().split()[0])
    limit = used + int(float(sys.argv[2]))
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
found = {}
for name, (model, rows) in models.items():
    rows = slice(0, None) if rows is None else rows
    labels = hasattr(model, "class_weight")
    model.set_params(random_state=0).fit(X[rows], c[rows] if labels else y[rows])
    predict = model.predict_proba if hasattr(model, "predict_proba") else model.predict
    found[name] = predict(X[-500:])
    inner = getattr(model, "estimator_", model)
    for size in SIZES:
        if isinstance(getattr(inner, size, None), (int, float)):
            found[f"{name}: {size}"] = getattr(inner, size)
np.savez(sys.argv[1], **found)
"""
SIZES = (
    "batch_size_ n_centers_ subsample_size_ n_components_ n_iter_ block_size_ "
    "max_batch_size_ projection_interval_ t_ step_size_ alpha_ bandwidth_"
).split()
LOOP = "while True: pass"


def fitted(path, *arguments, **environment):
    """Return what the fits found in a process of their own."""
    script = f"SIZES = {SIZES!r}\n{FITS}"
    command = [sys.executable, "-c", script, str(path), *arguments]
    subprocess.run(command, env=os.environ | environment, check=True)
    with np.load(path) as found:
        return dict(found)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return fitted(tmp_path_factory.mktemp("alone") / "found.npz")


def assert_same(found, expected, rtol):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert_allclose(found[name], value, rtol=rtol, atol=rtol, err_msg=name)


def test_beside_busy_processes(expected, tmp_path):
    with ExitStack() as stack:
        for _ in range(2):
            busy = stack.enter_context(subprocess.Popen([sys.executable, "-c", LOOP]))
            stack.callback(busy.kill)
        found = fitted(tmp_path / "found.npz")
    assert_same(found, expected, 0)


def test_on_one_thread(expected, tmp_path):
    names = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"
    found = fitted(tmp_path / "found.npz", **dict.fromkeys(names, "1"))
    assert_same(found, expected, 1e-10)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_in_little_address_space(expected, tmp_path):
    # There is room for one thread.
    assert_same(fitted(tmp_path / "found.npz", "0.8e9"), expected, 1e-10)
