"""A language model as the training loop takes it: tokens in, the sum of −log p(next token) out."""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from prism.models.hf import PrismSequenceForCausalLM
from prism.ops.softmax_loss import softmax_loss

HEAD, TABLE = "lm.lm_head.weight", "lm.model.embed_tokens.weight"


class Learner(nn.Module):
    """Computes the loss without ever holding all logits; its weights are the model's, tied ones once."""

    def __init__(self, lm: PrismSequenceForCausalLM):
        super().__init__()
        self.lm = lm
        if lm.config.tie_word_embeddings:
            # a file of weights cannot hold one tensor under two names
            self.register_state_dict_post_hook(_leave_out_head)
            self.register_load_state_dict_pre_hook(_put_head_back)

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
        """Over all tokens but the first of each row."""
        features = self.lm.model(tokens[:, :-1], use_cache=False).last_hidden_state
        return softmax_loss(features.flatten(0, 1), self.lm.lm_head.weight, tokens[:, 1:].flatten())


def _leave_out_head(module: nn.Module, weights: dict[str, Any], prefix: str, metadata: Any) -> None:
    weights.pop(prefix + HEAD, None)


def _put_head_back(module: nn.Module, weights: dict[str, Any], prefix: str, *rest: Any) -> None:
    if prefix + TABLE in weights:
        weights[prefix + HEAD] = weights[prefix + TABLE]
