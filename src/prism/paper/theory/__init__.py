"""What the paper proves or argues, measured."""
