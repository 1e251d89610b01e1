"""Text as documents, tokenizers, and packed tokens on disk."""
