"""Every mixer in half precision: saved and loaded in it, forwards, token by token, and generating."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="pip install 'prism-sequence[lm]'")

from prism.layers import MIXERS
from prism.lm.hf.model import PrismSequenceConfig, PrismSequenceForCausalLM


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MIXERS)
@torch.no_grad()
def test_a_model_loads_runs_steps_and_generates(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(3)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24, "vocab_size": 11}
    model = PrismSequenceForCausalLM(PrismSequenceConfig(mixer=name, mixer_fields={"heads": 2}, **sizes)).eval()
    x = torch.randint(0, 11, (2, 20))
    exact = model(x).logits
    model.save_pretrained(tmp_path / "float32")
    PrismSequenceForCausalLM.from_pretrained(tmp_path / "float32", dtype=dtype).save_pretrained(tmp_path / "half")
    for folder in ("float32", "half"):
        low = PrismSequenceForCausalLM.from_pretrained(tmp_path / folder, dtype=dtype).eval()
        assert {weight.dtype for weight in low.parameters()} == {dtype}
        found = low(x)
        assert found.logits.isfinite().all()
        assert (found.logits.float() - exact).norm() / exact.norm() < 0.2
        step = low(x[:, -1:], past_key_values=low(x[:, :-1]).past_key_values)
        assert (step.logits[:, 0] - found.logits[:, -1]).abs().max() < 0.2 * exact.abs().max()
    assert low.generate(x, max_new_tokens=3, do_sample=False, pad_token_id=0).shape == (2, 23)
