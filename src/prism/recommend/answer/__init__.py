"""From scores to answers: the question, what may be shown, the k best, for one user or for all; and why."""
