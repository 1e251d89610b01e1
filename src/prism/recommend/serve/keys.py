"""API keys: 32 random bytes, of which only the SHA-256 is kept, each of one tenant; compared in constant time."""

import hmac
import json
import secrets
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from prism.errors import InputError
from prism.files import write_whole

OPEN = "default"


@dataclass(frozen=True)
class Keys:
    """Hashes by tenant; none at all: everyone is the one tenant `default`."""

    hashes: tuple[tuple[str, str], ...] = ()

    def tenant(self, key: str | None) -> str | None:
        """Whose key this is; None: nobody's."""
        if not self.hashes:
            return OPEN
        given, found = sha256((key or "").encode()).hexdigest(), None
        for tenant, digest in self.hashes:  # all of them: the time tells nothing
            if hmac.compare_digest(given, digest):
                found = tenant
        return found


def read_keys(path: Path) -> Keys:
    """What `add_key` wrote."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return Keys(tuple((str(row["tenant"]), str(row["sha256"])) for row in rows))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} holds no keys ({error}): `prism serve-key {path} --tenant NAME` makes one") from None


def add_key(path: Path, tenant: str) -> str:
    """Makes a key for a tenant, keeps its hash in the file, and gives it: it is never seen again."""
    if not tenant or len(tenant) > 100:
        raise InputError(f"tenant must be a name of 1 to 100 characters, got {tenant!r}")
    rows = [{"tenant": t, "sha256": h} for t, h in read_keys(path).hashes] if path.exists() else []
    key = secrets.token_urlsafe(32)
    rows.append({"tenant": tenant, "sha256": sha256(key.encode()).hexdigest()})
    write_whole(path, json.dumps(rows, indent=1).encode())
    path.chmod(0o600)
    return key
