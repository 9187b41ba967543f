"""Real data sets for benchmarks, examples and tests.

They are looked for as ``NAME.npz`` in the folder named by the environment variable
``EIGENKERN_DATA`` (arrays ``X_train, y_train, X_test, y_test``, or ``X, y``), then
asked of OpenML by `sklearn.datasets.fetch_openml`, which keeps what it downloads.
Tables with categories and gaps are ``tables/NAME.csv.gz`` in that folder (`frame`).
"""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.datasets import fetch_openml
from sklearn.model_selection import train_test_split

# name -> (OpenML name, version, rows of the canonical training part or None)
OPENML = {
    "mnist": ("mnist_784", 1, 60000),
    "fashion_mnist": ("Fashion-MNIST", 1, 60000),
    "a9a": ("a9a", 1, 32561),
    "ijcnn1": ("ijcnn", 1, 49990),
    "cpusmall": ("cpu_small", 1, None),
    "california_housing": ("california", 4, None),
    "kin8nm": ("kin8nm", 1, None),
}

# What benchmarks of many sets take: tables with numbers and with classes, and images.
TARGETS = ("california_housing", "bike_hour", "kin8nm", "cpusmall")
CLASSES = ("a9a", "ijcnn1", "coil2000", "covtype_sub93k")
IMAGES = ("mnist", "fashion_mnist", "cifar10_gray")
# tables with categories and gaps: name -> target, and whether it is a number
TABLES = {
    "diamonds": ("price", True),
    "taxis": ("fare", True),
    "titanic": ("survived", False),
    "adult": ("target", False),
    "nursery": ("target", False),
    "krkopt": ("target", False),
}


class Dataset(NamedTuple):
    """Training and test part; X in float32, y as stored."""

    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def load(name, *, standardize=False):
    """Return a data set in float32; images are scaled to [0, 1].

    Parameters
    ----------
    name : str
        File name without ``.npz``, such as "mnist", "ijcnn1", "cpusmall".
    standardize : bool, default=False
        Whether to bring every column of the training part to mean 0, deviation 1.

    Returns
    -------
    Dataset
        Where no split is canonical, a fifth of the rows, shuffled with seed 0, is the
        test part.

    Raises
    ------
    FileNotFoundError
        If the data set is neither in the folder nor to be had from OpenML; the message
        says what to do.
    """
    data = _from_folder(name) or _from_openml(name)
    if data.X_train.dtype == np.uint8 and data.X_train.max() > 1:
        data = _map(data, lambda X: X.astype(np.float32) / np.float32(255))
    data = _map(data, lambda X: X.astype(np.float32, copy=False))
    if standardize:
        mean = data.X_train.mean(axis=0, dtype=np.float64).astype(np.float32)
        deviation = data.X_train.std(axis=0, dtype=np.float64).astype(np.float32)
        deviation[deviation == 0] = 1
        data = _map(data, lambda X: (X - mean) / deviation)
    return data


def parts(name):
    """Return a data set as its users would take it."""
    data = load(name, standardize=name not in (*IMAGES, "a9a"))
    if name == "covtype_sub93k":
        data = data._replace(y_train=data.y_train == 2, y_test=data.y_test == 2)
    return data


def frame(name):
    """Return the columns of a table, with categories and gaps, and its targets.

    Texts are categories, and times are seconds.
    """
    import pandas as pd

    target, is_number = TABLES[name]
    columns = pd.read_csv(_path(name))
    y = columns.pop(target).to_numpy(dtype=np.float64 if is_number else None)
    for column in columns.columns.intersection(["pickup", "dropoff"]):
        columns[column] = pd.to_datetime(columns[column]).astype("int64") / 1e9
    texts = columns.columns.difference(columns.select_dtypes("number").columns)
    return columns.astype(dict.fromkeys(texts, "category")), y


def available(name):
    """Whether the folder named by EIGENKERN_DATA holds the data set."""
    return bool(os.environ.get("EIGENKERN_DATA")) and _path(name).is_file()


def _path(name):
    file = f"tables/{name}.csv.gz" if name in TABLES else f"{name}.npz"
    return Path(os.environ["EIGENKERN_DATA"]) / file


def _map(data, function):
    return data._replace(X_train=function(data.X_train), X_test=function(data.X_test))


def _split(X, y, n_train=None):
    if n_train is not None:
        return Dataset(X[:n_train], y[:n_train], X[n_train:], y[n_train:])
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=0.2, random_state=0
    )
    return Dataset(X_train, y_train, X_test, y_test)


def _from_folder(name):
    if not available(name):
        return None
    with np.load(_path(name), allow_pickle=False) as arrays:
        if "X_train" in arrays:
            return Dataset(*(arrays[field] for field in Dataset._fields))
        return _split(arrays["X"], arrays["y"])


def _from_openml(name):
    advice = (
        f"put {name}.npz (arrays X_train, y_train, X_test, y_test, or X, y) into a "
        "folder and name the folder in the environment variable EIGENKERN_DATA"
    )
    if name not in OPENML:
        raise FileNotFoundError(
            f"no data set {name!r} in the folder of EIGENKERN_DATA, and OpenML is not "
            f"asked for it (only for {', '.join(OPENML)}): {advice}"
        )
    openml_name, version, n_train = OPENML[name]
    try:
        X, y = fetch_openml(
            openml_name, version=version, return_X_y=True, as_frame=False, parser="auto"
        )
    except Exception as error:  # no network, no such set: one remedy
        raise FileNotFoundError(
            f"no data set {name!r} in the folder of EIGENKERN_DATA, and OpenML did not "
            f"give it ({error}): {advice}"
        ) from error
    if hasattr(X, "toarray"):
        X = X.toarray()
    if name.endswith("mnist"):
        X, y = X.astype(np.uint8), y.astype(np.int64)
    return _split(X, y, n_train)
