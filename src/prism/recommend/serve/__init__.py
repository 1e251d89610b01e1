"""The service: events in, recommendations out, live. Events are the truth; a user's state is a cache."""
