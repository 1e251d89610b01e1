"""The service on a device that is not the CPU."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("fastapi", reason="the service needs fastapi: pip install 'prism-sequence[serve]'")
pytest.importorskip("prometheus_client", reason="the service needs it: pip install 'prism-sequence[serve]'")
pytest.importorskip("uvicorn", reason="the service needs uvicorn: pip install 'prism-sequence[serve]'")
pytest.importorskip("httpx", reason="the tests of the service need httpx: pip install httpx")

if not hasattr(torch._C, "_acc"):
    pytest.skip("this PyTorch knows no devices made in Python", allow_module_level=True)

from fastapi.testclient import TestClient
from support.far import far_device
from support.service import expected, items, models, send, service

from prism.recommend.serve.app import create_app


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models(tmp_path_factory.mktemp("models"))


def test_a_service_on_another_device_answers_as_on_the_cpu_stays_there_and_shares_its_store(
    model: Path, tmp_path: Path
) -> None:
    history: list[str] = []
    for device in ("far", "cpu", "far"):
        with far_device():
            made = service(model, tmp_path / "e.db", device=device)
        with far_device(), TestClient(create_app(made)) as test:
            for _ in range(7):  # past a snapshot, which the next one begins from
                n = len(history)
                history.append(str(7 * n % 50))
                answer = send(test, ("u", history[-1], f"e{n}", 20 + n), recommend={"k": 5})
                assert items(answer) == expected(model, history, 5)
            assert made.engine.rebuilt == 0
            assert test.post("/model", json={"name": "two"}).json()["name"] == "two"
            assert str(made.engine.recommender.device).startswith(device)
            assert items(test.get("/recommendations?user=u").json()) == expected(model.parent / "two", history)
        made.engine.stop()
