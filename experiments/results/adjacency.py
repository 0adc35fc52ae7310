"""What figures call the three adjacency scores. Needs nothing."""

# metric of `probes.similarity` -> its name
ADJACENCY = {
    "adjacency_a": "A: all pairs, lower triangle",
    "adjacency_b": "B: neighbouring cells only",
    "adjacency_c": "C: both sides",
}
