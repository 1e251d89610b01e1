"""How near items are to one: by how often they are taken near it, where that is known; else by their rows."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from prism.recommend.live.placed import Placed
from prism.recommend.trained import Trained


@torch.inference_mode()
def similarities(recommender: Trained, code: int, placed: Placed | None = None) -> Float[Tensor, "1 I_and_placed"]:
    """[1, items]: the cosine of the items' rows of events near each of them (c_ij / √(c_i c_j), above 0).

    For items that never were near this one, and for a model without the experts' tables: the cosine of the rows of the
    item table; less 1 beside the others, so that they come after them. So it is for `placed` items, whose codes come
    after the model's.
    """
    table = recommender.model.table
    rows = functional.normalize(table if placed is None else torch.cat([table, placed.rows]), dim=-1)
    found = rows[code : code + 1] @ rows.T
    if recommender.experts is None:
        return found
    found -= 1
    if code >= len(table):
        return found
    near = recommender.experts.tables.near
    here = slice(near.starts[code], near.starts[code + 1])
    columns = near.columns[here]
    together = near.shares[here] * np.sqrt(near.totals[code] / near.totals[columns])
    found[0, torch.from_numpy(columns).long()] = torch.from_numpy(together).to(found)
    return found
