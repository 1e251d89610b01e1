"""The language study: the paper's models, small, on one text."""
