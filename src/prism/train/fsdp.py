"""FSDP2: weights, gradients and optimiser divided between the processes; a block's weights are whole while it runs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

from prism.errors import InputError
from prism.models.block import Block
from prism.train.config import Precision


def divide(model: nn.Module, device: torch.device, precision: Precision = "float32") -> nn.Module:
    """The same model with its weights divided, block by block, between all processes.

    In bfloat16 a block's weights travel and multiply in it; what each process keeps, the sums of gradients and the
    optimiser stay in float32, and so does what blocks add to: run it under autocast.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if not dist.is_initialized():
        raise InputError("fsdp divides weights between processes, and there is one: start several with torchrun")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    fast = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    policy = fast if precision == "bfloat16" else MixedPrecisionPolicy()
    for part in model.modules():
        if isinstance(part, Block):
            fully_shard(part, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh)
    return model


@contextmanager
def no_exchange(model: Any) -> Iterator[None]:
    """Gradients are added up here and exchanged later."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every tensor as one; all processes call it together."""
    return {name: x.full_tensor() if isinstance(x, DTensor) else x for name, x in tensors.items()}


def divided_as(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor divided as another is; what every process has anyway is not sent."""
    if not isinstance(like, DTensor) or isinstance(value, DTensor) or not value.ndim:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
