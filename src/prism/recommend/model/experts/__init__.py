"""The simple experts beside the model: what they know of a log, and what they add to the model's scores.

    score(i | h) = ⟨x_h, e_i⟩ + Σ_e c_e(h) f_e(i | h)        p = softmax(score)

The weights c depend on the context and are learned with the model (`mixture.py`). The features f are facts of the
history and of other histories:

| expert | f(i), with ε a small share |
|---|---|
| repeat | 1 if the user has taken i before; and log(1 + p(i)/ε), p ∝ e^{score} over the user's own items, the latest 512 of them: recency, count, time since, time of day and week, what followed |
| next | log(1 + p(i)/ε), p what came directly after the latest item in other histories, and no accident; and log ε, ε what comes by accident, whatever was taken before |
| pair | the same as `next`, p what came directly after the latest two items in turn, each count less 0.75, where they came in turn at least twice |
| follow | the same with what came after the latest items, the sooner the more, or, counting less, before them |
| visit | the same with what was taken at most a few events before or after the items of the present visit |
| together | log of p(i)/ε where that is above 0, p ∝ the sum of what each of the user's items says of i, all others held the same (`regression.py`), ε the popularity |
| popular | log of the share of all training events, over that of a uniform one |
| lately | the same of the events before the present period, older ones counting less |
"""  # noqa: E501

from prism.recommend.model.experts.fitted import EXPERTS, Experts, Floats, check_experts, experts_from, fit_experts
from prism.recommend.model.experts.training import TrainingFeatures

__all__ = ["EXPERTS", "Experts", "Floats", "TrainingFeatures", "check_experts", "experts_from", "fit_experts"]
