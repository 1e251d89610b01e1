"""Kernels compiled ahead of time for a GPU that need not be here, and what the compiler says of them."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from prism.ops.triton import device
from prism.ops.triton.delta import backward, forward, step
from prism.ops.triton.delta.launch import Shape

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
# Shared memory that one program may have, in bytes.
SHARED_LIMIT = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "gfx942": 64 << 10}
KERNELS = {
    "forward_walk": forward.forward_walk,
    "restore": forward.restore,
    "walk_back": backward.walk_back,
    "value_gradients": backward.value_gradients,
    "key_gradients": backward.key_gradients,
    "one_token": step.one_token,
}
_DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
_WIDE = {"log_alpha", "erase", "S0", "S_end", "dS_end", "dS0", "dlog_alpha", "derase"}
_PLACES = {"limits", "chunk_first", "chunk_owner", "span_first", "span_owner"}
_NUMBERS = {"scale": "fp32", "T": "i32", "N": "i32", "size": "i32"}
_PRODUCT = re.compile(r"\b(?:wgmma\.mma_async|mma\.sync|tcgen05\.mma|v_mfma)")


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of one kernel."""

    kernel: str
    target: str
    registers: int
    spilled: int
    """Bytes (NVIDIA) or registers (AMD) that did not fit and went to memory."""
    shared: int
    products: int
    """Tensor-core instructions in the code."""
    dots: int
    """Products of matrices in the source, after inlining."""
    ordinary: int
    """How many of them run on ordinary units instead: their result has no tensor core's layout."""


def compile_delta(
    name: str, target: str, *, L: int, K: int, V: int, dtype: torch.dtype = torch.bfloat16, each: bool = False
) -> Compiled:
    """One kernel of the recurrence, packed and keeping its states, with 16 heads."""
    kernel = KERNELS[name]
    with device.standing_for(target):
        constants = Shape(1, 1, 16, L, L if each else 1, K, V, 1, dtype, packed=True).constants(name)
    if name == "one_token":
        constants |= {"BK": triton.next_power_of_2(K), "BV": step.BLOCK, "num_warps": 4}
    options = {option: constants.pop(option) for option in ("num_warps", "num_stages")}
    constants = {name: value for name, value in (constants | {"KEEP": True}).items() if name in kernel.arg_names}
    return read_compiled(name, target, compile_kernel(kernel, target, constants, options, _types(kernel, dtype)))


def _types(kernel: Any, dtype: torch.dtype) -> dict[str, str]:
    types = {}
    for argument in kernel.arg_names:
        wide = "i64" if argument in _PLACES else "fp32" if argument in _WIDE else _DTYPES[dtype]
        types[argument] = _NUMBERS.get(argument, "*" + wide)
    return types


def compile_kernel(
    kernel: Any, target: str, constants: dict[str, Any], options: dict[str, int], types: dict[str, str]
) -> Any:
    """Any kernel, its pointers aligned; `types` of the arguments that are not constants."""
    signature, aligned = {}, {}
    for place, argument in enumerate(kernel.arg_names):
        signature[argument] = "constexpr" if argument in constants else types[argument]
        if signature[argument].startswith("*"):
            aligned[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=TARGETS[target], options=options)


def read_compiled(name: str, target: str, compiled: Any) -> Compiled:
    """Registers and spills from the binary, products from the assembly."""
    if "cubin" in compiled.asm:
        usage = _usage(compiled.asm["cubin"])
        registers, spilled, text = usage["REG"], usage["STACK"], compiled.asm["ptx"]
    else:
        text = compiled.asm["amdgcn"]
        found = dict(re.findall(r"\.(vgpr_count|vgpr_spill_count):\s+(\d+)", text))
        registers, spilled = int(found["vgpr_count"]), int(found["vgpr_spill_count"])
    dots = len(re.findall(r"\btt\.dot\b", compiled.asm["ttir"]))
    ordinary = len(re.findall(r"\btt\.dot\b.*-> tensor<[^#]*#blocked", compiled.asm["ttgir"]))
    products = len(_PRODUCT.findall(text))
    return Compiled(name, target, registers, spilled, compiled.metadata.shared, products, dots, ordinary)


def _usage(binary: bytes) -> dict[str, int]:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        done = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    return {key: int(value) for key, value in re.findall(r"\b(REG|STACK):(\d+)", done.stdout)}
