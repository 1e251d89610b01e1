"""The command `prism recommend`, and how items are asked for and shown."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import OmitArgPrefixes, Positional

from prism.display.tables import show
from prism.errors import InputError
from prism.recommend.answer.choose import Filter, Recommendation
from prism.recommend.commands.program import place_of
from prism.recommend.recommender import Recommender


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is recommended."""

    k: int = 10
    """How many."""
    seen: bool | None = None
    """Whether items of the history may be recommended; default: as the run's protocol has it."""
    allow: tuple[str, ...] | None = None
    """Recommend only these items."""
    deny: tuple[str, ...] | None = None
    """Never recommend these items."""
    allow_where: tuple[str, ...] = ()
    """Recommend only items whose table has these values, as column=value."""
    deny_where: tuple[str, ...] = ()
    """Never items whose table has them."""

    def options(self) -> dict[str, Any]:
        """As `Recommender.recommend` takes it."""
        return {
            "k": self.k,
            "exclude_seen": None if self.seen is None else not self.seen,
            "allow": by_column("allow", self.allow, self.allow_where),
            "deny": by_column("deny", self.deny, self.deny_where),
        }


@dataclass(frozen=True, kw_only=True)
class Parts:
    """All users, a part of them at a time."""

    partition: str | None = None
    """Of `all`, only users of partition i of P, by hash: i/P. Made again, only users with other events are."""
    ray: str | None = None
    """Of `all`, every partition as a task of Ray at this address, or `local`."""
    partitions: int = 16
    """Partitions with `ray`."""

    def write(self, run: Path, out: Path, device: str | None, options: dict[str, Any]) -> None:
        """One partition here, or all of them on Ray."""
        from prism.recommend.answer.batch import BatchJob, read_partition, write_on_ray, write_partition

        if self.partition is not None and self.ray is not None:
            raise InputError("give one of --partition i/P and --ray ADDRESS")
        number, parts = (0, self.partitions) if self.partition is None else read_partition(self.partition)
        job = BatchJob(run=run, out=out, parts=parts, device=device, **options)
        done = [write_partition(job, number)] if self.ray is None else write_on_ray(job, self.ray)
        rows, users, scored = (sum(column) for column in list(zip(*done, strict=True))[1:])
        print(f"{rows:,} rows for {users:,} users in {out}; {users - scored:,} users had no new events and were kept")


WANTED, PARTS = Wanted(), Parts()


def recommend(
    run: Positional[Path],
    user: str | None = None,
    history: tuple[str, ...] | None = None,
    all: Path | None = None,
    events: str | None = None,
    baseline: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    wanted: OmitArgPrefixes[Wanted] = WANTED,
    parts: OmitArgPrefixes[Parts] = PARTS,
) -> None:
    """The items most likely to come next for a user, for a history, or for all users.

    Args:
        run: A folder that `prism fit` made.
        user: A user of the run's log.
        history: Items of anyone, oldest first.
        all: Write recommendations for all users to this file: .parquet, .csv or .jsonl; with `partition` or `ray` to
            this folder, one .parquet per partition.
        events: A log of events that came after training, as `prism fit` takes it.
        baseline: Let a simple baseline answer in place of the model, where `prism evaluate` finds it ahead.
        device: Where the model runs, e.g. cpu or cuda; default: a GPU where there is one.
        threads: Threads of the CPU; default: as many as torch takes.
        wanted: Which items, and how many.
        parts: With `all`, for more users than one process answers at once.
    """
    apart = parts.partition is not None or parts.ray is not None
    if all is None and apart:
        raise InputError("partition and ray are for all users: give --all OUT")
    if sum(x is not None for x in (user, history, all)) != 1:
        raise InputError("give one of --user U, --history A B C, --all OUT.parquet")
    where, options = place_of(device, threads), wanted.options()
    if all is not None and apart:
        if baseline is not None:
            raise InputError("a baseline answers for all users at once: leave out --partition and --ray")
        parts.write(run, all, device, options | {"events": events})
        return
    recommender = Recommender.load(run, device=device)
    if baseline is not None:
        recommender = recommender.with_baseline(baseline)
    if events is not None:
        recommender = recommender.with_events(events)
    if all is not None:
        rows = recommender.recommend_all(all, **options)
        users = recommender.log.n_users if recommender.prepared is None else recommender.prepared.manifest.users
        print(f"{rows:,} rows for {users:,} users in {all}; {where}")
        return
    show_items("recommendations", recommender.recommend(user, history=history, **options), caption=where)


def show_items(title: str, found: list[Recommendation], *, caption: str | None = None) -> None:
    """One row per item, best first."""
    rows = [[str(n + 1), str(one.item), one.name or "", f"{one.score:z.3f}"] for n, one in enumerate(found)]
    columns, rows = named_columns(["rank", "item", "name", "score"], rows)
    show(title, columns, rows, caption=caption, left=tuple(range(len(columns) - 1)))


def named_columns(columns: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Without the column of names, where no item has one."""
    at = columns.index("name")
    if any(row[at] for row in rows):
        return columns, rows
    return columns[:at] + columns[at + 1 :], [row[:at] + row[at + 1 :] for row in rows]


def by_column(option: str, items: tuple[str, ...] | None, where: tuple[str, ...]) -> Filter | None:
    """Ids, or conditions `column=value` of which those of one column are alternatives."""
    if not where:
        return items
    if items is not None:
        raise InputError(f"give one of --{option} and --{option}-where")
    wanted: dict[str, list[str]] = {}
    for condition in where:
        column, sign, value = condition.partition("=")
        if not sign:
            raise InputError(f"--{option}-where takes column=value, got {condition!r}")
        wanted.setdefault(column, []).append(value)
    return wanted
