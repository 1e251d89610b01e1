"""One user's state as bytes: arrays of that user alone, in safetensors' format, with the model that they belong to."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from prism.errors import InputError
from prism.recommend.model.experts.user_state import UserState, state_after
from prism.recommend.trained import Trained

VERSION = "4"


@dataclass(frozen=True, kw_only=True, eq=False)
class UserValue:
    """All that is remembered of one user."""

    arrays: list[Any]
    """The network's state, part by part, and the features after it; or the last events of a limited context."""
    user: UserState
    """What the simple experts remember; of a model without them, the items taken are all that is kept."""
    facts: Any
    """[4]: events, time of the latest, the item of one that the state does not hold yet (-1: none), its gap."""


def pack_user(value: UserValue, of: Trained) -> bytes:
    """The bytes of one user's state."""
    from safetensors.numpy import save

    arrays = {f"part{n}": part for n, part in enumerate(value.arrays)}
    user = value.user.trimmed()._asdict()
    mine = {name: user[name] for name in (("seen",) if of.experts is None else UserState._fields)}
    given = arrays | {"facts": value.facts} | {f"user_{name}": part for name, part in mine.items()}
    # one entry: several would stand in any order, and equal states should be equal bytes
    return save({name: np.ascontiguousarray(part) for name, part in given.items()}, {"prism": f"{VERSION} {of.key}"})  # type: ignore[no-any-return]


def unpack_user(state: bytes, of: Trained) -> UserValue:
    """The inverse; refuses what another model, another version or nobody wrote."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        size = int.from_bytes(state[:8], "little")
        version, key = json.loads(state[8 : 8 + size])["__metadata__"]["prism"].split()
        found = load(state)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"the state cannot be read ({error}): it is damaged, or no state of a user") from None
    if (version, key) != (VERSION, of.key):
        raise InputError(
            f"the state is of model {key!r}, version {version}, and this is {of.key!r}, version {VERSION}: "
            "build it again from the user's events"
        )
    parts = [found[f"part{n}"] for n in range(sum(name.startswith("part") for name in found))]
    return UserValue(arrays=parts, user=_user_of(found), facts=found["facts"])


def _user_of(found: dict[str, Any]) -> UserState:
    mine = {name: found[f"user_{name}"].copy() for name in UserState._fields if f"user_{name}" in found}
    seen = mine["seen"]
    return UserState(**mine) if len(mine) > 1 else state_after(seen, np.zeros(len(seen), dtype=np.int64))
