"""Made-up logs of other shapes than those that `prism` ships, to see what `prism fit` makes of them.

    python examples/other_logs.py news news.csv        # or another name of LOGS; --seed 1 for another log of that shape
    prism fit news.csv --out RUN && prism evaluate RUN

docs/results.md has what came of eleven of them.
"""

from collections.abc import Callable, Iterator
from typing import Annotated

import numpy as np
import polars as pl
import tyro

BEGIN, DAY = 1_600_000_000, 86_400
Event = tuple[int, int, float]
"""User, item, seconds since BEGIN."""
Random = np.random.Generator


def news(r: Random) -> Iterator[Event]:
    """Articles that are old after days, in twelve sections; hardly anyone reads one twice."""
    articles, users, events = 4000, 4000, 100_000
    born, section = np.sort(r.uniform(0, 60, articles)), r.integers(12, size=articles)
    liked, taste = r.gamma(0.4, size=articles), r.dirichlet(np.full(12, 0.3), users)
    busy = r.dirichlet(np.full(users, 0.6))
    days = np.sort(r.uniform(0.5, 60, events))
    read: list[set[int]] = [set() for _ in range(users)]
    for day, user in zip(days, r.choice(users, events, p=busy), strict=True):
        first, last = np.searchsorted(born, [day - 30, day])
        chance = liked[first:last] * np.exp(-(day - born[first:last]) / 9) * (0.05 + taste[user][section[first:last]])
        while True:
            article = first + r.choice(last - first, p=chance / chance.sum())
            if article not in read[user] or r.random() < 0.1:
                break
        read[user].add(article)
        yield user, article, day * DAY


def wide(r: Random) -> Iterator[Event]:
    """40,000 items of 400 topics, three events each; everyone has two topics."""
    users, items, topics = 12_000, 40_000, 400
    topic = r.integers(topics, size=items)
    members = [np.flatnonzero(topic == k) for k in range(topics)]
    for user in range(users):
        mine, day = r.integers(topics, size=2), r.uniform(0, 300)
        for _ in range(1 + r.geometric(1 / 9)):
            day += r.exponential(10)
            of = members[mine[r.integers(2)]]
            yield user, of[int(len(of) * r.random() ** 2.5)], day * DAY


def short(r: Random) -> Iterator[Event]:
    """Two or three events of each user; the next is one of six successors or anything popular."""
    users, items = 30_000, 2_000
    successors, popular = r.integers(items, size=(items, 6)), r.permutation(items)
    for user in range(users):
        now, item = r.uniform(0, 200) * DAY, popular[int(items * r.random() ** 3)]
        for _ in range(2 + (r.random() < 0.5)):
            yield user, item, now
            now += r.exponential(600)
            follows = r.random() < 0.5
            item = successors[item, int(6 * r.random() ** 2)] if follows else popular[int(items * r.random() ** 3)]


def music(r: Random) -> Iterator[Event]:
    """300 listeners to a few artists of their own, in sessions: half of them parts of an album in order."""
    artists, favourites = 800, 15
    popular = r.permutation(artists)
    for user in range(300):
        mine, liked = popular[(artists * r.random(favourites) ** 2).astype(int)], r.gamma(0.5, size=favourites)
        now = r.uniform(0, 50) * DAY
        for _ in range(int(10 + r.exponential(40))):
            now += r.exponential(1.5 * DAY)
            if r.random() < 0.1:
                mine[r.integers(favourites)] = popular[int(artists * r.random() ** 2)]
            artist = mine[r.choice(favourites, p=liked / liked.sum())]
            if r.random() < 0.5:
                track = r.integers(10)
                heard = [artist * 10 + (track + n) % 10 for n in range(r.integers(2, 10))]
            else:
                count = r.integers(2, 10)
                heard = [
                    mine[r.choice(favourites, p=liked / liked.sum())] * 10 + int(10 * r.random() ** 2)
                    for _ in range(count)
                ]
            for track in heard:
                now += 200 + r.exponential(30)
                yield user, track, now


def playlists(r: Random) -> Iterator[Event]:
    """Every user is a list: items of three genres in no order, none twice, made within minutes."""
    items, genres = 5000, 50
    genre = r.integers(genres, size=items)
    members = [np.flatnonzero(genre == k) for k in range(genres)]
    liked = [r.dirichlet(np.full(len(of), 0.3)) + 1e-5 for of in members]
    for user in range(6000):
        share, mine = r.dirichlet(np.full(3, 0.5)), r.integers(genres, size=3)
        now, had = r.uniform(0, 300) * DAY, set[int]()
        for _ in range(int(5 + r.exponential(15))):
            k = mine[r.choice(3, p=share)]
            item = r.choice(members[k], p=liked[k] / liked[k].sum())
            if item not in had:
                had.add(item)
                yield user, item, now
                now += r.exponential(20)


def second(r: Random) -> Iterator[Event]:
    """What comes next hangs on the latest two of 200 items."""
    items = 200
    after = r.integers(items, size=(items, items, 3))
    for user in range(800):
        a, b = r.integers(items, size=2)
        now = r.uniform(0, 100) * DAY
        for _ in range(int(20 + r.exponential(80))):
            item = after[a, b, int(3 * r.random() ** 2)] if r.random() < 0.7 else r.integers(items)
            yield user, item, now
            now += r.exponential(DAY / 2)
            a, b = b, item


def communities(r: Random) -> Iterator[Event]:
    """Two halves of the users share the items, and each has a chain of its own."""
    items = 1500
    successors, popular = r.integers(items, size=(2, items, 5)), [r.permutation(items) for _ in range(2)]
    for user in range(1500):
        half = user % 2
        item, now = popular[half][int(items * r.random() ** 2)], r.uniform(0, 100) * DAY
        for _ in range(int(10 + r.exponential(40))):
            follows = r.random() < 0.6
            item = (
                successors[half, item, int(5 * r.random() ** 1.5)]
                if follows
                else popular[half][int(items * r.random() ** 2)]
            )
            yield user, item, now
            now += r.exponential(DAY / 2)


def weekly(r: Random) -> Iterator[Event]:
    """Every user has items for every day of the week, taken together at an hour of their own."""
    items = 2500
    for user in range(800):
        plan = [r.integers(items, size=r.integers(1, 5)) for _ in range(7)]
        hour, start = r.uniform(7, 21, 7), r.integers(0, 60)
        for day in range(start, start + int(20 + r.exponential(60))):
            if r.random() < 0.4:
                continue
            for usual in plan[day % 7]:
                item = usual
                if r.random() < 0.3:
                    item = r.integers(items) if r.random() < 0.5 else plan[r.integers(7)][0]
                yield user, item, day * DAY + hour[day % 7] * 3600 + r.normal(0, 1200)


def tiny(r: Random) -> Iterator[Event]:
    """Fifty users: a chain, favourites, and what is popular."""
    items = 120
    successors = r.integers(items, size=(items, 4))
    for user in range(50):
        item, now, mine = r.integers(items), r.uniform(0, 30) * DAY, r.integers(items, size=4)
        for _ in range(int(15 + r.exponential(20))):
            which = r.random()
            if which < 0.45:
                item = successors[item, int(4 * r.random() ** 2)]
            else:
                item = mine[r.integers(4)] if which < 0.7 else int(items * r.random() ** 2)
            yield user, item, now
            now += r.exponential(DAY)


def bots(r: Random) -> Iterator[Event]:
    """Half of the events are of twenty crawlers that go through the catalogue; people have three subjects each."""
    users, items = 1500, 2000
    subject = r.integers(40, size=items)
    members, count = [np.flatnonzero(subject == k) for k in range(40)], 0
    for user in range(users):
        now, mine, had = r.uniform(0, 80) * DAY, r.integers(40, size=3), list[int]()
        for _ in range(int(5 + r.exponential(25))):
            if had and r.random() < 0.3:
                item = had[int(len(had) * r.random())]
            else:
                of = members[mine[r.integers(3)]]
                item = of[int(len(of) * r.random() ** 2)]
                had.append(item)
            yield user, item, now
            now += r.exponential(DAY / 2)
            count += 1
    for bot in range(20):
        now, item = r.uniform(0, 5) * DAY, r.integers(items)
        for _ in range(count // 20):
            item = (item + 1) % items if r.random() < 0.5 else r.integers(items)
            yield users + bot, item, now
            now += 90 * DAY / (count // 20)


def popular(r: Random) -> Iterator[Event]:
    """Nothing but popularity."""
    items = 1000
    liked = r.dirichlet(np.full(items, 0.3))
    for user in range(3000):
        now = r.uniform(0, 100) * DAY
        for item in r.choice(items, int(5 + r.exponential(20)), p=liked):
            yield user, item, now
            now += r.exponential(DAY)


def course(r: Random) -> Iterator[Event]:
    """Everybody goes through 300 lessons, nearly in order."""
    items = 300
    for user in range(2500):
        item = 0 if r.random() < 0.7 else r.integers(items)
        now = r.uniform(0, 200) * DAY
        for _ in range(int(5 + r.exponential(30))):
            yield user, item % items, now
            now += r.exponential(DAY)
            step = r.random()
            item += 1 if step < 0.75 else 2 if step < 0.85 else 0 if step < 0.92 else -1 - int(r.exponential(5))


LOGS: dict[str, Callable[[Random], Iterator[Event]]] = {
    made.__name__: made
    for made in (news, wide, short, music, playlists, second, communities, weekly, tiny, bots, popular, course)
}


def main(name: Annotated[str, tyro.conf.arg(metavar="|".join(LOGS))], out: str, /, seed: int = 0) -> None:
    """Writes one of LOGS as a CSV file of user, item and time."""
    users, items, times = zip(*LOGS[name](np.random.default_rng(seed)), strict=True)
    frame = pl.DataFrame({"user": users, "item": items, "time": np.array(times)})
    whole = (BEGIN + pl.col("time")).cast(pl.Int64)
    frame.sort("time", maintain_order=True).with_columns(time=whole).write_csv(out)


if __name__ == "__main__":
    tyro.cli(main)
