"""The body of a step: one attempt at it, and the vote that commits it."""
