"""The paper's language models: their sizes, what an ablation changes, what a run costs."""

import pytest
import torch

pytest.importorskip("transformers", reason="pip install 'prism-sequence[lm]'")

from prism.errors import InputError
from prism.lm.hf.model import PrismSequenceForCausalLM
from prism.lm.recipes import (
    ABLATIONS,
    Scale,
    ablation,
    cost,
    duration,
    language_model,
    language_recipes,
)
from prism.printed import PARAMETERS

SMALL = Scale(dim=128, layers=3, heads=2, vocabulary=512, ffn=352)


def build(config) -> PrismSequenceForCausalLM:
    with torch.device("meta"):
        return PrismSequenceForCausalLM(config)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tokens": 0}, "tokens must be at least 1, got 0"),
        ({"context": -1}, "context must be at least 1, got -1"),
        ({"device": "nope"}, "device 'nope' cannot be used"),
    ],
)
def test_a_cost_of_nothing_or_nowhere_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        language_recipes(**wrong)


@pytest.mark.parametrize("name", list(PARAMETERS))
def test_parameter_counts_are_the_papers_within_one_and_a_half_percent(name: str) -> None:
    count = build(language_model(name)).num_parameters() / 1e6
    assert abs(count / PARAMETERS[name] - 1) < 0.015, count


def test_all_models_share_width_layers_and_heads() -> None:
    configs = [language_model(name) for name in PARAMETERS]
    shared = {(c.hidden_size, c.num_hidden_layers, c.vocab_size, c.mixer_fields["heads"]) for c in configs}
    assert len(shared) == 1


@pytest.mark.parametrize("name", list(PARAMETERS))
def test_a_small_table_has_equal_parameters_within_five_percent(name: str) -> None:
    base = build(language_model("gated-deltanet", SMALL)).num_parameters()
    assert abs(build(language_model(name, SMALL, equal=True)).num_parameters() / base - 1) < 0.05


@pytest.mark.parametrize("name", [name for name in ABLATIONS if name not in ("full", "gated-deltanet")])
def test_an_ablation_is_one_field(name: str) -> None:
    full, ablated = ablation("full").to_dict(), ablation(name).to_dict()
    changed = {field for field in full["mixer_fields"] | ablated["mixer_fields"]
               if full["mixer_fields"].get(field) != ablated["mixer_fields"].get(field)}  # fmt: skip
    assert len(changed) == 1
    full.pop("mixer_fields"), ablated.pop("mixer_fields")
    assert full == ablated


def test_each_ablation_computes_something_else() -> None:
    x, found = torch.randint(0, 512, (1, 16)), {}
    for name in ABLATIONS:
        torch.manual_seed(0)
        with torch.no_grad():
            found[name] = PrismSequenceForCausalLM(ablation(name, SMALL)).eval()(x).logits
    names = list(found)
    for n, a in enumerate(names):
        for b in names[n + 1 :]:
            assert not torch.allclose(found[a], found[b], atol=1e-3), (a, b)


def test_flops_are_twice_the_weights_and_what_the_state_takes() -> None:
    config = language_model("gated-deltanet")
    found = cost(config, tokens=1000, context=2048, rate=1e12)
    weights = 2 * (found.parameters - 14 * 9216)  # short convolutions are no products
    assert 1.0 < found.flops_per_token / weights < 1.05
    assert found.seconds == pytest.approx(3 * found.flops_per_token * 1000 / 1e12)
    assert found.training_bytes == 16 * found.parameters
    assert found.state_bytes == 14 * 4 * (6 * 128 * 128 + 3 * 2304)


def test_durations_are_read_in_their_unit() -> None:
    assert [duration(s) for s in (30, 90, 7200, 200000)] == ["30 seconds", "1.5 minutes", "2.0 hours", "2.3 days"]


def test_the_recipes_print_what_they_cost(capsys: pytest.CaptureFixture[str]) -> None:
    language_recipes(tokens=10**6, context=128)
    text = capsys.readouterr().out
    assert len(text.splitlines()) == 1 + len(PARAMETERS) + len(ABLATIONS)
    assert "gated-deltanet (paper 132.03M): 132.21M parameters" in text


def test_an_unknown_model_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'prism'"):
        language_model("prizm")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(PARAMETERS))
def test_models_at_the_papers_scale_take_a_step(name: str) -> None:
    torch.manual_seed(0)
    model = PrismSequenceForCausalLM(language_model(name))
    x = torch.randint(0, 32000, (1, 64))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model(x, labels=x).loss
    before.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    with torch.no_grad():
        assert model(x, labels=x).loss.item() < before.item()
