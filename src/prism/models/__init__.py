"""Models: blocks around any mixer."""
