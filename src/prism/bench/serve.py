"""`prism bench serve`: pairs of event and recommendation per second, in process and over HTTP, all on disk."""

import asyncio
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from prism.bench.load import Load, Users, at_rate, full_speed, give_histories, running
from prism.bench.measure import threads
from prism.bench.report import Claim, show_claims
from prism.config import positive
from prism.display.tables import show
from prism.errors import InputError
from prism.recommend.config import FitConfig
from prism.recommend.data.splits import split
from prism.recommend.data.synthetic import synthetic_log
from prism.recommend.live.pool import SessionPool
from prism.recommend.live.session import Session
from prism.recommend.recommender import Recommender
from prism.recommend.runs.export import export

GROUP = 256
# In which long and short histories are measured over HTTP, one after the other.
TURNS = 3


def serve(
    items: int = 3706,
    users: int = 500,
    dim: int = 64,
    layers: int = 2,
    seconds: float = 10.0,
    rate: float = 1500.0,
    clients: int = 8,
    histories: tuple[int, ...] = (10, 10_000),
    store: str | None = None,
    shards: int = 1,
) -> None:
    """Live users at ML-1M's size: in process, and over HTTP on 127.0.0.1 with the client on the same machine.

    Args:
        items: Items of the model.
        users: Users whose events are sent, at random.
        dim: Width of the model.
        layers: Its blocks.
        seconds: How long to send, each time.
        rate: Pairs per second, sent at random moments.
        clients: Connections that send as fast as they are answered.
        histories: Events that every user has before the clock starts, measured in turns; a tenth of the users, 20
            at least, have them.
        store: redis://… or postgresql://… that is emptied for this; default: a SQLite file that goes afterwards.
        shards: Processes of the service.
    """
    positive(clients=clients, users=users, items=items, dim=dim, layers=layers, shards=shards)
    if not (seconds > 0 and rate > 0):
        raise InputError(f"seconds and rate must be above 0, got {seconds} and {rate}")
    made = live_model(items, dim, layers)
    with threads(1):
        alone, together = in_process(made, histories)
    with TemporaryDirectory() as folder:
        export(made, Path(folder) / "model")
        loads = _over_http(Path(folder), made.model.items, users, seconds, rate, clients, histories, store, shards)
    rows = [
        [f"one user in process, {history:,} events before", "", *(f"{cut:.2f}" for cut in cuts)]
        for history, cuts in alone.items()
    ]
    rows.append([f"in process, batches of {GROUP} users, one thread: events", f"{together:,.0f}", "", "", ""])
    for name, load in loads.items():
        rows.append([name, f"{load.rate:,.0f}", *(f"{cut:.1f}" for cut in load.cuts())])
    title = f"event + ten recommendations: {made.model.items:,} items, D={dim}, {layers} blocks, {users} users"
    show(title, ["", "per second", "median ms", "90th", "99th percentile"], rows)
    show_claims(_claims([cuts[0] for cuts in alone.values()], together, loads, rate, histories))


def live_model(items: int, dim: int, layers: int) -> Recommender:
    """A model of so many items that has not been trained: its speed is that of one that has."""
    config = FitConfig(dim=dim, layers=layers, protocol="leave-one-out")
    made = Recommender._untrained(split(synthetic_log(200, items, 20 * items), config.protocol), config)
    made.fit_experts()
    return made


def in_process(made: Recommender, histories: tuple[int, ...]) -> tuple[dict[int, list[float]], float]:
    """(by events before: median, 90th and 99th percentile of one pair in ms; events per second in batches)."""
    rng, pool = np.random.default_rng(0), SessionPool(made, 1024)
    ids, group = made.log.item_ids[: made.model.items], list(range(GROUP))
    sessions = [made.session(history=ids[rng.integers(len(ids), size=history)].tolist()) for history in histories]

    def one(session: Session) -> None:
        session.update(ids[rng.integers(len(ids))])
        session.recommend(10)

    def batch() -> None:
        pool.update(group, ids[rng.integers(len(ids), size=len(group))].tolist())

    clocks: list[list[float]] = [[] for _ in sessions]
    for _ in range(5):  # in turns: what disturbs one disturbs the others
        for session, clock in zip(sessions, clocks, strict=True):
            clock += _times(lambda session=session: one(session), 100)  # type: ignore[misc]
    cuts = [np.percentile(np.array(clock) * 1e3, [50, 90, 99]).tolist() for clock in clocks]
    return dict(zip(histories, cuts, strict=True)), GROUP / statistics.median(_times(batch, 30))


def _times(work: Callable[[], None], times: int) -> list[float]:
    for _ in range(3):
        work()
    clock = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        clock.append(time.perf_counter() - start)
    return clock


def _over_http(
    folder: Path, items: int, users: int, seconds: float, rate: float, clients: int, histories: tuple[int, ...],
    store: str | None, shards: int,
) -> dict[str, Load]:  # fmt: skip
    loads: dict[str, Load] = {}
    some = max(20, users // 10)

    async def work(port: int) -> None:
        await full_speed(port, Users(items, users, 9), 1.0, clients)  # nobody's first event is measured
        loads[f"over HTTP, {clients} clients, full speed"] = await full_speed(
            port, Users(items, users, 1), seconds, clients
        )
        loads[f"over HTTP, {rate:,.0f} a second"] = await at_rate(port, Users(items, users, 2), seconds, rate)

        for history in histories:
            await give_histories(port, items, some, history, name=f"after-{history}-")
        for turn in range(TURNS):  # what disturbs one history disturbs the others
            for history in histories:
                users_of_it = Users(items, some, 3 + turn, name=f"after-{history}-")
                more = await at_rate(port, users_of_it, seconds / TURNS, rate, seed=turn)
                name = f"the same, {some} users with {history:,} events before"
                loads[name] = loads[name] + more if name in loads else more

    more = ("--shards", str(shards)) if shards > 1 else ()
    with running(folder / "model", store or str(folder / "events.db"), *more) as port:
        asyncio.run(work(port))
    return loads


def _claims(
    alone: list[float], together: float, loads: dict[str, Load], rate: float, histories: tuple[int, ...]
) -> list[Claim]:
    fast, steady, *lengths = loads.values()
    _, ninety, last = steady.cuts()
    claims = [
        Claim(text="in process, one user: median ms", measured=max(alone), most=0.5),
        Claim(text=f"in process, batches of {GROUP}: events per second", measured=together, least=20_000),
        Claim(text="over HTTP at full speed: pairs per second", measured=fast.rate, least=1000),
        Claim(text=f"over HTTP at {rate:,.0f} per second: 90th percentile, ms", measured=ninety, most=7),
        Claim(text=f"over HTTP at {rate:,.0f} per second: 99th percentile, ms", measured=last, most=20),
    ]
    if len(lengths) > 1:
        text = f"median after {histories[-1]:,} events / after {histories[0]:,}"
        claims.append(Claim(text=f"in process, {text}", measured=alone[-1] / alone[0], most=1.1))
        claims.append(Claim(text=f"over HTTP, {text}", measured=lengths[-1].cuts()[0] / lengths[0].cuts()[0], most=1.1))
    return claims
