"""Collectives by Gloo and NCCL, in groups so small that a move replaces few."""
