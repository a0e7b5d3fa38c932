"""Kinds of loaders, and how each finds a place."""
