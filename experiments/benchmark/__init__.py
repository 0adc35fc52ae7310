"""The judge of the instrument: what methods say of models whose truth is known."""
