"""Ctrl-C between steps: the first asks the loop to save and stop, the second stops at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether somebody wants the run to stop."""

    asked: bool = False


@contextmanager
def interrupts() -> Iterator[Interrupt]:
    """SIGINT and SIGTERM set `asked` while the body runs; outside the main thread signals are not ours to catch."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if interrupt.asked:
            raise KeyboardInterrupt
        interrupt.asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
