"""Compiled forms of the operators for the CPU, and what they share: tiles, threads, compilation."""
