"""The OpenAPI document, tried by schemathesis: whatever it allows, and much that it does not, never ends in a 500."""
# ruff: noqa: E402  (what may be absent is asked for first)

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the service needs fastapi: pip install 'prism-sequence[serve]'")
pytest.importorskip("prometheus_client", reason="the service needs it: pip install 'prism-sequence[serve]'")
pytest.importorskip("httpx", reason="the tests of the service need httpx: pip install httpx")
schemathesis = pytest.importorskip("schemathesis", reason="`make test-services` gets schemathesis")

from support.service import models, service

from prism.recommend.serve.app import create_app


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Any]:
    made = service(models(tmp_path / "models"), tmp_path / "e.db")
    yield create_app(made)
    made.engine.stop()


@pytest.mark.filterwarnings("ignore")
def test_no_request_that_schemathesis_finds_ends_in_an_error_of_the_service(app: Any) -> None:
    from hypothesis import HealthCheck, given, settings

    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    tried = 0
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            nonlocal tried
            tried += 1
            answer = case.call()
            assert answer.status_code < 500, (case.method, case.path, answer.text)

        ask()
    assert tried > 50
