"""A table whose rows lie on several processes: looked up, learned from and summed over without ever being whole."""
