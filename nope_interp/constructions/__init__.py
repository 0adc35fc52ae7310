"""Theorems as weights: models written by hand, read with ordinary hooks. One module per paper."""
