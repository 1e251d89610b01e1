"""`Recommender`: a log in, recommendations out. What can be asked of a trained model, its folder, its live users."""

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import numpy as np

from prism.config import several
from prism.errors import InputError
from prism.machine import pick_device
from prism.recommend.answer.ask import after_last, one_history, user_codes
from prism.recommend.answer.baseline import fitted_baseline
from prism.recommend.answer.choose import Filter, Recommendation, as_list, best, permitted
from prism.recommend.answer.many import best_of_all, best_of_users
from prism.recommend.answer.similar import similarities
from prism.recommend.data.clock import Moment, seconds
from prism.recommend.data.known import load as load_data
from prism.recommend.data.log import Ids, Ints, Log
from prism.recommend.data.merge import merge
from prism.recommend.data.splits import no_queries
from prism.recommend.live.session import Session
from prism.recommend.runs import storage
from prism.recommend.runs.export import is_model, load_model
from prism.recommend.runs.streamed import load_streamed
from prism.recommend.trained import Trained
from prism.train import checkpoints
from prism.train.keeper import load_best

if TYPE_CHECKING:
    import polars as pl

    class Options(TypedDict, total=False):
        """What both forms of `Recommender.recommend` take, for type checkers."""

        k: int
        exclude_seen: bool | None
        allow: Filter | None
        deny: Filter | None
        at: Moment | None


class Recommender(Trained):
    """A trained model with its log, and all that can be asked of it."""

    if TYPE_CHECKING:

        @overload
        def recommend(
            self,
            user: object = None,
            *,
            history: Sequence[object] | Ids | None = None,
            times: Sequence[Moment] | Ints | None = None,
            **options: Unpack[Options],
        ) -> list[Recommendation]: ...

        @overload
        def recommend(self, *, users: Iterable[object], **options: Unpack[Options]) -> "pl.DataFrame": ...

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
            several("users", users)
            asked = list(users)
            log = self._log_of(asked)
            return best_of_users(log, self.scorer, user_codes(log, asked), k, seen, mask, when)
        if not isinstance(user, str) and isinstance(user, Iterable):
            raise InputError(f"user is one id, got {user!r}: for many, give users=[…]")
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

        Of a run on a prepared log they are all users of that, a partition at a time. Its columns are user, rank, item,
        score and, where items have one, name.
        """
        storage.writer(Path(path))  # refused before hours of scores
        seen = self.excludes_seen if exclude_seen is None else exclude_seen
        mask = permitted(self.log, self.model.items, allow, deny)
        frame = best_of_all(self._all_users(), self.scorer, k, seen, mask)
        storage.write_frame(Path(path), frame)
        return frame.height

    def similar(
        self, item: object, *, k: int = 10, allow: Filter | None = None, deny: Filter | None = None
    ) -> list[Recommendation]:
        """The k items nearest to one, nearest first: taken near it, or with a like row in the item table."""
        code = self.log.item_code(item)
        if code >= self.model.items:
            raise InputError(f"item {item!r} came after the model was trained: `prism update` adds it")
        mask = permitted(self.log, self.model.items, allow, deny)
        mask[code] = False
        scores, codes = best(similarities(self, code), mask, None, k)
        return as_list(self.log, scores[0], codes[0])

    def __repr__(self) -> str:
        what = self.config.mixer if self.baseline is None else f"the baseline {self.baseline.name}"
        kind = "a run" if self.id is None else f"model {self.id}"
        return f"<Recommender: {kind} of {self.log.name}, {what}, {self.model.items:,} items>"

    def with_events(self, source: Any) -> "Recommender":
        """The same model, with events that came after it was trained; `source` as in `fit`.

        Users of the log go on where they were, new ones join. Items that the model does not know are skipped where
        they stand in a history; an event that the log has already (user, item and time) is not taken twice.
        """
        self.refuse_sample("with_events (--events)")
        later = source if isinstance(source, Log) else load_data(source, later=True, usual=self.log.columns)
        log = merge(self.log, later).log
        nothing = no_queries(self.model.items, remove_seen=self.split.test.remove_seen)
        made = Recommender(
            self.model, replace(self.split, log=log, valid=nothing, test=nothing), self.config, self.experts
        )
        made.id, made.baseline = self.id, self.baseline
        return made

    def with_baseline(self, name: str) -> "Recommender":
        """The same log, but a simple baseline answers in place of the model, live too: for where it is ahead."""
        self.refuse_sample("with_baseline (--baseline)")
        made = copy(self)
        made.__dict__.pop("key", None)  # users' states are another's
        made.baseline, made.experts = fitted_baseline(name, self.split.train), None
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
            return Session(self, state=state)
        empty = user is None and history is None
        return Session(self, self.history(user, [] if empty else history, times))

    def save(self, folder: str | Path) -> None:
        """Weights, config, items and events, so that `load` gives this again."""
        if self.baseline is not None:
            raise InputError(f"baseline {self.baseline.name} is not kept in a run: export it")
        folder = Path(folder)
        storage.open_run(folder, self.split, self.config, store=True)
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
            return load_streamed(cls, folder, place)
        config = storage.read_config(folder)
        shared = folder if (folder / storage.EVENTS).exists() else folder.parent  # runs of one comparison share them
        recommender = cls._untrained(storage.read_split(shared, folder.name, config.protocol), config)
        load_best(recommender.model, folder)
        recommender.fit_experts(known=True)
        recommender.model.to(place)
        return recommender

    def history(
        self, user: object, history: Sequence[object] | Ids | None, times: Sequence[Moment] | Ints | None
    ) -> Log:
        """A log of one user's events."""
        log = self.log if user is None else self._log_of([user])
        return one_history(log, self.model.items, user, history, times)

    def _log_of(self, users: Sequence[object]) -> Log:
        """A log with these users; of a run on a prepared log, from their partitions there."""
        return self.log if self.prepared is None or not users else self.prepared.events_of(users)

    def _all_users(self) -> Iterator[Log]:
        """The log; or, one at a time, the partitions of a prepared one that have users."""
        if self.prepared is None:
            yield self.log
            return
        for number, part in enumerate(self.prepared.manifest.parts):
            if part.users:
                yield self.prepared.read(number)
