"""Generators of the reference in the documentation."""
