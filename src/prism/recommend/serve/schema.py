"""What requests and answers look like; FastAPI makes the OpenAPI document of it."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from prism.recommend.serve.requests import MOST_EVENTS

Id = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
# Seconds since 1970, up to the year 5138.
Time = Annotated[int, Field(ge=0, le=10**11)]
Count = Annotated[int, Field(ge=1, le=1000)]
Filter = list[Id] | dict[str, str | list[str]]


Name = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$")]
Value = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]
Cell = int | float | bool | Value | Annotated[list[Value], Field(max_length=100)]


class Strict(BaseModel):
    """A misspelt field is refused."""

    # an id that is a number in the log is one in an answer too, and may be sent back as it came
    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


class EventIn(Strict):
    """Someone took an item."""

    user: Id = Field(examples=["u42"])
    item: Id = Field(examples=["22423"])
    id: Id | None = Field(None, description="Makes the event count once, however often it is sent.", examples=["o-17"])
    time: Time | None = Field(
        None,
        description="Seconds since 1970; default: now. Far ahead of the service's clock it is refused (--future).",
        examples=[1323436800],
    )


class RecommendOptions(Strict):
    """What may be recommended."""

    k: Count = 10
    exclude_seen: bool | None = Field(None, description="Leave out what the user took; default: as the model does.")
    allow: Filter | None = Field(None, description="Only these items, or {column: value or values}.", max_length=10_000)
    deny: Filter | None = Field(None, description="Never these.", max_length=10_000)
    at: Time | None = Field(None, description="When the answer is for; default: now where the model uses time.")


class EventsIn(Strict):
    """One event or many; with `recommend`, the answer has recommendations for every user of them."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"events": [{"user": "u42", "item": "22423", "id": "o-17"}], "recommend": {"k": 5}},
                {"events": [{"user": "u42", "item": "85123A", "id": "o-18", "time": 1323436800}]},
            ]
        }
    )
    events: list[EventIn] = Field(min_length=1, max_length=MOST_EVENTS)
    recommend: RecommendOptions | None = None


class RecommendationsIn(RecommendOptions):
    """Users to recommend to."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"users": ["u42", "u43"], "k": 5, "deny": ["22423"]}]})
    users: list[Id] = Field(min_length=1, max_length=MOST_EVENTS, examples=[["u42"]])


class RecommendationIn(BaseModel):
    """One user to recommend to, as a query string says it."""

    user: Id
    k: Count = 10
    exclude_seen: bool | None = None
    at: Time | None = None


class EventOut(BaseModel):
    """What became of an event; it is on the disk."""

    id: str
    seq: int = Field(description="Its number among the user's events.")
    new: bool = Field(description="False: an event of this id was there already.")
    known: bool = Field(description="Whether the model knows the item; if not, the event waits for one that does.")


class ItemOut(BaseModel):
    """An item and its score."""

    item: str | int
    score: float
    name: str | None = None


class UserOut(BaseModel):
    """Recommendations for one user, best first."""

    user: str
    items: list[ItemOut]


class EventsOut(BaseModel):
    """The answer to events."""

    events: list[EventOut]
    recommendations: list[UserOut] | None = None


class RecommendationsOut(BaseModel):
    """The answer to a question."""

    model: str
    recommendations: list[UserOut]


class SimilarOut(BaseModel):
    """Items near one."""

    item: str
    items: list[ItemOut]


class ReasonOut(BaseModel):
    """An event of the history and how much the score falls without it."""

    item: str | int
    name: str | None
    effect: float
    age: int


class EventFacts(BaseModel):
    """An event of a user's history."""

    item: str
    name: str | None
    time: int


class UserFacts(BaseModel):
    """What is kept of a user."""

    user: str
    model: str = Field(description="The id of the model that answers.")
    events: int
    first: int = Field(description="When the first event was, in seconds since 1970.")
    latest: int
    age: int = Field(description="Seconds since the latest event.")
    state_bytes: int = Field(description="Size of the state; 0: the model knows none of the user's items.")
    history: list[EventFacts] = Field(description="The latest hundred events, in order of time.")


class Forgotten(BaseModel):
    """What was removed."""

    user: str
    removed_events: int


class ItemSet(BaseModel):
    """What became of an item."""

    item: str
    available: bool
    known: bool = Field(description="Whether the model was trained with it.")
    recommended: bool = Field(
        description="Whether it can be recommended now: it is available, and the model knows it or items like it. "
        "If the model does not, what was told waits for one that does."
    )


class ItemFacts(ItemSet):
    """An item that the model knows, or of which something was told."""

    name: str = Field(description="Its id, where it has no name.")


class ModelFacts(BaseModel):
    """The model that answers."""

    id: str
    name: str = Field(description="The name of its folder.")
    items: int
    mixer: str
    baseline: str | None = Field(description="The simple baseline that answers in its place.")
    probabilities: bool = Field(description="Whether scores are logarithms of probabilities.")
    since: int = Field(description="When it began to answer, in seconds since 1970.")
    users_in_memory: int
    state_bytes: int = Field(description="Size of one user's state.")


class Health(BaseModel):
    """The process runs."""

    status: str = Field(examples=["ok"])
    time: int


class Ready(BaseModel):
    """Events can be stored."""

    status: str = Field(examples=["ready"])


class ItemIn(Strict):
    """What is told of an item; what is left out stays as it is."""

    item: Id
    available: bool | None = Field(
        None,
        description="Whether it may be recommended; default: as it is, and true where nothing else is said of it, or "
        "nothing was before.",
    )
    name: Name | None = Field(None, description="What to show for it, in place of what the model's folder says.")
    features: dict[Id, Cell] | None = Field(
        None,
        description="Columns of the table of items that the model was trained with, in place of all that were told "
        "before; where the table has the item, its other columns stay. Several values of one cell as a list. An item "
        "that the model does not know is placed beside those that share values with it: it can be recommended at once.",
        max_length=50,
    )


class ItemsIn(Strict):
    """Items to change."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"items": [{"item": "22423", "available": False}]},
                {"items": [{"item": "new-1", "name": "Red tea cup", "features": {"department": ["kitchen", "gifts"]}}]},
            ]
        }
    )
    items: list[ItemIn] = Field(min_length=1, max_length=MOST_EVENTS)


class ModelIn(Strict):
    """Another model, by the name of its folder beside the one that is served."""

    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=100, examples=["model-2"])


class Problem(BaseModel):
    """An error, as application/problem+json (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
