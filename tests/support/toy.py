"""A task small enough to train in milliseconds: a line through noisy points, with dropout."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.3), nn.Tanh(), nn.Linear(16, 1))


@dataclass
class Toy:
    """Seven batches of different sizes per epoch."""

    each: Callable[[Tensor], Tensor] = field(default=lambda loss: loss)
    monitor: str = "error"
    higher_is_better: bool = False
    start: str = ""
    count: int = 7

    def batches(self, epoch: int) -> Sequence[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(epoch)
        made = []
        for n in range(self.count):
            x = torch.randn(3 + n, 4, generator=generator)
            made.append((x, x.sum(1, keepdim=True)))
        return made

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        x, y = (part.to(next(model.parameters()).dtype) for part in batch)
        return self.each((model(x) - y).square().sum()), len(x)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            return {"error": sum(float(self._error(model, batch)) for batch in self.batches(10**6))}

    def _error(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = (part.to(next(model.parameters()).dtype) for part in batch)
        return (model(x) - y).square().mean()

    def describe(self, batch: tuple[Tensor, Tensor]) -> str:
        return f"{len(batch[0])} points"
