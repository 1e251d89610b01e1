"""The recurrence S_t = α_t S_{t-1} (I − ε_t k¹_t k¹_tᵀ) + Σ_l β^l_t δ^l_t k^l_tᵀ, read o_t = scale · S_t q_t."""

import importlib

import torch
from jaxtyping import Float
from torch import Tensor

from prism.ops.common.autograd import transformed
from prism.ops.common.backends import Backend, choose, is_trained, pick
from prism.ops.common.packing import Limits
from prism.ops.common.precision import own_precision
from prism.ops.delta.definition import MODULES, one_token, reference
from prism.ops.delta.operands import operands
from prism.ops.delta.traced import forward as as_one_node


def delta_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H *L K"],
    v: Float[Tensor, "B T H *L V"],
    beta: Float[Tensor, "B T H *L"],
    log_alpha: Float[Tensor, "B T H"] | None = None,
    *,
    erase: Float[Tensor, "B T H *each"] | None = None,
    scale: float | None = None,
    initial_state: Float[Tensor, "N H V K"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: Limits | None = None,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H V K"] | None]:
    """Decay, erase along the first key, write L rank-1 terms, read; the whole sequence at once.

    With a strength for each direction (`erase` [B, T, H, L]) the state is erased along each of them in turn, just
    before it is written along: S ← α S, then S ← S (I − ε^l k^l k^lᵀ) + β^l δ^l k^lᵀ for l = 1 … L.

    Args:
        q: Queries.
        k: Directions, L per token; the first is also the one erased along. Without the L axis, L = 1.
        v: What is written along each direction (the paper's δ).
        beta: The strength of each write.
        log_alpha: Logarithm of the decay, at most 0; None for no decay.
        erase: Strength ε of the erasure along the first direction, or of each direction's own with an L axis; None
            for `beta` of the first direction, zeros for no erasure.
        scale: Factor on the output; None for 1.
        initial_state: The state before the first token; None for zeros.
        output_final_state: Whether to return the state after the last token.
        cu_seqlens: Limits 0, …, T of sequences packed into one row (B = 1), each with a state of its own.
        backend: `reference` is the definition, one token at a time; `chunk` runs on any device; `cpu` is
            compiled; `triton` runs on a GPU, its products in the operands' dtype; `auto` picks by the tensors' device.

    Returns:
        The outputs in q's dtype, and the final state (float32, or float64 for float64 inputs) or None.
    """
    with own_precision(q) as autocast:
        traced = torch.compiler.is_compiling()
        chosen = choose(backend, (q, k, v, beta, log_alpha, erase, initial_state), MODULES, traced=traced)
        x = operands(
            q,
            k,
            v,
            beta,
            log_alpha,
            erase=erase,
            scale=scale,
            initial_state=initial_state,
            cu_seqlens=cu_seqlens,
            widen=chosen != "triton",
        )
        o, S = as_one_node(x) if traced else pick(chosen, x, reference, MODULES, autocast=autocast)(x)
    return o.to(q.dtype), S if output_final_state else None


def delta_rule_step(
    q: Float[Tensor, "N H K"],
    k: Float[Tensor, "N H *L K"],
    v: Float[Tensor, "N H *L V"],
    beta: Float[Tensor, "N H *L"],
    log_alpha: Float[Tensor, "N H"] | None = None,
    *,
    erase: Float[Tensor, "N H *each"] | None = None,
    scale: float | None = None,
    state: Float[Tensor, "N H V K"] | None = None,
    in_place: bool = False,
) -> tuple[Float[Tensor, "N H V"], Float[Tensor, "N H V K"]]:
    """`delta_rule` for one token of each sequence: operands without the T axis, the next state always returned.

    With `in_place` it overwrites the state given (which must be contiguous, in float32 or better; without gradients),
    so that a decoding loop, or a CUDA graph of one step, always finds it in the same memory.
    """
    if in_place and (state is None or not state.is_contiguous() or state.dtype not in (torch.float32, torch.float64)):
        raise ValueError("in_place needs a state to overwrite: a contiguous tensor of float32 or float64")
    q1, k1, v1, beta1 = (y.unsqueeze(1) if isinstance(y, Tensor) else y for y in (q, k, v, beta))
    log_alpha1, erase1 = (y.unsqueeze(1) if isinstance(y, Tensor) else y for y in (log_alpha, erase))
    with own_precision(q):
        given = (q1, k1, v1, beta1, log_alpha1, erase1, state)
        traced = torch.compiler.is_compiling() or transformed()
        if in_place and is_trained(given):
            raise ValueError(
                "in_place overwrites a state that the gradient needs: leave it out, or use torch.no_grad()"
            )
        chosen = "reference" if traced or is_trained(given) else choose("auto", given, MODULES)
        narrow = chosen == "triton"
        x = operands(q1, k1, v1, beta1, log_alpha1, erase=erase1, scale=scale, initial_state=state, widen=not narrow)
        if chosen == "triton":
            o, S = importlib.import_module(MODULES["triton"]).step(x, in_place=in_place)
        elif chosen == "cpu":
            o, S = importlib.import_module(MODULES["cpu"]).step(x)
        else:
            o, S = one_token(x, 0, x.S0)
    if in_place and state is not None and S is not state:
        S = state.copy_(S)
    return o.to(q.dtype), S


def delta_rule_flops(L: int, K: int, V: int, *, erasures: int = 1, decays: bool = True) -> int:
    """Floating-point operations per token and head: 2 for each multiply-add, as the definition does them."""
    return K * V * (2 + 2 * L + 4 * erasures + decays)
