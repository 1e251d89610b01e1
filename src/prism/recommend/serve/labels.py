"""A model's items as JSON, written once each: an answer is put together from pieces."""

import json
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from prism.recommend.recommender import Recommender

text = json.encoder.encode_basestring_ascii


class Found(NamedTuple):
    """Recommendations of one question, best first; as numbers, because most are written out as JSON at once."""

    scores: list[float]
    codes: list[int]


class Labels:
    """`{"item": …, "name": …, "score":` of every item that was ever recommended."""

    def __init__(self, model: Recommender, names: Mapping[int, str] | None = None, more: Sequence[str] = ()):
        """`names` are shown in place of the model's, by code; `more` are items after the model's."""
        self.key, self._log = model.key, model.log
        self._items, self._names, self._more = model.model.items, names or {}, more
        self._heads: dict[int, str] = {}

    def item(self, code: int) -> tuple[Any, str | None]:
        """(id, name)."""
        if code >= self._items:
            return self._more[code - self._items], self._names.get(code)
        names = self._log.item_names
        name = None if names is None else names[code]
        return self._log.item_ids[code : code + 1].tolist()[0], self._names.get(code, name)

    def items(self, found: Found) -> str:
        """One user's recommendations as a JSON array."""
        heads, parts = self._heads, []
        for score, code in zip(found.scores, found.codes, strict=True):
            if score == -inf:  # best first: nothing comes after
                break
            parts.append(f"{heads.get(code) or self._head(code)}{score!r}}}")
        return f"[{','.join(parts)}]"

    def _head(self, code: int) -> str:
        item, name = self.item(code)
        head = f'{{"item":{json.dumps(item)},"name":{json.dumps(name)},"score":'
        self._heads[code] = head
        return head
