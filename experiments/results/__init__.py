"""Measurements, and the rules that turn them into words. Knows no torch."""
