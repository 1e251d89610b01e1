"""`delta_rule` compiled for the CPU."""
