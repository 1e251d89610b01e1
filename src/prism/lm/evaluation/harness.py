"""The evaluation harness on the paper's nine tasks and WikiText: offline from JSON lines, or as the harness does."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from prism.config import one_of
from prism.errors import InputError, needs
from prism.lm.data.tokenizer import Tokenizer, check_vocabulary
from prism.lm.evaluation.rows import FILES, ROWS, find_rows, read_rows

Scores = dict[str, dict[str, float]]
"""Task → metric → value."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of the paper's table."""

    heading: str
    task: str
    metric: str

    @property
    def accuracy(self) -> bool:
        """Whether it counts in the average."""
        return self.metric.startswith("acc")


# The paper does not say which accuracy it prints. Its OpenBookQA (27 where `acc` of such models is near 15) is the one
# normalised by length; the others are read as plain `acc`.
COLUMNS = (
    Column(heading="Wiki↓", task="wikitext", metric="word_perplexity"),
    Column(heading="LMB PPL↓", task="lambada_openai", metric="perplexity"),
    Column(heading="LMB ACC", task="lambada_openai", metric="acc"),
    Column(heading="PIQA", task="piqa", metric="acc"),
    Column(heading="Hella", task="hellaswag", metric="acc"),
    Column(heading="Wino", task="winogrande", metric="acc"),
    Column(heading="ARC-e", task="arc_easy", metric="acc"),
    Column(heading="ARC-c", task="arc_challenge", metric="acc"),
    Column(heading="BoolQ", task="boolq", metric="acc"),
    Column(heading="OBQA", task="openbookqa", metric="acc_norm"),
    Column(heading="SciQ", task="sciq", metric="acc"),
)
TASKS = tuple(dict.fromkeys(column.task for column in COLUMNS))


def run_harness(
    model: nn.Module,
    tokenizer: Tokenizer,
    tasks: Sequence[str] = TASKS,
    *,
    data_dir: Path | None = None,
    include: Path | None = None,
    context: int = 1024,
    batch: int = 8,
    limit: int | None = None,
) -> Scores:
    """Scores of a model on tasks of the harness, without examples in the prompt.

    Args:
        model: A causal language model of the library.
        tokenizer: The model's.
        tasks: Names of the harness; with `data_dir`, out of `TASKS`.
        data_dir: Folder of TASK.jsonl; tasks without a file are left out. None: the harness downloads its data.
        include: Folder with task files of your own.
        context: Tokens that the model sees at most.
        batch: Requests at once.
        limit: Rows of each task at most.
    """
    manager = check_tasks(tasks, data_dir, include)
    check_vocabulary(tokenizer, model.config.vocab_size)  # type: ignore[arg-type, union-attr]
    from lm_eval import evaluator
    from lm_eval.models.huggingface import HFLM

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    chosen = None if data_dir is None else offline_tasks(tasks, data_dir, limit)
    device = str(next(model.parameters()).device)
    lm = HFLM(pretrained=model, tokenizer=tokenizer, max_length=context, batch_size=batch, device=device)
    if chosen is not None:
        found = evaluator.evaluate(lm, chosen, bootstrap_iters=0, log_samples=False)
    else:
        found = evaluator.simple_evaluate(
            lm, tasks=list(tasks), task_manager=manager, limit=limit, bootstrap_iters=0, log_samples=False
        )
    return {name: _metrics(values) for name, values in found["results"].items()}


def check_tasks(tasks: Sequence[str], data_dir: Path | None, include: Path | None = None) -> Any:
    """Refuses names that there are no tasks for; gives the harness's task manager where it is to find them."""
    if data_dir is not None:
        for name in tasks:
            one_of("tasks with a data_dir", name, TASKS)
    check_harness()
    if data_dir is not None:
        return None
    from lm_eval.tasks import TaskManager

    if include is not None and not include.is_dir():
        raise InputError(f"{include} is not a folder: name one with task files (YAML) for the harness")
    manager = TaskManager(include_path=None if include is None else str(include))
    for name in tasks:
        if not manager.match_tasks([name]):
            raise InputError(f"the harness has no task {name!r}: `lm-eval ls tasks` lists them")
    return manager


def check_harness() -> None:
    """Refuses at the door what would fail after a training."""
    needs("lm_eval", "datasets", extra="lm-eval")


def task_files(tasks: Sequence[str], folder: Path) -> dict[str, Path]:
    """The files of a folder that hold rows of the tasks."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: name one with TASK.jsonl files")
    files = {name: path for name in tasks if (path := find_rows(folder, name)) is not None}
    if not files:
        wanted = ", ".join(f"{FILES.get(name, (name,))[-1]}.jsonl" for name in tasks)
        raise InputError(f"{folder} has none of {wanted}")
    return files


def offline_tasks(tasks: Sequence[str], folder: Path, limit: int | None = None) -> dict[str, Any]:
    """The harness's tasks on the rows of a folder, for those that it has."""
    return {name: _task(name, read_rows(path, name, limit)) for name, path in task_files(tasks, folder).items()}


def average(scores: Scores) -> float | None:
    """The mean of the accuracies there are, in percent."""
    found = [100 * scores[c.task][c.metric] for c in COLUMNS if c.accuracy and c.task in scores]
    return sum(found) / len(found) if found else None


def _task(name: str, rows: list[dict[str, Any]]) -> Any:
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask

    config = {
        "task": name,
        "custom_dataset": lambda **_: {"test": Dataset.from_list(rows)},
        "test_split": "test",
        "num_fewshot": 0,
        "metadata": {"version": 1.0},
    }
    return ConfigurableTask(config=config | KINDS.get(name, _choice)())


def _metric(name: str, aggregation: str, higher: bool) -> dict[str, Any]:
    return {"metric": name, "aggregation": aggregation, "higher_is_better": higher}


def _choice() -> dict[str, Any]:
    return {
        "output_type": "multiple_choice",
        "doc_to_text": "{{query}}",
        "doc_to_target": "gold",
        "doc_to_choice": "choices",
        "metric_list": [_metric("acc", "mean", True), _metric("acc_norm", "mean", True)],
    }


def _winogrande() -> dict[str, Any]:
    return {
        "output_type": "multiple_choice",
        "doc_to_text": lambda row: row["gold"],  # the harness's way to say: several beginnings, one end
        "doc_to_target": lambda row: row["end"],
        "doc_to_choice": lambda row: row["starts"],
        "metric_list": [_metric("acc", "mean", True)],
    }


def _lambada() -> dict[str, Any]:
    return {
        "output_type": "loglikelihood",
        "doc_to_text": "{{start}}",
        "doc_to_target": "{{end}}",
        "metric_list": [_metric("perplexity", "perplexity", False), _metric("acc", "mean", True)],
    }


def _wikitext() -> dict[str, Any]:
    from lm_eval.tasks.wikitext.preprocess_wikitext import process_results, wikitext_detokenizer

    return {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": wikitext_detokenizer,
        "process_results": process_results,
        "metric_list": [{"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")],
    }


KINDS = {"winogrande": _winogrande, "lambada_openai": _lambada, "wikitext": _wikitext}
assert set(KINDS) < set(ROWS)


def _metrics(values: dict[str, Any]) -> dict[str, float]:
    """`acc,none` → `acc`; no standard errors, no alias."""
    return {
        name.partition(",")[0]: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and "stderr" not in name and name not in ("sample_len",)
    }
