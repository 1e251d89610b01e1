"""A driver that stands for a GPU that is not here: launches compile for it as usual, and run nothing.

Whatever calls the kernels, gradients included, can then be walked through on any machine; outputs hold no values.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from prism.ops.triton import device
from prism.ops.triton.ahead import SHARED_LIMIT, TARGETS


class Pretended:
    """What Triton asks of a driver."""

    def __init__(self, name: str):
        self.name, self.launched = name, list[str]()
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": SHARED_LIMIT[name]},
            load_binary=lambda name, binary, shared, device: (name, name, 0, 0, 1024),
            unload_module=lambda module: None,
        )

    def get_current_target(self) -> GPUTarget:
        """The GPU that is compiled for."""
        return TARGETS[self.name]

    def get_current_device(self) -> str:
        """A name: what was compiled for another is not used for this one."""
        return self.name

    def get_current_stream(self, device: str) -> int:
        """Any."""
        return 0

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """What stands for a launch: its name is written down."""
        return lambda *grid_and_arguments: self.launched.append(metadata.name)


@contextmanager
def pretend(target: str) -> Iterator[list[str]]:
    """Inside, kernels compile for `target` and run nowhere; the names of those launched, in order."""
    stand_in, before = Pretended(target), driver._active
    driver.set_active(stand_in)  # type: ignore[arg-type]
    try:
        with device.standing_for(target):
            yield stand_in.launched
    finally:
        driver._active = before
