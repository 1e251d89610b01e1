"""Packed tokens on disk: documents one after another, each ended by the end token, in files that appear whole."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prism.errors import InputError
from prism.files import write_whole
from prism.lm.data.tokenizer import Tokenizer

INDEX = "shards.json"
# What tokenizers of one vocabulary cut differently, if they do: cases, spaces, marks, numbers, scripts.
SAMPLE = " The quick  Brown\tFOX, don't 'jump';\n\n  over 1234567.89 of CamelCase_names: Ünïcodé 日本語 Привет 🙂\r\n"


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One file."""

    file: str
    tokens: int
    documents: int
    bytes: int
    """Of the text, in UTF-8."""


@dataclass(frozen=True, kw_only=True)
class Shards:
    """What a folder holds."""

    folder: Path
    shards: tuple[Shard, ...]
    vocabulary: int
    end: int
    source: str
    """What the tokens were made of; another source is not continued here."""
    complete: bool

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def dtype(self) -> type[np.unsignedinteger[Any]]:
        """The smallest type that holds every token."""
        return np.uint16 if self.vocabulary <= 2**16 else np.uint32

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens start … stop − 1, across files, from memory-mapped files."""
        pieces, place = [], 0
        for shard in self.shards:
            a, b = max(start, place), min(stop, place + shard.tokens)
            if a < b:
                file = np.memmap(self.folder / shard.file, dtype=self.dtype, mode="r", shape=(shard.tokens,))
                pieces.append(np.asarray(file[a - place : b - place], dtype=np.int64))
            place += shard.tokens
        return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)

    def window(self, number: int, length: int) -> NDArray[np.int64]:
        """Window `number`: `length` inputs and the token after the last, so that every token is predicted once."""
        return self.read(number * length, (number + 1) * length + 1)

    def windows(self, length: int) -> int:
        """How many whole windows there are."""
        return max(0, self.tokens - 1) // length


def fingerprint(tokenizer: Tokenizer, *names: str) -> str:
    """Stands for a tokenizer, its vocabulary and how it cuts a sample, and for the text that it was given."""
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    (cut,) = encode(tokenizer, [SAMPLE])
    return hashlib.sha256("\n".join([vocabulary, json.dumps(cut), *names]).encode()).hexdigest()[:16]


def write_shards(
    documents: Iterable[str], tokenizer: Tokenizer, folder: Path, *, source: str, size: int = 2**24
) -> Shards:
    """Tokenises documents into `folder`, going on after the last whole file of an earlier call.

    Args:
        documents: The same, in the same order, as in the call that is continued.
        tokenizer: Makes the tokens.
        folder: Of the files and their index.
        source: See `fingerprint`.
        size: Tokens after which a file ends, at the end of a document.
    """
    found = read_shards(folder) if (folder / INDEX).exists() else None
    if found is not None and found.source != source:
        raise InputError(f"{folder} holds tokens of another text or tokenizer: name another folder, or remove it")
    if found is not None and found.complete:
        return found
    shards = list(found.shards) if found is not None else []
    rest = islice(documents, sum(shard.documents for shard in shards), None)
    kind = {"vocabulary": len(tokenizer), "end": tokenizer.eos_token_id, "source": source}
    state = Shards(folder=folder, shards=tuple(shards), complete=False, **kind)
    for number, (tokens, count, held) in enumerate(_files(rest, tokenizer, size, state.dtype), len(shards)):
        name = f"tokens-{number:05d}.bin"
        write_whole(folder / name, tokens.tobytes())
        shards.append(Shard(file=name, tokens=len(tokens), documents=count, bytes=held))
        state = Shards(folder=folder, shards=tuple(shards), complete=False, **kind)
        _write_index(state)
    if not state.tokens:
        raise InputError(f"nothing to write to {folder}: the text is empty")
    state = Shards(folder=folder, shards=state.shards, complete=True, **kind)
    _write_index(state)
    return state


def read_shards(folder: Path) -> Shards:
    """The index of a folder, its files checked against it."""
    path = folder / INDEX
    if not path.exists():
        raise InputError(f"{folder} has no {INDEX}: it is not a folder of tokens")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        values["shards"] = tuple(Shard(**shard) for shard in values["shards"])
        found = Shards(folder=folder, **values)
    except (json.JSONDecodeError, TypeError, KeyError) as error:
        raise InputError(f"{path} is damaged ({error}): remove {folder} and tokenise again") from None
    for shard in found.shards:
        file = folder / shard.file
        if not file.exists() or file.stat().st_size != shard.tokens * np.dtype(found.dtype).itemsize:
            raise InputError(f"{file} is missing or not whole: remove {folder} and tokenise again")
    return found


def _write_index(state: Shards) -> None:
    values = {name: value for name, value in asdict(state).items() if name != "folder"}
    write_whole(state.folder / INDEX, json.dumps(values, indent=1).encode())


def _files(
    documents: Iterator[str], tokenizer: Tokenizer, size: int, dtype: type[np.unsignedinteger[Any]]
) -> Iterator[tuple[NDArray[Any], int, int]]:
    """(tokens, documents, bytes) of each file."""
    pieces: list[NDArray[Any]] = []  # one per document: Python's integers would take fifteen times the memory
    tokens = count = held = 0
    while batch := list(islice(documents, 64)):
        for text, ids in zip(batch, encode(tokenizer, batch), strict=True):
            pieces.append(np.array([*ids, tokenizer.eos_token_id], dtype=dtype))
            tokens, count, held = tokens + len(pieces[-1]), count + 1, held + len(text.encode())
            if tokens >= size:
                yield np.concatenate(pieces), count, held
                pieces.clear()
                tokens = count = held = 0
    if pieces:
        yield np.concatenate(pieces), count, held


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Tokens of each text, without the special ones that a tokenizer may add."""
    found: list[list[int]] = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    return found
