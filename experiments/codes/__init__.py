"""Taking position codes away from a running model, and what it then loses."""
