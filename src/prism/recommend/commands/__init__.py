"""The commands of the recommender."""
