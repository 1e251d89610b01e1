"""AdamW by rows: the dense one where all rows are used, each row's own Adam where not."""

import pytest
import torch
from torch import nn

from prism.train.config import TrainConfig
from prism.train.optimiser import make_optimiser, optimiser_tensors, restore_optimiser, scale_gradients


def sparse(rows: list[int], values: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([rows]), values, size, check_invariants=True)


def net(seed: int = 0) -> nn.ModuleDict:
    torch.manual_seed(seed)
    return nn.ModuleDict({"table": nn.Embedding(6, 3), "map": nn.Linear(3, 3)})


def step(model: nn.ModuleDict, optimiser: torch.optim.Optimizer, grad: torch.Tensor) -> None:
    model["table"].weight.grad = grad.clone()  # type: ignore[union-attr]
    model["map"].weight.grad = torch.ones(3, 3)  # type: ignore[union-attr]
    scale_gradients(model.parameters(), 1.0, 1e9)
    optimiser.step()


def test_with_all_rows_used_it_is_the_dense_adamw() -> None:
    one, other = net(), net()
    by_rows, dense = (make_optimiser(model, TrainConfig(lr=0.1)) for model in (one, other))
    for n in range(7):
        grad = torch.randn(6, 3, generator=torch.Generator().manual_seed(n))
        step(one, by_rows, sparse(list(range(6)), grad, (6, 3)))
        step(other, dense, grad)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_each_row_is_an_adam_of_its_own_steps() -> None:
    model = net()
    optimiser, before = make_optimiser(model, TrainConfig(lr=0.1)), model["table"].weight.detach().clone()  # type: ignore
    used = [[0, 2], [2], [5, 2], [0], [2, 0]]
    for n, rows in enumerate(used):
        values = torch.randn(len(rows), 3, generator=torch.Generator().manual_seed(n))
        step(model, optimiser, sparse(rows, values, (6, 3)))
    for row in range(6):
        alone = nn.Parameter(before[row].clone())
        adam = torch.optim.AdamW([alone], lr=0.1, betas=(0.9, 0.98), weight_decay=0.0)
        for n, rows in enumerate(used):
            if row in rows:
                values = torch.randn(len(rows), 3, generator=torch.Generator().manual_seed(n))
                alone.grad = values[rows.index(row)]
                adam.step()
        torch.testing.assert_close(model["table"].weight[row], alone, rtol=1e-5, atol=1e-6)  # type: ignore[index]


def test_a_row_named_twice_has_the_sum_and_the_length_is_that_of_the_dense_gradient() -> None:
    model = net()
    grad = sparse([1, 1, 4], torch.tensor([[3.0, 0, 0], [1.0, 0, 0], [0, 3.0, 0]]), (6, 3))
    model["table"].weight.grad = grad  # type: ignore[union-attr]
    assert scale_gradients(model.parameters(), 2.0, 1.0) == 10
    torch.testing.assert_close(
        model["table"].weight.grad.to_dense()[[1, 4]],  # type: ignore[union-attr, operator]
        torch.tensor([[0.8, 0, 0], [0, 0.6, 0]]),
    )


def test_state_restored_from_named_tensors_goes_on_the_same() -> None:
    one, other = net(), net()
    first = make_optimiser(one, TrainConfig(lr=0.1))
    for n in range(3):
        step(one, first, sparse([n, 5], torch.ones(2, 3), (6, 3)))
    other.load_state_dict(one.state_dict())
    second = make_optimiser(other, TrainConfig(lr=0.1))
    restore_optimiser(other, second, {k: v.clone() for k, v in optimiser_tensors(one, first).items()})
    for model, optimiser in ((one, first), (other, second)):
        step(model, optimiser, sparse([0, 5], torch.ones(2, 3), (6, 3)))
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("first", ["rows", "dense"])
def test_a_run_goes_on_where_gradients_are_sparse_no_longer_or_at_last(first: str) -> None:
    """One process has sparse gradients, several exchange dense ones; all rows are used, so that both are one AdamW."""
    always, one, other = net(), net(), net()
    dense, before = (make_optimiser(model, TrainConfig(lr=0.1)) for model in (always, one))
    after = make_optimiser(other, TrainConfig(lr=0.1))
    for n in range(6):
        if n == 3:
            other.load_state_dict(one.state_dict())
            restore_optimiser(other, after, {k: v.clone() for k, v in optimiser_tensors(one, before).items()})
        model, optimiser = (one, before) if n < 3 else (other, after)
        grad = torch.randn(6, 3, generator=torch.Generator().manual_seed(n))
        step(always, dense, grad)
        step(model, optimiser, sparse(list(range(6)), grad, (6, 3)) if (n < 3) == (first == "rows") else grad)
    for a, b in zip(always.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    clocks = {key for key in optimiser_tensors(other, after) if key.startswith("table") and "step" in key}
    assert clocks == {"table.weight.step" if first == "rows" else "table.weight.row_steps"}


def test_an_update_is_counted_so_that_what_is_kept_of_old_weights_is_made_again() -> None:
    model = net()
    optimiser = make_optimiser(model, TrainConfig(lr=0.1))
    before = [weight._version for weight in model.parameters()]
    step(model, optimiser, torch.ones(6, 3))
    assert all(weight._version > old for weight, old in zip(model.parameters(), before, strict=True))
