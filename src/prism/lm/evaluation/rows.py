"""Rows of the harness's tasks as JSON lines, in the layout of their authors or with ready queries, in one form."""

import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from prism.errors import InputError
from prism.lm.data.text import json_lines

Row = dict[str, Any]
# Other names of a task's file.
FILES = {"openbookqa": ("openbookqa", "openbook_qa"), "lambada_openai": ("lambada_openai", "lambada")}


def find_rows(folder: Path, task: str) -> Path | None:
    """The file of a task."""
    names = FILES.get(task, (task,))
    return next((path for name in names if (path := folder / f"{name}.jsonl").is_file()), None)


def read_rows(path: Path, task: str, limit: int | None) -> list[Row]:
    """The rows in the form that the harness is given here: see `ROWS`."""
    found: list[Row] = []
    for number, row in islice(json_lines(path), limit):
        try:
            found.append(_checked(ROWS[task](row)))
        except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
            reasons = {KeyError: f"no field {error}", AttributeError: f"a field is of another type ({error})"}
            reason = reasons.get(type(error), str(error))
            raise InputError(f"{path} line {number} is no row of {task}: {reason}") from None
    if not found:
        raise InputError(f"{path} is empty: it should hold rows of {task}")
    return found


def _checked(row: Row) -> Row:
    """Refuses here what the harness would stumble over later: what is no text, and a choice that is not there."""
    choices = row.get("choices", row.get("starts", []))
    if not isinstance(choices, list):
        raise TypeError(f"expected a list of choices, got {choices!r}")
    for text in [*choices, *(row[name] for name in ("query", "start", "end", "page") if name in row)]:
        if not isinstance(text, str):
            raise TypeError(f"expected text, got {text!r}")
        text.encode()  # half of a surrogate pair is no text either
    if "gold" in row and (not isinstance(row["gold"], int) or not 0 <= row["gold"] < len(choices)):
        raise ValueError(f"gold is {row['gold']!r} of {len(choices)} choices")
    return row


def _choice(query: Any, choices: Any, gold: Any) -> Row:
    return {"query": query, "choices": choices, "gold": gold}


def _answer(query: Any) -> Any:
    """The harness's prompts end with this; ready queries leave it out."""
    query = query.rstrip()
    return query if query.endswith("Answer:") else f"{query}\nAnswer:"


def _arc(row: Row) -> Row:
    if "query" in row:
        return _choice(_answer(row["query"]), row["choices"], row["gold"])
    options = row["choices"]
    return _choice(f"Question: {row['question']}\nAnswer:", options["text"], options["label"].index(row["answerKey"]))


def _piqa(row: Row) -> Row:
    if "query" in row:
        return _choice(_answer(row["query"]), row["choices"], row["gold"])
    return _choice(f"Question: {row['goal']}\nAnswer:", [row["sol1"], row["sol2"]], int(row["label"]))


def _boolq(row: Row) -> Row:
    if "query" in row:  # the harness shows the passage without this heading
        return _choice(_answer(row["query"].removeprefix("Passage: ")), row["choices"], row["gold"])
    return _choice(f"{row['passage']}\nQuestion: {row['question']}?\nAnswer:", ["no", "yes"], int(row["label"]))


def _openbookqa(row: Row) -> Row:
    if "query" in row:
        return _choice(row["query"], row["choices"], row["gold"])
    options = row["choices"]
    return _choice(row["question_stem"], options["text"], options["label"].index(row["answerKey"].strip()))


def _sciq(row: Row) -> Row:
    if "query" in row:
        return _choice(_answer(row["query"]), row["choices"], row["gold"])
    choices = [row["distractor1"], row["distractor2"], row["distractor3"], row["correct_answer"]]
    return _choice(f"{row['support'].lstrip()}\nQuestion: {row['question']}\nAnswer:", choices, 3)


def _hellaswag(row: Row) -> Row:
    if "query" in row:
        return _choice(row["query"], row["choices"], row["gold"])
    query = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
    return _choice(_plain(query), [_plain(ending) for ending in row["endings"]], int(row["label"]))


def _plain(text: str) -> str:
    """HellaSwag without the marks that WikiHow left in it, as the harness cleans it."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _winogrande(row: Row) -> Row:
    """The end of the sentence is scored after each of two beginnings."""
    if "context_options" in row:
        return {"starts": row["context_options"], "end": row["continuation"], "gold": row["gold"]}
    start, _, end = row["sentence"].partition("_")
    return {
        "starts": [start + row["option1"], start + row["option2"]],
        "end": end.strip(),
        "gold": int(row["answer"]) - 1,
    }


def _lambada(row: Row) -> Row:
    if "context" in row:
        return {"start": row["context"], "end": f" {row['continuation'].strip()}"}
    start, _, end = row["text"].rpartition(" ")
    return {"start": start, "end": f" {end}"}


def _wikitext(row: Row) -> Row:
    return {"page": row["page"] if "page" in row else row["text"]}


ROWS: dict[str, Callable[[Row], Row]] = {
    "wikitext": _wikitext,
    "lambada_openai": _lambada,
    "piqa": _piqa,
    "hellaswag": _hellaswag,
    "winogrande": _winogrande,
    "arc_easy": _arc,
    "arc_challenge": _arc,
    "boolq": _boolq,
    "openbookqa": _openbookqa,
    "sciq": _sciq,
}
