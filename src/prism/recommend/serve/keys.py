"""API keys: 32 random bytes, of which only the SHA-256 is kept, each of one tenant; compared in constant time."""

import hmac
import json
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from stat import S_IMODE
from typing import Any

from prism.errors import InputError
from prism.files import write_whole

OPEN = "default"


@dataclass(frozen=True)
class Keys:
    """Hashes by tenant; none at all, where no file of keys is asked for: everyone is the one tenant `default`."""

    hashes: tuple[tuple[str, str], ...] = ()
    operators: frozenset[str] = frozenset()
    """Hashes of keys that may change what all tenants share."""

    @property
    def tenants(self) -> set[str]:
        """Everyone who may ask."""
        return {tenant for tenant, _ in self.hashes} or {OPEN}

    def tenant(self, key: str | None) -> str | None:
        """Whose key this is; None: nobody's."""
        if not self.hashes:
            return OPEN
        given, found = sha256((key or "").encode()).hexdigest(), None
        for tenant, digest in self.hashes:  # all of them: the time tells nothing
            if hmac.compare_digest(given, digest):
                found = tenant
        return found

    def operates(self, key: str | None) -> bool:
        """Whether the model may be changed with this key: a single tenant's may, of several an operator's."""
        if len(self.tenants) < 2:
            return self.tenant(key) is not None
        given = sha256((key or "").encode()).hexdigest()
        return sum(hmac.compare_digest(given, one) for one in self.operators) > 0  # all of them, as above


def read_keys(path: Path) -> Keys:
    """At least one: without any, everyone would be let in."""
    found = _keys(path)
    if not found.hashes:
        raise InputError(
            f"{path} holds no keys, so nobody could be let in: `prism serve-key {path} --tenant NAME` adds one"
        )
    return found


def _keys(path: Path) -> Keys:
    try:
        rows = _rows(path)
        operators = frozenset(str(row["sha256"]) for row in rows if row.get("operator"))
        return Keys(tuple((str(row["tenant"]), str(row["sha256"])) for row in rows), operators)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, OSError):
            raise InputError(f"{path}: {error.strerror}; `prism serve-key {path} --tenant NAME` makes one") from None
        raise InputError(f"{path} holds no keys ({error}): give a file that `prism serve-key` made") from None


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(rows, list):
        raise ValueError("no list")
    return rows


def add_key(path: Path, tenant: str, operator: bool = False) -> str:
    """Makes a key for a tenant, keeps its hash in the file, and gives it: it is never seen again."""
    if not tenant or len(tenant) > 100:
        raise InputError(f"tenant must be a name of 1 to 100 characters, got {tenant!r}")
    if path.exists():
        _keys(path)  # what is no file of keys is refused
    rows = _rows(path) if path.exists() else []
    key = secrets.token_urlsafe(32)
    made = {"tenant": tenant, "sha256": sha256(key.encode()).hexdigest()}
    rows.append(made | ({"operator": True} if operator else {}))
    before = path.stat() if path.exists() else None
    write_whole(path, json.dumps(rows, indent=1).encode())
    path.chmod(0o600 if before is None else S_IMODE(before.st_mode))
    if before is not None and os.name == "posix":
        with suppress(PermissionError):  # whoever adds a key, the service goes on reading the file
            os.chown(path, before.st_uid, before.st_gid)
    return key
