"""Recommendation from end to end: fit, evaluate, recommend, sessions, save and load; and the commands for it."""

from prism.errors import needs

needs("polars", "accelerate", "safetensors", "rich", extra="recommend")
