"""Evaluation of language models: every token scored once, exactly; the harness offline in either layout of rows."""

import json
from math import log
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("transformers", reason="pip install 'prism-sequence[lm]'")

from prism.errors import InputError
from prism.lm.data.tokenizer import train_tokenizer
from prism.lm.evaluation.harness import COLUMNS, TASKS, average, offline_tasks, run_harness
from prism.lm.evaluation.perplexity import perplexity, windows
from prism.lm.evaluation.rows import ROWS, read_rows
from prism.lm.hf.model import PrismSequenceConfig, PrismSequenceForCausalLM
from prism.printed import SCORES

TEXTS = ["The first document, é.", "Another one that is quite a bit longer than the first of them."]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, vocabulary=270)


@pytest.fixture(scope="module")
def model() -> PrismSequenceForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 270, "hidden_size": 16, "num_hidden_layers": 2, "mixer_fields": {"heads": 2}}
    return PrismSequenceForCausalLM(PrismSequenceConfig(**sizes, eos_token_id=0)).eval()


@given(st.integers(1, 60), st.integers(2, 20), st.data())
def test_windows_score_every_token_once_with_enough_before_it(length: int, context: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, context))
    ids = list(range(length + 1))
    seen: list[int] = []
    for tokens, count in windows(ids, context, stride):
        assert len(tokens) <= context + 1
        seen += tokens[len(tokens) - count :]
        first = tokens[len(tokens) - count]
        assert len(tokens) - count >= min(first, context - stride + 1)
    assert seen == ids[1:]


@torch.no_grad()
def test_perplexity_is_the_sum_over_tokens(model, tokenizer) -> None:
    nats = 0.0
    for text in TEXTS:
        ids = torch.tensor([[0, *tokenizer.encode(text)]])
        logits = model(ids[:, :-1]).logits.log_softmax(-1)
        nats -= float(logits.gather(-1, ids[:, 1:, None]).sum())
    for batch in (1, 3):
        found = perplexity(model, tokenizer, TEXTS, context=512, stride=256, batch=batch)
        assert found.nats == pytest.approx(nats, rel=1e-5)
    assert found.bytes == len("".join(TEXTS).encode())
    assert found.bits_per_byte == pytest.approx(nats / log(2) / found.bytes, rel=1e-5)
    assert found.per_token == pytest.approx(2.718281828 ** (nats / found.tokens), rel=1e-4)


@torch.no_grad()
def test_a_strided_score_sees_its_context_and_no_more(model, tokenizer) -> None:
    (text,) = TEXTS[1:]
    ids = [0, *tokenizer.encode(text)]
    nats = 0.0
    for n in range(1, len(ids)):
        seen = torch.tensor([ids[max(0, n - 5) : n]])
        nats -= float(model(seen).logits[0, -1].log_softmax(-1)[ids[n]])
    assert perplexity(model, tokenizer, [text], context=5, stride=1).nats == pytest.approx(nats, rel=1e-5)


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary(tokenizer) -> None:
    config = PrismSequenceConfig(vocab_size=270, hidden_size=16, num_hidden_layers=1, tie_word_embeddings=False)
    blank = PrismSequenceForCausalLM(config).eval()
    torch.nn.init.zeros_(blank.lm_head.weight)
    assert perplexity(blank, tokenizer, TEXTS).per_token == pytest.approx(270)


def test_bad_arguments_of_perplexity_are_refused(model, tokenizer) -> None:
    with pytest.raises(InputError, match="the text is empty"):
        perplexity(model, tokenizer, [])
    with pytest.raises(InputError, match="stride must be from 1 to context = 8, got 9"):
        perplexity(model, tokenizer, TEXTS, context=8, stride=9)
    with pytest.raises(InputError, match="batch must be at least 1, got 0"):
        perplexity(model, tokenizer, TEXTS, batch=0)
    small = PrismSequenceForCausalLM(PrismSequenceConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1))
    with pytest.raises(InputError, match="270 tokens but the model's vocabulary is 9"):
        perplexity(small, tokenizer, TEXTS)


READY = {
    "piqa": {"query": "Question: dress\n", "choices": ["a", "b"], "gold": 1},
    "hellaswag": {"query": "Roof: A man sits. He", "choices": ["stands", "x"], "gold": 0},
    "winogrande": {"context_options": ["Ann saw Bob so Ann", "Ann saw Bob so Bob"], "continuation": "ran.", "gold": 1},
    "arc_easy": {"query": "Question: Why?", "choices": ["a", "b"], "gold": 0},
    "boolq": {"query": "Passage: Long ago.\nQuestion: is it?", "choices": ["no", "yes"], "gold": 1},
    "openbookqa": {"query": "Cats eat", "choices": ["mice", "iron"], "gold": 0},
    "sciq": {"query": "Facts\nQuestion: Why?", "choices": ["a", "b", "c", "d"], "gold": 3},
    "lambada_openai": {"context": "one two", "continuation": "three"},
    "wikitext": {"text": " = A page = \n Words . "},
}
PUBLISHED = {
    "piqa": {"goal": "dress", "sol1": "a", "sol2": "b", "label": 1},
    "hellaswag": {
        "activity_label": "Roof", "ctx_a": "A man sits.", "ctx_b": "he", "endings": ["stands [x]", "x"], "label": "0",
    },
    "winogrande": {"sentence": "Ann saw Bob so _ ran.", "option1": "Ann", "option2": "Bob", "answer": "2"},
    "arc_easy": {"question": "Why?", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "A"},
    "boolq": {"passage": "Long ago.", "question": "is it", "label": 1},
    "openbookqa": {
        "question_stem": "Cats eat", "choices": {"text": ["mice", "iron"], "label": ["A", "B"]}, "answerKey": "A ",
    },
    "sciq": {
        "support": " Facts", "question": "Why?",
        "distractor1": "a", "distractor2": "b", "distractor3": "c", "correct_answer": "d",
    },
    "lambada_openai": {"text": "one two three"},
    "wikitext": {"page": " = A page = \n Words . "},
}  # fmt: skip


@pytest.mark.parametrize("task", list(READY))
def test_both_layouts_of_a_row_say_the_same(task: str) -> None:
    ready, published = ROWS[task](READY[task]), ROWS[task](PUBLISHED[task])
    if task == "hellaswag":  # a ready ending keeps no mark, and no space before it
        published["choices"] = [choice.strip() for choice in published["choices"]]
    assert ready == published


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("rows")
    for task, row in PUBLISHED.items():
        name = "openbook_qa" if task == "openbookqa" else task
        (found / f"{name}.jsonl").write_text("\n".join([json.dumps(row)] * 3))
    return found


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")  # the harness's own
def test_the_harness_scores_rows_as_the_model_does(model, tokenizer, folder: Path) -> None:
    pytest.importorskip("lm_eval", reason="pip install 'prism-sequence[lm-eval]'")
    found = run_harness(model, tokenizer, data_dir=folder, limit=2, context=128, batch=2)
    assert set(found) == set(TASKS) - {"arc_challenge"}

    def score(start: str, end: str) -> float:
        whole, before = tokenizer.encode(start + end), len(tokenizer.encode(start))
        logits = model(torch.tensor([whole])).logits[0].log_softmax(-1)
        return float(sum(logits[n - 1, whole[n]] for n in range(before, len(whole))))

    options = [score("Question: dress\nAnswer:", f" {choice}") for choice in "ab"]
    assert found["piqa"]["acc"] == float(options[1] > options[0])
    starts = [score(f"Ann saw Bob so {name}", " ran.") for name in ("Ann", "Bob")]
    assert found["winogrande"]["acc"] == float(starts[1] > starts[0])
    assert found["lambada_openai"]["perplexity"] == pytest.approx(2.718281828 ** -score("one two", " three"), rel=1e-3)
    accuracies = [100 * found[c.task][c.metric] for c in COLUMNS if c.accuracy and c.task in found]
    assert average(found) == pytest.approx(sum(accuracies) / 8)


def test_a_folder_or_row_that_will_not_do_is_refused_by_name(tmp_path: Path, model, tokenizer) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        offline_tasks(TASKS, tmp_path / "none")
    with pytest.raises(InputError, match=r"has none of piqa.jsonl"):
        offline_tasks(("piqa",), tmp_path)
    path = tmp_path / "piqa.jsonl"
    for content, message in (
        ("", "is empty"),
        ("{}", "line 1 is no row of piqa: no field 'goal'"),
        ('{"query": "a", "choices": ["b"], "gold": 1}', "gold is 1 of 1 choices"),
        ("nonsense", "line 1 is not JSON"),
        ("caf\xe9", r"is not UTF-8 text \(byte 3\)"),
        ('{"query": 5, "choices": ["b"], "gold": 0}', "line 1 is no row of piqa: a field is of another type"),
        ('{"query": "a", "choices": ["b", null], "gold": 0}', "line 1 is no row of piqa: expected text, got None"),
        ('{"query": "a", "choices": "bc", "gold": 0}', "expected a list of choices, got 'bc'"),
        ('{"query": "a", "choices": ["b"], "gold": 0.5}', "gold is 0.5 of 1 choices"),
        ('{"query": "\\ud83d", "choices": ["b"], "gold": 0}', "line 1 is no row of piqa: .*surrogates not allowed"),
    ):
        path.write_text(content, encoding="latin-1")
        with pytest.raises(InputError, match=message):
            read_rows(path, "piqa", None)
    path.write_text(json.dumps(PUBLISHED["sciq"] | {"support": None}))
    with pytest.raises(InputError, match="line 1 is no row of sciq: a field is of another type"):
        read_rows(path, "sciq", None)
    path.write_text(json.dumps(PUBLISHED["winogrande"] | {"answer": "3"}))
    with pytest.raises(InputError, match="line 1 is no row of winogrande: gold is 2 of 2 choices"):
        read_rows(path, "winogrande", None)
    with pytest.raises(InputError, match="did you mean 'piqa'"):
        run_harness(model, tokenizer, ("piqaa",), data_dir=tmp_path)


def test_a_byte_order_mark_and_empty_lines_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "piqa.jsonl"
    row = json.dumps(PUBLISHED["piqa"])
    path.write_text(f"{row}\r\n\n{row}\n \n", encoding="utf-8-sig", newline="")
    assert read_rows(path, "piqa", None) == [ROWS["piqa"](PUBLISHED["piqa"])] * 2
    path.write_text(f"{row}\nnonsense")
    assert len(read_rows(path, "piqa", 1)) == 1  # what comes after the limit is not looked at


def test_the_papers_averages_are_not_the_means_of_its_columns() -> None:
    """Recorded, so that nobody takes our average for a mistake: ours is the mean of the columns."""
    for name, (printed, own) in SCORES.items():
        accuracies = [value for value, column in zip(printed, COLUMNS, strict=True) if column.accuracy]
        assert len(accuracies) == 9
        assert sum(accuracies) / 9 - own > 1, name
