"""How notes of a run begin that a terminal tells, too. Needs nothing."""

# Why removal decides alone.
UNMOVED = "No position was moved:"
# Why much may be undecided.
FEWER = "This run read"
