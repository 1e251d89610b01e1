"""Training: one loop for any task, checkpoints that are whole, a run that goes on where it stopped."""
