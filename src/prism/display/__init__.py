"""What a person sees: tables on a terminal, figures in files."""

from prism.errors import needs

needs("rich", extra="cli")
