"""AdamW with weight decay on matrices alone, and its state as named tensors that a file can hold."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from prism.errors import InputError
from prism.ops.common.device import exact_dtype, on_gpu
from prism.train.config import TrainConfig
from prism.train.fsdp import divided_as, whole
from prism.train.rows import RowAdamW, one_clock


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
    first = weights[0][1]
    fused = first.device.type == "cpu" or on_gpu(first)
    return RowAdamW(groups, lr=config.lr, betas=(0.9, config.beta2), fused=fused)


def scale_gradients(
    weights: Iterable[nn.Parameter],
    scale: float | Tensor,
    longest: float,
    *,
    shards: Iterable[nn.Parameter] = (),
    shard_scale: float | Tensor = 1.0,
    add_up: Callable[[Tensor], Tensor] = lambda x: x,
) -> Tensor:
    """Multiplies gradients by `scale`, shortens them to `longest` if longer, and returns their length before that.

    All of it on the device: the host need not wait.

    Those of `shards`, rows that this process alone has, are multiplied by `shard_scale`; `add_up` sums the squares of
    their lengths over processes.
    """
    gradients = [_values(w) for w in weights if w.grad is not None]
    sharded = list(shards)
    own = [_values(w) for w in sharded if w.grad is not None]
    length = torch.nn.utils.get_total_norm(gradients)
    norm = scale * whole({"": length})[""].to(exact_dtype(length.device))
    if sharded:
        lengths = torch.nn.utils.get_total_norm(own).to(norm)
        norm = (norm**2 + add_up((shard_scale * lengths) ** 2)).sqrt()
    short = (longest / norm).clamp_max(1.0)
    _multiply(gradients, scale * short)
    _multiply(own, shard_scale * short)
    return norm


def _multiply(tensors: list[Tensor], factor: Tensor) -> None:
    """In place; of a divided tensor, the part that is here."""
    here = [x.to_local() if isinstance(x, DTensor) else x for x in tensors]
    if here:
        torch._foreach_mul_(here, factor.to(here[0].dtype))


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
        if what == "row_steps" and isinstance(weights[name], DTensor):  # whose gradients are dense
            what, value = "step", one_clock(value)
        value = divided_as(value, weights[name]) if what != "step" else value
        device = "cpu" if what == "step" and weights[name].device.type != "cuda" else weights[name].device
        optimiser.state[weights[name]][what] = value.to(device)
