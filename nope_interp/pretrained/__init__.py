"""A hub name, a folder or a GGUF file becomes a hooked model."""
