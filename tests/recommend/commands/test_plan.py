"""The plan counts what the code counts, and what processes send is what its formula says."""

import pytest
import torch
import torch.distributed as dist
from support.processes import run_ranks

from prism import cli
from prism.layers import mixer_config
from prism.models.backbone import BackboneConfig
from prism.ops.sharded.rows import SENT, Rows, lookup
from prism.recommend.commands.plan import Load, count, drawn_bytes, exchanged_bytes
from prism.recommend.training.shard_negatives import Shard, draw_shards

LOAD = Load(
    users=1e6,
    items=1e5,
    events=1e9,
    gpus=4,
    tokens=1000,
    negatives=100,
    epochs=2,
    tflops=1,
    used=1,
    network=1,
    memory=10,
)


def exchange(rank: int) -> None:
    dim, distinct, rows, before = 16, 4000, Rows(100_000, dist.group.WORLD), SENT.copy()
    torch.manual_seed(rank)
    weight = torch.zeros(rows.count, dim, requires_grad=True)
    lookup(weight, torch.randperm(100_000)[:distinct], rows).sum().backward()
    sent = SENT - before
    total = torch.tensor(float(sent["ids"] + sent["rows"] + sent["gradients"]))
    dist.all_reduce(total)
    assert total / 2 == pytest.approx(exchanged_bytes(distinct, dim, 2), rel=0.03)

    first, end = rows.range()
    shard = Shard.of(torch.ones(end - first, dtype=torch.int64), rows, negatives=1000, uniform=0.5)
    before, nothing = SENT.copy(), torch.zeros(0, dtype=torch.int64)
    draw_shards(shard, nothing, torch.zeros(1, dtype=torch.int64), shared=0)
    lengths = 2 * 2 * 8  # of two exchanges, before each
    assert (SENT - before)["draws"] - lengths == drawn_bytes(1000, 2)


def test_two_processes_send_the_bytes_that_the_formula_counts() -> None:
    run_ranks(2, exchange)


def test_the_counts_are_the_models_own() -> None:
    backbone = BackboneConfig(dim=16, layers=2, mixer=mixer_config("gated-deltanet", heads=2))
    found, model = count(LOAD, backbone), backbone.build()
    assert found.dense == sum(p.numel() for p in model.parameters())
    assert found.states == 4 * model.state_size() * 1e6
    assert found.table == 4 * 16 * 1e5
    assert found.optimiser == 2 * found.table + 4 * 1e5
    mixers = sum(block.mixer.flops() for block in model.blocks)
    ffn = sum(2 * part.weight.numel() for block in model.blocks for part in (block.ffn.project, block.ffn.out))
    assert found.flops == 3 * (mixers + ffn + 2 * 16 * 101)
    assert found.steps == 1e9 * 2 / 4000


def test_one_gpu_sends_nothing_and_a_slow_network_bounds_many() -> None:
    backbone = BackboneConfig(dim=16, layers=1, mixer=mixer_config("gated-deltanet", heads=2))
    alone = count(Load(**vars(LOAD) | {"gpus": 1}), backbone)
    assert alone.exchanged == alone.reduced == alone.network_seconds == 0
    assert alone.bound == "arithmetic"
    assert count(Load(**vars(LOAD) | {"network": 1e-6}), backbone).bound == "the network"


def test_the_command_prints_days_and_bound(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["plan", "--users", "1e9", "--items", "1e8", "--events", "1e11", "--gpus", "64"])
    out = capsys.readouterr().out
    assert "102.40 GB" in out  # 1e8 × 256 × 4 bytes
    assert "days" in out
    assert "bound by" in out
