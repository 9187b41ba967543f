"""When epochs of classifiers end: beside fixed numbers of them, on real data sets.

Run ::

    EIGENKERN_DATA=/folder/of/npz python benchmarks/epochs.py [SET ...]

For each set, 12 000 rows: the epochs of `EigenProClassifier`, the wrong labels of test
rows in percent, the log loss, and the least one that a calibration on these test rows
has. Then the wrong labels after fixed numbers of epochs with the same penalty and
bandwidth, which learn all rows.
"""

import argparse
import warnings

import numpy as np
from datasets import CLASSES, IMAGES, available, parts
from sklearn.metrics import log_loss

from eigenkern import EigenProClassifier
from eigenkern.fitting.calibration import calibrate
from eigenkern.losses import LogLoss

N_TRAIN, N_TEST, NUMBERS = 12_000, 10_000, (1, 2, 4, 8, 20)


def least_log_loss(model, X, y):
    """Return the log loss of probabilities that are calibrated on these rows."""
    F, codes = model.decision_function(X), np.searchsorted(model.classes_, y)
    F = np.stack([0.5 - 0.5 * F, 0.5 + 0.5 * F], axis=1) if F.ndim == 1 else F
    F = F.astype(np.float64)
    scores = calibrate(F, codes, np.ones(len(y))).scores(F)
    return log_loss(codes, np.exp(LogLoss(F.shape[1]).log_probabilities(scores)))


def measure(name):
    """Print a line for a data set."""
    data, rng = parts(name), np.random.RandomState(0)
    train = rng.permutation(len(data.X_train))[:N_TRAIN]
    test = rng.permutation(len(data.X_test))[:N_TEST]
    X, y = data.X_train[train], data.y_train[train]
    new = data.X_test[test], data.y_test[test]
    model = EigenProClassifier(algorithm="eigenpro2", random_state=0).fit(X, y)
    own = log_loss(new[1], model.predict_proba(new[0]), labels=model.classes_)
    line = f"{name:14} {model.n_iter_:3} epochs  {100 * (1 - model.score(*new)):5.2f} %"
    line += f"  log loss {own:.4f}, at least {least_log_loss(model, *new):.4f}  "
    for n_epochs in NUMBERS:
        # To continue, a fit holds no rows out.
        fixed = EigenProClassifier(
            algorithm="eigenpro2",
            bandwidth=model.bandwidth_,
            alpha=model.alpha_,
            max_iter=n_epochs,
            warm_start=True,
            random_state=0,
        )
        fixed.fit(X, y)
        line += f"  {n_epochs}: {100 * (1 - fixed.score(*new)):.2f}"
    print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sets", nargs="*", default=[*CLASSES, *IMAGES])
    warnings.simplefilter("ignore")
    for name in parser.parse_args().sets:
        if available(name):
            measure(name)


if __name__ == "__main__":
    main()
