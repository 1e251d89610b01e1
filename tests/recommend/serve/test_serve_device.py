"""The service on a device that is not the CPU, and on one that is not there."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("fastapi", reason="the service needs fastapi: pip install 'prism-sequence[serve]'")
pytest.importorskip("prometheus_client", reason="the service needs it: pip install 'prism-sequence[serve]'")
pytest.importorskip("uvicorn", reason="the service needs uvicorn: pip install 'prism-sequence[serve]'")
pytest.importorskip("httpx", reason="the tests of the service need httpx: pip install httpx")

from fastapi.testclient import TestClient
from support.service import expected, items, models, running, send, service

from prism.cli import main
from prism.recommend.serve.app import create_app


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models(tmp_path_factory.mktemp("models"))


@pytest.mark.skipif(not hasattr(torch._C, "_acc"), reason="this PyTorch knows no devices made in Python")
def test_a_service_on_another_device_answers_as_on_the_cpu_stays_there_and_shares_its_store(
    model: Path, tmp_path: Path
) -> None:
    from support.far import far_device

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


@pytest.mark.parametrize("device", ["cuda:7", "nowhere", "meta"])
def test_a_device_that_is_not_there_is_refused_in_a_line_before_anything_is_opened(
    model: Path, tmp_path: Path, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["serve", str(model), "--store", str(tmp_path / "e.db"), "--device", device])
    assert stop.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(f"prism: device '{device}' cannot be used (")
    assert told.endswith("): try cpu\n")
    assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_device_and_threads_are_options_of_the_command(model: Path, tmp_path: Path) -> None:
    with running(model, tmp_path / "e.db", "--device", "cpu", "--threads", "2") as client:
        assert items(send(client, ("u", "3", "a", 1), recommend={})) == expected(model, ["3"])
