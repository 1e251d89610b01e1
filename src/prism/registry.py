"""Names to objects, imported when first asked for; a wrong name is answered with the nearest right one."""

import ast
import importlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Generic, TypeVar, cast

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
        self._entries: dict[str, str | T] = {**entries}

    def _known(self) -> dict[str, str | T]:
        return self._entries

    def __getitem__(self, name: str) -> T:
        entry = self._find(name)
        return cast(T, _import(entry) if isinstance(entry, str) else entry)

    def __contains__(self, name: object) -> bool:
        return name in self._known()

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())

    def summary(self, name: str) -> str:
        """The first line of the entry's docstring, read from its source: listing names must not import torch."""
        entry = self._find(name)
        if not isinstance(entry, str):
            return (entry.__doc__ or "").partition("\n")[0]
        module, _, attribute = entry.partition(":")
        source = _source(module)
        if source is None:
            return f"(its module {module} is not there)"
        tree = ast.parse(source.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == attribute:
                return (ast.get_docstring(node) or "").partition("\n")[0]
        return (ast.get_docstring(tree) or "").partition("\n")[0]

    def _find(self, name: str) -> str | T:
        known = self._known()
        if name not in known:
            raise UnknownNameError(f"unknown {self._kind} {name!r}: {suggest(str(name), known)}")
        return known[name]


class OpenRegistry(Registry[type[T]], Generic[T]):
    """A registry of classes that other packages add to: by `register`, by an entry point, or as `module:Class`."""

    def __init__(self, kind: str, entries: dict[str, str], *, base: str, group: str):
        """`base`, as `module:Class`, is what every class derives from; `group` is the entry points' group."""
        super().__init__(kind, entries)
        self._base, self._group = base, group

    def register(self, name: str, entry: "str | type[T]") -> None:
        """Gives a class, or the `module:Class` where one is, a name.

        A class is known to this process alone. One that has to be found again when a saved model is loaded elsewhere
        should be an entry point of its package, be registered by what loads it, or go by its `module:Class`.
        """
        if not name or set(name) & set(":,= "):
            raise InputError(f"a {self._kind}'s name has no colon, comma, equals sign or space in it, got {name!r}")
        if isinstance(entry, str) and entry.count(":") != 1:
            raise InputError(f"{self._kind} {name!r} must be a class or 'module:Class', got {entry!r}")
        before = self._known().get(name, entry)
        if before != entry:
            raise InputError(f"{self._kind} {name!r} is {before} already: choose another name")
        self._entries[name] = entry

    @cached_property
    def _installed(self) -> dict[str, str | type[T]]:
        """What other packages give as entry points; read once, and not before a name is asked for."""
        return {point.name: point.value for point in entry_points(group=self._group)}

    def _known(self) -> dict[str, str | type[T]]:
        return self._entries | {name: e for name, e in self._installed.items() if name not in self._entries}

    def __getitem__(self, name: str) -> type[T]:
        try:
            found = super().__getitem__(name)
        except (ModuleNotFoundError, AttributeError) as error:
            raise UnknownNameError(f"{self._kind} {name!r} cannot be imported: {error}; is it on PYTHONPATH?") from None
        base = _import(self._base)
        if not (isinstance(found, type) and issubclass(found, cast(type, base))):
            raise UnknownNameError(f"{self._kind} {name!r} is not a subclass of {self._base.replace(':', '.')}")
        return found

    def _find(self, name: str) -> str | type[T]:
        return name if ":" in name else super()._find(name)


def _import(place: str) -> object:
    module, _, attribute = place.partition(":")
    if not all(module.split(".")):
        raise ModuleNotFoundError(f"{module!r} is no module's name")
    return getattr(importlib.import_module(module), attribute)


def _source(module: str) -> Path | None:
    """The file of a module, found without importing the packages around it, which may want what is not installed."""
    root, *inside = module.split(".")
    spec = find_spec(root)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent.joinpath(*inside) if inside else Path(spec.origin)
    files = (path, path.with_name(f"{path.name}.py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)
