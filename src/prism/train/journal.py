"""The run's log: one JSON object per line, TensorBoard beside it if asked for."""

import json
from pathlib import Path
from typing import Any

from prism.errors import InputError, needs
from prism.files import write_whole, writing

JOURNAL = "log.jsonl"


class Journal:
    """Lines of numbers by step. A resumed run drops the lines of what it will do again: steps after `step`, and the
    evaluation at `step` where it stands before one."""

    def __init__(self, folder: Path | None, *, step: int, evaluates: bool = False, tensorboard: bool):
        self._path = None if folder is None else folder / JOURNAL
        self._board: Any = None
        if self._path is not None:
            kept = [line for line in read_journal(self._path) if line["step"] <= step]
            if evaluates:
                kept = [line for line in kept if line["step"] < step or not any(n.startswith("valid/") for n in line)]
            write_whole(self._path, "".join(json.dumps(line) + "\n" for line in kept).encode())
        if folder is not None and tensorboard:
            self._board = _board(folder, step)

    def write(self, step: int, **values: Any) -> None:
        """One line; numbers in it go to TensorBoard too."""
        if self._path is not None:
            with writing(self._path), self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **values}) + "\n")
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Flushes what TensorBoard holds back."""
        if self._board is not None:
            self._board.close()


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; a last line that a killed process left half-written is no line."""
    if not path.exists():
        return []
    lines = [_line(text) for text in path.read_bytes().split(b"\n")]
    if lines[-1] is None:
        lines.pop()
    if None in lines:
        where = f"{path}, line {lines.index(None) + 1}"
        raise InputError(f"{where} is damaged: remove the file, and the run goes on without these lines")
    return [line for line in lines if line is not None]


def _line(text: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:  # not JSON, or not UTF-8
        return None
    return line if isinstance(line, dict) and isinstance(line.get("step"), int) else None


def check_tensorboard(wanted: bool) -> None:
    """Refuses at the door what would fail after an epoch."""
    if wanted:
        needs("tensorboard", extra="tensorboard")


def _board(folder: Path, step: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)  # type: ignore[no-untyped-call]
