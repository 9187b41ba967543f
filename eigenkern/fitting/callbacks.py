"""scikit-learn's callbacks; only this file uses their (experimental) interface."""


class Callbacks:
    """Reports a fit to the callbacks of its estimator.

    X, y and sample_weight are as the user gave them; `task` is the name of an
    iteration, None in a fit without iterations. The problem, once it is known, tells
    the fitted attributes of a state.
    """

    def __init__(self, estimator, X, y, sample_weight, task, max_iter):
        self._given = {
            "estimator": estimator,
            "X": X,
            "y": y,
            "metadata": {"sample_weight": sample_weight},
        }
        self._task, self.problem = task, None
        n_tasks = 0 if task is None else max_iter
        self._fit = estimator._init_callback_context(max_subtasks=n_tasks)
        self._fit.call_on_fit_task_begin(**self._given)

    def begin(self):
        """Report that an iteration begins."""
        if self._task is not None:
            self._iteration = self._fit.subcontext(task_name=self._task)
            self._iteration.call_on_fit_task_begin(**self._given)

    def end(self, state):
        """Report that an iteration ended; return whether a callback wants to stop."""
        if self._task is None:
            return False

        def attributes():
            return self.problem.fitted_attributes(state.coef) | state.counts

        return self._iteration.call_on_fit_task_end(
            reconstruction_attributes=attributes, **self._given
        )

    def close(self, attributes):
        """Report that the fit ended, with its fitted attributes."""
        self._fit.call_on_fit_task_end(
            reconstruction_attributes=attributes, **self._given
        )
