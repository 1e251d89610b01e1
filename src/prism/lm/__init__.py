"""Language modelling from end to end: text in, a Hugging Face model out; evaluation and generation."""

from prism.errors import needs

needs("transformers", "tokenizers", "accelerate", "safetensors", "rich", extra="lm")
