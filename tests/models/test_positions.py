"""Learned absolute positions in the backbone: each token gets its own, however the sequence arrives."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from prism.layers import mixer_config
from prism.models.backbone import Backbone, BackboneConfig

D, T, TABLE = 8, 20, 12


def build(**fields) -> Backbone:
    mixer = mixer_config("sasrec", heads=2)
    return BackboneConfig(dim=D, layers=2, mixer=mixer, positions=TABLE, **fields).build().double()


def tokens(batch: int, length: int) -> Tensor:
    return torch.randn(batch, length, D, dtype=torch.float64)


def test_a_token_gets_the_position_it_has_in_its_sequence() -> None:
    model, x = build(), torch.zeros(1, T, D, dtype=torch.float64)
    y, _ = model.positions(x, None, None)
    for t in range(T):
        assert torch.equal(y[0, t], model.positions.table.weight[min(t, TABLE - 1)])


def test_steps_equal_forward_also_beyond_the_last_position() -> None:
    model, x, state, steps = build(), tokens(2, T), None, []
    for t in range(T):
        y, state = model.step(x[:, t], state)
        steps.append(y)
    whole, last = model(x)
    torch.testing.assert_close(torch.stack(steps, 1), whole)
    assert last[-1][0].tolist() == state[-1][0].tolist() == [T, T]


@pytest.mark.parametrize("cut", [0, 1, 7, T])
def test_splitting_a_sequence_anywhere_changes_nothing(cut: int) -> None:
    model, x = build(), tokens(2, T)
    first, state = model(x[:, :cut])
    second, _ = model(x[:, cut:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), model(x)[0])


def test_packed_sequences_equal_separate_ones_and_their_counts_differ() -> None:
    model, limits = build(), [0, 3, 3, 9, 20]
    x, later = tokens(1, T), tokens(1, 8)
    y, state = model(x, cu_seqlens=torch.tensor(limits))
    z, _ = model(later, state, cu_seqlens=torch.arange(0, 9, 2))
    assert state[-1][0].tolist() == [3, 0, 6, 11]
    for n, (a, b) in enumerate(pairwise(limits)):
        alone, alone_state = model(x[:, a:b])
        torch.testing.assert_close(y[:, a:b], alone)
        following = slice(2 * n, 2 * n + 2)
        torch.testing.assert_close(z[:, following], model(later[:, following], alone_state)[0])


def test_order_matters_only_with_positions() -> None:
    with_positions = build()
    without = BackboneConfig(dim=D, layers=1, mixer=mixer_config("sasrec", heads=2)).build().double()
    x = tokens(1, 4)
    swapped = x[:, [1, 0, 2, 3]]
    assert (with_positions(x)[0][:, -1] - with_positions(swapped)[0][:, -1]).abs().max() > 1e-4
    torch.testing.assert_close(without(x)[0][:, -1], without(swapped)[0][:, -1])


def test_the_state_counts_one_number_more_and_gradient_reaches_used_positions_only() -> None:
    model = build()
    _, state = model(tokens(3, T))
    assert sum(part[0].numel() for entry in state for part in entry) == model.state_size(T)
    model(tokens(2, 5))[0].square().sum().backward()
    used = model.positions.table.weight.grad.abs().amax(-1) > 0
    assert used.tolist() == [True] * 5 + [False] * (TABLE - 5)


def test_the_input_is_dropped_out_with_the_rest_in_training_only() -> None:
    model, x = build(dropout=0.5), torch.ones(1, TABLE, D, dtype=torch.float64)
    dropped = (model.positions(x, None, None)[0] == 0).double().mean()
    assert 0.2 < dropped < 0.8
    model.eval()
    assert not (model.positions(x, None, None)[0] == 0).any()


def test_wrong_states_and_counts_are_refused_by_name() -> None:
    model, x = build(), tokens(2, 3)
    _, state = model(x)
    with pytest.raises(ValueError, match="2 blocks and one for positions, got 2"):
        model(x, state[:2])
    with pytest.raises(ValueError, match="state counts 2 sequences, but x has 1"):
        model(x[:1], state)
    with pytest.raises(ValueError, match="positions must be at least 0, got -1"):
        BackboneConfig(positions=-1)
