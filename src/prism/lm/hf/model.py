"""A Hugging Face causal language model around any mixer: import this module and the Auto classes know it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from prism.errors import InputError
from prism.layers.base.initial import initialise
from prism.layers.base.mixer import State
from prism.lm.hf.cache import StateCache
from prism.lm.hf.config import PrismSequenceConfig
from prism.lm.hf.rows import Rows, arrange


class PrismSequencePreTrainedModel(PreTrainedModel):
    """What the two models share."""

    config_class = PrismSequenceConfig
    config: PrismSequenceConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _is_stateful = True  # no rolling back: `generate` then refuses assisted decoding
    _no_split_modules = ["Block"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _built = False

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoModel") -> None:
        """Nothing: see the config's."""

    def _init_weights(self, module: nn.Module) -> None:
        """Weights are drawn where modules are built; what is still without any is missing from a checkpoint."""
        own = module.named_parameters(recurse=False)
        missing = [name for name, weight in own if not getattr(weight, "_is_hf_initialized", False)]
        if not self._built or not missing:
            return
        if not isinstance(module, nn.Linear | nn.Embedding):
            raise InputError(f"the checkpoint lacks {', '.join(missing)} of a {type(module).__name__}: save it again")
        initialise(module)


class PrismSequenceModel(PrismSequencePreTrainedModel):
    """Embedding and blocks: tokens in, features out."""

    def __init__(self, config: PrismSequenceConfig):
        super().__init__(config)
        # no padding_idx: padding never gets here, and where it is also the end of text it must be learned
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        initialise(self.embed_tokens)
        self.backbone = config.backbone().build()
        self.post_init()
        self._built = True

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether blocks keep only their inputs for the backward pass; the library sets it."""
        return self.backbone.config.checkpoint

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, on: bool) -> None:
        self.backbone.config = replace(self.backbone.config, checkpoint=on)

    def forward(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: StateCache | None = None,
        inputs_embeds: Float[Tensor, "B T D"] | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        cu_seq_lens_q: Int[Tensor, " limits"] | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast | tuple[Any, ...]:
        """Features of every token; zeros where `attention_mask` is 0.

        Args:
            input_ids: Tokens that follow those in `past_key_values`.
            attention_mask: 1 for tokens, 0 for padding, on any side; may also cover the tokens before these.
            position_ids: Where they do not grow, another sequence begins in the row: it starts from an empty state.
                Otherwise not used: the blocks count the tokens that they see.
            past_key_values: What an earlier call returned. It is updated in place.
            inputs_embeds: In place of `input_ids`.
            use_cache: Whether to return the states; default: the config's, and never in training.
            output_hidden_states: Whether to return what enters each block, and what leaves the last.
            return_dict: False for a tuple.
            cu_seq_lens_q: Where sequences begin in a single row, and its end, as the library's collators say it.
            kwargs: Ignored; the library passes options of attention implementations through here.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if past_key_values is not None and not isinstance(past_key_values, StateCache):
            raise TypeError(f"past_key_values must be a StateCache, got {type(past_key_values).__name__}")
        rows = arrange(attention_mask, position_ids, cu_seq_lens_q, x)
        cache = past_key_values
        if rows is not None and rows.packed:
            if cache is not None or use_cache:
                raise ValueError("a row of several sequences has no cache: leave out past_key_values and use_cache")
        elif cache is None and (use_cache if use_cache is not None else self.config.use_cache and not self.training):
            cache = StateCache()
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        with record(self.backbone.blocks if wanted else nn.ModuleList()) as seen:
            features, states = self._run(x, None if cache is None else cache.states, rows, step=not wanted)
        if cache is not None:
            cache.keep(states, x.shape[1])
        hidden = tuple(h if rows is None else rows.unpack(h) for h in seen) if wanted else None
        output = BaseModelOutputWithPast(last_hidden_state=features, past_key_values=cache, hidden_states=hidden)
        return output if return_dict is not False else output.to_tuple()

    def _run(
        self, x: Tensor, states: tuple[State, ...] | None, rows: Rows | None, *, step: bool
    ) -> tuple[Tensor, tuple[State, ...]]:
        if rows is not None:
            y, states = self.backbone(rows.pack(x), states, rows.cu_seqlens)
            return rows.unpack(y), states
        if step and x.shape[1] == 1 and not torch.is_grad_enabled():
            y, states = self.backbone.step(x.squeeze(1), states)
            return y.unsqueeze(1), states
        return self.backbone(x, states)


class PrismSequenceForCausalLM(PrismSequencePreTrainedModel, GenerationMixin):
    """Next-token prediction: `generate`, `Trainer` and the evaluation harness take it as any other model."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: PrismSequenceConfig):
        super().__init__(config)
        self.model = PrismSequenceModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        initialise(self.lm_head)
        self.post_init()
        self._built = True

    def forward(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        labels: Int[Tensor, "B T"] | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        cu_seq_lens_q: Int[Tensor, " limits"] | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits of the token after each, and with `labels` (the tokens themselves; −100: not scored) the loss.

        Other arguments are those of `PrismSequenceModel`. `logits_to_keep` > 0 computes the last logits alone.
        """
        named = {"cu_seq_lens_q": cu_seq_lens_q, "return_dict": True, **others}
        found = self.model(input_ids, attention_mask, position_ids, **named)
        last = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) and logits_to_keep else logits_to_keep
        features = found.last_hidden_state
        logits = self.lm_head(features if isinstance(last, int) else features[:, last])
        loss = None
        if labels is not None:
            # num_items_in_batch is how Trainer asks for the right mean over accumulated batches
            items = others.get("num_items_in_batch")
            loss = self.loss_function(logits, labels, self.config.vocab_size, num_items_in_batch=items)
        output = CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=found.past_key_values, hidden_states=found.hidden_states
        )
        return output if return_dict is not False else output.to_tuple()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """False: its cache is a `StateCache`, not one of the library's."""
        return False

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *rest: Any, **more: Any
    ) -> None:
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *rest, **more)
        if generation_config.use_cache is not False and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = StateCache()


@contextmanager
def record(blocks: nn.ModuleList) -> Iterator[list[Tensor]]:
    """Collects what enters the first block and what leaves each."""
    seen: list[Tensor] = []
    with ExitStack() as hooks:
        for block in blocks[:1]:
            handle = block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
            hooks.callback(handle.remove)
        for block in blocks:
            handle = block.register_forward_hook(lambda _, __, output: seen.append(output[0]))
            hooks.callback(handle.remove)
        yield seen


AutoConfig.register(PrismSequenceConfig.model_type, PrismSequenceConfig)
AutoModel.register(PrismSequenceConfig, PrismSequenceModel)
AutoModelForCausalLM.register(PrismSequenceConfig, PrismSequenceForCausalLM)

__all__ = ["PrismSequenceConfig", "PrismSequenceForCausalLM", "PrismSequenceModel", "StateCache"]
