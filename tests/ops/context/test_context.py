"""A sequence over several processes gives what one process gives, values and all gradients, to 1e-12 in float64."""

from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from support.processes import run_ranks
from torch import Tensor

from prism.layers import mixer_config
from prism.layers.spelling import spelled_mixers
from prism.models.backbone import BackboneConfig
from prism.ops import delta_rule
from prism.ops.common.packing import Packing
from prism.ops.context.conv import history_across
from prism.ops.context.segment import Segment
from prism.ops.context.state import delta_rule_across
from prism.ops.conv import short_conv

T, H, K, V = 37, 2, 4, 3
EXACT = {"rtol": 0.0, "atol": 1e-12}
# (rows, packed limits, directions, an erasure for each)
CASES = [
    (2, None, 1, False),
    (2, None, 2, True),
    (1, (0, 37), 2, False),
    (1, (0, 3, 17, 17, 21, 30, 37), 2, False),
    (1, (0, 5, 21, 37), 1, False),
]
CUTS = {2: [(0, 19, 37), (0, 2, 37), (0, 37, 37)], 4: [(0, 5, 5, 21, 37), (0, 1, 2, 30, 37)]}


def given(rows: int, L: int, each: bool) -> dict[str, Tensor]:
    torch.manual_seed(7)
    draw = torch.randn
    made = {
        "q": draw(rows, T, H, K),
        "k": torch.nn.functional.normalize(draw(rows, T, H, L, K), dim=-1),
        "v": draw(rows, T, H, L, V),
        "beta": torch.rand(rows, T, H, L),
        "log_alpha": -0.1 * torch.rand(rows, T, H),
        "erase": torch.rand(rows, T, H, L) if each else torch.rand(rows, T, H),
    }
    return {name: x.double().requires_grad_() for name, x in made.items()}


def across(rank: int, world: int) -> None:
    for rows, bounds, L, each in CASES:
        for cuts in CUTS[world]:
            recurrence(rank, world, rows, bounds, L, each, cuts)
            convolution(rank, rows, bounds, cuts)


def segment_of(rank: int, cuts: tuple[int, ...], bounds: tuple[int, ...] | None) -> Segment:
    limits = None if bounds is None else torch.tensor(bounds)
    found = Segment.of(dist.group.WORLD, cuts[rank + 1] - cuts[rank], limits)
    assert found.cuts == cuts
    return found


def recurrence(rank: int, world: int, rows: int, bounds: object, L: int, each: bool, cuts: tuple[int, ...]) -> None:
    whole = given(rows, L, each)
    limits = None if bounds is None else Packing(bounds)  # type: ignore[arg-type]
    o, S = delta_rule(**whole, scale=0.7, output_final_state=True, cu_seqlens=limits)
    weight, last = torch.randn_like(o), torch.randn_like(S)
    ends_here = bounds is None or cuts[-2] < T  # whether the last process holds the end of the last sequence
    ((o * weight).sum() + ends_here * (S[-1] * last[-1]).sum()).backward()

    part = slice(cuts[rank], cuts[rank + 1])
    mine = {name: x.detach()[:, part].clone().requires_grad_() for name, x in given(rows, L, each).items()}
    segment = segment_of(rank, cuts, bounds)  # type: ignore[arg-type]
    o_r, S_r = delta_rule_across(segment, **mine, scale=0.7)
    torch.testing.assert_close(o_r, o[:, part], **EXACT)
    loss = (o_r * weight[:, part]).sum()
    if rank == world - 1 and ends_here:
        torch.testing.assert_close(S_r[-1], S[-1], **EXACT)
        loss = loss + (S_r[-1] * last[-1]).sum()
    loss.backward()
    for name, x in mine.items():
        torch.testing.assert_close(x.grad, whole[name].grad[:, part], **EXACT, msg=lambda m, n=name: f"d{n}: {m}")


def convolution(rank: int, rows: int, bounds: tuple[int, ...] | None, cuts: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    x, w = torch.randn(rows, T, 5).double().requires_grad_(), torch.randn(5, 4).double().requires_grad_()
    y, _ = short_conv(x, w, silu=True, cu_seqlens=None if bounds is None else Packing(bounds))
    weight = torch.randn_like(y)
    (y * weight).sum().backward()

    part = slice(cuts[rank], cuts[rank + 1])
    mine, own = x.detach()[:, part].clone().requires_grad_(), w.detach().clone().requires_grad_()
    segment = segment_of(rank, cuts, bounds)
    y_r, _ = short_conv(mine, own, silu=True, history=history_across(mine, 3, segment), cu_seqlens=segment.packing)
    torch.testing.assert_close(y_r, y[:, part], **EXACT)
    (y_r * weight[:, part]).sum().backward()
    torch.testing.assert_close(mine.grad, x.grad[:, part], **EXACT)
    total = torch.zeros_like(w) if own.grad is None else own.grad.clone()  # no token, no gradient
    dist.all_reduce(total)
    torch.testing.assert_close(total, w.grad, **EXACT)


@pytest.mark.parametrize("world", [2, 4])
def test_segments_give_what_the_whole_sequence_gives(world: int) -> None:
    run_ranks(world, across, world)


MIXERS = ("prism", "prism:base_write=true,forget=all", "deltanet", "efla", "mamba2", "linear-attention")


def models(rank: int) -> None:
    for name in MIXERS:
        for bounds in (None, (0, 6, 11, 20)):
            torch.manual_seed(1)
            config = BackboneConfig(dim=8, layers=2, mixer=spelled_mixers(name, 2, heads=2), context_parallel=2)
            backbone = config.build().double()
            torch.manual_seed(2)
            x, weight = torch.randn(1, 20, 8).double(), torch.randn(1, 20, 8).double()
            limits = None if bounds is None else torch.tensor(bounds)
            whole = backbone.eval()(x, None, limits)[0]  # sequences are shared in training alone
            (whole * weight).sum().backward()
            wanted = {n: p.grad.clone() for n, p in backbone.named_parameters()}
            backbone.zero_grad()
            part = slice(0, 13) if rank == 0 else slice(13, 20)
            mine = backbone.train()(x[:, part], None, limits)[0]
            torch.testing.assert_close(mine, whole[:, part], **EXACT)
            (mine * weight[:, part]).sum().backward()
            for n, p in backbone.named_parameters():
                dist.all_reduce(p.grad)
                torch.testing.assert_close(p.grad, wanted[n], rtol=1e-11, atol=1e-12, msg=lambda m, n=n: f"{n}: {m}")


def test_a_backbone_in_two_segments_learns_what_it_learns_whole() -> None:
    run_ranks(2, models)


def refused(rank: int) -> None:
    for name in ("attention", "gla"):
        backbone = BackboneConfig(dim=8, layers=1, mixer=mixer_config(name, heads=2), context_parallel=2).build()
        with pytest.raises(ValueError, match="cannot share a sequence between processes"):
            backbone.train()(torch.randn(1, 4, 8))


def test_mixers_that_cannot_be_cut_say_so() -> None:
    run_ranks(2, refused)


def test_the_pieces_of_a_segment_are_those_of_the_sequences_in_it() -> None:
    bounds, cuts = (0, 3, 17, 17, 21, 30, 37), (0, 5, 5, 21, 37)
    parts = [Segment(None, rank, cuts, bounds) for rank in range(4)]
    assert [part.packing.bounds for part in parts] == [(0, 3, 5), (0, 0), (0, 12, 16), (0, 9, 16)]
    assert parts[0].continues == (False, True, True, False)
    assert parts[0].passes == (False, True, False, False)
    for part, (a, b) in zip(parts, pairwise(cuts), strict=True):
        assert part.packing.bounds[-1] == b - a


@pytest.mark.parametrize(
    ("reached", "given", "wanted"),
    [
        ("meta:nccl", None, "meta"),
        ("cpu:gloo,meta:nccl", None, "cpu"),
        ("meta:nccl,cpu:gloo", None, "cpu"),
        ("cpu:gloo,meta:nccl", torch.device("meta"), "meta"),
    ],
)
def test_lengths_are_exchanged_on_the_device_given_or_on_one_that_the_group_reaches(
    reached: str, given: torch.device | None, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meta tensors stand for a GPU's, a stub for the collective."""
    seen: list[str] = []

    def all_gather(every: list[Tensor], mine: Tensor, group: object) -> None:
        seen.extend(x.device.type for x in (mine, *every))
        every[:] = [torch.tensor([3]), torch.tensor([4])]

    stubs = {"get_backend_config": reached, "get_world_size": 2, "get_rank": 1}
    for name, answer in stubs.items():
        monkeypatch.setattr(dist, name, lambda group, answer=answer: answer)
    monkeypatch.setattr(dist, "all_gather", all_gather)
    assert Segment.of(None, 4, None, device=given).cuts == (0, 3, 7)
    assert seen == [wanted] * 3
