"""Live users: a state of fixed size per user, moved on by each event."""
