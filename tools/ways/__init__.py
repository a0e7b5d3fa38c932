"""Counts the files that a gradient, a move and a crash pass at a rank: ``python -m tools.ways``."""
