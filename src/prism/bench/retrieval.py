"""`prism bench retrieval`: the k best of many items, exact and by faster means: time, recall, NDCG lost."""

import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tyro.conf import Positional

from prism.bench.measure import threads
from prism.config import positive
from prism.display.tables import show
from prism.errors import InputError
from prism.recommend.evaluation.scoring import ModelScorer
from prism.recommend.recommender import Recommender
from prism.recommend.retrieval.int8 import Found, Int8Index
from prism.recommend.retrieval.ivf import IvfIndex

Search = Callable[[Tensor], Found]


class Questions(NamedTuple):
    """A table, and queries against it with the item that came, where that is known."""

    table: Tensor
    bias: Tensor | None
    x: Tensor
    targets: Tensor | None


def retrieval(
    run: Positional[Path | None] = None,
    items: int = 340_000,
    dim: int = 64,
    queries: int = 1000,
    k: int = 10,
    batch: int = 1,
    num_threads: int = 1,
) -> None:
    """The k best items of each query: the float32 product, the int8 scan with its re-rank, faiss where installed.

    Args:
        run: A folder that `prism fit` made: its items and the features of its test queries; without one both are made
            up, items in clusters as trained ones are.
        items: Made-up items.
        dim: Their width.
        queries: How many at most.
        k: How many items are wanted.
        batch: Queries that are asked at once: 1 is a live user, many an overnight job.
        num_threads: Of torch and faiss; the scan has one.
    """
    positive(items=items, dim=dim, queries=queries, k=k, batch=batch, num_threads=num_threads)
    asked = made_up(items, dim, queries) if run is None else of_run(run, queries)
    with threads(num_threads):
        rows = compare(asked, k, batch)
    items, dim = asked.table.shape
    show(
        f"top {k} of {items:,} items, width {dim}, {len(asked.x):,} queries, {batch} at once: "
        "processor time of all threads",
        ["", "ms per query", "times product", "times product alone", "recall", "same top", "NDCG", "NDCG lost"],
        rows,
        caption=f"{num_threads} thread(s); times product: with its top {k}, and alone, scores of all items; "
        f"same top: share of queries whose {k} items are those of the product",
    )


def made_up(items: int, dim: int, queries: int, seed: int = 0) -> Questions:
    """Rows around a thousandth as many centres, queries around rows."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(max(1, items // 1000), dim, generator=draw)
    of = torch.randint(len(centres), (items,), generator=draw)
    table = (centres[of] + torch.randn(items, dim, generator=draw)) * dim**-0.5
    near = torch.randint(items, (queries,), generator=draw)
    return Questions(table, None, table[near] + torch.randn(queries, dim, generator=draw) * dim**-0.5, None)


def compare(asked: Questions, k: int, batch: int) -> list[list[str]]:
    table, bias = asked.table, asked.bias

    def product(x: Tensor) -> Found:
        scores = x @ table.T
        return Found(*(scores if bias is None else scores + bias).topk(k))

    methods: dict[str, Search] = {"float32 product": product}
    index = Int8Index.build(table, bias)
    methods["int8 scan, re-ranked"] = lambda x: index.search(x, k)
    if find_spec("faiss") is not None and bias is None:
        import faiss

        faiss.omp_set_num_threads(torch.get_num_threads())
        clusters = IvfIndex.build(table)
        methods["faiss IVF-SQ8, re-ranked"] = lambda x: clusters.search(x, k)
    exact, rows, first = _all(product, asked.x, batch), [], 0.0
    alone = _seconds(lambda x: x @ table.T, asked.x, batch)
    for name, search in methods.items():
        taken = _seconds(search, asked.x, batch)
        first = first or taken
        found = _all(search, asked.x, batch)
        shared = _shared(found, exact)
        cells = [
            f"{1000 * taken:.3f}",
            f"{first / taken:.2f}",
            f"{alone / taken:.2f}",
            f"{shared.mean() / k:.4f}",
            f"{(shared == k).mean():.4f}",
        ]
        rows.append([name, *cells, *_ndcg(found, exact, asked.targets)])
    return rows


def _all(search: Search, x: Tensor, batch: int) -> Tensor:
    return torch.cat([search(part).items for part in x.split(batch)])


def _seconds(search: Callable[[Tensor], object], x: Tensor, batch: int, rounds: int = 5, most: int = 64) -> float:
    """Processor time per query, of all threads together: the best of some rounds over a few queries."""
    some = x[: max(most, batch)].split(batch)
    search(some[0])  # compiles
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        for part in some:
            search(part)
        best = min(best, time.process_time() - began)
    return best / sum(map(len, some))


def _shared(found: Tensor, exact: Tensor) -> np.ndarray:
    """[queries]: how many of the exact ones were found."""
    counts: np.ndarray = (found[:, :, None] == exact[:, None]).any(1).sum(1).numpy()
    return counts


def _ndcg(found: Tensor, exact: Tensor, targets: Tensor | None) -> tuple[str, str]:
    """That of what was found, and how much less it is than that of the product."""
    if targets is None:
        return "-", "-"
    weights = 1 / torch.log2(torch.arange(found.shape[1]) + 2.0)
    own, best = (float(((items == targets[:, None]) * weights).sum(1).mean()) for items in (found, exact))
    return f"{own:.5f}", f"{best - own:.5f}"


def of_run(run: Path, most: int) -> Questions:
    """A run's item table and the features of its test queries, the model's alone."""
    made = Recommender.load(run, device="cpu")
    asked = made.split.test[:: max(1, -(-len(made.split.test) // most))]
    if not len(asked):
        raise InputError(f"{run} has no test queries: give a run with some, or none for made-up items")
    model = made.model
    with torch.inference_mode():
        x = ModelScorer(model, made.context).features(made.log, asked).clone()
        table, bias = model.table.clone(), None if model.bias is None else model.bias.clone()
    return Questions(table, bias, x, torch.from_numpy(asked.targets(made.log).astype(np.int64)))
