"""The paper's theory of PRISM's operands, measured on a trained layer: spectrum, stability, and the amortisation.

The amortisation. A token of the layer meets S⁰ = α S_{t−1}, its key k = k^(1) and its target v. The solver that PRISM
stands for lowers J(S) = ½‖φ(S k) − v‖², φ the layer's own, by L gradient steps of size β^(1) from S⁰ (of size β^(l)
where the layer erases along each direction, by β^(l)): `nonlinear_delta`. Any write leads from S⁰ to some S. What it
achieves is the share

    Σ_t [J(S⁰_t) − J(S_t)] / Σ_t [J(S⁰_t) − J(S_t^{serial, L})]

over all tokens and heads of a batch: 1, as much as the solver with as many steps; 0, nothing; negative, J grew. All
writes start from the same states, those of the layer's own trajectory, and use its own k, v and β.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from prism.layers.base.pace import Write
from prism.layers.prism import Prism
from prism.layers.spelling import with_options
from prism.ops import delta_rule_step
from prism.ops.delta.definition import one_token
from prism.ops.delta.operands import Operands
from prism.ops.fastweight.nonlinear_delta import nonlinear_delta
from prism.probes.settings import ProbeSettings
from prism.probes.tasks.base import PROBES
from prism.probes.training import ProbeTraining, run_probe

GELU_SLOPE = 1.1290
"""The largest slope of GELU (at √2): its Lipschitz constant, which the paper rounds to 1."""


class Tokens(NamedTuple):
    """Everything one layer does to a batch of tokens: N = batch · length rows."""

    layer: Prism
    anchor: Tensor  # [N, H, V]
    v: Tensor  # [N, H, V]
    gain: Tensor  # [N, H, L, V]
    write: Write  # rows of N
    before: Tensor  # [N, H, V, K]: S_{t−1}


def trained_layers(
    steps: int,
    *,
    mixer: str = "prism",
    task: str = "palindrome",
    updates: int = 1500,
    length: int = 16,
    seed: int = 0,
) -> tuple[list[Tokens], float]:
    """The layers of a probe model of `mixer` with L = `steps`, trained until solved or for `updates`; its accuracy.

    They are seen on 16 test sequences.
    """
    probe = PROBES[task](length=length)
    training = ProbeTraining(steps=max(updates, 1), every=50, lr=ProbeTraining.lr if updates else 1e-12)
    config = ProbeSettings().model(probe, with_options(mixer, f"steps={steps}"))
    result, net = run_probe(probe, config, training, seed=seed)
    inputs: list[Tensor] = []
    layers = [part for part in net.modules() if isinstance(part, Prism)]
    hooks = [layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0])) for layer in layers]
    with torch.no_grad():
        net(torch.from_numpy(probe.draw(16, seed=seed, split="test", batch=2).tokens))
        for hook in hooks:
            hook.remove()
        return [look_inside(layer, x) for layer, x in zip(layers, inputs, strict=True)], result.accuracy


@torch.no_grad()
def look_inside(layer: Prism, x: Float[Tensor, "B T D"]) -> Tokens:
    """The operands and the states of a layer on its own input."""
    layer, x = layer.double(), x.double()
    u = layer.norm(x if layer.conv is None else layer.conv(x, None, None)[0])
    write, _ = layer.write(u)
    H, V, L = layer.config.heads, layer.V, layer.config.steps
    parts = dict(zip(layer.sizes, layer.project(u).split(list(layer.sizes.values()), -1), strict=True))
    assert write.log_alpha is not None
    gain = torch.ones_like(write.v)
    if layer.gain_bias is not None:
        gain = parts["gain"].unflatten(-1, (H, L, V)) + layer.gain_bias
    anchor, v = u.unflatten(-1, (H, V)), parts["v"].unflatten(-1, (H, V))
    write = write._replace(erase=write.beta[..., 0] if write.erase is None else write.erase)
    rows = Write(*(y.flatten(0, 1) for y in _whole(write)))
    return Tokens(
        layer=layer,
        anchor=anchor.flatten(0, 1),
        v=v.flatten(0, 1),
        gain=gain.flatten(0, 1),
        write=rows,
        before=_states_before(write).flatten(0, 1),
    )


def _whole(write: Write) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The operands of a write that has a decay and an erasure."""
    assert write.log_alpha is not None
    assert write.erase is not None
    return write.q, write.k, write.v, write.beta, write.log_alpha, write.erase


def _states_before(write: Write) -> Float[Tensor, "B T H V K"]:
    """S_{t−1} of every token, by the definition."""
    B, T, H, _, K = write.k.shape
    S, before = write.v.new_zeros(B, H, write.v.shape[-1], K), []
    x = Operands(*_whole(write), S0=S, scale=1.0, bounds=None)
    for t in range(T):
        before.append(S)
        _, S = one_token(x, t, S)
    return torch.stack(before, 1)


def forget_spectra(tokens: Tokens) -> tuple[Float[Tensor, "N H K"], Float[Tensor, "N H"]]:
    """The eigenvalues of A_t = α (I − β k kᵀ), and α, of every token and head."""
    k, beta, log_alpha = tokens.write.k[:, :, 0], tokens.write.beta[..., 0], tokens.write.log_alpha
    assert log_alpha is not None
    alpha = log_alpha.exp().to(k.dtype)
    erased = beta[..., None, None] * k.unsqueeze(-1) * k.unsqueeze(-2)
    A = alpha[..., None, None] * (torch.eye(k.shape[-1], dtype=k.dtype) - erased)
    return torch.linalg.eigvalsh(A), alpha


@dataclass(frozen=True, kw_only=True)
class Slopes:
    """How much a change of the residual changes the corrections, largest over tokens and channels; one per step."""

    step: list[float]
    """|∂δ^l / ∂r^l|."""
    step_bound: list[float]
    """L_φ max|p^l|: the paper's lemma."""
    loop: list[float]
    """|∂δ^l / ∂r^1|: through all steps before."""
    loop_bound: list[float]
    """L_φ max|p^l| Π_{j<l} (1 + L_φ max|p^j|)."""
    damped: list[float]
    """Share of channels with |∂r^{l+1} / ∂r^l| ≤ 1: where the subtraction is negative feedback."""


def refinement_slopes(tokens: Tokens) -> Slopes:
    """The refinement is channel by channel, so that its Jacobian is one number per channel: exact, by autograd."""
    r = (tokens.v - tokens.anchor).requires_grad_()
    first, grown = r, 1.0
    found = Slopes(step=[], step_bound=[], loop=[], loop_bound=[], damped=[])
    for p in tokens.gain.unbind(2):
        delta = F.gelu(p * r)
        (slope,) = torch.autograd.grad(delta.sum(), r, retain_graph=True)
        (from_first,) = torch.autograd.grad(delta.sum(), first, retain_graph=True)
        bound = GELU_SLOPE * float(p.abs().max())
        found.step.append(float(slope.abs().max()))
        found.step_bound.append(bound)
        found.loop.append(float(from_first.abs().max()))
        found.loop_bound.append(bound * grown)
        found.damped.append(float(((1 - slope).abs() <= 1).double().mean()))
        grown *= 1 + bound
        r = r - delta
    return found


@dataclass(frozen=True, kw_only=True)
class Amortisation:
    """What one layer's writes achieve of the solver's improvement (see the top of this file)."""

    prism: float
    one_shot: float
    """Gated DeltaNet's write β v kᵀ in place of PRISM's."""
    serial: dict[int, float]
    """`nonlinear_delta` of other depths, against its depth L."""
    anchor_cosine: float
    """Mean cosine of the anchor u with φ(S⁰ k), which it stands for."""
    gain_correlation: float
    """Correlation of the first gain p with φ'(S⁰ k), which it stands for."""


@torch.no_grad()
def amortisation(tokens: Tokens, depths: tuple[int, ...] = (1, 2, 4, 8)) -> Amortisation:
    """Every token from its own S⁰."""
    w, k, config = tokens.write, tokens.write.k[:, :, 0], tokens.layer.config
    assert w.log_alpha is not None
    start = w.log_alpha.exp().to(k.dtype)[..., None, None] * tokens.before
    beta, curved = w.beta[..., 0], config.nonlinearity == "gelu"

    def gained(S: Tensor) -> float:
        before, after = (_objective(X, k, tokens.v, curved).sum() for X in (start, S))
        return float(before - after)

    def serial(depth: int, size: Tensor = beta) -> Tensor:
        given = (None if y is None else y[:, None] for y in (w.q, k, tokens.v, size, w.log_alpha))  # one token each
        _, S = nonlinear_delta(
            *given,
            steps=depth,
            nonlinearity=config.nonlinearity,
            initial_state=tokens.before,
            output_final_state=True,
        )
        assert S is not None
        return S

    erased = start - beta[..., None, None] * torch.einsum("nhvk,nhk,nhj->nhvj", start, k, k)
    _, prism = delta_rule_step(**w.operands(), state=tokens.before)
    one_shot = erased + torch.einsum("nh,nhv,nhk->nhvk", beta, tokens.v, k)
    unit = gained(serial(config.steps, w.beta if config.forget == "all" else beta))
    read = torch.einsum("nhvk,nhk->nhv", start, k)
    slope = torch.ones_like(read)
    slope = torch.ops.aten.gelu_backward(slope, read) if curved else slope
    pair = torch.stack([tokens.gain[:, :, 0].flatten(), slope.flatten()])
    return Amortisation(
        prism=gained(prism) / unit,
        one_shot=gained(one_shot) / unit,
        serial={depth: gained(serial(depth)) / unit for depth in depths},
        anchor_cosine=float(F.cosine_similarity(tokens.anchor, F.gelu(read) if curved else read, dim=-1).mean()),
        gain_correlation=float(torch.corrcoef(pair)[0, 1]),
    )


def _objective(S: Tensor, k: Tensor, v: Tensor, curved: bool) -> Float[Tensor, "N H"]:
    read = torch.einsum("nhvk,nhk->nhv", S, k)
    return ((F.gelu(read) if curved else read) - v).square().sum(-1) / 2
