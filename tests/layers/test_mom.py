"""Mixtures of memories against their equations, one token at a time, and against the mixers inside."""

import pytest
import torch
from support.plain import assert_matches, inputs, mamba_decay, randomise, rms_norm, sigmoid, silu, unit
from torch import Tensor

from prism.layers import MIXERS, mixer_config
from prism.layers.base.pace import Sequences

H, D, T = 2, 12, 70
K = V = D // H
INNER = [("mom", {}), ("mom", {"inner": "gla"}), ("prism-mom", {}), ("prism-mom", {"base_write": True})]


def build(name: str = "mom", **fields):
    return randomise(mixer_config(name, heads=H, **fields).build(D))


def choices(mixer, x: Tensor) -> tuple[list[list[int]], list[list[Tensor]]]:
    """The memories that one token chooses, strongest first, and their weights."""
    memories, weights = [], []
    for row in x @ mixer.router.weight.T:
        chance = torch.exp(row) / torch.exp(row).sum()
        best = sorted(range(len(row)), key=lambda m: -chance[m].item())[: mixer.config.chosen]
        memories.append(best)
        weights.append([chance[m] / sum(chance[n] for n in best) for m in best])
    return memories, weights


def definition(mixer, x: Tensor) -> Tensor:
    """A mixture of Gated DeltaNets: every memory keeps its state and the last inputs of its convolution."""
    inner, window = mixer.inner, mixer.inner.conv.weight.shape[1]
    asked = x @ inner.project.weight.T  # q, gate
    shared = [mixer.config.memories] if mixer.config.shared else []
    seen: dict[int, list[Tensor]] = {}
    S: dict[tuple[int, int], Tensor] = {}
    outputs = []
    for t, (memories, weights) in enumerate(zip(*choices(mixer, x), strict=True)):
        reads = [torch.zeros(V, dtype=torch.float64)] * H
        for m, weight in zip(memories + shared, weights + [torch.tensor(1.0)] * len(shared), strict=True):
            own = mixer.project.weight[m] @ x[t]  # k, v, beta, decay
            seen.setdefault(m, []).append(torch.cat([asked[t, : H * K], own[: H * (K + V)]]))
            recent = seen[m][-window:]
            qkv = silu(sum(inner.conv.weight[:, -1 - j] * recent[-1 - j] for j in range(len(recent))))
            q, k, v = qkv.split([H * K, H * K, H * V])
            for h in range(H):
                q_h, k_h = unit(q[h * K : h * K + K]), unit(k[h * K : h * K + K])
                beta = sigmoid(own[H * (K + V) + h])
                alpha = mamba_decay(own[H * (K + V) + H + h], inner.decay.log_rate[h], inner.decay.bias[h])
                old = alpha * S.get((m, h), torch.zeros(V, K, dtype=torch.float64))
                S[m, h] = old + beta * torch.outer(v[h * V : h * V + V] - old @ k_h, k_h)
                reads[h] = reads[h] + weight * (S[m, h] @ q_h)
        normed = torch.cat([rms_norm(o, inner.read.norm.weight, 1e-6) for o in reads])
        outputs.append(mixer.out.weight @ (normed * silu(asked[t, H * K :])))
    return torch.stack(outputs)


@pytest.mark.parametrize("fields", [{}, {"shared": False}, {"chosen": 1}, {"memories": 3, "chosen": 3}])
def test_the_layer_is_its_equations(fields: dict) -> None:
    assert_matches(build(**fields), definition, inputs(T, D))


def alone(mixer, memory: int):
    """The mixer inside, with one memory's maps."""
    single = mixer.config.memory().build(D).double()
    weights = {name: y for name, y in mixer.inner.state_dict().items() if name in single.state_dict()}
    common = dict(zip(mixer.common, mixer.inner.project.weight.split(list(mixer.common.values())), strict=True))
    own = dict(zip(mixer.own, mixer.project.weight[memory].split(list(mixer.own.values())), strict=True))
    weights["project.weight"] = torch.cat([(common | own)[name] for name in single.sizes])
    weights["out.weight"] = mixer.out.weight
    single.load_state_dict(weights)
    return single


@pytest.mark.parametrize(("name", "fields"), INNER)
def test_one_memory_without_a_router_is_the_mixer_inside(name: str, fields: dict) -> None:
    mixer, x = build(name, memories=1, chosen=1, shared=False, **fields), inputs(T, D, batch=2)
    torch.testing.assert_close(mixer(x)[0], alone(mixer, 0)(x)[0], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("name", "fields"), INNER)
def test_a_memory_is_the_mixer_inside_on_the_tokens_that_chose_it(name: str, fields: dict) -> None:
    mixer, x = build(name, **fields), inputs(T, D)
    memories, weights = choices(mixer, x[0])
    total, gate = torch.zeros(T, H, V, dtype=torch.float64), None
    for m in range(5):
        mine = [t for t in range(T) if m == 4 or m in memories[t]]
        single = alone(mixer, m)
        write, gate, S, _ = single.operands(x[:, mine], None, Sequences(), single.project)
        o, _ = Sequences().run(write, S)
        share = [weights[t][memories[t].index(m)].item() if m < 4 else 1.0 for t in mine]
        total[mine] += torch.tensor(share, dtype=torch.float64)[:, None, None] * o[0]
    wanted = mixer.out(mixer.inner.read(total, gate[0]))  # the gate is the shared memory's
    torch.testing.assert_close(mixer(x)[0][0], wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("name", "fields"), INNER)
def test_only_the_chosen_memories_move(name: str, fields: dict) -> None:
    mixer, x = build(name, **fields), inputs(T, D, batch=3)
    _, before = mixer(x[:, :-1])
    _, after = mixer.step(x[:, -1], before)
    for n in range(3):
        (chosen,), _ = choices(mixer, x[n, -1:])
        for old, new in zip(before, after, strict=True):
            moved = [not torch.equal(old[n, m], new[n, m]) for m in range(5)]
            assert moved == [m in [*chosen, 4] for m in range(5)]


def test_balance_is_one_for_an_even_router_and_grows_with_neglect() -> None:
    mixer, x = build(chosen=1), inputs(2000, D)
    spread = mixer.balance(x)
    with torch.no_grad():
        mixer.router.weight.zero_()
    assert mixer.balance(x).item() == pytest.approx(1)
    with torch.no_grad():
        mixer.router.weight[2] = 1e3 * x[0, 0]
        mixer.router.weight[0] = -1e3 * x[0, 0]
    assert mixer.balance(x[:, :1]).item() == pytest.approx(4)
    assert 1 < spread.item() < 4
    assert torch.autograd.grad(mixer.balance(x), mixer.router.weight)[0].isfinite().all()


def test_every_field_of_prism_reaches_the_prism_inside() -> None:
    mixer = mixer_config("prism-mom", heads=H, steps=3, anchor="none", nonlinearity="identity").build(D)
    inside = mixer.inner.config
    assert isinstance(mixer.inner, MIXERS["prism"])
    assert (inside.heads, inside.steps, inside.anchor, inside.nonlinearity) == (H, 3, "none", "identity")


def test_bad_fields_of_the_routing_and_of_the_mixer_inside_are_refused() -> None:
    with pytest.raises(ValueError, match="chosen must be at most memories = 4, got 5"):
        mixer_config("mom", chosen=5)
    with pytest.raises(ValueError, match="steps must be at least 0, got -1"):
        mixer_config("prism-mom", steps=-1)
