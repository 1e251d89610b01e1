"""`prism lm train`: text to tokenizer to packed tokens to a trained model folder; run again, it goes on."""

import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path

import torch
from accelerate import PartialState
from tyro.conf import OmitArgPrefixes, Positional

from prism.config import Count, Natural
from prism.errors import InputError
from prism.files import whole_folder
from prism.layers import MIXERS
from prism.layers.spelling import read_mixers, spelled_mixers
from prism.lm.data.shards import Shards, fingerprint, write_shards
from prism.lm.data.text import python_documents, read_documents, text_files
from prism.lm.data.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from prism.lm.files import quiet
from prism.lm.hf.config import PrismSequenceConfig
from prism.lm.hf.model import PrismSequenceForCausalLM
from prism.lm.learner import Learner
from prism.lm.recipes import USED, cost
from prism.lm.sizes import Sizes
from prism.lm.task import LanguageTask
from prism.machine import matmul_rate, pick_device, use_threads
from prism.models.backbone import BackboneConfig
from prism.train.config import TrainConfig
from prism.train.folder import own_folder
from prism.train.keeper import load_best
from prism.train.loop import train as run
from prism.train.settings import check_settings, keep_settings

# One document of so many is for validation.
EVERY = 20
# Characters that a tokenizer is trained on at most: more changes its tokens little and takes long.
TOKENIZER_TEXT = 50_000_000
# Characters in which a document that is cut should have a space or line break: a word is shorter, Chinese has none.
WORD = 200


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(Sizes):
    """A language model and its training."""

    mixer: str = "prism"
    """A name of `prism list`, with fields after a colon (prism:steps=3,keys=shared); a hybrid lists one per block,
    repeated down the layers (prism,prism,attention); a mixer of your own is module:Class."""
    ffn: Natural | None = None
    """Hidden width of the SwiGLU; default: 8/3 of the width."""
    context_parallel: Count = 1
    """Processes that share every sequence, each a segment of it: for sequences too long for one (with torchrun)."""
    fsdp: bool = False
    """Divide weights, gradients and optimiser between the processes, not copy them to each (with torchrun)."""
    recompute: bool = False
    """Keep only each block's input for the backward pass and compute the rest again: less memory, more time."""
    separate: bool = False
    """Start every document from an empty state, also inside a sequence; else those of a sequence share it."""
    train: OmitArgPrefixes[TrainConfig] = field(
        default_factory=lambda: TrainConfig(epochs=5, lr=4e-3, weight_decay=0.1, beta2=0.95)
    )
    """How to train."""

    def __post_init__(self) -> None:
        super().__post_init__()
        mixers = spelled_mixers(self.mixer, self.layers, heads=self.heads)
        with torch.device("meta"):  # refuses what does not fit
            BackboneConfig(dim=self.dim, layers=self.layers, mixer=mixers, ffn=self.ffn).build()
        for mixer in read_mixers(self.mixer):
            if self.context_parallel > 1 and not MIXERS[mixer.name].splits:
                raise InputError(f"{mixer.name} cannot share a sequence between processes: use a delta-rule mixer")

    def model(self, tokenizer: Tokenizer) -> PrismSequenceConfig:
        """The model for a tokenizer's vocabulary."""
        return PrismSequenceConfig(
            vocab_size=len(tokenizer),
            hidden_size=self.dim,
            num_hidden_layers=self.layers,
            intermediate_size=self.ffn,
            mixer=self.mixer,
            mixer_fields={"heads": self.heads},
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )


def train(
    text: Positional[tuple[Path, ...]] = (),
    out: Path = Path("language-model"),
    valid: tuple[Path, ...] = (),
    tokenizer: Path | None = None,
    column: str = "text",
    config: OmitArgPrefixes[LanguageConfig] = LanguageConfig(),
    device: str | None = None,
    threads: int | None = None,
) -> None:
    """Trains a language model on text; without any, on Python's own documentation and library.

    Args:
        text: Text files, folders of them, JSON lines or Parquet.
        out: Folder for the run: tokenizer, tokens, checkpoints, log.jsonl, and in `model` the model itself.
        valid: Text for validation; default: one of 20 documents, or the end of each where there are fewer.
        tokenizer: A Hugging Face folder, tokenizer.json or SentencePiece model; default: a BPE is trained.
        column: The field of JSON lines and Parquet that holds the text.
        config: What to train and how.
        device: cuda, mps or cpu; default: the one that is there. `torchrun -m prism.cli lm train …` takes several.
        threads: Threads of the CPU for each process; default: torch's.
    """
    quiet()
    use_threads(threads)
    _refuse_inside(out, text + valid)
    names = [column, *file_names(text + valid)] if text else [platform.python_version(), *file_names(valid)]
    for given_text in filter(None, (text, valid)):
        next(read_documents(given_text, column=column))  # refused before anything is written
    given = None if tokenizer is None else load_tokenizer(tokenizer)
    where = pick_device(device)
    processes = PartialState(cpu=where.type == "cpu")
    with own_folder(out):
        # of several processes the first writes, and the others then find everything there
        with processes.main_process_first():
            settings = asdict(config) | {"text": [str(p) for p in text], "valid": [str(p) for p in valid]}
            check_settings(out, settings)
            parts = _parts(text, valid, column)
            kept = keep_tokenizer(out / "tokenizer", given, parts["train"], config.vocabulary)
            shards = {name: pack(out / "tokens" / name, kept, parts[name], name, *names) for name in parts}
            loop = config.train
            task = LanguageTask.of(
                config, **shards, rounds=loop.epochs, seed=loop.seed, together=config.context_parallel
            )
            keep_settings(out, settings)  # not before it is known that this run can be
        _train(config, kept, task, out, processes)


def _refuse_inside(out: Path, text: tuple[Path, ...]) -> None:
    """A run in a folder of text would read its own tokenizer as text, from the second start on."""
    for path in text:
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            raise InputError(f"{out} lies in {path}, whose files are read as text: choose an --out outside of it")


def _train(config: LanguageConfig, tokenizer: Tokenizer, task: LanguageTask, out: Path, on: PartialState) -> None:
    own = config.model(tokenizer)
    if on.is_main_process:
        budget = cost(own, tokens=config.tokens, context=config.length, rate=USED * matmul_rate(str(on.device)))
        counts = f"{task.train.tokens:,} tokens to train on, {task.valid.tokens:,} to validate"
        print(f"{counts}; {budget}", flush=True)
    torch.manual_seed(config.train.seed)
    lm = PrismSequenceForCausalLM(own)
    together = config.context_parallel
    shared = replace(lm.model.backbone.config, context_parallel=together, checkpoint=config.recompute)
    lm.model.backbone.config = shared
    end = tokenizer.eos_token_id if config.separate else None
    learner = Learner(lm, end)
    if config.fsdp and on.num_processes == 1:
        print("fsdp: one process has all the weights; torchrun starts several", flush=True)
    more = {"together": together, "fsdp": config.fsdp}
    best = run(learner, task, config.train, out=out, device=on.device, **more).best_metrics  # type: ignore[arg-type]
    if on.is_main_process:
        if config.fsdp:  # one process cannot write what all have parts of: the best checkpoint has it whole
            lm = PrismSequenceForCausalLM(own)
            load_best(Learner(lm, end), out)
        save_model(out / "model", lm, tokenizer)
        print(f"validation perplexity {best['perplexity']:.2f}, {best['bits_per_byte']:.4f} bits per byte")
        print(f"next: prism lm generate {out / 'model'} · prism lm evaluate {out / 'model'} --text FILES")


def save_model(folder: Path, lm: PrismSequenceForCausalLM, tokenizer: Tokenizer) -> None:
    """Writes model and tokenizer as one folder that appears whole."""
    with whole_folder(folder) as part:
        lm.save_pretrained(part)
        tokenizer.save_pretrained(part)


def split_documents(documents: Callable[[], Iterable[str]]) -> dict[str, Callable[[], Iterator[str]]]:
    """Every 20th document is for validation; of fewer than 20, the last twentieth of each."""
    few = len(list(islice(documents(), EVERY))) < EVERY

    def part(valid: bool) -> Iterator[str]:
        for n, text in enumerate(documents()):
            if few:
                cut = _last_twentieth(text)
                yield text[cut:] if valid else text[:cut]
            elif (n % EVERY == EVERY - 1) == valid:
                yield text

    return {"train": lambda: part(False), "valid": lambda: part(True)}


def _last_twentieth(text: str) -> int:
    """Where it begins: after a space or line break where one is near, else between any two characters."""
    share = len(text) // EVERY
    mark = len(text) - share
    near = range(mark, mark - min(share, WORD), -1)
    return next((cut for cut in near if text[cut - 1].isspace()), mark)


def _parts(text: tuple[Path, ...], valid: tuple[Path, ...], column: str) -> dict[str, Callable[[], Iterator[str]]]:
    documents = (lambda: read_documents(text, column=column)) if text else python_documents
    if not valid:
        return split_documents(documents)
    return {"train": documents, "valid": lambda: read_documents(valid, column=column)}


def file_names(paths: tuple[Path, ...]) -> list[str]:
    """What tells one text from another without reading it: names and sizes of its files."""
    return [f"{file.name} {file.stat().st_size}" for file in text_files(paths)] if paths else []


def keep_tokenizer(
    kept: Path, given: Tokenizer | None, documents: Callable[[], Iterator[str]], vocabulary: int
) -> Tokenizer:
    """The run's own if it has one, and then no other may be given; else the given one, or one trained on the text."""
    if kept.is_dir():
        own = load_tokenizer(kept)
        if given is not None and fingerprint(given) != fingerprint(own):
            raise InputError(f"{kept.parent} has another tokenizer: leave --tokenizer out, or choose another --out")
        return own
    found = given
    if found is None:
        print(f"training a tokenizer of {vocabulary:,} tokens", flush=True)
        found = train_tokenizer(first_characters(documents(), TOKENIZER_TEXT), vocabulary)
    with whole_folder(kept) as part:
        found.save_pretrained(part)
    return found


def first_characters(documents: Iterator[str], characters: int) -> Iterator[str]:
    """Documents until there are so many characters, the last one cut."""
    for text in documents:
        yield text[:characters]
        characters -= len(text)
        if characters <= 0:
            return


def pack(folder: Path, tokenizer: Tokenizer, documents: Callable[[], Iterator[str]], *names: str) -> Shards:
    """A text's tokens in `folder`; made once, and refused there if they are of a text with other `names`."""
    return write_shards(documents(), tokenizer, folder, source=fingerprint(tokenizer, *names))
