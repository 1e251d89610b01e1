"""Where a known data set's files are: a folder or a zip that the user names, $PRISM_DATA, or the cache."""

import fnmatch
import gzip
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import cast

from prism.errors import InputError

CACHE = Path("~/.cache/prism")


@dataclass(frozen=True)
class Place:
    """Files of one data set, in a folder, in a zip, or a single file."""

    path: Path

    def names(self, *patterns: str) -> list[str]:
        """Files whose last part matches one of the patterns, in order of name."""
        found = [
            name
            for name in self._all()
            if any(fnmatch.fnmatch(name.rpartition("/")[2].lower(), pattern) for pattern in patterns)
        ]
        return sorted(found)

    @contextmanager
    def open(self, name: str) -> Iterator[BufferedIOBase]:
        """A stream of one file's bytes, unpacked if its name ends in .gz."""
        try:
            if self._zipped:
                with zipfile.ZipFile(self.path) as archive, archive.open(name) as stream:
                    yield cast(BufferedIOBase, stream)
            else:
                file = self.path / name if self.path.is_dir() else self.path
                with gzip.open(file) if name.endswith(".gz") else file.open("rb") as stream:
                    yield cast(BufferedIOBase, stream)
        except (OSError, EOFError, zipfile.BadZipFile) as error:
            raise InputError(f"cannot read {name} of {self.path}: {error}") from None

    def read(self, name: str) -> bytes:
        with self.open(name) as stream:
            return stream.read()

    @property
    def _zipped(self) -> bool:
        return self.path.suffix.lower() == ".zip"

    def _all(self) -> list[str]:
        if self.path.is_dir():
            files = (file for file in self.path.rglob("*") if file.is_file() and file.name[0] not in "._")
            return [file.relative_to(self.path).as_posix() for file in files]
        if not self._zipped:
            return [self.path.name]
        try:
            with zipfile.ZipFile(self.path) as archive:
                return [name for name in archive.namelist() if not name.endswith("/")]
        except (OSError, zipfile.BadZipFile) as error:
            raise InputError(f"cannot read {self.path}: {error}; download it again") from None


def locate(name: str, home: str, folder: str | Path | None = None) -> Place:
    """The place of data set `name`: under `folder`, else $PRISM_DATA, else the cache; `home` is where to get it."""
    if folder is not None:
        given = Path(folder).expanduser()
        if not given.exists():
            raise InputError(f"folder {given} for data set {name!r} does not exist; {_get(name, home, given)}")
        return _inside(given, name) or Place(given)
    roots = [Path(os.environ["PRISM_DATA"])] if os.environ.get("PRISM_DATA") else []
    roots.append(CACHE)
    for root in roots:
        place = _inside(root.expanduser(), name)
        if place:
            return place
    looked = " or ".join(map(str, roots))
    raise InputError(f"data set {name!r} is not in {looked}: {_get(name, home, roots[0] / name)}")


def _inside(root: Path, name: str) -> Place | None:
    options = (root / name, root / f"{name}.zip")
    return next((Place(option) for option in options if option.exists()), None)


def _get(name: str, home: str, target: Path) -> str:
    return f"download it from {home} and put its files (or {name}.zip) at {target}"
