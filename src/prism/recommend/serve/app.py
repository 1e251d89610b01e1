"""The web application: FastAPI's document and endpoints behind `Admission`; nothing of a request is trusted."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from prism.errors import InputError
from prism.recommend.serve import schema
from prism.recommend.serve.admission import Admission
from prism.recommend.serve.answers import Answers
from prism.recommend.serve.endpoints import Endpoints
from prism.recommend.serve.problems import MEDIA, Refused, in_a_line, problem, status_of
from prism.recommend.serve.requests import Busy
from prism.recommend.serve.service import Service
from prism.recommend.serve.stores.base import StoreError

ABOUT = """Live recommendations: events in, the items most likely to come next out.

Where the service has keys, every request needs one, in the header `X-API-Key`; a key's users, events and what it tells
of items are its tenant's alone. An event is answered when it is on the disk; one with an `id` counts once, however
often it is sent. Times are whole seconds since 1970. Errors are `application/problem+json`."""
STATIC = Path(__file__).parent / "static"
ERRORS = (400, 401, 403, 404, 408, 413, 421, 422, 429, 503, 504)


def create_app(service: Service, origins: tuple[str, ...] = ()) -> Any:
    """The application with all its endpoints; pages of `origins` may use it from a browser (none: CORS is off)."""
    app = FastAPI(title="prism", version="1", description=ABOUT, docs_url=None, redoc_url=None)
    answers = Answers(service)
    _routes(app, Endpoints(service, answers), service)
    _handlers(app)
    app.mount("/", Page(directory=STATIC, html=True), name="page")
    outer: Any = Admission(app, service, answers)
    if origins:
        headers = ["content-type", "x-api-key"]
        outer = CORSMiddleware(outer, origins, allow_methods=["GET", "POST", "PUT", "DELETE"], allow_headers=headers)
    return outer


class Page(StaticFiles):
    """The page's files, which load nothing from elsewhere and cannot be framed."""

    def file_response(self, *args: Any, **named: Any) -> Response:
        """With headers by which the browser refuses foreign scripts and frames."""
        response = super().file_response(*args, **named)
        response.headers["Content-Security-Policy"] = (
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
            "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
        )
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response


def _routes(app: FastAPI, ends: Endpoints, service: Service) -> None:
    def tenant(x_api_key: Annotated[str | None, Header(max_length=200)] = None) -> str:
        found = service.keys.tenant(x_api_key)
        if found is None:
            raise Refused(401, "the header X-API-Key has no key of this service")
        return found

    def operator(x_api_key: Annotated[str | None, Header(max_length=200)] = None) -> str:
        found = tenant(x_api_key)
        if not service.keys.operates(x_api_key):
            raise Refused(403, "the model is all tenants': only a key of `prism serve-key FILE --operator` changes it")
        return found

    errors = {code: {"model": schema.Problem, "content": {MEDIA: {}}} for code in ERRORS}
    routes: list[tuple[str, str, Callable[..., Any]]] = [
        ("POST", "/events", ends.events),
        ("POST", "/recommendations", ends.recommendations),
        ("GET", "/recommendations", ends.recommendation),
        ("GET", "/similar", ends.similar),
        ("GET", "/because", ends.because),
        ("GET", "/users/{user:path}", ends.user),
        ("DELETE", "/users/{user:path}", ends.forget),
        ("GET", "/items", ends.items),
        ("PUT", "/items", ends.set_items),
        ("GET", "/model", ends.model),
        ("POST", "/model", ends.swap),
    ]
    for method, path, endpoint in routes:
        made = with_tenant(endpoint, operator if endpoint == ends.swap else tenant)
        app.add_api_route(path, made, methods=[method], responses=errors)  # type: ignore[arg-type]
    app.add_api_route("/health", ends.health, methods=["GET"])
    app.add_api_route("/metrics", ends.metrics, methods=["GET"], response_class=PlainTextResponse)
    ready: dict[int | str, Any] = {200: {"model": schema.Ready}, 503: errors[503]}
    app.add_api_route("/ready", ends.ready, methods=["GET"], responses=ready, response_model=None)
    for path, endpoint in (("/health", ends.health), ("/ready", ends.ready)):  # as load balancers ask
        app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False, response_model=None)


def with_tenant(endpoint: Callable[..., Any], tenant: Callable[..., str]) -> Callable[..., Any]:
    """The endpoint, its argument `tenant` taken from the request's key."""

    async def call(*args: Any, **named: Any) -> Any:
        return await endpoint(*args, **named)

    signature = inspect.signature(endpoint, eval_str=False)
    given = [
        one.replace(annotation=Annotated[str, Depends(tenant)], default=inspect.Parameter.empty)
        if name == "tenant"
        else one
        for name, one in signature.parameters.items()
    ]
    ordered = sorted(given, key=lambda one: one.default is not inspect.Parameter.empty)
    call.__signature__ = signature.replace(parameters=ordered)  # type: ignore[attr-defined]
    call.__name__, call.__doc__ = endpoint.__name__, endpoint.__doc__
    return call


def _handlers(app: FastAPI) -> None:
    async def wrong(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return _problem(422, in_a_line(error.errors()[0]))

    async def http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _problem(error.status_code, str(error.detail))

    async def known(_: Request, error: Exception) -> Response:
        found = status_of(error)
        assert found is not None
        return _problem(*found)

    app.add_exception_handler(RequestValidationError, wrong)
    app.add_exception_handler(HTTPException, http)
    for kind in (Refused, InputError, Busy, StoreError, TimeoutError):
        app.add_exception_handler(kind, known)


def _problem(status: int, detail: str) -> Response:
    return Response(problem(status, detail), status, media_type=MEDIA)
