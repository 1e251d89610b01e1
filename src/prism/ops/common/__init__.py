"""What operators share: backends, precision, checks, sequences of different lengths."""
