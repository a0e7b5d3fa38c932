"""Loaders beside the loop: what the program draws with ``next`` belongs to its state."""
