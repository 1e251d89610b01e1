"""Next-item recommendation as a task to train on."""
