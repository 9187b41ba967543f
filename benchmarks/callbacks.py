"""What the callbacks of several benchmarks share."""

import time


class Timed:
    """Callback of a fit that knows when it began; a subclass looks at its tasks."""

    def setup(self, estimator, context):
        self.start = time.perf_counter()

    def teardown(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context, **ignored):
        pass
