"""Rows that are held out."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from eigenkern.problems.data import Data, choose_evenly, hold_out


def chosen_of_each(sizes, n, seed=0):
    """Return how many of each group are chosen, with groups in random order."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    groups = np.random.RandomState(1).permutation(groups)
    chosen = choose_evenly(groups, n, np.random.RandomState(seed))
    assert chosen.shape == groups.shape and chosen.dtype == bool
    return np.bincount(groups[chosen], minlength=len(sizes))


@pytest.mark.parametrize(
    "sizes, n, expected",
    [
        ([50, 30, 20], 10, [5, 3, 2]),
        ([90, 5, 5], 4, [4, 0, 0]),  # quotas 3.6, 0.2, 0.2
        ([94, 6], 10, [9, 1]),
        ([10, 1, 1], 6, [6, 0, 0]),  # groups with one member give none
        ([4, 2], 6, [3, 1]),  # as many as groups can give
        ([1, 1, 1], 2, [0, 0, 0]),
        ([7], 3, [3]),
        ([7], 0, [0]),
    ],
)
def test_groups_give_in_proportion_and_keep_one(sizes, n, expected):
    assert_array_equal(chosen_of_each(sizes, n), expected)


def test_small_groups_give_in_turn():
    counts = np.array([chosen_of_each([4] * 50, 20, seed) for seed in range(40)])
    assert (counts.sum(axis=1) == 20).all() and counts.max() == 1
    # No group is favored among equal ones: each gives in 0.4 of the cases.
    assert (counts.mean(axis=0) > 0.1).all() and (counts.mean(axis=0) < 0.7).all()


def test_members_are_chosen_at_random():
    groups = np.arange(60) % 3
    shares = np.mean(
        [choose_evenly(groups, 15, np.random.RandomState(s)) for s in range(200)],
        axis=0,
    )
    assert (shares > 0.1).all() and (shares < 0.45).all()  # each in a quarter


def test_weights_decide_which_of_equal_rows_are_held_out():
    X, Y = np.array([[1.0], [2.0]] * 6), np.ones((12, 1))
    Y[::5] = 0.0
    w = np.random.default_rng(0).random(12)

    def held_out_weights(order):
        rng = np.random.RandomState(0)
        data = Data(X[order], Y[order], Y[order], w[order], rng)
        return np.sort(w[order][hold_out(data, np.arange(12), 0.4)[1]])

    order = np.arange(12)
    assert_array_equal(held_out_weights(order), held_out_weights(order[::-1]))
