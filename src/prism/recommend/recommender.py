"""`Recommender`: a log in, recommendations out. Fit, evaluate, recommend, session, save, load."""

import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prism.errors import InputError
from prism.recommend import storage
from prism.recommend.ask import after_last, log_of
from prism.recommend.choose import Recommendation, as_list, best, permitted
from prism.recommend.config import FitConfig
from prism.recommend.data.items import item_values
from prism.recommend.data.known import load as load_data
from prism.recommend.data.log import Codes, Ids, Ints, Log
from prism.recommend.data.splits import Split
from prism.recommend.data.splits import split as divide
from prism.recommend.evaluation.baselines import BASELINES
from prism.recommend.evaluation.ranking import Evaluation, Scorer, evaluate
from prism.recommend.evaluation.scoring import ModelScorer
from prism.recommend.model.recommender import RecommenderModel
from prism.recommend.session import Session
from prism.recommend.training.task import RecommendationTask
from prism.train import checkpoints
from prism.train.loop import load_best, train

# Users whose scores exist at once when all are served.
BLOCK_USERS = 1024


class Recommender:
    """A trained model with the log it was trained on."""

    def __init__(self, model: RecommenderModel, split: Split, config: FitConfig):
        self.model, self.split, self.config = model, split, config

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
        """
        config = _changed(config or FitConfig(), mixer, epochs, seed)
        log = source if isinstance(source, Log) else load_data(source)
        return cls.fit_split(divide(log, config.protocol), config, None if out is None else Path(out), progress)

    @classmethod
    def fit_split(
        cls, split: Split, config: FitConfig, out: Path | None, progress: bool, *, store: bool = True
    ) -> "Recommender":
        """`fit` on a log that is divided already; `store=False` leaves the events out of the run's folder."""
        if not len(split.valid):
            raise InputError(f"{split.log.name}: no validation query under {split.protocol}: use another protocol")
        if out is not None and os.environ.get("RANK", "0") == "0":
            open_run(out, split, config, store)
        recommender = cls._untrained(split, config)
        task = RecommendationTask(
            split=split,
            batching=config.batching,
            objective=config.objective,
            query_time=config.query_time,
            context=recommender.context,
            seed=config.train.seed,
            cutoffs=config.cutoffs,
        )
        train(recommender.model, task, config.train, out=out, progress=progress)
        return recommender

    @classmethod
    def _untrained(cls, split: Split, config: FitConfig) -> "Recommender":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.train.seed)
            features = item_values(split.train, config.features) if config.features else None
            model = config.model().build(split.train.n_items, features)
        return cls(model, split, config)

    @property
    def log(self) -> Log:
        """All events; the first codes of items are those that the model knows."""
        return self.split.log

    @property
    def context(self) -> int | None:
        """Events of a history that count; None: all of them."""
        window = self.config.batching.length if self.model.grows else None
        return window if self.config.context is None else self.config.context

    @property
    def excludes_seen(self) -> bool:
        """Whether the protocol takes items of the history out of the ranking."""
        return self.split.test.remove_seen

    def evaluate(self, *, valid: bool = False) -> Evaluation:
        """Full ranking of the test queries (or the validation ones)."""
        return self._rank(ModelScorer(self.model, self.context), valid)

    def evaluate_baselines(self, *, valid: bool = False) -> dict[str, Evaluation]:
        """Popularity, repeat-last and item-kNN on the same queries."""
        return {name: self._rank(BASELINES[name]().fit(self.split.train), valid) for name in BASELINES}

    def recommend(
        self,
        user: object = None,
        *,
        history: Sequence[object] | Ids | None = None,
        times: Sequence[int] | Ints | None = None,
        k: int = 10,
        exclude_seen: bool | None = None,
        allow: Iterable[object] | None = None,
        deny: Iterable[object] | None = None,
        at: int | None = None,
    ) -> list[Recommendation]:
        """The k items most likely to come next, best first.

        Args:
            user: A user of the log; or
            history: item ids of anyone, oldest first. Items that the model does not know are skipped with a warning.
            times: Seconds since 1970 of the history's events, for models that use time.
            k: How many; fewer where the filters leave fewer.
            exclude_seen: Leave out items of the history; None: as the protocol does.
            allow: Recommend only these.
            deny: Never these.
            at: When the answer is asked for, for models with `query_time`; None: at the last event.
        """
        one = self._history(user, history, times)
        log, queries = after_last(one, np.array([0]), self.model.items, at=at)
        scores = ModelScorer(self.model, self.context)(log, queries)
        seen = self.excludes_seen if exclude_seen is None else exclude_seen
        mask = permitted(self.log, self.model.items, allow, deny)
        found, codes = best(scores, mask, queries.removed(log) if seen else None, k)
        return as_list(self.log, found[0], codes[0])

    def recommend_all(
        self,
        path: str | Path,
        *,
        k: int = 10,
        exclude_seen: bool | None = None,
        allow: Iterable[object] | None = None,
        deny: Iterable[object] | None = None,
    ) -> int:
        """Writes the k best items of every user to a Parquet file: user, rank, item, score, name. Gives the rows."""
        seen = self.excludes_seen if exclude_seen is None else exclude_seen
        mask = permitted(self.log, self.model.items, allow, deny)
        log, queries = after_last(self.log, np.arange(self.log.n_users), self.model.items)
        scorer, parts = ModelScorer(self.model, self.context), []
        for part in queries.blocks(max(1, min(BLOCK_USERS, 16_000_000 // self.model.items))):
            scores, codes = best(scorer(log, part), mask, part.removed(log) if seen else None, k)
            parts.append((part.users, scores.cpu().numpy(), codes.cpu().numpy()))
        frame = storage.ranking_frame(self.log, *(np.concatenate(column) for column in zip(*parts, strict=True)))
        storage.write_frame(Path(path), frame)
        return frame.height

    def session(
        self,
        user: object = None,
        *,
        history: Sequence[object] | Ids | None = None,
        times: Sequence[int] | Ints | None = None,
    ) -> Session:
        """A user whose events come one by one; without arguments, someone new."""
        empty = user is None and history is None
        return Session(self, self._history(user, [] if empty else history, times))

    def save(self, folder: str | Path) -> None:
        """Weights, config, items and events, so that `load` gives this again."""
        folder = Path(folder)
        open_run(folder, self.split, self.config, store=True)
        checkpoints.save(folder, "best", 0, {"model": self.model.state_dict()}, {})

    @classmethod
    def load(cls, folder: str | Path) -> "Recommender":
        """What `save` or a run of `fit` left in a folder."""
        folder = Path(folder)
        config = storage.read_config(folder)
        shared = folder if (folder / storage.EVENTS).exists() else folder.parent  # runs of one comparison share them
        split = divide(storage.read_stored_log(shared, folder.name), config.protocol)
        recommender = cls._untrained(split, config)
        load_best(recommender.model, folder)
        return recommender

    def _rank(self, scorer: Scorer, valid: bool) -> Evaluation:
        queries = self.split.valid if valid else self.split.test
        return evaluate(scorer, self.log, queries, cutoffs=self.config.cutoffs)

    def _history(self, user: object, history: Sequence[object] | Ids | None, times: Sequence[int] | Ints | None) -> Log:
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
            warnings.warn(f"{what} and were skipped: {some}", stacklevel=3)
        when: Ints | None = None if times is None else np.asarray(times, dtype=np.int64)[known]
        return log_of(self.log, codes[known].astype(np.int32), when)

    def _user(self, user: object) -> Log:
        try:
            code = self.log.user_code(user)
        except InputError as error:
            raise InputError(f"{error}; for someone new, give a history of items instead") from None
        events = slice(self.log.offsets[code], self.log.offsets[code + 1])
        codes: Codes = self.log.items[events]
        return log_of(self.log, codes, self.log.times[events])


def _changed(config: FitConfig, mixer: str | None, epochs: int | None, seed: int | None) -> FitConfig:
    schedule = replace(
        config.train,
        epochs=config.train.epochs if epochs is None else epochs,
        seed=config.train.seed if seed is None else seed,
    )
    return replace(config, mixer=config.mixer if mixer is None else mixer, train=schedule)


def open_run(out: Path, split: Split, config: FitConfig, store: bool) -> None:
    """Makes the run's folder, or finds in it a run of the same config and events that can go on."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: give a folder for the run")
    if (out / storage.CONFIG).exists():
        differences = config.differences(storage.read_config(out))
        if differences:
            more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
            raise InputError(f"{out} holds another run: {differences[0]}{more}; choose another folder")
        if store:
            _check_stored(storage.read_stored_log(out, ""), split.log, config, out)
        return
    if config.features:
        item_values(split.train, config.features)  # a wrong column is refused before anything is written
    try:
        if store:
            storage.write_log(out, split.log)
        storage.write_config(out, config)  # last: a folder with a config is a run
    except OSError as error:
        raise InputError(f"cannot write to {out}: {error.strerror}") from None


def _check_stored(stored: Log, log: Log, config: FitConfig, out: Path) -> None:
    if not storage.same_events(stored, log):
        raise InputError(f"{out} holds a run on other events; choose another folder")
    if config.features and not item_values(stored, config.features).same(item_values(log, config.features)):
        raise InputError(f"{out} holds a run with other features of its items; choose another folder")
