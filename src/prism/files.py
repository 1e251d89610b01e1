"""Files and folders that appear whole or not at all, and folders that one process works in, or makes, at a time."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from prism.errors import InputError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system refuses while the body writes `path` (a full disk, no permission) becomes one line."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None


def write_whole(path: Path, content: bytes) -> None:
    """Writes under a temporary name beside `path`, then renames: no reader ever sees half of it."""
    refuse_folder(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_bytes(content)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes its name, in place of what has it, once the body is done and all is on the disk."""
    part = folder.with_name(f".{folder.name}.part")
    with writing(folder):
        shutil.rmtree(part, ignore_errors=True)
        try:
            part.mkdir(parents=True)
            yield part
            for path in (*part.rglob("*"), part):
                flush(path)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(part, folder)
            flush(folder.parent)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def refuse_file(folder: Path) -> None:
    """Refuses a file where the folder of a run is wanted, before anything is computed for it."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give a folder for the run")


def refuse_folder(path: Path) -> None:
    """Refuses a folder where a file is to be written."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file to write")


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Refuses a folder in which another process works. The lock ends with its process, also when that is killed.

    A folder that was made for it goes again if nothing was written there.
    """
    from filelock import FileLock, Timeout

    refuse_file(folder)
    made = not folder.exists()
    lock = FileLock(folder / ".lock", timeout=0)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            raise InputError(f"{folder} is in use by another process: wait for it, or choose another folder") from None
    try:
        yield
    finally:
        if made and folder.is_dir() and [path.name for path in folder.iterdir()] == [".lock"]:
            shutil.rmtree(folder, ignore_errors=True)
        lock.release()


@contextmanager
def in_turn(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Waits, and says so, while another process makes a folder; what it left is there then. The lock lies beside it."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    with writing(folder):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(f"{folder} is being made by another process: waiting for it")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def checksum(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Waits until a file or folder is on the disk: a rename must not overtake what it renames."""
    if os.name == "nt" and path.is_dir():  # Windows opens no folders, and writes their entries at once
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
