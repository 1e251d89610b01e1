"""A task joins data, a scorer or model, and its metrics."""
