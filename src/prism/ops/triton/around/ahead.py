"""The kernels around the recurrence compiled ahead of time, with a model's usual sizes."""

from typing import Any

import triton.language as tl

from prism.ops.triton import device
from prism.ops.triton.ahead import Compiled, compile_kernel, read_compiled
from prism.ops.triton.around import conv, rows, softmax
from prism.ops.triton.fused import CONV_CHANNELS, CONV_STEPS, CONV_TOKENS, TILE
from prism.ops.triton.softmax_loss import ITEM_TOKENS, ITEMS, TOKENS, launch_options

_ROWS = {"V": 128, "BM": TILE // 128, "BV": 128}
_CONV = {"D": 1024, "W": 5, "BT": CONV_TOKENS, "BD": CONV_CHANNELS, "BH": 4, "BW": 8, "STEPS": CONV_STEPS}
_NORMED = _CONV | {"NORM": True}
_PLAIN = _CONV | {"NORM": False} | dict.fromkeys(("gamma", "moments", "sums"))
_LOSS = {"D": 128, "BI": ITEMS, "BD": 128, "GRAIN": ITEM_TOKENS, "BIASED": True, "KIND": tl.bfloat16}
_ADDED = _LOSS | {"BN": ITEM_TOKENS, "KF": 7, "F": 2, "ADDED": True}
_OF_ADDED = ("weights", "entries", "values", "tiles", "bank", "rows", "E", "dweights")
_ALONE = _LOSS | {"BN": TOKENS, "KF": 0, "F": 0, "ADDED": False} | dict.fromkeys(_OF_ADDED)
KERNELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "refine_forward": (rows.refine_forward, _ROWS | {"L": 2}),
    "refine_backward": (rows.refine_backward, _ROWS | {"L": 2}),
    "unit_forward": (rows.unit_forward, _ROWS),
    "unit_backward": (rows.unit_backward, _ROWS),
    "gated_norm_forward": (rows.gated_norm_forward, _ROWS),
    "gated_norm_backward": (rows.gated_norm_backward, _ROWS),
    "conv_forward": (conv.conv_forward, _CONV),
    "conv_backward": (conv.conv_backward, _PLAIN),
    "conv_history_backward": (conv.conv_history_backward, _PLAIN),
    "conv_norm_forward": (conv.conv_norm_forward, _NORMED),
    "norm_sums": (conv.norm_sums, _NORMED),
    "conv_backward, norm": (conv.conv_backward, _NORMED),
    "conv_history_backward, norm": (conv.conv_history_backward, _NORMED),
    "loss_forward": (softmax.loss_forward, _ALONE),
    "tokens_backward": (softmax.tokens_backward, _ALONE | {"BK": 16}),
    "items_backward": (softmax.items_backward, _ALONE | {"BN": ITEM_TOKENS}),
    "loss_forward, added": (softmax.loss_forward, _ADDED),
    "tokens_backward, added": (softmax.tokens_backward, _ADDED | {"BK": 16}),
    "items_backward, added": (softmax.items_backward, _ADDED),
}
_TYPES = dict.fromkeys(("M", "T", "N", "I", "E"), "i32") | {"eps": "fp32"}
_TYPES |= dict.fromkeys(("owner", "limits", "targets", "rows"), "*i64") | dict.fromkeys(("entries", "tiles"), "*i32")
_TYPES |= dict.fromkeys(
    ("dweight", "shares", "moments", "sums", "loss", "normaliser", "dloss", "weights", "values", "bank"), "*fp32"
)


def compile_around(name: str, target: str) -> Compiled:
    """One kernel, its operands in bfloat16."""
    kernel, constants = KERNELS[name]
    constants = {argument: value for argument, value in constants.items() if argument in kernel.arg_names}
    with device.standing_for(target):
        options = launch_options(constants.get("ADDED", False))
        if "P" in kernel.arg_names:
            constants |= {"P": device.product_precision()}
    types = {argument: _TYPES.get(argument, "*bf16") for argument in kernel.arg_names}
    return read_compiled(name, target, compile_kernel(kernel, target, constants, options, types))
