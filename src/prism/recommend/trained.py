"""A model and the log it is trained on: how it is built, opened by its experts, trained and evaluated."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import torch

from prism.errors import InputError
from prism.machine import pick_device
from prism.recommend.answer.baseline import Baseline
from prism.recommend.config import FitConfig
from prism.recommend.data.items import item_values
from prism.recommend.data.known import load as load_data
from prism.recommend.data.log import Log
from prism.recommend.data.prepared.manifest import Prepared
from prism.recommend.data.splits import Split
from prism.recommend.data.splits import split as divide
from prism.recommend.defaults import facts_of
from prism.recommend.evaluation.baselines import BASELINES, usable
from prism.recommend.evaluation.ranking import Evaluation, Scorer, evaluate
from prism.recommend.evaluation.scoring import ModelScorer
from prism.recommend.model.experts import Experts
from prism.recommend.model.experts import fit_experts as experts_of
from prism.recommend.model.recommender import RecommenderModel
from prism.recommend.model.start import start_from_cooccurrences
from prism.recommend.runs import storage
from prism.recommend.training.budget import affordable_epochs, epoch_seconds
from prism.recommend.training.opening import fit_opening
from prism.recommend.training.rehearsal import rehearsed
from prism.recommend.training.task import RecommendationTask
from prism.train.folder import is_first_process, own_folder
from prism.train.loop import train
from prism.train.processes import of_first

Made = TypeVar("Made", bound="Trained")
Task = TypeVar("Task", bound=RecommendationTask)


class Trained:
    """From a log to weights; `Recommender` adds the answers. Of an exported model the log has items and no events."""

    id: str | None = None
    """Of an exported model: a digest of its files."""
    prepared: Prepared | None = None
    """Of a run on a prepared log: that log. `log` then has a sample of its users."""
    baseline: Baseline | None = None
    """Answers in place of the model."""
    live: Any = None
    """The model ready for live users, and the versions of its weights (`live/network.py`)."""

    def __init__(self, model: RecommenderModel, split: Split, config: FitConfig, experts: Experts | None = None):
        # no dropout but while it is trained: threads may ask at once
        self.model, self.split, self.config, self.experts = model.eval(), split, config, experts

    @classmethod
    def fit(
        cls: type[Made],
        source: Any,
        config: FitConfig | None = None,
        *,
        mixer: str | None = None,
        epochs: int | None = None,
        seed: int | None = None,
        out: str | Path | None = None,
        progress: bool = True,
        device: str | None = None,
    ) -> Made:
        """Trains on a log, the name of a known data set, or anything that `read_log` takes.

        Args:
            source: The events.
            config: Everything that can be chosen; the other arguments change one field of it each.
            mixer: A name of `prism list`.
            epochs: Passes over the data at most.
            seed: Seed of the first weights, the order of batches and dropout.
            out: Folder of the run. A run that was stopped goes on when fitted again with the same arguments.
            progress: Whether to show it.
            device: Where to train, e.g. cpu or cuda; None: a GPU where there is one.
        """
        config = (config or FitConfig()).changed(mixer, epochs, seed)
        log = source if isinstance(source, Log) else load_data(source)
        folder = None if out is None else Path(out)
        return cls.fit_split(divide(log, config.protocol), config, folder, progress, device=device)

    @classmethod
    def fit_split(
        cls: type[Made],
        split: Split,
        config: FitConfig,
        out: Path | None,
        progress: bool,
        *,
        store: bool = True,
        device: str | None = None,
    ) -> Made:
        """`fit` on a log that is divided already; `store=False` leaves the events out of the run's folder."""
        if not len(split.valid) and split.protocol != "all":
            raise InputError(f"{split.log.name}: no validation query under {split.protocol}: use another protocol")
        left_open = config.open
        config, chosen = config.resolve(facts_of(split))
        if progress and is_first_process():
            print("\n".join(map(str, chosen)), flush=True)
        began = time.monotonic()
        place = pick_device(device)
        with own_folder(out):  # before minutes of work, not after
            made, task = cls.opening(split, config)
            made._follow_opening(config.opening, left_open, progress)
            made._settle(task, left_open, began, out, progress, place)
            storage.open_run(out, split, made.config, store)
            last = task.changed(made.config.objective)
            train(made.model, last, made.config.train, out=out, progress=progress, device=place)
        return made

    def _follow_opening(self, asked: float | None, left_open: Sequence[str], progress: bool) -> None:
        """Where the rules count events by their chance, it is as the opening did: another q would first undo it."""
        chosen = self.config.opening
        if chosen is None:
            return
        follows = "focus" in left_open and bool(self.config.objective.focus)
        if follows:
            self.config = self.config.with_options({"focus": chosen})
        if asked is None and progress and is_first_process():
            what = f"opening {chosen:g}" + (", and focus with it" if follows else "")
            print(f"{what}: ahead on validation before the model knows anything", flush=True)

    def _settle(
        self,
        task: RecommendationTask,
        left_open: Sequence[str],
        began: float,
        out: Path | None,
        progress: bool,
        place: torch.device,
    ) -> None:
        """What can be told only once a model is there: how fast to learn, and for how many epochs there is time."""
        config = self.config
        rehearses = bool(config.rehearsal and {"lr", "focus"} <= set(left_open) and task.monitor)
        if not rehearses and "epochs" not in left_open:
            return
        known = of_first(storage.settled(out), place)
        if known is not None:
            self.config = config.with_options({name: known[name] for name in known if name in left_open})
            return
        # by one clock: processes that train for other numbers of epochs wait for each other
        each = of_first(epoch_seconds(self.model, task, place), place)
        if rehearses:
            config = rehearsed(self.model, task, config, each=each, progress=progress, device=place)
        if "epochs" in left_open:
            left = of_first(60 * config.minutes - (time.monotonic() - began), place)
            config = config.changed(epochs=affordable_epochs(config, each, left, progress))
        self.config = config

    @classmethod
    def opening(cls: type[Made], split: Split, config: FitConfig) -> tuple[Made, RecommendationTask]:
        """Before the first step: what the experts know is fitted, the model is silent; and what is to be trained."""
        made = cls._starting(split, config)
        made.fit_experts()
        task: RecommendationTask = made.task()
        chosen = fit_opening(made.model, task, focus=config.opening)
        if made.experts is not None:
            made.config = replace(made.config, opening=chosen)
        return made, task

    def task(self, kind: type[Task] = RecommendationTask, **more: Any) -> Task:  # type: ignore[assignment]
        """What training minimises and watches; of another kind with `more` fields."""
        config = self.config
        return kind(
            split=self.split,
            batching=config.batching,
            objective=config.objective,
            query_time=bool(config.query_time),
            experts=self.experts,
            context=self.context,
            seed=config.train.seed,
            cutoffs=config.ranks,
            **more,
        )

    def fit_experts(self, known: bool = False) -> None:
        """Tables from the training events; the repeat expert's weights too, unless the model has them (`known`)."""
        gates = self.model.gates
        if gates is None:
            return
        found = experts_of(
            self.split.train,
            novel=self.split.test.remove_seen,
            timed=self.model.config.query_time,
            repeats=gates.repeats.double().cpu().numpy() if known else None,
        )
        none = self.split.train.item_counts() == 0
        if self.split.protocol == "all" and none.any() and not none.all():
            # Only a table knows them (`prism update`): they count as the item taken least. A share below all that the
            # gates were trained on may get any score from them, the highest too.
            bank = found.tables.bank
            bank[:, none] = bank[:, ~none].min(1, keepdims=True)
        self.set_experts(found)

    def set_experts(self, experts: Experts) -> None:
        """Experts that are fitted; what the model's weights keep of them is put there."""
        gates = self.model.gates
        assert gates is not None
        self.experts = experts
        gates.repeats.copy_(torch.from_numpy(experts.repeats))
        gates.barred.fill_(experts.novel)

    @classmethod
    def _starting(cls: type[Made], split: Split, config: FitConfig) -> Made:
        """Before the first step: random weights, the item table from the log where the config says so."""
        made = cls._untrained(split, config)
        if config.start == "cooccurrence":
            start_from_cooccurrences(made.model.embedding.weight, split.train, config.train.seed)
        return made

    @classmethod
    def _untrained(cls: type[Made], split: Split, config: FitConfig) -> Made:
        config, _ = config.resolve(facts_of(split))
        features = item_values(split.train, config.features) if config.features else None
        return cls(config.build(split.train.n_items, features), split, config)

    @cached_property
    def key(self) -> str:
        """What users' states belong to: the exported model's id, or a digest of config and weights."""
        if self.id is not None:
            return self.id
        weights = sha256()
        for name, weight in self.model.state_dict().items():
            weights.update(name.encode() + weight.detach().cpu().contiguous().numpy().tobytes())
        if self.baseline is not None:
            weights.update(self.baseline.name.encode())
        return sha256(self.config.to_json().encode() + weights.digest()).hexdigest()[:16]

    @property
    def log(self) -> Log:
        """All events; the first codes of items are those that the model knows."""
        return self.split.log

    def refuse_sample(self, what: str) -> None:
        """Refuses what would take the sample of a prepared log for the log."""
        if self.prepared is not None:
            raise InputError(
                f"{what} is not for a run on a prepared log ({self.prepared.folder}), of whose users it has a sample: "
                "`prism fit` the log itself, or `prism prepare` it with what is new and `prism fit` that"
            )

    @property
    def device(self) -> torch.device:
        """Where the model is: live users' states are there too."""
        return self.model.embedding.weight.device

    @property
    def context(self) -> int | None:
        """Events of a history that count; None: all of them."""
        if self.baseline is not None:
            return self.baseline.last
        window = self.config.batching.length if self.model.grows else None  # set: the config is resolved
        return window if self.config.context is None else self.config.context

    @property
    def scorer(self) -> Scorer:
        """Scores of all items after any history."""
        return self.baseline or ModelScorer(self.model, self.context, self.experts)

    @property
    def excludes_seen(self) -> bool:
        """Whether items of the history are left out: as the config says, or as the protocol does."""
        chosen = self.config.exclude_seen
        return self.split.test.remove_seen if chosen is None else chosen

    def evaluate(self, *, valid: bool = False) -> Evaluation:
        """Full ranking of the test queries (or the validation ones)."""
        return self._rank(self.scorer, valid)

    def evaluate_baselines(self, *, valid: bool = False) -> dict[str, Evaluation]:
        """The simple baselines on the same queries, but those that `usable` leaves out."""
        names, _ = usable(self.split.train)
        return {name: self._rank(BASELINES[name]().fit(self.split.train), valid) for name in names}

    def _rank(self, scorer: Scorer, valid: bool) -> Evaluation:
        queries = self.split.valid if valid else self.split.test
        if not len(queries):
            raise InputError("there is nothing to evaluate on: every event trained, or the events are not here")
        return evaluate(scorer, self.log, queries, cutoffs=self.config.ranks)
