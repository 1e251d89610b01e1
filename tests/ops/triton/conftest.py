"""The kernels run here in Triton's interpreter, which is chosen before the first import: in a process of its own."""

import os

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "triton/interpreted/" in item.path.as_posix() and not INTERPRETED:
            item.add_marker(pytest.mark.skip(reason="run by test_interpreter.py, with TRITON_INTERPRET=1"))
