"""One sequence over several processes, each with a segment of it: the recurrence and the short convolution, exact."""
