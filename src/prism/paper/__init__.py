"""The tables and figures of the paper, one module or folder for each."""

from prism.errors import needs

needs("tyro", "rich", "matplotlib", extra="cli,plots")
