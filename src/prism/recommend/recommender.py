"""`Recommender`: a log in, recommendations out. Fit, evaluate, recommend, session, save, load."""

import os
import time
import warnings
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from prism.errors import InputError, Note
from prism.files import only_one
from prism.machine import pick_device
from prism.recommend import storage
from prism.recommend.ask import after_last, log_of
from prism.recommend.choose import Filter, Recommendation, as_list, best, permitted
from prism.recommend.config import FitConfig
from prism.recommend.data.clock import Moment, seconds, seconds_of
from prism.recommend.data.items import ItemValues, item_values
from prism.recommend.data.known import load as load_data
from prism.recommend.data.log import Codes, Ids, Ints, Log
from prism.recommend.data.merge import merge
from prism.recommend.data.splits import Split, no_queries
from prism.recommend.data.splits import split as divide
from prism.recommend.defaults import facts_of
from prism.recommend.evaluation.baselines import BASELINES, usable
from prism.recommend.evaluation.ranking import Evaluation, Scorer, evaluate
from prism.recommend.evaluation.scoring import ModelScorer
from prism.recommend.export import is_model, load_model
from prism.recommend.model.experts import Experts
from prism.recommend.model.experts import fit_experts as experts_of
from prism.recommend.model.recommender import RecommenderModel
from prism.recommend.model.start import cooccurrence_rows
from prism.recommend.session import Session
from prism.recommend.training.task import RecommendationTask
from prism.recommend.user_bytes import model_key, unpack_user
from prism.train import checkpoints
from prism.train.loop import load_best, train
from prism.train.settings import refuse_others

if TYPE_CHECKING:
    import polars as pl

# Users whose scores exist at once when all are served.
BLOCK_USERS = 1024


class Recommender:
    """A trained model with the log it was trained on; an exported one has a log of items and nobody's events."""

    id: str | None = None
    """Of an exported model: a digest of its files."""

    def __init__(self, model: RecommenderModel, split: Split, config: FitConfig, experts: Experts | None = None):
        self.model, self.split, self.config, self.experts = model, split, config, experts

    @classmethod
    def fit(
        cls,
        source: Any,
        config: FitConfig | None = None,
        *,
        mixer: str | None = None,
        epochs: int | None = None,
        seed: int | None = None,
        out: str | Path | None = None,
        progress: bool = True,
        device: str | None = None,
    ) -> "Recommender":
        """Trains on a log, the name of a known data set, or anything that `read_log` takes.

        Args:
            source: The events.
            config: Everything that can be chosen; the other arguments change one field of it each.
            mixer: A name of `prism list`.
            epochs: Passes over the data at most.
            seed: Of weights, batches and dropout.
            out: Folder of the run. A run that was stopped goes on when fitted again with the same arguments.
            progress: Whether to show it.
            device: Where to train, e.g. cpu or cuda; None: a GPU where there is one.
        """
        config = _changed(config or FitConfig(), mixer, epochs, seed)
        log = source if isinstance(source, Log) else load_data(source)
        folder = None if out is None else Path(out)
        return cls.fit_split(divide(log, config.protocol), config, folder, progress, device=device)

    @classmethod
    def fit_split(
        cls,
        split: Split,
        config: FitConfig,
        out: Path | None,
        progress: bool,
        *,
        store: bool = True,
        device: str | None = None,
    ) -> "Recommender":
        """`fit` on a log that is divided already; `store=False` leaves the events out of the run's folder."""
        if not len(split.valid) and split.protocol != "all":
            raise InputError(f"{split.log.name}: no validation query under {split.protocol}: use another protocol")
        first = os.environ.get("RANK", "0") == "0"
        by_clock = "epochs" in config.open
        config, chosen = config.resolve(facts_of(split))
        if progress and first:
            print("\n".join(map(str, chosen)), flush=True)
        began = time.monotonic()
        place, recommender = pick_device(device), cls._starting(split, config)
        recommender.fit_experts()
        task = recommender.task()
        if by_clock:
            spent = time.monotonic() - began
            epochs, why = affordable(recommender, task, 60 * config.minutes - spent, out)
            if progress and first and why:
                print(f"epochs {epochs}: {why}", flush=True)
            config = config.with_options({"epochs": epochs})
            recommender.config = config
        with ExitStack() as stack:
            if out is not None and first:
                stack.enter_context(only_one(out))
                open_run(out, split, config, store)
            train(recommender.model, task, config.train, out=out, progress=progress, device=place)
        return recommender

    def task(self) -> RecommendationTask:
        """What training minimises and watches."""
        config = self.config
        return RecommendationTask(
            split=self.split,
            batching=config.batching,
            objective=config.objective,
            query_time=bool(config.query_time),
            experts=self.experts,
            context=self.context,
            seed=config.train.seed,
            cutoffs=config.cutoffs,
        )

    def fit_experts(self, known: bool = False) -> None:
        """Tables from the training events; the repeat expert's weights too, unless the model has them (`known`)."""
        gates = self.model.gates
        if gates is None:
            return
        self.experts = experts_of(
            self.split.train,
            novel=self.split.test.remove_seen,
            timed=self.model.config.query_time,
            repeats=gates.repeats.double().cpu().numpy() if known else None,
        )
        gates.repeats.copy_(torch.from_numpy(self.experts.repeats))

    @classmethod
    def _starting(cls, split: Split, config: FitConfig) -> "Recommender":
        """Before the first step: random weights, the item table from the log where the config says so."""
        made = cls._untrained(split, config)
        if config.start == "cooccurrence":
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.manual_seed(config.train.seed)
                rows = cooccurrence_rows(split.train, made.model.config.backbone.dim)
                found = rows.any(1)
                made.model.embedding.weight[:-1][found] = rows[found]
        return made

    @classmethod
    def _untrained(cls, split: Split, config: FitConfig) -> "Recommender":
        config, _ = config.resolve(facts_of(split))
        features = item_values(split.train, config.features) if config.features else None
        return cls(cls.build(config, split.train.n_items, features), split, config)

    @staticmethod
    def build(config: FitConfig, items: int, features: ItemValues | None) -> RecommenderModel:
        """A model with the weights that training starts from."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.train.seed)
            return config.model().build(items, features)

    @cached_property
    def key(self) -> str:
        """What users' states belong to: this model and no other."""
        return model_key(self)

    @property
    def log(self) -> Log:
        """All events; the first codes of items are those that the model knows."""
        return self.split.log

    @property
    def context(self) -> int | None:
        """Events of a history that count; None: all of them."""
        window = self.config.batching.length if self.model.grows else None  # set: the config is resolved
        return window if self.config.context is None else self.config.context

    @property
    def scorer(self) -> ModelScorer:
        """Scores of all items after any history."""
        return ModelScorer(self.model, self.context, self.experts)

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

    @overload
    def recommend(
        self,
        user: object = None,
        *,
        users: None = None,
        history: Sequence[object] | Ids | None = None,
        times: Sequence[Moment] | Ints | None = None,
        k: int = 10,
        exclude_seen: bool | None = None,
        allow: Filter | None = None,
        deny: Filter | None = None,
        at: Moment | None = None,
    ) -> list[Recommendation]: ...

    @overload
    def recommend(
        self,
        *,
        users: Iterable[object],
        k: int = 10,
        exclude_seen: bool | None = None,
        allow: Filter | None = None,
        deny: Filter | None = None,
        at: Moment | None = None,
    ) -> "pl.DataFrame": ...

    def recommend(
        self,
        user: object = None,
        *,
        users: Iterable[object] | None = None,
        history: Sequence[object] | Ids | None = None,
        times: Sequence[Moment] | Ints | None = None,
        k: int = 10,
        exclude_seen: bool | None = None,
        allow: Filter | None = None,
        deny: Filter | None = None,
        at: Moment | None = None,
    ) -> "list[Recommendation] | pl.DataFrame":
        """The k items most likely to come next, best first.

        Args:
            user: A user of the log; or
            users: many of them, answered together: a data frame of user, rank, item, score and name; or
            history: item ids of anyone, oldest first. Items that the model does not know are skipped with a warning.
            times: When the history's events were, for models that use time: seconds since 1970, or datetimes.
            k: How many; fewer where the filters leave fewer.
            exclude_seen: Leave out items of the history; None: as the protocol does.
            allow: Recommend only these: item ids, or {column of the items' table: value or values}.
            deny: Never these.
            at: When the answer is asked for, for models with `query_time`; None: at the last event.
        """
        when = None if at is None else seconds(at)
        seen = self.excludes_seen if exclude_seen is None else exclude_seen
        mask = permitted(self.log, self.model.items, allow, deny)
        if users is not None:
            if user is not None or history is not None:
                raise InputError("give one of user, users and history")
            return self._best_of(self._codes(list(users)), k, seen, mask, when)
        one = self.history(user, history, times)
        log, queries = after_last(one, np.array([0]), self.model.items, at=when)
        scores = self.scorer(log, queries)
        found, codes = best(scores, mask, queries.removed(log) if seen else None, k)
        return as_list(self.log, found[0], codes[0])

    def recommend_all(
        self,
        path: str | Path,
        *,
        k: int = 10,
        exclude_seen: bool | None = None,
        allow: Filter | None = None,
        deny: Filter | None = None,
    ) -> int:
        """Writes the k best items of every user to a .parquet, .csv or .jsonl file. Gives the number of rows.

        Its columns are user, rank, item, score and, where items have one, name.
        """
        storage.writer(Path(path))  # refused before hours of scores
        seen = self.excludes_seen if exclude_seen is None else exclude_seen
        mask = permitted(self.log, self.model.items, allow, deny)
        frame = self._best_of(np.arange(self.log.n_users), k, seen, mask, None)
        storage.write_frame(Path(path), frame)
        return frame.height

    def _codes(self, users: list[object]) -> Ints:
        codes = self.log.known_users(users)
        if (codes < 0).any():
            self._user(users[int(np.argmax(codes < 0))])  # says who is unknown
        return codes.astype(np.int64)

    def _best_of(self, asked: Ints, k: int, seen: bool, mask: Tensor, at: int | None) -> "pl.DataFrame":
        """The k best items of each user, given by codes, in the order asked for."""
        if not len(asked):
            raise InputError("there is nobody to recommend to: give users, or events with users")
        users, order = np.unique(asked, return_inverse=True)
        log, queries = after_last(self.log, users, self.model.items, at=at)
        scorer, parts = self.scorer, []
        for part in queries.blocks(max(1, min(BLOCK_USERS, 16_000_000 // self.model.items))):
            scores, codes = best(scorer(log, part), mask, part.removed(log) if seen else None, k)
            parts.append((part.users, scores.cpu().numpy(), codes.cpu().numpy()))
        return storage.ranking_frame(self.log, *(np.concatenate(column)[order] for column in zip(*parts, strict=True)))

    def similar(
        self, item: object, *, k: int = 10, allow: Filter | None = None, deny: Filter | None = None
    ) -> list[Recommendation]:
        """The k items nearest to one by the cosine of their rows in the item table, nearest first."""
        code = self.log.item_code(item)
        if code >= self.model.items:
            raise InputError(f"item {item!r} came after the model was trained: `prism update` adds it")
        mask = permitted(self.log, self.model.items, allow, deny)
        mask[code] = False
        with torch.inference_mode():
            rows = functional.normalize(self.model.table, dim=-1)
            scores, codes = best(rows[code : code + 1] @ rows.T, mask, None, k)
        return as_list(self.log, scores[0], codes[0])

    def with_events(self, source: Any) -> "Recommender":
        """The same model, with events that came after it was trained; `source` as in `fit`.

        Users of the log go on where they were, new ones join. Items that the model does not know are skipped where
        they stand in a history; an event that the log has already (user, item and time) is not taken twice.
        """
        later = source if isinstance(source, Log) else load_data(source, later=True)
        log = merge(self.log, later).log
        nothing = no_queries(self.model.items, remove_seen=self.split.test.remove_seen)
        made = Recommender(
            self.model, replace(self.split, log=log, valid=nothing, test=nothing), self.config, self.experts
        )
        made.id = self.id
        return made

    def session(
        self,
        user: object = None,
        *,
        history: Sequence[object] | Ids | None = None,
        times: Sequence[Moment] | Ints | None = None,
        state: bytes | None = None,
    ) -> Session:
        """A user whose events come one by one; without arguments, someone new; with what `Session.state` gave, them."""
        if state is not None:
            if user is not None or history is not None:
                raise InputError("give one of user, history and state")
            return Session.restored(self, unpack_user(state, self))
        empty = user is None and history is None
        return Session(self, self.history(user, [] if empty else history, times))

    def save(self, folder: str | Path) -> None:
        """Weights, config, items and events, so that `load` gives this again."""
        folder = Path(folder)
        open_run(folder, self.split, self.config, store=True)
        checkpoints.save(folder, "best", 0, {"model": self.model.state_dict()}, {})

    @classmethod
    def load(cls, folder: str | Path, *, device: str | None = None) -> "Recommender":
        """What `save`, a run of `fit`, or `export` left in a folder, on a device; None: a GPU where there is one."""
        folder, place = Path(folder), pick_device(device)
        if is_model(folder):
            made = load_model(cls, folder)
            made.model.to(place)
            return made
        if storage.is_streamed(folder):
            from prism.recommend.streaming import load_streamed

            return load_streamed(folder, place)
        config = storage.read_config(folder)
        shared = folder if (folder / storage.EVENTS).exists() else folder.parent  # runs of one comparison share them
        recommender = cls._untrained(storage.read_split(shared, folder.name, config.protocol), config)
        load_best(recommender.model, folder)
        recommender.fit_experts(known=True)
        recommender.model.to(place)
        return recommender

    def _rank(self, scorer: Scorer, valid: bool) -> Evaluation:
        queries = self.split.valid if valid else self.split.test
        if not len(queries):
            raise InputError("there is nothing to evaluate on: every event trained, or the events are not here")
        return evaluate(scorer, self.log, queries, cutoffs=self.config.cutoffs)

    def history(
        self, user: object, history: Sequence[object] | Ids | None, times: Sequence[Moment] | Ints | None
    ) -> Log:
        """A log of one user's events."""
        if (user is None) == (history is None):
            raise InputError("give either a user of the log or a history, e.g. user=42 or history=[7, 12]")
        if history is None:
            return self._user(user)
        if times is not None and len(times) != len(history):
            raise InputError(f"times has {len(times)} entries for a history of {len(history)}: give one each")
        codes = self.log.item_codes(history)
        known = (codes >= 0) & (codes < self.model.items)
        if not known.all():
            missing = [repr(item) for item, ok in zip(history, known, strict=True) if not ok]
            some = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
            what = f"{len(missing)} of {len(history)} items of the history are unknown to the model"
            warnings.warn(Note(f"{what} and were skipped: {some}"), stacklevel=3)
        when: Ints | None = None if times is None else seconds_of(times)[known]
        return log_of(self.log, codes[known].astype(np.int32), when)

    def _user(self, user: object) -> Log:
        try:
            code = self.log.user_code(user)
        except InputError as error:
            if not self.log.n_users:
                raise InputError(
                    f"user {user!r} is unknown: an exported model has no users' events; give them, or a history"
                ) from None
            raise InputError(f"{error}; for someone new, give a history of items instead") from None
        events = slice(self.log.offsets[code], self.log.offsets[code + 1])
        codes: Codes = self.log.items[events]
        return log_of(self.log, codes, self.log.times[events])


def affordable(
    recommender: "Recommender", task: RecommendationTask, seconds: float, out: Path | None
) -> tuple[int, str]:
    """(epochs, reason): what the rule allows and the time suffices for; of a run that goes on, what it began with."""
    most = recommender.config.train.epochs
    if out is not None and (out / storage.CONFIG).exists():
        return storage.read_config(out).train.epochs, ""
    each = _epoch_seconds(recommender.model, task)
    epochs = int(np.clip(int(seconds / each), 1, most))
    why = f"an epoch takes about {each:.0f} s, and {recommender.config.minutes:g} minutes are given"
    return epochs, why if epochs < most else ""


def _epoch_seconds(model: RecommenderModel, task: RecommendationTask, batches: int = 9) -> float:
    """Measured on a few batches and validation queries; the model is left as it was."""
    whole = task.batches(0)
    some = [whole[n] for n in range(min(batches, len(whole)))]
    with torch.random.fork_rng(devices=[]):
        model.train()
        clock = []
        for batch in some:
            began = time.monotonic()
            task.loss(model, batch)[0].backward()
            clock.append(time.monotonic() - began)
        model.zero_grad(set_to_none=True)
    step = sorted(clock)[len(clock) // 2]  # the first compiles
    # a fifth more for the optimiser and for what else the machine does
    return 1.2 * step * len(whole) + task.evaluation_seconds(model)


def _changed(config: FitConfig, mixer: str | None, epochs: int | None, seed: int | None) -> FitConfig:
    schedule = replace(
        config.train,
        epochs=config.train.epochs if epochs is None else epochs,
        seed=config.train.seed if seed is None else seed,
    )
    return replace(config, mixer=config.mixer if mixer is None else mixer, train=schedule)


def open_run(out: Path, split: Split, config: FitConfig, store: bool) -> None:
    """Makes the run's folder, or finds in it a run of the same config and events that can go on."""
    if (out / storage.CONFIG).exists():
        refuse_others(out, asdict(config), asdict(storage.read_config(out)), "choose another folder")
        if store:
            _check_stored(storage.read_split(out, "", config.protocol), split, config, out)
        return
    if config.features:
        item_values(split.train, config.features)  # a wrong column is refused before anything is written
    if store:
        storage.write_split(out, split)
    storage.write_config(out, config)  # last: a folder with a config is a run


def _check_stored(stored: Split, split: Split, config: FitConfig, out: Path) -> None:
    if not storage.same_split(stored, split):
        raise InputError(f"{out} holds a run on other events, or divided otherwise; choose another folder")
    if config.features and not item_values(stored.log, config.features).same(item_values(split.log, config.features)):
        raise InputError(f"{out} holds a run with other features of its items; choose another folder")
