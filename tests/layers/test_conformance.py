"""The mixer contract, for every entry of MIXERS, and for variants that compute something else."""

import inspect
from dataclasses import FrozenInstanceError
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from prism.layers import MIXERS, mixer_config
from prism.layers.base.mixer import Mixer
from prism.layers.prism.fields import LITERAL

DIM, T = 32, 70
CASES: dict[str, tuple[str, dict[str, bool | str | None]]] = {name: (name, {}) for name in MIXERS}
CASES |= {f"{name}, base write": (name, {"base_write": True}) for name in ("prism", "prism-mom")}
ALL = {"forget": "all", "reflect": True, "residual": "state"}
CASES |= {"prism, all erased": ("prism", ALL), "prism, base write, all erased": ("prism", ALL | {"base_write": True})}
CASES |= {"prism, to the letter": ("prism", LITERAL), "prism, window past": ("prism", {"window": "past"})}
CASES |= {"prism, no decay, no erasure": ("prism", {"decay": "none", "forget": "none"})}
CASES |= {"prism-mom, to the letter": ("prism-mom", LITERAL), "mom, gla": ("mom", {"inner": "gla"})}
CASES |= {"deltaproduct, gated": ("deltaproduct", {"gated": True})}


@pytest.fixture(params=CASES)
def mixer(request: pytest.FixtureRequest) -> Mixer:
    torch.manual_seed(1)
    name, fields = CASES[request.param]
    return mixer_config(name, heads=2, **fields).build(DIM).double()


def tokens(batch: int, length: int) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def clock(batch: int, length: int) -> Tensor:
    """When each token happened and when the next did, in seconds: for mixers that model time."""
    gaps = torch.randint(0, 10**6, (batch, length + 1), generator=torch.Generator().manual_seed(3))
    return gaps.cumsum(1).unfold(1, 2, 1)


def close(a: Tensor, b: Tensor, what: str) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10, msg=lambda m: f"{what}: {m}")


def select(state: tuple[Tensor, ...], sequence: int) -> tuple[Tensor, ...]:
    return tuple(part[sequence : sequence + 1] for part in state)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65])
def test_any_length_keeps_the_shape(mixer: Mixer, length: int) -> None:
    y, state = mixer(tokens(2, length))
    assert y.shape == (2, length, DIM)
    assert torch.isfinite(y).all()
    assert all(part.shape[0] == 2 for part in state)


@pytest.mark.parametrize("length", [0, 5])
def test_no_sequence_at_all_is_none_afterwards(mixer: Mixer, length: int) -> None:
    y, state = mixer(tokens(0, length).requires_grad_())
    assert y.shape == (0, length, DIM)
    assert all(part.shape[0] == 0 for part in state)
    y.sum().backward()


def test_no_future_leaks(mixer: Mixer) -> None:
    x = tokens(1, T)
    changed = x.clone()
    changed[:, 40:] += 1
    y, z = mixer(x)[0], mixer(changed)[0]
    close(y[:, :40], z[:, :40], "outputs before the change")
    assert (y[:, 40:] - z[:, 40:]).abs().amax() > 1e-6


def test_steps_equal_forward(mixer: Mixer) -> None:
    x, state, steps = tokens(2, T), None, []
    for t in range(T):
        y, state = mixer.step(x[:, t], state)
        steps.append(y)
    whole, last = mixer(x)
    close(torch.stack(steps, 1), whole, "outputs")
    probe = tokens(2, T + 1)[:, -1]
    close(mixer.step(probe, state)[0], mixer.step(probe, last)[0], "the next token")


@pytest.mark.parametrize("cut", [0, 1, 31, 64, 69, 70])
def test_splitting_a_sequence_anywhere_changes_nothing(mixer: Mixer, cut: int) -> None:
    x = tokens(2, T)
    first, state = mixer(x[:, :cut])
    second, _ = mixer(x[:, cut:], state)
    close(torch.cat([first, second], 1), mixer(x)[0], "outputs")


def test_splitting_into_many_pieces_changes_nothing(mixer: Mixer) -> None:
    x, state, pieces = tokens(2, T), None, []
    for a, b in [(0, 3), (3, 3), (3, 20), (20, 21), (21, 70)]:
        y, state = mixer(x[:, a:b], state)
        pieces.append(y)
    close(torch.cat(pieces, 1), mixer(x)[0], "outputs")


def test_packed_sequences_equal_separate_ones(mixer: Mixer) -> None:
    limits = [0, 1, 1, 66, 70, 139]
    x = tokens(1, limits[-1])
    y, state = mixer(x, cu_seqlens=torch.tensor(limits))
    later = tokens(1, 2 * (len(limits) - 1))
    packed = torch.arange(0, later.shape[1] + 1, 2)
    z, _ = mixer(later, state, cu_seqlens=packed)
    for n, (a, b) in enumerate(pairwise(limits)):
        alone, alone_state = mixer(x[:, a:b])
        close(y[:, a:b], alone, f"outputs of sequence {n}")
        next_tokens = later[:, 2 * n : 2 * n + 2]
        close(z[:, 2 * n : 2 * n + 2], mixer(next_tokens, alone_state)[0], f"what follows sequence {n}")


def test_sequences_of_a_batch_do_not_meet(mixer: Mixer) -> None:
    x = tokens(3, T)
    y, state = mixer(x)
    close(mixer(x[1:2])[0], y[1:2], "outputs")
    following = tokens(3, 5)
    close(mixer(following, state)[0][2:], mixer(following[2:], select(state, 2))[0], "continuation")


def test_gradient_reaches_every_parameter_and_the_input(mixer: Mixer) -> None:
    x = tokens(2, T).requires_grad_()
    mixer(x, times=clock(2, T))[0].square().sum().backward()
    assert x.grad is not None
    unseen = getattr(mixer.config, "window", "current") == "past"  # the last token is for those after it
    assert x.grad[:, : T - unseen].abs().amax(-1).min() > 0
    for name, parameter in mixer.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


def test_gradient_flows_through_the_state(mixer: Mixer) -> None:
    x = tokens(1, T).requires_grad_()
    _, state = mixer(x[:, :50])
    y, _ = mixer(x[:, 50:], state)
    (split,) = torch.autograd.grad(y.square().sum(), x)
    (whole,) = torch.autograd.grad(mixer(x)[0][:, 50:].square().sum(), x)
    close(split, whole, "gradient of the input")


def test_the_state_has_the_declared_size(mixer: Mixer) -> None:
    for length in (1, 7, T):
        _, state = mixer(tokens(3, length))
        held = sum(part[0].numel() for part in state)
        assert held == mixer.state_size(length), length


def test_flops_are_counted(mixer: Mixer) -> None:
    maps = 2 * sum(p.weight.numel() for p in mixer.modules() if isinstance(p, torch.nn.Linear))
    assert mixer.flops(T) > maps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precisions_are_finite_and_near(mixer: Mixer, dtype: torch.dtype) -> None:
    x = tokens(2, T)
    exact = mixer(x)[0]
    low = mixer.to(dtype)
    y, state = low(x.to(dtype))
    assert y.dtype == dtype
    assert torch.isfinite(y).all()
    assert all(torch.isfinite(part).all() for part in state if part.is_floating_point())
    error = (y.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert error < (1e-4 if dtype == torch.float32 else 0.2), float(error)
    z, state = low.step(x[:, 0].to(dtype), state)
    assert z.dtype == dtype
    assert torch.isfinite(low.step(x[:, 1].to(dtype), state)[0]).all()


def test_a_seed_decides_everything(mixer: Mixer) -> None:
    outputs = []
    for _ in range(2):
        torch.manual_seed(5)
        fresh = mixer.config.build(DIM)
        outputs.append(fresh(tokens(1, T).float())[0])
    assert torch.equal(*outputs)


def test_calling_does_not_change_the_mixer_or_the_state_it_was_given(mixer: Mixer) -> None:
    x = tokens(1, T)
    _, state = mixer(x)
    kept = [part.clone() for part in state]
    first = mixer(x, state)[0]
    mixer.step(x[:, 0], state)
    assert all(torch.equal(a, b) for a, b in zip(kept, state, strict=True))
    assert torch.equal(first, mixer(x, state)[0])


@pytest.mark.parametrize(
    ("bad", "names"),
    [
        (lambda m: m.forward(torch.zeros(2, 3, 5, dtype=torch.float64)), ["x ", "[2, 3, 5]"]),
        (lambda m: m.forward(torch.zeros(3, DIM, dtype=torch.float64)), ["x ", f"[3, {DIM}]"]),
        (lambda m: m.forward(torch.zeros(1, 3, DIM)), ["x ", "float32"]),
        (lambda m: m.forward(torch.zeros(1, 3, DIM, dtype=torch.float64, device="meta")), ["x ", "meta"]),
        (lambda m: m.step(torch.zeros(2, 3, DIM, dtype=torch.float64)), ["x_t", f"[2, 3, {DIM}]"]),
        (lambda m: m.forward(tokens(2, 4), None, torch.tensor([0, 4])), ["cu_seqlens", "B = 2"]),
        (lambda m: m.forward(tokens(1, 4), None, torch.tensor([0, 3, 2, 4])), ["cu_seqlens", "3", "2"]),
        (lambda m: m.forward(tokens(1, 4), m(tokens(2, 4))[1]), ["state"]),
        (lambda m: m.forward(tokens(1, 4), ()), ["state"]),
    ],
)
def test_bad_input_is_refused_by_name(mixer: Mixer, bad, names: list[str], monkeypatch) -> None:
    for method in ("forward", "step"):  # without the shape checks that tests add
        monkeypatch.setattr(type(mixer), method, inspect.unwrap(getattr(type(mixer), method)))
    with pytest.raises(ValueError, match=r".") as caught:
        bad(mixer)
    for name in names:
        assert name in str(caught.value)


def test_configs_are_frozen_and_checked(mixer: Mixer) -> None:
    with pytest.raises(FrozenInstanceError):
        mixer.config.heads = 3  # type: ignore[misc]
    with pytest.raises(ValueError, match="heads must be at least 1, got 0"):
        type(mixer).Config(heads=0)
