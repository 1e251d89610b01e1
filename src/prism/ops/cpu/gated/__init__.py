"""`gated_rule` compiled for the CPU."""
