"""Tokenizers: a byte-level BPE trained here, or any Hugging Face folder, tokenizer.json or SentencePiece model."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prism.config import at_least
from prism.errors import InputError

END = "<|endoftext|>"
# Tokens of a vocabulary at least: 256 bytes and the end.
SMALLEST = 257
# The library's base class; its names differ between versions, and its types are not exported.
Tokenizer = Any


def train_tokenizer(documents: Iterable[str], vocabulary: int = 32000) -> Tokenizer:
    """A byte-level BPE of at most `vocabulary` tokens, one of which ends a document; no text is unknown to it."""
    at_least("vocabulary", vocabulary, SMALLEST)
    from tokenizers import Tokenizer as Core
    from tokenizers import decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Core(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(documents, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=END, eos_token=END, pad_token=END, padding_side="left"
    )


def load_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer from a Hugging Face folder, a tokenizer.json, or a SentencePiece .model file."""
    if not path.exists():
        raise InputError(f"{path} does not exist: name a tokenizer folder, a tokenizer.json or a SentencePiece model")
    try:
        found = _open(path)
    except Exception as error:  # each format has errors of its own for a damaged file
        reason = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        raise InputError(f"{path} holds no tokenizer that can be read: {reason}") from None
    if found.eos_token_id is None:
        raise InputError(f"{path}: the tokenizer has no end-of-text token; set eos_token in its tokenizer_config.json")
    if found.pad_token_id is None:
        found.pad_token = found.eos_token
    found.padding_side = "left"
    pieces = getattr(found, "sp_model", None)
    if pieces is not None:  # the library joins byte pieces as text: <0xC3><0xA9> in place of é
        found.convert_tokens_to_string = pieces.decode_pieces
    return found


def _open(path: Path) -> Tokenizer:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if path.is_dir():
        if not any((path / name).exists() for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")):
            raise FileNotFoundError("neither tokenizer.json nor tokenizer.model is in it")
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    if path.suffix == ".json":
        found = PreTrainedTokenizerFast(tokenizer_file=str(path))
        known = [token for token in (END, "</s>", "<eos>", "<|end_of_text|>") if token in found.get_vocab()]
        if known:
            found.eos_token = known[0]
        return found
    from sentencepiece import SentencePieceProcessor
    from transformers.tokenization_utils_sentencepiece import SentencePieceBackend

    pieces = SentencePieceProcessor(model_file=str(path))
    numbers = {"unk_token": pieces.unk_id(), "bos_token": pieces.bos_id(), "eos_token": pieces.eos_id()}
    special = {name: pieces.id_to_piece(number) for name, number in numbers.items() if number >= 0}
    return SentencePieceBackend(vocab_file=str(path), **special)


def check_vocabulary(tokenizer: Tokenizer, size: int) -> None:
    """Refuses a tokenizer with more tokens than the model has rows for."""
    if len(tokenizer) > size:
        raise InputError(
            f"the tokenizer has {len(tokenizer):,} tokens but the model's vocabulary is {size:,}: "
            "they do not belong together"
        )
