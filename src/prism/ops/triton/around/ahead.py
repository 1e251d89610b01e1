"""The kernels around the recurrence compiled ahead of time, with a model's usual sizes."""

from typing import Any

import triton.language as tl

from prism.ops.triton import device
from prism.ops.triton.ahead import Compiled, compile_kernel, read_compiled
from prism.ops.triton.around import conv, rows, softmax
from prism.ops.triton.fused import CONV_CHANNELS, CONV_STEPS, CONV_TOKENS, REFINE_TILE, TILE
from prism.ops.triton.softmax_loss import ITEM_TOKENS, ITEMS, TOKENS, launch_options

_ROWS: dict[str, Any] = {"L": 2, "V": 128, "BM": TILE // 128, "BV": 128}
_CONV: dict[str, Any] = {
    "D": 1024,
    "W": 5,
    "BT": CONV_TOKENS,
    "BD": CONV_CHANNELS,
    "BH": 4,
    "BW": 8,
    "STEPS": CONV_STEPS,
}
_NORMED = _CONV | {"NORM": True}
_PLAIN = _CONV | {"NORM": False} | dict.fromkeys(("gamma", "moments", "sums"))
_LOSS: dict[str, Any] = {
    "D": 128,
    "BI": ITEMS,
    "BD": 128,
    "BK": 16,
    "GRAIN": ITEM_TOKENS,
    "BIASED": True,
    "KIND": tl.bfloat16,
}
_ADDED = _LOSS | {"BN": ITEM_TOKENS, "KF": 7, "F": 2, "ADDED": True}
_OF_ADDED = ("weights", "entries", "values", "tiles", "bank", "rows", "E", "dweights")
_ALONE = _LOSS | {"BN": TOKENS, "KF": 0, "F": 0, "ADDED": False} | dict.fromkeys(_OF_ADDED)
_OVER_ROWS = [f"{part}_{way}" for part in ("refine", "unit", "gated_norm") for way in ("forward", "backward")]
_IN_CONV = {"": _PLAIN, ", norm": _NORMED}
_IN_LOSS = {"": _ALONE, ", added": _ADDED}
KERNELS: dict[str, tuple[Any, dict[str, Any]]] = {name: (getattr(rows, name), _ROWS) for name in _OVER_ROWS}
KERNELS["refine_backward"] = (rows.refine_backward, _ROWS | {"BM": REFINE_TILE // 128})
KERNELS |= {name: (getattr(conv, name), _NORMED) for name in ("conv_forward", "conv_norm_forward", "norm_sums")}
for _more, _sizes in _IN_CONV.items():
    KERNELS |= {name + _more: (getattr(conv, name), _sizes) for name in ("conv_backward", "conv_history_backward")}
for _more, _sizes in _IN_LOSS.items():
    KERNELS |= {name + _more: (getattr(softmax, name), _sizes) for name in ("loss_forward", "tokens_backward")}
    KERNELS["items_backward" + _more] = (softmax.items_backward, _sizes | {"BN": ITEM_TOKENS})
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
