"""One rank's process: what outlives a migration, and everything outside of its training step."""
