"""The contract of a mixer, and the parts that mixers share."""
