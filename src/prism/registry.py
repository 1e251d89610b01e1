"""Names to objects, imported when first asked for; a wrong name is answered with the nearest right one."""

import ast
import importlib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar, cast

from prism.errors import InputError, suggest

T = TypeVar("T")


class UnknownNameError(KeyError, InputError):
    """A name that a registry does not hold."""

    def __str__(self) -> str:  # KeyError would quote it
        return str(self.args[0])


class Registry(Mapping[str, T]):
    """A read-only mapping whose values are named as `module:attribute` and imported on first use."""

    def __init__(self, kind: str, entries: dict[str, str]):
        self._kind = kind
        self._entries = entries

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise UnknownNameError(f"unknown {self._kind} {name!r}: {suggest(str(name), self._entries)}")
        module, attribute = self._entries[name].split(":")
        return cast(T, getattr(importlib.import_module(module), attribute))

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def summary(self, name: str) -> str:
        """The first line of the entry's docstring, read from its source: listing names must not import torch."""
        module, attribute = self._entries[name].split(":")
        spec = find_spec(module)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"{self._kind} {name!r} is registered in {module}, which does not exist")
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == attribute:
                return (ast.get_docstring(node) or "").partition("\n")[0]
        return (ast.get_docstring(tree) or "").partition("\n")[0]
