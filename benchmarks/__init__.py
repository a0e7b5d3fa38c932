"""Benchmarks: each prints one JSON object as its last line; figures live with the command."""
