"""Errors as application/problem+json (RFC 9457): what went wrong, in one place for every way a request can take."""

from http import HTTPStatus
from typing import Any

from pydantic import ValidationError

from prism.errors import InputError
from prism.recommend.serve import schema
from prism.recommend.serve.requests import Busy
from prism.recommend.serve.stores.base import StoreError

MEDIA = "application/problem+json"


class Refused(Exception):
    """An answer with a status of its own."""

    def __init__(self, status: int, detail: str):
        super().__init__(detail)
        self.status = status


def problem(status: int, detail: str) -> bytes:
    """The body of an error."""
    return schema.Problem(title=HTTPStatus(status).phrase, status=status, detail=detail).model_dump_json().encode()


def invalid(where: str, error: ValidationError) -> Refused:
    """The first thing that a request's body or query has wrong."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return Refused(422, in_a_line(first, where))


def in_a_line(first: Any, *where: str) -> str:
    """One of pydantic's errors as a line."""
    path = [*where, *map(str, first["loc"])]
    hint = "; a time is in whole seconds since 1970" if path[-1] in ("time", "at") else ""
    return f"{'.'.join(path)}: {first['msg']}{hint}"


def status_of(error: Exception) -> tuple[int, str] | None:
    """(status, detail) of an error that has one; None: it is the service's own fault."""
    match error:
        case Refused():
            return error.status, str(error)
        case InputError():
            return 422, str(error)
        case Busy():
            return 503, "too many requests wait: try again in a moment"
        case StoreError():
            return 503, f"the store does not take this now: {error}"
        case TimeoutError():
            return 504, "the answer took too long"
        case _:
            return None
