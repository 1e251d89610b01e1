"""The gradient of an operation that a traced graph holds as one node: by PyTorch's autograd, of the forward anew."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import torch
from torch import Tensor


def gradients(
    run: Callable[[list[Tensor]], tuple[Tensor, ...]], tensors: Sequence[Tensor], grads: tuple[Tensor, ...]
) -> list[Tensor]:
    """The gradient of every tensor that `run` takes, given those of what it returns."""
    stream = torch.cuda.current_stream(grads[0].device) if grads[0].is_cuda else None

    def differentiate() -> tuple[Tensor, ...]:
        with torch.cuda.stream(stream) if stream is not None else nullcontext(), torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in tensors]
            return torch.autograd.grad(run(leaves), leaves, grads)

    # inside an operation PyTorch records nothing, in this thread
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(differentiate).result()
    return [x.clone(memory_format=torch.contiguous_format) for x in found]
