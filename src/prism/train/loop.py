"""The training loop of any task: seeded step by step, so that a run stopped anywhere goes on as if it had not been."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import nn

from prism.errors import DivergedError, InputError
from prism.machine import pick_device
from prism.train.config import TrainConfig
from prism.train.interrupt import Interrupt, interrupts
from prism.train.journal import Journal, check_tensorboard
from prism.train.keeper import Keeper
from prism.train.position import Position
from prism.train.prefetch import beside_the_step
from prism.train.progress import Display
from prism.train.step import Stepper
from prism.train.task import Task
from prism.train.team import Divisible, Order


def train(
    model: nn.Module,
    task: Task,
    config: TrainConfig,
    *,
    out: Path | None = None,
    progress: bool = True,
    device: torch.device | None = None,
    together: int = 1,
    fsdp: bool = False,
) -> Position:
    """Trains `model` in place and leaves the weights of the best epoch in it, ready to answer (no dropout).

    Args:
        model: On any device; moved to the one that is trained on.
        task: Data, loss and metrics.
        config: How to train.
        out: Folder of checkpoints and log. What an earlier run left there is continued, bit for bit on one process.
        progress: Whether to show a bar and lines.
        device: Where to train; None: a GPU where there is one, each process its own.
        together: Neighbouring processes that are given the same batch, of which each takes its part.
        fsdp: Whether weights and optimiser are divided between the processes (FSDP2), if there are several, not kept by
            each (DDP).

    Returns:
        Where the run ended, with the best metrics.
    """
    config.check_set()
    check_tensorboard(config.tensorboard)
    accelerator = Accelerator(cpu=(device or pick_device()).type == "cpu")
    devices = [accelerator.device] if accelerator.device.type == "cuda" else []
    with torch.random.fork_rng(devices), interrupts() as interrupt:
        at = Loop(model, task, config, accelerator, out, progress, together, fsdp).run(interrupt)
    model.eval()
    return at


class Loop:
    """One run. What changes is the model, the optimiser and `at`."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        config: TrainConfig,
        accelerator: Accelerator,
        out: Path | None = None,
        progress: bool = False,
        together: int = 1,
        fsdp: bool = False,
    ):
        self.task, self.config, self.out, self.accelerator = task, config, out, accelerator
        if accelerator.num_processes % together:
            raise InputError(f"{together} processes share a batch, and there are {accelerator.num_processes}")
        self.readers = accelerator.num_processes // together
        self.reader = accelerator.process_index // together
        self.stepper = step = Stepper(model, task, config, accelerator, fsdp)
        self.keeper = Keeper(step.bare, step.optimiser, accelerator, out, fsdp=step.fsdp)
        self.at = self.keeper.resume() or Position()
        if not self.at.finished:
            step.get_help(task.batches)
        main = accelerator.is_main_process
        evaluates = self.at.batch > 0 or self.at.best is None  # the opening's too, if it was not kept
        self.journal = Journal(
            out if main else None, step=self.at.step, evaluates=evaluates, tensorboard=config.tensorboard
        )
        self.display = Display(shown=progress and main, epochs=config.epochs)
        self.clock = self.log_clock = time.monotonic()

    def run(self, interrupt: Interrupt) -> Position:
        """All epochs that are left."""
        try:
            with self.display:
                if not self.at.finished:
                    self.display.say(f"training on {self._where()}")
                if self.at.step == 0 and self.at.best is None and self.task.start:
                    self._open()
                while not self.at.finished:
                    self._epoch(interrupt)
        finally:
            self.end()
        self.keeper.restore_best()
        return self.at

    def end(self) -> None:
        """Closes the journal and lets helpers go."""
        self.journal.close()
        if self.stepper.team is not None:
            self.stepper.team.end()

    def _where(self) -> str:
        device, world = self.accelerator.device, self.accelerator.num_processes
        kind = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} thread(s)"
        return f"{device.type} ({kind})" + (f" in {world} processes" if world > 1 else "")

    def _open(self) -> None:
        """Evaluates what training starts from, which may be the best already."""
        before = replace(self.at, epoch=-1)
        self.at = replace(self._judged(before, self.task.start), epoch=0)
        self._save()

    def _epoch(self, interrupt: Interrupt) -> None:
        batches = self.batches(self.at.epoch)
        if not len(batches):
            raise InputError("there is nothing to train on: the task has no batches")
        self.stepper.model.train()
        while self.at.batch < len(batches):
            tokens = self.update(batches)
            self._report(len(batches), tokens)
            due = time.monotonic() - self.clock >= self.config.save_seconds
            stop, save = self._any(interrupt.asked, due)
            if stop:
                self._stop()
            if save:
                self._save()
        self._end_epoch()

    def batches(self, epoch: int) -> Sequence[Any]:
        """On a CPU made by the processes that compute on them, as far as they can be divided; else beside the step."""
        made = self.task.batches(epoch)
        return made if self.stepper.alone and isinstance(made, Divisible) else beside_the_step(made)

    def update(self, batches: Sequence[Any]) -> int:
        """One step of the optimiser, with helpers where there are; gives its tokens."""
        team = self.stepper.team
        with nullcontext() if team is None else team.step():
            return self._update(batches)

    def _update(self, batches: Sequence[Any]) -> int:
        """One step of the optimiser, on `accumulate` batches for each process; gives its tokens."""
        config, at = self.config, self.at
        _seed(config.seed, self.accelerator.process_index, at.step)
        readers, device = self.readers, self.accelerator.device
        group = range(at.batch, min(at.batch + config.accumulate * readers, len(batches)))
        given: list[tuple[Any, float]] = []
        for n in range(group.start, group.stop, readers):
            if self.stepper.team is not None:
                seed = torch.initial_seed() + (n - group.start) * self.stepper.team.size  # a helper adds its part
                given.append((Order(at.epoch, n, seed), 1.0))
                continue
            silent = n + self.reader >= group.stop  # every process has to take part in the last exchange
            batch = batches[group.start if silent else n + self.reader]
            given.append((send_to_device(batch, device), 0.0 if silent else 1.0))
        middle = (group.start + group.stop) / 2  # neither the first nor the last step should have a rate of 0
        for settings in self.stepper.optimiser.param_groups:
            settings["lr"] = config.rate((at.epoch + middle / len(batches)) / config.epochs)
        loss, count, norm = self.stepper.compute(given).tolist()  # the one place where a step waits for its device
        if not isfinite(loss):
            self._refuse(f"the loss is {loss}", batches, group)
        if not isfinite(norm):
            self._refuse(f"the gradient's length is {norm}", batches, group)
        self.at = at.stepped(len(group), loss, int(count))
        return int(count)

    def _refuse(self, what: str, batches: Sequence[Any], group: range) -> None:
        held = self.task.describe(batches[group.start]) + (" and others" if len(group) > 1 else "")
        saved = self.keeper.saved
        good = f"the last good checkpoint is {saved}" if saved else "no checkpoint was written yet"
        raise DivergedError(
            f"{what} at step {self.at.step + 1} (epoch {self.at.epoch + 1}, batch {group.start}: {held}); "
            f"{good}; try a smaller lr, now {self.config.lr}"
        )

    def _report(self, batches: int, tokens: int) -> None:
        at = self.at
        done = at.epoch + at.batch / batches
        self.display.step(done, at.epoch, at.mean_loss, tokens)
        if at.step % self.config.log_steps and at.batch < batches:
            return
        seconds = time.monotonic() - self.log_clock
        self.journal.write(
            at.step,
            epoch=round(done, 4),
            loss=at.mean_loss,
            lr=self.stepper.optimiser.param_groups[0]["lr"],
            tokens_per_second=round(at.loss_count / max(seconds, 1e-9)),
        )
        self.at, self.log_clock = at.logged(), time.monotonic()

    def _end_epoch(self) -> None:
        """Evaluates if it is time, keeps the best, moves on."""
        config, task, at = self.config, self.task, self.at
        last = at.epoch + 1 == config.epochs
        if task.monitor is None:
            at = replace(at, best_epoch=at.epoch)
            self.keeper.keep_best(at)
        elif last or (at.epoch + 1) % config.evaluate_every == 0:
            at = self._judged(at, f"epoch {at.epoch + 1:>3}")
        self.at = replace(at, epoch=at.epoch + 1, batch=0, finished=last or at.stale >= config.patience)
        self._save()
        self.log_clock = time.monotonic()

    def _judged(self, at: Position, what: str) -> Position:
        """After an evaluation; if it is the best so far, its weights are kept."""
        monitor = self.task.monitor
        if monitor is None:
            return at
        started = time.monotonic()
        metrics = self._evaluate(monitor)
        at = at.evaluated(metrics[monitor], metrics, self.task.higher_is_better)
        self.journal.write(at.step, epoch=at.epoch + 1, **{f"valid/{name}": x for name, x in metrics.items()})
        self._say(what, at, metrics, time.monotonic() - started)
        if not at.stale:
            self.keeper.keep_best(at)
        return at

    def _evaluate(self, monitor: str) -> dict[str, float]:
        metrics = self.stepper.evaluate()
        if not isfinite(metrics[monitor]):
            raise DivergedError(f"{monitor} is {metrics[monitor]} after epoch {self.at.epoch + 1}")
        return metrics

    def _say(self, what: str, at: Position, metrics: dict[str, float], seconds: float) -> None:
        shown = "  ".join(f"{name} {value:.4f}" for name, value in list(metrics.items())[:4])
        mark = "  (best)" if not at.stale else ""
        self.display.say(f"{what}  {shown}  evaluated in {seconds:.1f} s{mark}")

    def _save(self) -> None:
        self.clock = time.monotonic()
        self.keeper.save(self.at)

    def _any(self, *asked: bool) -> list[bool]:
        """What any process asks for: to save is to wait for the others, who may have another clock or no Ctrl-C."""
        if self.accelerator.num_processes == 1:
            return list(asked)
        total = self.accelerator.reduce(torch.tensor(asked, device=self.accelerator.device).float(), "sum")
        return [bool(count) for count in total.tolist()]  # type: ignore[union-attr]

    def _stop(self) -> None:
        self._save()
        where = f"saved in {self.out}: the same command continues from there" if self.out else "nothing was saved"
        self.display.say(f"stopped at step {self.at.step} of epoch {self.at.epoch + 1}; {where}")
        raise KeyboardInterrupt


def _seed(*numbers: int) -> None:
    """What is random in a step depends on (seed, process, step): nothing has to be saved to repeat it."""
    torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1)))
