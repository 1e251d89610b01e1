"""DeltaProduct against its own equations, one token at a time, and the special cases it has."""

import torch
import torch.nn.functional as F

from prism.layers import mixer_config
from prism.layers.deltaproduct import DeltaProduct

DIM = 12


def plain(mixer: DeltaProduct, x: torch.Tensor) -> torch.Tensor:
    """The layer for one sequence [T, D], in plain loops."""
    config, H, L, K, V = mixer.config, mixer.config.heads, mixer.config.steps, mixer.K, mixer.V
    rows, window = mixer.project(x), mixer.conv.weight.shape[1]
    wide = len(mixer.conv.weight)
    S = [torch.zeros(V, K, dtype=x.dtype) for _ in range(H)]
    outputs = []
    for t in range(len(x)):
        seen = [rows[t - j, :wide] if t >= j else torch.zeros(wide, dtype=x.dtype) for j in range(window)]
        mixed = F.silu(sum(mixer.conv.weight[:, window - 1 - j] * seen[j] for j in range(window)))
        q, k, v = (
            mixed[: H * K].view(H, K),
            mixed[H * K : H * K * (1 + L)].view(H, L, K),
            mixed[-H * L * V :].view(H, L, V),
        )
        beta = (2 if config.reflect else 1) * rows[t, wide : wide + H * L].view(H, L).sigmoid()
        read = []
        for h in range(H):
            if mixer.decay is not None:
                S[h] = mixer.decay(rows[t, -H:])[h].exp() * S[h]
            for l in range(L):
                key = k[h, l] / k[h, l].norm()
                S[h] = S[h] @ (torch.eye(K, dtype=x.dtype) - beta[h, l] * torch.outer(key, key))
                S[h] = S[h] + beta[h, l] * torch.outer(v[h, l], key)
            o = S[h] @ (q[h] / q[h].norm())
            read.append(mixer.read.norm.weight * o / (o.square().mean() + 1e-6).sqrt())
        o = torch.cat(read)
        outputs.append(mixer.out(o * F.silu(rows[t, wide + H * L : wide + H * L + H * V]) if config.gated else o))
    return torch.stack(outputs)


def test_it_is_its_equations_in_plain_loops() -> None:
    torch.manual_seed(0)
    for fields in ({}, {"gated": True, "steps": 3}, {"reflect": False, "steps": 1}):
        mixer = mixer_config("deltaproduct", heads=2, **fields).build(DIM).double()
        x = torch.randn(9, DIM, dtype=torch.float64)
        torch.testing.assert_close(mixer(x[None])[0][0], plain(mixer, x), rtol=0, atol=1e-10)


def test_one_step_without_reflection_is_deltanet() -> None:
    torch.manual_seed(0)
    one = mixer_config("deltaproduct", heads=2, steps=1, reflect=False).build(DIM).double()
    other = mixer_config("deltanet", heads=2).build(DIM).double()
    other.load_state_dict(one.state_dict())
    x = torch.randn(2, 20, DIM, dtype=torch.float64)
    torch.testing.assert_close(one(x)[0], other(x)[0], rtol=0, atol=1e-12)


def test_a_reflection_turns_a_direction_round() -> None:
    """β = 2 along k: what was stored under k comes back with the other sign."""
    from prism.ops import delta_rule_step

    S = torch.randn(1, 1, 3, 4, dtype=torch.float64)
    k = F.normalize(torch.randn(1, 1, 1, 4, dtype=torch.float64), dim=-1)
    none = torch.zeros(1, 1, 1, dtype=torch.float64)
    o, _ = delta_rule_step(
        k[:, :, 0], k, torch.zeros(1, 1, 1, 3, dtype=torch.float64), none, erase=none[..., 0] + 2, state=S
    )
    torch.testing.assert_close(o[0, 0], -S[0, 0] @ k[0, 0, 0], rtol=0, atol=1e-12)
