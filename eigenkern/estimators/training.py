"""The training loop."""

import sys
import time


class ProgressLine:
    """One line that shows epochs, loss, score and time, for ``verbose=1``."""

    def __init__(self, name, n_epochs, verbose):
        self._name, self._n_epochs, self._on = name, n_epochs, verbose
        self._start = time.monotonic()
        # A terminal shows one line that moves; a log or a notebook one line an epoch.
        self._ends = ("\r", "\n") if sys.stdout.isatty() else ("\n", "")

    def start_epochs(self):
        """Note that the setup is over: it tells nothing of an epoch's time."""
        self._first_epoch = time.monotonic()

    def update(self, losses, scores):
        """Show the state after an epoch."""
        if not self._on:
            return
        done, now = len(losses), time.monotonic()
        remaining = (now - self._first_epoch) / done * (self._n_epochs - done)
        filled = 20 * done // self._n_epochs
        score = f"  score {scores[-1]:.4f}" if scores else ""
        line = (
            f"{self._name} [{'#' * filled}{'.' * (20 - filled)}] "
            f"epoch {done}/{self._n_epochs}  loss {losses[-1]:.4g}{score}  "
            f"{now - self._start:.1f} s, {remaining:.1f} s to go "
        )
        print(line, end=self._ends[0], flush=True)  # noqa: T201

    def close(self):
        """End the line."""
        if self._on:
            print(end=self._ends[1], flush=True)  # noqa: T201
