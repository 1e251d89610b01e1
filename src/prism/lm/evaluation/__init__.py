"""Perplexity, and the evaluation harness."""
