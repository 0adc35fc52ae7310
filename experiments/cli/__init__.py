"""The command `nope-interp`."""
