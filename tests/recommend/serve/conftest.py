"""What the tests of the service share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def client(model: Path, tmp_path: Path) -> Iterator[Any]:
    """Of a service of the module's `model`, with a store of its own; `client.service` is what it serves."""
    from fastapi.testclient import TestClient
    from support.service import service

    from prism.recommend.serve.app import create_app

    made = service(model, tmp_path / "events.db")
    with TestClient(create_app(made)) as test:
        test.service = made
        yield test
    made.engine.stop()
