"""The probing tasks, each a pure function of a seed."""
