"""What a person sees: tables on a terminal, figures in files."""
