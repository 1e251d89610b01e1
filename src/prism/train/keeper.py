"""What a run keeps of itself: its best weights to end with, and all that it needs to go on after a stop."""

import warnings
from dataclasses import asdict
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from prism.config import from_fields
from prism.errors import InputError, Note
from prism.train import checkpoints
from prism.train.journal import JOURNAL, read_journal
from prism.train.optimiser import optimiser_tensors, restore_optimiser
from prism.train.position import Position
from prism.train.processes import all_of, rank
from prism.train.shards import own_part, place_in, sharded_rows, spread


class Keeper:
    """Checkpoints in the run's folder; without a folder the best weights are kept in memory, and nothing else."""

    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        accelerator: Accelerator,
        out: Path | None,
        *,
        fsdp: bool,
    ):
        self.model, self.optimiser, self.accelerator, self.out, self.fsdp = model, optimiser, accelerator, out, fsdp
        self.shards = sharded_rows(model)  # weights of which every process has rows of its own
        self.saved: Path | None = None
        self._best: dict[str, Tensor] = {}

    def resume(self) -> Position | None:
        """Loads the newest checkpoint that can be read and gives its position; says which were damaged or missing."""
        found = checkpoints.checkpoints(self.out, "last") if self.out else []
        for n, one in enumerate(found):
            try:
                at = self._load(one)
                self.saved = one
                return at
            except checkpoints.Damaged as error:
                if n + 1 == len(found):
                    raise
                warnings.warn(Note(f"{error}; the run goes on from the one before, {found[n + 1].name}"), stacklevel=2)
        if self.out and read_journal(self.out / JOURNAL):
            warnings.warn(Note(f"{self.out} has no checkpoint last-*: the run starts again from epoch 1"), stacklevel=2)
        return None

    def _load(self, one: Path) -> Position:
        """Goes on from a checkpoint; where one process cannot, none does."""
        error, at = None, Position()
        try:
            at = from_fields(Position, checkpoints.load_facts(one), where="the checkpoint")
            checkpoints.load_weights(self.model, one)
            kept = checkpoints.load_tensors(one, "optimiser", place_in(self.model))
            own = {key: own_part(value, key, self.shards) for key, value in kept.items()}
            restore_optimiser(self.model, self.optimiser, own)
        except checkpoints.Damaged as found:
            error = found
        others = all_of({str(rank()): error is not None})
        if error is None and any(others.values()):
            error = checkpoints.Damaged(f"{one} is damaged, as another process found")
        if error is not None:
            raise error
        return at

    def save(self, at: Position) -> None:
        if self.out is None:
            return
        tensors = {"model": self.model.state_dict(), "optimiser": optimiser_tensors(self.model, self.optimiser)}
        self._write(self.out, "last", tensors, at, keep=2)  # two: where the newest is damaged, the other serves
        self.accelerator.wait_for_everyone()
        self.saved = checkpoints.newest(self.out, "last")

    def keep_best(self, at: Position) -> None:
        """The weights as they are now, in place of those kept before."""
        if self.out is None:
            self._best = {name: value.clone() for name, value in self.model.state_dict().items()}
        else:
            self._write(self.out, "best", {"model": self.model.state_dict()}, at, keep=1)

    def restore_best(self) -> None:
        self.accelerator.wait_for_everyone()
        if self.out is None:
            self.model.load_state_dict(self._best)
        else:
            load_best(self.model, self.out)

    def _write(self, out: Path, kind: str, tensors: dict[str, dict[str, Tensor]], at: Position, keep: int) -> None:
        """A checkpoint, by the first process or, where each has parts of its own, by all."""
        if self.shards or self.fsdp:
            parts = {name: spread(values, self.shards) for name, values in tensors.items()}
            checkpoints.save_together(out, kind, at.step, parts, asdict(at), keep=keep)
        elif self.accelerator.is_main_process:
            checkpoints.save(out, kind, at.step, tensors, asdict(at), keep=keep)


def load_best(model: nn.Module, out: Path) -> None:
    """Puts a run's best weights into its model."""
    best = checkpoints.newest(out, "best")
    if best is None:
        raise InputError(f"{out} has no best weights: no epoch was finished there")
    checkpoints.load_weights(model, best)
