"""From scores to a list: which items may be shown, and the k best of them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from prism.config import count, several
from prism.errors import InputError
from prism.recommend.answer.top import top
from prism.recommend.data.items import items_with
from prism.recommend.data.log import Log

NOTHING = np.zeros(0, dtype=np.int64)
# Items by their ids; or by columns of their table, each with the value or values that an item may have.
Filter = Iterable[object] | Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """One item that may come next."""

    item: Any
    """Its id, as the log has it."""
    score: float
    name: str | None = None


def permitted(log: Log, candidates: int, allow: Filter | None, deny: Filter | None) -> Bool[Tensor, " I"]:
    """[candidates]: whether the two filters let an item through."""
    return masked(candidates, lambda wanted: chosen(log, candidates, wanted), allow, deny)


def masked(
    candidates: int, choose: Callable[[Filter], Tensor], allow: Filter | None, deny: Filter | None
) -> Bool[Tensor, " I"]:
    """`permitted`, where `choose` says which items one filter means."""
    several("allow", allow)
    several("deny", deny)
    mask = torch.ones(candidates, dtype=torch.bool)
    if allow is not None:
        mask = choose(allow)
        if not mask.any():
            what = "has what allow asks for" if isinstance(allow, Mapping) else "of the allow-list is known"
            raise InputError(f"no item {what}: nothing could be recommended")
    if deny is not None:
        mask &= ~choose(deny)
    return mask


def chosen(log: Log, candidates: int, wanted: Filter) -> Bool[Tensor, " I"]:
    """[candidates]: whether a filter means an item."""
    if isinstance(wanted, Mapping):
        return torch.from_numpy(items_with(log, wanted)[:candidates])
    codes = log.item_codes(wanted)
    mask = torch.zeros(candidates, dtype=torch.bool)
    mask[torch.from_numpy(codes[(codes >= 0) & (codes < candidates)].astype(np.int64))] = True
    return mask


def best(
    scores: Float[Tensor, "Q I"], mask: Bool[Tensor, " I"], removed: tuple[np.ndarray, np.ndarray] | None, k: int
) -> tuple[Float[Tensor, "Q K"], Tensor]:
    """(scores, codes) of the k best items of each row, best first, on the CPU; −∞ where a row has fewer."""
    k = min(count("k", k), scores.shape[1])
    if scores.device.type == "cpu":
        found = scores.new_empty(len(scores), k)
        codes = torch.empty(len(scores), k, dtype=torch.int64)
        gone = (NOTHING, NOTHING) if removed is None else removed
        given = scores.detach().contiguous().numpy()
        finite = top(given, mask.numpy(), gone[0], gone[1], found.numpy(), codes.numpy())
        return (found, codes) if finite else _refuse()
    if not torch.isfinite(scores).all():
        _refuse()
    scores = scores.masked_fill(~mask.to(scores.device), -torch.inf)
    if removed is not None:
        rows, items = (torch.from_numpy(part).to(scores.device) for part in removed)
        scores[rows, items] = -torch.inf
    found, codes = scores.topk(k)
    return found.cpu(), codes.cpu()


def _refuse() -> NoReturn:
    raise InputError("some scores are not finite: the weights are damaged or training diverged; fit it again")


def as_list(log: Log, scores: Tensor, codes: Tensor) -> list[Recommendation]:
    """One row of `best` with ids and names."""
    names = log.item_names
    ids = log.item_ids[codes.numpy()].tolist()  # numbers as Python has them, not numpy's
    return [
        Recommendation(item=item, score=score, name=None if names is None else names[code])
        for item, score, code in zip(ids, scores.tolist(), codes.tolist(), strict=True)
        if score > -torch.inf
    ]
