"""Which positions a model has, layer by layer, and taking them away."""
