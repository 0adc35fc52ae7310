"""The least that is worth a name. Needs nothing."""

# Of a gain over chance, or of a share of what a model does: our choice.
WORTH_NAMING = 0.1
# Of what another order of a text changes: where text further on changes less, a share of it says
# nothing of use.
NEXT_TO_NOTHING = 0.001
