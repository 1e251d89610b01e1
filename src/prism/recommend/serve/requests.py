"""What the web asks of the engine, and what it gets back."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prism.errors import InputError
from prism.recommend.answer.choose import Filter
from prism.recommend.serve.catalogue import Catalogue
from prism.recommend.serve.labels import Found, Labels
from prism.recommend.serve.stores.base import Event, Stored, User

# Events, and questions, of one request.
MOST_EVENTS = 1000


class Busy(Exception):
    """More requests wait than are accepted."""


class Wanted(NamedTuple):
    """Filters of a request, and what they let through of one catalogue."""

    allow: Filter | None
    deny: Filter | None
    catalogue: Catalogue
    mask: Tensor

    def of(self, catalogue: Catalogue) -> Tensor:
        """The same of another catalogue: the model, or the tenant's items, may have been changed meanwhile."""
        if catalogue is self.catalogue:
            return self.mask
        try:
            return catalogue.permits(self.allow, self.deny)
        except InputError:  # none of it is known any more
            return torch.zeros_like(catalogue.mask)


class Question(NamedTuple):
    """Recommendations for one user."""

    user: User
    k: int = 10
    exclude_seen: bool | None = None
    wanted: Wanted | None = None
    """Which items the request permits; None: all."""
    at: int | None = None


class Answer(NamedTuple):
    """What became of the events, and the recommendations of each question."""

    stored: list[Stored]
    known: list[bool]
    """Whether the model knows each event's item."""
    found: list[Found]
    labels: Labels
    """Of the items whose codes those are: the model may have been changed since."""


class Ask:
    """One request: events to take in, then questions to answer; or any other work on the store (`call`)."""

    __slots__ = ("answer", "call", "events", "loop", "questions")

    def __init__(
        self,
        *,
        events: Sequence[Event] = (),
        questions: Sequence[Question] = (),
        call: Callable[[], Any] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ):
        self.events, self.questions, self.call, self.loop = events, questions, call, loop
        self.answer: Any = Future() if loop is None else loop.create_future()

    @property
    def size(self) -> int:
        """Users that it may need, at most."""
        return len(self.events) + len(self.questions)


Outcome = tuple[Ask, Any, BaseException | None]


def deliver(outcomes: list[Outcome]) -> None:
    """Hands out answers; those of one event loop are sent there together: it is woken once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
    for outcome in outcomes:
        loop = outcome[0].loop
        if loop is None:
            _settle([outcome])
        else:
            by_loop.setdefault(loop, []).append(outcome)
    for loop, part in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_settle, part)


def _settle(outcomes: list[Outcome]) -> None:
    for ask, result, error in outcomes:
        if ask.answer.done():  # given up meanwhile
            continue
        if error is None:
            ask.answer.set_result(result)
        else:
            ask.answer.set_exception(error)
