"""Kim et al. 2025: the causal mask as positional information."""
