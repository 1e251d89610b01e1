"""Measurements of speed and memory, side by side with what a user would have instead."""

from prism.errors import needs

needs("tyro", "rich", "matplotlib", extra="cli,plots")
