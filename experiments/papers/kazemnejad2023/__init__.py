"""Kazemnejad et al. 2023: positional encodings and length generalisation."""
