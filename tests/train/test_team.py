"""Helpers that take a part of every batch: the gradients are those of the whole, and nothing of them stays behind."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch
from support import tiny
from support.toy import Toy, net
from torch import Tensor, nn

from prism.recommend.model.experts import EXPERTS
from prism.recommend.recommender import Recommender
from prism.recommend.training.objectives import ObjectiveConfig
from prism.train.config import TrainConfig
from prism.train.loop import train
from prism.train.team import ALIVE, Order, Team

pytestmark = pytest.mark.skipif(not Team.possible(), reason="helpers are forked, which is safe on Linux alone")
CONFIG = TrainConfig(epochs=3, lr=0.02, seed=5)
Points = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Halves(Sequence[Points]):
    """Batches whose points can be dealt out."""

    of: Sequence[Points]

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, n):  # type: ignore[no-untyped-def]
        return self.of[n]

    def parts(self, n: int, most: int) -> list[Callable[[], Points]]:
        x, y = self.of[n]
        return [partial(lambda k: (x[k::most], y[k::most]), k) for k in range(most)]


class Divided(Toy):
    def batches(self, epoch: int) -> Halves:
        return Halves(super().batches(epoch))


@pytest.fixture
def threads():  # type: ignore[no-untyped-def]
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def trained(task: Toy, model: nn.Module) -> list[Tensor]:
    train(model, task, CONFIG, progress=False)
    return [weight.detach().clone() for weight in model.parameters()]


def quiet_net() -> nn.Module:
    model = net()
    model[1].p = 0.0  # type: ignore[assignment]
    return model


@pytest.mark.parametrize("count", [2, 3])
def test_helpers_give_the_gradients_of_the_whole_batch(count: int, threads: Callable[[int], None]) -> None:
    alone = trained(Divided(), quiet_net())
    threads(count)
    for a, b in zip(alone, trained(Divided(), quiet_net()), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_with_dropout_a_seed_gives_the_same_weights_again(threads: Callable[[int], None]) -> None:
    threads(2)
    first, second = trained(Divided(), net()), trained(Divided(), net())
    assert all(map(torch.equal, first, second))


def test_every_part_of_every_batch_of_an_update_has_a_seed_of_its_own(
    tmp_path: Path, threads: Callable[[int], None]
) -> None:
    here = os.getpid()

    def noted(loss: Tensor) -> Tensor:
        if os.getpid() != here:
            (tmp_path / f"{torch.initial_seed()}-{time.monotonic_ns()}").touch()
        return loss

    threads(3)
    task = Divided(noted, count=6)
    train(quiet_net(), task, replace(CONFIG, epochs=1, accumulate=3), progress=False)
    seeds = [path.name.partition("-")[0] for path in tmp_path.iterdir()]
    assert len(seeds) == len(set(seeds)) == 2 * 6


def test_helpers_end_with_training_and_the_weights_have_memory_of_their_own(threads: Callable[[int], None]) -> None:
    threads(2)
    before, model = set(active_children()), net()
    trained(Divided(), model)
    assert set(active_children()) <= before
    assert torch.get_num_threads() == 2
    model[0].weight.data.untyped_storage().resize_(0)  # memory that is mapped would refuse


def test_several_helpers_end_at_once_and_none_is_killed() -> None:
    task, model = Divided(), net()
    team = Team(4, model, task.batches, partial(task.loss, model))
    team.backward(Order(0, 0, 1))
    began = time.monotonic()
    team.end()
    assert time.monotonic() - began < ALIVE
    assert [helper.process.exitcode for helper in team._helpers] == [0] * 3


def test_what_a_helper_cannot_do_is_said_where_training_is(threads: Callable[[int], None]) -> None:
    here = os.getpid()

    def fails(loss: Tensor) -> Tensor:
        if os.getpid() != here:
            raise ValueError("a helper's own trouble")
        return loss

    threads(2)
    with pytest.raises(ValueError, match="a helper's own trouble"):
        trained(Divided(fails), net())


def test_a_helper_that_is_killed_ends_training_with_a_reason(threads: Callable[[int], None]) -> None:
    here = os.getpid()

    def dies(loss: Tensor) -> Tensor:
        if os.getpid() != here:
            os._exit(7)
        return loss

    threads(2)
    with pytest.raises(RuntimeError, match="a helper of training ended"):
        trained(Divided(dies), net())


@pytest.mark.parametrize("loss", ["softmax", "sampled"])
def test_a_recommender_learns_the_same_with_a_helper(
    loss: str, tmp_path: Path, threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # every item is drawn, so that chance has no part in it; the table's gradient is sparse
    objective = ObjectiveConfig(loss=loss, negatives=100, shared=0)  # type: ignore[arg-type]
    experts = EXPERTS if loss == "softmax" else ()
    config = replace(tiny.CONFIG, dropout=0.0, objective=objective, experts=experts, protocol="global-time")
    config = replace(config, train=replace(config.train, epochs=1))
    monkeypatch.setattr("prism.recommend.training.task.WORTH_A_PART", 1)
    alone = Recommender.fit(tiny.log(), config, progress=False)
    threads(2)
    helped = Recommender.fit(tiny.log(), config, progress=False)
    for a, b in zip(alone.model.parameters(), helped.model.parameters(), strict=True):
        assert (a - b).norm() <= 1e-3 * (a.norm() + 1)
