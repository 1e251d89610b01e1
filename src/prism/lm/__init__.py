"""Language modelling from end to end: text in, a Hugging Face model out; evaluation and generation."""
