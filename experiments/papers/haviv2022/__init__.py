"""Haviv et al. 2022: language models without positional encodings."""
