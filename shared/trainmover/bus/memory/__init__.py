"""The bus in memory, for tests and simulations."""
