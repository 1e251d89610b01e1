"""Measurements of speed and memory, side by side with what a user would have instead."""
