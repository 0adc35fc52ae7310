"""Position codes in activations: fitting them, taking them away, and controls of the same size."""
