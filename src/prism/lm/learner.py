"""A language model as the training loop takes it: tokens in, the sum of −log p(next token) out."""

from typing import Any

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from prism.lm.hf.model import PrismSequenceForCausalLM
from prism.ops.context.segment import share_of
from prism.ops.softmax_loss import softmax_loss

HEAD, TABLE = "lm.lm_head.weight", "lm.model.embed_tokens.weight"


class Learner(nn.Module):
    """Computes the loss without ever holding all logits; its weights are the model's, tied ones once.

    Args:
        lm: The model.
        end: The token between documents, where each is to start from an empty state with this token first, as
            `perplexity` reads it; None: a row is read through, and its documents share the state.
    """

    def __init__(self, lm: PrismSequenceForCausalLM, end: int | None = None):
        super().__init__()
        self.lm, self.end = lm, end
        if lm.config.tie_word_embeddings:
            # a file of weights cannot hold one tensor under two names
            self.register_state_dict_post_hook(_leave_out_head)
            self.register_load_state_dict_pre_hook(_put_head_back)

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
        """Over all tokens but the first of each row."""
        inputs = tokens[:, :-1]
        limits = None if self.end is None else _documents(inputs, self.end)
        rows = inputs if limits is None else inputs.reshape(1, -1)
        size = self.lm.model.backbone.config.context_parallel
        if size > 1 and self.training:
            return self._segment(rows, tokens[:, 1:].reshape(rows.shape), limits, size)
        features = self.lm.model(rows, use_cache=False, cu_seq_lens_q=limits).last_hidden_state
        return softmax_loss(features.flatten(0, 1), self.lm.lm_head.weight, tokens[:, 1:].flatten())

    def _segment(self, rows: Tensor, targets: Tensor, limits: Tensor | None, size: int) -> Float[Tensor, ""]:
        """The sum over this process's share of every row's tokens; the others have the rest."""
        part = slice(*share_of(rows.shape[1], size, rows.device.type))
        features, _ = self.lm.model.backbone(self.lm.model.embed_tokens(rows[:, part]), None, limits)
        return softmax_loss(features.flatten(0, 1), self.lm.lm_head.weight, targets[:, part].flatten())


def _documents(tokens: Int[Tensor, "B T"], end: int) -> Int[Tensor, " limits"]:
    """Where documents, or what a row holds of them, begin among all tokens, and the last one's end; on the host."""
    starts = F.pad(tokens[:, 1:] == end, (1, 0), value=True).cpu()  # the model would ask for the numbers again
    return F.pad(starts.flatten().nonzero().flatten(), (0, 1), value=tokens.numel())


def _leave_out_head(module: nn.Module, weights: dict[str, Any], prefix: str, metadata: Any) -> None:
    weights.pop(prefix + HEAD, None)


def _put_head_back(module: nn.Module, weights: dict[str, Any], prefix: str, *rest: Any) -> None:
    if prefix + TABLE in weights:
        weights[prefix + HEAD] = weights[prefix + TABLE]
