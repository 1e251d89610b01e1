"""The OpenAPI document, tried by schemathesis: whatever it allows, and much that it does not, never ends in a 500."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the service needs fastapi: pip install 'prism-sequence[serve]'")
pytest.importorskip("prometheus_client", reason="the service needs it: pip install 'prism-sequence[serve]'")
schemathesis = pytest.importorskip("schemathesis", reason="`make test-services` gets schemathesis")


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Any]:
    from support import tiny

    from prism.recommend.data.splits import split
    from prism.recommend.recommender import Recommender
    from prism.recommend.serve.app import create_app
    from prism.recommend.serve.engine import Engine
    from prism.recommend.serve.service import Limits, Service
    from prism.recommend.serve.stores.sqlite import SqliteStore

    config = replace(tiny.CONFIG, heads=2)
    made = Recommender._untrained(split(tiny.log(), config.protocol), config)
    engine = Engine(made, SqliteStore(tmp_path / "e.db"), capacity=2000)
    engine.warm()
    yield create_app(Service(engine=engine, folder=tmp_path / "tiny", limits=Limits(seconds=60)))
    engine.stop()


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
