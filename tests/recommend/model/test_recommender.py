"""The recommender model: packed, step by step, time features that know no future."""

import numpy as np
import pytest
import torch

from prism.layers import mixer_config
from prism.models.backbone import BackboneConfig
from prism.recommend.data.items import ItemValues
from prism.recommend.model.recommender import GAP_BUCKETS, Events, RecommenderConfig, RecommenderModel, gap_bucket


def model(mixer: str = "prism", features: ItemValues | None = None, **fields: bool) -> RecommenderModel:
    torch.manual_seed(0)
    backbone = BackboneConfig(dim=16, layers=2, mixer=mixer_config(mixer, heads=2))
    return RecommenderConfig(backbone=backbone, **fields).build(30, features).double().eval()


def events(length: int = 12) -> Events:
    when = torch.randint(1, 10**6, (length,)).cumsum(0)
    since = when.diff(prepend=when[:1] + 1)
    return Events(torch.randint(30, (length,)), since, torch.stack([when, when], 1))


@pytest.mark.parametrize("mixer", ["prism", "gated-deltanet", "sasrec", "hstu"])
@pytest.mark.parametrize("timed", [False, True])
def test_steps_repeated_equal_one_encoding(mixer: str, timed: bool) -> None:
    net, seen = model(mixer, time_gaps=timed, query_time=timed, item_bias=True, projection=timed), events()
    whole, _ = net.encode(seen, torch.tensor([0, 12]))
    state = None
    for t in range(12):
        x, state = net.step(Events(*(part[t : t + 1] for part in seen)), state)
        torch.testing.assert_close(x[0], whole[t])
    torch.testing.assert_close(net.scores(x)[0], whole[-1] @ net.embedding.weight[:30].T + net.bias)


def test_histories_packed_together_do_not_see_each_other() -> None:
    net, seen = model(time_gaps=True), events()
    packed, _ = net.encode(seen, torch.tensor([0, 5, 12]))
    alone, _ = net.encode(Events(*(part[5:] for part in seen)), torch.tensor([0, 7]))
    torch.testing.assert_close(packed[5:], alone)


def test_scores_do_not_depend_on_when_the_next_event_comes_unless_asked_to() -> None:
    seen = events()
    later = seen._replace(times=seen.times + torch.tensor([0, 10**6]))
    for query_time in (False, True):
        net = model(time_gaps=True, query_time=query_time)
        same = torch.equal(net.encode(seen, torch.tensor([0, 12]))[0], net.encode(later, torch.tensor([0, 12]))[0])
        assert same == (not query_time)


def test_features_add_their_values_means_to_an_items_row_in_input_and_scores() -> None:
    of = ItemValues(
        names=("a", "b"),
        values=np.array([0, 1, 1]),
        weights=np.array([0.5, 0.5, 1.0], dtype=np.float32),
        offsets=np.array([0, 2, 3, *[3] * 28]),
    )
    plain, net, seen = model(), model(features=of), events()
    limits = torch.tensor([0, 12])
    torch.testing.assert_close(net(seen, limits), plain(seen, limits))  # they begin as if there were none
    rows = torch.randn(2, 16, dtype=torch.float64)
    net.features.rows.weight.data.copy_(rows)
    plain.embedding.weight.data[0] += (rows[0] + rows[1]) / 2
    plain.embedding.weight.data[1] += rows[1]
    seen.items[:4] = torch.tensor([0, 1, 2, 30])
    torch.testing.assert_close(net(seen, limits), plain(seen, limits))
    x, _ = net.step(Events(*(part[:1] for part in seen)), None)
    torch.testing.assert_close(net.scores(x), plain.scores(plain.step(Events(*(part[:1] for part in seen)), None)[0]))
    net.scores(x).sum().backward()
    assert (net.features.rows.weight.grad.abs().sum(1) > 0).all()


def test_item_rows_with_features_are_made_once_until_a_weight_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    of = ItemValues(
        names=("a",), values=np.array([0]), weights=np.ones(1, np.float32), offsets=np.array([0, *[1] * 30])
    )
    net, made = model(features=of), []
    make = net._make_rows
    monkeypatch.setattr(net, "_make_rows", lambda used: made.append(1) or make(used))
    with torch.inference_mode():
        first = net.scores(net.step(Events(*(part[:1] for part in events())), None)[0])
        again = net.scores(net.step(Events(*(part[:1] for part in events())), None)[0])
    assert len(made) == 1
    assert first.shape == again.shape
    with torch.no_grad():
        net.features.rows.weight.add_(1.0)
        assert (net.table[0] == net.embedding.weight[0] + net.features.rows.weight[0]).all()
    assert len(made) == 2
    net.scores(torch.zeros(1, 16, dtype=torch.float64))  # with gradients they are always made anew
    assert len(made) == 3


def test_gap_buckets_grow_by_half_an_octave_and_tell_a_missing_gap_apart() -> None:
    assert gap_bucket(torch.tensor([-1, 0, 1, 2, 3, 2**40])).tolist() == [0, 1, 3, 4, 5, GAP_BUCKETS]


def test_only_attention_has_a_state_that_grows() -> None:
    assert not model("prism").grows
    assert model("sasrec").grows
