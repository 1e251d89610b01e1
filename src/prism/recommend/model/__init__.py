"""The recommender's network: item table, backbone, scores."""
