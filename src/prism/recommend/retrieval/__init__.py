"""The best items of a large catalogue: approximate scores for all, exact ones for the few that may win."""
