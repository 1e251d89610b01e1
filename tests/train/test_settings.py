"""Is this the same run? And one process in a folder at a time."""

import subprocess
import sys
from pathlib import Path

import pytest

from prism.errors import InputError
from prism.files import only_one
from prism.train.settings import differences, keep_settings


def test_fields_that_change_no_result_are_no_difference() -> None:
    ours = {"lr": 0.1, "train": {"seed": 1, "save_seconds": 60, "log_steps": 50, "tensorboard": False}}
    theirs = {"lr": 0.1, "train": {"seed": 1, "save_seconds": 5, "log_steps": 1, "tensorboard": True}}
    assert differences(ours, theirs) == []
    theirs["train"]["seed"] = 2
    assert differences(ours, theirs) == ["seed is 2 there and 1 here"]


def test_fields_of_one_name_in_two_groups_are_two_fields() -> None:
    assert differences({"a": {"x": 1}, "b": {"x": 2}}, {"a": {"x": 3}, "b": {"x": 2}}) == ["x is 3 there and 1 here"]


def test_settings_are_kept_once_and_others_refused(tmp_path: Path) -> None:
    for _ in range(2):
        keep_settings(tmp_path, {"sizes": (1, 2), "train": {"lr": 1.0, "log_steps": 3}})
    keep_settings(tmp_path, {"sizes": (1, 2), "train": {"lr": 1.0, "log_steps": 4}})
    with pytest.raises(InputError, match=r"holds another run: sizes is \[1, 2\] there and \[1\] here \(and 1 more\)"):
        keep_settings(tmp_path, {"sizes": (1,), "train": {"lr": 2.0, "log_steps": 3}})
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match="is not a JSON object but list"):
        keep_settings(tmp_path, {"sizes": (1,)})


def test_a_folder_in_use_is_refused_and_free_again_when_its_process_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from prism.files import only_one\n"
        "with only_one(Path(sys.argv[1])):\n print('in', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        with pytest.raises(InputError, match="is in use by another process"), only_one(tmp_path):
            pass
        other.kill()
    with only_one(tmp_path):
        pass
