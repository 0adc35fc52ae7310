"""Which model variants an experiment reads, and on which tokens."""
