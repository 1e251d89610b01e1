"""Complete runs as functions: the tables and figures of the paper."""
