"""The log of a run: what a resumed run will do again is not in it twice."""

from pathlib import Path

import pytest

from prism.errors import InputError
from prism.train.journal import Journal, read_journal


@pytest.mark.parametrize(("evaluates", "steps"), [(True, [2, 4]), (False, [2, 4, 4])])
def test_a_run_resumed_before_an_evaluation_drops_the_one_it_had(
    tmp_path: Path, evaluates: bool, steps: list[int]
) -> None:
    journal = Journal(tmp_path, step=0, tensorboard=False)
    journal.write(2, loss=1.0)
    journal.write(4, loss=0.5)
    journal.write(4, epoch=1, **{"valid/hit@10": 0.1})
    journal.write(6, loss=0.4)
    Journal(tmp_path, step=4, evaluates=evaluates, tensorboard=False)
    assert [line["step"] for line in read_journal(tmp_path / "log.jsonl")] == steps


def test_a_half_written_last_line_is_no_line_and_any_other_damage_is_told(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes('{"step": 1, "note": "a\u2028b"}\n{"step": 2}\n{"st'.encode())
    assert [line["step"] for line in read_journal(path)] == [1, 2]
    for damage in (b"\xff\xfe", b"[]", b"{}", b"nothing"):
        path.write_bytes(b'{"step": 1}\n' + damage + b'\n{"step": 2}\n')
        with pytest.raises(InputError, match="line 2 is damaged: remove the file"):
            read_journal(path)
