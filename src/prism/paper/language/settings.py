"""What the language study is given: its texts, and what all of its runs share."""

from dataclasses import dataclass, field
from os import cpu_count
from pathlib import Path

from prism.config import Checked, Count, at_least
from prism.errors import InputError
from prism.lm.hf.config import PrismSequenceConfig
from prism.lm.recipes import ABLATIONS, Scale, ablation, language_model, spelled_model
from prism.lm.sizes import Sizes
from prism.lm.train import file_names
from prism.printed import PARAMETERS
from prism.recommend.data.places import locate
from prism.train.config import TrainConfig

HOME = "https://github.com/mdn/content (its prose, form feeds between documents; WikiText-2 beside it)"
OWN = "text of your own needs --text, --valid and --test"
DEFAULTS = {"text": "mdn-train.txt", "valid": "mdn-valid.txt", "test": "mdn-test.txt", "other": "wikitext2-test.txt"}


@dataclass(frozen=True, kw_only=True)
class Texts:
    """What is read: files, or folders of them."""

    text: tuple[Path, ...] = ()
    """To train on, the tokenizer too; default: MDN's under $PRISM_DATA or ~/.cache/prism, and so for the others."""
    valid: tuple[Path, ...] = ()
    """To pick the best weights by."""
    test: tuple[Path, ...] = ()
    """To measure at the end."""
    other: tuple[Path, ...] = ()
    """Of another kind, to measure at the end; default with MDN: WikiText-2's test part."""

    def found(self) -> "Texts":
        """With MDN and WikiText-2 in place of nothing; each file is there."""
        if not (self.text or self.valid or self.test or self.other):
            try:
                folder = locate("text", HOME).path
            except InputError as error:
                raise InputError(f"{error}; {OWN}") from None
            found = Texts(**{name: (folder / file,) for name, file in DEFAULTS.items()})
            for path in (*found.text, *found.valid, *found.test, *found.other):
                if not path.is_file():
                    raise InputError(f"{path} does not exist: get it from {HOME}; {OWN}")
            return found
        for name in ("text", "valid", "test"):
            if not getattr(self, name):
                raise InputError(f"--{name} is missing: {OWN}")
        self.names()  # refuses a file that is not there
        return self

    def names(self) -> dict[str, list[str]]:
        """What tells these texts from others."""
        return {name: file_names(getattr(self, name)) for name in DEFAULTS}


@dataclass(frozen=True, kw_only=True)
class StudySettings(Sizes):
    """What all runs share; seven to twelve minutes per run on one core."""

    dim: Count = 192
    heads: Count = 3
    length: Count = 512
    batch: Count = 2
    tokens: Count = 1_200_000
    rounds: Count = 8
    """Evaluations, evenly spread; the weights of the best are measured."""
    valid_windows: Count = 64
    """Windows of the validation text at most."""
    # of 2, 4, 8 and 16e-3 tried with PRISM (191, 142, 121, 132) and Gated DeltaNet (132, 106, 97, 103): validation
    # perplexity after 400,000 tokens, one seed, convolutions with random taps; with those near the identity 8e-3 is
    # ahead of 4e-3 too (Gated DeltaNet 92, 94); batches of 2 were ahead of 4 (106, 125 at 4e-3)
    lr: float = 8e-3
    """The learning rate after warm-up."""
    characters: Count = 400_000
    """Of each measured text at most, from its beginning."""
    stride: int = 384
    """Tokens measured in each window of `length`: a token has at least length − stride before it."""
    limit: Count = 200
    """Rows of each task at most, with --data-dir."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("tokens", self.tokens, self.rounds * self.batch * self.length)  # a batch in each round
        if not 1 <= self.stride <= self.length:
            raise InputError(f"stride must be from 1 to length = {self.length}, got {self.stride}")

    def training(self, seed: int) -> TrainConfig:
        """Never stopped early: all runs have equal tokens."""
        return TrainConfig(
            epochs=self.rounds, lr=self.lr, weight_decay=0.1, beta2=0.95, patience=self.rounds, seed=seed
        )


@dataclass(frozen=True, kw_only=True)
class Study(Checked):
    """One table's runs."""

    seeds: Count = 3
    """Runs of each row, with seeds 0, 1, …"""
    texts: Texts = field(default_factory=Texts)
    """What is read."""
    data_dir: Path | None = None
    """Folder of TASK.jsonl: LAMBADA's perplexity and the tasks' mean accuracy too (needs lm-eval)."""
    settings: StudySettings = field(default_factory=StudySettings)
    """Model, training and measures, the same for all."""
    processes: Count = cpu_count() or 1
    """Runs at a time, each on one thread."""
    out: Path = Path("runs/language")
    """Folder of the runs, shared by `prism paper language` and `prism paper language-ablation`."""

    def about(self) -> str:
        """The sizes, for below a table."""
        s = self.settings
        tasks = "" if self.data_dir is None else f", the first {s.limit} rows of each task"
        return (
            f"Width {s.dim}, depth {s.layers}, {s.tokens:,} tokens in windows of {s.length}; measured on the first "
            f"{s.characters:,} characters of each text (context {s.length}, stride {s.stride}){tasks}"
        )


def study_model(name: str, settings: StudySettings, vocabulary: int) -> PrismSequenceConfig:
    """A model of either table, or a mixer as it is spelled, with the parameters of Gated DeltaNet."""
    scale = Scale(
        dim=settings.dim,
        layers=settings.layers,
        heads=settings.heads,
        vocabulary=vocabulary,
        ffn=max(1, round(settings.dim / 6)) * 16,  # 8/3 of the width
        solver_rank=max(1, settings.dim // 6),  # as the paper's 128 at a width of 768
    )
    if name in ABLATIONS:
        return ablation(name, scale, equal=True)
    return (language_model if name in PARAMETERS else spelled_model)(name, scale, equal=True)
