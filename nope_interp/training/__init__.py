"""Training a model on a task, and scoring its answers."""
