"""The recurrence in chunks on a GPU: forward, backward and one token."""
