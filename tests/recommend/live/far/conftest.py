"""A device made in Python stays with its process, and torch's own checkpoints would take it for a GPU's there."""

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "live/far/" in item.path.as_posix() and os.environ.get("PRISM_FAR") != "1":
            item.add_marker(pytest.mark.skip(reason="run by test_far.py, with PRISM_FAR=1"))
