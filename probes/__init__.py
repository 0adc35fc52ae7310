"""What can be read from activations. Takes tensors; has never heard of a model."""
