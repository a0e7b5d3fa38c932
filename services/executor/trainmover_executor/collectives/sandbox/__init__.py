"""Collectives of a standby: recorded results, and stand-ins."""
