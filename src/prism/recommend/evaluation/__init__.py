"""Full-ranking evaluation, and the simple baselines that a model has to beat."""
