"""Collectives over direct links: recursive doubling, rings, all to all."""
