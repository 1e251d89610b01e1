"""What a person sees of a run: a bar with loss, tokens/s and time left, and one line per evaluation."""

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from prism.display.text import plain

# Seconds between lines inside an epoch where there is no terminal to move a bar on.
LINE_SECONDS = 30.0


class Display:
    """On a terminal a bar moves at the bottom; elsewhere a line is printed now and then."""

    def __init__(self, *, shown: bool, epochs: int):
        self._console = Console(file=sys.stderr, quiet=not shown, highlight=False)
        self._bar = Progress(
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(),
            TextColumn("loss {task.fields[loss]:.4f}  {task.fields[rate]:,.0f} tokens/s"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not (shown and self._console.is_terminal),
            transient=True,
        )
        self._lines = shown and not self._console.is_terminal
        self._epochs = epochs
        self._task = self._bar.add_task("", total=float(epochs), epoch=1, epochs=epochs, loss=float("nan"), rate=0.0)
        self._clock = self._last_line = time.perf_counter()
        self._tokens = 0

    def __enter__(self) -> "Display":
        self._bar.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.stop()

    def step(self, done: float, epoch: int, loss: float, tokens: int) -> None:
        """After an update: `done` epochs in all, the mean loss of late, the tokens of this update."""
        self._tokens += tokens
        now = time.perf_counter()
        rate = self._tokens / max(now - self._clock, 1e-9)
        self._bar.update(self._task, completed=done, epoch=epoch + 1, loss=loss, rate=rate)
        if self._lines and now - self._last_line >= LINE_SECONDS:
            self.say(
                f"epoch {epoch + 1}/{self._epochs}, {done - epoch:.0%} of it: loss {loss:.4f}, {rate:,.0f} tokens/s"
            )

    def say(self, line: str) -> None:
        self._last_line = time.perf_counter()
        self._console.print(plain(line), markup=False, soft_wrap=True)
