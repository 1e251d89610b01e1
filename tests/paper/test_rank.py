"""The table of what rank is for: its mixers fit its tasks, and its picture shows accuracy over length."""

from pathlib import Path

from prism.paper.rank import MIXERS, SETTINGS, TRACKING, WRITING, rank
from prism.probes.settings import ProbeSettings
from prism.probes.training import ProbeTraining


def test_every_mixer_of_the_table_fits_every_task() -> None:
    for task in (*TRACKING, *WRITING):
        for mixer in MIXERS:
            SETTINGS.model(SETTINGS.probe(task), mixer).build()


def test_the_command_draws_accuracy_over_length(tmp_path: Path) -> None:
    training = ProbeTraining(steps=2, batch=4, every=1, watched=8, tested=16)
    settings = ProbeSettings(tracking_length=4, tracking_dim=8, training=training)
    rank(("running-parity", "s3"), ("prism:tracking", "gated-deltanet"), 2, settings, processes=1, out=tmp_path)
    assert (tmp_path / "lengths.png").read_bytes().startswith(b"\x89PNG")
    assert "at 16 tokens" in (tmp_path / "table.txt").read_text()
