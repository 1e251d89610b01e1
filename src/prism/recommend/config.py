"""One recommender to train, as flat fields and four groups; its JSON is kept in the run's folder."""

import json
from dataclasses import asdict, dataclass, field
from typing import Literal

from prism.config import at_least, from_fields, one_of
from prism.errors import InputError
from prism.layers import MIXERS
from prism.layers.spelling import read_mixers, spelled_mixers, with_options
from prism.models.backbone import BackboneConfig
from prism.recommend.data.items import check_features
from prism.recommend.data.splits import PROTOCOLS
from prism.recommend.evaluation.metrics import CUTOFFS
from prism.recommend.model.recommender import RecommenderConfig
from prism.recommend.training.objectives import ObjectiveConfig
from prism.recommend.training.task import BatchConfig
from prism.train.config import TrainConfig
from prism.train.settings import differences

Start = Literal["random", "cooccurrence"]


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """What to train and how. The defaults are those that suit ML-1M."""

    mixer: str = "prism"
    """A name of `prism list`, with fields after a colon (prism:steps=0,keys=shared); a hybrid lists one per block,
    repeated down the layers (prism,prism,attention); a mixer of your own is module:Class."""
    dim: int = 64
    """Width of the model and of the item table."""
    layers: int = 2
    """Blocks."""
    heads: int = 2
    """Heads of each mixer."""
    ffn: int | None = None
    """Hidden width of the SwiGLU in each block; None: 8/3 of the width, up to a multiple of 16; 0: no SwiGLU."""
    dropout: float = 0.2
    """Rate of dropout on the input and on what each block adds."""
    positions: bool | None = None
    """Learned absolute positions; None: for a mixer that knows no order without them (SASRec's)."""
    time_gaps: bool = False
    """Tell the model how long before each event the previous one was."""
    query_time: bool = False
    """Tell the model when the answer is asked for; in evaluation that is when the next event happened."""
    item_bias: bool = False
    """A learned offset of each item's score."""
    projection: bool = False
    """A learned map before the item table; helps where what was just taken is not taken again at once."""
    start: Start = "random"
    """The item table at first: random, or `cooccurrence`: from which items stand near each other in the training log,
    which a large catalogue learns sooner from."""
    features: tuple[str, ...] = ()
    """What items share, by columns of their table: genres for categories (a|b), name:words for each word of a text."""
    protocol: str = "global-time"
    """How events are divided: global-time, leave-one-out, paper, or all (every event trains, none is asked about)."""
    exclude_seen: bool | None = None
    """Whether items of the history are left out of recommendations; None: as the protocol does."""
    cutoffs: tuple[int, ...] = CUTOFFS
    """Ranks at which Hit and NDCG are reported; NDCG at the first decides which epoch is best."""
    context: int | None = None
    """Events of a history that count when it is scored; None: all, or a window if the state grows (attention)."""
    batching: BatchConfig = field(default_factory=BatchConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        PROTOCOLS[self.protocol]
        one_of("start", self.start, Start)
        check_features(self.features)
        if self.context is not None:
            at_least("context", self.context, 1)
        if not self.cutoffs:
            raise InputError("cutoffs is empty: give at least one rank, e.g. 10")
        for cutoff in self.cutoffs:
            at_least("cutoffs", cutoff, 1)
        self.model()

    def model(self) -> RecommenderConfig:
        """The model's config."""
        positions = self.positions
        if positions is None:
            positions = any(MIXERS[mixer.name].needs_positions for mixer in read_mixers(self.mixer))
        length = self.batching.length + 1
        backbone = BackboneConfig(
            dim=self.dim,
            layers=self.layers,
            mixer=spelled_mixers(self.mixer, self.layers, heads=self.heads, dropout=self.dropout, max_length=length),
            ffn=self.ffn,
            positions=length if positions else 0,
            dropout=self.dropout,
        )
        return RecommenderConfig(
            backbone=backbone,
            time_gaps=self.time_gaps,
            query_time=self.query_time,
            item_bias=self.item_bias,
            projection=self.projection,
        )

    def to_json(self) -> str:
        """Everything, defaults included."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "FitConfig":
        """The inverse of `to_json`."""
        values = json.loads(text)
        if not isinstance(values, dict):
            raise InputError(f"the run's config must be a JSON object, got {type(values).__name__}")
        groups = {"batching": BatchConfig, "objective": ObjectiveConfig, "train": TrainConfig}
        for name, group in groups.items():
            values[name] = from_fields(group, values.get(name, {}), where=name)
        for name in ("features", "cutoffs"):
            values[name] = tuple(values.get(name, ()))
        # older runs keep the fields of the mixer apart
        values["mixer"] = with_options(values.get("mixer", cls.mixer), *values.pop("mixer_options", ()))
        return from_fields(cls, values, where="the run's config")

    def differences(self, other: "FitConfig") -> list[str]:
        """`field is theirs there and ours here` where two configs are not of the same run."""
        return differences(asdict(self), asdict(other))
