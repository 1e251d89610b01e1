"""Perplexity per token and bits per byte of a text, every token predicted once with a strided context before it."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, inf, log

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prism.config import at_least
from prism.errors import InputError
from prism.lm.data.shards import encode
from prism.lm.data.tokenizer import Tokenizer, check_vocabulary


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """How well a model predicts a text."""

    nats: float
    """Minus the log-probability of all tokens."""
    tokens: int
    bytes: int
    words: int
    documents: int

    @property
    def per_token(self) -> float:
        """Perplexity per token: comparable between models with the same tokenizer alone."""
        return _exp(self.nats / self.tokens)

    @property
    def per_word(self) -> float:
        """Perplexity per word, words being what spaces separate."""
        return _exp(self.nats / max(1, self.words))

    @property
    def bits_per_byte(self) -> float:
        """Comparable between all models."""
        return self.nats / log(2) / self.bytes


def _exp(nats: float) -> float:
    """e^nats, infinite where a float ends: a long word of an untrained model gets there."""
    return exp(nats) if nats < 709 else inf


def perplexity(
    model: nn.Module,
    tokenizer: Tokenizer,
    documents: Iterable[str],
    *,
    context: int = 1024,
    stride: int = 512,
    batch: int = 8,
) -> Perplexity:
    """Scores every token of every document, the first after the end token of the one before.

    Args:
        model: A causal language model of the library, this package's or any other.
        tokenizer: The model's.
        documents: Each starts afresh.
        context: Tokens that the model sees at most.
        stride: Tokens scored in each window after the first: a token has at least context − stride before it.
        batch: Windows at once.
    """
    at_least("context", context, 2)
    at_least("batch", batch, 1)
    if not 1 <= stride <= context:
        raise InputError(f"stride must be from 1 to context = {context}, got {stride}")
    check_vocabulary(tokenizer, model.config.vocab_size)  # type: ignore[arg-type, union-attr]
    counted = dict.fromkeys(("tokens", "bytes", "words", "documents"), 0)
    nats, waiting = 0.0, []
    for text in documents:
        (ids,) = encode(tokenizer, [text])
        if not ids:
            continue
        counted["tokens"] += len(ids)
        counted["bytes"] += len(text.encode())
        counted["words"] += len(text.split())
        counted["documents"] += 1
        waiting += windows([tokenizer.eos_token_id, *ids], context, stride)
        while len(waiting) >= batch:
            nats, waiting = nats + _score(model, waiting[:batch]), waiting[batch:]
    if not counted["tokens"]:
        raise InputError("the text is empty: there is nothing to predict")
    if waiting:
        nats += _score(model, waiting)
    return Perplexity(nats=nats, **counted)


def windows(ids: list[int], context: int, stride: int) -> list[tuple[list[int], int]]:
    """(tokens, how many of the last are scored): together, every token but the first is scored once."""
    found, scored = [], 1
    while scored < len(ids):
        # a window has `context` inputs, and the token that the last of them predicts
        stop = min(len(ids), scored + (context if scored == 1 else stride))
        found.append((ids[max(0, stop - context - 1) : stop], stop - scored))
        scored = stop
    return found


@torch.no_grad()
def _score(model: nn.Module, parts: list[tuple[list[int], int]]) -> float:
    """Minus the log-probability of the scored tokens. Padding comes last, where a causal model does not see it."""
    device = next(model.parameters()).device
    longest = max(len(ids) for ids, _ in parts)
    tokens = torch.zeros(len(parts), longest, dtype=torch.long)
    scored = torch.zeros(len(parts), longest, dtype=torch.bool)
    for row, (ids, count) in enumerate(parts):
        tokens[row, : len(ids)] = torch.tensor(ids)
        scored[row, len(ids) - count : len(ids)] = True
    tokens, scored = tokens.to(device), scored.to(device)
    logits: Tensor = model(tokens[:, :-1], use_cache=False).logits
    wanted = scored[:, 1:]
    return float(F.cross_entropy(logits[wanted].float(), tokens[:, 1:][wanted], reduction="none").double().sum())
