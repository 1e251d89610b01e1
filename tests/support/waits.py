"""Counts what makes host and GPU wait for each other; meta tensors stand for a GPU's, and kernels run nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operations whose result the host must see before it can go on: a number, or how many there are of something.
WAITING = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "unique_dim", "bincount")


class Waits(TorchDispatchMode):
    """The operations that waited, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        masks = name in ("index", "index_put", "index_put_") and any(
            x.dtype == torch.bool for x in tree_leaves(args[1]) if isinstance(x, Tensor)
        )
        if any(x.is_meta for x in tensors) and (name in WAITING or masks or name == "repeat_interleave"):
            self.found.append(name)
        result = func(*args, **kwargs)
        after = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        # a number on the host may go with tensors on the device, unless the device is to hold it
        copies = name in ("_to_copy", "copy_")
        if len({x.is_meta for x in (*tensors, *after) if x.numel() and (x.ndim or copies)}) > 1:
            self.found.append(f"{name}: a copy between host and device")
        return result


@contextmanager
def meta_for_gpu(monkeypatch: Any) -> Iterator[Waits]:
    """Meta tensors take the path of a GPU's; Triton's launches do nothing."""
    from triton.runtime.jit import JITFunction

    from prism.ops.common import device

    monkeypatch.setattr(device, "GPUS", {"cuda", "meta"})
    monkeypatch.setattr(JITFunction, "run", lambda self, *args, **named: None)
    with Waits() as waits:
        yield waits
