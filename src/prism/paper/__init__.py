"""The tables and figures of the paper, one module or folder for each."""
