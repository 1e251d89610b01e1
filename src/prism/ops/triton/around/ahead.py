"""The kernels around the recurrence compiled ahead of time, with a model's usual sizes."""

from typing import Any

import triton.language as tl

from prism.ops.triton.ahead import Compiled, compile_kernel, read_compiled
from prism.ops.triton.around import conv, rows, softmax
from prism.ops.triton.fused import CONV_CHANNELS, CONV_TOKENS, TILE
from prism.ops.triton.softmax_loss import ITEM_TOKENS, ITEMS, TOKENS

_ROWS = {"V": 128, "BM": TILE // 128, "BV": 128}
_CONV = {"D": 1024, "W": 5, "BT": CONV_TOKENS, "BD": CONV_CHANNELS}
_LOSS = {"D": 128, "BN": TOKENS, "BI": ITEMS, "BD": 128, "BIASED": True, "KIND": tl.bfloat16}
KERNELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "refine_forward": (rows.refine_forward, _ROWS | {"L": 2}),
    "refine_backward": (rows.refine_backward, _ROWS | {"L": 2}),
    "unit_forward": (rows.unit_forward, _ROWS),
    "unit_backward": (rows.unit_backward, _ROWS),
    "gated_norm_forward": (rows.gated_norm_forward, _ROWS),
    "gated_norm_backward": (rows.gated_norm_backward, _ROWS),
    "conv_forward": (conv.conv_forward, _CONV),
    "conv_backward": (conv.conv_backward, _CONV),
    "conv_history_backward": (conv.conv_history_backward, {"D": 1024, "W": 5, "BW": 4, "BD": CONV_CHANNELS}),
    "loss_forward": (softmax.loss_forward, _LOSS),
    "tokens_backward": (softmax.tokens_backward, _LOSS),
    "items_backward": (softmax.items_backward, _LOSS | {"BN": ITEM_TOKENS}),
}
_NUMBERS = {"M": "i32", "T": "i32", "N": "i32", "I": "i32", "eps": "fp32"}
_PLACES = {"owner", "limits", "targets"}
_WIDE = {"dweight", "dw", "loss", "normaliser", "dloss"}


def compile_around(name: str, target: str) -> Compiled:
    """One kernel, its operands in bfloat16."""
    kernel, constants = KERNELS[name]
    if "P" in kernel.arg_names:
        constants = constants | {"P": "ieee" if target.startswith("gfx") else "tf32x3"}
    types = {
        argument: _NUMBERS.get(argument)
        or ("*i64" if argument in _PLACES else "*fp32" if argument in _WIDE else "*bf16")
        for argument in kernel.arg_names
    }
    return read_compiled(name, target, compile_kernel(kernel, target, constants, {"num_warps": 4}, types))
