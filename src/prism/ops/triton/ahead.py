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

from prism.ops.triton.delta import backward, forward
from prism.ops.triton.delta.launch import Tiles, tiles

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
    "prepare": backward.prepare,
    "walk_back": backward.walk_back,
    "gradients": backward.gradients,
}
_DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
_WIDE = {"log_alpha", "erase", "S0", "S_end", "dS_end", "dS0", "dlog_alpha", "derase"}
_PLACES = {"limits", "chunk_first", "chunk_sequence"}
_NUMBERS = {"scale": "fp32", "T": "i32", "N": "i32"}
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


def compile_delta(
    name: str, target: str, *, L: int, K: int, V: int, dtype: torch.dtype = torch.bfloat16, size: Tiles | None = None
) -> Compiled:
    """One kernel of the recurrence, packed and keeping its states, with 16 heads."""
    kernel, size = KERNELS[name], size or tiles(name, K, V, dtype)
    precision = "ieee" if target.startswith("gfx") else "tf32x3"
    constants: dict[str, Any] = {"H": 16, "L": L, "K": K, "V": V, "BK": size.BK, "BV": size.BV, "C": size.C}
    constants |= {"PACKED": True, "PRECISION": precision} | ({"KEEP": True} if name == "forward_walk" else {})
    signature, aligned = {}, {}
    for place, argument in enumerate(kernel.arg_names):
        if argument in constants:
            signature[argument] = "constexpr"
        elif argument in _NUMBERS:
            signature[argument] = _NUMBERS[argument]
        else:
            wide = "i64" if argument in _PLACES else "fp32" if argument in _WIDE else _DTYPES[dtype]
            signature[argument] = "*" + wide
            aligned[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": size.warps, "num_stages": 1}
    return _read(name, target, triton.compile(source, target=TARGETS[target], options=options))


def _read(name: str, target: str, compiled: Any) -> Compiled:
    """Registers and spills from the binary, products from the assembly."""
    if "cubin" in compiled.asm:
        usage = _usage(compiled.asm["cubin"])
        registers, spilled, text = usage["REG"], usage["STACK"], compiled.asm["ptx"]
    else:
        text = compiled.asm["amdgcn"]
        found = dict(re.findall(r"\.(vgpr_count|vgpr_spill_count):\s+(\d+)", text))
        registers, spilled = int(found["vgpr_count"]), int(found["vgpr_spill_count"])
    return Compiled(name, target, registers, spilled, compiled.metadata.shared, len(_PRODUCT.findall(text)))


def _usage(binary: bytes) -> dict[str, int]:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        done = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    return {key: int(value) for key, value in re.findall(r"\b(REG|STACK):(\d+)", done.stdout)}
