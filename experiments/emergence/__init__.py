"""When position codes appear in training."""
