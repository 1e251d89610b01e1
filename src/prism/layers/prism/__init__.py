"""PRISM in both readings of its equation, and the solver that they share."""

from prism.layers.prism.mixer import Prism, PrismConfig

__all__ = ["Prism", "PrismConfig"]
