"""Synthetic tasks and text, as batches of tokens."""
