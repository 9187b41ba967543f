"""A user's program, for mypy: `make types` checks the hints of what is public by it."""

from typing import assert_type

import numpy as np

import eigenkern
from eigenkern import (
    DSGRegressor,
    EigenProClassifier,
    KernelPCA,
    NystromRegressor,
    RandomFourierFeatures,
    RFMRegressor,
)
from eigenkern.inspection import average_gradient_outer_product
from eigenkern.kernels import Gaussian, median_distance

X = np.zeros((10, 2))
y = np.arange(10.0)

model = EigenProClassifier("gaussian", bandwidth="median", n_centers=5, verbose=True)
assert_type(model.fit(X, y > 3), EigenProClassifier)
model.fit(X, y > 3, checkpoint="folder", resume=True).predict_proba(X)
model.partial_fit(X, y > 3, classes=[False, True])

ridge = NystromRegressor(Gaussian(2.0), alpha="path", alphas=[1e-6, 1e-3])
assert_type(ridge.fit(X, y), NystromRegressor)
mean, deviation = ridge.predict(X, return_std=True)
average_gradient_outer_product(ridge, X, kind="diagonal")


def dot(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    return A @ B.T


DSGRegressor(Gaussian(1.0), loss="pinball", quantile=[0.1, 0.9], tol=1e-3).fit(X, y)
RFMRegressor(ridge, max_rounds=3).fit(X, y)
RandomFourierFeatures(n_components=100, random_state=0).fit(X).transform(X)
KernelPCA(2, kernel=dot, n_centers=None).fit(X).transform(X)
assert_type(median_distance(X), float)
assert_type(Gaussian(1.0).bandwidth, float)
assert_type(eigenkern.show_versions(), None)
assert_type(eigenkern.estimate(model, 10_000, 20).seconds, float)

# What is wrong has to be found: mypy says so where an ignored error is none.
EigenProClassifier(bandwidt=3.0)  # type: ignore[call-arg]
EigenProClassifier(n_centers=1.5)  # type: ignore[arg-type]
NystromRegressor().fit(X)  # type: ignore[call-arg]
