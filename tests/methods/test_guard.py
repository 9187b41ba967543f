"""The guard around epochs of a toy without kernels."""

from itertools import islice

import numpy as np
import pytest

from eigenkern.methods.guard import Epoch, EpochWatch, Guard, Guarded


class Toy:
    """Epochs with given losses; each moves a number by the guard's factor.

    A loss of None: there was no row to learn from. Infinite: the epoch diverged.
    """

    def __init__(self, losses, start=10.0, zero_loss=1.0, has_stepped=True):
        self.x, self.has_stepped = start, has_stepped
        self.guard, self._losses = Guard(zero_loss), iter(losses)
        self.starts = []

    def run_epoch(self):
        self.starts.append(self.x)
        loss = next(self._losses)
        if loss is None:
            return None
        self.x += self.guard.factor
        return Epoch(self.x, np.array([loss]), loss, self.has_stepped)

    def restore(self, x):
        self.x = x

    def states(self, n, **options):
        solver = Guarded(
            self.run_epoch, self.guard, lambda: self.x, self.restore, **options
        )
        return list(islice(solver, n))


def test_good_epochs_are_passed_on():
    toy = Toy([0.9, 0.5, 0.5])
    states = toy.states(3, step_size=8.0, counts=lambda: {"seen_": len(toy.starts)})
    assert [state.coef for state in states] == [11.0, 12.0, 13.0]
    assert [state.loss for state in states] == [0.9, 0.5, 0.5]
    assert [state.step_size for state in states] == [8.0] * 3
    assert [state.counts["seen_"] for state in states] == [1, 2, 3]
    assert not any(state.failed or state.n_step_halvings for state in states)


@pytest.mark.parametrize("bad", [np.inf, np.nan, 1.6])
def test_it_goes_back_to_the_start_of_the_best_epoch_and_halves(bad):
    # Epochs start at 10, 11, 12, 13, 14; the best began at 12. The last diverges.
    toy = Toy([0.9, 0.8, 0.5, 0.6, bad, 0.6, 0.5])
    states = toy.states(6, step_size=8.0)
    assert toy.starts == [10, 11, 12, 13, 14, 12, 12.5]
    assert [state.coef for state in states[4:]] == [12.5, 13.0]
    assert [state.n_step_halvings for state in states] == [0, 0, 0, 0, 1, 1]
    assert [state.step_size for state in states[3:]] == [8.0, 4.0, 4.0]


def test_after_a_halving_epochs_are_compared_with_each_other_only():
    # 1.4 is growth over 0.4; the next growth is measured from 1.4.
    toy = Toy([0.4, np.inf, 1.4, 1.5, 4.4, 1.0])
    states = toy.states(4)
    assert [state.loss for state in states] == [0.4, 1.4, 1.5, 1.0]
    assert toy.starts == [10, 11, 10, 10.5, 11, 10]
    assert states[-1].n_step_halvings == 2


def test_divergence_again_and_again_halves_every_time():
    toy = Toy([0.5, *[np.inf] * 5, 0.5])
    states = toy.states(2)
    assert toy.starts == [10, 11] + [10] * 5
    assert (states[1].n_step_halvings, states[1].coef) == (5, 10 + 2**-5)


def test_noise_is_no_divergence():
    states = Toy([0.5, 1.4, 0.5, 1.4]).states(4)
    assert [state.n_step_halvings for state in states] == [0] * 4


def test_rounding_is_no_divergence():
    toy = Toy([1e-12, 1e-7, 1e-12])
    assert toy.states(3)[-1].n_step_halvings == 0
    toy = Toy([1e-12, 1e-5, 1e-12])
    assert toy.states(2)[-1].n_step_halvings == 1


def test_it_restarts_from_the_origin_if_the_first_batch_trips():
    toy = Toy([np.inf, 0.5], has_stepped=False)
    states = toy.states(1, origin=0.0)
    assert toy.starts == [10.0, 0.0]
    assert (states[0].coef, states[0].n_step_halvings) == (0.5, 1)


def test_without_an_origin_it_stays_where_it_was():
    toy = Toy([np.inf, 0.5], has_stepped=False)
    toy.states(1)
    assert toy.starts == [10.0, 10.0]


def test_coefficients_that_stood_a_batch_are_not_given_up():
    toy = Toy([np.inf, 0.5])
    toy.states(1, origin=0.0)
    assert toy.starts == [10.0, 10.0]


def test_it_fails_after_41_halvings_with_the_best_snapshot():
    toy = Toy([0.9, 0.5, *[np.inf] * 100])
    states = toy.states(100)
    assert len(states) == 3 and len(toy.starts) == 2 + 41
    last = states[-1]
    assert last.failed and last.n_step_halvings == 41
    assert (last.coef, toy.x) == (11.0, 11.0)
    assert np.isnan(last.loss) and last.step_size == 0.0


def test_a_failure_tells_the_model_of_the_snapshot():
    toy = Toy([np.inf] * 100)
    (state,) = toy.states(100, model_of=lambda x: -x)
    assert state.failed and state.coef == -10.0


def test_epochs_without_rows_change_nothing():
    toy = Toy([None, 0.5, None, np.inf, 0.4])
    states = toy.states(4, model_of=lambda x: -x)
    assert toy.starts == [10, 10, 11, 11, 10]
    assert [state.coef for state in states] == [-10.0, 11.0, -11.0, 10.5]
    assert [state.loss for state in states] == [0.0, 0.5, 0.0, 0.4]
    assert [state.step_size for state in states] == [0.0, 1.0, 0.0, 0.5]


def test_halvings_before_count():
    toy = Toy([0.5])
    toy.guard = Guard(1.0, n_halvings=3)
    assert toy.states(1)[0].coef == 10 + 2**-3
    # The halvings of a failed fit say nothing about other rows.
    assert Guard(1.0, n_halvings=41).factor == 1.0


class Search:
    """A search that has chosen a longer step, until the iteration goes back."""

    def __init__(self):
        self.is_longer, self.losses = True, []

    def forget(self):
        self.is_longer = False

    def update(self, losses):
        self.losses.append(float(losses[0]))
        return False


def test_a_longer_step_is_to_blame_first():
    search, toy = Search(), Toy([0.5, np.inf, np.inf, 0.5])
    states = toy.states(2, search=search)
    assert [state.n_step_halvings for state in states] == [0, 1]
    assert toy.starts == [10, 11, 10, 10]
    # It gets only the losses of epochs that are returned.
    assert search.losses == [0.5, 0.5]


def test_a_watch_knows_which_iterate_diverged():
    watch = EpochWatch(Guard(1.0), 1.0, (2, 1))
    assert not watch.add(np.array([[10.0], [39.0]]), 10.0, 10)
    assert not watch.lost.any()
    assert not watch.add(np.array([[10.0], [42.0]]), 10.0, 10)
    assert watch.lost.tolist() == [False, True]
    assert watch.losses.tolist() == [[20.0], [np.inf]]
    assert (watch.n_rows, watch.n_batches) == (20, 2)
    assert watch.add(np.array([[np.nan], [1.0]]), 10.0, 10)
    assert watch.has_stepped


def test_a_batch_on_which_all_iterates_diverge_makes_no_step():
    watch = EpochWatch(Guard(1.0), 1.0, (2, 1))
    assert not watch.has_stepped
    assert watch.add(np.array([[np.nan], [100.0]]), 10.0, 10)
    assert not watch.has_stepped


def test_heavy_targets_and_imagined_rows_raise_the_limit():
    heavy = EpochWatch(Guard(1.0), 1.0, (1, 1))
    assert not heavy.add(np.array([[300.0]]), 100.0, 10)
    light = EpochWatch(Guard(1.0), 1.0, (1, 1))
    assert light.add(np.array([[300.0]]), 0.0, 10)
    slack = EpochWatch(Guard(1.0), 1.0, (1, 1), n_slack_rows=100)
    assert not slack.add(np.array([[300.0]]), 0.0, 10)
