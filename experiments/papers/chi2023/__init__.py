"""Chi et al. 2023: variance shrinks with position."""
