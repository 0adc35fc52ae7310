"""Claims about speed and memory, each a ratio against a peer measured in the same run."""
