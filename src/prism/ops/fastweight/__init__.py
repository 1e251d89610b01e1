"""States that are networks, or solved serially: the non-linear solver, TTT, Titans, ATLAS."""
