"""The training loop of any task: seeded step by step, so that a run stopped anywhere goes on as if it had not been."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, send_to_device
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from prism.errors import DivergedError, InputError
from prism.machine import pick_device
from prism.ops.common.device import exact_dtype
from prism.train.config import TrainConfig
from prism.train.fsdp import divide, no_exchange
from prism.train.interrupt import Interrupt, interrupts
from prism.train.journal import Journal, check_tensorboard
from prism.train.keeper import Keeper
from prism.train.optimiser import make_optimiser, scale_gradients
from prism.train.position import Position
from prism.train.prefetch import beside_the_step
from prism.train.processes import evaluate_apart
from prism.train.progress import Display
from prism.train.shards import sharded_rows
from prism.train.task import Apart, Task
from prism.train.team import Divisible, Order, Team


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
    """Trains `model` in place and leaves the weights of the best epoch in it.

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
        return Loop(model, task, config, accelerator, out, progress, together, fsdp).run(interrupt)


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
        self.bare = model.to(accelerator.device)
        self.shards = sharded_rows(model)  # weights of which every process has rows of its own
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, list(self.shards))
        self.fsdp = fsdp and accelerator.num_processes > 1  # one process has all the weights anyway
        if self.fsdp:
            self.model = divide(model, accelerator.device, config.precision)
        else:
            self.model = cast(nn.Module, accelerator.prepare_model(model))
        self.optimiser = make_optimiser(self.bare, config)
        self.keeper = Keeper(self.bare, self.optimiser, accelerator, out, fsdp=self.fsdp)
        self.at = self.keeper.resume() or Position()
        self.alone = accelerator.num_processes == 1 and accelerator.device.type == "cpu"
        self.team = self._helped()
        main = accelerator.is_main_process
        self.journal = Journal(
            out if main else None, step=self.at.step, evaluates=self.at.batch > 0, tensorboard=config.tensorboard
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
        if self.team is not None:
            self.team.end()

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
        self.model.train()
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

    def _helped(self) -> Team | None:
        """Helpers for the other cores, where batches can be divided."""
        threads = torch.get_num_threads()
        possible = self.alone and threads > 1 and not self.at.finished and Team.possible()
        if not possible or not isinstance(self.task.batches(0), Divisible):
            return None
        return Team(threads, self.bare, self.task.batches, self._loss)

    def batches(self, epoch: int) -> Sequence[Any]:
        """On a CPU made by the processes that compute on them, as far as they can be divided; else beside the step."""
        made = self.task.batches(epoch)
        return made if self.alone and isinstance(made, Divisible) else beside_the_step(made)

    def update(self, batches: Sequence[Any]) -> int:
        """One step of the optimiser, with helpers where there are; gives its tokens."""
        with nullcontext() if self.team is None else self.team.step():
            return self._update(batches)

    def _update(self, batches: Sequence[Any]) -> int:
        """One step of the optimiser, on `accumulate` batches for each process; gives its tokens."""
        config, at = self.config, self.at
        _seed(config.seed, self.accelerator.process_index, at.step)
        readers, device = self.readers, self.accelerator.device
        group = range(at.batch, min(at.batch + config.accumulate * readers, len(batches)))
        given: list[tuple[Any, float]] = []
        for n in range(group.start, group.stop, readers):
            if self.team is not None:
                given.append((Order(at.epoch, n, torch.initial_seed()), 1.0))
                continue
            silent = n + self.reader >= group.stop  # every process has to take part in the last exchange
            batch = batches[group.start if silent else n + self.reader]
            given.append((send_to_device(batch, device), 0.0 if silent else 1.0))
        middle = (group.start + group.stop) / 2  # neither the first nor the last step should have a rate of 0
        for settings in self.optimiser.param_groups:
            settings["lr"] = config.rate((at.epoch + middle / len(batches)) / config.epochs)
        loss, count, norm = self.compute(given).tolist()  # the one place where a step waits for its device
        if not isfinite(loss):
            self._refuse(f"the loss is {loss}", batches, group)
        if not isfinite(norm):
            self._refuse(f"the gradient's length is {norm}", batches, group)
        self.at = at.stepped(len(group), loss, int(count))
        return int(count)

    def compute(self, given: Sequence[tuple[Any, float]]) -> Tensor:
        """One step on batches that are on the device, each with its weight; the host does not wait for any of it.

        Gives the sum of the loss, the count of tokens and the gradient's length; where one of them is not finite, the
        weights stay as they are.
        """
        world, device = self.accelerator.num_processes, self.accelerator.device
        self.optimiser.zero_grad(set_to_none=True)
        total = torch.zeros(2, dtype=exact_dtype(device), device=device)
        for n, (batch, weight) in enumerate(given):
            with nullcontext() if n == len(given) - 1 else self._no_exchange():
                total += self._backward(batch, weight)
        total = cast(Tensor, self.accelerator.reduce(total, "sum"))
        # gradients are those of sums, and averaged over processes
        norm = self._scale_gradients(world / total[1], 1 / total[1])
        self.optimiser.step_if(torch.isfinite(total[0] + norm))
        return torch.cat([total, norm.to(total.dtype)[None]])

    def _no_exchange(self) -> AbstractContextManager[None]:
        return no_exchange(self.model) if self.fsdp else self.accelerator.no_sync(self.model)

    def _scale_gradients(self, scale: Tensor, shard_scale: Tensor) -> Tensor:
        """Gradients of the mean loss, shortened; what only this process has is a sum over processes already."""
        named = dict(self.bare.named_parameters())
        own = [named.pop(name) for name in self.shards]
        return scale_gradients(
            named.values(),
            scale,
            self.config.clip,
            shards=own,
            shard_scale=shard_scale,
            add_up=self._sum,
        )

    def _sum(self, value: Tensor) -> Tensor:
        """Over all processes."""
        return cast(Tensor, self.accelerator.reduce(value, "sum"))

    def _backward(self, batch: Any, weight: float) -> Tensor:
        """Adds a batch's gradients; gives (sum of the loss, tokens)."""
        if self.team is not None and isinstance(batch, Order):
            return torch.tensor(self.team.backward(batch), dtype=exact_dtype(self.accelerator.device))
        loss, count = self._loss(batch)
        (loss * weight if weight != 1 else loss).backward()
        exact = exact_dtype(loss.device)
        return torch.stack([loss.detach().to(exact) * weight, loss.new_full((), count * weight, dtype=exact)])

    def _precision(self) -> AbstractContextManager[Any]:
        fast = self.config.precision == "bfloat16"
        return torch.autocast(self.accelerator.device.type, torch.bfloat16) if fast else nullcontext()

    def _loss(self, batch: Any) -> tuple[Tensor, int]:
        with self._precision():
            return self.task.loss(self.model, batch)

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
            lr=self.optimiser.param_groups[0]["lr"],
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
        """Metrics of all processes' parts where they can be divided, else from the first; the same on all."""
        self.bare.eval()
        if self.accelerator.num_processes > 1 and not (self.shards or self.fsdp) and isinstance(self.task, Apart):
            metrics = evaluate_apart(self.task, self.bare)
        else:
            all_have_a_part = self.accelerator.is_main_process or bool(self.shards) or self.fsdp
            # divided weights come in the precision that they are trained in; whole ones are float32
            with self._precision() if self.fsdp else nullcontext():
                found = [self.task.evaluate(self.bare) if all_have_a_part else None]
            metrics = cast(dict[str, float], broadcast_object_list(found)[0])
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
