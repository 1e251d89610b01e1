"""The simple experts beside the model: their names, what they know of a log, and their distributions over items.

| expert | p(i) |
|---|---|
| repeat | ∝ e^{score} over the user's own items: recency, count, time since, time of day and week, what followed |
| next | what came directly after the latest items, in other histories |
| near | what was taken at most a few events before or after the latest items |
| popular | share of all training events |
| lately | share of the events before the present period, older ones counting less |
"""

from prism.recommend.model.experts.fitted import (
    EXPERTS,
    Experts,
    Floats,
    Views,
    check_experts,
    experts_from,
    fit_experts,
    training_views,
)

__all__ = [
    "EXPERTS",
    "Experts",
    "Floats",
    "Views",
    "check_experts",
    "experts_from",
    "fit_experts",
    "training_views",
]
