"""Before the first step: the weights of the experts, fitted while the model knows nothing.

The model then starts from what the simple experts get together, and learns what they leave. What is maximised is
Σ p(target)^q / q: likelihood (q → 0) is mostly about events that nobody could have foreseen, and to explain these it
leans on popularity more than a ranking should; with q = ½ an event counts by the root of its chance. Where the experts
are nearly all there is to know, likelihood is a little ahead: so both are tried on validation.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from prism.ops.softmax_loss import focused, softmax_loss
from prism.recommend.model.mixture import Gates
from prism.recommend.model.recommender import Events, Outputs, RecommenderModel
from prism.recommend.training.task import Batch, RecommendationTask

TOKENS, STEPS, RATE = 40_000, 400, 0.03
# Features that the sample may hold: half a gigabyte.
ENTRIES = 1 << 25
# The q's that are tried, the usual one first; and on how many validation queries.
FOCUSES, QUERIES = (0.5, 0.0), 4000
# What depends on the context, the squares of the last layer's weights, costs this much per training event: few events
# are soon learned by heart. What does not, its bias, is free.
SHRINKAGE = 100.0


def fit_opening(
    model: RecommenderModel,
    task: RecommendationTask,
    *,
    focus: float | None = None,
    tokens: int = TOKENS,
    steps: int = STEPS,
) -> float:
    """By the chances of a sample of the training events, in place; gives the q. It depends on the task's seed alone.

    `focus` is q; None: the best of `FOCUSES` on validation, the first where there is none.
    """
    gates = model.gates
    tried = (focus,) if focus is not None else FOCUSES if task.monitor else FOCUSES[:1]
    if gates is None:
        return tried[0]
    sample, before = _sample(task, tokens), _weights(gates)
    few = replace(task, batching=replace(task.batching, valid_queries=min(QUERIES, task.batching.valid_queries)))
    found: dict[float, tuple[float, dict[str, Tensor]]] = {}
    for q in tried:
        gates.load_state_dict(before)
        _fit(model, task, sample, q, steps)
        found[q] = few.evaluate(model)[task.monitor] if task.monitor and len(tried) > 1 else 0.0, _weights(gates)
    best = max(found, key=lambda q: found[q][0])
    gates.load_state_dict(found[best][1])
    return best


def _weights(gates: Gates) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in gates.state_dict().items()}


def _fit(model: RecommenderModel, task: RecommendationTask, sample: list[Batch], focus: float, steps: int) -> None:
    gates = model.gates
    assert gates is not None
    trained = [gates.context.weight, gates.context.bias, gates.out.weight, gates.out.bias]
    optimiser, silent = torch.optim.Adam(trained, lr=RATE), _Silent(model)
    shrinkage = SHRINKAGE / max(task.split.train.n_events, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(task.seed)
        for step in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = RATE * (1 - step / steps)
            batch = sample[step % len(sample)]
            optimiser.zero_grad()
            size = shrinkage * gates.out.weight.square().sum()
            (_loss(task, silent, batch, focus) / len(batch.targets) + size).backward()
            optimiser.step()
    model.zero_grad(set_to_none=True)


def _loss(task: RecommendationTask, silent: "_Silent", batch: Batch, focus: float) -> Tensor:
    if task.objective.loss == "sampled":
        return focused(-task.sampled_log_likelihoods(silent, batch), focus).sum()
    assert batch.seen is not None
    device = silent.device
    contexts, added, targets = batch.seen.contexts.to(device), batch.seen.added.to(device), batch.targets.to(device)
    x, table, _, weights = silent(batch.events, batch.cu_seqlens, None, contexts)
    return softmax_loss(x, table, targets, added=added, weights=weights, focus=focus)


class _Silent(nn.Module):
    """A model that knows nothing beside its experts: of the width of one, all of it zero."""

    def __init__(self, model: RecommenderModel):
        super().__init__()
        self.gates, self.items, self.dim = model.gates, model.items, model.config.backbone.dim
        self.device = model.embedding.weight.device

    def forward(
        self, events: Events, packing: object, used: Tensor | None = None, contexts: Tensor | None = None
    ) -> Outputs:
        """What a loss needs."""
        assert self.gates is not None
        count, rows = len(events.items), self.items if used is None else len(used) - 1
        blank, table = torch.zeros(1, self.dim, device=self.device), torch.zeros(rows, 1, device=self.device)
        return Outputs(table.new_zeros(count, 1), table, None, self.gates(blank.expand(count, -1), contexts))


def _sample(task: RecommendationTask, tokens: int) -> list[Batch]:
    """The first batches of an epoch, until they hold so many tokens, or as many features as there is room for."""
    batches, found, count, entries = task.batches(0), [], 0, 0
    for n in range(len(batches)):
        batch = batches[n]
        assert batch.seen is not None
        found.append(batch)
        count, entries = count + len(batch.targets), entries + len(batch.seen.added.items)
        if count >= tokens or entries >= ENTRIES:
            break
    return found
