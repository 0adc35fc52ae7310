"""Barbero et al. 2024: what makes rotary positions useful."""
