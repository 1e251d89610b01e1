"""The scan and its re-rank find what the float32 product finds."""

from pathlib import Path

import numpy as np
import pytest
import torch

from prism.bench.retrieval import compare, made_up, of_run
from prism.errors import InputError
from prism.ops.cpu.scan import LANES, packed, scan
from prism.recommend.config import FitConfig
from prism.recommend.data.synthetic import synthetic_log
from prism.recommend.recommender import Recommender
from prism.recommend.retrieval.int8 import Int8Index, quantised
from prism.recommend.retrieval.ivf import IvfIndex


def test_a_row_is_its_codes_times_its_scale_to_half_a_step() -> None:
    rows = torch.randn(50, 7).numpy()
    rows[3] = 0
    codes, scales = quantised(rows)
    assert (abs(codes * scales[:, None] - rows) <= 0.5001 * scales[:, None]).all()
    assert (codes[3] == 0).all()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("items", [5, 700])
def test_the_scan_finds_the_best_of_the_product(items: int, biased: bool) -> None:
    asked = made_up(items, 24, 40)
    bias = torch.randn(items) if biased else None
    scores = asked.x @ asked.table.T + (0 if bias is None else bias)
    best, which = scores.topk(min(10, items))
    found = Int8Index.build(asked.table, bias).search(asked.x, 10)
    torch.testing.assert_close(found.scores, best)
    assert torch.equal(found.items, which)


def test_top_10_of_twenty_thousand_are_those_of_the_product_in_999_of_1000_queries() -> None:
    asked = made_up(20_000, 64, 2000)
    exact = (asked.x @ asked.table.T).topk(10).indices.sort(1).values
    found = Int8Index.build(asked.table).search(asked.x, 10).items.sort(1).values
    assert (found == exact).all(1).double().mean() >= 0.999


@pytest.mark.parametrize(("items", "dim", "queries"), [(5, 7, 3), (700, 24, 40), (1000, 64, 1), (97, 6, 9)])
@pytest.mark.skipif(not LANES, reason="needs a processor with AVX-512-VNNI or AVX-VNNI")
def test_tiles_have_the_scores_of_the_plain_loop_to_the_bit(items: int, dim: int, queries: int) -> None:
    generator = torch.Generator().manual_seed(items)
    table, x = (torch.randn(n, dim, generator=generator).numpy() for n in (items, queries))
    (codes, scales), asked = quantised(table), quantised(x)
    offsets, kept = torch.randn(items, generator=generator).numpy(), min(20, items)
    tiles = scan(packed(codes), scales, offsets, *asked, kept)
    plain = scan(codes, scales, offsets, *asked, kept)
    for mine, theirs in zip(tiles, plain, strict=True):
        assert (np.sort(mine, 1) == np.sort(theirs, 1)).all()
    sums = asked[0].astype(int) @ codes.T.astype(int)
    expected = sums.astype(np.float32) * scales * asked[1][:, None] + offsets
    np.testing.assert_allclose(np.sort(plain[0], 1), np.sort(expected, 1)[:, -kept:], rtol=1e-6, atol=1e-6)


def test_more_candidates_than_items_and_more_items_wanted_than_there_are_give_all() -> None:
    table = torch.randn(6, 8)
    found = Int8Index.build(table).search(torch.randn(2, 8), 50, candidates=500)
    assert found.items.sort(1).values.tolist() == [list(range(6))] * 2


def test_faiss_looking_everywhere_finds_nearly_everything() -> None:
    pytest.importorskip("faiss", reason="pip install 'prism-sequence[faiss]'")
    asked = made_up(3000, 16, 50)
    exact = (asked.x @ asked.table.T).topk(10).indices
    found = IvfIndex.build(asked.table, lists=8, probes=8).search(asked.x, 10).items
    assert (found[:, :, None] == exact[:, None]).any(1).double().mean() > 0.99
    with pytest.raises(InputError, match="item_bias"):
        IvfIndex.build(asked.table, torch.zeros(3000))


def test_the_benchmark_says_what_each_method_found() -> None:
    asked = made_up(2000, 16, 20)
    rows = compare(asked._replace(targets=(asked.x @ asked.table.T).argmax(1)), 10, 4)
    assert rows[0][0] == "float32 product"
    assert rows[0][2] == "1.00"
    assert rows[0][4:] == rows[1][4:] == ["1.0000", "1.0000", "1.00000", "0.00000"]


def test_a_run_is_asked_its_own_test_queries(tmp_path: Path) -> None:
    config = FitConfig(mixer="gated-deltanet", dim=8, layers=1, ffn=0, experts=(), projection=False)
    made = Recommender.fit(synthetic_log(40, 30, 700, seed=2), config, epochs=1, out=tmp_path, progress=False)
    asked = of_run(tmp_path, 25)
    assert 0 < len(asked.x) <= 25
    scores = made.scorer(made.log, made.split.test[:: -(-len(made.split.test) // 25)])
    torch.testing.assert_close(asked.x @ asked.table.T, torch.as_tensor(scores))
