"""Text to tokens: every layout gives the same documents, a stopped run goes on, a bad file is one clear line."""

import gzip
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from support.refusals import assert_refused

pytest.importorskip("transformers", reason="pip install 'prism-sequence[lm]'")

from prism.errors import InputError, Note
from prism.lm.data.shards import INDEX, fingerprint, read_shards, write_shards
from prism.lm.data.text import python_documents, read_documents
from prism.lm.data.tokenizer import check_vocabulary, load_tokenizer, train_tokenizer

DOCUMENTS = ["One document, é and 日本.\nTwo lines.", "Another\tone. " * 20, "A third 😀 one."]

# Its first block is of no kind that there is.
DAMAGED = gzip.compress(b"", mtime=0)[:10] + b"\xff" * 20


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(DOCUMENTS, vocabulary=300)


def layouts(folder: Path) -> dict[str, Path]:
    """The same documents as each kind of file."""
    rows = [json.dumps({"text": text, "id": n}) for n, text in enumerate(DOCUMENTS)]
    files = {name: folder / name for name in ("a.txt", "a.jsonl", "a.jsonl.gz", "a.parquet")}
    files["a.txt"].write_text("\f".join(["", *DOCUMENTS, "  \n"]))
    files["a.jsonl"].write_text("\n".join(rows))
    files["a.jsonl.gz"].write_bytes(gzip.compress("\n".join(rows).encode()))
    pl.DataFrame({"text": [*DOCUMENTS, None], "id": [0, 1, 2, 3]}).write_parquet(files["a.parquet"])
    (folder / "folder" / "deep").mkdir(parents=True)
    for n, text in enumerate(DOCUMENTS):
        (folder / "folder" / ("deep" if n else ".") / f"{n}.md").write_text(text)
    (folder / "folder" / "picture.png").write_bytes(b"\x89PNG\0")
    return files | {"folder": folder / "folder"}


def test_every_layout_gives_the_same_documents(tmp_path: Path) -> None:
    for name, path in layouts(tmp_path).items():
        assert list(read_documents([path])) == DOCUMENTS, name


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "has no text: every document is empty"),
        ("a.txt", b"  \f \n ", "has no text: every document is empty"),
        ("a.txt", b"abc\0def", r"is a binary file \(a zero byte at 3\): name a text file"),
        ("a.txt", b"abc\xff\xfe", r"is not UTF-8 text \(byte 3\)"),
        ("a.jsonl", b'{"text": "a"}\n{"text": ', "line 2 is not JSON"),
        ("a.jsonl", b'{"txt": "a"}', "line 1 has no text under 'text': did you mean 'txt'?"),
        ("a.jsonl", b'["a"]', "line 1 is not a JSON object"),
        ("a.jsonl", b'{"text": 5}', "line 1 has no text under 'text': none of its fields holds text"),
        ("a.jsonl", b"{}", "line 1 has no text under 'text': none of its fields holds text"),
        ("a.jsonl", b'{"text": "a", "id": %s}' % (b"1" * 5000), "line 1 is JSON that cannot be read: .*4300 digits"),
        ("a.jsonl", b'{"text": %s}' % (b"[" * 200_000), "line 1 is JSON that cannot be read: .*recursion"),
        ("a.jsonl.gz", b"no gzip", "is not a whole gzip file"),
        ("a.txt.gz", DAMAGED, "is not a whole gzip file"),
        ("a.txt.gz", gzip.compress(b"text " * 99, mtime=0)[:-12], "is not a whole gzip file"),
        ("a.parquet", b"no parquet", "cannot be read as Parquet"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    assert_refused(lambda path: list(read_documents([path])), tmp_path / name, content, message)


def test_missing_paths_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        list(read_documents([tmp_path / "none.txt"]))
    with pytest.raises(InputError, match="holds no text files"):
        list(read_documents([tmp_path]))
    with pytest.raises(InputError, match="no text given"):
        list(read_documents([]))
    pl.DataFrame({"body": ["a"]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="has no column 'text': known: body"):
        list(read_documents([tmp_path]))
    assert list(read_documents([tmp_path], column="body")) == ["a"]


def test_every_machine_has_pythons_own_text() -> None:
    documents = python_documents()
    size = sum(len(next(documents)) for _ in range(200))
    assert size > 500_000
    assert next(python_documents()) == next(python_documents())


def test_a_trained_tokenizer_gives_every_text_back(tokenizer, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    for found in (tokenizer, load_tokenizer(tmp_path), load_tokenizer(tmp_path / "tokenizer.json")):
        for text in [*DOCUMENTS, " ünseen\n\n  text\t☃"]:
            assert found.decode(found.encode(text)) == text
        assert found.eos_token_id == 0
    assert len(tokenizer) == 300


def test_a_tokenizer_of_the_same_vocabulary_that_cuts_otherwise_is_another(tokenizer, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, normalizers

    tokenizer.save_pretrained(tmp_path / "same")
    assert fingerprint(load_tokenizer(tmp_path / "same")) == fingerprint(tokenizer)
    core = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    core.normalizer = normalizers.Lowercase()
    core.save(str(tmp_path / "lower.json"))
    lower = load_tokenizer(tmp_path / "lower.json")
    assert lower.get_vocab() == tokenizer.get_vocab()
    assert fingerprint(lower) != fingerprint(tokenizer)


def test_a_sentencepiece_model_gives_its_own_tokens(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece", reason="pip install sentencepiece")
    (tmp_path / "text.txt").write_text("\n".join(f"the words {n} of a small text" for n in range(200)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text.txt"),
        model_prefix=str(tmp_path / "own"),
        vocab_size=300,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
    )
    own = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "own.model"))
    found = load_tokenizer(tmp_path / "own.model")
    found.save_pretrained(tmp_path / "saved")
    assert fingerprint(load_tokenizer(tmp_path / "saved")) == fingerprint(found)
    for text in ("a small text", "the é words"):
        for tokenizer in (found, load_tokenizer(tmp_path / "saved")):
            assert tokenizer.encode(text, add_special_tokens=False) == own.encode(text)
            assert tokenizer.decode(own.encode(text)) == text


def test_what_is_no_tokenizer_is_refused(tmp_path: Path, tokenizer) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_tokenizer(tmp_path / "none")
    with pytest.raises(InputError, match=r"neither tokenizer.json nor tokenizer.model"):
        load_tokenizer(tmp_path)
    for name in ("tokenizer.json", "own.model"):
        (tmp_path / name).write_text("{}")
        with pytest.raises(InputError, match="holds no tokenizer that can be read"):
            load_tokenizer(tmp_path / name)
    with pytest.raises(InputError, match="300 tokens but the model's vocabulary is 299"):
        check_vocabulary(tokenizer, 299)
    with pytest.raises(InputError, match="vocabulary must be at least 257, got 100"):
        train_tokenizer(DOCUMENTS, vocabulary=100)


def test_shards_hold_every_document_and_its_end(tokenizer, tmp_path: Path) -> None:
    found = write_shards(DOCUMENTS, tokenizer, tmp_path, source="x", size=50)
    assert len(found.shards) > 1
    tokens = found.read(0, found.tokens)
    parts = np.split(tokens, np.flatnonzero(tokens == found.end) + 1)[:-1]
    assert [tokenizer.decode(part[:-1]) for part in parts] == DOCUMENTS
    assert sum(shard.bytes for shard in found.shards) == len("".join(DOCUMENTS).encode())


def test_windows_predict_every_token_once(tokenizer, tmp_path: Path) -> None:
    found = write_shards(DOCUMENTS, tokenizer, tmp_path, source="x", size=50)
    windows = [found.window(n, 7) for n in range(found.windows(7))]
    assert all(len(window) == 8 for window in windows)
    targets = np.concatenate([window[1:] for window in windows])
    assert np.array_equal(targets, found.read(1, 1 + len(targets)))
    assert found.tokens - 1 - len(targets) < 7


def test_a_stopped_run_goes_on_and_ends_as_if_it_had_not_stopped(tokenizer, tmp_path: Path) -> None:
    def stopping() -> Iterator[str]:
        yield from many[:130]
        raise KeyboardInterrupt

    many = [f"document number {n}" for n in range(300)]
    whole = write_shards(many, tokenizer, tmp_path / "whole", source="x", size=500)
    with pytest.raises(KeyboardInterrupt):
        write_shards(stopping(), tokenizer, tmp_path / "parts", source="x", size=500)
    begun = read_shards(tmp_path / "parts")
    assert not begun.complete
    assert 0 < len(begun.shards) < len(whole.shards)
    resumed = write_shards(many, tokenizer, tmp_path / "parts", source="x", size=500)
    assert resumed.shards == whole.shards
    assert np.array_equal(resumed.read(0, resumed.tokens), whole.read(0, whole.tokens))
    assert write_shards([], tokenizer, tmp_path / "parts", source="x") == resumed  # nothing left to do


def test_damage_and_another_source_are_refused(tokenizer, tmp_path: Path) -> None:
    write_shards(DOCUMENTS, tokenizer, tmp_path, source=fingerprint(tokenizer, "a"))
    with pytest.raises(InputError, match="tokens of another text or tokenizer"):
        write_shards(DOCUMENTS, tokenizer, tmp_path, source=fingerprint(tokenizer, "b"))
    with pytest.raises(InputError, match="the text is empty"):
        write_shards([], tokenizer, tmp_path / "empty", source="x")
    with pytest.raises(InputError, match=f"no {INDEX}"):
        read_shards(tmp_path / "none")
    with (tmp_path / "tokens-00000.bin").open("ab") as file:
        file.write(b"0")
    with pytest.raises(InputError, match="missing or not whole"):
        read_shards(tmp_path)


def test_line_separators_inside_a_json_string_do_not_end_the_line(tmp_path: Path) -> None:
    texts = ["one\u2028two", "three\u0085four\u2029five\x0b\x1csix"]
    path = tmp_path / "text.jsonl"
    path.write_text("\r\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in texts), newline="")
    assert list(read_documents([path])) == texts


def test_half_of_a_surrogate_pair_is_replaced_and_said_once(tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    path.write_text('{"text": "hi \\ud83d there"}\n{"text": "and \\ude00, but \\ud83d\\ude00"}')
    with pytest.warns(Note, match=r"text.jsonl has halves of surrogate pairs.*U\+FFFD") as told:
        texts = [*read_documents([path]), *read_documents([path])]
    assert len(told) == 1
    assert texts == ["hi \ufffd there", "and \ufffd, but 😀"] * 2
    write_shards(texts, tokenizer, tmp_path / "tokens", source="x")


def test_tokens_of_a_file_are_held_as_an_array(tmp_path: Path) -> None:
    class Numbers:
        """A tokenizer of numbers, one token each."""

        eos_token_id = 0

        def __call__(self, texts: list[str], **_: object) -> dict:
            return {"input_ids": [list(range(1000, 1000 + int(text))) for text in texts]}

        def __len__(self) -> int:
            return 60_000

    tracemalloc.start()
    shards = write_shards(("1000" for _ in range(1000)), Numbers(), tmp_path, source="numbers")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert shards.tokens == 1_001_000
    assert peak < 10 * shards.tokens  # a list of Python's integers is 36 bytes per token
