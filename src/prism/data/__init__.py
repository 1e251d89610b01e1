"""Data as values: interaction logs, their splits, known data sets. No torch; import the modules by name."""
