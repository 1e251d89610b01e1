"""`prism prepare`: event files of any number and size to partitions by a hash of the user."""

import io
import json
import shutil
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from tyro.conf import OmitArgPrefixes, Positional

from prism.config import at_least, fraction
from prism.errors import InputError
from prism.files import only_one, write_whole
from prism.recommend.data.prepared.chunks import Source, open_sources
from prism.recommend.data.prepared.deal import Dealer, Sorter
from prism.recommend.data.prepared.manifest import ITEMS, LENGTHS, MANIFEST, Manifest, Prepared, is_prepared
from prism.recommend.data.prepared.survey import Survey, survey
from prism.recommend.data.reading import COLUMNS, Columns
from prism.train.settings import read_settings, refuse_others

SETTINGS = "settings.json"


def prepare(
    logs: Positional[tuple[str, ...]],
    out: Path,
    partitions: int = 1024,
    valid: float = 0.1,
    test: float = 0.1,
    columns: OmitArgPrefixes[Columns] = COLUMNS,
    experts: bool = True,
) -> None:
    """Prepares a log of any size for `prism fit`: sorted Parquet partitions by a hash of the user, with counts.

    Run again after it was stopped, it goes on.

    Args:
        logs: Files, folders, patterns, or addresses that polars reads (s3://bucket/events/*.parquet).
        out: Folder for the prepared log.
        partitions: How many. One is in memory at a time.
        valid: Share of events, the latest but for `test`, that validate.
        test: Share of events, the latest of all, that test.
        columns: How the log is read.
        experts: Also count what the simple experts know of it; without, `prism fit` does that first.
    """
    from prism.recommend.runs.expert_files import keep_tables

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    found = prepare_log(
        logs,
        out,
        partitions=partitions,
        shares=(valid, test),
        columns={"user": columns.user, "item": columns.item, "time": columns.time},
        drop_nulls=columns.drop_nulls,
        time_format=columns.time_format,
        say=say,
    )
    if experts:
        keep_tables(found, say)
    made = found.manifest
    print("\n".join(made.notes))
    print(
        f"{out}: {made.events:,} events of {made.users:,} users and {made.items:,} items in {len(made.parts):,} "
        f"partitions; {made.trained:,} events train; next: prism fit {out} --out RUN"
    )


def prepare_log(
    logs: Sequence[str],
    out: Path,
    *,
    partitions: int,
    shares: tuple[float, float] = (0.1, 0.1),
    columns: dict[str, str | None] | None = None,
    drop_nulls: bool = False,
    time_format: str | None = None,
    say: Any = lambda line: None,
) -> Prepared:
    """`prepare` as a function; `say` is called with each line of progress."""
    at_least("partitions", partitions, 1)
    for name, share in zip(("valid", "test"), shares, strict=True):
        fraction(name, share)
    if sum(shares) >= 1:
        raise InputError(f"valid + test must be below 1, got {shares[0]} and {shares[1]}")
    sources, typed = open_sources(logs, columns or dict.fromkeys(("user", "item", "time")))
    settings = {
        "sources": [[source.name, _size(source.name)] for source in sources],
        "columns": sources[0].columns,
        "partitions": partitions,
        "shares": list(shares),
        "drop_nulls": drop_nulls,
        "time_format": time_format,
    }
    with only_one(out):
        if is_prepared(out):
            made = Prepared.open(out)
            refuse_others(out, settings, made.manifest.settings, "choose another --out")
            return made
        work = _workspace(out, settings)
        options: dict[str, Any] = {"drop_nulls": drop_nulls, "time_format": time_format}
        found = survey(sources, work, typed=typed, **options)
        say(f"{found.facts.events:,} events of {found.items.height:,} items in {len(sources)} files")
        dealer = Dealer(work, partitions, found, number_users=not typed and found.facts.number_users)
        dealer.deal(sources, **options, say=say)
        made = _finish(out, work, sources, found, dealer, settings)
        shutil.rmtree(work)
    return made


def _finish(
    out: Path, work: Path, sources: Sequence[Source], found: Survey, dealer: Dealer, settings: dict[str, Any]
) -> Prepared:
    """Sorts the partitions, then writes the tables and last the manifest: a folder that has one is whole."""
    cutoffs = found.cutoffs(*settings["shares"])
    sorter = Sorter(out, work, found.items.height, cutoffs[0])
    some = next(frame for n in range(dealer.parts) if (frame := dealer.read(n)) is not None)
    empty = some.drop("order").clear()
    del some
    for number in range(dealer.parts):
        sorter.add(number, dealer, empty)
    if not sorter.trained.any():
        raise InputError(f"no event comes before {cutoffs[0]}: do all events share one time? nothing could train")
    tables = {ITEMS: sorter.items(found.items), LENGTHS: pl.concat(sorter.lengths)}
    checksums = {}
    for name, table in tables.items():
        buffer = io.BytesIO()
        table.write_parquet(buffer)
        write_whole(out / name, buffer.getvalue())
        checksums[name] = sha256(buffer.getvalue()).hexdigest()
    facts = found.facts
    notes = ["columns: " + ", ".join(f"{role} = {column}" for role, column in sources[0].columns.items()), facts.clock]
    if settings["drop_nulls"]:
        notes.append(f"{facts.dropped:,} events dropped: no user, item or time")
    if facts.grain > 1:
        notes.append(f"cut-offs are at multiples of {facts.grain} seconds")
    manifest = Manifest(
        name=out.name,
        parts=tuple(sorter.parts),
        items=found.items.height,
        candidates=int(np.count_nonzero(sorter.trained)),
        cutoffs=cutoffs,
        notes=tuple(notes),
        settings=settings,
        checksums=checksums,
    )
    write_whole(out / MANIFEST, manifest.to_json())
    return Prepared.open(out)


def _workspace(out: Path, settings: dict[str, Any]) -> Path:
    """The folder of what is on the way; one of another log, or of other settings, is refused."""
    work = out / ".prepare"
    path = work / SETTINGS
    if path.exists():
        before = read_settings(path, f"remove {work}")
        refuse_others(work, settings, before, "choose another --out, or remove it")
    else:
        work.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(settings).encode())
    return work


def _size(name: str) -> int | None:
    """Of a local file: with its name, what tells one log from another."""
    return None if "://" in name else Path(name).stat().st_size
