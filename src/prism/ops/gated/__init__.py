"""The recurrence with a decay per channel: definition, operands, chunk form, and its tree."""
