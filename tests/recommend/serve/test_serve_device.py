"""The service is told its device: one that is not there is refused; `live/far` has one that is not the CPU."""

from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the service needs fastapi: pip install 'prism-sequence[serve]'")
pytest.importorskip("prometheus_client", reason="the service needs it: pip install 'prism-sequence[serve]'")
pytest.importorskip("uvicorn", reason="the service needs uvicorn: pip install 'prism-sequence[serve]'")
pytest.importorskip("httpx", reason="the tests of the service need httpx: pip install httpx")

from support.service import expected, items, models, running, send

from prism.cli import main


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models(tmp_path_factory.mktemp("models"))


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
