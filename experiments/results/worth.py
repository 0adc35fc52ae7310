"""The least that is worth a name. Needs nothing."""

# Of a gain over chance, or of a share of what a model does: our choice.
WORTH_NAMING = 0.1
