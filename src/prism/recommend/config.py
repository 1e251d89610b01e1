"""One recommender to train, as flat fields and four groups; its JSON is kept in the run's folder."""

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

import torch

from prism.config import Checked, Count, Positive, Share, at_least, from_fields
from prism.errors import InputError
from prism.layers import MIXERS
from prism.layers.spelling import read_mixers, spelled_mixers, with_options
from prism.models.backbone import BackboneConfig
from prism.recommend.data.items import ItemValues, check_features
from prism.recommend.data.splits import PROTOCOLS
from prism.recommend.defaults import OPTIONS, Chosen, Facts, choices
from prism.recommend.evaluation.metrics import CUTOFFS, PAPER_CUTOFFS
from prism.recommend.model.experts import check_experts
from prism.recommend.model.recommender import RecommenderConfig, RecommenderModel
from prism.recommend.training.objectives import ObjectiveConfig
from prism.recommend.training.task import BatchConfig
from prism.train.config import TrainConfig
from prism.train.settings import differences

Start = Literal["random", "cooccurrence"]


@dataclass(frozen=True, kw_only=True)
class FitConfig(Checked):
    """What to train and how. What is None (epochs and lr: 0) is chosen by the rules of `defaults.py` from the log."""

    mixer: str = "prism"
    """A name of `prism list`, with fields after a colon (prism:steps=0,keys=shared); a hybrid lists one per block,
    repeated down the layers (prism,prism,attention); a mixer of your own is module:Class."""
    dim: int | None = None
    """Width of the model and of the item table."""
    layers: int | None = None
    """Number of blocks."""
    heads: int = 2
    """Heads of each mixer."""
    ffn: int | None = None
    """Hidden width of the SwiGLU in each block; None: 8/3 of the width, up to a multiple of 16; 0: no SwiGLU."""
    dropout: float | None = None
    """Rate of dropout on the input and on what each block adds."""
    positions: bool | None = None
    """Learned absolute positions; None: for a mixer that knows no order without them (SASRec's)."""
    time_gaps: bool | None = None
    """Tell the model how long before each event the previous one was."""
    query_time: bool | None = None
    """Tell the model when the answer is asked for; in evaluation that is when the next event happened."""
    item_bias: bool = False
    """A learned offset of each item's score."""
    projection: bool | None = None
    """A learned map between the features and the item table; helps where people seldom take the same item twice."""
    start: Start | None = None
    """What the item table starts from: random numbers, or which items stand near each other in the training log."""
    experts: tuple[str, ...] | None = None
    """Simple experts whose scores are added to the model's, out of repeat, next, pair, follow, together, visit,
    popular, lately; with no name after it: none."""
    opening: Share | None = None
    """The `focus` by which the experts' weights are fitted before training; None: what is ahead on validation."""
    rehearsal: bool | None = None
    """Where lr and focus are open: try a bolder pair before training, and take it if it is ahead on validation."""
    minutes: Positive = 10.0
    """About how long training may take; on a slow machine there are fewer epochs."""
    features: tuple[str, ...] = ()
    """Columns of the item table to use: `genres` for categories (a|b), `name:words` for the words of a text."""
    protocol: str = "global-time"
    """How events are split: global-time, leave-one-out, paper, or all (every event trains, none is left to test)."""
    exclude_seen: bool | None = None
    """Whether items of the history are left out of recommendations; None: as the protocol does."""
    cutoffs: tuple[int, ...] | None = None
    """Ranks at which Hit and NDCG are reported; NDCG at the first decides which epoch is best. None: 10 50 200, or with
    the paper's protocol 100 200 500."""
    context: Count | None = None
    """Events of a history that count when it is scored; None: all, or a window if the state grows (attention)."""
    batching: BatchConfig = field(default_factory=BatchConfig)
    objective: ObjectiveConfig = field(default_factory=lambda: ObjectiveConfig(loss=None))
    train: TrainConfig = field(default_factory=lambda: TrainConfig(epochs=0, lr=0.0))

    def __post_init__(self) -> None:
        super().__post_init__()
        PROTOCOLS[self.protocol]
        check_features(self.features)
        if not self.ranks:
            raise InputError("cutoffs is empty: give at least one rank, e.g. 10")
        for cutoff in self.ranks:
            at_least("cutoffs", cutoff, 1)
        check_experts(self.experts or ())
        if self.experts and self.objective.loss == "bce":
            raise InputError(
                "bce gives no probabilities that experts could be mixed with: use another loss or --experts"
            )
        self._open_model()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The cut-offs that count."""
        if self.cutoffs is not None:
            return self.cutoffs
        return PAPER_CUTOFFS if self.protocol == "paper" else CUTOFFS

    @property
    def open(self) -> tuple[str, ...]:
        """Options that are left to the rules."""
        values = self._values()
        return tuple(
            name for name in OPTIONS if values[name] is None or (name in ("epochs", "lr") and not values[name])
        )

    def resolve(self, facts: Facts) -> tuple["FitConfig", list[Chosen]]:
        """With every open option set by its rule; and which these were."""
        alone = self.experts == () or self.objective.loss == "bce"
        rules = choices(facts, alone)
        # a model alone knows too little at first for a focus: all its chances are small
        chosen = [rules[name] for name in self.open if not (alone and name in ("experts", "focus"))]
        return self.with_options({one.option: one.value for one in chosen}), chosen

    def with_options(self, values: dict[str, Any]) -> "FitConfig":
        """Options of this config and of its groups, by their names."""
        groups: dict[str, Any] = {}
        for name in ("batching", "objective", "train"):
            group = getattr(self, name)
            mine = {f.name for f in fields(group)} & set(values)
            groups[name] = replace(group, **{key: values[key] for key in mine})
            values = {key: value for key, value in values.items() if key not in mine}
        return replace(self, **groups, **values)

    def model(self) -> RecommenderConfig:
        """The model's config, once nothing is left open."""
        if set(self.open) - {"experts", "loss", "focus", "start", "rehearsal"}:
            raise InputError(f"{', '.join(self.open)} are not set: resolve(facts_of(split)) sets them by rule")
        return self._open_model()

    def build(self, items: int, features: ItemValues | None = None) -> RecommenderModel:
        """The model with the weights that training starts from."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.train.seed)
            return self.model().build(items, features)

    def changed(self, mixer: str | None = None, epochs: int | None = None, seed: int | None = None) -> "FitConfig":
        """With other values where they are given."""
        given = {"mixer": mixer, "epochs": epochs, "seed": seed}
        return self.with_options({name: value for name, value in given.items() if value is not None})

    def _values(self) -> dict[str, Any]:
        return {**vars(self), **vars(self.batching), **vars(self.objective), **vars(self.train)}

    def _open_model(self) -> RecommenderConfig:
        """The model's config; what is open stands at a value that is allowed."""
        positions = self.positions
        if positions is None:
            positions = any(MIXERS[mixer.name].needs_positions for mixer in read_mixers(self.mixer))
        length = 1 + (200 if self.batching.length is None else self.batching.length)
        layers = len(read_mixers(self.mixer)) if self.layers is None else self.layers
        dropout = self.dropout or 0.0
        backbone = BackboneConfig(
            dim=64 if self.dim is None else self.dim,
            layers=layers,
            mixer=spelled_mixers(self.mixer, layers, heads=self.heads, dropout=dropout, max_length=length),
            ffn=self.ffn,
            positions=length if positions else 0,
            dropout=dropout,
        )
        return RecommenderConfig(
            backbone=backbone,
            time_gaps=bool(self.time_gaps),
            query_time=bool(self.query_time),
            item_bias=self.item_bias,
            projection=bool(self.projection),
            experts=self.experts or (),
        )

    def to_json(self) -> str:
        """Everything, defaults included."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "FitConfig":
        values = json.loads(text)
        if not isinstance(values, dict):
            raise InputError(f"the run's config must be a JSON object, got {type(values).__name__}")
        groups = {"batching": BatchConfig, "objective": ObjectiveConfig, "train": TrainConfig}
        for name, group in groups.items():
            values[name] = from_fields(group, values.get(name, {}), where=name)
        values["features"] = tuple(values.get("features", ()))
        values["cutoffs"] = None if values.get("cutoffs") is None else tuple(values["cutoffs"])
        known = values.get("experts", ())  # older runs have none
        values["experts"] = None if known is None else tuple(known)
        # older runs keep the fields of the mixer apart
        values["mixer"] = with_options(values.get("mixer", cls.mixer), *values.pop("mixer_options", ()))
        return from_fields(cls, values, where="the run's config")

    def differences(self, other: "FitConfig") -> list[str]:
        """`field is theirs there and ours here` where two configs are not of the same run."""
        mine, theirs = (asdict(one) | {"cutoffs": one.ranks} for one in (self, other))
        return differences(mine, theirs)


# Items in their order and nothing else, no experts: what benchmarks and published settings start from.
PLAIN = FitConfig(time_gaps=False, query_time=False, projection=False, start="random", experts=(), rehearsal=False)
