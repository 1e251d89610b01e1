"""The commands of a model in use: `prism refit`, `export`, `update`, `similar` and `because`."""

from dataclasses import asdict
from pathlib import Path

from tyro.conf import OmitArgPrefixes, Positional

from prism.display.tables import show
from prism.errors import InputError
from prism.recommend.commands.recommend import by_column, named_columns, show_items
from prism.recommend.data.known import load
from prism.recommend.data.merge import Merged, items_alone, merge
from prism.recommend.data.reading import COLUMNS, Columns, Reading
from prism.recommend.recommender import Recommender


def refit(run: Positional[Path], out: Path | None = None, device: str | None = None) -> None:
    """Trains a run's model again, on all events, test ones included, for as many epochs as validation found best.

    Args:
        run: A folder that `prism fit` made.
        out: Folder for the new run; default: RUN-all.
        device: Where to train, e.g. cpu or cuda; default: a GPU where there is one.
    """
    from prism.recommend.runs.refit import best_epochs
    from prism.recommend.runs.refit import refit as again

    target = out or run.with_name(f"{run.name}-all")
    epochs = best_epochs(run)
    when = f"after {epochs} epoch{'s' * (epochs > 1)}" if epochs else "before the first epoch, with the experts alone"
    print(f"{run}: validation was best {when}", flush=True)
    made = again(run, target, device=device)
    print(f"{target}: trained on all {made.log.n_events:,} events; next: prism export {target} MODEL")


def export(run: Positional[Path], model: Positional[Path], baseline: str | None = None) -> None:
    """Writes a model to serve or give away: weights, items and config with checksums, and no user's events.

    Args:
        run: A folder that `prism fit`, `refit` or `update` made.
        model: The folder to write; it must be new.
        baseline: Let a simple baseline answer in place of the model, where `prism evaluate` finds it ahead.
    """
    from prism.recommend.runs.export import export as write

    recommender = Recommender.load(run, device="cpu")
    if recommender.id is not None:
        raise InputError(f"{run} is an exported model already: copy the folder")
    about = write(recommender if baseline is None else recommender.with_baseline(baseline), model)
    size = sum(path.stat().st_size for path in model.iterdir()) / 2**20
    print(f"{model}: model {about['id']} of {about['items']:,} items, {size:.1f} MB; next: prism serve {model}")


def update(
    run: Positional[Path],
    events: str | None = None,
    items: Path | None = None,
    out: Path | None = None,
    epochs: int = 1,
    lr: float | None = None,
    columns: OmitArgPrefixes[Columns] = COLUMNS,
    device: str | None = None,
) -> None:
    """Trains a run further on later events, adds new items, and reports what changed; the result is a new run.

    Args:
        run: A folder that `prism fit`, `refit`, `update` or `export` made.
        events: The new events: a file or pattern, as `prism fit` takes it.
        items: A table about items; those that no event has are added too.
        out: Folder for the updated run; default: RUN-updated, or the first free name RUN-updated-2, …
        epochs: Passes over the histories of users with new events.
        lr: Learning rate; default: a tenth of what the run was trained with.
        columns: How the new events are read; columns that are not named are those of the run's log, or guessed.
        device: Where to train, e.g. cpu or cuda; default: a GPU where there is one.
    """
    from prism.recommend.runs.update import update as learn

    if events is None and items is None:
        raise InputError("nothing to learn from: give --events NEW, --items TABLE, or both")
    before = Recommender.load(run, device=device)
    before.refuse_sample("update")
    merged = _merged(before, events, items, columns)
    target = out or _free(run.with_name(f"{run.name}-updated"))
    _, change = learn(before, merged, target, epochs=epochs, lr=lr, device=device)
    print("\n".join([*change.lines(), f"{target}: the updated run; {run} is as it was"]))


def _merged(before: Recommender, events: str | None, items: Path | None, columns: Columns) -> Merged:
    log, taken = before.log, None
    if events is not None:
        later = load(events, Reading(**asdict(columns)), later=True, usual=log.columns)
        print("\n".join(later.notes), flush=True)
        taken = merge(log, later)
        log = taken.log
    if items is None:
        assert taken is not None
        return taken
    added = merge(log, items_alone(items, item=columns.item, usual=log.columns))
    return added if taken is None else Merged(log=added.log, new=taken.new, known=taken.known)


def similar(
    run: Positional[Path],
    item: Positional[str],
    k: int = 10,
    allow_where: tuple[str, ...] = (),
    device: str | None = None,
) -> None:
    """The items most similar to one: taken near it by many users, or with a similar row in the model's item table.

    Args:
        run: A folder that `prism fit` or `prism export` made.
        item: An item's id.
        k: How many.
        allow_where: Only items whose table has these values, as column=value.
        device: Where the model runs, e.g. cpu or cuda; default: a GPU where there is one.
    """
    recommender = Recommender.load(run, device=device)
    show_items(f"similar to {item}", recommender.similar(item, k=k, allow=by_column("allow", None, allow_where)))


def because(
    run: Positional[Path],
    item: Positional[str],
    user: str | None = None,
    history: tuple[str, ...] | None = None,
    events: str | None = None,
    last: int = 20,
    k: int = 5,
    device: str | None = None,
) -> None:
    """Why an item is recommended: how far its score falls without each event of the history.

    Args:
        run: A folder that `prism fit` or `prism export` made.
        item: The item that is recommended.
        user: A user of the run's log, or of `events`.
        history: Items of anyone, oldest first.
        events: A log of events that came after training.
        last: How many of the latest events are tried.
        k: How many to show.
        device: Where the model runs, e.g. cpu or cuda; default: a GPU where there is one.
    """
    from prism.recommend.answer.because import because as reasons

    recommender = Recommender.load(run, device=device)
    if events is not None:
        recommender = recommender.with_events(events)
    found = reasons(recommender, item, user, history=history, last=last, k=k)
    rows = [[str(one.item), one.name or "", str(one.age), f"{one.effect:+.3f}"] for one in found]
    columns = ["item", "name", "events ago", "score with it − without"]
    show(f"{item} because of", *named_columns(columns, rows))


def _free(path: Path) -> Path:
    """`path`, or the first of path-2, path-3, … that does not exist."""
    names = (path if n == 1 else path.with_name(f"{path.name}-{n}") for n in range(1, 10_000))
    return next(name for name in names if not name.exists())
