"""Gelberg et al. 2025: dropping positional embeddings after training."""
