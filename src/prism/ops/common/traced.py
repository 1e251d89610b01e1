"""A recurrence as one node of a traced graph (`torch.compile`, `torch.export`), with its gradient.

A trace sees shapes, not kernels: what runs inside is the backend that `auto` picks for the device. The backward
computes the forward anew, so that a graph keeps nothing but the operands.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

# Outputs and final states of [q, k, v, …, S0], scale, side ("key", or "value" for reads as wide as a key) and limits.
Run = Callable[[list[Tensor], float, str, list[int] | None], tuple[Tensor, Tensor]]


def one_node(name: str, run: Run) -> Run:
    """`run` as the opaque operation prism::name."""

    @torch.library.custom_op(f"prism::{name}", mutates_args=())
    def forward(tensors: list[Tensor], scale: float, side: str, bounds: list[int] | None) -> tuple[Tensor, Tensor]:
        o, S = run(tensors, scale, side, bounds)
        return o.contiguous(), S.clone()

    @forward.register_fake
    def shapes(tensors: list[Tensor], scale: Any, side: str, bounds: Any) -> tuple[Tensor, Tensor]:
        q, k, v = tensors[:3]
        o = q.new_empty(*q.shape[:3], (v if side == "key" else k).shape[-1])
        return o, torch.empty_like(tensors[-1], memory_format=torch.contiguous_format)

    @torch.library.custom_op(f"prism::{name}_backward", mutates_args=())
    def backward(
        grads: list[Tensor], tensors: list[Tensor], scale: float, side: str, bounds: list[int] | None
    ) -> list[Tensor]:
        return _gradients(lambda leaves: run(leaves, scale, side, bounds), tensors, grads)

    @backward.register_fake
    def backward_shapes(grads: Any, tensors: list[Tensor], *rest: Any) -> list[Tensor]:
        return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors]

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors, *ctx.rest = inputs
        ctx.save_for_backward(*tensors)

    def gradients(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return backward(list(grads), list(ctx.saved_tensors), *ctx.rest), None, None, None

    forward.register_autograd(gradients, setup_context=save)
    return forward


def _gradients(
    run: Callable[[list[Tensor]], tuple[Tensor, ...]], tensors: Sequence[Tensor], grads: Sequence[Tensor]
) -> list[Tensor]:
    """The gradient of every tensor that `run` takes, given those of what it returns, by PyTorch's autograd."""
    stream = torch.cuda.current_stream(grads[0].device) if grads[0].is_cuda else None

    def differentiate() -> tuple[Tensor, ...]:
        with torch.cuda.stream(stream) if stream is not None else nullcontext(), torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in tensors]
            return torch.autograd.grad(run(leaves), leaves, grads)

    # inside an operation PyTorch records nothing, in this thread
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(differentiate).result()
    return [x.clone(memory_format=torch.contiguous_format) for x in found]
