"""Recommendations for all users, one partition of them at a time: any order, any process, any number of times.

A partition's output is a Parquet file that appears whole, and beside it what it was made from: model, options, and
a digest of every user's events. Made again, only users whose events changed are scored; the others' rows are kept.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import polars.selectors as cs

from prism.config import Checked, Count
from prism.errors import InputError, needs
from prism.files import write_whole
from prism.recommend.answer.choose import permitted
from prism.recommend.answer.many import best_of_users
from prism.recommend.data.log import Ints, Log, id_column, numbers_among
from prism.recommend.data.prepared.manifest import Prepared, joined
from prism.recommend.data.splits import no_queries
from prism.recommend.partition import partition
from prism.recommend.recommender import Recommender
from prism.recommend.runs import storage
from prism.recommend.runs.streamed import prepared_of


@dataclass(frozen=True, kw_only=True)
class BatchJob(Checked):
    """What to recommend, to whom and where to; sent to other processes."""

    run: Path
    out: Path
    """Folder of the partitions' files."""
    parts: Count
    k: int = 10
    exclude_seen: bool | None = None
    allow: Any = None
    deny: Any = None
    events: str | None = None
    """A log of events that came after training."""
    device: str | None = None

    def path(self, number: int) -> Path:
        return self.out / f"part-{number:05d}-of-{self.parts:05d}.parquet"

    def settings(self, model: str) -> dict[str, Any]:
        """What must be the same for rows of an earlier call to be kept."""
        chosen = {name: value for name, value in asdict(self).items() if name in ("parts", "k", "exclude_seen")}
        return {**chosen, "allow": _listed(self.allow), "deny": _listed(self.deny), "model": model}


class Done(NamedTuple):
    """What became of a partition."""

    number: int
    rows: int
    users: int
    scored: int
    """Users whose rows were made anew."""


def read_partition(text: str) -> tuple[int, int]:
    """`3/16` as (3, 16)."""
    number, sign, parts = text.partition("/")
    if not sign or not number.isdecimal() or not parts.isdecimal() or not int(number) < int(parts):
        raise InputError(f"partition must be i/P with 0 ≤ i < P, got {text!r}: e.g. 3/16 is the fourth of sixteen")
    return int(number), int(parts)


def write_partition(job: BatchJob, number: int) -> Done:
    """Makes one partition's file, or brings it up to date."""
    made, users = _users(job, number)
    log, path = made.log, job.path(number)
    digests = np.array([_digest(log, user) for user in users.tolist()], dtype=np.uint64)
    settings = job.settings(made.key)
    # a table has one type of id: where numbers stand beside text, it does not tell 7 from "7"
    before = None if numbers_among(log.user_ids).any() else _before(path, settings)
    kept = np.zeros(len(users), dtype=bool)
    if before is not None:
        known = dict(zip(before["user"].to_list(), before["digest"].to_list(), strict=True))
        ids = log.user_ids[users].tolist()
        kept = np.array(
            [known.get(one) == digest for one, digest in zip(ids, digests.tolist(), strict=True)], dtype=bool
        )
        if kept.all() and len(known) == len(users):
            rows = pl.scan_parquet(path).select(pl.len()).collect().item()
            return Done(number, rows, len(users), 0)
    frame = _frame(made, users, kept, path, job).with_columns(cs.by_dtype(pl.Null).cast(pl.String))  # of nobody
    path.with_suffix(".json").unlink(missing_ok=True)  # it says what the rows are of, and they are another's now
    storage.write_frame(path, frame)
    table = pl.DataFrame({"user": id_column(log.user_ids[users]), "digest": digests})
    storage.write_frame(path.with_suffix(".users.parquet"), table)
    write_whole(path.with_suffix(".json"), json.dumps(settings, indent=1).encode())
    return Done(number, frame.height, len(users), int((~kept).sum()))


def write_on_ray(
    job: BatchJob,
    address: str,
    *,
    task: Callable[[BatchJob, int], Done] = write_partition,
    workers: int | None = None,
    say: Callable[[str], None] = print,
) -> list[Done]:
    """All partitions as tasks of Ray, on a cluster or (`local`) on this machine; a lost worker's is run again."""
    needs("ray", extra="ray")
    import ray

    local = address == "local"
    ray.init(
        address=None if local else address,
        num_cpus=workers if local else None,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        configure_logging=False,
    )
    try:
        remote = ray.remote(num_cpus=1, max_retries=-1)(task)
        waiting = {remote.remote(job, number): number for number in range(job.parts)}
        done: list[Done] = []
        while waiting:
            finished, _ = ray.wait(list(waiting), num_returns=1)
            for one in finished:
                del waiting[one]
                done.append(ray.get(one))
                say(f"{len(done)} of {job.parts} partitions: {done[-1].rows:,} rows in {job.path(done[-1].number)}")
        return sorted(done)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(getattr(error, "cause", None), InputError) else None
        raise InputError(str(cause) if cause else f"a partition failed: {str(error).splitlines()[-1]}") from None
    finally:
        ray.shutdown()


@lru_cache(maxsize=1)
def _loaded(run: Path, events: str | None, device: str | None) -> Recommender:
    made = Recommender.load(run, device=device)
    return made if events is None else made.with_events(events)


def _users(job: BatchJob, number: int) -> tuple[Recommender, Ints]:
    """The recommender with a log that has the partition's users, and their codes in it."""
    if storage.is_streamed(job.run):
        if job.events is not None:
            raise InputError(f"{job.run} was trained on a prepared log: prepare it with the new events instead")
        return _with_prepared(job, number)
    made = _loaded(job.run, job.events, job.device)
    mine = [n for n, user in enumerate(made.log.user_ids.tolist()) if partition(user, job.parts) == number]
    return made, np.array(mine, dtype=np.int64)


def _with_prepared(job: BatchJob, number: int) -> tuple[Recommender, Ints]:
    prepared: Prepared = prepared_of(job.run)
    if len(prepared) % job.parts:
        raise InputError(
            f"{prepared.folder} has {len(prepared)} partitions: give a number that divides them, not {job.parts}"
        )
    made = _loaded(job.run, None, job.device)
    # hash mod P of a prepared log's partitions says hash mod any divisor of P
    log = joined([prepared.read(n) for n in range(number, len(prepared), job.parts)], prepared.manifest.name)
    nothing = no_queries(made.model.items, remove_seen=made.split.test.remove_seen)
    split = replace(made.split, log=log, valid=nothing, test=nothing)
    mine = Recommender(made.model, split, made.config, made.experts)
    return mine, np.arange(log.n_users)


def _frame(made: Recommender, users: Ints, kept: np.ndarray, path: Path, job: BatchJob) -> pl.DataFrame:
    """The rows of all users, in their order: those kept from the file that is there, and new ones."""
    seen = made.excludes_seen if job.exclude_seen is None else job.exclude_seen
    mask = permitted(made.log, made.model.items, job.allow, job.deny)
    if (~kept).any():
        new = best_of_users(made.log, made.scorer, users[~kept], job.k, seen, mask, None)
    else:
        new = storage.ranking_frame(made.log, users[:0], np.zeros((0, 1)), np.zeros((0, 1), dtype=np.int64))
    if not kept.any():
        return new
    order = pl.DataFrame({"user": id_column(made.log.user_ids[users]), "place": np.arange(len(users))})
    old = pl.read_parquet(path).join(order.filter(pl.Series(kept)), on="user", how="semi", maintain_order="left")
    both = pl.concat([old, new.cast(old.schema)])
    return both.join(order, on="user", maintain_order="left").sort("place", "rank").drop("place")


def _before(path: Path, settings: dict[str, Any]) -> pl.DataFrame | None:
    """Users and digests of an earlier call with the same settings, if it left its file."""
    facts = path.with_suffix(".json")
    if not (path.exists() and facts.exists()) or json.loads(facts.read_text(encoding="utf-8")) != settings:
        return None
    return pl.read_parquet(path.with_suffix(".users.parquet"))


def _digest(log: Log, user: int) -> int:
    """Of a user's events: items and times."""
    part = slice(log.offsets[user], log.offsets[user + 1])
    state = blake2b(log.items[part].astype(np.int32).tobytes(), digest_size=8)
    state.update(log.times[part].tobytes())
    return int.from_bytes(state.digest(), "little")


def _listed(chosen: Any) -> Any:
    """A filter as JSON has it."""
    return json.loads(json.dumps(chosen, default=list))
