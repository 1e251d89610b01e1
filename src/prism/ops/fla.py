"""The operators under flash-linear-attention's names and signatures: scale 1/√K unless given, states [N, H, K, V]."""

from jaxtyping import Float
from torch import Tensor

from prism.ops.common.checks import compute_dtype
from prism.ops.common.packing import Limits
from prism.ops.delta.rule import delta_rule
from prism.ops.gated.rule import gated_rule


def chunk_gated_delta_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T HV V"],
    g: Float[Tensor, "B T HV"] | None,
    beta: Float[Tensor, "B T HV"],
    scale: float | None = None,
    initial_state: Float[Tensor, "N HV K V"] | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Limits | None = None,
) -> tuple[Float[Tensor, "B T HV V"], Float[Tensor, "N HV K V"] | None]:
    """S ← e^g S, S ← S + β k (v − Sᵀ k)ᵀ, o = scale · Sᵀ q.

    Args:
        q: Queries; where v has more heads, each serves HV / H of them.
        k: Keys, alike.
        v: Values.
        g: Logarithm of the decay; None for no decay.
        beta: Strength of the write.
        scale: Factor on the output; None for 1/√K.
        initial_state: The state before the first token; None for zeros.
        output_final_state: Whether to return the state after the last token.
        use_qk_l2norm_in_kernel: Whether to divide q and k by √(‖x‖² + 10⁻⁶) first.
        cu_seqlens: Limits 0, …, T of sequences packed into one row (B = 1).
    """
    dtype, groups = compute_dtype(q.dtype), _groups(q, v)
    Q, K = (_unit(x.to(dtype)) if use_qk_l2norm_in_kernel else x.to(dtype) for x in (q, k))
    o, S = delta_rule(
        Q.repeat_interleave(groups, 2),
        K.repeat_interleave(groups, 2),
        v.to(dtype),
        beta.to(dtype),
        None if g is None else g.to(dtype),
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        initial_state=None if initial_state is None else initial_state.mT.to(dtype),
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
    )
    return o.to(q.dtype), None if S is None else S.mT


def chunk_delta_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    beta: Float[Tensor, "B T H"],
    scale: float | None = None,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Limits | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """`chunk_gated_delta_rule` without decay."""
    return chunk_gated_delta_rule(
        q, k, v, None, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, cu_seqlens
    )


def chunk_gla(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"],
    scale: float | None = None,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: Limits | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """S ← diag(e^g) S + k vᵀ, o = scale · Sᵀ q: a decay for each channel of the key."""
    o, S = gated_rule(
        q,
        k,
        v,
        g,
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        initial_state=None if initial_state is None else initial_state.mT,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
    )
    return o, None if S is None else S.mT


def chunk_linear_attn(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    scale: float | None = None,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    normalize: bool = True,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """S ← S + k vᵀ, o = scale · Sᵀ q, divided by scale · q · Σ k + 10⁻¹⁰ where `normalize`."""
    if normalize and initial_state is not None:
        raise ValueError("normalize needs the sum of all keys, which initial_state does not hold: give normalize=False")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    o, S = chunk_gla(q, k, v, q.new_zeros(q.shape), scale, initial_state, output_final_state)
    if normalize:
        sums = k.to(compute_dtype(k.dtype)).cumsum(1)
        o = (o / ((q * scale * sums).sum(-1, keepdim=True) + 1e-10)).to(q.dtype)
    return o, S


def _groups(q: Tensor, v: Tensor) -> int:
    """Heads of v for each head of q."""
    if v.shape[2] % q.shape[2]:
        raise ValueError(f"v must have a multiple of q's {q.shape[2]} heads, got {v.shape[2]}")
    return int(v.shape[2] // q.shape[2])


def _unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
