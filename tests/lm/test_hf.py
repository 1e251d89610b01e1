"""The Hugging Face model: for every mixer, the cache, padding and splits change nothing; it saves, loads and trains."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="pip install 'prism-sequence[lm]'")

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    DataCollatorWithFlattening,
    Trainer,
    TrainingArguments,
)

from prism.errors import InputError
from prism.layers import MIXERS
from prism.layers.base.initial import initialise
from prism.lm.hf.cache import StateCache
from prism.lm.hf.model import PrismSequenceConfig, PrismSequenceForCausalLM, PrismSequenceModel

VOCABULARY = 29
GROWING = {"attention", "sasrec", "hstu"}
HYBRID = ["prism", "attention", "mamba2"]


def config(mixer: str | list[str], **fields) -> PrismSequenceConfig:
    layers = len(mixer) if isinstance(mixer, list) else 2
    sizes = {"hidden_size": 16, "num_hidden_layers": layers, "intermediate_size": 24, "vocab_size": VOCABULARY}
    return PrismSequenceConfig(mixer=mixer, mixer_fields={"heads": 2}, **{**sizes, **fields})


def model_of(mixer: str | list[str], **fields) -> PrismSequenceForCausalLM:
    torch.manual_seed(1)
    return PrismSequenceForCausalLM(config(mixer, **fields)).eval()


@pytest.fixture(scope="module", params=[*MIXERS, "hybrid", "positions"])
def model(request: pytest.FixtureRequest) -> PrismSequenceForCausalLM:
    """In float64, so that only a wrong formula is ever off."""
    if request.param == "positions":
        return model_of("sasrec", positions=64).double()
    return model_of(HYBRID if request.param == "hybrid" else request.param).double()


def tokens(batch: int, length: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(2))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


@torch.no_grad()
def test_logits_with_the_cache_equal_logits_without_token_by_token(model: PrismSequenceForCausalLM) -> None:
    x, cache, found = tokens(2, 21), None, []
    for t in range(x.shape[1]):
        output = model(x[:, t : t + 1], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        found.append(output.logits)
    close(torch.cat(found, 1), model(x, use_cache=False).logits)
    assert cache.get_seq_length() == x.shape[1]


@torch.no_grad()
@pytest.mark.parametrize("cut", [1, 9, 16, 20])
def test_a_prompt_split_anywhere_equals_the_whole(model: PrismSequenceForCausalLM, cut: int) -> None:
    x = tokens(2, 21)
    first = model(x[:, :cut])
    second = model(x[:, cut:], past_key_values=first.past_key_values)
    close(torch.cat([first.logits, second.logits], 1), model(x).logits)


@torch.no_grad()
def test_a_left_padded_row_equals_the_row_alone(model: PrismSequenceForCausalLM) -> None:
    lengths, T = [17, 1, 9, 0], 17
    x = tokens(len(lengths), T + 3)
    mask = torch.stack([(torch.arange(T + 3) >= T - n).long() for n in lengths])
    start = model(x[:, :T], attention_mask=mask[:, :T])
    later = model(x[:, T:], attention_mask=mask, past_key_values=start.past_key_values)
    for row, n in enumerate(lengths):
        alone = model(x[row : row + 1, T - n :]).logits
        close(start.logits[row : row + 1, T - n :], alone[:, :n])
        close(later.logits[row : row + 1], alone[:, n:])


@pytest.mark.parametrize("said", ["position_ids", "cu_seq_lens_q"])
def test_sequences_in_one_row_equal_the_sequences_alone(model: PrismSequenceForCausalLM, said: str) -> None:
    alone = [tokens(1, 30)[0, a:b] for a, b in ((0, 1), (1, 18), (18, 27), (27, 30))]
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    batch = collate([{"input_ids": ids} for ids in alone])
    packed = {name: batch[name] for name in ("input_ids", "labels", said)}
    model.zero_grad()
    output = model(**packed)
    output.loss.backward()
    used = [p for p in model.parameters() if p.grad is not None]  # HSTU's biases of time are not
    found = [p.grad.clone() for p in used]
    assert output.past_key_values is None
    model.zero_grad()
    logits = [model(ids[None]).logits[0] for ids in alone]
    close(output.logits[0], torch.cat(logits))
    # the library's loss is in float32
    scored = torch.cat([row[:-1] for row in logits]).float(), torch.cat([ids[1:] for ids in alone])
    torch.nn.functional.cross_entropy(*scored).backward()
    for a, p in zip(found, used, strict=True):
        torch.testing.assert_close(a, p.grad, rtol=1e-5, atol=1e-7)


@torch.no_grad()
def test_rows_may_hold_sequences_and_padding_together(model: PrismSequenceForCausalLM) -> None:
    x = tokens(2, 12)
    mask = torch.tensor([[0] * 3 + [1] * 9, [1] * 4 + [0] * 3 + [1] * 5])
    positions = torch.tensor([[1, 1, 1, *range(4), *range(5)], [*range(4), 1, 1, 1, *range(5)]])
    found = model(x, attention_mask=mask, position_ids=positions).logits
    for row, start, stop in ((0, 3, 7), (0, 7, 12), (1, 0, 4), (1, 7, 12)):
        close(found[row, start:stop], model(x[row : row + 1, start:stop]).logits[0])


@torch.no_grad()
def test_generate_with_the_cache_equals_generate_without(model: PrismSequenceForCausalLM) -> None:
    x, mask = tokens(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[1, :4] = 0
    for options in ({"num_beams": 3}, {"do_sample": True, "top_k": 5}):
        found = []
        for cached in (True, False):
            torch.manual_seed(3)
            found.append(model.generate(x, attention_mask=mask, max_new_tokens=5, use_cache=cached, **options))
        assert torch.equal(*found), options


@torch.no_grad()
def test_only_the_cache_of_attention_grows(model: PrismSequenceForCausalLM) -> None:
    # ATLAS and Titans fill a window of fixed length first; 64 tokens fill it
    cache = model(tokens(1, 64)).past_key_values
    before = cache.nbytes()
    held = sum(part[0].numel() for state in cache.states for part in state)
    assert held == model.model.backbone.state_size(64)
    model(tokens(1, 40), past_key_values=cache)
    mixers = model.config.mixer if isinstance(model.config.mixer, list) else [model.config.mixer]
    grows = bool(GROWING & set(mixers))
    assert (cache.nbytes() > before) == grows


@pytest.mark.slow
def test_generating_past_4096_tokens_keeps_the_memory() -> None:
    model = model_of("prism")
    short = model.generate(tokens(1, 4), max_new_tokens=8, return_dict_in_generate=True)
    long = model.generate(tokens(1, 4), max_new_tokens=4200, do_sample=False, return_dict_in_generate=True)
    assert long.sequences.shape[1] == 4204
    assert long.past_key_values.nbytes() == short.past_key_values.nbytes()


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("mixer", list(MIXERS))
def test_in_float32_the_cache_rounds_no_worse_than_the_whole(mixer: str) -> None:
    model, x, cache, found = model_of(mixer), tokens(1, 128), None, []
    for t in range(x.shape[1]):
        output = model(x[:, t : t + 1], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        found.append(output.logits)
    whole = model(x).logits
    exact = model.double()(x).logits
    stepped, at_once = ((y - exact).norm() / exact.norm() for y in (torch.cat(found, 1), whole))
    assert stepped < 5 * max(float(at_once), 2e-7)  # ATLAS amplifies rounding a thousandfold, the others do not


LOADER = """
import sys, torch
from pathlib import Path
import prism.lm.hf.model
from transformers import AutoModelForCausalLM
torch.set_num_threads(1)
x = torch.load(sys.argv[1] + "/x.pt")
for folder in sorted(p for p in Path(sys.argv[1]).iterdir() if p.is_dir()):
    with torch.no_grad():
        torch.save(AutoModelForCausalLM.from_pretrained(folder).eval()(x).logits, folder / "logits.pt")
"""


@torch.no_grad()
def test_a_saved_model_gives_identical_logits_in_a_fresh_process(tmp_path: Path) -> None:
    x, wanted = tokens(2, 21), {}
    torch.save(x, tmp_path / "x.pt")
    models = {name: model_of(name) for name in MIXERS} | {"hybrid": model_of(HYBRID, tie_word_embeddings=False)}
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        assert (tmp_path / name / "model.safetensors").exists()
        wanted[name] = model(x).logits
    done = subprocess.run([sys.executable, "-c", LOADER, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, logits in wanted.items():
        assert torch.equal(torch.load(tmp_path / name / "logits.pt"), logits), name


def test_the_auto_classes_know_the_model() -> None:
    fields = config("prism").to_dict()
    own = AutoConfig.for_model(fields.pop("model_type"), **fields)
    assert isinstance(own, PrismSequenceConfig)
    assert isinstance(AutoModel.from_config(own), PrismSequenceModel)
    assert isinstance(AutoModelForCausalLM.from_config(own), PrismSequenceForCausalLM)


def test_tied_embeddings_are_one_tensor_and_untied_are_two() -> None:
    tied, untied = model_of("prism"), model_of("prism", tie_word_embeddings=False)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert untied.lm_head.weight is not untied.model.embed_tokens.weight
    assert untied.num_parameters() - tied.num_parameters() == VOCABULARY * 16


def test_the_library_draws_no_weights_of_its_own() -> None:
    model = model_of("prism")
    torch.manual_seed(1)
    initialise(torch.nn.Embedding(VOCABULARY, 16))
    plain = model.config.backbone().build()
    for (name, a), b in zip(plain.named_parameters(), model.model.backbone.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_gradient_checkpointing_changes_no_gradient() -> None:
    x, found = tokens(2, 12), []
    for on in (False, True):
        model = model_of(HYBRID).double().train()
        if on:
            # transformers 5.23 renamed it and warns under the old name
            getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
            assert model.model.backbone.config.checkpoint
        model(x, labels=x).loss.backward()
        found.append([p.grad for p in model.parameters()])
    for a, b in zip(*found, strict=True):
        close(a, b)


def test_padding_has_no_part_in_the_gradient() -> None:
    x, mask = tokens(2, 12), torch.ones(2, 12, dtype=torch.long)
    mask[0, :5] = 0
    labels = x.masked_fill(mask == 0, -100)
    found = []
    for filler in (0, 7):
        model = model_of("prism").double()
        model(x.masked_fill(mask == 0, filler), attention_mask=mask, labels=labels).loss.backward()
        found.append([p.grad for p in model.parameters()])
    for a, b in zip(*found, strict=True):
        close(a, b)


def test_hidden_states_are_what_enters_and_leaves_the_blocks() -> None:
    model, x = model_of(HYBRID), tokens(2, 8)
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[0, :3] = 0
    output = model(x, attention_mask=mask, output_hidden_states=True)
    assert len(output.hidden_states) == 4
    last = model.lm_head(model.model.backbone.norm(output.hidden_states[-1]))
    close(last[mask.bool()], output.logits[mask.bool()])
    assert model(x, return_dict=False, use_cache=False)[0].shape == (2, 8, VOCABULARY)


@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_trainer_learns_to_repeat(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="Trainer needs it: pip install accelerate")
    model = model_of("prism")
    row = tokens(1, 24)[0]
    data = [{"input_ids": row, "labels": row}] * 32
    options = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=30,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        gradient_accumulation_steps=2,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
        use_cpu=True,
    )
    with torch.no_grad():
        before = float(model(row[None], labels=row[None]).loss)
    Trainer(model=model, args=options, train_dataset=data).train()
    model.eval()
    with torch.no_grad():
        assert float(model(row[None], labels=row[None]).loss) < before / 2


def test_a_misspelt_field_is_refused() -> None:
    with pytest.raises(InputError, match="no field 'mixer_field': did you mean 'mixer_fields'"):
        PrismSequenceConfig(mixer_field={"heads": 2})
    with pytest.raises(InputError, match="no field 'stepz': did you mean 'steps'"):
        PrismSequenceConfig(mixer_fields={"stepz": 2})
    with pytest.raises(InputError, match="mixer lists 2 for 3 layers"):
        PrismSequenceConfig(mixer=["prism", "attention"], num_hidden_layers=3)


def test_a_checkpoint_with_a_weight_missing_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model_of("prism").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.backbone.blocks.0.mixer.decay_bias"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="checkpoint lacks decay_bias of a Prism"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_wrong_masks_and_caches_are_refused_by_name() -> None:
    model, x = model_of("prism"), tokens(2, 5)
    with pytest.raises(ValueError, match=r"attention_mask must be \[2, 5 or more\], got \[2, 4\]"):
        model(x, attention_mask=torch.ones(2, 4))
    with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
        model()
    with pytest.raises(ValueError, match=r"position_ids must be \[2 or 1, 5\], got \[1, 4\]"):
        model(x, position_ids=torch.arange(4)[None])
    with pytest.raises(ValueError, match=r"cu_seq_lens_q must run from 0 to .*; got 0 to 4 for rows of shape \[1, 5\]"):
        model(x[:1], cu_seq_lens_q=torch.tensor([0, 2, 4]))
    cache = StateCache()
    with pytest.raises(ValueError, match="a row of several sequences has no cache"):
        model(x, position_ids=torch.tensor([[0, 1, 0, 1, 2]]), past_key_values=cache)
    model(x, past_key_values=cache)
    with pytest.raises(NotImplementedError, match="recurrent state"):
        cache.crop(1)
