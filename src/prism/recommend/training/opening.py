"""Before the first step: the weights of the experts, fitted while the model knows nothing.

The model then starts from what the simple experts get together, and learns what they leave.
"""

import torch

from prism.ops.softmax_loss import softmax_loss
from prism.recommend.model.recommender import RecommenderModel
from prism.recommend.training.task import Batch, RecommendationTask

TOKENS, STEPS, RATE = 10_000, 250, 0.03


def fit_opening(model: RecommenderModel, task: RecommendationTask, *, tokens: int = TOKENS, steps: int = STEPS) -> None:
    """By likelihood of a sample of the training events, in place; depends on the task's seed alone."""
    gates = model.gates
    if gates is None:
        return
    sample = _sample(task, tokens)
    device = model.embedding.weight.device
    trained = [gates.context.weight, gates.context.bias, gates.out.weight, gates.out.bias]
    optimiser = torch.optim.Adam(trained, lr=RATE)
    x, table = torch.zeros(1, 1, device=device), torch.zeros(model.items, 1, device=device)
    blank = torch.zeros(1, model.config.backbone.dim, device=device)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = RATE * (1 - step / steps)
        batch = sample[step % len(sample)]
        assert batch.seen is not None
        contexts, added = batch.seen.contexts.to(device), batch.seen.added.to(device)
        count = len(batch.targets)
        weights = gates(blank.expand(count, -1), contexts)
        loss = softmax_loss(x.expand(count, -1), table, batch.targets.to(device), added=added, weights=weights)
        optimiser.zero_grad()
        (loss / count).backward()
        optimiser.step()
    model.zero_grad(set_to_none=True)


def _sample(task: RecommendationTask, tokens: int) -> list[Batch]:
    """The first batches of an epoch, until they hold so many tokens."""
    batches, found, count = task.batches(0), [], 0
    for n in range(len(batches)):
        found.append(batches[n])
        count += len(found[-1].targets)
        if count >= tokens:
            break
    return found
