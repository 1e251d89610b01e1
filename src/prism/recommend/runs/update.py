"""A model goes on: training continues on events that came later, new items join, and the old model stays as it was.

A new item starts where what is known of it points: the mean row of the items that share a value with it in the items'
table, in the columns that the model looks at, or in all if it looks at none; or of those that stand next to it in
histories; or, if nothing is known, of all items.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from prism.config import at_least
from prism.errors import InputError
from prism.machine import pick_device
from prism.recommend.data.items import ItemValues, item_values
from prism.recommend.data.log import Log
from prism.recommend.data.merge import Merged
from prism.recommend.data.splits import All, Mask, Queries
from prism.recommend.evaluation.ranking import evaluate
from prism.recommend.model.recommender import RecommenderModel
from prism.recommend.recommender import Recommender
from prism.recommend.runs.storage import open_run
from prism.recommend.training.task import RecommendationTask
from prism.train import checkpoints
from prism.train.folder import own_folder
from prism.train.loop import train

# Users whose first ten recommendations are compared before and after.
COMPARED = 1000


@dataclass(frozen=True, kw_only=True)
class Change:
    """What an update took in and what it did."""

    events: int
    known: int
    """Events that the log had already."""
    users: int
    """New ones."""
    items: dict[str, int]
    """New ones, by what they started from."""
    predicted: dict[str, float]
    """How well the old model ranked the new events of items that it knew: it had not seen them."""
    kept: float | None
    """Of the first ten recommendations, the share that stayed."""

    def lines(self) -> list[str]:
        """What `prism update` prints."""
        lines = [
            f"{self.events:,} new events"
            + (f" ({self.known:,} more were known)" if self.known else "")
            + f", {self.users:,} new users, {sum(self.items.values()):,} new items"
        ]
        lines += [f"  {count:,} items start from {what}" for what, count in self.items.items() if count]
        if self.predicted:
            shown = "  ".join(f"{name} {value:.4f}" for name, value in list(self.predicted.items())[:4])
            lines.append(f"the old model on the new events: {shown}")
        if self.kept is not None:
            lines.append(f"of the first ten recommendations, {self.kept:.0%} stay as they were")
        return lines


def update(
    before: Recommender, merged: Merged, out: Path | None, *, epochs: int = 1, lr: float | None = None,
    progress: bool = True, device: str | None = None,
) -> tuple[Recommender, Change]:  # fmt: skip
    """A recommender that has also learned `merged.new`, in a folder of its own; `before` is left as it is.

    Trains on the histories of users with new events, and of as many others again so that what they taught is kept.

    Args:
        before: The model that goes on.
        merged: Its log with the later events, `merge(before.log, later)`; all items of it become the model's.
        out: Folder of the new run; None: it is not stored.
        epochs: Passes over those histories.
        lr: Learning rate; None: a tenth of what the model was trained with.
        progress: Whether to show it.
        device: Where to train; None: a GPU where there is one.
    """
    at_least("epochs", epochs, 1)
    before.refuse_sample("update")
    if before.baseline is not None:
        name = before.baseline.name
        raise InputError(f"baseline {name} is not trained: update the run, then export it with --baseline {name}")
    if before.experts is not None and not before.log.n_events:
        raise InputError(
            "an exported model has none of the events that its experts were counted from: update the run that it was "
            "exported from, then export that"
        )
    if not merged.new.any() and merged.log.n_items == before.model.items:
        raise InputError("nothing is new: every event is known already, and so is every item")
    config = before.config
    schedule = replace(config.train, epochs=epochs, lr=config.train.lr / 10 if lr is None else lr)
    config = replace(config, protocol="all", exclude_seen=before.excludes_seen, train=schedule)
    split = All(remove_seen=before.excludes_seen).split(merged.log)
    model, started = grown(before.model, merged.log, config.features)
    made = Recommender(model, split, config)
    made.fit_experts(known=True)
    if out is not None and out.exists():
        raise InputError(f"{out} exists: give a new folder, so that no model is lost")
    predicted = _predicted(before, merged)
    with own_folder(out):
        open_run(out, split, config, store=True)
        if merged.new.any():
            users = _taught(merged, config.train.seed)
            own: RecommendationTask = made.task()
            task = replace(own, split=replace(split, train=merged.log.where(users[merged.log.users])))
            train(model, task, schedule, out=out, progress=progress, device=pick_device(device))
        elif out is not None:
            checkpoints.save(out, "best", 0, {"model": model.state_dict()}, {})
    change = Change(
        events=int(merged.new.sum()),
        known=merged.known,
        users=merged.log.n_users - before.log.n_users,
        items=started,
        predicted=predicted,
        kept=_kept(before, made),
    )
    return made, change


def grown(model: RecommenderModel, later: Log, features: tuple[str, ...]) -> tuple[RecommenderModel, dict[str, int]]:
    """The model with rows for all items of `later`, and how many of the new ones start from what."""
    values = item_values(later, features) if features else None
    larger = model.config.build(later.n_items, values)
    old, count = model.state_dict(), model.items
    fresh = larger.state_dict()
    own = torch.arange(later.n_items) < count
    for name, weight in old.items():
        if name == "embedding.weight":
            fresh[name][:count], fresh[name][-1] = weight[:-1], weight[-1]
        elif name == "features.rows.weight":
            _copy_rows(fresh[name], weight, values, model)
        elif fresh[name].shape == weight.shape:
            fresh[name] = weight.clone()
        else:  # one entry per item: a new item's is the mean of the others'
            fresh[name][:count], fresh[name][count:] = weight, weight.float().mean(0).to(weight.dtype)
    rows, started = _start(fresh["embedding.weight"][:count], later, own, values or _of_table(later))
    fresh["embedding.weight"][count:-1] = rows
    larger.load_state_dict(fresh)
    return larger.to(next(model.parameters()).device), started


def _copy_rows(fresh: Tensor, weight: Tensor, values: ItemValues | None, model: RecommenderModel) -> None:
    assert values is not None
    assert model.features is not None
    known = {name: n for n, name in enumerate(model.features.of.names)}
    for n, name in enumerate(values.names):
        fresh[n] = weight[known[name]] if name in known else 0


def _start(rows: Tensor, log: Log, own: Tensor, values: ItemValues | None) -> tuple[Tensor, dict[str, int]]:
    """[new items, D]: rows to begin with, and how many of them come from what."""
    new = int((~own).sum())
    begun, found = rows.mean(0).repeat(new, 1), torch.zeros(new, dtype=torch.bool)
    sources = {
        "items with the same features": _by_features(rows, values, new),
        "items they are taken with": _beside(rows, log, new),
    }
    started = {}
    for what, (total, weight) in sources.items():
        reached = (weight > 0) & ~found
        begun[reached] = total[reached] / weight[reached, None]
        started[what], found = int(reached.sum()), found | reached
    return begun, started | {"the mean of all items": int((~found).sum())}


def _beside(rows: Tensor, log: Log, new: int) -> tuple[Tensor, Tensor]:
    """(sum of rows [new, D], how many [new]) of the known items that stand before or after a new one in a history."""
    count, same = len(rows), np.diff(log.users) == 0
    a, b = log.items[:-1][same].astype(np.int64), log.items[1:][same].astype(np.int64)
    pairs = np.concatenate([np.stack([a, b]), np.stack([b, a])], 1)
    pairs = pairs[:, (pairs[0] >= count) & (pairs[1] < count)]
    to, item = torch.from_numpy(pairs[0] - count), torch.from_numpy(pairs[1])
    return _sums(to, rows[item], torch.ones(len(to)), new)


def _by_features(rows: Tensor, values: ItemValues | None, new: int) -> tuple[Tensor, Tensor]:
    """The same of the known items that share a value with a new one, as often as they share one."""
    if values is None:
        return torch.zeros(new, rows.shape[1]), torch.zeros(new)
    item = torch.from_numpy(np.repeat(np.arange(len(values.offsets) - 1), np.diff(values.offsets)))
    value, known = torch.from_numpy(values.values), item < len(rows)
    ones = torch.ones(int(known.sum()))
    total, weight = _sums(value[known], rows[item[known]], ones, len(values.names))  # of each value
    return _sums(item[~known] - len(rows), total[value[~known]], weight[value[~known]], new)


def _sums(to: Tensor, rows: Tensor, weights: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(Σ rows, Σ weights) of each of `count`, row n being of to[n]."""
    total = torch.zeros(count, rows.shape[1], dtype=rows.dtype).index_add_(0, to, rows)
    return total, torch.zeros(count).index_add_(0, to, weights)


def _of_table(log: Log) -> ItemValues | None:
    """What the items' table says, for a model that does not look at it: enough to begin from."""
    if log.item_features is None:
        return None
    try:
        return item_values(log, log.item_features.columns)
    except InputError:  # no two items share a value
        return None


def _taught(merged: Merged, seed: int) -> Mask:
    """[users]: those with new events, and as many others drawn at random."""
    log = merged.log
    users = np.bincount(log.users[merged.new], minlength=log.n_users) > 0
    others = np.flatnonzero(~users & (log.lengths > 0))
    drawn = np.random.default_rng(seed).permutation(others)[: int(users.sum())]
    users[drawn] = True
    return users


def _predicted(before: Recommender, merged: Merged) -> dict[str, float]:
    """Metrics of the old model on new events that have a history and whose item it knew."""
    log = merged.log
    events = np.flatnonzero(merged.new)
    users = log.users[events]
    asked = (log.items[events] < before.model.items) & (events > log.offsets[users])
    if not asked.any():
        return {}
    queries = Queries(users=users[asked], positions=events[asked], candidates=before.model.items, remove_seen=False)
    step = max(1, len(queries) // before.config.batching.valid_queries)
    found = evaluate(before.scorer, log, queries[::step], cutoffs=before.config.ranks, samples=1)
    return {name: found[name] for name in found.values}


def _kept(before: Recommender, after: Recommender) -> float | None:
    """The share of `before`'s first ten recommendations that `after` also gives, over users of both."""
    users = before.log.user_ids[:COMPARED].tolist()
    if not users:
        return None
    ours = [set(one.recommend(users=users).select("user", "item").rows()) for one in (before, after)]
    return len(ours[0] & ours[1]) / len(ours[0]) if ours[0] else None
