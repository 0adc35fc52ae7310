"""Laws of models at random initialisation."""
