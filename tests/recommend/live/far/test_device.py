"""Live users where the model is: on a device that is not the CPU they get what they would get on the CPU."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny

from prism.recommend.data.splits import split
from prism.recommend.live.memories import RecurrentMemory
from prism.recommend.live.network import CompiledModel, TensorModel, live_model
from prism.recommend.live.pool import SessionPool
from prism.recommend.live.user_bytes import unpack_user
from prism.recommend.model.experts import EXPERTS
from prism.recommend.recommender import Recommender

if not hasattr(torch._C, "_acc"):
    pytest.skip("this PyTorch knows no devices made in Python", allow_module_level=True)

from support.far import Far, far_device

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("prism", {}),
    ("prism", {"experts": EXPERTS, "projection": True}),
    ("prism", {"query_time": True, "time_gaps": True, "item_bias": True, "layers": 2}),
    ("gated-deltanet", {}),
    ("mamba2", {}),
    ("prism", {"context": 4}),
]


def twins(mixer: str, fields: dict[str, Any]) -> tuple[Recommender, Recommender]:
    """One model here and there."""
    config = replace(tiny.CONFIG, mixer=mixer, heads=2, **fields)
    made = []
    for _ in range(2):
        one = Recommender._untrained(split(tiny.log(), config.protocol), config)
        if config.experts:
            one.fit_experts()
        made.append(one)
    made[1].model.load_state_dict(made[0].model.state_dict())
    with far_device() as device:
        made[1].model.to(device)
    return made[0], made[1]


def taken(*pools: SessionPool) -> None:
    """The same events, a user twice in one call."""
    for t in range(12):
        for pool in pools:
            pool.update(["u", "v", "u"], [t, 7 * t % 50, 3 * t % 50], [100 * t, 100 * t, 100 * t + 5])


def same(ours: Any, theirs: Any) -> None:
    assert [one.item for one in ours] == [one.item for one in theirs]
    np.testing.assert_allclose([one.score for one in ours], [one.score for one in theirs], atol=1e-5)


@pytest.mark.parametrize(("mixer", "fields"), KINDS, ids=str)
def test_users_of_another_device_get_what_they_would_on_the_cpu(mixer: str, fields: dict[str, Any]) -> None:
    near, far = twins(mixer, fields)
    pools = SessionPool(near, 6), SessionPool(far, 6)
    taken(*pools)
    answers = [pool.recommend(["u", "new", "v"], 6, at=5000) for pool in pools]
    for ours, theirs in zip(*answers, strict=True):
        same(ours, theirs)


@pytest.mark.parametrize(("mixer", "fields"), KINDS, ids=str)
def test_a_state_has_the_same_bytes_on_every_device_and_goes_on_there(mixer: str, fields: dict[str, Any]) -> None:
    near, far = twins(mixer, fields)
    assert near.key == far.key
    pools = SessionPool(near, 6), SessionPool(far, 6)
    taken(*pools)
    ours, theirs = (pool.state("u") for pool in pools)
    assert len(ours) == len(theirs)
    for mine, yours in zip(unpack_user(ours, near).arrays, unpack_user(theirs, near).arrays, strict=True):
        assert mine.dtype == yours.dtype
        np.testing.assert_allclose(mine, yours, atol=1e-5)
    there, here = far.session(state=ours), near.session(state=theirs)
    pools[1].restore("w", ours)
    for one in (there, here):
        one.update(9, 6000)
    pools[1].update(["w"], [9], [6000])
    same(there.recommend(6, at=7000), here.recommend(6, at=7000))
    same(pools[1].recommend(["w"], 6, at=7000)[0], here.recommend(6, at=7000))
    assert there.state()[:8] == here.state()[:8]


def test_states_stay_on_the_device_until_they_are_asked_for() -> None:
    _, far = twins("prism", {})
    pool = SessionPool(far, 6)
    taken(pool)
    memory = pool._memory
    assert isinstance(memory, RecurrentMemory)
    assert all(isinstance(part, Far) for part in (*memory._states, memory._features))
    assert pool.nbytes > 0


def test_on_the_cpu_the_compiled_step_is_taken_and_agrees_with_the_one_of_tensors() -> None:
    near, _ = twins("prism", {"time_gaps": True, "layers": 2})
    compiled, plain = live_model(near), TensorModel(near)
    assert isinstance(compiled, CompiledModel)
    rows, rng = np.array([2, 0]), np.random.default_rng(0)
    states = [one.room(3) for one in (compiled, plain)]
    for one, state in zip((compiled, plain), states, strict=True):
        one.renew(state, 0)
        one.renew(state, 2)
    for n in range(20):
        codes, since = rng.integers(50, size=2), np.array([-1, -1]) if n == 0 else rng.integers(10**6, size=2)
        keep = n % 3 != 0
        given = (rows, codes, since, np.zeros_like(since))
        ours, theirs = (
            one.advance(state, *given, keep=keep) for one, state in zip((compiled, plain), states, strict=True)
        )
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-6)
    for mine, yours in zip(compiled.row(states[0], 2), plain.row(states[1], 2), strict=True):
        assert mine.shape == yours.shape
        np.testing.assert_allclose(mine, yours, atol=1e-6)
