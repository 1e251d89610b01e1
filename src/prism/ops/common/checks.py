"""What every operator checks at its door: tensors of one shape, dtype and device."""

import torch
from torch import Tensor


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Half precisions accumulate in float32; float32 and float64 in themselves."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def describe(value: object) -> str:
    """A tensor's shape, or the type of what should have been one."""
    return str(list(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def check_tensor(name: str, value: object, shape: tuple[int, ...], letters: str, like: Tensor) -> None:
    """Refuses what is not a tensor of `shape` on the device of q (`like`)."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if tuple(value.shape) != shape:
        expected = ", ".join(f"{c}={n}" for c, n in zip(letters.split(), shape, strict=True))
        raise ValueError(f"{name} must have shape [{expected}], got {describe(value)}")
    if value.device != like.device:
        raise ValueError(f"{name} is on {value.device} but q is on {like.device}: move it to q's device")


def check_dtype(name: str, value: Tensor, allowed: tuple[torch.dtype, ...], like: Tensor) -> None:
    """Refuses a dtype that does not go with that of q (`like`)."""
    if value.dtype not in allowed:
        raise ValueError(f"{name} has dtype {value.dtype} but q has {like.dtype}: cast one of them")
