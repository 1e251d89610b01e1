"""`prism lm evaluate` and `prism lm generate`: a model folder in; numbers, or text as it is made, out."""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tyro.conf import Positional

from prism.config import SEED, at_least, positive
from prism.display.tables import show, show_all
from prism.errors import InputError
from prism.files import refuse_folder, write_whole
from prism.lm.data.shards import encode
from prism.lm.data.text import read_documents
from prism.lm.data.tokenizer import Tokenizer
from prism.lm.evaluation.harness import COLUMNS, TASKS, Scores, average, check_tasks, run_harness
from prism.lm.evaluation.perplexity import Perplexity, perplexity
from prism.lm.files import load_language_model
from prism.machine import use_threads
from prism.printed import SCORES

# Logits are divided by the temperature: by less than this they may leave float32.
COLDEST = 1e-6


def evaluate(
    model: Positional[Path],
    text: tuple[Path, ...] = (),
    tasks: tuple[str, ...] = (),
    data_dir: Path | None = None,
    tokenizer: Path | None = None,
    context: int = 1024,
    stride: int = 512,
    batch: int = 8,
    limit: int | None = None,
    include: Path | None = None,
    device: str | None = None,
    threads: int | None = None,
    out: Path | None = None,
) -> None:
    """Measures a model: perplexity and bits per byte of a text, accuracy on tasks of lm-evaluation-harness.

    Args:
        model: Folder of the model.
        text: Files or folders of text to predict.
        tasks: Tasks or groups of the harness; `all`: those of the paper.
        data_dir: Folder of TASK.jsonl to take the rows of the paper's tasks from; otherwise the harness downloads them.
        tokenizer: Folder or file of the tokenizer, if it is not in the model's folder.
        context: Tokens that the model sees at most.
        stride: Tokens scored in each window of the text: a token has at least context − stride before it.
        batch: Windows or requests at once.
        limit: Rows of each task at most, for a quick look.
        include: Folder with task files (YAML) of your own for the harness.
        device: Where the model runs: cuda, mps or cpu; default: the one that is there.
        threads: Threads of the CPU; default: torch's.
        out: Also write the numbers here, as JSON.
    """
    names = TASKS if tasks == ("all",) or (data_dir is not None and not tasks) else tasks
    if not text and not names:
        raise InputError("nothing to evaluate: give --text FILES, --tasks NAMES or --data-dir FOLDER")
    at_least("batch", batch, 1)
    if limit is not None:
        at_least("limit", limit, 1)
    if out is not None:
        refuse_folder(out)
    if names:
        check_tasks(names, data_dir, include)
    use_threads(threads)
    lm, loaded = load_language_model(model, tokenizer, device)
    record: dict[str, Any] = {"model": str(model), "context": context}
    if text:
        found = perplexity(lm, loaded, read_documents(text), context=context, stride=stride, batch=batch)
        _show_perplexity(found, context, stride)
        numbers = {"perplexity": found.per_token, "bits_per_byte": found.bits_per_byte, "per_word": found.per_word}
        record["text"] = asdict(found) | numbers | {"stride": stride}
    if names:
        scores = run_harness(
            lm, loaded, names, data_dir=data_dir, include=include, context=context, batch=batch, limit=limit
        )
        _show_scores(scores, limit)
        record |= {"tasks": scores, "average": average(scores), "limit": limit}
    if out is not None:
        write_whole(out, json.dumps(record, indent=1).encode())


def _show_perplexity(found: Perplexity, context: int, stride: int) -> None:
    words = f"{found.per_word:.2f}" if found.per_word < 1e6 else f"{found.per_word:.2g}"  # an untrained model's is huge
    show_all(
        f"perplexity {found.per_token:.3f} per token, {found.bits_per_byte:.4f} bits per byte "
        f"({words} per word); {found.tokens:,} tokens, {found.bytes:,} bytes, "
        f"{found.documents:,} documents; context {context}, stride {stride}"
    )


def _show_scores(scores: Scores, limit: int | None) -> None:
    """The paper's columns with the paper's rows below ours; what else was asked for, one row per metric."""
    others = [(task, name, value) for task in scores if task not in TASKS for name, value in scores[task].items()]
    if others:
        show("tasks", ["task", "metric", "value"], [(task, name, f"{value:.4f}") for task, name, value in others])
    if not set(scores) & set(TASKS):
        return
    cells = []
    for column in COLUMNS:
        value = scores.get(column.task, {}).get(column.metric)
        cells.append("–" if value is None else f"{100 * value:.1f}" if column.accuracy else f"{value:.2f}")
    mean = average(scores)
    rows = [["this model", *cells, "–" if mean is None else f"{mean:.1f}"]]
    rows += [[f"paper: {name}", *(f"{x:g}" for x in printed), f"{own:g}"] for name, (printed, own) in SCORES.items()]
    here = sum(column.accuracy and column.task in scores for column in COLUMNS)
    part = "" if limit is None else f" of the first {limit} rows"
    note = f"Avg: mean of the {here} accuracies there are{part}; paper: 130M parameters, 2B tokens, as printed"
    show("", ["", *(column.heading for column in COLUMNS), "Avg"], rows, caption=note)


def generate(
    model: Positional[Path],
    prompt: Positional[str] = "",
    tokens: int = 200,
    temperature: float = 0.8,
    top_p: float = 0.95,
    beams: int = 1,
    seed: int = 0,
    tokenizer: Path | None = None,
    device: str | None = None,
    threads: int | None = None,
) -> None:
    """Continues a prompt, printing the text as it comes; then the speed and the size of the state.

    Args:
        model: Folder of the model.
        prompt: What to continue; `-` reads it from the standard input; nothing starts a new document.
        tokens: Tokens to add at most.
        temperature: 0 always takes the likeliest token.
        top_p: Draw from the likeliest tokens that together have this probability.
        beams: More than 1 searches for the likeliest text instead of drawing, and prints it at the end.
        seed: Seed of the sampling.
        tokenizer: Folder or file of the tokenizer, if it is not in the model's folder.
        device: Where the model runs: cuda, mps or cpu; default: the one that is there.
        threads: Threads of the CPU; default: torch's.
    """
    positive(tokens=tokens, beams=beams)
    at_least("temperature", temperature, 0)
    if 0 < temperature < COLDEST:
        raise InputError(f"temperature must be at least {COLDEST}, or 0 for the likeliest token, got {temperature!r}")
    if not 0 < top_p <= 1:
        raise InputError(f"top_p must be in (0, 1], got {top_p!r}")
    SEED.check("seed", seed)
    text = _prompt(prompt)
    use_threads(threads)
    lm, loaded = load_language_model(model, tokenizer, device)
    torch.manual_seed(seed)
    drawing = temperature > 0 and beams == 1
    options: dict[str, Any] = {"do_sample": drawing, "num_beams": beams, "max_new_tokens": tokens}
    if drawing:
        options |= {"temperature": temperature, "top_p": top_p, "top_k": 0}
    _generate(lm, loaded, text, options)


def _prompt(given: str) -> str:
    """The prompt, or the standard input; what is not UTF-8 text is refused."""
    piped = given == "-"
    content = sys.stdin.buffer.read() if piped else given.encode("utf-8", "surrogatepass")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        where = "standard input" if piped else "prompt"
        raise InputError(f"the {where} is not UTF-8 text (byte {error.start}): convert it") from None


def _generate(lm: nn.Module, tokenizer: Tokenizer, text: str, options: dict[str, Any]) -> None:
    from transformers import TextStreamer

    (prompt,) = encode(tokenizer, [text])
    ids = torch.tensor([prompt or [tokenizer.eos_token_id]], device=next(lm.parameters()).device)
    streamer = TextStreamer(tokenizer, skip_special_tokens=True) if options["num_beams"] == 1 else None
    start = time.perf_counter()
    found = lm.generate(  # type: ignore[operator]
        ids,
        attention_mask=torch.ones_like(ids),
        streamer=streamer,
        return_dict_in_generate=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **options,
    )
    seconds = time.perf_counter() - start
    if streamer is None:
        print(tokenizer.decode(found.sequences[0], skip_special_tokens=True))
    made = found.sequences.shape[1] - ids.shape[1]
    print(f"{made} tokens, {made / seconds:.1f} tokens/s{_state(lm, found.past_key_values)}", file=sys.stderr)


def _state(lm: nn.Module, cache: Any) -> str:
    """How much is remembered, and whether that grows; nothing about a model of another package."""
    from prism.lm.hf.model import PrismSequenceForCausalLM

    if not isinstance(lm, PrismSequenceForCausalLM):
        return ""
    size, backbone = cache.nbytes() / cache.batch_size / 1024, lm.model.backbone
    grows = backbone.state_size(2) > backbone.state_size(1)
    return f", state {size:,.1f} KiB per sequence, {'growing with every token' if grows else 'constant'}"
