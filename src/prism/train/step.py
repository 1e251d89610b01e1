"""One step of training: gradients of some batches, summed over processes and shortened, and the optimiser's update."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from prism.ops.common.device import exact_dtype
from prism.train.config import TrainConfig
from prism.train.fsdp import divide, no_exchange
from prism.train.optimiser import make_optimiser, scale_gradients
from prism.train.processes import evaluate_apart
from prism.train.shards import sharded_rows
from prism.train.task import Apart, Task
from prism.train.team import Divisible, Order, Team


class Stepper:
    """The model, its optimiser, and how both are spread over processes, cores and precisions."""

    def __init__(self, model: nn.Module, task: Task, config: TrainConfig, accelerator: Accelerator, fsdp: bool):
        self.task, self.config, self.accelerator = task, config, accelerator
        self.bare = model.to(accelerator.device)
        self.shards = sharded_rows(model)  # weights of which every process has rows of its own
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, list(self.shards))
        self.fsdp = fsdp and accelerator.num_processes > 1  # one process has all the weights anyway
        if self.fsdp:
            self.model = divide(model, accelerator.device, config.precision)
        else:
            self.model = cast(nn.Module, accelerator.prepare_model(model))
        self.optimiser = make_optimiser(self.bare, config)
        self.alone = accelerator.num_processes == 1 and accelerator.device.type == "cpu"
        self.team: Team | None = None

    def get_help(self, batches: Callable[[int], Sequence[Any]]) -> None:
        """Starts helpers for the other cores, where batches can be divided; after the weights have been loaded."""
        threads = torch.get_num_threads()
        if self.alone and threads > 1 and Team.possible() and isinstance(batches(0), Divisible):
            self.team = Team(threads, self.bare, batches, self._loss)

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
        total = self._sum(total)
        # gradients are those of sums, and averaged over processes
        norm = self._scale_gradients(world / total[1], 1 / total[1])
        self.optimiser.step_if(torch.isfinite(total[0] + norm))
        return torch.cat([total, norm.to(total.dtype)[None]])

    def evaluate(self) -> dict[str, float]:
        """Metrics of all processes' parts where they can be divided, else from the first; the same on all."""
        self.bare.eval()
        divided = bool(self.shards) or self.fsdp
        if self.accelerator.num_processes > 1 and not divided and isinstance(self.task, Apart):
            return evaluate_apart(self.task, self.bare)
        # divided weights come in the precision that they are trained in; whole ones are float32
        with self._precision() if self.fsdp else nullcontext():
            found = [self.task.evaluate(self.bare) if self.accelerator.is_main_process or divided else None]
        return cast(dict[str, float], broadcast_object_list(found)[0])

    def _backward(self, batch: Any, weight: float) -> Tensor:
        """Adds a batch's gradients; gives (sum of the loss, tokens)."""
        if self.team is not None and isinstance(batch, Order):
            return torch.tensor(self.team.backward(batch), dtype=exact_dtype(self.accelerator.device))
        loss, count = self._loss(batch)
        (loss * weight if weight != 1 else loss).backward()
        exact = exact_dtype(loss.device)
        return torch.stack([loss.detach().to(exact) * weight, loss.new_full((), count * weight, dtype=exact)])

    def _loss(self, batch: Any) -> tuple[Tensor, int]:
        with self._precision():
            return self.task.loss(self.model, batch)

    def _precision(self) -> AbstractContextManager[Any]:
        fast = self.config.precision == "bfloat16"
        return torch.autocast(self.accelerator.device.type, torch.bfloat16) if fast else nullcontext()

    def _no_exchange(self) -> AbstractContextManager[None]:
        return no_exchange(self.model) if self.fsdp else self.accelerator.no_sync(self.model)

    def _scale_gradients(self, scale: Tensor, shard_scale: Tensor) -> Tensor:
        """Gradients of the mean loss, shortened; what only this process has is a sum over processes already."""
        named = dict(self.bare.named_parameters())
        own = [named.pop(name) for name in self.shards]
        clip = self.config.clip
        return scale_gradients(named.values(), scale, clip, shards=own, shard_scale=shard_scale, add_up=self._sum)

    def _sum(self, value: Tensor) -> Tensor:
        """Over all processes."""
        return cast(Tensor, self.accelerator.reduce(value, "sum"))
