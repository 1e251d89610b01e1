"""What every operator checks at its door: tensors of one shape, dtype and device."""

import os

import torch
from torch import Tensor

# Whether operators look at values too (a decay above 1): each look waits for the device. PRISM_DEBUG=1 turns it on.
_look = os.environ.get("PRISM_DEBUG", "0") not in ("", "0")


def debug(on: bool = True) -> None:
    """Has operators check the values of their operands, not only shapes and dtypes; the same as PRISM_DEBUG=1."""
    global _look
    _look = on


def check_decay(log_alpha: Tensor) -> None:
    """Refuses a decay above 1, when debugging."""
    if _look and log_alpha.numel() and not (worst := float(log_alpha.detach().max())) <= 0:
        raise ValueError(f"log_alpha must not be positive (a decay is at most 1), got {worst:g}")


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


def start_state(given: Tensor | None, shape: tuple[int, int, int, int], like: Tensor) -> Tensor:
    """The states [N, H, V, K] before the first tokens, in the dtype that computes: those given, or zeros."""
    dtype = compute_dtype(like.dtype)
    if given is None:
        return like.new_zeros(shape, dtype=dtype)
    check_tensor("initial_state", given, shape, "N H V K", like)
    check_dtype("initial_state", given, (torch.float32, dtype), like)
    return given.to(dtype)
