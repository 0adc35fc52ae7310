"""Position codes moved inside a running model, or taken away, and what it then does."""
