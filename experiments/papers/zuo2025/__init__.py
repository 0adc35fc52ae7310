"""Zuo et al. 2025: position in the similarity of nearby embeddings."""
