"""The position codes that can be taken away. Needs no torch."""

CODES = ("variance", "similarity", "counting", "positional vectors")
