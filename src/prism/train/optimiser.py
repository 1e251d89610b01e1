"""AdamW with weight decay on matrices alone, and its state as named tensors that a file can hold."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from prism.errors import InputError
from prism.train.config import TrainConfig
from prism.train.fsdp import divided_as, whole
from prism.train.rows import RowAdamW


def decays(model: nn.Module) -> set[str]:
    """Names of the weights that decay: two axes or more, not an embedding, not called bias."""
    embeddings = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    return {
        name
        for name, weight in model.named_parameters()
        if weight.ndim >= 2 and id(weight) not in embeddings and not name.endswith("bias")
    }


def make_optimiser(model: nn.Module, config: TrainConfig) -> RowAdamW:
    """AdamW over the model's weights in two groups; a sparse gradient moves the rows that it names."""
    chosen = decays(model)
    weights = list(model.named_parameters())
    groups = [
        {"params": [w for name, w in weights if name in chosen], "weight_decay": config.weight_decay},
        {"params": [w for name, w in weights if name not in chosen], "weight_decay": 0.0},
    ]
    fused = weights[0][1].device.type in ("cpu", "cuda")
    return RowAdamW(groups, lr=config.lr, betas=(0.9, config.beta2), fused=fused)


def scale_gradients(
    weights: Iterable[nn.Parameter],
    scale: float,
    longest: float,
    *,
    shards: Iterable[nn.Parameter] = (),
    shard_scale: float = 1.0,
    add_up: Callable[[float], float] = lambda x: x,
) -> float:
    """Multiplies gradients by `scale`, shortens them to `longest` if longer, and returns their length before that.

    Those of `shards`, rows that this process alone has, are multiplied by `shard_scale`; `add_up` sums the squares of
    their lengths over processes.
    """
    gradients = [_values(w) for w in weights if w.grad is not None]
    sharded = list(shards)
    own = [_values(w) for w in sharded if w.grad is not None]
    length = torch.nn.utils.get_total_norm(gradients)
    norm = scale * float(whole({"": length})[""])
    if sharded:
        norm = (norm**2 + add_up((shard_scale * float(torch.nn.utils.get_total_norm(own))) ** 2)) ** 0.5
    short = longest / norm if norm > longest else 1.0
    torch._foreach_mul_(gradients, scale * short)
    if own:
        torch._foreach_mul_(own, shard_scale * short)
    return norm


def _values(weight: nn.Parameter) -> Tensor:
    """The numbers of a gradient; a sparse one is made to have each row once."""
    grad = weight.grad
    assert grad is not None
    if not grad.is_sparse:
        return grad
    weight.grad = grad.coalesce()
    return weight.grad._values()


def optimiser_tensors(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """`weight.what` → tensor, for everything the optimiser remembers."""
    return {
        f"{name}.{what}": value
        for name, weight in model.named_parameters()
        for what, value in optimiser.state.get(weight, {}).items()
    }


def restore_optimiser(model: nn.Module, optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """The inverse of `optimiser_tensors`."""
    weights = dict(model.named_parameters())
    for key, value in tensors.items():
        name, _, what = key.rpartition(".")
        if name not in weights:
            raise InputError(f"the checkpoint's optimiser knows {name!r}, which the model does not have")
        value = divided_as(value, weights[name]) if what != "step" else value
        device = "cpu" if what == "step" and weights[name].device.type != "cuda" else weights[name].device
        optimiser.state[weights[name]][what] = value.to(device)
