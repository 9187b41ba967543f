"""Doubly stochastic gradients: the steps, the rule of CDSG, the limits."""

from itertools import islice

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LogisticRegression, Ridge

from eigenkern.kernels import Gaussian
from eigenkern.losses import Hinge, LogLoss, SquaredError
from eigenkern.methods.stochastic import (
    BlockRule,
    Expansion,
    Steps,
    TrainingRows,
    checked_step,
    constant_rate,
    doubly_stochastic,
)
from eigenkern.operators.waves import FourierBlocks


@pytest.fixture
def data(rng):
    X = rng.standard_normal((90, 3))
    Y = np.column_stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]])
    return X, Y


def solver(
    X,
    Y,
    loss=None,
    *,
    block_size=8,
    weights=None,
    gamma=lambda t: 64.0,
    longest=1.0,
    algorithm="dsg",
    **options,
):
    """Return features, expansion and the solver's generator with simple defaults."""
    choice = ("n_new", "n_old", "max_blocks", "n_first")
    choice = {name: options.pop(name) for name in choice if name in options}
    features = FourierBlocks(Gaussian(1.5), 5, block_size, X, np.zeros(X.shape[1]))
    expansion = Expansion(np.zeros(Y.shape[1]), np.zeros(Y.shape[1]))
    defaults = {
        "expansion": expansion,
        "alpha": 1e-3,
        "batch_size": 30,
        "steps": Steps(gamma, longest),
        "blocks": BlockRule(algorithm, **choice),
        "keep_values": True,
        "rng": np.random.RandomState(0),
    }
    loss = SquaredError() if loss is None else loss
    rows = TrainingRows(X, Y, np.ones(len(X)) if weights is None else weights)
    states = doubly_stochastic(features, rows, loss, **defaults | options)
    return features, expansion, states


def values(features, expansion, X):
    blocks, n_columns = range(len(expansion.coef)), expansion.coef[0].shape[1]
    product = features.product(X, blocks, expansion.coef, n_columns)
    return expansion.scale * product + expansion.intercept


def test_rule_of_checking_on_a_case_solved_by_hand():
    # One output, g = 1, gamma = 1, no noise: 2 (b - eta)^2 <= b^2 + 1, whose largest
    # solution is eta = b + sqrt((b^2 + 1) / 2).
    sums, g = np.array([[1.0], [0.2], [-1.0], [7.0]]), np.array([1.0])
    assert checked_step(sums, g, 0.0, 1.0) == (3, 12.0)
    assert_allclose(checked_step(sums[:3], g, 0.0, 1.0), (0, 2.0))
    k, eta = checked_step(sums[1:3], g, 0.0, 1.0)
    assert (k, eta) == (0, pytest.approx(0.2 + np.sqrt(0.52)))
    # The gradient adds to the block's effect: only eta <= 0 meets the condition.
    assert checked_step(sums[2:3], g, 0.0, 1.0) == (0, 0.0)
    # Noise v = 1: 2 (b - eta)^2 + 2 eta^2 <= b^2 + 1, so b = 3 allows 1 to 2 and b = 7
    # nothing: 4 eta^2 - 28 eta + 48 has roots 3 and 4.
    assert_allclose(checked_step(np.array([[3.0]]), g, 1.0, 1.0), (0, 2.0))
    assert_allclose(checked_step(np.array([[7.0]]), g, 1.0, 1.0), (0, 4.0))
    assert checked_step(np.array([[7.0]]), g, 3.0, 1.0) == (0, 0.0)


def test_rule_of_checking_for_several_outputs_is_the_condition(rng):
    sums, g, noise, gamma = (
        rng.standard_normal((50, 3)),
        rng.standard_normal(3),
        0.3,
        0.7,
    )

    def holds(k, eta):
        left = 2 * ((sums[k] - eta * g) ** 2).sum() + 2 * eta**2 * noise
        return left <= (sums[k] ** 2).sum() + gamma**2 * (g**2).sum()

    k, eta = checked_step(sums, g, noise, gamma)
    assert holds(k, eta * (1 - 1e-9)) and not holds(k, eta * (1 + 1e-9))
    longer = eta * np.linspace(1.001, 10, 500)
    assert not any(holds(j, e) for j in range(50) for e in longer)


def test_no_old_block_without_gradient_or_blocks():
    assert checked_step(np.ones((3, 2)), np.zeros(2), 0.0, 1.0) == (0, 0.0)
    assert checked_step(np.empty(0), np.ones(2), 1.0, 1.0) == (0, 0.0)


@pytest.mark.parametrize("n_first", [1.0, 7.3])
@pytest.mark.parametrize("keep_values", [False, True])
@pytest.mark.parametrize("algorithm", ["dsg", "udsg", "udsg auto", "cdsg"])
def test_steps_are_those_of_a_naive_loop(algorithm, keep_values, n_first, data, rng):
    # The batches have different means, so that gradients change sign.
    X, Y = data[0], data[1] + np.repeat([[3.0, 1.0], [0.0, 0.0], [-3.0, 0.0]], 30, 0)
    w = rng.integers(0, 4, len(X)) / 2.0
    alpha, longest = 0.02, 1.9
    gamma = {"gamma": lambda t: 2.0 / (1 + 0.1 * t), "longest": longest}
    choice = {"algorithm": algorithm, "n_new": 2}
    if algorithm == "udsg auto":
        choice = {"algorithm": "udsg", "n_old": None}
        n_first = min(n_first, 3.3)  # or no block would be used again
    features, expansion, states = solver(
        X,
        Y,
        **choice,
        alpha=alpha,
        weights=w,
        n_first=n_first,
        keep_values=keep_values,
        rng=np.random.RandomState(7),
        **gamma,
    )
    state = next(islice(states, 3, None))
    rng, starts = np.random.RandomState(7), np.arange(0, 90, 30)
    A, M, sums, t, b = [], [], [], 0, np.zeros(2)
    first = due = 0.0
    phi = [features.features(X, k) for k in range(40)]
    n_of_step = [max(round(n_first / t), 1) for t in range(1, 13)]
    for _ in range(4):
        total = 0.0
        for start in rng.permutation(starts):
            rows = slice(start, start + 30)
            F = b + np.zeros((30, 2))
            for k in range(len(A)):
                F += phi[k][rows] @ A[k] - M[k]
            G = w[rows, None] * (F - Y[rows])
            total += (w[rows, None] * (F - Y[rows]) ** 2).sum() / 2
            n, t = n_of_step[t], t + 1
            blocks = range(len(A), len(A) + n)
            step = min(2.0 / (1 + 0.1 * t), longest)
            if algorithm == "udsg" and (t - 1) % 3 == 2:
                old = rng.permutation(len(A)) if n > 1 else [rng.randint(len(A))]
                blocks = old[:n]
            if algorithm == "cdsg" and A:
                noise = (G**2).sum() / 900 / 64
                old, eta = checked_step(np.array(sums), G.mean(axis=0), noise, step)
                if eta > step:
                    blocks, step = [old], min(eta, longest)
            if algorithm == "udsg auto" and A:
                blocks = blocks[: int(due)] if due >= 1 else [rng.randint(len(A))]
            n_before, size = len(A), 0.0
            A, M, sums = (
                [(1 - step * alpha) * part for part in parts] for parts in (A, M, sums)
            )
            for k in blocks:
                if k == len(A):
                    A.append(np.zeros((16, 2)))
                    M.append(np.zeros(2))
                    sums.append(np.zeros(2))
                mu = np.average(phi[k][rows], axis=0, weights=w[rows])
                change = -step / len(blocks) * (phi[k][rows] - mu).T @ G / 30
                size += np.linalg.norm(change)
                A[k] = A[k] + change
                M[k] = M[k] + mu @ change
                sums[k] = sums[k] - step / len(blocks) * G.mean(axis=0)
            first = first or size
            due = min(max(due - (len(A) - n_before), 0), 1)
            due += min(n_first * size / first, max(n_first / (t + 1), 0.5))
            b = b - 0.2 * step / longest * G.sum(axis=0) / w[rows].sum()
    assert_allclose(np.array(expansion.coef) * expansion.scale, A, atol=1e-12)
    assert_allclose(expansion.intercept, b - np.sum(M, axis=0), atol=1e-12)
    assert_allclose(expansion.block_sums(), sums, atol=1e-12)
    assert_allclose(state.loss, total / 90)
    # The case could not distinguish the algorithms if none reused a block.
    assert (len(A) < sum(n_of_step)) == (algorithm != "dsg")


def test_udsg_without_old_blocks_is_dsg(data):
    runs = [
        next(islice(solver(*data, algorithm=a, n_old=0)[2], 4, None)).coef
        for a in ("dsg", "udsg")
    ]
    assert_array_equal(np.array(runs[0].coef), np.array(runs[1].coef))
    assert runs[0].scale == runs[1].scale


def test_new_blocks_are_due_in_proportion_to_the_size_of_a_step():
    rule = BlockRule("udsg", n_old=None, n_first=16.0)
    expansion = Expansion(np.zeros(1), np.zeros(1), coef=[np.zeros((2, 1))])
    rule.record(expansion, 16, 0.0)
    assert (expansion.first_size, expansion.n_due) == (0.0, 0.0)
    rule.record(expansion, 16, 4.0)  # 16 are called for, but 8 in step 2 at most
    assert (expansion.first_size, expansion.n_due) == (4.0, 8.0)
    expansion.n_steps = 6
    rule.record(expansion, 8, 0.4)  # 16 / 10, of at most 16 / 8
    assert expansion.n_due == pytest.approx(1.6)
    expansion.n_steps = 998
    rule.record(expansion, 1, 4.0)  # every other step
    assert expansion.n_due == pytest.approx(0.6 + 0.5)
    expansion.n_due = np.nan  # diverged: the guard goes back
    chosen = rule.choose(expansion, None, 0.0, 1.0, 1.0, np.random.RandomState(0))
    assert chosen == ([1], 1.0)


@pytest.mark.parametrize("n_columns", [1, 3])
def test_log_loss_calls_for_new_blocks_by_its_curvature(n_columns, data):
    X = data[0]
    Y = np.eye(3)[np.arange(90) % 3] if n_columns == 3 else np.sign(X[:, :1])
    options = {"n_old": None, "n_first": 1.0, "algorithm": "udsg", "batch_size": 90}
    _, expansion, states = solver(X, Y, LogLoss(n_columns), alpha=0.0, **options)
    next(states)  # one step of all rows: the first block, from f = 0
    p = 0.5 if n_columns == 1 else 1 / 3
    size = np.linalg.norm(expansion.coef[0]) * np.sqrt(p * (1 - p))
    assert expansion.first_size == pytest.approx(size, rel=1e-9)


def test_udsg_uses_half_of_the_features(data):
    state = next(islice(solver(*data, algorithm="udsg")[2], 9, None))
    assert (state.coef.n_steps, len(state.coef.coef)) == (30, 15)


@pytest.mark.parametrize("max_blocks", [1, 3])
def test_squared_loss_reaches_ridge_on_the_same_features(max_blocks, data):
    X, Y = data
    alpha = 1e-2
    features, expansion, states = solver(
        X,
        Y,
        block_size=24 // max_blocks,
        alpha=alpha,
        batch_size=90,
        max_blocks=max_blocks,
        # With one block: gradient descent. With more, the blocks take turns at random.
        gamma=lambda t: 1.0 / (1.0 + 0.005 * t * (max_blocks - 1)),
    )
    next(islice(states, 6000, None))
    # f = sum_k phi_k' A_k with steps on one of M blocks is ridge on phi / sqrt(M).
    phi = np.hstack([features.features(X, k) for k in range(max_blocks)])
    exact = Ridge(alpha=alpha * 90, tol=1e-12).fit(phi / np.sqrt(max_blocks), Y)
    exact = exact.predict(phi / np.sqrt(max_blocks))
    atol = 1e-9 if max_blocks == 1 else 0.02
    assert_allclose(values(features, expansion, X), exact, atol=atol)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_log_loss_reaches_logistic_regression_on_the_same_features(n_classes, data):
    X, _ = data
    codes = np.argsort(np.argsort(X[:, 0] + X[:, 1] ** 2)) * n_classes // 90
    Y = (2.0 * codes - 1)[:, None] if n_classes == 2 else np.eye(3)[codes]
    alpha, loss = 1e-2, LogLoss(Y.shape[1])
    features, expansion, states = solver(
        X, Y, loss, alpha=alpha, batch_size=90, max_blocks=1, longest=2.0
    )
    next(islice(states, 3000, None))
    phi = features.features(X, 0)
    peer = LogisticRegression(C=1 / (alpha * 90), tol=1e-10)
    peer.set_params(max_iter=10_000).fit(phi, codes)
    P = loss.probabilities(values(features, expansion, X))
    assert_allclose(P, peer.predict_proba(phi), atol=1e-5)


@pytest.mark.parametrize(
    "batch_size, quick, rate",
    [(10, True, 0.2), (4096 // 3, True, 0.5), (4096, True, 1.0), (9999, True, 1.0)]
    + [(10, False, 0.2), (9999, False, 0.2)],
)
def test_large_batches_set_the_constant_anew(batch_size, quick, rate):
    assert constant_rate(batch_size, quick) == pytest.approx(rate, rel=1e-3)


def test_error_of_f_falls_as_one_over_t(data):
    # Theorem 3 with theta lambda = 1.5, on rows with a known solution.
    X, Y = (part[:30] for part in data)
    alpha = 0.05
    K = Gaussian(1.5)(X)
    K = K - K.mean(axis=0)
    K = K - K.mean(axis=1)[:, None]
    mean = Y.mean(axis=0)
    exact = mean + K @ np.linalg.solve(K + 30 * alpha * np.eye(30), Y - mean)
    checkpoints, errors = [16, 64, 256], np.zeros((6, 3))
    for seed in range(6):
        features, _, states = solver(
            X,
            Y,
            block_size=2,
            alpha=alpha,
            batch_size=10,
            gamma=lambda t: 1.5 / alpha / t,
            longest=1.0,
            rng=np.random.RandomState(seed),
        )
        features.seed = 10_000 * seed
        for i, state in enumerate(islice(states, 256)):
            if i + 1 in checkpoints:
                F = values(features, state.coef, X)
                error = np.mean((F - exact) ** 2)
                errors[seed, checkpoints.index(i + 1)] = error
    slope = np.polyfit(np.log(checkpoints), np.log(errors.mean(axis=0)), 1)[0]
    assert -1.3 < slope < -0.7


def test_guard_shortens_steps_that_diverge(data):
    X, Y = data
    state = next(islice(solver(X, Y, longest=64.0)[2], 5, None))
    assert 3 <= state.n_step_halvings <= 8
    assert state.step_size == 0.5**state.n_step_halvings
    assert 0 < state.loss < 0.5 * np.mean((Y**2).sum(axis=1))


def test_guard_shortens_steps_on_old_blocks_too(data, monkeypatch):
    X, Y = data
    choose, steps = BlockRule.choose, []

    def noted(rule, *args):
        blocks, step = choose(rule, *args)
        steps.append((blocks[0] < len(args[0].coef), step))
        return blocks, step

    monkeypatch.setattr(BlockRule, "choose", noted)
    options = {"algorithm": "cdsg", "longest": 1.9, "n_halvings": 2}
    states = solver(X, Y, gamma=lambda t: 2 / (1 + 0.1 * t), **options)[2]
    assert next(islice(states, 5, None)).n_step_halvings == 2
    assert max(step for old, step in steps if old) == pytest.approx(1.9 / 4)


def test_coefficients_survive_strong_shrinkage(data):
    # The common factor halves in every step: it must be folded in.
    options = {"alpha": 0.5}
    kept = solver(*data, **options)
    plain = solver(*data, keep_values=False, **options)
    for _, _, states in (kept, plain):
        next(islice(states, 30, None))
    X = data[0]
    assert kept[1].scale > 1e-7
    assert_allclose(values(*kept[:2], X), values(*plain[:2], X), atol=1e-10)


def test_hinge_separates(rng):
    X = rng.standard_normal((90, 3))
    Y = np.sign(X[:, :1] + 0.3)
    features, expansion, states = solver(X, Y, Hinge(), block_size=32, alpha=1e-4)
    next(islice(states, 100, None))
    assert (np.sign(values(features, expansion, X)) == Y).mean() > 0.98
