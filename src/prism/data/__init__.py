"""Data as values: interaction logs, their splits, known data sets. Imports no torch; ask the modules by name."""
