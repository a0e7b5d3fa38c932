"""Training programs that benchmarks start under ``trainmover run``."""
