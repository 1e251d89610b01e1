"""A Hugging Face causal language model around any mixer."""
