"""Our models: a hooked transformer with a choice of positional encodings, and the Clockwork RNN."""
