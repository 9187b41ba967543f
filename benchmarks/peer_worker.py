"""Fit a peer in an environment that has it; ``tabular.py`` calls this.

``python peer_worker.py METHOD in.npz out.npz``: in are X, y, X_test, seed, whether to
predict numbers (`regression`) and which columns are categories (`categorical`, whose
values are numbers from 0); for xRFM also X_val and y_val. Out are the predictions,
seconds to fit and to predict, a note and the versions.
"""

import sys
import time
from importlib.metadata import version

import numpy as np


class Boosting:
    """CatBoost or LightGBM with their defaults, which take tables with categories."""

    def __init__(self, method, arrays):
        kind = "Regressor" if arrays["regression"] else "Classifier"
        seed, self._categorical = int(arrays["seed"]), arrays["categorical"]
        self._texts, self.packages = method == "catboost", (method,)
        if method == "catboost":
            import catboost

            options = {"random_seed": seed, "allow_writing_files": False, "verbose": 0}
            options["cat_features"] = [int(i) for i in self._categorical]
            self._model = getattr(catboost, f"CatBoost{kind}")(**options)
        else:
            import lightgbm

            options = {"random_state": seed, "verbose": -1}
            self._model = getattr(lightgbm, f"LGBM{kind}")(**options)

    def _table(self, X):
        import pandas

        table = pandas.DataFrame(X)
        for i in self._categorical:
            if self._texts:
                table[i] = table[i].fillna(-1).astype(int).astype(str)
            else:
                n_levels = self._n_levels[i]
                table[i] = pandas.Categorical(table[i], categories=range(n_levels))
        return table

    def fit(self, X, y):
        self._n_levels = {i: int(np.nanmax(X[:, i])) + 1 for i in self._categorical}
        self._model.fit(self._table(X), y)
        self.note = ""
        return self

    def predict(self, X):
        return self._model.predict(self._table(X))


class Recursive:
    """xRFM with its defaults, or the best of 30 draws from its authors' space."""

    packages = ("xrfm", "torch")

    def __init__(self, method, arrays):
        self._n_draws, self._seed = (
            30 if method == "xrfm_30" else 1,
            int(arrays["seed"]),
        )
        self._labels, self._validation = not arrays["regression"], None
        if "X_val" in arrays:
            self._validation = arrays["X_val"], arrays["y_val"]

    def _drawn(self, rng):
        """Draw parameters of xRFM as ``pytabkit`` 1.7 does in its default space."""
        exponent, between = rng.uniform(0.7, 1.4), rng.uniform(0.0, 0.8)
        model = {
            "bandwidth": float(np.exp(rng.uniform(np.log(0.5), np.log(200.0)))),
            "exponent": exponent,
            "norm_p": exponent + (2 - exponent) * between,
            "diag": bool(rng.choice([False, True])),
            "kernel": str(rng.choice(["lpq", "l2"], p=[0.8, 0.2])),
            "bandwidth_mode": "constant",
        }
        reg = float(np.exp(rng.uniform(np.log(1e-6), np.log(10.0))))
        fit = {"reg": reg, "iters": 5, "verbose": False, "early_stop_rfm": True}
        return {"model": model, "fit": fit}

    def _one(self, X, y, parameters):
        import torch
        from xrfm import xRFM

        cpu = {"device": torch.device("cpu"), "verbose": False}
        model = xRFM(parameters, random_state=self._seed, **cpu)
        model.fit(X, y, *(self._validation or (X, y)))
        return model

    def fit(self, X, y):
        rng, best = np.random.default_rng(self._seed), np.inf
        for draw in range(self._n_draws):
            model = self._one(X, y, self._drawn(rng) if self._n_draws > 1 else None)
            error = 0.0
            if self._n_draws > 1:
                X_val, y_val = self._validation
                found = np.asarray(model.predict(X_val)).reshape(len(y_val))
                wrong = found != y_val if self._labels else (found - y_val) ** 2
                error = np.nan_to_num(np.mean(wrong), nan=np.inf)
            if error < best:
                best, self._model = error, model
                self.note = f"round {model.trees[0]['model'].best_iter}, draw {draw}"
        return self

    def predict(self, X):
        return np.asarray(self._model.predict(X)).reshape(len(X))


def main():
    method, source, target = sys.argv[1:]
    with np.load(source) as file:
        arrays = dict(file)
    kind = Boosting if method in ("catboost", "lightgbm") else Recursive
    X, y, few = arrays["X"], arrays["y"], {**arrays, "categorical": []}
    few.pop("X_val", None)
    starting = "xrfm" if kind is Recursive else method
    kind(starting, few).fit(np.nan_to_num(X[:200]), y[:200])  # threads start
    model = kind(method, arrays)
    start = time.perf_counter()
    model.fit(X, y)
    fitted = time.perf_counter()
    predicted = np.asarray(model.predict(arrays["X_test"])).reshape(-1)
    end = time.perf_counter()
    np.savez(
        target,
        predicted=predicted,
        fit=fitted - start,
        predict=end - fitted,
        note=model.note,
        version=", ".join(f"{name} {version(name)}" for name in model.packages),
    )


if __name__ == "__main__":
    main()
