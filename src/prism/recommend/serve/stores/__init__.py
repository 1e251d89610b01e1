"""Where events are kept: a file (SQLite), or a server that several machines share (Redis, PostgreSQL)."""
