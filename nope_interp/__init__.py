"""Models whose activations we study, and the means to run and train them."""
