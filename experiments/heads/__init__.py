"""Classifying attention heads, with positions intact and taken away."""
