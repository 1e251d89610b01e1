"""A model's items as JSON, written once each: an answer is put together from pieces."""

import json
from math import inf
from typing import NamedTuple

from prism.recommend.recommender import Recommender

text = json.encoder.encode_basestring_ascii


class Found(NamedTuple):
    """Recommendations of one question, best first; as numbers, because most are written out as JSON at once."""

    scores: list[float]
    codes: list[int]


class Labels:
    """`{"item": …, "name": …, "score":` of every item that was ever recommended."""

    def __init__(self, model: Recommender):
        self.key, self._log = model.key, model.log
        self._heads: dict[int, str] = {}

    def items(self, found: Found) -> str:
        """One user's recommendations as a JSON array."""
        heads, parts = self._heads, []
        for score, code in zip(found.scores, found.codes, strict=True):
            if score == -inf:  # best first: nothing comes after
                break
            parts.append(f"{heads.get(code) or self._head(code)}{score!r}}}")
        return f"[{','.join(parts)}]"

    def _head(self, code: int) -> str:
        names = self._log.item_names
        item = self._log.item_ids[code : code + 1].tolist()[0]
        name = None if names is None else names[code]
        head = f'{{"item":{json.dumps(item)},"name":{json.dumps(name)},"score":'
        self._heads[code] = head
        return head
