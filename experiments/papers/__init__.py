"""Each paper's claims, our measurement, and the difference: `nope-interp reproduce NAME`."""
