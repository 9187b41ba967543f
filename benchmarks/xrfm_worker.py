"""Fit xRFM with its defaults in an environment that has it; ``tabular.py`` calls this.

``python xrfm_worker.py in.npz out.npz``: in are X, y, X_val, y_val, X_test and seed,
out are the predictions, seconds to fit and to predict, the best round and the versions.
"""

import sys
import time
from importlib.metadata import version

import numpy as np
import torch
from xrfm import xRFM


def main():
    with np.load(sys.argv[1]) as arrays:
        X, y, X_val, y_val, X_test, seed = (
            arrays[name] for name in ("X", "y", "X_val", "y_val", "X_test", "seed")
        )

    def make():
        return xRFM(device=torch.device("cpu"), random_state=int(seed), verbose=False)

    make().fit(X[:200], y[:200], X[:200], y[:200])  # threads and libraries start
    model = make()
    start = time.perf_counter()
    model.fit(X, y, X_val, y_val)
    fitted = time.perf_counter()
    predicted = model.predict(X_test)
    end = time.perf_counter()
    np.savez(
        sys.argv[2],
        predicted=np.asarray(predicted).reshape(len(X_test)),
        fit=fitted - start,
        predict=end - fitted,
        note=f"round {model.trees[0]['model'].best_iter}",
        version=f"xrfm {version('xrfm')}, torch {version('torch')}",
    )


if __name__ == "__main__":
    main()
