"""Communicators: what a process group delegates to, and can be swapped at a step boundary."""
