"""Before the first step: the weights of the experts, fitted while the model knows nothing.

The model then starts from what the simple experts get together, and learns what they leave. What is maximised is
Σ p(target)^q / q: likelihood (q → 0) is mostly about events that nobody could have foreseen, and to explain these it
leans on popularity more than a ranking should; with q = ½ an event counts by the root of its chance.
"""

import torch

from prism.ops.softmax_loss import added_log_likelihoods, softmax_loss
from prism.recommend.model.recommender import RecommenderModel
from prism.recommend.training.task import Batch, RecommendationTask

TOKENS, STEPS, RATE = 40_000, 400, 0.03
# Features that the sample may hold: half a gigabyte.
ENTRIES = 1 << 25
# The q above.
FOCUS = 0.5


def fit_opening(model: RecommenderModel, task: RecommendationTask, *, tokens: int = TOKENS, steps: int = STEPS) -> None:
    """By the chances of a sample of the training events, in place; depends on the task's seed alone."""
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
        count, targets = len(batch.targets), batch.targets.to(device)
        weights = gates(blank.expand(count, -1), contexts)
        chance = (FOCUS * added_log_likelihoods(added, weights, targets)).exp()[:, None]
        # the gradient of p^q / q is p^q times that of log p
        counted = weights.detach() + chance / chance.mean() * (weights - weights.detach())
        loss = softmax_loss(x.expand(count, -1), table, targets, added=added, weights=counted)
        optimiser.zero_grad()
        (loss / count).backward()
        optimiser.step()
    model.zero_grad(set_to_none=True)


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
