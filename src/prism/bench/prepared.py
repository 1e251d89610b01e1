"""`prism bench prepared`: a made-up log of any size prepared, then trained on up to the first step; time and memory."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from tyro.conf import Positional

from prism.config import at_least
from prism.display.tables import show
from prism.errors import InputError
from prism.recommend.data.synthetic import synthetic_log

# Files of the log, and how much longer its histories last than a walk's: most users are there before the last tenths of
# the events and after.
FILES, LONGER = 8, 20


def prepared(
    folder: Positional[Path],
    events: int = 50_000_000,
    users: int = 1_000_000,
    items: int = 500_000,
    partitions: int = 1024,
    experts: bool = True,
) -> None:
    """Clock and memory of `prism prepare` on a made-up log, and of `prism fit` on what it made, to its first step.

    Args:
        folder: Where log, prepared log and run go. What an earlier call left there is used again: the log as it is,
            the prepared one with nothing left to do.
        events: Of the log, in eight Parquet files.
        users: Of the log.
        items: Of the log.
        partitions: Of the prepared log.
        experts: With the simple experts, which `prism prepare` counts and `prism fit` starts from.
    """
    for name, value in (("events", events), ("users", users), ("items", items), ("partitions", partitions)):
        at_least(name, value, 2 * FILES if name != "partitions" else 1)
    logs, data, run = folder / "logs", folder / "data", folder / f"run-{int(time.time())}"
    write_logs(logs, events, users, items)
    words = [str(logs), "--out", str(data), "--partitions", str(partitions)]
    ready = run_command("prepare", *words, *([] if experts else ["--no-experts"]))
    words = [str(data), "--out", str(run), "--epochs", "1", "--log-steps", "1"]
    first = run_command("fit", *words, *([] if experts else ["--experts"]), until=run / "log.jsonl")
    show(
        f"{events:,} events of {users:,} users and {items:,} items, {partitions:,} partitions",
        ["command", "seconds", "of processors", "GB"],
        [
            [name, f"{took.seconds:.1f}", f"{took.processors:.1f}", f"{took.bytes / 1e9:.2f}"]
            for name, took in (("prism prepare", ready), ("prism fit, to the end of its first step", first))
        ],
        caption="on the clock, from the start of the process; memory: what it held at most",
    )


def write_logs(folder: Path, events: int, users: int, items: int) -> None:
    """Files of as many events, users and items each, unless they are there: walks with jumps, another seed for each."""
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(FILES):
        path = folder / f"events-{n}.parquet"
        if path.exists():
            continue
        log = synthetic_log(users // FILES, items // FILES, events // FILES, seed=n)
        first = np.repeat(log.times[log.offsets[:-1]], log.lengths)
        times = first + LONGER * (log.times - first)
        columns = {"user": log.users * FILES + n, "item": log.items.astype(np.int64) * FILES + n, "time": times}
        whole = path.with_suffix(".part")
        pl.DataFrame(columns).sort("time").write_parquet(whole)
        whole.replace(path)


@dataclass(frozen=True)
class Took:
    """What a command took: on the clock, of all processors, and of memory."""

    seconds: float
    processors: float
    bytes: float


def run_command(*words: str, until: Path | None = None) -> Took:
    """`prism …` in a process of its own, to its end or until the journal at `until` has a step, and then Ctrl-C."""
    began, seconds = time.monotonic(), 0.0
    process = subprocess.Popen([sys.executable, "-m", "prism.cli", *words], stdout=2)  # a table is to come on 1
    while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
        time.sleep(0.05)
        if until is not None and not seconds and has_a_step(until):
            seconds = time.monotonic() - began
            process.send_signal(signal.SIGINT)
    _, status, used = ended
    process.returncode = os.waitstatus_to_exitcode(status)
    failed = process.returncode != 0 if until is None else not seconds
    if failed:
        raise InputError(f"prism {' '.join(words)} ended with {process.returncode}")
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Took(seconds or time.monotonic() - began, used.ru_utime + used.ru_stime, peak)


def has_a_step(journal: Path) -> bool:
    """Whether a step was written to it; an evaluation has no loss."""
    if not journal.exists():
        return False
    lines = [line for line in journal.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return any("loss" in json.loads(line) for line in lines)
