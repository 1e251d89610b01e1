"""Interaction logs, their splits, and known data sets, as values. No torch."""
