"""Figures for a paper: the page's, drawn by matplotlib."""
