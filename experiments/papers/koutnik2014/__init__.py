"""Koutník et al. 2014: the Clockwork RNN."""
