"""A run on disk: its folder, the model made of it for production, and how training goes on."""
