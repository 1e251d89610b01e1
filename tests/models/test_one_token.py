"""One token through the whole stack in one compiled call: what the blocks compute one after the other."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from prism.layers import mixer_config
from prism.layers.prism.fields import LITERAL
from prism.models.backbone import Backbone, BackboneConfig
from prism.models.one_token import OneToken

ABLATIONS = [
    {},
    {"steps": 0},
    {"steps": 1},
    {"steps": 3, "keys": "shared"},
    {"keys": "base", "gain": "none"},
    {"residual": "none", "nonlinearity": "identity"},
    {"anchor": "none"},
    {"solver_rank": 3},
    {"head_value": 5, "head_key": 7},
    {"head_value": 5, "solver_rank": 2, "conv_size": 1},
]


def stack(mixer: str, dtype: torch.dtype = torch.float64, ffn: int | None = None, **options: object) -> Backbone:
    config = BackboneConfig(dim=12, layers=3, mixer=mixer_config(mixer, heads=2, **options), ffn=ffn)
    made = config.build().to(dtype).eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight += 0.1 * torch.randn_like(weight)  # no norm of ones, no bias of zeros
    return made


def decode(made: Backbone, x: torch.Tensor, *, compiled: bool) -> tuple[torch.Tensor, tuple]:
    state, ys = None, []
    for x_t in x:
        y, state = made.step(x_t, state) if compiled else made.step_by_blocks(x_t, state)
        ys.append(y)
    return torch.stack(ys), state


def check(made: Backbone, rtol: float) -> None:
    assert OneToken.fits(list(made.blocks), made.norm)
    x = torch.randn(9, 4, 12, dtype=next(made.parameters()).dtype)
    with torch.no_grad():
        (ours, state), (theirs, wanted) = decode(made, x, compiled=True), decode(made, x, compiled=False)
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=rtol)
    for after, part in zip(state, wanted, strict=True):
        assert len(after) == len(part)
        for a, b in zip(after, part, strict=True):
            torch.testing.assert_close(a, b, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("options", ABLATIONS, ids=str)
def test_prism_and_its_ablations_step_as_their_blocks_do(options: dict[str, object]) -> None:
    check(stack("prism", **options), 1e-10)


@pytest.mark.parametrize("options", [{}, {"head_key": 5, "head_value": 7}, {"conv_size": 2}], ids=str)
def test_gated_deltanet_steps_as_its_blocks_do(options: dict[str, object]) -> None:
    check(stack("gated-deltanet", **options), 1e-10)


@pytest.mark.parametrize("mixer", ["prism", "gated-deltanet"])
def test_without_a_swiglu_and_in_single_precision_too(mixer: str) -> None:
    check(stack(mixer, ffn=0), 1e-10)
    check(stack(mixer, torch.float32), 2e-5)


@pytest.mark.parametrize("mixer", ["mamba2", "deltanet", "attention"])
def test_other_mixers_go_block_by_block(mixer: str) -> None:
    made = stack(mixer)
    assert not OneToken.fits(list(made.blocks), made.norm)
    x = torch.randn(5, 2, 12, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(decode(made, x, compiled=True)[0], decode(made, x, compiled=False)[0])


OTHERS = [{"forget": "all"}, {"reflect": True}, {"forget": "none"}, {"window": "past"}, {"decay": "none"}]
OTHERS += [{name: value} for name, value in LITERAL.items() if name != "solver_rank" and not name.endswith("_start")]


@pytest.mark.parametrize("options", OTHERS, ids=str)
def test_choices_that_the_compiled_call_does_not_have_go_block_by_block(options: dict[str, object]) -> None:
    made = stack("prism", **options)
    assert not OneToken.fits(list(made.blocks), made.norm)


def test_how_a_layer_starts_is_no_choice_of_the_call() -> None:
    check(stack("prism", decay_start="zero", conv_start="random"), 1e-10)


def test_a_hybrid_of_two_mixers_goes_block_by_block() -> None:
    mixers = (mixer_config("prism", heads=2), mixer_config("gated-deltanet", heads=2))
    made = replace(BackboneConfig(dim=12, layers=2), mixer=mixers).build()
    assert not OneToken.fits(list(made.blocks), made.norm)


def test_the_state_that_is_given_stays_as_it_was() -> None:
    made = stack("prism")
    with torch.no_grad():
        _, state = made.step(torch.randn(2, 12, dtype=torch.float64))
        copy = [[part.clone() for part in block] for block in state]
        made.step(torch.randn(2, 12, dtype=torch.float64), state)
    assert all(
        torch.equal(a, b) for block, before in zip(state, copy, strict=True) for a, b in zip(block, before, strict=True)
    )


def test_weights_that_change_are_packed_again() -> None:
    made = stack("prism")
    x = torch.randn(3, 2, 12, dtype=torch.float64)
    with torch.no_grad():
        decode(made, x, compiled=True)
        made.blocks[1].mixer.out.weight.mul_(2)
        torch.testing.assert_close(decode(made, x, compiled=True)[0], decode(made, x, compiled=False)[0])
        made.load_state_dict(stack("prism").state_dict())
        torch.testing.assert_close(decode(made, x, compiled=True)[0], decode(made, x, compiled=False)[0])


class Adapted(torch.nn.Module):
    """A map with something beside it, and the map's weight under the map's name, as adapters have it."""

    def __init__(self, base: torch.nn.Linear):
        super().__init__()
        self.base = base

    @property
    def weight(self) -> torch.Tensor:
        return self.base.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x.mean(-1, keepdim=True)


def adapt(made: Backbone) -> None:
    made.blocks[1].mixer.out = Adapted(made.blocks[1].mixer.out)


def replace_weight(made: Backbone) -> None:
    made.blocks[0].mixer.out.weight = torch.nn.Parameter(2 * made.blocks[0].mixer.out.weight)


def assign(made: Backbone) -> None:
    made.load_state_dict({name: 2 * value for name, value in made.state_dict().items()}, assign=True)


def hook(made: Backbone) -> None:
    made.blocks[2].ffn.out.register_forward_hook(lambda module, given, y: 2 * y)


def own_forward(made: Backbone) -> None:
    made.norm.forward = lambda x: 3 * x


@pytest.mark.parametrize("change", [adapt, replace_weight, assign, hook, own_forward])
@pytest.mark.parametrize("mixer", ["prism", "gated-deltanet"])
@pytest.mark.parametrize("stepped", [False, True])
def test_modules_that_are_replaced_or_hooked_count(
    mixer: str, change: Callable[[Backbone], None], stepped: bool
) -> None:
    made = stack(mixer, ffn=20)
    x = torch.randn(3, 2, 12, dtype=torch.float64)
    with torch.no_grad():
        before = decode(made, x, compiled=stepped)[0]
        change(made)
        ours = decode(made, x, compiled=True)[0]
        torch.testing.assert_close(ours, decode(made, x, compiled=False)[0])
    assert not torch.allclose(ours, before)


def test_weights_given_for_a_call_count() -> None:
    made = stack("prism")
    x = torch.randn(2, 12, dtype=torch.float64)
    other = {name: 2 * value for name, value in made.state_dict().items()}
    with torch.no_grad():
        before, _ = made.step(x)
        ours, _ = torch.func.functional_call(_Steps(made), {f"made.{name}": value for name, value in other.items()}, x)
        torch.testing.assert_close(made.step(x)[0], before)
        made.load_state_dict(other)
        torch.testing.assert_close(ours, made.step_by_blocks(x)[0])


class _Steps(torch.nn.Module):
    def __init__(self, made: Backbone):
        super().__init__()
        self.made = made

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple]:
        return self.made.step(x)


def test_a_fused_optimiser_of_anyones_is_noticed_by_its_training() -> None:
    made, x = stack("prism"), torch.randn(3, 2, 12, dtype=torch.float64)
    with torch.no_grad():
        decode(made, x, compiled=True)
    optimiser = torch.optim.AdamW(made.parameters(), lr=0.1, fused=True)
    made.train()
    made(x.transpose(0, 1))[0].sum().backward()
    optimiser.step()
    made.eval()
    with torch.no_grad():
        torch.testing.assert_close(decode(made, x, compiled=True)[0], decode(made, x, compiled=False)[0])


def test_gradients_still_flow_through_a_step() -> None:
    made = stack("prism")
    x = torch.randn(2, 12, dtype=torch.float64, requires_grad=True)
    made.step(x)[0].sum().backward()
    assert x.grad is not None


def test_bits_of_a_sequence_do_not_depend_on_its_neighbours() -> None:
    made = stack("prism", torch.float32)
    one = OneToken(list(made.blocks), made.norm)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 8, 12)).astype(np.float32)
    together, states = one.empty(8), [one.empty(1) for _ in range(8)]
    for t in range(20):
        order = rng.permutation(8)
        ours = one.advance(x[t, order], order, together, together)
        for n, row in enumerate(order):
            y = one.advance(x[t, row : row + 1], np.array([0]), states[row], states[row])
            np.testing.assert_array_equal(y[0], ours[n])
    for row in range(8):
        for kind in (0, 1):
            for whole, single in zip(together[kind], states[row][kind], strict=True):
                np.testing.assert_array_equal(whole[row], single[0])
