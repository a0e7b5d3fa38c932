"""Machines: which there are, what speaks against one, who holds which slot."""
