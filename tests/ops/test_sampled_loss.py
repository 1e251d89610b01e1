"""The sampled log-likelihood against its definition in float64: values and every gradient."""

import pytest
import torch
from torch import Tensor

from prism.ops.sampled_loss import Drawn, sampled_log_likelihood


def definition(x: Tensor, table: Tensor, targets: Tensor, among: Drawn, bias) -> Tensor:
    drawn, log_expected, limits = among
    found = []
    for group in range(len(limits) - 1):
        for n in range(int(limits[group]), int(limits[group + 1])):
            own = x[n] @ table[targets[n]] + (0 if bias is None else bias[targets[n]])
            total = own.exp()
            for m, item in enumerate(drawn.tolist()):
                if item != targets[n] and log_expected[group, m] < torch.inf:
                    score = x[n] @ table[item] + (0 if bias is None else bias[item])
                    total = total + score.exp() / log_expected[group, m].exp()
            found.append(own - total.log())
    return torch.stack(found)


@pytest.mark.parametrize("with_bias", [False, True])
def test_values_and_gradients_are_those_of_the_definition(with_bias: bool) -> None:
    torch.manual_seed(0)
    x, table, bias = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((9, 4), (7, 4), (7,)))
    targets, drawn = torch.randint(7, (9,)), torch.tensor([0, 3, 3, 6, 1])  # one of them twice, some are targets
    limits, log_expected = torch.tensor([0, 4, 5, 9]), torch.randn(3, 5, dtype=torch.float64)
    log_expected[1, 2] = log_expected[2, 0] = torch.inf
    weights = torch.randn(9, dtype=torch.float64)  # each token counts differently
    inputs = (x, table, bias) if with_bias else (x, table)
    found, wanted = (
        form(x, table, targets, Drawn(drawn, log_expected, limits), bias=bias if with_bias else None)
        for form in (sampled_log_likelihood, definition)
    )
    torch.testing.assert_close(found, wanted)
    for one, other in zip(*(torch.autograd.grad(y @ weights, inputs) for y in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other)


def test_with_every_item_drawn_once_it_is_the_exact_softmax() -> None:
    torch.manual_seed(1)
    x, table, targets = (
        torch.randn(6, 4, dtype=torch.float64),
        torch.randn(5, 4, dtype=torch.float64),
        torch.arange(6) % 5,
    )
    found = sampled_log_likelihood(
        x, table, targets, Drawn(torch.arange(5), torch.zeros(1, 5, dtype=torch.float64), torch.tensor([0, 6]))
    )
    torch.testing.assert_close(found, (x @ table.T).log_softmax(1)[torch.arange(6), targets])


def test_scores_that_would_overflow_are_finite() -> None:
    x, table = torch.full((1, 1), 200.0, requires_grad=True), torch.tensor([[1.0], [2.0]])
    found = sampled_log_likelihood(
        x, table, torch.tensor([0]), Drawn(torch.tensor([1]), torch.zeros(1, 1), torch.tensor([0, 1]))
    )
    found.sum().backward()
    assert found.item() == -200
    assert x.grad is not None
    assert x.grad.item() == -1
