"""Decay per channel: S_t = S_{t-1} (diag(α_t) − f_t e_tᵀ) + v_t k_tᵀ, read o_t = scale · S_t q_t (or S_tᵀ q_t)."""

import torch
from jaxtyping import Float
from torch import Tensor

from prism.ops.common.backends import Backend, pick
from prism.ops.common.packing import Limits
from prism.ops.common.precision import own_precision
from prism.ops.gated.definition import MODULES, one_token, reference
from prism.ops.gated.operands import Side, gated_operands
from prism.ops.gated.traced import forward as as_one_node


def gated_rule(
    q: Float[Tensor, "B T H Q"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    log_alpha: Float[Tensor, "B T H K"],
    *,
    find: Float[Tensor, "B T H K"] | None = None,
    erase: Float[Tensor, "B T H K"] | None = None,
    side: Side = "key",
    scale: float | None = None,
    initial_state: Float[Tensor, "N H V K"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: Limits | None = None,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "B T H O"], Float[Tensor, "N H V K"] | None]:
    """Decay each channel of the key, erase along one direction what another finds, write, read.

    Args:
        q: Queries, as wide as a key; as wide as a value where `side` is value.
        k: The direction written to.
        v: What is written.
        log_alpha: Logarithm of each channel's decay, at most 0.
        find: Direction f, under which S_{t-1} is searched before it decays; None for no erasure.
        erase: Direction e, along which what was found is taken away; given exactly when `find` is.
        side: `key` reads S q, a value; `value` reads Sᵀ q, a key (without erasure only).
        scale: Factor on the output; None for 1.
        initial_state: The state before the first token; None for zeros.
        output_final_state: Whether to return the state after the last token.
        cu_seqlens: Limits 0, …, T of sequences packed into one row (B = 1), each with a state of its own.
        backend: `reference` is the definition, one token at a time; `chunk` runs on any device; `cpu` is
            compiled; `auto` picks by the tensors' device.

    Returns:
        The outputs in q's dtype, and the final state (float32, or float64 for float64 inputs) or None.
    """
    with own_precision(q) as autocast:
        x = gated_operands(
            q, k, v, log_alpha, find, erase, side=side, scale=scale, initial_state=initial_state, cu_seqlens=cu_seqlens
        )
        traced = torch.compiler.is_compiling()
        o, S = as_one_node(x) if traced else pick(backend, x, reference, MODULES, autocast=autocast)(x)
    return o.to(q.dtype), S if output_final_state else None


def gated_rule_step(
    q: Float[Tensor, "N H Q"],
    k: Float[Tensor, "N H K"],
    v: Float[Tensor, "N H V"],
    log_alpha: Float[Tensor, "N H K"],
    *,
    find: Float[Tensor, "N H K"] | None = None,
    erase: Float[Tensor, "N H K"] | None = None,
    side: Side = "key",
    scale: float | None = None,
    state: Float[Tensor, "N H V K"] | None = None,
) -> tuple[Float[Tensor, "N H O"], Float[Tensor, "N H V K"]]:
    """`gated_rule` for one token of each sequence: operands without the T axis, the next state always returned."""
    tokens = (y.unsqueeze(1) if isinstance(y, Tensor) else y for y in (q, k, v, log_alpha, find, erase))
    with own_precision(q):
        x = gated_operands(*tokens, side=side, scale=scale, initial_state=state)  # type: ignore[arg-type, misc]
        o, S = one_token(x, 0, x.S0)
    return o.to(q.dtype), S


def gated_rule_flops(K: int, V: int, *, erases: bool = False) -> int:
    """Floating-point operations per token and head: 2 for each multiply-add, as the definition does them."""
    return K * V * (5 + 4 * erases)
