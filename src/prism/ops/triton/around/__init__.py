"""The parts around the recurrence, each one pass over memory, forward and backward."""
