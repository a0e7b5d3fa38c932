"""Migrations: requested, decided by policy, steered by operators."""
